"""Replay, try again, compare and make a test, through the API of the console."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from werkzeug.test import Client

from Middleware.addons.console import command_process, made_test_routes
from Middleware.addons.console.sign_in import make_code
from Middleware.addons.records.records import build_records
from Middleware.api.running.running_requests import RunningRequests, running_requests
from Middleware.common import instance_global_variables as instance
from Middleware.models.process import Process
from Middleware.models.request_context import RequestContext
from Tests.api.record_lab import console_site
from Tests.stub_backend import RecordedRequest, Reply, StubBackend
from Tests.workflows.engine_lab import EngineLab, llm, reply_to, static, until

API, KEY = "/console/api/", "a-key-of-a-client"
DISCUSSION = "[DiscussionId]mill[/DiscussionId]"
SCRIPT = """from pathlib import Path
def Invoke(*args, **kwargs):
    Path(r"{}").write_text("the script ran", encoding="utf-8")
    return "from the script"
"""


class ConsoleLab(EngineLab):
    """The application in this process, with a session of a client's key."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, backend: StubBackend) -> None:
        super().__init__(root, monkeypatch, backend)
        monkeypatch.setattr("Middleware.models.process._process", Process())
        monkeypatch.setattr(instance, "CONSOLE_DIRECTORY", str(root / "Console"))
        self.records = build_records("edit")
        self.client = Client(console_site(self.records))
        self.headers = {"Authorization": f"Bearer {KEY}"}

    def call(self, method: str, path: str, body: Any = None, status: int = 200) -> Any:
        with self.client.open(API + path, method=method, headers=self.headers, json=body) as response:
            assert response.status_code == status, response.data
            return json.loads(response.data)

    def sign_in_as_operator(self) -> None:
        code = make_code(self.records.folder.secret(), time.time())
        self.headers = {"Authorization": f"Bearer {self.call('POST', 'session', {'code': code})['token']}"}

    def events(self, path: str, body: Any) -> list[tuple[str, Any]]:
        with self.client.open(API + path, method="POST", headers=self.headers, json=body) as response:
            assert response.status_code == 200, response.data
            blocks = [block.split("\n") for block in response.data.decode().split("\n\n") if block.strip(": \n")]
        return [
            (
                next(line[7:] for line in block if line.startswith("event: ")),
                json.loads(next(line[6:] for line in block if line.startswith("data: "))),
            )
            for block in blocks
        ]

    def chat(self, *messages: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
        """Ask as a client does; return the run when all of its nodes are done."""
        body = {"model": "tester", "messages": list(messages), **fields}
        with self.client.post("/v1/chat/completions", headers=self.headers, json=body) as response:
            assert response.status_code == 200 and response.data
        return self.run_of(response.headers["X-Request-Id"])

    def run_of(self, run_id: str) -> dict[str, Any]:
        found: dict[str, Any] = {}

        def has_ended() -> bool:
            found.update(self.call("GET", f"runs/{run_id}"))
            return found["run"]["status"] in ("ok", "failed")

        assert until(has_ended, 20.0)
        return found


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ConsoleLab]:
    monkeypatch.setattr(command_process, "NICENESS", 0)
    monkeypatch.setattr(made_test_routes, "TEST_SECONDS", 600.0)
    with StubBackend() as backend:
        lab = ConsoleLab(tmp_path / "Configs", monkeypatch, backend)
        yield lab
        lab.records.close()


