"""Conversations that people edit: what their memories cover, whatever was done."""
from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from Middleware.models.request_context import RequestContext
from Middleware.services.memory.memory_settings import MemorySettings
from Middleware.services.memory.memory_store import MemoryStore
from Middleware.utilities.config import users
from Middleware.utilities.config.declarations import read_settings
from Middleware.utilities.conversations.discussion_folder import DiscussionFolder
from Middleware.workflows.models.execution_context import ExecutionContext
from Middleware.workflows.tools.memory import file_memories
from Middleware.workflows.tools.memory.file_memories import FileMemoryPass
from Tests.properties import examples

LOOKBACK, EVERY, SIZE = 3, 4, 30


class EchoCall:
    """Stands in for the LLM: a memory is its chunk. Every now and then it says nothing."""

    silent = False

    def __init__(self, *_: Any) -> None:
        pass

    def ask(self, system_prompt: str, prompt: str, markers: dict[str, str]) -> str:
        return "" if EchoCall.silent else markers["[TextChunk]"]


@pytest.fixture(autouse=True)
def echo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(file_memories, "MemoryCall", EchoCall)
    EchoCall.silent = False
    with tempfile.TemporaryDirectory() as root:
        monkeypatch.setattr(users, "get_discussions_root_directory", lambda: root)
        yield


class Histories(RuleBasedStateMachine):
    """A client that sends its history after each step.

    Texts are unique but for ``ok``, of which several may stand in a row.
    """

    count = 0

    def __init__(self) -> None:
        super().__init__()
        Histories.count += 1
        self.folder = DiscussionFolder(f"d{Histories.count}")
        self.store = MemoryStore(self.folder)
        self.settings = read_settings(MemorySettings, {
            "prompt": "p", "lookbackStartTurn": LOOKBACK, "maxMessagesBetweenChunks": EVERY,
            "chunkEstimatedTokenSize": SIZE}, "test")
        self.history: list[str] = []
        self.number = 0
        self.appended_only = True
        self.late_edits: set[str] = set()  # texts that replaced memorized ones

    # -- what people do ------------------------------------------------------------------------------------------------
    @initialize()
    def begin(self) -> None:
        self._append()
        self._append()
        self._append()
        self._send()

    @rule(kinds=st.lists(st.booleans(), min_size=1, max_size=5))
    def talk(self, kinds: list[bool]) -> None:
        for ok in kinds:
            if ok:
                self.history.append("ok")
            else:
                self._append()
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
    def edit_newest(self, back: int) -> None:
        before = self.store.memories()
        self._edit(len(self.history) - back)
        self._send()
        assert self.store.memories()[:len(before)] == before

    @rule(at=st.integers(0, 40))
    def edit_older(self, at: int) -> None:
        self.appended_only = False
        at %= len(self.history)
        self._edit(at)
        self._send()

    @precondition(lambda self: len(self.history) > 4)
    @rule(times=st.integers(1, 6))
    def delete_tail(self, times: int) -> None:
        self.appended_only = False
        for _ in range(times):
            if len(self.history) > 3:
                self.history.pop()
        self._send()

    @precondition(lambda self: len(self.history) > 8)
    @rule(times=st.integers(1, 5))
    def trim_head(self, times: int) -> None:
        self.appended_only = False
        del self.history[:times]
        self._send()

    # -- what must hold ------------------------------------------------------------------------------------------------
    @invariant()
    def nothing_is_skipped(self) -> None:
        """Old enough messages are in a memory, replaced one that was, or stand behind all that are."""
        known = set(self._memorized()) | self.late_edits
        eligible = self.history[:max(0, len(self.history) - LOOKBACK)]
        missing = [index for index, text in enumerate(eligible) if text not in known and text != "ok"]
        if missing:
            tail = eligible[missing[0]:]
            assert not set(tail) & set(self._memorized()) - {"ok"}, f"{missing} of {self.history} were passed over"

    @invariant()
    def nothing_is_told_twice_without_edits(self) -> None:
        if self.appended_only:
            told = self._memorized()
            assert told == self.history[:len(told)]

    @invariant()
    def the_newest_are_left_alone(self) -> None:
        if self.appended_only and self.history:
            assert len(self._memorized()) <= max(0, len(self.history) - LOOKBACK)

    # -- helpers -------------------------------------------------------------------------------------------------------
    def _memorized(self) -> list[str]:
        return "\n".join(text for text, _ in self.store.memories()).split("\n") if self.store.memories() else []

    def _append(self) -> None:
        self.number += 1
        self.history.append(f"text{self.number}")

    def _edit(self, at: int) -> None:
        if self.history[at] == "ok":
            return
        self.number += 1
        memorized = self.history[at] in self._memorized() or self.history[at] in self.late_edits
        self.history[at] = f"text{self.number}"
        if memorized:
            self.late_edits.add(self.history[at])

    def _send(self) -> None:
        messages = [{"role": "system", "content": f"now {self.number}"},
                    *({"role": "user", "content": text} for text in self.history)]
        context = ExecutionContext(request_id="r", workflow_id="w", discussion_id=self.folder.discussion_id, config={},
                                   messages=messages, stream=False, request=RequestContext())
        FileMemoryPass(context, self.settings, self.folder).run()


def test_histories() -> None:
    run_state_machine_as_test(Histories, settings=examples(
        150, stateful_step_count=25, derandomize=True,
        suppress_health_check=list(HealthCheck)))


@pytest.mark.parametrize("silent", [False, True])
def test_everything_due_is_made(silent: bool, tmp_path: Path) -> None:
    """Not less either: a machine that never writes a memory would pass the invariants."""
    machine = Histories()
    machine.begin()
    for _ in range(10):
        machine.model_is_silent() if silent else machine.talk([False])
    assert len(machine._memorized()) == (0 if silent else 8)
