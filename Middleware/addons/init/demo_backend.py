"""A stub of an LLM server, so that a fresh clone answers before any model is connected.

It speaks enough of two dialects for a workflow and for a user with curl: OpenAI (``/v1/chat/completions``,
``/v1/completions``, ``/v1/models``) and Ollama (``/api/chat``, ``/api/generate``, ``/api/tags``). There is no model
behind it: answers are a fixed function of the request, and each answer to a user says so. Standard library only,
loopback only. ``Scripts/demo_backend.py`` runs it by itself.
"""

from __future__ import annotations

import argparse
import json
import os
import re
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

# -- what it says ------------------------------------------------------------------------------------------------------
# Nothing here knows the prompts of any workflow; it reacts to common ways of asking.

CHOOSE = re.compile(r"\b(choose|pick|select|classif\w*|categor\w*|decide|which (?:of|route))\b", re.I)
# Names in capitals with a description need no bullet; the label of a conversation is not an option.
BULLET = re.compile(
    r"^[ \t]*(?:[-*\u2022][ \t]+|\d+[.)][ \t]+|(?!(?:USER|ASSISTANT|SYSTEM|HUMAN):)(?=[A-Z]{3,20}:))"
    r"([\w /-]{1,40}?)[ \t]*(?::[ \t]*(.*))?$",
    re.M,
)
SECTION = re.compile(r"^<([A-Za-z][\w-]*)>[ \t]*\n(.*?)\n</\1>", re.M | re.S)
# A task behind the message to which it refers, such as "Do not answer the message above yet."
TASK = re.compile(r"\n\n(?=[^\n.]*\bthe message above\b)", re.I)
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


def _choose(options: dict[str, str], lines: list[str]) -> str:
    """Return the option with most words in the newest line that has words of any; the last option without one."""
    offered = {name: set(_words(f"{name} {description}")) for name, description in options.items()}
    seen_in = Counter(word for own in offered.values() for word in own)
    for line in reversed(lines):
        # A word that several options have in common decides nothing.
        said = {word for word in _words(line) if seen_in[word] == 1}
        best = max(offered, key=lambda name: len(said & offered[name]))
        if said & offered[best]:
            return best
    return list(options)[-1]


def _describe(instructions: str, material: str, question: str) -> str:
    """Return a description of what the workflow sent, in place of a model's answer."""
    instruction = re.split(r"(?<=[.!?:])\s", SECTION.sub("", instructions).strip())[0].rstrip(".:")
    text = f"{MARK}\n\nYou asked: {_quote(question, 25)}\n\nA language model would answer here. What I can show is how "
    text += "the workflow put the question to me. "
    text += f"My instruction begins {_quote(instruction, 20)}. " if instruction else "I was given no instruction. "
    earlier = [f"{name} ({_quote(body, 12)})" for name, body in SECTION.findall(material)]
    text += f"Earlier steps handed me: {' and '.join(earlier)}." if earlier else ""
    return text.rstrip() + "\n\nPoint the endpoint file at your own LLM to get real answers."


def answer(messages: list[dict[str, Any]]) -> str:
    """Return the answer to a list of chat messages (role, content)."""
    texts = [(message.get("role"), _text(message.get("content"))[-MAX_TEXT:]) for message in messages]
    system = "\n".join(text for role, text in texts if role in ("system", "developer"))
    users = [text for role, text in texts if role == "user"]
    asked = users[-1] if users else texts[-1][1] if texts else ""
    asked, *tasks = TASK.split(asked)
    given = list(SECTION.finditer(asked)) if tasks else []
    if given:
        # What earlier steps have found stands in front of the message, with a blank line between.
        system += "\n" + asked[: given[-1].end()]
        asked = asked[given[-1].end() :].partition("\n\n")[2]
    material = "\n".join(body for _, body in SECTION.findall(asked)) or asked
    lines = [line for line in material.splitlines() if line.strip() and not re.fullmatch(r"\s*\w+:\s*", line)]
    question = re.sub(r"(?i)^\s*(?:user|human):\s*", "", lines[-1] if lines and material != asked else asked)
    # A front-end asks for the title of a chat as JSON, and would show anything else as it is.
    sample = JSON_SAMPLE.findall(asked) if "json" in asked.lower() else []
    if sample:
        title = "Demo: " + " ".join(word for word in question.split() if word.lower() not in STOP_WORDS)[:50]
        return json.dumps({sample[-1][0]: title if sample[-1][1] == '"' else [title]}, ensure_ascii=False)
    options = dict(BULLET.findall(system) or BULLET.findall(SECTION.sub("", asked)))
    if len(options) > 1 and CHOOSE.search(f"{system}\n{SECTION.sub('', asked)}"):
        # The options themselves would otherwise count as the newest lines.
        return _choose(options, [line for line in lines if not BULLET.match(line)])
    return _describe(tasks[-1] if tasks else system, system, question)


