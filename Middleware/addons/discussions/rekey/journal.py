"""What a change of API key has done so far, so that it can go on after it was interrupted."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from Middleware.exceptions import OperatorError
from Middleware.utilities.files.file_access import atomic_write

NAME = ".rekey_journal.json"
OWNER_ONLY = 0o600
REKEY, DECRYPT = "re-key", "decrypt"


class OtherOperationError(OperatorError):
    """The folder is in the middle of something else; the text says of what."""


@dataclass(frozen=True)
class Operation:
    """What is done to a key folder: ``old`` and ``new`` are names of key folders, ``new`` None to decrypt."""

    user: str
    old: str
    new: str | None

    @property
    def kind(self) -> str:
        return DECRYPT if self.new is None else REKEY

    def __str__(self) -> str:
        what = "to decrypt it" if self.new is None else f"to re-key it to {self.new}"
        return f"{what} for user {self.user}"

    def as_json(self) -> dict[str, Any]:
        return {"operation": self.kind, **asdict(self)}


class Journal:
    """The files of a key folder that are done, by their paths below it, with forward slashes."""

    def __init__(self, folder: str, operation: Operation, completed: Iterable[str] = ()) -> None:
        self._path, self._operation = os.path.join(folder, NAME), operation
        self.completed = set(completed)

    @classmethod
    def of(cls, folder: str, operation: Operation) -> Journal:
        """The journal of an interrupted run, or a new one, which is not on the disk yet.

        A journal of a run that had nothing left to do but to remove it counts as none, and so does one that does not
        say what it is of: then every file is looked at again. Raises OtherOperationError, and OSError.
        """
        content = read(folder)
        if "operation" not in content or is_leftover(folder, content):
            return cls(folder, operation)
        if {**content, "completed": None} != {**operation.as_json(), "completed": None}:
            raise OtherOperationError(_text_of_other(folder, content))
        completed = content.get("completed")
        return cls(folder, operation, map(str, completed) if isinstance(completed, list) else ())

    def add(self, path: str) -> None:
        self.completed.add(path)
        self.save()

    def save(self) -> None:
        content = {**self._operation.as_json(), "completed": sorted(self.completed)}
        atomic_write(self._path, json.dumps(content, indent=4).encode("ascii"), OWNER_ONLY)


def read(folder: str) -> Mapping[str, Any]:
    """What the journal in a folder holds; empty without one. Raises OtherOperationError for one that is damaged,
    and OSError."""
    try:
        with open(os.path.join(folder, NAME), encoding="utf-8") as file:
            content = json.load(file)
    except FileNotFoundError:
        return {}
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise OtherOperationError(
            f"{os.path.join(folder, NAME)} is damaged. Delete it, and run this again: every file "
            "is looked at, and what is done already is left alone."
        )
    return content


def remove(folder: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(folder, NAME))


def is_leftover(folder: str, content: Mapping[str, Any]) -> bool:
    """Whether the folder has got its new name already, so that the run of this journal was at its end."""
    name = os.path.basename(folder)
    return content.get("new") == name != content.get("old")


def _text_of_other(folder: str, content: Mapping[str, Any]) -> str:
    other = Operation(str(content.get("user")), str(content.get("old")), content.get("new"))
    return (
        f"{folder} is in the middle of something else: a run {other}. Finish that first, with the same user and "
        f"keys. ({NAME} in that folder says so.)"
    )
