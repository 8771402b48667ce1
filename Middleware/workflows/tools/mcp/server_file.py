"""The files below ``MCPServers``, checked, with their secrets masked."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

from Middleware.exceptions import ConfigNotFoundError, ConfigurationError, WilmerError
from Middleware.utilities import config_utils
from Middleware.utilities.config.keys.mcp_server import MCP_SERVER, TRANSPORTS
from Middleware.utilities.files.path_utils import is_flat_name
from Middleware.utilities.sensitive_logging_utils import MASK, mask_url

# A shorter value, such as "1", occurs in texts by chance, and masking it would make them unreadable.
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
        """Return ``text`` without the header values, environment values and URL credentials of this file."""
        if self.url:
            text = text.replace(self.url, mask_url(self.url))
        for secret in sorted(self._secrets(), key=len, reverse=True):
            text = text.replace(secret, MASK)
        return text

    def _secrets(self) -> set[str]:
        values = {value for _, value in (*self.env, *self.headers)}
        # The last word of "Bearer <secret>" is secret without the rest, too.
        values.update(value.rpartition(" ")[2] for _, value in self.headers)
        parts = urlsplit(self.url)
        values.update(unquote(part) for part in (parts.username, parts.password) if part)
        values.update(value for _, value in parse_qsl(parts.query))
        return {value for value in values if len(value) >= SHORTEST_SECRET}


def load_server(name: str) -> McpServer:
    """Return the server of that name. Raises MCPToolCallError for a bad name, and a missing or unusable file."""
    if not is_flat_name(name):
        raise MCPToolCallError(
            f"'{name}' cannot be the name of an MCP server: it must be the name of a file in "
            "MCPServers, without folder and without '/', '\\' or ':'"
        )
    try:
        return _server(name, config_utils.load_mcp_server(name))
    except ConfigNotFoundError:
        raise MCPToolCallError(f"MCP server config '{name}' was not found under Public/Configs/MCPServers/.") from None
    except ConfigurationError as error:
        raise MCPToolCallError(f"MCP server config '{name}' cannot be read: {error}") from None
    except _ServerFileError as problem:
        raise MCPToolCallError(f"MCP server config '{name}' {problem}.") from None


class _ServerFileError(Exception):
    """A file cannot be used; the text continues its name."""


def _server(name: str, data: Mapping[str, object]) -> McpServer:
    transport = MCP_SERVER.value(data, "transport") or None
    if transport not in TRANSPORTS:
        shown = transport if MCP_SERVER.has(data, "transport") else None
        *first, last = (f"'{known}'" for known in TRANSPORTS)
        raise _ServerFileError(f"has the transport {shown!r}; it must be {', '.join(first)} or {last}")
    if transport != "stdio":
        return McpServer(name, transport, url=_url(data, transport), headers=_pairs(data, "headers"))
    folder = os.path.expanduser(_text(data, "cwd"))
    if folder and not os.path.isdir(folder):
        raise _ServerFileError("has a 'cwd' that is not a folder")
    args = MCP_SERVER.value(data, "args") or []
    if not isinstance(args, list) or not all(map(_is_plain, args)):
        raise _ServerFileError("needs a list of strings as 'args'")
    return McpServer(
        name,
        transport,
        os.path.expanduser(_needed(data, "command", transport)),
        tuple(map(str, args)),
        _pairs(data, "env"),
        folder or None,
    )


def _text(data: Mapping[str, object], key: str) -> str:
    value = MCP_SERVER.value(data, key)
    # No operating system and no HTTP library takes a NUL.
    if not isinstance(value, str) or "\0" in value:
        raise _ServerFileError(f"has a '{key}' that is not a string")
    return value.strip()


def _needed(data: Mapping[str, object], key: str, transport: str) -> str:
    if value := _text(data, key):
        return value
    raise _ServerFileError(f"has no '{key}', which the transport '{transport}' needs")


def _url(data: Mapping[str, object], transport: str) -> str:
    url = _needed(data, "url", transport)
    try:
        usable = urlsplit(url).scheme in ("http", "https") and bool(urlsplit(url).hostname)
    # An address in brackets that is not an IPv6 address.
    except ValueError:
        usable = False
    if not usable:
        raise _ServerFileError("has a 'url' that is not an http:// or https:// address")
    return url


def _pairs(data: Mapping[str, object], key: str) -> Texts:
    values = MCP_SERVER.value(data, key) or {}
    if not isinstance(values, dict) or not all(map(_is_plain, values.values())):
        raise _ServerFileError(f"needs an object of strings as '{key}'")
    return tuple((name, str(value)) for name, value in values.items())


def _is_plain(value: object) -> bool:
    """Return whether this is a string, or a number written without quotes."""
    return (isinstance(value, str) and "\0" not in value) or (
        isinstance(value, (int, float)) and not isinstance(value, bool)
    )
