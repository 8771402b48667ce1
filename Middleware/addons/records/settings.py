"""What the run console keeps on disk, and for how long: ``settings.json`` in its folder, and the flag ``--record``."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Literal, TypeAlias, TypedDict, cast, get_args

from Middleware.addons.records.console_folder import OWNER_ONLY, ConsoleFolder
from Middleware.exceptions import ClientError
from Middleware.utilities.files.file_access import Signature, atomic_write, file_signature, folder_lock, open_to_read
from Middleware.utilities.once import Once
from Middleware.utilities.text_utils import did_you_mean

logger = logging.getLogger(__name__)

RecordMode: TypeAlias = Literal["off", "facts", "texts"]
"""What is kept on disk of each run."""
MODES: tuple[RecordMode, ...] = get_args(RecordMode)

SETTINGS_FILE = "settings.json"
# The file is looked at once in this time, so that its readers do not pay for it each.
RECHECK_SECONDS = 1.0
# For each number: the least and the most that is accepted. Less than two segments of runs would be no history, and
# the index is made for some ten thousands of rows.
LIMITS: Mapping[str, tuple[int, int]] = {"days": (1, 3650), "megabytes": (16, 1_000_000), "runs": (100, 1_000_000)}


@dataclass(frozen=True)
class StoredSettings:
    """The content of the settings file.

    Attributes:
        record: the mode, unless the flag decides.
        days, megabytes, runs: the limits beyond which the oldest runs go.
    """

    record: RecordMode = "facts"
    days: int = 14
    megabytes: int = 1024
    runs: int = 20_000


class SettingsValues(TypedDict):
    """The settings as the API sends them; ``decided`` names what a flag fixes, and the flag."""

    record: RecordMode
    days: int
    megabytes: int
    runs: int
    decided: dict[str, str]


class RecordSettings:
    """The settings in force. Thread-safe: what it reads is replaced as a whole.

    Args:
        folder: where the file is.
        flag: the value of ``--record``; None: the file decides.
    """

    def __init__(self, folder: ConsoleFolder, flag: str | None = None) -> None:
        self._path, self._folder = folder.file(SETTINGS_FILE), folder
        self._flag: RecordMode | None = next((mode for mode in MODES if mode == flag), None)
        self._stored, self._signature = StoredSettings(), cast("Signature | None", None)
        self._next_look = 0.0
        self._problems: Once[str] = Once(1)

    def current(self) -> StoredSettings:
        """Return the settings in force, with the flag's mode if there is one."""
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + RECHECK_SECONDS
            self._look_again()
        return self._stored if self._flag is None else replace(self._stored, record=self._flag)

    @property
    def known_mode(self) -> RecordMode:
        """What is kept on disk, as it was looked at last: without a look at the file, for requests' threads."""
        return self._stored.record if self._flag is None else self._flag

    def mode(self) -> RecordMode:
        """Return what is kept on disk of each run."""
        # The writer asks for each run.
        return self.current().record if self._flag is None else self._flag

    def values(self) -> SettingsValues:
        """Return the settings for the API."""
        stored = self.current()
        decided = {"record": f"--record {self._flag}"} if self._flag is not None else {}
        return {
            "record": stored.record,
            "days": stored.days,
            "megabytes": stored.megabytes,
            "runs": stored.runs,
            "decided": decided,
        }

    def change(self, values: Mapping[str, object]) -> SettingsValues:
        """Store the given settings and return all of them. Raises ClientError for a wrong one, OSError."""
        # A wrong one must not create the folder.
        self._with(values)
        # A browser sends each setting by itself, perhaps to different processes, and one change must not undo another.
        with folder_lock(self._folder.made()):
            self._look_again()
            stored = self._with(values)
            text = json.dumps(asdict(stored), indent=2)
            atomic_write(self._path, f"{text}\n".encode(), OWNER_ONLY)
            self._stored, self._signature = stored, file_signature(self._path)
        return self.values()

    def _with(self, values: Mapping[str, object]) -> StoredSettings:
        stored = self._stored
        for name, value in values.items():
            stored = self._changed(stored, name, value)
        return stored

    def _changed(self, stored: StoredSettings, name: str, value: object) -> StoredSettings:
        if name == "record" and self._flag is not None:
            raise ClientError(
                f"'record' is decided by --record {self._flag} on the server's command line.", 409, param=name
            )
        return with_setting(stored, name, value)

    def _look_again(self) -> None:
        signature = file_signature(self._path)
        if signature == self._signature:
            return
        self._signature = signature
        try:
            self._stored = _parsed(self._path) if signature else StoredSettings()
        # The file is ours; what was written into it by hand must not end the recording.
        except (OSError, ValueError, ClientError) as error:
            if self._problems.first(str(error)):
                logger.warning(
                    "%s cannot be used, so the settings of the run console stay as they were: %s", self._path, error
                )


def with_setting(stored: StoredSettings, name: str, value: object) -> StoredSettings:
    """Return ``stored`` with one setting changed. Raises ClientError that says what was expected."""
    if name == "record":
        if value not in ("off", "facts", "texts"):
            raise ClientError(f"'record' is {json.dumps(value)}. Expected: one of {', '.join(MODES)}.", param=name)
        return replace(stored, record=value)
    if name not in LIMITS:
        names = ["record", *LIMITS]
        hint = did_you_mean(name, names, f" Expected: one of {', '.join(names)}.")
        raise ClientError(f"There is no setting '{name}'.{hint}", param=name)
    least, most = LIMITS[name]
    # A bool is an int.
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ClientError(
            f"'{name}' is {json.dumps(value)}. Expected: a whole number from {least} to {most}.", param=name
        )
    if name == "days":
        return replace(stored, days=value)
    return replace(stored, megabytes=value) if name == "megabytes" else replace(stored, runs=value)


def _parsed(path: str) -> StoredSettings:
    with open_to_read(path) as file:
        values = json.load(file)
    if not isinstance(values, dict):
        raise ValueError("it is not a JSON object")
    stored = StoredSettings()
    for name, value in values.items():
        stored = with_setting(stored, name, value)
    return stored
