"""Whatever a back-end does, the client's answer ends in its own dialect, soon, and the server goes on.

The table is run once, many requests at a time; the tests look at what came back.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from Tests.amounts import amount
from Tests.integration.client_dialects import FRONTS, Heard
from Tests.integration.dialect_matrix import CHAT, KEY
from Tests.integration.faults import CASES, DEAD, TEXT, Case, faulty_server
from Tests.integration.health_poller import MOST_SECONDS, HealthPoller, Seen
from Tests.integration.launcher import LAUNCHERS, Launcher, Response
from Tests.integration.process_figures import held_at_rest
from Tests.patience import PATIENCE
from Tests.stub_backend import StubBackend
from Tests.tables import check_all

pytestmark = [pytest.mark.slow, pytest.mark.amounts]

WORKERS = 16
LARGE, LARGE_WORKERS = "long-line", 4
"""Megabytes in one token are work that a thread does in one piece, so that many of them delay everybody."""

BOUND_SECONDS = PATIENCE
REFUSED_SECONDS = 2.0
"""So soon comes the fastest answer of those whose connection was refused: the others share the machine."""
PATIENCE_SECONDS = 1.0
"""A failure before this time has its real status; later the stream has begun with a sign of life."""

LEAKS = re.compile(r"Traceback|File \"|/site-packages/|" + re.escape(KEY))


Answers = dict[Case, tuple[Response, Response]]


@dataclass
class Table:
    """The answers to every case and to a usual request right after it, and what the server holds at the end.

    Attributes:
        connections: that the back-end has, when those that only wait for a next request had time to go.
        held: what the server's process holds, before and after; empty where the system does not tell.
        health: how ``/health`` was answered meanwhile.
    """

    answers: Answers
    connections: int
    held: tuple[dict[str, int], dict[str, int]]
    output: str
    health: Seen


@pytest.fixture(scope="module")
def table(script: str) -> Table:
    """Every client on Waitress; elsewhere those of one dialect, as what is behind the server is the same."""
    cases = usual_cases() if script == LAUNCHERS[0] else [case for case in CASES if case.front == next(iter(FRONTS))]
    with faulty_server(script) as (server, backend), HealthPoller(server.port) as poller:
        usual = [Case("", CHAT, front, stream) for front in FRONTS for stream in (False, True)]
        first = next(iter(FRONTS))
        for case in [
            *usual,
            *(Case("", back, first, True) for back in dict.fromkeys(case.back for case in cases)),
        ]:  # one after the other, over one connection
            case.ask(server, "none")
        time.sleep(0.2)  # clients' connections are closed a moment after the last byte
        before = held(server)
        with poller.watching() as health:
            answers = ask_all(server, [case for case in cases if case.fault == "refused"])
            answers |= ask_all(server, [case for case in cases if case.fault == LARGE], LARGE_WORKERS)
            answers |= ask_all(server, [case for case in cases if case not in answers])
        connections = settled(server, backend, usual[0])
        return Table(answers, connections, (before, held(server, before)), server.output(), health)


def usual_cases() -> list[Case]:
    """Of each fault of a back-end, every second client, beginning with another for the next; with ``deep`` all."""
    pairs = list(dict.fromkeys((case.fault, case.back) for case in CASES))
    fronts = list(FRONTS)
    number = {case: pairs.index((case.fault, case.back)) + fronts.index(case.front) for case in CASES}
    return [case for case in CASES if number[case] % amount(2, 1) == 0]


def ask_all(server: Launcher, cases: Sequence[Case], workers: int = WORKERS) -> Answers:
    with ThreadPoolExecutor(workers) as pool:
        both = pool.map(lambda case: (case.ask(server, case.fault), case.ask(server, "none")), cases)
        return dict(zip(cases, both, strict=True))


def settled(server: Launcher, backend: StubBackend, usual: Case, timeout: float = PATIENCE) -> int:
    """How many connections the back-end still has when the kept ones have expired, but for the one in use."""
    deadline = time.monotonic() + timeout
    while len(backend._sockets) > 1 and time.monotonic() < deadline:
        usual.ask(server, "none")
        time.sleep(0.1)
    return len(backend._sockets)


def held(server: Launcher, expected: dict[str, int] | None = None) -> dict[str, int]:
    assert server.process is not None
    return held_at_rest(server.process.pid, expected)


def heard(table: Table, case: Case) -> Heard:
    """What the client made of the answer; fails if it is not well-formed."""
    return FRONTS[case.front].read(table.answers[case][0], case.stream)


def check_answer(case: Case, got: Heard, seconds: float) -> None:
    assert got.text == case.end.text
    assert seconds < BOUND_SECONDS
    if not case.end.error:
        assert (got.status, got.error, got.finish) == (200, "", "stop")
        return
    assert case.end.error in got.error
    late = case.stream and seconds >= PATIENCE_SECONDS
    told = case.stream and FRONTS[case.front].tells_failures
    assert got.status in ((200,) if case.end.text or told else (502, 200) if late else (502,))


def check_message(case: Case, message: str) -> None:
    """It names endpoint and node, and nothing of the server's inside."""
    name = DEAD if case.fault == "refused" else case.back
    assert message.lower().startswith(f"endpoint '{name.lower()}'")
    assert f"'ask-{name}'" in message
    assert "\n" not in message and not LEAKS.search(message)


@pytest.mark.contract
def test_answers(table: Table) -> None:
    def check(case: Case) -> None:
        got = heard(table, case)
        check_answer(case, got, table.answers[case][0].seconds)
        if case.end.error:
            check_message(case, got.error)

    check_all(table.answers, check, str)
    refused = [answer.seconds for case, (answer, _) in table.answers.items() if case.fault == "refused"]
    assert min(refused) < REFUSED_SECONDS


def test_next_request(table: Table) -> None:
    """The request that each client sends right after the failure."""
    got = {case: FRONTS[case.front].read(after, case.stream) for case, (_, after) in table.answers.items()}
    assert [str(case) for case, said in got.items() if (said.text, said.finish) != (TEXT, "stop")] == []


def test_nothing_is_left(table: Table) -> None:
    before, after = table.held
    assert table.connections == 1
    assert after == before


def test_health(table: Table) -> None:
    health = table.health
    assert not health.failed and health.count > 0
    assert health.worst < MOST_SECONDS, health


def test_log(table: Table) -> None:
    assert "scripted trouble" in table.output and not LEAKS.search(table.output)
