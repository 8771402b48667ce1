"""The documented import path of ``EarlyTerminationException``."""

from Middleware.exceptions import CANCELLED, LOCKED, EarlyTerminationException

__all__ = ["CANCELLED", "LOCKED", "EarlyTerminationException"]
