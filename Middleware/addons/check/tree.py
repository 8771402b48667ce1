"""The files below the config root, each with its kind, and those that the command line names."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from Middleware.addons.check.file_check import KINDS, FileKind, kind_of
from Middleware.addons.check.findings import Finding
from Middleware.addons.check.lookups import FOLDER_CUTOFF
from Middleware.addons.check.memory_check import COMPACTOR_KEY, MEMORY_KEY
from Middleware.cli.program import StartError
from Middleware.exceptions import ConfigurationError
from Middleware.utilities.config.check import is_remark, quoted
from Middleware.utilities.config.keys.user import USER
from Middleware.utilities.config.lookup import FORBIDDEN_FOLDER, dangling_target
from Middleware.utilities.config.paths import clean_directory, holds_users
from Middleware.utilities.config.store import config_store
from Middleware.utilities.files.file_access import is_forbidden
from Middleware.utilities.text_utils import nearest, plain

COLLECTIONS = tuple(dict.fromkeys(kind.pattern.partition("/")[0] for kind in KINDS.values()))
DEFAULT_WORKFLOW = "_DefaultWorkflow.json"
SETTINGS_KEYS = {MEMORY_KEY: "memory-settings", COMPACTOR_KEY: "compactor-settings"}
# Collections whose files must not be in folders of their own.
FLAT_COLLECTIONS = ("MCPServers",)
# Windows hides the last ending, so that Main.json.txt looks like Main.json there.
OTHER_ENDINGS = (".json.txt", ".jsonc", ".json5", ".jsn", ".json.json")


@dataclass(frozen=True)
class TreeFile:
    """A JSON file: its name in messages, its path, and its kind, None for a file that the program does not read."""

    display: str
    path: str
    kind: FileKind | None


@dataclass
class Tree:
    """All files of a config root.

    Attributes:
        files: the JSON files by their names in messages.
        findings: mistakes in the names of files and folders.
    """

    files: dict[str, TreeFile]
    findings: list[Finding]

    def of_kind(self, *names: str) -> Iterator[TreeFile]:
        """Return the files of these kinds, in order."""
        return (file for file in self.files.values() if file.kind is not None and file.kind.name in names)

    def users(self) -> list[str]:
        """Return the names of all users, including those in folders and those that start with ``_``."""
        return [file.display[len("Users/") : -len(".json")] for file in self.of_kind("user")]


def read_tree(root: str, users: Collection[str] | None = None) -> Tree:
    """Walk the folders below ``root``. Names that start with a dot are left out.

    ``users``: the only ones whose files are opened; None: all files are opened, to determine their kinds.
    """
    tree = Tree({}, [])
    for display, path in _walk(root, "", tree.findings):
        lower = display.lower()
        if lower.endswith(".json") and not lower.endswith(".json.json"):
            _add(tree, display, path)
        elif lower.endswith(OTHER_ENDINGS) and display.partition("/")[0] in COLLECTIONS:
            stem = display.rpartition("/")[2][: -len(next(end for end in OTHER_ENDINGS if lower.endswith(end)))]
            tree.findings.append(
                _unread(display, "the name does not end in .json, so the program does not read it", f"{stem}.json")
            )
        elif display.partition("/")[0] in COLLECTIONS and (target := dangling_target(path)):
            # Most likely a folder: files have an ending.
            tree.findings.append(_unread(display, f"the link points to {quoted(target)}, which does not exist"))
    tree.findings.extend(_misnamed_defaults(tree))
    _find_settings(tree, users)
    return tree


def _misnamed_defaults(tree: Tree) -> Iterator[Finding]:
    """Yield files whose name is nearly that of a folder's default workflow, in folders that have none."""
    defaults = {
        display.rpartition("/")[0]
        for display in tree.files
        if display.rpartition("/")[2].casefold() == DEFAULT_WORKFLOW.casefold()
    }
    for display in tree.files:
        folder, _, name = display.rpartition("/")
        if folder.startswith("Workflows/") and folder not in defaults and plain(name) == plain(DEFAULT_WORKFLOW):
            yield _unread(
                display,
                "the name is not that of a default workflow, so that clients are not offered the "
                f"folder '{folder.rpartition('/')[2]}' as a model",
                DEFAULT_WORKFLOW,
            )


