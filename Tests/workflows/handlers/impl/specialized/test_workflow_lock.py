"""WorkflowLock: runs that wait for nobody, and end where somebody else is at work."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from Middleware.common import instance_global_variables as instance
from Middleware.exceptions import BackendError, ConfigValueError, EarlyTerminationException
from Middleware.exceptions.early_termination_exception import LOCKED
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.services.locking_service import LockingService
from Middleware.utilities.hashing_utils import hash_content
from Middleware.workflows.handlers.impl.specialized_node_handler import WorkflowLockHandler
from Middleware.workflows.managers.workflow_variable_manager import WorkflowVariableManager
from Tests.stub_backend import RecordedRequest, Reply, StubBackend, status_reply
from Tests.workflows.engine_lab import EngineLab, last_text, llm, reply_to, start, static, user


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineLab]:
    monkeypatch.setattr(instance, "USER_LEVEL_SQLITE_DIRECTORY", str(tmp_path / "locks"))
    monkeypatch.chdir(tmp_path)
    with StubBackend() as backend:
        yield EngineLab(tmp_path / "config", monkeypatch, backend)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "locks" / "WilmerDb.tester.sqlite"


def lock(lock_id: Any = "gate", **more: Any) -> dict[str, Any]:
    return {"type": "WorkflowLock", "title": "Once", "workflowLockId": lock_id, **more}


def child(name: str = "Child", **more: Any) -> dict[str, Any]:
    return {"type": "CustomWorkflow", "workflowName": name, **more}


def begin(lab: EngineLab, *nodes: dict[str, Any], name: str = "Main", **fields: Any) -> Iterator[Any]:
    lab.workflow(name, list(nodes), **fields.pop("variables", {}))
    return start(
        lab, name, user("hi"), probes={"WorkflowLock": WorkflowLockHandler(None, WorkflowVariableManager())}, **fields
    )


def run(lab: EngineLab, *nodes: dict[str, Any], **fields: Any) -> list[Any]:
    with request_scope(lab.request):
        return list(begin(lab, *nodes, **fields))


@pytest.mark.parametrize(
    ("encrypt", "lock_id", "kept"),
    [
        (True, "gate", "gate"),
        (False, "of {chat_user_prompt_last_one}", "of hi"),
        (True, "of {chat_user_prompt_last_one}", hash_content("of hi")),
    ],
)
def test_what_was_said_is_not_stored_where_a_user_wants_encryption(
    lab: EngineLab, path: Path, encrypt: bool, lock_id: str, kept: str
) -> None:
    lab.user(encryptUsingApiKey=encrypt)
    found: list[str] = []

    def answer(request: RecordedRequest) -> Reply:
        found.extend(held(path))
        return reply_to(request, "x")

    lab.backend.responder = answer
    run(lab, lock(lock_id), llm("x"))
    assert found == [kept] and held(path) == []


def held(path: Path) -> list[str]:
    if not path.exists():
        return []
    with closing(sqlite3.connect(path)) as database:
        return [row[0] for row in database.execute("SELECT WorkflowLockId FROM WorkflowLocks ORDER BY Id")]


@pytest.fixture
def other(lab: EngineLab) -> Iterator[LockingService]:
    """Another process of the same user."""
    service = LockingService("other")
    yield service
    for workflow_id in list(service._held):
        service.release(workflow_id)


def test_output_is_empty(lab: EngineLab) -> None:
    assert run(lab, lock(), static("<{agent1Output}>")) == ["<>"]
    assert run(lab, static("a"), lock("{agent1Output}{agent2Input}")) == [""]


@pytest.mark.parametrize("lock_id", [None, "", " ", "{empty}"])
def test_the_id_is_required(lab: EngineLab, path: Path, lock_id: Any) -> None:
    with pytest.raises(ConfigValueError, match="node 'Once' needs a workflowLockId"):
        run(lab, lock(lock_id), variables={"empty": ""})
    assert not path.exists()


def test_variables_make_locks_for_each_discussion(lab: EngineLab, path: Path) -> None:
    probe = [lock("nightly-{Discussion_Id}"), llm("look")]
    seen: list[list[str]] = []
    lab.backend.responder = lambda request: seen.append(held(path)) or reply_to(request, "ok")
    run(lab, *probe, discussion_id="d1")
    assert seen == [["nightly-d1"]]


@pytest.mark.parametrize("end", ["success", "failure", "cancel", "close", "failure after the answer"])
def test_the_lock_ends_with_its_run(lab: EngineLab, path: Path, other: LockingService, end: str) -> None:
    seen: list[list[str]] = []

    def answer(request: Any) -> Reply:
        seen.append(held(path))
        if end.startswith("failure"):
            return status_reply(400)
        if end == "cancel":
            lab.request.cancel_scope.cancel()
        return reply_to(request, "ok")

    lab.backend.responder = answer
    nodes = [lock(), llm("work"), static("x")]
    if end == "failure after the answer":
        nodes = [static("x", returnToUser=True), lock(), llm("work")]
    with request_scope(lab.request):
        items = begin(lab, *nodes)
        if end == "failure":
            with pytest.raises(BackendError):
                list(items)
        elif end == "cancel":
            with pytest.raises(EarlyTerminationException):
                list(items)
        else:
            assert next(items) == "x"
            if end == "close":
                assert held(path) == ["gate"]  # its last node delivered, but the run is not over
                items.close()  # type: ignore[attr-defined]
            else:
                assert list(items) == []
    assert seen == [["gate"]]
    assert held(path) == []
    assert other.acquire("gate", "w")


def test_a_lock_held_elsewhere_ends_the_run(lab: EngineLab, other: LockingService, path: Path) -> None:
    assert other.acquire("gate", "w")
    with pytest.raises(EarlyTerminationException) as caught:
        run(lab, lock(), llm("never"))
    assert caught.value.reason == LOCKED and not caught.value.is_cancellation
    assert lab.prompts == []
    other.release("w")
    assert run(lab, lock(), static("now")) == ["now"]


def test_a_lock_held_elsewhere_keeps_the_answer(lab: EngineLab, other: LockingService) -> None:
    assert other.acquire("gate", "w")
    assert run(lab, static("answer", returnToUser=True), lock(), llm("never")) == ["answer"]
    chunks = run(lab, static("answer", returnToUser=True), lock(), llm("never"), stream=True)
    assert "".join(chunk["token"] for chunk in chunks) == "answer"
    assert lab.prompts == []


def test_a_lock_in_a_child_before_its_answer_ends_the_parent_too(lab: EngineLab, other: LockingService) -> None:
    assert other.acquire("gate", "w")
    lab.workflow("Child", [lock(), static("never")])
    with pytest.raises(EarlyTerminationException):
        run(lab, child(), static("never"))
    lab.workflow("Child", [static("answer", returnToUser=True), lock(), llm("never")])
    assert run(lab, child(), static("<{agent1Output}>")) == ["<answer>"]
    assert lab.prompts == []


@pytest.mark.parametrize("nodes", [[lock(), lock(), llm("never")], [lock(), child(), llm("never")]])
def test_not_reentrant(lab: EngineLab, path: Path, nodes: list[dict[str, Any]]) -> None:
    lab.workflow("Child", [lock(), static("never")])
    with pytest.raises(EarlyTerminationException):
        run(lab, *nodes)
    assert lab.prompts == [] and held(path) == []


def test_a_child_gives_its_lock_back_and_its_parent_keeps_its_own(lab: EngineLab, path: Path) -> None:
    lab.workflow("Child", [lock("child's"), llm("c")])
    seen: list[tuple[str, list[str]]] = []
    lab.backend.responder = lambda request: seen.append((last_text(request), held(path))) or reply_to(request, "ok")
    run(lab, lock("parent's"), child(), llm("p"))
    assert seen == [("c", ["parent's", "child's"]), ("p", ["parent's"])]
    assert held(path) == []


def test_two_requests_at_once(lab: EngineLab, path: Path) -> None:
    """The one that comes second answers, and leaves the work to the first."""
    working, go_on = threading.Event(), threading.Event()

    def answer(request: Any) -> Reply:
        working.set()
        go_on.wait(60)
        return reply_to(request, "ok")

    lab.backend.responder = answer
    nodes = [static("answer", returnToUser=True), lock(), llm("slow work")]
    results: list[Any] = []
    first = threading.Thread(target=lambda: results.append(run(lab, *nodes)))
    first.start()
    assert working.wait(60)
    second = RequestContext(request_id="r-2")
    with request_scope(second):
        lab.request = second
        assert list(begin(lab, *nodes)) == ["answer"]
    go_on.set()
    first.join(60)
    assert results == [["answer"]] and lab.prompts == ["slow work"]
    assert held(path) == []


def test_nothing_is_touched_without_a_lock_node(lab: EngineLab, path: Path) -> None:
    assert run(lab, static("a")) == ["a"]
    assert not path.parent.exists()
