"""The registry of cancellations."""

from __future__ import annotations

import contextlib
import logging
import threading
import time

import pytest

from Middleware.models.cancel_scope import CancelScope
from Middleware.services.cancellation_service import MAX_UNKNOWN, CancellationService, cancellation_service


@pytest.fixture
def service() -> CancellationService:
    return CancellationService()


def test_cancelling_registers_and_runs_callbacks_once(service: CancellationService) -> None:
    calls: list[str] = []
    service.register_abort_callback("r", lambda: calls.append("a"))
    service.register_abort_callback("r", lambda: calls.append("b"))
    service.register_abort_callback("other", lambda: calls.append("other"))
    assert not service.is_cancelled("r")
    service.request_cancellation("r")
    service.request_cancellation("r")
    assert calls == ["a", "b"]
    assert service.is_cancelled("r") and not service.is_cancelled("other")


def test_callbacks_run_outside_the_lock_and_their_errors_are_logged(
    service: CancellationService, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[object] = []

    def ask_from_another_thread() -> None:
        thread = threading.Thread(target=lambda: seen.append(service.is_cancelled("r")))
        thread.start()
        thread.join(60)

    service.register_abort_callback("r", lambda: 1 / 0)
    service.register_abort_callback("r", ask_from_another_thread)
    service.request_cancellation("r")
    assert seen == [True]
    assert "ZeroDivisionError" in caplog.text


def test_late_callback_is_called_at_once(service: CancellationService, caplog: pytest.LogCaptureFixture) -> None:
    calls: list[int] = []
    service.request_cancellation("r")
    service.register_abort_callback("r", lambda: calls.append(1))
    service.register_abort_callback("r", lambda: 1 / 0)
    assert calls == [1]
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("empty", ["", None])
def test_empty_ids(service: CancellationService, empty: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    service.request_cancellation(empty)
    service.register_abort_callback(empty, lambda: None)
    service.adopt(empty, CancelScope())
    assert len(caplog.records) == 3
    service.acknowledge_cancellation(empty)
    service.unregister_abort_callbacks(empty)
    assert not service.is_cancelled(empty)
    assert service.get_all_cancelled_requests() == set()
    assert service.scope_for(empty) is not service.scope_for(empty)


def test_acknowledging_forgets_id_and_callbacks(service: CancellationService) -> None:
    calls: list[int] = []
    service.register_abort_callback("r", lambda: calls.append(1))
    service.acknowledge_cancellation("r")
    service.request_cancellation("r")
    assert calls == []
    service.acknowledge_cancellation("r")
    service.acknowledge_cancellation("unknown")
    assert not service.is_cancelled("r")


def test_all_cancelled_requests_is_a_copy(service: CancellationService) -> None:
    service.request_cancellation("a")
    service.scope_for("b")
    found = service.get_all_cancelled_requests()
    assert found == {"a"}
    found.clear()
    assert service.get_all_cancelled_requests() == {"a"}


def test_unregistering_one_or_all_callbacks(service: CancellationService) -> None:
    calls: list[str] = []
    mine, theirs = (lambda: calls.append("mine")), (lambda: calls.append("theirs"))
    service.register_abort_callback("r", mine)
    service.register_abort_callback("r", theirs)
    service.unregister_abort_callbacks("r", mine)
    service.unregister_abort_callbacks("unknown", mine)
    service.request_cancellation("r")
    assert calls == ["theirs"]
    service.register_abort_callback("s", mine)
    service.unregister_abort_callbacks("s")
    service.request_cancellation("s")
    assert calls == ["theirs"]


def test_callbacks_by_keyword(service: CancellationService) -> None:
    calls: list[str] = []
    mine, theirs = (lambda: calls.append("mine")), (lambda: calls.append("theirs"))
    service.register_abort_callback("r", fn=mine)
    service.register_abort_callback("r", fn=theirs)
    service.unregister_abort_callbacks("r", fn=mine)
    service.request_cancellation("r")
    assert calls == ["theirs"]


def test_scope_of_a_request(service: CancellationService) -> None:
    scope = service.scope_for("r")
    assert service.scope_for("r") is scope
    service.request_cancellation("r", "stopped by test")
    assert scope.cancelled and scope.reason == "stopped by test"
    other = service.scope_for("other")
    other.cancel()
    assert service.is_cancelled("other")


def test_adopting_a_scope(service: CancellationService) -> None:
    calls: list[int] = []
    service.register_abort_callback("r", lambda: calls.append(1))
    scope = CancelScope()
    service.adopt("r", scope)
    service.adopt("r", scope)
    assert service.scope_for("r") is scope
    service.request_cancellation("r")
    assert scope.cancelled and calls == [1]


def test_adopting_after_the_cancellation(service: CancellationService) -> None:
    service.request_cancellation("r", "early")
    scope = CancelScope()
    service.adopt("r", scope)
    assert scope.cancelled and scope.reason == "early"


def test_old_cancellations_are_dropped_at_the_next_registration() -> None:
    now = [1000.0]
    service = CancellationService(clock=lambda: now[0])
    running = service.scope_for("running")
    service.request_cancellation("old")
    now[0] += 3500
    service.request_cancellation("younger")
    now[0] += 200
    assert service.get_all_cancelled_requests() == {"old", "younger"}
    service.request_cancellation("new")
    assert service.get_all_cancelled_requests() == {"younger", "new"}
    assert service.scope_for("running") is running


def test_unknown_ids_are_kept_up_to_a_number_and_running_requests_whatever_their_number() -> None:
    now = [0.0]
    service = CancellationService(clock=lambda: now[0])
    scopes = {f"running {number}": CancelScope() for number in range(MAX_UNKNOWN + 1)}
    service.request_cancellation("running 0")  # before it arrives
    for request_id, scope in scopes.items():
        service.adopt(request_id, scope)
        service.request_cancellation(request_id)
    now[0] += 4000
    for number in range(MAX_UNKNOWN + 2):
        service.request_cancellation(f"unknown {number}")
        if number < MAX_UNKNOWN:
            service.request_cancellation("unknown 0")  # again, which makes it no younger
    kept = {f"unknown {number}" for number in range(2, MAX_UNKNOWN + 2)}
    assert service.get_all_cancelled_requests() == set(scopes) | kept
    assert all(service.scope_for(request_id) is scope for request_id, scope in scopes.items())


def test_a_request_that_has_ended_is_unknown_again(service: CancellationService) -> None:
    service.adopt("r", CancelScope())
    service.acknowledge_cancellation("r")
    for number in range(MAX_UNKNOWN):
        service.request_cancellation("r" if number == 0 else str(number))
    assert service.is_cancelled("r")
    service.acknowledge_cancellation("r")
    service.request_cancellation("one more")
    assert service.is_cancelled("1") and len(service.get_all_cancelled_requests()) == MAX_UNKNOWN
    service.request_cancellation("too many")
    assert not service.is_cancelled("1")


def test_callbacks_of_a_forgotten_cancellation_are_gone(service: CancellationService) -> None:
    calls: list[int] = []
    service.register_abort_callback("r", lambda: calls.append(1))
    service.request_cancellation("r")
    for number in range(MAX_UNKNOWN):
        service.request_cancellation(str(number))
    assert calls == [1] and not service.is_cancelled("r")


def test_many_cancellations_of_unknown_ids_cost_little(service: CancellationService) -> None:
    for number in range(10_000):
        service.adopt(f"running {number}", CancelScope())
    began = time.thread_time()
    for number in range(20_000):
        service.request_cancellation(f"unknown {number}")
    # A look at each running request would take a minute.
    assert time.thread_time() - began < 10


def test_concurrent_cancellations_run_a_callback_once(service: CancellationService) -> None:
    calls: list[int] = []
    service.register_abort_callback("r", lambda: calls.append(1))
    start = threading.Barrier(8)

    def cancel() -> None:
        start.wait()
        service.request_cancellation("r")

    threads = [threading.Thread(target=cancel) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calls == [1]


def test_process_wide_service() -> None:
    assert isinstance(cancellation_service, CancellationService)


def test_a_watched_id_is_forgotten_after_the_last_watcher(service: CancellationService) -> None:
    with service.watched("r") as outer:
        with service.watched("r") as inner:
            assert inner is outer
        service.request_cancellation("r", "why")
        assert outer.cancelled and outer.reason == "why"
    assert not service.is_cancelled("r") and service.scope_for("r") is not outer


def test_a_watched_id_of_a_request_is_kept(service: CancellationService) -> None:
    scope = CancelScope()
    service.adopt("r", scope)
    with service.watched("r") as watched:
        assert watched is scope
    service.request_cancellation("r")
    assert scope.cancelled and service.is_cancelled("r")


def test_a_request_that_arrives_while_its_id_is_watched_cancels_both(service: CancellationService) -> None:
    scope = CancelScope()
    with service.watched("r") as watched:
        service.adopt("r", scope)
        service.request_cancellation("r")
        assert watched.cancelled and scope.cancelled
    assert service.is_cancelled("r")


@pytest.mark.parametrize("broken", [False, True])
def test_a_watched_id_that_was_cancelled_before(service: CancellationService, broken: bool) -> None:
    service.request_cancellation("r")
    with contextlib.suppress(ZeroDivisionError), service.watched("r") as scope:
        assert scope.cancelled
        assert not broken or 1 / 0
    assert service.get_all_cancelled_requests() == set()


def test_watching_no_id(service: CancellationService) -> None:
    with service.watched("") as first, service.watched("") as second:
        assert first is not second
