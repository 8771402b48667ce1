"""The tables of keys in Docs/User/memory-settings.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from Middleware.services.memory.compactor_settings import CompactorSettings
from Middleware.services.memory.memory_settings import MemorySettings
from Middleware.utilities.config.declarations import settings_keys
from Scripts.generate import generated_files, key_tables

PATH = generated_files.ROOT / "Docs" / "User" / "memory-settings.md"
SETTINGS: dict[str, type[Any]] = {"memory settings": MemorySettings, "compactor settings": CompactorSettings}


def render(page: str) -> str:
    """The page with current tables, which stand between comments that name them."""
    for name, settings in SETTINGS.items():
        marks = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        page = generated_files.with_part(PATH, page, marks, table(settings))
    return page


def table(settings: type[Any]) -> str:
    """The keys of a settings class in the order of their declaration."""
    return key_tables.table(settings_keys(settings).values(), key_tables.COLUMNS)


def files() -> dict[Path, str]:
    """The page with current tables."""
    return {PATH: render(PATH.read_text(encoding="utf-8"))}
