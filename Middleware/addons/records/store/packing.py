"""How a run becomes a tree and texts: each text is stored once, and the tree refers to it.

A reference in a tree is JSON: the number of a text that is a string; ``{"j": number}`` for one that is JSON;
``{"v": value}`` for a short value, which stands in the tree; or ``{"r": reference, "l": {name: [numbers]}}`` for an
object whose long lists are stored item by item, such as the messages of a payload. Of such a list, numbers that follow
each other are ``[first, last]``.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, cast

from Middleware.addons.records.completion import TIMES, USAGE
from Middleware.addons.records.model import Attribute, ConfigVersion, RunDocument, RunFacts, Span, SpanKind
from Middleware.addons.records.repeated_lists import LEAST_MESSAGES, CommonRange, KnownList, KnownLists
from Middleware.utilities.json_data import from_stored_json, to_stored_json

VERSION = 1
_REQUEST = dict.fromkeys(
    (
        "dropped_messages",
        "request.model",
        "request.max_tokens",
        "response.model",
        "response.finish_reasons",
        "http.status",
        "stands_in_for",
        *USAGE,
        *TIMES,
    )
)
UNSAID: Mapping[str, Mapping[str, None]] = {"attempt": _REQUEST, "embedding": _REQUEST, "llm": {"chunks": None}}
"""The attributes that each span of a kind has, and that are None for most. In a tree, None is left out: it would take a
third of the space."""
PLAIN, ZIPPED, SEALED = 0, 1, 2
"""The bits of ``coding``: in clear, zlib, Fernet."""
# What is shorter costs more as a row of its own.
SHORT = 64
# Shorter texts shrink too little for the time it takes.
ZIP_ABOVE = 2048
# Quick, as each finished run is written at once; what is done when the server is idle takes the usual level.
QUICK, THOROUGH = 1, 6

Reference: TypeAlias = "int | dict[str, object]"
Numbers: TypeAlias = "list[int | list[int]]"
"""Numbers in a list of a tree. Those that follow each other are a list of the first and the last."""
Load: TypeAlias = Callable[[int], bytes]


def zipped(data: bytes, above: int = ZIP_ABOVE, level: int = QUICK) -> tuple[int, bytes]:
    """Return ``coding`` and the bytes to store."""
    if len(data) <= above:
        return PLAIN, data
    smaller = zlib.compress(data, level)
    return (ZIPPED, smaller) if len(smaller) < len(data) else (PLAIN, data)


def unzipped(coding: int, data: bytes) -> bytes:
    """Return the bytes that were stored."""
    return zlib.decompress(data) if coding & ZIPPED else data


# -- writing -----------------------------------------------------------------------------------------------------------


class TextStore(Protocol):
    """Stores the texts of runs.

    Attributes:
        lists: those that were stored lately, with the numbers of their items.
        characters: the size of the run of which texts are stored now.
    """

    lists: KnownLists[Numbers]
    characters: int

    def __call__(self, key: object, data: Callable[[], bytes]) -> int:
        """Store a text once and return its number.

        ``key``: a hashable object that is equal for equal texts of one kind; ``data`` makes the bytes.
        """


def packed(value: object, store: TextStore) -> Reference:
    """Store the texts of a value; return the reference to it."""
    if isinstance(value, str):
        if len(value) <= SHORT:
            return {"v": value}
        text = value
        return store(text, lambda: text.encode("utf-8", "surrogatepass"))
    if isinstance(value, Mapping):
        lists = {name: numbers for name, items in value.items() if (numbers := _packed_list(items, store)) is not None}
        if lists:
            # The names keep their order, with the lists in their places.
            rest = {name: None if name in lists else item for name, item in value.items()}
            return {"r": _packed_json(rest, store), "l": lists}
    return _packed_json(value, store)


def _packed_list(value: object, store: TextStore) -> Numbers | None:
    """Store the items of a list of objects; None for anything else."""
    if not isinstance(value, (list, tuple)) or not value or not isinstance(value[0], dict):
        return None
    found = store.lists.find(value) if len(value) >= LEAST_MESSAGES else None
    numbers: Numbers = []
    done = 0
    for start, end, position in [*(found[1] if found is not None else ()), CommonRange(len(value), len(value), 0)]:
        for item in value[done:start]:
            if not isinstance(item, dict):
                return None
            _append(numbers, number := _packed_item(item, store), number)
        if found is not None and end > start:
            for first, last in _part(found[0].value, position, end - start):
                _append(numbers, first, last)
        done = end
    if len(value) >= LEAST_MESSAGES:
        store.lists.add(KnownList(value, numbers, store.characters), found[0] if found is not None else None)
    return numbers


def _append(numbers: Numbers, first: int, last: int) -> None:
    """Add the numbers from ``first`` to ``last``."""
    before = numbers[-1] if numbers else None
    if isinstance(before, list) and before[1] + 1 == first:
        numbers[-1] = [before[0], last]
    elif isinstance(before, int) and before + 1 == first:
        numbers[-1] = [before, last]
    else:
        numbers.append(first if first == last else [first, last])


def _part(numbers: Numbers, start: int, length: int) -> Iterator[tuple[int, int]]:
    """Yield the first and the last of the numbers that follow each other, of ``length`` numbers from ``start`` on."""
    for number in numbers:
        first, last = number if isinstance(number, list) else (number, number)
        count = last - first + 1
        if start < count and length > 0:
            taken = min(count - start, length)
            yield first + start, first + start + taken - 1
            length -= taken
        start = max(start - count, 0)


def _each(numbers: Numbers) -> Iterator[int]:
    for number in numbers:
        yield from range(number[0], number[1] + 1) if isinstance(number, list) else (number,)


def _packed_json(value: object, store: TextStore) -> Reference:
    data = to_stored_json(value)
    return {"v": value} if len(data) <= SHORT else {"j": store((bytes, data), lambda: data)}


def _packed_item(item: Mapping[str, object], store: TextStore) -> int:
    """Store an object of a list. Most are messages of a long conversation, whose JSON need not be made again."""
    role, content = item.get("role"), item.get("content")
    if len(item) == 2 and isinstance(role, str) and isinstance(content, str) and next(iter(item)) == "role":
        return store((role, content), lambda: to_stored_json(item))
    data = to_stored_json(item)
    return store((bytes, data), lambda: data)


def tree(document: RunDocument, store: TextStore | None, sealed: int | None = None, config: int | None = None) -> bytes:
    """Return the tree of a run, with references to its texts. Without ``store`` it has none of them.

    Args:
        sealed: the number of the text with all texts of a private run.
        config: that of the versions of configuration files, which many runs share.
    """
    body: dict[str, object] = {
        "v": VERSION,
        "spans": [
            (
                span.id,
                span.parent,
                span.kind,
                span.name,
                span.start,
                span.duration,
                span.status,
                _said(span.kind, span.attributes),
                {} if store is None else {name: packed(text, store) for name, text in span.texts.items()},
            )
            for span in document.spans
        ],
    }
    if config is not None:
        body["config"] = config
    if document.spans_left_out or document.text_bytes_left_out:
        body["left_out"] = [document.spans_left_out, document.text_bytes_left_out]
    if sealed is not None:
        body["sealed"] = sealed
    return to_stored_json(body)


def _said(kind: SpanKind, attributes: dict[str, Attribute]) -> dict[str, Attribute]:
    """Return the attributes without those that are not known; ``document_of`` adds them again."""
    names = UNSAID.get(kind)
    if names is None or None not in attributes.values():
        return attributes
    return {name: value for name, value in attributes.items() if value is not None or name not in names}


def texts_by_span(document: RunDocument) -> bytes:
    """Return all texts of a run as one JSON object."""
    return to_stored_json({str(span.id): span.texts for span in document.spans if span.texts})


# -- reading -----------------------------------------------------------------------------------------------------------


def document_of(
    facts: RunFacts, body: bytes, load: Load, unseal: Callable[[bytes], bytes | None], with_texts: bool = True
) -> RunDocument:
    """Return a run out of its tree.

    ``unseal`` returns None for what its reader cannot decrypt. Raises ValueError.
    """
    stored = cast("dict[str, Any]", from_stored_json(body))
    sealed = unseal(load(stored["sealed"])) if "sealed" in stored and with_texts else None
    texts = (
        cast("dict[str, dict[str, object]]", from_stored_json(unzipped(ZIPPED, sealed))) if sealed is not None else {}
    )
    spans = [Span(*row[:8]) for row in stored["spans"]]
    for span, row in zip(spans, stored["spans"], strict=True):
        span.attributes = {**UNSAID.get(span.kind, {}), **span.attributes}
        if with_texts:
            span.texts = {name: unpacked(reference, load) for name, reference in row[8].items()}
            span.texts |= texts.get(str(span.id), {})
    left_out: Sequence[int] = stored.get("left_out", (0, 0))
    config = cast("list[ConfigVersion]", from_stored_json(load(stored["config"])) if "config" in stored else [])
    return RunDocument(
        cast(RunFacts, {**facts, "config": config}),
        spans,
        spans_left_out=left_out[0],
        text_bytes_left_out=left_out[1],
        normalised=True,
    )


def unpacked(reference: Reference, load: Load) -> object:
    """Return the value that was packed."""
    if isinstance(reference, int):
        return load(reference).decode("utf-8", "surrogatepass")
    if "v" in reference:
        return reference["v"]
    if "j" in reference:
        return from_stored_json(load(cast(int, reference["j"])))
    value = cast("dict[str, object]", unpacked(cast(Reference, reference["r"]), load))
    for name, numbers in cast("dict[str, Numbers]", reference["l"]).items():
        value[name] = [from_stored_json(load(number)) for number in _each(numbers)]
    return value


def kept_ids(body: bytes) -> set[int]:
    """Return the numbers of all texts that a tree refers to, and of what is stored like one."""
    stored = cast("dict[str, Any]", from_stored_json(body))
    return text_ids(stored) | {stored[name] for name in ("sealed", "config") if name in stored}


def text_ids(stored: Mapping[str, Any]) -> set[int]:
    """Return the numbers of all texts in clear that a tree, as JSON, refers to."""
    found: set[int] = set()
    for row in stored["spans"]:
        for reference in row[8].values():
            found |= _ids(reference)
    return found


def _ids(reference: Reference) -> set[int]:
    if isinstance(reference, int):
        return {reference}
    if "j" in reference:
        return {cast(int, reference["j"])}
    if "l" not in reference:
        return set()
    lists = cast("dict[str, Numbers]", reference["l"])
    return _ids(cast(Reference, reference["r"])).union(*map(_each, lists.values()))


def with_numbers(body: bytes, numbers: Mapping[int, int]) -> bytes:
    """Return a tree that refers to the same texts by the numbers that they have in another file."""
    stored = cast("dict[str, Any]", from_stored_json(body))
    for name in ("sealed", "config"):
        if name in stored:
            stored[name] = numbers[stored[name]]
    for row in stored["spans"]:
        row[8] = {name: _renumbered(reference, numbers) for name, reference in row[8].items()}
    return to_stored_json(stored)


def _renumbered(reference: Reference, numbers: Mapping[int, int]) -> Reference:
    if isinstance(reference, int):
        return numbers[reference]
    if "j" in reference:
        return {"j": numbers[cast(int, reference["j"])]}
    if "l" not in reference:
        return reference
    renumbered: dict[str, Numbers] = {}
    for name, items in cast("dict[str, Numbers]", reference["l"]).items():
        own: Numbers = []
        for number in _each(items):
            _append(own, numbers[number], numbers[number])
        renumbered[name] = own
    return {"r": _renumbered(cast(Reference, reference["r"]), numbers), "l": renumbered}
