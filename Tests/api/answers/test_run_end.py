"""Who is told that a request is over, and what the log says of it."""

from __future__ import annotations

import contextvars
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from Middleware.api.answers.answer import finish_run
from Middleware.api.running.running_requests import running_requests
from Middleware.models.llm_call import TokenCounts
from Middleware.models.request_context import RequestContext
from Middleware.workflows.events import Listeners, RequestLine
from Tests.workflows.engine_lab import until


class Ear:
    """Knows one event only."""

    def __init__(self) -> None:
        self.requests: list[RequestContext] = []

    def request_finished(self, request: RequestContext) -> None:
        assert not running_requests().knows(request.request_id)
        self.requests.append(request)


class Broken:
    def request_finished(self, request: RequestContext) -> None:
        raise ValueError("observer broke")


def finish(request: RequestContext, items: Iterator[Any] | None = None) -> None:
    running_requests().begin(request, None)
    finish_run(request, contextvars.copy_context(), items)
    assert until(lambda: not running_requests().knows(request.request_id))


def chunks() -> Iterator[str]:
    yield "x"


@pytest.mark.parametrize("items", [lambda: None, chunks], ids=["no-run", "run"])
@pytest.mark.parametrize("complete", [False, True])
def test_listeners_are_told_once(items: Callable[[], Any], complete: bool) -> None:
    ear = Ear()
    request = RequestContext(listeners=Listeners([Broken(), ear]), answered_at=1.0 if complete else None)
    finish(request, items())
    assert ear.requests == [request]


def test_after_the_background_nodes(caplog: pytest.LogCaptureFixture) -> None:
    def nodes() -> Iterator[str]:
        assert not ear.requests
        yield "x"

    ear = Ear()
    request = RequestContext(listeners=Listeners([ear]), answered_at=1.0, background_nodes=1)
    finish(request, nodes())
    assert until(lambda: bool(ear.requests))
    assert ear.requests == [request]
    assert "Error" not in caplog.text


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "done after" in record.getMessage()]


@pytest.mark.parametrize(
    ("changes", "cancelled", "line"),
    [
        ({}, False, "Request r-1: route -, endpoint -, answered after 2.00 s, done after 2.00 s"),
        (
            {"route": "CODING -> Code", "endpoint": "Desk", "answered_at": 1.5},
            False,
            "Request r-1: route CODING -> Code, endpoint Desk, answered after 1.50 s, done after 2.00 s",
        ),
        (
            {"first_token_at": 0.5, "tokens": 30, "answered_at": 1.5},
            True,
            "Request r-1: route -, endpoint -, first token after 0.50 s, 30.0 tokens/s, answered after 1.50 s, "
            "done after 2.00 s, cancelled",
        ),
        (
            {"first_token_at": 1.5, "tokens": 1, "answered_at": 1.5},
            False,
            "Request r-1: route -, endpoint -, answered after 1.50 s, done after 2.00 s",
        ),
        ({}, True, "Request r-1: route -, endpoint -, cancelled after 2.00 s, done after 2.00 s"),
        (
            {"first_token_at": 0.5, "tokens": 15, "cancelled_at": 1.0, "answered_at": 1.5},
            True,
            "Request r-1: route -, endpoint -, first token after 0.50 s, 30.0 tokens/s, cancelled after 1.00 s, "
            "done after 2.00 s",
        ),
        (
            {"answered_at": 1.5, "cancelled_at": 1.75},
            True,
            "Request r-1: route -, endpoint -, answered after 1.50 s, done after 2.00 s, cancelled",
        ),
        (
            {"answered_at": 1.5, "background_at": 1.75},
            True,
            "Request r-1: route -, endpoint -, answered after 1.50 s, nodes after the answer 0.25 s, done after "
            "2.00 s, "
            "cancelled",
        ),
        (
            {"failed": True, "endpoint": "Desk"},
            False,
            "Request r-1: route -, endpoint Desk, failed after 2.00 s, done after 2.00 s",
        ),
        (
            {
                "endpoint": "Desk",
                "waited": 40.2,
                "key_name": "laptop",
                "first_token_at": 0.5,
                "tokens": 15,
                "answered_at": 1.0,
                "route": "shared assistant",
                "route_reason": 'model "me:assistant"',
                "branches": ["CODING -> _Coding"],
                "counts": TokenCounts(3, 5133, 120, 412),
            },
            False,
            'Request r-1: route shared assistant (model "me:assistant") > CODING -> _Coding, endpoint Desk, '
            "key 'laptop', "
            "waited 40.20 s in the queue, first token after 0.50 s, 30.0 tokens/s, answered after 1.00 s, done "
            "after 2.00 s, "
            "3 calls, 412 of 5133 prompt tokens processed",
        ),
        (
            {"answered_at": 1.5, "cancelled_at": 1.75, "counts": TokenCounts(1, 82, 20)},
            True,
            "Request r-1: route -, endpoint -, answered after 1.50 s, done after 2.00 s, 1 call, 82 prompt "
            "tokens, cancelled",
        ),
        (
            {"counts": TokenCounts(1, 82, 20)},
            False,
            "Request r-1: route -, endpoint -, answered after 2.00 s, done after 2.00 s, 1 call, 82 prompt tokens",
        ),
        ({"failed": True}, True, "Request r-1: route -, endpoint -, cancelled after 2.00 s, done after 2.00 s"),
        (
            {"waited": 3.0, "cancelled_at": -0.5},
            True,
            "Request r-1: route -, endpoint -, waited 3.00 s in the queue, cancelled after 0.00 s, done after 2.00 s",
        ),
    ],
)
def test_the_line(
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    cancelled: bool,
    line: str,
) -> None:
    caplog.set_level(logging.INFO)
    request = RequestContext(request_id="r-1", started=0.0, **changes)
    if cancelled:
        request.cancel_scope.cancel()
    monkeypatch.setattr("Middleware.workflows.events.time.monotonic", lambda: 2.0)
    RequestLine().request_finished(request)
    assert lines(caplog) == [line]


def test_a_request_that_never_reached_the_engine_has_its_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    finish(RequestContext(request_id="r-1"))
    assert [line.split(",")[0] for line in lines(caplog)] == ["Request r-1: route -"]


def test_other_listeners_replace_the_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    finish(RequestContext(listeners=Listeners([Ear()])))
    assert lines(caplog) == []


def test_no_line_above_the_level_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    finish(RequestContext())
    assert lines(caplog) == []


def test_an_answer_that_ends_in_the_moment_of_its_cancellation_is_cut_short() -> None:
    """Other threads see the flag before this thread has noted the time in the request."""
    request, seen = RequestContext(user="ann"), list[bool]()

    def end() -> None:
        request.answered_at = time.monotonic()
        seen.append(request.was_cut_short)

    request.cancel_scope.add_callback(end)
    request.cancel_scope.cancel()
    assert seen == [True]
    answered = RequestContext(user="ann", answered_at=time.monotonic())
    answered.cancel_scope.cancel()
    assert not answered.was_cut_short
