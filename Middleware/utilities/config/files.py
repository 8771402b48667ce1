"""Looking up and reading the named files of each collection below the config root. All results are read-only."""
from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from Middleware.exceptions import ConfigValueError
from Middleware.utilities.config.declarations import ConfigKey
from Middleware.utilities.config.json_source import DuplicateKey
from Middleware.utilities.config.lookup import Candidate, ConfigLookup, FoundFile
from Middleware.utilities.config.paths import get_root_config_directory
from Middleware.utilities.config.store import ConfigStore
from Middleware.utilities.files.path_utils import split_name

_STORE = ConfigStore()
_LOOKUP = ConfigLookup(_STORE)


def config_store() -> ConfigStore:
    """The store of this process."""
    return _STORE


def config_lookup() -> ConfigLookup:
    """The lookup of this process, over ``config_store()``."""
    return _LOOKUP


def reset_config_store() -> None:
    """Forget all that was read (for tests)."""
    _STORE.clear()
    _LOOKUP.clear()


def candidate(name: object, *folders: str, kind: str) -> Candidate:
    """The path parts of ``name`` in ``folders``. Raises ``ConfigValueError`` naming ``kind`` for an unusable name."""
    if isinstance(name, str) and not name.strip():
        raise ConfigValueError(f"no name is given for the {kind}")
    try:
        return tuple(part for folder in folders if folder for part in split_name(folder)) + split_name(name)
    except ConfigValueError as error:
        raise ConfigValueError(f"{kind}: {error}") from None


def find_file(*candidates: Candidate) -> FoundFile | None:
    """The file meant by the first candidate that has one."""
    return _LOOKUP.find(get_root_config_directory(), candidates)


def require_file(kind: str, name: str, *candidates: Candidate) -> FoundFile:
    """Like ``find_file``; raises ``ConfigNotFoundError`` naming every path tried and the nearest name."""
    return _LOOKUP.require(get_root_config_directory(), candidates, kind, name)


def read_object(found: FoundFile) -> dict[str, Any]:
    """The file's content, which must be a JSON object."""
    data = _STORE.read_json(found.path, display=found.display)
    return data if isinstance(data, dict) else _as_object(data, found)


def read_document(found: FoundFile) -> dict[str, object]:
    """``read_object`` of a file that may be a JSON Schema itself, whose ``$schema`` then belongs to it."""
    return _as_object(_STORE.read_document(found.path, display=found.display), found)


def duplicate_keys(found: FoundFile) -> tuple[DuplicateKey, ...]:
    """The keys of the file that stand twice in one object. Raises ``ConfigurationError`` if it cannot be read."""
    return _STORE.duplicate_keys(found.path, found.display)


def _as_object(data: object, found: FoundFile) -> dict[str, object]:
    if not isinstance(data, dict):
        raise ConfigValueError("the file must hold a JSON object", file=found.display)
    return data


def text_setting(settings: Mapping[str, object], key: ConfigKey, default: str | None = None) -> str:
    """A name in a settings file; null and "" count as absent: ``default`` or what ``key`` declares.

    Raises ``ConfigValueError`` if it is not text.
    """
    value = settings.get(key.name)
    if value is None or value == "":
        return (key.default or "") if default is None else default
    if not isinstance(value, str):
        shown = "an object" if isinstance(value, dict) else "a list" if isinstance(value, list) else json.dumps(value)
        raise ConfigValueError(f"{key.name} must be text, not {shown}", json_path=key.name)
    return value
