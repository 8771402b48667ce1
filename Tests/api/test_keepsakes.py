"""What LLMs send besides text and calls comes back to them, through every client's dialect, and to no other server."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.llmapis import keepsakes, refusals
from Middleware.llmapis.keepsakes import KeepsakeStore
from Middleware.models.process import Process, process
from Middleware.utilities.once import OwnedCache
from Tests.api.api_lab import ApiLab, settled
from Tests.api.tool_loops import NAMES, THINKING, Client, assistants, members
from Tests.stub_backend import RecordedRequest, Reply, StubBackend, json_reply, sse_event
from Tests.tables import table
from Tests.workflows.engine_lab import llm

SHIPPED = Path(__file__).parents[2] / "Public" / "Configs" / "ApiTypes"
KEY = {"Authorization": "Bearer sk-one"}


# -- back-ends ---------------------------------------------------------------------------------------------------------
def call(number: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "id": f"call_{number}",
        "type": "function",
        "function": {"name": "clock", "arguments": f'{{"zone":"{number}"}}'},
        **more,
    }


def openai(message: dict[str, Any], deltas: list[dict[str, Any]] | None = None) -> Callable[[bool], Reply]:
    """An answer of a chat server, whole, and in pieces; without these, each member is one piece."""

    def reply(stream: bool) -> Reply:
        if not stream:
            return json_reply({"choices": [{"message": {"role": "assistant", "content": None, **message}}]})
        parts = deltas or [
            {"tool_calls": [{"index": index, **one} for index, one in enumerate(value)]}
            if name == "tool_calls"
            else {name: value}
            for name, value in message.items()
        ]
        events = [{"choices": [{"index": 0, "delta": part, "finish_reason": None}]} for part in parts]
        end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}
        return Reply(
            pieces=[sse_event(event) for event in (*events, end, "[DONE]")],
            headers={"Content-Type": "text/event-stream"},
        )

    return reply


def done(stream: bool) -> Reply:
    return openai({"content": "Noon."})(stream)


def claude(*blocks: dict[str, Any]) -> Callable[[bool], Reply]:
    def reply(stream: bool) -> Reply:
        if not stream:
            return json_reply({"type": "message", "content": list(blocks), "stop_reason": "tool_use"})
        return Reply(pieces=list(claude_pieces(blocks)), headers={"Content-Type": "text/event-stream"})

    return reply


def claude_pieces(blocks: tuple[dict[str, Any], ...]) -> Iterator[bytes]:
    events: list[dict[str, Any]] = [{"type": "message_start", "message": {"usage": {"input_tokens": 1}}}]
    for index, block in enumerate(blocks):
        deltas: list[dict[str, Any]] = []
        start = dict(block)
        if block["type"] == "thinking":
            start = {**block, "thinking": "", "signature": ""}
            deltas += [{"type": "thinking_delta", "thinking": part} for part in halves(block["thinking"])]
            deltas += [{"type": "signature_delta", "signature": part} for part in halves(block["signature"])]
        elif block["type"] == "tool_use":
            start["input"] = {}
            deltas = [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}]
        events.append({"type": "content_block_start", "index": index, "content_block": start})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    events += [{"type": "message_delta", "delta": {"stop_reason": "tool_use"}}, {"type": "message_stop"}]
    yield from (f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events)


def halves(text: str) -> list[str]:
    return [text[: len(text) // 2], text[len(text) // 2 :]]


def scripted(lab: ApiLab, *answers: Callable[[bool], Reply]) -> None:
    """Let the server give these answers, the last one again and again."""
    waiting = list(answers)

    def respond(request: RecordedRequest) -> Reply:
        return (waiting.pop(0) if len(waiting) > 1 else waiting[0])(bool(request.json.get("stream")))

    lab.backend.responder = respond


def payloads(lab: ApiLab) -> list[Any]:
    return [request.json for request in lab.backend.requests]


def forget() -> None:
    """As a new process."""
    process().put(KeepsakeStore, KeepsakeStore())
    process().put(keepsakes._sent_members, keepsakes._sent_members())


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiLab]:
    monkeypatch.setattr("Middleware.models.process._process", Process())
    with StubBackend() as backend:
        lab = ApiLab(tmp_path, monkeypatch, backend)
        lab.user(sendReasoningToClient=True)
        lab.default([llm("", allowTools=True, lastMessagesToSendInsteadOfPrompt=100)])
        yield lab
    assert settled()


DETAILS = [
    {"type": "reasoning.text", "text": "Hm, the clock.", "signature": "s=", "format": "f", "index": 0},
    {"type": "reasoning.encrypted", "data": "abc", "id": "e1", "index": 1},
]
THOUGHTS = [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm, the clock."}]}]
SIGNATURE = {"google": {"thought_signature": "c2ln"}}
WAITING = [
    {"tool_calls": [{"index": 0, "function": {"name": "clock"}, "extra_content": SIGNATURE}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": ""}}]},
]
KEPT: dict[str, tuple[Callable[[bool], Reply], dict[str, Any]]] = {
    "DeepSeek": (
        openai(
            {"reasoning_content": "Hm, the clock.", "tool_calls": [call()]},
            [
                {"reasoning_content": "Hm, "},
                {"reasoning_content": "the clock."},
                {"tool_calls": [{"index": 0, **call()}]},
            ],
        ),
        {"reasoning_content": "Hm, the clock."},
    ),
    "the member's own name": (openai({"reasoning": "Hm", "tool_calls": [call()]}), {"reasoning": "Hm"}),
    "OpenRouter": (
        openai(
            {"reasoning": "Hm, the clock.", "reasoning_details": DETAILS, "tool_calls": [call()]},
            [
                {"reasoning": "Hm, the clock."},
                {"reasoning_details": [{"type": "reasoning.text", "text": "Hm, ", "index": 0}]},
                {"reasoning_details": [{**DETAILS[0], "text": "the clock."}]},
                {"reasoning_details": [DETAILS[1]]},
                {"tool_calls": [{"index": 0, **call()}]},
            ],
        ),
        {"reasoning": "Hm, the clock.", "reasoning_details": DETAILS},
    ),
    "Gemini": (
        openai({"tool_calls": [call(1, extra_content=SIGNATURE), call(2)]}),
        {"0.extra_content": SIGNATURE},
    ),
    "of the message": (openai({"extra_content": SIGNATURE, "tool_calls": [call()]}), {"extra_content": SIGNATURE}),
    "the second of two calls": (
        openai({"tool_calls": [call(1), call(2, extra_content=SIGNATURE)]}),
        {"1.extra_content": SIGNATURE},
    ),
    "within the function": (
        openai({"tool_calls": [{**call(), "function": {**call()["function"], "thought_signature": "x"}}]}),
        {"0.function.thought_signature": "x"},
    ),
    "unheard-of names": (
        openai({"deep_thought_state": {"a": [1]}, "Reasoning_Opaque": "zzz", "tool_calls": [call()]}),
        {"deep_thought_state": {"a": [1]}, "Reasoning_Opaque": "zzz"},
    ),
    "a call that waits for its id": (
        openai({"tool_calls": [{**call(), "id": None, "extra_content": SIGNATURE}]}, WAITING),
        {"0.extra_content": SIGNATURE},
    ),
    "after the call's first piece": (
        openai(
            {"tool_calls": [call(1, extra_content=SIGNATURE)]},
            [{"tool_calls": [{"index": 0, **call()}]}, {"tool_calls": [{"index": 0, "extra_content": SIGNATURE}]}],
        ),
        {"0.extra_content": SIGNATURE},
    ),
    "thoughts between calls": (
        openai(
            {"reasoning_content": "Hm. Yes.", "tool_calls": [call(1), call(2)]},
            [
                {"reasoning_content": "Hm. "},
                {"tool_calls": [{"index": 0, **call(1)}]},
                {"reasoning_content": "Yes."},
                {"tool_calls": [{"index": 1, **call(2)}]},
            ],
        ),
        {"reasoning_content": "Hm. Yes."},
    ),
    "thoughts around text": (
        openai(
            {"reasoning_content": "Hm. Yes.", "content": "I look.", "tool_calls": [call()]},
            [
                {"reasoning_content": "Hm. "},
                {"content": "I look."},
                {"reasoning_content": "Yes."},
                {"tool_calls": [{"index": 0, **call()}]},
            ],
        ),
        {"reasoning_content": "Hm. Yes."},
    ),
    "what servers refuse to see": (
        openai({"refusal": None, "annotations": [], "audio": None, "stop_reason": 7, "tool_calls": [call()]}),
        {},
    ),
}


@table("name", KEPT)
@pytest.mark.parametrize("brings", [True, False], ids=["brought", "dropped"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("dialect", NAMES)
def test_a_server_gets_back_what_it_sent(lab: ApiLab, name: str, dialect: str, stream: bool, brings: bool) -> None:
    forget()
    answer, expected = KEPT[name]
    scripted(lab, answer, done)
    client = Client(lab, dialect, stream, brings)
    client.asks()
    client.answers_calls()
    first, second = payloads(lab)
    assert "reasoning" not in json.dumps(first["messages"])
    (message,) = assistants(second)
    assert members(message) == expected
    assert {one["function"]["name"] for one in message["tool_calls"]} == {"clock"}


def test_mistrals_blocks_stand_before_the_text(lab: ApiLab) -> None:
    content = [*THOUGHTS, {"type": "text", "text": "I look."}]
    for dialect in NAMES:
        lab.backend.requests.clear()
        scripted(lab, openai({"content": content, "tool_calls": [call()]}), done)
        client = Client(lab, dialect)
        client.asks(f"{dialect}: time?")
        client.answers_calls()
        assert assistants(payloads(lab)[1])[0]["content"] == content, dialect


BLOCKS = (
    {"type": "redacted_thinking", "data": "AAAA"},
    {"type": "thinking", "thinking": "Hm, the clock.", "signature": "c2lnbmF0dXJl"},
    {"type": "thinking", "thinking": "Yes.", "signature": "Yg=="},
)
BARE_USE = {"type": "tool_use", "id": "toolu_1", "name": "clock", "input": {"zone": "1"}}
USE = {**BARE_USE, "caller": {"type": "direct"}}


def claude_lab(lab: ApiLab, **samplers: Any) -> None:
    """Let a Claude answer, with these fields in its payloads."""
    lab.preset("ClaudeMessages", "more", samplers)
    lab.write("ApiTypes/Claude", json.loads((SHIPPED / "Claude.json").read_text("utf-8")))
    lab.endpoint(
        "Main",
        {"apiTypeConfigFileName": "Claude", "modelNameToSendToAPI": "c", "appendPresetName": "more"},
        lab.backend.url,
    )


@pytest.mark.parametrize("brings", [True, False], ids=["brought", "dropped"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("dialect", NAMES)
def test_claude_gets_its_blocks_back(lab: ApiLab, dialect: str, stream: bool, brings: bool) -> None:
    claude_lab(lab, thinking=THINKING)
    scripted(lab, claude(*BLOCKS, USE), claude({"type": "text", "text": "Noon."}))
    client = Client(lab, dialect, stream, brings)
    client.asks()
    client.answers_calls()
    second = payloads(lab)[1]
    assert assistants(second)[0]["content"] == [*BLOCKS, USE]
    assert second["thinking"] == THINKING
    if dialect == "messages" and brings:
        forget()
        blocks = client.history[1]["content"]
        assert blocks[0] == BLOCKS[0]
        assert [block["signature"][:3] for block in blocks[1:3]] == ["w1.", "w1."]
        client.history.pop()
        client._send()
        assert assistants(payloads(lab)[-1])[0]["content"] == [*BLOCKS, BARE_USE]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_block_without_a_text_needs_no_store(lab: ApiLab, stream: bool) -> None:
    """Claude leaves the texts of its thoughts out if their display is ``omitted``, the default of newer models."""
    claude_lab(lab, thinking=THINKING)
    bare = {"type": "thinking", "thinking": "", "signature": "c2lnbmF0dXJl"}
    for blocks in ((bare,), (bare, BLOCKS[1]), (BLOCKS[1], bare)):
        scripted(lab, claude(*blocks, BARE_USE), claude({"type": "text", "text": "Noon."}))
        client = Client(lab, "messages", stream)
        client.asks()
        forget()
        client.answers_calls()
        assert assistants(payloads(lab)[-1])[0]["content"] == [*blocks, BARE_USE]


def test_blocks_of_a_claude_that_ends_none(lab: ApiLab) -> None:
    """Some proxies leave the ends of blocks out."""
    claude_lab(lab, thinking=THINKING)
    for dialect, brings in itertools.product(NAMES, (True, False)):
        pieces = [piece for piece in claude_pieces((*BLOCKS, USE)) if b"content_block_stop" not in piece]
        reply = Reply(pieces=pieces, headers={"Content-Type": "text/event-stream"})
        scripted(lab, lambda stream, reply=reply: reply, claude({"type": "text", "text": "Noon."}))
        client = Client(lab, dialect, True, brings)
        client.asks(f"{dialect} {brings}")
        client.answers_calls()
        assert assistants(payloads(lab)[-1])[0]["content"] == [*BLOCKS, USE], (dialect, brings)


def test_claude_without_the_first_blocks_is_asked_without_thinking(
    lab: ApiLab, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    claude_lab(lab, thinking=THINKING)
    scripted(lab, claude(*BLOCKS, USE), claude({**USE, "id": "toolu_2"}), claude({"type": "text", "text": "Noon."}))
    client = Client(lab, "chat", brings=False)
    client.asks()
    client.answers_calls()
    client.answers_calls()
    third = payloads(lab)[2]
    # The second call rightly has no blocks, as the model has not thought before it.
    assert third["thinking"] == THINKING
    assert [len(message["content"]) for message in assistants(third)] == [4, 1]
    forget()
    client.history.pop()
    client._send()
    fourth = payloads(lab)[3]
    assert "thinking" not in fourth and [len(message["content"]) for message in assistants(fourth)] == [1, 1]
    assert caplog.text.count("'thinking' is left out") == 1


def endpoints(lab: ApiLab, *names: str) -> None:
    """Give the models of these names one server, and an endpoint and a workflow each."""
    for name in names:
        lab.endpoint(name, {"modelNameToSendToAPI": name}, lab.backend.url)


def answering(lab: ApiLab, name: str) -> None:
    lab.default([llm("", endpointName=name, allowTools=True, lastMessagesToSendInsteadOfPrompt=100)])


@pytest.mark.parametrize("dialect", NAMES)
@pytest.mark.parametrize("brings", [True, False], ids=["brought", "dropped"])
def test_no_server_gets_what_another_sent(lab: ApiLab, dialect: str, brings: bool) -> None:
    endpoints(lab, "deepseek", "mistral", "kimi")
    thought = {"reasoning_content": "Hm", "tool_calls": [call(1, extra_content=SIGNATURE)]}
    other = {"reasoning": "Mine", "tool_calls": [call(2)]}
    scripted(lab, openai(thought), openai(other), openai({"reasoning_content": "?", "tool_calls": [call(3)]}), done)
    client = Client(lab, dialect, brings=brings)
    for number, name in enumerate(("deepseek", "mistral", "kimi", "deepseek")):
        answering(lab, name)
        client.asks() if not number else client.answers_calls()
    second, third, fourth = payloads(lab)[1:]
    assert [members(message) for message in assistants(second)] == [{}]
    assert [members(message) for message in assistants(third)] == [{}, {}]
    assert [members(message) for message in assistants(fourth)] == [
        {"reasoning_content": "Hm", "0.extra_content": SIGNATURE},
        {},
        {},
    ]


@pytest.mark.parametrize("brings", [True, False], ids=["brought", "dropped"])
@pytest.mark.parametrize("dialect", NAMES)
def test_a_backup_is_an_origin_of_its_own(lab: ApiLab, dialect: str, brings: bool) -> None:
    endpoints(lab, "backup")
    lab.endpoint("Main", {"modelNameToSendToAPI": "main", "backupEndpointName": "backup"}, lab.backend.url)
    answers = {"backup": openai({"reasoning": "Hm", "tool_calls": [call()]}), "main": done}
    failing = ["main"]
    lab.backend.responder = lambda request: (
        json_reply({}, 503)
        if request.json["model"] in failing
        else answers[request.json["model"]](bool(request.json.get("stream")))
    )
    client = Client(lab, dialect, True, brings)
    client.asks()
    asked, calls = list(client.history), client.calls
    for expected in ({}, {"reasoning": "Hm"}):
        failing = ["main"] if expected else []
        client.answers_calls()
        last = payloads(lab)[-1]
        assert (last["model"], members(assistants(last)[0])) == ("backup" if expected else "main", expected)
        client.history, client.calls = list(asked), calls


@pytest.mark.parametrize("brings", [True, False], ids=["brought", "dropped"])
@pytest.mark.parametrize("dialect", NAMES)
def test_an_authored_prompt_takes_the_exchange_along(lab: ApiLab, dialect: str, brings: bool) -> None:
    lab.default([llm("Say {chat_user_prompt_last_one}", allowTools=True, appendNativeToolExchange=True)])
    kept = {"reasoning_content": "Hm", "0.extra_content": SIGNATURE}
    scripted(lab, openai({"reasoning_content": "Hm", "tool_calls": [call(extra_content=SIGNATURE)]}), done)
    client = Client(lab, dialect, brings=brings)
    client.asks()
    client.answers_calls()
    assert members(assistants(payloads(lab)[1])[0]) == kept
    assert "Hm" not in json.dumps(payloads(lab)[1]["messages"][0])


def test_ollama_gets_one_text_and_what_its_calls_had(lab: ApiLab) -> None:
    lab.write("ApiTypes/Ollama", json.loads((SHIPPED / "OllamaApiChat.json").read_text("utf-8")))
    lab.endpoint("Main", {"apiTypeConfigFileName": "Ollama"}, lab.backend.url)
    # The index is Ollama's own; other servers speak its dialect, too.
    function = {"index": 0, "name": "clock", "arguments": {"zone": "1"}, "thought_signature": "x"}
    used = {"function": function, "extra_content": SIGNATURE}

    def reply(stream: bool) -> Reply:
        parts = [{"thinking": text} for text in ("Hm, ", "the ", "clock.")] + [{"tool_calls": [used]}]
        whole = {"thinking": "Hm, the clock.", "tool_calls": [used]}
        lines = [
            {"message": {"role": "assistant", "content": "", **part}, "done": False}
            for part in (parts if stream else [whole])
        ]
        lines[-1] |= {"done": True, "done_reason": "stop"}
        data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        streamed = Reply(pieces=[data], headers={"Content-Type": "application/x-ndjson"})
        return streamed if stream else json_reply(lines[0])

    for dialect, stream in itertools.product(NAMES, (False, True)):
        lab.backend.requests.clear()
        scripted(lab, reply)
        client = Client(lab, dialect, stream, brings=dialect != "chat")
        client.asks(f"{dialect} {stream}")
        client.answers_calls()
        (message,) = assistants(payloads(lab)[1])
        thought = {"thinking": "Hm, the clock.", "0.function.thought_signature": "x", "0.extra_content": SIGNATURE}
        assert members(message) == thought, (dialect, stream)


def test_each_of_two_conversations_gets_its_own(lab: ApiLab) -> None:
    first, second, twin = (Client(lab, "chat", brings=False) for _ in range(3))
    one = {"id": "call_0", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
    for client, question, thought in ((first, "A?", "a"), (second, "B?", "b"), (twin, "B?", "b again")):
        scripted(lab, openai({"reasoning_content": thought, "tool_calls": [one]}))
        client.asks(question)
    scripted(lab, done)
    sent = []
    for client in (first, second, twin):
        client.answers_calls()
        sent.append(members(assistants(payloads(lab)[-1])[0])["reasoning_content"])
    # Nothing tells the two with the same question apart: both get the newest, and no mixture.
    assert sent == ["a", "b again", "b again"]


@table("ids", [("call_0", "call_0", "call_0"), ("a", "b", "c"), ("a", "call_0", "call_0")])
def test_equal_calls_of_one_exchange_keep_their_order(lab: ApiLab, ids: tuple[str, ...]) -> None:
    for dialect, stream in itertools.product(NAMES, (False, True)):
        scripted(lab, *(openai({"reasoning_content": one + two, "tool_calls": [call(id=two)]})
                        for one, two in zip("abc", ids, strict=True)), done)  # fmt: skip
        client = Client(lab, dialect, stream, brings=False)
        client.asks(f"{dialect} {stream} {ids}")
        for _ in ids:
            client.answers_calls()
        sent = [members(message)["reasoning_content"] for message in assistants(payloads(lab)[-1])]
        assert sent == [one + two for one, two in zip("abc", ids, strict=True)], (dialect, stream)


@pytest.mark.parametrize("renamed", [False, True])
def test_equal_calls_keep_their_own_if_one_is_asked_for_again(lab: ApiLab, renamed: bool) -> None:
    scripted(lab, *(openai({"reasoning_content": one, "tool_calls": [call(0)]}) for one in "abc"), done)
    client = Client(lab, "chat", brings=False)

    def rename() -> None:
        # A client with ids of its own.
        (used,) = client.history[-1]["tool_calls"]
        used["id"] = f"own_{len(lab.backend.requests)}" if renamed else used["id"]
        client.calls = [(used["id"], "clock")]

    client.asks()
    rename()
    client.answers_calls()
    # The second answer is thrown away, and another one asked for.
    client.history.pop()
    client._send()
    rename()
    client.answers_calls()
    sent = [members(message)["reasoning_content"] for message in assistants(payloads(lab)[-1])]
    assert sent == ["a", "c"]


@table(
    ("changed", "expected"),
    [
        ({}, "Hm"),
        ({"id": "chatcmpl-tool-9"}, "Hm"),  # a client that renames calls
        ({"function": {"name": "Clock", "arguments": '{ "zone": "1" }'}}, "Hm"),
        ({"function": {"name": "clock", "arguments": '{"zone":"2"}'}}, None),
        ({"function": {"name": "date", "arguments": '{"zone":"1"}'}}, None),
        ({"id": "call_9", "question": "Else?"}, None),
    ],
)
def test_the_calls_must_be_the_same(lab: ApiLab, changed: dict[str, Any], expected: str | None) -> None:
    forget()
    scripted(lab, openai({"reasoning_content": "Hm", "tool_calls": [call()]}), done)
    client = Client(lab, "chat", brings=False)
    client.asks()
    changed = dict(changed)
    client.history[0]["content"] = changed.pop("question", client.history[0]["content"])
    client.history[1]["tool_calls"][0] |= changed
    client.calls = [(client.history[1]["tool_calls"][0]["id"], "clock")]
    client.answers_calls()
    assert members(assistants(payloads(lab)[-1])[0]).get("reasoning_content") == expected


@table("returned", ['{"zone": "1"', '{"zone":"1"}', '{"zone": "1"}'])
def test_repaired_arguments_are_the_same(lab: ApiLab, returned: str) -> None:
    forget()
    broken = call()
    broken["function"]["arguments"] = '{"zone": "1"'
    scripted(lab, openai({"reasoning_content": "Hm", "tool_calls": [broken]}), done)
    client = Client(lab, "chat", brings=False)
    client.asks()
    client.history[1]["tool_calls"][0]["function"]["arguments"] = returned
    client.answers_calls()
    assert members(assistants(payloads(lab)[-1])[0]) == {"reasoning_content": "Hm"}


@pytest.mark.parametrize("named", [True, False], ids=["", "the salt of the keys became unreadable"])
def test_nobody_elses(lab: ApiLab, monkeypatch: pytest.MonkeyPatch, named: bool) -> None:
    if not named:
        monkeypatch.setattr(keepsakes, "key_name", lambda *_: None)
    scripted(lab, openai({"reasoning_content": "Hm", "tool_calls": [call()]}), done)
    mine = Client(lab, "chat", brings=False, key="sk-one")
    mine.asks()
    for key, expected in (("sk-two", {}), ("", {}), ("sk-one", {"reasoning_content": "Hm"})):
        other = Client(lab, "chat", key=key)
        other.history, other.calls = list(mine.history), mine.calls
        other.answers_calls()
        assert members(assistants(payloads(lab)[-1])[0]) == expected, key


def test_encrypting_users_keep_tokens(lab: ApiLab) -> None:
    lab.user(encryptUsingApiKey=True)
    scripted(lab, openai({"reasoning_content": "Hm, sphinx", "tool_calls": [call()]}), done)
    client = Client(lab, "chat", brings=False, key="sk-one")
    client.asks()
    assert "sphinx" not in repr(process().one(KeepsakeStore)._answers.items())
    client.answers_calls()
    assert members(assistants(payloads(lab)[-1])[0]) == {"reasoning_content": "Hm, sphinx"}
    assert not [path for path in lab.root.rglob("*") if path.is_file() and b"Hm, sphinx" in path.read_bytes()]


LEVELS = [
    # The level, and whether the thoughts of an earlier and of the running exchange go back: own, and unknown ones.
    ("auto", (False, True), (False, True)),
    ("none", (False, False), (False, False)),
    ("exchange", (False, True), (False, True)),
    ("all", (True, True), (True, True)),
    ("ALL", (True, True), (True, True)),
    ("nonsense", (False, True), (False, True)),
]


@table(("level", "own", "unknown"), LEVELS)
def test_what_goes_back_is_a_matter_of_the_level(
    lab: ApiLab, level: str, own: tuple[bool, bool], unknown: tuple[bool, bool]
) -> None:
    lab.endpoint("Main", {"reasoningToBackend": level}, lab.backend.url)
    for brings, wanted in ((False, own), (True, unknown)):
        forget()
        lab.backend.requests.clear()
        first, second = (openai({"reasoning_content": text, "tool_calls": [call(ord(text))]}) for text in "ab")
        scripted(lab, first, done, second, done)
        client = Client(lab, "chat", brings=brings)
        client.asks("First?")
        client.answers_calls()
        client.asks("Second?")
        if brings:
            process().put(KeepsakeStore, KeepsakeStore())  # so that it is not known whose they are
        client.answers_calls()
        last = [message for message in assistants(payloads(lab)[-1]) if "tool_calls" in message]
        assert tuple(bool(members(message)) for message in last) == wanted


@table("calls", [["x"], [5, None], "x", {"a": 1}])
def test_thoughts_next_to_calls_that_are_none(lab: ApiLab, calls: Any) -> None:
    lab.endpoint("Main", {"reasoningToBackend": "all"}, lab.backend.url)
    scripted(lab, done)
    client = Client(lab, "chat")
    client.history = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning_content": "Hm", "tool_calls": calls},
    ]
    client.asks("c")
    assert assistants(payloads(lab)[-1])[0]["reasoning_content"] == "Hm"


HERE = "I was here"


@table(
    ("sent", "level", "thought", "expected"),
    [
        (None, "auto", HERE, {}),  # a server that has never sent such a member
        (None, "exchange", HERE, {"thinking": HERE}),
        ("reasoning", "auto", HERE, {"reasoning": HERE}),
        ("reasoning_content", "auto", HERE, {"reasoning_content": HERE}),
        ("thinking", "auto", HERE, {"thinking": HERE}),
        ("encrypted_reasoning", "auto", HERE, {}),  # not a plain text
        ("reasoning", "none", HERE, {}),
        # What is no text is not sent where the server has one.
        ("thinking", "auto", {"content": "x"}, {}),
        ("reasoning", "auto", [HERE], {}),
    ],
)
def test_unknown_thoughts_get_the_name_that_the_server_uses(
    lab: ApiLab, sent: str | None, level: str, thought: Any, expected: dict[str, str]
) -> None:
    forget()
    lab.endpoint("Main", {"reasoningToBackend": level}, lab.backend.url)
    if sent:
        scripted(lab, openai({sent: "x", "content": "warm"}))
        Client(lab, "chat").asks("Are you there?")
    scripted(lab, done)
    client = Client(lab, "ollama")
    used = {"function": {"name": "clock", "arguments": {}}}
    client.history = [
        {"role": "user", "content": "Time?"},
        {"role": "assistant", "content": "", "thinking": thought, "tool_calls": [used]},
    ]
    client.calls = [("", "clock")]
    client.answers_calls()
    assert members(assistants(payloads(lab)[-1])[0]) == expected


def test_a_picture_of_a_tool_does_not_end_the_exchange(lab: ApiLab) -> None:
    lab.default([llm("", allowTools=True, acceptImages=True, lastMessagesToSendInsteadOfPrompt=100)])
    scripted(
        lab,
        openai({"reasoning_content": "a", "tool_calls": [call(1)]}),
        openai({"reasoning_content": "b", "tool_calls": [call(2)]}),
        done,
    )
    client = Client(lab, "messages", brings=False)
    client.asks()
    client.answers_calls("Look:", picture="iVBORw0KGgo=")
    client.answers_calls()
    roles = [message["role"] for message in payloads(lab)[2]["messages"]]
    assert roles == ["user", "assistant", "tool", "user", "assistant", "tool"]
    assert [members(message) for message in assistants(payloads(lab)[2])] == [
        {"reasoning_content": "a"},
        {"reasoning_content": "b"},
    ]


def test_the_store_has_limits(lab: ApiLab, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    process().put(KeepsakeStore, KeepsakeStore(lambda: now[0]))
    thought = openai({"reasoning_content": "Hm", "tool_calls": [call()]})
    large = openai({"reasoning_content": "x" * (keepsakes.MAX_ANSWER_BYTES + 1), "tool_calls": [call(2)]})
    scripted(lab, large, done)
    client = Client(lab, "chat", brings=False)
    client.asks()
    client.answers_calls()
    assert members(assistants(payloads(lab)[-1])[0]) == {}
    for hours, expected in ((11.9, {"reasoning_content": "Hm"}), (12.1, {})):
        scripted(lab, thought, done)
        client = Client(lab, "chat", brings=False)
        client.asks(f"{hours}")
        now[0] += hours * 3600
        client.answers_calls()
        assert members(assistants(payloads(lab)[-1])[0]) == expected, hours
    store = process().one(KeepsakeStore)
    monkeypatch.setattr(store, "_answers", OwnedCache(3, 1000, lambda one: one.weight, lambda one: one.owner))
    store._by_shape.clear()
    for number in range(5):
        scripted(lab, openai({"reasoning_content": "Hm", "tool_calls": [call(number)]}))
        Client(lab, "chat").asks()
    assert len(store._answers.items()) == 3 == sum(map(len, store._by_shape.values()))


def test_keepsakes_are_never_text(lab: ApiLab, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    lab.default(
        [
            {
                "type": "PythonModule",
                "module_path": str(lab.root / "shout.py"),
                "args": ["{chat_user_prompt_last_ten}"],
            },
            llm("{agent1Output} {chat_user_prompt_last_ten}", allowTools=True),
        ]
    )
    (lab.root / "shout.py").write_text("def Invoke(text):\n    return text.upper()\n", encoding="utf-8")
    lab.user(sendReasoningToClient=False)
    scripted(lab, openai({"reasoning_content": "Sphinx", "tool_calls": [call()]}), done)
    client = Client(lab, "chat")
    client.asks()
    assert "Sphinx" not in json.dumps(client.history)
    client.answers_calls()
    assert "sphinx" not in json.dumps(payloads(lab)[1]).lower()
    lab.default([llm("", allowTools=True, lastMessagesToSendInsteadOfPrompt=100)])
    client._send()
    assert "Sphinx" in json.dumps(payloads(lab)[2])
    claude_lab(lab, thinking=THINKING)
    scripted(lab, claude({**BLOCKS[1], "thinking": "Sphinx"}, USE), claude({"type": "text", "text": "Noon."}))
    client = Client(lab, "messages")
    client.asks()
    client.answers_calls()
    assert "Sphinx" in json.dumps(payloads(lab)[-1])
    assert not [record for record in caplog.records if "sphinx" in record.getMessage().lower()]


def test_the_clamp_counts_them(lab: ApiLab) -> None:
    endpoint = {"maxContextTokenSize": 1200, "clampPromptToContextWindow": True}
    lab.endpoint("Main", endpoint, lab.backend.url)
    for size, kept in ((10, 4), (4000, 3)):
        forget()
        scripted(lab, openai({"reasoning_content": "word " * size, "tool_calls": [call()]}), done)
        client = Client(lab, "chat", brings=False)
        client.history = [{"role": "user", "content": "An old question of long ago."}]
        client.asks()
        client.answers_calls()
        assert len(payloads(lab)[-1]["messages"]) == kept, size


# -- servers that miss or refuse it ------------------------------------------------------------------------------------
def strict(lab: ApiLab, refuses: Callable[[Any], str | None], *answers: Callable[[bool], Reply]) -> None:
    """Let the server answer 400 with what ``refuses`` says of a payload, else with the answers."""
    scripted(lab, *answers)
    answer = lab.backend.responder
    assert answer is not None

    def respond(request: RecordedRequest) -> Reply:
        said = refuses(request.json)
        return json_reply({"error": {"message": said}}, status=400) if said else answer(request)

    lab.backend.responder = respond


def without_thoughts(member: str, words: str) -> Callable[[Any], str | None]:
    return lambda payload: (
        words if any(not message.get(member) for message in assistants(payload) if message.get("tool_calls")) else None
    )


MISSING = [
    ("reasoning_content", "Missing `reasoning_content` field in the assistant message at message index 1"),
    ("reasoning_content", "thinking is enabled but reasoning_content is missing in assistant tool call message"),
    ("reasoning_content", "The `reasoning_content` in the thinking mode must be passed back to the API."),
    ("reasoning", "messages[1].reasoning: Field required"),
    ("thinking_blocks", "Expected 'thinking_blocks' in message 1, found none"),
]


@table(("member", "words"), MISSING)
def test_a_server_that_misses_it_gets_all_and_what_is_unknown_is_filled(
    lab: ApiLab, member: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    forget()
    process().put(refusals._remembered, refusals._remembered())
    caplog.set_level(logging.INFO)
    for stream in (False, True):
        lab.backend.requests.clear()
        strict(lab, without_thoughts(member, words), openai({"tool_calls": [call()]}), done)
        client = Client(lab, "chat", stream)
        client.asks()
        client.answers_calls()
        sent = payloads(lab)
        # Once it has helped, later calls of the process are changed from the beginning.
        assert len(sent) == (2 if stream else 3)
        assert members(assistants(sent[-1])[0]) == {member: " "}
    told = [record.getMessage() for record in caplog.records if "misses" in record.getMessage()]
    assert len(told) == 1 and member in told[0]


def test_a_server_that_misses_it_gets_all_exchanges_from_then_on(lab: ApiLab) -> None:
    words = without_thoughts("reasoning_content", "reasoning_content is required")
    answers = [openai({"reasoning_content": text, "tool_calls": [call(ord(text))]}) for text in "ab"]
    strict(lab, words, answers[0], done, answers[1], done, done)
    client = Client(lab, "chat", brings=False)
    client.asks("First?")
    client.answers_calls()
    client.asks("Second?")
    client.answers_calls()
    client.asks("Third?")
    sent = payloads(lab)
    assert len(sent) == 6  # the third was refused
    for payload in sent[3:]:
        calling = [message for message in assistants(payload) if "tool_calls" in message]
        assert [members(message) for message in calling] == [{"reasoning_content": "a"}, {"reasoning_content": "b"}][
            : len(calling)
        ]


def test_gemini_gets_what_google_documents_for_calls_of_others(lab: ApiLab) -> None:
    def refuses(payload: Any) -> str | None:
        for message in assistants(payload):
            if "extra_content" not in message["tool_calls"][0]:
                return "Function call is missing a thought_signature in functionCall parts. This is required."
        return None

    strict(lab, refuses, openai({"tool_calls": [call(1), call(2)]}), done)
    client = Client(lab, "ollama")
    client.asks()
    client.answers_calls()
    (message,) = assistants(payloads(lab)[-1])
    assert members(message) == {
        "0.extra_content": {"google": {"thought_signature": "skip_thought_signature_validator"}}
    }
    assert len(payloads(lab)) == 3


@table(
    ("refused", "reply"),
    [
        (
            "reasoning_content",
            {"detail": [{"type": "extra_forbidden", "loc": ["body", "messages", 1, "reasoning_content"]}]},
        ),
        ("extra_content", {"error": {"message": "Unknown name \"extra_content\" at 'messages[1].tool_calls[0]'"}}),
        ("reasoning", {"message": "messages.1.reasoning: Extra inputs are not permitted"}),
        (
            "function_signature",
            {"error": {"message": "unsupported field: messages[1].tool_calls[0].function.function_signature"}},
        ),
        # Of calls, any member.
        (
            "approved",
            {"detail": [{"type": "extra_forbidden", "loc": ["body", "messages", 1, "tool_calls", 0, "approved"]}]},
        ),
        ("state", {"message": "messages.1.tool_calls.0.function.state: Extra inputs are not permitted"}),
    ],
)
def test_a_server_that_refuses_it_is_asked_once_more_without(lab: ApiLab, refused: str, reply: dict[str, Any]) -> None:
    forget()
    process().put(refusals._remembered, refusals._remembered())
    kept = {"reasoning_content": "a", "reasoning": "b"}
    function = {**call()["function"], "function_signature": "f", "state": {"a": 1}}
    calls = [call(function=function, extra_content=SIGNATURE, approved=True)]
    scripted(lab, openai({**kept, "tool_calls": calls}), done)
    answer = lab.backend.responder
    assert answer is not None
    lab.backend.responder = lambda request: (
        json_reply(reply, status=422) if f'"{refused}":' in json.dumps(request.json["messages"]) else answer(request)
    )
    client = Client(lab, "messages")
    client.asks()
    client.answers_calls()
    client.answers_calls()
    last, again = payloads(lab)[-2:]
    found = members(assistants(last)[0])
    assert found and not [name for name in found if name.endswith(refused)]
    assert len(payloads(lab)) == 4 and members(assistants(again)[0]) == found


@table("place", ["messages.1.content.3.caller", "messages.1.content.3.tool_use.caller"])
def test_a_claude_that_refuses_what_its_call_had(lab: ApiLab, place: str) -> None:
    process().put(refusals._remembered, refusals._remembered())
    claude_lab(lab, thinking=THINKING)
    words = f"{place}: Extra inputs are not permitted"
    strict(
        lab,
        lambda payload: words if '"caller"' in json.dumps(payload) else None,
        claude(*BLOCKS, USE),
        claude({"type": "text", "text": "Noon."}),
    )
    client = Client(lab, "messages")
    client.asks(place)
    client.answers_calls()
    assert assistants(payloads(lab)[-1])[0]["content"] == [*BLOCKS, BARE_USE]


def test_an_invalid_signature_is_left_out_for_this_call(lab: ApiLab) -> None:
    claude_lab(lab, thinking=THINKING)
    strict(
        lab,
        lambda payload: (
            "messages.1.content.1: Invalid `signature` in `thinking` block" if "c2ln" in json.dumps(payload) else None
        ),
        claude(*BLOCKS, USE),
        claude({"type": "text", "text": "Noon."}),
    )
    client = Client(lab, "messages")
    client.asks()
    client.answers_calls()
    first, refused, last = payloads(lab)
    assert assistants(refused)[0]["content"] == [*BLOCKS, USE]
    assert assistants(last)[0]["content"] == [BARE_USE] and "thinking" not in last


@table(
    ("level", "words"),
    [
        ("auto", "`max_tokens` must be greater than `thinking.budget_tokens`"),
        ("none", "Missing `reasoning_content` field"),
        ("auto", "tools[0].function.name is required"),
        ("auto", "thinking_mode is not a valid value"),
    ],
)
def test_other_refusals_change_nothing(lab: ApiLab, level: str, words: str) -> None:
    process().put(refusals._remembered, refusals._remembered())
    lab.endpoint("Main", {"reasoningToBackend": level}, lab.backend.url)
    scripted(lab, openai({"tool_calls": [call()]}))
    client = Client(lab, "chat")
    client.asks()
    lab.backend.responder = lambda request: json_reply({"error": {"message": words}}, status=400)
    with pytest.raises(AssertionError):
        client.answers_calls()
    assert len(payloads(lab)) == 2
