"""The files below ``MCPServers``: what they say, checked, without showing their secrets."""
from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

from Middleware.exceptions import ConfigNotFoundError, ConfigurationError, WilmerError
from Middleware.utilities import config_utils
from Middleware.utilities.config.keys.mcp_server import MCP_SERVER, TRANSPORTS
from Middleware.utilities.files.path_utils import is_flat_name
from Middleware.utilities.sensitive_logging_utils import MASK, mask_url

SHORTEST_SECRET = 6
Texts = tuple[tuple[str, str], ...]


class MCPToolCallError(WilmerError):
    """A call to an MCP server failed. The text is fit for a client; the server's part of it may quote anything."""

    private = True


@dataclass(frozen=True)
class McpServer:
    """One server file. Equal files of one name share a session."""

    name: str
    transport: str
    command: str = ""
    args: tuple[str, ...] = field(default=(), repr=False)
    env: Texts = field(default=(), repr=False)
    cwd: str | None = None
    url: str = field(default="", repr=False)
    headers: Texts = field(default=(), repr=False)

    def masked(self, text: str) -> str:
        """``text`` without the header values, environment values and URL credentials of this file."""
        if self.url:
            text = text.replace(self.url, mask_url(self.url))
        for secret in sorted(self._secrets(), key=len, reverse=True):
            text = text.replace(secret, MASK)
        return text

    def _secrets(self) -> set[str]:
        values = {value for _, value in (*self.env, *self.headers)}
        values.update(value.rpartition(" ")[2] for _, value in self.headers)  # "Bearer <secret>"
        parts = urlsplit(self.url)
        values.update(unquote(part) for part in (parts.username, parts.password) if part)
        values.update(value for _, value in parse_qsl(parts.query))
        return {value for value in values if len(value) >= SHORTEST_SECRET}


def load_server(name: str) -> McpServer:
    """The server of that name. Raises MCPToolCallError for a bad name, a missing file or one that makes no sense."""
    if not is_flat_name(name):
        raise MCPToolCallError(f"'{name}' cannot be the name of an MCP server: it must be the name of a file in "
                               "MCPServers, without folder and without '/', '\\' or ':'")
    try:
        data = config_utils.load_mcp_server(name)
    except ConfigNotFoundError:
        raise MCPToolCallError(
            f"MCP server config '{name}' was not found under Public/Configs/MCPServers/.") from None
    except ConfigurationError as error:
        raise MCPToolCallError(f"MCP server config '{name}' cannot be read: {error}") from None
    return _Reader(name, data).server()


class _Reader:
    """Checks one file key by key."""

    def __init__(self, name: str, data: Mapping[str, object]) -> None:
        self.name, self.data = name, data

    def server(self) -> McpServer:
        transport = MCP_SERVER.value(self.data, "transport") or None
        if transport not in TRANSPORTS:
            shown = transport if MCP_SERVER.has(self.data, "transport") else None
            raise self._error(f"has the transport {shown!r}; it must be {_either(TRANSPORTS)}")
        if transport == "stdio":
            return McpServer(self.name, transport, command=os.path.expanduser(self._needed("command", transport)),
                             args=self._args(), env=self._texts("env"), cwd=self._folder())
        return McpServer(self.name, transport, url=self._url(transport), headers=self._texts("headers"))

    def _error(self, problem: str) -> MCPToolCallError:
        return MCPToolCallError(f"MCP server config '{self.name}' {problem}.")

    def _text(self, key: str) -> str:
        value = MCP_SERVER.value(self.data, key)
        if not isinstance(value, str) or "\0" in value:
            raise self._error(f"has a '{key}' that is no text")
        return value.strip()

    def _needed(self, key: str, transport: str) -> str:
        value = self._text(key)
        if not value:
            raise self._error(f"has no '{key}', which the transport '{transport}' needs")
        return value

    def _url(self, transport: str) -> str:
        url = self._needed("url", transport)
        try:
            usable = urlsplit(url).scheme in ("http", "https") and bool(urlsplit(url).hostname)
        except ValueError:
            usable = False
        if not usable:
            raise self._error("has a 'url' that is no http:// or https:// address")
        return url

    def _folder(self) -> str | None:
        folder = os.path.expanduser(self._text("cwd"))
        if folder and not os.path.isdir(folder):
            raise self._error("has a 'cwd' that is no folder")
        return folder or None

    def _args(self) -> tuple[str, ...]:
        values = MCP_SERVER.value(self.data, "args") or []
        if not isinstance(values, list) or not all(_is_plain(value) for value in values):
            raise self._error("needs a list of texts as 'args'")
        return tuple(str(value) for value in values)

    def _texts(self, key: str) -> Texts:
        values = MCP_SERVER.value(self.data, key) or {}
        if not isinstance(values, dict) or not all(_is_plain(value) for value in values.values()):
            raise self._error(f"needs an object of texts as '{key}'")
        return tuple((name, str(value)) for name, value in values.items())


def _is_plain(value: object) -> bool:
    """A text, or a number that somebody wrote without quotes."""
    return (isinstance(value, str) and "\0" not in value) or (
        isinstance(value, (int, float)) and not isinstance(value, bool))


def _either(words: Sequence[str]) -> str:
    *first, last = (f"'{word}'" for word in words)
    return f"{', '.join(first)} or {last}"
