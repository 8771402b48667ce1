"""A stub of an LLM server, so that a fresh clone answers before any model is connected.

It answers chats in two dialects, OpenAI's and Ollama's, and lists its one model. There is no model behind it: answers
are a fixed function of the request, and each answer to a user says so. Standard library only, loopback only.
``Scripts/demo_backend.py`` runs it by itself.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import socketserver
import sys
import threading
import time
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from typing import Any, cast

# Slow enough that streaming can be seen.
SECONDS_PER_WORD = 0.04
MODEL = "wilmerai-demo"
MARK = "[WilmerAI demo back-end, not a language model]"
# Conversations with images can be large; a client that sends more is not a chat.
MAX_BODY_BYTES = 64 * 1024 * 1024
# Only this many characters at the end of a message are analysed, so that long ones cost little time.
MAX_TEXT = 20_000

# -- the answer: nothing here knows the prompts of any workflow, only common ways of asking ----------------------------
_CHOOSE = re.compile(r"\b(choose|select|categor)", re.I)
_OPTION = re.compile(r"^- ([\w -]{1,40}): (.+)$", re.M)
_SECTION = re.compile(r"^<([A-Za-z][\w-]*)>\n(.*?)\n</\1>", re.M | re.S)
# A task behind the message to which it refers, such as "Do not answer the message above yet."
_TASK = re.compile(r"\n\n(?=[^\n.]*\bthe message above\b)", re.I)
_JSON_SAMPLE = re.compile(r'\bJSON\b.{0,80}?\{\s*"(\w+)"\s*:\s*(["\[])')


def answer(messages: list[dict[str, Any]]) -> str:
    """Return the answer to a list of chat messages (role, content)."""
    texts = [(message.get("role"), _text(message.get("content"))[-MAX_TEXT:]) for message in messages]
    system = "\n".join(text for role, text in texts if role == "system")
    asked, *tasks = _TASK.split(texts[-1][1] if texts else "")
    given = list(_SECTION.finditer(asked))
    lines = given[-1][2].split("\n") if given else [asked]
    options = dict(_OPTION.findall(system))
    if len(options) > 1 and _CHOOSE.search(system):
        return _choose(options, lines)
    # A front-end asks for the title of a chat as JSON, and would show anything else as it is.
    for key, kind in _JSON_SAMPLE.findall(asked):
        title = "Demo: " + re.sub(r"^\w+:\s*", "", lines[-1])[:50]
        return json.dumps({key: title if kind == '"' else [title]})
    if tasks and given:
        # What earlier steps have found stands in front of the message, with a blank line between.
        system, asked = f"{system}\n{asked[: given[-1].end()]}", asked[given[-1].end() :].partition("\n\n")[2]
    return _describe(tasks[-1] if tasks else _SECTION.sub("", system), asked, _SECTION.findall(system))


def _text(content: Any) -> str:
    """Return the text of a message's content: a string, a list of parts, or null."""
    if isinstance(content, list):
        return "\n".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _choose(options: dict[str, str], lines: list[str]) -> str:
    """Return the option with most words in the newest line that has words of any; the last option without one."""
    words = {name: _beginnings(f"{name} {description}") for name, description in options.items()}
    for said in map(_beginnings, reversed(lines)):
        best = max(words, key=lambda name: len(said & words[name]))
        if said & words[best]:
            return best
    return list(options)[-1]


def _beginnings(text: str) -> set[str]:
    """Return the first four letters of each longer word: what words with different endings have in common."""
    return set(re.findall(r"\b\w{4}", text.lower()))


def _describe(instruction: str, question: str, earlier: list[tuple[str, str]]) -> str:
    """Return a description of what the workflow sent, in place of a model's answer."""
    first = re.split(r"(?<=[.!?:])\s", instruction.strip())[0].rstrip(".:")
    text = f"{MARK}\n\nYou asked: {_quote(question, 25)}\n\nA language model would answer here. What I can show is how "
    text += "the workflow put the question to me. "
    text += f"My instruction begins {_quote(first, 20)}." if first else "I was given no instruction."
    handed = " and ".join(f"{name} ({_quote(body, 12)})" for name, body in earlier)
    text += f" Earlier steps handed me: {handed}." if handed else ""
    return f"{text}\n\nPoint the endpoint file at your own LLM to get real answers."


def _quote(text: str, limit: int) -> str:
    words = re.sub("[\u201c\u201d]", "", text.replace(MARK, "")).split()
    return "\u201c" + " ".join(words[:limit]) + (" \u2026" if len(words) > limit else "") + "\u201d"


