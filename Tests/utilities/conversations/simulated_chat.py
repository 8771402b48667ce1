"""A conversation as a user treats it, and a memory of it that remembers each message by its key alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from Middleware.utilities.conversations.message_keys import PathMessage, path_messages, tail_of
from Middleware.utilities.conversations.path import client_first, key_before_window
from Middleware.utilities.conversations.trail import Piece, Trail, WindowFacts, trail_of

Said = tuple[str, str]
"""Role and text."""
LOOKBACK, ROUNDS = 3, 3


def keys_of(said: Sequence[Said]) -> list[PathMessage]:
    return path_messages([{"role": role, "content": text} for role, text in said])


@dataclass
class Chat:
    """What the client shows. ``repeated``: how often a user's message is a short one that is said again and again."""

    random: random.Random
    repeated: float = 0.3
    messages: list[Said] = field(default_factory=list)
    branches: list[list[Said]] = field(default_factory=list)
    count: int = 0
    greeting: str = ""
    # A branch nearer to the beginning is another chat.
    shortest: int = 2

    def __post_init__(self) -> None:
        self.messages = [("assistant", self.greeting)] if self.greeting else self.messages

    def new(self, role: str) -> Said:
        self.count += 1
        if self.random.random() < (self.repeated if role == "user" else self.repeated / 10):
            return role, self.random.choice(["ok", "go on", "yes"])
        return role, f"message {self.count} of the {role}, about {self.random.choice(['mills', 'ledgers', 'rain'])}"

    def say(self) -> None:
        self.messages += [self.new("user"), self.new("assistant")]

    def _index(self) -> int:
        return self.random.randrange(len(self.messages))

    def edit(self) -> None:
        # Two edits at the beginning are taken for a summary that the client writes there.
        index = self.random.choice([0, *range(3, len(self.messages))])
        self.messages[index] = (self.messages[index][0], f"edited {self.count}, by hand")
        self.count += 1

    def swipe(self) -> None:
        self.messages[-1] = self.new("assistant")

    def delete(self) -> None:
        # The first message is taken for a cut, and so are 4 and more behind it.
        index = self.random.randrange(3, max(4, len(self.messages)))
        del self.messages[index : index + self.random.choice([1, 1, 2, 4])]

    def insert(self) -> None:
        self.messages.insert(self.random.randrange(1, len(self.messages)), self.new("user"))

    def exchange(self) -> None:
        if len(self.messages) > 3:
            one = self.random.randrange(2, len(self.messages))
            self.messages[one - 1 : one + 1] = self.messages[one - 1 : one + 1][::-1]

    def rewind(self) -> None:
        if len(self.messages) > self.shortest:
            del self.messages[self.random.randrange(self.shortest, len(self.messages) + 1) :]

    def branch(self) -> None:
        self.branches.append(list(self.messages))
        self.rewind()

    def back(self) -> None:
        if self.branches:
            self.messages, kept = self.branches.pop(self.random.randrange(len(self.branches))), list(self.messages)
            self.branches.append(kept)

    def anything(self) -> str:
        if len(self.messages) < max(4, self.shortest):
            self.say()
            return "say"
        names = ["say"] * 5 + ["edit", "swipe", "delete", "insert", "exchange", "rewind", "branch", "back"]
        name = self.random.choice(names)
        getattr(self, name)()
        return name


@dataclass
class Memory:
    """What is stored: pieces of at most ``size`` messages, each made once."""

    size: int = 5
    pieces: list[Piece] = field(default_factory=list)
    facts: WindowFacts = field(default_factory=WindowFacts)
    tail: object = None
    asked: list[tuple[str, ...]] = field(default_factory=list)

    def trail(self, history: Sequence[PathMessage]) -> Trail:
        return trail_of(history, self.pieces, self.facts)

    def seen(self, history: Sequence[PathMessage]) -> None:
        last = key_before_window(history, self.tail, self.facts.last)  # type: ignore[arg-type]
        self.facts = WindowFacts(client_first(history, self.facts.first), last, self.facts.newest)
        self.tail = tail_of(history)

    def write(self, history: Sequence[PathMessage]) -> None:
        """Fill the holes, and remember what is due behind the trail."""
        end = max(0, len(history) - LOOKBACK)
        self._note(self.trail(history))
        # What fills a hole may let other pieces fit, which leave another one.
        for _ in range(ROUNDS):
            trail = self.trail(history)
            for hole in (holes := trail.holes(min(end, trail.end))):
                for start in range(hole.start, hole.stop, self.size):
                    self._make(history, range(start, min(start + self.size, hole.stop)))
            self._note(self.trail(history))
            if not holes:
                break
        trail = self.trail(history)
        for start in range(trail.end, end - self.size + 1, self.size):
            self._make(history, range(start, start + self.size))
        self._note(self.trail(history))

    def _make(self, history: Sequence[PathMessage], span: range) -> None:
        sources = tuple(history[index].key for index in span)
        if any(piece.sources == sources for piece in self.pieces):
            return
        self.asked.append(sources)
        before = history[span.start - 1].key if span.start else self.facts.last
        number = len(self.pieces) + 1
        after = [placed.piece.id for placed in self.trail(history).placed if placed.at and placed.at[0] < span.start]
        self.pieces.append(Piece(f"p{number}", sources, before, after[-1] if after else "", number))

    def _note(self, trail: Trail) -> None:
        names = [placed.piece.id for placed in trail.placed]
        after = dict(zip(names, ["", *names], strict=False))
        self.pieces = [
            Piece(one.id, one.sources, one.before, after.get(one.id, one.after), one.made) for one in self.pieces
        ]
        self.facts = WindowFacts(self.facts.first, self.facts.last, names)


def problems(trail: Trail, history: Sequence[PathMessage], filled: bool, shift: int = 0) -> list[str]:
    """What is wrong with a trail of a whole history."""
    found: list[str] = []
    seen: set[int] = set()
    reached = -1
    for piece, at in trail.placed:
        if len(at) != len(piece.sources):
            found.append(f"{piece.id} is before a window where none is")
        elif not all(source in history[index].keys for source, index in zip(piece.sources, at, strict=True)):
            found.append(f"{piece.id} shows what is not there")
        elif not seen.isdisjoint(at):
            found.append(f"{piece.id} is doubled")
        elif at[0] <= reached:
            found.append(f"{piece.id} is out of order")
        seen.update(at)
        reached = at[0] if at else reached
    if filled:
        holes = trail.holes(min(trail.end, len(history) - LOOKBACK))
        keys = [[history[index].key for index in hole] for hole in holes]
        # Messages that another piece with the same texts covers elsewhere.
        made = {placed.piece.sources for placed in trail.placed}
        found += [f"hole {hole}" for hole, texts in zip(holes, keys, strict=True) if tuple(texts) not in made]
    return found
