"""Reading the values of declared keys."""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from Middleware.utilities.config.declarations import ConfigKey
from Middleware.utilities.text_utils import as_flag


class KeyTable(dict[str, ConfigKey]):
    """The keys of one kind of file by name. Asking for the value of a key that is not declared raises KeyError."""

    __slots__ = ()

    def __init__(self, keys: Iterable[ConfigKey]) -> None:
        super().__init__((key.name, key) for key in keys)

    def value(self, config: Mapping[str, object], name: str) -> Any:
        """What ``config`` holds under ``name``, of whatever type; absent and null are the declared default."""
        default = self[name].default
        found = config.get(name)
        return default if found is None else found

    def lookup(self, name: str) -> tuple[str, Any]:
        """What ``dict.get`` needs to look a key up where every call counts: its name and default. Null stays None."""
        return name, self[name].default

    def flag(self, config: Mapping[str, object], name: str) -> bool:
        """``value`` as true or false; the text ``"false"`` is false."""
        default = self[name].default
        found = config.get(name)
        if found is None:
            return bool(default)
        return found if found is True or found is False else as_flag(found)
