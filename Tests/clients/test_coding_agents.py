"""Coding agents do a small task through a routed workflow with memory, are stopped in the middle, and meet a back-end
that is down. All of them run at the same time, as each waits most of its time."""

from __future__ import annotations

import itertools
import json
import threading
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from Tests.backend_dialects import Answer, speak
from Tests.clients.cases import answers
from Tests.clients.client import KEY, require
from Tests.clients.coding_agents import AGENTS, CONTEXT, DONE, LEAVE_SECONDS, LINE, RUN_SECONDS, Agent, AgentRun
from Tests.integration.conftest import Servers
from Tests.integration.launcher import (
    PROJECT,
    USER,
    Backend,
    ConfigTree,
    Launcher,
    Talk,
    child_node,
    endpoint,
    llm_node,
    standard_tree,
    stuck,
)
from Tests.stub_backend import RecordedRequest, Reply, status_reply
from Tests.workflows.engine_lab import until

pytestmark = [pytest.mark.clients, pytest.mark.slow]

TASK = "Copy the first line of the notes."
SERVERS = "run_waitress.py", "run_eventlet.py"
AT_ONCE = 3
DOWN = "Gone"
IS_CODE = answers(Answer(("CODE",)))
# What an agent decides to send before it tells the person; aider tries for a minute.
MOST_REQUESTS = {"codex": 6, "claude-code": 2, "opencode": 6, "aider": 30}
# Longer than an answer may take to keep its status: a failure after that is told in the stream.
LATE_SECONDS = 2.5
OWN_TASKS = b"title generator", b"messages based on the provided diffs"
REFUSAL = "There is no model of this name"


def agents_tree(public: Path, backend_url: str) -> ConfigTree:
    """Routing to a workflow that reads the memories, answers as the shipped ``agent`` does, and writes memories."""
    tree = standard_tree(public, backend_url)
    tree.write(
        f"Users/{USER}.json",
        {
            "routingConfig": "routes",
            "categorizationWorkflow": "Categorize",
            "maxCategorizationAttempts": 1,
            "allowSharedWorkflows": True,
            "chatPromptTemplateName": "_chatonly",
            "backgroundTaskWorkflow": "Title",
            "discussionIdMemoryFileWorkflowSettings": "memory-settings",
        },
    )
    tree.write(
        "Routing/routes.json",
        {
            "CODE": {"description": "programs", "workflow": "Code"},
            "OTHER": {"description": "the rest", "workflow": "Plain"},
        },
    )
    tree.write(f"Endpoints/{DOWN}.json", endpoint("http://127.0.0.1:9"))
    tree.write(
        f"Workflows/{USER}/memory-settings.json",
        {
            "useVectorForQualityMemory": False,
            "endpointName": "Stub",
            "preset": "Plain",
            "lookbackStartTurn": 0,
            "chunkEstimatedTokenSize": 10,
            "maxMessagesBetweenChunks": 1,
            "fileMemoryWorkflowName": "WriteMemory",
        },
    )
    tree.private("WriteMemory", llm_node("memory", prompt="{agent1Input}"))
    tree.private("Remember", {"type": "QualityMemory"})
    tree.private("Title", llm_node("title", returnToUser=True, lastMessagesToSendInsteadOfPrompt=3))
    tree.write("Endpoints/Stub.json", endpoint(backend_url, maxContextTokenSize=CONTEXT))
    shipped = json.loads((PROJECT / "Public/Configs/Workflows/_shared/agent/_DefaultWorkflow.json").read_text("utf-8"))
    [answer] = shipped["nodes"]
    answer |= {"endpointName": "Stub", "preset": "Plain"}
    tree.private(
        "Code",
        {"type": "GetCurrentMemoryFromFile"},
        {**answer, "systemPrompt": "node:code <{agent1Output}> {chat_system_prompt}"},
        child_node("Remember"),
    )
    tree.shared(
        "Recall",
        {"type": "GetCurrentMemoryFromFile"},
        llm_node("recall", systemPrompt="node:recall <{agent1Output}>", returnToUser=True),
    )
    tree.shared("Down", llm_node("before"), {**answer, "endpointName": DOWN})
    tree.shared("Refused", {**answer, "systemPrompt": "node:refused"})
    return tree


