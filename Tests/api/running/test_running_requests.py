"""The end of a server, as the requests under way see it."""

from __future__ import annotations

import contextvars
import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from Middleware.api.answers import answer
from Middleware.api.running.running_requests import RunningRequests
from Middleware.common import instance_global_variables as instance
from Middleware.models.request_context import RequestContext
from Tests.workflows.engine_lab import until


@pytest.fixture
def requests() -> Iterator[RunningRequests]:
    running = RunningRequests()
    yield running
    for request in list(running._requests.values()):  # their stop switches are the process's
        running.end(request)


def begin(requests: RunningRequests, **fields: Any) -> RequestContext:
    request = RequestContext(**fields)
    requests.begin(request, None)
    return request


def lines(caplog: pytest.LogCaptureFixture, start: str = "") -> list[tuple[str, str]]:
    return [
        (record.levelname, record.getMessage()) for record in caplog.records if record.getMessage().startswith(start)
    ]


def shut_down(requests: RunningRequests, patience: float = 60.0) -> threading.Thread:
    helper = threading.Thread(target=requests.shut_down, args=(patience,))
    helper.start()
    return helper


def test_without_requests_nothing_is_waited_for(requests: RunningRequests, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    began = time.monotonic()
    requests.shut_down(120)
    assert time.monotonic() - began < 60
    assert lines(caplog) == [("INFO", "stopping: no request is under way")]


def test_what_is_unanswered_is_cancelled_and_the_rest_waited_for(
    requests: RunningRequests, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    waiting, answered = begin(requests), begin(requests, answered_at=1.0)
    queued = RequestContext()
    assert requests.arrive(queued)
    helper = shut_down(requests)
    assert until(lambda: waiting.cancel_scope.cancelled and queued.cancel_scope.cancelled)
    assert waiting.cancel_scope.reason == "the server stops" and not answered.cancel_scope.cancelled
    requests.end(waiting)
    requests.leave(queued)
    helper.join(0.1)
    assert helper.is_alive()
    requests.end(answered)
    helper.join(60)
    assert not helper.is_alive()
    assert lines(caplog, "stopping") == [
        (
            "INFO",
            "stopping: requests cancelled: 2, finishing their background nodes (up to 60 s): 1; "
            "Ctrl-C again ends at once",
        )
    ]


def test_background_nodes_that_take_too_long_are_cancelled(
    requests: RunningRequests, caplog: pytest.LogCaptureFixture
) -> None:
    request = begin(requests, request_id="r-1", answered_at=1.0)
    request.cancel_scope.add_callback(lambda: threading.Timer(0.1, requests.end, (request,)).start())
    requests.shut_down(0.05)
    assert requests.count() == 0  # it was given the time to end
    assert lines(caplog) == [("WARNING", "Request r-1 is still at work after 0.05 s; it is cancelled")]


def test_one_that_does_not_end_is_left(
    requests: RunningRequests, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("Middleware.api.running.running_requests.CANCELLED_SECONDS", 0.1)
    request = begin(requests)
    requests.shut_down(0.05)
    assert request.cancel_scope.cancelled
    assert lines(caplog)[-1] == ("WARNING", "stopping: requests that do not end and are left alone: 1")


def test_a_cancellation_is_logged_under_the_requests_user(
    requests: RunningRequests, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever cancels it, the watcher for one, knows nothing of the request."""
    caplog.set_level(logging.INFO)
    users = []
    caplog.handler.addFilter(lambda record: users.append(instance.get_request_user()) or True)
    request = begin(requests, request_id="r-1", user="ann")
    requests.cancel("r-1", "the client has gone")
    requests.end(request)
    assert lines(caplog) == [("INFO", "Request r-1 is cancelled: the client has gone")]
    assert users == ["ann"]


def test_late_requests_are_refused(requests: RunningRequests, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("Middleware.api.running.running_requests.CANCELLED_SECONDS", 0)
    early, late = RequestContext(), RequestContext()
    assert requests.arrive(early)
    requests.shut_down(0)
    assert requests.arrive(early)
    assert not requests.arrive(late)
    assert requests.count() == 1 and not requests.knows(late.request_id)


def test_the_last_words_of_background_nodes_are_waited_for(
    requests: RunningRequests, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request is over before its listeners are told."""
    monkeypatch.setattr(answer, "running_requests", lambda: requests)
    told = []

    class Slow:
        def emit(self, event: str, *arguments: object) -> None:
            assert not requests.knows(request.request_id)
            time.sleep(0.1)
            told.append(event)

    def nodes() -> Iterator[str]:
        yield "answer"

    request = begin(requests, answered_at=1.0, background_nodes=1, listeners=Slow())
    answer.finish_run(request, contextvars.copy_context(), nodes())
    requests.shut_down(60)
    assert told == ["request_finished"]


def test_background_work_is_counted(
    requests: RunningRequests, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(answer, "running_requests", lambda: requests)
    release = threading.Event()

    def nodes() -> Iterator[str]:
        release.wait(60)
        yield "last"

    for number in (1, 2):
        request = begin(requests, request_id=f"r-{number}", answered_at=1.0, background_nodes=number)
        answer.finish_run(request, contextvars.copy_context(), nodes())
        assert until(lambda number=number: len(lines(caplog, f"Request r-{number}")) == 1)  # type: ignore[misc]
    release.set()
    requests.shut_down(60)
    assert lines(caplog, "Request r-")[:2] == [
        ("INFO", "Request r-1: nodes after its answer: 1; requests at work in the background: 1"),
        ("INFO", "Request r-2: nodes after its answer: 2; requests at work in the background: 2"),
    ]


def test_the_begin_of_a_drain_is_told_and_requests_go_on(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    requests, told = RunningRequests(), []
    requests.begin_drain(5)
    assert requests.stopping and not requests.at_work and caplog.text == ""
    requests.on_drain = lambda: told.append(1)
    request = RequestContext(request_id="r 1")
    assert requests.arrive(request) and requests.at_work
    requests.begin_drain(5)
    assert told == [1] and not request.cancel_scope.cancelled
    assert "requests that may go on for up to 5 s: 1" in caplog.text
    requests.end(request)
    assert not requests.at_work
