"""A stub of an LLM server, so that a fresh clone answers before any model is connected.

It speaks enough of two dialects for a workflow and for a person with curl: OpenAI (``/v1/chat/completions``,
``/v1/completions``, ``/v1/models``) and Ollama (``/api/chat``, ``/api/generate``, ``/api/tags``). There is no model
behind it: answers are a fixed function of the request, and each answer to a person says so. Standard library only,
loopback only. ``Scripts/demo_backend.py`` runs it by itself.
"""
from __future__ import annotations

import argparse
import json
import os
import re
import socket
import socketserver
import sys
import threading
import time
import urllib.request
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

DEFAULT_PORT = 5055
# Slow enough that streaming can be seen.
SECONDS_PER_WORD = 0.04
MODEL = "wilmerai-demo"
MARK = "[WilmerAI demo back-end, not a language model]"
# Conversations with images can be large; a client that sends more is not a chat.
MAX_BODY_BYTES = 64 * 1024 * 1024
# Only this many characters at the end of a message are analysed, so that long ones cost little time.
MAX_TEXT = 20_000

# ---------------------------------------------------------------------------------------------------------------------
# What it says. Nothing here knows the prompts of any workflow; it reacts to common ways of asking.

CHOOSE = re.compile(r"\b(choose|pick|select|classif\w*|categor\w*|decide|which of)\b", re.I)
SUMMARISE = re.compile(r"\b(summar\w*|condense|shorten|tl;?dr|boil down)\b", re.I)
OUTLINE = re.compile(r"\b(outline|plan|list|notes|points|steps|analy[sz]e)\b", re.I)
BULLET = re.compile(r"^[ \t]*(?:[-*\u2022]|\d+[.)])[ \t]+([\w /-]{1,40}?)[ \t]*(?::[ \t]*(.*))?$", re.M)
INLINE = re.compile(r"\b([A-Z][A-Z0-9_]+): ([^;\n]+)(?:;|$)", re.M)
ALTERNATIVES = re.compile(r"\b[A-Z][A-Z0-9_]+(?:(?:, or |, | or )[A-Z][A-Z0-9_]+)+\b")
SECTION = re.compile(r"^<([A-Za-z][\w-]*)>[ \t]*\n(.*?)\n</\1>", re.M | re.S)
JSON_SAMPLE = re.compile(r'\{\s*"(\w+)"\s*:\s*(["\[])')
STOP_WORDS = frozenset(
    "a about above after all also an and any anything are as assistant at be because but by can could do does else "
    "every everything for from get give has have help here how i if in into is it its just let like make me more my "
    "new no not of on one or other out please show so some something tell than that the their them then there these "
    "they this to too up us use user using want was we were what when where which who why will with would write you "
    "your".split()
)


def _words(text: str) -> list[str]:
    """Return the significant words of a text in order, in lower case, without their endings."""
    plain = [word for word in re.findall(r"\w+", text.lower()) if word not in STOP_WORDS]
    return [re.sub(r"(?<=\w{3})(?:ies|ing|es|ed|(?<!s)s|y|e)$", "", word) for word in plain]


def _quote(text: str, limit: int) -> str:
    words = re.sub("[\u201c\u201d]", "", text.replace(MARK, "")).split()
    return "\u201c" + " ".join(words[:limit]) + (" \u2026" if len(words) > limit else "") + "\u201d"


def _options(text: str) -> dict[str, str]:
    """Return the choices that a text offers, name -> description; {} if it offers fewer than two."""
    found = dict(BULLET.findall(text))
    if len(found) < 2:
        found = dict(INLINE.findall(text))
    if len(found) < 2:
        found = {name: "" for run in ALTERNATIVES.findall(text) for name in re.split(r", or |, | or ", run)}
    return found if len(found) > 1 else {}


def _choose(options: dict[str, str], lines: list[str]) -> str:
    """Return the option with most words in the newest line that has words of any; the last option if there is none."""
    offered = {name: set(_words(f"{name} {description}")) for name, description in options.items()}
    seen_in = Counter(word for own in offered.values() for word in own)
    for line in reversed(lines):
        said = {word for word in _words(line) if seen_in[word] == 1}
        best = max(offered, key=lambda name: len(said & offered[name]))
        if said & offered[best]:
            return best
    return list(options)[-1]


