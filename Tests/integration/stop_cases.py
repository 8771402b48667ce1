"""The phases in which a client may go away, for the tests and for ``benchmarks/stop_latency.py``."""
from __future__ import annotations

import time
from dataclasses import dataclass

from Tests.integration.launcher import Backend, Launcher, read_until, stuck
from Tests.stub_backend import Reply

ENDED_SECONDS = 2.0
QUIET_SECONDS = 0.15
"""A node that is wrongly started calls the back-end within a few milliseconds."""


@dataclass(frozen=True)
class StopCase:
    """One phase.

    Attributes:
        model: the shared workflow; None for routing.
        node: the node in whose LLM call the client goes.
        reaches: all nodes that may have called by then, in order.
        seen: what the client waits for before it goes; empty: it has received nothing.
    """

    name: str
    model: str | None
    stream: bool
    node: str
    reaches: tuple[str, ...]
    seen: bytes = b""

    def reply(self) -> Reply:
        """What the back-end does to that node: nothing, or two tokens and then nothing."""
        return stuck("Once ", "upon ", "a ") if self.seen else Reply(never=True)


SINGLE_LEVEL = (
    StopCase("prompt processing of the responder", "Chain", True, "second", ("first", "second")),
    StopCase("prompt processing of an earlier node", "Chain", True, "first", ("first",)),
    StopCase("categorization", None, True, "categorize", ("categorize",)),
    StopCase("mid-stream", "Chain", True, "second", ("first", "second"), b"upon"),
    StopCase("non-streaming, responder", "Chain", False, "second", ("first", "second")),
    StopCase("non-streaming, earlier node", "Chain", False, "first", ("first",)),
)
NESTED = (
    StopCase("nested, prompt processing", "Nested", True, "inner", ("inner",)),
    StopCase("nested, non-streaming", "Nested", False, "inner", ("inner",)),
    StopCase("nested responder, prompt processing", "NestedSpeaker", True, "speaker", ("speaker",)),
    StopCase("nested responder, mid-stream", "NestedSpeaker", True, "speaker", ("speaker",), b"upon"),
)


def leave(server: Launcher, backend: Backend, case: StopCase, pause: float = 0.03) -> float:
    """Send the request, go away in its phase, and return the seconds until the back-end noticed.

    ``pause``: seconds between the back-end's call and the client's leave.

    Raises AssertionError if it did not notice in time.
    """
    backend.replies[case.node] = case.reply()
    sock = server.open(case.model, case.stream)
    with sock:
        if case.seen:
            read_until(sock, case.seen)
        call = backend.wait_call(case.node)
        time.sleep(pause)
        left = time.monotonic()
    assert call.wait_ended(ENDED_SECONDS), f"{case.name}: the back-end call went on for {ENDED_SECONDS} s"
    assert call.client_left and call.ended_at is not None
    return call.ended_at - left


def assert_nothing_follows(backend: Backend, case: StopCase) -> None:
    """No later node, and no second attempt of the stopped one."""
    time.sleep(QUIET_SECONDS)
    assert tuple(backend.nodes()) == case.reaches
