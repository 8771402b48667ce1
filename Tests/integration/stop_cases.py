"""The phases in which a client may go away, for the tests and for ``benchmarks/stop_latency.py``.

A phase is what a workflow is busy with when the client goes: usually a call of one of its nodes that is not answered.
"""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from Tests.integration.scripted_backend import Answer, Talk, says, stuck
from Tests.stub_backend import RecordedRequest, Reply, chat_reply, chat_stream_reply, status_reply

HEAD = b"\r\n\r\n"
"""The end of an answer's head, which comes with the first thing in a stream, if only a sign of life."""

# -- what the nodes are told -------------------------------------------------------------------------------------------

Script = Callable[[Talk], Answer]
"""Makes the answer of a node in one conversation."""


def silence(talk: Talk) -> Answer:
    """Nothing at all."""
    return Reply(never=True)


def some_tokens(talk: Talk) -> Answer:
    """Three tokens, or the beginning of a whole answer, and then nothing."""
    return lambda request: (
        stuck("Once ", "upon ", "a ") if _is_streamed(request) else Reply(pieces=[b'{"choices": ['], hang=True)
    )


def flowing_tokens(talk: Talk) -> Answer:
    """Tokens for half a minute; a whole answer comes as slowly."""
    return _flowing([f"word{number} " for number in range(3000)])


def thoughts(talk: Talk) -> Answer:
    """Tokens for half a minute, all of them in a block that the endpoint strips."""
    return _flowing(["<think>", *(f"hm{number} " for number in range(3000))])


def _flowing(tokens: list[str]) -> Answer:
    return lambda request: (
        chat_stream_reply(tokens, delay=0.01)
        if _is_streamed(request)
        else Reply(pieces=[b" "] * len(tokens), delay=0.01)
    )


def _is_streamed(request: RecordedRequest) -> bool:
    return bool(request.json.get("stream"))


def too_busy(talk: Talk) -> Answer:
    """A request to come again much later."""
    return status_reply(503, headers={"Retry-After": "10"})


def hello(talk: Talk) -> Answer:
    """The usual answer."""
    return lambda request: says(request, "node")


def second_in_vain(talk: Talk) -> Answer:
    """An answer to the first call, nothing to the second."""
    numbers = itertools.count(1)
    return lambda request: says(request, "node") if next(numbers) == 1 else Reply(never=True)


_NUMBERS = itertools.count(1)


def hello_again(talk: Talk) -> Answer:
    """The conversation's own words, by which later calls are known; a memory that is said again is not stored."""
    return lambda request: chat_reply(f"They said {talk.hello} for the time {next(_NUMBERS)}.")


def facts(talk: Talk) -> Answer:
    """A searchable memory."""
    return chat_reply(
        json.dumps(
            [
                {
                    "title": "Words",
                    "summary": f"They said {talk.hello}.",
                    "entities": ["Ann"],
                    "key_phrases": ["some words"],
                }
            ]
        )
    )


# -- the phases --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Phase:
    """One phase.

    Attributes:
        model: the shared workflow; None for routing.
        node: the node in whose call the client goes.
        reaches: all nodes that may have called by then, in order.
        calls: so many calls of ``node`` must have come before the client goes.
        script: what ``node`` is told, and others by their name in ``others``.
        seen: what a client that streams waits for before it goes; empty: it has received nothing.
        beside: nodes that call at the same time and must end too; ``reaches`` has no order then.
        shows: "call": the end of the node's call shows that the stop has arrived; "log": nothing but the log does
            (no other phase may have the same ``model``), nor for a request in the "queue".
        pause: seconds between the last call and the client's leave.
        streams: the modes in which there is such a phase.
        told: the back-end has to be told of the stop in words, too.
        missing: says what this machine lacks for it, "" if nothing.
    """

    name: str
    model: str | None
    node: str
    reaches: tuple[str, ...]
    script: Script = silence
    others: Mapping[str, Script] = field(default_factory=dict)
    calls: int = 1
    seen: bytes = b""
    beside: tuple[str, ...] = ()
    shows: str = "call"
    pause: float = 0.05
    streams: tuple[bool, ...] = (False, True)
    told: bool = False
    missing: Callable[[], str] = lambda: ""


def _no_curl() -> str:
    return "" if shutil.which("curl") else "curl is not installed"


EARLIER = Phase("prompt processing of an earlier node", "Chain", "first", ("first",))
PREFILL = Phase("prompt processing of the responder", "Chain", "second", ("first", "second"))
MID_STREAM = Phase("some tokens, then silence", "Chain", "second", ("first", "second"), some_tokens, seen=b"upon")
CATEGORIZATION = Phase("categorization", None, "categorize", ("categorize",))
STANDARD = (EARLIER, PREFILL, MID_STREAM, CATEGORIZATION)
"""Those that need nothing but the standard tree; so do the nested ones."""
BUSY = (
    Phase("tokens flowing", "Chain", "second", ("first", "second"), flowing_tokens, seen=b"word3"),
    Phase("a stripped block of reasoning", "Thinker", "thinker", ("thinker",), thoughts, seen=HEAD),
    Phase("between attempts", "Busy", "busy", ("busy",), too_busy, shows="log"),
    Phase("prompt processing at KoboldCpp", "Kobold", "kobold", ("kobold",), told=True),
    Phase("words of a fixed text", "Words", "", (), seen=b"word3", shows="log", streams=(True,)),
    Phase("parallel nodes", "SideBySide", "left", ("left", "right"), others={"right": silence}, beside=("right",)),
)
NESTED = (
    Phase("nested workflow", "Nested", "inner", ("inner",)),
    Phase("nested responder", "NestedSpeaker", "speaker", ("speaker",)),
    Phase("nested responder, some tokens", "NestedSpeaker", "speaker", ("speaker",), some_tokens, seen=b"upon"),
)
LOOPS = (
    Phase("second block of a chunk processor", "Blocks", "block", ("block", "block"), second_in_vain, calls=2),
    Phase("second block of a text", "Rag", "rag", ("rag", "rag"), second_in_vain, calls=2),
    Phase("blocks at several endpoints", "RagTogether", "rag", ("rag", "rag"), calls=2),
)
MEMORIES = (
    Phase("file memory", "FileMemory", "memory", ("memory",)),
    Phase("searchable memory", "VectorMemory", "facts", ("facts",)),
    Phase("embedding of a memory", "VectorMemory", "embed", ("facts", "embed"), others={"facts": facts}),
    Phase("summary", "Summary", "summary", ("memory",) * 4 + ("summary",), others={"memory": hello_again}),
    Phase("compactor", "Compactor", "old", ("old",)),
)
TOOLS = (
    Phase("WebFetch", "Page", "page", ("page",)),
    Phase("CurlCommand", "Curl", "curl", ("curl",), missing=_no_curl),
    Phase("offline Wikipedia", "Wikipedia", "articles", ("articles",)),
    Phase("MCP over HTTP", "Mcp-http", "mcp", ("mcp",)),
    Phase("MCP over stdio", "Mcp-stdio", "stdio", ("stdio",)),
    Phase("child process of a script", "Child", "child", ("child",)),
    Phase("a node without LLM", "Sleep", "first", ("first",), hello, shows="log", pause=0.1),
)
CONNECTING = Phase("connecting", "Deaf", "", (), shows="log", pause=0.1)
QUEUED = Phase("queued at the gate", "Chain", "", (), shows="queue")
"""Needs a server that is at work for another client and takes one at a time."""
PHASES = (*STANDARD, *BUSY, *NESTED, *LOOPS, *MEMORIES, *TOOLS, CONNECTING, QUEUED)
