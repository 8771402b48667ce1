"""Talks to the server with the tools. No script for a node, but what list_tools.py and call_tool.py share.

The server's address is the key MCPO_URL of the user file, else the environment variable MCPO_URL, else
http://localhost:8889. If the server was started with an API key, put that into the environment variable MCPO_API_KEY.

Python loads this file once: an edit counts after the next start of WilmerAI.
"""
from __future__ import annotations

import http.client
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import SplitResult, quote, urlsplit

from Middleware.models.request_context import current_request
from Middleware.utilities.config_utils import get_config_value

DEFAULT_URL = "http://localhost:8889"
MAX_ANSWER = 10_000_000  # bytes of an answer


class ToolError(Exception):
    """Something went wrong that the model, or the log, should hear about. The text says what."""


def ask(method: str, path: str, body: dict[str, Any] | None, seconds: float) -> tuple[int, Any]:
    """One request: its HTTP status, and the answer, parsed if it is JSON.

    ``seconds``: longest silence of the server. Raises ToolError if no answer comes.
    """
    url = server_url()
    kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    connection = kind(str(url.hostname), url.port, timeout=seconds)
    try:
        connection.connect()
        with stopped_with_the_request(connection.sock):
            data = None if body is None else json.dumps(body).encode("utf-8")
            connection.request(method, f"{url.path}/{quote(path)}", data, headers())
            response = connection.getresponse()
            return response.status, parsed(response.read(MAX_ANSWER))
    except TimeoutError:
        raise ToolError(f"the server at {server_name()} gave no answer within {seconds:g} seconds") from None
    except (OSError, http.client.HTTPException) as error:
        raise ToolError(f"the server at {server_name()} cannot be reached ({type(error).__name__})") from None
    finally:
        connection.close()


def server_url() -> SplitResult:
    """Where the server is. Raises ToolError for a setting that is no address."""
    setting = get_config_value("MCPO_URL") or os.environ.get("MCPO_URL") or DEFAULT_URL
    try:
        url = urlsplit(str(setting).strip().rstrip("/"))
        usable = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ToolError("MCPO_URL is no address such as http://localhost:8889")
    return url


def server_name() -> str:
    """The server as people may read it, without a password that its address may hold."""
    url = server_url()
    return f"{url.hostname}:{url.port}" if url.port else str(url.hostname)


def headers() -> dict[str, str]:
    key = os.environ.get("MCPO_API_KEY")
    return {"Accept": "application/json", "Content-Type": "application/json",
            **({"Authorization": f"Bearer {key}"} if key else {})}


def parsed(data: bytes) -> Any:
    text = data.decode("utf-8", "replace")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


@contextmanager
def stopped_with_the_request(sock: socket.socket) -> Iterator[None]:
    """While this lasts, a press on Stop ends the connection, so that the tool's server hears of it, too."""
    request = current_request()
    if request is None:
        yield
        return
    token = request.cancel_scope.add_callback(lambda: shut(sock))
    try:
        yield
    finally:
        request.cancel_scope.remove_callback(token)


def shut(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # it has ended by itself
