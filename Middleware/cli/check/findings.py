"""What a check of a workflow and of the settings it needs found, and the text that shows it to people."""
from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

from Middleware.utilities.config.check import Severity, quoted

SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
MAX_LISTED = 40


@dataclass(frozen=True)
class Finding:
    """One thing to look at in a file.

    Attributes:
        severity: ``error`` (cannot work as written), ``warning`` (runs, but hardly as meant) or ``note`` (often meant).
        file: relative to the config root, with forward slashes.
        json_path: such as ``nodes[2].prompt``.
        line, column: in the file, from 1; None if it is not known.
        expected: what would have been right, if that can be said.
        suggestion: the nearest thing that exists, if one is near.
        asked_by: for a file that is no workflow: the file of the workflow that needs it.
        users: whose settings it holds for, if not for those of all who have to do with the file.
        about: the finding says nothing but that this file, which is named at the place, cannot be used.
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
        """The message with what was expected and probably meant."""
        expected = f" Expected: {self.expected}." if self.expected else ""
        hint = f" Did you mean '{self.suggestion}'?" if self.suggestion else ""
        end = "." if (expected or hint) and not self.message.endswith((".", "?")) else ""
        return f"{self.message}{end}{expected}{hint}"


def report(findings: Sequence[Finding]) -> str:
    """One text about all findings, a block of lines per file; empty without findings."""
    files = dict.fromkeys(finding.file for finding in findings)
    return "\n".join(_block(file, [finding for finding in findings if finding.file == file]) for file in files)


def only_notes(findings: Iterable[Finding]) -> bool:
    """Whether nothing among the findings is more than a note."""
    return all(finding.severity == "note" for finding in findings)


def distinct(findings: Iterable[Finding], bad_files: Container[str]) -> list[Finding]:
    """The findings without those that only follow from others: one mistake, one message.

    ``bad_files``: files about which something is said already, so that nobody needs to hear that they cannot be used.
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
    """What was written where an address belongs. Without a scheme nobody can tell where a password would stand."""
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
