"""Tools in other forms than most clients send them, through the package of OpenAI: whole and streamed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from Tests.backend_dialects import Answer, Call
from Tests.clients.cases import CALLS, MARKS, NODE, TEXT, TOKENS, answers, calls_tool
from Tests.clients.client import KEY, MODEL, RESULTS, TOOL, user
from Tests.integration.launcher import Backend, Launcher
from Tests.stub_backend import chat_stream_reply

pytestmark = MARKS
PATCH = {"type": "custom", "custom": {"name": "patch", "description": "Patches a file."}}
WRITTEN = '*** Begin "Patch"\nü'


@pytest.fixture
def chat(server: Launcher) -> Iterator[Any]:
    import openai

    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as client:
        yield client.chat.completions


def ask(chat: Any, messages: list[dict[str, Any]], stream: bool, **options: Any) -> Any:
    """The choice of an answer; a stream is put together by the package."""
    if not stream:
        return chat.create(model=MODEL, messages=messages, **options).choices[0]
    with chat.stream(model=MODEL, messages=messages, **options) as events:
        return events.get_final_completion().choices[0]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
class TestOpenAi:
    def test_functions(self, chat: Any, backend: Backend, stream: bool) -> None:
        backend.replies[NODE] = calls_tool
        messages: list[dict[str, Any]] = user(backend.hello)
        first = ask(chat, messages, stream, functions=[TOOL["function"]], function_call="auto")
        call = first.message.function_call
        assert (first.finish_reason, call.name, first.message.tool_calls) == ("function_call", "weather", None)
        assert call.arguments == '{"city": "Oslo"}'
        messages += [
            {"role": "assistant", "content": None, "function_call": {"name": call.name, "arguments": call.arguments}},
            {"role": "function", "name": "weather", "content": RESULTS["Oslo"]},
        ]
        second = ask(chat, messages, stream, functions=[TOOL["function"]])
        assert (second.message.content.rstrip("\n"), second.finish_reason) == (TEXT, "stop")
        *_, made, result = backend.calls(NODE)[-1].json["messages"]
        assert made["tool_calls"][0]["id"] == result["tool_call_id"] and result["role"] == "tool"

    def test_custom_tools(self, chat: Any, backend: Backend, stream: bool) -> None:
        said = Answer(("Let me ", "look."), "tool_calls", calls=(CALLS[0], Call("patch", {"input": WRITTEN}, "call_9")))
        backend.replies[NODE] = answers(said)
        messages: list[dict[str, Any]] = user(backend.hello)
        if stream:
            chunks = list(chat.create(model=MODEL, messages=messages, tools=[TOOL, PATCH], stream=True))
            pieces = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
            (custom,) = [piece.model_dump() for piece in pieces if piece.index == 1]
            made: dict[str, Any] = {"id": custom["id"], "type": "custom", "custom": custom["custom"]}
            assert chunks[-1].choices[0].finish_reason == "tool_calls"
        else:
            choice = ask(chat, messages, stream, tools=[TOOL, PATCH])
            made = choice.message.tool_calls[1].model_dump()
            assert choice.finish_reason == "tool_calls"
        assert made == {"id": "call_9", "type": "custom", "custom": {"name": "patch", "input": WRITTEN}}
        backend.replies[NODE] = answers(Answer(TOKENS))
        messages += [
            {"role": "assistant", "content": None, "tool_calls": [made]},
            {"role": "tool", "tool_call_id": "call_9", "content": "done"},
        ]
        assert ask(chat, messages, stream, tools=[PATCH]).message.content.rstrip("\n") == TEXT
        call = backend.calls(NODE)[-1].json["messages"][-2]["tool_calls"][0]
        assert (call["type"], call["function"]["name"]) == ("function", "patch")


def test_a_silence_before_a_stream_helper(chat: Any, backend: Backend) -> None:
    """The first chunk, a heartbeat, has the role."""
    backend.replies[NODE] = chat_stream_reply(TOKENS, header_delay=5.4)
    choice = ask(chat, user(backend.hello), stream=True)
    assert (choice.message.role, choice.message.content.rstrip("\n")) == ("assistant", TEXT)
