"""The command line: one parser for all launchers, and the step that stores its result process-wide."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from Middleware.api.edge.browser_safety import ANY, NULL, normal_origin
from Middleware.cli.addon import Flags, addons
from Middleware.cli.program import say
from Middleware.common import instance_global_variables as instance
from Middleware.common.constants import VERSION
from Middleware.utilities import config_utils
from Middleware.utilities.config.paths import is_package
from Middleware.utilities.text_utils import nearest

ALL_INTERFACES = "0.0.0.0"
# Most options are known by a part of their long names.
OPTION_CUTOFF = 0.6
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
_WINDOWS_PATH = re.compile(r"[A-Za-z]:[\\/]|\\\\")


@dataclass(frozen=True)
class LaunchArguments:
    """The values on the command line. None or an empty list means that the option was not given.

    Attributes:
        first_word: the configuration folder if it was given without its flag.
        concurrency_timeout: seconds a request waits for a slot.
        drain_seconds: how long requests may go on after a signal to stop; 0: they are cancelled.
        max_request_mb: largest request body in units of 1024 * 1024 bytes; 0 for any size.
        accepted_keys_file: absolute path of the list of keys that clients need.
        allow_origins: web pages that may call, as ``browser_safety.normal_origin`` spells them.
        allow_public: clients with public addresses are admitted without a key.
        file_logging: True if the switch was given, else None (a user file may decide).
        log_level: name of the lowest level that is logged, or None for the environment or the default.
        verbose: a terminal shows the whole log.
        flags: all flags as they were read, those of add-ons among them; empty if no command line was read.
    """

    config_directory: str | None = None
    first_word: str | None = None
    public_directory: str | None = None
    discussion_directory: str | None = None
    sqlite_directory: str | None = None
    logging_directory: str | None = None
    users: list[str] = field(default_factory=list)
    file_logging: bool | None = None
    port: int | None = None
    listen: str | None = None
    concurrency: int = 1
    concurrency_timeout: float = 900
    concurrency_level: str = "wilmer"
    max_request_mb: int = 256
    drain_seconds: float = 0
    accepted_keys_file: str | None = None
    allow_origins: tuple[str, ...] = ()
    allow_public: bool = False
    log_level: str | None = None
    verbose: bool = False
    flags: argparse.Namespace = field(default_factory=argparse.Namespace)


class Parser(argparse.ArgumentParser):
    """The parser of all command lines: options may be typed in any case, with or without hyphens between their words.

    So ``--user``, ``--User`` and ``--config-directory`` are understood everywhere. Abbreviations are not: a script that
    uses one would break when an option is added.
    """

    def __init__(self, *positional: Any, **options: Any) -> None:
        super().__init__(*positional, **{"allow_abbrev": False, **options})

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Return the options. Bad words print the usage, or the nearest option, and exit with status 2."""
        known, unknown = self.parse_known_args(args, namespace)
        if unknown:
            _refuse(self, unknown)
        return known

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        return super().parse_known_args(self._as_declared(args), namespace)

    def parse_known_intermixed_args(self, args: Any = None, namespace: Any = None) -> Any:
        return super().parse_known_intermixed_args(self._as_declared(args), namespace)

    def _as_declared(self, args: Sequence[str] | None) -> list[str]:
        """Return the words of a command line, with each option spelled as it was declared."""
        words = sys.argv[1:] if args is None else list(args)
        exact = [option for action in self._actions for option in action.option_strings]
        declared = {_bare(option): option for option in exact} | dict(zip(exact, exact, strict=True))
        # Behind this word everything is a positional.
        end = words.index("--") if "--" in words else len(words)
        for position, word in enumerate(words[:end]):
            name, equals, value = word.partition("=")
            if name.startswith("--"):
                words[position] = declared.get(name, declared.get(_bare(name), name)) + equals + value
        return words


