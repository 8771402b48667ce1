"""Reading, deleting and cancelling responses, by clients that know their ids."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from Middleware.api.edge.access_keys import PERMITTED_USERS_KEY
from Middleware.api.handlers.impl import stored_responses_api_handler as module
from Middleware.api.running.running_requests import running_requests
from Middleware.common.constants import OPENAI_RESPONSES
from Middleware.models.process import Process
from Middleware.models.request_context import RequestContext
from Middleware.services.response_store import CLIENT_CANCELLED, Caller, RunningResponse, get_response_store
from Tests.api.api_lab import Answer, ApiLab
from Tests.stub_backend import StubBackend

KEY = {"Authorization": "Bearer sk-mine"}
OTHER_KEY = {"Authorization": "Bearer sk-other"}


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiLab]:
    monkeypatch.setattr("Middleware.models.process._process", Process())
    with StubBackend() as backend:
        yield ApiLab(tmp_path, monkeypatch, backend)


def begun(items: list[dict[str, Any]] | None = None, user: str = "tester", key: str | None = None) -> RunningResponse:
    store, caller = get_response_store(), Caller.of((user,), key)
    running = store.begin(caller, str(uuid.uuid4()), store.conversation(caller, None, items or []).items)
    running.so_far = lambda: {"id": running.id, "status": "in_progress", "output": []}
    return running


def finish(running: RunningResponse, status: str = "completed") -> str:
    running.finish({"id": running.id, "object": "response", "status": status, "output": []})
    running.discard()
    return running.id


def ask(lab: ApiLab, method: str, path: str, headers: dict[str, str] | None = None, **environ: Any) -> Answer:
    return Answer(lab.client.open(path, method=method, headers=headers, environ_overrides=environ))


def error_of(answer: Answer) -> tuple[int, Any, Any]:
    error = answer.json["error"]
    assert error["type"] == "invalid_request_error" and error["message"]
    return answer.status, error["param"], error["code"]


@pytest.mark.parametrize("prefix", ["/v1", ""])
def test_retrieve_and_delete(lab: ApiLab, prefix: str) -> None:
    path = f"{prefix}/responses/{finish(begun())}"
    answer = ask(lab, "GET", f"{path}?include[]=x&stream=false")
    assert answer.json["status"] == "completed" and answer.headers["Cache-Control"] == "no-store"
    assert error_of(ask(lab, "GET", f"{path}?stream=true")) == (400, "stream", "unsupported_parameter")
    assert ask(lab, "DELETE", f"{path}/").json == {"id": path.rpartition("/")[2], "object": "response", "deleted": True}
    for method, end in (("GET", ""), ("DELETE", ""), ("GET", "/input_items"), ("POST", "/cancel")):
        assert error_of(ask(lab, method, path + end)) == (404, None, None)


def test_under_way_it_is_shown_so_far(lab: ApiLab) -> None:
    running = begun([{"role": "user", "content": "Hi", "id": "i"}])
    assert ask(lab, "GET", f"/v1/responses/{running.id}").json["status"] == "in_progress"
    assert len(ask(lab, "GET", f"/v1/responses/{running.id}/input_items").json["data"]) == 1


def test_input_items(lab: ApiLab) -> None:
    items = [{"role": "user", "content": f"t{number}", "id": f"i{number}"} for number in range(25)]
    items[24] = {"type": "message", "role": "assistant", "content": "t", "id": "i24"}
    items[23] = {"type": "function_call_output", "call_id": "c", "output": "o", "id": "i23"}
    path = f"/v1/responses/{finish(begun(items))}/input_items"

    def page(query: str) -> tuple[list[int], Any, Any, bool]:
        body = ask(lab, "GET", path + query).json
        assert body["object"] == "list"
        return [int(item["id"][1:]) for item in body["data"]], body["first_id"], body["last_id"], body["has_more"]

    assert page("") == ([*range(24, 4, -1)], "i24", "i5", True)
    assert page("?after=i5") == ([4, 3, 2, 1, 0], "i4", "i0", False)
    assert page("?order=asc&limit=2&after=i3") == ([4, 5], "i4", "i5", True)
    assert page("?limit=100")[3] is False and page("?limit=25")[3] is False
    assert page("?after=i0") == ([], None, None, False)
    shown = ask(lab, "GET", f"{path}?limit=3").json["data"]
    assert shown == [
        {"type": "message", "role": "assistant", "id": "i24", "content": [{"type": "output_text", "text": "t"}]},
        items[23],
        {"type": "message", "role": "user", "id": "i22", "content": [{"type": "input_text", "text": "t22"}]},
    ]
    for wrong in ("order=up", "limit=0", "limit=101", "limit=x", "limit=²"):
        assert error_of(ask(lab, "GET", f"{path}?{wrong}")) == (400, wrong.partition("=")[0], None)
    assert error_of(ask(lab, "GET", f"{path}?after=i99")) == (404, "after", None)


def test_keys_and_users(lab: ApiLab) -> None:
    """Requests without a model are for all users that the key is for."""
    lab.users("tester", "bea")
    lab.user_file("bea")
    mine, hers = finish(begun(key="sk-mine")), finish(begun(key="sk-mine", user="bea"))

    def status(name: str, headers: dict[str, str] | None = KEY, **environ: Any) -> list[int]:
        paths = (("GET", ""), ("GET", "/input_items"), ("POST", "/cancel"))
        return [ask(lab, method, f"/v1/responses/{name}{end}", headers, **environ).status for method, end in paths]

    bound = {PERMITTED_USERS_KEY: frozenset(("bea",))}
    assert status(mine) == status(hers) == status(hers, **bound) == [200, 200, 400]
    assert status(mine, OTHER_KEY) == status(mine, None) == status(mine, **bound) == [404] * 3
    assert ask(lab, "DELETE", f"/v1/responses/{mine}", OTHER_KEY).status == 404
    lab.user_file("bea", responsesStore="none")
    lab.users("tester", "bea", "gone")  # a user whose file is missing hides nobody else's
    assert status(mine) == [200, 200, 400]


# -- cancelling --------------------------------------------------------------------------------------------------------
class Run(RequestContext):
    """A request that ends when it is cancelled, not before ``end``, as its dialect says: with ``running.finish``."""

    def __init__(self, running: RunningResponse, end: threading.Event | None = None, **fields: Any) -> None:
        super().__init__(request_id=str(uuid.UUID(running.id[5:])), api_type=OPENAI_RESPONSES, **fields)

        def run() -> None:
            if end is not None:
                end.wait(60)
            finish(running, "cancelled")

        self.cancel_scope.add_callback(lambda: threading.Timer(0.05, run).start())
        assert running_requests().arrive(self)


@pytest.mark.parametrize("kept", [True, False])
def test_cancel(lab: ApiLab, kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CANCEL_SECONDS", 60.0)
    running = begun()
    running.kept = kept
    run = Run(running)
    answer = ask(lab, "POST", f"/v1/responses/{running.id}/cancel")
    assert (answer.status, answer.json["status"], run.cancel_scope.reason) == (200, "cancelled", CLIENT_CANCELLED)
    assert (ask(lab, "GET", f"/v1/responses/{running.id}").status == 200) is kept
    monkeypatch.setattr(module, "CANCEL_SECONDS", 0.05)
    again = ask(lab, "POST", f"/v1/responses/{running.id}/cancel")
    if kept:
        assert again.status == 400 and again.json["error"]["message"] == "Cannot cancel a completed response."
    else:
        run.answered_at = 1.0  # its background nodes still run
        assert ask(lab, "POST", f"/v1/responses/{running.id}/cancel").status == 404


def test_cancel_what_cannot_be_interrupted(lab: ApiLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CANCEL_SECONDS", 0.05)
    running, answered = begun(), threading.Event()
    run = Run(running, answered)
    answer = ask(lab, "POST", f"/v1/responses/{running.id}/cancel").json
    answered.set()
    assert answer == {"id": running.id, "status": "cancelled", "output": []} and run.cancel_scope.cancelled


def test_cancel_at_the_gate(lab: ApiLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user of a request that waits is not known yet, and its response has not begun. Its key is known."""
    monkeypatch.setattr(module, "CANCEL_SECONDS", 60.0)

    def arrived(**fields: Any) -> tuple[RequestContext, str]:
        request = RequestContext(**{"api_type": OPENAI_RESPONSES, **fields})
        assert running_requests().arrive(request)
        return request, f"/v1/responses/resp_{uuid.UUID(request.request_id).hex}/cancel"

    request, path = arrived(api_key="sk-mine")
    assert [ask(lab, "POST", path, headers).status for headers in (None, OTHER_KEY)] == [404, 404]
    assert not request.cancel_scope.cancelled
    caller = Caller(("tester",), "sk-mine")
    # The handler of the request, to which the gate lets it through.
    request.cancel_scope.add_callback(
        lambda: threading.Timer(
            0.05, lambda: finish(get_response_store().begin(caller, request.request_id, []), "cancelled")
        ).start()
    )
    assert ask(lab, "POST", path, KEY).json["status"] == "cancelled"
    # Requests on other routes are not cancelled here, nor those of other users.
    for fields in ({"api_type": "openaichatcompletion"}, {"user": "bea"}):
        request, path = arrived(**fields)
        assert ask(lab, "POST", path).status == HTTPStatus.NOT_FOUND and not request.cancel_scope.cancelled


@pytest.mark.parametrize("name", ["resp_1", "x", "resp_" + "0" * 32])
def test_cancel_the_unknown(lab: ApiLab, name: str) -> None:
    assert error_of(ask(lab, "POST", f"/v1/responses/{name}/cancel")) == (404, None, None)