class Trial:
    """One agent with a task and a conversation of its own at the back-end."""

    def __init__(self, agent: Agent, talk: Talk) -> None:
        self.agent, self.talk = agent, talk
        talk.replies.update({"categorize": IS_CODE, "code": agent.script, "refused": status_reply(404, REFUSAL)})

    def start(self) -> AgentRun:
        return self.agent.start(f"{TASK} {self.talk.hello}", self.talk.hello)

    def questions(self, node: str) -> list[RecordedRequest]:
        """The calls of a node, without those for titles of conversations and messages of commits."""
        return [request for request in self.talk.calls(node) if not any(task in request.body for task in OWN_TASKS)]


def does_the_task(trial: Trial) -> str:
    """Returns what the agent said."""
    return trial.start().wait().output


def is_stopped(trial: Trial) -> RecordedRequest:
    """Press Ctrl-C while the second answer is on its way. Returns the back-end's call."""
    reached = threading.Event()
    found: list[RecordedRequest] = []

    def second(request: RecordedRequest) -> Reply:
        if any(message["role"] == "tool" for message in request.json["messages"]) or not trial.agent.uses_tools:
            found.append(request)
            reached.set()
            return stuck("I ", "go ")
        return trial.agent.script(request)

    trial.talk.replies["code"] = second
    run = trial.start()
    try:
        assert until(lambda: reached.is_set() or run.process.poll() is not None, RUN_SECONDS) and found, (
            "the agent has not come to its second step"
        )
        run.interrupt()
        found[0].wait_ended(LEAVE_SECONDS)
    finally:
        run.end()
    return found[0]


def is_refused_in_two_ways(trial: Trial) -> str:
    """Let the second failure be told in the stream, the others by their status. Returns what the agent said."""
    numbers = itertools.count()

    def before(request: RecordedRequest) -> Reply:
        answer = speak(request, Answer(("ok",)))
        return replace(answer, header_delay=LATE_SECONDS if next(numbers) == 1 else 0.0)

    trial.talk.replies["before"] = before
    return does_the_task(trial)


WORK: dict[str, tuple[Callable[[Trial], Any], str]] = {
    "task": (does_the_task, USER),
    "stop": (is_stopped, USER),
    "down": (is_refused_in_two_ways, f"{USER}:Down"),
    "refused": (does_the_task, f"{USER}:Refused"),
}
"""What an agent is made to do, and the model that it is given."""
Made = TypeVar("Made", bound=Callable[..., None])
Runs = dict[tuple[str, str], tuple[Trial, Future[Any]]]


@pytest.fixture(scope="module")
def agents_backend() -> Iterator[Backend]:
    with Backend() as backend:
        yield backend


