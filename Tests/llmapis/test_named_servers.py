"""The table of servers in the page about connecting: each line of it reaches a server that behaves as documented."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from Middleware.exceptions import BackendError
from Middleware.llmapis.llm_api import LlmApiService
from Middleware.models.process import Process, install
from Tests.llmapis.lab import Lab
from Tests.named_servers import KEY, SERVERS, NamedServer
from Tests.stub_backend import StubBackend
from Tests.tables import table

PAGE = Path(__file__).resolve().parents[2] / "Docs" / "User" / "connecting-backends.md"
API_TYPES = PAGE.parents[2] / "Public" / "Configs" / "ApiTypes"
HELLO = [{"role": "user", "content": "Hello"}]


def documented() -> dict[str, str]:
    """The endpoint of each row of the table of servers by name."""
    _, _, rest = PAGE.read_text(encoding="utf-8").partition("Services and servers by name")
    rows = re.findall(r"^\| ([^|]+) \| `(https?://[^`]+)` \|$", rest.partition("\n\ntext-generation")[0], re.MULTILINE)
    return dict(rows)


class ServerLab(Lab):
    """One endpoint with the shipped API type of the table, whose server is on this computer."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, server: StubBackend) -> None:
        super().__init__(root, monkeypatch)
        self.server = server
        (root / "ApiTypes" / "Open-AI-API.json").write_bytes((API_TYPES / "Open-AI-API.json").read_bytes())

    def call(self, named: NamedServer, path: str) -> list[int]:
        """Call the server whole, streamed and whole again; return how many requests each of them took."""
        install(Process())
        self.server.responder = named.respond
        key = KEY if named.key_header else ""
        self.endpoint("Main", {"apiTypeConfigFileName": "Open-AI-API", "apiKey": key}, self.server.url + path)
        counts = []
        for stream in (False, True, False):
            self.server.requests.clear()
            answer = LlmApiService("Main", stream=stream).get_response_from_llm(HELLO)
            text = answer if isinstance(answer, str) else "".join(chunk["token"] for chunk in answer)
            assert text == "Good day"
            counts.append(len(self.server.requests))
        return counts


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: StubBackend) -> Iterator[ServerLab]:
    before = install(Process())
    yield ServerLab(tmp_path, monkeypatch, backend)
    install(before)


def test_every_server_is_in_the_table() -> None:
    assert list(documented()) == [server.name for server in SERVERS]


@table("named", SERVERS)
def test_the_line_of_the_table_needs_no_second_attempt(lab: ServerLab, named: NamedServer) -> None:
    address = urlsplit(documented()[named.name])
    assert lab.call(named, address.path + (f"?{address.query}" if address.query else "")) == [1, 1, 1]


@table("named", SERVERS)
def test_other_spellings_reach_it_too(lab: ServerLab, named: NamedServer) -> None:
    for path, first in named.also:
        assert lab.call(named, path) == [first, 1, 1], path


@table("named", SERVERS)
def test_a_wrong_path_is_an_error_that_shows_what_the_server_says(lab: ServerLab, named: NamedServer) -> None:
    with pytest.raises(BackendError) as caught:
        lab.call(named, "/no/such/path")
    text = str(caught.value)
    if named.status == 404:
        assert f"{lab.server.url}/no/such/path/v1/chat/completions and" in text and "Endpoints/lab/Main.json" in text
    else:
        assert "Unexpected endpoint or method" in text
    assert KEY not in text
