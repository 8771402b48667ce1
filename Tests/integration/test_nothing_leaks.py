"""After thousands of requests that were given up, a server holds what it held before: no more, and of nothing."""

from __future__ import annotations

import gc
import os
import re
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from Middleware.api.answers.answer import StreamingAnswer, WholeAnswer
from Middleware.api.running.running_requests import running_requests
from Middleware.common import instance_global_variables as instance
from Middleware.common.fair_semaphore import Waiter
from Middleware.llmapis.transport import get_transport
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.llm_call import LlmCallRecord
from Middleware.models.process import process
from Middleware.models.request_context import RequestContext
from Middleware.services.cancellation_service import cancellation_service
from Middleware.services.idempotency_service import idempotency_service
from Middleware.services.locking_service import get_locking_service
from Middleware.utilities.daemon_threads import IDLE_NAME
from Middleware.utilities.files import file_access
from Middleware.utilities.http.connection import Connection
from Middleware.workflows.events import Listeners, RunRecord
from Middleware.workflows.models.execution_context import ExecutionContext
from Tests.integration.launcher import USER, Backend, Launcher
from Tests.integration.leaving_clients import (
    ALL_WAYS,
    KEPT_TALKS,
    SLOTS,
    LeavingClients,
    LeftBackend,
    leave_all,
    leaving_tree,
)
from Tests.integration.process_figures import held_at_rest
from Tests.integration.waitress_thread import WaitressThread, use_tree
from Tests.llmapis.transport_lab import idle_connections
from Tests.patience import PATIENCE
from Tests.workflows.engine_lab import until

pytestmark = [pytest.mark.slow, pytest.mark.deep]

WARM_UP = 64  # requests: every way of leaving, and every conversation that has memories
GIVEN_UP = {"run_waitress.py": 2000, "server.py": 200, "run_eventlet.py": 400}
GIVEN_UP_IN_PROCESS = 400
SETTLING_SECONDS = PATIENCE
IDLE_SECONDS = PATIENCE
OF_A_TALK = re.compile(rf"DiscussionIds/kept-[0-{KEPT_TALKS - 1}]/(\.lock|\.memories\.lock|memories\.json)")


# -- a process, from outside -------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class HeldResources:
    """What a server was asked, and what it holds ``before`` and ``after``; both empty where the system does not tell.

    Attributes:
        left: requests given up, by the way of leaving.
        files: those in the ``Public`` folder, before and after.
        temporary: files in the folder for temporary ones.
        open_calls: connections that the back-end still has.
    """

    left: Counter[str]
    called: Counter[str]
    before: dict[str, int]
    after: dict[str, int]
    files: tuple[set[str], set[str]]
    temporary: list[str]
    open_calls: int
    lock_rows: int
    free_slots: int
    answer: str
    output: str


@pytest.fixture(scope="module")
def resources(script: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeldResources]:
    root = tmp_path_factory.mktemp("leaks")
    temporary = root / "temporary"
    temporary.mkdir()
    with pytest.MonkeyPatch.context() as patch, LeftBackend() as backend:
        for name in ("TMPDIR", "TEMP", "TMP"):
            patch.setenv(name, str(temporary))
        tree = leaving_tree(root / "Public", backend.url)
        with Launcher(script, "--PublicDirectory", tree.public, "--User", USER, "--concurrency", str(SLOTS)) as server:
            leave_all(LeavingClients(server.port), WARM_UP)
            until(lambda: backend.open_connections == 0)
            before, files = held(server), files_in(tree.public)
            clients = LeavingClients(server.port, seed=1)
            leave_all(clients, GIVEN_UP[script])
            slots = clients.hold_all_slots()
            for sock in slots:
                sock.close()
            answer = server.ask("Quick").text
            until(lambda: backend.open_connections == 0)
            yield HeldResources(
                clients.left,
                backend.called,
                before,
                held(server, before),
                (files, files_in(tree.public)),
                os.listdir(temporary),
                backend.open_connections,
                lock_rows(tree.public),
                len(slots),
                answer,
                server.output(),
            )


def held(server: Launcher, expected: dict[str, int] | None = None) -> dict[str, int]:
    assert server.process is not None
    return held_at_rest(server.process.pid, expected, SETTLING_SECONDS)


def files_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def lock_rows(public: Path) -> int:
    connection = sqlite3.connect(public / "SqlLiteDBs" / f"WilmerDb.{USER}.sqlite")
    try:
        count: int = connection.execute("SELECT COUNT(*) FROM WorkflowLocks").fetchone()[0]
        return count
    finally:
        connection.close()


def test_enough_were_given_up(resources: HeldResources, script: str) -> None:
    """In every way, and most of them with a call to the back-end under way."""
    asked = sum(resources.left.values())
    assert asked >= GIVEN_UP[script]
    assert resources.left.keys() == ALL_WAYS
    assert resources.called["never"] + resources.called["stuck"] > asked / 2


@pytest.mark.contract
def test_threads_and_descriptors(resources: HeldResources) -> None:
    assert resources.after == resources.before


def test_calls_to_the_back_end(resources: HeldResources) -> None:
    assert resources.open_calls == 0


def test_places_at_the_gate(resources: HeldResources) -> None:
    assert resources.free_slots == SLOTS and resources.answer == "Once upon."


