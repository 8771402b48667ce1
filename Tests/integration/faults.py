"""Everything a back-end can do wrong, as a table, and the server that it is done to.

``FAULTS`` names each fault, what the back-end does, and how a client's answer must end, whole and streamed. A client's
message ``fault:<name>`` asks the back-end for it. ``CASES`` are the faults that each client can meet.
"""

from __future__ import annotations

import gzip
import json
import re
import socket
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from Tests.backend_dialects import PATHS, Answer, Dialect, named_event, wants_stream
from Tests.integration.client_dialects import FRONTS, Turn
from Tests.integration.dialect_matrix import BACKS, CHAT, CLAUDE, KEY, OLLAMA, dialect_tree
from Tests.integration.launcher import USER, Launcher, Response, endpoint, llm_node
from Tests.stub_backend import AFTER_PIECES, BEFORE_STATUS, RecordedRequest, Reply, StubBackend, sse_event, status_reply

TOKENS = ("Once ", "upon ", "größer")
TEXT = "".join(TOKENS)
LONG = "lång" * 262_144  # over a megabyte
SAID = f"scripted trouble with {KEY}"
DEAD = "Dead"
CUT_OFF = "ended without its end"
DRIP_SECONDS = 0.003
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n"
PAGE = b"<!DOCTYPE html><html><head><title>Welcome to nginx</title></head><body>It works</body></html>"
NO_OBJECTS = ("{oops", "5", "null", '"text"', "[]", '{"half": ')
MALFORMED = (*NO_OBJECTS, '{"choices": 5, "message": 5, "delta": 5}')


@dataclass(frozen=True)
class End:
    """How an answer ends: with ``error`` in its message, after ``text``; without one, complete."""

    text: str = ""
    error: str = ""


@dataclass(frozen=True)
class Fault:
    """What a back-end does.

    Attributes:
        reply: makes it for a dialect, streamed or not.
        whole, streamed: how the client's answer ends; None: the fault does not exist there.
        everywhere: the framing matters, so that other back-end dialects are asked too.
    """

    reply: Callable[[Dialect, bool], Reply]
    whole: End | None
    streamed: End | None
    everywhere: bool = False


# -- what it does --------------------------------------------------------------------------------------------------
def good(dialect: Dialect, stream: bool, text: Sequence[str] = TOKENS) -> Reply:
    return dialect.reply(Answer(text), stream)


def streamed(dialect: Dialect, pieces: Sequence[bytes], **options: Any) -> Reply:
    return Reply(pieces=pieces, headers={"Content-Type": dialect.content_type, **options.pop("headers", {})}, **options)


def body_of(dialect: Dialect) -> bytes:
    return json.dumps(dialect.whole(Answer(TOKENS)), ensure_ascii=False).encode()


def begun(dialect: Dialect) -> list[bytes]:
    """The events of a stream up to its last token."""
    pieces = dialect.pieces(Answer(TOKENS))
    last = next(number for number, piece in enumerate(pieces) if TOKENS[-1].encode() in piece)
    return pieces[: last + 1]


def event(dialect: Dialect, text: str) -> bytes:
    return text.encode() + b"\n" if dialect.api_type == OLLAMA else sse_event(text)


def error_body(dialect: Dialect) -> dict[str, Any]:
    if dialect.api_type == OLLAMA:
        return {"error": SAID}
    return {"type": "error", "error": {"type": "overloaded_error", "message": SAID}}  # OpenAI servers: the inner one


def error_event(dialect: Dialect) -> bytes:
    if dialect.api_type == CLAUDE:
        return named_event("error", error_body(dialect))
    return event(dialect, json.dumps(error_body(dialect)))


def reset(dialect: Dialect, stream: bool) -> Reply:
    """RST in the middle of an event; a moment after the tokens, or they might be lost with it."""
    if not stream:
        return Reply(body=body_of(dialect), drop=AFTER_PIECES, reset=True)
    pieces = begun(dialect)
    return streamed(dialect, [*pieces, b'data: {"cho'], delays=[0] * len(pieces) + [0.1], drop=AFTER_PIECES, reset=True)


