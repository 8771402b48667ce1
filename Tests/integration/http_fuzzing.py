"""Requests as no client sends them: the real shapes, bent; and bytes that are no request at all."""

from __future__ import annotations

import copy
import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPResponse
from typing import Any

from hypothesis import strategies as st

from Tests.corpora import texts_of

POSTS = (
    "/v1/chat/completions",
    "/chat/completions",
    "/v1/completions",
    "/completions",
    "/api/chat",
    "/api/generate",
    "/v1/responses",
    "/responses",
    "/v1/responses/input_tokens",
    "/v1/messages",
    "/v1/v1/messages",
    "/messages/count_tokens",
    "/v1/embeddings",
    "/api/embed",
    "/api/embeddings",
    "/api/v1/generate",
    "/api/extra/generate/stream",
    "/api/extra/tokencount",
)
GETS = (
    "/v1/models",
    "/models",
    "/api/tags",
    "/api/version",
    "/health",
    "/api/show",
    "/v1/embeddings",
    "/",
    "/static/x",
    "/v1/models/x",
    "/favicon.ico",
)
METHODS = ("POST", "GET", "DELETE", "PUT", "PATCH", "HEAD", "OPTIONS", "TRACE", "BREW")
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
HUGE = 10**30


class Raw(str):
    """Text that goes into the JSON as it is, quotes or not."""


@dataclass(frozen=True)
class Wire:
    """A request: what is on its first line, its headers besides those that frame it, and its body."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""

    def data(self) -> bytes:
        lines = [
            f"{self.method} {self.target} HTTP/1.1",
            "Host: 127.0.0.1",
            "Connection: close",
            f"Content-Length: {len(self.body)}",
            *(f"{name}: {value}" for name, value in self.headers),
        ]
        return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + self.body


@dataclass
class Answer:
    """What came back; ``status`` 0: nothing."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


def send(port: int, data: bytes, method: str = "POST", timeout: float = 15.0) -> Answer:
    """The answer to a request; status 0 if there is none in ``timeout`` seconds."""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout) as sock:
        try:
            sock.sendall(data)
        except OSError:
            pass  # refused while it was still being sent
        response = HTTPResponse(sock, method=method)
        try:
            response.begin()
            return Answer(
                response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
            )
        except (ConnectionError, TimeoutError):
            return Answer(0)
        except (HTTPException, ValueError) as error:
            raise AssertionError(f"the answer is no HTTP: {error!r}") from error


# -- values ------------------------------------------------------------------------------------------------------------

HOSTILE = [*texts_of("template_injection"), *texts_of("traversal_names")]
IDS = [text for text in texts_of("traversal_names") if len(text) < 400]

texts = st.one_of(
    st.text(max_size=30),
    st.sampled_from(HOSTILE),
    st.sampled_from(["", " ", "\0", "\x1b[2J", "\ud800", "a\udfffb", "\u202e", "x" * 70_000, "é" * 300]),
)
tags = st.builds("{}[DiscussionId]{}[/DiscussionId]{}".format, texts, st.one_of(st.sampled_from(IDS), texts), texts)
contents = st.one_of(texts, tags, st.none())
models = st.one_of(
    st.sampled_from(["fuzz", "ann:fuzz", "fuzz:latest", "", "x" * 5000, ":", "ann:../fuzz", "../../x"]),
    texts,
    st.none(),
)
numbers = st.one_of(st.integers(), st.floats(), st.sampled_from([HUGE, -HUGE, 2**63, float("nan"), float("inf"), -0.0]))
junk = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, texts),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=5,
)
roles = st.one_of(st.sampled_from(["user", "assistant", "system", "tool", "systemMes", "developer", "USER", ""]), texts)
images = st.sampled_from(
    [
        PIXEL,
        f"data:image/png;base64,{PIXEL}",
        "data:,",
        "not base64 %%",
        "http://127.0.0.1:1/x.png",
        "file:///etc/passwd",
        "",
        "data:image/png;base64,AAAA",
    ]
)
calls = st.fixed_dictionaries(
    {"function": st.fixed_dictionaries({"name": texts, "arguments": junk})},
    optional={"id": texts, "type": st.just("function"), "index": numbers},
)
parts = st.one_of(
    st.fixed_dictionaries({"type": st.just("text"), "text": contents}),
    st.builds(lambda url: {"type": "image_url", "image_url": {"url": url}}, images),
    st.builds(
        lambda data: {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}, images
    ),
    junk,
)
messages = st.lists(
    st.fixed_dictionaries(
        {"role": roles, "content": st.one_of(contents, contents, st.lists(parts, max_size=3))},
        optional={
            "images": st.lists(images, max_size=2),
            "tool_calls": st.lists(calls, max_size=2),
            "name": texts,
            "tool_call_id": texts,
        },
    ),
    min_size=1,
    max_size=4,
)
tools = st.lists(
    st.fixed_dictionaries(
        {"type": st.just("function"), "function": st.fixed_dictionaries({"name": texts, "parameters": junk})}
    ),
    max_size=2,
)
optional = {
    "stream": st.booleans(),
    "tools": tools,
    "tool_choice": junk,
    "temperature": numbers,
    "max_tokens": numbers,
    "options": junk,
    "n": numbers,
    "user": texts,
    "stop": junk,
    "response_format": junk,
    "stream_options": junk,
}

