"""Reading requests with Waitress: how large they may be, and who is refused before their body has come."""
from __future__ import annotations

import sys
from collections.abc import Callable

from waitress.parser import HTTPRequestParser, ParsingError
from waitress.utilities import BadRequest

from Middleware.cli.serving.json_errors import BOTH_FRAMINGS, TLS_RECORD, TLS_REFUSED
from Middleware.common import instance_global_variables as instance

MEGABYTE = 1024 * 1024
NEVER = sys.maxsize  # bytes


class Parser(HTTPRequestParser):
    """Stops reading a body above the limit, or of a request that ``is_unwelcome`` by its head. The application is told
    its length, and answers that.

    ``on_refusal`` is called then, and for a request that cannot be read: more of it may still come, and no request can
    follow it.
    """

    def __init__(self, adj: object, on_refusal: Callable[[], None],
                 is_unwelcome: Callable[[dict[str, object]], bool] | None = None) -> None:
        super().__init__(adj)
        self._is_unwelcome = is_unwelcome
        self._limit = instance.MAX_REQUEST_MB * MEGABYTE or NEVER
        self._on_refusal = on_refusal

    def received(self, data: bytes) -> int:
        if self._is_tls(data):
            self._refuse(BadRequest(TLS_REFUSED))
            return len(data)
        consumed: int = super().received(data)
        if self._size() > self._limit or self._is_refused():
            self.error, self.expect_continue = None, False
            self.headers.update(CONTENT_LENGTH=str(self._size()), CONNECTION="close")
            self._refuse(None)
            return len(data)
        if self.error is not None:
            self._on_refusal()
        return consumed

    def _is_refused(self) -> bool:
        """Asked once, when the head is there and a body is to come."""
        if self._is_unwelcome is None or self.completed or not self.headers_finished:
            return False
        asked, self._is_unwelcome = self._is_unwelcome, None
        fields = {f"HTTP_{name}": value for name, value in self.headers.items()}
        return asked({**fields, "REQUEST_METHOD": self.command, "CONTENT_TYPE": self.headers.get("CONTENT_TYPE", ""),
                      "CONTENT_LENGTH": self.headers.get("CONTENT_LENGTH", "")})

    def _is_tls(self, data: bytes) -> bool:
        return not self.headers_finished and not self.header_plus and data[:1] == TLS_RECORD

    def _refuse(self, error: BadRequest | None) -> None:
        self.completed = True
        self.error = error
        self.close()
        self.body_rcv = None
        self._on_refusal()

    def parse_header(self, header_plus: bytes) -> None:
        try:
            super().parse_header(header_plus)
        except ValueError as error:  # thousands of digits
            raise ParsingError("Content-Length is invalid") from error
        if self.chunked and "CONTENT_LENGTH" in self.headers:
            raise ParsingError(BOTH_FRAMINGS)

    def _size(self) -> int:
        """Bytes of the body: as announced, else so far. Framing counts where it is most of what was sent."""
        if not self.chunked or self.body_rcv is None:
            return self.content_length
        return max(len(self.body_rcv), self.body_bytes_received // 8)
