"""What the back-ends must be asked, worked out by hand from the files of the tree."""

from __future__ import annotations

from typing import Any

from Tests.integration.old_configuration.installation import said

Messages = list[dict[str, str]]


def chat(system: str, *turns: str) -> Messages:
    """A system message and turns, the last of which is the user's."""
    roles = [("user", "assistant")[(len(turns) - 1 - index) % 2] for index in range(len(turns))]
    return [
        {"role": "system", "content": system},
        *({"role": role, "content": turn} for role, turn in zip(roles, turns, strict=True)),
    ]


def chatml(system: str, user: str) -> str:
    """A prompt in the template ``chatml-old`` with an open assistant turn, trimmed."""
    return f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant"


EVERYONE_OPENAI = {"temperature": 0.3, "top_p": 1, "stop": ["<|END|>"], "stream": False}
EVERYONE_OLLAMA = {"temperature": 0.6, "num_ctx": 8192, "num_predict": 400}
EVERYONE_KOBOLD = {"temperature": 0.3, "rep_pen": 1.05, "stream": False, "max_context_length": 8192}
CODING = {"temperature": 0.1, "top_p": 0.95, "presence_penalty": 0, "stream": False}
ASKED = "Say: Topic: MODELS."

COMPANION = {
    "prompt": "/no_think <|im_start|>system\nYou are the companion. Be kind.<|im_end|>\n"
    f"<|im_start|>user\n{said(0)}<|im_end|>\n<|im_start|>assistant\n{said(1)}"
    "<|im_start|>user\nTopic: NOTHING.<|im_end|>\n<|im_start|>assistant<think>\n\n</think>\n\n",
    "temperature": 0.7,
    "top_k": 100,
    "top_a": 0,
    "top_p": 0.92,
    "min_p": 0,
    "typical": 1,
    "tfs": 1,
    "rep_pen": 1.1,
    "rep_pen_range": 320,
    "rep_pen_slope": 1,
    "sampler_order": [6, 0, 1, 3, 4, 2, 5],
    "stop_sequence": ["<|im_end|>"],
    "max_length": 300,
    "max_context_length": 8192,
    "stream": False,
}
SORTER = {
    "model": "llama3:8b",
    "stream": False,
    "raw": True,
    "options": {"temperature": 0.6, "repeat_penalty": 1.1, "num_ctx": 8192, "num_predict": 50},
    "prompt": "You are the sorter. Answer CODING or REASONING or FACTUAL or CREATIVE WRITING or MODELS."
    "\n- CODING\n- REASONING\n- FACTUAL\n- CREATIVE WRITING\n- MODELS\n"
    "\n- CODING: anything about programs\n- REASONING: puzzles\n- FACTUAL: facts that an encyclopedia has"
    "\n- CREATIVE WRITING: stories\n- MODELS: asks every model\n"
    "['CODING', 'REASONING', 'FACTUAL', 'CREATIVE WRITING', 'MODELS'] ['anything about programs', 'puzzles', "
    "'facts that an encyclopedia has', 'stories', 'asks every model']"
    "USER: The analyst answers. Latest: Topic: CODING.\nASSISTANT:",
}
PLANNER = {
    **CODING,
    "model": "coder-32b",
    "max_tokens": 800,
    "messages": [
        *chat("[sys] You are the planner.", f"[ask] Plan this: {said(1)}\nTopic: CODING."),
        {"role": "assistant", "content": "Sure: "},
    ],
}
CODER = {
    **CODING,
    "model": "coder-32b",
    "max_tokens": 400,
    "messages": [
        *chat("[sys] You are the coder. Plan: The planner answers.", said(0), said(1), "[ask] Topic: CODING."),
        {"role": "assistant", "content": "Sure: "},
    ],
}
THINKER = {
    "temperature": 0.9,
    "stream": False,
    "max_tokens": 400,
    "messages": chat("You are the thinker. Doubts: No doubt.", "Topic: REASONING."),
}
LIBRARIAN = {
    **EVERYONE_KOBOLD,
    "max_length": 400,
    "prompt": "/no_think "
    + chatml(
        "You are the librarian.",
        "Full text.|Best text.|Title: T3\nThird.\n\n--- END ARTICLE ---\n\nTitle: T4\nFourth.|"
        "Title: T5\nFifth.\n\n--- END SUMMARY ---\n\nTitle: T6\nSixth.",
    )
    + "<think>\n\n</think>\n\n",
}
NOVELIST = {
    **CODING,
    "model": "coder-32b",
    "max_tokens": 750,
    "messages": [
        *chat("[sys] You are the novelist. First: dry {brace}", "[ask] In 1999-12-31, be dry."),
        {"role": "assistant", "content": "Sure: "},
    ],
}
CRITIC = {
    **CODING,
    "model": "coder-32b",
    "max_tokens": 400,
    "messages": [
        *chat("[sys] You are the critic. dry {brace}/750/5 The novelist answers.", "[ask] Topic: CREATIVE WRITING."),
        {"role": "assistant", "content": "Sure: "},
    ],
}
POET = {
    "temperature": 1.2,
    "stream": False,
    "model": "coder-32b",
    "max_tokens": 400,
    "messages": [
        *chat("[sys] You are the poet. dry default", "[ask] Topic: CREATIVE WRITING."),
        {"role": "assistant", "content": "Sure: "},
    ],
}
MODELS: dict[str, dict[str, Any]] = {
    "claude": {
        "model": "claude-x",
        "system": "You are the claude.",
        "messages": chat("", ASKED)[1:],
        "max_tokens": 111,
        "temperature": 0.5,
        "top_k": 40,
        "stream": False,
    },
    "llamacpp": {
        "messages": chat("You are the llamacpp.", ASKED),
        "temperature": 0.8,
        "min_p": 0.05,
        "stream": False,
        "chat_template_kwargs": {"enable_thinking": False},
        "truncation_length": 8192,
        "n_predict": 400,
    },
    "mlx": {**EVERYONE_OPENAI, "model": "mlx-model", "messages": chat("You are the mlx.", ASKED)},
    "webui": {
        "model": "webui-model",
        "messages": chat("You are the webui.", ASKED),
        "temperature": 0.9,
        "custom_token_bans": "",
        "stream": False,
        "max_tokens": 400,
    },
    "ollama": {
        "model": "llama3:8b",
        "messages": chat("You are the ollama.", ASKED),
        "stream": False,
        "think": False,
        "options": EVERYONE_OLLAMA,
    },
    "llava": {
        "model": "llava:7b",
        "messages": chat("You are the llava.", ASKED),
        "stream": False,
        "think": False,
        "options": EVERYONE_OLLAMA,
    },
    "completer": {
        **EVERYONE_OPENAI,
        "model": "davinci",
        "max_tokens": 400,
        "prompt": f"You are the completer.\n\n### Instruction\n{ASKED}\n\n### Response:",
    },
    "blocker": {
        **EVERYONE_OPENAI,
        "model": "davinci",
        "max_tokens": 400,
        "prompt": f"You are the blocker.\n\n### Response:\n\n### Instruction\n{ASKED}",
    },
}

