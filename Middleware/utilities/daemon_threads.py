"""Threads that work beside the requests."""
from __future__ import annotations

import logging
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)


def start_daemon(target: Callable[[], object], name: str, without: str) -> threading.Thread | None:
    """A daemon thread at work; None if the system has no more threads at present, so that its next user tries again.

    ``without`` is the warning for that: what nobody does meanwhile.
    """
    thread = threading.Thread(target=target, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        logger.warning("%s: %s", without, error)
        return None
    return thread
