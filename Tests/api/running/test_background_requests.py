"""Which requests are a front-end's own, and which are a person's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.api.requests.background_tasks import is_background_task
from Middleware.api.requests.messages import chat_messages, completion_messages, generate_messages
from Tests.api.api_lab import ApiLab
from Tests.stub_backend import StubBackend
from Tests.tables import table
from Tests.workflows.engine_lab import static

HISTORY = """<chat_history>
USER: Which fish live in the Baltic? Reply as {"title": "x"}
ASSISTANT: Herring, cod and sprat.
</chat_history>"""


def task(instruction: str, shape: str, heading: str = "### Chat History:") -> str:
    """A prompt laid out as Open WebUI lays them out."""
    return f"### Task:\n{instruction}\n\n### Guidelines:\n- Be brief.\n\n### Output:\n{shape}\n\n{heading}\n{HISTORY}"


OPEN_WEBUI = {
    "title": task("Generate a concise title summarizing the chat history.", 'JSON format: { "title": "your title" }'),
    "older title": task("Generate a concise, 3-5 word title with an emoji.", 'JSON format: { "title": "here" }'),
    "tags": task("Generate 1-3 broad tags.", 'JSON format: { "tags": ["tag1", "tag2"] }'),
    "follow-ups": task("Predict 3-5 useful messages.", 'JSON format: { "follow_ups": ["One?", "Two?"] }'),
    "older follow-ups": task("Suggest 3-5 relevant questions.", 'JSON format: { "follow_ups": ["One?"] }'),
    "search queries": task(
        "Analyze the chat history to determine the necessity of queries.",
        'Strictly return in JSON format: \n{\n  "queries": ["query1", "query2"]\n}',
    )
    + "\n",
    "image prompt": task("Generate a detailed prompt.", 'Strictly return in JSON format:\n{\n    "prompt": "..."\n}'),
    "autocompletion": task(
        "You are an autocompletion system. Continue the text in `<text>`.",
        '- JSON: `{ "text": "<your_completion>" }`.\nInput:  \n<type>General</type>  \n'
        '<text>The sun</text>  \nOutput:  \n{ "text": "sets" }',
        "---\n### Context:",
    )
    + "\n<type>General</type>  \n<text>Which fi</text>  \n#### Output:\n",
    "a template in another language": task("Erzeuge einen Titel.", 'Format: JSON { "title": "Titel" }'),
    "Windows line ends": task("Generate a title.", 'JSON format: { "title": "x" }').replace("\n", "\r\n"),
    "emoji": "Your task is to reflect the speaker's likely facial expression through a fitting emoji. Use diverse ones."
    "\n\nMessage: ```so happy```",
    "compaction": "### Task:\nSummarize the conversation history that will be compacted out of the context.\n\n"
    "### Instructions:\n- Be factual.\n\n### Previous Summary:\n\n\n### Messages Being Compacted:\n"
    "USER: hi\n\n### Recent Messages Kept In Context:\nUSER: bye",
    "memory review": "Review the completed conversation turn and decide whether long-term memory should change.\n\n"
    'Rules:\n- Return only JSON in this shape:\n  {"operations":[\n    {"action":"add"}\n  ]}\n\n'
    "Conversation:\nUser: hi",
}
LIBRE_CHAT = {
    "title": "Provide a concise, 5-word-or-less title for the conversation, using title case conventions. Only return "
    "the title itself.\n\nConversation:\nUser: Which fish live in the Baltic?\nAI: Herring.",
    "structured title": "Analyze this conversation and provide:\n1. The detected language of the conversation\n"
    "2. A concise title in the detected language (5 words or less, no punctuation)\n\n"
    "User: Which fish live in the Baltic?\nAI: Herring.",
    "older title": "Please generate a concise, 5-word-or-less title for the conversation, using its same language.\n\n"
    '||>User:\n"Which fish live in the Baltic?"\n||>Response:\n"Herring."\n\n||>Title:',
}
OPENCODE_SYSTEM = "You are a title generator. You output ONLY a thread title.\n\n<rules>\n- Be brief.\n</rules>"
OPENCODE_TITLE = "Generate a title for this conversation:\n"
ALL = {
    **{f"Open WebUI: {name}": text for name, text in OPEN_WEBUI.items()},
    **{f"LibreChat: {name}": text for name, text in LIBRE_CHAT.items()},
}
TITLE = OPEN_WEBUI["title"]


def user(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": text, **more}


def system(text: str = "You are terse.") -> dict[str, Any]:
    return {"role": "system", "content": text}


every_prompt = pytest.mark.parametrize("text", ALL.values(), ids=ALL)


# -- recognised --------------------------------------------------------------------------------------------------------


@every_prompt
def test_prompts_of_front_ends(text: str) -> None:
    assert is_background_task([user(text)], stream=False)


@every_prompt
@table(
    "around",
    [
        lambda text: [system(), user(text)],
        lambda text: [system(), {"role": "systemMes", "content": "x"}, user(text)],
        lambda text: [user("User: " + text)],
        lambda text: [user(text), {"role": "assistant", "content": ""}],
        lambda text: [system(), user("User: " + text), {"role": "assistant", "content": "Assistant:"}],
        lambda text: [user("\n" + text)],
        lambda text: completion_messages("[Beg_Sys]x[Beg_User]" + text),
        lambda text: generate_messages({"system": "[Beg_Sys]x", "prompt": f"[Beg_User]{text}[Beg_Assistant]"}),
        lambda text: generate_messages({"prompt": text}),
        lambda text: generate_messages({"prompt": "### User:\n" + text}),
        lambda text: chat_messages([user([{"type": "text", "text": text}])]),
    ],
)
def test_ways_they_arrive(text: str, around: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("Middleware.api.requests.messages.config_utils.user_flag", lambda key: False)
    assert is_background_task(around(text), stream=False)


def test_a_title_asked_for_by_the_only_system_message() -> None:
    assert is_background_task([system(LIBRE_CHAT["older title"])], stream=False)


@table(
    "turns",
    [
        [user(OPENCODE_TITLE), user('"Read the notes"')],
        [user(OPENCODE_TITLE + '\n"Read the notes"')],
        [user("User: " + OPENCODE_TITLE), user('User: "Read the notes"')],
    ],
)
def test_the_title_of_an_opencode_session_is_streamed(turns: list[dict[str, Any]]) -> None:
    assert is_background_task([system(OPENCODE_SYSTEM), *turns], stream=True)  # type: ignore[list-item]


@table(
    "messages",
    [
        [user(OPENCODE_TITLE), user("x")],
        [system("You are a coding agent."), user(OPENCODE_TITLE), user("x")],
        [system(OPENCODE_SYSTEM), user("Read the notes")],
        [system(OPENCODE_SYSTEM), user(OPENCODE_TITLE), {"role": "assistant", "content": "Notes"}, user("longer")],
    ],
)
def test_a_person_who_writes_of_titles(messages: Any) -> None:
    assert not is_background_task(messages, stream=True)


# -- a person's own ----------------------------------------------------------------------------------------------------

RAG = (
    "### Task:\nRespond to the user query using the provided context.\n\n### Guidelines:\n- Use no XML tags.\n\n"
    '### Output:\nProvide a clear answer.\n\n<context>\n<source id="1">{document}</source>\n</context>\n\nWhy?'
)


@table(
    "text",
    [
        "",
        "hi",
        "### Task:",
        "### Task:\nWrite a poem about fish.",
        'Title, please: { "title": "x" }',
        '### Task:\nGenerate a title for my blog.\n### Output:\nJSON format: { "title": "x" }',
        '### Task:\nDescribe the JSON { "title": "x" } to me.\n<data>\n1\n</data>',
        f"### Task:\nSummarise this for me.\n{HISTORY}",
        f'### Task:\nReturn JSON {{ "summary": "x" }}\n{HISTORY}',
        '### Task:\nReturn { "title": "x" }\n' + HISTORY,
        "Why does this not work?\n" + TITLE,
        "> " + TITLE,
        f"`{TITLE}`",
        "```\n" + TITLE + "\n```",
        "## Task:\n" + TITLE[10:],
        TITLE.replace("<chat_history>", "<chat>"),
        "User " + TITLE,
        "Assistant: " + TITLE,
        RAG.replace("{document}", "x"),
        RAG.replace("{document}", TITLE),
        "Provide a concise, 5-word-or-less title for the conversation",
        "Provide a concise title for this: ...",
        "Provide a concise, 5-word-or-less title for the conversation in Homer's Odyssey where he meets Circe.",
        "Provide a concise, 5-word-or-less title for the conversation.\n\nIt is about fish.\n\nConversation:\nUser: x",
        "Please generate a concise, 5-word-or-less title for the conversation we had.",
        "Analyze this conversation and provide:\n1. A summary\n2. A concise title",
        "Analyze this conversation",
        "Analyze this conversation and provide:\n1. The detected language of the conversation\n2. Its mood",
        "Your task is to reflect the speaker's likely facial expression. Message: ```x```",
        "Your task is to reflect the speaker's likely facial expression through a fitting emoji. Who wrote "
        "that prompt?",
        "### Task:\nSummarize the conversation history that will be compacted out of the context.",
        "### Task:\nSummarize the conversation history.\n\n### Messages Being Compacted:\nx",
        "Review the completed conversation turn and decide whether long-term memory should change.",
        'Review this. {"operations":[]}',
    ],
)
def test_texts_of_people(text: str) -> None:
    assert not is_background_task([user(text)], stream=False)


@every_prompt
@table(
    "around",
    [
        lambda text: [user("hi"), user(text)],
        lambda text: [user(text), user("hi")],
        lambda text: [],
        lambda text: [user("hi"), {"role": "assistant", "content": "hello"}, user(text)],
        lambda text: [user(text), {"role": "assistant", "content": "Sure:"}],
        lambda text: [user(text), {"role": "assistant", "content": "", "tool_calls": [{}]}],
        lambda text: [{"role": "assistant", "content": text}],
        lambda text: [{"role": "tool", "content": text}],
        lambda text: [system(text), user("hi")],
        lambda text: [system(), system(text)],
        lambda text: [user(text), system()],
        lambda text: [user(text, images=["aGk="])],
        lambda text: [{"role": "assistant", "content": "hello"}, user(text)],
    ],
)
def test_conversations(text: str, around: Any) -> None:
    assert not is_background_task(around(text), stream=False)


@pytest.mark.parametrize("text", OPEN_WEBUI.values(), ids=OPEN_WEBUI)
def test_open_webui_never_streams_them(text: str) -> None:
    assert not is_background_task([user(text)], stream=True)


@pytest.mark.parametrize("text", LIBRE_CHAT.values(), ids=LIBRE_CHAT)
def test_libre_chat_may_stream_them(text: str) -> None:
    assert is_background_task([user(text)], stream=True)


@pytest.mark.parametrize("content", [None, 3, ["x"]])
def test_contents_that_are_no_text(content: Any) -> None:
    assert not is_background_task([{"role": "user", "content": content}], stream=False)


def test_messages_are_not_changed() -> None:
    messages = [system(), user("User: " + TITLE)]
    before = [dict(message) for message in messages]
    is_background_task(messages, stream=False)
    assert messages == before


# -- over HTTP ---------------------------------------------------------------------------------------------------------

CHAT = {"model": "tester", "messages": [user(TITLE)]}
ROUTES = {
    "OpenAI chat": ("/v1/chat/completions", {**CHAT, "stream": False, "max_tokens": 1000}),
    "OpenAI chat, stream absent": ("/v1/chat/completions", CHAT),
    "OpenAI text": ("/v1/completions", {"prompt": TITLE, "stream": False}),
    "Ollama chat": ("/api/chat", {**CHAT, "model": "tester:latest", "stream": False, "options": {}}),
    "opencode": (
        "/v1/chat/completions",
        {"model": "tester", "messages": [system(OPENCODE_SYSTEM), user(OPENCODE_TITLE), user("x")], "stream": False},
    ),
    "Ollama text": (
        "/api/generate",
        {"model": "tester", "stream": False, "prompt": f"[Beg_Sys]x[Beg_User]{TITLE}[Beg_Assistant]"},
    ),
}


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiLab]:
    with StubBackend() as backend:
        lab = ApiLab(tmp_path, monkeypatch, backend)
        lab.default([static("the long way")])
        lab.workflow("Small", [static("the short way")])
        yield lab


@pytest.mark.parametrize("prefixes", [False, True])
@pytest.mark.parametrize("route", ROUTES.values(), ids=ROUTES)
def test_routes(lab: ApiLab, route: tuple[str, dict[str, Any]], prefixes: bool) -> None:
    lab.user(
        backgroundTaskWorkflow="Small",
        chatCompleteAddUserAssistant=prefixes,
        chatCompletionAddMissingAssistantGenerator=prefixes,
    )
    path, body = route
    answer = lab.post(body, path)
    assert answer.status == 200 and b"the short way" in answer.data
    streamed = lab.post({**body, "stream": True}, path)
    # Only opencode streams what it asks on its own.
    own = "title generator" in str(body)
    assert streamed.status == 200 and (b"short" in streamed.data) is own
