"""What a pass does for memories that follow edits, of whatever kind: it fills their holes, and goes on behind them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from Middleware.models.messages import Message
from Middleware.services.memory.memory_settings import MemorySettings
from Middleware.services.memory.pieces import MOST_REWRITTEN, Followed
from Middleware.utilities.conversations.trail import Piece, Trail
from Middleware.utilities.text_utils import counted
from Middleware.workflows.models.execution_context import ExecutionContext
from Middleware.workflows.tools.discussion_context import raw_messages
from Middleware.workflows.tools.memory.dated_chunks import dates_of
from Middleware.workflows.tools.memory.shared import Chunk, KnownMessages, are_enough, chunks_of

logger = logging.getLogger(__name__)

# Messages that are remembered together with a small memory next to them.
_SMALL = 2
_ROUNDS = 3


def remember_history(context: ExecutionContext) -> None:
    """Let the messages of a pass be the history, where the request has none."""
    context.request.history = context.request.history or raw_messages(context)


@dataclass(frozen=True)
class Plan:
    """How messages become memories.

    Attributes:
        tokens: the size of a chunk.
        most: how many messages make a memory.
        enough: how many new ones make the next; None: only enough text does.
        shown: the text of a message in a chunk.
        covered: the messages that have memories of which it is not known what they were made of.
    """

    context: ExecutionContext
    settings: MemorySettings
    tokens: int
    most: int
    enough: int | None
    shown: Callable[[Message], str]
    covered: range = range(0)

    def due(self, found: Followed, end: int) -> list[Chunk]:
        """Return the chunks that are due below ``end``: holes first, but not too many at once, in order."""
        trail = found.trail
        before, behind = self.covered.start, self.covered.stop
        stop = max(trail.end, behind)
        repairs = [
            chunk
            for span in _stretches(trail, min(end, stop), self.most)
            for part in (range(span.start, min(span.stop, before)), range(max(span.start, behind), span.stop))
            for chunk in self._chunks(found, part)
        ]
        if len(repairs) > self.settings.repairs_per_pass:
            return repairs[: self.settings.repairs_per_pass]
        start = min(stop, end)
        is_due = are_enough(found.messages[start:end], self.tokens, self.enough)
        return [*repairs, *(self._chunks(found, range(start, end)) if is_due else ())]

    def _chunks(self, found: Followed, span: range) -> list[Chunk]:
        if not span:
            return []
        known, dates = KnownMessages.of(found.messages), dates_of(self.context, self.settings, found.messages)
        chunks = chunks_of(found.messages, known, span.start, span.stop, self.tokens, self.shown, dates)
        # Repeated messages may have been made into one that stands elsewhere.
        return [chunk for chunk in chunks if not found.knows(chunk.span)]


def follow(found: Followed, plan: Plan, end: int, write: Callable[[Sequence[Chunk]], bool]) -> bool:
    """Write what is due, and store which memories fit the history; return whether all succeeded.

    Args:
        end: how many messages of the request may be remembered.
        write: stores the memories of chunks, and returns whether all succeeded.
    """
    end = sum(index < end for index in found.places)
    rewritten, left_out = found.rewritten_with(end, plan.covered), found.left_out()
    found.settle(rewritten)
    if rewritten >= MOST_REWRITTEN:
        if rewritten == MOST_REWRITTEN:
            logger.warning(
                "Discussion %s: the client sends other texts for most messages with each request; its memories stay as "
                "they are",
                found.discussion_id,
            )
        return False
    # A new memory may fit others, which leave another hole.
    for _ in range(_ROUNDS):
        chunks = plan.due(found, end)
        _log_change(found, left_out, chunks)
        left_out = []
        if not write(chunks):
            return False
        if not chunks:
            break
    return True


def _log_change(found: Followed, left_out: Sequence[Piece], chunks: Sequence[Chunk]) -> None:
    """Say which memories an edit has left without their messages, and how many are due in their place."""
    if not left_out:
        return
    sources = {source for piece in left_out for source in piece.sources}
    again = sum(any(sources.intersection(found.history[index].keys) for index in chunk.span) for chunk in chunks)
    one = len(left_out) == 1
    logger.info(
        "Discussion %s: %s no longer %s the conversation and %s left out%s",
        found.discussion_id,
        counted(len(left_out), *found.noun),
        "fits" if one else "fit",
        "is" if one else "are",
        f"; {again} {'is' if again == 1 else 'are'} written anew" if again else "",
    )


def _stretches(trail: Trail, end: int, most: int) -> list[range]:
    """Return the holes of a trail below ``end``, each small one with a small piece next to it, in order.

    Otherwise deleting messages would leave memories of one message each.
    """
    found: list[range] = []
    for hole in trail.holes(end):
        if found and hole.start < found[-1].stop:
            continue
        near = (placed.at for placed in trail.placed if 0 < len(placed.at) < most) if len(hole) <= _SMALL else ()
        joined = (range(min(hole.start, at[0]), max(hole.stop, at[-1] + 1)) for at in near if _touch(hole, at))
        # Nothing else may stand between them.
        whole = next(
            (span for span in joined if set(span) == {*hole, *_covered(trail, span)} and span.stop <= end), hole
        )
        found = [span for span in found if span.stop <= whole.start]
        found.append(whole)
    return found


def _covered(trail: Trail, span: range) -> set[int]:
    """Return the messages in ``span`` of the only piece there; none if there are several."""
    pieces = [set(placed.at) for placed in trail.placed if not set(placed.at).isdisjoint(span)]
    return pieces[0] if len(pieces) == 1 else set()


def _touch(hole: range, at: Sequence[int]) -> bool:
    return hole.start - 1 in at or hole.stop in at
