"""Incremental parsers of the two stream formats that LLM servers use. No I/O; bytes may be cut anywhere.

Only whole lines are decoded, so that a block boundary may split a UTF-8 sequence, and a long line is kept as a list of
blocks until its end arrives (linear time). CR, LF and CRLF end a line; bytes that are not UTF-8 become U+FFFD;
a byte order mark at the start is dropped.
"""

from __future__ import annotations

from Middleware.exceptions import WilmerError

_BOM = "\ufeff"

# An image in an event has a few megabytes; a line that never ends must not fill the memory.
MAX_LINE_BYTES = 64 * 1024 * 1024


class LineTooLongError(WilmerError, ValueError):
    """A line exceeds ``MAX_LINE_BYTES``."""


class LineAssembler:
    """Converts blocks of bytes to whole lines. Raises LineTooLongError for a line that does not end."""

    def __init__(self) -> None:
        self._held: list[bytes] = []
        self._size = 0
        self._at_start = True

    def feed(self, block: bytes) -> list[str]:
        """Return the lines that this block completes, without their line ends; some may be blank."""
        # CRLF becomes two line feeds, but the parsers ignore the blank line between them.
        if b"\r" in block:
            block = block.replace(b"\r", b"\n")
        end = block.rfind(b"\n")
        if end < 0:
            if block:
                self._held.append(block)
                self._size += len(block)
                if self._size > MAX_LINE_BYTES:
                    raise LineTooLongError(f"a line of more than {MAX_LINE_BYTES >> 20} MB")
            return []
        rest = block[end + 1 :]
        complete = block[:end]
        if self._held:
            self._held.append(complete)
            complete = b"".join(self._held)
            self._held.clear()
        if rest:
            self._held.append(rest)
        self._size = len(rest)
        return self._decode(complete).split("\n")

    @property
    def rest(self) -> bytes:
        """The last line, if it has no line end so far."""
        return b"".join(self._held)

    def finish(self) -> list[str]:
        """Return the last line if the stream ended without a line end."""
        rest = b"".join(self._held)
        self._held.clear()
        return [self._decode(rest)] if rest else []

    def _decode(self, data: bytes) -> str:
        text = data.decode("utf-8", "replace")
        if self._at_start:
            self._at_start = False
            text = text.removeprefix(_BOM)
        return text


SSEEvent = tuple[str | None, str]
"""The name from the latest ``event:`` line, if any, and the trimmed payload of one ``data:`` line."""


class SSEParser:
    """Parses server-sent events as LLM servers send them: each ``data:`` line is a separate payload.

    An event name applies until the next ``event:`` line. Comments, other fields and empty payloads are skipped.
    """

    def __init__(self) -> None:
        self._lines = LineAssembler()
        self._event: str | None = None

    def feed(self, block: bytes) -> list[SSEEvent]:
        """Return the events that this block completes."""
        return self._parse(self._lines.feed(block))

    @property
    def is_inside_event(self) -> bool:
        """Whether a line has begun that is not a comment."""
        rest = self._lines.rest.strip()
        return bool(rest) and not rest.startswith(b":")

    def finish(self) -> list[SSEEvent]:
        """Return the event of a last line without a line end."""
        return self._parse(self._lines.finish())

    def _parse(self, lines: list[str]) -> list[SSEEvent]:
        events: list[SSEEvent] = []
        for line in lines:
            line = line.strip()
            if line.startswith("data:"):
                payload = line[5:].lstrip()
                if payload:
                    events.append((self._event, payload))
            elif line.startswith("event:"):
                self._event = line[6:].strip().lower() or None
            # Older llama.cpp servers report errors as "error: {...}"; it becomes an event called "error".
            elif line.startswith("error:") and (payload := line[6:].lstrip()).startswith("{"):
                events.append(("error", payload))
        return events


class NDJSONParser:
    """Splits newline-delimited JSON: each line that is not blank is one payload, returned trimmed and unparsed."""

    def __init__(self) -> None:
        self._lines = LineAssembler()

    def feed(self, block: bytes) -> list[str]:
        """Return the lines that this block completes."""
        return [text for line in self._lines.feed(block) if (text := line.strip())]

    @property
    def is_inside_event(self) -> bool:
        """Whether a line has begun."""
        return bool(self._lines.rest.strip())

    def finish(self) -> list[str]:
        """Return a last line without a line end."""
        return [text for line in self._lines.finish() if (text := line.strip())]
