"""The table of all calls of the console's API, put together from the modules of routes at the first call."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from Middleware.addons.console.calls import Routes

# Each has a function ``register(routes)``. A module is listed when the pages that need it are whole.
ROUTE_MODULES = (
    "session_routes",
    "run_routes",
    "event_routes",
    "settings_routes",
    "playground_routes",
    "backend_routes",
    "replay_routes",
    "made_test_routes",
    "workflow_routes",
    "memory_routes",
    "config_routes",
)


def load_routes(modules: Sequence[str] | None = None) -> Routes:
    """Return the routes of the given modules, by default of all."""
    routes = Routes()
    for name in ROUTE_MODULES if modules is None else modules:
        importlib.import_module(f"Middleware.addons.console.{name}").register(routes)
    return routes
