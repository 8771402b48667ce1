"""The concurrency gate, driven as a WSGI server would."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from Middleware.api.concurrency_middleware import ConcurrencyLimitMiddleware, Outcome, Place
from Middleware.api.running.running_requests import REQUEST_KEY
from Middleware.common.fair_semaphore import FairSemaphore
from Middleware.models.request_context import RequestContext
from Tests.api.front_dialects import openai_message, plain_message
from Tests.tables import table
from Tests.workflows.engine_lab import until

CHAT = "/v1/chat/completions"


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
    def __init__(self, app: Any, slots: int = 1, timeout: float = 60.0, max_waiting: int | None = None) -> None:
        self.semaphore = FairSemaphore(slots)
        self.middleware = ConcurrencyLimitMiddleware(app, self.semaphore, timeout, max_waiting)

    def open(self, method: str = "POST", **environ: Any) -> tuple[Started, Any]:
        started = Started()
        return started, self.middleware({"REQUEST_METHOD": method, "PATH_INFO": CHAT, **environ}, started)

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
    assert finish(gate.open(method)[1]) == b"x"
    assert not gate.free()


def test_a_client_of_ollama_reads_that_the_server_is_busy() -> None:
    gate = Gate(App(b"x"), timeout=0.05)
    gate.open()
    assert plain_message(json.loads(finish(gate.open(PATH_INFO="/api/chat")[1]))).startswith("Server busy")


WORKFLOWS = [CHAT, "/chat/completions", "/v1/completions", "/completions", "/api/chat", "/api/generate"]


@table(("before", "after"), [("", ""), ("", "/"), ("/", ""), ("//", "//")])
@table("path", WORKFLOWS)
def test_what_runs_a_workflow_waits(path: str, before: str, after: str) -> None:
    gate = Gate(App(b"x"), timeout=0.05)
    gate.open()
    assert gate.open(PATH_INFO=before + path + after)[0].status.startswith("503")


@pytest.mark.parametrize("path", ["/api/show", "/api/show/", "/v1/models", "/api/pull", "/v1/embeddings", "/", ""])
def test_other_posts_never_wait(path: str) -> None:
    gate = Gate(App(b"x"), timeout=0.05)
    gate.open()
    assert finish(gate.open(PATH_INFO=path)[1]) == b"x"
    assert not gate.free()


def test_the_next_in_line_goes_when_a_slot_is_free() -> None:
    gate = Gate(App(b"x"))
    _, first = gate.open()
    second = Waiter(gate)
    time.sleep(0.05)
    assert second.body is None
    first.close()
    second.join(60)
    assert second.body is not None and finish(second.body) == b"x"
    assert gate.free()


def test_time_out() -> None:
    app = App(b"x")
    gate = Gate(app, timeout=0.15)
    _, first = gate.open()
    began = time.monotonic()
    started, body = gate.open()
    assert time.monotonic() - began > 0.1
    data = finish(body)
    assert started.status == "503 Service Unavailable"
    assert started.headers["Content-Type"] == "application/json"
    assert started.headers["Content-Length"] == str(len(data))
    assert int(started.headers["Retry-After"]) > 0
    assert openai_message(json.loads(data), 503) == "Server busy, concurrency limit reached"
    assert app.calls == ["POST"]
    first.close()
    assert gate.free()


def test_more_than_may_wait_are_refused_at_once() -> None:
    gate = Gate(App(b"x"), timeout=60, max_waiting=1)
    _, first = gate.open()
    waiting = Waiter(gate)
    assert until(lambda: gate.middleware.waiting == 1)
    began = time.monotonic()
    assert gate.open()[0].status.startswith("503")
    assert time.monotonic() - began < 30
    first.close()
    waiting.join(60)
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
    waiting.join(60)
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

    assert until(close_all)
    assert 1 <= most[0] <= 3
    close_all()
    assert all(gate.semaphore.acquire(blocking=False) for _ in range(3))


# -- the queue ---------------------------------------------------------------------------------------------------------


def queued(gate: Gate, number: int, **environ: Any) -> Waiter:
    """A request in the queue, the ``number``th there."""
    waiter = Waiter(gate, **environ)
    assert until(lambda: gate.middleware.waiting == number)
    return waiter


def test_first_come_first_served() -> None:
    gate = Gate(App(b"x"))
    _, running = gate.open()
    waiters = [queued(gate, number) for number in range(1, 9)]
    for number, waiter in enumerate(waiters):
        running.close()
        waiter.join(60)
        assert [other.body is not None for other in waiters] == [True] * (number + 1) + [False] * (7 - number)
        running = waiter.body
    running.close()
    assert gate.free()


def test_who_leaves_the_queue_lets_the_next_one_go() -> None:
    app, gone = App(b"x"), threading.Event()
    gate = Gate(app)
    _, running = gate.open()
    leaves = queued(gate, 1, **{"waitress.client_disconnected": gone.is_set})
    stays = queued(gate, 2)
    gone.set()
    leaves.join(60)
    assert leaves.started is not None and leaves.started.status.startswith("503")
    running.close()
    stays.join(60)
    assert stays.body is not None and app.calls == ["POST"] * 2


def test_a_cancelled_request_goes_through_without_a_slot() -> None:
    app, request = App(b"x"), RequestContext()
    gate = Gate(app)
    _, running = gate.open()
    waiting = queued(gate, 1, **{REQUEST_KEY: request})
    request.cancel_scope.cancel()
    waiting.join(60)
    assert finish(waiting.body) == b"x" and waiting.environ[REQUEST_KEY] is request
    assert not gate.free()
    running.close()
    assert gate.free()


def test_a_cancelled_request_whose_client_has_gone_is_dropped() -> None:
    app, request = App(b"x"), RequestContext()
    gate = Gate(app)
    gate.open()
    request.cancel_scope.cancel()
    started, _ = gate.open(**{REQUEST_KEY: request, "waitress.client_disconnected": lambda: True})
    assert started.status.startswith("503") and app.calls == ["POST"]


def test_the_log_tells_of_the_queue(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    requests = [RequestContext() for _ in range(3)]
    gate = Gate(App(b"x"), max_waiting=2)
    _, running = gate.open()
    first, second = [queued(gate, number, **{REQUEST_KEY: requests[number - 1]}) for number in (1, 2)]
    gate.open(**{REQUEST_KEY: requests[2]})
    running.close()
    first.join(60)
    finish(first.body)
    second.join(60)
    lines = [record.getMessage() for record in caplog.records]
    for request, words in zip(requests, ("1 waiting", "2 waiting", "refusing"), strict=True):
        assert any(request.request_id in line and words in line for line in lines), lines
    assert sum("goes on after" in line for line in lines) == 2
    assert [bool(request.waited) for request in requests] == [True, True, False]


@table("chosen", [False, True])
def test_a_body_that_is_chosen_as_its_turn_comes_ends_no_later_wait(chosen: bool) -> None:
    """A front-end's own request, which gives way to a chat, waits a second time; its body counts no more then."""
    gate = Gate(App())
    gate.semaphore.acquire()
    request = RequestContext(body_bytes=5)
    place = Place(gate.middleware, {REQUEST_KEY: request})
    assert place.begin_waiting() and place.wait(0.0) is Outcome.STILL_WAITING
    body = place._body
    assert body is not None
    gate.semaphore.release()
    body.ended = chosen
    assert place.wait(60.0) is Outcome.SLOT
    chat = gate.semaphore.enqueue()
    place.give_up()
    assert chat.wait(60.0)
    assert place.wait(0.3) is Outcome.STILL_WAITING
    chat.leave()
    assert place.wait(60.0) is Outcome.SLOT
    place.end()
