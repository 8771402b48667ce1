"""The shipped users that ask services beside the LLM: tools behind MCPO, and an offline encyclopedia that is away."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Tests.integration.launcher import Launcher, streamed_text
from Tests.integration.shipped_users import copy_of_shipped
from Tests.stub_backend import RecordedRequest, Reply, StubBackend, chat_answer, json_reply
from Tests.workflows.engine_lab import until

TOOLS_USER = "isevendays-openwebui-norouting-general-offline-mcp"
WIKIPEDIA_USERS = ("_wikipedia_multi_step_workflow", "_wikipedia_quick_workflow")
COMPLAINT = re.compile(r"^.*(?:WARNING|ERROR|CRITICAL|Traceback).*$", re.MULTILINE)
CHOOSES, ANSWERS = "You decide whether a tool", "You are a helpful, knowledgeable companion"
NOON = {"datetime": "2026-11-22T12:00:00+01:00"}
TOOLS = {
    "info": {},
    "paths": {
        "/get_current_time": {
            "post": {
                "summary": "The time",
                "requestBody": {
                    "content": {
                        "application/json": {
                            "schema": {"properties": {"timezone": {"type": "string"}}, "required": ["timezone"]}
                        }
                    }
                },
            }
        }
    },
}


def wants(timezone: str) -> str:
    return json.dumps({"tool": "get_current_time", "arguments": {"timezone": timezone}})


class World(StubBackend):
    """Every LLM, and a server of tools.

    Attributes:
        replies: what a node that calls with this in its system prompt is told, one for each call; the last repeats.
        tools: how the tools answer; None as long as there is no such server.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reset()

    def reset(self) -> None:
        self.replies: dict[str, list[str]] = {}
        self.tools: Reply | None = json_reply(NOON)
        self.requests.clear()

    def systems(self) -> list[str]:
        """The system prompts of all calls of an LLM."""
        return [_system(request) for request in self.requests if request.path.startswith("/endpoint/")]

    def newest(self) -> str:
        """The last message of the newest call of an LLM."""
        return str(self.requests[-1].json["messages"][-1]["content"])

    def tool_calls(self) -> list[RecordedRequest]:
        return [request for request in self.requests if request.path == "/get_current_time"]

    def respond(self, request: RecordedRequest) -> Reply:
        if not request.path.startswith("/endpoint/"):
            if self.tools is None:
                return Reply(status=404)
            return json_reply(TOOLS) if request.path == "/openapi.json" else self.tools
        texts = next((texts for part, texts in self.replies.items() if part in _system(request)), ["Hello."])
        return chat_answer(request, texts.pop(0) if len(texts) > 1 else texts[0])


def _system(request: RecordedRequest) -> str:
    return str(request.json["messages"][0]["content"])


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World() as world:
        yield world


@pytest.fixture(autouse=True)
def quiet(world: World) -> None:
    world.reset()


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory, world: World) -> Path:
    """The shipped configuration, with an encyclopedia that does not run."""
    public = copy_of_shipped(tmp_path_factory.mktemp("services") / "Public", world)
    for user in WIKIPEDIA_USERS:
        file = public / "Configs" / "Users" / f"{user}.json"
        file.write_text(
            json.dumps({**json.loads(file.read_text(encoding="utf-8")), "offlineWikiApiPort": 1}), encoding="utf-8"
        )
    return public


@pytest.fixture(scope="module")
def tools(public: Path) -> Iterator[Launcher]:
    with Launcher("run_waitress.py", "--PublicDirectory", public, "--User", TOOLS_USER) as server:
        yield server


def ask(server: Launcher, text: str) -> tuple[str, list[str]]:
    """The streamed answer, and what was logged in the meantime that somebody should look at."""
    logged = server.output_size()
    response = server.ask("gpt-4o", stream=True, text=text)
    assert response.status == 200
    return streamed_text(response.body), COMPLAINT.findall(server.wait_output("done after", since=logged))


def test_the_model_uses_tools_until_it_wants_none(tools: Launcher, world: World) -> None:
    world.replies = {
        CHOOSES: [wants("Paris"), f"So:\n```json\n{wants('Europe/Paris')}\n```", "NO TOOL"],
        ANSWERS: ["Noon."],
    }
    assert ask(tools, "What time is it in Paris?") == ("Noon.", [])
    assert [call.json["timezone"] for call in world.tool_calls()] == ["Paris", "Europe/Paris"]
    choices = [system for system in world.systems() if system.startswith(CHOOSES)]
    assert len(choices) == 3 and all("### get_current_time\nThe time\nArguments:" in system for system in choices)
    assert f'Call: get_current_time {{"timezone": "Europe/Paris"}}\nResult: {json.dumps(NOON)}' in world.newest()


def test_a_model_that_never_has_enough_is_stopped(tools: Launcher, world: World) -> None:
    world.replies = {CHOOSES: [wants(f"Zone/{number}") for number in range(50)], ANSWERS: ["Noon."]}
    assert ask(tools, "What time is it?") == ("Noon.", [])
    assert len(world.tool_calls()) == 5


def test_without_a_server_of_tools_there_is_one_line_and_a_plain_answer(tools: Launcher, world: World) -> None:
    world.tools, world.replies = None, {ANSWERS: ["Hello there."]}
    text, complaints = ask(tools, "Hello")
    assert text == "Hello there." and len(complaints) == 1 and "No tools for this request" in complaints[0]
    assert len(world.systems()) == 1


def test_stop_ends_the_call_of_the_tool(tools: Launcher, world: World) -> None:
    world.tools, world.replies = Reply(never=True), {CHOOSES: [wants("Europe/Paris")]}
    client: socket.socket = tools.open("gpt-4o", stream=True)
    assert until(lambda: bool(world.tool_calls()))
    client.close()
    assert world.tool_calls()[0].wait_ended() and world.tool_calls()[0].client_left
    assert len(world.systems()) == 1, "no LLM is called after the stop"


@pytest.mark.parametrize("user", WIKIPEDIA_USERS)
def test_without_the_encyclopedia_there_is_one_line_and_an_honest_answer(public: Path, world: World, user: str) -> None:
    world.replies = {
        "You prepare research": ["Which fish live in the Baltic Sea?"],
        "You choose what to look up": ["Baltic Sea"],
        ANSWERS: ["I could not look it up."],
    }
    with Launcher("run_waitress.py", "--PublicDirectory", public, "--User", user) as server:
        text, complaints = ask(server, "Which fish live in the Baltic Sea?")
    assert text == "I could not look it up." and len(world.systems()) == 3
    assert len(complaints) == 1 and "/top_n_articles" in complaints[0]
    assert "the offline copy of Wikipedia did not answer. Tell the person so" in world.newest()


def test_no_llm_answers_open_webuis_own_request_to_choose_tools(tools: Launcher, world: World) -> None:
    text = (
        "Available Tools: []\n\nYour task is to choose and return the correct tool(s) from the list of available "
        "tools based on the query."
    )
    body: dict[str, Any] = {
        "model": "gpt-4o",
        "stream": False,
        "messages": [
            {"role": "system", "content": text},
            {"role": "user", "content": "Query: History:\nUSER: hi\nQuery: hi"},
        ],
    }
    response = tools.request("POST", "/v1/chat/completions", body)
    assert response.status == 200 and world.systems() == []
