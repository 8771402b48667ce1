"""Conversations that people edit: what their memories cover, whatever was done."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from Middleware.models.request_context import RequestContext
from Middleware.services.memory.memory_settings import MemorySettings
from Middleware.services.memory.memory_store import MemoryStore
from Middleware.utilities.config import users
from Middleware.utilities.config.declarations import read_settings
from Middleware.utilities.discussions.discussion_folder import DiscussionFolder
from Middleware.workflows.models.execution_context import ExecutionContext
from Middleware.workflows.tools.memory import file_memories
from Middleware.workflows.tools.memory.file_memories import FileMemoryPass
from Tests.properties import examples

LOOKBACK, EVERY, SIZE = 3, 4, 150


class EchoCall:
    """Stands in for the LLM: a memory is its chunk, in lines of their own. Every now and then it says nothing."""

    silent = False
    lines = itertools.count()

    def __init__(self, *_: Any) -> None:
        pass

    def ask(self, system_prompt: str, prompt: str, markers: dict[str, str]) -> str:
        # Repeated lines would be removed from the memories.
        told = [f"{next(EchoCall.lines)}: {line}" for line in markers["[TextChunk]"].split("\n")]
        return "" if EchoCall.silent else "\n".join(told)


@pytest.fixture(autouse=True)
def echo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(file_memories, "MemoryCall", EchoCall)
    # The machine writes thousands of files, and on a busy disk it would mostly wait for them.
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    EchoCall.silent = False
    with tempfile.TemporaryDirectory() as root:
        monkeypatch.setattr(users, "get_discussions_root_directory", lambda: root)
        yield


@dataclass
class Said:
    """A message: equal texts are different messages."""

    text: str


class Histories(RuleBasedStateMachine):
    """A client that sends its history after each step, and the memories that it must have by the specification (6.2).

    Texts are unique but for ``ok``, of which several may stand in a row. What is left undecided is only which of
    several equal messages a memory ended with, after edits: then nothing may be passed over.
    """

    count = 0

    def __init__(self) -> None:
        super().__init__()
        Histories.count += 1
        self.folder = DiscussionFolder(f"d{Histories.count}")
        self.store = MemoryStore(self.folder)
        self.settings = read_settings(
            MemorySettings,
            {
                "prompt": "p",
                "lookbackStartTurn": LOOKBACK,
                "maxMessagesBetweenChunks": EVERY,
                "chunkEstimatedTokenSize": SIZE,
            },
            "test",
        )
        self.history: list[Said] = []
        self.number = 0
        self.names: Sequence[str] = ("", "")
        self.appended_only = True
        self.ends: list[Said] = []  # the last messages of the memories
        self.late_edits: set[str] = set()  # texts that replaced memorized ones

    # -- what people do ------------------------------------------------------------------------------------------------
    @initialize(count=st.integers(0, 24))
    def begin(self, count: int = 0) -> None:
        self._talk(["new"] * 3)
        self._send()  # creates the file; from now on the number of messages counts, too
        self._talk(["new"] * count)
        self._send()

    @rule(kinds=st.lists(st.sampled_from(["new", "new", "new", "ok"]), min_size=1, max_size=8))
    def talk(self, kinds: list[str]) -> None:
        self._talk(kinds)
        self._send()

    @rule()
    def send_again(self) -> None:
        self._send()

    @rule()
    def model_is_silent(self) -> None:
        EchoCall.silent = True
        self._append()
        self._send()
        EchoCall.silent = False

    @rule(back=st.integers(1, LOOKBACK))
    def swipe(self, back: int) -> None:
        before = self.store.memories()
        self._edit(len(self.history) - back)
        self._send()
        assert self.store.memories()[: len(before)] == before

    @rule(
        edits=st.lists(
            st.tuples(
                st.sampled_from(["edit", "delete", "truncate", "branch", "trim", "talk"]),
                st.integers(0, 40),
                st.integers(1, 6),
            ),
            min_size=1,
            max_size=4,
        )
    )
    def several_edits(self, edits: list[tuple[str, int, int]]) -> None:
        """People do several things before they send the next message."""
        self.appended_only = False
        for kind, at, times in edits:
            self._change(kind, at % len(self.history), times)
        self._send()

    @rule(
        names=st.sampled_from(
            [("", ""), ("Kim: ", "Sera: "), ("User: ", "Assistant: "), ("User: Kim: ", "Assistant: Sera: ")]
        )
    )
    def names_are_switched(self, names: tuple[str, str]) -> None:
        """All texts change: between chat and text completion, with names, with roles."""
        self.names = names
        self._send()

    # -- what must hold ------------------------------------------------------------------------------------------------
    @invariant()
    def nothing_is_skipped(self) -> None:
        """Old enough messages are in a memory, replaced one that was, or stand behind all that are."""
        known = set(self._memorized()) | self.late_edits
        eligible = [said.text for said in self.history[: self._end]]
        missing = [index for index, text in enumerate(eligible) if text not in known and text != "ok"]
        if missing:
            tail = eligible[missing[0] :]
            assert not set(tail) & set(self._memorized()) - {"ok"}, f"{missing} of {eligible} were passed over"

    @invariant()
    def nothing_is_told_twice_without_edits(self) -> None:
        if self.appended_only:
            told = self._memorized()
            assert told == [said.text for said in self.history[: len(told)]]

    @invariant()
    def the_newest_are_left_alone(self) -> None:
        if self.appended_only and self.history:
            assert len(self._memorized()) <= self._end

    # -- helpers -------------------------------------------------------------------------------------------------------
    @property
    def _end(self) -> int:
        return max(0, len(self.history) - LOOKBACK)

    def _memorized(self) -> list[str]:
        return self._lines(self.store.memories())

    def _lines(self, pairs: Sequence[tuple[str, str]]) -> list[str]:
        return [line.rpartition(": ")[2] for text, _ in pairs for line in text.split("\n")]

    def _append(self) -> None:
        self.number += 1
        self.history.append(Said(f"text {self.number}, which nobody would say again by chance"))

    def _talk(self, kinds: list[str]) -> None:
        for kind in kinds:
            if kind == "ok":
                self.history.append(Said("ok"))
            else:
                self._append()

    def _change(self, kind: str, at: int, times: int) -> None:
        most = max(0, len(self.history) - 4)
        if kind == "edit":
            self._edit(at)
        elif kind == "delete" and most:
            del self.history[at]
        elif kind == "truncate":
            del self.history[len(self.history) - min(times, most) :]
        elif kind == "branch":
            del self.history[len(self.history) - min(times, most) :]
            self._talk(["new"] * (1 + at % 6))
        elif kind == "trim":
            del self.history[: min(times, most)]
        elif kind == "talk":
            self._talk(["new", "ok", "new"])

    def _edit(self, at: int) -> None:
        if self.history[at].text == "ok":
            return
        self.number += 1
        old, new = self.history[at], Said(f"text {self.number}, which nobody would say again by chance")
        self.history[at] = new
        if old.text in self._memorized() or old.text in self.late_edits:
            self.late_edits.add(new.text)

    def _expected_start(self) -> int | None:
        """Return the first message that no memory covers (6.2.4); None if it depends on which ``ok`` is meant."""
        said_ok = any(said.text == "ok" for said in self.history)
        for end in reversed(self.ends):
            index = next((number for number, said in enumerate(self.history) if said is end), None)
            if end.text == "ok" and said_ok and not self.appended_only:
                return None
            if index is not None:
                return min(index + 1, self._end)
        return 0

    def _send(self) -> None:
        before, expected = self.store.memories(), self._expected_start()
        messages = [
            {"role": "system", "content": f"now {self.number}"},
            *(
                {"role": "user", "content": self.names[number % 2] + said.text}
                for number, said in enumerate(self.history)
            ),
        ]
        context = ExecutionContext(
            request_id="r",
            workflow_id="w",
            discussion_id=self.folder.discussion_id,
            config={},
            messages=messages,
            stream=False,
            request=RequestContext(),
        )
        FileMemoryPass(context, self.settings, self.folder).run()
        after = self.store.memories()
        assert after[: len(before)] == before
        made = after[len(before) :]
        start = self._end - len(self._lines(made))
        if made:
            assert self._lines(made) == [said.text for said in self.history[start : self._end]]
            assert expected in (None, start), f"memories begin at {start}, not at {expected}"
        elif expected is not None and not EchoCall.silent:
            assert self._end - expected < EVERY, f"{expected} to {self._end} were passed over"
        for pair in made:
            start += len(self._lines([pair]))
            self.ends.append(self.history[start - 1])


@pytest.mark.amounts
def test_histories() -> None:
    run_state_machine_as_test(
        Histories,
        settings=examples(100, stateful_step_count=20, derandomize=True, suppress_health_check=list(HealthCheck)),
    )


@pytest.mark.parametrize("silent", [False, True])
def test_everything_due_is_made(silent: bool, tmp_path: Path) -> None:
    """Not less either: a machine that never writes a memory would pass the invariants."""
    machine = Histories()
    machine.begin()
    for _ in range(10):
        machine.model_is_silent() if silent else machine.talk(["new"])
    assert len(machine._memorized()) == (0 if silent else 8)
