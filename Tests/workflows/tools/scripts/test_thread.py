"""A generator on a thread of its own, which a stop leaves."""

from __future__ import annotations

import contextvars
import gc
import logging
import threading
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest

from Middleware.exceptions import EarlyTerminationException
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.workflows.tools.scripts import thread
from Middleware.workflows.tools.scripts.thread import ScriptThread, running_scripts
from Tests.workflows.engine_lab import until

IN_TIME = 60.0  # far below what the work under test would take
variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="")


@pytest.fixture
def scope() -> CancelScope:
    return CancelScope()


@pytest.fixture(autouse=True)
def no_thread_stays() -> Iterator[None]:
    yield
    assert until(lambda: not script_threads())
    assert len(running_scripts()) == 0


def script_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "script"]


def iterate(steps: Generator[Any, None, Any], scope: CancelScope) -> ScriptThread:
    return ScriptThread(steps, "task.py", scope)


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    # A session of another test may end now, and says so.
    return [(record.levelname, record.getMessage()) for record in caplog.records if record.name == thread.__name__]


# -- while nobody stops it ---------------------------------------------------------------------------------------------


def test_items_and_result(scope: CancelScope) -> None:
    def steps() -> Generator[int, None, str]:
        yield 1
        yield 2
        return "result"

    script = iterate(steps(), scope)
    assert (next(script), next(script)) == (1, 2)
    with pytest.raises(StopIteration) as end:
        next(script)
    assert end.value.value == "result"
    with pytest.raises(StopIteration):
        next(script)


@pytest.mark.parametrize("kind", [ValueError, SystemExit, KeyboardInterrupt, EarlyTerminationException])
def test_failures_are_raised_where_the_step_was_asked_for(scope: CancelScope, kind: type[BaseException]) -> None:
    def steps() -> Generator[int, None, None]:
        yield 1
        raise kind("mine")

    script = iterate(steps(), scope)
    assert next(script) == 1
    with pytest.raises(kind, match="mine") as caught:
        next(script)
    assert caught.traceback[-1].name == "steps"
    assert list(script) == []


def test_one_that_raises_generator_exit_is_not_taken_for_closed(scope: CancelScope) -> None:
    def steps() -> Generator[int, None, None]:
        yield 1
        raise GeneratorExit

    script = iterate(steps(), scope)
    assert next(script) == 1
    with pytest.raises(RuntimeError, match="GeneratorExit"):
        next(script)


def test_all_steps_run_on_one_thread_of_their_own(scope: CancelScope) -> None:
    def steps() -> Generator[int, None, None]:
        for _ in range(3):
            yield threading.get_ident()

    script = iterate(steps(), scope)
    seen = []
    for _ in range(3):
        caller = threading.Thread(target=lambda: seen.append(next(script)))
        caller.start()
        caller.join()
    assert len(set(seen)) == 1 and threading.get_ident() not in seen
    script.close()


def test_nothing_runs_before_it_is_asked_for(scope: CancelScope) -> None:
    done = []

    def steps() -> Generator[int, None, None]:
        for number in range(3):
            done.append(number)
            yield number

    script = iterate(steps(), scope)
    time.sleep(0.03)
    assert done == []
    for number in range(3):
        assert next(script) == number
        time.sleep(0.03)
        assert done == list(range(number + 1))
    script.close()


def test_the_context_is_a_copy_of_the_callers(scope: CancelScope) -> None:
    def steps() -> Generator[str, None, None]:
        yield variable.get()
        variable.set("of the script")
        yield variable.get()

    variable.set("of the caller")
    script = iterate(steps(), scope)
    variable.set("later")
    assert list(script) == ["of the caller", "of the script"]
    assert variable.get() == "later"


def test_closing_runs_the_cleanup_on_the_same_thread(scope: CancelScope) -> None:
    seen = []

    def steps() -> Generator[int, None, None]:
        try:
            yield threading.get_ident()
        finally:
            seen.append(threading.get_ident())

    script = iterate(steps(), scope)
    ident = next(script)
    script.close()
    script.close()
    assert seen == [ident]
    assert list(script) == []


def test_a_failing_cleanup_is_raised(scope: CancelScope) -> None:
    def steps() -> Generator[int, None, None]:
        try:
            yield 1
        finally:
            raise ValueError("cleanup")

    script = iterate(steps(), scope)
    next(script)
    with pytest.raises(ValueError, match="cleanup"):
        script.close()


