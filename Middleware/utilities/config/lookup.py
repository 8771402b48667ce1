"""The lookup of configuration files by the names in other configuration files.

A lookup has candidates, each a path below the config root. The exact name is tried in every candidate folder in order;
only then one match that ignores case is accepted, with a warning (configurations move between platforms). A folder that
does not exist as spelled is matched ignoring case in the same way, so a user ``ALICE`` finds ``Workflows/alice``.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping, Sequence

from Middleware.exceptions import ConfigNotFoundError, ConfigurationError, ConfigValueError
from Middleware.models.process import process
from Middleware.utilities.config.paths import get_root_config_directory
from Middleware.utilities.config.store import REVALIDATE_SECONDS, ConfigStore, FoundFile, config_store
from Middleware.utilities.files.file_access import is_forbidden
from Middleware.utilities.files.path_utils import split_name
from Middleware.utilities.once import BoundedCache, Once
from Middleware.utilities.text_utils import nearest

logger = logging.getLogger(__name__)

Candidate = tuple[str, ...]
# Some names come from requests, so the results and warnings that are kept about them are limited.
MAX_REMEMBERED = 4096
# A message with more folders would not help to find the one that is meant.
MAX_ELSEWHERE = 3
# Lower than for keys: a file that does not exist has no other explanation than a distant name.
SIMILAR = 0.6
FORBIDDEN_FOLDER = "no permission to read this folder"


class ConfigLookup:
    """Finds files through the cache of the store. A result is valid as long as the oldest fact that it depends on."""

    def __init__(self, store: ConfigStore) -> None:
        self.store = store
        self._known: BoundedCache[tuple[str, tuple[Candidate, ...]], tuple[float, FoundFile | None]] = BoundedCache(
            MAX_REMEMBERED
        )
        self._warned: Once[tuple[str, str]] = Once(MAX_REMEMBERED)

    def clear(self) -> None:
        self._known.clear()
        self._warned.clear()

    @property
    def other_spellings(self) -> list[tuple[str, str]]:
        """Each folder and file that was requested in another case: the requested and the actual spelling."""
        return self._warned.keys()

    def find(self, root: str, candidates: tuple[Candidate, ...]) -> FoundFile | None:
        """Return the file of the first candidate that has one. The last part of each is a name without ``.json``.

        Raises ``ConfigValueError`` if several files or folders differ from a candidate in case only.
        """
        key = (root, candidates)
        known = self._known.get(key)
        if known is not None and self.store.clock() - known[0] < REVALIDATE_SECONDS:
            return known[1]
        search = _Search(self.store, root)
        found = search.find(candidates)
        if found is not None:
            self._warn_about_case(found, candidates)
        # Also when nothing was found: a missing file must not cost a search at each request.
        self._known.put(key, (search.oldest, found))
        return found

    def nearest(self, root: str, candidates: Sequence[Candidate], name: str) -> str:
        """Return the existing name most similar to the last part of the candidates; "" if none is similar."""
        search = _Search(self.store, root)
        prefix = name.replace("\\", "/").rpartition("/")[0]
        wanted = candidates[-1][-1].casefold()
        # A file of exactly this name appeared or disappeared after the search; it is not a suggestion.
        stems = [
            stem
            for candidate in candidates
            for folder in search.folders(candidate[:-1])
            for stem in search.stems(folder)
            if not _is_test(folder, stem) and stem.casefold() != wanted
        ]
        near = nearest(wanted, stems, SIMILAR)
        return f"{prefix}/{near}" if prefix and near else near

    def elsewhere(self, root: str, candidates: Sequence[Candidate]) -> list[str]:
        """Return the folders of the same collection that hold a file of the candidates' name; none if many do."""
        search = _Search(self.store, root)
        wanted = candidates[-1][-1].casefold()
        # A name that is in many folders, such as that of a default workflow, tells nothing about which was meant.
        if wanted.startswith("_default"):
            return []
        found = [
            "/".join(folder)
            for folder in search.all_folders((candidates[-1][0],))
            if any(stem.casefold() == wanted for stem in search.stems(folder))
        ]
        return found if len(found) <= MAX_ELSEWHERE else []

    def folder_names(self, root: str, parts: Candidate) -> Mapping[str, bool]:
        """Return the names in a folder below the root, and for each whether it is a folder; empty if it is missing."""
        search = _Search(self.store, root)
        names = search.listing(parts)
        if names is not None:
            return names
        folder = search.folder(parts)
        return search.names(folder) if folder is not None else {}

    def _warn_about_case(self, found: FoundFile, candidates: tuple[Candidate, ...]) -> None:
        wanted = tried_paths(candidates)
        if found.display in wanted:
            return
        meant = next((path for path in wanted if path.casefold() == found.display.casefold()), wanted[0])
        for names in _differences(meant, found.display):
            if self._warned.first(names):
                logger.warning("There is no %s; %s is used, whose spelling differs in upper and lower case.", *names)