def _bare(option: str) -> str:
    return "--" + option.replace("-", "").lower() if option.startswith("--") else option


def build_parser(program: str | None = None, commands: str = "") -> argparse.ArgumentParser:
    """Return the parser of ``server.py``, ``run_waitress.py`` and ``run_eventlet.py``.

    ``commands``: the commands that may stand in front of the flags, a line each.
    """
    about = (
        "WilmerAI: sits between a chat front-end and LLM back-ends and answers through workflows.\n"
        "Without a command it starts the server."
    )
    # The generated usage names no command, and needs twelve lines for the options, which follow anyway.
    usage = "%(prog)s [options]\n       %(prog)s COMMAND ..." if commands else None
    parser = Parser(
        prog=program,
        usage=usage,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=f"{about} The commands:\n\n{commands}" if commands else about,
    )
    _add_flags(parser)
    # Only here: the command test has a -v of its own.
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="show the whole log on a terminal, not one line for each request"
    )
    parser.add_argument("--version", action="version", version=f"WilmerAI {VERSION}")
    return parser


def accept_launch_flags(parser: argparse.ArgumentParser) -> None:
    """Accept the flags of the launchers that a sub-command does not know, without effect.

    So the command can be put into an existing command line. ``--User`` is not among them: a command that cannot be held
    to one user must not seem to be.
    """
    known = {"--User"}.union(*(action.option_strings for action in parser._actions))
    launcher = build_parser()
    for action in launcher._actions:
        if action.option_strings and known.isdisjoint(action.option_strings):
            action.help = action.default = argparse.SUPPRESS
            parser._add_action(action)


def build_command_parser(program: str, description: str, positionals: bool = True) -> argparse.ArgumentParser:
    """Return the parser of a sub-command that needs the directories.

    It accepts the other flags of the launchers too (``accept_launch_flags``). ``positionals``: also the older short
    form of the flags for configuration and user.
    """
    parser = Parser(prog=program, description=description)
    if positionals:
        _add_flags(parser, help=argparse.SUPPRESS)
    else:
        _add_directory_flags(parser)
        _add_launch_flags(parser, help=argparse.SUPPRESS)
        parser.set_defaults(positionals=[])
    return parser


def first_positional(parser: argparse.ArgumentParser, words: Sequence[str]) -> int | None:
    """Return the position of the first word that is neither an option nor the value of one.

    None without one, behind ``--``, and if an option before it is not known or ends the program, as
    ``--version`` does.
    """
    options = {option: action for action in parser._actions for option in action.option_strings}
    declared = parser._as_declared(words) if isinstance(parser, Parser) else list(words)
    position = 0
    while position < len(words):
        name, equals, _ = declared[position].partition("=")
        if not name.startswith("-"):
            return position
        action = options.get(name)
        if action is None or isinstance(action, argparse._VersionAction):
            return None
        position += 1
        # The value of --listen may be left out.
        left_out = action.nargs == "?" and any(word.startswith("-") for word in words[position : position + 1])
        if action.nargs != 0 and not equals and not left_out:
            position += 1
    return None


def describe_options(parser: argparse.ArgumentParser, texts: Mapping[str, str]) -> None:
    """Replace the help of options that mean something of their own in a sub-command."""
    for action in parser._actions:
        for option in action.option_strings:
            action.help = texts.get(option, action.help)


def describe_positionals(parser: argparse.ArgumentParser, metavar: str, text: str) -> None:
    """Replace the name and the help of the words without a flag, where they mean something of their own."""
    for action in parser._actions:
        if action.dest == "positionals":
            action.metavar, action.help = metavar, text


def _add_flags(parser: argparse.ArgumentParser, **replaced: str) -> None:
    """Add the flags for directories, the flags for serving, whose options ``replaced`` overrides, and positionals."""
    _add_directory_flags(parser)
    _add_launch_flags(parser, **replaced)
    parser.add_argument(
        "positionals", nargs="*", metavar="ConfigDirectory User", help="the older short form of the two flags"
    )