def said(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


@pytest.fixture
def acting(lab: ConsoleLab, tmp_path: Path) -> tuple[Path, Path]:
    """A workflow with memory, file, script and web nodes; returns the files that it writes."""
    kept, marked = tmp_path / "kept.txt", tmp_path / "marked.txt"
    (tmp_path / "script.py").write_text(SCRIPT.format(marked), encoding="utf-8")
    lab.workflow(
        "_DefaultWorkflow",
        [
            llm("analyse {chat_user_prompt_last_one}", title="Analyse"),
            {"title": "Search", "type": "VectorMemorySearch", "input": "owl"},
            {"title": "Fetch", "type": "WebFetch", "url": f"{lab.backend.url}/page", "blockPrivateAddresses": False},
            {"title": "Script", "type": "PythonModule", "module_path": str(tmp_path / "script.py")},
            {"title": "Summary", "type": "GetCurrentSummaryFromFile"},
            {"title": "Inner", "type": "CustomWorkflow", "workflowName": "Inner"},
            llm("answer {agent3Output} {agent4Output} {agent6Output}", title="Answer", returnToUser=True),
            {"title": "Remember", "type": "QualityMemory"},
            llm("after the answer", title="Later"),
        ],
    )
    lab.workflow(
        "Inner",
        [
            {"title": "Keep", "type": "SaveCustomFile", "filepath": str(kept), "content": "kept"},
            llm("inner", title="Think"),
            static("{agent2Output}", title="Say"),
        ],
    )

    def reply(request: RecordedRequest) -> Reply:
        if request.path == "/page":
            return Reply(headers={"Content-Type": "text/html"}, body=b"<p>a page</p>")
        return reply_to(request, f"<{request.json['messages'][-1]['content']}>")

    lab.backend.responder = reply
    return kept, marked


def asked(lab: ConsoleLab) -> list[str]:
    """What reached the back-end, by the first word of a prompt, or the path."""
    return [
        request.path if request.path == "/page" else request.json["messages"][-1]["content"].split()[0]
        for request in lab.backend.requests
    ]


def test_a_replay_writes_nothing_and_calls_the_llm_only_from_its_start_on(
    lab: ConsoleLab, tmp_path: Path, acting: tuple[Path, Path]
) -> None:
    recorded = lab.chat(said(f"{DISCUSSION}hello"), stream=True)
    run_id = recorded["run"]["id"]
    assert asked(lab) == ["analyse", "/page", "inner", "answer", "after"] and all(path.exists() for path in acting)
    for path in acting:
        path.unlink()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and "Console" not in path.parts}

    nodes = lab.call("GET", f"runs/{run_id}/replay")["nodes"]
    assert [(node["title"], node["stands_in"]) for node in nodes] == [
        ("Analyse", False),
        ("Search", True),
        ("Fetch", True),
        ("Script", True),
        ("Summary", True),
        ("Inner", False),
        ("Keep", True),
        ("Think", False),
        ("Say", False),
        ("Answer", False),
        ("Remember", True),
        ("Later", False),
    ]
    calls = {"Analyse": "analyse", "Think": "inner", "Answer": "answer", "Later": "after"}
    for index, node in enumerate([None, *nodes]):
        lab.backend.requests.clear()
        start = None if node is None else {name: node[name] for name in ("workflow", "node", "occurrence")}
        replay = lab.run_of(lab.call("POST", f"runs/{run_id}/replay", {"from": start})["id"])
        left = nodes[max(index - 1, 0) :]
        assert asked(lab) == [calls[one["title"]] for one in left if one["title"] in calls], node
        facts = replay["run"]
        assert (facts["kind"], facts["status"], facts["origin"]) == (
            "replay",
            "ok",
            {"run": run_id, "span": None if node is None else node["span"]},
        )
        assert facts["answer"] == recorded["run"]["answer"]
        stood_in = {row[3] for row in replay["spans"] if row[6] == "stand-in"}
        assert stood_in >= {"Search", "Fetch", "Script", "Summary", "Remember"} & {one["title"] for one in left}
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and "Console" not in path.parts}
    assert after == before


@pytest.mark.parametrize("stream", [False, True])
def test_a_chosen_node_acts_and_one_without_output_stops_the_replay(
    lab: ConsoleLab, acting: tuple[Path, Path], stream: bool
) -> None:
    run_id = lab.chat(said("hello"), stream=stream)["run"]["id"]
    acting[0].unlink()
    lab.run_of(lab.call("POST", f"runs/{run_id}/replay", {"also": ["Inner/Keep"]})["id"])
    assert acting[0].exists()
    nodes = [
        llm("analyse", title="Analyse"),
        {"title": "New", "type": "GetCustomFile", "filepath": "/none"},
        llm("answer", title="Answer"),
    ]
    lab.workflow("_DefaultWorkflow", nodes)
    stopped = lab.run_of(lab.call("POST", f"runs/{run_id}/replay", {})["id"])
    assert stopped["run"]["status"] == "failed" and "stops at node '_DefaultWorkflow/New'" in stopped["run"]["error"]