def _walk(
    root: str, folder: str, findings: list[Finding], above: frozenset[str] = frozenset()
) -> Iterator[tuple[str, str]]:
    """Walk one folder. Folders that must not be read are added to ``findings``.

    ``above``: the real paths of the folders around it, into which links may lead back.
    """
    here = os.path.join(root, *folder.split("/")) if folder else root
    real = os.path.realpath(here)
    if real in above:
        return
    if is_forbidden(here):
        findings.append(
            Finding("error", folder, "", None, FORBIDDEN_FOLDER, "a folder that the user of the program may read")
        )
        return
    try:
        with os.scandir(here) as found:
            entries = sorted((entry.name, os.path.isdir(entry), entry.path) for entry in found)
    # Reported by the check that needs a file in it.
    except OSError:
        return
    for name, holds_more, path in entries:
        display = f"{folder}/{name}" if folder else name
        if name.startswith("."):
            continue
        if holds_more:
            yield from _walk(root, display, findings, above | {real})
        else:
            yield display, path


def _add(tree: Tree, display: str, path: str) -> None:
    kind = kind_of(display)
    tree.files[display] = TreeFile(display, path, kind)
    folder, _, rest = display.partition("/")
    if not display.endswith(".json"):
        tree.findings.append(
            _unread(
                display,
                "the ending is not in lower case, so that the file may not be found",
                display.rpartition("/")[2][:-5] + ".json",
            )
        )
    elif kind is None and not rest:
        tree.findings.append(
            _unread(
                display,
                "the file lies in none of the folders of the configuration, so the program does not read it",
                "",
                ", ".join(COLLECTIONS),
            )
        )
    elif kind is None and not _is_known(tree, folder):
        near = nearest(folder, COLLECTIONS, FOLDER_CUTOFF)
        tree.findings.append(
            _unread(
                display,
                f"the program does not read files in the folder '{folder}'",
                near,
                ", ".join(COLLECTIONS) if not near else "",
            )
        )
    elif folder in FLAT_COLLECTIONS and "/" in rest and not rest.startswith("_"):
        tree.findings.append(
            _unread(
                display,
                f"files in folders below {folder} are never found",
                "",
                f"the file in {folder} itself, or in a folder such as _examples",
            )
        )


def _is_known(tree: Tree, folder: str) -> bool:
    """Return whether a folder was reported already; each is reported once, at its first file."""
    return folder in COLLECTIONS or any(finding.file.startswith(f"{folder}/") for finding in tree.findings)


def _unread(display: str, message: str, suggestion: str = "", expected: str = "") -> Finding:
    return Finding("warning", display, "", None, message, expected, suggestion)


def _find_settings(tree: Tree, users: Collection[str] | None) -> None:
    """Assign the kinds of settings files, which are among workflows: users name them, or their keys identify them."""
    named = dict(_named_settings(tree, users))
    for display, file in list(tree.files.items()):
        if file.kind is None or file.kind.name != "workflow":
            continue
        name = named.get(display.casefold()) or (settings_like(_content(file)) if users is None else "")
        if name:
            tree.files[display] = TreeFile(display, file.path, KINDS[name])


def _named_settings(tree: Tree, users: Collection[str] | None) -> Iterator[tuple[str, str]]:
    """Yield files that a name of settings in a user file may refer to, and the kind of these settings."""
    wanted = None if users is None else {user.casefold() for user in users}
    for file in tree.of_kind("user"):
        own = file.display[len("Users/") : -len(".json")]
        settings = _content(file) if wanted is None or own.casefold() in wanted else {}
        folder = USER.value(settings, "workflowConfigsSubDirectoryOverride") or own
        for key, kind in SETTINGS_KEYS.items():
            for parent in (f"_overrides/{folder}", folder):
                yield f"Workflows/{parent}/{settings.get(key)}.json".casefold(), kind


