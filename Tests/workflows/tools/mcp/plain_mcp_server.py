"""A small MCP server of the 2025 protocol over stdio, without any package: it starts in a few milliseconds.

``python plain_mcp_server.py [RESULT]``: ``RESULT`` is the JSON that answers every call instead of the tools below.
``STDERR`` in the environment is written to standard error first; ``NOISE`` is the number of kilobytes that are written
there then and at each call; ``WAITS`` is a file without which nothing is answered;
``LINGER`` are seconds to sleep after the input has ended, and ``ENDED`` is a file that is written after that.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any

WRITING = threading.Lock()


def text(value: object) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": str(value)}]}


def call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    if len(sys.argv) > 1:
        return json.loads(sys.argv[1])
    if name == "die":
        os._exit(3)
    if name in ("slow", "block"):
        if "begun" in arguments:
            open(arguments["begun"], "w", encoding="utf-8").close()
        time.sleep(arguments["seconds"])
        return text(arguments.get("text", "done"))
    if name == "environment":
        return text("\n".join(f"{key}={value}" for key, value in os.environ.items()))
    return text({"pid": os.getpid(), "folder": os.getcwd()}.get(name, repr(arguments)))


def make_noise() -> None:
    for _ in range(int(os.environ.get("NOISE", "0"))):
        print("n" * 1023, file=sys.stderr, flush=True)


def answer(message: dict[str, Any]) -> dict[str, Any]:
    method, params = message["method"], message.get("params", {})
    if method == "initialize":
        return {
            "result": {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "plain", "version": "1"},
            }
        }
    if method == "tools/list":
        second = params.get("cursor") == "p2"
        return {
            "result": {
                "tools": [{"name": "b" if second else "a", "inputSchema": {"type": "object"}}],
                **({} if second else {"nextCursor": "p2"}),
            }
        }
    if method != "tools/call":
        return {"error": {"code": -32601, "message": "no such method"}}
    if params["name"] == "refused":
        return {"error": {"code": -32602, "message": "not\nlike this"}}
    make_noise()
    return {"result": call(params["name"], params.get("arguments", {}))}


def reply(message: dict[str, Any]) -> None:
    line = json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer(message)})
    with WRITING:
        print(line, flush=True)


def main() -> None:
    sys.stderr.write(os.environ.get("STDERR", ""))
    sys.stderr.flush()
    make_noise()
    while "WAITS" in os.environ and not os.path.exists(os.environ["WAITS"]):
        time.sleep(0.01)
    for line in sys.stdin:
        message = json.loads(line)
        if message.get("params", {}).get("name") == "slow":
            threading.Thread(target=reply, args=(message,), daemon=True).start()
        elif "id" in message:
            reply(message)
    time.sleep(float(os.environ.get("LINGER", "0")))
    if "ENDED" in os.environ:
        with open(os.environ["ENDED"], "w", encoding="utf-8") as file:
            file.write("by itself")


if __name__ == "__main__":
    main()
