"""The configuration, the LLM server and the client of ``benchmarks/budget.py``: one request at a time, in step.

Whether two tokens reach a server in one read or in two depends on the machine's load, and so does what they cost. Here
a token, or a burst of tokens, leaves only after the client has received all before it, as one write.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from Tests.integration.launcher import NO_MARKS, USER, ConfigTree, api_type, endpoint, llm_node
from Tests.stub_backend import RecordedRequest, Reply, StubBackend, chat_chunk, chat_reply, sse_event

# Long enough for the busiest machine; a server that stands still for so long has a fault.
TIMEOUT_SECONDS = 30.0
CHAIN_NODES = 20
HISTORY_MESSAGES = 2000
FIRST_MESSAGES = ({"role": "system", "content": "s"}, {"role": "user", "content": "hello there"})
# The routes of the dialects, with the last thing that a stream on each says.
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
_ENDS = {CHAT: b"[DONE]", RESPONSES: b"event: response.completed", MESSAGES: b"event: message_stop"}


@dataclass(frozen=True)
class Workload:
    """What one request of a row is.

    Attributes:
        tokens: how many the answer has; a streamed answer sends ``burst`` of them at a time.
        messages: how many there are in the request beside the system prompt.
        path: the route, which says in what dialect the client speaks.
    """

    workflow: str
    tokens: int = 20
    stream: bool = False
    burst: int = 16
    messages: int = 1
    path: str = CHAT

    def body(self) -> bytes:
        messages: list[dict[str, str]] = list(FIRST_MESSAGES)
        if self.messages > 1:
            messages[1:] = [
                {
                    "role": "assistant" if number % 2 else "user",
                    "content": f"message {number} " + "lorem ipsum dolor " * 10,
                }
                for number in range(self.messages + 1)
            ]
        said: dict[str, Any] = {"messages": messages}
        if self.path == RESPONSES:
            said = {"input": messages}
        elif self.path == MESSAGES:
            said = {"system": messages[0]["content"], "messages": messages[1:], "max_tokens": 1000}
        return json.dumps({"model": self.workflow, "stream": self.stream, **said}).encode()

    def bursts(self) -> list[bytes]:
        """Return what the LLM server sends, one write each; the last one has no token."""
        if not self.stream:
            body = json.dumps(chat_reply("word " * self.tokens).body).encode()
            return [
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
            ]
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        events = [_chunked(chat_chunk({"content": token(number)})) for number in range(self.tokens)]
        bursts = [b"".join(events[start : start + self.burst]) for start in range(0, self.tokens, self.burst)]
        end = sse_event(chat_chunk({}, "stop")) + sse_event("[DONE]")
        return [head + bursts[0], *bursts[1:], b"%x\r\n%s\r\n0\r\n\r\n" % (len(end), end)]


def token(number: int) -> str:
    """Return the text of a token: as long as those of a clock, and found again in whatever frame it arrives."""
    return f"{number:05}.654321 "


def _chunked(event: Any) -> bytes:
    data = sse_event(event)
    return b"%x\r\n%s\r\n" % (len(data), data)


def write_configuration(public: Path, url: str) -> ConfigTree:
    """Write one user, and the workflow of each row as a shared one that the model name selects."""
    tree = ConfigTree(public)
    tree.write("Users/_current-user.json", {"currentUser": USER})
    tree.write(
        f"Users/{USER}.json",
        {
            "customWorkflowOverride": True,
            "customWorkflow": "Plain",
            "allowSharedWorkflows": True,
            "chatPromptTemplateName": "_chatonly",
        },
    )
    tree.write("PromptTemplates/_chatonly.json", NO_MARKS)
    tree.write("Endpoints/Stub.json", endpoint(url, maxContextTokenSize=10_000_000))
    tree.write(
        "Endpoints/Thinker.json",
        endpoint(
            url,
            maxContextTokenSize=10_000_000,
            removeThinking=True,
            startThinkTag="<think>",
            endThinkTag="</think>",
            openingTagGracePeriod=50,
        ),
    )
    tree.write("ApiTypes/Chat.json", api_type())
    tree.write("Presets/Chat/Plain.json", {"temperature": 0.5})
    responder: dict[str, Any] = {"returnToUser": True, "lastMessagesToSendInsteadOfPrompt": 100_000}
    answer = llm_node("answer", **responder)
    chain = [
        {
            "title": f"c{number}",
            "type": "StringConcatenator",
            "delimiter": "-",
            "strings": ["a", f"{{agent{number}Output}}" if number else "b"],
        }
        for number in range(CHAIN_NODES)
    ]
    tree.private("Plain", answer)
    tree.shared("Plain", answer)
    tree.shared("Chain", *chain, answer)
    tree.shared("Think", llm_node("answer", **responder, endpointName="Thinker"))
    return tree


class SteppedBackend(StubBackend):
    """An LLM server that sends the bursts of ``workload``, each when ``step`` is called for it."""

    def __init__(self) -> None:
        super().__init__()
        self.workload = Workload("")
        self._steps = threading.Semaphore(0)

    def step(self) -> None:
        """Let the next burst go."""
        self._steps.release()

    def respond(self, request: RecordedRequest) -> Reply:
        self.requests.clear()
        return Reply(raw=self._bursts())

    def _bursts(self) -> Iterator[bytes]:
        for burst in self.workload.bursts():
            self._steps.acquire()
            yield burst


def ask(port: int, backend: SteppedBackend, workload: Workload) -> None:
    """Send a request and hear the answer, burst by burst. Raises RuntimeError if it is not complete."""
    backend.workload = workload
    body = workload.body()
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_SECONDS) as sock:
        sock.sendall(
            b"POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            b"Connection: close\r\nContent-Length: %d\r\n\r\n%s" % (workload.path.encode(), len(body), body)
        )
        received = b""
        for wanted in expected(workload):
            backend.step()
            while wanted not in received:
                data = sock.recv(1 << 20)
                if not data:
                    raise RuntimeError(f"The answer ended before {wanted!r}: {received[-500:]!r}")
                received += data
            received = received[-len(wanted) :]
        # The server closes when it has done everything else.
        while sock.recv(1 << 16):
            pass


def expected(workload: Workload) -> Iterator[bytes]:
    """Yield what the client has received after each burst."""
    if not workload.stream:
        yield ("word " * workload.tokens).strip().encode()
        return
    ends: Iterable[int] = range(workload.burst, workload.tokens + workload.burst, workload.burst)
    for end in ends:
        yield token(min(end, workload.tokens) - 1).strip().encode()
    yield _ENDS[workload.path]