SHAPES: dict[str, st.SearchStrategy[Any]] = {
    "/v1/chat/completions": st.fixed_dictionaries({"model": models, "messages": messages}, optional=optional),
    "/api/chat": st.fixed_dictionaries({"model": models, "messages": messages}, optional=optional),
    "/v1/completions": st.fixed_dictionaries({"model": models, "prompt": contents}, optional=optional),
    "/api/generate": st.fixed_dictionaries(
        {"model": models, "prompt": contents},
        optional={
            **optional,
            "system": contents,
            "images": st.lists(images, max_size=2),
            "raw": st.booleans(),
            "context": junk,
            "template": texts,
            "keep_alive": junk,
        },
    ),
    "DELETE": st.fixed_dictionaries({"request_id": texts}),
}

# The Responses API of OpenAI.
names = st.one_of(st.sampled_from(["find", "Find", "crm", "web_search", "x" * 70, ""]), texts)
ids = st.one_of(st.sampled_from(["call_1", "fc_1", "msg_1", "resp_" + "0" * 32, ""]), texts)
# Bending makes enough of the others, which these two APIs refuse.
known_roles = st.sampled_from(["user", "assistant", "system"])
item_parts = st.one_of(
    st.builds(
        lambda kind, text: {"type": kind, "text": text},
        st.sampled_from(["input_text", "output_text", "text", "summary_text", "refusal"]),
        contents,
    ),
    st.builds(lambda url: {"type": "input_image", "image_url": url}, images),
    st.builds(
        lambda data: {"type": "input_file", "filename": "a.txt", "file_data": data},
        st.sampled_from(["data:text/plain;base64,aGk=", "data:application/pdf;base64,aGk=", "data:text/plain,%ff", ""]),
    ),
    junk,
)
item_contents = st.one_of(contents, st.lists(item_parts, max_size=3))
items = st.one_of(
    st.fixed_dictionaries(
        {"role": known_roles, "content": item_contents}, optional={"type": st.just("message"), "id": ids}
    ),
    st.fixed_dictionaries(
        {
            "type": st.sampled_from(
                ["function_call", "custom_tool_call", "tool_search_call", "local_shell_call", "mcp_call"]
            ),
            "call_id": ids,
        },
        optional={"name": names, "namespace": names, "arguments": junk, "input": junk, "action": junk},
    ),
    st.fixed_dictionaries(
        {
            "type": st.sampled_from(["function_call_output", "custom_tool_call_output", "tool_search_output"]),
            "call_id": ids,
        },
        optional={"output": st.one_of(item_contents, junk), "tools": junk},
    ),
    st.fixed_dictionaries(
        {"type": st.sampled_from(["item_reference", "reasoning", "compaction", "additional_tools"])},
        optional={"id": ids, "summary": junk, "tools": junk},
    ),
)
item_tools = st.lists(
    st.one_of(
        st.fixed_dictionaries(
            {"type": st.sampled_from(["function", "custom", "tool_search", "local_shell", "web_search"])},
            optional={
                "name": names,
                "parameters": junk,
                "description": texts,
                "format": junk,
                "execution": st.sampled_from(["client", "server"]),
            },
        ),
        st.fixed_dictionaries({"type": st.just("namespace"), "name": names, "tools": junk}),
    ),
    max_size=3,
)
SHAPES["/v1/responses"] = st.fixed_dictionaries(
    {"model": models, "input": st.one_of(contents, st.lists(items, max_size=4))},
    optional={
        "stream": st.booleans(),
        "instructions": item_contents,
        "tools": item_tools,
        "tool_choice": st.one_of(
            st.fixed_dictionaries(
                {"type": st.sampled_from(["function", "allowed_tools"])}, optional={"name": names, "tools": junk}
            ),
            junk,
        ),
        "previous_response_id": st.one_of(st.none(), ids),
        "store": junk,
        "metadata": junk,
        "text": junk,
        "reasoning": junk,
        "temperature": numbers,
        "max_output_tokens": junk,
        "include": junk,
        "user": junk,
    },
)
SHAPES["/responses"] = SHAPES["/v1/responses/input_tokens"] = SHAPES["/v1/responses"]

