"""Clients that stop their request in a phase, and what is seen of that at the back-end."""

from __future__ import annotations

import json
import re
import socket
import time
from dataclasses import dataclass
from typing import Any

from Tests.integration.launcher import USER, Backend, Launcher, read_to_end, read_until
from Tests.integration.scripted_backend import Talk
from Tests.integration.stop_cases import HEAD, QUEUED, Phase
from Tests.patience import CLIENT_PATIENCE, PATIENCE
from Tests.stub_backend import RecordedRequest

QUIET_SECONDS = 0.15
"""A node that is wrongly started calls the back-end within a few milliseconds."""
ANTHROPIC = "Anthropic messages"
PATHS = {"OpenAI chat": "/v1/chat/completions", "Ollama chat": "/api/chat", ANTHROPIC: "/v1/messages"}
MESSAGES = 12
ROLES = ("user", "assistant") * (MESSAGES // 2)
ENDINGS = {
    "OpenAI chat": re.compile(rb'"finish_reason": ?"stop".*data: \[DONE\]\s*(\r\n0)?\s*$', re.DOTALL),
    "Ollama chat": re.compile(rb'"done": ?true[^\n]*\}\s*(\r\n0)?\s*$'),
    ANTHROPIC: re.compile(rb"event: message_stop\ndata: \{[^}]*\}\s*(\r\n0)?\s*$"),
}
"""What a stream ends with: a final chunk and the terminator."""
_AS_MODEL = re.compile(r"Request ([0-9a-f-]{36}) runs as \S+:(\S+)")
_WAITS = re.compile(r"request ([0-9a-f-]{36}) waits")
_ID_IN_HEAD = re.compile(rb"(?i)x-request-id: ([0-9a-f-]{36})")
_ID_IN_CHUNK = re.compile(rb'"request_id": ?"([0-9a-f-]{36})"')


@dataclass(frozen=True)
class Client:
    """How a client asks, and how it stops: it closes its connection, or sends DELETE with the request's id."""

    front: str = "OpenAI chat"
    stream: bool = True
    deletes: bool = False

    def __str__(self) -> str:
        return f"{self.front}, {'stream' if self.stream else 'whole'}{', DELETE' if self.deletes else ''}"

    def body(self, model: str | None, talk: Talk) -> dict[str, Any]:
        turns = [f"{talk.hello} {number}: some words that were said in turn" for number in range(MESSAGES)]
        messages = [
            {"role": "system", "content": f"[DiscussionId]{talk.hello}[/DiscussionId]Be kind."},
            *({"role": role, "content": text} for role, text in zip(ROLES, turns, strict=True)),
            {"role": "user", "content": talk.hello},
        ]
        return {"model": model or USER, "messages": messages, "stream": self.stream}

    def ask(self, server: Launcher, model: str | None, talk: Talk) -> socket.socket:
        """Send a request and leave the answer unread. The caller closes the socket."""
        body = json.dumps(self.body(model, talk)).encode()
        head = (
            f"POST {PATHS[self.front]} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        sock = socket.create_connection(("127.0.0.1", server.port), timeout=CLIENT_PATIENCE)
        sock.sendall(head.encode("ascii") + body)
        return sock


class Stop:
    """A client that stops its request in a phase.

    with Stop(server, backend, phase, client) as stop:
        stop.reach()
        stop.leave()
    seconds = stop.seconds()
    """

    def __init__(self, server: Launcher, backend: Backend, phase: Phase, client: Client | None = None) -> None:
        self.server, self.backend, self.phase, self.client = server, backend, phase, client or Client()
        self.talk = backend.talk()
        self.answer, self.took = b"", 0.0
        self._calls: list[RecordedRequest] = []
        self._since, self._id, self._left = server.output_size(), "", 0.0

    def __enter__(self) -> Stop:
        for name, script in {**self.phase.others, self.phase.node: self.phase.script}.items():
            self.talk.replies[name] = script(self.talk)
        self._sock = self.client.ask(self.server, self.phase.model, self.talk)
        return self

    def __exit__(self, *_: object) -> None:
        self._sock.close()

    def reach(self, pause: float | None = None) -> None:
        """Wait until the phase has come, and then ``pause`` seconds, those of the phase by default."""
        phase = self.phase
        if phase.node:
            self._calls = [
                self.talk.wait_call(phase.node, count=phase.calls),
                *(self.talk.wait_call(name) for name in phase.beside),
            ]
        if self.client.stream and (phase.seen or (self.client.deletes and phase is not QUEUED)):
            self.answer += read_until(self._sock, phase.seen or HEAD)
        if phase.shows != "call":
            self._id = self._id_in_log()
        time.sleep(phase.pause if pause is None else pause)

    def leave(self) -> None:
        """Stop. A client that stays reads its answer to the end."""
        self._left = time.monotonic()
        if not self.client.deletes:
            self._sock.close()
            return
        status = self.server.request("DELETE", "/api/chat", {"request_id": self._id_in_answer()}).status
        assert status == 200
        self.answer += read_to_end(self._sock)

    def seconds(self) -> float:
        """From the client's stop until it had arrived. Raises AssertionError if it did not."""
        phase = self.phase
        if phase.shows != "call":
            gone = phase is QUEUED and not self.client.deletes  # what was never begun has no line about its end
            self.server.wait_output(
                f"client of request {self._id} has gone" if gone else f"Request {self._id}: route",
                PATIENCE,
                self._since,
            )
            return time.monotonic() - self._left
        for call in self._calls:
            assert call.wait_ended(PATIENCE), f"{phase.name}: a call went on for {PATIENCE:g} s"
            assert call.client_left
        ended = [call.ended_at for call in self._calls if call.ended_at is not None]
        return max(*ended, self._told_at() if phase.told else 0.0) - self._left

    def complaint(self) -> str:
        """What is wrong about the calls and the answer once all is quiet; "" if nothing."""
        nodes = self.talk.nodes()
        in_order = self.phase.beside or tuple(nodes) == self.phase.reaches
        if sorted(nodes) != sorted(self.phase.reaches) or not in_order:
            return f"these nodes called: {', '.join(nodes)}"
        if self.client.deletes and not ENDINGS[self.client.front].search(self.answer):
            return f"the answer of the client that stayed has no end: {self.answer[-200:]!r}"
        return ""

    def _told_at(self) -> float:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            told = [call.received_at for call in self.backend.aborts if call.received_at > self._left]
            if told:
                return min(told)
            time.sleep(0.005)
        raise AssertionError(f"{self.phase.name}: the back-end was not told")

    def _id_in_log(self) -> str:
        waits, model = self.phase is QUEUED, self.phase.model
        output = self.server.wait_output(" waits, " if waits else f":{model}\n", since=self._since)
        found = [(found, model) for found in _WAITS.findall(output)] if waits else _AS_MODEL.findall(output)
        return [known for known, name in found if name == model][-1]

    def _id_in_answer(self) -> str:
        """Ollama's chunks have it, if one has come; the head has it always. Before that only the log has."""
        if not self.answer:
            return self._id
        found = _ID_IN_CHUNK.search(self.answer) or _ID_IN_HEAD.search(self.answer)
        assert found, self.answer
        return found[1].decode()


def leave(
    server: Launcher, backend: Backend, phase: Phase, client: Client | None = None, pause: float | None = None
) -> Stop:
    """A client that has stopped its request in the phase, and whose stop has arrived. Raises AssertionError."""
    with Stop(server, backend, phase, client) as stop:
        stop.reach(pause)
        stop.leave()
    stop.took = stop.seconds()
    return stop


def assert_nothing_follows(stop: Stop) -> None:
    """No later node, and no second attempt of the stopped one."""
    time.sleep(QUIET_SECONDS)
    assert not stop.complaint()
