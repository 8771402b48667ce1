"""The findings of all checks: one mistake, one message, in the forms that the log, a terminal and programs read."""

from __future__ import annotations

import json
import os
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from Middleware.utilities.config.check import Severity, quoted, shortened
from Middleware.utilities.config.excerpts import Excerpts
from Middleware.utilities.config.json_source import JsonSource
from Middleware.utilities.config.paths import get_root_config_directory
from Middleware.utilities.terminal import painted, printable
from Middleware.utilities.text_utils import counted

# The severities, the worst one first.
PLURALS: Mapping[Severity, str] = {"error": "errors", "warning": "warnings", "note": "notes"}

COLOURS: Mapping[str, str] = {
    "error": "1;31",
    "warning": "1;33",
    "note": "36",
    "file": "1",
    "hint": "32",
    "gutter": "34",
}
# A file of another kind under the name of a workflow has a finding for nearly every line; the first ones say it all.
MAX_LISTED = 40
# A line of the log that begins with a long path, and quotes a long value, must still be readable.
MAX_WIDTH = 400


@dataclass(frozen=True)
class Finding:
    """One mistake or warning about a file.

    Attributes:
        severity: ``error`` (cannot work as written), ``warning`` (runs, but hardly as meant) or ``note`` (often meant).
        file: relative to the config root, with forward slashes.
        json_path: such as ``nodes[2].prompt``.
        line, column: in the file, from 1; None if it is not known.
        expected: what would have been right, if that is known.
        suggestion: the nearest thing that exists, if one is near.
        asked_by: for a file that is not a workflow: the file of the workflow that needs it.
        users: the users whose settings it applies to, if it does not apply to all users of the file.
        about: the file whose mistake this finding only repeats, as it cannot be used.
        offset: the index in the string at ``json_path`` to which the position belongs, if it is inside a string.
        is_advice: a note about what servers read again, which costs time and is not a mistake.
        is_hint: a note about what a user may want, which only the command ``check`` gives: it is in no log.
    """

    severity: Severity
    file: str
    json_path: str
    line: int | None
    message: str
    expected: str = ""
    suggestion: str = ""
    asked_by: str = ""
    column: int | None = None
    users: tuple[str, ...] = ()
    about: str = ""
    offset: int | None = None
    is_advice: bool = False
    is_hint: bool = False

    def __str__(self) -> str:
        line = f" (line {self.line})" if self.line is not None else ""
        return f"{self.severity:<7}  {self.json_path or 'the file'}{line}: {self.text}"

    @property
    def text(self) -> str:
        """The message with the expected value and the likely intention."""
        expected = f" Expected: {self.expected}." if self.expected else ""
        hint = f" Did you mean '{self.suggestion}'?" if self.suggestion else ""
        end = "." if (expected or hint) and not self.message.endswith((".", "?")) else ""
        return f"{self.message}{end}{expected}{hint}"

    @property
    def position(self) -> str:
        """Line and column in the form that terminals and editors turn into links, such as ``:3:14``."""
        return "".join(f":{number}" for number in (self.line, self.column) if number is not None)

    @property
    def path_prefix(self) -> str:
        """The JSON path in front of a message; empty for the whole file."""
        return f"{self.json_path}: " if self.json_path else ""

    def located(self, source: JsonSource) -> Finding:
        """Return the finding with its position in its file, whose text is ``source``."""
        path = self.json_path
        position = source.position(path) if self.offset is None else source.position_in(path, self.offset)
        return replace(
            self,
            line=position.line if position else None,
            column=position.column if position else None,
            json_path=path.removeprefix("nodes") if source.is_list else path,
        )


