"""The texts of a run as they are shown and stored.

A run keeps references to what it sent and got. Here these become JSON with real braces, without the bytes of images,
within the limits of a run. It takes time in proportion to the texts, so it never happens on a request's thread.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from Middleware.addons.records.completion import complete, complete_facts, describe_attempt
from Middleware.addons.records.live_run import LiveRun
from Middleware.addons.records.model import RunDocument, Span
from Middleware.addons.records.repeated_lists import (
    LEAST_MESSAGES,
    MOST_CHARACTERS,
    CommonRange,
    KnownList,
    KnownLists,
)
from Middleware.models.llm_call import AnswerParts
from Middleware.models.process import process
from Middleware.utilities.answers.tool_calls import ToolCallAssembler
from Middleware.utilities.native_threads import new_lock
from Middleware.utilities.text_utils import encode_text, restore_braces

# A text above the first length keeps this much of its beginning and of its end.
MAX_TEXT = 1024 * 1024
KEPT_END = 512 * 1024
# Of one run; later texts are left out.
MAX_RUN_TEXTS = 16 * 1024 * 1024
# Deeper JSON would end the interpreter's stack; servers refuse it earlier.
MAX_DEPTH = 200
# Shorter base64 may be a word.
MIN_IMAGE = 200
IMAGE_KEYS = frozenset({"images", "url", "image_url", "data"})
"""The fields of payloads and messages that hold images."""
_DATA_URI = re.compile(r"data:(image/[\w.+-]+);base64,", re.IGNORECASE)
_BASE64 = re.compile(r"[A-Za-z0-9+/\r\n]+=*\s*")
# The first bytes of images, in base64.
_IMAGE_STARTS = {
    "iVBORw0KGgo": "image/png",
    "/9j/": "image/jpeg",
    "R0lGOD": "image/gif",
    "UklGR": "image/webp",
    "Qk": "image/bmp",
}


class Normalisation:
    """The lock of the threads that normalise the texts of runs: the writer and those of readers.

    No request's thread takes it.

    ``lists``: the messages of the runs before as they are stored; guarded by the lock.
    """

    def __init__(self) -> None:
        self.lock = new_lock()
        self.lists = KnownLists[_Fitted]()


def normalised(document: RunDocument, texts: bool = True) -> RunDocument:
    """Return the document with all facts and attributes, and with its texts as they are shown and stored.

    The texts of a run that is over are changed themselves, once; those of one at work stay as they are.
    """
    if not isinstance(document, LiveRun):
        return document if texts else without_texts(document)
    if not document.finished:
        return _copy(document, texts)
    completed(document)
    if not texts:
        return without_texts(document)
    if not document.normalised:
        normalisation = process().one(Normalisation)
        with normalisation.lock:
            # Another thread may have done it in the meantime.
            if not document.normalised:
                _normalise(document, normalisation.lists)
                document.normalised = True
    return _as_it_is(document)


def completed(document: RunDocument) -> RunDocument:
    """Return a run that is over, itself, with all facts and attributes; its texts stay as they are."""
    if isinstance(document, LiveRun):
        with process().one(Normalisation).lock:
            complete(document)
    return document


def normalised_spans(document: RunDocument, spans: Sequence[Span]) -> list[Span]:
    """Return some spans of a document as ``normalised`` returns them."""
    if document.normalised or not isinstance(document, LiveRun):
        return list(spans)
    copy = RunDocument(document.facts, _copies(document, spans))
    _normalise(copy)
    return copy.spans


def _as_it_is(run: LiveRun) -> RunDocument:
    return RunDocument(
        run.facts,
        run.spans,
        run.encryption_key,
        run.config_texts,
        run.spans_left_out,
        run.text_bytes_left_out,
        run.size,
        run.touched,
        normalised=True,
    )


def without_texts(document: RunDocument) -> RunDocument:
    """Return a run with the spans that it has now, without their texts."""
    # By hand: dataclasses.replace would take as long as all the rest of what is done to a run without texts.
    spans = [
        Span(
            span.id,
            span.parent,
            span.kind,
            span.name,
            span.start,
            span.duration,
            span.status,
            span.attributes,
            {},
            span.touched,
        )
        for span in document.spans
    ]
    return RunDocument(
        document.facts, spans, document.encryption_key, document.config_texts, document.spans_left_out, normalised=True
    )


def _copy(run: LiveRun, texts: bool) -> RunDocument:
    run.refresh()
    copy = RunDocument(
        run.facts.copy(),
        _copies(run, list(run.spans)),
        run.encryption_key,
        size=run.size,
        touched=run.touched,
        spans_left_out=run.spans_left_out,
    )
    complete_facts(run, copy)
    if not texts:
        return without_texts(copy)
    _normalise(copy)
    return copy


def _copies(run: LiveRun, spans: Sequence[Span]) -> list[Span]:
    """Return copies of spans at work, with all attributes."""
    copies = {span.id: replace(span, attributes=dict(span.attributes), texts=dict(span.texts)) for span in spans}
    for span, attempt in list(run.attempts):
        if span.id in copies:
            describe_attempt(copies[span.id], attempt)
    return list(copies.values())


def _normalise(document: RunDocument, lists: KnownLists[_Fitted] | None = None) -> None:
    """Give a document's spans their texts as they are shown and stored; ``lists``: those of earlier runs."""
    document.spans.sort(key=lambda span: span.id)
    texts = _Texts(lists)
    for span in document.spans:
        if span.texts:
            span.texts = texts.of_span(span)
    document.text_bytes_left_out, document.size = texts.left_out, texts.size


