"""How far the prompt of a node is the same as at its last call, as the log says where runs are recorded."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from Middleware.addons.records.recorder import MAX_NODES, PromptBeginnings, RunRecorder
from Middleware.addons.records.ring import RunRing
from Middleware.llmapis.handlers.base.backend_call import Prompt
from Middleware.models.llm_call import NodeSite
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.workflows.events import Listeners
from Tests.stub_backend import StubBackend
from Tests.workflows.engine_lab import EngineLab, assistant, llm, start, user

LONG = "".join(chr(97 + number % 26) for number in range(600))


def site(discussion: str = "mill", index: int = 2) -> NodeSite:
    return NodeSite(Listeners(), "r-1", "Main", index, "Ask", ("me/chat/Main",), None, discussion)


def talk(*messages: tuple[str, Any]) -> Prompt:
    return Prompt([{"role": role, "content": content} for role, content in messages])  # type: ignore[typeddict-item]


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage().partition(": ")[2] for record in caplog.records if record.name.endswith("recorder")]


BEFORE = talk(("system", LONG), ("user", "one"), ("assistant", "two"))


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (BEFORE, BEFORE, "606 of 606 characters"),
        (
            BEFORE,
            talk(("system", LONG), ("user", "one"), ("assistant", "two"), ("user", "three")),
            "606 of 611 characters, then differs in message 4 (user)",
        ),
        (BEFORE, talk(("system", LONG), ("user", "one")), "603 of 603 characters"),
        (
            BEFORE,
            talk(("system", LONG[:300] + "X" + LONG[301:]), ("user", "one")),
            "256 of 603 characters, then differs in the system prompt",
        ),
        (BEFORE, talk(("system", LONG), ("user", "other")), "600 of 605 characters, then differs in message 2 (user)"),
        (
            BEFORE,
            talk(("system", LONG), ("assistant", "one")),
            "600 of 603 characters, then differs in message 2 (assistant)",
        ),
        (
            talk(("user", [{"type": "text", "text": "a"}])),
            talk(("user", [{"type": "text", "text": "b"}])),
            "0 of 1 characters, then differs in message 1 (user)",
        ),
        (Prompt(None, "S", "p"), Prompt(None, "S", "q"), "1 of 2 characters, then differs in the prompt"),
        (talk(("user", "")), talk(("user", "")), "0 of 0 characters"),
    ],
)
def test_where_it_differs(caplog: pytest.LogCaptureFixture, before: Prompt, after: Prompt, words: str) -> None:
    caplog.set_level(logging.DEBUG)
    beginnings = PromptBeginnings()
    beginnings.look(site(), before)
    assert not lines(caplog)
    beginnings.look(site(), after)
    assert lines(caplog) == [f"beginning unchanged for {words}"]


def test_other_nodes_and_discussions_are_not_compared(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    beginnings = PromptBeginnings()
    for place in (site(), site("other"), site(index=3), None, None, site(""), site("")):
        beginnings.look(place, BEFORE)
    assert not lines(caplog)
    for number in range(MAX_NODES):
        beginnings.look(site(str(number)), BEFORE)
    beginnings.look(site(), BEFORE)
    assert not lines(caplog)


@pytest.mark.parametrize(("level", "recorded"), [(logging.DEBUG, True), (logging.INFO, True), (logging.DEBUG, False)])
def test_two_turns_of_a_redacted_conversation(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, level: int, recorded: bool
) -> None:
    recorder: Any = RunRecorder(RunRing()) if recorded else None
    turns = [user("my secret")], [user("my secret"), assistant("<my secret>"), user("more")]
    with StubBackend() as backend, caplog.at_level(level):
        lab = EngineLab(tmp_path, monkeypatch, backend)
        lab.workflow("Main", [llm(systemPrompt="Be kind.")])
        for number, messages in enumerate(turns):
            lab.request = RequestContext(request_id=f"r-{number}", redact=True)
            with request_scope(lab.request):
                if recorder is not None:
                    recorder.request_arrived(lab.request)
                list(start(lab, "Main", *messages, discussion_id="mill", listener=recorder))
    assert lines(caplog) == (
        ["beginning unchanged for 17 of 32 characters, then differs in message 3 (assistant)"]
        if recorded and level == logging.DEBUG
        else []
    )
    assert "secret" not in caplog.text
