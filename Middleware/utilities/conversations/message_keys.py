"""The keys by which a message is the same in every request, and the messages that front-ends insert.

Clients begin and cease to write names, roles and dates before the texts of a conversation. None of them changes a key.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from Middleware.models.process import process
from Middleware.utilities.hashing_utils import (
    hash_content,
    hash_messages,
    speaker_and_rest,
    speakers_among,
    without_role,
)
from Middleware.utilities.once import BoundedCache
from Middleware.utilities.text_utils import message_text

KEY_DIGITS = 16
# With both brackets.
_STAMP = re.compile(r"\s*(\[[^\]\n]{1,38}\]|\([^)\n]{1,38}\)|<[^>\n]{1,38}>)\s*")
_DIGIT = re.compile(r"\d")
_LEAST_STAMPS = 2
# More than the messages of the longest conversations, each about half a kilobyte.
_KEPT_FORMS = 50_000

# In characters: shorter texts are repeated.
_LONG = 40
_COMPARED = 40
_BEGINNING = 3
_OTHERS_AT_BEGINNING = 2
_MOST_SIDE_BY_SIDE = 2


class PathMessage(NamedTuple):
    """A message of a history.

    Attributes:
        key: the first 16 hexadecimal digits of the hash of what it says: without role label, time stamp and speaker,
            and with runs of blanks as one.
        other: the same with the speaker or the stamp, or without what may be a speaker who has not spoken again yet;
            "" if it has none.
        role: its role.
        length: the characters of its content.
    """

    key: str
    other: str = ""
    role: str = "user"
    length: int = 0

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the keys by which a stored message may be this one: one or two."""
        return (self.key, self.other) if self.other else (self.key,)

    @property
    def is_long(self) -> bool:
        """Return whether such a text is hardly written twice."""
        return self.length >= _LONG


class _Form(NamedTuple):
    """A text with its stamp, or without: its key, what may be a speaker before it, and its key without him."""

    key: str
    label: str
    said: str


class _Forms(NamedTuple):
    """What may stand before a text.

    Attributes:
        whole: with the stamp, if there is one; unstamped: without it.
        plain: the message, of a text before which nothing stands.
    """

    whole: _Form
    unstamped: _Form | None
    plain: PathMessage | None

    def form(self, stamped: bool) -> _Form:
        return self.unstamped if stamped and self.unstamped else self.whole


@dataclass(frozen=True)
class Recognised:
    """What stands before the texts of a history without belonging to them.

    Attributes:
        stamped: the roles whose messages begin with a time stamp.
        speakers: the names of its speakers.
        named: so many messages begin with what may be a name that the others are names, too.
    """

    stamped: Collection[str]
    speakers: Collection[str]
    named: bool

    def parts(self, message: Mapping[str, object]) -> tuple[str, str, str]:
        """Return the time stamp, the speaker and the text of a message; "" for what it has not."""
        text, stamp = without_role(message_text(message)), ""
        if message.get("role") in self.stamped:
            stamp, text = _without_stamp(text)
        label, said = speaker_and_rest(text)
        return (stamp, label, said) if label and label in self.speakers else (stamp, "", text)


def path_messages(messages: Sequence[Mapping[str, object]]) -> list[PathMessage]:
    """Return the messages of a history with their keys, one for one.

    Names, roles and dates before the texts change no key, whether they stand before all messages or before none.
    """
    forms = _all_forms(messages)
    found = _recognised(messages, forms)
    return [
        one.plain or PathMessage(*_keys(one, _role(message) in found.stamped, found), _role(message), _length(message))
        for message, one in zip(messages, forms, strict=True)
    ]


def recognised(messages: Sequence[Mapping[str, object]]) -> Recognised:
    """Return what stands before the texts of these messages, as ``path_messages`` leaves it out."""
    return _recognised(messages, _all_forms(messages))


def _recognised(messages: Sequence[Mapping[str, object]], forms: Sequence[_Forms]) -> Recognised:
    marked = [(_role(message), one) for message, one in zip(messages, forms, strict=True) if one.plain is None]
    stamps = Counter(role for role, one in marked if one.unstamped)
    roles = Counter(map(_role, messages)) if stamps else stamps
    stamped = {role for role, count in stamps.items() if count >= _LEAST_STAMPS and 2 * count >= roles[role]}
    labels = [label for role, one in marked if (label := one.form(role in stamped).label)]
    return Recognised(stamped, speakers_among(labels), 2 * len(labels) >= len(messages))


def _role(message: Mapping[str, object]) -> str:
    return str(message.get("role") or "")


def _length(message: Mapping[str, object]) -> int:
    return len(message_text(message))


def _keys(forms: _Forms, stamped: bool, found: Recognised) -> tuple[str, str]:
    form = forms.form(stamped)
    if form.label and form.label in found.speakers:
        return form.said, form.key
    # Where the others have names, it is one that stands there for the first time. A note is not.
    if form.label and found.named:
        return form.key, form.said
    # When it was stored, too few others may have had a stamp.
    return form.key, forms.whole.key if form is not forms.whole else ""


