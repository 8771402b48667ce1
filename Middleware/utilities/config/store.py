"""The cache of configuration files.

Each file is read once. Its modification time and size are checked at most once a second, so that an edit applies to
everything that starts a second later, and a warm request opens no file. Missing files and folder listings are cached in
the same way.

A ``$schema`` at the top of a file is for editors: only ``read_document`` returns it.
"""

from __future__ import annotations

import logging
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

from Middleware.exceptions import ConfigNotFoundError, ConfigSyntaxError, ConfigurationError, ConfigValueError
from Middleware.models.process import process
from Middleware.models.request_context import current_request
from Middleware.utilities.config.declarations import SCHEMA_KEY
from Middleware.utilities.config.excerpts import excerpt
from Middleware.utilities.config.json_source import DuplicateKey, JsonSource, decode_text
from Middleware.utilities.files.file_access import Signature, file_signature, is_unsettled, open_to_read, why_unreadable
from Middleware.utilities.json_data import FrozenDict, freeze

logger = logging.getLogger(__name__)

# A user who saves a file and sends a request does not notice a second, and a request saves hundreds of system calls.
REVALIDATE_SECONDS = 1.0
# The number of cached paths that starts a clean-up. Existing files that were used in the last minute survive it, so
# that a check of a large tree reads each file once; a BoundedCache would drop them.
MAX_REMEMBERED = 4096
# The number of repeated keys that one log line names; the rest is counted.
MAX_NAMED = 5
_OWN_SCHEMA = re.compile(r"(.*[/\\])?Schemas[/\\][\w-]+\.schema\.json", re.DOTALL)
T = TypeVar("T")


@dataclass
class _File:
    """The cached facts about one path. ``signature`` None: no such file.

    Attributes:
        written: the last good version.
        value: the same without ``$schema``.
        duplicates: its keys that an object contains twice, already logged.
        logged_error: the logged error about a version that cannot be read.
    """

    checked: float
    signature: Signature | None
    loaded: Signature | None = None
    unsettled: bool = False
    has_value: bool = False
    written: object = None
    value: object = None
    duplicates: tuple[DuplicateKey, ...] = ()
    error: Callable[[], ConfigurationError] | None = None
    logged_error: str = ""
    derived: dict[str, Any] = field(default_factory=dict)


@dataclass
class _Folder:
    checked: float
    signature: Signature | None
    unsettled: bool = False
    names: Mapping[str, bool] | None = None


@dataclass(frozen=True)
class FoundFile:
    """A config file: its path, and its name in messages, relative to the config root with forward slashes."""

    path: str
    display: str

    @property
    def folder(self) -> str:
        """The folder part of ``display``."""
        return self.display.rpartition("/")[0]