@pytest.mark.parametrize("begun", [False, True])
def test_one_that_is_dropped_ends(scope: CancelScope, begun: bool) -> None:
    closed = threading.Event()

    def steps() -> Generator[int, None, None]:
        try:
            yield 1
        finally:
            closed.set()

    script = iterate(steps(), scope)
    if begun:
        next(script)
    del script
    gc.collect()
    assert until(lambda: not script_threads())
    assert closed.is_set() is begun


def test_an_ended_one_leaves_nothing_at_its_request(scope: CancelScope) -> None:
    def steps() -> Generator[int, None, None]:
        yield 1

    assert list(iterate(steps(), scope)) == [1]
    assert until(lambda: not scope._callbacks)


# -- a stop ------------------------------------------------------------------------------------------------------------


def stopped_after(seconds: float, scope: CancelScope, step: Callable[[], object]) -> float:
    """Cancel while ``step`` waits; returns how long it took from then on."""
    cancelled_at = []
    timer = threading.Timer(seconds, lambda: (cancelled_at.append(time.monotonic()), scope.cancel("stop")))
    timer.start()
    with pytest.raises(EarlyTerminationException):
        step()
    return time.monotonic() - cancelled_at[0]


def test_a_step_that_does_not_end_is_left(scope: CancelScope, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    release, closed = threading.Event(), threading.Event()

    def steps() -> Generator[int, None, None]:
        try:
            yield 1
            release.wait(2 * IN_TIME)
            yield 2
            raise AssertionError("nobody asked for this step")
        finally:
            closed.set()

    script = iterate(steps(), scope)
    next(script)
    assert stopped_after(0.03, scope, lambda: next(script)) < IN_TIME
    assert lines(caplog) == [
        (
            "WARNING",
            "The script task.py of request - does not end at a stop: it keeps running, and its result is discarded",
        )
    ]
    assert list(script) == [] and not closed.is_set()
    script.close()
    release.set()
    assert closed.wait(60)
    assert until(lambda: len(caplog.records) == 2)
    level, text = lines(caplog)[1]
    assert level == "INFO"
    assert text.startswith("The script task.py of request -, left alone at a stop, has ended after ")


def test_a_step_that_notices_the_stop_is_waited_for(
    scope: CancelScope, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread, "MOMENT_SECONDS", 60.0)
    ended = []

    def steps() -> Generator[int, None, None]:
        try:
            scope.wait(2 * IN_TIME)
            time.sleep(0.02)
            yield 1
        finally:
            ended.append(True)

    assert stopped_after(0.03, scope, lambda: next(iterate(steps(), scope))) < IN_TIME
    assert ended == [True] and caplog.records == []


def test_a_stop_between_two_steps(
    scope: CancelScope, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread, "MOMENT_SECONDS", 60.0)
    idents = []

    def steps() -> Generator[int, None, None]:
        try:
            yield threading.get_ident()
            raise AssertionError("nobody asked for this step")
        finally:
            idents.append(threading.get_ident())

    script = iterate(steps(), scope)
    ident = next(script)
    scope.cancel()
    with pytest.raises(EarlyTerminationException):
        next(script)
    assert idents == [ident] and caplog.records == []


@pytest.mark.parametrize("seconds", [0.0, 0.03], ids=["before", "meanwhile"])
def test_a_stop_ends_the_wait_for_a_cleanup(scope: CancelScope, seconds: float) -> None:
    release = threading.Event()

    def steps() -> Generator[int, None, None]:
        try:
            yield 1
        finally:
            release.wait(2 * IN_TIME)

    script = iterate(steps(), scope)
    next(script)
    stop = threading.Timer(seconds, scope.cancel)
    stop.start()
    if not seconds:
        stop.join()
    began = time.monotonic()
    script.close()
    assert time.monotonic() - began < IN_TIME
    release.set()


def test_nothing_starts_after_a_stop(scope: CancelScope) -> None:
    done: list[int] = []

    def steps() -> Generator[int, None, None]:
        done.append(1)
        yield 1

    scope.cancel()
    with pytest.raises(EarlyTerminationException):
        next(iterate(steps(), scope))
    assert done == [] and script_threads() == []


def test_the_path_stays_out_of_the_log_of_an_encrypted_conversation(
    scope: CancelScope, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    release = threading.Event()

    def steps() -> Generator[int, None, None]:
        release.wait(2 * IN_TIME)
        yield 1

    with request_scope(RequestContext(redact=True, request_id="r-1")):
        stopped_after(0.03, scope, lambda: next(iterate(steps(), scope)))
    release.set()
    assert until(lambda: len(caplog.records) == 2)
    assert "task.py" not in caplog.text and caplog.text.count("of request r-1") == 2
