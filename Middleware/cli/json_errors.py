"""Errors of the HTTP servers themselves, which never reach the application, as JSON."""
from __future__ import annotations

import json
from typing import Any

from Middleware.api.request_bodies import BODY_LEFT_KEY
from Middleware.cli.listening import say_goodbye


def error_body(status: int, message: str) -> bytes:
    """An error as JSON; the dialect is not known where the request could not be read, so it is OpenAI's."""
    text = " ".join(message.split())
    error: Any = text if status == 400 else {"message": text, "type": "server_error", "code": status}
    return json.dumps({"error": error}).encode("utf-8")


class JsonErrorsMixin:
    """For handlers built on ``http.server``: answers what cannot be read as HTTP, and logs nothing itself."""

    def send_error(self: Any, code: int, message: str | None = None, explain: str | None = None) -> None:
        body = error_body(code, message or self.responses.get(code, ("error",))[0])
        self.close_connection = True
        self.send_response(code, message)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def finish(self: Any) -> None:
        """Let a client whose body was refused read why, before the connection ends."""
        if BODY_LEFT_KEY in getattr(self, "environ", ()):
            say_goodbye(self.connection)
        super().finish()  # type: ignore[misc]

    def version_string(self) -> str:
        return "WilmerAI"

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Nothing: the application logs its requests."""

    def log_error(self, format: str, *args: Any) -> None:
        """Nothing: the client is told."""
