"""Four dialects of clients with seven kinds of LLM servers: what is rare on the wire, whole and streamed.

Each test is one kind, and its rows are the cells of the matrix. ``test_dialect_matrix`` has what is common.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest

from Tests.api.tool_loops import Client, assistants, members
from Tests.backend_dialects import Answer, Call
from Tests.integration.client_dialects import FRONTS
from Tests.integration.dialect_matrix import CLIENTS, PICTURE
from Tests.integration.wire_matrix import (
    BACKS,
    CLAUDE,
    DEEPSEEK,
    EARLY,
    FAILURES,
    GEMINI,
    HALF,
    KOBOLD,
    MISTRAL,
    OLLAMA,
    SIGNATURE,
    THOUGHT,
    ZONES,
    Back,
    Wire,
    early,
    half,
    thought_block,
    wire,
)
from Tests.stub_backend import Reply, json_reply
from Tests.tables import table

CELLS = list(itertools.product(CLIENTS, BACKS, (False, True)))
CALLS = (Call("clock", ZONES[0]), Call("clock", ZONES[1]))
ONE_CALL = Answer((), "tool_calls", THOUGHT, CALLS[:1])
NOON = Answer(("It is ", "noon."))
CONVERSATIONS = itertools.count()


def name(value: Any) -> str:
    return value.name if isinstance(value, Back) else str(value)


cells = table("front, back, stream", CELLS, ids=name)


@pytest.fixture(scope="module")
def wired() -> Iterator[Wire]:
    with wire() as wired:
        yield wired


def client(wired: Wire, front: str, back: Back, stream: bool, brings: bool = True) -> Client:
    wired.model = back.model
    wired.heard.clear()
    return Client(wired, CLIENTS[front], stream, brings)


def question() -> str:
    """One that no other conversation has asked."""
    return f"What time is it, number {next(CONVERSATIONS)}?"


# -- the loops of tools ------------------------------------------------------------------------------------------------
def thought_came_back(back: Back, body: Any) -> None:
    """The message with the call has what the server sent with it, and nothing else."""
    (message,) = [one for one in assistants(body) if one.get("tool_calls") or isinstance(one["content"], list)]
    thought = "".join(THOUGHT)
    if back is CLAUDE:
        assert message["content"][0] == {"type": "thinking", "thinking": thought, "signature": "sig"}
        assert [block["type"] for block in message["content"]] == ["thinking", "tool_use"] and "thinking" in body
    elif back is MISTRAL:
        assert members(message) == {}
        assert "".join(block["thinking"][0]["text"] for block in message["content"]) == thought
        assert {block["type"] for block in message["content"]} == {thought_block("")["type"]}
    else:
        assert members(message) == back.kept


@cells
def test_reasoning_comes_back_in_a_tool_loop(wired: Wire, front: str, back: Back, stream: bool) -> None:
    for brings in (True, False):
        asking = client(wired, front, back, stream, brings)
        requests = wired.plays(ONE_CALL if back.calls else Answer(("Which ", "one?")), NOON)
        asking.asks(question())
        if not back.calls:
            # No tools were offered, so there is no loop: the next question is an ordinary one.
            assert asking.calls == [] and wired.heard[0].text == "Which one?"
            asking.asks(question())
            first, second = (request.json["prompt"] for request in requests)
            assert "clock" not in first + second and "Which one?" in second
            continue
        assert wired.heard[0].calls == [("clock", ZONES[0])]
        asking.answers_calls()
        first, second = (request.json for request in requests)
        assert "".join(THOUGHT) not in json.dumps(first)
        thought_came_back(back, second)
        assert wired.heard[1].text == "It is noon." and wired.heard[1].finish == "stop"


def results_of(back: Back, body: Any) -> list[tuple[str, str]]:
    """The results in a payload: the id of the call, of Ollama the name of the tool, and the text."""
    if back is CLAUDE:
        blocks = [block for one in body["messages"] if isinstance(one["content"], list) for block in one["content"]]
        return [(one["tool_use_id"], one["content"]) for one in blocks if one["type"] == "tool_result"]
    named = "tool_name" if back is OLLAMA else "tool_call_id"
    return [(one[named], one["content"]) for one in body["messages"] if one["role"] == "tool"]


@cells
def test_two_calls_at_once(wired: Wire, front: str, back: Back, stream: bool) -> None:
    asking = client(wired, front, back, stream)
    if not back.calls:
        requests = wired.plays(NOON)
        asking.asks(question())
        assert "clock" not in json.dumps(requests[0].json)
        assert wired.heard[0].text == "It is noon." and not wired.heard[0].calls and wired.heard[0].finish == "stop"
        return
    requests = wired.plays(Answer(("I ", "look."), "tool_calls", THOUGHT, CALLS), NOON)
    asking.asks(question())
    heard = wired.heard[0]
    assert (heard.text, heard.calls) == ("I look.", [("clock", zone) for zone in ZONES])
    assert heard.finish == ("stop" if front in ("OpenAI Responses", "Ollama chat") else "tool_calls")
    assert len(set(heard.call_ids)) == 2 and heard.call_ids == (list(back.ids) or heard.call_ids)
    asking.answers_calls("noon", "midnight")
    _, second = (request.json for request in requests)
    named = ["clock"] * 2 if back is OLLAMA else back.ids
    assert results_of(back, second) == list(zip(named, ("noon", "midnight"), strict=True))
    if back is GEMINI:
        assert members(assistants(second)[0]) == {"0.extra_content": SIGNATURE}


@cells
def test_a_loop_that_another_server_began(wired: Wire, front: str, back: Back, stream: bool) -> None:
    """A server gets nothing that another has sent; one that misses it gets what it documents for this."""
    for brings, first in itertools.product((True, False), (DEEPSEEK, CLAUDE)):
        if first is back:
            continue
        asking = client(wired, front, first, stream, brings)
        requests = wired.plays(Answer((), "tool_calls", THOUGHT, CALLS), NOON)
        asking.asks(question())
        wired.model = back.model
        asking.answers_calls("noon", "midnight")
        body = requests[-1].json
        assert "".join(THOUGHT) not in json.dumps(body, ensure_ascii=False)
        assert wired.heard[1].text == "It is noon."
        if back.calls:
            ids, texts = zip(*results_of(back, body), strict=True)
            # Ollama knows the tool by its name; that the ids are those of the calls, Mistral's fake has looked at.
            assert ids == {OLLAMA.model: ("clock", "clock"), MISTRAL.model: ids}.get(back.model, first.ids)
            assert texts == ("noon", "midnight") and (back is not MISTRAL or {len(one) for one in ids} == {9})
        else:
            assert body["prompt"].index("noon") < body["prompt"].index("midnight")


@cells
def test_a_picture_in_the_result_of_a_tool(wired: Wire, front: str, back: Back, stream: bool) -> None:
    asking = client(wired, front, back if back.calls else DEEPSEEK, stream)
    requests = wired.plays(Answer((), "tool_calls", THOUGHT, CALLS), NOON)
    asking.asks(question())
    wired.model = back.model  # a server without calls gets the loop of another
    asking.answers_calls("Look:", "And here:", picture=PICTURE)
    body = requests[-1].json
    assert json.dumps(body).count(PICTURE) == (2 if back.images else 0)
    assert json.dumps(body).index("Look:") < json.dumps(body).index("And here:")
    if back is CLAUDE:
        assert [block["type"] for block in body["messages"][-1]["content"]] == ["tool_result"] * 2 + ["image"] * 2
    elif back is OLLAMA:
        assert [one["role"] for one in body["messages"][-3:]] == ["tool", "tool", "user"]
        assert body["messages"][-1]["images"] == [PICTURE] * 2
    elif back.calls:
        *_, one, two, shown = body["messages"]
        assert (one["role"], one["content"], two["role"], two["content"]) == ("tool", "Look:", "tool", "And here:")
        assert shown["role"] == "user" and [part["type"] for part in shown["content"]] == [
            "text",
            "image_url",
            "image_url",
        ]
        assert shown["content"][0]["text"] == ""
    elif back is KOBOLD:
        assert body["images"] == [PICTURE] * 2


# -- answers that end otherwise than they should -----------------------------------------------------------------------
@cells
def test_failures_in_mid_answer(wired: Wire, front: str, back: Back, stream: bool) -> None:
    tried = 0
    for failure in FAILURES[back.model]:
        if (failure.after if stream else failure.whole) is None:
            continue
        tried += 1
        if stream:
            pieces = [half(back), *(failure.after or ())]
            reply = Reply(pieces=pieces, headers={"Content-Type": back.dialect.content_type}, drop=failure.drop)
        else:
            reply = json_reply(failure.whole, drop=failure.drop)
        heard = wired.ask(FRONTS[front], back, stream, reply)
        shown = (failure, heard)
        assert failure.words in heard.error and f"'{back.model}'" in heard.error, shown
        assert heard.status == (200 if stream else 502) and heard.finish is None, shown
        assert heard.text == (HALF if stream else ""), shown
        assert len(wired.backend.requests) == 1, shown
    assert tried > 2


@cells
def test_reasons_that_come_early(wired: Wire, front: str, back: Back, stream: bool) -> None:
    for odd, (pieces, reason) in EARLY.items():
        calls = CALLS if back.calls else ()
        if stream:
            reply = early(back, [(text, word, with_calls and back.calls) for text, word, with_calls in pieces], calls)
        else:
            whole = back.dialect.whole(back.says(Answer(("One ", "two."), reason, calls=calls)))
            reply = json_reply(whole)
        heard = wired.ask(FRONTS[front], back, stream, reply)
        shown = (odd, heard)
        assert heard.text == "One two.", shown
        assert heard.calls == [(call.name, call.arguments) for call in calls], shown
        marked = calls and front not in ("OpenAI Responses", "Ollama chat") and reason == "stop"
        assert (heard.finish, heard.error) == ("tool_calls" if marked else reason, ""), shown
        assert back.ids == () or heard.call_ids == [one for one, _ in zip(back.ids, calls, strict=False)], shown


@table("front, back", itertools.product(CLIENTS, BACKS), ids=name)
def test_whole_answers_in_place_of_streams(wired: Wire, front: str, back: Back) -> None:
    calls = CALLS if back.calls else ()
    whole = back.dialect.whole(back.says(Answer(("One ", "two."), "stop", calls=calls)))
    line = f"{json.dumps(whole)}\n" if back is OLLAMA else f"data: {json.dumps(whole)}\n\n"
    size = wired.server.output_size()
    for body, kind in ((json.dumps(whole), "application/json"), (line, back.dialect.content_type)):
        heard = wired.ask(FRONTS[front], back, True, Reply(body=body.encode(), headers={"Content-Type": kind}))
        assert (heard.text, heard.error) == ("One two.", ""), body
        assert heard.calls == [(call.name, call.arguments) for call in calls], body
    assert "an empty answer" not in wired.server.output(size)
