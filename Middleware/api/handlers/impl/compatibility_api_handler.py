"""The routes by which people and programs find out whether a server runs, in no particular dialect."""

from __future__ import annotations

from flask import Flask, Response, send_from_directory
from flask import request as http
from werkzeug.exceptions import NotFound

from Middleware.api import api_helpers
from Middleware.api.answers.front_page import DOCUMENTATION, POLICY, FrontPage
from Middleware.api.errors import describe_error, log_error
from Middleware.api.handlers.base.base_api_handler import BaseApiHandler, json_response
from Middleware.common import instance_global_variables as instance
from Middleware.common.constants import VERSION
from Middleware.models.process import process
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.utilities.conversations.discussion_folder import discussions
from Middleware.utilities.http.addresses import is_loopback

# Ollama's clients look for the second line.
GREETING = f"WilmerAI {VERSION}\nOllama is running\n"


class CompatibilityApiHandler(BaseApiHandler):
    """The root page, the documentation and the health check. All answer at once, without a workflow."""

    def register_routes(self, app: Flask) -> None:
        app.add_url_rule("/", "compatibility root", self.root, methods=["GET"])
        app.add_url_rule("/health", "compatibility health", self.health, methods=["GET"])
        app.add_url_rule("/docs/<path:name>", "compatibility documentation", self.documentation, methods=["GET"])

    @staticmethod
    def root() -> Response:
        # Of all clients only browsers ask for HTML by its name.
        if "text/html" not in http.headers.get("Accept", ""):
            return Response(GREETING, content_type="text/plain; charset=utf-8")
        response = Response(_front_page().html(), content_type="text/html; charset=utf-8")
        response.headers.update({"Content-Security-Policy": POLICY, "Cache-Control": "no-store", "Vary": "Accept"})
        return response

    @staticmethod
    def documentation(name: str) -> Response:
        """Return a page of the documentation as it is, in Markdown. No other file is served."""
        if not name.endswith(".md"):
            raise NotFound
        return send_from_directory(DOCUMENTATION, name, mimetype="text/plain")

    @staticmethod
    def health() -> Response:
        # A database that does not answer is not a reason to take the server out: it chats on without stored memories.
        database = process().one(discussions).health
        return json_response({"status": "ok", "database": database} if database else {"status": "ok"})


def _front_page() -> FrontPage:
    # A proxy that ends HTTPS says so. A client that sends this header without one only gets another text to read.
    scheme = "https" if http.headers.get("X-Forwarded-Proto") == "https" else http.scheme
    address = f"{scheme}://{http.host}"
    local_only = is_loopback(instance.LISTEN_ADDRESS)
    with request_scope(RequestContext()):
        try:
            return FrontPage(address, api_helpers.visible_model_ids(), local_only=local_only)
        # The page must help where the configuration is broken, too.
        except Exception as error:
            log_error(error, None, "before the answer")
            return FrontPage(address, (), describe_error(error).message, local_only)
