"""The files by which commands find a running server, with real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from Middleware.cli import running_server
from Middleware.cli.running_server import announced, find_server, servers_in
from Middleware.common import instance_global_variables as instance
from Tests.integration.launcher import PROJECT, USER, Backend, ConfigTree, Launcher, run_launcher, standard_tree

HOLD = """
import sys
from Middleware.cli.running_server import announced
from Middleware.common import instance_global_variables as instance
instance.PUBLIC_DIRECTORY, instance.USERS = sys.argv[1], ["ann"]
with announced("http://127.0.0.1:1"):
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of conversations of a configuration with one user."""
    ConfigTree(tmp_path).write(f"Users/{USER}.json", {})
    for name, value in {
        "PUBLIC_DIRECTORY": str(tmp_path),
        "CONFIG_DIRECTORY": None,
        "DISCUSSION_DIRECTORY": None,
        "USERS": [USER],
    }.items():
        monkeypatch.setattr(instance, name, value)
    return tmp_path / "DiscussionIds"


def test_the_files_go_away_with_the_server(root: Path) -> None:
    with announced("http://127.0.0.1:5001"):
        (server,) = servers_in(str(root))
        assert (server.url, server.users, str(server)) == ("http://127.0.0.1:5001", (USER,), "http://127.0.0.1:5001")
        assert find_server([USER]) == find_server([]) == server and find_server(["bob"]) is None
        assert os.name == "nt" or {file.stat().st_mode & 0o777 for file in root.iterdir()} == {0o600}
    assert servers_in(str(root)) == [] and list(root.iterdir()) == [] and find_server([]) is None


def test_another_configuration_is_no_server_of_this_one(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with announced("http://127.0.0.1:5001"):
        monkeypatch.setattr(instance, "DISCUSSION_DIRECTORY", str(root))
        monkeypatch.setattr(instance, "CONFIG_DIRECTORY", str(root.parent / "Other"))
        ConfigTree(root.parent).write(f"../Other/Users/{USER}.json", {})
        assert len(servers_in(str(root))) == 1 and find_server([USER]) is None


@pytest.mark.slow
def test_a_server_that_was_killed_is_gone(root: Path) -> None:
    held = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(root.parent)],
        cwd=PROJECT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with held:
        assert held.stdout is not None and held.stdout.readline() == "ready\n"
        assert [server.pid for server in servers_in(str(root))] == [held.pid]
        held.kill()
    assert servers_in(str(root)) == [] and len(list(root.iterdir())) == 2
    # A server that has just made its file is not taken for one that was killed.
    old = time.time() - 2 * running_server.LEFT_BEHIND_SECONDS
    for file in root.iterdir():
        os.utime(file, (old, old))
    assert servers_in(str(root)) == [] and list(root.iterdir()) == []


def test_a_file_that_does_not_parse(root: Path) -> None:
    with announced("http://127.0.0.1:5001"):
        file = next(root.glob("*.json"))
        for content in ("", "[1]", json.dumps({"url": "x"})):
            file.write_text(content, encoding="utf-8")
            assert [str(server) for server in servers_in(str(root))] == ["a process that is just starting"]


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["server.py", "run_eventlet.py"])
def test_rekey_waits_for_the_end_of_the_server(tmp_path: Path, launcher: str) -> None:
    with Backend() as backend:
        tree = standard_tree(tmp_path / "Public", backend.url)
        words = (
            "server.py",
            "rekey",
            "--PublicDirectory",
            str(tree.public),
            "--user",
            USER,
            "--api-key",
            "old-key-1",
            "--new-api-key",
            "new-key-1",
            "--yes",
        )
        with Launcher(launcher, "--PublicDirectory", tree.public, "--User", USER):
            refused = run_launcher(*words)
        assert refused.returncode == 1 and "is in use by a running WilmerAI (http://127.0.0.1:" in refused.stderr
        assert "nothing is stored for this API key" in run_launcher(*words).stderr
