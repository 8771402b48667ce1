"""Nodes with answerChoices: what each kind of back-end gets, what its answer becomes, and when none is asked."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.exceptions import ConfigValueError
from Middleware.llmapis.handlers.base.structured_output import TOKENS_AROUND_CHOICE
from Middleware.models.outside import REAL, Outside
from Middleware.models.process import Process
from Middleware.models.request_context import request_scope
from Middleware.services.llm_calls import answer_shape
from Middleware.workflows.managers.workflow_manager import WorkflowManager
from Tests.backend_dialects import DIALECTS, Answer
from Tests.stub_backend import StubBackend, chat_reply
from Tests.tables import table
from Tests.workflows.engine_lab import EngineLab, llm, user

API_TYPES = Path(__file__).resolve().parents[3] / "Public/Configs/ApiTypes"
CHOICES = ["CODE", "CODE REVIEW", 'A "B"']
GRAMMAR = 'root ::= " "? ("CODE" | "CODE REVIEW" | "A \\"B\\"")'
SCHEMA = {"type": "string", "enum": CHOICES}
OBJECT = {"type": "object", "properties": {"answer": SCHEMA}, "required": ["answer"], "additionalProperties": False}
CONSTRAINTS = ("grammar", "grammar_string", "response_format", "format")


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineLab]:
    with StubBackend() as backend:
        yield EngineLab(tmp_path, monkeypatch, backend)


@pytest.fixture(autouse=True)
def fresh_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("Middleware.models.process._process", Process())


def choose(prompt: str = "Which?", **keys: Any) -> dict[str, Any]:
    return llm(prompt, **{"answerChoices": CHOICES, "title": "Choose", **keys})


def wrapped(strict: bool) -> dict[str, Any]:
    return {
        "type": "json_schema",
        "json_schema": {"name": "wilmer_structured_output", "strict": strict, "schema": OBJECT},
    }


# -- the constraint, over real sockets ---------------------------------------------------------------------------------


@table(
    "name, field, constraint",
    [
        ("LlamaCppServer", "grammar", GRAMMAR),
        ("Text-Generation-WebUI", "grammar_string", GRAMMAR),
        ("Open-AI-API", "response_format", wrapped(False)),
        ("OllamaApiChat", "format", SCHEMA),
        # These have neither, and get what they got without the key.
        ("OllamaApiGenerate", "", None),
        ("KoboldCpp", "", None),
        ("OpenAI-Compatible-Completions", "", None),
        ("mlx-lm", "", None),
        ("Claude", "", None),
    ],
)
def test_every_shipped_kind_of_back_end(lab: EngineLab, name: str, field: str, constraint: object) -> None:
    api_type = json.loads((API_TYPES / f"{name}.json").read_text(encoding="utf-8"))
    lab.write("ApiTypes/Shipped", api_type)
    lab.endpoint("Main", {"apiTypeConfigFileName": "Shipped", "promptTemplate": "chatml"}, lab.backend.url)
    said = {"response_format": '{"answer": "CODE REVIEW"}', "format": '"CODE REVIEW"'}.get(field, " CODE REVIEW")
    # A free answer that names a choice is not asked for again in JSON, which costs a small model right answers.
    replies = ["I cannot say.", said] if "format" in field else [said]
    lab.backend.responder = lambda request: DIALECTS[api_type["type"]].reply(
        Answer(tokens=[replies[min(len(lab.backend.requests), len(replies)) - 1]]), False
    )
    assert lab.run([choose()]).strip() == "CODE REVIEW"
    *before, sent = (request.json for request in lab.backend.requests)
    lab.run([choose(answerChoices=[])])
    plain = lab.backend.requests[-1].json
    assert before == [plain] * (len(replies) - 1)
    assert {key: sent.pop(key) for key in CONSTRAINTS if key in sent} == ({field: constraint} if field else {})
    # What stands around the choice is not part of the answer that the node limits.
    if field == "response_format":
        plain["max_tokens"] += TOKENS_AROUND_CHOICE
    assert sent == plain


@table("said, calls", [("CODE", 1), ("It is **code**.", 1), ("The CODE REVIEW", 1), ("Neither.", 2), ("", 2)])
def test_only_an_answer_without_a_choice_is_asked_for_again(lab: EngineLab, said: str, calls: int) -> None:
    lab.endpoint("Main", {"apiTypeConfigFileName": "Llama"}, lab.backend.url)
    lab.backend.responder = lambda request: chat_reply(said)
    lab.run([choose()])
    assert [("response_format" in request.json) for request in lab.backend.requests] == [False, True][:calls]


@table(
    "given, known",
    [
        (["A", " B ", "A", ""], ["A", "B"]),
        ("A\nB", ["A", "B"]),
        ("\n- A\n- B and C\n", ["A", "B and C"]),
        ("{routes}", ["X", "Y"]),
        (["{agent1Input}", "B"], ["from the parent", "B"]),
    ],
)
def test_a_list_or_lines_with_variables(lab: EngineLab, given: object, known: list[str]) -> None:
    lab.endpoint("Main", {"apiTypeConfigFileName": "Llama"}, lab.backend.url)
    lab.workflow("Main", [choose(answerChoices=given)], routes="X\nY")
    lab.run_named("Main", scoped_inputs=["from the parent"])
    schema = lab.backend.requests[-1].json["response_format"]["json_schema"]["schema"]
    assert schema["properties"]["answer"]["enum"] == known


@table(
    "said, result",
    [
        ('{"answer": "CODE"}', "CODE"),
        ('\n{ "answer" : "A \\"B\\"" }\n', 'A "B"'),
        ('"CODE REVIEW"', "CODE REVIEW"),
        ("<think>CODE REVIEW?</think> CODE", "CODE"),
        # All of these are left to whoever reads an answer without a constraint.
        ("It is CODE.", "It is CODE."),
        ("code", "code"),
        ('{"answer": "OTHER"}', '{"answer": "OTHER"}'),
        ('{"answer": "COD', '{"answer": "COD'),
        ('"OTHER"', '"OTHER"'),
        ("[1]", "[1]"),
    ],
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_what_an_answer_becomes(lab: EngineLab, stream: bool, said: str, result: str) -> None:
    lab.endpoint(
        "Main",
        {
            "apiTypeConfigFileName": "Llama",
            "removeThinking": True,
            "startThinkTag": "<think>",
            "endThinkTag": "</think>",
        },
        lab.backend.url,
    )
    lab.backend.responder = lambda request: chat_reply(said)
    assert (lab.streamed if stream else lab.run)([choose()]) == result
    # Never streamed: an object around the word must not reach the client.
    assert not lab.backend.requests[0].json.get("stream")


def test_a_choice_in_the_thoughts_of_a_model_that_cannot_leave_them(lab: EngineLab) -> None:
    reply = chat_reply("")
    reply.body["choices"][0]["message"]["reasoning_content"] = "CODE\n"
    lab.backend.responder = lambda request: reply
    assert lab.run([choose()]) == "CODE"


def test_two_constraints_are_a_mistake(lab: EngineLab) -> None:
    for key, value in (("structuredOutputFile", "Mood"), ("allowTools", True)):
        with pytest.raises(ConfigValueError, match="'Choose' has both 'answerChoices'") as caught:
            lab.run([choose(**{key: value})])
        assert caught.value.json_path == key
    assert lab.backend.requests == []


@table("given", ["", [], None, {}, 3])
def test_without_a_text_nothing_is_constrained(lab: EngineLab, given: object) -> None:
    lab.endpoint("Main", {"apiTypeConfigFileName": "Llama"}, lab.backend.url)
    assert lab.run([choose(answerChoices=given)]) == "<Which?>"
    assert "response_format" not in lab.backend.requests[0].json


# -- the memory of the last choices ------------------------------------------------------------------------------------


def calls_of(lab: EngineLab, *runs: dict[str, Any], said: str = "CODE") -> int:
    """The number of calls for these runs: keys of the node, or ``message``, ``id`` and ``outside`` of the request."""
    lab.backend.responder = lambda request: chat_reply(said)
    for run in runs:
        keys = dict(run)
        message, discussion, outside = keys.pop("message", "hi"), keys.pop("id", None), keys.pop("outside", REAL)
        lab.workflow("Main", [choose("{chat_user_prompt_last_one}", **{"rememberChoice": True, **keys})])
        with request_scope(dataclasses.replace(lab.request, outside=outside)):
            assert WorkflowManager.run_custom_workflow("Main", "r-1", discussion, [user(message)]) == said
    return len(lab.backend.requests)


@table(
    "second, calls",
    [
        ({}, 1),
        ({"title": "Another name"}, 1),
        ({"message": "ho"}, 2),
        ({"systemPrompt": "Other rules."}, 2),
        ({"answerChoices": ["CODE", "CHAT"]}, 2),
        ({"maxResponseSizeInTokens": 9}, 2),
        ({"id": "another-conversation"}, 2),
        ({"rememberChoice": False}, 2),
    ],
)
def test_the_same_prompt_is_not_asked_twice(
    lab: EngineLab, monkeypatch: pytest.MonkeyPatch, second: dict[str, Any], calls: int
) -> None:
    monkeypatch.setattr("Middleware.models.process._process", Process())
    assert calls_of(lab, {}, second) == calls


def test_what_is_not_remembered(lab: EngineLab, monkeypatch: pytest.MonkeyPatch) -> None:
    # An answer that is none of the choices may be one the next time.
    assert calls_of(lab, {}, {}, said="I cannot say.") == 2
    lab.next_row()
    # Nor anything without the key.
    assert calls_of(lab, {"rememberChoice": False}, {"rememberChoice": False}, said="CODE REVIEW") == 2
    lab.next_row()
    # After ten minutes somebody may have exchanged the model.
    assert calls_of(lab, {}, {}) == 1
    monkeypatch.setattr(answer_shape, "REMEMBERED_SECONDS", -1.0)
    assert calls_of(lab, {}) == 2


def test_the_memory_holds_no_text_and_is_bounded(
    lab: EngineLab, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_shape, "MAX_REMEMBERED", 2)
    with caplog.at_level(logging.INFO):
        assert calls_of(lab, *({"message": f"my secret {number}"} for number in (1, 2, 3, 3))) == 3
    assert "no call is made" in caplog.text and "secret" not in caplog.text
    entries = vars(answer_shape.chosen_before()._known)["_entries"]
    assert [(type(key), len(key), value[0]) for key, value in entries.items()] == [(bytes, 16, 0)] * 2


class Forgetful(Outside):
    """The outside of a workflow test, which may give the same prompt different answers."""

    remembers = False


def test_a_request_that_remembers_nothing_asks_each_time(lab: EngineLab) -> None:
    assert calls_of(lab, {}, {"outside": Forgetful()}, {"outside": Forgetful()}) == 3


@table("remember, models", [(True, "WMMM"), (False, "WMWMWM")])
def test_an_answer_that_is_written_anew_loads_no_model(
    lab: EngineLab, monkeypatch: pytest.MonkeyPatch, remember: bool, models: str
) -> None:
    """Where two models share a card, each change in the order of the calls is a load."""
    monkeypatch.setattr("Middleware.models.process._process", Process())
    for name in "WM":
        lab.endpoint(name, {"modelNameToSendToAPI": name}, lab.backend.url)
    lab.backend.responder = lambda request: chat_reply("CODE")
    for _ in range(3):
        lab.run([choose(endpointName="W", rememberChoice=remember), llm("{agent1Output}", endpointName="M")])
    assert "".join(request.json["model"] for request in lab.backend.requests) == models
