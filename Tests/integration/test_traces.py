"""Traces of a real server: what a collector receives of each run, and what servers are told."""

from __future__ import annotations

import http.client
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from Middleware.common.constants import VERSION
from Tests.integration.launcher import (
    USER,
    Backend,
    Launcher,
    child_node,
    endpoint,
    llm_node,
    run_launcher,
    says,
    standard_tree,
    stuck,
)
from Tests.integration.otlp_receiver import OtlpReceiver, Received
from Tests.patience import CLIENT_PATIENCE
from Tests.stub_backend import RecordedRequest, Reply, chat_reply, status_reply
from Tests.workflows.engine_lab import until

CLIENT_TRACE, CLIENT_SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-01")
SECRET = "what only the two of us know"
CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"


class Traced:
    """A server with ``--otel``, and the collector that it sends to."""

    def __init__(self, public: Path, *words: str, redacted: bool = False, **variables: str) -> None:
        self._stack = ExitStack()
        self.backend = self._stack.enter_context(Backend())
        self.collector = self._stack.enter_context(OtlpReceiver())
        self.tree = standard_tree(public, self.backend.url)
        respond = {"returnToUser": True}
        self.tree.write(
            "Endpoints/Broken.json",
            endpoint(self.backend.url, modelNameToSendToAPI="broken", backupEndpointName="Stub"),
        )
        self.tree.shared("Backed", llm_node("backed", endpointName="Broken", **respond))
        self.tree.shared("Outer", child_node("Steps"), llm_node("outer", **respond), llm_node("after"))
        self.tree.shared(
            "Fetch",
            {
                "title": "Look",
                "type": "WebFetch",
                "url": f"{self.backend.url}/node/page",
                "blockPrivateAddresses": False,
            },
            llm_node("outer", **respond),
        )
        if redacted:
            path = self.tree.configs / "Users" / f"{USER}.json"
            self.tree.write(f"Users/{USER}.json", {**json.loads(path.read_text("utf-8")), "redactLogOutput": True})
        with pytest.MonkeyPatch.context() as patch:
            for name in os.environ:
                if name.startswith("OTEL_"):
                    patch.delenv(name)
            patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", self.collector.url)
            patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
            for name, value in variables.items():
                patch.setenv(name, value)
            self.server = self._stack.enter_context(
                Launcher(
                    "run_waitress.py",
                    "--PublicDirectory",
                    public,
                    "--User",
                    USER,
                    "--otel",
                    *words,
                    backend=self.backend,
                )
            )

    def close(self) -> None:
        self._stack.close()

    def ask(self, model: str, text: str = "Hello", **headers: str) -> Received:
        """Send a request and return its tree, once all of it has arrived."""
        body = json.dumps({"model": model, "messages": [{"role": "user", "content": text}]})
        with closing(http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=CLIENT_PATIENCE)) as connection:
            connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json", **headers})
            answer = connection.getresponse()
            answer.read()
        return self.tree_of(answer.headers["X-Request-Id"])

    def tree_of(self, run_id: str) -> Received:
        assert until(lambda: run_id in self.collector.trees(), 60), self.server.output()
        return self.collector.trees()[run_id]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    # Each span on its own, as a busy machine may send any of them: the root of a run comes last.
    traced = Traced(tmp_path_factory.mktemp("traces") / "Public", OTEL_BSP_MAX_EXPORT_BATCH_SIZE="1")
    yield traced
    traced.close()


@pytest.fixture
def traced(running: Traced) -> Traced:
    running.backend.reset()
    return running