def _add_directory_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--ConfigDirectory", metavar="P", help="the Configs folder (default: <public directory>/Configs)")
    add(
        "--PublicDirectory",
        metavar="P",
        help="parent of Configs, DiscussionIds, SqlLiteDBs and logs "
        "(default: Public next to this program; if it was installed from a "
        "wheel, the user's data folder)",
    )
    add(
        "--User",
        metavar="N",
        action="append",
        default=[],
        help="a user of Configs/Users; give it twice or more for several users",
    )
    add("--LoggingDirectory", metavar="P", help="folder of the log files; <user> stands for the user's name")
    add("--UserLevelSqlLiteDirectory", metavar="P", help="folder of the lock databases")
    add("--DiscussionDirectory", metavar="P", help="folder of the stored conversations")


def _add_launch_flags(parser: argparse.ArgumentParser, **replaced: str) -> None:
    flags = Flags(parser, **replaced)
    _add_access_flags(flags.add)
    _add_limits(flags.add)
    flags.add(
        "--log-level",
        type=str.upper,
        choices=LOG_LEVELS,
        help="DEBUG writes conversation text to the log (default: environment WILMER_LOG_LEVEL, else INFO)",
    )
    for addon in addons():
        addon.add_flags(flags)


def _add_access_flags(add: Callable[..., None]) -> None:
    add("--file-logging", action="store_true", default=None, help="also write the log to a file")
    add("--port", type=int, metavar="N", help="port to listen on (default: the user's, else 5000; several users: 5050)")
    add(
        "--listen",
        nargs="?",
        const=ALL_INTERFACES,
        metavar="ADDRESS",
        help="accept connections from the network, on this address only if one is given (default: this machine only); "
        "without keys, only from private addresses",
    )
    add(
        "--accepted-keys-file",
        metavar="P",
        help="let in only clients that send one of the keys in this file; the command keys makes them",
    )
    add(
        "--allow-origin",
        metavar="URL",
        action="append",
        default=[],
        help="a web page that may call from browsers, for example https://chat.example.com; can be given several times "
        "(pages of this machine always may)",
    )
    add(
        "--allow-public",
        action="store_true",
        help="with --listen and without --accepted-keys-file: let in clients with public addresses, too",
    )


def _add_limits(add: Callable[..., None]) -> None:
    add(
        "--concurrency",
        type=int,
        default=1,
        metavar="N",
        help="requests that run at a time, 0 = any number (default: %(default)s)",
    )
    add(
        "--concurrency-timeout",
        type=float,
        default=900,
        metavar="S",
        help="seconds a request waits for its turn (default: %(default)s)",
    )
    add(
        "--concurrency-level",
        choices=("wilmer", "endpoint"),
        default="wilmer",
        help="what takes a turn: a whole request, or each call of an LLM (default: %(default)s)",
    )
    add(
        "--max-request-mb",
        type=int,
        default=256,
        metavar="N",
        help="largest request body in megabytes, 0 = any size (default: %(default)s)",
    )
    add(
        "--drain-seconds",
        type=float,
        default=0,
        metavar="S",
        help="seconds that requests may go on after Ctrl-C or SIGTERM, while no new ones are accepted "
        "(default: %(default)s, they are cancelled)",
    )


def parse_arguments(
    argv: Sequence[str] | None = None, program: str | None = None, commands: str = ""
) -> LaunchArguments:
    """Read the command line. Bad values print the usage on stderr and exit with status 2. See ``build_parser``."""
    parser = build_parser(program, commands)
    raw, unknown = parser.parse_known_intermixed_args(argv)
    if unknown:
        _refuse(parser, unknown)
    _check(parser, raw)
    return replace(
        _directories(raw),
        file_logging=raw.file_logging,
        port=raw.port,
        listen=_clean_address(raw.listen),
        concurrency=raw.concurrency,
        concurrency_timeout=raw.concurrency_timeout,
        concurrency_level=raw.concurrency_level,
        max_request_mb=raw.max_request_mb,
        drain_seconds=raw.drain_seconds,
        accepted_keys_file=_file(raw.accepted_keys_file),
        allow_origins=tuple(filter(None, map(_origin, raw.allow_origin))),
        allow_public=raw.allow_public,
        log_level=raw.log_level,
        verbose=raw.verbose,
    )