# -- how it says it: the two dialects over HTTP/1.1 --------------------------------------------------------------------


def _text(content: Any) -> str:
    """Return the text of a message's content or a completion prompt: a string, null, or a list of parts or strings."""
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, dict) else part for part in content]
        return "\n".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""


@dataclass(frozen=True)
class Reply:
    """An answer cut into words, each with the white space behind it; one word counts as one token."""

    words: list[str]
    finish_reason: str
    prompt_tokens: int

    @property
    def text(self) -> str:
        return "".join(self.words)


def _make_reply(body: dict[str, Any]) -> Reply:
    """Return the answer to a request. Raises ValueError if it has neither messages nor a prompt."""
    messages = _messages(body)
    options = body.get("options")
    given = {**body, **options} if isinstance(options, dict) else body
    names = ("max_completion_tokens", "max_tokens", "n_predict", "num_predict")
    limit = next((given[name] for name in names if given.get(name)), None)
    words = re.findall(r"\S+\s*", answer(messages))
    allowed = limit if isinstance(limit, int) and limit > 0 else len(words)
    prompt_tokens = sum(len(_text(message.get("content")).split()) for message in messages)
    return Reply(words[:allowed], "length" if len(words) > allowed else "stop", prompt_tokens)


def _messages(body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the request as chat messages; a completion's prompt is one user message."""
    given = body.get("messages")
    if isinstance(given, list) and all(isinstance(message, dict) for message in given):
        return given
    if "prompt" not in body or given is not None:
        raise ValueError("The request needs 'messages' (a list of objects) or 'prompt'.")
    # Prompt templates surround the messages with tags such as <|im_start|> and [INST].
    prompt = re.sub(r"<\|[^|>]*\|>|\[/?INST\]|</?s>", "\n", _text(body["prompt"]))
    system = [{"role": "system", "content": body["system"]}] if body.get("system") else []
    return [*system, {"role": "user", "content": prompt.strip()}]


class OpenAIDialect:
    """Chat completions and text completions; streams are SSE."""

    media_type = "text/event-stream; charset=utf-8"
    streams_by_default = False

    def __init__(self, body: dict[str, Any], is_chat: bool) -> None:
        self._body, self._is_chat = body, is_chat
        self._head = {
            "id": ("chatcmpl-" if is_chat else "cmpl-") + uuid.uuid4().hex,
            "created": int(time.time()),
            "model": MODEL,
        }

    def whole(self, reply: Reply) -> dict[str, Any]:
        value: Any = {"role": "assistant", "content": reply.text} if self._is_chat else reply.text
        return {**self._object("", "message", value, reply.finish_reason), "usage": self._usage(reply)}

    def events(self, reply: Reply) -> Iterator[bytes]:
        if self._is_chat:
            yield self._event({"role": "assistant", "content": ""})
        for word in reply.words:
            yield self._event({"content": word} if self._is_chat else word)
        yield self._event({} if self._is_chat else "", reply.finish_reason)
        options = self._body.get("stream_options")
        if isinstance(options, dict) and options.get("include_usage"):
            last = {**self._object(".chunk", "delta", {}, None), "choices": [], "usage": self._usage(reply)}
            yield b"data: " + _dump(last) + b"\n\n"
        yield b"data: [DONE]\n\n"

    def _event(self, delta: Any, reason: str | None = None) -> bytes:
        return b"data: " + _dump(self._object(".chunk", "delta", delta, reason)) + b"\n\n"

    def _object(self, suffix: str, key: str, value: Any, reason: str | None) -> dict[str, Any]:
        kind = f"chat.completion{suffix}" if self._is_chat else "text_completion"
        choice = {"index": 0, key if self._is_chat else "text": value, "logprobs": None, "finish_reason": reason}
        return {**self._head, "object": kind, "choices": [choice]}

    def _usage(self, reply: Reply) -> dict[str, int]:
        total = reply.prompt_tokens + len(reply.words)
        return {"prompt_tokens": reply.prompt_tokens, "completion_tokens": len(reply.words), "total_tokens": total}


class OllamaDialect:
    """Chat and generate; streams are one JSON object per line."""

    media_type = "application/x-ndjson"
    streams_by_default = True

    def __init__(self, body: dict[str, Any], is_chat: bool) -> None:
        self._is_chat = is_chat
        self._started = time.time()

    def whole(self, reply: Reply) -> dict[str, Any]:
        spent = int((time.time() - self._started) * 1e9)
        return {
            **self._part(reply.text),
            "done": True,
            "done_reason": reply.finish_reason,
            "total_duration": spent,
            "load_duration": 0,
            "prompt_eval_count": reply.prompt_tokens,
            "prompt_eval_duration": 0,
            "eval_count": len(reply.words),
            "eval_duration": spent,
        }

    def events(self, reply: Reply) -> Iterator[bytes]:
        for word in reply.words:
            yield _dump(self._part(word)) + b"\n"
        yield _dump({**self.whole(reply), **self._part(""), "done": True}) + b"\n"

    def _part(self, text: str) -> dict[str, Any]:
        value: Any = {"message": {"role": "assistant", "content": text}} if self._is_chat else {"response": text}
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        return {"model": MODEL, "created_at": now, **value, "done": False}


ROUTES: dict[str, tuple[type[OpenAIDialect] | type[OllamaDialect], bool]] = {
    "/v1/chat/completions": (OpenAIDialect, True),
    "/v1/completions": (OpenAIDialect, False),
    "/api/chat": (OllamaDialect, True),
    "/api/generate": (OllamaDialect, False),
}

LISTINGS: dict[str, dict[str, Any]] = {
    "/v1/models": {"object": "list", "data": [{"id": MODEL, "object": "model", "created": 0, "owned_by": "wilmerai"}]},
    "/api/tags": {
        "models": [
            {
                "name": MODEL,
                "model": f"{MODEL}:latest",
                "modified_at": "2025-01-01T00:00:00Z",
                "size": 0,
                "digest": "0" * 64,
                "details": {"format": "demo", "family": "demo"},
            }
        ]
    },
    "/api/version": {"version": "0.9"},
    "/": {"name": MODEL, "about": "The demo back-end of WilmerAI. It holds no language model."},
}


def _dump(data: Any) -> bytes:
    return json.dumps(data, ensure_ascii=False).encode("utf-8", errors="replace")


class DemoHandler(BaseHTTPRequestHandler):
    """One connection, kept alive between requests."""

    protocol_version = "HTTP/1.1"
    server_version = "WilmerAIDemo"
    disable_nagle_algorithm = True
    # Seconds without a request after which a connection is closed.
    timeout = 120
    server: DemoServer

    def do_GET(self) -> None:
        body = LISTINGS.get(self._path())
        self._send_json(200 if body else 404, body or {"error": {"message": f"No route {self._path()}"}})

    def do_POST(self) -> None:
        try:
            body = self._read_body()
            route = ROUTES.get(self._path())
            if route is None:
                return self._send_json(404, {"error": {"message": f"No route {self._path()}"}})
            reply = _make_reply(body)
        except ValueError as error:
            return self._send_json(400, {"error": {"message": str(error), "type": "invalid_request_error"}})
        dialect = route[0](body, route[1])
        if body.get("stream", dialect.streams_by_default):
            self._send_stream(dialect.media_type, dialect.events(reply))
        else:
            self._send_json(200, dialect.whole(reply))
        return None

    def _path(self) -> str:
        return self.path.split("?")[0].rstrip("/") or "/"

    def _read_body(self) -> dict[str, Any]:
        """Return the request's JSON object. Raises ValueError; the connection ends after a body that was not read."""
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

    def _send_stream(self, media_type: str, events: Iterator[bytes]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", media_type)
        self.send_header("Cache-Control", "no-cache")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in events:
            time.sleep(self.server.delay)
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
        self.wfile.write(payload)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the base class writes each request to the standard error of the server."""


class DemoServer(ThreadingHTTPServer):
    """The server; ``delay`` is the pause before each streamed word in seconds."""

    daemon_threads = True
    request_queue_size = 128
    # On Windows this option would let two servers share the port.
    allow_reuse_address = os.name != "nt"

    def __init__(self, port: int, delay: float = SECONDS_PER_WORD) -> None:
        self.delay = delay
        super().__init__(("127.0.0.1", port), DemoHandler)

    def server_bind(self) -> None:
        """Bind without the name lookup of HTTPServer, which takes seconds on some machines."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A client that leaves during a stream is not an error.
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


def start(port: int = 0, delay: float = SECONDS_PER_WORD) -> DemoServer:
    """Start serving on a daemon thread (port 0 = any free one; see ``url``). Raises OSError if the port is taken.

    ``shutdown()`` and ``server_close()`` end it, or the end of the process.
    """
    server = DemoServer(port, delay)
    threading.Thread(target=server.serve_forever, name="demo-backend", daemon=True).start()
    return server


def is_running(port: int) -> bool:
    """Return whether a demo back-end, and not another server, already answers on this port."""
    # A proxy of the environment would be asked for its own loopback.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://127.0.0.1:{port}/", timeout=1) as response:
            body = json.loads(response.read(4096))
    except (OSError, ValueError):
        return False
    return isinstance(body, dict) and body.get("name") == MODEL


def main(arguments: list[str] | None = None) -> int:
    """Run the server from the command line. Return the exit status."""
    parser = argparse.ArgumentParser(description="A stub of an LLM server, without a model.")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help=f"default {DEFAULT_PORT}")
    parser.add_argument("--delay", type=float, default=SECONDS_PER_WORD, help="seconds before each streamed word")
    options = parser.parse_args(arguments)
    try:
        server = DemoServer(options.port, max(0.0, options.delay))
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
