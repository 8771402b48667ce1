"""The ContextCompactor node in a workflow."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.common import instance_global_variables as instance
from Middleware.models.request_context import request_scope
from Middleware.utilities.hashing_utils import hash_content
from Middleware.workflows.handlers.impl.context_compactor_handler import ContextCompactorHandler
from Middleware.workflows.managers.workflow_manager import WorkflowManager
from Tests.stub_backend import StubBackend
from Tests.workflows.engine_lab import EngineLab, Message, static, user

NODE = {"type": "ContextCompactor"}


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineLab]:
    monkeypatch.setattr(instance, "DISCUSSION_DIRECTORY", str(tmp_path / "D"))
    with StubBackend() as backend:
        lab = EngineLab(tmp_path / "Configs", monkeypatch, backend)
        lab.user(contextCompactorSettingsFile="Compactor")
        lab.write(
            "Workflows/tester/Compactor",
            {
                "endpointName": "Main",
                "recentContextTokens": 2,
                "oldContextTokens": 2,
                "lookbackStartTurn": 1,
                "oldSectionPrompt": "old [MESSAGES_TO_SUMMARIZE]",
            },
        )
        yield lab


def run(
    lab: EngineLab,
    *nodes: dict[str, Any],
    discussion_id: str = "k1",
    stream: bool = False,
    messages: list[Message] | None = None,
) -> Any:
    lab.workflow("Main", list(nodes) or [NODE])
    manager = WorkflowManager("Main", listeners=[])
    manager.node_handlers["ContextCompactor"] = ContextCompactorHandler()
    with request_scope(lab.request):
        results = list(
            manager.start(
                lab.request,
                messages or [user("a {b}"), user("b"), user("c")],
                discussion_id=discussion_id,
                stream=stream,
            )
        )
    return "".join(chunk["token"] for chunk in results) if stream else results[-1]


@pytest.mark.parametrize("stream", [False, True])
def test_the_summaries_are_the_output(lab: EngineLab, stream: bool) -> None:
    messages = [user("a __WILMER_L_CURLY__b__WILMER_R_CURLY__"), user("b"), user("c")]
    text = "<context_compactor_old><old user: a {b}></context_compactor_old>"
    assert run(lab, stream=stream, messages=messages) == text


def test_summaries_are_not_substituted(lab: EngineLab) -> None:
    messages = [user("__WILMER_L_CURLY__agent1Output__WILMER_R_CURLY__"), user("b"), user("c")]
    result = run(lab, NODE, static("{agent1Output}", returnToUser=True), messages=messages)
    assert result == "<context_compactor_old><old user: {agent1Output}></context_compactor_old>"


def test_tags_are_found(lab: EngineLab) -> None:
    node = {"type": "TagTextExtractor", "tagToExtractFrom": "{agent1Output}", "fieldToExtract": "context_compactor_old"}
    assert run(lab, NODE, node) == "<old user: a {b}>"


def test_without_discussion_id(lab: EngineLab, tmp_path: Path) -> None:
    assert run(lab, discussion_id="") == ""
    assert lab.backend.requests == [] and not (tmp_path / "D").exists()


@pytest.mark.parametrize("name", ["", "Gone"])
def test_without_settings(lab: EngineLab, caplog: pytest.LogCaptureFixture, tmp_path: Path, name: str) -> None:
    lab.user(contextCompactorSettingsFile=name)
    assert run(lab) == "" and not (tmp_path / "D").exists()
    assert any(record.levelno == logging.WARNING for record in caplog.records)


def test_one_message(lab: EngineLab, tmp_path: Path) -> None:
    assert run(lab, messages=[user("only")]) == "" and not (tmp_path / "D").exists()


def test_hashes_are_those_of_the_escaped_text(lab: EngineLab, tmp_path: Path) -> None:
    content = "a __WILMER_L_CURLY__b__WILMER_R_CURLY__"
    run(lab, messages=[user(content), user("b"), user("c")])
    entries = json.loads((tmp_path / "D/k1/context_compactor_old.json").read_bytes())
    assert [entry["hash"] for entry in entries] == [hash_content(content), f"0:{hash_content(content)}"]


def test_the_node_has_no_keys_of_its_own() -> None:
    assert ContextCompactorHandler.KEYS == {"ContextCompactor": ()}
