"""MCPToolCall: calls a tool of an MCP server."""
from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any, ClassVar

from Middleware.exceptions import ConfigValueError
from Middleware.utilities.config.declarations import ConfigKey
from Middleware.utilities.sensitive_logging_utils import sensitive_log
from Middleware.workflows.handlers.base.base_workflow_node_handler import BaseHandler
from Middleware.workflows.models.execution_context import ExecutionContext
from Middleware.workflows.tools.mcp_client_tool import (
    DEFAULT_TIMEOUT_SECONDS,
    MCPClient,
    MCPToolCallError,
    check_timeout,
)

logger = logging.getLogger(__name__)

ON_ERROR = ("raise", "return")


class MCPToolCallHandler(BaseHandler):
    """Returns the tool's result as a string."""

    # A tool may do anything.
    acts = "outside"
    reaches_outside = True

    KEYS: ClassVar[Mapping[str, tuple[ConfigKey, ...]]] = {
        "MCPToolCall": (
            ConfigKey("server", "str", None, "The server: name of a file in MCPServers.", "full", required=True,
                      names="mcp-server"),
            ConfigKey("tool", "str", None, "Name of the tool.", "full", required=True),
            ConfigKey("arguments", "object", {},
                      "Arguments of the tool; variables work in strings at any depth.", "full"),
            ConfigKey("timeout", "number", DEFAULT_TIMEOUT_SECONDS,
                      "Seconds for connecting, the handshake and the call together.", "early"),
            ConfigKey("onError", "str", "raise", "What a failed call does: raise fails the workflow, return makes the "
                                               "error's text the output.", choices=ON_ERROR))}

    def handle(self, context: ExecutionContext) -> object:
        self._check(context)
        timeout = self._timeout(context)
        server, tool = self.text(context, "server"), self.text(context, "tool")
        arguments = _filled(context, self.value(context, "arguments"))
        sensitive_log(logger, logging.INFO, "MCP call to '%s.%s'", server, tool)
        started = time.perf_counter()
        try:
            text = MCPClient().call_tool(server, tool, arguments, timeout)
        except MCPToolCallError as error:
            if self.value(context, "onError") == "raise":
                raise
            sensitive_log(logger, logging.WARNING, "MCP call to '%s.%s' failed; the output says why", server, tool)
            # A tool may quote the conversation in its error.
            sensitive_log(logger, logging.DEBUG, "%s", error)
            text = str(error)
        sensitive_log(logger, logging.INFO, "MCP call to '%s.%s' took %.2f s", server, tool,
                      time.perf_counter() - started)
        return self.static_text(context, text)

    def _check(self, context: ExecutionContext) -> None:
        """Check the node's keys. Raises ConfigValueError naming the node for a key that cannot be used as written."""
        for key in ("server", "tool"):
            value = self.value(context, key)
            if not isinstance(value, str) or not value.strip():
                raise self._error(context, key, "a name")
        if not isinstance(self.value(context, "arguments"), dict):
            raise self._error(context, "arguments", "an object")
        if self.value(context, "onError") not in ON_ERROR:
            raise self._error(context, "onError", "'raise' or 'return'")

    def _timeout(self, context: ExecutionContext) -> float:
        value = self.value(context, "timeout")
        try:
            if isinstance(value, str) and "{" in value:
                value = float(context.substitute_early(value))
            return check_timeout(value)
        # ConfigValueError is a ValueError too.
        except ValueError:
            raise self._error(context, "timeout", "a number above 0") from None

    def _error(self, context: ExecutionContext, key: str, expected: str) -> ConfigValueError:
        return ConfigValueError(f"MCPToolCall node '{context.node_name}': '{key}' cannot be "
                                f"{context.config.get(key)!r}", json_path=key, expected=expected)


def _filled(context: ExecutionContext, value: object) -> Any:
    """Return a copy with variables filled into every text; keys and other values stay."""
    if isinstance(value, str):
        return context.substitute(value)
    if isinstance(value, dict):
        return {key: _filled(context, item) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(context, item) for item in value]
    return value
