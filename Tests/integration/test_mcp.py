"""MCP servers behind each launcher."""

from __future__ import annotations

from pathlib import Path

import pytest

from Tests.integration.launcher import USER, Backend, Launcher, standard_tree
from Tests.workflows.tools.mcp.mcp_lab import HttpServer, plain_file


@pytest.mark.contract
def test_a_server_that_writes_much_to_its_standard_error_stops_nobody(script: str, tmp_path: Path) -> None:
    with Backend() as backend, HttpServer("streamable_http") as other:
        tree = standard_tree(tmp_path / "Public", backend.url)
        tree.write("MCPServers/noisy.json", plain_file(env={"NOISE": "1024"}))
        tree.write("MCPServers/http.json", other.file())
        for name, tool, arguments in (("noisy", "noise", {"n": 1}), ("http", "echo", {"text": "here"})):
            tree.shared(
                name.title(),
                {"type": "MCPToolCall", "server": name, "tool": tool, "arguments": arguments, "timeout": 60},
            )
        with Launcher(script, "--PublicDirectory", tree.public, "--User", USER, backend=backend) as server:
            for _ in range(2):
                assert server.ask("Noisy").text == "{'n': 1}"
                assert server.ask("Http").text == "here"
            output = server.output()
            assert "Traceback" not in output and "nnnn" not in output
