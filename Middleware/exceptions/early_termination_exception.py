"""The exception that ends a run on purpose."""
from Middleware.exceptions.wilmer_error import WilmerError

CANCELLED = "cancelled"
LOCKED = "locked"


class EarlyTerminationException(WilmerError):
    """A run was stopped on purpose. ``reason`` is ``cancelled`` or ``locked``."""

    def __init__(self, message: str = "", reason: str = CANCELLED) -> None:
        self.reason = reason
        super().__init__(message)

    @property
    def is_cancellation(self) -> bool:
        return self.reason == CANCELLED
