"""What can go wrong with a web request."""
from __future__ import annotations

from Middleware.exceptions import BackendError
from Middleware.workflows.tools.web.request import WebResponse


class WebFetchError(BackendError):
    """A web request failed. ``response`` is what the server had answered, if it had."""

    def __init__(self, message: str, response: WebResponse | None = None) -> None:
        self.response = response
        super().__init__(message, status=response.status if response else None)


class WebFetchConnectionError(WebFetchError, ConnectionError):
    """The server could not be reached, or the connection was lost."""


class WebFetchTimeoutError(WebFetchError, TimeoutError):
    """The server was silent for too long, or took too long in all."""


class WebFetchUrlError(WebFetchError, ValueError):
    """The URL, or a header value, cannot be sent."""


class WebFetchStatusError(WebFetchError):
    """The server answered with a status of 400 or more."""


class WebFetchBlockedError(WebFetchError):
    """The address guard refused the URL."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"WebFetch blocked a request to a disallowed address: {reason}.")


class ResponseTooLargeError(WebFetchError):
    """The body is larger than allowed; ``response`` holds its beginning."""

    def __init__(self, max_bytes: int, response: WebResponse) -> None:
        super().__init__(f"WebFetch response exceeded the {max_bytes}-byte cap (maxResponseBytes).", response)
