"""``python server.py state``: shows the state database, and moves discussions into it and back."""

from __future__ import annotations

import argparse
import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial

import psycopg

from Middleware.addons.discussions.catalog import StoredDiscussion, all_discussions, discussion_roots, discussions_in
from Middleware.addons.discussions.damage_check import check
from Middleware.addons.discussions.discussion_reader import Reader
from Middleware.addons.discussions.memory_output import human_size, print_error, say
from Middleware.addons.postgres.database import StateConnection, first_line
from Middleware.addons.postgres.database_address import DATABASE_VARIABLE, SCHEMES, chosen_database
from Middleware.addons.postgres.database_discussions import database_for_command, discussions_of
from Middleware.addons.postgres.migrations import has_schema, migrate
from Middleware.addons.postgres.moving import Outcome, Space, as_user, discussions_in_files, move_in, move_out, spaces
from Middleware.addons.postgres.stored_discussions import DiscussionName, discussion_names
from Middleware.addons.postgres.stored_salts import salt_in, salt_out
from Middleware.cli.arguments import (
    Parser,
    accept_launch_flags,
    apply_directories,
)
from Middleware.cli.program import NotDoneError
from Middleware.cli.running_server import servers_in
from Middleware.exceptions import KeySaltError, OperatorError, WilmerError
from Middleware.utilities.discussions.key_salts import KEY_FOLDER_2, SALT_FILE
from Middleware.utilities.text_utils import counted

DESCRIPTION = """Looks after the state database, which several workers share:

  status                                          the database, the workers that use it, and what is stored
  upgrade                                         bring its schema up to date
  import [--from FOLDER] [--dry-run] [--replace]  store the conversations of all users' folders, or of one folder
  export [--to FOLDER] [--replace] [ID ...]       write conversations as files, into users' own folders or one other
  check                                           do all documents parse, can every memory be found?

Conversations stay as they are stored: encrypted ones stay encrypted, without any key. What is there already and is
different is named and left alone, unless --replace is given. Exit status: 0 if all is done, 1 if something differs or
failed, 2 for wrong arguments."""
_WORKERS = """\
SELECT number, host, pid, version, to_char(started_at, 'YYYY-MM-DD HH24:MI'), config_hash, draining,
       (SELECT count(*) FROM wilmer.gate WHERE worker = number)
FROM wilmer.workers WHERE number IN (SELECT wilmer.live_workers()) ORDER BY number"""
Options = argparse.Namespace


@dataclass
class TransferReport:
    """What was done, and whether anything failed."""

    counts: dict[Outcome, int] = field(default_factory=lambda: {"moved": 0, "known": 0, "differs": 0})
    failed: bool = False

    def count(self, name: str, act: Callable[[], Outcome | None], there: str) -> None:
        """Do something with one discussion and count the result; ``there``: where it may be already."""
        try:
            outcome = act()
        except TimeoutError:
            self._fail(name, "a server is writing it just now; try again")
        except OSError as error:
            self._fail(name, error.strerror or str(error))
        except (sqlite3.Error, ValueError, KeySaltError) as error:
            self._fail(name, str(error))
        else:
            if outcome == "differs":
                print_error(f"{name}: what is {there} is different. It stays as it is, unless you give --replace.")
            if outcome is not None:
                self.counts[outcome] += 1

    def _fail(self, name: str, problem: str) -> None:
        self.failed = True
        print_error(f"{name}: {problem}")

    def status(self, done: str) -> int:
        """Print the last line; return the exit status."""
        say(f"{self.counts['moved']} discussions {done}, {self.counts['known']} known, {self.counts['differs']} differ")
        return 1 if self.failed or self.counts["differs"] else 0


def main(words: Sequence[str], program: str = "state") -> int:
    """Run the command; return the exit status. Wrong arguments end with SystemExit 2."""
    parser = _parser(program)
    options = parser.parse_args(words)
    if options.User is not None:
        parser.error("--User has no place here: this command is about the conversations of all users")
    options.database = chosen_database(options)
    if not options.database.startswith(SCHEMES):
        parser.error(f"which database? Give --database postgresql://..., or set {DATABASE_VARIABLE}")
    try:
        _use_configuration(options)
        with closing(_connect(options.database)) as connection:
            return COMMANDS[options.command](connection, options)
    except psycopg.Error as error:
        print_error(f"The state database: {first_line(error)}")
    except (OperatorError, WilmerError) as error:
        print_error(str(error))
    except KeyboardInterrupt:
        print_error("Stopped. What was printed as done is done.")
    return 1


def _connect(url: str) -> StateConnection:
    connection = database_for_command(url, "state").connect()
    connection.execute("SELECT set_config('statement_timeout', '0', false)")
    return connection


