"""Every request is listed with its true status while it runs and afterwards, in both dialects, on both servers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from Tests.api.front_dialects import OLLAMA_CHAT, OPENAI_CHAT, Front
from Tests.integration.console_server import Console, Stream, found_in_time
from Tests.integration.launcher import Backend, read_to_end, stuck
from Tests.stub_backend import chat_chunk, sse_reply, status_reply

GATE_SECONDS = 3.0


@pytest.fixture(scope="module", params=["run_waitress.py", "run_eventlet.py"])
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    with Backend() as backend:
        console = Console(
            tmp_path_factory.mktemp("runs"),
            backend,
            request.param,
            "--concurrency-timeout",
            str(GATE_SECONDS),
            "--record",
            "texts",
        )
        with console.server:
            console.sign_in()
            yield console


@pytest.fixture
def console(running: Console) -> Console:
    running.backend.reset()
    return running


def newest(console: Console, status: str) -> dict[str, Any]:
    """Return the newest run as soon as it has a status."""
    return found_in_time(lambda: next((run for run in console.runs("?limit=1") if run["status"] == status), None))


def answered(console: Console, front: Front, stream: bool) -> bytes:
    with console.server.open_front(front, "Single", stream) as sock:
        return read_to_end(sock)


@pytest.mark.parametrize("front", [OPENAI_CHAT, OLLAMA_CHAT], ids=lambda front: front.name)
def test_every_end_of_a_request_has_its_status(console: Console, front: Front) -> None:
    backend, ends = console.backend, list[dict[str, Any]]()
    for stream in (False, True):
        assert b"hello" in answered(console, front, stream)
        ends.append(newest(console, "ok"))
        backend.replies["single"] = status_reply(400, "no such model")
        answered(console, front, stream)
        ends.append(newest(console, "failed"))
        assert "no such model" in ends[-1]["error"] and ends[-1]["error.type"] == "BackendStatusError"
        backend.replies.clear()
    backend.replies["single"] = sse_reply([chat_chunk({"content": "Hel"}), {"error": {"message": "out of memory"}}])
    answered(console, front, stream=True)
    ends.append(newest(console, "failed"))
    assert ends[-1]["answer"] == "Hel"

    backend.replies["single"] = stuck("Hel")
    calls = len(backend.calls("single"))
    with console.server.open_front(front, "Single", stream=True):
        backend.wait_call("single", count=calls + 1)
        at_work = newest(console, "running")
        # The only slot is taken: another request waits, and is turned away when its time is up.
        with console.server.open_front(front, "Single", stream=False) as waiting:
            assert b" 503 " in read_to_end(waiting)
        ends.append(newest(console, "refused"))
        assert ends[-1]["queued"] is not None
        assert console.call("GET", f"runs/{at_work['id']}")["run"]["status"] == "running"
    # The client has gone.
    ends.append(
        found_in_time(
            lambda: next((run for run in console.runs("?status=cancelled") if run["id"] == at_work["id"]), None)
        )
    )
    assert {run["client"] for run in ends} == {ends[0]["client"]}
    assert [run["stream"] for run in ends[:4]] == [False, False, True, True]
    # Afterwards, every one of them is where it was.
    listed = {run["id"]: run["status"] for run in console.runs()}
    assert [listed[run["id"]] for run in ends] == [run["status"] for run in ends]


def test_a_run_is_watched_and_stopped(console: Console) -> None:
    console.backend.replies["single"] = stuck("Hel", "lo")
    stream = Stream(console.send("GET", "events"))
    with console.server.open_front(OPENAI_CHAT, "Single", stream=True):
        run = stream.wait_for(lambda name, value: name == "run" and value["run"]["status"] == "running")["run"]
        one = Stream(console.send("GET", f"events?run={run['id']}&after=0"))
        assert one.wait_for(lambda name, value: name == "live" and value.get("text") == "Hello")["tokens"] == 2
        assert console.call("POST", f"runs/{run['id']}/stop")["stopping"]
        assert (
            stream.wait_for(lambda name, value: name == "run" and value["run"]["ended"])["run"]["status"] == "cancelled"
        )
    one.close()
    stream.close()
    message = {"role": "user", "content": console.backend.hello}
    console.backend.replies.clear()
    answer = console.send("POST", "playground", {"model": "Single", "messages": [message]})
    assert b"hello." in answer.read()
    assert newest(console, "ok")["kind"] == "playground"
