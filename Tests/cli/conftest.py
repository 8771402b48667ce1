"""A configuration folder, and process-wide names that each test gets fresh."""

from __future__ import annotations

import json

import pytest

from Middleware.common import instance_global_variables as instance
from Middleware.utilities import config_utils


class ConfigFolder:
    def __init__(self, path):
        self.path = path
        (path / "Users").mkdir(parents=True)

    def user(self, name, text=None, **settings):
        (self.path / "Users" / f"{name}.json").write_text(json.dumps(settings) if text is None else text, "utf-8")

    def current(self, name):
        self.user("_current-user", currentUser=name)


@pytest.fixture
def config(tmp_path, monkeypatch):
    for name in (
        "CONFIG_DIRECTORY",
        "PUBLIC_DIRECTORY",
        "DISCUSSION_DIRECTORY",
        "USER_LEVEL_SQLITE_DIRECTORY",
        "USERS",
        "FILE_LOGGING",
        "PORT",
    ):
        monkeypatch.setattr(instance, name, None)
    monkeypatch.setattr(instance, "LISTEN_ADDRESS", "127.0.0.1")
    folder = ConfigFolder(tmp_path / "Configs")
    monkeypatch.setattr(instance, "CONFIG_DIRECTORY", str(folder.path))
    config_utils.reset_config_store()
    yield folder
    config_utils.reset_config_store()