def _summarise(text: str) -> str:
    """Return the first sentence and the one with the most frequent words, cut to 40 words."""
    sentences = [part for part in re.split(r"(?<=[.!?])\s+", " ".join(text.replace(MARK, "").split())) if part]
    counts = Counter(_words(text))
    ranked = sorted(sentences[1:], key=lambda part: -sum(counts[word] for word in _words(part)) / (len(part) + 20))
    short = " ".join(sentences[:1] + ranked[:1]).split()
    return " ".join(short[:40]) + (" \u2026" if len(short) > 40 else "")


def _describe(system: str, asked: str, question: str) -> str:
    """Return a description of what the workflow sent, in place of a model's answer."""
    instruction = re.split(r"(?<=[.!?:])\s", SECTION.sub("", system).strip())[0].rstrip(".:")
    text = f"{MARK}\n\nYou asked: {_quote(question, 25)}\n\nA language model would answer here. What I can show is how "
    text += "the workflow put the question to me. "
    text += f"My instruction begins {_quote(instruction, 20)}. " if instruction else "I was given no instruction. "
    earlier = [f"{name} ({_quote(body, 12)})" for name, body in SECTION.findall(system)]
    text += f"Earlier steps handed me: {' and '.join(earlier)}." if earlier else ""
    return text.rstrip() + "\n\nPoint the endpoint file at your own LLM to get real answers."


def answer(messages: list[dict[str, Any]]) -> str:
    """Return the answer to a list of chat messages (role, content)."""
    texts = [(message.get("role"), _text(message.get("content"))[-MAX_TEXT:]) for message in messages]
    system = "\n".join(text for role, text in texts if role in ("system", "developer"))
    users = [text for role, text in texts if role == "user"]
    asked = users[-1] if users else texts[-1][1] if texts else ""
    material = "\n".join(body for _, body in SECTION.findall(asked)) or asked
    lines = [line for line in material.splitlines() if line.strip() and not re.fullmatch(r"\s*\w+:\s*", line)]
    instructions = SECTION.sub("", asked).strip()
    question = re.sub(r"(?i)^\s*(?:user|human):\s*", "", lines[-1] if lines and material != asked else asked)

    options = _options(system)
    if not options:
        options, lines = _options(asked), [line for line in lines if not BULLET.match(line)]
    sample = JSON_SAMPLE.findall(asked)
    if sample and "json" in asked.lower():
        title = "Demo: " + " ".join(word for word in question.split() if word.lower() not in STOP_WORDS)[:50]
        return json.dumps({sample[-1][0]: title if sample[-1][1] == '"' else [title]}, ensure_ascii=False)
    if options and CHOOSE.search(f"{system}\n{instructions}"):
        return _choose(options, lines)
    told = "\n".join([system.split(".")[0], *instructions.splitlines()[:1], *instructions.splitlines()[-1:]])
    if SUMMARISE.search(told):
        text = " ".join(part for part in re.split(r"(?<=[:.!?])\s+|\n", material) if not SUMMARISE.search(part))
        # Too short to summarise: "Summarise that" refers to the earlier messages.
        if len(text.split()) < 12:
            earlier = [said for role, said in texts if role in ("user", "assistant") and said != asked]
            text = "\n".join(earlier) or material
        return f"{MARK}\n\nIn short, by counting words: {_summarise(text)}"
    if material != asked and OUTLINE.search(told):
        topics = list(dict.fromkeys(word for word in re.findall(r"\w+", question) if word.lower() not in STOP_WORDS))
        return "\n".join([MARK, *(f"{number}. About {word}" for number, word in enumerate(topics[:5], start=1))])
    return _describe(system, asked, question)


# ---------------------------------------------------------------------------------------------------------------------
# How it says it: the two dialects over HTTP/1.1.


