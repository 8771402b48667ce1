"""``python server.py check``: checks the whole configuration, and reports mistakes before a request runs into them."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from Middleware.addons.check.directory_check import (
    check_data_folders,
    check_discussion_modes,
    check_modes,
    check_short_keys,
)
from Middleware.addons.check.endpoint_check import TURN_ON, named_as_strict, strict_template
from Middleware.addons.check.findings import Finding, Selection, Summary, count_of, human_text, json_text
from Middleware.addons.check.lookups import located
from Middleware.addons.check.tree import split_words
from Middleware.addons.check.tree_check import CheckResult, TreeCheck
from Middleware.cli import served_users
from Middleware.cli.arguments import (
    LaunchArguments,
    apply_arguments,
    build_command_parser,
    describe_positionals,
    parse_command_arguments,
)
from Middleware.cli.program import StartError, program_name, say
from Middleware.exceptions import ConfigurationError
from Middleware.llmapis import api_types
from Middleware.llmapis.addresses import (
    MODELS,
    NO_SUCH_PATH,
    OLLAMA_MODELS,
    api_path_of,
    compose,
    key_headers,
    listed_models,
)
from Middleware.llmapis.api_keys import resolve_api_key
from Middleware.llmapis.backend_errors import STRICT_TEMPLATE
from Middleware.llmapis.server_questions import ask_server, json_in
from Middleware.utilities import config_utils
from Middleware.utilities.config.check import quoted
from Middleware.utilities.config.keys.endpoint import ENDPOINT
from Middleware.utilities.config.lookup import config_lookup
from Middleware.utilities.config.workflows import TEST_SUFFIX
from Middleware.utilities.http.problems import HttpError
from Middleware.utilities.http.wire import parse_target
from Middleware.utilities.terminal import wants_colour
from Middleware.utilities.text_utils import counted, nearest

# Return the findings about files with tests, given by their paths.
FileCheck = Callable[[Iterable[str]], Iterable[Finding]]
DESCRIPTION = """Checks the configuration: every JSON file, what the files name, and the rules of workflows with the
settings of each user. Errors come first. After names of users, it covers only what these users reach; after paths of
files or folders, only those. Exit status: 0 if there is nothing worse than warnings (with --strict: than notes), 1
otherwise, 2 for a wrong command line."""
# A server at home answers within milliseconds, a remote one within a second; a check must not take long.
PROBE_SECONDS = 2.0
# Each server that does not answer costs the whole timeout; few configurations have more of them than this.
PARALLEL = 16
# A message shows at most this many of a server's models.
SHOWN_MODELS = 5
UNAUTHORIZED = 401
LOOP_DETECTED = 508
# What these servers write into ``owned_by``. They answer with the model that is loaded, whatever name is sent.
ONE_MODEL = frozenset(("llamacpp", "koboldcpp", "user"))
OLLAMA_TYPES = frozenset((api_types.OLLAMA_CHAT, api_types.OLLAMA_GENERATE, api_types.OLLAMA_EMBEDDINGS))


def main(words: Sequence[str], check_test_files: FileCheck) -> int:
    """Check the files that the arguments select; return the exit status.

    ``check_test_files``: the check of the files with tests of workflows.
    """
    try:
        arguments, options = parse_command_arguments(_parser(), words, _take_scope)
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
            served_users.require_user_file(user)
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


def _parser() -> argparse.ArgumentParser:
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
    return parser


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
                f"There is no user '{word}', and no configuration folder of that name."
                f"{served_users.existing_users_hint(word)}"
            )


def _check(
    names: Sequence[str] | None, options: argparse.Namespace, logs: str | None, check_test_files: FileCheck
) -> tuple[CheckResult, Summary]:
    started = time.monotonic()
    result = TreeCheck(names, scope=options.scope, port=getattr(options, "port", None)).run()
    found = list(check_data_folders(result.users, logs or config_utils.get_default_logging_directory()))
    found += check_modes(result.paths, result.endpoints)
    found += check_discussion_modes(result.users)
    found += check_short_keys(getattr(options, "accepted_keys_file", None), result.users)
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
    """Return the users that a start with the same arguments serves: the current user, or all users without one."""
    current = (served_users.current_user() or "").casefold()
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


# -- LLM servers -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Question:
    """What its server is asked about an endpoint file, and with what.

    Attributes:
        kind: the canonical name of its API.
        model: the name that the server is sent; empty if it is sent none.
        api_path: ``apiPath`` of the file.
        is_asked_for_template: nothing says yet whether its chat template needs ``alternateRoles``.
    """

    file: str
    origin: str
    address: str
    kind: str
    model: str
    is_asked_for_template: bool
    key: str = field(repr=False)
    api_path: str | None = None

    @property
    def list_urls(self) -> tuple[str, ...]:
        """Where the list of models may be, the usual place first."""
        return compose(self.address, OLLAMA_MODELS if self.kind in OLLAMA_TYPES else MODELS, self.api_path).urls


def check_servers(servers: Mapping[str, Sequence[str]], endpoints: Mapping[str, object]) -> list[Finding]:
    """Return a warning for each server that does not answer, and for each model that its server does not have.

    ``servers``: the origins of ``endpoints``. All are asked at the same time.
    """
    with ThreadPoolExecutor(min(PARALLEL, max(len(servers), 1))) as pool:
        problems = dict(zip(servers, pool.map(why_silent, servers), strict=True))
        answering = [
            one
            for file, content in endpoints.items()
            if isinstance(content, Mapping)
            and (one := _question(file, content))
            and not problems.get(one.origin, "unknown")
        ]
        # KoboldCpp's own API has no names of models.
        naming = [one for one in answering if one.model and one.kind != api_types.KOBOLD_GENERATE]
        # llama.cpp speaks no other types.
        asked = [
            one
            for one in answering
            if one.is_asked_for_template and one.kind in (api_types.OPENAI_CHAT, api_types.OPENAI_COMPLETION)
        ]
        # Several files often name the same server, which is asked once.
        lists = {(one.list_urls, one.kind, one.key): one for one in naming}
        answers = dict(zip(lists, pool.map(_ask_for_models, lists.values()), strict=True))
        templates = {(one.origin, one.key): one for one in asked}
        strict = dict(zip(templates, pool.map(_is_strict, templates.values()), strict=True))
    silent = [_silent(origin, servers[origin], problem) for origin, problem in problems.items() if problem]
    refusing = [
        located(
            Finding(
                "note",
                one.file,
                "endpoint",
                None,
                strict_template(f"the chat template that {one.origin} has loaded"),
                TURN_ON,
            )
        )
        for one in asked
        if strict[one.origin, one.key]
    ]
    return [
        *silent,
        *refusing,
        *(finding for one in naming for finding in _of_model(one, *answers[one.list_urls, one.kind, one.key])),
    ]


def origins(endpoints: Mapping[str, object]) -> dict[str, list[str]]:
    """Return the origins of endpoint files, such as ``http://127.0.0.1:5001``, each with the files that name it."""
    found: dict[str, list[str]] = {}
    for display, content in endpoints.items():
        origin = _origin(content.get("endpoint")) if isinstance(content, Mapping) else ""
        if origin:
            found.setdefault(origin, []).append(display)
    return found