def finding_in(
    display: str, severity: Severity, path: str, message: str, expected: str, suggestion: str, asked_by: str = ""
) -> Finding:
    """Return a finding about a value of the file ``display``; the other arguments are those of ``KeyCheck``."""
    return Finding(severity, display, path, None, message, expected, suggestion, asked_by)


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings by severity, the worst first, and by file and position; advice is the last."""
    severities = list(PLURALS)
    return sorted(
        findings,
        key=lambda finding: (
            finding.is_advice,
            severities.index(finding.severity),
            finding.file,
            finding.line or 0,
            finding.column or 0,
        ),
    )


def distinct(findings: Iterable[Finding], bad_files: Container[str] = ()) -> list[Finding]:
    """Return the findings without those that only follow from others: one mistake, one message.

    ``bad_files``: files that have a finding of their own, so that references to them need none.
    """
    # A broken endpoint is reported itself, not at each node that names it.
    kept = [finding for finding in dict.fromkeys(findings) if not finding.about or finding.about not in bad_files]
    together: dict[tuple[str, str], list[Finding]] = {}
    for finding in kept:
        together.setdefault((finding.file, finding.json_path), []).append(finding)
    return [
        finding
        for finding in kept
        if not any(_says_more(other, finding) for other in together[finding.file, finding.json_path])
    ]


def _says_more(other: Finding, finding: Finding) -> bool:
    if other.message == finding.message:
        severities = list(PLURALS)
        return severities.index(other.severity) < severities.index(finding.severity)
    return finding.message in other.message


def shown_address(text: str) -> str:
    """Return a written address for a message. Without a scheme the position of a password in it cannot be known."""
    return "a text" if "://" not in text and ("@" in text or "?" in text) else quoted(text)


def count_of(findings: Iterable[Finding], severity: Severity) -> int:
    return sum(finding.severity == severity for finding in findings)


# -- in the log --------------------------------------------------------------------------------------------------------


def report(findings: Sequence[Finding]) -> str:
    """Return one text about all findings, a block of lines per file; empty without findings."""
    files = dict.fromkeys(finding.file for finding in findings)
    excerpts = Excerpts(get_root_config_directory())
    return "\n".join(
        _block(file, [finding for finding in findings if finding.file == file], excerpts) for file in files
    )


def _block(file: str, findings: Sequence[Finding], excerpts: Excerpts) -> str:
    asked_by = findings[0].asked_by
    own = f"Workflow {workflow_name(file)}" if file.startswith("Workflows/") else file
    name = f"{file}, needed by workflow {workflow_name(asked_by)}" if asked_by else own
    lines = [
        line
        for finding in findings[:MAX_LISTED]
        for line in (f"  {finding}", *(f"  {line}" for line in _excerpt(finding, excerpts)))
    ]
    if len(findings) > MAX_LISTED:
        lines.append(f"  ... and {len(findings) - MAX_LISTED} more")
    return "\n".join([f"{name}: {counted(len(findings), 'thing')} to look at", *lines])


def workflow_name(file: str) -> str:
    """Return how messages name the workflow of a file."""
    return file.removeprefix("Workflows/").removesuffix(".json")


def one_line(finding: Finding) -> str:
    """Return a finding with its file in one line."""
    return shortened(f"{finding.file}{finding.position}: {finding.path_prefix}{finding.text}", MAX_WIDTH)


def with_excerpts(findings: Iterable[Finding]) -> list[str]:
    """Return the lines of a list: each finding with its file in one line, followed by its source line."""
    excerpts = Excerpts(get_root_config_directory())
    return [line for finding in findings for line in (one_line(finding), *_excerpt(finding, excerpts))]


def _excerpt(finding: Finding, excerpts: Excerpts, colour: bool = False) -> list[str]:
    return excerpts.lines(
        finding.file,
        finding.line,
        finding.column,
        finding.severity,
        lambda text, name: painted(text, COLOURS[name], colour),
    )


# -- printed -----------------------------------------------------------------------------------------------------------


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


@dataclass(frozen=True)
class Selection:
    """The findings to print. The numbers of a report are those of all findings.

    Attributes:
        errors: only errors.
        advice: advice as well.
    """

    errors: bool = False
    advice: bool = False

    def of(self, findings: Iterable[Finding]) -> list[Finding]:
        return [
            finding
            for finding in findings
            if (finding.severity == "error" if self.errors else self.advice or not finding.is_advice)
        ]


def human_text(
    findings: Sequence[Finding], summary: Summary, colour: bool = False, selection: Selection = Selection()
) -> str:
    """Return the selected findings by severity and file, and last lines with the numbers of all."""
    excerpts = Excerpts(summary.root)
    blocks = [
        "\n".join(_lines(finding, summary.root, colour, excerpts) for finding in group)
        for _, group in groupby(selection.of(findings), key=lambda finding: finding.file)
    ]
    counts = ", ".join(counted(count, severity) for severity in PLURALS if (count := count_of(findings, severity)))
    extent = f"{counted(summary.files, 'file')}, {counted(len(summary.users), 'user')}"
    last = f"Checked {extent} in {summary.seconds:.1f} s: {counts or 'nothing wrong found'}."
    return "\n\n".join([*blocks, "\n".join([*_advice_left_out(findings, selection), last])])


def _advice_left_out(findings: Iterable[Finding], selection: Selection) -> Iterator[str]:
    """Yield one line in place of all advice, if it is left out."""
    count = sum(finding.is_advice for finding in findings)
    if count and not (selection.errors or selection.advice):
        them = "it" if count == 1 else "them"
        yield f"{counted(count, 'note')} about what servers read again: --notes prints {them}."


def _lines(finding: Finding, root: str, colour: bool, excerpts: Excerpts) -> str:
    # The name of a file may hold escape sequences, which a terminal would obey.
    start = painted(printable(path_shown(root, finding.file)) + finding.position, COLOURS["file"], colour)
    severity = finding.severity
    lines = [
        f"{start}: {painted(severity, COLOURS[severity], colour)}: {finding.path_prefix}{finding.message}",
        *(f"  {line}" for line in _excerpt(finding, excerpts, colour)),
    ]
    if finding.expected:
        lines.append(f"    Expected: {finding.expected}")
    if finding.suggestion:
        lines.append("    " + painted(f"Did you mean '{finding.suggestion}'?", COLOURS["hint"], colour))
    if finding.users:
        lines.append(f"    With the settings of: {', '.join(finding.users)}")
    return "\n".join(lines)


def json_text(findings: Sequence[Finding], summary: Summary, selection: Selection = Selection(advice=True)) -> str:
    """Return one JSON document, in ASCII, with the selected findings and the numbers of all."""
    counts = {plural: count_of(findings, severity) for severity, plural in PLURALS.items()}
    return json.dumps(
        {
            "configuration": os.path.abspath(summary.root),
            "users": list(summary.users),
            "files": summary.files,
            "seconds": round(summary.seconds, 3),
            "online": summary.online,
            **counts,
            "findings": [_as_json(finding, summary.root) for finding in selection.of(findings)],
        },
        indent=2,
    )


def _as_json(finding: Finding, root: str) -> dict[str, object]:
    return {
        "severity": finding.severity,
        "file": finding.file,
        "path": _absolute(root, finding.file),
        "line": finding.line,
        "column": finding.column,
        "jsonPath": finding.json_path,
        "message": finding.message,
        "expected": finding.expected,
        "suggestion": finding.suggestion,
        "users": list(finding.users),
    }


def path_shown(root: str, file: str) -> str:
    """Return the path of a file as it can be opened from here: relative if it is below the working directory."""
    path = _absolute(root, file)
    try:
        relative = os.path.relpath(path)
    # The file is on another drive.
    except ValueError:
        return path
    return path if relative.startswith("..") else relative


def _absolute(root: str, file: str) -> str:
    # Data directories, which have findings too, are named by their absolute paths.
    return os.path.abspath(file if os.path.isabs(file) else os.path.join(root, *file.split("/")))