def tried_paths(candidates: Sequence[Candidate]) -> list[str]:
    """Return the candidates as display paths, without repetitions."""
    return list(dict.fromkeys("/".join(candidate) + ".json" for candidate in candidates))


def _differences(meant: str, used: str) -> list[tuple[str, str]]:
    """Return the parts of two paths that are spelled differently, each below the folder that exists.

    A folder is reported once, however many files below it are used.
    """
    asked, real = meant.split("/"), used.split("/")
    # Another candidate was found, in a folder of another depth: the parts do not correspond.
    if len(asked) != len(real):
        return [(meant, used)]
    return [
        ("/".join([*real[:index], name]), "/".join(real[: index + 1]))
        for index, name in enumerate(asked)
        if name != real[index]
    ]


class _Search:
    """One lookup; ``oldest`` is the clock time of the oldest fact it used."""

    def __init__(self, store: ConfigStore, root: str) -> None:
        self._store, self._root = store, root
        self.oldest = math.inf

    def find(self, candidates: Sequence[Candidate]) -> FoundFile | None:
        for candidate in candidates:
            exact = self._file(candidate)
            # The folder may be spelled differently, although the file is not.
            if exact is None:
                folder = self.folder(candidate[:-1])
                exact = self._file((*folder, candidate[-1])) if folder not in (None, candidate[:-1]) else None
            if exact is not None:
                return exact
        # Only now: an exact name in a later folder takes precedence over another spelling in an earlier one.
        for candidate in candidates:
            folder = self.folder(candidate[:-1])
            if folder is None:
                continue
            matches = [stem for stem in self.stems(folder) if stem.casefold() == candidate[-1].casefold()]
            if len(matches) > 1:
                _refuse_choice(candidate, [(*folder, f"{stem}.json") for stem in matches])
            if matches:
                return self._file((*folder, matches[0]))
        return None

    def folder(self, parts: Candidate) -> Candidate | None:
        """Return the folder as it is spelled on disk: exactly as given, else the one that differs only in case."""
        matches = self.folders(parts)
        if len(matches) > 1:
            _refuse_choice(parts, matches)
        return matches[0] if matches else None

    def folders(self, parts: Candidate) -> list[Candidate]:
        if self.listing(parts) is not None:
            return [parts]
        matches: list[Candidate] = [()]
        for part in parts:
            wanted = part.casefold()
            matches = [
                (*base, name)
                for base in matches
                for name, is_folder in self.names(base).items()
                if is_folder and name.casefold() == wanted
            ]
        return matches

    def names(self, folder: Candidate) -> Mapping[str, bool]:
        return self.listing(folder) or {}

    def stems(self, folder: Candidate) -> list[str]:
        """Return the names of the JSON files in a folder, sorted, without their suffix."""
        return sorted(
            name[:-5] for name, is_folder in self.names(folder).items() if not is_folder and name.endswith(".json")
        )

    def all_folders(self, top: Candidate) -> list[Candidate]:
        """Return a folder and all folders below it, without those that a link leads back to."""
        found, waiting, real = [], [top], set()
        while waiting:
            folder = waiting.pop(0)
            path = os.path.realpath(os.path.join(self._root, *folder))
            if path not in real:
                real.add(path)
                found.append(folder)
                waiting += [(*folder, name) for name, is_folder in self.names(folder).items() if is_folder]
        return found

    def listing(self, parts: Candidate) -> Mapping[str, bool] | None:
        """Return the names in a folder spelled exactly so; None if there is no such folder."""
        names, checked = self._store.list_folder(os.path.join(self._root, *parts))
        self.oldest = min(self.oldest, checked)
        return names

    def _file(self, candidate: Candidate) -> FoundFile | None:
        path = os.path.join(self._root, *candidate) + ".json"
        exists, checked = self._store.file_exists(path)
        self.oldest = min(self.oldest, checked)
        return FoundFile(path, "/".join(candidate) + ".json") if exists else None


