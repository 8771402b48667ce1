"""``python server.py test``: runs the tests of workflows."""
from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence

from Middleware.cli.check.findings import Finding
from Middleware.cli.console import make_output_safe, program_name, say
from Middleware.cli.signals import INTERRUPTED
from Middleware.cli.workflow_tests.collecting import NoSuchTestsError, test_files
from Middleware.cli.workflow_tests.reading import read_tests
from Middleware.cli.workflow_tests.report import Report, as_json
from Middleware.cli.workflow_tests.running import DEFAULT_JOBS, run_tests
from Middleware.cli.workflow_tests.sandbox import temporary_world
from Middleware.cli.workflow_tests.suites import WorkflowTest
from Middleware.cli.workflow_tests.titles import Titles
from Middleware.common import instance_global_variables as instance
from Middleware.utilities import config_utils
from Middleware.utilities.config.paths import meant_folder, missing_folder

PASSED, FAILED, WRONG = 0, 1, 2


def main(argv: Sequence[str]) -> int:
    """Run the tests that ``argv`` asks for.

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
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
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