def _use_configuration(options: Options) -> None:
    apply_directories(options)


# -- commands: each returns the exit status ----------------------------------------------------------------------------


def status(connection: StateConnection, options: Options) -> int:
    # Who only looks changes nothing: the address may be that of another program's database.
    if not has_schema(connection):
        raise NotDoneError(
            "The database has no tables of WilmerAI. The first server makes them, and so do 'state "
            "upgrade' and 'state import'."
        )
    [(server, size, schema)] = connection.execute(
        "SELECT current_setting('server_version'), pg_database_size(current_database()), "
        "(SELECT max(version) FROM wilmer.schema_version)"
    ).fetchall()
    say(f"PostgreSQL {server.split()[0]}, schema {schema}, {human_size(size)}.")
    workers = connection.execute(_WORKERS).fetchall()
    say(f"{counted(len(workers), 'worker')}{':' if workers else ''}")
    usual = max((worker[5] for worker in workers), key=[worker[5] for worker in workers].count, default="")
    for number, host, pid, version, since, settings, draining, tickets in workers:
        notes = [
            f"{counted(tickets, 'request')} waiting or running",
            *(["draining"] if draining else []),
            *(["another configuration"] if settings != usual else []),
        ]
        say(f"  {number}  {host}  pid {pid}  WilmerAI {version}  since {since}  {', '.join(notes)}")
    [(documents, memories)] = connection.execute(
        "SELECT (SELECT count(*) FROM wilmer.documents), (SELECT count(*) FROM wilmer.memories)"
    ).fetchall()
    say(
        f"{counted(len(discussion_names(connection)), 'discussion')}, {counted(documents, 'document')}, "
        f"{memories} searchable memories."
    )
    return 0


def upgrade(connection: StateConnection, options: Options) -> int:
    done = migrate(connection)
    say(f"The schema is up to date; applied: {', '.join(done) or 'nothing'}.")
    return 0


def import_all(connection: StateConnection, options: Options) -> int:
    migrate(connection)
    report = TransferReport()
    if options.source is not None and not os.path.isdir(options.source):
        raise NotDoneError(f"There is no folder {options.source}.")
    _warn_of_servers(connection, [options.source] if options.source else [space.root for space in spaces()])
    roots = {space.name: _roots_of(space) for space in spaces()} if options.source is None else {}

    def take_salt(space: str, first: str | None = None) -> None:
        places = [first or "", *roots.get(space, [options.source or ""])]
        salt_in(connection, space, [place for place in places if place], dry_run=options.dry_run)

    for space in roots:
        report.count(SALT_FILE, partial(take_salt, space), "")
    for space, discussion in discussions_in_files(options.source):

        def act(space: str = space, discussion: StoredDiscussion = discussion) -> Outcome | None:
            if KEY_FOLDER_2.fullmatch(discussion.key_hash or ""):
                take_salt(space, os.path.dirname(discussion.root))
            return move_in(connection, space, discussion, replace=options.replace, dry_run=options.dry_run)

        report.count(_display(discussion.key_hash, discussion.discussion_id), act, "in the database")
    return report.status("would be imported" if options.dry_run else "imported")


def _roots_of(space: Space) -> list[str]:
    with as_user(space.user):
        return discussion_roots()


def export_all(connection: StateConnection, options: Options) -> int:
    migrate(connection)
    names = [name for name in discussion_names(connection) if not options.ids or name.discussion_id in options.ids]
    if missing := sorted(set(options.ids) - {name.discussion_id for name in names}):
        raise NotDoneError(f"There is no discussion '{missing[0]}' in the database.")
    report = TransferReport()
    _warn_of_servers(connection, [options.target] if options.target else [space.root for space in spaces()])
    targets = _Targets(options.target)
    for space in spaces() if options.target is None and not options.ids else ():
        report.count(SALT_FILE, partial(salt_out, connection, space.name, space.root), "")
    for name in names:

        def act(name: DiscussionName = name) -> Outcome | None:
            root, present = targets.of(name)
            if KEY_FOLDER_2.fullmatch(name.key_hash):
                salt_out(connection, name.space, root)
            return move_out(connection, name, root, present, replace=options.replace)

        report.count(_display(name.key_hash, name.discussion_id), act, "in the folder")
    return report.status("exported")


