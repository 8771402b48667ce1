"""The application and its factory. Importing this module builds nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from flask import Flask

from Middleware.api.api_server import ApiServer
from Middleware.api.concurrency_middleware import ConcurrencyLimitMiddleware
from Middleware.api.edge.admission_middleware import AdmissionMiddleware, OwnAdmission
from Middleware.api.edge.browser_safety import BrowserSafety
from Middleware.api.handlers.base.base_api_handler import LISTENERS_KEY
from Middleware.api.running.running_requests import running_requests
from Middleware.common import instance_global_variables as globals_
from Middleware.models.process import Process, install, process
from Middleware.services.idempotency_service import get_idempotency_service
from Middleware.utilities.discussions.discussion_folder import discussions
from Middleware.workflows.events import Listeners, default_listeners
from Middleware.workflows.handlers.registry import node_types

Gate = Callable[[WSGIApplication, WSGIEnvironment, StartResponse], Iterable[bytes]]

# Requests that wait at the gate never occupy these threads, so model lists and health checks are still answered.
RESERVED_THREADS = 64


def no_gate(app: WSGIApplication, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    """Let a request through, where their number is not limited."""
    return app(environ, start_response)


def create_app(own: Process | None = None) -> Flask:
    """Return a new Flask application with all routes.

    ``own`` becomes the holder of everything that lives as long as the process; without it, the present one stays.
    """
    if own is not None:
        install(own)
    # Found now: a server that has run out of file descriptors cannot list the handlers' folder.
    node_types()
    return ApiServer().app


@dataclass(frozen=True)
class Site:
    """What a mounted application may use of the server.

    Attributes:
        gated: answers clients' requests, behind the gate.
        gate: lets a call through the gate that a mounted application makes itself.
        browsers: knows the web pages that are admitted, and the names of this server.
        listeners: get the engine's events.
    """

    gated: WSGIApplication
    gate: Gate
    browsers: BrowserSafety
    listeners: Listeners


Mount = Callable[[Site], OwnAdmission]


def build_wsgi_application(
    app: Flask | None = None,
    threads: int | None = None,
    listeners: Sequence[object] = (),
    mounts: Mapping[str, Mount] | None = None,
    routes: Iterable[Callable[[Flask], object]] = (),
) -> WSGIApplication:
    """Return the WSGI callable that launchers serve: admission, the concurrency gate if one is configured, the app.

    Args:
        app: the application; a new one by default.
        threads: the number of the server's threads, which limits the requests that may wait at the gate.
        listeners: listeners to the engine's events in every request, in addition to the default ones.
        mounts: make applications with an admission of their own, by the path that they answer with all below it.
        routes: add routes to the application, behind the admission of all requests.
    """
    get_idempotency_service().is_running = running_requests().knows
    app = app or create_app()
    observer = app.extensions[LISTENERS_KEY] = Listeners([*default_listeners(), *listeners])
    for add_route in routes:
        add_route(app)
    gated: WSGIApplication = app
    gate = no_gate
    semaphore = globals_.get_request_semaphore()
    if semaphore is not None and globals_.CONCURRENCY_LEVEL == "wilmer":
        waiting = max(threads - RESERVED_THREADS, 1) if threads else None
        gated = limited = ConcurrencyLimitMiddleware(gated, semaphore, globals_.CONCURRENCY_TIMEOUT, waiting)
        gate = limited.pass_through
    browsers = BrowserSafety(globals_.ALLOWED_ORIGINS)
    stored = process().one(discussions)
    site = Site(gated, gate, browsers, observer)
    return AdmissionMiddleware(
        gated,
        globals_.MAX_REQUEST_MB,
        globals_.ACCESS_KEYS,
        browsers,
        globals_.PRIVATE_CLIENTS_ONLY,
        {prefix: mount(site) for prefix, mount in (mounts or {}).items()},
        observer,
        (lambda: stored.worker) if stored.worker else None,
    )


def __getattr__(name: str) -> object:
    # The app is built on first access, for WSGI hosts that import ``app:app``.
    if name == "app":
        globals()["app"] = create_app()
        return globals()["app"]
    raise AttributeError(name)
