"""The trace that a request belongs to, as OpenTelemetry and the header ``traceparent`` know it."""

from __future__ import annotations

import random
from dataclasses import dataclass

SAMPLED = 1


@dataclass(frozen=True, slots=True)
class TraceContext:
    """The trace of one request.

    Attributes:
        trace_id: 128 bits.
        parent_id: the span of the client that has sent the request, 64 bits; 0 for none.
        sampled: the spans of the request are sent.
    """

    trace_id: int
    parent_id: int = 0
    sampled: bool = True

    def next_traceparent(self) -> str:
        """Return the header of a request that this one makes: the trace, and a new span in it."""
        return f"00-{self.trace_id:032x}-{random.getrandbits(64) or 1:016x}-{SAMPLED if self.sampled else 0:02x}"


def span_id_in(traceparent: str) -> int:
    """Return the id of the span that ``next_traceparent`` has made."""
    return int(traceparent.split("-")[2], 16)
