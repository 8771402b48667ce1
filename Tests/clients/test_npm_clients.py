"""npm packages against Waitress, and what they do most against every launcher."""

from __future__ import annotations

from Tests.clients.cases import MARKS, ClientCases
from Tests.clients.npm_clients import NPM_CLIENTS

pytestmark = MARKS


class TestNpmClients(ClientCases):
    clients = NPM_CLIENTS
