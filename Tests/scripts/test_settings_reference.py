"""The tables of settings say what the program declares."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from Middleware.services.memory.memory_settings import MemorySettings
from Scripts.generate import generated_files, settings_reference


def test_the_tables_are_current() -> None:
    page = settings_reference.PATH.read_text(encoding="utf-8")
    assert page == settings_reference.render(page), "run: python -m Scripts.generate"


@pytest.mark.parametrize("settings", settings_reference.SETTINGS.values())
def test_a_table_has_a_row_for_every_key_with_its_meaning(settings: type[Any]) -> None:
    rows = settings_reference.table(settings).splitlines()[2:]
    declared = [field.metadata for field in dataclasses.fields(settings) if "key" in field.metadata]
    assert [row.split("`")[1] for row in rows] == [metadata["key"].name for metadata in declared]
    assert all(row.endswith(f" {metadata['key'].meaning} |") for row, metadata in zip(rows, declared, strict=True))


@pytest.mark.parametrize(
    ("key", "default"),
    [
        ("maxResponseSizeInTokens", "`400`"),
        ("useVectorForQualityMemory", "`false`"),
        ("endpointName", ""),
        ("stateDocumentMinRetentionRatio", "`0.5`"),
        ("condensationLockTimeoutSeconds", ""),
    ],
)
def test_defaults_are_shown_as_a_file_holds_them(key: str, default: str) -> None:
    row = next(row for row in settings_reference.table(MemorySettings).splitlines() if f"`{key}`" in row)
    assert row.split("|")[3].strip() == default


def test_a_whole_prompt_is_no_default_to_show() -> None:
    rows = settings_reference.table(settings_reference.SETTINGS["compactor settings"])
    assert "| `oldSectionSystemPrompt` | string | built-in |" in rows


def test_an_old_table_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "".join(
            f"before\n<!-- {name} -->\n| old |\n<!-- end of {name} -->\nafter\n" for name in settings_reference.SETTINGS
        ),
        encoding="utf-8",
    )
    monkeypatch.setattr(settings_reference, "PATH", page)
    assert generated_files.write_or_check(settings_reference.files(), check=True) == 1
    assert "| old |" in page.read_text(encoding="utf-8")
    assert generated_files.write_or_check(settings_reference.files(), check=False) == 0
    text = page.read_text(encoding="utf-8")
    assert "| old |" not in text and text.count("before\n") == text.count("after\n") == 2
    assert generated_files.write_or_check(settings_reference.files(), check=True) == 0


def test_a_page_without_a_place_for_a_table_is_refused() -> None:
    with pytest.raises(ValueError, match="memory settings"):
        settings_reference.render("no tables here")
