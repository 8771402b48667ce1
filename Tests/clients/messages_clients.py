"""The Python packages as clients of the Messages API."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from Tests.clients.client import IMPATIENT_SECONDS, KEY, MODEL, RESULTS, TOOL, Client, Said, Turns, texts
from Tests.clients.langchain_clients import LangChain
from Tests.clients.responses_clients import NO_COMPLETIONS

MESSAGES_TOOL = {
    "name": TOOL["function"]["name"],
    "description": TOOL["function"]["description"],
    "input_schema": TOOL["function"]["parameters"],
}
MOST_TOKENS = 1000


def messages_said(message: Any, pieces: Iterable[str] | None = None) -> Said:
    told = [block.text for block in message.content if block.type == "text"]
    calls = tuple((block.name, block.input) for block in message.content if block.type == "tool_use")
    return Said(
        texts(told if pieces is None else pieces),
        calls,
        message.stop_reason,
        (message.usage.input_tokens, message.usage.output_tokens),
    )


class Anthropic(Client):
    """``anthropic``; its streams through the ``stream`` helper, which puts the events together."""

    lacks = NO_COMPLETIONS
    done, reached_limit = "end_turn", "max_tokens"

    def __init__(self, url: str) -> None:
        import anthropic

        self._client: Any = anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0)

    def models(self) -> list[str]:
        return [self._client.models.retrieve(model.id).id for model in self._client.models.list()]

    def chat(self, turns: Turns, image: str = "") -> Said:
        return messages_said(
            self._client.messages.create(model=MODEL, max_tokens=MOST_TOKENS, messages=_messages(turns, image))
        )

    def stream(self, turns: Turns) -> Said:
        with self._client.messages.stream(model=MODEL, max_tokens=MOST_TOKENS, messages=_messages(turns)) as events:
            pieces = list(events.text_stream)
            said = messages_said(events.get_final_message(), pieces)
            assert said.text == events.get_final_text()
        return said

    def use_tool(self, question: str, stream: bool) -> tuple[Said, Said]:
        messages: list[Any] = [{"role": "user", "content": question}]
        first = self._ask_with_tool(messages, stream)
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": RESULTS[block.input["city"]]}
            for block in first.content
            if block.type == "tool_use"
        ]
        messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": results}]
        return messages_said(first), messages_said(self._ask_with_tool(messages, stream))

    def _ask_with_tool(self, messages: list[Any], stream: bool) -> Any:
        body: dict[str, Any] = {
            "model": MODEL,
            "max_tokens": MOST_TOKENS,
            "messages": messages,
            "tools": [MESSAGES_TOOL],
        }
        if not stream:
            return self._client.messages.create(**body)
        with self._client.messages.stream(**body) as events:
            return events.get_final_message()

    def break_off(self, question: str) -> str:
        events = self._client.messages.create(
            model=MODEL, max_tokens=MOST_TOKENS, messages=_messages([("user", question)]), stream=True
        )
        piece = next(event.delta.text for event in events if event.type == "content_block_delta")
        events.close()
        return str(piece)

    def give_up(self, question: str) -> None:
        self._client.with_options(timeout=IMPATIENT_SECONDS).messages.create(
            model=MODEL, max_tokens=MOST_TOKENS, messages=_messages([("user", question)])
        )

    def close(self) -> None:
        self._client.close()


def _messages(turns: Turns, image: str = "") -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [{"role": role, "content": text} for role, text in turns]
    if image:
        messages[-1]["content"] = [
            {"type": "text", "text": messages[-1]["content"]},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": image}},
        ]
    return messages


class LangChainAnthropic(LangChain):
    """``langchain-anthropic``."""

    lacks = NO_COMPLETIONS | {"models"}
    finish_key = "stop_reason"
    done, reached_limit = "end_turn", "max_tokens"

    def __init__(self, url: str) -> None:
        import langchain_anthropic

        options: dict[str, Any] = {
            "base_url": url,
            "api_key": KEY,
            "model": MODEL,
            "max_tokens": MOST_TOKENS,
            "max_retries": 0,
        }
        self._chat = langchain_anthropic.ChatAnthropic(**options)
        self._impatient = langchain_anthropic.ChatAnthropic(timeout=IMPATIENT_SECONDS, **options)
