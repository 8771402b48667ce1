"""The shipped examples of MCP servers: one for each transport, ready to be copied."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from Middleware.workflows.tools.mcp.server_file import TRANSPORTS, load_server
from Tests.llmapis.lab import Lab

EXAMPLES = Path(__file__).resolve().parents[2] / "Public" / "Configs" / "MCPServers" / "_examples"


def test_there_is_one_for_each_transport() -> None:
    files = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in EXAMPLES.glob("*.json")}
    assert {name: file["transport"] for name, file in files.items()} == {name: name for name in TRANSPORTS}
    assert all(file["description"] for file in files.values())


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_copy_works_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transport: str) -> None:
    lab = Lab(tmp_path, monkeypatch)
    (lab.root / "MCPServers").mkdir()
    shutil.copy(EXAMPLES / f"{transport}.json", lab.root / "MCPServers" / "mine.json")
    server = load_server("mine")
    assert server.transport == transport and bool(server.command) == (transport == "stdio")
    assert bool(server.url) == (transport != "stdio") and (server.env or server.headers)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_its_secrets_are_placeholders(transport: str) -> None:
    text = (EXAMPLES / f"{transport}.json").read_text(encoding="utf-8")
    assert "put-your-" in text
