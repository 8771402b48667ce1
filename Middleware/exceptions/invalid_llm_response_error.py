"""The documented import path of ``InvalidLlmResponseError``."""

from Middleware.exceptions import InvalidLlmResponseError

__all__ = ["InvalidLlmResponseError"]
