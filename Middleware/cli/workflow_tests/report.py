"""Report the results of tests: as lines for a user, or as JSON."""
from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from Middleware.cli.check.findings import Finding, path_shown, wants_colour
from Middleware.cli.console import say
from Middleware.cli.workflow_tests.running import Result
from Middleware.utilities.config.paths import get_root_config_directory

RED, GREEN, BOLD = "31", "32", "1"


class Report:
    """Prints lines while the tests run. ``verbose``: a line for each test instead of one for each file."""

    def __init__(self, verbose: bool = False) -> None:
        self._verbose = verbose
        self._colours = wants_colour(sys.stdout)
        self._of_file: list[Result] = []

    def findings(self, findings: Sequence[Finding]) -> None:
        """Print the mistakes in test files."""
        for finding in findings:
            file = path_shown(get_root_config_directory(), finding.file)
            say(f"{self._paint('WRONG', RED)}  {file}{finding.position}: {finding.path_prefix}{finding.text}")

    def add(self, result: Result) -> None:
        """Add a result. The results of a file come one after the other."""
        if self._of_file and self._of_file[0].test.suite is not result.test.suite:
            self.end_of_file()
        self._of_file.append(result)
        if self._verbose:
            word = self._paint("ok  ", GREEN) if result.passed else self._paint("FAIL", RED)
            say(f"{word}  {result.test.suite.display}: {result.test.name} ({result.seconds:.2f} s)")
            self._details(result)

    def end_of_file(self) -> None:
        """Print the results of the current file, to which none are added any more."""
        results, self._of_file = self._of_file, []
        if not results or self._verbose:
            return
        failed = [result for result in results if not result.passed]
        word = self._paint("FAIL", RED) if failed else self._paint("ok  ", GREEN)
        counts = f"{len(results) - len(failed)} of {len(results)} passed" if failed else f"{len(results)} passed"
        say(f"{word}  {results[0].test.suite.display}: {counts}")
        for result in failed:
            say(f"  {self._paint(result.test.name, BOLD)}")
            self._details(result)

    def summary(self, results: Sequence[Result], findings: Sequence[Finding], seconds: float) -> None:
        failed = sum(not result.passed for result in results)
        parts = [f"{len(results) - failed} passed", *([f"{failed} failed"] if failed else []),
                 *([_count(len(findings), "mistake in test files", "mistakes in test files")] if findings else [])]
        say(self._paint(f"{', '.join(parts)} in {seconds:.1f} s", RED if failed or findings else GREEN))

    def _details(self, result: Result) -> None:
        for failure in result.failures:
            first, *rest = failure.lines
            say(f"    {failure.json_path}: {first}" if failure.json_path else f"    {first}")
            for line in rest:
                say(f"      {self._paint(line, _colour_of(line)) if self._colours else line}")
        for line in result.log if result.failures else ():
            say(f"    log: {line}")

    def _paint(self, text: str, colour: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if self._colours and colour else text


def as_json(results: Sequence[Result], findings: Sequence[Finding], seconds: float) -> str:
    """Return all results as one JSON string in ASCII."""
    failed = sum(not result.passed for result in results)
    return json.dumps({
        "passed": len(results) - failed, "failed": failed, "seconds": round(seconds, 3),
        "tests": [_test(result) for result in results],
        "mistakes": [{"file": finding.file, "jsonPath": finding.json_path, "line": finding.line,
                      "column": finding.column, "message": finding.message, "expected": finding.expected,
                      "suggestion": finding.suggestion} for finding in findings]}, indent=2)


def _test(result: Result) -> dict[str, object]:
    return {"file": result.test.suite.display, "number": result.test.number, "name": result.test.name,
            "passed": result.passed, "seconds": round(result.seconds, 3), "log": result.log,
            "failures": [{"expectation": failure.json_path, "lines": failure.lines} for failure in result.failures]}


def _colour_of(line: str) -> str:
    text = line.strip()
    return RED if text.startswith("-") else GREEN if text.startswith("+") else ""


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
