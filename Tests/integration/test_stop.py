"""Stop means stop: in every phase, for every client, whatever runs for a client ends when it goes.

The table is measured once, many stops at a time, and then looked at phase by phase.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from Tests.integration.gate_cases import queued_ids, wait_in_queue
from Tests.integration.launcher import SERVER, Backend, Launcher, read_until, stuck
from Tests.integration.stop_cases import PHASES, PREFILL, STANDARD, Phase
from Tests.integration.stop_clients import ANTHROPIC, PATHS, QUIET_SECONDS, Client, leave
from Tests.integration.stop_table import Cell, StopLab
from Tests.patience import PATIENCE
from Tests.stub_backend import Reply, chat_stream_reply
from Tests.workflows.engine_lab import until

# What waited for the next write waited for the first heartbeat, which comes after five seconds.
MEDIAN_SECONDS = 2.0


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StopLab]:
    with StopLab(tmp_path_factory.mktemp("stop")) as running:
        yield running


@pytest.fixture(scope="module")
def table(lab: StopLab, script: str) -> list[Cell]:
    return lab.measure(script, again=True)


@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.name)
def test_stop_arrives_and_nothing_follows(table: list[Cell], phase: Phase) -> None:
    """Of clients of both dialects, streaming or not, that go, and of some that stay and send DELETE."""
    cells = [cell for cell in table if cell.phase is phase]
    if cells[0].missing:
        pytest.skip(cells[0].missing)
    assert not {str(cell.client): cell.problem for cell in cells if cell.problem}
    assert not {str(cell.client): cell.seconds for cell in cells if (cell.seconds or 0) > PATIENCE}


def test_most_stops_arrive_at_once(table: list[Cell]) -> None:
    """Those of clients that go, which the server has to notice; nothing waits for the next write."""
    times = [cell.seconds for cell in table if cell.seconds is not None and not cell.client.deletes]
    assert len(times) > 3 * len(PHASES) and statistics.median(times) < MEDIAN_SECONDS


@pytest.mark.usefixtures("table")
def test_no_stopped_request_lives_on(lab: StopLab, script: str) -> None:
    assert not lab.unfinished(script)


@pytest.mark.parametrize("front", PATHS)
def test_whole_answer_of_a_deleted_request(server: Launcher, backend: Backend, front: str) -> None:
    """Such a client learns its request's id too late, but others may know it: here from the log."""
    backend.replies["second"] = Reply(never=True)
    since = server.output_size()
    with ThreadPoolExecutor(1) as pool:
        asked = {"model": "Chain", "messages": [{"role": "user", "content": backend.hello}], "stream": False}
        answer = pool.submit(server.request, "POST", PATHS[front], asked)
        call = backend.wait_call("second")
        request_id = server.wait_output("as ann:Chain\n", since=since).partition(" arrived")[0].rpartition(" ")[2]
        assert server.request("DELETE", "/api/chat", {"request_id": request_id}).status == 200
        response = answer.result(PATIENCE)
    assert call.wait_ended(PATIENCE) and response.headers["x-request-id"] == request_id
    body = json.loads(response.body)
    assert response.status == 200
    if front == ANTHROPIC:
        assert (body["content"], body["stop_reason"]) == ([], "end_turn")
    else:
        assert (body["choices"][0]["message"] if front == "OpenAI chat" else body["message"])["content"] == ""


@pytest.mark.contract
def test_server_works_on_after_a_stop(server: Launcher, backend: Backend) -> None:
    leave(server, backend, PREFILL)
    assert server.ask("Chain").text == "second says hello."


def test_official_client_closes_its_stream(server: Launcher, backend: Backend) -> None:
    backend.replies["second"] = stuck("Once ", "upon ", "a ")
    with openai.OpenAI(
        base_url=f"{server.url}/v1",
        api_key="none",
        max_retries=0,
        http_client=openai.DefaultHttpxClient(trust_env=False),
    ) as client:
        stream = client.chat.completions.create(
            model="Chain", messages=[{"role": "user", "content": backend.hello}], stream=True
        )
        next(iter(stream))
        stream.close()
    assert backend.wait_call("second").wait_ended(PATIENCE)
    time.sleep(QUIET_SECONDS)
    assert backend.nodes() == ["first", "second"]


@pytest.mark.contract(SERVER)
def test_client_leaves_while_tokens_flow(server: Launcher, backend: Backend) -> None:
    backend.replies["second"] = chat_stream_reply([f"word{number} " for number in range(500)], delay=0.01)
    with server.open("Chain", stream=True) as sock:
        read_until(sock, b"word3")
    call = backend.wait_call("second")
    assert call.wait_ended() and call.client_left
    time.sleep(QUIET_SECONDS)
    assert backend.nodes() == ["first", "second"]


def test_one_client_leaves_and_the_others_stay(server: Launcher, backend: Backend) -> None:
    backend.replies["single"] = chat_stream_reply([f"word{number} " for number in range(10)], delay=0.05)
    with ThreadPoolExecutor(4) as pool:
        staying = [pool.submit(server.ask, "Single", True) for _ in range(4)]
        with server.open("Single", stream=True) as sock:
            read_until(sock, b"word2")
        answers = [future.result().body for future in staying]
    assert all(b"word9" in answer and b"[DONE]" in answer for answer in answers)
    assert sum(call.client_left for call in backend.calls("single")) == 1


# -- at the gate, one request at a time --------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.contract
def test_client_leaves_the_queue(gated_server: Launcher, backend: Backend, stream: bool) -> None:
    backend.replies["single"] = stuck("Once ", "upon ", "a ")
    with gated_server.open("Single", stream=True) as running:
        read_until(running, b"upon")
        known, since = len(queued_ids(gated_server)), gated_server.output_size()
        with gated_server.open("Chain", stream):
            assert until(lambda: len(queued_ids(gated_server)) > known)
        gated_server.wait_output(" has gone", since=since)
        waiting, _ = wait_in_queue(gated_server, backend.hello, "Background")
        assert waiting.is_alive()
        running.close()
        assert waiting.answer().text == "answer says hello."
    backend.wait_call("late")
    assert backend.nodes() == ["single", "answer", "slow", "late"]


def test_stopped_request_frees_the_gate(gated_server: Launcher, backend: Backend) -> None:
    for phase in STANDARD:
        for stream in (False, True):
            leave(gated_server, backend, phase, Client(stream=stream))
        started = time.monotonic()
        assert gated_server.ask("Single").text == "single says hello."
        assert time.monotonic() - started < PATIENCE


def test_failed_request_frees_the_gate(gated_server: Launcher, backend: Backend) -> None:
    for stream in (False, True):
        backend.replies["single"] = Reply(status=400, body={"error": "no"})
        assert gated_server.ask("Single", stream).status == 502
        backend.reset()
        assert gated_server.ask("Single", stream).status == 200