def test_a_run_is_one_tree_with_the_names_of_the_convention(traced: Traced) -> None:
    root = traced.ask("Outer")
    assert root.lines() == [
        "invoke_workflow Outer",
        "  invoke_workflow Outer",
        "    node Steps",
        "      invoke_workflow Steps",
        "        node inner",
        "          chat stub",
        "        node inner-next",
        "          chat stub",
        "    node outer",
        "      chat stub",
        "    node after",
        "      chat stub",
    ]
    assert root.parent == "" and {span.trace for span in root.all()} == {root.trace}
    workflow, node, chat = root.children[0], root.children[0].children[0], root.children[0].children[1].children[0]
    assert (root.kind, workflow.kind, node.kind, chat.kind) == ("SERVER", "INTERNAL", "INTERNAL", "CLIENT")
    assert (
        root.attributes.items()
        >= {
            "gen_ai.operation.name": "invoke_workflow",
            "gen_ai.workflow.name": "Outer",
            "wilmer.run.status": "ok",
            "wilmer.run.user": USER,
            "wilmer.run.kind": "chat",
        }.items()
    )
    assert workflow.attributes["gen_ai.workflow.name"] == "Outer"
    # A hash, the same for all turns of a conversation.
    assert re.fullmatch("[0-9a-f]{16}", root.attributes["gen_ai.conversation.id"])
    assert workflow.attributes["gen_ai.conversation.id"] == root.attributes["gen_ai.conversation.id"]
    assert (
        node.attributes.items()
        >= {
            "wilmer.node.index": 1,
            "wilmer.node.type": "CustomWorkflow",
            "wilmer.node.title": "Steps",
            "wilmer.node.after_answer": False,
        }.items()
    )
    assert (
        chat.attributes.items()
        >= {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "openai",
            "gen_ai.request.model": "stub",
            "gen_ai.request.temperature": 0.5,
            "gen_ai.request.max_tokens": 100,
            "gen_ai.usage.input_tokens": 11,
            "gen_ai.usage.output_tokens": 7,
            "gen_ai.response.finish_reasons": ["stop"],
            "server.address": "127.0.0.1",
            "http.response.status_code": 200,
            "wilmer.endpoint": "Stub",
        }.items()
    )
    assert root.resource["service.name"] == "wilmerai" and root.resource["service.version"] == VERSION
    assert traced.collector.paths == {"/v1/traces"}
    for span in root.all():
        assert root.start <= span.start <= span.end <= root.end and not span.failed


def test_no_text_is_in_it(traced: Traced) -> None:
    root = traced.ask("Single", SECRET, Authorization="Bearer a-key-of-a-client", **{"X-Client": "someone"})
    traced.backend.replies["single"] = status_reply(400, SECRET)
    failed = traced.ask("Single", SECRET, Authorization="Bearer a-key-of-a-client")
    assert failed.failed and root.attributes["wilmer.run.status"] == "ok"
    for body in traced.collector.bodies:
        assert SECRET.encode() not in body and b"a-key-of" not in body and b"single says" not in body


def test_what_failed_says_so(traced: Traced) -> None:
    traced.backend.replies["single"] = status_reply(400, "no such model")
    root = traced.ask("Single")
    workflow = root.children[0]
    [node] = workflow.children
    [chat] = node.children
    assert root.failed and node.failed and chat.failed and not chat.message
    assert chat.attributes["error.type"] == root.attributes["error.type"] == "BackendStatusError"
    assert chat.attributes["http.response.status_code"] == 400


def test_a_client_that_leaves(traced: Traced) -> None:
    before = set(traced.collector.trees())
    traced.backend.replies["single"] = stuck("one ", "two ")
    with traced.server.open("Single", True) as sock:
        traced.backend.wait_call("single")
        sock.recv(100)
    assert until(lambda: len(set(traced.collector.trees()) - before) == 1, 60)
    [run_id] = set(traced.collector.trees()) - before
    root = traced.tree_of(run_id)
    assert root.attributes["wilmer.run.status"] == "cancelled" and not root.failed
    assert root.all()[-1].name == "chat stub" and root.all()[-1].attributes["wilmer.status"] == "cancelled"


def test_retries_and_backups_are_spans_of_their_own(traced: Traced) -> None:
    def broken(request: RecordedRequest) -> Reply:
        return status_reply(500, "busy") if request.json["model"] == "broken" else says(request, "backed")

    traced.backend.replies["backed"] = broken
    root = traced.ask("Backed")
    assert root.lines()[2:] == ["    node backed", "      chat broken", "      chat stub"]
    failed, answered = sorted(root.children[0].children[0].children, key=lambda span: span.start)
    assert failed.failed and not answered.failed and not root.failed
    assert answered.attributes["wilmer.stands_in_for"] == "Broken"


def test_a_tool(traced: Traced) -> None:
    traced.backend.replies["page"] = chat_reply("a page")
    root = traced.ask("Fetch")
    assert root.lines()[2:4] == ["    node Look", "      execute_tool WebFetch"]
    tool = root.children[0].children[0].children[0]
    assert (
        tool.kind == "INTERNAL"
        and tool.attributes.items()
        >= {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": "WebFetch",
            "gen_ai.tool.type": "web",
            "http.response.status_code": 200,
        }.items()
    )


