"""The end of the process."""
from __future__ import annotations

from Middleware.api.running_requests import running_requests


def begin_shutdown(timeout: float = 10.0) -> None:
    """Cancel requests without an answer and wait up to ``timeout`` seconds for nodes that run after one."""
    running_requests.shut_down(timeout)