def test_a_replay_knows_the_times_of_the_messages_and_changes_none(lab: ConsoleLab) -> None:
    lab.workflow(
        "_DefaultWorkflow",
        [
            llm("", title="Answer", addDiscussionIdTimestampsForLLM=True),
        ],
    )
    recorded = lab.chat(said(f"{DISCUSSION}hello"))
    (times,) = (lab.root / "discussions").rglob("timestamps.json")
    before = times.read_bytes()
    # Another time of the day would show in the prompt.
    times.write_bytes(before.replace(b"20", b"19"))
    lab.run_of(lab.call("POST", f"runs/{recorded['run']['id']}/replay", {})["id"])
    first, second = (request.json["messages"][-1]["content"] for request in lab.backend.requests)
    assert second == first.replace("20", "19") != first
    assert times.read_bytes() == before.replace(b"20", b"19")


@pytest.mark.parametrize(
    ("body", "status", "where"),
    [
        ({"from": {"workflow": "tester/Nowhere", "node": 1}}, 404, "from"),
        ({"from": 3}, 400, "from"),
        ({"also": ["Inner/Nothing"]}, 404, "also"),
        ({"also": "Keep"}, 400, "also"),
        ({"form": None}, 400, "form"),
    ],
)
def test_what_a_replay_cannot_be(lab: ConsoleLab, body: Any, status: int, where: str) -> None:
    lab.workflow("_DefaultWorkflow", [llm("x", title="Answer")])
    run_id = lab.chat(said("hello"))["run"]["id"]
    assert lab.call("POST", f"runs/{run_id}/replay", body, status)["error"]["where"] == where


# -- again -------------------------------------------------------------------------------------------------------------


def test_again_sends_exactly_the_edited_messages_and_streams(lab: ConsoleLab) -> None:
    lab.workflow(
        "_DefaultWorkflow",
        [llm("", title="Answer", systemPrompt="Be brief.", endpointName="Main", maxResponseSizeInTokens=77)],
    )
    lab.endpoint("Main", {"addTextToStartOfSystem": True, "textToAddToStartOfSystem": "[added]"}, lab.backend.url)
    lab.endpoint(
        "Other",
        {"modelNameToSendToAPI": "other-model", "addTextToStartOfPrompt": True, "textToAddToStartOfPrompt": "[other]"},
        lab.backend.url,
    )
    lab.preset("OpenAiCompatibleApis", "Hot", {"temperature": 1.5})
    # A key calls endpoints of the workflows that it may use.
    lab.workflow("Tasks", [llm("x", endpointName="Other")])
    recorded = lab.chat(said("hello"))
    call = next(row[0] for row in recorded["spans"] if row[2] == "llm")
    payload = lab.call("GET", f"runs/{recorded['run']['id']}/texts/{call + 1}")["payload"]
    assert payload["messages"][0]["content"].startswith("[added]")
    messages = [*payload["messages"][:-1], said("edited {x}")]
    # Fields of the engine's own, which no client can send otherwise.
    foreign = {"images": ["/etc/hostname"], "extra": [{"member": "x"}], "cache_control": {}}
    lab.backend.requests.clear()

    events = lab.events(
        f"runs/{recorded['run']['id']}/again/{call}",
        {
            "messages": [*messages[:-1], {**messages[-1], **foreign}],
            "endpoint": "Other",
            "preset": "Hot",
            "times": 2,
        },
    )

    for request in lab.backend.requests:
        assert request.json["messages"] == messages and request.json["model"] == "other-model"
        assert (request.json["temperature"], request.json["max_tokens"]) == (1.5, 77)
    assert len(lab.backend.requests) == 2
    first, last = events[0][1], events[-1]
    assert last == ("run", {"run": first["run"]}) and len(events) > 4
    assert "".join(value["text"] for name, value in events if value.get("n") == 2) == "<edited {x}>"
    again = lab.run_of(first["run"])["run"]
    assert (again["kind"], again["status"], again["origin"], again["calls"], again["endpoints"]) == (
        "again",
        "ok",
        {"run": recorded["run"]["id"], "span": call},
        2,
        ["Other"],
    )
    choices = lab.call("GET", f"again/choices?run={recorded['run']['id']}")
    assert choices["endpoints"] == ["Main", "Other"] and choices["presets_of"]["Other"] == ["Hot"]