class ConfigStore:
    """Read-only JSON data by path. Thread-safe. ``clock`` counts seconds (tests replace it)."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.generation = 0
        # Reentrant: the garbage collector may run a finalizer here that logs, and the log reads users' settings.
        self._lock = threading.RLock()
        self._files: dict[str, _File] = {}
        self._folders: dict[str, _Folder] = {}

    def clear(self) -> None:
        """Forget everything; the next access reads the files again."""
        with self._lock:
            self.generation += 1
            self._files.clear()
            self._folders.clear()

    def read_json(self, path: str, *, display: str) -> object:
        """Return the parsed file, shared and read-only. ``display`` names it in errors.

        A file that stopped parsing keeps its last good version. Raises ``ConfigNotFoundError``, ``ConfigSyntaxError``
        (never parsed) or ``ConfigValueError`` (cannot be opened).
        """
        return self._loaded(path, display).value

    def read_document(self, path: str, *, display: str) -> object:
        """Like ``read_json``, for a file that may be a JSON Schema itself, to which ``$schema`` belongs."""
        entry = self._loaded(path, display)
        reference = entry.written.get(SCHEMA_KEY.name) if isinstance(entry.written, dict) else None
        # A reference to one of our own schemas was added for an editor.
        return entry.value if isinstance(reference, str) and _OWN_SCHEMA.fullmatch(reference) else entry.written

    def read_derived(self, path: str, display: str, key: str, compute: Callable[[Any], T]) -> T:
        """Return ``compute(data)``, run once per version of the file. Raises as ``read_json`` and ``compute`` do."""
        entry = self._loaded(path, display)
        # Two threads may compute it at the same time, which does no harm.
        if key not in entry.derived:
            entry.derived[key] = compute(entry.value)
        derived: T = entry.derived[key]
        return derived

    def file_exists(self, path: str) -> tuple[bool, float]:
        """Return whether a regular file exists, and the clock time at which that was checked."""
        entry = self._file(path)
        return entry.signature is not None, entry.checked

    def list_folder(self, path: str) -> tuple[Mapping[str, bool] | None, float]:
        """Return the names in a folder, with whether each is a folder (None: no folder), and the time of the check."""
        folder = self._folders.get(path)
        if folder is None or self.clock() - folder.checked >= REVALIDATE_SECONDS:
            with self._lock:
                folder = self._refresh_folder(path)
        return folder.names, folder.checked

    def _file(self, path: str) -> _File:
        entry = self._files.get(path)
        if entry is not None and self.clock() - entry.checked < REVALIDATE_SECONDS:
            return entry
        with self._lock:
            return self._refresh_file(path)

    def _refresh_file(self, path: str) -> _File:
        entry, now = self._files.get(path), self.clock()
        # Another thread may have refreshed it while this one waited for the lock.
        if entry is not None and now - entry.checked < REVALIDATE_SECONDS:
            return entry
        signature = file_signature(path)
        # A deleted file has no last good version.
        if entry is None or signature is None:
            _make_room(self._files, now)
            entry = self._files[path] = _File(now, signature)
            return entry
        if entry.unsettled:
            entry.loaded = None
        entry.checked, entry.signature = now, signature
        return entry

    def _loaded(self, path: str, display: str) -> _File:
        entry, request = self._file(path), current_request()
        if request is not None and request.files is not None:
            request.files[path] = display
        if entry.signature is None:
            raise ConfigNotFoundError("the file does not exist", file=display)
        if entry.loaded != entry.signature:
            with self._lock:
                # Another thread may have loaded it while this one waited for the lock.
                if entry.loaded != entry.signature:
                    _load(entry, path, display)
        if not entry.has_value:
            assert entry.error is not None
            raise entry.error()
        return entry

    def _refresh_folder(self, path: str) -> _Folder:
        folder, now = self._folders.get(path), self.clock()
        if folder is not None and now - folder.checked < REVALIDATE_SECONDS:
            return folder
        signature = file_signature(path, stat.S_ISDIR)
        if folder is None or folder.unsettled or signature != folder.signature:
            _make_room(self._folders, now)
            names = _scan(path) if signature else None
            # A folder that could not be listed is listed again: a lack of descriptors passes without a change to it.
            unsettled = is_unsettled(signature) or (signature is not None and names is None)
            folder = self._folders[path] = _Folder(now, signature, unsettled, names)
        folder.checked = now
        return folder


def _load(entry: _File, path: str, display: str) -> None:
    """Read and parse, keeping the last good version on failure."""
    signature = entry.signature
    unsettled = is_unsettled(signature)
    try:
        with open_to_read(path) as file:
            source = JsonSource(decode_text(file.read(), display), display)
        written = freeze(source.parse())
    except ConfigSyntaxError as error:
        problem, document, position = error.msg, error.doc, error.pos
        # A mistake without a position, such as a file in another encoding, has no document.
        shown = excerpt(JsonSource(document, display), error.lineno, error.colno) if document else []
        _keep_error(entry, str(error), lambda: ConfigSyntaxError(display, problem, document, position), shown)
    except OSError as error:
        reason = why_unreadable(error)
        _keep_error(entry, f"{display}: {reason}", lambda: ConfigValueError(reason, file=display))
        # The error may disappear without a change of the file, for example a lack of file descriptors.
        unsettled = True
    else:
        duplicates = source.duplicates()
        if not entry.has_value or written != entry.written:
            entry.derived, entry.written, entry.value = {}, written, _without_schema_key(written)
        if duplicates and duplicates != entry.duplicates:
            logger.warning(
                "%s: a key appears twice in one object; the last value counts: %s.", display, _listed(duplicates)
            )
        entry.has_value, entry.error, entry.logged_error, entry.duplicates = True, None, "", duplicates
    entry.loaded, entry.unsettled = signature, unsettled


def _without_schema_key(data: object) -> object:
    if not isinstance(data, dict) or SCHEMA_KEY.name not in data:
        return data
    return FrozenDict((key, value) for key, value in data.items() if key != SCHEMA_KEY.name)


def _listed(duplicates: tuple[DuplicateKey, ...]) -> str:
    named = [
        f"'{key.json_path}' (line {key.line}, column {key.column}; first in line {key.first_line})"
        for key in duplicates[:MAX_NAMED]
    ]
    more = len(duplicates) - len(named)
    return ", ".join(named) + (f" and {more} more" if more else "")


def _keep_error(entry: _File, text: str, make: Callable[[], ConfigurationError], shown: Sequence[str] = ()) -> None:
    """Store the error of a version and log it once, with the lines of the file in ``shown``."""
    # One exception object that many threads raise would collect all their tracebacks, so a factory is stored.
    entry.error = make
    # An unsettled version is read several times.
    if entry.has_value and text != entry.logged_error:
        entry.logged_error = text
        logger.error(
            "%s. The last good version of the file stays in use.%s", text, "".join(f"\n{line}" for line in shown)
        )


def _scan(path: str) -> Mapping[str, bool] | None:
    try:
        with os.scandir(path) as entries:
            # Not ``entry.is_dir``, which raises an error for links that form a circle.
            return MappingProxyType({entry.name: os.path.isdir(entry) for entry in entries})
    # Reported with the name of the file that is looked for, and by the check of the start.
    except PermissionError:
        return None
    except OSError as error:
        logger.warning("A configuration folder cannot be listed: %s", error)
        return None


def _make_room(cache: dict[str, Any], now: float) -> None:
    # The names of missing files may come from requests.
    if len(cache) >= MAX_REMEMBERED:
        for path in [known for known, entry in cache.items() if entry.signature is None or now - entry.checked > 60]:
            del cache[path]


def config_store() -> ConfigStore:
    """Return the store of this process."""
    return process().one(ConfigStore)


def read_object(found: FoundFile) -> dict[str, Any]:
    """Return the file's content, which must be a JSON object."""
    data = config_store().read_json(found.path, display=found.display)
    return data if isinstance(data, dict) else _as_object(data, found)


def read_document(found: FoundFile) -> dict[str, object]:
    """Like ``read_object``, for a file that may be a JSON Schema itself, to which ``$schema`` belongs."""
    return _as_object(config_store().read_document(found.path, display=found.display), found)


def _as_object(data: object, found: FoundFile) -> dict[str, object]:
    if not isinstance(data, dict):
        raise ConfigValueError("the file must hold a JSON object", file=found.display)
    return data
