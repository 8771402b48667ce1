"""The tree in which tests of workflows are run."""

from __future__ import annotations

import socket

import pytest

from Middleware.common import instance_global_variables as instance
from Middleware.utilities import config_utils
from Tests.addons.workflow_tests.lab import SuiteLab


@pytest.fixture(autouse=True)
def own_settings(monkeypatch):
    """The command sets them for its process."""
    for name in ("CONFIG_DIRECTORY", "PUBLIC_DIRECTORY", "USERS"):
        monkeypatch.setattr(instance, name, None)
    yield
    config_utils.reset_config_store()


@pytest.fixture
def lab(tmp_path, monkeypatch, own_settings):
    return SuiteLab(tmp_path / "Configs", monkeypatch)


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Whatever connects or looks up a name fails; ``attempts`` has what was tried."""
    attempts: list[object] = []

    def refuse(*arguments, **_):
        attempts.append(arguments)
        raise AssertionError(f"a test of a workflow reached for the network: {arguments}")

    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    yield attempts
    assert attempts == []
