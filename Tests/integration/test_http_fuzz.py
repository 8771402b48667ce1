"""A thousand odd requests to a real server: each gets a proper answer, and the server is none the worse for it.

The requests are the same in every run. To see others, or more of them, set ``WILMER_FUZZ_SEED`` to a number and
``WILMER_FUZZ_FACTOR`` to how many times as many; the same seed gives the same requests again.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, currently_in_test_context, given, note, seed, settings

from Tests.backend_dialects import openai_embeddings
from Tests.corpora import cases
from Tests.integration.http_fuzzing import (
    RAW_REQUESTS,
    Answer,
    Wire,
    api_requests,
    odd_requests,
    send,
)
from Tests.integration.launcher import USER, Backend, Launcher, endpoint, llm_node, standard_tree
from Tests.patience import PATIENCE
from Tests.stub_backend import StubBackend, json_reply
from Tests.workflows.engine_lab import until

pytestmark = pytest.mark.deep

SEED = os.environ.get("WILMER_FUZZ_SEED")
FACTOR = int(os.environ.get("WILMER_FUZZ_FACTOR", "1"))
QUIET = [
    HealthCheck.too_slow,
    HealthCheck.data_too_large,
    HealthCheck.large_base_example,
    HealthCheck.function_scoped_fixture,
]
TRACE = re.compile(r"Traceback \(most recent call last\)|\n  File \"")
PAGE = re.compile(rb"<!doctype|<html|<title>", re.IGNORECASE)


def fuzz(count: int) -> settings:
    return settings(
        max_examples=count * FACTOR,
        derandomize=SEED is None,
        database=None,
        deadline=None,
        suppress_health_check=QUIET,
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
    )


def seeded(test: object) -> object:
    return seed(int(SEED))(test) if SEED else test  # type: ignore[arg-type]


class Target:
    """The server, and what it has printed since the last look."""

    def __init__(self, server: Launcher, outside: Path) -> None:
        self.server = server
        self.outside = outside
        self._read = len(server.output())

    def news(self) -> str:
        text = self.server.output()
        new, self._read = text[self._read :], len(text)
        return new

    def resources(self) -> tuple[int, int]:
        """Threads and open files; zeros where the system does not tell."""
        assert self.server.process is not None
        folder = Path(f"/proc/{self.server.process.pid}")
        return tuple(
            len(os.listdir(folder / name)) if folder.exists() else 0  # type: ignore[return-value]
            for name in ("task", "fd")
        )


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """One user whose workflow does with a conversation most of what nodes can do with it."""
    folder = tmp_path_factory.mktemp("fuzz")
    with Backend() as backend, StubBackend() as vectors:
        vectors.responder = lambda request: json_reply(openai_embeddings([[0.5, -1.0]] * len(request.json["input"])))
        tree = standard_tree(folder / "Public", backend.url)
        tree.write("Endpoints/Vectors.json", endpoint(vectors.url, apiTypeConfigFileName="Vectors"))
        user = json.loads((tree.configs / f"Users/{USER}.json").read_text(encoding="utf-8"))
        tree.write(
            f"Users/{USER}.json",
            {
                **user,
                "customWorkflowOverride": True,
                "customWorkflow": "Fuzz",
                "encryptUsingApiKey": True,
                "allowedFileDirectories": [str(folder / "Public" / "notes")],
                "livenessToolCall": {"toolName": "alive", "arguments": {}},
            },
        )
        nodes = [
            {"type": "StaticResponse", "content": "{chat_user_prompt_last_five}|{chat_system_prompt}|{messages}"},
            {
                "type": "StaticResponse",
                "jinja2": True,
                "content": "{% for m in messages %}{{ m.role }}:{{ m.content }}{% endfor %}",
            },
            llm_node("vision", type="ImageProcessor", saveVisionResponsesToDiscussionId=True, addAsUserMessage=True),
            {
                "type": "SaveCustomFile",
                "filepath": f"{folder}/Public/notes/{{Discussion_Id}}.md",
                "content": "{agent1Output}",
                "mode": "append",
            },
            {"type": "GetCustomFile", "filepath": f"{folder}/Public/notes/{{Discussion_Id}}.md", "tailCount": 1},
            {"type": "Conditional", "condition": '"{chat_user_prompt_last_one}" == "x" AND "{agent1Output}" != ""'},
            llm_node("fuzz", returnToUser=True, allowTools=True, addDiscussionIdTimestampsForLLM=True),
        ]
        tree.private("Fuzz", *nodes)
        tree.shared("fuzz", *nodes)
        with Launcher(
            "run_waitress.py", "--PublicDirectory", tree.public, "--User", USER, "--concurrency", "0", backend=backend
        ) as server:
            server.ask("fuzz")
            yield Target(server, folder)


def check(target: Target, answer: Answer, method: str, allowed: frozenset[int] = frozenset()) -> None:
    """An answer that a client can make sense of, whatever was asked."""
    news = target.news()
    tell = note if currently_in_test_context() else print
    tell(f"{answer.status} {answer.headers} {answer.body[:500]!r}\n{news[-3000:]}")
    assert not TRACE.search(news), "the log has a traceback"
    assert answer.status < 500 or answer.status in allowed, "the server blames itself"
    assert not PAGE.search(answer.body) and not TRACE.search(answer.body.decode("utf-8", "replace"))
    assert b"\r\nX-Injected" not in answer.body and "x-injected" not in answer.headers
    kind = answer.headers.get("content-type", "")
    if answer.status >= 400 and method != "HEAD":
        assert kind.startswith("application/json"), "an error that is no JSON"
        error = json.loads(answer.body)
        assert error.get("error") or error["detail"]["msg"]
    elif answer.status == 200 and answer.body:
        check_content(kind, answer.body)


def check_content(kind: str, body: bytes) -> None:
    """A good answer is JSON, in whatever framing, and no error in disguise."""
    text = body.decode("utf-8")
    if kind.startswith("text/event-stream"):
        events = [line[6:] for line in text.split("\n") if line.startswith("data: ")]
        told = [json.loads(event) for event in events if event != "[DONE]"]
        # The newer dialects name their last event, and KoboldCpp's has a finish reason.
        last = events[-1] if events[-1] == "[DONE]" else told[-1].get("type") or told[-1]["finish_reason"]
        assert last in ("[DONE]", "message_stop", "response.completed", "stop", "length"), last
        assert not [event for event in told if event.get("error") or event.get("detail")]
    elif kind.startswith("application/x-ndjson"):
        lines = [json.loads(line) for line in text.splitlines() if line]
        assert lines[-1]["done"] is True and not [line for line in lines if "error" in line]
    elif not kind.startswith("text/plain"):
        assert kind.startswith("application/json") and not json.loads(text).get("error")


@pytest.mark.slow
@seeded
@fuzz(620)
@given(wire=api_requests())
def test_requests_to_the_routes(target: Target, wire: Wire) -> None:
    answer = send(target.server.port, wire.data())
    assert answer.status, "no answer"
    check(target, answer, "POST")


@seeded
@fuzz(240)
@given(wire=odd_requests())
def test_any_method_at_any_path(target: Target, wire: Wire) -> None:
    answer = send(target.server.port, wire.data(), wire.method)
    assert answer.status, "no answer"
    check(target, answer, wire.method)


@seeded
@fuzz(100)
@given(data=RAW_REQUESTS)
def test_bytes_that_are_no_request(target: Target, data: bytes) -> None:
    unknown_framing = frozenset({501, 505})  # what HTTP says of a framing or version that nobody knows
    patience = 0.5 if b"\r\n\r\n" in data else 0.03  # half a request has no answer
    check(target, send(target.server.port, data, "GET", patience), "GET", unknown_framing)


@pytest.mark.parametrize("entry", cases("hostile_headers", kind="incoming"))
def test_hostile_headers(target: Target, entry: dict[str, Any]) -> None:
    """One request with them: answered like any other, or refused; nothing of them comes back as a header."""
    body = b'{"model": "fuzz", "messages": [{"role": "user", "content": "hi"}]}'
    own = {name.lower() for name, _ in entry["input"]}
    lines = [
        "POST /v1/chat/completions HTTP/1.1",
        *(f"{name}: {value}" for name, value in entry["input"]),
        *([] if "host" in own else ["Host: 127.0.0.1"]),
        f"Content-Length: {len(body)}",
        "Connection: close",
    ]
    answer = send(
        target.server.port,
        "\r\n".join([*lines, "", ""]).encode("latin-1") + body,
        timeout=3 if entry["expected"] == "any" else PATIENCE,
    )
    check(target, answer, "POST", frozenset({501}) if "transfer-encoding" in own else frozenset())
    wanted = {"ok": (200,), "refused": range(400, 500), "any": (*range(400, 500), 501, 200, 0)}[entry["expected"]]
    assert answer.status in wanted
    assert target.server.request("GET", "/v1/models").status == 200


def test_it_still_serves_and_nothing_has_grown(target: Target) -> None:
    """Runs last: it looks at what the others have left behind."""
    threads, files = target.resources()
    assert target.server.ask("fuzz").status == 200
    assert {path.name for path in target.outside.iterdir()} == {"Public"}
    assert {path.name for path in (target.outside / "Public").iterdir()} <= {
        "Configs",
        "Console",
        "DiscussionIds",
        "SqlLiteDBs",
        "notes",
        "logs",
    }
    if sys.platform == "linux":
        # Threads start when they are needed, and one client asks.
        assert threads < 64 and files < 80


def test_one_more_round_costs_nothing(target: Target) -> None:
    bodies = [b"{", b"null", b'{"messages": [{"role": "user", "content": "[DiscussionId]../x[/DiscussionId]"}]}']
    wires = [Wire("POST", "/v1/chat/completions", (), body).data() for body in bodies]
    before = target.resources()
    for data in wires * 20:
        send(target.server.port, data)
    assert until(lambda: all(now <= then + 4 for now, then in zip(target.resources(), before, strict=True)))
