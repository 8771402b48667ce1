"""All packages at once against each launcher."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest

from Tests.clients.cases import MARKS, NODE, TEXT, TOKENS
from Tests.clients.client import Client
from Tests.clients.npm_clients import NPM_CLIENTS
from Tests.clients.python_clients import PYTHON_CLIENTS
from Tests.integration.launcher import Backend
from Tests.stub_backend import chat_stream_reply

pytestmark = MARKS

SILENCE_SECONDS = 5.4
"""Longer than the five seconds after which a server sends a heartbeat."""


class TestAllClients:
    clients = {**PYTHON_CLIENTS, **{f"npm {name}": kind for name, kind in NPM_CLIENTS.items()}}

    @pytest.mark.contract
    def test_silence_of_the_backend(self, all_clients: Mapping[str, Client], backend: Backend) -> None:
        """Heartbeats before the first token and between two of them disturb none."""
        pauses = [0.0, SILENCE_SECONDS, *[0.0] * (len(TOKENS) - 1)]
        backend.replies[NODE] = chat_stream_reply(TOKENS, header_delay=SILENCE_SECONDS, delays=pauses)
        with ThreadPoolExecutor(len(all_clients)) as pool:
            heard = {
                name: pool.submit(client.stream, [("user", backend.hello)]) for name, client in all_clients.items()
            }
        assert {name: said.result().text for name, said in heard.items()} == dict.fromkeys(heard, TEXT)
        assert len(backend.calls()) == len(all_clients)
