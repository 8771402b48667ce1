"""A fake of any MCP server over stdio: ``python mcp_server.py '{"tool": "what it says"}'``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from Tests.workflows.tools.mcp import plain_mcp_server


def call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """What the tool says, or else how it was called."""
    return plain_mcp_server.text(json.loads(sys.argv[1]).get(name, f"{name} was called with {json.dumps(arguments)}"))


if __name__ == "__main__":
    plain_mcp_server.call = call
    plain_mcp_server.main()
