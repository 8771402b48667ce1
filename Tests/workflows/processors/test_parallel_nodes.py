"""Nodes that do not need each other run at the same time, if the workflow says so."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.exceptions import BackendStatusError
from Middleware.workflows.handlers.registry import build_registry
from Middleware.workflows.processors import parallel_nodes
from Middleware.workflows.processors.parallel_nodes import dependencies, run_when_ready
from Tests.stub_backend import RecordedRequest, Reply, StubBackend, status_reply
from Tests.workflows.engine_lab import EngineLab, Recorder, last_text, llm, reply_to, start, static


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineLab]:
    with StubBackend() as backend:
        yield EngineLab(tmp_path, monkeypatch, backend)


# -- who waits for whom ------------------------------------------------------------------------------------------------

A, SAVE, LOCK, CHILD = (
    {"type": "Standard"},
    {"type": "SaveCustomFile"},
    {"type": "WorkflowLock"},
    {"type": "CustomWorkflow"},
)


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([A, A, A], [(), (), ()]),
        ([A, A, {"prompt": "{agent1Output}"}], [(), (), (0,)]),
        ([A, {"prompt": "{{ agent1Output.x }} {agent1Output}", "strings": [{"a": "agent2Output"}]}], [(), (0,)]),
        ([A, {"prompt": "{agent2Output}{agent3Output}"}, A], [(), (), ()]),
        ([A, {"title": "agent1Output", "prompt": "{xagent1Output} {agent1Outputs}"}], [(), ()]),
        ([A, {"prompt": "{both}"}], [(), (0,)]),
        ([A, {"prompt": "botha"}], [(), ()]),
        ([A, A, {"dependsOn": [1, "two"]}, {"title": "two"}], [(), (), (0,), ()]),
        ([{"title": "one"}, {"agentName": "two"}, {"dependsOn": ["two", 3, 9, 0, True, "none"]}], [(), (), (1,)]),
        ([SAVE, A, SAVE, CHILD, A], [(), (), (0,), (2,), ()]),
        ([SAVE, {**SAVE, "parallelSafe": True}, {**CHILD, "parallelSafe": "true"}, SAVE], [(), (), (), (0,)]),
        ([A, SAVE, LOCK, A, SAVE], [(), (), (0, 1), (2,), (2,)]),
        ([A, {"type": "ImageProcessor"}, A, {"prompt": "{agent1Output}"}], [(), (0,), (1,), (0, 1)]),
        (
            [{"type": "WebFetch"}, {"type": "WebFetch", "method": "post"}, {"type": "WebFetch", "method": "POST"}],
            [(), (), (1,)],
        ),
        ([{"type": "Unknown"}, {"type": "Unknown"}, {"type": 5}], [(), (0,), (1,)]),
        (
            [
                SAVE,
                {"type": "ConversationalKeywordSearchPerformerTool"},
                {"type": "MemoryKeywordSearchPerformerTool"},
                {"type": "ConversationalKeywordSearchPerformerTool", "searchTarget": "RecentMemories"},
            ],
            [(), (), (0,), (2,)],
        ),
    ],
)
def test_dependencies(nodes: list[dict[str, Any]], expected: list[tuple[int, ...]]) -> None:
    found = dependencies(nodes, {"both": "see {agent1Output}", "plain": "x", "number": 5}, build_registry())
    assert [tuple(sorted(indexes)) for indexes in found] == expected


def test_each_runs_when_those_it_needs_are_done() -> None:
    done: list[int] = []
    gate = threading.Event()

    def run(index: int) -> None:
        if index == 0:
            gate.wait(60)
        done.append(index)
        if index == 2:
            gate.set()

    needed = [frozenset[int](), frozenset({0}), frozenset[int](), frozenset({1, 2})]
    run_when_ready(range(4), needed, run)
    assert done == [2, 0, 1, 3]


def test_of_those_that_are_ready_the_first_by_their_order_begin_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """As nodes of one model do, so that it is loaded once."""
    monkeypatch.setattr(parallel_nodes, "MAX_WORKERS", 1)
    done: list[int] = []
    models = {0: (True, "B"), 1: (False, "A"), 2: (True, "B"), 3: (False, "A"), 4: (False, "")}
    run_when_ready(range(5), [frozenset[int]()] * 5, done.append, models.__getitem__)
    assert done == [4, 1, 3, 0, 2]


def test_after_a_failure_nothing_new_begins_and_the_first_in_order_is_raised() -> None:
    begun: list[int] = []
    gate = threading.Event()

    def run(index: int) -> None:
        begun.append(index)
        if index == 2:
            gate.set()
            raise KeyError("late in order")
        if index == 0:
            gate.wait(60)
            raise ValueError("first in order")

    with pytest.raises(ValueError, match="first in order"):
        run_when_ready(range(4), [frozenset[int](), frozenset[int](), frozenset[int](), frozenset({1, 2})], run)
    assert sorted(begun) == [0, 1, 2]


# -- the engine --------------------------------------------------------------------------------------------------------


def run(lab: EngineLab, nodes: list[dict[str, Any]], recorder: Recorder | None = None, **variables: Any) -> Any:
    lab.workflow("Main", nodes, **{"parallelNodes": True, **variables})
    return next(iter(list(start(lab, listener=recorder))))


def answer_together(lab: EngineLab, count: int, seconds: float = 0.0) -> None:
    """Answer no call before so many have come, and some seconds after that."""
    all_there = threading.Event()

    def reply(request: RecordedRequest) -> Reply:
        if len(lab.backend.requests) == count:
            all_there.set()
        return reply_to(request, f"<{last_text(request)}>", held=all_there, header_delay=seconds)

    lab.backend.responder = reply


FIVE = [
    *(llm(f"q{number}") for number in range(5)),
    llm("".join(f"{{agent{number}Output}}" for number in range(1, 6)), returnToUser=True),
]


def test_independent_nodes_run_at_the_same_time_and_answer_the_same(lab: EngineLab) -> None:
    answer_together(lab, 5)
    together = run(lab, FIVE)
    answer_together(lab, 7, seconds=0.1)
    assert run(lab, FIVE, parallelNodes=False) == together == "<<q0><q1><q2><q3><q4>>"
    alone = [request.received_at for request in lab.backend.requests[6:]]
    assert len(alone) == 6 and all(later - earlier >= 0.1 for earlier, later in itertools.pairwise(alone))


def test_numbering_and_report_stay_in_order(lab: EngineLab) -> None:
    recorder = Recorder()

    def reply(request: RecordedRequest) -> Reply:
        return reply_to(request, "x", header_delay=0.2 if last_text(request) == "q0" else 0.0)

    lab.backend.responder = reply
    run(lab, FIVE, recorder)
    assert [info.node_index for info in recorder.infos] == [1, 2, 3, 4, 5, 6]
    assert [info.node_index for info in recorder.finished[0].nodes] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("stream", [False, True])
def test_nodes_after_the_responder_run_too(lab: EngineLab, stream: bool) -> None:
    nodes = [
        static("a"),
        static("{agent1Output}b", returnToUser=True),
        static("c"),
        llm("{agent2Output}{agent3Output}"),
    ]
    lab.workflow("Main", nodes, parallelNodes=True)
    items = list(start(lab, stream=stream))
    assert "".join(item["token"] for item in items) == "ab" if stream else items == ["ab"]
    assert lab.prompts == ["abc"]


def test_a_failure_names_its_node_and_nothing_else_begins(lab: EngineLab) -> None:
    lab.backend.responder = lambda request: status_reply(401)
    with pytest.raises(BackendStatusError) as caught:
        run(lab, [static("a"), llm("b", title="Second"), llm("{agent2Output}"), static("d")])
    assert caught.value.location == "workflow 'Main', node 2 'Second'"  # type: ignore[attr-defined]
    assert len(lab.backend.requests) == 1


def test_a_cancelled_request_runs_none_of_them(lab: EngineLab) -> None:
    lab.request.cancel_scope.cancel("test")
    with pytest.raises(Exception, match="cancelled"):
        run(lab, FIVE)
    assert lab.backend.requests == []


def test_an_empty_workflow(lab: EngineLab) -> None:
    lab.workflow("Main", [], parallelNodes=True)
    assert list(start(lab)) == []


def test_an_output_named_by_a_user_wide_variable_is_waited_for(lab: EngineLab) -> None:
    lab.user(userWideWorkflowVariables={"seen": "saw {agent1Output}"})
    lab.backend.responder = lambda request: reply_to(request, "late", header_delay=0.1)
    lab.workflow("Main", [llm("a"), static("{seen}"), static("{agent2Output}")], parallelNodes=True)
    assert lab.run_named("Main") == "saw late"


def test_an_output_named_by_a_prompt_of_the_parent_is_waited_for(lab: EngineLab) -> None:
    lab.backend.responder = lambda request: reply_to(request, "late", header_delay=0.1)
    lab.workflow("Child", [{"endpointName": "Main"}, llm("own"), static("{agent2Output}")], parallelNodes=True)
    child = {"type": "CustomWorkflow", "workflowName": "Child", "promptOverride": "saw {agent1Output}"}
    assert lab.run([child]) == "late"
    assert lab.prompts == ["hi", "saw late"]
