"""The routes by which clients and monitors find out whether a server runs, in no particular dialect."""
from __future__ import annotations

from flask import Flask, Response

from Middleware.api.handlers.base.base_api_handler import BaseApiHandler, json_response
from Middleware.common.constants import VERSION

# Ollama's clients look for the second line.
GREETING = f"WilmerAI {VERSION}\nOllama is running\n"


class CompatibilityApiHandler(BaseApiHandler):
    """The root page and the health check. Both answer at once, without configuration and without a workflow."""

    def register_routes(self, app: Flask) -> None:
        app.add_url_rule("/", "compatibility root", self.root, methods=["GET"])
        app.add_url_rule("/health", "compatibility health", self.health, methods=["GET"])

    @staticmethod
    def root() -> Response:
        return Response(GREETING, content_type="text/plain; charset=utf-8")

    @staticmethod
    def health() -> Response:
        return json_response({"status": "ok"})
