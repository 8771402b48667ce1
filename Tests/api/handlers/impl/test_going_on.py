"""Conversations that the server keeps: each request names the response that it goes on from, or single items."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from Middleware.models.process import Process, process
from Middleware.services.response_store import ResponseStore
from Tests.api.api_lab import Answer, ApiLab, settled
from Tests.stub_backend import RecordedRequest, Reply, StubBackend, json_reply
from Tests.workflows.engine_lab import llm, static

RESPONSES = "/v1/responses"
KEY = {"Authorization": "Bearer sk-mine"}
SECRET = "Quetzalwibble"
CALL = {"id": "call_7", "type": "function", "function": {"name": "look", "arguments": '{"at": "it"}'}}
TOOLS = [{"type": "function", "name": "look", "parameters": {"type": "object"}}]


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiLab]:
    monkeypatch.setattr("Middleware.models.process._process", Process())
    with StubBackend() as backend:
        lab = ApiLab(tmp_path, monkeypatch, backend)
        lab.default([llm(allowTools=True, systemPrompt="{chat_system_prompt}")])
        yield lab
    assert settled()


def ask(
    lab: ApiLab, text: Any, previous: str | None = None, headers: dict[str, str] | None = None, **fields: Any
) -> Answer:
    body = {"input": text, **({} if previous is None else {"previous_response_id": previous}), **fields}
    return lab.post(body, RESPONSES, headers=headers)


def said(lab: ApiLab) -> list[tuple[str, str]]:
    """What the LLM was sent last."""
    return [(message["role"], message["content"] or "") for message in lab.backend.requests[-1].json["messages"]]


def streamed(answer: Answer) -> Any:
    """The response of the last event."""
    last = answer.data.decode().strip().split("\n\n")[-1]
    return json.loads(last.partition("data: ")[2])["response"]


def stored(lab: ApiLab, name: str, headers: dict[str, str] | None = None) -> int:
    return lab.client.get(f"{RESPONSES}/{name}", headers=headers).status_code


def refused(answer: Answer) -> tuple[int, Any, Any]:
    return answer.status, answer.json["error"]["param"], answer.json["error"]["code"]


NOT_FOUND = (400, "previous_response_id", "previous_response_not_found")


def test_three_turns(lab: ApiLab) -> None:
    first = ask(lab, "a", instructions="Be terse.", tools=TOOLS).json
    second = streamed(ask(lab, "b", first["id"], stream=True))
    third = ask(lab, "c", second["id"], instructions="Be long.").json
    assert said(lab) == [
        ("system", "Be long."),
        ("user", "a"),
        ("assistant", "<a>"),
        ("user", "b"),
        ("assistant", "<b>"),
        ("user", "c"),
    ]
    assert "tools" not in lab.backend.requests[-1].json
    assert [one["previous_response_id"] for one in (first, second, third)] == [None, first["id"], second["id"]]
    assert lab.get(f"{RESPONSES}/{second['id']}").json == second
    shown = lab.get(f"{RESPONSES}/{third['id']}/input_items").json["data"]
    assert [item["content"] for item in shown] == [[{"type": "input_text", "text": "c"}]]


def test_both_a_previous_response_and_a_history(lab: ApiLab) -> None:
    first = ask(lab, "a").json
    ask(
        lab,
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": "<a>"}, {"role": "user", "content": "b"}],
        first["id"],
    )
    assert [text for _, text in said(lab)] == ["a", "<a>", "a", "<a>", "b"]


def test_a_failed_response_is_kept(lab: ApiLab) -> None:
    lab.backend.responder = lambda request: Reply(500, body={"error": "down"})
    first = streamed(ask(lab, "a", stream=True))
    assert first["status"] == "failed" and lab.get(f"{RESPONSES}/{first['id']}").json == first
    lab.backend.responder = None
    ask(lab, "b", first["id"])
    assert [text for _, text in said(lab)] == ["a", "b"]


def test_only_the_result_of_a_tool(lab: ApiLab) -> None:
    def answer(request: RecordedRequest) -> Reply:
        message = {"role": "assistant", "content": None, "tool_calls": [CALL]}
        return json_reply({"choices": [{"message": message, "finish_reason": "tool_calls"}]})

    lab.backend.responder = answer
    first = ask(lab, "look at it", tools=TOOLS).json
    assert [item["type"] for item in first["output"]] == ["function_call"]
    ask(lab, [{"type": "function_call_output", "call_id": "call_7", "output": "red"}], first["id"], tools=TOOLS)
    messages = lab.backend.requests[-1].json["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool"]
    assert messages[1]["tool_calls"][0]["id"] == messages[2]["tool_call_id"] == "call_7"


def test_references(lab: ApiLab) -> None:
    first = ask(lab, "a").json
    answered = first["output"][0]["id"]
    asked = lab.get(f"{RESPONSES}/{first['id']}/input_items").json["data"][0]["id"]
    items = [
        {"type": "item_reference", "id": asked},
        {"type": "item_reference", "id": answered},
        {"role": "user", "content": "b"},
    ]
    second = ask(lab, items).json
    assert [text for _, text in said(lab)] == ["a", "<a>", "b"]
    ask(lab, items, first["id"])
    assert [text for _, text in said(lab)] == ["a", "<a>", "b"]
    # The second response has the items themselves.
    assert lab.client.delete(f"{RESPONSES}/{first['id']}").status_code == 200
    ask(lab, [{"type": "item_reference", "id": second["output"][0]["id"]}, *items[:2]])
    assert [text for _, text in said(lab)] == ["<b>", "a", "<a>"]
    calls = len(lab.backend.requests)
    for headers in (None, KEY):
        answer = ask(
            lab, [{"type": "item_reference", "id": "msg_unknown" if headers is None else answered}], headers=headers
        )
        assert refused(answer) == (404, "input", None)
    assert len(lab.backend.requests) == calls


def test_a_discussion_tag_counts_for_the_whole_chain(lab: ApiLab, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[str] = []

    def start(*_: Any, discussion_id: str, **__: Any) -> Iterator[str]:
        found.append(discussion_id)
        return iter(["x"])

    monkeypatch.setattr("Middleware.workflows.managers.workflow_manager.WorkflowManager.start_prepared", start)
    first = ask(lab, "[DiscussionId]d7[/DiscussionId] a").json
    ask(lab, "b", first["id"])
    assert found == ["d7", "d7"]


def test_what_is_not_stored(lab: ApiLab) -> None:
    first = ask(lab, "a", store=False).json
    assert first["store"] is False and stored(lab, first["id"]) == 404
    assert refused(ask(lab, "b", first["id"])) == NOT_FOUND
    assert refused(ask(lab, "b", first["id"], stream=True)) == NOT_FOUND
    kept = ask(lab, "a").json
    gone = ask(lab, "b", kept["id"]).json
    assert kept["store"] is True and lab.client.delete(f"{RESPONSES}/{kept['id']}").status_code == 200
    assert refused(ask(lab, "c", gone["id"])) == NOT_FOUND


def test_nothing_is_kept_if_the_user_says_so(lab: ApiLab) -> None:
    lab.user(responsesStore="none")
    for response in (ask(lab, "a").json, streamed(ask(lab, "a", stream=True))):
        assert response["store"] is False and stored(lab, response["id"]) == 404
        assert refused(ask(lab, "b", response["id"])) == NOT_FOUND


def test_others_know_nothing_of_it(lab: ApiLab) -> None:
    lab.users("tester", "bea")
    lab.user_file("bea")
    lab.workflow("_DefaultWorkflow", [static("hers")], folder="bea")
    mine = ask(lab, "a", headers=KEY, model="tester").json["id"]
    assert refused(ask(lab, "b", mine, KEY, model="bea")) == NOT_FOUND
    assert refused(ask(lab, "b", mine, model="tester")) == NOT_FOUND
    assert stored(lab, mine) == 404 and stored(lab, mine, KEY) == 200
    assert ask(lab, "b", mine, KEY, model="tester").status == 200


def test_encrypted(lab: ApiLab) -> None:
    lab.user(encryptUsingApiKey=True)
    first = ask(lab, f"{SECRET} in", headers=KEY, instructions=f"{SECRET} rules", metadata={"a": SECRET}).json
    second = ask(lab, "b", first["id"], KEY).json
    assert said(lab)[:2] == [("user", f"{SECRET} in"), ("assistant", f"<{SECRET} in>")]
    entries = process().one(ResponseStore)._entries
    assert [name for name, _ in entries.items()] == [first["id"], second["id"]] and SECRET not in repr(entries.items())
    assert stored(lab, first["id"]) == 404 and stored(lab, first["id"], KEY) == 200


def test_two_branches_at_once(lab: ApiLab) -> None:
    first = ask(lab, "a").json["id"]
    with ThreadPoolExecutor(2) as pool:
        left, right = pool.map(lambda text: ask(lab, text, first, stream=True), ("l", "r"))
    for text, answer in (("l", left), ("r", right)):
        ask(lab, "c", streamed(answer)["id"])
        assert [text for _, text in said(lab)] == ["a", "<a>", text, f"<{text}>", "c"]


def test_it_is_stored_before_the_last_event(lab: ApiLab) -> None:
    response = lab.client.post(RESPONSES, data=json.dumps({"input": "a", "stream": True}))
    name, seen = "", []
    for piece in response.response:
        text = bytes(piece).decode()
        name = name or json.loads(text.partition("data: ")[2].partition("\n")[0])["response"]["id"]
        status = lab.client.get(f"{RESPONSES}/{name}").get_json()["status"]
        seen.append(("response.completed" in text, status))
    response.close()
    assert seen[0] == (False, "in_progress") and seen[-1] == (True, "completed")