def settings_like(content: Mapping[str, object]) -> str:
    """Return the kind of settings whose keys a file without nodes has; empty if it has none of them."""
    if not content or "nodes" in content:
        return ""
    own = {
        name: sum(key in KINDS[name].key for key in content if not is_remark(key)) for name in SETTINGS_KEYS.values()
    }
    best = max(own, key=lambda name: own[name])
    return best if own[best] > 1 else ""


def _content(file: TreeFile) -> Mapping[str, object]:
    try:
        data = config_store().read_json(file.path, display=file.display)
    except ConfigurationError:
        return {}
    return data if isinstance(data, dict) else {}


# -- files and folders on the command line -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Scope:
    """Files and folders by their names in messages; the whole configuration without any."""

    names: tuple[str, ...] = ()

    def holds(self, file: str) -> bool:
        """Return whether a file, given by its name in messages, is one of them or in one of them."""
        return not self.names or any(file == name or file.startswith(f"{name}/") for name in self.names)


EVERYTHING = Scope()


def split_words(words: Iterable[str], root: str, is_given: bool) -> tuple[Scope, list[str], str]:
    """Return the scope that the words name, the other words, and the config root of the scope ("" without a scope).

    Args:
        root: the config root without these words.
        is_given: the command line names that root, so that no other one may be meant.
    """
    inside: list[str] = []
    others: list[str] = []
    found = ""
    for word in words:
        path = "" if _is_user(word, root) else _existing(word, root)
        home = _root_of(path, root, is_given) if path else ""
        if word.lower().endswith(".json") and not path and not _is_user(word, root):
            raise StartError(_no_file(word, root))
        if path and os.path.isfile(path):
            _require_configuration(path, home)
        if not home or path == home:
            others.append(word)
            continue
        if found and found != home:
            raise StartError(f"{word} is in another configuration ({home}) than the paths before it ({found}).")
        found = found or home
        inside.append(os.path.relpath(path, home).replace(os.sep, "/"))
    return Scope(tuple(inside)), others, found


def _no_file(word: str, root: str) -> str:
    folder, name = os.path.split(word)
    names = [one for above in (os.curdir, root) for one in _listed(os.path.join(above, folder))]
    near = nearest(name, names)
    return f"There is no file {word}." + (f" Did you mean {os.path.join(folder, near)}?" if near else "")


def _is_user(word: str, root: str) -> bool:
    folder, _, name = word.replace("\\", "/").rpartition("/")
    return f"{name}.json".casefold() in (one.casefold() for one in _listed(os.path.join(root, "Users", folder)))


def _listed(folder: str) -> Sequence[str]:
    try:
        return os.listdir(folder)
    # There is no such folder, or no folder can have this name.
    except (OSError, ValueError):
        return ()


def _existing(word: str, root: str) -> str:
    """Return the path that a word means, relative to the working directory or to the config root; "" if none exists."""
    text = clean_directory(word) or ""
    paths = (os.path.abspath(text), os.path.join(os.path.abspath(root), text))
    return next((os.path.normpath(path) for path in paths if text and os.path.lexists(path)), "")


def _root_of(path: str, root: str, is_given: bool) -> str:
    """Return the folder of the configuration around a path, or the path itself; "" without one."""
    # The second spelling is for a root that is named through a link, such as /tmp on macOS.
    for above in (os.path.abspath(root), os.path.realpath(root)):
        if path == above or path.startswith(above + os.sep):
            return above
    if is_given:
        return ""
    while not holds_users(path):
        path, last = os.path.dirname(path), path
        if path == last:
            return ""
    # On Windows and macOS the root of the disk has a folder 'Users', which is not ours.
    return "" if path == os.path.dirname(path) else path


def _require_configuration(path: str, home: str) -> None:
    """Raise StartError for a file that is not part of a configuration."""
    if not home:
        raise StartError(
            f"{path} is in no configuration folder, that is one with a folder 'Users'. Copy the file "
            "into such a folder, or name it with --ConfigDirectory."
        )
    if not path.lower().endswith((".json", *OTHER_ENDINGS)):
        raise StartError(f"{path} is not a configuration file: their names end in .json.")
