"""JSON data: read-only containers, the strings in it, and the text and bytes that it becomes.

Read-only data is shared by every request. Its containers are real dicts and lists (``isinstance``, ``json.dumps`` and
Jinja see no difference), but changing one raises. Every copy (``copy.copy``, ``copy.deepcopy``, ``dict(x)``,
``x.copy()``) is an ordinary, changeable one.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping
from typing import NoReturn, overload

# Arrays, objects and strings in what is parsed for someone else. Each takes 50 to 230 bytes of memory, and two bytes of
# text: without a limit a body of 9 MB takes more than 200 MB. The largest conversations have some ten thousand.
MOST_VALUES = 500_000
# A string up to its end, or to the end of the text: brackets in it do not count.
_VALUE = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[{]', re.DOTALL)


def has_too_many_values(data: bytes) -> bool:
    """Return whether JSON holds more than ``MOST_VALUES`` arrays, objects and strings, names included."""
    # Most texts have fewer of these bytes, whatever the coding, and need no closer look.
    if sum(data.count(sign) for sign in b'"[{') <= MOST_VALUES:
        return False
    # As the parser does. The bytes of other codings can be read as marks, behind which brackets would not count.
    if not (coding := json.detect_encoding(data)).startswith("utf-8"):
        data = data.decode(coding, "replace").encode("utf-8", "replace")
    return next(itertools.islice(_VALUE.finditer(data), MOST_VALUES, None), None) is not None


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


# An encoder for all: to make one takes as long as to use it.
compact_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
"""Returns JSON without white space, and without escapes for characters that are not ASCII."""


def to_stored_json(value: object) -> bytes:
    """Return JSON for ``from_stored_json``. Lone surrogates, which JSON allows, survive."""
    return compact_json(value).encode("utf-8", "surrogatepass")


def from_stored_json(data: bytes) -> object:
    """Return the value of stored JSON."""
    return json.loads(data.decode("utf-8", "surrogatepass"))


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
