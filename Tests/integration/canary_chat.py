"""A conversation about something nobody else talks of, and a search of every byte on disk for its words.

Every text that a person, a model, a page or a script says in it holds ``SENTENCE``. What tells that it is somewhere on
disk: its words in any spelling of the programs involved, its base64, and the bytes of its vectors.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import sqlite3
import struct
import threading
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from Tests.backend_dialects import Answer, Call, OpenAiChat, embed
from Tests.integration.launcher import USER, ConfigTree, api_type, child_node, endpoint, llm_node
from Tests.integration.memory_chat import EMBEDDING_MODEL, memory_tree
from Tests.stub_backend import (
    AFTER_PIECES,
    RecordedRequest,
    Reply,
    StubBackend,
    chat_answer,
    chat_chunk,
    json_reply,
    node_of,
    sse_reply,
    status_reply,
)

WORDS = ("Quetzalwibble", "vermilionkraken", "Zyxophant", "Квецалькоатль")
SENTENCE = f"{WORDS[0]} keeps the {WORDS[1]} under {WORDS[2]} and {WORDS[3]}"
FILES, VECTORS = USER, "bea"
"""The user whose memories are files, and the one whose memories are searched."""
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
IMAGE = "data:image/png;base64," + base64.b64encode(PIXEL + SENTENCE.encode()).decode()
_VECTOR = [1.2345678, -0.87654321, 3.14159]


# -- what to look for --------------------------------------------------------------------------------------------------


def needles() -> list[bytes]:
    """Lower-case byte strings of which none may be on disk.

    Beginnings of words are left out: an index of words may keep only what differs from the word before.
    """
    found: set[bytes] = set()
    for text in WORDS:
        for word in (text[3:], text[3:].lower()):
            found |= {
                word.encode(),
                word.encode("utf-16-le"),
                json.dumps(word).strip('"').encode(),
                quote(word).encode(),
                repr(word.encode())[2:-1].encode(),
            }
    return sorted({needle.lower() for needle in found} | set(_base64(SENTENCE.encode())))


def _base64(data: bytes) -> Iterator[bytes]:
    """The middle of what base64 makes of ``data`` at each place it may have in a longer text, in lower case."""
    for before in range(3):
        whole = base64.b64encode(b"x" * before + data)
        yield from (whole[8:-8].lower(), whole[8:-8].translate(bytes.maketrans(b"+/", b"-_")).lower())


def vector_bytes() -> bytes:
    return struct.pack(f"{len(_VECTOR)}f", *_VECTOR)


def hits(*places: Path) -> list[str]:
    """Files under ``places`` that hold what ``needles`` names, or whose names do, with the first such thing."""
    return [
        f"{file.name}: {found!r}" for place in places for file in sorted(place.rglob("*")) if (found := _first(file))
    ]


def _first(file: Path) -> bytes:
    data = os.fsencode(file.name).lower() + b"\n"
    try:
        content = file.read_bytes() if file.is_file() else b""
    except FileNotFoundError:
        # A server at work has removed it meanwhile, as it does with the journal of a database.
        content = b""
    if vector_bytes() in content:
        return b"vector"
    data += content.lower()
    return next((needle for needle in needles() if needle in data), b"")


def console_hits(console: Path) -> list[str]:
    """As ``hits``, in a folder of the run console: what is compressed in its databases is looked at, too."""
    found = hits(console)
    for file in sorted(console.glob("*.db")):
        with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True, timeout=60)) as database:
            tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            rows = [row for table in tables for row in database.execute(f"SELECT * FROM {table}")]
        for value in (value for row in rows for value in row if isinstance(value, bytes)):
            with contextlib.suppress(zlib.error):
                text = zlib.decompress(value).lower()
                found += [f"{file.name}: {needle!r}" for needle in needles() if needle in text]
    return found


def recorded(console: Path) -> int:
    """Return how many runs are on disk; -1 while one is at work, or before the first is written."""
    if not (console / "index.db").exists():
        return -1
    with closing(sqlite3.connect(f"{(console / 'index.db').as_uri()}?mode=ro", uri=True, timeout=60)) as database:
        rows = database.execute("SELECT ended FROM run").fetchall()
    return len(rows) if all(ended for (ended,) in rows) else -1


# -- who answers -------------------------------------------------------------------------------------------------------


class CanaryBackend(StubBackend):
    """Answers every node with the sentence, pages and embeddings included.

    ``broken``: what a node gets instead, once; ``seen(node)``: the last system prompt of that node.
    """

    def __init__(self) -> None:
        super().__init__()
        self.broken: dict[str, Reply] = {}
        self._prompts: dict[str, str] = {}
        self._lock = threading.Lock()
        self._calls = 0

    def seen(self, node: str) -> str:
        with self._lock:
            return self._prompts.get(node, "")

    def respond(self, request: RecordedRequest) -> Reply:
        if request.path.startswith("/page"):
            return Reply(body=f"page says: {SENTENCE}".encode(), headers={"Content-Type": "text/plain; charset=utf-8"})
        body, name = request.json, node_of(request)
        with self._lock:
            self._prompts[name] = json.dumps(body.get("messages", body.get("input")), ensure_ascii=False)
            broken = self.broken.pop(name, None)
        if broken is not None:
            return broken
        if name == "embed":
            return embed(request, lambda text: _VECTOR)
        with self._lock:
            self._calls += 1
            text = _text(name, self._calls)
        return chat_answer(request, [text[:30], text[30:]])


def _text(name: str, call: int) -> str:
    if name == "word":
        return WORDS[0]
    if name == "facts":
        return json.dumps(
            [
                {
                    "title": WORDS[0],
                    "summary": f"facts says: {SENTENCE}",
                    "entities": [WORDS[2]],
                    "key_phrases": [WORDS[1]],
                }
            ],
            ensure_ascii=False,
        )
    # A memory that only repeats the one before it is not stored, so each answer is another one.
    return f"{name} says: {SENTENCE} {call}"


def tool_call_reply() -> Reply:
    """A model that wants a tool called."""
    return OpenAiChat().reply(Answer((), "tool_calls", calls=(Call("note", {"text": SENTENCE}),)), stream=False)


ECHO = json_reply({"error": {"message": f"cannot take: {SENTENCE}"}}, 400)
NO_JSON = json_reply({"choices": f"{{{SENTENCE}"})
BROKEN = {  # what a back-end may answer, by whether it was asked for a stream
    False: (
        ECHO,
        NO_JSON,
        Reply(body=f"{{{SENTENCE}".encode()),
        status_reply(500, SENTENCE),
        Reply(body=f"<title>{SENTENCE}</title>".encode(), status=404),
    ),
    True: (
        ECHO,
        sse_reply([chat_chunk({"content": SENTENCE}), {"error": {"message": SENTENCE}}]),
        sse_reply([f"{{{SENTENCE}", {SENTENCE: 1}, "[DONE]"]),
        sse_reply([chat_chunk({"content": SENTENCE})], drop=AFTER_PIECES),
    ),
}


# -- what runs ---------------------------------------------------------------------------------------------------------

SCRIPT = """
import logging
import warnings