def test_a_trace_goes_from_the_client_to_the_servers(traced: Traced) -> None:
    root = traced.ask("Single", traced.backend.hello, traceparent=f"00-{CLIENT_TRACE}-{CLIENT_SPAN}-01")
    assert (root.trace, root.parent) == (CLIENT_TRACE, CLIENT_SPAN)
    sent = TRACEPARENT.fullmatch(_headers(traced.backend.calls("single")[-1])["traceparent"])
    # What the server writes into its own trace hangs on the span of this very request.
    assert sent and sent.groups() == (CLIENT_TRACE, root.all()[-1].id)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "00-nonsense",
        f"00-{'0' * 32}-{CLIENT_SPAN}-01",
        f"ff-{CLIENT_TRACE}-{CLIENT_SPAN}-01",
        CLIENT_TRACE * 50,
        "\xe9",
    ],
)
def test_a_client_that_sends_nonsense_gets_a_trace_of_its_own(traced: Traced, header: str) -> None:
    root = traced.ask("Single", traced.backend.hello, traceparent=header)
    assert root.parent == "" and root.trace != CLIENT_TRACE
    sent = TRACEPARENT.fullmatch(_headers(traced.backend.calls("single")[-1])["traceparent"])
    assert sent and sent[1] == root.trace


def test_a_trace_that_the_client_does_not_keep_is_not_sent(traced: Traced) -> None:
    body = json.dumps({"model": "Single", "messages": [{"role": "user", "content": traced.backend.hello}]})
    with closing(http.client.HTTPConnection("127.0.0.1", traced.server.port, timeout=CLIENT_PATIENCE)) as connection:
        connection.request(
            "POST",
            "/v1/chat/completions",
            body,
            {"Content-Type": "application/json", "traceparent": f"00-{CLIENT_TRACE}-{CLIENT_SPAN}-00"},
        )
        answer = connection.getresponse()
        answer.read()
    sent = _headers(traced.backend.calls("single")[-1])["traceparent"]
    assert sent.startswith(f"00-{CLIENT_TRACE}-") and sent.endswith("-00")
    # The next one comes after it.
    traced.ask("Single")
    assert answer.headers["X-Request-Id"] not in traced.collector.trees()


def _headers(request: RecordedRequest) -> dict[str, str]:
    return {name.lower(): value for name, value in request.headers.items()}


def _messages(root: Received, name: str) -> Any:
    return json.loads(root.all()[-1].attributes[f"gen_ai.{name}.messages"])


def test_texts_if_they_are_wanted(tmp_path: Path) -> None:
    with closing(Traced(tmp_path / "Public", **{CAPTURE: "SPAN_ONLY"})) as traced:
        root = traced.ask("Single", SECRET)
        assert _messages(root, "input") == [
            {"role": "system", "parts": [{"type": "text", "content": "node:single"}]},
            {"role": "user", "parts": [{"type": "text", "content": SECRET}]},
        ]
        assert _messages(root, "output") == [
            {"role": "assistant", "parts": [{"type": "text", "content": "single says hello."}], "finish_reason": "stop"}
        ]
        traced.backend.replies["single"] = status_reply(400, "no such model")
        assert "no such model" in traced.ask("Single").all()[-1].message


def test_never_those_of_a_private_run(tmp_path: Path) -> None:
    with closing(Traced(tmp_path / "Public", redacted=True, **{CAPTURE: "SPAN_ONLY"})) as traced:
        root = traced.ask("Single", SECRET)
        traced.backend.replies["single"] = status_reply(400, SECRET)
        assert traced.ask("Single", SECRET).failed
        assert "gen_ai.conversation.id" not in root.attributes
        for body in traced.collector.bodies:
            assert SECRET.encode() not in body and b"single says" not in body


def test_without_a_console(tmp_path: Path) -> None:
    with closing(Traced(tmp_path / "Public", "--console", "off")) as traced:
        assert traced.ask("Single").lines()[-1] == "      chat stub"
    assert not (tmp_path / "Public" / "Console").exists()


