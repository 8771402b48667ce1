"""``python server.py memory``: looks after discussions."""

from __future__ import annotations

import argparse
import contextlib
import getpass
import json
import logging
import os
import sqlite3
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from datetime import time as datetime_time
from typing import Any

from Middleware.addons.discussions import catalog, exports, memory_output, removal
from Middleware.addons.discussions.chat_files import FORMS, SavedMessage, read_chats
from Middleware.addons.discussions.damage_check import check
from Middleware.addons.discussions.discussion_reader import ENCRYPTED, Reader, export
from Middleware.addons.discussions.elsewhere import stored_elsewhere
from Middleware.addons.discussions.overview import as_json, overview
from Middleware.addons.records.console_folder import ConsoleFolder
from Middleware.cli.arguments import (
    Parser,
    accept_launch_flags,
    apply_directories,
)
from Middleware.cli.program import NotDoneError
from Middleware.exceptions import DataKeyError, KeySaltError, OperatorError, WilmerError
from Middleware.models.messages import Message, add_times, without_times
from Middleware.models.request_context import RequestContext
from Middleware.services.memory.discussion_keys import DiscussionKeys, discussion_keys
from Middleware.services.memory.memory_settings import quiet_memory_settings
from Middleware.services.memory_service import MemoryService
from Middleware.utilities import config_utils
from Middleware.utilities.config.paths import console_directory
from Middleware.utilities.discussions.client_keys import key_names
from Middleware.utilities.files.file_access import atomic_write
from Middleware.utilities.text_utils import counted, escape_braces, restore_braces

DESCRIPTION = """Shows and maintains stored conversations:

  list [--json]                             every discussion with counts and sizes
  show ID [--limit N]                       summary, state document, memories, and how many messages are stored
  search ID "question" [--json]             what the node Recall finds in messages and memories
  search ID "phrase; phrase" [--limit N] [--weights T,S,E,K,M] [--recency] [--dates] [--expand]
         [--mode keyword|semantic|hybrid] [--endpoint NAME] [--query TEXT]
                                            with any of these, or without stored messages: what VectorMemorySearch finds
  check [ID]                                do all files parse, can every memory be found?
  rebuild-index ID                          rebuild the indexes of words
  index ID --from FILE                      remember the messages of a saved chat, for the node Recall
  export ID --output FILE                   write everything to one JSON file, unencrypted
  forget ID ["words"] [--before DATE] [--message N] [--elsewhere] [--yes]
                                            erase messages for good, and the memories made of them
  delete ID [--yes] [--runs]                delete everything that belongs to the discussion; --runs: with its runs

Discussions of clients with an API key lie in folders of their own: --api-key KEY, --ask-key or the environment variable
WILMER_API_KEY choose that folder, and decrypt it if the user's encryptUsingApiKey is on.{elsewhere}
Exit status: 0 if all is well, 1 if something is wrong or was not done, 2 for wrong arguments."""
KEY_VARIABLE = "WILMER_API_KEY"
OWNER_ONLY = 0o600
# The flags of ``search`` that are settings of the node VectorMemorySearch.
OF_MEMORIES = ("limit", "weights", "recency", "dates", "expand", "mode", "endpoint", "query")
Options = argparse.Namespace


@dataclass(frozen=True)
class Session:
    """One call of the tool.

    Attributes:
        keys: what the API key stands for; empty without one.
        key_folder: where to look for discussions; None: everywhere.
        key_names: the names that the key has or had.
    """

    options: Options
    keys: DiscussionKeys
    key_folder: str | None
    key_names: frozenset[str]

    def covers(self, discussion: catalog.StoredDiscussion) -> bool:
        return self.key_folder in (None, discussion.key_hash or catalog.NO_KEY)

    def reader(self) -> Reader:
        """The discussion that was named. Raises NoSuchDiscussionError."""
        return Reader(catalog.choose(catalog.all_discussions(), self.options.id, self.key_folder), self.keys)


# -- commands: each returns the exit status ----------------------------------------------------------------------------


