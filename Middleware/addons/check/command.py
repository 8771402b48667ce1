"""``python server.py check``: checks the whole configuration, and reports mistakes before a request runs into them."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from Middleware.addons.check.data_checks import check_conversation_modes, check_data_folders, check_modes
from Middleware.addons.check.findings import Finding, Selection, Summary, count_of, human_text, json_text
from Middleware.addons.check.online import check_servers, origins
from Middleware.addons.check.scope import split_words
from Middleware.addons.check.tree_check import CheckResult, TreeCheck
from Middleware.cli import users
from Middleware.cli.arguments import (
    LaunchArguments,
    apply_arguments,
    build_command_parser,
    describe_positionals,
    parse_command_arguments,
)
from Middleware.cli.console import StartError, program_name, say
from Middleware.exceptions import ConfigurationError
from Middleware.utilities import config_utils
from Middleware.utilities.config.lookup import config_lookup
from Middleware.utilities.config.workflows import TEST_SUFFIX
from Middleware.utilities.terminal import wants_colour
from Middleware.utilities.text_utils import counted

# Return the findings about files with tests, given by their paths.
FileCheck = Callable[[Iterable[str]], Iterable[Finding]]

DESCRIPTION = """Checks the configuration: every JSON file, what the files name, and the rules of workflows with the
settings of each user. Errors come first. After names of users, it covers only what these users reach; after paths of
files or folders, only those. Exit status: 0 if there is nothing worse than warnings (with --strict: than notes), 1
otherwise, 2 for a wrong command line."""


def main(words: Sequence[str], check_test_files: FileCheck) -> int:
    """Check the files that the arguments select; return the exit status.

    ``check_test_files``: the check of the files with tests of workflows.
    """
    parser = build_command_parser(program_name("check"), DESCRIPTION)
    describe_positionals(parser, "NAME|FILE|FOLDER", "users, and files or folders of the configuration; default: all")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--errors", action="store_true", help="print only errors; the rest is counted")
    which.add_argument(
        "--notes",
        action="store_true",
        help="also print the notes about what LLM servers read again, which are counted otherwise",
    )
    parser.add_argument(
        "--online",
        action="store_true",
        help="also ask the LLM servers whether they answer: those of the users that are named, else "
        "those of the current one",
    )
    parser.add_argument("--strict", action="store_true", help="warnings, too, make the exit status 1")
    try:
        arguments, options = parse_command_arguments(parser, words, _take_scope)
    except StartError as error:
        say(f"ERROR: {error}", error_stream=True)
        return 1
    words = _users_without_flag(arguments, options)
    if words:
        arguments = replace(
            arguments,
            config_directory=config_utils.clean_directory(options.ConfigDirectory),
            users=list(dict.fromkeys([*arguments.users, *words])),
        )
    apply_arguments(arguments)
    # What reading the files would log is reported by the check, with its position.
    logging.disable(logging.CRITICAL)
    try:
        _require_users(words)
        for user in arguments.users:
            users.require_user_file(user)
        result, summary = _check(arguments.users or None, options, arguments.logging_directory, check_test_files)
    except StartError as error:
        say(f"ERROR: {error}", error_stream=True)
        return 1
    finally:
        logging.disable(logging.NOTSET)
    selection = Selection(options.errors, options.notes or options.json)
    say(
        json_text(result.findings, summary, selection)
        if options.json
        else human_text(result.findings, summary, wants_colour(sys.stdout), selection)
    )
    return 1 if count_of(result.findings, "error") or (options.strict and count_of(result.findings, "warning")) else 0


def _take_scope(options: argparse.Namespace) -> None:
    """Take the paths of files and folders inside a configuration from the words that are not flags."""
    configs = config_utils.clean_directory(options.ConfigDirectory)
    public = config_utils.clean_directory(options.PublicDirectory) or config_utils.get_root_public_directory()
    words = [word for word in (word.strip() for word in options.positionals) if word]
    options.scope, options.positionals, root = split_words(
        words, configs or os.path.join(public, "Configs"), bool(configs)
    )
    options.ConfigDirectory = root or options.ConfigDirectory
    options.User += options.positionals if root else ()


def _users_without_flag(arguments: LaunchArguments, options: argparse.Namespace) -> list[str]:
    """Return the words that are not flags, if they name users: the first may be the folder of the configuration."""
    words = [word for word in (word.strip() for word in options.positionals) if word]
    folder = config_utils.clean_directory(words[0]) if words else None
    if not folder or os.path.isdir(folder) or not arguments.config_directory:
        return []
    return [] if _is_path(folder) and not options.ConfigDirectory else words


def _is_path(word: str) -> bool:
    """Return whether a word can only mean a folder. The names of users in folders have a slash inside, too."""
    return os.path.isabs(word) or word.startswith((".", "~")) or "\\" in word


def _require_users(words: Sequence[str]) -> None:
    """Raise StartError for the first word that is not the name of a user."""
    for word in words:
        try:
            exists = config_utils.user_config_exists(word)
        except ConfigurationError as error:
            # A folder that must not be read, or several files for the name.
            if error.file:
                raise StartError(f"User '{word}' cannot be used: {error}") from error
            exists = False
        if not exists:
            raise StartError(
                f"There is no user '{word}', and no configuration folder of that name.{users.existing_users_hint(word)}"
            )


def _check(
    names: Sequence[str] | None, options: argparse.Namespace, logs: str | None, check_test_files: FileCheck
) -> tuple[CheckResult, Summary]:
    started = time.monotonic()
    result = TreeCheck(names, scope=options.scope).run()
    found = list(check_data_folders(result.users, logs or config_utils.get_default_logging_directory()))
    found += check_modes(result.paths, result.endpoints)
    found += check_conversation_modes(result.users)
    found += check_test_files(
        path for file, path in result.paths.items() if file.endswith(TEST_SUFFIX) and options.scope.holds(file)
    )
    if options.online:
        whose = names or _served(result)
        endpoints = {file: content for user in whose for file, content in result.used_endpoints.get(user, {}).items()}
        servers = origins(endpoints)
        # To standard error, so that the output with --json stays one document.
        say(
            f"Asking {counted(len(servers), 'server')} of {', '.join(whose)} for an answer and a list of models: "
            f"{', '.join(servers) or 'none'}",
            error_stream=True,
        )
        found += check_servers(servers, endpoints)
    result.add(finding for finding in (*found, *_spellings()) if options.scope.holds(finding.file))
    root = config_utils.get_root_config_directory()
    return result, Summary(root, result.files, result.users, time.monotonic() - started, options.online)


def _served(result: CheckResult) -> Sequence[str]:
    """Return the users that a start with the same arguments serves: the current user, or all users if there is none."""
    current = (users.current_user() or "").casefold()
    return [user for user in result.users if user.casefold() == current] or result.users


def _spellings() -> Iterator[Finding]:
    """Return a note about each file and folder whose name is spelled differently where it is used."""
    for meant, used in config_lookup().other_spellings:
        yield Finding(
            "note",
            used,
            "",
            None,
            f"it is named as '{meant.rpartition('/')[2]}', which differs in upper and lower case. It works; "
            "write the name as it is spelled here",
        )
