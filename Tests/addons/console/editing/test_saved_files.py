"""Each save keeps what was there, and is a line in the list of changes and in the log."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest

from Middleware.addons.console.editing.saved_files import save_file
from Middleware.addons.records.console_folder import ConsoleFolder
from Middleware.addons.records.ring import RunRing
from Middleware.addons.records.settings import RecordSettings
from Middleware.addons.records.store.writer import RunStore
from Middleware.common import instance_global_variables as instance

PATH = "Workflows/me/Coding.test.json"


def test_a_save_keeps_a_backup_and_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(instance, "CONFIG_DIRECTORY", str(tmp_path / "Configs"))
    folder = ConsoleFolder(str(tmp_path / "Console"))
    store = RunStore(folder, RunRing(), RecordSettings(folder, None))
    try:
        assert save_file(folder, store, PATH, "first é", "session-1", "a test was added") is None
        backup = save_file(folder, store, PATH, "second", "session-1", "a test was added")
        assert backup is not None
        target = tmp_path / "Configs" / PATH
        kept = tmp_path / "Console" / "backups" / backup
        assert (target.read_text(encoding="utf-8"), kept.read_text(encoding="utf-8")) == ("second", "first é")
        with store.index() as index:
            rows = index.execute("SELECT session, path, what, backup FROM change ORDER BY n").fetchall()
        assert rows == [("session-1", PATH, "a test was added", None), ("session-1", PATH, "a test was added", backup)]
        # Of a new file that may hold a key; an existing one keeps its permissions.
        known = tmp_path / "Configs" / "Endpoints" / "Known.json"
        known.parent.mkdir(parents=True)
        known.touch(mode=0o640)
        known.chmod(0o640)
        for path, mode in (
            ("Endpoints/Main.json", 0o600),
            ("Endpoints/me/new/Main.json", 0o600),
            ("MCPServers/Files.json", 0o600),
            ("Endpoints/Known.json", 0o640),
        ):
            save_file(folder, store, path, "{}", "session-1", "saved")
            assert sys.platform == "win32" or (tmp_path / "Configs" / path).stat().st_mode & 0o777 == mode, path
        assert f"The console saved {PATH}: a test was added (backup: {backup})" in caplog.text
    finally:
        store.close()