def _text(content: Any) -> str:
    """Return the text of a message's content or a completion prompt: a string, null, or a list of parts or strings."""
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, dict) else part for part in content]
        return "\n".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""


@dataclass(frozen=True)
class Reply:
    """An answer cut into words (each with the white space behind it), and what the dialects tell about it."""

    words: list[str]
    finish_reason: str
    prompt_tokens: int

    @property
    def text(self) -> str:
        return "".join(self.words)

    @property
    def usage(self) -> dict[str, int]:
        """OpenAI usage; one word counts as one token."""
        total = self.prompt_tokens + len(self.words)
        return {"prompt_tokens": self.prompt_tokens, "completion_tokens": len(self.words), "total_tokens": total}


def _make_reply(messages: list[dict[str, Any]], limit: Any) -> Reply:
    words = re.findall(r"\S+\s*", answer(messages))
    allowed = limit if isinstance(limit, int) and limit > 0 else len(words)
    prompt_tokens = sum(len(_text(message.get("content")).split()) for message in messages)
    return Reply(words[:allowed], "length" if len(words) > allowed else "stop", prompt_tokens)


class Dialect:
    """Renders a reply as one body or as stream events; `key` is where the text goes."""

    def __init__(self, body: dict[str, Any], key: str) -> None:
        self.body = body
        self.key = key
        self.created = int(time.time())

    def whole(self, reply: Reply) -> dict[str, Any]:
        raise NotImplementedError

    def event(self, token: str, reply: Reply | None = None) -> bytes:
        """Return one piece of a stream, framed; with `reply` it is the last one and `token` is empty."""
        raise NotImplementedError

    def first(self) -> bytes:
        """Return the bytes before the first word."""
        return b""


class OpenAIDialect(Dialect):
    """Chat completions (`key` "message") and text completions (`key` "text"); streams are SSE."""

    media_type = "text/event-stream; charset=utf-8"
    streams_by_default = False

    def __init__(self, body: dict[str, Any], key: str) -> None:
        super().__init__(body, key)
        self.chat = key == "message"
        self.id = ("chatcmpl-" if self.chat else "cmpl-") + uuid.uuid4().hex

    def _object(self, kind: str, choices: list[dict[str, Any]], usage: dict[str, int] | None = None) -> dict[str, Any]:
        data = {"id": self.id, "object": kind, "created": self.created, "model": MODEL, "choices": choices}
        return data if usage is None else {**data, "usage": usage}

    def _choice(self, key: str, value: Any, reason: str | None) -> dict[str, Any]:
        return {"index": 0, key: value, "logprobs": None, "finish_reason": reason}

    def whole(self, reply: Reply) -> dict[str, Any]:
        value: Any = {"role": "assistant", "content": reply.text} if self.chat else reply.text
        kind = "chat.completion" if self.chat else "text_completion"
        return self._object(kind, [self._choice(self.key, value, reply.finish_reason)], reply.usage)

    def _sse(self, delta: Any, reason: str | None) -> bytes:
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        choice = self._choice("delta" if self.chat else "text", delta, reason)
        return b"data: " + _dump(self._object(kind, [choice])) + b"\n\n"

    def first(self) -> bytes:
        return self._sse({"role": "assistant", "content": ""}, None) if self.chat else b""

    def event(self, token: str, reply: Reply | None = None) -> bytes:
        if reply is None:
            return self._sse({"content": token} if self.chat else token, None)
        out = self._sse({} if self.chat else "", reply.finish_reason)
        options = self.body.get("stream_options")
        if isinstance(options, dict) and options.get("include_usage"):
            kind = "chat.completion.chunk" if self.chat else "text_completion"
            out += b"data: " + _dump(self._object(kind, [], reply.usage)) + b"\n\n"
        return out + b"data: [DONE]\n\n"


