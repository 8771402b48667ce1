"""Helpers for tests of the transport."""

from __future__ import annotations

import gc
import socket
import threading
import time
from collections.abc import Callable

from Middleware.llmapis.transport import BackendRequest, Transport
from Middleware.models.cancel_scope import CancelScope
from Tests.stub_backend import StubBackend

KEY = "sk-very-secret-key"
# Seconds. More than a busy machine needs, and less than the fault costs that each test with this bound would reveal:
# usually a wait without an end.
SOON = 40.0


def ask(backend: StubBackend, path: str = "/v1/chat/completions", **options: object) -> BackendRequest:
    options.setdefault("payload", {"model": "m", "messages": [{"role": "user", "content": "Grüße {x}"}]})
    return BackendRequest("my-llm", backend.url + path, headers={"Authorization": f"Bearer {KEY}"}, **options)  # type: ignore[arg-type]


def closed_port() -> int:
    with StubBackend() as stub:
        return stub.port


def cancel_during(
    backend: StubBackend, scope: CancelScope, count: int, work: Callable[[], object]
) -> tuple[object, float, float]:
    """Cancel 100 ms after request ``count`` arrived: what came of the work, when it was cancelled, when it ended."""
    moments: list[float] = []

    def cancel() -> None:
        backend.wait_requests(count)
        time.sleep(0.1)
        moments.append(time.monotonic())
        scope.cancel("test")

    thread = threading.Thread(target=cancel)
    thread.start()
    result: object
    try:
        result = work()
    except Exception as error:
        result = error
    done = time.monotonic()
    thread.join()
    return result, moments[0], done


def idle_connections(transport: Transport) -> int:
    """How many open connections wait for a next request."""
    return sum(map(len, transport._pool._idle.values()))


def open_sockets_to(backend: StubBackend) -> int:
    """How many sockets of this process are connected to ``backend``."""
    found = 0
    for thing in gc.get_objects():
        try:
            if isinstance(thing, socket.socket) and thing.fileno() != -1:
                found += thing.getpeername()[1] == backend.port
        except (OSError, IndexError, TypeError, ReferenceError):
            continue  # not connected, or no network socket
    return found
