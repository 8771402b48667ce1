"""Tool calls that a client demands: the schema, the words, the reading, and the round over real sockets."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.exceptions import BackendStatusError, ClientError, ConfigValueError
from Middleware.models.llm_handler import LlmHandler
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.services.llm_calls.tool_enforcement import ToolDemand
from Middleware.services.llm_dispatch_service import LLMDispatchService
from Middleware.services.llm_service import LlmHandlerService
from Middleware.workflows.managers.workflow_manager import WorkflowManager
from Middleware.workflows.models.execution_context import ExecutionContext
from Tests.llmapis.lab import Lab
from Tests.stub_backend import (
    StubBackend,
    chat_chunk,
    chat_reply,
    chat_stream_reply,
    json_reply,
    sse_reply,
    status_reply,
)
from Tests.tables import table
from Tests.workflows.engine_lab import EngineLab, llm

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
ANY = {"type": "object"}
USAGE = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
GOOD = '{"name": "weather", "arguments": {"city": "Köln"}}'


def tool(name: Any, parameters: Any = None, description: Any = None) -> dict[str, Any]:
    function = {"name": name, "parameters": parameters, "description": description}
    return {"type": "function", "function": {key: value for key, value in function.items() if value is not None}}


def forced(name: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def call_schema(name: str, arguments: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"name": {"const": name}, "arguments": arguments},
        "required": ["name", "arguments"],
    }


WEATHER = tool("weather", CITY, "Says how warm it is.")
TIME = tool("time", {}, None)


def demand(tools: Any = (WEATHER,), choice: Any = "required") -> ToolDemand:
    found = ToolDemand.of(tools, choice)
    assert found is not None
    return found


# -- when ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "choice",
    [
        "auto",
        "none",
        None,
        "",
        "weather",
        {},
        {"type": "function"},
        forced(""),
        forced(None),
        {"type": "function", "function": "weather"},
        [],
        3,
        {"type": "other", "function": {"name": "weather"}},
    ],
)
def test_nothing_is_demanded(choice: Any) -> None:
    assert ToolDemand.of([WEATHER], choice) is None


@pytest.mark.parametrize(
    ("tools", "choice"),
    [
        (None, "required"),
        ([], "required"),
        ([], forced("weather")),
        (None, forced("weather")),
        ([tool(""), tool(None), tool(5), {}, "x", {"function": None}], "required"),
    ],
)
def test_there_is_no_tool_to_call(tools: Any, choice: Any) -> None:
    assert ToolDemand.of(tools, choice) is None


# -- the schema ---------------------------------------------------------------------------------------------------


def test_one_tool() -> None:
    assert demand().schema == call_schema("weather", CITY)
    assert demand([tool(None), WEATHER, "junk"]).schema == call_schema("weather", CITY)


@pytest.mark.parametrize("parameters", [None, {}, "x", []])
def test_a_tool_without_parameters_takes_any_object(parameters: Any) -> None:
    assert demand([tool("f", parameters)]).schema == call_schema("f", ANY)


def test_several_tools() -> None:
    assert demand([WEATHER, TIME]).schema == {"anyOf": [call_schema("weather", CITY), call_schema("time", ANY)]}


def test_a_forced_tool() -> None:
    assert demand([TIME, WEATHER], forced("weather")).schema == call_schema("weather", CITY)
    assert demand([TIME, WEATHER], forced("missing")).schema == call_schema("missing", ANY)
    assert demand([tool(None)], forced("missing")).schema == call_schema("missing", ANY)


def test_references_inside_parameters_still_lead_to_their_definitions() -> None:
    parameters = {
        "$defs": {"P": {"type": "string"}},
        "type": "object",
        "properties": {
            "p": {"$ref": "#/$defs/P"},
            "all": {"items": [{"$ref": "#"}]},
            "$ref": {"type": "null"},
            "out": {"$ref": "https://h/schema.json"},
        },
    }
    before = json.dumps(parameters)
    single = demand([tool("f", parameters)]).schema["properties"]["arguments"]["properties"]
    assert single["p"] == {"$ref": "#/properties/arguments/$defs/P"}
    assert single["all"] == {"items": [{"$ref": "#/properties/arguments"}]}
    assert (single["$ref"], single["out"]) == ({"type": "null"}, {"$ref": "https://h/schema.json"})
    second = demand([WEATHER, tool("f", parameters)]).schema["anyOf"][1]["properties"]["arguments"]
    assert second["properties"]["p"] == {"$ref": "#/anyOf/1/properties/arguments/$defs/P"}
    assert json.dumps(parameters) == before


# -- the words ----------------------------------------------------------------------------------------------------


def test_instructions_name_everything() -> None:
    words = demand([WEATHER, TIME]).instructions
    for part in ("weather", "Says how warm it is.", json.dumps(CITY), "time", '"arguments": {'):
        assert part in words
    assert "one of these tools" in words


def test_instructions_name_the_tool_that_must_be_called() -> None:
    assert '{"name": "time", "arguments": {' in demand([WEATHER, TIME], forced("time")).instructions
    assert '{"name": "missing", "arguments": {' in demand([WEATHER], forced("missing")).instructions
    assert '{"name": "weather", "arguments": {' in demand().instructions
    assert "missing" in demand([tool(None)], forced("missing")).instructions


def test_instructions_follow_the_system_prompt_after_a_blank_line() -> None:
    wanted = demand()
    assert wanted.extend("Be brief.") == f"Be brief.\n\n{wanted.instructions}"
    assert wanted.extend("") == wanted.instructions


# -- reading ------------------------------------------------------------------------------------------------------


def test_a_call_is_read() -> None:
    found = demand().read(f"\n\u00a0{GOOD} \f")
    assert found is not None and re.fullmatch(r"wilmer-[0-9a-f]{32}", found.pop("id"))
    assert found == {"type": "function", "function": {"name": "weather", "arguments": '{"city": "Köln"}'}}
    first, second = demand().read(GOOD), demand().read(GOOD)
    assert first and second and first["id"] != second["id"]


@table(
    "text",
    [
        "",
        "It is warm.",
        f"Sure: {GOOD}",
        f"```json\n{GOOD}\n```",
        f"{GOOD}{GOOD}",
        "[]",
        "null",
        "3",
        '"weather"',
        '{"name": "weather"}',
        '{"arguments": {}}',
        '{"name": "", "arguments": {}}',
        '{"name": 3, "arguments": {}}',
        '{"name": ["weather"], "arguments": {}}',
        '{"name": "Weather", "arguments": {}}',
        '{"name": "weather", "arguments": "{}"}',
        '{"name": "weather", "arguments": null}',
        '{"name": "weather", "arguments": {"x": NaN}}',
        '{"name": "weather", "arguments": {"x": 1e999}}',
        '{"name": "weather", "arguments": {"x": ' + "9" * 5000 + "}}",
        "[" * 200_000,
    ],
)
def test_what_is_no_call(text: str) -> None:
    assert demand().read(text) is None


def test_only_the_forced_tool_counts() -> None:
    wanted = demand([WEATHER, TIME], forced("time"))
    assert wanted.read(GOOD) is None
    assert wanted.read('{"name": "time", "arguments": {}}')
    assert demand([WEATHER], forced("missing")).read('{"name": "missing", "arguments": {"a": 1}}')
    assert demand([WEATHER, TIME]).read('{"name": "time", "arguments": {}, "more": 1}')


# -- the round ----------------------------------------------------------------------------------------------------


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    return Lab(tmp_path, monkeypatch)


@pytest.fixture
def backend(lab: Lab) -> Iterator[StubBackend]:
    with StubBackend() as stub:
        lab.endpoint("Main", {"apiTypeConfigFileName": "Llama"}, stub.url)
        yield stub


class Round:
    """One node that forwards the tools of a request, against the endpoint ``Main``."""

    def __init__(self, stream: bool = False, choice: Any = "required", tools: Any = (WEATHER,), **node: Any) -> None:
        self.request = RequestContext()
        with request_scope(self.request):
            self.handler: LlmHandler = LlmHandlerService().load_model_from_config("Main", stream=stream)
        self.context = ExecutionContext(
            request_id="r",
            workflow_id="w",
            discussion_id=None,
            stream=stream,
            llm_handler=self.handler,
            config={"title": "Caller", "allowTools": True, **node},
            messages=[{"role": "user", "content": "Warm?"}],
            workflow_variable_service=_Plain(),
            tools=list(tools),
            tool_choice=choice,
            request=self.request,
        )

    def run(self) -> Any:
        return LLMDispatchService.dispatch(self.context)

    def chunks(self) -> list[dict[str, Any]]:
        """What is more than a sign of life."""
        return [chunk for chunk in self.run() if chunk != {"token": "", "finish_reason": None}]


class _Plain:
    def apply_variables(self, text: str, context: ExecutionContext, *, restore: bool = True) -> str:
        return text


@pytest.fixture(params=[False, True], ids=["whole", "stream"])
def stream(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def say(text: str, stream: bool, **options: Any) -> Any:
    if not stream:
        return chat_reply(text, **options)
    return chat_stream_reply([text[i : i + 7] for i in range(0, len(text), 7)], **options)


def outcome(result: Any) -> tuple[str, list[dict[str, Any]], str]:
    """Text, tool calls without ids and finish reason of an answer in either mode."""
    if isinstance(result, str):
        return result, [], "stop"
    if isinstance(result, dict):
        return result["content"], [_without_id(call) for call in result["tool_calls"]], result["finish_reason"]
    chunks = list(result)
    calls = [call for chunk in chunks for call in chunk.get("tool_calls", ())]
    assert [call.pop("index") for call in calls] == list(range(len(calls)))
    ends = [chunk["finish_reason"] for chunk in chunks if chunk["finish_reason"]]
    assert len(ends) == 1 and chunks[-1]["finish_reason"]
    return "".join(chunk["token"] for chunk in chunks), [_without_id(call) for call in calls], ends[0]


def _without_id(call: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in call.items() if key != "id"}


CALL = {"type": "function", "function": {"name": "weather", "arguments": '{"city": "Köln"}'}}


def test_a_good_answer_is_one_call(backend: StubBackend, stream: bool) -> None:
    backend.script(say(GOOD, stream, usage=USAGE))
    case = Round(stream, systemPrompt="Be brief.")
    assert outcome(case.run()) == ("", [CALL], "tool_calls")
    (request,) = backend.requests
    assert not {"tools", "tool_choice"} & request.json.keys()
    assert request.json["response_format"]["json_schema"]["schema"] == call_schema("weather", CITY)
    assert request.json["messages"] == [
        {"role": "system", "content": demand().extend("Be brief.")},
        {"role": "user", "content": "Warm?"},
    ]
    assert (case.handler.llm.outcome.finish_reason, case.handler.llm.outcome.usage) == ("tool_calls", USAGE)


@pytest.mark.parametrize("node", [{}, {"prompt": "Warm?"}])
def test_without_a_system_prompt_there_is_one_now(backend: StubBackend, node: dict[str, Any]) -> None:
    backend.script(chat_reply(GOOD))
    Round(**node).run()
    assert [message["role"] for message in backend.requests[0].json["messages"]] == ["system", "user"]
    assert backend.requests[0].json["messages"][0]["content"] == demand().instructions


def test_thinking_before_the_call_is_no_prose(lab: Lab, backend: StubBackend, stream: bool) -> None:
    thinking = {"removeThinking": True, "startThinkTag": "<think>", "endThinkTag": "</think>"}
    lab.endpoint("Main", {"apiTypeConfigFileName": "Llama", **thinking}, backend.url)
    backend.script(say(f"<think>Köln, {{I}} guess.</think>\n\n{GOOD}", stream))
    assert outcome(Round(stream).run()) == ("", [CALL], "tool_calls")
    assert len(backend.requests) == 1


def test_prose_is_drawn_again_with_the_same_request(
    backend: StubBackend, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    backend.script(say("secret prose", stream, usage={"total_tokens": 1}), say(GOOD, stream, usage=USAGE))
    case = Round(stream)
    assert outcome(case.run()) == ("", [CALL], "tool_calls")
    first, second = backend.requests
    assert first.json == second.json
    assert case.handler.llm.outcome.usage == USAGE and not case.handler.llm.is_busy()
    assert "'Caller'" in caplog.text and "secret prose" not in caplog.text


def test_prose_twice_is_returned_raw(backend: StubBackend, stream: bool, caplog: pytest.LogCaptureFixture) -> None:
    backend.script(say("secret one", stream), say(" secret two ", stream), say("three", stream))
    assert outcome(Round(stream).run()) == (" secret two ", [], "stop")
    assert len(backend.requests) == 2
    assert [record.levelno for record in caplog.records].count(logging.ERROR) == 1
    assert "secret" not in caplog.text


def test_shape_of_a_stream(backend: StubBackend) -> None:
    backend.script(chat_stream_reply([GOOD], usage=USAGE))
    first, last = Round(True).chunks()
    assert (first["token"], first["finish_reason"], first["tool_calls"][0]["index"]) == ("", None, 0)
    assert last == {"token": "", "finish_reason": "tool_calls", "usage": USAGE}
    backend.script(chat_stream_reply(["a", "b"], "length"), chat_stream_reply(["c", "d"], "length", USAGE))
    assert Round(True).chunks() == [
        {"token": "cd", "finish_reason": None},
        {"token": "", "finish_reason": "stop", "usage": USAGE},
    ]


def test_a_stream_shows_signs_of_life_and_sends_nothing_before_it_is_pulled(backend: StubBackend) -> None:
    backend.script(chat_stream_reply(["a", "b", "c"], delay=0.05), chat_stream_reply([GOOD]))
    chunks = Round(True).run()
    assert backend.requests == []
    assert next(chunks) == {"token": "", "finish_reason": None}
    assert len(backend.requests) == 1 and backend.requests[0].answered_at is None
    assert sum(chunk == {"token": "", "finish_reason": None} for chunk in chunks) > 5


def test_reasoning_travels_with_the_call(backend: StubBackend) -> None:
    backend.script(
        sse_reply(
            [
                chat_chunk({"reasoning_content": "hm"}),
                chat_chunk({"reasoning_content": "m"}),
                chat_chunk({"content": GOOD}),
                chat_chunk({}, "stop"),
                "[DONE]",
            ]
        )
    )
    assert Round(True).chunks()[0]["reasoning"] == "hmm"


NATIVE = [{"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}]


def test_native_calls_are_passed_on_as_they_are(backend: StubBackend) -> None:
    backend.script(
        json_reply({"choices": [{"message": {"content": None, "tool_calls": NATIVE}, "finish_reason": "tool_calls"}]})
    )
    assert Round().run() == {"content": "", "tool_calls": NATIVE, "finish_reason": "tool_calls"}
    streamed = [{"index": 0, **NATIVE[0]}]
    backend.script(
        sse_reply(
            [
                chat_chunk({"content": "So:"}),
                chat_chunk({"tool_calls": streamed}),
                chat_chunk({}, "tool_calls"),
                "[DONE]",
            ]
        )
    )
    chunks = Round(True).chunks()
    assert "".join(chunk["token"] for chunk in chunks) == "So:"
    assert [chunk["tool_calls"] for chunk in chunks if "tool_calls" in chunk] == [streamed]
    assert [chunk["finish_reason"] for chunk in chunks if chunk["finish_reason"]] == ["tool_calls"]
    assert len(backend.requests) == 2


def test_errors_reach_the_caller_also_from_the_second_call(backend: StubBackend, stream: bool) -> None:
    backend.script(say("prose", stream), status_reply(400))
    case = Round(stream)
    with pytest.raises(BackendStatusError):
        outcome(case.run())
    assert not case.handler.llm.is_busy()


# -- stopping -----------------------------------------------------------------------------------------------------


def test_a_cancelled_round_says_nothing_and_draws_no_more(
    backend: StubBackend, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    case = Round(stream)

    def cancel_and_answer(_: Any) -> Any:
        case.request.cancel_scope.cancel()
        return say("prose", stream)

    backend.responder = cancel_and_answer
    result = case.run()
    text = result if isinstance(result, str) else "".join(chunk["token"] for chunk in result)
    assert text == "" and len(backend.requests) == 1
    assert "call a tool" not in caplog.text


def test_a_cancellation_while_buffering_ends_the_stream(backend: StubBackend) -> None:
    backend.script(chat_stream_reply([GOOD], None, hang=True))
    case = Round(True)
    chunks = case.run()
    for _ in range(2):
        next(chunks)
    case.request.cancel_scope.cancel()
    assert all(chunk == {"token": "", "finish_reason": None} for chunk in chunks)
    assert backend.requests[0].wait_ended() and len(backend.requests) == 1


def test_closing_the_stream_lets_go_of_the_back_end(backend: StubBackend) -> None:
    backend.script(chat_stream_reply(["a", "b"], None, hang=True))
    case = Round(True)
    chunks = case.run()
    next(chunks)
    chunks.close()
    assert backend.requests[0].wait_ended() and not case.handler.llm.is_busy()


# -- when a round is active ---------------------------------------------------------------------------------------


def assert_native(backend: StubBackend, choice: Any) -> None:
    body = backend.requests[-1].json
    assert (body["tools"], body["tool_choice"]) == ([WEATHER], choice)
    assert "response_format" not in body and [message["role"] for message in body["messages"]] == ["user"]


@pytest.mark.parametrize("choice", ["auto", "none", {"type": "function"}])
def test_other_choices_go_to_the_back_end(backend: StubBackend, choice: Any) -> None:
    backend.script(chat_reply("prose"))
    assert Round(choice=choice).run() == "prose"
    assert_native(backend, choice)


@pytest.mark.parametrize(
    "declaration",
    [
        None,
        {},
        "x",
        {"field": "", "style": "raw"},
        {"field": "f", "style": "odd"},
        {"style": "raw"},
        {"field": 3, "style": "raw"},
    ],
)
def test_an_api_type_without_a_place_for_schemas_gets_the_tools(
    lab: Lab, backend: StubBackend, declaration: Any
) -> None:
    lab.write("ApiTypes/Llama", {"type": "openAIChatCompletion", "structuredOutput": declaration})
    backend.script(chat_reply("prose"))
    assert Round(choice="required").run() == "prose"
    assert_native(backend, "required")


def test_a_node_that_forwards_no_tools_demands_nothing(backend: StubBackend) -> None:
    backend.script(chat_reply("prose"))
    assert Round(allowTools="false").run() == "prose"
    assert not {"tools", "tool_choice", "response_format"} & backend.requests[0].json.keys()


def test_a_schema_of_the_node_and_a_demanded_call_exclude_each_other(lab: Lab, backend: StubBackend) -> None:
    with pytest.raises(ConfigValueError, match="'Caller'") as caught:
        Round(structuredOutputFile="Mood").run()
    assert caught.value.json_path == "structuredOutputFile" and backend.requests == []


# -- in a workflow ------------------------------------------------------------------------------------------------


def test_the_engine_passes_the_call_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: bool) -> None:
    with StubBackend() as backend:
        engine = EngineLab(tmp_path, monkeypatch, backend)
        engine.endpoint("Main", {"apiTypeConfigFileName": "Llama"}, backend.url)
        backend.responder = None
        backend.script(say("prose", stream), say(GOOD, stream, usage=USAGE))
        engine.workflow("Main", [llm("Warm?", allowTools=True)])
        with request_scope(engine.request):
            result = WorkflowManager.run_custom_workflow(
                "Main",
                "r-1",
                None,
                [{"role": "user", "content": "hi"}],
                is_streaming=stream,
                tools=[WEATHER],
                tool_choice="required",
            )
            if stream:
                result = [chunk for chunk in result if "end" not in chunk]
    assert outcome(result) == ("", [CALL], "tool_calls")
    assert (engine.request.outcome.finish_reason, engine.request.outcome.usage) == ("tool_calls", USAGE)


def nested(depth: int) -> dict[str, Any]:
    """An object in an object in an object."""
    found: dict[str, Any] = {}
    for _ in range(depth):
        found = {"properties": found}
    return found


@pytest.mark.parametrize("choice", ["required", forced("weather")])
def test_parameters_nested_absurdly_deep_are_the_clients_mistake(choice: Any) -> None:
    with pytest.raises(ClientError, match="nested too deeply") as caught:
        ToolDemand.of([tool("weather", nested(100_000))], choice)
    assert caught.value.status == 400
