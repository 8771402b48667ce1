"""Daemon threads for work in the background."""
from __future__ import annotations

import logging
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)


def start_daemon(target: Callable[[], object], name: str, without: str) -> threading.Thread | None:
    """Start and return a daemon thread; None if the system cannot start one, so that the caller may try again later.

    ``without`` is the warning about that: what does not work in the meantime.
    """
    thread = threading.Thread(target=target, name=name, daemon=True)
    try:
        thread.start()
    # Python raises it if the system cannot start another thread.
    except RuntimeError as error:
        logger.warning("%s: %s", without, error)
        return None
    return thread
