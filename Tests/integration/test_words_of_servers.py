"""What servers say in words and shapes of their own, heard over real sockets by clients of four dialects."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from Tests.integration.client_dialects import FRONTS, Heard, Turn
from Tests.integration.dialect_matrix import CHAT, CLAUDE, OLLAMA, matrix_server
from Tests.integration.launcher import Launcher, sse_payloads
from Tests.stub_backend import RecordedRequest, Reply, StubBackend, chat_chunk, json_reply, sse_reply
from Tests.tables import check_all

CLIENTS = ("OpenAI chat", "OpenAI Responses", "Anthropic Messages", "Ollama chat")
WORDS = {
    "stop": "stop eos eos_token stop_sequence end_turn end complete completed done finish finished pause_turn",
    "length": "length max_tokens max_output_tokens model_length token_limit context_length "
    "model_context_window_exceeded max_length limit",
    "content_filter": "content_filter safety sensitive refusal recitation blocklist prohibited_content spii "
    "image_safety moderation content_filtered guardrail_intervened",
    "failed": "error failed failure network_error insufficient_system_resource server_error internal_error overloaded "
    "timeout abort aborted cancelled other_error malformed_function_call unexpected_tool_call",
}
# What a client of the dialect can hear of a reason.
UNHEARD = {
    "Ollama chat": {"tool_calls": "stop", "content_filter": "stop"},
    "OpenAI Responses": {"tool_calls": "stop"},
}
Row = tuple[str, str, bool]


class Says:
    """A back-end that says what the number in the client's message stands for."""

    def __init__(self, server: Launcher, backend: StubBackend) -> None:
        self.server, self.backend = server, backend

    def hear(self, answers: Mapping[str, Callable[[bool], Reply]], check: Callable[[str, str, Heard], None]) -> None:
        """Let clients of all dialects ask for each of the answers, whole and streamed, and check what they hear."""
        names = list(answers)

        def respond(request: RecordedRequest) -> Reply:
            (number,) = re.findall(rb"case:([0-9]+)", request.body)
            return answers[names[int(number)]](bool(request.json["stream"]))

        def ask(row: Row) -> Heard:
            client, name, stream = row
            front, turn = FRONTS[client], Turn("user", f"case:{names.index(name)}")
            return front.read(self.server.request("POST", front.path, front.body(CHAT, [turn], stream)), stream)

        self.backend.responder = respond
        rows = [(client, name, stream) for client in CLIENTS for name in names for stream in (False, True)]
        with ThreadPoolExecutor(8) as pool:
            heard = dict(zip(rows, pool.map(ask, rows), strict=True))
        check_all(rows, lambda row: check(row[0], row[1], heard[row]))


@pytest.fixture(scope="module")
def says() -> Iterator[Says]:
    with matrix_server() as (server, backend):
        yield Says(server, backend)


def answer(reason: Any, *, text: str = "", calls: Sequence[Any] = (), **message: Any) -> Callable[[bool], Reply]:
    """An answer, whole and streamed, with that reason; members of ``message`` are in the message, or in one delta."""

    def made(stream: bool) -> Reply:
        said = {**({"tool_calls": list(calls)} if calls else {}), **message}
        if not stream:
            choice = {"index": 0, "message": {"role": "assistant", "content": text, **said}, "finish_reason": reason}
            return json_reply({"choices": [choice]})
        deltas = [{"content": text}] * bool(text) + [said] * bool(said)
        return sse_reply([*map(chat_chunk, deltas), chat_chunk({}, reason), "[DONE]"])

    return made


def call(arguments: Any, **function: Any) -> dict[str, Any]:
    return {
        "index": 0,
        "id": "call_1",
        "type": "function",
        "function": {"name": "f", "arguments": arguments, **function},
    }


def written(word: str) -> list[str]:
    """A word, and as some servers spell it."""
    return [word, word.upper(), word.replace("_", "-"), word.replace("_", " ").title()]


def test_reasons_without_calls(says: Says) -> None:
    expected = {form: inside for inside, words in WORDS.items() for word in words.split() for form in written(word)}
    expected |= dict.fromkeys(
        ("tool_calls", "TOOL_USE", "function_call", "function-calls", "odd", "", "null", "None"), "stop"
    )
    answers = {word: answer(word, text="Yes") for word in expected}
    answers["no reason"] = answer(None, text="Yes")

    def check(client: str, word: str, heard: Heard) -> None:
        inside = expected.get(word, "stop")
        if inside == "failed":
            assert heard.error and (heard.text == "Yes" or heard.status == 502) and heard.finish is None
        else:
            assert (heard.text, heard.error) == ("Yes", "")
            assert heard.finish == UNHEARD.get(client, {}).get(inside, inside)

    says.hear(answers, check)


