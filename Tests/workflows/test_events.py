"""What the engine tells its listeners, and the execution summary in the log."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.models.llm_call import LlmCallRecord, current_site
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.services.locking_service import get_locking_service
from Middleware.utilities.config.workflows import LoadedWorkflow
from Middleware.workflows.events import EngineListener, Listeners, LogSummary, RunRecord, default_listeners
from Middleware.workflows.managers.workflow_manager import WorkflowManager
from Tests.stub_backend import StubBackend, status_reply
from Tests.workflows.engine_lab import EngineLab, Probe, Recorder, llm, reply_to, start, static, user


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineLab]:
    with StubBackend() as backend:
        yield EngineLab(tmp_path, monkeypatch, backend)


def test_events_of_a_run(lab: EngineLab) -> None:
    recorder = Recorder()
    lab.workflow("Main", [static("a", title="First"), static("b")])
    assert list(start(lab, listener=recorder)) == ["b"]
    assert recorder.events == [
        ("run_started", "Main"),
        ("node_started", 1, "StaticResponse", "First"),
        ("node_finished", 1),
        ("node_started", 2, "StaticResponse", "N/A"),
        ("node_finished", 2),
        ("run_finished", ""),
    ]
    assert recorder.finished[0].seconds >= sum(info.execution_time_seconds for info in recorder.infos) > 0


def test_events_of_a_failure(lab: EngineLab) -> None:
    recorder = Recorder()
    lab.backend.responder = lambda request: status_reply(400)
    lab.workflow("Main", [static("a"), llm("x"), static("b")])
    with pytest.raises(Exception, match="scripted failure"):
        list(start(lab, listener=recorder))
    assert recorder.events[-2:] == [("node_failed", 2, "BackendStatusError"), ("run_finished", "BackendStatusError")]
    assert [info.node_index for info in recorder.finished[0].nodes] == [1]


def test_children_report_too(lab: EngineLab) -> None:
    recorder = Recorder()
    lab.workflow("Child", [static("c")])
    lab.workflow("Main", [{"type": "CustomWorkflow", "workflowName": "Child"}])
    list(start(lab, listener=recorder))
    assert [event for event in recorder.events if event[0].startswith("run")] == [
        ("run_started", "Main"),
        ("run_started", "Child"),
        ("run_finished", ""),
        ("run_finished", ""),
    ]


class Loads(Recorder):
    def workflow_loaded(self, loaded: LoadedWorkflow) -> None:
        self.events.append(("workflow_loaded", loaded.display, loaded.nodes))


def test_a_workflow_is_told_before_its_run_and_is_the_same_object_until_it_changes(lab: EngineLab) -> None:
    listener = Loads()
    lab.workflow("Main", [static("x")])
    list(start(lab, listener=listener))
    assert [event[0] for event in listener.events[:2]] == ["workflow_loaded", "run_started"]
    list(start(lab, listener=listener))
    lab.workflow("Main", [static("y")])
    list(start(lab, listener=listener))
    (_, name, first), (_, _, second), (_, _, third) = [
        event for event in listener.events if event[0] == "workflow_loaded"
    ]
    assert name == "Workflows/tester/Main.json"
    assert first is second and first is not third


class Broken(EngineListener):
    def node_started(self, record: RunRecord, index: int, node_type: str, name: str) -> None:
        raise RuntimeError("observer broke")


class ExitingListener:
    def run_started(self, record: RunRecord) -> None:
        raise SystemExit("observer left")


class BrokenListener:
    @property
    def run_started(self) -> None:
        raise ValueError("observer is crooked")

    run_finished = "no method"


class Partial:
    """Knows two events, and is no EngineListener."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.request_finished = self.heard.append

    def node_finished(self, record: RunRecord, info: Any) -> None:
        self.heard.append(info.node_index)


