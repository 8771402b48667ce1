"""Warnings at the start about settings that defeat the queue of LLM calls."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping

from Middleware.cli import served_users
from Middleware.cli.running_server import others_here
from Middleware.common import instance_global_variables as instance
from Middleware.exceptions import ConfigurationError
from Middleware.llmapis.call_turns import QUEUE_KEYS, group_of
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.utilities import config_utils
from Middleware.utilities.config.keys.endpoint import ENDPOINT

logger = logging.getLogger(__name__)

# A line of the log must stay readable.
SHOWN = 3


def log_call_order() -> None:
    """Warn if the queue cannot do what ``swapGroup`` and ``parallelCalls`` of the served users' endpoints ask for.

    What is wrong with the files is reported elsewhere.
    """
    queued: dict[str, Mapping[str, object]] = {}
    for user in _served():
        with request_scope(RequestContext(user=user)):
            queued.update(_queued_endpoints())
    swapping = [name for name, endpoint in queued.items() if group_of(endpoint)]
    if swapping and instance.CONCURRENCY_LEVEL == "wilmer" and instance.CONCURRENCY_LIMIT == 1:
        logger.warning(
            "%s: swapGroup does little with --concurrency 1, because a request does not see the calls of "
            "those behind it, so that the model changes with nearly every message. Start with "
            "--concurrency-level endpoint --concurrency 4",
            _shown(swapping),
        )
    # Of several processes on one socket, this one may be the first to look.
    if queued and instance.WORKER_NUMBER:
        logger.warning(
            "%s: parallelCalls and swapGroup count the calls of one worker only; the limit of all together "
            "is --concurrency, with --concurrency-level endpoint",
            _shown([*queued]),
        )
    elif queued and (others := others_here()):
        logger.warning(
            "%s: parallelCalls and swapGroup count the calls of one process only, and %s serves the same configuration",
            _shown([*queued]),
            ", ".join(map(str, others)),
        )


def _served() -> list[str]:
    try:
        return list(served_users.served_users())
    except (ConfigurationError, OSError, ValueError):
        return []


def _queued_endpoints() -> Iterator[tuple[str, Mapping[str, object]]]:
    try:
        folder, names = config_utils.user_name_setting("endpointConfigsSubDirectory"), config_utils.endpoint_names()
    except (ConfigurationError, OSError):
        return
    for name in names:
        try:
            endpoint = config_utils.load_endpoint(name)
        except (ConfigurationError, OSError):
            continue
        if not QUEUE_KEYS.isdisjoint(endpoint) and (group_of(endpoint) or ENDPOINT.number(endpoint, "parallelCalls")):
            yield os.path.join("Endpoints", folder or "", f"{name}.json").replace(os.sep, "/"), endpoint


def _shown(names: list[str]) -> str:
    left = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {left} more" if left > 0 else "")