def test_a_collector_that_fails_is_told_once_and_not_felt(tmp_path: Path) -> None:
    with closing(Traced(tmp_path / "Public")) as traced:
        traced.collector.status = 400
        for _ in range(3):
            assert traced.server.ask("Single").status == 200
        told = "Traces do not reach the collector and are lost"
        traced.server.wait_output(told, 60)
        last = traced.server.ask("Single")
        # Its root comes last. Accepted without the others, a part of them would hang on nothing.
        request_id = last.headers["x-request-id"].encode()
        assert last.status == 200 and until(lambda: request_id in b"".join(traced.collector.refused), 60)
        traced.collector.status = 200
        traced.ask("Single")
        output = traced.server.wait_output("Traces reach the collector again.", 60)
        assert output.count(told) == 1 and "Failed to export" not in output.replace("lost (Failed to export", "")


def end(server: Launcher) -> None:
    """End a server as a user does, and give it the time that it takes."""
    assert server.process is not None
    server.process.terminate()
    assert server.process.wait(120) == 0


def test_what_waits_is_sent_when_the_server_ends(tmp_path: Path) -> None:
    with closing(Traced(tmp_path / "Public", OTEL_BSP_SCHEDULE_DELAY="600000")) as traced:
        assert traced.server.ask("Single").status == 200
        end(traced.server)
        assert len(traced.collector.trees()) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="several processes share no socket there")
def test_each_of_several_processes_sends_its_own(tmp_path: Path, database_url: str) -> None:
    with closing(
        Traced(
            tmp_path / "Public",
            "--database",
            database_url,
            "--workers",
            "2",
            "--concurrency",
            "0",
            OTEL_BSP_SCHEDULE_DELAY="600000",
        )
    ) as traced:
        assert until(lambda: traced.server.output().count(") serves\n") == 2, 120)
        runs: dict[str, str] = {}

        def both_have_answered() -> bool:
            headers = traced.server.ask("Single").headers
            runs[headers["x-request-id"]] = headers["x-wilmer-worker"]
            return len(set(runs.values())) == 2

        assert until(both_have_answered, 60)
        end(traced.server)
        found = traced.collector.trees()
        assert found.keys() == runs.keys()
        assert len({(runs[run_id], root.resource["service.instance.id"]) for run_id, root in found.items()}) == 2


def test_a_collector_that_never_answers_holds_up_no_request_and_no_end(tmp_path: Path) -> None:
    # The library alone would wait half a minute for it at the end.
    with closing(Traced(tmp_path / "Public", OTEL_EXPORTER_OTLP_TIMEOUT="600")) as traced:
        traced.collector.answers.clear()
        assert traced.server.ask("Single").status == 200
        assert traced.collector.asked.wait(60)
        assert traced.server.ask("Single").status == 200
        began = time.monotonic()
        end(traced.server)
        assert time.monotonic() - began < 25


def test_eventlet_refuses_the_flag() -> None:
    pytest.importorskip("eventlet")
    done = run_launcher("run_eventlet.py", "--otel")
    assert done.returncode == 2
    assert done.stderr == "ERROR: --otel needs native threads: start run_waitress.py instead, without Eventlet.\n"


def test_a_batch_that_is_larger_than_the_queue_is_refused_at_the_start(
    tmp_path: Path, shared_backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = standard_tree(tmp_path / "Public", shared_backend.url)
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "100")
    done = run_launcher("run_waitress.py", "--PublicDirectory", tree.public, "--User", USER, "--port", "0", "--otel")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.rstrip().endswith(
        "ERROR: --otel: max_export_batch_size must be less than or equal to max_queue_size. Environment variables "
        "whose names begin with OTEL_BSP_ set that."
    )


def test_nothing_is_sent_if_opentelemetry_is_switched_off(tmp_path: Path) -> None:
    with closing(Traced(tmp_path / "Public", OTEL_SDK_DISABLED="true")) as traced:
        assert traced.server.ask("Single").status == 200
        assert "traceparent" not in _headers(traced.backend.calls("single")[-1])
        end(traced.server)
        assert traced.collector.bodies == []


def test_missing_packages_are_told_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util\nfind = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *more: "
        "None if name == 'opentelemetry.exporter.otlp.proto.http' else find(name, *more)\n",
        "utf-8",
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = run_launcher("run_waitress.py", "--otel")
    assert done.returncode == 1
    assert "ERROR: --otel needs packages that are not installed. Install them with: " in done.stderr
    assert done.stderr.rstrip().endswith("requirements-otel.txt")
