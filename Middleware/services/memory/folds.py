"""Texts that were made of a sequence of memories, such as the rolling summary: each with what it was made of.

A version is valid while the memories that it was made of are the first ones of the trail. So after an edit the version
before it counts, with all that is still true behind it, and after a return the version of then, without an LLM call.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from Middleware.exceptions import StoredDataError
from Middleware.services.memory.memory_documents import (
    MEMORIES_FILE,
    SUMMARIZED,
    SUMMARY_FILE,
    SUMMARY_VERSIONS_FILE,
    TRACKER_FILE,
)
from Middleware.utilities.discussion_state import DiscussionState
from Middleware.utilities.discussions.discussion_files import Pair, read_content, read_object, read_pairs, write_content
from Middleware.utilities.text_utils import newest_within, rough_estimate_token_length

MOST_VERSIONS = 200
# Tokens of memories that are shown behind a summary as they are.
MOST_APPENDED = 2000


@dataclass(frozen=True)
class Version:
    """A text and what it was made of.

    Attributes:
        covers: the chain of the memories, one after the other (``chain``).
        count: how many there were.
        last: the hash of the text of the last of them.
        step: the hash of the text that it was made from and of the memories that were added; "" if it is not known.
        pinned: a user wrote it; it stays valid when its memories change.
        known: of a pinned one, and of what was made of it after that, the hashes of the memories' texts.
        added: those of ``known`` that were added to a pinned one after its memories had changed.
        used: when it was shown or made last, in Unix milliseconds.
    """

    text: str
    covers: str = ""
    count: int = 0
    last: str = ""
    step: str = ""
    pinned: bool = False
    known: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    used: int = 0

    def as_json(self) -> dict[str, object]:
        content: dict[str, object] = {"text": self.text, "covers": self.covers, "count": self.count, "last": self.last}
        content |= {"step": self.step, "pinned": self.pinned, "used": self.used}
        return {**content, "known": list(self.known), "added": list(self.added)} if self.known else content


@dataclass(frozen=True)
class Fold:
    """The version that is valid for a trail, and the memories that it lacks.

    Attributes:
        version: None if none is valid.
        missing: the memories of the trail that are not in it, in order.
        shown_behind: the ones of them that were in some version, and are shown behind it as they are.
    """

    version: Version | None
    missing: Sequence[Pair]
    shown_behind: Sequence[Pair] = ()

    @property
    def shown(self) -> str:
        """The text for readers; "" if there is nothing yet."""
        texts = [text for text, _ in self.shown_behind]
        start = newest_within(texts, MOST_APPENDED, rough_estimate_token_length)
        return "\n".join([*([self.version.text] if self.version else []), *texts[start:]])


def text_hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def chain(texts: Iterable[str]) -> list[str]:
    """Return for each number of first texts, from 0 on, a hash of them in order."""
    found = [""]
    for text in texts:
        found.append(text_hash(f"{found[-1]}\n{text_hash(text)}"))
    return found


def step_of(base: Version | None, batch: Sequence[Pair]) -> str:
    """Return what names the call that adds a batch of memories to a version."""
    return text_hash("\n".join([text_hash(base.text if base else ""), *(text_hash(text) for text, _ in batch)]))


def fold_of(versions: Sequence[Version], memories: Sequence[Pair]) -> Fold:
    """Return the valid version with most memories; a pinned one before all that are older."""
    prefixes, hashes = chain(text for text, _ in memories), [text_hash(text) for text, _ in memories]
    newest_pinned = max((index for index, one in enumerate(versions) if one.pinned), default=0)

    def missing_in(one: Version) -> list[Pair] | None:
        """Return the memories that a version lacks; None if it is not valid."""
        if _is_prefix(one, prefixes):
            return list(memories[one.count :])
        if (one.pinned or one.added) and set(one.added) <= set(hashes):
            return [pair for pair, known in zip(memories, hashes, strict=True) if known not in one.known]
        return None

    valid = [(one, left) for one in versions[newest_pinned:] if (left := missing_in(one)) is not None]
    nothing: tuple[Version | None, list[Pair]] = (None, list(memories))
    best, missing = min(valid, key=lambda found: (len(found[1]), -found[0].used), default=nothing)
    once = {one.last for one in versions}
    reached = max((index + 1 for index, (text, _) in enumerate(missing) if text_hash(text) in once), default=0)
    return Fold(best, missing, missing[:reached])


def _is_prefix(version: Version, prefixes: Sequence[str]) -> bool:
    return 0 <= version.count < len(prefixes) and version.covers == prefixes[version.count]


def with_version(
    versions: Sequence[Version], fold: Fold, memories: Sequence[Pair], batch: Sequence[Pair], text: str
) -> list[Version]:
    """Return the versions with that of a text which was made from a fold and a batch of its missing memories."""
    count = len(memories) - len(fold.missing) + len(batch)
    base = fold.version
    hashes = tuple(text_hash(one) for one, _ in batch)
    # What a user's text becomes after its memories have changed is valid as long as what was added is.
    is_loose = base is not None and bool(base.known) and not _is_prefix(base, chain(one for one, _ in memories))
    new = Version(
        text,
        covers="" if is_loose else chain(one for one, _ in memories)[count],
        count=-1 if is_loose else count,
        last=hashes[-1] if hashes else (base.last if base else ""),
        step=step_of(base, batch),
        known=(*base.known, *hashes) if is_loose and base is not None else (),
        added=(*base.added, *hashes) if is_loose and base is not None else (),
        used=int(time.time() * 1000),
    )
    return _newest([*(one for one in versions if replace(one, used=0) != replace(new, used=0)), new])


def with_pinned(versions: Sequence[Version], memories: Sequence[Pair], text: str) -> list[Version]:
    """Return the versions with a user's text, which covers all memories."""
    hashes = tuple(text_hash(one) for one, _ in memories)
    covers, now = chain(one for one, _ in memories)[-1], int(time.time() * 1000)
    return _newest(
        [*versions, Version(text, covers, len(memories), hashes[-1] if hashes else "", "", True, hashes, (), now)]
    )


