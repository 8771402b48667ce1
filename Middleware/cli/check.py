"""``python server.py check``: looks at the whole configuration, and says what is wrong before a request does."""
from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Sequence

from Middleware.cli import users
from Middleware.cli.arguments import apply_arguments, build_command_parser, parse_command_arguments
from Middleware.cli.check_output import Summary, human_text, json_text, wants_colour
from Middleware.cli.console import program_name, say
from Middleware.cli.data_folders import check_data_folders
from Middleware.cli.errors import StartError
from Middleware.cli.workflow_tests.reading import check_test_files
from Middleware.utilities import config_utils
from Middleware.utilities.config_workflows import TEST_SUFFIX
from Middleware.workflows.managers.workflow_manager import BUILT_IN_VARIABLES, build_registry
from Middleware.workflows.validation.data_checks import check_modes
from Middleware.workflows.validation.probes import origins, probe
from Middleware.workflows.validation.tree_check import CheckResult, TreeCheck

DESCRIPTION = """Checks the configuration: every JSON file, what the files name, and the rules of workflows with the
settings of each user. Exit status: 0 if there is nothing worse than warnings (with --strict: than notes), 1 otherwise,
2 for a wrong command line."""


def main(words: Sequence[str] = ()) -> int:
    """Check what the words of the command line say; returns the exit status."""
    parser = build_command_parser(program_name("check"), DESCRIPTION)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--online", action="store_true",
                        help="also ask the servers of the checked users' endpoints whether they answer")
    parser.add_argument("--strict", action="store_true", help="warnings, too, make the exit status 1")
    arguments, options = parse_command_arguments(parser, words)
    apply_arguments(arguments)
    logging.disable(logging.CRITICAL)  # what reading the files would log is reported here, with its place
    try:
        for user in arguments.users:
            users.require_user_file(user)
        result, summary = _check(arguments.users or None, options, arguments.logging_directory)
    except StartError as error:
        say(f"ERROR: {error}", error_stream=True)
        return 1
    finally:
        logging.disable(logging.NOTSET)
    say(json_text(result.findings, summary) if options.json else
        human_text(result.findings, summary, wants_colour(sys.stdout)))
    return 1 if result.count("error") or (options.strict and result.count("warning")) else 0


def _check(names: Sequence[str] | None, options: argparse.Namespace, logs: str | None) -> tuple[CheckResult, Summary]:
    started = time.monotonic()
    result = TreeCheck(build_registry(), BUILT_IN_VARIABLES, names).run()
    found = list(check_data_folders(result.users, logs or config_utils.get_default_logging_directory()))
    found += check_modes(result.paths, result.endpoints)
    found += check_test_files(path for file, path in result.paths.items() if file.endswith(TEST_SUFFIX))
    if options.online:
        servers = origins(result.used_endpoints)
        say(f"Asking {len(servers)} server(s) whether they answer: {', '.join(servers) or 'none'}", error_stream=True)
        found += probe(servers)
    result.add(found)
    root = config_utils.get_root_config_directory()
    return result, Summary(root, result.files, result.users, time.monotonic() - started, options.online)