def list_all(session: Session) -> int:
    known = catalog.all_discussions()
    rows = [overview(one, session.keys) for one in known if session.covers(one)]
    memory_output.say(
        json.dumps([as_json(row) for row in rows], indent=2, ensure_ascii=False)
        if session.options.json
        else memory_output.table(rows, len(known) - len(rows))
    )
    return 0


def show(session: Session) -> int:
    reader = session.reader()
    sections, complete = memory_output.sections(reader, session.options.limit)
    memory_output.say(sections)
    return 0 if complete else 1


def search(session: Session) -> int:
    reader, options = session.reader(), session.options
    if options.mode not in (None, "keyword") and not options.endpoint:
        raise NotDoneError(f"--mode {options.mode} needs --endpoint, the name of an embedding endpoint.")
    of_memories = [name for name in OF_MEMORIES if getattr(options, name) not in (None, False)]
    if of_memories and options.json:
        raise NotDoneError(f"--json is for what Recall finds, and cannot be combined with --{of_memories[0]}.")
    _require_sound(reader)
    return _search_memories(reader, options) if of_memories else _recall(reader, options)


def _recall(reader: Reader, options: Options) -> int:
    # Imported here, as below: most commands need none of it.
    from Middleware.addons.discussions import messages

    with reader.messages() as stored:
        if stored is None:
            if options.json:
                raise NotDoneError(f"No messages of discussion '{reader.discussion.discussion_id}' are stored.")
            return _search_memories(reader, options)
        found = messages.search(reader, stored, options.phrases)
    if options.json:
        rows = [messages.result_as_json(one) for one in found.results]
        memory_output.say(json.dumps(rows, indent=2, ensure_ascii=False))
    else:
        memory_output.say("\n".join(found.lines) or "Nothing was found.")
    return 0


def _search_memories(reader: Reader, options: Options) -> int:
    found = MemoryService().search_vector_memories(
        reader.discussion.discussion_id,
        options.phrases,
        options.limit or 5,
        reader.discussion.key_hash,
        options.weights,
        options.recency,
        options.dates,
        options.mode or "keyword",
        options.query or "",
        options.endpoint,
        options.expand,
        encryption_key=reader.encryption_key,
    )
    memory_output.say(restore_braces(found))
    return 0


def _require_sound(reader: Reader) -> None:
    """Raises NotDoneError for a database that cannot be read."""
    try:
        reader.searchable()
    except sqlite3.Error as error:
        raise NotDoneError(f"{reader.discussion.database()} cannot be searched: {error}") from None


def check_some(session: Session) -> int:
    if session.options.id is None:
        readers = [Reader(one, session.keys) for one in catalog.all_discussions() if session.covers(one)]
    else:
        readers = [session.reader()]
    problems = 0
    for reader in readers:
        place = f" (key folder {reader.discussion.key_hash})" if reader.discussion.key_hash else ""
        for finding in check(reader):
            problems += finding.problem
            memory_output.say(f"{'PROBLEM' if finding.problem else 'note'}: {finding.text}{place}")
    found = counted(problems, "problem") if problems else "no problems"
    memory_output.say(f"{counted(len(readers), 'discussion')} checked, {found}.")
    return 1 if problems else 0


def rebuild_index(session: Session) -> int:
    from Middleware.addons.discussions.messages import count

    reader = session.reader()
    has_messages = bool(count(reader, stored=True)[0])
    if not reader.discussion.has_memories and not has_messages:
        raise NotDoneError(
            f"Discussion '{reader.discussion.discussion_id}' has no searchable memories and no stored messages."
        )
    if reader.discussion.has_memories:
        with reader.state.memories(write=True) as memories:
            memory_output.say(f"The index was made again from {memories.rebuild_index()} memories.")
    if has_messages:
        with reader.messages(write=True) as stored:
            rows = stored.rebuild_index() if stored is not None else 0
        memory_output.say(f"The index of messages was made again from {counted(rows, 'row')}.")
    return 0