def parse_command_arguments(
    parser: argparse.ArgumentParser,
    words: Sequence[str],
    prepare: Callable[[argparse.Namespace], None] = lambda options: None,
) -> tuple[LaunchArguments, argparse.Namespace]:
    """Return the directories and users in a sub-command's words, and all options. Bad values exit with status 2.

    ``prepare`` takes out of the options what the sub-command reads itself, before they are read here.
    """
    accept_launch_flags(parser)
    raw, unknown = parser.parse_known_intermixed_args(list(words))
    if unknown:
        _refuse(parser, unknown)
    prepare(raw)
    return _directories(raw), raw


def _directories(raw: argparse.Namespace) -> LaunchArguments:
    """Return the directories and users on the command line, with defaults for all other options."""
    positionals = [*raw.positionals, "", ""]
    named, first_word = given_directory(raw.ConfigDirectory), given_directory(positionals[0])
    return LaunchArguments(
        config_directory=named or first_word,
        first_word=None if named else first_word,
        public_directory=given_directory(raw.PublicDirectory),
        discussion_directory=given_directory(raw.DiscussionDirectory),
        sqlite_directory=given_directory(raw.UserLevelSqlLiteDirectory),
        logging_directory=given_directory(raw.LoggingDirectory, keep_trailing=True),
        users=_names(raw.User) or _names([positionals[1]]),
        flags=raw,
    )


def apply_arguments(arguments: LaunchArguments) -> None:
    """Store the given values in ``instance_global_variables``; values that were not given stay unchanged there.

    The log directory and file logging depend on the user files and are set later, in ``startup``. The public root of an
    installed wheel is filled at the first start; raises SystemExit if that fails.
    """
    for name, value in (
        ("CONFIG_DIRECTORY", arguments.config_directory),
        ("PUBLIC_DIRECTORY", arguments.public_directory),
        ("DISCUSSION_DIRECTORY", arguments.discussion_directory),
        ("USER_LEVEL_SQLITE_DIRECTORY", arguments.sqlite_directory),
        ("USERS", list(arguments.users) or None),
        ("FILE_LOGGING", arguments.file_logging),
        ("PORT", arguments.port),
        ("LISTEN_ADDRESS", arguments.listen),
    ):
        if value is not None:
            setattr(instance, name, value)
    instance.CONCURRENCY_LIMIT = arguments.concurrency
    instance.CONCURRENCY_TIMEOUT = arguments.concurrency_timeout
    instance.CONCURRENCY_LEVEL = arguments.concurrency_level
    instance.MAX_REQUEST_MB = arguments.max_request_mb
    instance.ALLOWED_ORIGINS = arguments.allow_origins
    for addon in addons():
        addon.apply(arguments.flags)
    if is_package():
        # Imported here: a clone has its configuration.
        from Middleware.cli import shipped_configuration

        shipped_configuration.provide()


def apply_directories(options: argparse.Namespace, users: Sequence[str] = ()) -> None:
    """Store the directories that a sub-command got in its options, and the users it concerns."""
    clean = config_utils.clean_directory
    apply_arguments(
        LaunchArguments(
            config_directory=clean(options.ConfigDirectory),
            public_directory=clean(options.PublicDirectory),
            discussion_directory=clean(options.DiscussionDirectory),
            users=list(users),
            flags=options,
        )
    )