def _warn_of_servers(connection: StateConnection, roots: Sequence[str]) -> None:
    """Name the servers of this machine that write files into the folders while discussions are moved."""
    workers = {
        pid
        for (pid,) in connection.execute(
            "SELECT pid FROM wilmer.workers WHERE number IN (SELECT wilmer.live_workers())"
        ).fetchall()
    }
    for root in sorted({os.path.realpath(root) for root in roots}):
        for server in servers_in(root):
            # Of one that is starting, nothing is known yet.
            if server.pid and server.pid not in workers:
                print_error(
                    f"A server without a database uses {root} ({server}). Stop it and run this again: what it "
                    "writes in the meantime is not moved."
                )


def check_all(connection: StateConnection, options: Options) -> int:
    migrate(connection)
    known = spaces()
    others = sum(name.space not in {space.name for space in known} for name in discussion_names(connection))
    problems = number = 0
    with discussions_of(options.database, "state"):
        for space in known:
            with as_user(space.user):
                for discussion in all_discussions():
                    number += 1
                    place = f" (key folder {discussion.key_hash})" if discussion.key_hash else ""
                    for finding in check(Reader(discussion)):
                        problems += finding.problem
                        say(f"{'PROBLEM' if finding.problem else 'note'}: {finding.text}{place}")
    if others:
        say(f"note: {counted(others, 'discussion')} of no user's discussionDirectory, not checked")
    say(f"{counted(number, 'discussion')} checked, {counted(problems, 'problem') if problems else 'no problems'}.")
    return 1 if problems else 0


COMMANDS: dict[str, Callable[[StateConnection, Options], int]] = {
    "status": status,
    "upgrade": upgrade,
    "import": import_all,
    "export": export_all,
    "check": check_all,
}


def _display(key_hash: str | None, discussion_id: str) -> str:
    return f"{key_hash}/{discussion_id}" if key_hash else discussion_id


# -- where discussions are -------------------------------------------------------------------------------------------


class _Targets:
    """Where discussions are exported to: one folder, or the users' own."""

    def __init__(self, folder: str | None) -> None:
        self._folder = folder
        self._spaces = {space.name: space for space in spaces()}
        # By folder or space, and in it by key and id.
        self._present: dict[str, dict[tuple[str | None, str], StoredDiscussion]] = {}
        self._given: set[tuple[str, str]] = set()

    def of(self, name: DiscussionName) -> tuple[str, StoredDiscussion | None]:
        """Return the folder of discussions for this one, and what is there of it. Raises ValueError."""
        place = name.key_hash or None, name.discussion_id
        if self._folder is not None:
            if name[1:] in self._given:
                raise ValueError("other users have one with this name, which is in the folder now; leave --to out")
            self._given.add(name[1:])
            return self._folder, self._found(self._folder, lambda: discussions_in(str(self._folder))).get(place)
        space = self._spaces.get(name.space)
        if space is None:
            raise ValueError(f"it belongs to '{name.space}', which is the discussionDirectory of no user; give --to")
        with as_user(space.user):
            return space.root, self._found(space.name, all_discussions).get(place)

    def _found(
        self, where: str, scan: Callable[[], list[StoredDiscussion]]
    ) -> dict[tuple[str | None, str], StoredDiscussion]:
        if where not in self._present:
            self._present[where] = {(one.key_hash, one.discussion_id): one for one in scan()}
        return self._present[where]


# -- what is asked for -------------------------------------------------------------------------------------------------


def _parser(program: str) -> Parser:
    parser = Parser(prog=program, description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.set_defaults(database=None, ConfigDirectory=None, PublicDirectory=None, DiscussionDirectory=None)
    _add_common(parser)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        command = commands.add_parser(name)
        _add_common(command)
        if name == "import":
            command.add_argument("--from", dest="source", metavar="FOLDER", help="only those in this folder")
            command.add_argument("--dry-run", action="store_true", help="only say what would be done")
        if name == "export":
            command.add_argument("--to", dest="target", metavar="FOLDER", help="write all of them into this folder")
            command.add_argument("ids", nargs="*", metavar="ID", help="only these conversations")
        if name in ("import", "export"):
            command.add_argument("--replace", action="store_true", help="replace what is there and different")
        accept_launch_flags(command)
    parser.add_argument("--User", help=argparse.SUPPRESS)
    accept_launch_flags(parser)
    return parser


def _add_common(parser: argparse.ArgumentParser) -> None:
    """Flags that may stand before and behind the command."""
    for name, mark, meaning in (
        ("--database", "URL", f"the state database (better: {DATABASE_VARIABLE})"),
        ("--ConfigDirectory", "P", "the Configs folder"),
        ("--PublicDirectory", "P", "parent of Configs"),
        ("--DiscussionDirectory", "P", "folder of the stored conversations"),
    ):
        parser.add_argument(name, metavar=mark, default=argparse.SUPPRESS, help=meaning)