def index(session: Session) -> int:
    if not quiet_memory_settings().remember_messages:
        user = config_utils.get_current_username()
        raise NotDoneError(f'"rememberMessages" is off in the memory settings of user {user}, so Recall finds nothing.')
    path = os.path.expanduser(session.options.source)
    chats = read_chats(path)
    reader = session.reader()
    written = os.path.getmtime(path)
    added = sum(_index_chat(reader, chat, written) for chat in chats)
    found = sum(map(len, chats))
    memory_output.say(f"{counted(found, 'message')} of {path}: {added} new, {found - added} known before.")
    return 0


def _index_chat(reader: Reader, chat: Sequence[SavedMessage], written: float) -> int:
    """Remember a chat as if a client had sent it when its file was ``written``; return how many messages are new."""
    # Imported here: no other command needs it.
    from Middleware.addons.discussions.messages import count
    from Middleware.services.memory.remembering import remember, remember_answer

    messages: list[Message] = []
    for saved in chat:
        message = Message(role=saved["role"], content=escape_braces(saved["content"]))
        if "name" in saved:
            message["name"] = saved["name"]
        add_times(message, saved)
        messages.append(message)
    # In a chat without dates, the newest message takes the time of the file.
    request = RequestContext(started=time.monotonic() - (time.time() - written))
    messages, request.said = without_times(messages)
    before = count(reader, stored=True)[0]
    discussion = reader.discussion
    remembered = remember(request, discussion.discussion_id, messages, discussion.key_hash, reader.encryption_key)
    # What is too much for one request is stored with its answer.
    remember_answer(request, remembered, "")
    if remembered.filled is None:
        raise NotDoneError("The messages could not be stored; the reason is above.")
    return count(reader, stored=True)[0] - before


def export_one(session: Session) -> int:
    reader, target = session.reader(), os.path.expanduser(session.options.output)
    if os.path.exists(target) and not session.options.overwrite:
        raise NotDoneError(f"{target} exists already; --overwrite replaces it.")
    content = export(reader)
    try:
        atomic_write(target, json.dumps(content, indent=2, ensure_ascii=True).encode("ascii"), OWNER_ONLY)
    except OSError as error:
        raise NotDoneError(f"{target} cannot be written: {error.strerror or error}.") from error
    memory_output.say(f"Discussion '{reader.discussion.discussion_id}' is in {target}, in clear.")
    for problem in content["unreadable"]:
        memory_output.print_error(f"Not exported as it should be: {problem}")
    return 1 if content["unreadable"] else 0


def forget(session: Session) -> int:
    from Middleware.addons.discussions import forgetting

    options = session.options
    if not (options.words.strip() or options.before or options.message or options.elsewhere):
        raise NotDoneError(
            'Name the messages to be forgotten: "words" that they contain, --before, --message or --elsewhere.'
        )
    reader = session.reader()
    choice = forgetting.Choice(options.words, _midnight(options.before), options.message, options.elsewhere)
    found = forgetting.find(reader, choice)
    if not found.messages:
        raise NotDoneError("No stored message fits; nothing was forgotten.")
    memory_output.say(memory_output.what_is_forgotten(found))
    answer = "yes" if options.yes else _typed("Type yes to erase this for good: ")
    if (answer or "").strip().casefold() not in ("y", "yes"):
        raise NotDoneError("Nothing was forgotten.")
    forgetting.forget(reader, found)
    memory_output.say(memory_output.what_was_forgotten(found))
    return 0


def _midnight(day: date | None) -> int | None:
    """Return when a day begins in the user's time zone, in Unix seconds."""
    from Middleware.addons.discussions.messages import calendar

    return None if day is None else calendar().seconds(datetime.combine(day, datetime_time.min))


def delete(session: Session) -> int:
    reader = session.reader()
    discussion = reader.discussion
    memory_output.say(memory_output.what_is_deleted(discussion))
    if not session.options.yes and _typed("Type the id of the discussion to delete it: ") != discussion.discussion_id:
        raise NotDoneError("Nothing was deleted.")
    result = removal.remove(discussion)
    exports.remove(ConsoleFolder(console_directory()), reader, result)
    for left in result.left:
        memory_output.print_error(f"Not deleted: {left}")
    memory_output.say(f"{result.deleted} file(s) deleted.")
    own = discussion.key_hash in session.key_names
    _offer_runs(discussion, session.options, session.key_names if own else {discussion.key_hash} - {None})
    return 1 if result.left else 0


