"""How patient the servers are with their clients; read when they are needed, so that tests can set them."""
from __future__ import annotations

IDLE_SECONDS = 120.0
"""A client that owes bytes of a request, or has not begun one, and sends nothing for so long is given up."""

HEAD_SECONDS = 120.0
"""The head of a request must be complete after so long, however steadily its bytes come."""

STALLED_SECONDS = 120.0
"""A client that takes nothing of its answer for so long counts as gone."""

EVENTLET_SECONDS = 60.0
"""What ``IDLE_SECONDS`` and ``STALLED_SECONDS`` are under Eventlet, which knows one limit for both."""

HEAD_BYTES = 65536
PIPELINED = 8  # requests that wait while one of the same connection runs
SEND_BUFFER_BYTES = 65536
"""Of the system. It says that a client takes something only when a good part of it is free, so a large one would make a
slow client look stalled; and it holds so much more of an answer that nobody may want."""
UNSENT_BYTES = 1024 * 1024  # of an answer, before its maker has to wait for the client
EVENTLET_CONNECTIONS = 1000
SHORTAGE_SECONDS = 0.25  # between two attempts to accept a connection when the system has no descriptor left
SWEEP_SECONDS = 1.0  # between two looks for those who have used up their time
