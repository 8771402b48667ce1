"""Read-only JSON data, shared by every request.

The containers are real dicts and lists (``isinstance``, ``json.dumps`` and Jinja see no difference), but changing one
raises. Every copy (``copy.copy``, ``copy.deepcopy``, ``dict(x)``, ``x.copy()``) is an ordinary, changeable one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NoReturn, overload


def _refuse(self: object, *_args: object, **_kwargs: object) -> NoReturn:
    raise TypeError("configuration data is read-only; change a copy")


class FrozenDict(dict[str, object]):
    """A dict that cannot be changed."""

    __slots__ = ()
    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    # Copies are ordinary, changeable containers.
    def __reduce__(self) -> tuple[object, ...]:
        return dict, (dict(self),)


class FrozenList(list[object]):
    """A list that cannot be changed."""

    __slots__ = ()
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse

    def __reduce__(self) -> tuple[object, ...]:
        return list, (list(self),)


def freeze(value: object) -> object:
    """Return a read-only version of parsed JSON."""
    if isinstance(value, dict):
        return FrozenDict((key, freeze(item)) for key, item in value.items())
    if isinstance(value, list):
        return FrozenList([freeze(item) for item in value])
    return value


@overload
def private_copy(value: Mapping[str, object]) -> dict[str, object]: ...


@overload
def private_copy(value: object) -> object: ...


def private_copy(value: object) -> object:
    """Return a changeable deep copy of JSON data."""
    if isinstance(value, dict):
        return {key: private_copy(item) for key, item in value.items()}
    if isinstance(value, list):
        return [private_copy(item) for item in value]
    return value


def type_name(value: object) -> str:
    """Return the name of the value's type for messages; of read-only data that of the plain type."""
    return next((kind.__name__ for kind in (list, dict) if isinstance(value, kind)), type(value).__name__)


def strings_in(value: object, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield all strings in JSON data with their JSON paths, such as ``strings[2]`` or ``arguments.query``."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from strings_in(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from strings_in(item, f"{path}[{index}]")