def _offer_runs(discussion: catalog.StoredDiscussion, options: Options, names: Collection[str | None]) -> None:
    """Delete the runs of a discussion that the console has on disk, if the user wants that.

    ``names``: those of its key.
    """
    if not os.path.isdir(console_directory()):
        return
    # Imported here: no other command needs them.
    from Middleware.addons.records.queries import RunQuery
    from Middleware.addons.records.records import stored_runs
    from Middleware.addons.records.viewers import Viewer

    operator, name = Viewer("operator"), discussion.discussion_id
    with stored_runs() as archive:
        count = archive.runs(RunQuery(limit=1, discussion=name), operator).total
        if not count or not (
            options.runs
            or (
                not options.yes
                and _typed(f"The console has {counted(count, 'run')} of it. Type the id again to delete them, too: ")
                == name
            )
        ):
            return
        memory_output.say(f"{counted(archive.delete_discussion(name, operator, names), 'run')} deleted.")


def _typed(question: str) -> str | None:
    try:
        print(question, end="", flush=True)
        return input()
    except EOFError:
        print()
        return None


COMMANDS: dict[str, Callable[[Session], int]] = {
    "list": list_all,
    "show": show,
    "search": search,
    "check": check_some,
    "rebuild-index": rebuild_index,
    "index": index,
    "export": export_one,
    "forget": forget,
    "delete": delete,
}


# -- command line ------------------------------------------------------------------------------------------------------


