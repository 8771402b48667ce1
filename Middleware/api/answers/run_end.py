"""What follows an answer: the nodes that remain and the end of the request."""
from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Iterator

from Middleware.api.errors import log_error
from Middleware.api.running.running_requests import running_requests
from Middleware.exceptions import EarlyTerminationException
from Middleware.models.request_context import RequestContext
from Middleware.utilities import config_utils
from Middleware.workflows.events import Listeners, default_listeners

logger = logging.getLogger(__name__)


def finish_run(request: RequestContext, context: contextvars.Context, items: Iterator[object] | None) -> None:
    """Run what remains of a run: on a thread of its own if nodes follow the answer, else here and now.

    Args:
        context: where the run was started; its log lines belong there too.
        items: the engine's iterator, None if it was never made.
    """
    if items is None:
        _end(request, context)
    elif not request.answer_complete or request.cancel_scope.cancelled:
        _stop(request, context, items, "while it was stopped")
    elif request.background_nodes:
        _start_in_background(request, context, items)
    else:
        _exhaust(request, context, items)


def _stop(request: RequestContext, context: contextvars.Context, items: Iterator[object], phase: str) -> None:
    try:
        context.run(items.close)  # type: ignore[attr-defined]
    except BaseException as error:  # foreign code may raise anything; the server would never close the connection
        context.run(log_error, error, request, phase)
    finally:
        _end(request, context)


def _start_in_background(request: RequestContext, context: contextvars.Context, items: Iterator[object]) -> None:
    thread = threading.Thread(target=_run_in_background, args=(request, context, items), name="background-nodes",
                              daemon=True)
    try:
        thread.start()
    except RuntimeError as error:  # the system has no more threads
        context.run(log_error, error, request, "before the nodes after the answer")
        _stop(request, context, items, "after the answer")


def _run_in_background(request: RequestContext, context: contextvars.Context, items: Iterator[object]) -> None:
    with running_requests().in_background(request) as count:
        context.run(logger.info, "Request %s: nodes after its answer: %d; requests at work in the background: %d",
                    request.request_id, request.background_nodes, count)
        _run_for_a_while(request, context, items)


def _run_for_a_while(request: RequestContext, context: contextvars.Context, items: Iterator[object]) -> None:
    """Run what remains, at most as long as the user allows."""
    try:
        timer = context.run(_start_timer, request)
    except Exception as error:  # no limit can be set
        context.run(log_error, error, request, "before the nodes after the answer")
        _stop(request, context, items, "after the answer")
        return
    try:
        _exhaust(request, context, items)
    finally:
        timer.cancel()


def _start_timer(request: RequestContext) -> threading.Timer:
    """The timer that ends the background nodes; it never fires if the user sets no limit."""
    limit = config_utils.user_int("backgroundNodesTimeoutInSeconds")
    timer = threading.Timer(limit, request.cancel_scope.cancel, args=("background nodes took too long",))
    timer.daemon = True
    if limit:
        timer.start()
    return timer


def _exhaust(request: RequestContext, context: contextvars.Context, items: Iterator[object]) -> None:
    try:
        context.run(_drain, request, items)
    finally:
        _end(request, context)


def _drain(request: RequestContext, items: Iterator[object]) -> None:
    try:
        for _ in items:
            pass
    except EarlyTerminationException as error:
        logger.info("Request %s: the nodes after the answer ended early: %s", request.request_id, error)
    except BaseException as error:  # the answer is out; only the log can be told
        log_error(error, request, "after the answer")


def _end(request: RequestContext, context: contextvars.Context) -> None:
    running_requests().end(request)
    listeners = request.listeners or Listeners(default_listeners())  # none yet: it failed before a workflow began
    context.run(listeners.tell, "request_finished", request)
