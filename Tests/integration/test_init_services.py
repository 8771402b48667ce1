"""From ``init`` to a greeting through each model that it writes, against the servers that people have."""

from __future__ import annotations

from pathlib import Path

import pytest

from Tests.addons.init.services import GREETING, services
from Tests.integration.launcher import Launcher, run_launcher


@pytest.mark.parametrize("name", services())
def test_every_model_greets(name: str, tmp_path: Path) -> None:
    service = services()[name]
    with service.running() as backend:
        address = backend.url + service.path
        done = run_launcher("server.py", "init", "--yes", "--backend", address, "--PublicDirectory", tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "It answers." in done.stdout
        # What init has learned is in the files.
        service.refused = 0
        service.calls.clear()
        with Launcher("run_waitress.py", "--PublicDirectory", tmp_path) as server:
            models = [entry["id"] for entry in server.request("GET", "/v1/models").json["data"]]
            assert {"me:chat", "me:assistant", "me:memory"} <= set(models)
            for model in models:
                for stream in (False, True):
                    body = {"model": model, "stream": stream, "messages": [{"role": "user", "content": "hello"}]}
                    answer = server.request("POST", "/v1/chat/completions", body)
                    assert answer.status == 200 and GREETING in answer.body.decode(), (model, answer.body)
        assert service.calls and service.refused == 0