def test_workflow_locks(resources: HeldResources) -> None:
    assert resources.lock_rows == 0


def test_files(resources: HeldResources) -> None:
    before, after = resources.files
    assert before <= after
    assert [name for name in after - before if not OF_A_TALK.fullmatch(name)] == []
    assert resources.temporary == []


def test_the_log_has_no_trouble(resources: HeldResources) -> None:
    assert "is cancelled" in resources.output
    assert "Traceback" not in resources.output and "ERROR" not in resources.output


@pytest.mark.contract
def test_descriptors_after_many_requests_at_the_same_time(server: Launcher, backend: Backend) -> None:
    """Connections to the back-end, which wait for the next call, do not wait for ever."""

    def ask() -> None:
        assert server.ask("Single").status == 200

    ask()
    assert until(lambda: not backend.open_connections, IDLE_SECONDS)
    before = held(server)
    threads = [threading.Thread(target=ask) for _ in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(backend.requests) >= 101
    assert until(lambda: not backend.open_connections, IDLE_SECONDS)
    assert held(server, before)["descriptors"] == before["descriptors"]


# -- a server in this process, from inside -----------------------------------------------------------------------------
PER_REQUEST: tuple[type[Any], ...] = (
    RequestContext,
    CancelScope,
    Listeners,
    RunRecord,
    ExecutionContext,
    LlmCallRecord,
    StreamingAnswer,
    WholeAnswer,
    Connection,
    Waiter,
)
"""Objects that stand for something under way. None of them may outlive it."""

REGISTRIES: dict[str, Callable[[], int]] = {
    "requests": running_requests().count,
    "requests at work": lambda: len(running_requests()._in_engine),
    "clients watched": lambda: len(running_requests().watcher._watched),
    "stop switches": lambda: len(cancellation_service._entries),
    "ids that were cancelled unseen": lambda: len(cancellation_service._unknown),
    "idempotency keys": lambda: len(idempotency_service._entries),
    "requests with a key": lambda: len(idempotency_service._keys),
    "runs with workflow locks": lambda: len(get_locking_service()._held),
    "turns with files": lambda: len(process().one(file_access.PathLocks)),
    "idle connections": lambda: idle_connections(get_transport()),
    "slots": lambda: gate().taken,
    "waiting for a slot": lambda: gate().waiting,
}


def gate() -> Any:
    return instance.get_request_semaphore()


def held_by_registries() -> dict[str, int]:
    return {name: size for name, count in REGISTRIES.items() if (size := count())}


def alive() -> Counter[str]:
    """How many objects of the classes ``PER_REQUEST`` exist."""
    gc.collect()
    return Counter(type(found).__name__ for found in gc.get_objects() if type(found) in PER_REQUEST)


def threads() -> Counter[str]:
    return Counter(thread.name for thread in threading.enumerate())


@dataclass(frozen=True)
class Inside:
    """What was found before, while requests were under way, and after all of them.

    Attributes:
        registries: under way, and after.
        alive: before the server was asked anything, under way, and after.
        threads: after the server's first requests, and after all.
        connections: of clients, as far as the server knows, after all.
    """

    registries: tuple[dict[str, int], dict[str, int]]
    alive: tuple[Counter[str], Counter[str], Counter[str]]
    threads: tuple[Counter[str], Counter[str]]
    connections: int


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    root = tmp_path_factory.mktemp("inside")
    with pytest.MonkeyPatch.context() as patch, LeftBackend() as backend:
        use_tree(leaving_tree(root / "Public", backend.url), SLOTS, patch)
        with WaitressThread() as server:
            objects = alive()  # those of the application, too
            leave_all(LeavingClients(server.port), WARM_UP)
            until(lambda: not held_by_registries() and not backend.open_connections, SETTLING_SECONDS)
            # Threads of the pool end after a while without work.
            until(lambda: IDLE_NAME not in threads())
            running = threads()
            clients = LeavingClients(server.port, seed=2)
            leave_all(clients, GIVEN_UP_IN_PROCESS)
            held = clients.hold_all_slots()
            under_way, alive_under_way = held_by_registries(), alive()
            for sock in held:
                sock.close()
            until(
                lambda: not held_by_registries() and not backend.open_connections and not server.connections,
                SETTLING_SECONDS,
            )
            until(lambda: threads() == running)
            yield Inside(
                (under_way, held_by_registries()),
                (objects, alive_under_way, alive()),
                (running, threads()),
                server.connections,
            )


def test_the_registries_are_empty(inside: Inside) -> None:
    under_way, after = inside.registries
    assert {"requests", "stop switches", "clients watched", "slots"} <= under_way.keys()
    assert after == {}


def test_no_object_outlives_its_request(inside: Inside) -> None:
    before, under_way, after = inside.alive
    assert all(under_way[kind.__name__] >= SLOTS for kind in (RequestContext, CancelScope, StreamingAnswer, Connection))
    assert after - before == Counter()


def test_no_thread_is_left(inside: Inside) -> None:
    before, after = inside.threads
    assert after - before == Counter()  # those of earlier tests may have ended meanwhile


def test_the_server_has_no_connections(inside: Inside) -> None:
    assert inside.connections == 0
