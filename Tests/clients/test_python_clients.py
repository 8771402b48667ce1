"""Python packages against Waitress, and what they do most against every launcher."""

from __future__ import annotations

from Tests.clients.cases import MARKS, ClientCases
from Tests.clients.python_clients import PYTHON_CLIENTS

pytestmark = MARKS


class TestPythonClients(ClientCases):
    clients = PYTHON_CLIENTS
