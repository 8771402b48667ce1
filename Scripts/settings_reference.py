"""Keeps the tables in Docs/User/memory-settings.md, the keys of settings files, as the program itself declares them.

    python -m Scripts.settings_reference           write the tables
    python -m Scripts.settings_reference --check   only say whether they are current (exit status 1 if not)
"""
from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
from pathlib import Path
from typing import Any

from Middleware.services.compactor_settings import CompactorSettings
from Middleware.services.memory_settings import MemorySettings
from Middleware.services.settings_file import LEVEL, NAME, TEXT

PATH = Path(__file__).resolve().parents[1] / "Docs" / "User" / "memory-settings.md"
SETTINGS: dict[str, type[Any]] = {"memory settings": MemorySettings, "compactor settings": CompactorSettings}
HEAD = ["| Key | Type | Default | Meaning |", "|---|---|---|---|"]
KINDS = {NAME: "name", TEXT: "text", LEVEL: "level"}
LONGEST_DEFAULT = 40  # characters; a whole prompt is not shown


def render(page: str) -> str:
    """The page with current tables, which stand between comments that name them."""
    for name, settings in SETTINGS.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        parts = re.split(f"{re.escape(begin)}.*?{re.escape(end)}", page, flags=re.DOTALL)
        if len(parts) != 2:
            raise ValueError(f"{PATH.name} has no place for one table '{name}'")
        page = f"{begin}{table(settings)}\n{end}".join(parts)
    return page


def table(settings: type[Any]) -> str:
    """The keys of a settings class in the order of their declaration."""
    return "\n".join(HEAD + [_row(field) for field in dataclasses.fields(settings) if "key" in field.metadata])


def _row(field: dataclasses.Field[Any]) -> str:
    kind, meaning = (str(field.metadata[name]) for name in ("kind", "meaning"))
    default = _default("conservative" if kind == LEVEL else field.default)
    return f"| `{field.metadata['key']}` | {KINDS.get(kind, kind)} | {default} | {meaning} |"


def _default(value: Any) -> str:
    if value is None or value == "":
        return ""
    whole = isinstance(value, float) and value.is_integer()
    text = json.dumps(int(value) if whole else value, ensure_ascii=False)
    return f"`{text}`" if len(text) <= LONGEST_DEFAULT else "built-in"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    page = PATH.read_text(encoding="utf-8")
    current = render(page)
    if check:
        return int(current != page)
    PATH.write_text(current, encoding="utf-8", newline="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