@pytest.mark.parametrize(
    ("listener", "logged"),
    [(ExitingListener(), "observer left"), (BrokenListener(), "observer is crooked"), (object(), "")],
    ids=["exits", "no-methods", "nothing"],
)
def test_odd_listeners_change_nothing(
    lab: EngineLab, caplog: pytest.LogCaptureFixture, listener: object, logged: str
) -> None:
    recorder = Recorder()
    lab.workflow("Main", [llm("x")])
    assert list(WorkflowManager("Main", listeners=[listener, recorder]).start(lab.request, [user("hi")])) == ["<x>"]
    assert recorder.events[-1] == ("run_finished", "")
    assert logged in caplog.text and bool(logged) == bool(caplog.records)


def test_a_listener_with_some_methods_only(lab: EngineLab, caplog: pytest.LogCaptureFixture) -> None:
    partial = Partial()
    lab.workflow("Main", [static("x")])
    list(WorkflowManager("Main", listeners=[partial]).start(lab.request, [user("hi")]))
    Listeners([partial]).emit("request_finished", lab.request)
    assert partial.heard == [1, lab.request] and not caplog.records


def test_a_broken_listener_is_logged_and_the_run_goes_on(lab: EngineLab, caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder()
    lab.workflow("Main", [static("x")])
    manager = WorkflowManager("Main", listeners=[Broken(), recorder])
    assert list(manager.start(lab.request, [user("hi")])) == ["x"]
    assert "Broken" in caplog.text and "observer broke" in caplog.text
    assert ("node_finished", 1) in recorder.events


def test_base_listener_takes_every_event(lab: EngineLab) -> None:
    lab.workflow("Main", [static("x")])
    assert list(start(lab, listener=EngineListener())) == ["x"]
    Listeners().emit("run_started")


def test_summary_in_the_log(lab: EngineLab, caplog: pytest.LogCaptureFixture) -> None:
    lab.workflow("Main", [static("private words", title="Say"), static("b")])
    with caplog.at_level(logging.INFO):
        list(start(lab, listener=LogSummary()))
    summary, total = [record.getMessage() for record in caplog.records if record.name.endswith("events")]
    lines = summary.splitlines()
    assert lines[0] == "=== Workflow Node Execution Summary: tester/Main.json (request r-1) ==="
    assert lines[1].startswith("Node 1: StaticResponse || 'Say' || N/A || N/A || 0.0")
    assert lines[2].startswith("Node 2: StaticResponse || 'N/A' || ") and lines[2].endswith(" seconds")
    assert lines[3] == "=== End of Summary: tester/Main.json (request r-1) ===" and len(lines) == 4
    assert total.startswith("Execution time: 0.") and total.endswith(" seconds")
    assert "private" not in caplog.text


CACHED = {
    "prompt_tokens": 2451,
    "completion_tokens": 120,
    "total_tokens": 2571,
    "prompt_tokens_details": {"cached_tokens": 2230},
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("usage", "end", "sums"),
    [
        (CACHED, "seconds || 2451 tokens in, 2230 cached, 120 out", (2, 4902, 442)),
        ({"prompt_tokens": 82, "completion_tokens": 20}, "seconds || 82 tokens in, 20 out", (2, 164, None)),
        (None, " seconds", (2, None, None)),
    ],
    ids=["cached", "counted", "nothing"],
)
def test_the_summary_and_the_request_count_tokens(
    lab: EngineLab, caplog: pytest.LogCaptureFixture, stream: bool, usage: dict[str, Any] | None, end: str, sums: Any
) -> None:
    lab.backend.responder = lambda request: reply_to(request, "<x>", usage=usage)
    lab.workflow("Child", [llm("b")])
    lab.workflow("Main", [llm("a"), {"type": "CustomWorkflow", "workflowName": "Child"}])
    with caplog.at_level(logging.INFO), request_scope(lab.request):
        list(start(lab, stream=stream))
    nodes = [line for line in caplog.text.splitlines() if line.startswith("Node ")]
    assert len(nodes) == 3 and all(line.endswith(end) for line in nodes if "Standard" in line)
    assert next(line for line in nodes if "Custom" in line).endswith(" seconds")
    counts = lab.request.counts
    assert (counts.calls, counts.prompt_tokens, counts.processed_tokens) == sums
    usage_of_answer = lab.request.outcome.usage
    assert (usage_of_answer or {}).get("prompt_tokens_details") == (usage or {}).get("prompt_tokens_details")


def test_summary_is_the_default(lab: EngineLab, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        lab.run([static("x")])
    assert "Execution Summary: tester/Main.json (request r-1)" in caplog.text


CHOOSE = {"type": "ConditionalCustomWorkflow", "title": "Take it", "conditionalKey": "{agent1Output}"}


@pytest.mark.parametrize("redact", [False, True], ids=["open", "redacted"])
@pytest.mark.parametrize(
    ("said", "table", "branch"),
    [
        ("coding ", {"CODING": "Child", "Default": "Other"}, "CODING -> Child"),
        ("my secret", {"CODING": "Other", "Default": "Child"}, "Default -> Child"),
    ],
)
def test_the_log_names_branches_and_at_debug_what_decided(
    lab: EngineLab, caplog: pytest.LogCaptureFixture, said: str, table: dict[str, str], branch: str, redact: bool
) -> None:
    lab.request.redact = redact
    lab.workflow("Child", [static("the answer of the child")])
    condition = {"type": "Conditional", "title": "Is it?", "condition": "{agent1Output} == 'x'"}
    lab.workflow("Main", [static(said), condition, {**CHOOSE, "conditionalWorkflows": table}])
    with caplog.at_level(logging.DEBUG), request_scope(lab.request):
        assert list(start(lab)) == ["the answer of the child"]
    information = "\n".join(record.getMessage() for record in caplog.records if record.levelno == logging.INFO)
    assert f"Request r-1: workflow tester/Main, node 'Take it' takes the branch {branch}" in information
    assert "node 'Is it?' takes the branch FALSE" in information and said not in information
    assert lab.request.branches == [branch]
    texts = (f"'Take it' looked at: {said.strip()}", f"'Is it?' looked at: {said} == 'x'", "the answer of the child")
    assert [text in caplog.text for text in texts] == [not redact] * 3
    assert ("tester/Main, output of node 1 'N/A'" in caplog.text) and (said not in caplog.text or not redact)


def test_no_summary_when_no_node_finished(lab: EngineLab, caplog: pytest.LogCaptureFixture) -> None:
    lab.backend.responder = lambda request: status_reply(400)
    with caplog.at_level(logging.INFO):
        with pytest.raises(Exception, match="scripted failure"):
            lab.run([llm("x")])
        lab.run([])
    assert "Execution Summary" not in caplog.text
    assert caplog.text.count("Execution time:") == 2


# -- how runs and nodes end --------------------------------------------------------------------------------------------


class Foreign(BaseException):
    """What no ``except Exception`` sees."""


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), Foreign(), OSError()], ids=repr)
@pytest.mark.parametrize("variables", [{}, {"parallelNodes": True}], ids=["in-turn", "parallel"])
@pytest.mark.parametrize("index", [0, 1])
def test_any_failure_is_told_and_passed_on(
    lab: EngineLab, error: BaseException, variables: dict[str, Any], index: int
) -> None:
    def broken(context: Any) -> str:
        if context.config["content"] == str(index):
            raise error
        return "fine"

    recorder = Recorder()
    lab.workflow("Main", [static("0"), static("1")], **variables)
    with pytest.raises(type(error)) as caught:
        list(start(lab, listener=recorder, probes={"StaticResponse": Probe(broken)}))
    assert caught.value is error
    name = type(error).__name__
    assert recorder.events[-2:] == [("node_failed", index + 1, name), ("run_finished", name)]
    assert current_site() is None


