"""``python server.py rekey``: gives the discussions of an API key to another key, or decrypts them."""

from __future__ import annotations

import argparse
import getpass
import logging
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from Middleware.addons.discussions import catalog, exports
from Middleware.addons.discussions.elsewhere import StoredElsewhere, stored_elsewhere
from Middleware.addons.discussions.memory_output import print_error, say
from Middleware.addons.discussions.rekey import journal as rekey_journal
from Middleware.addons.discussions.rekey.folder_keys import KeyChange
from Middleware.addons.discussions.rekey.journal import Journal
from Middleware.addons.discussions.rekey.key_folder import Result, change_all, changed, stored_files
from Middleware.addons.records.console_folder import ConsoleFolder
from Middleware.api.edge.access_keys import KEY_FILE
from Middleware.cli import keys
from Middleware.cli.arguments import (
    Parser,
    accept_launch_flags,
    apply_directories,
)
from Middleware.cli.program import NotDoneError
from Middleware.cli.running_server import servers_in
from Middleware.exceptions import ConfigurationError, KeySaltError, OperatorError, WilmerError
from Middleware.services.memory.discussion_keys import ENCRYPT_KEY
from Middleware.utilities import config_utils
from Middleware.utilities.command_lines import own_command
from Middleware.utilities.config.paths import console_directory, own_public_directory
from Middleware.utilities.discussions.key_salts import SALT_FILE
from Middleware.utilities.discussions.stored_files import PRIVATE_FOLDER
from Middleware.utilities.encryption_utils import SHORT_KEY
from Middleware.utilities.files.file_access import retry_while_in_use

DESCRIPTION = """Moves the stored conversations of one API key to another, or decrypts them.

STOP THE SERVER FIRST. The keys can be set in the environment (WILMER_API_KEY, WILMER_NEW_API_KEY), where others on
this machine do not see them. On a terminal, the command asks for the old key if it is missing, then for the new
one. Without a new key, everything is decrypted. --User is the user that the server runs as, spelled the same way.

The command changes everything that the server encrypts: JSON files, the state document, their backups, the
searchable memories, and the exports of the run console; what is still unencrypted is encrypted with the new key. It
works whatever the user's encryptUsingApiKey is. At the end, the folder gets the name that belongs to the new key. If
the command is interrupted, run it again: it continues where it stopped.{elsewhere}

Exit status: 0 if everything is done, 1 if something is left to do, 2 for wrong arguments."""
OLD_VARIABLE, NEW_VARIABLE = "WILMER_API_KEY", "WILMER_NEW_API_KEY"
BACKUP_SUFFIX, UNFINISHED = "_backup", ".unfinished"
RENAME_TIMEOUT = 2.0 if os.name == "nt" else 0.0  # seconds; Windows refuses while a program has a file of it open
Options = argparse.Namespace


