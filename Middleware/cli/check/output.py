"""The output of ``check``: JSON, or findings as ``file:line:column: severity: ...``, which editors turn into links."""
from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TextIO

from Middleware.cli.check.findings import Finding
from Middleware.utilities.config.check import Severity

COLOURS: Mapping[str, str] = {"error": "1;31", "warning": "1;33", "note": "36", "file": "1", "hint": "32"}
PLURALS: Mapping[Severity, str] = {"error": "errors", "warning": "warnings", "note": "notes"}
_ENABLE_VIRTUAL_TERMINAL = 0x0004


@dataclass(frozen=True)
class Summary:
    """The extent of a check, for the last line and for JSON.

    Attributes:
        root: the folder of the configuration.
        online: whether servers were queried too.
    """

    root: str
    files: int
    users: Sequence[str]
    seconds: float
    online: bool = False


def human_text(findings: Sequence[Finding], summary: Summary, colour: bool = False) -> str:
    """Return the findings by file, and a last line with their numbers."""
    blocks = ["\n".join(_lines(finding, path_shown(summary.root, finding.file), colour) for finding in group)
              for _, group in groupby(findings, key=lambda finding: finding.file)]
    return "\n\n".join([*blocks, _last_line(findings, summary)])


def json_text(findings: Sequence[Finding], summary: Summary) -> str:
    """Return one JSON document, in ASCII."""
    counts = {PLURALS[severity]: _count(findings, severity) for severity in PLURALS}
    return json.dumps({
        "configuration": os.path.abspath(summary.root), "users": list(summary.users), "files": summary.files,
        "seconds": round(summary.seconds, 3), "online": summary.online, **counts,
        "findings": [_as_json(finding, summary.root) for finding in findings]}, indent=2)


def path_shown(root: str, file: str) -> str:
    """Return the path of a file as it can be opened from here: relative if it is below the working directory."""
    path = os.path.abspath(os.path.join(root, *file.split("/")) if not os.path.isabs(file) else file)
    try:
        relative = os.path.relpath(path)
    # The file is on another drive.
    except ValueError:
        return path
    return path if relative.startswith("..") else relative


def wants_colour(stream: TextIO, environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether the stream is a terminal that shows colours, and NO_COLOR does not forbid them."""
    if environment.get("NO_COLOR") or environment.get("TERM") == "dumb" or not stream.isatty():
        return False
    return sys.platform != "win32" or _enable_colours_on_windows()


def _enable_colours_on_windows() -> bool:
    """Enable escape sequences, which older consoles of Windows otherwise show as text."""
    if sys.platform != "win32":
        return True
    import ctypes
    console = ctypes.windll.kernel32
    handle, mode = console.GetStdHandle(-11), ctypes.c_ulong()
    return bool(console.GetConsoleMode(handle, ctypes.byref(mode))
                and console.SetConsoleMode(handle, mode.value | _ENABLE_VIRTUAL_TERMINAL))


def _lines(finding: Finding, path: str, colour: bool) -> str:
    place = "".join(f":{number}" for number in (finding.line, finding.column) if number is not None)
    where = f"{finding.json_path}: " if finding.json_path else ""
    start, severity = _paint(_printable(path) + place, "file", colour), finding.severity
    lines = [f"{start}: {_paint(severity, severity, colour)}: {where}{finding.message}"]
    if finding.expected:
        lines.append(f"    Expected: {finding.expected}")
    if finding.suggestion:
        lines.append("    " + _paint(f"Did you mean '{finding.suggestion}'?", "hint", colour))
    if finding.users:
        lines.append(f"    With the settings of: {', '.join(finding.users)}")
    return "\n".join(lines)


def _last_line(findings: Sequence[Finding], summary: Summary) -> str:
    what = f"{_number(summary.files, 'file', 'files')}, {_number(len(summary.users), 'user', 'users')}"
    counts = ", ".join(_number(_count(findings, severity), severity, plural) for severity, plural in PLURALS.items()
                       if _count(findings, severity))
    return f"Checked {what} in {summary.seconds:.1f} s: {counts or 'nothing wrong found'}."


def _as_json(finding: Finding, root: str) -> dict[str, object]:
    path = finding.file if os.path.isabs(finding.file) else os.path.join(root, *finding.file.split("/"))
    return {"severity": finding.severity, "file": finding.file, "path": os.path.abspath(path), "line": finding.line,
            "column": finding.column, "jsonPath": finding.json_path, "message": finding.message,
            "expected": finding.expected, "suggestion": finding.suggestion, "users": list(finding.users)}


def _count(findings: Sequence[Finding], severity: Severity) -> int:
    return sum(finding.severity == severity for finding in findings)


def _number(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text)


def _paint(text: str, name: str, colour: bool) -> str:
    return f"\033[{COLOURS[name]}m{text}\033[0m" if colour else text
