"""The findings of a check of a workflow and of the settings it needs, and the text that shows them to users."""
from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

from Middleware.utilities.config.check import Severity, quoted

SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
MAX_LISTED = 40


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
        about: the file at this position, if the finding only reports that it cannot be used.
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


def report(findings: Sequence[Finding]) -> str:
    """Return one text about all findings, a block of lines per file; empty without findings."""
    files = dict.fromkeys(finding.file for finding in findings)
    return "\n".join(_block(file, [finding for finding in findings if finding.file == file]) for file in files)


def only_notes(findings: Iterable[Finding]) -> bool:
    """Return whether no finding is worse than a note."""
    return all(finding.severity == "note" for finding in findings)


def distinct(findings: Iterable[Finding], bad_files: Container[str]) -> list[Finding]:
    """Return the findings without those that only follow from others: one mistake, one message.

    ``bad_files``: files that have a finding of their own, so that references to them need none.
    """
    kept = [finding for finding in dict.fromkeys(findings) if not finding.about or finding.about not in bad_files]
    places: dict[tuple[str, str], list[Finding]] = {}
    for finding in kept:
        places.setdefault((finding.file, finding.json_path), []).append(finding)
    return [finding for finding in kept if not any(
        _says_more(other, finding) for other in places[finding.file, finding.json_path])]


def _says_more(other: Finding, finding: Finding) -> bool:
    if other.message == finding.message:
        return SEVERITIES.index(other.severity) < SEVERITIES.index(finding.severity)
    return finding.message in other.message


def shown_address(text: str) -> str:
    """Return a written address for a message. Without a scheme the position of a password in it cannot be known."""
    return "a text" if "://" not in text and ("@" in text or "?" in text) else quoted(text)


def _block(file: str, findings: Sequence[Finding]) -> str:
    asked_by = findings[0].asked_by
    own = f"Workflow {_short(file)}" if file.startswith("Workflows/") else file
    name = f"{file}, needed by workflow {_short(asked_by)}" if asked_by else own
    count = "1 thing" if len(findings) == 1 else f"{len(findings)} things"
    lines = [f"  {finding}" for finding in findings[:MAX_LISTED]]
    if len(findings) > MAX_LISTED:
        lines.append(f"  ... and {len(findings) - MAX_LISTED} more")
    return "\n".join([f"{name}: {count} to look at", *lines])


def _short(file: str) -> str:
    return file.removeprefix("Workflows/").removesuffix(".json")
