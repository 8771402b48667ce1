"""Errors of the HTTP servers themselves, which never reach the application, as JSON."""
from __future__ import annotations

import json

# Characters of a message, which may repeat what the client sent.
MAX_MESSAGE = 500

# The first byte of a TLS handshake, never of an HTTP request.
TLS_RECORD = b"\x16"
TLS_REFUSED = "This port speaks HTTP, not HTTPS; use an address that begins with http://"
BOTH_FRAMINGS = "Content-Length and Transfer-Encoding are not allowed together"


def error_body(status: int, message: str) -> bytes:
    """Return an error as JSON, in OpenAI's dialect: that of a request that could not be read is not known."""
    text = " ".join(message.split())[:MAX_MESSAGE]
    error: object = text if status == 400 else {"message": text, "type": "server_error", "code": status}
    return json.dumps({"error": error}).encode("utf-8")
