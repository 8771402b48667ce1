"""From what was typed to test files."""
from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from Middleware.utilities.config.paths import get_root_config_directory
from Middleware.utilities.config.workflows import TEST_SUFFIX

GUIDE = "Docs/User/workflow-tests.md shows how to write some"


class NoSuchTestsError(Exception):
    """What was typed names no tests; the text says so."""


def test_files(paths: Sequence[str]) -> list[str]:
    """The test files that ``paths`` mean, each once, sorted within folders; all for no paths.

    A path is a workflow, a test file or a folder below ``Workflows``, relative to the working directory or to
    ``Workflows``. Raises NoSuchTestsError.
    """
    root = os.path.abspath(os.path.join(get_root_config_directory(), "Workflows"))
    found: dict[str, None] = {}
    for path in paths or [root]:
        found.update(dict.fromkeys(_files_of(path, root)))
    return list(found)


def _files_of(path: str, root: str) -> Iterable[str]:
    places = dict.fromkeys((os.path.abspath(path), os.path.abspath(os.path.join(root, path))))
    for place in filter(None, (_within(place, root) for place in places)):
        if os.path.isdir(place):
            files = list(_below(place))
            if not files:
                raise NoSuchTestsError(f"{path}: no file below this folder ends with {TEST_SUFFIX}; {GUIDE}")
            return files
        name = place[:-len(TEST_SUFFIX)] if place.endswith(TEST_SUFFIX) else place.removesuffix(".json")
        if os.path.isfile(name + TEST_SUFFIX):
            return [name + TEST_SUFFIX]
        if os.path.isfile(name + ".json"):
            raise NoSuchTestsError(f"{path}: this workflow has no tests; they would be in "
                                   f"{os.path.basename(name)}{TEST_SUFFIX} beside it; {GUIDE}")
    if any(os.path.exists(place + ending) for place in places for ending in ("", ".json", TEST_SUFFIX)):
        raise NoSuchTestsError(f"{path}: lies outside of {root}; --ConfigDirectory names another configuration")
    raise NoSuchTestsError(f"{path}: there is no such workflow, test file or folder.{_hint(path, root)}")


def _within(place: str, root: str) -> str | None:
    """``place`` as a path below ``root``, to which it may lead over links; None if it is elsewhere."""
    if place == root or place.startswith(os.path.join(root, "")):
        return place
    real, real_root = os.path.realpath(place), os.path.realpath(root)
    inside = real == real_root or real.startswith(os.path.join(real_root, ""))
    return os.path.normpath(os.path.join(root, os.path.relpath(real, real_root))) if inside else None


def _below(folder: str) -> Iterable[str]:
    for place, folders, names in os.walk(folder):
        folders.sort()
        yield from (os.path.join(place, name) for name in sorted(names) if name.endswith(TEST_SUFFIX))


def _hint(path: str, root: str) -> str:
    """The names below ``Workflows`` that are most like what was typed."""
    known = [name for file in _below(root) for full in [Path(os.path.relpath(file, root)).as_posix()]
             for name in (full.removesuffix(TEST_SUFFIX), *map(Path.as_posix, list(Path(full).parents)[:-1]))]
    near = difflib.get_close_matches(path.replace(os.sep, "/").removesuffix(".json"), dict.fromkeys(known), 1)
    return f" Did you mean '{near[0]}'?" if near else ""