# -- the two dialects: media type and pieces of an answer in words, each of which counts as one token ------------------
def _openai(body: dict[str, Any], words: list[str], prompt_tokens: int) -> tuple[str, list[str]]:
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": len(words)}
    usage["total_tokens"] = sum(usage.values())

    def part(kind: str, reason: str | None, **more: Any) -> dict[str, Any]:
        choice = {"index": 0, **more, "logprobs": None, "finish_reason": reason}
        return {"id": "chatcmpl-demo", "object": kind, "created": int(time.time()), "model": MODEL, "choices": [choice]}

    if not body.get("stream"):
        message = {"role": "assistant", "content": "".join(words)}
        return "application/json", [json.dumps({**part("chat.completion", "stop", message=message), "usage": usage})]
    deltas = [{"role": "assistant", "content": ""}, *({"content": word} for word in words)]
    chunks = [part("chat.completion.chunk", None, delta=delta) for delta in deltas]
    chunks.append(part("chat.completion.chunk", "stop", delta={}))
    if body.get("stream_options"):
        chunks.append({**chunks[-1], "choices": [], "usage": usage})
    return "text/event-stream", [f"data: {data}\n\n" for data in (*map(json.dumps, chunks), "[DONE]")]


def _ollama(body: dict[str, Any], words: list[str], prompt_tokens: int) -> tuple[str, list[str]]:
    def part(text: str, **more: Any) -> str:
        message = {"role": "assistant", "content": text}
        now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        return json.dumps({"model": MODEL, "created_at": now, "message": message, "done": False, **more})

    end = {"done": True, "done_reason": "stop", "prompt_eval_count": prompt_tokens, "eval_count": len(words)}
    if not body.get("stream", True):
        return "application/json", [part("".join(words), **end)]
    return "application/x-ndjson", [f"{line}\n" for line in (*map(part, words), part("", **end))]


DIALECTS = {"/v1/chat/completions": _openai, "/api/chat": _ollama}
LISTINGS: dict[str, dict[str, Any]] = {
    "/": {"name": MODEL, "about": "The demo back-end of WilmerAI. It holds no language model."},
    "/v1/models": {"object": "list", "data": [{"id": MODEL, "object": "model", "created": 0, "owned_by": "wilmerai"}]},
    "/api/tags": {"models": [{"name": MODEL, "model": MODEL, "size": 0, "details": {"family": "demo"}}]},
}


# -- the server --------------------------------------------------------------------------------------------------------
class _Handler(BaseHTTPRequestHandler):
    """One request. In HTTP/1.0, the end of the connection is the end of the answer."""

    disable_nagle_algorithm = True
    # Seconds without a request after which a connection is closed.
    timeout = 120
    server: DemoServer

    def do_GET(self) -> None:
        known = self.path in LISTINGS
        self._send(200 if known else 404, "application/json", [json.dumps(LISTINGS.get(self.path, {}))])

    def do_POST(self) -> None:
        try:
            body = self._read_body()
            dialect = DIALECTS[self.path]
        except (ValueError, KeyError) as error:
            text = json.dumps({"error": {"message": f"Not a chat at {self.path}: {error}", "type": "demo_error"}})
            return self._send(404 if isinstance(error, KeyError) else 400, "application/json", [text])
        prompt_tokens = sum(len(_text(message.get("content")).split()) for message in body["messages"])
        return self._send(200, *dialect(body, re.findall(r"\S+\s*", answer(body["messages"])), prompt_tokens))

    def _read_body(self) -> dict[str, Any]:
        """Return the request's JSON object with its messages. Raises ValueError."""
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > MAX_BODY_BYTES:
            raise ValueError(f"Content-Length is missing or over {MAX_BODY_BYTES} bytes.")
        body = json.loads(self.rfile.read(int(length)))
        messages = body.get("messages") if isinstance(body, dict) else None
        if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
            raise ValueError("The request needs 'messages', a list of objects.")
        return cast("dict[str, Any]", body)

    def _send(self, status: int, media_type: str, pieces: list[str]) -> None:
        self.send_response(status)
        self.send_header("Content-Type", media_type)
        self.end_headers()
        for number, piece in enumerate(pieces):
            time.sleep(self.server.delay if number else 0)
            self.wfile.write(piece.encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the base class writes each request to the standard error of the server."""


class DemoServer(socketserver.ThreadingTCPServer):
    """The server, on loopback; ``delay`` is the pause before each streamed word in seconds."""

    daemon_threads = True
    request_queue_size = 128
    # On Windows this option would let two servers share the port.
    allow_reuse_address = os.name != "nt"

    def __init__(self, port: int, delay: float = SECONDS_PER_WORD) -> None:
        self.delay = delay
        super().__init__(("127.0.0.1", port), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A client that leaves during a stream is not an error.
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def start(port: int = 0, delay: float = SECONDS_PER_WORD) -> DemoServer:
    """Start serving on a daemon thread (port 0 = any free one; see ``url``). Raises OSError if the port is taken.

    ``shutdown()`` and ``server_close()`` end it, or the end of the process.
    """
    server = DemoServer(port, delay)
    threading.Thread(target=server.serve_forever, name="demo-backend", daemon=True).start()
    return server


def is_running(port: int) -> bool:
    """Return whether a demo back-end, and not another server, already answers on this port."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
    try:
        connection.request("GET", "/")
        return MODEL.encode() in connection.getresponse().read(4096)
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
