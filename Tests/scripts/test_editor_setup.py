"""VS Code gets every file's schema, in the project's folder and in configurations elsewhere."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from Middleware.addons.check.file_check import KINDS
from Scripts import config_schemas as command
from Scripts.generate import config_schemas, generated_files
from Tests.scripts.schema_lab import schema_of, shipped_files


def matching(entries: list[dict[str, Any]], path: str) -> list[str]:
    """The URLs of the schemas that VS Code uses for a file of the opened folder: its last fitting pattern decides."""
    found = []
    for entry in entries:
        fits = False
        for pattern in entry["fileMatch"]:
            if glob(pattern.removeprefix("!")).fullmatch(path):
                fits = not pattern.startswith("!")
        found += [entry["url"]] if fits else []
    return found


def glob(pattern: str) -> re.Pattern[str]:
    escaped = re.escape(pattern.lstrip("/")).replace(r"\*\*/", "(?:[^/]*/)*").replace(r"\*", "[^/]*")
    return re.compile(f"(?:[^/]*/)*{escaped}")


@pytest.mark.parametrize("root", config_schemas.CONFIG_ROOTS)
def test_every_shipped_file_has_one_schema_in_the_editor(root: str) -> None:
    entries = config_schemas.associations(root, "./Schemas")
    for path in [*shipped_files(), "Workflows/x/a/y.test.json", "Workflows/x/_My-Compactor-Settings.json"]:
        file = path if root == "." else f"{root}/{path}"
        assert matching(entries, file) == [f"./Schemas/{config_schemas.file_name(schema_of(path))}"], path


def test_the_shipped_settings_lead_to_the_schemas() -> None:
    path = config_schemas.settings_path(generated_files.ROOT)
    for entry in json.loads(path.read_text(encoding="utf-8"))["json.schemas"]:
        assert (generated_files.ROOT / entry["url"]).is_file()


@pytest.mark.parametrize(
    ("folder", "pattern"),
    [
        ("", "/Users/**/*.json"),
        ("Configs", "/Configs/Users/**/*.json"),
        ("Public/Configs", "/Public/Configs/Users/**/*.json"),
    ],
)
def test_a_configuration_elsewhere_is_set_up(tmp_path: Path, folder: str, pattern: str) -> None:
    (tmp_path / folder / "Users").mkdir(parents=True)
    settings = tmp_path / ".vscode" / "settings.json"
    settings.parent.mkdir()
    settings.write_text('{\n    // mine\n    "editor.tabSize": 3\n}\n', encoding="utf-8")
    for _ in range(2):
        assert command.main(["--vscode", str(tmp_path)]) == 0
    text = settings.read_text(encoding="utf-8")
    assert text.endswith('    // mine\n    "editor.tabSize": 3\n}\n')
    entries = json.loads(text.replace("// mine", ""))["json.schemas"]
    assert len(entries) == len(KINDS)
    [user] = [entry for entry in entries if pattern in entry["fileMatch"]]
    assert user["url"] == (config_schemas.FOLDER / "user.schema.json").as_uri()


def test_a_folder_without_settings_gets_them(tmp_path: Path) -> None:
    (tmp_path / "Workflows").mkdir()
    assert config_schemas.set_up_vscode(tmp_path) == tmp_path / ".vscode" / "settings.json"
    assert json.loads((tmp_path / ".vscode" / "settings.json").read_text(encoding="utf-8"))["json.schemas"]


def test_a_folder_without_configuration_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--vscode", str(tmp_path)]) == 1
    assert "holds no configuration" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"[1]", b'{"a": ', b"\xff\xfe{"], ids=["list", "cut off", "not UTF-8"])
def test_settings_that_cannot_be_understood_stay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    (tmp_path / "Users").mkdir()
    settings = tmp_path / ".vscode" / "settings.json"
    settings.parent.mkdir()
    settings.write_bytes(content)
    assert command.main(["--vscode", str(tmp_path)]) == 1
    assert "settings.json" in capsys.readouterr().err
    assert settings.read_bytes() == content
