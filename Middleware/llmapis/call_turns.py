"""What a call needs of its endpoint before it may run, and the turn that it takes in the queue of calls."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from urllib.parse import urlsplit

from Middleware.common import instance_global_variables as instance
from Middleware.common.fair_semaphore import Slots
from Middleware.exceptions import ConfigurationError
from Middleware.llmapis import api_types
from Middleware.llmapis.call_queue import CallQueue, Needs, Rank, Turn
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.process import process
from Middleware.models.request_context import current_outside, current_request
from Middleware.utilities import config_utils
from Middleware.utilities.config.keys.endpoint import ENDPOINT

logger = logging.getLogger(__name__)

# An endpoint with none of these keys has nothing to do with the queue.
QUEUE_KEYS = frozenset({"parallelCalls", "swapGroup"})
STAND_IN_KEY = "swapStandIn"


def gate_for_calls() -> Slots | None:
    """Return the slots of the concurrency gate if single calls pass it."""
    return instance.get_request_semaphore() if instance.CONCURRENCY_LEVEL == "endpoint" else None


def turn_for(
    name: str, endpoint: Mapping[str, object], scope: CancelScope | None, streamed: bool = False
) -> Turn | None:
    """Return the turn of a call to an LLM; None for one that need not wait.

    Args:
        name, endpoint: the endpoint and its file.
        streamed: a part of the answer may have been used, so the call cannot begin again.
    """
    gate = gate_for_calls()
    # What the calls of endpoints without these keys cost.
    if gate is None and QUEUE_KEYS.isdisjoint(endpoint):
        return None
    needs = _needs(name, endpoint, gate)
    return _turn(needs, scope, streamed, _needs_of_stand_in(endpoint, needs) if STAND_IN_KEY in endpoint else None)


def turn_for_embeddings(name: str, endpoint: Mapping[str, object], scope: CancelScope | None) -> Turn | None:
    """Return the turn of a call for embeddings: it passes no gate, and its model belongs to no swap group."""
    if QUEUE_KEYS.isdisjoint(endpoint):
        return None
    return _turn(Needs(name, None, server_of(endpoint), _places(endpoint)), scope, False)


def _turn(needs: Needs, scope: CancelScope | None, streamed: bool, stand_in: Needs | None = None) -> Turn | None:
    request = current_request()
    has_limit = needs.gate is not None or needs.places or needs.group
    if not has_limit or not current_outside().calls_servers:
        return None
    rank, yields = Rank.ANSWER, False
    if request is not None and request.task:
        rank = Rank.TASK
    elif request is not None and request.answer_complete and (needs.places or needs.group):
        rank, yields = Rank.BEHIND, not streamed and config_utils.user_flag("backgroundNodesYield")
    return Turn(process().one(CallQueue), needs, rank, scope, request, yields, stand_in)


def _needs(name: str, endpoint: Mapping[str, object], gate: Slots | None) -> Needs:
    group = group_of(endpoint)
    return Needs(
        name,
        gate,
        server_of(endpoint),
        _places(endpoint),
        group,
        model_of(endpoint) if group else "",
        float(max(ENDPOINT.number(endpoint, "swapPatienceInSeconds"), 0)),
    )


def _needs_of_stand_in(endpoint: Mapping[str, object], needs: Needs) -> Needs | None:
    """Return what a call needs at the endpoint that may take it while it waits; None if that cannot take it."""
    name = ENDPOINT.text(endpoint, STAND_IN_KEY).strip()
    try:
        other = config_utils.load_endpoint(name) if name and needs.group else {}
    # Reported when a node loads the endpoint.
    except ConfigurationError:
        return None
    same_dialect = ENDPOINT.value(other, "apiTypeConfigFileName") == ENDPOINT.value(endpoint, "apiTypeConfigFileName")
    # The prompt has been made for the window of the first.
    windows = [ENDPOINT.number(one, "maxContextTokenSize") for one in (endpoint, other)]
    fits = windows[1] is None or (windows[0] is not None and windows[0] <= windows[1])
    return (
        _needs(name, other, needs.gate) if other and group_of(other) == needs.group and same_dialect and fits else None
    )


def _places(endpoint: Mapping[str, object]) -> int:
    return max(int(ENDPOINT.number(endpoint, "parallelCalls")), 0)


def group_of(endpoint: Mapping[str, object]) -> str:
    """Return the swap group of an endpoint, "" for none."""
    return ENDPOINT.text(endpoint, "swapGroup").strip()


def server_of(endpoint: Mapping[str, object]) -> str:
    """Return host and port of an endpoint, which identify its server."""
    url = ENDPOINT.text(endpoint, "endpoint").strip()
    return urlsplit(url).netloc.rpartition("@")[2].lower() or url


def model_of(endpoint: Mapping[str, object]) -> str:
    """Return what identifies the model of an endpoint in its swap group."""
    return api_types.model_name(endpoint) or server_of(endpoint)


def loaded_stand_in(name: str, endpoint: Mapping[str, object]) -> str:
    """Return the endpoint that takes the calls of another one at the moment; "" if that takes them itself.

    Raises ConfigurationError if the file of the endpoint that may stand in cannot be used.
    """
    other, group = ENDPOINT.text(endpoint, STAND_IN_KEY).strip(), group_of(endpoint)
    loaded = process().one(CallQueue).loaded(group) if group and other else None
    if loaded is None or loaded == model_of(endpoint):
        return ""
    config = config_utils.load_endpoint(other)
    if group_of(config) != group:
        logger.warning(
            "Endpoint '%s': swapStandIn names '%s', which is not in swapGroup '%s'; it does not stand in",
            name,
            other,
            group,
        )
        return ""
    return other if loaded == model_of(config) else ""


def loading_order(name: str) -> tuple[bool, str]:
    """Return the key by which calls of endpoints are sorted so that models are changed seldom, the loaded one first."""
    # A name with a variable is not known yet.
    if not name or "{" in name:
        return False, ""
    try:
        group = group_of(endpoint := config_utils.load_endpoint(name))
    # The node that names it reports the mistake.
    except ConfigurationError:
        return False, ""
    if not group:
        return False, ""
    model = model_of(endpoint)
    return process().one(CallQueue).loaded(group) != model, model
