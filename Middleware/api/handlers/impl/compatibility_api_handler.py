"""The routes by which people and programs find out whether a server runs, in no particular dialect."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from flask import Flask, Response, send_from_directory
from flask import request as http
from werkzeug.exceptions import NotFound

from Middleware.api import api_helpers
from Middleware.api.errors import describe_error, log_error
from Middleware.api.handlers.base.base_api_handler import BaseApiHandler, json_response
from Middleware.common import instance_global_variables as instance
from Middleware.common.constants import VERSION
from Middleware.models.process import process
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.utilities.config.paths import documentation_directory
from Middleware.utilities.discussions.discussion_folder import discussions
from Middleware.utilities.http.addresses import is_loopback

# Some clients of Ollama compare the whole body with this.
GREETING = "Ollama is running"
# What the greeting does not say.
PROGRAM = ("Server-Program", f"WilmerAI/{VERSION}")
DOCUMENTATION = Path(documentation_directory())
# Pages that the front page links to, with what they are about; the route of the documentation serves all others too.
_GUIDES = (
    ("User/open-webui.md", "Open WebUI"),
    ("User/sillytavern.md", "SillyTavern"),
    ("User/connecting-clients.md", "other programs"),
    ("User/troubleshooting.md", "troubleshooting"),
    ("README.md", "all pages"),
)

# Browsers take the colours of light and dark pages from the reader's settings. On a phone the cells of a row stand
# below each other, so that an address is not broken into pieces.
_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 46rem; margin: 2rem auto; padding: 0 1rem; background: Canvas; color: CanvasText; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .3rem 1rem .3rem 0; border-bottom: 1px solid GrayText; }
th { font-weight: 600; } code { user-select: all; overflow-wrap: break-word; } .note { color: GrayText; }
@media (max-width: 40rem) {
  th, td { display: block; padding: 0; border: 0; } tr { display: block; padding: .6rem 0; }
  tr + tr { border-top: 1px solid GrayText; }
}
"""
# The page may use its own style and nothing else: no script, no form, no other address.
POLICY = (
    "default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; style-src "
    f"'sha256-{base64.b64encode(hashlib.sha256(_STYLE.encode('utf-8')).digest()).decode('ascii')}'"
)


class CompatibilityApiHandler(BaseApiHandler):
    """The root page, the documentation and the health check. All answer at once, without a workflow."""

    def register_routes(self, app: Flask) -> None:
        app.add_url_rule("/", "compatibility root", self.root, methods=["GET"])
        app.add_url_rule("/health", "compatibility health", self.health, methods=["GET"])
        app.add_url_rule("/docs/<path:name>", "compatibility documentation", self.documentation, methods=["GET"])

    @staticmethod
    def root() -> Response:
        if not _is_browser():
            return Response(GREETING, content_type="text/plain; charset=utf-8", headers=[PROGRAM])
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


def _is_browser() -> bool:
    """Return whether a browser wants to show a page. Programs, such as those in Java, may ask for HTML as well."""
    kinds = [kind.partition(";")[0].strip().lower() for kind in http.headers.get("Accept", "").split(",")]
    navigates = http.headers.get("Sec-Fetch-Mode", "").strip().lower() == "navigate"
    return kinds[0] == "text/html" and (navigates or "application/xhtml+xml" in kinds)


def _front_page() -> _FrontPage:
    # A proxy that ends HTTPS says so. A client that sends this header without one only gets another text to read.
    scheme = "https" if http.headers.get("X-Forwarded-Proto") == "https" else http.scheme
    address = f"{scheme}://{http.host}"
    local_only = is_loopback(instance.LISTEN_ADDRESS)
    with request_scope(RequestContext()):
        try:
            return _FrontPage(address, api_helpers.visible_model_ids(), local_only=local_only)
        # The page must help where the configuration is broken, too.
        except Exception as error:
            log_error(error, None, "before the answer")
            return _FrontPage(address, (), describe_error(error).message, local_only)


# -- the page for browsers ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _FrontPage:
    """What the page shows: the models, and what to enter in which chat program.

    Attributes:
        address: this server's address as the browser wrote it, without a slash at its end.
        models: the ids that clients can choose.
        problem: why the models cannot be listed; "" if they can.
        local_only: the server listens for programs on its own computer alone.
    """

    address: str
    models: Sequence[str]
    problem: str = ""
    local_only: bool = False

    def html(self) -> str:
        """Return the page. Everything that is not constant is escaped."""
        return "\n".join(
            (
                "<!doctype html>",
                '<html lang="en">',
                "<head>",
                '<meta charset="utf-8">',
                '<meta name="viewport" content="width=device-width, initial-scale=1">',
                '<link rel="icon" href="data:,">',
                "<title>WilmerAI</title>",
                f"<style>{_STYLE}</style>",
                "</head>",
                "<body>",
                f"<h1>WilmerAI {escape(VERSION)} is running</h1>",
                "<p>Chat programs connect to this address; there is nothing to do on this page itself.</p>",
                *self._addresses(),
                *self._models(),
                *_guides(),
                "</body>",
                "</html>",
                "",
            )
        )

    def _addresses(self) -> list[str]:
        rows = (
            ("Open WebUI", "Settings, Connections, OpenAI API: URL. Any text as the key.", f"{self.address}/v1"),
            ("SillyTavern", "Chat Completion, Custom (OpenAI-compatible): Custom Endpoint", f"{self.address}/v1"),
            ("Other OpenAI clients", "base URL", f"{self.address}/v1"),
            ("Claude Code, other Anthropic clients", "ANTHROPIC_BASE_URL, or base URL", self.address),
            ("Ollama clients", "host or base URL", self.address),
        )
        lines = ["<h2>Addresses to paste</h2>", "<table>"]
        lines += [
            f"<tr><th>{escape(program)}</th><td>{escape(field)}</td><td><code>{escape(address)}</code></td></tr>"
            for program, field, address in rows
        ]
        lines.append("</table>")
        if self.local_only:
            lines.append(
                '<p class="note">Only programs on this computer can connect. A program in a container or on '
                "another computer needs WilmerAI to be started with <code>--listen</code>, and this "
                "computer's own address in place of the one above.</p>"
            )
        return lines

    def _models(self) -> list[str]:
        if self.problem:
            return ["<h2>Models</h2>", f"<p>The models cannot be listed: {escape(self.problem)}</p>"]
        items = [f"<li><code>{escape(name)}</code></li>" for name in self.models]
        return ["<h2>Models</h2>", "<ul>", *items, "</ul>"]


def _guides() -> list[str]:
    # An installation may have been copied without its documentation.
    links = [
        f'<li><a href="/docs/{escape(path)}">{escape(title)}</a></li>'
        for path, title in _GUIDES
        if (DOCUMENTATION / path).is_file()
    ]
    return ["<h2>Documentation</h2>", "<ul>", *links, "</ul>"] if links else []