def run(arguments: Sequence[str] | None = None, program: str = "memory_tool.py") -> int:
    """Run the command, or its older form ``Scripts/memory_tool.py``; return the exit status."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s", stream=sys.stderr)
    return main(sys.argv[1:] if arguments is None else arguments, program)


def main(arguments: Sequence[str], program: str = "memory_tool.py") -> int:
    """Run the command; return the exit status. Wrong arguments end with SystemExit 2."""
    options = _parser(program).parse_args(arguments)
    try:
        # Makes the process use the configuration that was named.
        apply_directories(options, [options.User] if options.User else [])
        config_utils.user_settings()
        key = key_of(options, ask=True)
        elsewhere = stored_elsewhere()
        place = elsewhere.chosen(options)
        with elsewhere.used_by(place, "memory") if place else contextlib.nullcontext():
            keys, user = discussion_keys(key), config_utils.get_current_username()
            names = key_names(key, [user]) if key else frozenset()
            return COMMANDS[options.command](Session(options, keys, options.key_folder or keys.key_hash, names))
    except KeySaltError as error:
        memory_output.print_error(f"{error.file}: {error}")
    except DataKeyError as error:
        memory_output.print_error(
            f"{error}, or encryptUsingApiKey of this user is off."
            if key_of(options, ask=False)
            else f"The data is {ENCRYPTED}."
        )
    except (OperatorError, WilmerError) as error:
        memory_output.print_error(str(error))
    except (OSError, sqlite3.Error) as error:
        memory_output.print_error(f"{type(error).__name__}: {error}")
    except KeyboardInterrupt:
        memory_output.print_error("Stopped.")
    return 1


def key_of(options: Options, ask: bool) -> str:
    """Return the API key that the options, the environment or the user names; "" for none. Raises NotDoneError."""
    if options.ask_key:
        return _asked_key() if ask else "asked for"
    return options.api_key or os.environ.get(KEY_VARIABLE, "")


def _asked_key() -> str:
    try:
        key = getpass.getpass("API key: ")
        # Bytes of a pipe that are not UTF-8 are lone surrogates.
        key.encode("utf-8")
    except (UnicodeError, EOFError):
        raise NotDoneError("No key was given, or one that is not UTF-8 text.") from None
    return key


def _parser(program: str) -> argparse.ArgumentParser:
    about = stored_elsewhere().about.format("the discussions are those of that state database")
    parser = Parser(
        prog=program,
        description=DESCRIPTION.format(elsewhere=about),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(
        ConfigDirectory=None,
        PublicDirectory=None,
        DiscussionDirectory=None,
        ConsoleDirectory=None,
        User=None,
        api_key=None,
        ask_key=False,
        key_folder=None,
        database=None,
    )
    _add_common(parser)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        command = commands.add_parser(name)
        _add_common(command)
        if name != "list":
            command.add_argument("id", metavar="ID", nargs="?" if name == "check" else None)
        _OWN_ARGUMENTS.get(name, _no_more)(command)
        accept_launch_flags(command)
    accept_launch_flags(parser)
    return parser


def _add_common(parser: argparse.ArgumentParser) -> None:
    """Flags that may stand before and behind the command."""
    for name, meaning in (
        ("--User", "a user of Configs/Users (default: the current one)"),
        ("--ConfigDirectory", "the Configs folder"),
        ("--PublicDirectory", "parent of Configs"),
        ("--DiscussionDirectory", "folder of the stored conversations"),
        ("--ConsoleDirectory", "folder of the recorded runs"),
    ):
        parser.add_argument(name, metavar="N" if name == "--User" else "P", default=argparse.SUPPRESS, help=meaning)
    stored_elsewhere().add_flag(parser)
    parser.add_argument(
        "--api-key",
        metavar="KEY",
        default=argparse.SUPPRESS,
        help=f"the client's API key; others on this machine may see it, so rather set {KEY_VARIABLE}",
    )
    parser.add_argument("--ask-key", action="store_true", default=argparse.SUPPRESS, help="ask for the API key")
    parser.add_argument(
        "--key-folder",
        metavar="F",
        default=argparse.SUPPRESS,
        help=f"only discussions in this key folder; {catalog.NO_KEY}: only those outside of them",
    )


def _no_more(parser: argparse.ArgumentParser) -> None:
    pass


def _list_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="for other programs")


def _show_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--limit", type=_positive, metavar="N", help="only the newest N memories of each kind")


def _search_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("phrases", metavar="PHRASES", help="a question, or words or phrases with ';' between them")
    add("--json", action="store_true", help="for other programs: text, score, source and state of each result")
    add("--limit", type=_positive, metavar="N", help="the most memories to find (5)")
    add("--weights", type=_weights, metavar="T,S,E,K,M", help="of title, summary, entities, key phrases, text")
    add("--recency", action="store_true", help="newer memories come sooner")
    add("--dates", action="store_true", help="show the date of each memory")
    add("--expand", action="store_true", help="also look for the entities of what was found")
    add("--mode", choices=("keyword", "semantic", "hybrid"), help="how memories are looked for (keyword)")
    add("--endpoint", metavar="NAME", help="embedding endpoint, for semantic and hybrid")
    add("--query", metavar="TEXT", help="what to look for by meaning (default: the phrases)")


def _index_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--from", dest="source", required=True, metavar="FILE", help=FORMS)


def _export_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", required=True, metavar="FILE")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing file")


def _forget_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "words",
        nargs="?",
        default="",
        metavar="WORDS",
        help='that a message contains, all of them; or a "phrase" in it',
    )
    add("--before", type=_day, metavar="DATE", help="said before that day, such as 2026-03-11")
    add("--message", type=_positive, metavar="N", help="the message with this number, as 'forget' and 'search' show it")
    add("--elsewhere", action="store_true", help="what no conversation shows any more")
    add("--yes", action="store_true", help="do not ask")


def _delete_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--runs", action="store_true", help="delete its recorded runs, too")


_OWN_ARGUMENTS: dict[str, Callable[[argparse.ArgumentParser], None]] = {
    "list": _list_arguments,
    "show": _show_arguments,
    "search": _search_arguments,
    "index": _index_arguments,
    "export": _export_arguments,
    "forget": _forget_arguments,
    "delete": _delete_arguments,
}


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a date such as 2026-03-11") from None


def _weights(text: str) -> list[float]:
    weights: list[Any] = [float(part) for part in text.split(",")]
    if len(weights) != 5:
        raise argparse.ArgumentTypeError("five numbers are needed, such as 3,2,2,2,1")
    return weights
