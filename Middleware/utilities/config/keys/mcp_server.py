"""The keys of the file of an MCP server."""

from __future__ import annotations

from Middleware.utilities.config.declarations import ConfigKey, KeyTable
from Middleware.utilities.json_data import FrozenDict, FrozenList

TRANSPORTS = ("stdio", "sse", "streamable_http")

MCP_SERVER_KEYS: tuple[ConfigKey, ...] = (
    ConfigKey(
        "transport",
        "str",
        "",
        "How to reach the server: as a separate program, or over HTTP.",
        choices=TRANSPORTS,
        required=True,
        capability="is reached by",
    ),
    ConfigKey(
        "command",
        "str",
        "",
        "With stdio: the program that is the server; required there.",
        capability="starts the program",
    ),
    ConfigKey(
        "args",
        "list",
        FrozenList(),
        "With stdio: the arguments of the program.",
        entries="str",
        capability="starts its program with the arguments",
    ),
    ConfigKey(
        "env",
        "object",
        FrozenDict(),
        "With stdio: environment variables of the program.",
        entries="str",
        capability="starts its program with the environment variables",
    ),
    ConfigKey(
        "cwd",
        "str",
        "",
        "With stdio: the folder in which the program is started.",
        names="directory",
        capability="starts its program in",
    ),
    ConfigKey(
        "url",
        "str",
        "",
        "With sse and streamable_http: the address of the server; required there.",
        capability="sends requests to",
    ),
    ConfigKey(
        "headers",
        "object",
        FrozenDict(),
        "With sse and streamable_http: headers of every request.",
        entries="str",
        capability="sends the headers",
    ),
)
MCP_SERVER = KeyTable(MCP_SERVER_KEYS)