def _question(file: str, content: Mapping[str, object]) -> Question | None:
    """Return an endpoint file whose server can be asked; None for one with a mistake, which other checks report."""
    address, name = ENDPOINT.text(content, "endpoint"), ENDPOINT.text(content, "apiTypeConfigFileName").strip()
    origin = _origin(address)
    if not origin or not name:
        return None
    try:
        kind = api_types.canonical_type(config_utils.load_api_type(name))
        key = resolve_api_key(ENDPOINT.value(content, "apiKey"), file)
    except ConfigurationError:
        return None
    model = "" if ENDPOINT.flag(content, "dontIncludeModel") else api_types.model_name(content).strip()
    # What the name of the model says is a finding of the file already.
    is_open = not ENDPOINT.flag(content, "alternateRoles") and not named_as_strict(content)
    return Question(file, origin, address, kind, model, is_open, key, api_path_of(content))


def _ask_for_models(endpoint: Question) -> tuple[int, list[Mapping[str, object]]]:
    """Return the status and the entries of a server's list of models. The key is only sent where it is needed."""
    for url in endpoint.list_urls:
        status, entries = _list(url, {})
        if status == UNAUTHORIZED and endpoint.key:
            status, entries = _list(url, key_headers(endpoint.address, endpoint.api_path, endpoint.key, endpoint.kind))
        if status not in NO_SUCH_PATH:
            break
    return status, entries


