"""Calls tools of MCP servers, for nodes and for users' scripts."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from Middleware.exceptions import ConfigValueError
from Middleware.models.process import process
from Middleware.models.request_context import current_request
from Middleware.workflows.tools.mcp.server_file import MCPToolCallError, load_server

if TYPE_CHECKING:
    from Middleware.workflows.tools.mcp.mcp_sessions import Action, McpSessions

__all__ = ["DEFAULT_TIMEOUT_SECONDS", "MCPClient", "MCPToolCallError", "check_timeout"]

DEFAULT_TIMEOUT_SECONDS = 30
# Pages of a tool list: a server that always names a next page must not be asked forever.
MAX_PAGES = 100


def _new_sessions() -> McpSessions:
    # Imported at the first call: sessions need asyncio, the largest module that nothing else here does.
    from Middleware.workflows.tools.mcp.mcp_sessions import McpSessions

    return McpSessions()


def close_sessions() -> None:
    """End the sessions that calls have opened, and the processes behind them. The next call opens one afresh."""
    sessions = process().built(_new_sessions)
    if sessions is not None:
        sessions.close()


def kill_sessions() -> None:
    """End the processes behind the sessions, whatever they are doing. For the end of this process."""
    sessions = process().built(_new_sessions)
    if sessions is not None:
        sessions.kill()


class MCPClient:
    """The tools of the servers in ``MCPServers``.

    All objects share one set of sessions unless given their own. Called while a request runs, a call ends with
    EarlyTerminationException when that request is cancelled.
    """

    def __init__(self, sessions: McpSessions | None = None) -> None:
        self._sessions = sessions or process().one(_new_sessions)

    def call_tool(
        self,
        server: str,
        tool: str,
        arguments: Mapping[str, object] | None = None,
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
    ) -> str:
        """Return the tool's result as text: structured content as JSON if there is some, else its parts joined.

        ``timeout`` in seconds covers connecting, the handshake and the call. Raises MCPToolCallError, also for a
        result that is an error, and ValueError for a timeout that is not a number above 0.
        """

        async def call(client: Any) -> object:
            return await client.call_tool(tool, dict(arguments or {}))

        result = self._run(server, tool, call, timeout)
        if result.is_error:
            raise MCPToolCallError(f"MCP tool '{tool}' reported an error: {result_text(result)}")
        return result_text(result)

    def list_tools(self, server: str, timeout: float = DEFAULT_TIMEOUT_SECONDS) -> dict[str, dict[str, object]]:
        """Return ``{name: {"llm_schema": {"type": "function", "name", "description", "parameters"}}}``.

        Raises what ``call_tool`` raises.
        """

        async def fetch(client: Any) -> list[Any]:
            page = await client.list_tools()
            tools = list(page.tools)
            for _ in range(MAX_PAGES):
                if not page.next_cursor:
                    break
                page = await client.list_tools(cursor=page.next_cursor)
                tools.extend(page.tools)
            return tools

        return {
            tool.name: {
                "llm_schema": {
                    "type": "function",
                    "name": tool.name,
                    "description": tool.description or "",
                    "parameters": tool.input_schema,
                }
            }
            for tool in self._run(server, "tools/list", fetch, timeout)
        }

    def _run(self, server: str, tool: str, action: Action, timeout: float) -> Any:
        from Middleware.workflows.tools.mcp.mcp_sessions import SessionError, SessionTimeoutError

        seconds = check_timeout(timeout)
        request = current_request()
        try:
            return self._sessions.run(load_server(server), action, seconds, request.cancel_scope if request else None)
        except SessionTimeoutError as error:
            raise MCPToolCallError(f"MCP call to '{server}.{tool}' timed out after {seconds:.15g}s ({error})") from None
        except SessionError as error:
            raise MCPToolCallError(f"MCP call to '{server}.{tool}' failed: {error}") from None


def check_timeout(value: object) -> float:
    """Return ``value`` as seconds. Raises ConfigValueError unless it is a number above 0."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise ConfigValueError(f"'timeout' cannot be {value!r}", json_path="timeout", expected="a number above 0")
    return float(value)


def result_text(result: Any) -> str:
    """Return the text of a tool result of the ``mcp`` package."""
    if result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return "".join(_part_text(part) for part in result.content)


def _part_text(part: Any) -> str:
    if part.type == "text":
        return str(part.text)
    return json.dumps(part.model_dump(mode="json", by_alias=True, exclude_none=True), ensure_ascii=False)