@pytest.fixture(scope="module")
def agent_servers(agents_backend: Backend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    tree = agents_tree(tmp_path_factory.mktemp("agents") / "Public", agents_backend.url)
    running = Servers(tree, agents_backend)
    yield running
    running.close()


@pytest.fixture(scope="module")
def runs(
    request: pytest.FixtureRequest,
    agents_backend: Backend,
    agent_servers: Servers,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Runs]:
    """Everything that the agents do with one server, begun."""
    # Not of one conversation: what the categorizer is shown may be too short to tell which it belongs to.
    agents_backend.replies["categorize"] = IS_CODE
    server: Launcher = agent_servers.get(request.param)
    folder = tmp_path_factory.mktemp("repositories")
    asked = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    wanted = {(one["work"], one["name"]) for one in asked if one.get("runs") == request.param}
    with ThreadPoolExecutor(AT_ONCE) as pool, ThreadPoolExecutor(len(AGENTS)) as waiting:
        begun: Runs = {}
        for work, name in sorted(wanted):
            kind, (do, model) = AGENTS[name], WORK[work]
            if not kind.missing():
                trial = Trial(kind(folder / f"{work}-{name}", server.url, model), agents_backend.talk())
                # Agents whose back-end is down do nothing but wait, some of them for more than a minute.
                begun[work, name] = trial, (waiting if work == "down" else pool).submit(do, trial)
        yield begun


def trials(work: str, names: Iterable[str], servers: Sequence[str] = SERVERS) -> Callable[[Made], Made]:
    """A test of what these agents have done with these servers."""

    def parametrized(test: Made) -> Made:
        every_agent = pytest.mark.parametrize(("work", "name"), [pytest.param(work, name, id=name) for name in names])
        # The scope belongs to the servers alone: with all that one of them does beside each other, it starts once.
        return pytest.mark.parametrize("runs", servers, indirect=True, scope="module")(every_agent(test))

    return parametrized


def result(runs: Runs, work: str, name: str) -> tuple[Trial, Any]:
    require(AGENTS[name].missing())
    trial, future = runs[work, name]
    return trial, future.result()


@trials("task", MOST_REQUESTS)
def test_task_in_three_steps(runs: Runs, work: str, name: str) -> None:
    _has_done_it(runs, work, name)


@trials("task", ["opencode-responses", "opencode-messages"], SERVERS[:1])
def test_task_in_another_dialect(runs: Runs, work: str, name: str) -> None:
    _has_done_it(runs, work, name)


def _has_done_it(runs: Runs, work: str, name: str) -> None:
    trial, said = result(runs, work, name)
    assert trial.agent.result() == LINE, said
    assert DONE in said
    steps = trial.questions("code")
    assert len(steps) == (len(trial.agent.calls()) + 1 if trial.agent.uses_tools else 3), said
    _windows_are_whole(steps)


def _windows_are_whole(steps: list[RecordedRequest]) -> None:
    """Each result follows its call, with its id."""
    for step in steps:
        messages = step.json["messages"]
        called = [call["id"] for message in messages for call in message.get("tool_calls") or ()]
        assert [message["tool_call_id"] for message in messages if message["role"] == "tool"] == called


@trials("task", MOST_REQUESTS)
def test_memory_of_the_work(runs: Runs, agent_servers: Servers, work: str, name: str) -> None:
    """What the agents did is told to the LLM when the conversation goes on in a plain chat."""
    trial, _ = result(runs, work, name)
    server = agent_servers.get("run_waitress.py")
    tag = f"[DiscussionId]{trial.talk.hello}[/DiscussionId]"
    question = f"{tag}What did we do? {trial.talk.hello}"
    again = {"model": f"{USER}:Recall", "messages": [{"role": "user", "content": question}]}

    def remembered() -> bool:
        _ask(server, again)
        return "memory says hello." in str(trial.talk.calls("recall")[-1].json["messages"][0])

    assert until(remembered)


def _ask(server: Launcher, body: dict[str, Any]) -> None:
    """One chat with the key of the agents, as their memories are found with it only."""
    request = urllib.request.Request(
        f"{server.url}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        answer.read()


@trials("stop", MOST_REQUESTS)
def test_stopped_agent_frees_the_back_end(runs: Runs, work: str, name: str) -> None:
    _, call = result(runs, work, name)
    assert call.client_left


@trials("down", MOST_REQUESTS, SERVERS[:1])
def test_back_end_that_is_down(runs: Runs, work: str, name: str) -> None:
    trial, said = result(runs, work, name)
    assert _is_told(f"Endpoint '{DOWN}'", said)
    assert 1 <= len(trial.questions("before")) <= MOST_REQUESTS[name], said


@trials("refused", ["codex", "claude-code"], SERVERS[:1])
def test_back_end_that_refuses_is_asked_once(runs: Runs, work: str, name: str) -> None:
    trial, said = result(runs, work, name)
    assert _is_told(REFUSAL, said)
    assert len(trial.questions("refused")) == 1


def _is_told(sentence: str, said: str) -> bool:
    return sentence in said and "Traceback" not in said