def given_directory(value: str | None, keep_trailing: bool = False) -> str | None:
    """Return a typed directory in usable form; None if it is empty, or a path of another operating system."""
    text = config_utils.clean_directory(value, keep_trailing=keep_trailing)
    # Taken literally, it would become a folder of this name in the working directory.
    if text and os.name != "nt" and _WINDOWS_PATH.match(text) and not os.path.isdir(text):
        say(f"WARNING: '{text}' is a Windows path; it is ignored here and the default is used.", error_stream=True)
        return None
    return text


def _file(value: str | None) -> str | None:
    path = config_utils.clean_directory(value)
    return os.path.abspath(path) if path else None


def _origin(text: str) -> str | None:
    """Return a typed origin in its normal spelling, without a slash at its end; ``*`` means every page."""
    text = text.strip()
    return ANY if text == ANY else normal_origin(text.rstrip("/") if text.count("/") == 3 else text)


def _refuse(parser: argparse.ArgumentParser, unknown: Sequence[str]) -> NoReturn:
    """Exit with status 2. The usage is omitted if every unknown option is similar to a known one."""
    known = [option for action in parser._actions for option in action.option_strings]
    # The values of unknown options are among the unknown words too.
    names = [word.partition("=")[0] for word in unknown if word.startswith("-")] or unknown
    near = [nearest(name, known, OPTION_CUTOFF) for name in names]
    hints = [
        f"there is no option {name}." + (f" Did you mean {found}?" if found else "")
        for name, found in zip(names, near, strict=True)
    ]
    # The usage is long, and would push the hint off the screen.
    if all(near):
        parser.exit(2, f"{parser.prog}: error: {' '.join(hints)}\n")
    parser.error(" ".join(hints))


def _check(parser: argparse.ArgumentParser, raw: argparse.Namespace) -> None:
    if raw.concurrency < 0:
        parser.error("--concurrency must be >= 0")
    # Written like this, the condition also refuses nan.
    if not 0 < raw.concurrency_timeout < float("inf"):
        parser.error("--concurrency-timeout must be > 0")
    if raw.max_request_mb < 0:
        parser.error("--max-request-mb must be >= 0")
    # Also refuses nan.
    if not 0 <= raw.drain_seconds < float("inf"):
        parser.error("--drain-seconds must be >= 0")
    if raw.accepted_keys_file is not None and _file(raw.accepted_keys_file) is None:
        parser.error("--accepted-keys-file needs the path of a file; without one, clients would not need a key")
    _check_origins(parser, raw)
    if raw.port is not None and not 0 <= raw.port <= 65535:
        parser.error("--port must be between 0 and 65535")
    address = (raw.listen or "").strip()
    if "/" in address or "\\" in address or (address and os.path.isdir(address)):
        parser.error(
            f"--listen takes an address, and '{address}' is a directory: put --listen after the directory, "
            "or name the directory with --ConfigDirectory"
        )
    for addon in addons():
        addon.check_flags(raw, parser.error)


def _check_origins(parser: argparse.ArgumentParser, raw: argparse.Namespace) -> None:
    for text in raw.allow_origin:
        origin = _origin(text)
        if origin is None:
            parser.error(
                f"--allow-origin takes scheme, host and port of a page's address and nothing else, for "
                f"example https://chat.example.com or http://192.168.1.5:3000; not '{text}'"
            )
        if origin in (ANY, NULL) and raw.accepted_keys_file is None:
            parser.error(
                f"--allow-origin {origin} lets every web page that you visit use this server; it is only "
                "possible together with --accepted-keys-file. Name the page instead."
            )


def _clean_address(value: str | None) -> str | None:
    address = (value or "").strip()
    if address.startswith("[") and address.endswith("]"):
        address = address[1:-1]
    return address or None


def _names(values: Sequence[str]) -> list[str]:
    """Return the names in the given order, without surrounding blanks and duplicates."""
    return list(dict.fromkeys(name for name in (value.strip() for value in values) if name))
