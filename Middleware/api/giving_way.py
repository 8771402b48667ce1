"""Run what front-ends ask for on their own so that it gives way to chats."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial

from Middleware.api.concurrency_middleware import Place, wait_for_slot
from Middleware.api.running.disconnect_watcher import Probe
from Middleware.api.running.running_requests import running_requests
from Middleware.common import instance_global_variables as instance
from Middleware.models.cancel_scope import GAVE_WAY
from Middleware.models.request_context import RequestContext

logger = logging.getLogger(__name__)


def run_task(
    request: RequestContext, start: Callable[[], Iterator[object]], place: Place | None, probe: Probe | None
) -> Iterator[object]:
    """Run a front-end's own request up to its whole answer, and return the run.

    If a chat needs its slot before, it is stopped, and runs again after the chats, this time to its end. Nothing of
    the answer is sent before it is whole, so the client notices only that it takes longer.

    Args:
        start: starts the engine once there is a slot.
        place: the request's place at the gate; None where single calls wait, which then offer their slots.
        probe: tells whether the client has disconnected.
    """
    if instance.get_request_semaphore() is None:
        return start()
    wait_for_slot(place)
    request.give_way = partial(request.cancel_scope.cancel, GAVE_WAY)
    if place is not None:
        place.offer(request.give_way)
    try:
        run = _first_run(request, start, place)
    finally:
        request.give_way = None
    if run is not None:
        return run
    logger.info("Request %s gives way to a chat; it runs again when no chat waits", request.request_id)
    if place is not None:
        place.give_up()
    running_requests().renew(request, probe)
    wait_for_slot(place)
    return start()


def _first_run(
    request: RequestContext, start: Callable[[], Iterator[object]], place: Place | None
) -> Iterator[object] | None:
    """Return a run that has come to the end of its answer; None if it gave way."""
    items, answer = None, list[object]()
    try:
        items = start()
        answer = _answer(items, request.stream)
    except BaseException:
        if not _gave_way(request):
            raise
    finally:
        # Before it is decided whether the run counts: a chat may take the offer until then.
        if place is not None:
            place.withdraw(request.cancel_scope)
    if items is not None and not _gave_way(request):
        return _continued(answer, items)
    _close(items)
    return None


def _gave_way(request: RequestContext) -> bool:
    return request.cancel_scope.reason == GAVE_WAY


def _answer(items: Iterator[object], stream: bool) -> list[object]:
    """Return the items up to the end of the answer; those of later nodes stay."""
    answer: list[object] = []
    for item in items:
        answer.append(item)
        if not stream or (isinstance(item, dict) and "end" in item):
            break
    return answer


def _continued(answer: list[object], items: Iterator[object]) -> Iterator[object]:
    try:
        yield from answer
        yield from items
    finally:
        _close(items)


def _close(items: Iterator[object] | None) -> None:
    if items is not None:
        items.close()  # type: ignore[attr-defined]
