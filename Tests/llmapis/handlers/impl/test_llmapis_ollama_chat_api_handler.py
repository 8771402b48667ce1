"""The Ollama chat dialect: exact payloads, tool calls in both directions, images. What it shares with the text dialect
is tested in ``base/test_ollama_answers.py``."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from Middleware.llmapis.handlers.base.backend_call import BackendSettings, Prompt
from Middleware.llmapis.handlers.impl.ollama_chat_api_handler import OllamaChatHandler
from Middleware.llmapis.transport import Transport
from Middleware.utilities.answers.stream_parsers import NDJSONParser
from Tests.backend_dialects import DIALECTS, Answer, Call
from Tests.stub_backend import StubBackend

DIALECT = DIALECTS["ollamaApiChat"]
API_TYPE = {"streamPropertyName": "stream", "structuredOutput": {"field": "format", "style": "raw"}}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
CALLS = Answer((), calls=[Call("f", {"a": "ü"}), Call("g")])


@pytest.fixture
def backend() -> Iterator[StubBackend]:
    with StubBackend() as stub:
        yield stub


def handler(url: str = "http://127.0.0.1:1", **settings: Any) -> OllamaChatHandler:
    values = {"endpoint": {}, "api_type": API_TYPE, "model": "m", **settings}
    return OllamaChatHandler(BackendSettings("E", url, **values), Transport())


def user(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **more}


def calling(*calls: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": list(calls), **more}


def call(name: str, arguments: Any, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **more}


def sent(*conversation: dict[str, Any]) -> list[dict[str, Any]]:
    """The messages that are sent; fails if the caller's are changed."""
    before = copy.deepcopy(conversation)
    messages = handler().payload(Prompt(list(conversation)))["messages"]
    assert conversation == before
    return messages


def event(**message: Any) -> str:
    return json.dumps({"message": {"role": "assistant", "content": "", **message}, "done": False})


# -- payload ------------------------------------------------------------------------------------------------------


def test_payload_of_a_stream() -> None:
    prompt = Prompt(
        [{"role": "systemMes", "content": "be __WILMER_L_CURLY__"}, user("hi")],
        tools=TOOLS,
        tool_choice="required",
        schema={"type": "object"},
    )
    samplers = {"temperature": 0.4, "think": False, "stream": True, "num_ctx": 4096, "num_predict": 300}
    assert handler(samplers=samplers).request(prompt, True).payload == {
        "model": "m",
        "messages": [{"role": "system", "content": "be {"}, user("hi")],
        "think": False,
        "options": {"temperature": 0.4, "num_ctx": 4096, "num_predict": 300},
        "tools": TOOLS,
        "format": {"type": "object"},
    }


def test_payload_of_a_complete_call() -> None:
    assert handler(samplers={"stream": False}).request(Prompt(None, "sys", "hi"), False).payload == {
        "model": "m",
        "messages": [{"role": "system", "content": "sys"}, user("hi")],
        "stream": False,
        "options": {},
    }


def test_endpoint_texts_are_injected() -> None:
    endpoint = {
        "addTextToStartOfSystem": True,
        "textToAddToStartOfSystem": "S",
        "addTextToStartOfCompletion": True,
        "textToAddToStartOfCompletion": "X",
        "ensureTextAddedToAssistantWhenChatCompletion": True,
    }
    assert handler(endpoint=endpoint).payload(Prompt([user("hi")]))["messages"] == [
        {"role": "system", "content": "S"},
        user("hi"),
        {"role": "assistant", "content": "X"},
    ]


def test_schema_without_a_declared_place_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    assert "format" not in handler(api_type={}).payload(Prompt([user("hi")], schema={"type": "object"}))
    assert "not constrained" in caplog.text


@pytest.mark.parametrize("tools", [None, []])
def test_no_tools(tools: Any) -> None:
    assert "tools" not in handler().payload(Prompt([user("hi")], tools=tools))


# -- messages -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "text"),
    [(None, ""), ([], ""), ([{"type": "text", "text": "a"}, {"type": "x"}, {"type": "text", "text": "b"}], "ab")],
)
def test_content_is_always_text(content: Any, text: str) -> None:
    assert sent(user(content)) == [user(text)]


def test_images_stay_on_user_messages_only() -> None:
    image = "data:image/png;base64,AAAA"
    assert sent(
        {"role": "system", "content": "s", "images": [image]},
        user("u", images=[image, "BBBB"]),
        {"role": "assistant", "content": "a", "images": [image]},
        {"role": "tool", "content": "t", "images": [image]},
    ) == [
        {"role": "system", "content": "s"},
        user("u", images=["AAAA", "BBBB"]),
        {"role": "assistant", "content": "a"},
        {"role": "tool", "content": "t"},
    ]


