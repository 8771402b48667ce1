"""A client that goes away stops the work for it, in every phase."""
from __future__ import annotations

import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from Tests.integration.launcher import Backend, Launcher, read_until, stuck
from Tests.integration.stop_cases import QUIET_SECONDS, SINGLE_LEVEL, StopCase, assert_nothing_follows, leave
from Tests.stub_backend import Reply, chat_stream_reply

QUEUE_SECONDS = 0.2


@pytest.mark.parametrize("case", SINGLE_LEVEL, ids=lambda case: case.name)
def test_client_leaves(server: Launcher, backend: Backend, case: StopCase) -> None:
    assert leave(server, backend, case) < 2
    assert_nothing_follows(backend, case)


@pytest.mark.parametrize("case", [SINGLE_LEVEL[0], SINGLE_LEVEL[3]], ids=lambda case: case.name)
def test_stop_does_not_wait_for_the_next_write(server: Launcher, backend: Backend, case: StopCase) -> None:
    """A heartbeat, the next thing that would be written, is up to a second away."""
    times = []
    for _ in range(3):
        backend.reset()
        times.append(leave(server, backend, case))
    assert statistics.median(times) < 0.5


def test_server_works_on_after_a_stop(server: Launcher, backend: Backend) -> None:
    leave(server, backend, SINGLE_LEVEL[0])
    backend.reset()
    assert server.ask("Chain").text == "second says hello."


def test_official_client_closes_its_stream(server: Launcher, backend: Backend) -> None:
    backend.replies["second"] = stuck("Once ", "upon ", "a ")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0,
                       http_client=openai.DefaultHttpxClient(trust_env=False)) as client:
        stream = client.chat.completions.create(
            model="Chain", messages=[{"role": "user", "content": backend.hello}], stream=True)
        next(iter(stream))
        stream.close()
    assert backend.wait_call("second").wait_ended(2)
    time.sleep(QUIET_SECONDS)
    assert backend.nodes() == ["first", "second"]


def test_client_leaves_while_tokens_flow(server: Launcher, backend: Backend) -> None:
    backend.replies["second"] = chat_stream_reply([f"word{number} " for number in range(500)], delay=0.01)
    with server.open("Chain", stream=True) as sock:
        read_until(sock, b"word3")
    call = backend.wait_call("second")
    assert call.wait_ended(2) and call.client_left
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
def test_client_leaves_the_queue(gated_server: Launcher, backend: Backend, stream: bool) -> None:
    backend.replies["single"] = stuck("Once ", "upon ", "a ")
    with gated_server.open("Single", stream=True) as running:
        read_until(running, b"upon")
        with gated_server.open("Chain", stream):
            time.sleep(QUEUE_SECONDS)  # in the queue by now
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(gated_server.ask, "Background")
            time.sleep(QUEUE_SECONDS)
            assert not waiting.done()
            running.close()
            left = time.monotonic()
            assert waiting.result(5).text == "answer says hello."
            assert time.monotonic() - left < 1
    backend.wait_call("late")
    assert backend.nodes() == ["single", "answer", "slow", "late"]


def test_stopped_request_frees_the_gate(gated_server: Launcher, backend: Backend) -> None:
    for case in SINGLE_LEVEL:
        backend.reset()
        leave(gated_server, backend, case)
        backend.reset()
        started = time.monotonic()
        assert gated_server.ask("Single").text == "single says hello."
        assert time.monotonic() - started < 1


def test_failed_request_frees_the_gate(gated_server: Launcher, backend: Backend) -> None:
    for stream in (False, True):
        backend.replies["single"] = Reply(status=400, body={"error": "no"})
        assert gated_server.ask("Single", stream).status == 502
        backend.reset()
        assert gated_server.ask("Single", stream).status == 200