class OllamaDialect(Dialect):
    """Chat (`key` "message") and generate (`key` "response"); streams are one JSON object per line."""

    media_type = "application/x-ndjson"
    streams_by_default = True

    def _object(self, token: str, reply: Reply | None) -> dict[str, Any]:
        value: Any = {"role": "assistant", "content": token} if self.key == "message" else token
        data = {"model": MODEL, "created_at": _now(), self.key: value, "done": reply is not None}
        if reply is None:
            return data
        spent = int((time.time() - self.created) * 1e9)
        counters = {"total_duration": spent, "load_duration": 0, "prompt_eval_count": reply.prompt_tokens}
        counters |= {"prompt_eval_duration": 0, "eval_count": len(reply.words), "eval_duration": spent}
        return {**data, "done_reason": reply.finish_reason, **counters}

    def whole(self, reply: Reply) -> dict[str, Any]:
        return self._object(reply.text, reply)

    def event(self, token: str, reply: Reply | None = None) -> bytes:
        return _dump(self._object(token, reply)) + b"\n"


ROUTES: dict[str, tuple[type[OpenAIDialect] | type[OllamaDialect], str]] = {
    "/v1/chat/completions": (OpenAIDialect, "message"),
    "/v1/completions": (OpenAIDialect, "text"),
    "/api/chat": (OllamaDialect, "message"),
    "/api/generate": (OllamaDialect, "response"),
}


def _dump(data: Any) -> bytes:
    return json.dumps(data, ensure_ascii=False).encode("utf-8", errors="replace")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _listing(path: str) -> dict[str, Any] | None:
    """The body for a GET route, or None if there is no such route."""
    if path == "/v1/models":
        return {"object": "list", "data": [{"id": MODEL, "object": "model", "created": 0, "owned_by": "wilmerai"}]}
    if path == "/api/tags":
        entry = {"name": MODEL, "model": f"{MODEL}:latest", "modified_at": "2025-01-01T00:00:00Z", "size": 0}
        return {"models": [{**entry, "digest": "0" * 64, "details": {"format": "demo", "family": "demo"}}]}
    if path == "/api/version":
        return {"version": "0.9"}
    if path == "/":
        return {"name": MODEL, "about": "The demo back-end of WilmerAI. It holds no language model."}
    return None


def _messages(body: dict[str, Any]) -> list[dict[str, Any]]:
    """The request as chat messages; a completion's prompt is one user message. ValueError if there is neither."""
    given = body.get("messages")
    if isinstance(given, list) and all(isinstance(message, dict) for message in given):
        return given
    if "prompt" not in body or given is not None:
        raise ValueError("The request needs 'messages' (a list of objects) or 'prompt'.")
    prompt = re.sub(r"<\|[^|>]*\|>|\[/?INST\]|</?s>", "\n", _text(body["prompt"]))
    system = [{"role": "system", "content": body["system"]}] if body.get("system") else []
    return [*system, {"role": "user", "content": prompt.strip()}]


def _limit(body: dict[str, Any]) -> Any:
    """The most words the client wants, under whichever name the dialects have for it."""
    options = body.get("options")
    given = {**body, **options} if isinstance(options, dict) else body
    names = ("max_completion_tokens", "max_tokens", "n_predict", "num_predict")
    return next((given[name] for name in names if given.get(name)), None)


