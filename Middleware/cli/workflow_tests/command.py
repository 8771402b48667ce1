"""``python server.py test``: run the tests of workflows."""
from __future__ import annotations

import argparse
import difflib
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from Middleware.cli.check.findings import Finding
from Middleware.cli.console import make_output_safe, program_name, say
from Middleware.cli.signals import INTERRUPTED
from Middleware.cli.workflow_tests.reading import read_tests
from Middleware.cli.workflow_tests.report import Report, as_json
from Middleware.cli.workflow_tests.running import DEFAULT_JOBS, run_tests
from Middleware.cli.workflow_tests.sandbox import temporary_world
from Middleware.cli.workflow_tests.suites import WorkflowTest
from Middleware.cli.workflow_tests.titles import Titles
from Middleware.common import instance_global_variables as instance
from Middleware.utilities import config_utils
from Middleware.utilities.config.paths import get_root_config_directory, meant_folder, missing_folder
from Middleware.utilities.config.workflows import TEST_SUFFIX

PASSED, FAILED, WRONG = 0, 1, 2

GUIDE = "Docs/User/workflow-tests.md shows how to write some"


class NoSuchTestsError(Exception):
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
        name = place[:-len(TEST_SUFFIX)] if place.endswith(TEST_SUFFIX) else place.removesuffix(".json")
        if os.path.isfile(name + TEST_SUFFIX):
            return [name + TEST_SUFFIX]
        if os.path.isfile(name + ".json"):
            raise NoSuchTestsError(f"{path}: this workflow has no tests; they would be in "
                                   f"{os.path.basename(name)}{TEST_SUFFIX} beside it; {GUIDE}")
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
        folders.sort()
        yield from (os.path.join(place, name) for name in sorted(names) if name.endswith(TEST_SUFFIX))


def _hint(path: str, root: str) -> str:
    """Return a hint at the name below ``Workflows`` that is most similar to ``path``, or ""."""
    known = [name for file in _below(root) for full in [Path(os.path.relpath(file, root)).as_posix()]
             for name in (full.removesuffix(TEST_SUFFIX), *map(Path.as_posix, list(Path(full).parents)[:-1]))]
    near = difflib.get_close_matches(path.replace(os.sep, "/").removesuffix(".json"), dict.fromkeys(known), 1)
    return f" Did you mean '{near[0]}'?" if near else ""


def main(argv: Sequence[str]) -> int:
    """Run the tests that ``argv`` selects.

    Returns 0 if all passed, 1 if one failed, 2 for wrong use or a test file that cannot be used, 130 if interrupted.
    """
    make_output_safe()
    try:
        return _main(build_parser().parse_args(argv))
    except KeyboardInterrupt:
        return _refuse("interrupted; the other tests did not run", INTERRUPTED)


def _main(arguments: argparse.Namespace) -> int:
    instance.CONFIG_DIRECTORY = config_utils.clean_directory(arguments.ConfigDirectory) or instance.CONFIG_DIRECTORY
    instance.PUBLIC_DIRECTORY = config_utils.clean_directory(arguments.PublicDirectory) or instance.PUBLIC_DIRECTORY
    root = config_utils.get_root_config_directory()
    meant = meant_folder(root)
    if meant or not os.path.isdir(root):
        path, flag = missing_folder(root)
        hint = f". Did you mean {flag} {meant}?" if meant else ""
        return _refuse(f"the configuration folder {path} holds no folder 'Users'{hint}" if os.path.isdir(path)
                       else f"there is no configuration folder {path}{hint}")
    started = time.perf_counter()
    try:
        tests, findings = _read(test_files(arguments.paths))
    except NoSuchTestsError as error:
        return _refuse(str(error))
    chosen = [test for test in tests if arguments.k.casefold() in f"{test.suite.display} {test.name}".casefold()]
    if not chosen and not findings:
        return _refuse(f"no test has '{arguments.k}' in its name or in that of its file" if arguments.k
                       else "there are no tests")
    return _run(chosen, findings, arguments, started)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program_name("test"), allow_abbrev=False,
        description="Runs the tests of workflows, which lie beside them as <workflow>.test.json. No LLM is called.")
    add = parser.add_argument
    add("paths", nargs="*", metavar="PATH", help="a workflow, a test file or a folder, from here or from "
                                                 "Configs/Workflows (default: all)")
    add("-k", default="", metavar="TEXT", help="only tests with TEXT in their name or in that of their file")
    add("--jobs", type=_jobs, default=DEFAULT_JOBS, metavar="N", help="tests at a time (default: %(default)s)")
    add("--json", action="store_true", help="print the results as JSON")
    add("-v", "--verbose", action="store_true", help="a line for each test")
    add("--ConfigDirectory", metavar="P", help="the Configs folder (default: <public directory>/Configs)")
    add("--PublicDirectory", metavar="P", help="parent of Configs (default: Public beside this program)")
    return parser


def _jobs(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return number


def _read(paths: Sequence[str]) -> tuple[list[WorkflowTest], list[Finding]]:
    titles = Titles.of_all_workflows()
    tests: list[WorkflowTest] = []
    findings: list[Finding] = []
    for path in paths:
        of_file, wrong = read_tests(path, titles)
        tests += of_file
        findings += wrong
    return tests, findings


def _run(tests: Sequence[WorkflowTest], findings: Sequence[Finding], arguments: argparse.Namespace,
         started: float) -> int:
    report = Report(arguments.verbose)
    if not arguments.json:
        report.findings(findings)
    with temporary_world() as folder:
        results = run_tests(tests, folder, arguments.jobs, None if arguments.json else report.add)
    seconds = time.perf_counter() - started
    if arguments.json:
        say(as_json(results, findings, seconds))
    else:
        report.end_of_file()
        report.summary(results, findings, seconds)
    return WRONG if findings else PASSED if all(result.passed for result in results) else FAILED


def _refuse(text: str, status: int = WRONG) -> int:
    say(f"ERROR: {text}", error_stream=True)
    return status