def Invoke(text, kind):
    logging.getLogger("of.a.script").warning("script says: %s", text)
    if kind == "generator":
        return stream(text)
    raise KeyError(text)

def stream(text):
    yield "begun "
    raise OSError(7, text, text)
"""
LAST, WORD = "{chat_user_prompt_last_one}", "{agent1Output}"
"""The newest message, and one word of a model."""


def canary_tree(public: Path, backend_url: str, *, encrypt: bool, redact: bool = False) -> ConfigTree:
    """Two users with the workflows ``Talk`` and those that fail; ``encrypt``: their ``encryptUsingApiKey``."""
    tree = memory_tree(public, backend_url, vector=False, rememberMessages=True)
    tree.write("ApiTypes/Chat.json", api_type())
    tree.write(
        "Endpoints/Embed.json",
        endpoint(backend_url, apiTypeConfigFileName="Embed", modelNameToSendToAPI=EMBEDDING_MODEL),
    )
    (public / "fail.py").write_text(SCRIPT, encoding="utf-8")
    shutil.copytree(tree.configs / "Workflows" / FILES, tree.configs / "Workflows" / VECTORS)
    _change(tree, f"Workflows/{VECTORS}/memory-settings.json", useVectorForQualityMemory=True)
    tree.write(f"Workflows/{VECTORS}/Remember.json", {"nodes": [{"type": "QualityMemory"}]})
    _change(tree, f"Users/{FILES}.json", encryptUsingApiKey=encrypt, redactLogOutput=redact)
    shutil.copyfile(tree.configs / f"Users/{FILES}.json", tree.configs / f"Users/{VECTORS}.json")
    tree.shared("Talk", *_talk(public, backend_url))
    for user in (FILES, VECTORS):
        tree.write(f"Workflows/{user}/Block.json", {"nodes": [llm_node("block", prompt="{agent1Input}")]})
    for name, nodes in _failures(public).items():
        tree.shared(name, *nodes)
    return tree


def _change(tree: ConfigTree, name: str, **keys: Any) -> None:
    tree.write(name, {**json.loads((tree.configs / name).read_text(encoding="utf-8")), **keys})


def _talk(public: Path, url: str) -> list[dict[str, Any]]:
    """Everything that handles text of a conversation, an answer that is told what was found, and the memories."""
    search = {"type": "VectorMemorySearch", "input": f"{WORD}; {LAST}", "useEntityExpansion": True}
    vision = {**llm_node("vision"), "type": "ImageProcessor", "saveVisionResponsesToDiscussionId": True}
    told = "|".join(f"{{agent{number}Output}}" for number in range(3, 13))
    return [
        llm_node("word"),
        {"type": "WorkflowLock", "workflowLockId": f"turn {LAST}"},
        {"type": "GetCurrentMemoryFromFile"},
        {"type": "GetCurrentSummaryFromFile"},
        search,
        {**search, "searchMode": "semantic", "semanticQuery": LAST, "embeddingEndpointName": "Embed"},
        {"type": "ConversationalKeywordSearchPerformerTool", "keywords": WORD},
        {"type": "MemoryKeywordSearchPerformerTool", "keywords": WORD, "searchTarget": "RecentMemories"},
        {"type": "GetCurrentStateDocument"},
        vision,
        {"type": "WebFetch", "url": f"{url}/page?q={WORD}", "onError": "return"},
        {"type": "PythonModule", "module_path": str(public / "fail.py"), "args": [LAST, "call"]},
        {"type": "WebFetch", "url": f"http://127.0.0.1:9/{WORD}?q={WORD}", "onError": "return"},
        {"type": "MCPToolCall", "server": WORD, "tool": WORD, "arguments": {"q": LAST}, "onError": "return"},
        {"type": "Conditional", "condition": f"{LAST} =="},
        {"type": "ArithmeticProcessor", "expression": LAST},
        {"type": "JsonExtractor", "jsonToExtractFrom": f'{{{{"a": {LAST}', "fieldToExtract": WORD},
        {"type": "TagTextExtractor", "tagToExtractFrom": LAST, "fieldToExtract": LAST},
        {"type": "DelimitedChunker", "content": LAST, "delimiter": "", "mode": "head", "count": LAST},
        {"type": "GetCustomFile", "filepath": f"{public}/{WORD}.txt", "headCount": LAST},
        {"type": "OfflineWikiApiFullArticle", "promptToSearch": LAST},
        {"type": "OfflineResearcherApiQuickSearch", "promptToSearch": LAST},
        {"type": "StringConcatenator", "strings": [LAST, "{no_such_variable}", "{agent1Output[nothing]}"]},
        {"type": "StaticResponse", "jinja2": True, "content": "{{ chat_user_prompt_last_one.nothing() }}"},
        llm_node("tools", allowTools=True, maxResponseSizeInTokens=WORD),
        llm_node("answer", returnToUser=True, addDiscussionIdTimestampsForLLM=True, systemPrompt=f"node:answer {told}"),
        child_node("Remember"),
        {
            "type": "ConversationChunkProcessor",
            "id": "blocks",
            "workflowName": "Block",
            "chunkSize": 2,
            "cursorDirectory": str(public / "cursors"),
        },
    ]


def _failures(public: Path) -> dict[str, list[dict[str, Any]]]:
    """Workflows that fail with a text of the conversation in the error, by the part that fails."""
    answer, word = llm_node("answer", returnToUser=True), llm_node("word")
    script = {"type": "PythonModule", "returnToUser": True, "args": [LAST, "generator"]}
    fetch = {"type": "WebFetch", "url": f"http://127.0.0.1:9/{WORD}?q={WORD}", "returnToUser": True}
    return {
        "Echo": [llm_node("echo", returnToUser=True)],
        "Later": [answer, llm_node("echo")],
        "Endpoint": [word, {**answer, "endpointName": WORD}],
        "Preset": [word, {**answer, "preset": WORD}],
        "Script": [{**script, "module_path": str(public / "fail.py")}],
        "NoScript": [{**script, "module_path": f"{LAST}.py"}],
        "Fetch": [word, fetch],
        "Url": [{**fetch, "url": LAST}],
        "Blocked": [word, {**fetch, "url": f"http://{WORD}.invalid/", "blockPrivateAddresses": True}],
        "Mcp": [{"type": "MCPToolCall", "server": LAST, "tool": LAST, "returnToUser": True}],
        "Curl": [
            word,
            {"type": "CurlCommand", "args": ["-sSf", f"http://127.0.0.1:9/?q={WORD}"], "returnToUser": True},
        ],
        "Rag": [
            {
                "type": "SlowButQualityRAG",
                "ragTarget": LAST,
                "ragType": "x",
                "prompt": "[TextChunk]",
                "systemPrompt": "node:echo",
                "endpointName": "Stub",
                "preset": "Plain",
                "returnToUser": True,
            }
        ],
    }


def conversation(discussion: str, count: int) -> list[dict[str, Any]]:
    """``count`` messages that all hold the sentence; the first of the user has the image."""
    messages: list[dict[str, Any]] = [
        {"role": ("user", "assistant")[number % 2], "content": f"Message {number}. {SENTENCE}. It is said again."}
        for number in range(count)
    ]
    messages[-1]["content"] = [
        {"type": "text", "text": messages[-1]["content"]},
        {"type": "image_url", "image_url": {"url": IMAGE}},
    ]
    return [{"role": "system", "content": f"[DiscussionId]{discussion}[/DiscussionId]Be kind. {SENTENCE}"}, *messages]


def _of_responses(chat: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    tools = [{"type": kind, "name": SENTENCE, "description": SENTENCE} for kind in ("function", "custom", SENTENCE)]
    schema = {"type": "json_schema", "name": SENTENCE, "schema": {"type": "object", "title": SENTENCE}}
    output = {"type": "function_call_output", "call_id": SENTENCE, "output": SENTENCE}
    for body in (
        {"input": SENTENCE, "instructions": SENTENCE, "metadata": {SENTENCE: SENTENCE}, "user": SENTENCE},
        {"input": chat[1:-1], "instructions": chat[0]["content"], "store": False, "text": {"format": schema}},
        {"input": SENTENCE, "previous_response_id": SENTENCE},
        {"input": {SENTENCE: SENTENCE}},
        {"input": [{"type": "item_reference", "id": SENTENCE}]},
        {"input": [SENTENCE]},
        {"input": [{"type": SENTENCE, "text": SENTENCE}, {"role": "user", "content": [{"type": SENTENCE}]}]},
        {"input": [{"role": SENTENCE, "content": SENTENCE}]},
        {"input": [output], "tools": SENTENCE},
        {"input": [{"role": "user", "content": [{"type": "input_file", "filename": SENTENCE, "file_data": SENTENCE}]}]},
        {"input": SENTENCE, "tools": [*tools, {"type": "namespace", "name": SENTENCE, "tools": tools}]},
        {"input": SENTENCE, "tools": tools, "tool_choice": {"type": "function", "name": SENTENCE}},
        {"input": SENTENCE, "tools": tools[2:], "tool_choice": {"type": "function", "name": f"{SENTENCE}!"}},
        {"input": SENTENCE, "tools": tools, "tool_choice": {"type": SENTENCE}},
        {"input": SENTENCE, "prompt": SENTENCE},
    ):
        yield "/v1/responses", body
        yield "/v1/responses/input_tokens", body


def _of_messages(chat: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    tools = [
        {"name": SENTENCE, "description": SENTENCE, "input_schema": {"type": "object"}},
        {"name": SENTENCE, "type": SENTENCE},
    ]
    said = [{"role": "user", "content": SENTENCE}]
    for body in (
        {"messages": chat[1:-1], "system": chat[0]["content"], "metadata": {"user_id": SENTENCE}},
        {"messages": said, "system": [{"type": SENTENCE, "text": SENTENCE}, {"type": "text", "text": SENTENCE}]},
        {"messages": [{"role": SENTENCE, "content": SENTENCE}]},
        {"messages": [SENTENCE]},
        {"messages": SENTENCE},
        {"messages": [{"role": "user", "content": {SENTENCE: 1}}]},
        {"messages": said, "thread": {SENTENCE: SENTENCE}},
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "document", "title": SENTENCE, "source": {"type": SENTENCE, "data": SENTENCE}}
                    ],
                }
            ]
        },
        {
            "messages": [
                *said,
                {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "id": SENTENCE, "name": SENTENCE, "input": {SENTENCE: SENTENCE}}],
                },
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": SENTENCE, "content": SENTENCE}]},
            ]
        },
        {"messages": said, "tools": tools},
        {"messages": said, "tools": SENTENCE, "container": SENTENCE},
        {"messages": said, "tools": tools, "tool_choice": {"type": "tool", "name": SENTENCE}},
        {"messages": said, "tools": tools[1:], "tool_choice": {"type": "tool", "name": f"{SENTENCE}!"}},
        {"messages": said, "tool_choice": {"type": SENTENCE}},
    ):
        yield "/v1/messages", {"max_tokens": 100, **body}
        yield "/v1/messages/count_tokens", body


def odd_requests(discussion: str) -> Iterator[tuple[str, bytes]]:
    """Other dialects, and bodies that are not what they should be; all hold the sentence."""
    chat = conversation(discussion, 3)
    plain = [{"role": "user", "content": SENTENCE}]
    model = f"{VECTORS}:Talk"
    for path, body in (
        ("/api/chat", {"messages": [*plain, {"role": "tool", "content": SENTENCE, "tool_name": SENTENCE}]}),
        ("/api/generate", {"prompt": SENTENCE, "system": SENTENCE}),
        ("/v1/completions", {"prompt": SENTENCE}),
        ("/v1/chat/completions", {"messages": SENTENCE}),
        ("/v1/chat/completions", {"messages": [SENTENCE]}),
        ("/v1/chat/completions", {"messages": [{"role": SENTENCE, "content": {SENTENCE: 1}}]}),
        ("/v1/chat/completions", {"messages": chat, "tools": SENTENCE, "tool_choice": SENTENCE}),
        (
            "/v1/chat/completions",
            {
                "messages": [
                    *plain,
                    {
                        "role": "assistant",
                        "tool_calls": [
                            {
                                "id": "c",
                                "type": "function",
                                "function": {"name": SENTENCE, "arguments": f"{{{SENTENCE}"},
                            }
                        ],
                    },
                ]
            },
        ),
        ("/v1/completions", {"prompt": [SENTENCE]}),
        ("/api/chat", {"messages": plain, "images": [SENTENCE]}),
        (
            "/v1/chat/completions",
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "image_url", "image_url": {"url": SENTENCE}}, {"type": SENTENCE}],
                    }
                ]
            },
        ),
        *_of_responses(chat),
        *_of_messages(chat),
        ("/v1/embeddings", {"input": SENTENCE}),
        ("/v1/embeddings", {"input": [], "encoding_format": SENTENCE}),
        ("/v1/embeddings", {"input": SENTENCE, "model": SENTENCE}),
        ("/api/embed", {"input": {SENTENCE: SENTENCE}}),
    ):
        for stream in (False, True):
            yield path, json.dumps({"model": model, "stream": stream, **body}).encode()
    yield "/v1/chat/completions", f'{{"model": "{model}", "messages": [{SENTENCE}'.encode()
    yield "/v1/chat/completions", f'{{"model": "{model}", "messages": "{SENTENCE}'.encode("utf-16")
    yield "/v1/chat/completions", json.dumps(SENTENCE).encode()