class _Fitted(NamedTuple):
    """A list of messages within the limits, and the characters of each."""

    messages: list[object]
    lengths: list[int]


@dataclass
class _Texts:
    """The texts of one run so far, in characters. One that stands in several places counts once.

    Attributes:
        lists: the lists of messages of earlier runs, as they are stored.
        seen: the ids of objects that the run keeps alive.
        own: the lists of this run, as they were sent.
    """

    lists: KnownLists[_Fitted] | None = None
    size: int = 0
    left_out: int = 0
    seen: set[int] = field(default_factory=set)
    own: KnownLists[_Fitted] = field(default_factory=KnownLists)

    def of_span(self, span: Span) -> dict[str, object]:
        """Return a span's texts, without those that are empty."""
        found: dict[str, object] = {}
        for name, value in list(span.texts.items()):
            if isinstance(value, AnswerParts):
                found.update(self._answer(value))
            # The braces of these two are real, and a user's words may look like what stands for one in the engine.
            elif name in ("payload", "request"):
                found[name] = self._fit(value)
            else:
                found[name] = self._fit(_restored(value))
        return {name: value for name, value in found.items() if value not in (None, "", [], {})}

    def _answer(self, parts: AnswerParts) -> dict[str, object]:
        others = list(parts.others)
        assembler = ToolCallAssembler()
        for chunk in others:
            if chunk.get("tool_calls"):
                assembler.add(chunk["tool_calls"])
        reasoning = parts.reasoning or "".join(str(chunk.get("reasoning") or "") for chunk in others)
        return {
            "answer": self._fit("".join(list(parts.texts))),
            "reasoning": self._fit(reasoning),
            "tool_calls": self._fit(list(parts.calls) or assembler.calls()),
        }

    def _fit(self, value: object, key: str = "", depth: int = 0) -> object:
        """Return a value as JSON within the limits; the same object where nothing has to change."""
        if isinstance(value, str):
            return self._text(value, key in IMAGE_KEYS)
        # Asked before the questions for abstract classes, which take longer.
        if value is None or isinstance(value, (bool, int, float)):
            return value
        if depth > MAX_DEPTH:
            return None
        if isinstance(value, (dict, Mapping)):
            image = _image_block(value)
            if image is not None:
                return image
            fitted = {str(name): self._fit(item, str(name), depth + 1) for name, item in value.items()}
            return value if type(value) is dict and all(map(operator.is_, fitted.values(), value.values())) else fitted
        if isinstance(value, (list, tuple, Sequence)) and not isinstance(value, (bytes, bytearray)):
            if key == "messages" and len(value) >= LEAST_MESSAGES:
                return self._messages(value, depth)
            if key == "messages":
                items: list[object] = [self._message(item, depth + 1) for item in value]
            else:
                items = [self._fit(item, key, depth + 1) for item in value]
            return value if type(value) is list and all(map(operator.is_, items, value)) else items
        return self._text(str(value), False)

    def _messages(self, messages: Sequence[object], depth: int) -> list[object]:
        """Return a long list of messages within the limits, with those of earlier lists that it repeats."""
        fitted = _Fitted([], [])
        found, known = self.own.find(messages), None
        is_counted = found is not None
        if found is None and self.lists is not None:
            found = self.lists.find(messages)
            known = found[0] if found is not None else None
        # What comes after the last range ends with an empty one.
        end_range = CommonRange(len(messages), len(messages), 0)
        for start, end, position in [*(found[1] if found is not None else ()), end_range]:
            for message in messages[len(fitted.messages) : start]:
                before = self.size
                fitted.messages.append(self._message(message, depth + 1))
                fitted.lengths.append(self.size - before)
            if found is not None and end > start:
                part = slice(position, position + end - start)
                lengths = found[0].value.lengths[part]
                more = 0 if is_counted else sum(lengths)
                if self.size + more > MAX_RUN_TEXTS:
                    return [self._message(message, depth + 1) for message in messages]
                self.size += more
                fitted.messages.extend(found[0].value.messages[part])
                fitted.lengths.extend(lengths)
        characters = sum(fitted.lengths)
        self.own.add(KnownList(messages, fitted))
        if self.lists is not None and characters < MOST_CHARACTERS:
            self.lists.add(KnownList(fitted.messages, fitted, characters), known)
        return fitted.messages

    def _message(self, message: object, depth: int) -> object:
        """Return a message within the limits. Nearly all in a long conversation are a role and a text."""
        if type(message) is dict and len(message) == 2:
            content = message.get("content")
            if type(content) is str and (id(content) in self.seen or self._text(content, False) is content):
                return message
        return self._fit(message, "", depth)

    def _text(self, text: str, may_be_image: bool) -> object:
        if id(text) in self.seen:
            return text
        if may_be_image and len(text) >= MIN_IMAGE and (image := _image(text)) is not None:
            return image
        # As it was sent: there is no JSON for half a character.
        kept = text if text.isascii() else encode_text(text).decode("utf-8")
        if kept == text:
            kept = text
        if len(kept) > MAX_TEXT:
            middle = len(kept) - 2 * KEPT_END
            self.left_out += middle
            kept = f"{kept[:KEPT_END]}\n[... {middle:,} characters are not kept ...]\n{kept[-KEPT_END:]}"
        if self.size + len(kept) > MAX_RUN_TEXTS:
            self.left_out += len(kept)
            return None
        self.size += len(kept)
        if kept is text:
            self.seen.add(id(text))
        return kept


def _restored(value: object) -> object:
    """Return a text of the engine with real braces; anything else as it is, with its texts restored."""
    if isinstance(value, str):
        return restore_braces(value)
    if isinstance(value, Mapping):
        return {key: _restored(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_restored(item) for item in value]
    return value


def _image(text: str) -> dict[str, object] | None:
    """Return what is kept of an image in base64, with or without the beginning of a data URI."""
    found = _DATA_URI.match(text)
    if found:
        return {"image": found.group(1).lower(), "bytes": (len(text) - found.end()) * 3 // 4}
    kind = next((kind for start, kind in _IMAGE_STARTS.items() if text.startswith(start)), None)
    if kind is None or not _BASE64.fullmatch(text[:MIN_IMAGE]) or " " in text[:MIN_IMAGE]:
        return None
    return {"image": kind, "bytes": len(text) * 3 // 4}


def _image_block(block: Mapping[object, object]) -> dict[str, object] | None:
    """Return what is kept of Anthropic's source of an image, whose kind is next to its data."""
    data, kind = block.get("data"), block.get("media_type")
    if block.get("type") != "base64" or not isinstance(data, str) or not isinstance(kind, str):
        return None
    return {"image": kind, "bytes": len(data) * 3 // 4}