def test_reasons_with_calls(says: Says) -> None:
    kept = {
        form: inside for inside in ("length", "content_filter") for word in WORDS[inside].split() for form in (word,)
    }
    words = [*WORDS["stop"].split(), "tool_calls", "function_call", "Tool-Use", "odd", "", "null", None, *kept]

    def check(client: str, word: str, heard: Heard) -> None:
        inside = kept.get(word, "tool_calls")
        assert heard.calls == [("f", {"a": 1})] and heard.finish == UNHEARD.get(client, {}).get(inside, inside)

    says.hear({str(word): answer(word, calls=[call('{"a": 1}')]) for word in words}, check)


def test_arguments(says: Says) -> None:
    """An argument text is a whole object for all clients but one that may want to see what a model wrote."""
    objects = {
        "object": ({"a": 1}, {"a": 1}),
        "text": ('{"a": 1}', {"a": 1}),
        "blank": (" \n", {}),
        "empty": ("", {}),
        "null": (None, {}),
    }
    answers = {name: answer("tool_calls", calls=[call(given)]) for name, (given, _) in objects.items()}
    absent = call("")
    del absent["function"]["arguments"]
    answers["absent"] = answer("tool_calls", calls=[absent])

    def check(client: str, name: str, heard: Heard) -> None:
        assert heard.calls == [("f", objects[name][1] if name in objects else {})] and heard.call_ids == ["call_1"]

    says.hear(answers, check)


@pytest.mark.parametrize("given", [[1], 5, True, "no object", '["x"]'])
@pytest.mark.parametrize("stream", [False, True])
def test_other_arguments_are_what_the_model_wrote(says: Says, given: Any, stream: bool) -> None:
    says.backend.responder = lambda request: answer("tool_calls", calls=[call(given)])(stream)
    body = FRONTS["OpenAI chat"].body(CHAT, [Turn("user", "hi")], stream)
    response = says.server.request("POST", "/v1/chat/completions", body)
    shown = given if isinstance(given, str) else json.dumps(given)
    if not stream:
        (made,) = response.json["choices"][0]["message"]["tool_calls"]
        assert made["function"]["arguments"] == shown
    else:
        chunks = [json.loads(payload) for payload in sse_payloads(response.body) if payload != "[DONE]"]
        deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
        pieces = [piece["function"]["arguments"] for delta in deltas for piece in delta.get("tool_calls", ())]
        assert "".join(pieces) == shown


def test_calls_of_functions(says: Says) -> None:
    """``function_call``, as servers from before there were tools have it, in one piece and in several."""
    whole = {"name": "f", "arguments": '{"a": 1}'}
    pieces = [{"name": "f", "arguments": ""}, {"arguments": '{"a"'}, {"arguments": ": 1}"}]

    def in_pieces(stream: bool) -> Reply:
        if not stream:
            return answer("function_call", function_call=whole, text="Well.")(stream)
        said = [chat_chunk({"content": "Well."}), *(chat_chunk({"function_call": piece}) for piece in pieces)]
        return sse_reply([*said, chat_chunk({}, "function_call"), "[DONE]"])

    answers = {
        "whole": answer("function_call", function_call=whole, text="Well."),
        "stop": answer("stop", function_call=whole, text="Well."),
        "no tools": answer("function_call", function_call=whole, text="Well.", tool_calls=None),
        "pieces": in_pieces,
    }

    def check(client: str, name: str, heard: Heard) -> None:
        assert (heard.text, heard.calls) == ("Well.", [("f", {"a": 1})])
        assert re.fullmatch("call_[0-9a-f]{24}", heard.call_ids[0])
        assert heard.finish == UNHEARD.get(client, {}).get("tool_calls", "tool_calls")

    says.hear(answers, check)


@pytest.mark.parametrize("back", [CHAT, OLLAMA, CLAUDE])
def test_arguments_in_the_history_are_an_object_for_every_server(says: Says, back: str) -> None:
    given = [
        "",
        '{"',
        '{"a": 1, "b": "x',
        '```json\n{"a": 1}\n```',
        '["x"]',
        "null",
        None,
        '{"a": 1}{"b": 2}',
        '{"a": 1}',
    ]
    expected = [{}, {}, {"a": 1, "b": "x"}, {"a": 1}, {}, {}, {}, {"a": 1}, {"a": 1}]
    calls = [{**call(arguments), "id": f"c{number}"} for number, arguments in enumerate(given)]
    results = [{"role": "tool", "tool_call_id": made["id"], "content": "done"} for made in calls]
    said = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": None, "tool_calls": calls}, *results]
    says.backend.responder = None
    says.server.request("POST", "/v1/chat/completions", {"model": back, "messages": said})
    message = says.backend.requests[-1].json["messages"][1]
    if back == CHAT:
        found = [json.loads(made["function"]["arguments"]) for made in message["tool_calls"]]
        assert message["tool_calls"][-1]["function"]["arguments"] == '{"a": 1}'
    elif back == OLLAMA:
        found = [made["function"]["arguments"] for made in message["tool_calls"]]
    else:
        found = [block["input"] for block in message["content"] if block["type"] == "tool_use"]
    assert found == expected
    assert says.server.output().count("whose arguments are not a JSON object") >= 1
