"""The application and its factory. Importing this module builds nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from wsgiref.types import WSGIApplication

from flask import Flask

from Middleware.api.api_server import ApiServer
from Middleware.api.concurrency_middleware import ConcurrencyLimitMiddleware
from Middleware.api.edge.admission_middleware import AdmissionMiddleware
from Middleware.api.edge.browser_safety import BrowserSafety
from Middleware.api.handlers.base.base_api_handler import LISTENERS_KEY
from Middleware.api.running.running_requests import running_requests
from Middleware.common import instance_global_variables as globals_
from Middleware.models.process import Process, install, process
from Middleware.services.idempotency_service import get_idempotency_service
from Middleware.utilities.conversations.discussion_folder import discussions
from Middleware.workflows.events import Listeners, default_listeners
from Middleware.workflows.handlers.registry import node_types

if TYPE_CHECKING:
    from Middleware.addons.console.application import ConsoleApplication
    from Middleware.addons.records.records import RunRecords

# Requests that wait at the gate never occupy these threads, so model lists and health checks are still answered.
RESERVED_THREADS = 64


def create_app(own: Process | None = None) -> Flask:
    """Return a new Flask application with all routes.

    ``own`` becomes the holder of everything that lives as long as the process; without it, the present one stays.
    """
    if own is not None:
        install(own)
    # Found now: a server that has run out of file descriptors cannot list the handlers' folder.
    node_types()
    return ApiServer().app


def build_wsgi_application(
    app: Flask | None = None,
    threads: int | None = None,
    listeners: Sequence[object] = (),
    records: RunRecords | None = None,
) -> WSGIApplication:
    """Return the WSGI callable that launchers serve: admission, the concurrency gate if one is configured, the app.

    Args:
        app: the application; a new one by default.
        threads: the number of the server's threads, which limits the requests that may wait at the gate.
        listeners: listeners to the engine's events in every request, besides the default ones.
        records: what records the runs, for the console, ``/metrics`` and traces; None without any of them.
    """
    get_idempotency_service().is_running = running_requests().knows
    app = app or create_app()
    observer = app.extensions[LISTENERS_KEY] = Listeners(
        [*default_listeners(), *listeners, *([] if records is None else records.listeners)]
    )
    if records is not None and records.metrics is not None:
        # Imported here: the library takes memory, and most servers have no such route.
        from Middleware.addons.observability.metrics_route import add_metrics_route

        add_metrics_route(app, records.metrics, records.store)
    gated: WSGIApplication = app
    semaphore = globals_.get_request_semaphore()
    if semaphore is not None and globals_.CONCURRENCY_LEVEL == "wilmer":
        waiting = max(threads - RESERVED_THREADS, 1) if threads else None
        gated = ConcurrencyLimitMiddleware(gated, semaphore, globals_.CONCURRENCY_TIMEOUT, waiting)
    browsers = BrowserSafety(globals_.ALLOWED_ORIGINS)
    stored = process().one(discussions)
    console = None if records is None or not records.has_console else _console(records, browsers, gated, observer)
    return AdmissionMiddleware(
        gated,
        globals_.MAX_REQUEST_MB,
        globals_.ACCESS_KEYS,
        browsers,
        globals_.PRIVATE_CLIENTS_ONLY,
        console,
        observer,
        (lambda: stored.worker) if stored.worker else None,
    )


def _console(
    records: RunRecords, browsers: BrowserSafety, gated: WSGIApplication, observer: Listeners
) -> ConsoleApplication:
    """Return the WSGI application of the console."""
    # Imported here: without a console, nothing of it is needed.
    from Middleware.addons.console.application import ConsoleApplication, no_gate

    gate = gated.pass_through if isinstance(gated, ConcurrencyLimitMiddleware) else no_gate
    return ConsoleApplication(records, globals_.ACCESS_KEYS, browsers, gated, gate, observer, globals_.MAX_REQUEST_MB)


def __getattr__(name: str) -> object:
    # The app is built on first access, for WSGI hosts that import ``app:app``.
    if name == "app":
        globals()["app"] = create_app()
        return globals()["app"]
    raise AttributeError(name)