@pytest.mark.parametrize(
    ("images", "left"), [([], {}), (None, {}), (["https://h/x"], {}), (5, {}), ("AAAA", {"images": ["AAAA"]})]
)
def test_images_may_be_none(images: Any, left: dict[str, Any]) -> None:
    assert sent(user("u", images=images)) == [user("u", **left)]


@pytest.mark.parametrize(
    ("arguments", "parsed"),
    [
        ('{"a": {"b": [1]}}', {"a": {"b": [1]}}),
        ("{}", {}),
        ("", {}),
        ("  ", {}),
        (None, {}),
        ('{"a": ', {}),
        ("[1]", {}),
        ("5", {}),
        pytest.param("[" * 100_000, {}, id="deep"),
        ({"a": 1}, {"a": 1}),
        ([1], {}),
    ],
)
def test_replayed_arguments_are_objects(arguments: Any, parsed: dict[str, Any]) -> None:
    assert sent(user("u"), calling(call("f", arguments, id="c1")))[1] == calling(call("f", parsed, id="c1"))


def test_replayed_arguments_may_be_missing() -> None:
    assert sent(user("u"), calling({"function": {"name": "f"}}))[1] == calling(
        {"function": {"name": "f", "arguments": {}}}
    )


@pytest.mark.parametrize("calls", [[], None, "x", [5], [{"function": None}]])
def test_tool_calls_that_are_none_are_removed(calls: Any) -> None:
    assert sent({"role": "assistant", "content": "a", "tool_calls": calls}) == [{"role": "assistant", "content": "a"}]


@pytest.mark.parametrize(
    ("extra", "name"),
    [
        ({"name": "given"}, "given"),
        ({"tool_call_id": "c1"}, "f"),
        ({"tool_call_id": "c2"}, "g"),
        ({"tool_call_id": "c1", "name": ""}, "f"),
        ({"tool_call_id": "c1", "name": "given"}, "given"),
        ({"tool_call_id": "c1", "tool_name": "known"}, "known"),
        ({"tool_call_id": "unknown"}, None),
        ({}, None),
        ({"tool_call_id": ["c1"]}, None),
    ],
)
def test_tool_results_name_their_tool(extra: dict[str, Any], name: str | None) -> None:
    result = {"role": "tool", "content": "42", **extra}
    messages = sent(user("u"), calling(call("f", "{}", id="c1"), call("g", "{}", id="c2")), result)
    assert messages[2] == {**result, **({"tool_name": name} if name else {})}


def test_an_id_used_twice_means_the_latest_call() -> None:
    messages = sent(
        calling(call("f", "{}", id="c")),
        {"role": "tool", "content": "1", "tool_call_id": "c"},
        calling(call("g", "{}", id="c")),
        {"role": "tool", "content": "2", "tool_call_id": "c"},
    )
    assert [message.get("tool_name") for message in messages] == [None, "f", None, "g"]


def test_an_empty_last_answer_is_dropped_unless_it_calls() -> None:
    assert sent(user("u"), {"role": "assistant", "content": ""}) == [user("u")]
    assert len(sent(user("u"), calling(call("f", "{}")))) == 2


# -- tool calls of the answer -------------------------------------------------------------------------------------


def test_streamed_tool_calls(backend: StubBackend) -> None:
    backend.default = DIALECT.reply(CALLS, True)
    caller = handler(backend.url)
    for _ in range(2):  # the numbering starts afresh with every call
        chunks = list(caller.handle_streaming(Prompt([user("hi")], tools=TOOLS)))
        calls = [each for chunk in chunks for each in chunk.get("tool_calls", ())]
        ids = [each.pop("id") for each in calls]
        assert calls == [
            {"index": 0, "type": "function", "function": {"name": "f", "arguments": '{"a": "ü"}'}},
            {"index": 1, "type": "function", "function": {"name": "g", "arguments": "{}"}},
        ]
        assert all(re.fullmatch("call_[0-9a-f]{24}", each) for each in ids) and ids[0] != ids[1]
        assert [chunk["finish_reason"] for chunk in chunks if chunk["finish_reason"]] == ["tool_calls"]
        assert caller.outcome.finish_reason == "tool_calls"