def _newest(versions: list[Version]) -> list[Version]:
    kept = sorted(range(len(versions)), key=lambda index: versions[index].used)[-MOST_VERSIONS:]
    return [versions[index] for index in sorted(kept)]


def read_versions(state: DiscussionState, name: str) -> list[Version]:
    """Return the versions in a document; none from one that cannot be used. Raises DataKeyError."""
    try:
        content = read_content(state, name)
    except (StoredDataError, OSError):
        return []
    return (
        [_version(entry) for entry in content or () if isinstance(entry, Mapping)] if isinstance(content, list) else []
    )


def write_versions(state: DiscussionState, name: str, versions: Sequence[Version]) -> None:
    """Store versions. Raises OSError and DataKeyError."""
    write_content(state, name, [one.as_json() for one in versions])


def _version(entry: Mapping[str, object]) -> Version:
    texts = {key: value for key in ("text", "covers", "last", "step") if isinstance(value := entry.get(key), str)}
    count, used = entry.get("count"), entry.get("used")
    return Version(
        text=texts.get("text", ""),
        covers=texts.get("covers", ""),
        count=count if type(count) is int else 0,
        last=texts.get("last", ""),
        step=texts.get("step", ""),
        pinned=entry.get("pinned") is True,
        known=_texts(entry.get("known")),
        added=_texts(entry.get("added")),
        used=used if type(used) is int else 0,
    )


def _texts(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else ()


def summary_versions(state: DiscussionState) -> tuple[list[Version], bool]:
    """Return the versions of the summary, and whether the stored summary is one that is not among them yet.

    Such a text is of an older version of this program or, if there are versions, written by a user. It covers what the
    stored memories say. Raises UnreadableDataError, DataKeyError and OSError.
    """
    versions = read_versions(state, SUMMARY_VERSIONS_FILE)
    stored = next(iter(read_pairs(state, SUMMARY_FILE) or ()), None)
    if stored is None or not stored[0].strip() or any(one.text == stored[0] for one in versions):
        return versions, False
    memories = read_pairs(state, MEMORIES_FILE) or []
    if versions:
        return with_pinned(versions, memories, stored[0]), True
    hashes, place = [known for _, known in memories], read_object(state, TRACKER_FILE).get(SUMMARIZED)
    if type(place) is not int or not 0 < place <= len(hashes) or hashes[place - 1] != stored[1]:
        place = len(hashes) - hashes[::-1].index(stored[1]) if stored[1] in hashes else 0
    return with_version([], Fold(None, memories), memories, memories[:place], stored[0]), True


def keep_stored_summary(state: DiscussionState) -> None:
    """Make the stored summary a version, before the memories that it was made of move. Raises as above."""
    versions, is_new = summary_versions(state)
    if is_new:
        write_versions(state, SUMMARY_VERSIONS_FILE, versions)
