"""``python server.py test``: run the tests of workflows, and print the results."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from Middleware.addons.check.findings import Finding, path_shown
from Middleware.addons.workflow_tests.running import DEFAULT_JOBS, Result, run_tests
from Middleware.addons.workflow_tests.sandbox import sandbox_folder
from Middleware.addons.workflow_tests.suite_reader import read_tests
from Middleware.addons.workflow_tests.suites import WorkflowTest
from Middleware.cli.arguments import LaunchArguments, Parser, accept_launch_flags, apply_arguments
from Middleware.cli.program import program_name, say
from Middleware.cli.signals import INTERRUPTED
from Middleware.exceptions import OperatorError
from Middleware.utilities import config_utils
from Middleware.utilities.config.paths import get_root_config_directory, meant_folder, missing_folder, page_shown
from Middleware.utilities.config.workflows import TEST_SUFFIX
from Middleware.utilities.terminal import painted, wants_colour
from Middleware.utilities.text_utils import counted, did_you_mean

PASSED, FAILED, WRONG = 0, 1, 2
GUIDE = f"{page_shown('User/workflow-tests.md')} shows how to write some"
RED, GREEN, BOLD = "31", "32", "1"


class NoSuchTestsError(OperatorError):
    """The paths on the command line name no tests; the message says why."""


def test_files(paths: Sequence[str]) -> list[str]:
    """Return the test files that ``paths`` name, each once, sorted within folders; all if there are no paths.

    A path is a workflow, a test file or a folder below ``Workflows``, relative to the working directory or to
    ``Workflows``. Raises NoSuchTestsError.
    """
    root = os.path.abspath(os.path.join(get_root_config_directory(), "Workflows"))
    found: dict[str, None] = {}
    for path in paths or [root]:
        found.update(dict.fromkeys(_files_of(path, root)))
    return list(found)


def _files_of(path: str, root: str) -> Iterable[str]:
    places = dict.fromkeys((os.path.abspath(path), os.path.abspath(os.path.join(root, path))))
    for place in filter(None, (_within(place, root) for place in places)):
        if os.path.isdir(place):
            files = list(_below(place))
            if not files:
                raise NoSuchTestsError(f"{path}: no file below this folder ends with {TEST_SUFFIX}; {GUIDE}")
            return files
        name = place[: -len(TEST_SUFFIX)] if place.endswith(TEST_SUFFIX) else place.removesuffix(".json")
        if os.path.isfile(name + TEST_SUFFIX):
            return [name + TEST_SUFFIX]
        if os.path.isfile(name + ".json"):
            raise NoSuchTestsError(
                f"{path}: this workflow has no tests; they would be in "
                f"{os.path.basename(name)}{TEST_SUFFIX} next to it; {GUIDE}"
            )
    if any(os.path.exists(place + ending) for place in places for ending in ("", ".json", TEST_SUFFIX)):
        raise NoSuchTestsError(f"{path}: lies outside of {root}; --ConfigDirectory names another configuration")
    raise NoSuchTestsError(f"{path}: there is no such workflow, test file or folder.{_hint(path, root)}")


def _within(place: str, root: str) -> str | None:
    """Return ``place`` as a path below ``root``, also if it leads there through links; None if it is elsewhere."""
    if place == root or place.startswith(os.path.join(root, "")):
        return place
    # The configuration folder, or a folder in it, may be a link.
    real, real_root = os.path.realpath(place), os.path.realpath(root)
    inside = real == real_root or real.startswith(os.path.join(real_root, ""))
    return os.path.normpath(os.path.join(root, os.path.relpath(real, real_root))) if inside else None


def _below(folder: str) -> Iterable[str]:
    for place, folders, names in os.walk(folder):
        # The order of the file system is not the same everywhere; sorted in place, it is that of the walk, too.
        folders.sort()
        yield from (os.path.join(place, name) for name in sorted(names) if name.endswith(TEST_SUFFIX))


def _hint(path: str, root: str) -> str:
    """Return a hint at the name below ``Workflows`` that is most similar to ``path``, or ""."""
    files = [Path(os.path.relpath(file.removesuffix(TEST_SUFFIX), root)) for file in _below(root)]
    # The last parent is ``Workflows`` itself.
    return did_you_mean(
        path.removesuffix(".json"), [name.as_posix() for file in files for name in (file, *list(file.parents)[:-1])]
    )


def main(argv: Sequence[str]) -> int:
    """Run the tests that ``argv`` selects.

    Returns 0 if all passed, 1 if one failed, 2 for wrong use or a test file that cannot be used, 130 if interrupted.
    """
    try:
        return _main(build_parser().parse_args(argv))
    except KeyboardInterrupt:
        return _refuse("interrupted; the other tests did not run", INTERRUPTED)


def _main(arguments: argparse.Namespace) -> int:
    clean = config_utils.clean_directory
    apply_arguments(
        LaunchArguments(
            config_directory=clean(arguments.ConfigDirectory), public_directory=clean(arguments.PublicDirectory)
        )
    )
    root = config_utils.get_root_config_directory()
    meant = meant_folder(root)
    if meant or not os.path.isdir(root):
        path, flag = missing_folder(root)
        hint = f". Did you mean {flag} {meant}?" if meant else ""
        return _refuse(
            f"the configuration folder {path} holds no folder 'Users'{hint}"
            if os.path.isdir(path)
            else f"there is no configuration folder {path}{hint}"
        )
    started = time.perf_counter()
    try:
        tests, findings = _read(arguments)
    except NoSuchTestsError as error:
        return _refuse(str(error))
    chosen = [test for test in tests if arguments.k.casefold() in f"{test.suite.display} {test.name}".casefold()]
    if not chosen and not findings:
        return _refuse(
            f"no test has '{arguments.k}' in its name or in that of its file" if arguments.k else "there are no tests"
        )
    return _run(chosen, findings, arguments, started)


def _read(arguments: argparse.Namespace) -> tuple[list[WorkflowTest], list[Finding]]:
    if arguments.stdin_as is None:
        return read_tests(test_files([*arguments.User, *arguments.paths]))
    if arguments.paths:
        raise NoSuchTestsError("--stdin-as reads the tests from the standard input, so no other paths can be given")
    path = _test_file_to_be(arguments.stdin_as)
    return read_tests([path], {path: sys.stdin.buffer.read()})


def _test_file_to_be(path: str) -> str:
    """Return the path of a test file, existing or not, relative to the working directory or to ``Workflows``."""
    root = os.path.abspath(os.path.join(get_root_config_directory(), "Workflows"))
    places = filter(None, (_within(place, root) for place in (os.path.abspath(path), os.path.join(root, path))))
    place = next((place for place in places if os.path.isdir(os.path.dirname(place))), None)
    if place is None or not place.endswith(TEST_SUFFIX):
        raise NoSuchTestsError(
            f"{path}: --stdin-as needs the path of a test file in a folder below {root}, such as me/Coding{TEST_SUFFIX}"
        )
    return place


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog=program_name("test"),
        description="Runs the tests of workflows, which are next to them as <workflow>.test.json. No LLM is called.",
    )
    add = parser.add_argument
    add(
        "paths",
        nargs="*",
        metavar="PATH",
        help="a workflow, a test file or a folder, from here or from Configs/Workflows (default: all)",
    )
    add("--stdin-as", metavar="PATH", help="read a test file from the standard input, as if it were at PATH")
    add("-k", default="", metavar="TEXT", help="only tests with TEXT in their name or in that of their file")
    add("--jobs", type=_jobs, default=DEFAULT_JOBS, metavar="N", help="tests at a time (default: %(default)s)")
    add("--json", action="store_true", help="print the results as JSON")
    add("-v", "--verbose", action="store_true", help="a line for each test")
    add("--ConfigDirectory", metavar="P", help="the Configs folder (default: <public directory>/Configs)")
    add("--PublicDirectory", metavar="P", help="parent of Configs (default: that of the server)")
    add("--User", metavar="N", action="append", default=[], help="the same as the path N: the folder of a user")
    accept_launch_flags(parser)
    return parser


def _jobs(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return number


def _run(
    tests: Sequence[WorkflowTest], findings: Sequence[Finding], arguments: argparse.Namespace, started: float
) -> int:
    report = _Report(arguments.verbose)
    if not arguments.json:
        report.findings(findings)
    with sandbox_folder() as folder:
        results = run_tests(tests, folder, arguments.jobs, None if arguments.json else report.add)
    seconds = time.perf_counter() - started
    if arguments.json:
        say(_as_json(results, findings, seconds))
    else:
        report.end_of_file()
        report.summary(results, findings, seconds)
    return WRONG if findings else PASSED if all(result.passed for result in results) else FAILED


def _refuse(text: str, status: int = WRONG) -> int:
    say(f"ERROR: {text}", error_stream=True)
    return status


# -- output ------------------------------------------------------------------------------------------------------------


class _Report:
    """Prints lines while the tests run. ``verbose``: a line for each test instead of one for each file."""

    def __init__(self, verbose: bool = False) -> None:
        self._verbose = verbose
        self._colours = wants_colour(sys.stdout)
        self._of_file: list[Result] = []

    def findings(self, findings: Sequence[Finding]) -> None:
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
        parts = [
            f"{len(results) - failed} passed",
            *([f"{failed} failed"] if failed else []),
            *([f"{counted(len(findings), 'mistake')} in test files"] if findings else []),
        ]
        say(self._paint(f"{', '.join(parts)} in {seconds:.1f} s", RED if failed or findings else GREEN))

    def _details(self, result: Result) -> None:
        for failure in result.failures:
            first, *rest = failure.lines
            say(f"    {failure.json_path}: {first}" if failure.json_path else f"    {first}")
            for line in rest:
                say(f"      {self._paint(line, _colour_of(line))}")
        for line in result.log if result.failures else ():
            say(f"    log: {line}")

    def _paint(self, text: str, colour: str) -> str:
        return painted(text, colour, self._colours)


def _as_json(results: Sequence[Result], findings: Sequence[Finding], seconds: float) -> str:
    """Return all results as one JSON string in ASCII."""
    failed = sum(not result.passed for result in results)
    return json.dumps(
        {
            "passed": len(results) - failed,
            "failed": failed,
            "seconds": round(seconds, 3),
            "tests": [_test(result) for result in results],
            "mistakes": [
                {
                    "file": finding.file,
                    "jsonPath": finding.json_path,
                    "line": finding.line,
                    "column": finding.column,
                    "message": finding.message,
                    "expected": finding.expected,
                    "suggestion": finding.suggestion,
                }
                for finding in findings
            ],
        },
        indent=2,
    )


def _test(result: Result) -> dict[str, object]:
    return {
        "file": result.test.suite.display,
        "number": result.test.number,
        "name": result.test.name,
        "passed": result.passed,
        "seconds": round(result.seconds, 3),
        "log": result.log,
        "failures": [{"expectation": failure.json_path, "lines": failure.lines} for failure in result.failures],
    }


def _colour_of(line: str) -> str:
    text = line.strip()
    return RED if text.startswith("-") else GREEN if text.startswith("+") else ""