def _all_forms(messages: Sequence[Mapping[str, object]]) -> list[_Forms]:
    known = process().one(_known_forms)
    names = zip(map(_role, messages), hash_messages(messages), strict=True)
    return [known.get(name) or _remembered(known, name, message) for name, message in zip(names, messages, strict=True)]


def _known_forms() -> BoundedCache[tuple[str, str], _Forms]:
    # By role and hash: no text of a conversation is kept.
    return BoundedCache(_KEPT_FORMS)


def _remembered(
    known: BoundedCache[tuple[str, str], _Forms], name: tuple[str, str], message: Mapping[str, object]
) -> _Forms:
    role, stored = name
    text = without_role(message_text(message))
    stamp, rest = _without_stamp(text)
    whole, unstamped = _form(text, stored), _form(rest, stored) if stamp and rest.strip() else None
    plain = None if unstamped or whole.label else PathMessage(whole.key, "", role, _length(message))
    forms = _Forms(whole, unstamped, plain)
    known.put(name, forms)
    return forms


def _form(text: str, stored: str) -> _Form:
    text = _one_blank(text)
    # Pictures alone, and calls of tools, are recognised by what is stored of them.
    key = hash_content(text)[:KEY_DIGITS] if text else stored[:KEY_DIGITS]
    label, said = speaker_and_rest(text)
    return _Form(key, label, hash_content(said)[:KEY_DIGITS] if label else "")


def _one_blank(text: str) -> str:
    return " ".join(text.split())


def _without_stamp(text: str) -> tuple[str, str]:
    """Return the time stamp of a text, and the text without it, whether it stands before the speaker or behind."""
    found = _STAMP.match(text)
    if found and _DIGIT.search(found[1]):
        return found[1], text[found.end() :]
    label, said = speaker_and_rest(text)
    found = _STAMP.match(said) if label else None
    return (found[1], f"{label}: {said[found.end() :]}") if found and _DIGIT.search(found[1]) else ("", text)


# -- injected messages -------------------------------------------------------------------------------------------------


class Tail(NamedTuple):
    """What is stored of a request to recognise the messages that front-ends insert at a fixed depth.

    Attributes:
        length: the number of messages, injected ones included.
        beginning: the keys of the first three.
        keys: the keys of the newest 40, the newest first.
    """

    length: int
    beginning: tuple[str, ...]
    keys: tuple[str, ...]


def tail_of(messages: Sequence[PathMessage]) -> Tail:
    """Return the ``Tail`` of a request, before injected messages are taken out."""
    newest = tuple(message.key for message in reversed(messages[-_COMPARED:]))
    return Tail(len(messages), tuple(message.key for message in messages[:_BEGINNING]), newest)


def next_tails(messages: Sequence[PathMessage], known: Sequence[Tail]) -> tuple[Tail, ...]:
    """Return the tails that a request stores in place of ``known``: its own, and the newest of another one."""
    return (tail_of(messages), *[tail for tail in known if _is_of_another(tail, messages)][:1])


def injected(messages: Sequence[PathMessage], known: Sequence[Tail]) -> frozenset[int]:
    """Return the indexes of the messages that a front-end has inserted.

    Such a message is long and stands as far from the end as one with its key did in the newest request of another
    length, or of another window.

    Args:
        known: the stored tails of the conversation (``next_tails``).
    """
    tail = next((tail for tail in known if _is_of_another(tail, messages)), None)
    if tail is None:
        return frozenset()
    unmoved = set(_unmoved(messages, tail))
    counts = Counter(message.key for message in messages[-_COMPARED:])
    unique = [index for index in _newest(messages) if counts[messages[index].key] == 1]
    # All stand where they stood: something has changed at the beginning.
    if 2 * len(unmoved.intersection(unique)) > len(unique):
        return frozenset()
    found = (index for index in unmoved if _stands_alone(index, unmoved))
    return frozenset(index for index in found if messages[index].is_long and messages[index].role == "user")


def _stands_alone(index: int, unmoved: Collection[int]) -> bool:
    """Return whether the messages around one have moved. Where messages were deleted, many others stay."""
    first = next(at for at in range(index, -2, -1) if at not in unmoved)
    stop = next(at for at in itertools.count(index) if at not in unmoved)
    return stop - first - 1 <= _MOST_SIDE_BY_SIDE


def _newest(messages: Sequence[PathMessage]) -> range:
    return range(max(0, len(messages) - _COMPARED), len(messages))


def _unmoved(messages: Sequence[PathMessage], tail: Tail) -> Iterator[int]:
    for index in _newest(messages):
        distance = len(messages) - 1 - index
        if distance < len(tail.keys) and tail.keys[distance] in messages[index].keys:
            yield index


def _is_of_another(tail: Tail, messages: Sequence[PathMessage]) -> bool:
    """Return whether a tail is of a request of another length, or with two other messages at its beginning."""
    if tail.length != len(messages):
        return True
    pairs = zip(tail.beginning, messages, strict=False)
    return sum(key not in message.keys for key, message in pairs) >= _OTHERS_AT_BEGINNING


def without(messages: Sequence[PathMessage], left_out: Collection[int]) -> list[PathMessage]:
    """Return the history without some messages."""
    return [message for index, message in enumerate(messages) if index not in left_out]