@pytest.mark.parametrize("error", [Foreign(), OSError()], ids=repr)
def test_a_failure_after_the_answer_is_told(lab: EngineLab, error: BaseException) -> None:
    def broken(context: Any) -> str:
        raise error

    recorder = Recorder()
    lab.workflow("Main", [static("x", returnToUser=True), {"type": "PythonModule"}])
    items = start(lab, listener=recorder, probes={"PythonModule": Probe(broken)})
    assert next(items) == "x"
    if isinstance(error, Foreign):
        with pytest.raises(Foreign):
            next(items)
    else:
        assert list(items) == []
    name = type(error).__name__
    assert recorder.events[-2:] == [("node_failed", 2, name), ("run_finished", name)]


def test_an_abandoned_run(lab: EngineLab) -> None:
    recorder = Recorder()
    lab.workflow("Main", [llm("hello")])
    items: Any = start(lab, listener=recorder, stream=True)
    while not next(items)["token"]:
        pass
    items.close()
    assert [event for event in recorder.events if event[0] in ("node_failed", "node_finished")] == []
    assert recorder.events[-1] == ("run_finished", "GeneratorExit")
    assert current_site() is None


def test_parallel_nodes_that_delivered_before_a_failure_are_told(lab: EngineLab) -> None:
    recorder = Recorder()
    lab.backend.responder = lambda request: status_reply(400, header_delay=0.1)
    lab.workflow("Main", [llm("a"), static("b"), static("c")], parallelNodes=True)
    with pytest.raises(Exception, match="scripted failure"):
        list(start(lab, listener=recorder))
    assert recorder.events[-2:] == [("node_finished", 2), ("run_finished", "BackendStatusError")]
    assert [info.node_index for info in recorder.finished[0].nodes] == [2]


