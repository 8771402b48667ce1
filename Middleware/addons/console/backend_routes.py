"""The calls of the page Back-ends: the queue, the endpoints with figures of recorded calls, and asking servers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypedDict

from Middleware.addons.console.backend_status import BackendServer, BackendStatus, ask
from Middleware.addons.console.calls import Call, Role, Routes
from Middleware.addons.records.analysis.backend_figures import BackendFigures, HourFigures, no_figures
from Middleware.api.gate_figures import gate_figures
from Middleware.exceptions import ConfigurationError
from Middleware.llmapis import api_types
from Middleware.llmapis.api_keys import resolve_api_key
from Middleware.models.process import process
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.utilities import config_utils
from Middleware.utilities.config.keys.endpoint import ENDPOINT

# Servers that do not answer cost the whole time limit each, so all are asked side by side.
PARALLEL = 16


class EndpointLine(TypedDict):
    """A row of the page. ``status``: ``not asked``, or what the server has said."""

    name: str
    user: str
    server: str
    type: str
    status: str
    problem: str | None
    model: str | None
    slots: str | None
    calls: int
    failed: int
    first_token_us: int | None
    speed: float | None
    last_error: str | None
    hours: list[HourFigures]


@dataclass(frozen=True)
class _Endpoint:
    """An endpoint of a user; ``server`` is None if its files have a mistake, which ``problem`` names."""

    name: str
    user: str
    shown: str
    type: str
    model: str | None
    server: BackendServer | None
    problem: str | None = None


def register(routes: Routes) -> None:
    routes.add("GET", "backends", Role.ALL, show)
    routes.add("POST", "backends/check", Role.OPERATOR, check)


def show(call: Call) -> dict[str, object]:
    return _page(call, {})


def check(call: Call) -> dict[str, object]:
    """Ask the servers of all endpoints, each once."""
    servers = list({one.server: None for one in _endpoints(call) if one.server is not None})
    with ThreadPoolExecutor(min(PARALLEL, max(len(servers), 1))) as pool:
        return _page(call, dict(zip(servers, pool.map(ask, servers), strict=True)))


def _page(call: Call, asked: dict[BackendServer, BackendStatus]) -> dict[str, object]:
    figures = process().one(BackendFigures).of_endpoints(call.records.archive, call.viewer, time.time_ns() // 1000)
    lines: list[EndpointLine] = []
    for one in _endpoints(call):
        found = figures.get(one.name) or no_figures()
        status = asked.get(one.server) if one.server is not None else None
        lines.append(
            {
                "name": one.name,
                "user": one.user,
                "server": one.shown,
                "type": one.type,
                "status": status.status if status else "not asked",
                "problem": status.problem if status else one.problem,
                "model": (status.model if status else None) or one.model or found["model"],
                "slots": status.slots if status else None,
                "calls": found["calls"],
                "failed": found["failed"],
                "first_token_us": found["first_token_us"],
                "speed": found["speed"],
                "last_error": found["last_error"],
                "hours": found["hours"],
            }
        )
    return {"queue": gate_figures(), "endpoints": lines}


def _endpoints(call: Call) -> Iterator[_Endpoint]:
    """Yield the endpoints of the users whose runs may be seen. Users who share a folder share its endpoints."""
    seen: set[tuple[str, str]] = set()
    for user in config_utils.configured_users() or [config_utils.get_current_username()]:
        if call.session.users is not None and user not in call.session.users:
            continue
        with request_scope(RequestContext(user=user)):
            try:
                folder = config_utils.user_name_setting("endpointConfigsSubDirectory") or ""
                names = config_utils.endpoint_names()
            # A user file that does not parse is reported elsewhere.
            except (ConfigurationError, OSError):
                continue
            for name in names:
                if (folder, name) not in seen:
                    seen.add((folder, name))
                    yield _endpoint(name, user)


def _endpoint(name: str, user: str) -> _Endpoint:
    try:
        content = config_utils.load_endpoint(name)
        kind = api_types.canonical_type(
            config_utils.load_api_type(ENDPOINT.text(content, "apiTypeConfigFileName").strip())
        )
        server = BackendServer(
            ENDPOINT.text(content, "endpoint"), kind, resolve_api_key(ENDPOINT.value(content, "apiKey"), name)
        )
        return _Endpoint(name, user, server.origin, kind, api_types.model_name(content) or None, server)
    except (ConfigurationError, OSError) as error:
        return _Endpoint(name, user, "", "", None, None, str(error))