def run(arguments: Sequence[str] | None = None, program: str = "rekey_encrypted_files.py") -> int:
    """Run the command, or its older form ``Scripts/rekey_encrypted_files.py``; return the exit status."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s", stream=sys.stderr)
    return main(sys.argv[1:] if arguments is None else arguments, program)


def main(arguments: Sequence[str], program: str = "rekey_encrypted_files.py") -> int:
    """Run the command; return the exit status. Wrong arguments end with SystemExit 2."""
    parser = _parser(program)
    options = parser.parse_args(arguments)
    try:
        change = _change(options, parser)
        _use_configuration(options)
        _refuse_short_key(change, options, parser)
        elsewhere = stored_elsewhere()
        if place := elsewhere.chosen(options):
            return _run_elsewhere(elsewhere, place, change, options)
        change, roots = change.placed(), _DiscussionRoots.of(is_one_named=_names_a_folder(options))
        _print_other_folders(roots, change)
        _require_no_server(roots.selected)
        status = _run(change, roots.selected, options.yes)
        if status == 0 and change.new_key:
            _change_list(change.old_key, change.new_key, options.accepted_keys_file)
        return status
    except KeySaltError as error:
        print_error(f"{error.file}: {error}")
    except (OperatorError, WilmerError) as error:
        print_error(str(error))
    except OSError as error:
        print_error(f"{error.filename or 'A file'}: {error.strerror or type(error).__name__}. Run it again to go on.")
    except EOFError:
        print_error("No key was typed. Nothing was changed.")
    except KeyboardInterrupt:
        print_error("Stopped. Run it again to go on.")
    return 1


# -- what is asked for -------------------------------------------------------------------------------------------------


def _parser(program: str) -> argparse.ArgumentParser:
    about = stored_elsewhere().about.format("it changes the conversations in that state database")
    parser = Parser(
        prog=program,
        description=DESCRIPTION.format(elsewhere=about),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--User", dest="user", required=True, metavar="NAME", help="the user whose client has the key")
    add("--api-key", metavar="OLD", help=f"the present API key (better: {OLD_VARIABLE})")
    add("--new-api-key", metavar="NEW", help=f"the key from now on (better: {NEW_VARIABLE}); without one: decrypt")
    add("--yes", action="store_true", help="do not ask whether there is a backup")
    keys.add_short_key_flag(parser)
    stored_elsewhere().add_flag(parser)
    add(
        "--accepted-keys-file",
        metavar="P",
        help="the server's list of accepted keys, in which the new key takes the "
        f"place of the old one (default: {KEY_FILE} in the public directory)",
    )
    for name, meaning in (
        ("ConfigDirectory", "the Configs folder"),
        ("PublicDirectory", "parent of Configs"),
        ("DiscussionDirectory", "folder of the stored conversations"),
        ("ConsoleDirectory", "folder of the recorded runs, in which the exports are"),
    ):
        add(f"--{name}", metavar="P", help=meaning)
    accept_launch_flags(parser)
    return parser


def _change(options: Options, parser: argparse.ArgumentParser) -> KeyChange:
    """Ends the process with status 2 if there is no key."""
    old = _key(options.api_key, OLD_VARIABLE)
    new = _key(options.new_api_key, NEW_VARIABLE)
    source, given = (
        ("--new-api-key", options.new_api_key)
        if options.new_api_key is not None
        else (NEW_VARIABLE, os.environ.get(NEW_VARIABLE))
    )
    if given is not None and not given.strip():
        parser.error(f"{source} is given, but blank. Put the new API key there; to decrypt everything, leave it out")
    if not old and sys.stdin.isatty():
        old = getpass.getpass("Present API key (not shown): ").strip()
        new = new or (old and _ask_for_new_key())
    if not old:
        parser.error(f"the present API key is missing: set {OLD_VARIABLE}, or give --api-key")
    if not new.isascii():
        parser.error("the new API key may only have ASCII characters: clients send others in different ways")
    return KeyChange(options.user.strip(), old, new or None)


def _refuse_short_key(change: KeyChange, options: Options, parser: argparse.ArgumentParser) -> None:
    """Ends the process with status 2 for a new key that can be guessed. A key that stays the same is never refused."""
    new = change.new_key
    if not new or len(new) >= SHORT_KEY or new == change.old_key:
        return
    if not options.allow_short_key:
        try:
            keys.refuse_short_key(new, [change.user])
        except keys.UnusableKeyError as error:
            parser.error(f"{error} Nothing was changed.")
    print_error(f"WARNING: a key of less than {SHORT_KEY} characters can be guessed by anyone who gets the disk.")


def _key(given: str | None, variable: str) -> str:
    """A key without the spaces around it, which the server does not see either."""
    return (given or "").strip() or os.environ.get(variable, "").strip()


def _ask_for_new_key() -> str:
    new = getpass.getpass("New API key (not shown; nothing at all: decrypt): ").strip()
    if new and getpass.getpass("New API key once more: ").strip() != new:
        raise NotDoneError("The two differ. Nothing was changed.")
    return new


def _use_configuration(options: Options) -> None:
    """Raises NotDoneError if there is no such user, ConfigurationError if its file cannot be read."""
    user = options.user.strip()
    apply_directories(options, [user])
    root = config_utils.get_root_config_directory()
    try:
        exists = bool(user) and config_utils.user_config_exists(user)
    # The name is a path, several files differ only in case, or the folder Users must not be read.
    except ConfigurationError as error:
        raise NotDoneError(
            f"User '{user}' in {root} cannot be used: {str(error).rstrip('.')}. Nothing was changed."
        ) from error
    if not exists:
        raise NotDoneError(
            f"There is no user '{user}' in {root}. --User takes the name of a file in Users there, without '.json'."
        )
    config_utils.user_settings()


def _names_a_folder(options: Options) -> bool:
    return any(map(config_utils.clean_directory, (options.DiscussionDirectory, options.PublicDirectory)))


@dataclass(frozen=True)
class _DiscussionRoots:
    """The folders of discussions that are worked on, and the others in which the server may look."""

    selected: list[str]
    others: list[str]

    @classmethod
    def of(cls, is_one_named: bool) -> _DiscussionRoots:
        """All folders in which the server looks. If one was named, only that: it may be a copy."""
        roots = (config_utils.get_discussions_root_directory(), os.path.join(own_public_directory(), "DiscussionIds"))
        different = list({os.path.realpath(root): root for root in reversed(roots)}.values())[::-1]
        count = 1 if is_one_named else len(different)
        return cls(different[:count], different[count:])


def _print_other_folders(roots: _DiscussionRoots, change: KeyChange) -> None:
    """Name the folders of the same key that are left alone, and how to change them."""
    for root in roots.others:
        folder = os.path.join(root, change.operation.old)
        if os.path.isdir(folder):
            configuration = os.path.abspath(config_utils.get_root_config_directory())
            again = own_command(
                "rekey", "--User", change.user, "--ConfigDirectory", configuration, "--DiscussionDirectory", root
            )
            needs_salt = change.new and change.new.salt and not os.path.exists(os.path.join(root, SALT_FILE))
            copy = f"copy {os.path.join(roots.selected[0], SALT_FILE)} there, and " if needs_salt else ""
            say(
                f"{folder} is of the same key. It is left alone, as another folder was named. To change it, too, "
                f"{copy}run this with the same keys: {again}"
            )


def _require_no_server(roots: list[str]) -> None:
    """Raise NotDoneError while a process uses one of the folders: what it writes in the meantime would be lost."""
    for root in roots:
        if servers := servers_in(root):
            raise NotDoneError(
                f"{root} is in use by a running WilmerAI ({', '.join(map(str, servers))}). Stop it, "
                "then run this again. Nothing was changed."
            )


# -- what is done ------------------------------------------------------------------------------------------------------


def _run_elsewhere(elsewhere: StoredElsewhere, place: str, change: KeyChange, options: Options) -> int:
    """Change the discussions in a state database; return the exit status. Raises NotDoneError."""
    if not options.yes:
        say("STOP ALL WILMERAI SERVERS before you go on, and make a backup of the database, for example with pg_dump.")
        print("Is there a backup of it? [Y] yes, go on  [N] no, stop\n> ", end="", flush=True)
        if input().strip().upper() != "Y":
            raise NotDoneError("Nothing was changed.")
    count, result = elsewhere.rekey(place, change)
    with elsewhere.used_by(place, "rekey"):
        for one in change.placed().sources():
            present = one.operation.new or one.operation.old
            _change_exports((found for found in catalog.all_discussions() if found.key_hash == present), one)
    if not count:
        raise NotDoneError(
            "In the state database, nothing is stored for this API key. Check the key, and the user; if "
            "you have run this before, it is done."
        )
    for name, reason in result.skipped.items():
        print_error(f"WARNING: {name} {reason}. It stays as it is, under the old key.")
    say(f"{result.changed} conversation(s) {'encrypted with the new key' if change.new_key else 'decrypted'}.")
    _hint(change, result.owners or {change.user})
    if result.skipped:
        return 1
    if change.new_key:
        _change_list(change.old_key, change.new_key, options.accepted_keys_file)
    return 0


def _run(change: KeyChange, roots: list[str], sure: bool) -> int:
    """Returns the exit status."""
    found = [
        (path, one)
        for one in change.sources()
        for root in roots
        if os.path.isdir(path := os.path.join(root, one.operation.old))
    ]
    if not found:
        return _finish_interrupted(change, roots)
    return max([_change_folder(folder, one, sure) for folder, one in found])


def _finish_interrupted(change: KeyChange, roots: list[str]) -> int:
    """Remove the journal of a run that was interrupted just before it would have. Raises NotDoneError if none was."""
    operation, names = change.operation, [one.operation.old for one in change.sources()]
    for root in roots:
        folder = os.path.join(root, operation.new or "")
        content = rekey_journal.read(folder) if operation.new else {}
        if rekey_journal.is_leftover(folder, content) and content["old"] in names:
            rekey_journal.remove(folder)
            say(f"{folder}: everything had been done.")
            return 0
    raise NotDoneError(
        f"There is no folder {operation.old} in {' or '.join(roots)}: nothing is stored for this API "
        f"key. {_advice(operation.new, roots)}"
    )


def _advice(new: str | None, roots: list[str]) -> str:
    if new and any(os.path.isdir(os.path.join(root, new)) for root in roots):
        return f"But the folder {new} of the new key is there: if you have run this before, it is done."
    return "Check the key, and the directories."


def _change_folder(folder: str, change: KeyChange, sure: bool) -> int:
    """Returns the exit status. Raises NotDoneError, OtherOperationError, OSError."""
    change = change.as_begun(rekey_journal.read(folder))
    journal = Journal.of(folder, change.operation)
    paths = stored_files(folder)
    if not paths:
        say(f"{folder} holds no stored conversations. There is nothing to do.")
        return 0
    _announce(folder, change, len(paths), len(journal.completed))
    say(
        "The server must be stopped. What it writes in the meantime may be lost."
        if sure
        else "STOP THE WILMERAI SERVER before you go on: what it writes in the meantime may be lost."
    )
    if not sure:
        _ask_for_backup(folder)
    change.keep_salt(os.path.dirname(folder))
    journal.save()
    result = change_all(folder, paths, change, journal)
    _report(result, change)
    if result.skipped:
        raise NotDoneError(
            f"{len(result.skipped)} file(s) stay as they are, and {folder} keeps its name. Correct those "
            "files or move them elsewhere, then run this again to finish."
        )
    status = _finish(folder, change)
    _hint(change, result.owners or {change.user})
    return status


def _announce(folder: str, change: KeyChange, count: int, done: int) -> None:
    say(
        f"{count} file(s) in {folder} will be {'encrypted with the new key' if change.new_key else 'DECRYPTED'}"
        f"{f'; {done} of them were, before this was interrupted' if done else ''}."
    )
    new = change.operation.new
    if new and new != change.operation.old and os.path.exists(os.path.join(os.path.dirname(folder), new)):
        say(f"The new key has a folder already ({new}): at the end you will have to merge the two by hand.")


def _ask_for_backup(folder: str) -> None:
    """Raises NotDoneError unless there is a backup."""
    print(
        f"Is there a backup of it? [Y] yes, go on  [N] no, stop  [A] make one: {folder}{BACKUP_SUFFIX}\n> ",
        end="",
        flush=True,
    )
    try:
        answer = input().strip().upper()
    except EOFError:
        answer = ""
        print()
    if answer == "A":
        _back_up(folder)
    elif answer != "Y":
        raise NotDoneError("Nothing was changed.")


def _back_up(folder: str) -> None:
    backup = folder + BACKUP_SUFFIX
    if os.path.lexists(backup):
        raise NotDoneError(f"{backup} exists already. Nothing was changed.")
    unfinished = backup + UNFINISHED
    shutil.rmtree(unfinished, ignore_errors=True)
    os.mkdir(unfinished, PRIVATE_FOLDER)
    try:
        shutil.copytree(folder, unfinished, dirs_exist_ok=True, ignore_dangling_symlinks=True)
    except shutil.Error as error:
        raise NotDoneError(f"The backup failed ({len(error.args[0])} file(s)). Nothing was changed.") from None
    _rename(unfinished, backup)
    say(f"The backup is in {backup}. Delete it when all is well: the old key still opens it.")


def _report(result: Result, change: KeyChange) -> None:
    for path, reason in result.skipped.items():
        print_error(f"WARNING: {path} {reason}. It stays as it is.")
    say(
        f"{result.changed} file(s) {'encrypted with the new key' if change.new_key else 'decrypted'}"
        f"{f', {result.done_before} were so before' if result.done_before else ''}."
    )


def _finish(folder: str, change: KeyChange) -> int:
    """Give the folder its new name. The journal goes last: while it is there, a further run finishes this."""
    operation = change.operation
    root = os.path.dirname(folder)
    _change_exports((one for one in catalog.discussions_in(root) if one.key_hash == operation.old), change)
    if operation.new in (None, operation.old):
        rekey_journal.remove(folder)
        return 0
    target = os.path.join(root, str(operation.new))
    if os.path.lexists(target):
        rekey_journal.remove(folder)
        raise NotDoneError(
            f"{target} exists already. Merge by hand: move the folders of the discussions in {folder} "
            f"there. If both have one of the same name, keep one of them elsewhere."
        )
    _rename(folder, target)
    rekey_journal.remove(target)
    say(f"The folder is now {target}. Set the new key in the client, then start the server.")
    return 0


def _change_exports(discussions: Iterable[catalog.StoredDiscussion], change: KeyChange) -> None:
    """Let the exports that the run console has made go with their discussions, as encrypted as these."""
    console, old = ConsoleFolder(console_directory()), change.operation.old

    def changed_export(stored: bytes) -> bytes | None:
        return changed("export.json", stored, change)[0]

    for discussion in discussions:
        for problem in exports.give_to_key(console, discussion, old, change.operation.new or old, changed_export):
            print_error(f"WARNING: {problem}. It stays under the old key.")


def _change_list(old: str, new: str, given: str | None) -> None:
    """Replace the old key in the list of accepted keys, or print the line for it. Raises NotDoneError."""
    path = config_utils.clean_directory(given) or keys.default_list()
    if given is None and not os.path.exists(path):
        say(
            "If the server has a list of accepted keys (--accepted-keys-file), replace the line of the old key by: "
            f"{keys.line_for(new)}"
        )
        return
    numbers = keys.replace_key(path, old, new)
    if numbers:
        say(f"{path}: the new key is in line {', '.join(map(str, numbers))}, in place of the old one.")
    else:
        say(f"{path}: the old key is not in it, so this list stays as it is.")


def _rename(folder: str, target: str) -> None:
    retry_while_in_use(lambda: os.rename(folder, target), RENAME_TIMEOUT)


def _hint(change: KeyChange, owners: set[str]) -> None:
    """Name the users whose files these are, and whose setting does not fit."""
    for user in sorted(owners):
        try:
            encrypts = config_utils.flag_in(config_utils.settings_for(user), ENCRYPT_KEY, user)
        except WilmerError:  # a file that the server cannot read either
            continue
        if change.new_key and not encrypts:
            say(f"'{ENCRYPT_KEY}' of user {user} is off: the server cannot read this. Set it to true.")
        if not change.new_key and encrypts:
            say(
                f"'{ENCRYPT_KEY}' of user {user} is on: what the server writes will be encrypted again. Set it to "
                "false if you do not want that."
            )