@pytest.mark.parametrize(
    ("api_type", "name", "keys"),
    [
        ("LlamaCppServer", "grammar", {"answerChoices": ["CODING", 'A "B" | C']}),
        ("LlamaCppServer", "response_format", {"structuredOutputFile": "Shape"}),
        ("Open-AI-API", "response_format", {"answerChoices": ["CODING", "CHAT"]}),
    ],
)
def test_again_holds_the_answer_to_the_same_shape(
    lab: ConsoleLab, api_type: str, name: str, keys: dict[str, Any]
) -> None:
    shipped = Path(__file__).parents[2] / "Public" / "Configs" / "ApiTypes" / f"{api_type}.json"
    lab.write(f"ApiTypes/{api_type}", json.loads(shipped.read_text(encoding="utf-8")))
    lab.endpoint("Main", {"apiTypeConfigFileName": api_type}, lab.backend.url)
    lab.write("StructuredOutputs/Shape", {"type": "object", "title": "x"})
    lab.workflow("_DefaultWorkflow", [llm("Which?", title="Answer", **keys)])
    recorded = lab.chat(said("hello"))
    # A free answer that names no choice is followed by a call that must.
    call = [row[0] for row in recorded["spans"] if row[2] == "llm"][-1]
    lab.events(f"runs/{recorded['run']['id']}/again/{call}", {"messages": [said("x")], "endpoint": "Main"})
    first, second = (request.json for request in lab.backend.requests[-2:])
    assert first[name] and second[name] == first[name]


def test_an_again_that_fails_says_why(lab: ConsoleLab) -> None:
    lab.endpoint("Main", {"maxContextTokenSize": 4096}, lab.backend.url)
    lab.workflow("_DefaultWorkflow", [llm("x", title="Answer")])
    recorded = lab.chat(said("hello"))
    call = next(row[0] for row in recorded["spans"] if row[2] == "llm")
    path = f"runs/{recorded['run']['id']}/again/{call}"
    for body, where in (
        ({"messages": [], "endpoint": "Main"}, "messages"),
        ({"messages": [said("x")]}, "endpoint"),
        ({"messages": [said("x")], "endpoint": "Main", "times": 6}, "times"),
        # More than its window.
        ({"messages": [said("x")], "endpoint": "Main", "max_tokens": 4097}, "max_tokens"),
    ):
        assert lab.call("POST", path, body, 400)["error"]["where"] == where
    lab.backend.responder = lambda request: Reply(status=400, body=b"no such thing")
    events = lab.events(path, {"messages": [said("x")], "endpoint": "Main"})
    assert events[-1][0] == "error" and "no such thing" in events[-1][1]["error"]["message"]
    assert lab.run_of(events[0][1]["run"])["run"]["status"] == "failed"


def test_an_again_goes_only_where_its_session_may_call(lab: ConsoleLab) -> None:
    """A key: the endpoints of the run, and of workflows that its clients reach; nothing else, in any spelling."""
    lab.workflow("_DefaultWorkflow", [llm("x", title="Answer")])
    for name in ("Other", "Spare"):
        lab.endpoint(name, {}, lab.backend.url)
    for name in ("Hot", "mild/Warm"):
        lab.preset("OpenAiCompatibleApis", name, {"temperature": 1.5})
    lab.workflow("Tasks", [llm("x", endpointName="Other")])
    # A workflow of other users.
    lab.write("Workflows/others/Unused", {"nodes": [llm("x", endpointName="Spare")]})
    recorded = lab.chat(said("hello"))["run"]["id"]
    call = next(row[0] for row in lab.run_of(recorded)["spans"] if row[2] == "llm")
    rows = [
        ("Main", None, 200, 200, ""),
        ("main", "hot", 200, 200, ""),
        ("Main", "mild/Warm", 200, 200, ""),
        ("Main", "mild/Wram", 404, 404, ""),
        ("Other", "Hot", 200, 200, ""),
        ("Spare", None, 404, 200, ""),
        ("SPARE", None, 404, 200, ""),
        ("../lab/Main", None, 404, 404, ""),
        ("Mian", None, 404, 404, "Did you mean 'Main'?"),
        ("Othre", "Hot", 404, 404, "Did you mean 'Other'?"),
        ("Main", "Hott", 404, 404, "Did you mean 'Hot'?"),
        ("Main", "Main\x00", 404, 404, ""),
        ("M\udc80in", None, 404, 404, "Did you mean 'Main'?"),
    ]
    for is_operator in (False, True):
        if is_operator:
            lab.sign_in_as_operator()
        for endpoint, preset, *statuses, hint in rows:
            body = {"messages": [said("x")], "endpoint": endpoint, "preset": preset}
            with lab.client.open(
                f"{API}runs/{recorded}/again/{call}", method="POST", headers=lab.headers, json=body
            ) as response:
                assert response.status_code == statuses[is_operator], (is_operator, body, response.data)
                assert hint in response.data.decode(), response.data
        choices = lab.call("GET", f"again/choices?run={recorded}")["endpoints"]
        assert choices == ["Main", "Other", *["Spare"] * is_operator]


