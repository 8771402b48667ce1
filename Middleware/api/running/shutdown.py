"""The end of the process."""

from __future__ import annotations

import logging
from collections.abc import Callable

from Middleware.api.running.running_requests import running_requests
from Middleware.llmapis.transport import get_transport
from Middleware.services.locking_service import get_locking_service
from Middleware.workflows.tools.mcp_client_tool import close_sessions, kill_sessions
from Middleware.workflows.tools.scripts.thread import running_scripts

logger = logging.getLogger(__name__)


def shut_down(timeout: float) -> None:
    """End the requests, which may take up to ``timeout`` seconds, and release the resources of the process."""
    running_requests().shut_down(timeout)
    release()


def release() -> None:
    """Release locks, processes and connections. It may be called more than once."""
    _do_all(
        get_locking_service().release_all, running_scripts().end_processes, get_transport().close_all, close_sessions
    )


def release_at_once() -> None:
    """Release the same without waiting, processes first, as nothing else would ever end them."""
    _do_all(
        running_scripts().end_processes, kill_sessions, get_locking_service().release_all, get_transport().close_all
    )


def _do_all(*steps: Callable[[], object]) -> None:
    for step in steps:
        try:
            step()
        # The other resources must be released too.
        except Exception:
            logger.exception("A resource could not be released at the end")
