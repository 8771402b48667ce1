"""What is recorded of requests, from their arrival to their end, whatever that is."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from werkzeug.test import Client

from Middleware.addons.records.queries import RunQuery
from Middleware.addons.records.run_texts import normalised
from Middleware.addons.records.viewers import Viewer
from Middleware.api.app import build_wsgi_application, create_app
from Middleware.api.running.running_requests import running_requests
from Middleware.common import instance_global_variables as instance
from Tests.api.api_lab import CHAT
from Tests.api.record_lab import RecordLab, named, record_lab, tree
from Tests.stub_backend import Reply, chat_chunk, chat_reply, chat_stream_reply, sse_reply, status_reply
from Tests.workflows.engine_lab import llm, static, until, user


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordLab]:
    with record_lab(tmp_path, monkeypatch) as lab:
        yield lab


@pytest.mark.parametrize("stream", [False, True])
def test_a_run_of_one_node(lab: RecordLab, stream: bool) -> None:
    lab.ask("Hello {there}", stream=stream)
    run = lab.run()
    assert tree(run) == [
        "workflow _DefaultWorkflow ok",
        "  node Standard ok",
        "    llm Main ok",
        "      attempt Main ok",
    ]
    facts = run.facts
    assert (facts["status"], facts["error.type"], facts["kind"], facts["client"]) == (
        "ok",
        None,
        "chat",
        "openaichatcompletion",
    )
    assert (facts["user"], facts["workflow"], facts["route"], facts["stream"]) == (
        "tester",
        "_DefaultWorkflow",
        "_DefaultWorkflow",
        stream,
    )
    assert (facts["question"], facts["answer"]) == ("Hello {there}", "<Hello {there}>")
    assert (facts["nodes"], facts["calls"], facts["endpoints"]) == (1, 1, ["Main"])
    assert facts["started"] <= (facts["answered"] or 0) <= (facts["ended"] or 0)
    assert (facts["first_token"] is not None) is stream
    workflow, node, call, attempt = run.spans
    assert workflow.texts["request"] == {"messages": [user("Hello {there}")], "tools": None, "tool_choice": None}
    assert node.texts == {"output": "<Hello {there}>"} and call.texts == {"answer": "<Hello {there}>"}
    assert attempt.texts == {"payload": lab.backend.requests[0].json}
    assert all(span.start >= (run.span(span.parent).start if span.parent else 0) for span in run.spans)  # type: ignore[union-attr]


DIALECTS = [
    ("/v1/chat/completions", {"messages": [user("hi")]}),
    ("/v1/completions", {"prompt": "hi", "stream": False}),
    ("/v1/responses", {"input": "hi"}),
    ("/v1/messages", {"messages": [user("hi")], "max_tokens": 9}),
    ("/api/chat", {"messages": [user("hi")], "stream": False}),
    ("/api/generate", {"prompt": "hi", "stream": False}),
    ("/api/v1/generate", {"prompt": "hi"}),
]


@pytest.mark.parametrize(("path", "body"), DIALECTS, ids=[path for path, _ in DIALECTS])
def test_each_dialect_is_recorded(lab: RecordLab, path: str, body: dict[str, Any]) -> None:
    response = lab.caller.post(path, data=json.dumps({"model": "me", **body}))
    assert response.status_code == 200, response.text
    response.close()
    run = lab.run()
    assert (run.facts["status"], run.facts["question"], run.facts["answer"]) == ("ok", "hi", "<hi>")
    assert run.facts["model"] == "me" and run.facts["id"] == response.headers["X-Request-Id"]


def test_a_request_that_cannot_be_read_has_failed(lab: RecordLab) -> None:
    lab.caller.post(CHAT, data="{").close()
    facts = lab.run().facts
    assert (facts["status"], facts["error.type"], facts["error"]) == ("failed", "ClientError", "Invalid JSON data")
    assert (facts["nodes"], facts["workflow"], facts["route"]) == (0, None, None)


@pytest.mark.parametrize("stream", [False, True])
def test_a_failed_run_says_where_and_why(lab: RecordLab, stream: bool) -> None:
    lab.backend.responder = lambda request: status_reply(400, "no such model")
    lab.ask(stream=stream)
    run = lab.run()
    assert tree(run) == [
        "workflow _DefaultWorkflow error",
        "  node Standard error",
        "    llm Main error",
        "      attempt Main error",
    ]
    assert run.facts["status"] == "failed" and run.facts["error.type"] == "BackendStatusError"
    assert "no such model" in str(run.facts["error"]) and "no such model" in str(run.spans[3].texts["error"])
    assert run.spans[3].attributes["http.status"] == 400 and run.facts["endpoints"] == []


def test_a_run_that_breaks_off_keeps_what_had_come(lab: RecordLab) -> None:
    lab.backend.responder = lambda request: sse_reply(
        [chat_chunk({"content": "Hel"}), chat_chunk({"content": "lo"}), {"error": {"message": "out of memory"}}]
    )
    lab.ask(stream=True)
    run = lab.run()
    assert (run.facts["status"], run.facts["error.type"]) == ("failed", "BackendResponseError")
    assert named(run, "llm")[0].texts["answer"] == run.facts["answer"] == "Hello"


def test_a_running_request_is_listed_and_can_be_cancelled(lab: RecordLab) -> None:
    lab.backend.responder = lambda request: chat_stream_reply(["Hel", "lo"], None, hang=True)
    answered = threading.Thread(target=lab.ask, kwargs={"stream": True})
    answered.start()
    assert until(lambda: bool(lab.runs and lab.runs[0].live() and lab.runs[0].live()[0]["tokens"] == 2))
    [run] = lab.runs
    assert run.facts["status"] == "running" and not run.finished
    assert run.live() == [{"span": 3, "tokens": 2, "text": "Hello", "reasoning": ""}]
    assert tree(normalised(run)) == [
        "workflow _DefaultWorkflow running",
        "  node Standard running",
        "    llm Main running",
        "      attempt Main running",
    ]
    assert normalised(run).spans[3].texts["payload"] == lab.backend.requests[0].json
    running_requests().cancel(run.facts["id"], "")
    answered.join(60)
    stopped = lab.run()
    assert stopped.facts["status"] == "cancelled" and stopped.live() == []
    assert {span.status for span in stopped.spans} == {"cancelled"}


def test_the_gate(lab: RecordLab, monkeypatch: pytest.MonkeyPatch) -> None:
    instance.initialize_request_semaphore(1)
    monkeypatch.setattr(instance, "CONCURRENCY_TIMEOUT", 1.5)
    lab.caller = lab.served()
    go_on = threading.Event()

    def held(request: Any) -> Reply:
        go_on.wait(60)
        return chat_reply("late")

    lab.backend.responder = held
    first = threading.Thread(target=lab.ask)
    first.start()
    assert until(lambda: bool(lab.backend.requests))
    other = threading.Thread(target=lambda: lab.caller.post(CHAT, data=json.dumps({"messages": [user("x")]})).close())
    other.start()
    assert until(lambda: len(lab.runs) == 2 and lab.runs[1].facts["status"] in ("queued", "refused"))
    other.join(60)
    go_on.set()
    first.join(60)
    assert until(lambda: all(run.finished for run in lab.runs))
    ok, refused = (normalised(run) for run in lab.runs)
    assert (ok.facts["status"], ok.facts["queued"]) == ("ok", None)
    assert refused.facts["status"] == "refused" and refused.facts["queued"] is not None
    assert tree(refused) == ["wait gate error"] and refused.spans[0].duration >= 1_400_000


def test_other_requests_are_no_runs(lab: RecordLab) -> None:
    lab.caller.get("/v1/models").close()
    lab.caller.post("/api/show", data="{}").close()
    assert lab.runs == []


def test_nested_and_later_nodes_stand_where_they_belong(lab: RecordLab) -> None:
    lab.workflow("Child", [static("one"), static("two {agent1Output}")])
    lab.default(
        [
            {"type": "CustomWorkflow", "workflowName": "Child", "title": "Ask", "scoped_variables": ["x"]},
            llm("{agent1Output}", title="Answer", returnToUser=True),
            static("later", title="After"),
        ]
    )
    lab.ask()
    run = lab.run()
    assert tree(run) == [
        "workflow _DefaultWorkflow ok",
        "  node Ask ok",
        "    workflow Child ok",
        "      node StaticResponse ok",
        "      node StaticResponse ok",
        "  node Answer ok",
        "    llm Main ok",
        "      attempt Main ok",
        "  node After ok",
    ]
    ask, child, answer, after = run.spans[1], run.spans[2], run.spans[5], run.spans[8]
    assert child.attributes["nested"] and child.texts["inputs"] == ["x"]
    assert (ask.attributes["node.index"], ask.attributes["node.type"]) == (1, "CustomWorkflow")
    assert answer.attributes["responder"] and not answer.attributes["after_answer"]
    assert after.attributes["after_answer"] and run.facts["answer"] == "<two one>"


def test_nodes_side_by_side_stand_in_the_order_of_their_start(lab: RecordLab) -> None:
    asked, both = list[Any](), threading.Event()

    def together(request: Any) -> Reply:
        asked.append(request)
        if len(asked) == 2:
            both.set()
        return Reply(**vars(chat_reply("ok")) | {"held": both})

    lab.backend.responder = together
    lab.workflow("Child", [llm("inner", title="Inner")])
    lab.default(
        [
            llm("left", title="Left"),
            {"type": "CustomWorkflow", "workflowName": "Child", "title": "Right", "parallelSafe": True},
            llm("Answer {agent1Output} {agent2Output}", title="Last", returnToUser=True),
        ],
        parallelNodes=True,
    )
    lab.ask()
    run = lab.run()
    by_name = {span.name: span for span in run.spans}
    whole, left, right, last, inner = (by_name[name] for name in ("_DefaultWorkflow", "Left", "Right", "Last", "Inner"))
    assert whole.attributes["parallel"] and {left.parent, right.parent, last.parent} == {whole.id}
    assert left.start < right.start + right.duration and right.start < left.start + left.duration
    assert run.span(inner.parent or 0).parent == right.id  # type: ignore[union-attr]
    # The call of each node stands below it, though they were made at the same time on other threads.
    assert [span.parent for name in (left, inner, last) for span in named(run, "llm") if span.parent == name.id] == [
        left.id,
        inner.id,
        last.id,
    ]
    assert [span.start for span in run.spans] == sorted(span.start for span in run.spans)


CANARY = "Quetzalwibble"


def test_a_run_file_without_texts_has_no_word_of_the_conversation(lab: RecordLab, tmp_path: Path) -> None:
    script = tmp_path / "say.py"
    script.write_text(f"def Invoke(*words):\n    raise ValueError('{CANARY} ' + ' '.join(words))\n", encoding="utf-8")
    lab.backend.responder = lambda request: (
        status_reply(400, CANARY) if b"Fail now" in request.body else chat_reply(f"{CANARY}!")
    )
    last = "{chat_user_prompt_last_one}"
    lab.default(
        [
            llm(f"{last} ?", title="Answer", systemPrompt="{chat_system_prompt}"),
            {"type": "WebFetch", "url": f"{lab.backend.url}/{{agent1Output}}", "onError": "return"},
            {"type": "WebFetch", "url": f"http://{last}.invalid/", "onError": "return"},
            {"type": "MCPToolCall", "server": last, "tool": last, "onError": "return"},
            {"type": "PythonModule", "module_path": str(script), "args": [last]},
            llm("Fail now"),
        ]
    )
    lab.records.begin()
    lab.ask(
        messages=[{"role": "system", "content": f"Be {CANARY}."}, user(CANARY)],
        tools=[{"type": "function", "function": {"name": CANARY, "parameters": {"type": "object"}}}],
    )
    run_id = lab.run().facts["id"]
    assert lab.run().facts["status"] == "failed" and len(named(lab.run(), "tool")) == 4
    lab.console(f"runs/{run_id}", "PUT", {"note": CANARY})
    without = lab.console(f"runs/{run_id}/export?texts=0")
    assert CANARY.lower() not in json.dumps(without).lower(), without
    assert (without["format"], without["run"]["id"], len(without["spans"])) == (
        "wilmer-run/1",
        run_id,
        len(lab.run().spans),
    )
    whole = lab.console(f"runs/{run_id}/export?texts=1")
    assert json.dumps(whole).count(CANARY) > 10 and whole["run"]["question"] == CANARY


def test_what_has_ended_is_given_without_texts(lab: RecordLab) -> None:
    lab.ask("a sentence")
    (found,) = lab.records.archive.documents(RunQuery(), Viewer("operator"))
    assert [span.kind for span in found.spans] == [span.kind for span in lab.run().spans]
    assert all(span.texts == {} for span in found.spans) and found.encryption_key is None


def test_without_a_console_nothing_listens(lab: RecordLab) -> None:
    caller = Client(build_wsgi_application(create_app(), threads=100))
    caller.post(CHAT, data=json.dumps({"messages": [user("hi")]})).close()
    assert lab.runs == []
