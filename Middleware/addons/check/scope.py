"""The files and folders that the command line names, to which the report of a check is limited."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from Middleware.addons.check.tree import OTHER_ENDINGS
from Middleware.cli.console import StartError
from Middleware.utilities.config.paths import clean_directory, holds_users
from Middleware.utilities.text_utils import nearest


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
    # There is no such folder, or none can have this name.
    except (OSError, ValueError):
        return ()


def _existing(word: str, root: str) -> str:
    """Return the path that a word means, relative to the working directory or to the config root; "" if none exists."""
    text = clean_directory(word) or ""
    paths = (os.path.abspath(text), os.path.join(os.path.abspath(root), text))
    return next((os.path.normpath(path) for path in paths if text and os.path.lexists(path)), "")


def _root_of(path: str, root: str, is_given: bool) -> str:
    """Return the folder of the configuration around a path, or the path itself; "" if there is none."""
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
    """Raise StartError for a file that is no part of a configuration."""
    if not home:
        raise StartError(
            f"{path} is in no configuration folder, that is one with a folder 'Users'. Copy the file "
            "into such a folder, or name it with --ConfigDirectory."
        )
    if not path.lower().endswith((".json", *OTHER_ENDINGS)):
        raise StartError(f"{path} is not a configuration file: their names end in .json.")
