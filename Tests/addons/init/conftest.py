"""A config folder in which ``init`` may write, and a way to call it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from Middleware.addons.init import init_command, probing
from Middleware.common import instance_global_variables as instance
from Middleware.utilities import config_utils
from Tests.cli.conftest import config as config
from Tests.patience import PATIENCE


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each server that answers does so in time."""
    for name in ("SECONDS", "NAMED_SECONDS"):
        monkeypatch.setattr(probing, name, PATIENCE)


@dataclass
class Lab:
    """``configs``: the folder; ``init``: the command with this folder, its exit status and what it printed."""

    configs: Path
    capture: pytest.CaptureFixture[str]

    def init(self, *words: str) -> tuple[int, str]:
        status = init_command.main([*words, "--ConfigDirectory", str(self.configs)])
        output, errors = self.capture.readouterr()
        return status, output + errors

    def files(self) -> dict[str, bytes]:
        """Every file, by its path below the folder."""
        return {
            path.relative_to(self.configs).as_posix(): path.read_bytes()
            for path in self.configs.rglob("*")
            if path.is_file()
        }


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Lab]:
    for name in ("CONFIG_DIRECTORY", "PUBLIC_DIRECTORY", "USERS"):
        monkeypatch.setattr(instance, name, None)
    config_utils.reset_config_store()
    (tmp_path / "Configs").mkdir()
    yield Lab(tmp_path / "Configs", capsys)
    config_utils.reset_config_store()


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Put somebody in front of a terminal who gives these answers; an exception is raised. Returns the questions."""

    def put(*replies: Any) -> list[str]:
        asked: list[str] = []
        rest = list(replies)

        def read(prompt: str) -> str:
            asked.append(prompt)
            reply = rest.pop(0)
            if isinstance(reply, BaseException):
                raise reply
            return str(reply)

        monkeypatch.setattr("builtins.input", read)
        monkeypatch.setattr(init_command, "is_terminal", lambda: True)
        return asked

    return put
