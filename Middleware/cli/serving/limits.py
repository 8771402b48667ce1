"""The limits of the servers. Read them as ``limits.NAME`` when they are needed, so that tests can change them."""

from __future__ import annotations

# A client that has not begun a request, or owes bytes of one, and sends nothing for so long is disconnected. Longer
# pauses are those between requests, where a new connection costs nothing.
IDLE_SECONDS = 120.0

# The head of a request must be complete after so long, however steadily its bytes come: otherwise one byte a minute
# would keep a connection for ever.
HEAD_SECONDS = 120.0

# While connections without a whole request, and those whose client takes nothing of its answer, are half of all: the
# time for a head, and the pause after which such an answer counts; how old they must be to be closed for others (what
# came with them may not have been read); and the time between two looks at them.
CROWDED_SECONDS = 10.0
CROWDED_GRACE_SECONDS = 2.0
CROWDED_SWEEP_SECONDS = 0.2

# A client that takes nothing of its answer for so long counts as gone: its request holds a thread and a back-end.
STALLED_SECONDS = 120.0

# Both IDLE_SECONDS and STALLED_SECONDS under Eventlet, which has one timeout for reading and writing.
EVENTLET_SECONDS = 60.0

# How long a client whose body was refused may go on sending before the connection is closed.
LINGER_SECONDS = 10.0

# With --drain-seconds, a connection that has just been made when the server stops gets this time to send its first
# request. One that has been used is closed when it is idle: its client, or the proxy, opens another one elsewhere.
FIRST_REQUEST_SECONDS = 5.0

# After a stop, cancelled and background work gets this time to end.
SHUTDOWN_SECONDS = 10.0

# After that, the last bytes of answers that have just ended get this time to leave.
FLUSH_SECONDS = 2.0

# As much as other servers accept; cookies and the tokens of proxies need a small part of it.
HEAD_BYTES = 65536

# Requests that wait while one of the same connection runs. They are read only so that the end of the connection behind
# them is seen.
PIPELINED = 8

# Of the system. It reports that a client takes something only when a good part of it is free, so a large buffer would
# make a slow client look stalled; and it holds so much more of an answer that may never be wanted.
SEND_BUFFER_BYTES = 65536

# Of an answer, before the code that makes it has to wait for the client.
UNSENT_BYTES = 1024 * 1024

# The gate lets fewer requests wait than that, so that others are answered at once where the system allows so many
# threads. No more are started where it limits address space.
WORKER_THREADS = 512

# Waitress's connections, each of which may have a thread: a stream without one would wait until another ends. A thread
# that waits needs about 20 KB of memory. Where select() takes the place of poll(), on Windows, it handles 512 sockets.
CONNECTIONS = 1000
CONNECTIONS_WITH_SELECT = 450

EVENTLET_CONNECTIONS = 1000

# Between two attempts to accept a connection when the system has no descriptor left, so that waiting costs no CPU time.
EXHAUSTION_SECONDS = 0.25

# The end and the beginning of such a shortage follow each other with every connection that ends; one report a minute is
# enough.
EXHAUSTION_QUIET_SECONDS = 60.0

# Between two checks of which clients have exceeded their time.
SWEEP_SECONDS = 1.0