MEMORIES = ("Old memory one: the ledger.", "Old memory two.", "Old memory three.")
NEW_MEMORY = "The memory keeper answers."
ALL_MEMORIES = (*MEMORIES, NEW_MEMORY)


def listed(memories: tuple[str, ...]) -> str:
    """Memories as prompts show them."""
    return "\n--------------\n".join(memories)


MEMORY_KEEPER = {
    **EVERYONE_KOBOLD,
    "max_length": 250,
    "prompt": chatml(
        "You are the memory keeper. Summary: Old summary.",
        f"Newest: {listed(MEMORIES)}\nAll: {listed(MEMORIES)}\n"
        f"Now: User: {said(4)}\nAssistant: {said(5)}\nUser: {said(6)}",
    ),
}
SUMMARIZER = {
    **EVERYONE_KOBOLD,
    "max_length": 500,
    "prompt": chatml(
        "You are the summarizer.", "Known: Old summary.\nNew: " + "\n------------\n".join(ALL_MEMORIES[1:])
    ),
}
WORKERS = [
    {
        **EVERYONE_KOBOLD,
        "max_length": 60,
        "prompt": chatml(f"You are the worker. Of {listed(ALL_MEMORIES)}", f"Shorten: {memory}"),
    }
    for memory in ALL_MEMORIES
]
CLERKS = [
    chat(f"You are the clerk. {listed(ALL_MEMORIES[1:])}", "one"),
    chat(f"You are the clerk. {listed((*ALL_MEMORIES[2:], 'The clerk answers.'))}", "two"),
]
STORYTELLER = chat(
    "You are the storyteller.",
    "\n".join(
        (
            "1=" + " / ".join(MEMORIES),
            "2=Old summary.",
            "3=" + " + ".join(MEMORIES[1:]),
            "4=" + "--ChunkBreak--".join(ALL_MEMORIES),
            "5=Old summary.",
            "6=The summarizer answers.",
            "8=Be kind.\n" + "\n".join(map(said, range(9))),
            f"9={MEMORIES[0]}",
            "11=Old part, compacted.",
            "12=" + 4 * "The worker answers.",
            "13=" + 2 * "The clerk answers.",
        )
    ),
)
WATCHMAN = [
    {"role": "system", "content": "You are the watchman."},
    {"role": "user", "content": f"(Tuesday, 2024-01-02 10:06:00) User: {said(6)}"},
    {"role": "assistant", "content": f"(Tuesday, 2024-01-02 10:07:00) Assistant: {said(7)}"},
    {"role": "user", "content": f"(Tuesday, 2024-01-02 10:08:00) User: {said(8)}"},
    {"role": "assistant", "content": "Assistant:"},
]
GUIDE = chat("You are the guide. Here: naïve café", "The ledger is in the café.|The document writer answers.")
SMITH = chat(
    "You are the smith.",
    "\n".join(
        (
            "2=tinkerer 2 3 ok",
            "3=Error processing request in module 'Tool'. no key. Details: {'a': 1}",
            "4=Friendly | Patient",
            "5=Custom instruction file did not exist",
            "6=2.5",
            "7=TRUE",
            "8=a-1-None-2.5",
            "9=fixed",
            "11=Brno",
            "12=calm",
            "13=c",
            "14=The describer answers.",
            "15=Page & text",
            "16=curled",
            "17={'text': '2.5'}",
            "18=Researched.\n\nSources:\n- Atlas :: Mills",
            "19=Researched.",
            "20=ConversationChunkProcessor 'log' processed 2 chunk(s).",
        )
    ),
)
