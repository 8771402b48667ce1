"""The ends of streams: what a server sends with and after a finish reason, and streams that end without one."""

from __future__ import annotations

import logging
import time

from Middleware.llmapis.handlers.base.answer_forms import carries
from Middleware.models.messages import Chunk
from Middleware.models.process import process
from Middleware.utilities.once import MAX_REMEMBERED, BoundedCache

logger = logging.getLogger(__name__)

# How long a stream is read after a finish reason without an event that carries something; servers whose reason comes
# together with text write it on every event.
DRAIN_SECONDS = 1.0
REPEATED_REASON_SECONDS = 10.0
# How long the connection may take to end after the last event.
CLOSING_SECONDS = 0.1
# Bytes that are read after a finish reason without an event that carries something.
DRAIN_BYTES = 65536


class HeldEnd:
    """The finish reason of a stream and what follows it without carrying anything, which wait for the real end.

    Attributes:
        chunks: what waits, in order; at most one of them has a finish reason.
    """

    __slots__ = ("_noise", "_reason_comes_with_content", "_useful_at", "chunks")

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self._reason_comes_with_content = False
        self._useful_at, self._noise = 0.0, 0

    def passed(self, chunks: list[Chunk]) -> list[Chunk]:
        """Return the chunks, since a finish reason has come, that go on at once."""
        passed: list[Chunk] = []
        for chunk in chunks:
            if not carries(chunk) and (chunk["finish_reason"] is not None or self.chunks):
                self._hold(chunk)
                continue
            if chunk["finish_reason"] is not None:
                self._reason_comes_with_content = True
                self._hold({"token": "", "finish_reason": chunk["finish_reason"]})
                chunk["finish_reason"] = None
            passed.append(chunk)
        return passed

    def _hold(self, chunk: Chunk) -> None:
        # Of several finish reasons, the last is the answer's.
        if chunk["finish_reason"] is not None:
            for held in self.chunks:
                held["finish_reason"] = None
            self.chunks = [held for held in self.chunks if len(held) > 2]
        self.chunks.append(chunk)

    def begin_waiting(self) -> None:
        """Begin to count what the server sends after the reason without carrying anything."""
        self._useful_at, self._noise = time.monotonic(), 0

    def is_over(self, size: int, is_useful: bool, is_closed: bool) -> bool:
        """Return whether to read no further.

        Args:
            size: bytes that have come now.
            is_useful: whether they carried something.
            is_closed: the last event of the dialect has come.
        """
        now = time.monotonic()
        if is_useful:
            self._useful_at, self._noise = now, 0
        else:
            self._noise += size
        most = REPEATED_REASON_SECONDS if self._reason_comes_with_content else DRAIN_SECONDS
        return now - self._useful_at >= (CLOSING_SECONDS if is_closed else most) or self._noise >= DRAIN_BYTES


def _marked() -> BoundedCache[str, bool]:
    """Return the files of endpoints whose streams have had an end; as False, of those logged because they had none."""
    return BoundedCache(MAX_REMEMBERED)


def may_be_whole(file: str, name: str, has_mark: bool, is_half: bool) -> bool:
    """Return whether a stream that has ended may be a whole answer.

    A proxy ends the body properly although the server behind it has died. So an endpoint that has sent the mark of an
    end once must send it always.

    Args:
        file: the endpoint's file. Those of several users may have one name.
        name: the endpoint's, for the log.
        has_mark: a finish reason or the last event of the dialect has come.
        is_half: the stream ended in the middle of an event.
    """
    marked = process().one(_marked)
    known = marked.get(file)
    if has_mark:
        if not known:
            marked.put(file, True)
        return True
    if is_half or known:
        return False
    if known is None:
        marked.put(file, False)
        logger.info("Endpoint '%s' sends no end of its streams: a broken one cannot be told from a whole one.", name)
    return True