# The Messages API of Anthropic.
sources = st.one_of(
    st.fixed_dictionaries({"type": st.just("base64"), "media_type": texts, "data": images}),
    st.builds(lambda url: {"type": "url", "url": url}, images),
    st.fixed_dictionaries(
        {"type": st.sampled_from(["text", "content", "file"])}, optional={"data": contents, "content": junk}
    ),
)
plain_blocks = st.one_of(
    st.fixed_dictionaries({"type": st.just("text"), "text": contents}),
    st.fixed_dictionaries(
        {"type": st.sampled_from(["image", "document"]), "source": st.one_of(sources, junk)}, optional={"title": junk}
    ),
    st.fixed_dictionaries(
        {"type": st.just("search_result")}, optional={"content": junk, "title": junk, "source": junk}
    ),
    st.fixed_dictionaries({"type": st.just("tool_reference")}, optional={"tool_name": names}),
    junk,
)
blocks = st.one_of(
    plain_blocks,
    st.fixed_dictionaries({"type": st.just("tool_use"), "id": ids, "name": names}, optional={"input": junk}),
    st.fixed_dictionaries(
        {"type": st.just("tool_result"), "tool_use_id": ids},
        optional={"content": st.one_of(contents, st.lists(plain_blocks, max_size=2)), "is_error": junk},
    ),
    st.fixed_dictionaries({"type": st.sampled_from(["thinking", "redacted_thinking"])}, optional={"thinking": junk}),
)
SHAPES["/v1/v1/messages"] = SHAPES["/messages/count_tokens"] = SHAPES["/v1/messages"] = st.fixed_dictionaries(
    {
        "model": models,
        "messages": st.lists(
            st.fixed_dictionaries({"role": known_roles, "content": st.one_of(contents, st.lists(blocks, max_size=3))}),
            max_size=4,
        ),
    },
    optional={
        "stream": st.booleans(),
        "system": st.one_of(contents, st.lists(plain_blocks, max_size=2)),
        "max_tokens": st.one_of(numbers, junk),
        "thinking": st.one_of(
            st.fixed_dictionaries(
                {"type": st.sampled_from(["enabled", "adaptive", "disabled"])}, optional={"display": texts}
            ),
            junk,
        ),
        "tools": st.lists(
            st.one_of(
                st.fixed_dictionaries(
                    {"name": names}, optional={"input_schema": junk, "defer_loading": junk, "type": texts}
                ),
                junk,
            ),
            max_size=3,
        ),
        "tool_choice": st.one_of(
            st.fixed_dictionaries({"type": st.sampled_from(["auto", "any", "none", "tool"])}, optional={"name": names}),
            junk,
        ),
        "thread": st.none(),
        "stop_sequences": junk,
        "metadata": junk,
    },
)

SHAPES["/v1/embeddings"] = SHAPES["/api/embed"] = SHAPES["/api/embeddings"] = st.fixed_dictionaries(
    {"model": models},
    optional={
        "input": st.one_of(contents, st.lists(contents, max_size=3), junk),
        "prompt": contents,
        "encoding_format": st.sampled_from(["float", "base64", "x"]),
        "dimensions": numbers,
    },
)
# KoboldCpp's API.
SHAPES["/api/v1/generate"] = st.fixed_dictionaries(
    {"prompt": contents},
    optional={
        "max_length": numbers,
        "stop_sequence": junk,
        "images": st.lists(images, max_size=2),
        "sampler_order": junk,
    },
)
SHAPES["/api/extra/generate/stream"] = SHAPES["/api/extra/tokencount"] = SHAPES["/api/v1/generate"]
SHAPES["/chat/completions"] = SHAPES["/v1/chat/completions"]
SHAPES["/completions"] = SHAPES["/v1/completions"]


