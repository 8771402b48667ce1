"""A lock that another server holds, as the clients of this one see it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.api.running.running_requests import running_requests
from Middleware.common import instance_global_variables as instance
from Middleware.services.locking_service import LockingService
from Middleware.workflows.tools.scripts.thread import running_scripts
from Tests.api.api_lab import ApiLab, settled
from Tests.stub_backend import Reply, StubBackend
from Tests.workflows.engine_lab import llm, static, until

LOCK = {"type": "WorkflowLock", "workflowLockId": "gate"}
CHILD = {"type": "CustomWorkflow", "workflowName": "Child"}
ANSWER = static("answer", returnToUser=True)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiLab]:
    monkeypatch.setattr(instance, "USER_LEVEL_SQLITE_DIRECTORY", str(tmp_path / "locks"))
    monkeypatch.chdir(tmp_path)
    with StubBackend() as backend:
        yield ApiLab(tmp_path / "config", monkeypatch, backend)
    assert settled()


@pytest.fixture
def other(lab: ApiLab) -> Iterator[LockingService]:
    """Another server of the same user that holds the lock."""
    service = LockingService("other-session")
    assert service.acquire("gate", "its run")
    yield service
    service.release("its run")


def ask(lab: ApiLab, stream: bool) -> tuple[int, str]:
    """Status and text of the answer, the nodes behind it done."""
    answer = lab.chat(stream=stream)
    assert settled()
    if not stream:
        return answer.status, answer.text
    assert answer.events[-1] == "[DONE]" or not answer.events
    return answer.status, answer.streamed_text


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("nodes", "inner", "text"),
    [
        ([LOCK, llm("never")], [], ""),
        ([ANSWER, LOCK, llm("never")], [], "answer"),
        ([CHILD, llm("never")], [LOCK, llm("never")], ""),
        ([CHILD], [ANSWER, LOCK, llm("never")], "answer"),
        ([ANSWER, CHILD, llm("never")], [LOCK, llm("never")], "answer"),
    ],
)
def test_a_lock_held_elsewhere(
    lab: ApiLab,
    other: LockingService,
    nodes: list[dict[str, Any]],
    inner: list[dict[str, Any]],
    text: str,
    stream: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    lab.workflow("Child", inner)
    lab.default(nodes)
    assert ask(lab, stream) == (200, text)
    assert lab.prompts == []
    assert not [record for record in caplog.records if record.levelname == "ERROR"]  # a held lock is no failure
    other.release("its run")
    lab.backend.requests.clear()
    ask(lab, stream)
    assert lab.prompts  # the same workflow runs on once the lock is free


SLEEPS = """
import os, time
def Invoke(begun, go_on):
    open(begun, "w").close()
    for _ in range(12000):
        if os.path.exists(go_on):
            return
        time.sleep(0.01)
"""


@pytest.mark.parametrize(
    "nodes",
    [[LOCK, "STUCK", ANSWER], [ANSWER, LOCK, "STUCK"], [LOCK, CHILD, ANSWER]],
    ids=["before-the-answer", "after-it", "in-a-child"],
)
@pytest.mark.parametrize("kind", ["script", "llm"])
def test_a_cancelled_run_gives_its_lock_back_at_once(lab: ApiLab, tmp_path: Path, nodes: list[Any], kind: str) -> None:
    (tmp_path / "sleeps.py").write_text(SLEEPS, encoding="utf-8")
    files = [str(tmp_path / "begun"), str(tmp_path / "go on")]
    script = {"type": "PythonModule", "module_path": str(tmp_path / "sleeps.py"), "args": files}
    stuck = llm("stuck") if kind == "llm" else script
    lab.backend.responder = lambda _: Reply(never=True)
    lab.workflow("Child", [stuck])
    lab.default([stuck if node == "STUCK" else node for node in nodes])
    asker = threading.Thread(target=lab.chat)
    asker.start()
    locks = LockingService("other-session")
    assert until(lambda: locks.is_locked("gate"))
    assert until(lambda: bool(lab.backend.requests) if kind == "llm" else Path(files[0]).exists())
    for request in list(running_requests()._requests.values()):
        running_requests().cancel(request.request_id, "stop")
    assert until(lambda: not locks.is_locked("gate"))
    assert len(running_scripts()) == (kind == "script")  # which goes on
    Path(files[1]).touch()
    asker.join(60)
    assert until(lambda: len(running_scripts()) == 0)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_lock_behind_a_childs_answer_does_not_stop_its_parent(
    lab: ApiLab, other: LockingService, stream: bool
) -> None:
    lab.workflow("Child", [ANSWER, LOCK, llm("never")])
    lab.default([CHILD, static("<{agent1Output}>")])
    assert ask(lab, stream) == (200, "<answer>")
    assert lab.prompts == []
