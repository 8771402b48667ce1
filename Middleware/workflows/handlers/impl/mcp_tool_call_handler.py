"""MCPToolCall: calls a tool of an MCP server."""

from __future__ import annotations

import logging
import time
from typing import Any

from Middleware.models.run_step import tool
from Middleware.utilities.config.declarations import ConfigKey
from Middleware.utilities.sensitive_logging_utils import sensitive_log
from Middleware.workflows.handlers.base import network_keys as network
from Middleware.workflows.handlers.base.base_workflow_node_handler import BaseHandler
from Middleware.workflows.models.execution_context import ExecutionContext
from Middleware.workflows.tools.mcp_client_tool import DEFAULT_TIMEOUT_SECONDS, MCPClient, MCPToolCallError

logger = logging.getLogger(__name__)

SERVER = ConfigKey(
    "server",
    "str",
    None,
    "The server: name of a file in MCPServers.",
    "full",
    required=True,
    names="mcp-server",
    capability="uses the MCP server",
)
TOOL = ConfigKey("tool", "str", None, "Name of the tool.", "full", required=True, capability="calls the MCP tool")
ARGUMENTS = ConfigKey(
    "arguments",
    "object",
    {},
    "Arguments of the tool; variables work in strings at any depth.",
    "full",
    capability="gives the MCP tool the arguments",
)
TIMEOUT = ConfigKey(
    "timeout",
    "number",
    DEFAULT_TIMEOUT_SECONDS,
    "Seconds for connecting, the handshake and the call together.",
    "early",
)


class MCPToolCallHandler(BaseHandler):
    """Returns the tool's result as a string."""

    # A tool may do anything.
    acts = "outside"
    reaches_outside = True

    KEYS = {"MCPToolCall": (SERVER, TOOL, ARGUMENTS, TIMEOUT, network.ON_ERROR)}

    def handle(self, context: ExecutionContext) -> object:
        raises = network.choice(context, network.ON_ERROR) == "raise"
        timeout = network.seconds(context, TIMEOUT)
        names = [_name(context, key) for key in (SERVER, TOOL)]
        server, name = map(context.substitute, names)
        arguments = ARGUMENTS.of(context.config)
        if not isinstance(arguments, dict):
            network.refuse(context, ARGUMENTS, "an object")
        arguments = _filled(context, arguments)
        sensitive_log(logger, logging.INFO, "MCP call to '%s.%s'", server, name)
        started = time.perf_counter()
        try:
            called = arguments if names == [server, name] else {"server": server, "tool": name, "arguments": arguments}
            with tool(names[1], "mcp", called, server=names[0]) as step:
                text = step.texts["result"] = MCPClient().call_tool(server, name, arguments, timeout)
        except MCPToolCallError as error:
            if raises:
                raise
            sensitive_log(logger, logging.WARNING, "MCP call to '%s.%s' failed; the output says why", server, name)
            # A tool may quote the conversation in its error.
            sensitive_log(logger, logging.DEBUG, "%s", error)
            text = str(error)
        sensitive_log(
            logger, logging.INFO, "MCP call to '%s.%s' took %.2f s", server, name, time.perf_counter() - started
        )
        return self.static_text(context, text)


def _name(context: ExecutionContext, key: ConfigKey) -> str:
    value = key.of(context.config)
    if not isinstance(value, str) or not value.strip():
        network.refuse(context, key, "a name")
    return value


def _filled(context: ExecutionContext, value: object) -> Any:
    """Return a copy with variables filled into every text; keys and other values stay."""
    if isinstance(value, str):
        return context.substitute(value)
    if isinstance(value, dict):
        return {key: _filled(context, item) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(context, item) for item in value]
    return value