class DemoHandler(BaseHTTPRequestHandler):
    """One connection, kept alive between requests."""

    protocol_version = "HTTP/1.1"
    server_version = "WilmerAIDemo"
    disable_nagle_algorithm = True
    # Seconds without a request after which a connection is closed.
    timeout = 120
    server: DemoServer

    def do_GET(self) -> None:
        body = _listing(self._path())
        self._send_json(200 if body else 404, body or {"error": {"message": f"No route {self._path()}"}})

    do_HEAD = do_GET

    def do_POST(self) -> None:
        try:
            body = self._read_body()
            route = ROUTES.get(self._path())
            if route is None:
                return self._send_json(404, {"error": {"message": f"No route {self._path()}"}})
            dialect = route[0](body, route[1])
            reply = _make_reply(_messages(body), _limit(body))
        except ValueError as error:
            return self._send_json(400, {"error": {"message": str(error), "type": "invalid_request_error"}})
        if body.get("stream", dialect.streams_by_default):
            self._send_stream(dialect.media_type, self._paced(dialect, reply))
        else:
            self._send_json(200, dialect.whole(reply))
        return None

    def _path(self) -> str:
        return self.path.split("?")[0].rstrip("/") or "/"

    def _read_body(self) -> dict[str, Any]:
        """The request's JSON object. ValueError if it is none; then the connection ends after the answer."""
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > MAX_BODY_BYTES:
            self.close_connection = True
            raise ValueError(f"Content-Length is missing or over {MAX_BODY_BYTES} bytes.")
        try:
            body = json.loads(self.rfile.read(int(length)))
        except ValueError:
            raise ValueError("The body is not valid JSON.") from None
        if not isinstance(body, dict):
            raise ValueError("The body is not a JSON object.")
        return body

    def _paced(self, dialect: Dialect, reply: Reply) -> Iterator[bytes]:
        opening = dialect.first()
        if opening:
            yield opening
        for word in reply.words:
            self._wait(self.server.delay)
            yield dialect.event(word)
        yield dialect.event("", reply)

    def _wait(self, seconds: float) -> None:
        """Lets time pass; ConnectionAbortedError as soon as the client closes its side."""
        self.connection.settimeout(max(seconds, 0.000_01))
        try:
            if not self.connection.recv(1, socket.MSG_PEEK):
                raise ConnectionAbortedError("the client closed the connection")
            # There are bytes: the client has already sent its next request.
            time.sleep(seconds)
        except TimeoutError:
            pass
        finally:
            self.connection.settimeout(self.timeout)

    def _send_stream(self, media_type: str, events: Iterator[bytes]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", media_type)
        self.send_header("Cache-Control", "no-cache")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in events:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
        self.wfile.write(b"0\r\n\r\n")

    def _send_json(self, status: int, data: dict[str, Any]) -> None:
        payload = _dump(data)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(payload)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(payload)

    def log_message(self, format: str, *args: Any) -> None:
        if self.server.verbose:
            super().log_message(format, *args)


class DemoServer(ThreadingHTTPServer):
    """The server; `delay` is the pause before each streamed word in seconds."""

    daemon_threads = True
    request_queue_size = 128
    # On Windows this option would let two servers share the port.
    allow_reuse_address = os.name != "nt"

    def __init__(self, port: int, delay: float = SECONDS_PER_WORD, verbose: bool = False) -> None:
        self.delay = delay
        self.verbose = verbose
        super().__init__(("127.0.0.1", port), DemoHandler)

    def server_bind(self) -> None:
        """Binds without the name lookup of HTTPServer, which takes seconds on some machines."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


def start(port: int = 0, delay: float = SECONDS_PER_WORD) -> DemoServer:
    """Starts serving on a daemon thread (port 0 = any free one; see `.url`). OSError if the port is taken.

    End it with `shutdown()` and `server_close()`, or just end the process.
    """
    server = DemoServer(port, delay)
    threading.Thread(target=server.serve_forever, name="demo-backend", daemon=True).start()
    return server


def is_running(port: int = DEFAULT_PORT) -> bool:
    """Return whether a demo back-end, and not another server, already answers on this port."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://127.0.0.1:{port}/", timeout=1) as response:
            body = json.loads(response.read(4096))
    except (OSError, ValueError):
        return False
    return isinstance(body, dict) and body.get("name") == MODEL


def main(arguments: list[str] | None = None) -> int:
    """The command line. Returns the exit status."""
    parser = argparse.ArgumentParser(description="A stub of an LLM server, without a model.")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help=f"default {DEFAULT_PORT}")
    parser.add_argument("--delay", type=float, default=SECONDS_PER_WORD, help="seconds before each streamed word")
    options = parser.parse_args(arguments)
    try:
        server = DemoServer(options.port, max(0.0, options.delay), verbose=True)
    except (OSError, OverflowError) as error:
        print(f"Cannot listen on 127.0.0.1:{options.port}: {error}. Choose another one with --port.", file=sys.stderr)
        return 1
    print(f"WilmerAI demo back-end (no language model) at {server.url}; Ctrl-C ends it.", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()
    return 0
