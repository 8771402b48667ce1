"""Files that scripts write from what the program declares, and may compare with what they would write now."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
Files = Mapping[Path, str]
"""Path -> what the file holds, with ``\\n`` as the end of a line."""


def write_or_check(files: Files, check: bool) -> int:
    """Write what is not current, or only name it. Returns the exit status."""
    stale = stale_files(files)
    for path in stale:
        if check:
            print(f"{'not current' if path.exists() else 'missing'}: {path}", file=sys.stderr)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(files[path], encoding="utf-8", newline="\n")
    return int(check and bool(stale))


def with_part(path: Path, text: str, marks: tuple[str, str], part: str) -> str:
    """The text of a file with a new part between two marks; raises ValueError unless they stand in it once."""
    begin, end = marks
    around = re.split(f"{re.escape(begin)}.*?{re.escape(end)}", text, flags=re.DOTALL)
    if len(around) != 2:
        raise ValueError(f"{path.name} has no place for one part between '{begin.strip()}' and '{end}'")
    return f"{begin}{part}{end}".join(around)


def stale_files(files: Files) -> list[Path]:
    """Those that are missing or hold something else."""
    return [path for path, text in files.items() if _content(path) != text.encode("utf-8")]


def _content(path: Path) -> bytes | None:
    """What the file holds, as on a system whose lines end in ``\\n``: a checkout may have changed that."""
    return path.read_bytes().replace(b"\r\n", b"\n") if path.is_file() else None
