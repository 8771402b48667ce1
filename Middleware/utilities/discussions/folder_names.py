"""Names of folders and files that contain a discussion id.

They contain the id as it was sent. Where the file system takes this name for that of another discussion, as NTFS does
with ``Chat`` and ``chat``, the discussion has a name of its own: the id, ``~`` and twelve hexadecimal digits of its
SHA-256. So a name always leads back to one id, on every file system to which the folders are copied.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import re
import tempfile
import time
import unicodedata
from collections.abc import Callable, Iterable

from Middleware.utilities.discussions.stored_files import PRIVATE_FOLDER
from Middleware.utilities.files.path_utils import folded_name
from Middleware.utilities.once import MAX_REMEMBERED, BoundedCache

logger = logging.getLogger(__name__)

# In seconds: FAT stores the time of a change only that precisely.
_TICK = 2.0
# One for each user with a folder of discussions; beyond that the folders are listed again.
_MOST_ROOTS = 16
_OWN_NAME = re.compile(r"(.+)~([0-9a-f]{12})", re.DOTALL)


def own_name(discussion_id: str) -> str:
    """Return the name for a discussion whose id the file system takes for another name."""
    return f"{discussion_id}~{_digest(discussion_id)}"


def id_of_folder(name: str) -> str:
    """Return the id of the discussion whose folder has this name."""
    if found := _OWN_NAME.fullmatch(name):
        # HFS+ stores names in normal form D.
        for discussion_id in (found[1], *(unicodedata.normalize(form, found[1]) for form in ("NFC", "NFD"))):
            if _digest(discussion_id) == found[2]:
                return discussion_id
    return name


def _digest(discussion_id: str) -> str:
    return hashlib.sha256(discussion_id.encode("utf-8", "surrogatepass")).hexdigest()[:12]


class Listings:
    """Names in folders, as far as they are wanted, which are kept until the folder changes."""

    def __init__(self, wanted: Callable[[list[str]], Iterable[str]]) -> None:
        self._wanted = wanted
        self._known: BoundedCache[str, tuple[int, frozenset[str]]] = BoundedCache(_MOST_ROOTS)

    def names(self, folder: str, *, fresh: bool = False) -> frozenset[str]:
        """Return the names; none of a path that is not a folder. ``fresh``: list the folder again."""
        try:
            changed = os.stat(folder).st_mtime_ns
            known = self._known.get(folder)
            if known is not None and known[0] == changed and not fresh:
                return known[1]
            names = frozenset(self._wanted(os.listdir(folder)))
        # OSError: the folder does not exist. ValueError: no folder can have this name.
        except (OSError, ValueError):
            return frozenset()
        # A second change within one tick would leave the same time.
        if abs(time.time() - changed / 1e9) > _TICK:
            self._known.put(folder, (changed, names))
        return names


class DiscussionNames:
    """The names that discussions have in folders. A lookup creates nothing that stays."""

    def __init__(self) -> None:
        self._listings = Listings(lambda names: names)
        # Whether there is no other spelling of a path.
        self._unique: BoundedCache[str, bool] = BoundedCache(MAX_REMEMBERED)

    # -- what the file system is asked, apart from names in folders; tests replace it --------------------------------
    def is_folder(self, path: str) -> bool:
        return os.path.isdir(path)

    def is_there(self, path: str) -> bool:
        return os.path.exists(path)

    def make(self, path: str) -> None:
        os.makedirs(path, PRIVATE_FOLDER, exist_ok=True)

    def keeps_forms(self, folder: str) -> bool:
        """Return whether a new name keeps its normal form; False if nothing can be made in the folder."""
        with contextlib.suppress(OSError), tempfile.TemporaryDirectory(prefix=".\u00e9", dir=folder) as probe:
            return os.path.basename(probe) in os.listdir(folder)
        return False

    # -- folders --------------------------------------------------------------------------------------------------
    def find(self, parent: str, discussion_id: str) -> str | None:
        """Return the existing folder of a discussion, or None."""
        plain = os.path.join(parent, discussion_id)
        if _is_plain(discussion_id) and self.is_folder(plain) and self.is_spelled_so(plain):
            return plain
        own = os.path.join(parent, own_name(discussion_id))
        return own if self.is_folder(own) and self.is_spelled_so(own) else None

    def new(self, parent: str, discussion_id: str) -> str:
        """Return the folder to create for a discussion that has none."""
        plain = os.path.join(parent, discussion_id)
        if _is_plain(discussion_id) and not self.is_folder(plain):
            return plain
        return os.path.join(parent, own_name(discussion_id))

    def made(self, parent: str, discussion_id: str) -> str:
        """Create the folder of a discussion, unless it has one, and return it. Raises OSError."""
        for _ in range(2):
            found = self.find(parent, discussion_id)
            if found is not None:
                return found
            path = self.new(parent, discussion_id)
            if _is_plain(discussion_id) and os.path.basename(path) != discussion_id:
                logger.warning(
                    "Discussion %s gets the folder %s, as the file system takes its id for that of another one",
                    discussion_id,
                    path,
                )
            # Another process may make one at the same moment that the file system takes for this one.
            self.make(path)
        found = self.find(parent, discussion_id)
        if found is None:
            raise FileExistsError(errno.EEXIST, "the file system takes its name for that of another folder", path)
        return found

    # -- files ----------------------------------------------------------------------------------------------------
    def file(self, path_of: Callable[[str], str], discussion_id: str) -> str:
        """Return the path of a file, existing or not; ``path_of`` returns it for the part that stands for the id."""
        plain = path_of(discussion_id)
        is_there = self.is_there(plain)
        if is_there and self.is_spelled_so(plain):
            return plain
        own = path_of(own_name(discussion_id))
        return own if is_there or self.is_there(own) else plain

    # -- spellings ------------------------------------------------------------------------------------------------
    def is_spelled_so(self, path: str) -> bool:
        """Return whether the file or folder that this path leads to has exactly this name."""
        parent, name = os.path.split(path)
        if self._is_unique(path, parent, name) or name in self._listings.names(parent):
            return True
        # On FAT, a folder keeps its time of change when something is made in it.
        names = self._listings.names(parent, fresh=True)
        # Without permission to list the folder, the name cannot be compared.
        if name in names or not names:
            return True
        # HFS+ stores normal form D of whatever was sent. A folder with a name in another form is on no such disk.
        stored = unicodedata.normalize("NFD", name)
        return stored in names and all(map(_is_form_d, names)) and not self.keeps_forms(parent)

    def _is_unique(self, path: str, parent: str, name: str) -> bool:
        """Return whether no other spelling leads to a place that exists: on most file systems, none does."""
        known = self._unique.get(path)
        if known is None:
            known = not any(self.is_there(os.path.join(parent, other)) for other in _other_spellings(name))
            # What was removed in the meantime has no other spelling either.
            if self.is_there(path):
                self._unique.put(path, known)
        return known


def _is_form_d(name: str) -> bool:
    return unicodedata.is_normalized("NFD", name)


def _is_plain(discussion_id: str) -> bool:
    """Return whether the id may be a name: one that looks like the own name of another id may not."""
    return "~" not in discussion_id or id_of_folder(discussion_id) == discussion_id


def _other_spellings(name: str) -> set[str]:
    """Return names that a file system takes for this one, if it takes any: one of each kind."""
    normal = unicodedata.normalize("NFD", name.casefold())
    others = {
        "".join(map(_swapped, name)),
        # File systems do not know the capitals of every script.
        "".join(letter.swapcase() if letter.isascii() else letter for letter in name),
        *(unicodedata.normalize(form, name) for form in ("NFC", "NFD")),
        unicodedata.normalize("NFD", normal.casefold()),
        # HFS+ ignores marks that cannot be seen.
        folded_name(name),
        f"{name}\u200d",
        # Windows and FAT ignore dots and spaces at the end. Windows also has short names, such as PROGRA~1.
        name.rstrip(" ."),
        f"{name}.",
    }
    return others - {name, ""}


def _swapped(letter: str) -> str:
    """Return the letter in the other case, if that leads back: that of a Turkish dotless i does not."""
    other = letter.swapcase()
    return other if len(other) == 1 and other.swapcase() == letter else letter
