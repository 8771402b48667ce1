"""A client's retry displaces its earlier attempt, wherever that is."""

from __future__ import annotations

import time

import pytest

from Tests.integration.gate_cases import Ask, wait_in_queue
from Tests.integration.launcher import Backend, Launcher, sse_payloads, stuck
from Tests.patience import PATIENCE
from Tests.stub_backend import Reply

QUIET_SECONDS = 0.15


def key_of(backend: Backend) -> dict[str, str]:
    """A header with a key that no other test uses."""
    return {"X_Idempotency_Key": backend.hello}


@pytest.mark.parametrize("path", ["/v1/responses", "/messages/"])
def test_a_retry_over_the_other_apis(gated_server: Launcher, backend: Backend, path: str) -> None:
    backend.replies["single"] = Reply(never=True)
    first = Ask(gated_server, backend.hello, path=path, **key_of(backend))
    call = backend.wait_call("single")
    backend.replies.clear()
    assert Ask(gated_server, backend.hello, path=path, **key_of(backend)).answer().status == 200
    assert call.wait_ended(PATIENCE) and first.answer().status == 200


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_retry_stops_what_runs_at_the_gate_of_one(gated_server: Launcher, backend: Backend, stream: bool) -> None:
    backend.replies["single"] = stuck("Once ", "upon ") if stream else Reply(never=True)
    first = Ask(gated_server, backend.hello, stream=stream, **key_of(backend))
    call = backend.wait_call("single")
    backend.replies.clear()
    started = time.monotonic()
    retry = Ask(gated_server, backend.hello, path="/chat/completions/", **key_of(backend))
    assert retry.answer().text == "single says hello."
    assert time.monotonic() - started < PATIENCE
    assert call.wait_ended(PATIENCE) and call.client_left
    answer = first.answer()  # its client is still there, and gets an end
    assert answer.status == 200
    assert sse_payloads(answer.body)[-1] == "[DONE]" if stream else answer.text == ""


def test_a_retry_takes_the_place_of_what_waits(gated_server: Launcher, backend: Backend) -> None:
    backend.replies["single"] = Reply(never=True)
    holder = Ask(gated_server, backend.hello)
    backend.wait_call("single")
    backend.replies.clear()
    first, _ = wait_in_queue(gated_server, backend.hello, model="Chain", **key_of(backend))
    retry, _ = wait_in_queue(gated_server, backend.hello, model="Chain", **key_of(backend))
    assert first.answer(PATIENCE).text == ""
    assert retry.is_alive() and holder.is_alive()
    holder.leave()
    assert retry.answer().text == "second says hello."
    assert backend.nodes()[:3] == ["single", "first", "second"]


def test_a_retry_stops_nodes_after_the_answer(server: Launcher, backend: Backend) -> None:
    backend.replies["slow"] = Reply(never=True)
    assert Ask(server, backend.hello, "Background", **key_of(backend)).answer().text == "answer says hello."
    call = backend.wait_call("slow")
    assert Ask(server, backend.hello, **key_of(backend)).answer().text == "single says hello."
    assert call.wait_ended(PATIENCE) and call.client_left
    time.sleep(QUIET_SECONDS)
    assert backend.nodes() == ["answer", "slow", "single"]


@pytest.mark.parametrize(
    ("path", "headers"),
    [("/v1/chat/completions", {"Authorization": "Bearer other"}), ("/api/chat", {})],
    ids=["other client", "Ollama"],
)
def test_others_are_left_alone(server: Launcher, backend: Backend, path: str, headers: dict[str, str]) -> None:
    backend.replies["single"] = Reply(never=True)
    first = Ask(server, backend.hello, **key_of(backend))
    call = backend.wait_call("single")
    assert Ask(server, backend.hello, "Chain", path=path, **headers, **key_of(backend)).answer().status == 200
    assert not call.wait_ended(QUIET_SECONDS) and first.is_alive()
    first.leave()
    assert call.wait_ended(PATIENCE)


def test_a_request_that_has_ended_is_not_displaced(server: Launcher, backend: Backend) -> None:
    def displaces_none(model: str | int, status: int) -> bool:
        ask = Ask(server, backend.hello, model, **key_of(backend))  # type: ignore[arg-type]
        assert ask.answer().status == status
        time.sleep(QUIET_SECONDS)  # the answer is with its client a little before the request ends
        request_id = ask.answer().headers["x-request-id"]
        assert f"Request {request_id} is admitted with idempotency key #" in server.output()
        return f"displaced by request {request_id}" not in server.output()

    for model, status in (("Single", 200), (5, 400), ("Single", 200)):
        # On a busy machine, the one before may take longer for its end.
        assert any(displaces_none(model, status) for _ in range(5))
    assert backend.hello not in server.output()