def cut_chunk(dialect: Dialect, stream: bool) -> Reply:
    sent = b"".join(begun(dialect)) if stream else body_of(dialect)[:20]
    return Reply(raw=HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n40\r\n{" % (len(sent), sent))


def cut_length(dialect: Dialect, stream: bool) -> Reply:
    sent = b"".join(begun(dialect)) if stream else body_of(dialect)[:20]
    return Reply(raw=HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(sent) + 99, sent))


def error_object(dialect: Dialect, stream: bool) -> Reply:
    return Reply(body=error_body(dialect))


def status(number: int) -> Callable[[Dialect, bool], Reply]:
    return lambda dialect, stream: status_reply(number, SAID)


def drip(dialect: Dialect, stream: bool) -> Reply:
    """Each byte of the first event with a token, or of the whole body, by itself."""
    if not stream:
        data = [bytes([byte]) for byte in body_of(dialect)]
        return Reply(pieces=data, framing="length", delay=DRIP_SECONDS, headers={"Content-Type": "application/json"})
    pieces = dialect.pieces(Answer(TOKENS))
    place = next(number for number, piece in enumerate(pieces) if TOKENS[0].encode() in piece)
    drops = [bytes([byte]) for byte in pieces[place]]
    return streamed(
        dialect,
        [*pieces[:place], *drops, *pieces[place + 1 :]],
        delays=[0] * place + [DRIP_SECONDS] * len(drops) + [0] * len(pieces),
    )


def junk_between(dialect: Dialect, stream: bool) -> Reply:
    pieces = dialect.pieces(Answer(TOKENS))
    return streamed(
        dialect,
        [
            *(event(dialect, text) for text in MALFORMED),
            *(
                part
                for number, piece in enumerate(pieces)
                for part in (piece, event(dialect, MALFORMED[number % len(MALFORMED)]))
            ),
        ],
    )


def nothing_but_junk(dialect: Dialect, stream: bool) -> Reply:
    junk = [event(dialect, text) for text in NO_OBJECTS]
    return streamed(dialect, junk) if stream else Reply(body=b'{"choices": [{"mess')


def page(dialect: Dialect, stream: bool) -> Reply:
    return Reply(body=PAGE, headers={"Content-Type": "text/html"})


def gzipped(dialect: Dialect, stream: bool) -> Reply:
    encoding = {"Content-Encoding": "gzip"}
    if not stream:
        return Reply(body=gzip.compress(body_of(dialect)), headers=encoding)
    packer = zlib.compressobj(wbits=31)
    pieces = [packer.compress(piece) + packer.flush(zlib.Z_SYNC_FLUSH) for piece in dialect.pieces(Answer(TOKENS))]
    return streamed(dialect, [*pieces, packer.flush()], headers=encoding)


def not_utf8(dialect: Dialect, stream: bool) -> Reply:
    answer = Answer(("caf@ ", "cr@me"))
    if not stream:
        return Reply(body=json.dumps(dialect.whole(answer)).encode().replace(b"@", b"\xe8"))
    return streamed(dialect, [piece.replace(b"@", b"\xe8") for piece in dialect.pieces(answer)])


BEFORE, WITHIN = "closed the connection before it answered", "in the middle of its answer"
FAULTS: dict[str, Fault] = {
    "refused": Fault(good, End(error="connection refused"), End(error="connection refused")),
    "accept-and-close": Fault(lambda dialect, stream: Reply(drop=BEFORE_STATUS), End(error=BEFORE), End(error=BEFORE)),
    "reset-before-status": Fault(
        lambda dialect, stream: Reply(drop=BEFORE_STATUS, reset=True), End(error=BEFORE), End(error=BEFORE)
    ),
    "reset": Fault(reset, End(error=WITHIN), End(TEXT, WITHIN), everywhere=True),
    "cut-chunk": Fault(cut_chunk, End(error=WITHIN), End(TEXT, WITHIN), everywhere=True),
    "cut-after-end": Fault(
        lambda dialect, stream: streamed(dialect, dialect.pieces(Answer(TOKENS)), drop=AFTER_PIECES),
        None,
        End(TEXT),
        everywhere=True,
    ),
    "cut-length": Fault(cut_length, End(error=WITHIN), End(TEXT, WITHIN)),
    "error-object": Fault(error_object, End(error="scripted trouble"), End(error="scripted trouble"), everywhere=True),
    "error-event-first": Fault(
        lambda dialect, stream: streamed(dialect, [error_event(dialect)]),
        None,
        End(error="scripted trouble"),
        everywhere=True,
    ),
    "error-event-later": Fault(
        lambda dialect, stream: streamed(dialect, [*begun(dialect), error_event(dialect)]),
        None,
        End(TEXT, "scripted trouble"),
        everywhere=True,
    ),
    **{
        f"status-{number}": Fault(status(number), End(error=f"status {number}"), End(error=f"status {number}"))
        for number in (400, 401, 404, 429, 500, 503)
    },
    "redirect": Fault(
        lambda dialect, stream: Reply(status=302, body={}, headers={"Location": "/elsewhere"}),
        End(error="status 302"),
        End(error="status 302"),
    ),
    "slow-drip": Fault(drip, End(TEXT), End(TEXT), everywhere=True),
    "junk-between": Fault(junk_between, None, End(TEXT), everywhere=True),
    "nothing-but-junk": Fault(nothing_but_junk, End(error="not JSON"), End(error="holds no event"), everywhere=True),
    # The back-end has sent ends before.
    "no-terminator": Fault(
        lambda dialect, stream: streamed(dialect, begun(dialect)), None, End(TEXT, CUT_OFF), everywhere=True
    ),
    "no-terminator-no-length": Fault(
        lambda dialect, stream: streamed(dialect, begun(dialect), framing="close"),
        None,
        End(TEXT, CUT_OFF),
        everywhere=True,
    ),
    "web-page": Fault(page, End(error="not JSON (text/html"), End(error="holds no event"), everywhere=True),
    "gzip": Fault(gzipped, End(TEXT), End(TEXT), everywhere=True),
    "long-line": Fault(lambda dialect, stream: good(dialect, stream, [LONG]), End(LONG), End(LONG), everywhere=True),
    "not-utf8": Fault(not_utf8, End("caf\ufffd cr\ufffdme"), End("caf\ufffd cr\ufffdme"), everywhere=True),
}


# -- to whom it is done --------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Case:
    """A fault of a back-end dialect, met by a client."""

    fault: str
    back: str
    front: str
    stream: bool

    def __str__(self) -> str:
        return f"{self.fault}, {self.back}, {self.front}, {'streamed' if self.stream else 'whole'}"

    @property
    def end(self) -> End:
        fault = FAULTS[self.fault]
        end = fault.streamed if self.stream else fault.whole
        assert end is not None
        return end

    def ask(self, server: Launcher, fault: str) -> Response:
        front, model = FRONTS[self.front], DEAD if fault == "refused" else self.back
        return server.request("POST", front.path, front.body(model, [Turn("user", f"fault:{fault}")], self.stream))


CASES = [
    Case(name, back, front, stream)
    for name, fault in FAULTS.items()
    for back in ((CHAT, OLLAMA, CLAUDE) if fault.everywhere else (CHAT,))
    for front in FRONTS
    for stream in (False, True)
    if (fault.streamed if stream else fault.whole)
]


def reply(request: RecordedRequest) -> Reply:
    found = re.search(rb"fault:([a-z0-9-]+)", request.body)
    fault = FAULTS.get(found[1].decode() if found else "")
    dialect, stream = PATHS[request.path], wants_stream(request)
    return fault.reply(dialect, stream) if fault else good(dialect, stream)


@contextmanager
def faulty_server(script: str) -> Iterator[tuple[Launcher, StubBackend]]:
    """A server with a workflow per back-end dialect, and one whose back-end refuses every connection."""
    with TemporaryDirectory() as folder, StubBackend() as backend, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and never listens
        backend.responder = reply
        tree = dialect_tree(Path(folder) / "Public", backend.url)
        tree.write(
            f"Endpoints/{DEAD}.json",
            endpoint(f"http://127.0.0.1:{closed.getsockname()[1]}", apiTypeConfigFileName=BACKS[CHAT].name, apiKey=KEY),
        )
        tree.shared(DEAD, llm_node(f"ask-{DEAD}", endpointName=DEAD, preset="", returnToUser=True))
        with Launcher(script, "--PublicDirectory", tree.public, "--User", USER, "--concurrency", "0") as server:
            yield server, backend