def test_tool_calls_cut_at_every_byte() -> None:
    data = b"".join(DIALECT.pieces(CALLS))
    for cut in range(len(data) + 1):
        caller, framer = handler(), NDJSONParser()
        chunks = [chunk for part in (data[:cut], data[cut:]) for chunk in caller.read_events(framer.feed(part))]
        assert [each["index"] for chunk in chunks for each in chunk.get("tool_calls", ())] == [0, 1], cut
        assert chunks[-1]["finish_reason"] == "tool_calls"


def test_indices_run_over_chunks_with_several_calls() -> None:
    one = {"function": {"name": "f", "arguments": {}, "index": 0}}
    chunks = handler().read_events([event(tool_calls=[one, one]), event(tool_calls=[one]), '{"done": true}'])
    assert [[each["index"] for each in chunk.get("tool_calls", ())] for chunk in chunks] == [[0, 1], [2], []]
    assert [chunk["finish_reason"] for chunk in chunks] == [None, None, "tool_calls"]


def test_calls_in_the_last_event_and_beside_text() -> None:
    last = json.loads(event(content="so", tool_calls=[{"function": {"name": "f", "arguments": {}}}]))
    [chunk] = handler().read_events([json.dumps({**last, "done": True, "done_reason": "stop"})])
    assert (chunk["token"], len(chunk["tool_calls"]), chunk["finish_reason"]) == ("so", 1, "tool_calls")


@pytest.mark.parametrize(("given", "kept"), [("call_x", True), ("", False), (None, False), (5, False)])
def test_an_id_of_the_server_is_kept(given: Any, kept: bool) -> None:
    [chunk] = handler().read_events([event(tool_calls=[{"id": given, "function": {"name": "f"}}])])
    [delta] = chunk["tool_calls"]
    assert (delta["id"] == given) is kept and delta["id"].startswith("call_")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [({"a": 1}, '{"a": 1}'), ({}, "{}"), (None, "{}"), ('{"a":1}', '{"a":1}'), ("", "{}"), (" ", "{}"), ([1], "[1]")],
)
def test_arguments_leave_as_text(arguments: Any, text: str) -> None:
    [chunk] = handler().read_events([event(tool_calls=[{"function": {"name": "f", "arguments": arguments}}])])
    assert chunk["tool_calls"][0]["function"] == {"name": "f", "arguments": text}


@pytest.mark.parametrize(
    "bad", [5, {}, {"function": None}, {"function": {"arguments": {}}}, {"function": {"name": ""}}]
)
def test_unusable_calls_are_skipped(bad: Any, caplog: pytest.LogCaptureFixture) -> None:
    good = {"function": {"name": "f", "arguments": {}}}
    chunks = handler().read_events([event(tool_calls=[bad]), event(tool_calls=[bad, good])])
    assert "tool_calls" not in chunks[0]
    assert [each["index"] for each in chunks[1]["tool_calls"]] == [0]
    assert len(caplog.records) == 1  # the first of its kind in a call


@pytest.mark.parametrize("calls", [[], None, "x", {}])
def test_no_tool_calls_no_key(calls: Any) -> None:
    assert handler().read_events([event(content="hi", tool_calls=calls), '{"done": true}']) == [
        {"token": "hi", "finish_reason": None},
        {"token": "", "finish_reason": "stop"},
    ]


def test_complete_answer_with_tool_calls(backend: StubBackend) -> None:
    backend.script(DIALECT.reply(Answer(("so",), reasoning=("hm",), calls=CALLS.calls), False))
    caller = handler(backend.url)
    answer = caller.handle_non_streaming(Prompt([user("hi")], tools=TOOLS))
    assert isinstance(answer, dict)
    ids = [each.pop("id") for each in answer["tool_calls"]]
    assert answer == {
        "content": "so",
        "finish_reason": "tool_calls",
        "tool_calls": [
            {"type": "function", "function": {"name": "f", "arguments": '{"a": "ü"}'}},
            {"type": "function", "function": {"name": "g", "arguments": "{}"}},
        ],
    }
    assert all(re.fullmatch("call_[0-9a-f]{24}", each) for each in ids) and ids[0] != ids[1]
    assert caller.outcome.finish_reason == "tool_calls" and caller.outcome.reasoning == "hm"


def test_a_call_without_an_end_finishes_with_tool_calls() -> None:
    caller = handler()
    caller.read_whole({"message": {"tool_calls": [{"function": {"name": "f"}}]}})
    assert caller.outcome.finish_reason == "tool_calls"


@pytest.mark.parametrize("message", [{"content": None}, {}, {"content": "", "tool_calls": []}])
def test_an_answer_without_text_is_empty(message: dict[str, Any]) -> None:
    assert handler().read_whole({"message": message, "done": True}) == ""
