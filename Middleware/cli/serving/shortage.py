"""When the process may open no further file: connections wait for their turn, and the operator is told once."""
from __future__ import annotations

import errno
import logging
import sys
import time

logger = logging.getLogger(__name__)

_SHORT = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
if sys.platform == "win32":
    _SHORT |= {10024, 10055}  # the same, as Winsock numbers them


class Shortage:
    """Whether connections cannot be accepted at present; logs the beginning and the end of such a time.

    Those that follow at once are left out: each connection that ends makes room for one that waits.
    """

    def __init__(self, quiet_seconds: float = 60.0) -> None:
        self._quiet_seconds = quiet_seconds
        self._told_at: float | None = None  # monotonic
        self._short = False

    def begins(self, error: OSError) -> bool:
        """Note a failure to accept; False if it is of another kind."""
        if error.errno not in _SHORT:
            return False
        now = time.monotonic()
        if not self._short and (self._told_at is None or now - self._told_at >= self._quiet_seconds):
            self._short, self._told_at = True, now
            logger.warning("No more connections can be accepted (%s). New ones wait until others end. Raise the limit "
                           "of open files (ulimit -n) if this happens often.", error.strerror)
        return True

    def ends(self) -> None:
        """A connection was accepted."""
        if self._short:
            logger.info("Connections are accepted again")
        self._short = False