def test_the_end_is_told_even_if_locks_cannot_be_released(lab: EngineLab, monkeypatch: pytest.MonkeyPatch) -> None:
    def release(workflow_id: str) -> None:
        raise OSError("no disk")

    monkeypatch.setattr(get_locking_service(), "release", release)
    recorder = Recorder()
    lab.workflow("Main", [static("x")])
    with pytest.raises(OSError, match="no disk"):
        list(start(lab, listener=recorder))
    assert recorder.events[-1][0] == "run_finished"


# -- calls of LLMs -----------------------------------------------------------------------------------------------------


class Calls(EngineListener):
    def __init__(self) -> None:
        self.events: list[tuple[str, str, int, str]] = []
        self.records: list[LlmCallRecord] = []

    def _hear(self, event: str, call: LlmCallRecord) -> None:
        self.events.append((event, call.workflow_name, call.node_index, call.node_name))
        self.records.append(call)

    def llm_call_started(self, call: LlmCallRecord) -> None:
        self._hear("started", call)

    def llm_call_finished(self, call: LlmCallRecord) -> None:
        self._hear("finished", call)

    def llm_call_failed(self, call: LlmCallRecord, error: BaseException) -> None:
        self._hear(type(error).__name__, call)


@pytest.mark.parametrize("stream", [False, True])
def test_calls_name_their_node(lab: EngineLab, stream: bool) -> None:
    calls = Calls()
    lab.workflow("Child", [static("c"), llm("inner", title="Ask", returnToUser=True), llm("later", title="After")])
    lab.workflow(
        "Main",
        [
            llm("first"),
            {"type": "CustomWorkflow", "workflowName": "Child", "returnToUser": True},
            llm("last", agentName="Last"),
        ],
    )
    list(start(lab, listener=calls, stream=stream))
    places = [("Main", 1, "N/A"), ("Child", 2, "Ask"), ("Child", 3, "After"), ("Main", 3, "Last")]
    assert calls.events == [(event, *place) for place in places for event in ("started", "finished")]
    assert {(call.request_id, call.endpoint) for call in calls.records} == {("r-1", "Main")}
    assert [call.streamed for call in calls.records[::2]] == [False, stream, False, False]
    assert current_site() is None


def test_parallel_nodes_keep_their_calls_apart(lab: EngineLab) -> None:
    calls = Calls()
    lab.workflow(
        "Main", [llm(f"q{index}", title=f"t{index}") for index in range(4)] + [static("x")], parallelNodes=True
    )
    list(start(lab, listener=calls))
    assert sorted(calls.events) == sorted(
        (event, "Main", index + 1, f"t{index}") for index in range(4) for event in ("started", "finished")
    )


