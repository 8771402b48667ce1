"""The end of the process."""
from __future__ import annotations

import logging
from collections.abc import Callable

from Middleware.api.running.running_requests import running_requests
from Middleware.llmapis.transport import get_transport
from Middleware.services.locking_service import get_locking_service
from Middleware.workflows.tools.mcp_client_tool import close_sessions, kill_sessions
from Middleware.workflows.tools.scripts.processes import running_scripts

logger = logging.getLogger(__name__)


def begin_shutdown(timeout: float = 10.0) -> None:
    """Refuse new requests, cancel those without an answer, wait up to ``timeout`` seconds for nodes that run after one,
    and give back what the process holds."""
    running_requests().refuse_more()
    running_requests().shut_down(timeout)
    release()


def release() -> None:
    """Give back what others wait for or would be left over: locks, processes, connections. Again does no harm."""
    _do_all(get_locking_service().release_all, running_scripts().end_processes, get_transport().close_all,
            close_sessions)


def release_at_once() -> None:
    """``release`` without time for anybody's good end, and first what would be left over for good."""
    _do_all(running_scripts().end_processes, kill_sessions, get_locking_service().release_all,
            get_transport().close_all)


def _do_all(*steps: Callable[[], object]) -> None:
    for give_back in steps:
        try:
            give_back()
        except Exception:  # the others must be given back too
            logger.exception("Something was not given back at the end")
