"""JSON data: read-only containers, and the strings in it.

Read-only data is shared by every request. Its containers are real dicts and lists (``isinstance``, ``json.dumps`` and
Jinja see no difference), but changing one raises. Every copy (``copy.copy``, ``copy.deepcopy``, ``dict(x)``,
``x.copy()``) is an ordinary, changeable one.
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


def strings_in(value: object) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield all strings in JSON data in their order, but not the names in objects.

    Each comes with the keys and indexes that lead to it, of which ``child`` makes a JSON path.
    """
    # A list of our own and no recursion: what clients send may be nested deeply.
    waiting: list[tuple[tuple[str | int, ...], object]] = [((), value)]
    while waiting:
        keys, item = waiting.pop()
        if isinstance(item, str):
            yield keys, item
        elif isinstance(item, Mapping):
            waiting.extend(((*keys, key), entry) for key, entry in reversed([*item.items()]))
        elif isinstance(item, (list, tuple)):
            waiting.extend(((*keys, index), entry) for index, entry in reversed([*enumerate(item)]))