def test_a_call_that_fails(lab: EngineLab) -> None:
    calls = Calls()
    lab.backend.responder = lambda request: status_reply(400)
    lab.workflow("Main", [llm("x")])
    with pytest.raises(Exception, match="scripted failure"):
        list(start(lab, listener=calls))
    assert [event[0] for event in calls.events] == ["started", "BackendStatusError"]


RAG = {
    "type": "SlowButQualityRAG",
    "ragType": "CurrentConversation",
    "ragTarget": "x--ChunkBreak--y",
    "prompt": "[TextChunk]",
}


@pytest.mark.parametrize(
    "node",
    [
        {**RAG, "endpointName": "Main"},
        {**RAG, "multiModelList": [{"endpointName": "Main"}, {"endpointName": "Main"}]},
        {"type": "ImageProcessor", "endpointName": "Main", "prompt": "describe"},
    ],
    ids=["chunks", "parallel", "images"],
)
def test_calls_that_nodes_make_themselves(lab: EngineLab, node: dict[str, Any]) -> None:
    calls = Calls()
    lab.workflow("Main", [static("a"), {**node, "title": "Own"}, static("b")])
    message = {**user("hi"), "images": ["aGVsbG8=", "d29ybGQ="]}
    list(start(lab, "Main", message, listener=calls, discussion_id="k1"))
    assert sorted(calls.events) == [(event, "Main", 2, "Own") for event in ("finished", "started") for _ in range(2)]


@pytest.mark.parametrize(
    ("listener", "events", "heard"),
    [
        (EngineListener(), ["run_started", "llm_call_started"], False),
        (object(), ["run_started"], False),
        (BrokenListener(), ["run_started", "run_finished"], False),
        (LogSummary(), ["llm_call_started", "run_finished"], True),
        (Calls(), ["run_started"], False),
        (Calls(), ["llm_call_failed"], True),
        (Partial(), ["request_finished"], True),
    ],
)
def test_what_is_heard(listener: object, events: list[str], heard: bool) -> None:
    assert Listeners([object(), listener]).listens_to(*events) is heard


# -- whose listeners ---------------------------------------------------------------------------------------------------


def test_the_listeners_of_a_run_are_those_of_its_request(lab: EngineLab) -> None:
    recorder, other = Recorder(), Recorder()
    lab.workflow("Main", [static("x")])
    lab.request.listeners = Listeners([recorder])
    list(start(lab))
    assert recorder.events[-1] == ("run_finished", "")
    list(start(lab, listener=other))  # those that a manager is given come before
    assert len(recorder.finished) == len(other.finished) == 1
    assert lab.request.listeners.listeners == (recorder,)


def test_a_request_without_listeners_gets_them(lab: EngineLab, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder, lines = Recorder(), []
    monkeypatch.setattr(recorder, "request_finished", lines.append)
    lab.workflow("Main", [static("x")])
    list(start(lab, listener=recorder))
    assert lab.request.listeners is not None
    lab.request.listeners.emit("request_finished", lab.request)
    assert lines == [lab.request]


def test_the_default_set() -> None:
    assert [type(listener).__name__ for listener in default_listeners()] == ["LogSummary", "RequestLine"]
    assert RequestContext().listeners is None


class Reader(EngineListener):
    """Keeps the events that carry texts."""

    def __init__(self) -> None:
        self.texts: list[tuple[str, str]] = []

    def node_delivered(self, record: RunRecord, index: int, output: object) -> None:
        self.texts.append((f"node {index}", str(output)))

    def llm_prompt(self, call: LlmCallRecord, prompt: Any) -> None:
        self.texts.append((f"prompt of {call.node_index}", prompt.conversation[-1]["content"]))


def test_listeners_get_prompts_and_outputs(lab: EngineLab) -> None:
    reader = Reader()
    lab.workflow("Main", [static("a"), llm("Say {agent1Output}")])
    answer = list(start(lab, listener=reader))
    assert reader.texts == [("node 1", "a"), ("prompt of 2", "Say a"), ("node 2", answer[0])]
