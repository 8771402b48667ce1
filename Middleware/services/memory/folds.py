"""Texts that were made of a sequence of memories, as the summary and the state document are: each with what it was made
of.

A version is valid while the memories that it was made of are the first ones of the trail. So after an edit the version
before it counts, with all that is still true behind it, and after a return the version of then, without an LLM call.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from Middleware.exceptions import StoredDataError
from Middleware.services.memory.memory_documents import (
    MEMORIES_FILE,
    STATE_FILE,
    STATE_VERSIONS_FILE,
    SUMMARIZED,
    SUMMARY_FILE,
    SUMMARY_VERSIONS_FILE,
    TRACKER_FILE,
)
from Middleware.utilities.discussion_state import DiscussionState
from Middleware.utilities.discussions.discussion_files import (
    Pair,
    read_content,
    read_object,
    read_pairs,
    read_text,
    write_content,
)
from Middleware.utilities.text_utils import newest_within, rough_estimate_token_length

MOST_VERSIONS = 200
# ``Version.used`` of the version whose text is stored, and of the one whose text is about to be.
_IN_USE, _BEGUN = 0, -1
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
        added: of what was made of a pinned one after its memories had changed, the hashes of those that were added; of
            a text from before there were versions, of all that were there. It is valid as long as all of them are.
        used: when another one took its place, in Unix milliseconds; 0 while its text is the stored one.
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
        is_loose = self.known or self.added
        return {**content, "known": list(self.known), "added": list(self.added)} if is_loose else content


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
        """The summary for readers; "" if there is nothing yet."""
        texts = [text for text, _ in self.shown_behind]
        start = newest_within(texts, MOST_APPENDED, rough_estimate_token_length)
        return "\n".join([*([self.version.text] if self.version else []), *texts[start:]])

    @property
    def shown_with_all(self) -> str:
        """The state document for readers, with all facts that it lacks; "" if there is nothing yet."""
        lines = "\n".join(text for text, _ in self.missing)
        return "\n\n".join(filter(None, (self.version.text.rstrip() if self.version and lines else self.text, lines)))

    @property
    def text(self) -> str:
        """The text of the version; "" if none is valid."""
        return self.version.text if self.version else ""


def text_hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def chain(texts: Iterable[str]) -> list[str]:
    """Return for each number of first texts, from 0 on, a hash of them in order."""
    found = [""]
    for text in texts:
        found.append(text_hash(f"{found[-1]}\n{text_hash(text)}"))
    return found


def _lines(text: str) -> list[str]:
    # An editor may end lines in another way, and add one.
    return text.strip().splitlines()


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
    best, missing = min(valid, key=lambda found: (len(found[1]), found[0].used > 0, -found[0].used), default=nothing)
    # The last memory of a version within the best one may stand behind it again, word for word.
    within = best.count if best is not None and _is_prefix(best, prefixes) else -1
    once = {one.last for one in versions if one.count > within or not _is_prefix(one, prefixes)}
    reached = max((index + 1 for index, (text, _) in enumerate(missing) if text_hash(text) in once), default=0)
    return Fold(best, missing, missing[:reached])


def _is_prefix(version: Version, prefixes: Sequence[str]) -> bool:
    return 0 <= version.count < len(prefixes) and version.covers == prefixes[version.count]


def with_version(
    versions: Sequence[Version], fold: Fold, memories: Sequence[Pair], batch: Sequence[Pair], text: str
) -> list[Version]:
    """Return the versions and behind them that of a text made from a fold and a batch of its missing memories."""
    base, prefixes = fold.version, chain(one for one, _ in memories)
    hashes, count = tuple(text_hash(one) for one, _ in batch), len(memories) - len(fold.missing) + len(batch)
    step, last = step_of(base, batch), hashes[-1] if hashes else (base.last if base else "")
    new = Version(text, prefixes[count], count, last, step)
    # What a user's text becomes after its memories have changed is valid as long as what was added is.
    if base is not None and (base.known or base.added) and not _is_prefix(base, prefixes):
        new = Version(text, "", -1, last, step, False, (*base.known, *hashes), (*base.added, *hashes))
    return [*(one for one in versions if replace(one, used=0) != new), new]


def with_pinned(
    versions: Sequence[Version], memories: Sequence[Pair], text: str, replaced: Version | None = None
) -> list[Version]:
    """Return the versions and behind them a user's text; it covers all memories, or what a version covers before it."""
    prefixes, hashes = chain(one for one, _ in memories), tuple(text_hash(one) for one, _ in memories)
    new = Version(text, prefixes[-1], len(hashes), hashes[-1] if hashes else "", "", True, hashes)
    if replaced is not None:
        known = hashes[: replaced.count] if _is_prefix(replaced, prefixes) else replaced.known
        new = replace(replaced, text=text, step="", pinned=True, known=known, added=())
    return [*versions, new]


def read_versions(state: DiscussionState, name: str) -> list[Version]:
    """Return the versions in a document; none from one that cannot be used. Raises DataKeyError."""
    try:
        content = read_content(state, name)
    except (StoredDataError, OSError):
        return []
    return (
        [_version(entry) for entry in content or () if isinstance(entry, Mapping)] if isinstance(content, list) else []
    )


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


