"""The Python packages as clients of the Responses API."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from Tests.clients.client import (
    IMPATIENT_SECONDS,
    KEY,
    MODEL,
    RESULTS,
    TOOL,
    Client,
    Said,
    Turns,
    arguments,
    data_uri,
    texts,
)
from Tests.clients.langchain_clients import LangChainOpenAi

RESPONSES_TOOL = {"type": "function", **TOOL["function"], "strict": False}
NO_COMPLETIONS = frozenset({"complete", "complete_with_image", "stream_completion"})


class FailedResponse(Exception):
    """The API's ``failed`` response, which the package hands out like any other."""


def responses_said(response: Any, pieces: Iterable[str] | None = None) -> Said:
    if response.status == "failed":
        raise FailedResponse(f"{response.error.code}: {response.error.message}")
    calls = tuple((item.name, arguments(item.arguments)) for item in response.output if item.type == "function_call")
    return Said(
        texts([response.output_text] if pieces is None else pieces),
        calls,
        response.status,
        (response.usage.input_tokens, response.usage.output_tokens),
    )


class OpenAiResponses(Client):
    """``openai``; its streams through the ``stream`` helper, which puts the events together."""

    lacks = NO_COMPLETIONS | {"models"}
    done, reached_limit = "completed", "incomplete"

    def __init__(self, url: str) -> None:
        import openai

        self._client: Any = openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)

    def chat(self, turns: Turns, image: str = "") -> Said:
        return responses_said(self._client.responses.create(model=MODEL, input=_items(turns, image)))

    def stream(self, turns: Turns) -> Said:
        with self._client.responses.stream(model=MODEL, input=_items(turns)) as events:
            pieces, last = [], None
            for event in events:
                if event.type == "response.output_text.delta":
                    pieces.append(event.delta)
                last = event
        assert last is not None
        said = responses_said(last.response, pieces)
        assert said.text == last.response.output_text
        return said

    def use_tool(self, question: str, stream: bool) -> tuple[Said, Said]:
        items: list[Any] = [{"role": "user", "content": question}]
        first = self._ask_with_tool(items, stream)
        items += [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in first.output]
        items += [
            {
                "type": "function_call_output",
                "call_id": item.call_id,
                "output": RESULTS[str(arguments(item.arguments)["city"])],
            }
            for item in first.output
            if item.type == "function_call"
        ]
        return responses_said(first), responses_said(self._ask_with_tool(items, stream))

    def _ask_with_tool(self, items: list[Any], stream: bool) -> Any:
        if not stream:
            return self._client.responses.create(model=MODEL, input=items, tools=[RESPONSES_TOOL])
        with self._client.responses.stream(model=MODEL, input=items, tools=[RESPONSES_TOOL]) as events:
            return events.get_final_response()

    def break_off(self, question: str) -> str:
        events = self._client.responses.create(model=MODEL, input=question, stream=True)
        piece = next(event.delta for event in events if event.type == "response.output_text.delta")
        events.close()
        return str(piece)

    def give_up(self, question: str) -> None:
        self._client.with_options(timeout=IMPATIENT_SECONDS).responses.create(model=MODEL, input=question)

    def close(self) -> None:
        self._client.close()


def _items(turns: Turns, image: str = "") -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = [{"role": role, "content": text} for role, text in turns]
    if image:
        items[-1]["content"] = [
            {"type": "input_text", "text": items[-1]["content"]},
            {"type": "input_image", "image_url": data_uri(image), "detail": "auto"},
        ]
    return items


class LangChainResponses(LangChainOpenAi):
    """``langchain-openai`` with the Responses API."""

    lacks = NO_COMPLETIONS | {"models"}
    finish_key = "status"
    done, reached_limit = "completed", "incomplete"
    options: Mapping[str, Any] = {"use_responses_api": True}