def _is_test(folder: Candidate, stem: str) -> bool:
    return folder[:1] == ("Workflows",) and stem.endswith(".test")


def _refuse_choice(wanted: Candidate, matches: Sequence[Candidate]) -> None:
    named = ", ".join(sorted("/".join(match) for match in matches))
    raise ConfigValueError(
        f"'{'/'.join(wanted)}' does not exist as spelled, and several names differ from it only in "
        f"upper and lower case: {named}"
    )


def config_lookup() -> ConfigLookup:
    """Return the lookup of this process, over ``config_store()``."""
    return process().one(_lookup)


def _lookup() -> ConfigLookup:
    return ConfigLookup(config_store())


def reset_config_store() -> None:
    """Clear the caches (for tests)."""
    config_store().clear()
    config_lookup().clear()


def candidate(name: object, *folders: str, kind: str) -> Candidate:
    """Return the path of ``name`` in ``folders``. Raises ``ConfigValueError`` naming ``kind`` for an unusable name."""
    if isinstance(name, str) and not name.strip():
        raise ConfigValueError(f"no name is given for the {kind}")
    try:
        parts: Candidate = ()
        for folder in folders:
            if folder:
                parts += split_name(folder)
        return parts + split_name(name)
    except ConfigValueError as error:
        raise ConfigValueError(f"{kind}: {error}") from None


def find_file(*candidates: Candidate) -> FoundFile | None:
    """Return the file of the first candidate that has one."""
    return config_lookup().find(get_root_config_directory(), candidates)


def require_file(kind: str, name: str, *candidates: Candidate) -> FoundFile:
    """Like ``find_file``; raises ``ConfigNotFoundError`` naming every path tried and the nearest name."""
    found = find_file(*candidates)
    if found is None:
        raise _not_found(kind, name, candidates)
    return found


def forbidden_folder(*candidates: Candidate) -> ConfigValueError | None:
    """Return the error for the topmost folder on the way to a file that must not be read; None if all may be read."""
    root = get_root_config_directory()
    for path in candidates:
        for depth in range(len(path)):
            if is_forbidden(os.path.join(root, *path[:depth])):
                return ConfigValueError(FORBIDDEN_FOLDER, file="/".join(path[:depth]) or os.path.basename(root))
    return None


def _not_found(kind: str, name: str, candidates: Sequence[Candidate]) -> ConfigurationError:
    """Return the error for a file that is in none of its places.

    It may be in a folder that must not be read, in another place, or be a link to nowhere.
    """
    root, tried = get_root_config_directory(), tried_paths(candidates)
    forbidden = forbidden_folder(*candidates)
    if forbidden is not None:
        return forbidden
    link = next((path for path in tried if dangling_target(os.path.join(root, *path.split("/")))), "")
    if link:
        # The target may be an absolute path, which clients must not see; `check` shows it.
        return ConfigNotFoundError(
            f"{kind} '{name}' does not exist: {link} is a link to a file that does not exist", file=link
        )
    folders = config_lookup().elsewhere(root, candidates)
    if folders:
        return ConfigNotFoundError(
            f"{kind} '{name}' does not exist where it is looked for; it lies in "
            f"{' and '.join(folders)}: move it, or name the folder",
            tried=tried,
        )
    return ConfigNotFoundError(
        f"{kind} '{name}' does not exist", tried=tried, suggestion=config_lookup().nearest(root, candidates, name)
    )


def dangling_target(path: str) -> str:
    """Return what a link points to if that does not exist; "" for a link that leads somewhere, or no link."""
    try:
        return os.readlink(path) if os.path.islink(path) and not os.path.exists(path) else ""
    # A path that no file can have, or a system without links.
    except (OSError, ValueError):
        return ""