@dataclass(frozen=True)
class Folds:
    """The versions of one text of a discussion, and that text itself, which users read and edit.

    The text is that of the version in use. Another one was written by a user, or is from before there were versions. Of
    a blank or missing one, which a user has deleted, no version counts.

    Args:
        name: of the document with the versions.
        stored: returns the text; "" without one.
        newest: returns the memories for which the text was stored last, or that were there before it.
        covered: returns how many of ``newest`` a text covers that is from before there were versions. None: a user may
            have written it.
    """

    state: DiscussionState
    name: str
    stored: Callable[[], str]
    newest: Callable[[], Sequence[Pair]]
    covered: Callable[[], int] | None = None

    def versions(self) -> tuple[list[Version], bool]:
        """Return the versions, and whether the text is one that is not stored among them yet: it is the last one then.

        Raises UnreadableDataError, DataKeyError and OSError.
        """
        text = self.stored()
        # Of a text that a user has deleted, none counts.
        versions = read_versions(self.state, self.name) if text.strip() else []
        used = [one for one in versions if one.used <= _IN_USE] or sorted(versions, key=lambda one: one.used)[-1:]
        if not text.strip() or any(_lines(one.text) == _lines(text) for one in used):
            return versions, False
        memories = self.newest()
        if used or self.covered is None:
            return with_pinned(versions, memories, text, used[0] if used else None), True
        count = self.covered()
        if memories and not count:
            return [Version(text, count=-1, added=tuple(text_hash(one) for one, _ in memories))], True
        return with_version([], Fold(None, memories), memories, memories[:count], text), True

    def fold(self, memories: Sequence[Pair]) -> Fold:
        """Return what fits these memories. Raises as ``versions``."""
        return fold_of(self.versions()[0], memories)

    def made(self, fold: Fold, batch: Sequence[Pair]) -> str:
        """Return what was made of a fold and a batch of its missing memories before; "" if nothing was."""
        step = step_of(fold.version, batch)
        return next((one.text for one in self.versions()[0] if one.step == step), "")

    def keep(self) -> None:
        """Make the stored text a version, before the memories that it was made of move. Raises as ``versions``."""
        versions, is_new = self.versions()
        if is_new:
            self._write(versions, versions[-1], _IN_USE)

    @contextlib.contextmanager
    def storing(self, versions: Sequence[Version], version: Version) -> Iterator[None]:
        """Store versions around a block that stores the text of one of them.

        A program that is ended inside the block leaves a text that does not count as written by a user.
        """
        self._write(versions, version, _BEGUN)
        yield
        self._write(versions, version, _IN_USE)

    def settle(self, memories: Sequence[Pair], write: Callable[[Version], None]) -> None:
        """Let the version that fits these memories be the stored text, for readers that know no request."""
        versions, _ = self.versions()
        version = fold_of(versions, memories).version
        if version is not None and version.text != self.stored():
            with self.storing(versions, version):
                write(version)

    def _write(self, versions: Sequence[Version], version: Version, used: int) -> None:
        now = int(time.time() * 1000)
        before = _IN_USE if used == _BEGUN else now
        marked = [replace(one, used=used if one is version else one.used or before) for one in versions]
        newest = sorted(marked, key=lambda one: one.used if one.used > 0 else now + 1)[-MOST_VERSIONS:]
        kept = {id(one) for one in newest}
        write_content(self.state, self.name, [one.as_json() for one in marked if id(one) in kept])

    def delete(self) -> None:
        """Drop all versions. Raises OSError and DataKeyError."""
        if self.state.read(self.name) is not None:
            write_content(self.state, self.name, [])

    def forget_earlier(self) -> None:
        """Drop all versions but that of the stored text. Raises as ``versions``."""
        if read_versions(self.state, self.name):
            text = self.stored()
            kept = [one for one in self.versions()[0] if one.text == text][-1:]
            write_content(self.state, self.name, [replace(one, used=_IN_USE).as_json() for one in kept])


def summary_folds(state: DiscussionState) -> Folds:
    """Return the versions of the rolling summary, which is made of the memories of the files."""

    def stored() -> Pair:
        return next(iter(read_pairs(state, SUMMARY_FILE) or ()), ("", ""))

    def covered() -> int:
        last, hashes = stored()[1], [known for _, known in read_pairs(state, MEMORIES_FILE) or ()]
        place = read_object(state, TRACKER_FILE).get(SUMMARIZED)
        if type(place) is int and 0 < place <= len(hashes) and hashes[place - 1] == last:
            return place
        return len(hashes) - hashes[::-1].index(last) if last in hashes else 0

    return Folds(
        state,
        SUMMARY_VERSIONS_FILE,
        lambda: stored()[0],
        lambda: read_pairs(state, MEMORIES_FILE) or [],
        covered,
    )


def document_folds(state: DiscussionState, newest: Callable[[], Sequence[Pair]]) -> Folds:
    """Return the versions of the state document, which is made of the facts of chunks.

    ``newest``: returns the facts of each chunk of the newest trail.
    """
    return Folds(state, STATE_VERSIONS_FILE, lambda: read_text(state, STATE_FILE), newest)
