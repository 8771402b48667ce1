"""The pages of the console with a scripted API behind them, to look at them and to test them in a browser.

    python -m Tests.console.scripted_server [--port 5099] [--runs 10000]

No WilmerAI runs. The page is served as the real server serves it, policy included; the API answers from
``made_runs``. Sign in with any key; the key ``wrong`` is refused.
"""

from __future__ import annotations

import argparse
import hmac
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from Tests.console import made_runs
from Tests.stub_backend import RecordedRequest, Reply, StubBackend

STATIC = Path(__file__).resolve().parents[2] / "Middleware" / "addons" / "console" / "static"
TYPES = {".js": "text/javascript", ".mjs": "text/javascript", ".css": "text/css"}
POLICY = (
    "default-src 'none'; script-src 'self' 'nonce-{0}'; style-src 'self' 'nonce-{0}'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
INLINE = 2000
# As the real server's: the second part is for the page, which checks with it that this server has begun the session.
PROOF_KEY = bytes(range(32))
TOKEN = f"token.{PROOF_KEY.hex()}"


@dataclass(frozen=True)
class Failure:
    """A scripted answer: an error of the API."""

    status: int
    message: str
    where: str = ""


@dataclass(frozen=True)
class Stream:
    """A scripted answer: a stream of events, each with its name, ``delay`` seconds apart."""

    events: Sequence[tuple[str, object]]
    headers: Mapping[str, str] = field(default_factory=dict)
    delay: float = 0.0


Answers = Mapping[tuple[str, str], object]


class World:
    """What the scripted API knows; a test changes it.

    Attributes:
        calls: method and path with its query, in their order.
        bodies: method, path and body of the calls that had a body.
        answers: by method and path, what is answered before anything else is looked at: JSON, a ``Failure``, a
            ``Stream``, or a function that returns one of them for a body.
    """

    def __init__(self, runs: int = 50, role: str = "operator", mode: str = "on") -> None:
        self.role = role
        self.mode = mode
        self.now = int(time.time() * 1e6) // 10 * 10
        self.calls: list[tuple[str, str]] = []
        self.bodies: list[tuple[str, str, dict[str, object]]] = []
        self.answers: Answers = {}
        self.runs: list[dict[str, Any]] = list(made_runs.many(self.now - 60 * made_runs.SECOND, runs))
        self.spans: dict[str, list[made_runs.Row]] = {}
        self.events: list[tuple[str, object]] = []
        self.told = threading.Condition()
        self.ended = False
        self.settings: dict[str, object] = {
            "record": "facts",
            "decided": {},
            "days": 14,
            "megabytes": 1024,
            "runs": 20_000,
            "version": "0.9",
            "used": {"bytes": 184_300_000, "runs": runs, "oldest": self.now - 86_400 * made_runs.SECOND},
            "dropped": {"texts": 0, "runs": 0},
            "changes": [
                {
                    "at": self.now,
                    "who": "operator",
                    "path": "Workflows/demo/Coding.json",
                    "what": "saved",
                    "backup": "1",
                }
            ],
        }

    def script(self, answers: Answers) -> None:
        """Answer so from now on, and forget the calls so far."""
        self.answers = answers
        self.calls.clear()
        self.bodies.clear()

    def sent(self, method: str, path: str) -> list[dict[str, object]]:
        """Return the bodies of the calls of a path."""
        return [body for called, where, body in self.bodies if (called, where) == (method, path)]

    def add(self, number: int, spans: list[made_runs.Row], status: str = "ok", **changes: object) -> dict[str, object]:
        """Put a run at the top of the list and return its facts."""
        run = made_runs.facts(1_000_000 + number, self.now - 20 * made_runs.SECOND, status, **changes)
        self.runs.insert(0, run)
        self.spans[str(run["id"])] = spans
        return run

    def tell(self, event: str, data: object) -> None:
        """Send an event to every open stream."""
        with self.told:
            self.events.append((event, data))
            self.told.notify_all()

    def end(self) -> None:
        """Let open streams go, so that the server can stop."""
        with self.told:
            self.ended = True
            self.told.notify_all()

    def forget(self) -> dict[str, object]:
        self.runs.clear()
        return {}

    def find(self, run_id: str) -> dict[str, Any] | None:
        return next((run for run in self.runs if run["id"] == run_id), None)

    def page(self, query: dict[str, str]) -> dict[str, object]:
        found = [run for run in self.runs if self._matches(run, query)]
        start = int(query.get("before", "0"))
        limit = int(query.get("limit", "50"))
        answer: dict[str, object] = {
            "runs": found[start : start + limit],
            "total": len(found),
            "event": len(self.events),
            "next": str(start + limit) if start + limit < len(found) else None,
        }
        if not start:
            answer["choices"] = {"workflow": ["Chat", "Coding", "Task"], "endpoint": ["Main", "Worker"], "user": ["me"]}
        return answer

    @staticmethod
    def _matches(run: dict[str, Any], query: dict[str, str]) -> bool:
        for name in ("status", "workflow", "user", "kind", "discussion"):
            if name in query and run[name] != query[name]:
                return False
        if "endpoint" in query and query["endpoint"] not in run["endpoints"]:
            return False
        if "since" in query and run["started"] < int(query["since"]):
            return False
        words = query.get("q", "").lower()
        return not words or any(
            words in str(run[name] or "").lower()
            for name in ("id", "question", "answer", "error", "route", "workflow", "discussion")
        )

    def document(self, run: dict[str, Any]) -> dict[str, object]:
        rows = self.spans.get(str(run["id"])) or made_runs.chat_spans()
        finished = run["ended"] is not None
        calls = [row[0] for row in rows if row[2] == "llm"]
        return {
            "run": run,
            "spans": [_short(row) for row in rows],
            "event": len(self.events),
            "explanation": made_runs.EXPLANATION if finished else None,
            "prefix": {
                str(calls[-2]): {
                    "text": made_runs.PREFIX_TEXT,
                    "reused": 412,
                    "of": 18_204,
                    "same": 104,
                    "characters": 6512,
                    "message": 1,
                    "role": "system",
                    "earlier": None,
                }
            }
            if len(calls) > 1
            else {},
        }

    def texts(self, run_id: str, span: int) -> dict[str, object]:
        rows = self.spans.get(run_id) or made_runs.chat_spans()
        return dict(rows[span - 1][8])


def _short(row: made_runs.Row) -> made_runs.Row:
    """A row as it stands in a run: long texts by reference."""
    texts = {}
    for name, value in row[8].items():
        text = value if isinstance(value, str) else json.dumps(value)
        texts[name] = value if len(text) <= INLINE else {"long": len(text), "start": text[:200]}
    return [*row[:8], texts]


class ScriptedServer(StubBackend):
    """The server; ``url`` is the console's address."""

    def __init__(self, world: World, port: int = 0) -> None:
        super().__init__(port=port)
        self.world = world

    @property
    def url(self) -> str:
        return f"{super().url}/console/"

    def stop(self) -> None:
        self.world.end()
        super().stop()

    def respond(self, request: RecordedRequest) -> Reply:
        self.requests.clear()
        address = urlsplit(request.path)
        if address.path.startswith("/console/api/"):
            return self._api(request, unquote(address.path.removeprefix("/console/api/")), address.query)
        if address.path == "/console/":
            nonce = secrets.token_urlsafe(16)
            page = (STATIC / "index.html").read_text(encoding="utf-8")
            return _file(
                page.replace("{nonce}", nonce).replace("{version}", "v").encode("utf-8"),
                "text/html; charset=utf-8",
                {"Content-Security-Policy": POLICY.format(nonce), "Referrer-Policy": "no-referrer"},
            )
        file = STATIC / address.path.removeprefix("/console/static/v/")
        if address.path.startswith("/console/static/v/") and ".." not in address.path and file.is_file():
            kind = TYPES.get(file.suffix, "application/octet-stream")
            return _file(file.read_bytes(), kind, {"Cache-Control": "public, max-age=31536000, immutable"})
        return Reply(404, b"")

    def _api(self, request: RecordedRequest, path: str, line: str) -> Reply:
        world = self.world
        query = {name: values[-1] for name, values in parse_qs(line).items()}
        body = request.json if request.body else {}
        if path == "session/proof":
            # Not a call of any view.
            return _json({"proof": hmac.digest(PROOF_KEY, body["nonce"].encode(), "sha256").hex()})
        world.calls.append((request.method, f"{path}?{line}" if line else path))
        if body:
            world.bodies.append((request.method, path, body))
        if path == "session" and request.method == "POST":
            if body.get("key") == "wrong":
                return _error(
                    403,
                    "This key does not open the console. Its line in the list of accepted keys must say console=own.",
                )
            return _json({"token": TOKEN, **self._who()})
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return _error(401, "Sign in first.")
        if path == "events":
            return Reply(raw=self._events(int(query.get("after", len(world.events)))), keep_alive=False)
        return self._signed_in((request.method, path), query, body)

    def _who(self) -> dict[str, object]:
        return {
            "role": self.world.role,
            "users": None,
            "expires": None,
            "mode": self.world.mode,
            "recording": "facts",
            "version": "0.9",
        }

    def _signed_in(self, call: tuple[str, str], query: dict[str, str], body: dict[str, object]) -> Reply:
        world = self.world
        if call in world.answers:
            answer = world.answers[call]
            return _scripted(answer(body) if callable(answer) else answer)
        exact: dict[tuple[str, str], Callable[[], object]] = {
            ("GET", "session"): self._who,
            ("DELETE", "session"): dict,
            ("GET", "runs"): lambda: world.page(query),
            ("GET", "settings"): lambda: world.settings,
            ("PUT", "settings"): lambda: world.settings.update(body) or world.settings,
            ("DELETE", "runs"): world.forget,
            ("GET", "sessions"): lambda: {
                "sessions": [
                    {"id": "1", "label": "Firefox on Linux", "created": world.now, "used": world.now, "current": True},
                    {"id": "2", "label": "Safari on iPhone", "created": world.now, "used": world.now, "current": False},
                ]
            },
        }
        return _json(exact[call]()) if call in exact else self._run(call, body)

    def _run(self, call: tuple[str, str], body: dict[str, object]) -> Reply:
        world, (method, path) = self.world, call
        parts = path.split("/")
        run = world.find(parts[1]) if parts[0] == "runs" and len(parts) > 1 else None
        if run is None:
            return _error(404, "There is no such run.", f"/console/api/{path}")
        if len(parts) == 2:
            if method == "GET":
                return _json(world.document(run))
            if method == "PUT":
                run.update(body)
                return _json(run)
            world.runs.remove(run)
            return _json({})
        if parts[2] == "texts":
            return _json(world.texts(parts[1], int(parts[3])))
        if parts[2] == "export":
            return _json({"format": "wilmer-run/1", **world.document(run), "texts": {}})
        return _json({}) if parts[2] == "stop" else _error(404, "There is no such call.")

    def _events(self, after: int) -> Iterator[bytes]:
        world = self.world
        yield b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
        yield _event("hello", {}, len(world.events))
        while not world.ended:
            with world.told:
                # What comes in between is told in the next round.
                if len(world.events) <= after and not world.ended:
                    world.told.wait(timeout=5)
                news = world.events[after:]
            for event, data in news:
                after += 1
                yield _event(event, data, after)
            yield b": heartbeat\n\n"


def _scripted(answer: object) -> Reply:
    if isinstance(answer, Failure):
        return _error(answer.status, answer.message, answer.where)
    if isinstance(answer, Stream):
        events = [_event(name, value) for name, value in answer.events]
        headers = {"Content-Type": "text/event-stream", **answer.headers}
        return Reply(pieces=events, framing="close", headers=headers, delay=answer.delay, header_delay=answer.delay)
    return _json(answer)


def _event(event: str, data: object, number: int | None = None) -> bytes:
    identity = "" if number is None else f"id: {number}\n"
    text = data if isinstance(data, str) else json.dumps(data)
    return f"{identity}event: {event}\ndata: {text}\n\n".encode()


def _json(value: object, status: int = 200) -> Reply:
    return Reply(status, value, {"Cache-Control": "no-store"})


def _error(status: int, message: str, where: str = "") -> Reply:
    return _json({"error": {"message": message, "type": "ClientError", "where": where}}, status)


def _file(content: bytes, kind: str, headers: Mapping[str, str]) -> Reply:
    return Reply(body=content, headers={"Content-Type": kind, "Cache-Control": "no-store", **headers})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=5099)
    parser.add_argument("--runs", type=int, default=10_000)
    options = parser.parse_args()
    world = World(options.runs)
    world.add(1, made_runs.chat_spans())
    world.add(2, made_runs.long_spans(500), workflow="Long", route="LONG")
    world.add(
        3,
        made_runs.failed_spans(),
        "failed",
        error="Main: connection refused, 127.0.0.1:8080",
        workflow="Chat",
        route="me:chat",
    )
    world.add(4, made_runs.running_spans(), "running", answered=None)
    with ScriptedServer(world, options.port) as server:
        print(server.url)
        threading.Event().wait()


if __name__ == "__main__":
    main()