@pytest.mark.parametrize(("reply", "status"), [(None, "ok"), (Reply(status=400, body=b"no such thing"), "failed")])
def test_an_again_has_ended_when_its_last_event_goes_out(
    lab: ConsoleLab, reply: Reply | None, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.workflow("_DefaultWorkflow", [llm("x", title="Answer")])
    recorded = lab.chat(said("hello"))
    call = next(row[0] for row in recorded["spans"] if row[2] == "llm")
    if reply is not None:
        lab.backend.responder = lambda _: reply
    end, found = RunningRequests.end, []

    def slow_end(self: RunningRequests, request: RequestContext) -> None:
        # An event that is sent before would be here first.
        time.sleep(0.2)
        end(self, request)

    monkeypatch.setattr(RunningRequests, "end", slow_end)
    with lab.client.open(
        f"{API}runs/{recorded['run']['id']}/again/{call}",
        method="POST",
        headers=lab.headers,
        json={"messages": [said("x")], "endpoint": "Main"},
    ) as response:
        for piece in response.iter_encoded():
            if b"event: run" in piece or b"event: error" in piece:
                found.append(
                    (
                        running_requests().count(),
                        lab.call("GET", f"runs/{response.headers['X-Request-Id']}")["run"]["status"],
                    )
                )
    assert found == [(0, status)]


# -- compare -----------------------------------------------------------------------------------------------------------


def test_compare_aligns_a_workflow_that_gained_a_node_and_shows_what_changed(lab: ConsoleLab) -> None:
    nodes = [llm("analyse", title="Analyse"), llm("answer {agent1Output}", title="Answer")]
    lab.workflow("_DefaultWorkflow", nodes)
    a = lab.chat(said("hello"))["run"]["id"]
    # A change of a file is noticed after a second.
    time.sleep(1.1)
    lab.workflow("_DefaultWorkflow", [nodes[0], llm("check", title="Check"), nodes[1]])
    b = lab.chat(said("hello"))["run"]["id"]
    found = lab.call("GET", f"compare/{a}/{b}")
    assert [(step["title"], bool(step["a"]), bool(step["b"]), step["text"]) for step in found["steps"]] == [
        ("Analyse", True, True, "same"),
        ("Check", False, True, None),
        ("Answer", True, True, "same"),
    ]
    changed = {"path": "Workflows/tester/_DefaultWorkflow.json", "change": "changed"}
    assert found["configuration"] == [changed]
    # What is in the file is for an operator.
    lab.sign_in_as_operator()
    (change,) = lab.call("GET", f"compare/{a}/{b}")["configuration"]
    assert changed.items() <= change.items()
    assert "Check" not in change["before"] and "Check" in change["after"]


# -- make a test -------------------------------------------------------------------------------------------------------


def test_a_made_test_passes_in_a_process_of_its_own(lab: ConsoleLab, acting: tuple[Path, Path]) -> None:
    run_id = lab.chat(said("hello"))["run"]["id"]
    made = lab.call("POST", f"runs/{run_id}/test", {"name": "it answers"})
    assert (made["path"], made["writable"]) == ("Workflows/tester/_DefaultWorkflow.test.json", False)
    assert set(made["test"]["stubs"]) == {"Search", "Fetch", "Script", "Summary", "Keep", "Remember"}
    result = lab.call("POST", f"runs/{run_id}/test/run", {"name": "it answers"})
    assert result["passed"] and result["unticked"] == [] and result["lines"] == [], result
    lab.workflow("Inner", [static("other", title="Think")])
    broken = lab.call("POST", f"runs/{run_id}/test/run", {"name": "it answers", "expect": ["answer"]})
    assert not broken["passed"] and any("Keep" in line for line in broken["lines"]), broken


def test_expectations_that_cannot_hold_are_unticked_with_the_reason(lab: ConsoleLab) -> None:
    lab.workflow("_DefaultWorkflow", [llm("It is {current_time_24h}", title="Answer")])
    run_id = lab.chat(said("hello"))["run"]["id"]
    made = lab.call("POST", f"runs/{run_id}/test", {"name": "it answers"})
    assert "prompts" not in made["test"]["expect"]
    assert {
        "expectation": "expect.prompts['Answer']",
        "reason": "the node uses a variable, whose value is another one at another time",
    } in made["unticked"]
    # What is in the file is for those who may read workflows.
    lab.sign_in_as_operator()
    made = lab.call("POST", f"runs/{run_id}/test", {"name": "it answers"})
    assert "the node uses {current_time_24h}," in str(made["unticked"])


def test_a_date_in_the_system_prompt_leaves_the_messages_expected(lab: ConsoleLab) -> None:
    lab.workflow(
        "_DefaultWorkflow",
        [
            llm("Notes.", title="Think"),
            llm("<{agent1Output}>", title="Answer", systemPrompt="On {todays_date_pretty}."),
        ],
    )
    run_id = lab.chat(said("hello"))["run"]["id"]
    wish = {"name": "it answers", "expect": ["prompts"]}
    made = lab.call("POST", f"runs/{run_id}/test", wish)
    assert list(made["test"]["expect"]["prompts"]["Answer"]) == ["prompt"]
    assert [one["expectation"] for one in made["unticked"]] == ["expect.prompts['Answer'].system"]
    result = lab.call("POST", f"runs/{run_id}/test/run", wish)
    assert result["passed"] and result["unticked"] == made["unticked"]


def test_a_made_test_is_saved_behind_the_others_by_an_operator(lab: ConsoleLab) -> None:
    lab.workflow("_DefaultWorkflow", [llm("", title="Answer")])
    run_id = lab.chat(said("hello"))["run"]["id"]
    path = lab.root / "Workflows" / "tester" / "_DefaultWorkflow.test.json"
    assert lab.call("POST", f"runs/{run_id}/test/save", {"name": "one"}, 403)["error"]["type"] == "forbidden"
    lab.sign_in_as_operator()
    made = lab.call("POST", f"runs/{run_id}/test", {"name": "one"})
    assert made["writable"] and made["why"] == ""
    assert lab.call("POST", f"runs/{run_id}/test/save", {"name": "one"}) == {"path": made["path"]}
    assert path.read_text(encoding="utf-8") == made["file"]

    path.write_text('{"tests": [{"name": "mine",  "messages": []}  ]}', encoding="utf-8")
    lab.call("POST", f"runs/{run_id}/test/save", {"name": "two", "without": ["expect.answer"]})
    text = path.read_text(encoding="utf-8")
    tests = json.loads(text)["tests"]
    assert text.startswith('{"tests": [{"name": "mine",  "messages": []},') and tests[1]["name"] == "two"
    assert "answer" not in tests[1]["expect"] and "route" in tests[1]["expect"]
    (backup,) = (lab.root / "Console" / "backups").iterdir()
    assert json.loads(backup.read_bytes())["tests"] == [{"name": "mine", "messages": []}]

    path.write_text('{"user": "somebody", "tests": []}', encoding="utf-8")
    refused = lab.call("POST", f"runs/{run_id}/test/save", {"name": "three"}, 409)["error"]["message"]
    assert "are for the user 'somebody', and this run was made by 'tester'" in refused
