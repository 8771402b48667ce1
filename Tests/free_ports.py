"""Ports at which nothing listens, and at which no other test begins to listen by chance."""

from __future__ import annotations

import random
import socket

# Below those that systems give to sockets that ask for any: from 32,768 on Linux, from 49,152 elsewhere. Such
# a port may be given to another test before it is used.
_PORTS = range(10_000, 32_000)
_TRIES = 1_000


def free_port() -> int:
    """Return a port of 127.0.0.1 that is free. Raises OSError if none is found."""
    for _ in range(_TRIES):
        port = random.SystemRandom().choice(_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            # It is in use, or Windows has reserved it.
            except OSError:
                continue
            return port
    raise OSError("no free port was found")