def _list(url: str, headers: Mapping[str, str]) -> tuple[int, list[Mapping[str, object]]]:
    status, content = _get(url, headers)
    return status, listed_models(content)


def _get(url: str, headers: Mapping[str, str]) -> tuple[int, object]:
    """Return the status and the JSON of a server's answer; 0 without one, None for anything but JSON."""
    try:
        response = ask_server(url, headers, PROBE_SECONDS)
    # The server has answered already; not every one has such a page.
    except (HttpError, ConfigurationError):
        return 0, None
    return response.head.status, json_in(response)


def _of_model(endpoint: Question, status: int, entries: Sequence[Mapping[str, object]]) -> Iterator[Finding]:
    if status == UNAUTHORIZED:
        problem = "does not accept the API key of this file" if endpoint.key else "wants an API key"
        yield located(Finding("warning", endpoint.file, "apiKey", None, f"{endpoint.origin} {problem}"))
    # Foreign strings are shown on a terminal.
    names = sorted(
        {
            name
            for one in entries
            for key in ("id", "name")
            if isinstance(name := one.get(key), str) and name.isprintable()
        }
    )
    if (
        not names
        or any(one.get("owned_by") in ONE_MODEL for one in entries)
        or has_model(endpoint.model, endpoint.kind, names)
    ):
        return
    more = f" and {len(names) - SHOWN_MODELS} more" if len(names) > SHOWN_MODELS else ""
    yield located(
        Finding(
            "warning",
            endpoint.file,
            "modelNameToSendToAPI",
            None,
            f"{endpoint.origin} has no model {quoted(endpoint.model)}",
            f"one of its models: {', '.join(names[:SHOWN_MODELS])}{more}",
            nearest(endpoint.model, names, 0.6),
        )
    )


def _is_strict(endpoint: Question) -> bool:
    """Return whether a llama.cpp server has loaded a chat template that accepts only users and assistants in turn."""
    url = f"{endpoint.origin}/props"
    status, props = _get(url, {})
    if status == UNAUTHORIZED and endpoint.key:
        props = _get(url, {"Authorization": f"Bearer {endpoint.key}"})[1]
    template = props.get("chat_template") if isinstance(props, dict) else None
    return isinstance(template, str) and STRICT_TEMPLATE.search(template) is not None


def has_model(model: str, kind: str, names: Sequence[str]) -> bool:
    """Return whether a server of the API ``kind`` with these models takes the name of a model."""
    # Ollama ignores case, and others do not.
    fold = str.casefold if kind in OLLAMA_TYPES else str
    wanted = fold(model).removesuffix(":latest")
    # LiteLLM lists patterns such as openai/*, for every model of a provider.
    return any(
        wanted == fold(name).removesuffix(":latest") or (name.endswith("*") and model.startswith(name[:-1]))
        for name in names
    )


def _silent(origin: str, files: Sequence[str], problem: str) -> Finding:
    more = f" ({len(files) - 1} more endpoint files name it)" if len(files) > 1 else ""
    return located(
        Finding(
            "warning",
            files[0],
            "endpoint",
            None,
            f"{origin} {problem}{more}",
            "a server that runs and can be reached from this computer",
        )
    )


def _origin(url: object) -> str:
    """Return scheme, host and port; empty for an invalid address, which is reported elsewhere. Never has a password."""
    try:
        target = parse_target(url) if isinstance(url, str) else None
    except ConfigurationError:
        return ""
    return f"{target.scheme}://{target.host_header}" if target else ""


def why_silent(origin: str) -> str:
    """Return what keeps a server from answering; empty if it answers with any status."""
    try:
        if ask_server(f"{origin}/", {}, PROBE_SECONDS, max_bytes=0).head.status == LOOP_DETECTED:
            return "leads back to this WilmerAI"
    except HttpError as error:
        return f"does not answer: {error.problem.text}"
    except ConfigurationError as error:
        return f"cannot be asked: {error}"
    return ""