# -- bending -----------------------------------------------------------------------------------------------------------


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) inside a JSON value."""
    for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from places(value[key])


@st.composite
def bent(draw: st.DrawFn, shapes: st.SearchStrategy[Any]) -> Any:
    """A value of the shape; in most cases with something lost, doubled, or of another type."""
    value = copy.deepcopy(draw(shapes))
    for _ in range(draw(st.integers(0, 2))):
        found = list(places(value))
        if not found:
            break
        container, key = found[draw(st.integers(0, len(found) - 1))]
        kind = draw(st.sampled_from(["lose", "replace", "replace", "wrap", "deep"]))
        if kind == "lose":
            del container[key]
        elif kind == "replace":
            container[key] = draw(junk)
        elif kind == "wrap":
            container[key] = [container[key]]
        else:
            container[key] = nested(draw(st.sampled_from([50, 900])))
    return value


def nested(depth: int) -> Any:
    value: Any = "x"
    for number in range(depth):
        value = [value] if number % 2 else {"a": value}
    return value


@st.composite
def bodies(draw: st.DrawFn, shapes: st.SearchStrategy[Any]) -> bytes:
    if draw(st.integers(0, 9)) == 0:
        return draw(raw_bodies)
    value = draw(bent(shapes))
    if draw(st.booleans()):
        return json.dumps(value).encode("ascii")
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


raw_bodies = st.one_of(
    st.binary(max_size=60),
    st.sampled_from(
        [
            b"",
            b"null",
            b"[]",
            b"5",
            b'"x"',
            b"{}",
            b"\xef\xbb\xbf{}",
            b"[" * 100_000,
            b'{"messages":' * 5000,
            b"\0" * 10,
            b'{"messages": [{"role": "user", "content": "a"}], "n": ' + b"9" * 5000 + b"}",
            b'{"model": "fuzz", "model": 5, "messages": 1, "messages": []}',
            b'{"a": 1e999999}',
            b"--x\r\nContent-Disp",
        ]
    ),
    st.builds(lambda text: text.encode("utf-16"), st.sampled_from(['{"messages": []}', "null"])),
)

header_texts = st.one_of(
    st.sampled_from(["", "*", "x" * 2000, "é", "\xff", "\t", "../../x", "{x.__class__}", "0", "-1", "null", "gzip"]),
    st.text(st.characters(min_codepoint=32, max_codepoint=255, exclude_characters="\x7f"), max_size=20),
)
headers = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "Authorization",
                "Content-Type",
                "Accept",
                "X-Idempotency-Key",
                "X-Request-Id",
                "Cookie",
                "Expect",
                "Accept-Encoding",
                "Range",
                "If-None-Match",
                "X-Forwarded-For",
                "User-Agent",
                "Origin-Agent",
                "Content-Encoding",
                "X-Wilmer",
                "Upgrade",
                "Forwarded",
                "X-HTTP-Method-Override",
            ]
        ),
        st.one_of(header_texts, st.builds("Bearer {}".format, st.sampled_from(["k", "", "é", "../x", "k k", "{x}"]))),
    ),
    max_size=3,
).map(tuple)
queries = st.sampled_from(["", "", "", "?", "?a=b", "?stream=true&model=x", "?%00", "?" + "a" * 3000, "?a[]=%ff&a=1"])


@st.composite
def api_requests(draw: st.DrawFn) -> Wire:
    """A request that reaches a handler, or nearly."""
    target = draw(st.sampled_from(POSTS))
    body = draw(bodies(SHAPES[target]))
    return Wire("POST", target + draw(st.sampled_from(["", "", "", "/"])) + draw(queries), draw(headers), body)


@st.composite
def odd_requests(draw: st.DrawFn) -> Wire:
    """Any method at any path, with any body."""
    paths = st.one_of(
        st.sampled_from([*POSTS, *GETS]),
        st.sampled_from(
            [
                "*",
                "http://evil.example/v1/models",
                "//x/y",
                "/v1/../v1/models",
                "/%2e%2e/%2e%2e/etc/passwd",
                "/v1/models%00",
                "/%ff",
                "/v1/chat/completions;x",
                "/api/chat\\",
                "/" + "a" * 5000,
                "?",
                "/v1//models",
                "/API/TAGS",
                "/é",
            ]
        ),
    )
    shape = draw(st.sampled_from(["DELETE", "/api/chat"]))
    return Wire(draw(st.sampled_from(METHODS)), draw(paths) + draw(queries), draw(headers), draw(bodies(SHAPES[shape])))


RAW_REQUESTS = st.one_of(
    st.binary(max_size=80),
    st.sampled_from(
        [
            b"GET\r\n\r\n",
            b"GET /\r\n\r\n",
            b"\r\n\r\n\r\n",
            b"GET / HTTP/9.9\r\n\r\n",
            b"GET /v1/models HTTP/1.0\r\n\r\n",
            b"POST /api/chat HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n{}",
            b"POST /api/chat HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n{}",
            b"POST /api/chat HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n{}",
            b"POST /api/chat HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}x",
            b"POST /api/chat HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
            b"POST /api/chat HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
            b"POST /api/chat HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n-2\r\n{}\r\n0\r\n\r\n",
            b"POST /api/chat HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
            b"POST /api/chat HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{}",
            b"GET / HTTP/1.1\r\nHost: x\r\nA\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: x\r\n A: b\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"x" * 300_000 + b"\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 5000 + b"\r\n",
            b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
            b"GET / HTTP/1.1\nHost: x\n\n",
            b"GET / HTTP/1.1\r\n\r\n",
            b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n",
            b"GET /a b HTTP/1.1\r\nHost: x\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: x\r\nA\0: b\0\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        ]
    ),
)
