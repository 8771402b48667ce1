"""The gate at the front door, driven as a WSGI server would."""
from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from Middleware.api.concurrency_middleware import ConcurrencyLimitMiddleware
from Tests.workflows.engine_lab import until


class App:
    """A WSGI application whose body is ``parts``; a part that is an exception is raised."""

    def __init__(self, *parts: bytes | Exception) -> None:
        self.parts = parts
        self.calls: list[str] = []
        self.closed = 0

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        self.calls.append(environ["REQUEST_METHOD"])
        start_response("200 OK", [])
        return Body(self)


class Body:
    def __init__(self, app: App) -> None:
        self._app = app

    def __iter__(self) -> Iterator[bytes]:
        for part in self._app.parts:
            if isinstance(part, Exception):
                raise part
            yield part

    def close(self) -> None:
        self._app.closed += 1


class Started:
    status = ""
    headers: dict[str, str] = {}

    def __call__(self, status: str, headers: list[tuple[str, str]]) -> None:
        self.status, self.headers = status, dict(headers)


class Gate:
    def __init__(self, app: Any, slots: int = 1, timeout: float = 5.0, max_waiting: int | None = None) -> None:
        self.semaphore = threading.BoundedSemaphore(slots)
        self.middleware = ConcurrencyLimitMiddleware(app, self.semaphore, timeout, max_waiting)

    def open(self, method: str = "POST", **environ: Any) -> tuple[Started, Any]:
        started = Started()
        return started, self.middleware({"REQUEST_METHOD": method, **environ}, started)

    def free(self) -> bool:
        """Whether a slot is free."""
        taken = self.semaphore.acquire(blocking=False)
        if taken:
            self.semaphore.release()
        return taken


class Waiter(threading.Thread):
    """A request that waits at the gate."""

    def __init__(self, gate: Gate, **environ: Any) -> None:
        super().__init__(daemon=True)
        self.gate, self.environ = gate, environ
        self.started: Started | None = None
        self.body: Any = None
        self.start()

    def run(self) -> None:
        self.started, self.body = self.gate.open(**self.environ)


def finish(body: Any) -> bytes:
    data = b"".join(body)
    close = getattr(body, "close", None)
    if close:
        close()
    return data


def test_a_slot_is_held_until_the_body_is_closed() -> None:
    app = App(b"a", b"b")
    gate = Gate(app)
    started, body = gate.open()
    assert started.status == "200 OK"
    assert next(iter(body)) == b"a"
    assert not gate.free()
    body.close()
    assert gate.free() and app.closed == 1


def test_a_slot_is_free_when_the_body_is_exhausted() -> None:
    gate = Gate(App(b"a", b"b"))
    _, body = gate.open()
    assert b"".join(body) == b"ab"
    assert gate.free()
    body.close()  # a second release of a bounded semaphore would raise
    body.close()
    assert gate.free()


def test_a_slot_is_free_when_the_body_fails() -> None:
    gate = Gate(App(b"a", RuntimeError("broken")))
    _, body = gate.open()
    with pytest.raises(RuntimeError, match="broken"):
        list(body)
    assert gate.free()
    body.close()


def test_a_slot_is_free_when_the_app_raises() -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Any:
        raise RuntimeError("broken")

    gate = Gate(app)
    with pytest.raises(RuntimeError, match="broken"):
        gate.open()
    assert gate.free()


def test_background_work_of_a_closing_body_holds_no_slot() -> None:
    seen: list[bool] = []

    class Busy(Body):
        def close(self) -> None:
            seen.append(gate.free())

    def app(environ: dict[str, Any], start_response: Any) -> Any:
        return Busy(App(b"a"))

    gate = Gate(app)
    _, body = gate.open()
    body.close()
    assert seen == [True]


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "DELETE"])
def test_other_methods_never_wait(method: str) -> None:
    app = App(b"x")
    gate = Gate(app)
    gate.open()
    started = time.monotonic()
    assert finish(gate.open(method)[1]) == b"x"
    assert time.monotonic() - started < 0.5
    assert not gate.free()


def test_the_next_in_line_goes_when_a_slot_is_free() -> None:
    gate = Gate(App(b"x"))
    _, first = gate.open()
    second = Waiter(gate)
    time.sleep(0.05)
    assert second.body is None
    first.close()
    second.join(1)
    assert second.body is not None and finish(second.body) == b"x"
    assert gate.free()


def test_time_out() -> None:
    app = App(b"x")
    gate = Gate(app, timeout=0.15)
    _, first = gate.open()
    began = time.monotonic()
    started, body = gate.open()
    assert 0.1 < time.monotonic() - began < 1
    data = finish(body)
    assert started.status == "503 Service Unavailable"
    assert started.headers["Content-Type"] == "application/json"
    assert started.headers["Content-Length"] == str(len(data))
    assert int(started.headers["Retry-After"]) > 0
    assert json.loads(data) == {"error": {"message": "Server busy, concurrency limit reached",
                                          "type": "server_error", "code": 503}}
    assert app.calls == ["POST"]
    first.close()
    assert gate.free()


def test_more_than_may_wait_are_refused_at_once() -> None:
    gate = Gate(App(b"x"), max_waiting=1)
    _, first = gate.open()
    waiting = Waiter(gate)
    assert until(lambda: gate.middleware._waiting == 1)
    began = time.monotonic()
    assert gate.open()[0].status.startswith("503")
    assert time.monotonic() - began < 0.5
    first.close()
    waiting.join(1)
    assert finish(waiting.body) == b"x"


def test_a_client_that_left_the_queue_is_not_served() -> None:
    app = App(b"x")
    gate = Gate(app)
    _, first = gate.open()
    gone = threading.Event()
    waiting = Waiter(gate, **{"waitress.client_disconnected": gone.is_set})
    time.sleep(0.05)
    assert waiting.started is None
    gone.set()
    waiting.join(1)
    assert not waiting.is_alive()
    first.close()
    assert app.calls == ["POST"] and gate.free()


def test_slots_under_load() -> None:
    running, most = [0], [0]
    lock = threading.Lock()

    def app(environ: dict[str, Any], start_response: Any) -> Any:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        time.sleep(0.01)
        with lock:
            running[0] -= 1
        return Body(App(b"x"))

    gate = Gate(app, slots=3)
    waiters = [Waiter(gate) for _ in range(20)]

    def close_all() -> bool:
        for waiter in waiters:
            if waiter.body is not None:
                finish(waiter.body)
        return not any(waiter.is_alive() for waiter in waiters)

    assert until(close_all, 5)
    assert 1 <= most[0] <= 3
    close_all()
    assert all(gate.semaphore.acquire(blocking=False) for _ in range(3))
