"""An MCP server for tests: ``python mcp_server.py stdio``, or ``... streamable-http PORT``, ``... sse PORT``.

Over HTTP it prints one line when it listens, and may demand a header: ``... PORT Name=value``.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp_types import CallToolResult, ImageContent, TextContent

server = MCPServer("lab", log_level="ERROR")


@server.tool()
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@server.tool(structured_output=False)
def echo(text: str) -> str:
    return text


@server.tool(structured_output=False)
def parts() -> Any:
    return [
        TextContent(type="text", text="one "),
        ImageContent(type="image", data="aGk=", mime_type="image/png"),
        TextContent(type="text", text="two"),
    ]


@server.tool()
def fail(text: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=text)], is_error=True)


@server.tool(structured_output=False)
def arguments(given: dict[str, Any]) -> str:
    return repr(given)


ARRIVED: list[str] = []


@server.tool(structured_output=False)
async def meet(text: str, count: int) -> str:
    """Answers when so many calls are at work at the same time."""
    ARRIVED.append(text)
    while len(ARRIVED) < count:
        await asyncio.sleep(0.01)
    return text


@server.tool(structured_output=False)
async def slow(seconds: float, text: str = "done") -> str:
    await asyncio.sleep(seconds)
    return text


@server.tool(structured_output=False)
def block(seconds: float) -> str:
    time.sleep(seconds)
    return "done"


@server.tool(structured_output=False)
def pid() -> str:
    return str(os.getpid())


@server.tool(structured_output=False)
def die() -> str:
    os._exit(3)


@server.tool(structured_output=False)
def environment() -> str:
    return "\n".join(f"{name}={value}" for name, value in sorted(os.environ.items()))


@server.tool(structured_output=False)
def folder() -> str:
    return os.getcwd()


def serve_http(transport: str, port: int, demanded: str = "") -> None:
    import uvicorn

    app = server.sse_app() if transport == "sse" else server.streamable_http_app()
    name, _, value = demanded.partition("=")

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        headers = {key.decode(): text.decode() for key, text in scope.get("headers", ())}
        if scope["type"] == "http" and name and headers.get(name.lower()) != value:
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b"no"})
            return
        await app(scope, receive, send)

    class Announcing(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            print("listening", flush=True)

    Announcing(uvicorn.Config(guarded, host="127.0.0.1", port=port, log_level="error")).run()


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        server.run("stdio")
    else:
        serve_http(sys.argv[1], int(sys.argv[2]), *sys.argv[3:4])
