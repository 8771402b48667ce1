"""A configuration as ``init`` writes it, into which the files of pages are put and from which they are taken again."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from Middleware.addons.init import init_command
from Middleware.common import instance_global_variables as instance
from Middleware.utilities import config_utils
from Middleware.utilities.files.file_access import retry_while_in_use
from Tests.docs.blocks import Block
from Tests.integration.launcher import PROJECT
from Tests.patience import PATIENCE

USER = "me"
HOME = f"/home/{USER}"
"""The home folder in examples, beside ``~``."""
USER_FILE = f"Users/{USER}.json"
KEPT = (
    "ApiTypes",
    "MCPServers",
    "Presets",
    "PromptTemplates",
    "Routing",
    "Endpoints/demo",
    "Users/demo.json",
    "Workflows/demo",
    "Workflows/_common",
    "Workflows/_offline_wikipedia_researcher",
)
"""What is copied of the shipped configuration; the rest has no part in examples."""
GLOBALS = (
    "CONFIG_DIRECTORY",
    "PUBLIC_DIRECTORY",
    "DISCUSSION_DIRECTORY",
    "USER_LEVEL_SQLITE_DIRECTORY",
    "USERS",
    "FILE_LOGGING",
    "PORT",
    "LISTEN_ADDRESS",
    "CONCURRENCY_LIMIT",
    "CONCURRENCY_TIMEOUT",
    "CONCURRENCY_LEVEL",
    "MAX_REQUEST_MB",
    "ALLOWED_ORIGINS",
)


@contextlib.contextmanager
def own_process() -> Iterator[None]:
    """Commands may set what holds for the whole process; afterwards it is as before."""
    with pytest.MonkeyPatch.context() as patch:
        for name in GLOBALS:
            patch.setattr(instance, name, getattr(instance, name))
        config_utils.reset_config_store()
        yield
    config_utils.reset_config_store()


class Sandbox:
    """A folder with ``Public`` and with substitutes for the home and root folder that examples name.

    ``backend``: the address of the LLM server that ``init`` is given.
    """

    def __init__(self, folder: Path, backend: str) -> None:
        self.folder, self.home, self.root = folder, folder / "home", folder / "root"
        self.public = folder / "Public"
        self.configs = self.public / "Configs"
        for made in (self.home, self.root, self.configs):
            made.mkdir(parents=True)
        self._copy_shipped()
        _init(self.configs, backend)
        self.base = {
            path.relative_to(self.configs).as_posix(): path.read_text(encoding="utf-8")
            for path in self.configs.rglob("*.json")
        }
        self._put: dict[Path, str | None] = {}
        self._always: dict[str, Any] = {}

    def _copy_shipped(self) -> None:
        """What a clone holds already, without tests of users that are left out."""
        for name in KEPT:
            shipped = PROJECT / "Public" / "Configs" / name
            (self.configs / name).parent.mkdir(parents=True, exist_ok=True)
            if shipped.is_dir():
                shutil.copytree(shipped, self.configs / name, ignore=shutil.ignore_patterns("*.test.json"))
            else:
                shutil.copy(shipped, self.configs / name)
        shutil.copytree(PROJECT / "Public" / "Scripts", self.public / "Scripts")

    def put(self, path: Path, text: str) -> None:
        """Write a file until ``restore``."""
        if path not in self._put:
            self._put[path] = path.read_text(encoding="utf-8") if path.is_file() else None
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def put_config(self, name: str, text: str) -> None:
        """Write a configuration file."""
        if name == USER_FILE and self._always:
            text = json.dumps({**json.loads(text), **self._always}, indent=2)
        self.put(self.configs / name, text)

    def change_user(self, keys: Mapping[str, Any]) -> None:
        """Put keys into the user's file."""
        text = (self.configs / USER_FILE).read_text(encoding="utf-8")
        self.put_config(USER_FILE, json.dumps({**json.loads(text), **keys}, indent=2))

    def change_base_user(self, keys: Mapping[str, Any]) -> None:
        """The same for good: where the server for tests finds what it needs, whatever user file a page has."""
        self._always = dict(keys)
        self.change_user({})
        self.base[USER_FILE] = (self.configs / USER_FILE).read_text(encoding="utf-8")
        self._put.clear()

    def restore(self) -> None:
        """Everything as ``init`` left it."""
        for path, text in self._put.items():
            if text is None:
                # On Windows, no file can be removed that another thread still reads.
                retry_while_in_use(functools.partial(path.unlink, missing_ok=True), PATIENCE)
                _remove_empty(path.parent, self.folder)
            else:
                path.write_text(text, encoding="utf-8")
        self._put.clear()

    def place(self, path: str) -> Path:
        """Where a file is that a workflow names: ``~`` and absolute paths are below this folder."""
        for home in ("~/", f"{HOME}/"):
            if path.startswith(home):
                return self.home / path.removeprefix(home)
        return self.root / path.lstrip("/") if path.startswith("/") else self.folder / path

    def moved(self, text: str, paths: Iterable[str]) -> str:
        """JSON text in which the home folder and the folders of ``paths`` are those of ``place``."""
        text = re.sub(rf'"(?:~(?=/)|{HOME}(?=["/]))', lambda _: f'"{self.home.as_posix()}', text)
        elsewhere = (path for path in paths if path.startswith("/") and not path.startswith(f"{HOME}/"))
        for folder in sorted({path.rpartition("/")[0] for path in elsewhere}, reverse=True):
            text = re.sub(rf'"({re.escape(folder)})(?=["/])', lambda found: f'"{self.root.as_posix()}{found[1]}', text)
        return text


def scripts(found: Iterable[Block]) -> dict[str, str]:
    """The Python files of a page by their paths in workflows."""
    return {block.value: block.fence.text for block in found if block.mark == "file"}


def _init(configs: Path, backend: str) -> None:
    with own_process(), contextlib.redirect_stdout(io.StringIO()) as output:
        status = init_command.main(
            ["--yes", "--backend", backend, "--model", "stub-model", "--user", USER, "--ConfigDirectory", str(configs)]
        )
    assert status == 0, output.getvalue()


def _remove_empty(folder: Path, top: Path) -> None:
    while folder != top and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent
