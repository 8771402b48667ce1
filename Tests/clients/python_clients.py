"""The Python packages as clients. Each is imported when first used: only their own environment has them."""

from __future__ import annotations

import asyncio
import base64
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
    openai_turns,
    texts,
    user,
)
from Tests.clients.langchain_clients import LangChainOllama, LangChainOpenAi
from Tests.clients.messages_clients import Anthropic, LangChainAnthropic
from Tests.clients.responses_clients import LangChainResponses, OpenAiResponses


# -- the shape that openai and litellm share ---------------------------------------------------------------------------
def openai_said(answer: Any) -> Said:
    choice = answer.choices[0]
    return Said(
        texts([choice.message.content]),
        openai_calls(choice.message.tool_calls),
        choice.finish_reason,
        openai_tokens(answer.usage),
    )


def openai_calls(calls: Iterable[Any] | None) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    return tuple((call.function.name, arguments(call.function.arguments)) for call in calls or ())


def openai_tokens(usage: Any) -> tuple[int, int] | None:
    return (usage.prompt_tokens, usage.completion_tokens) if usage else None


def openai_streamed(chunks: Iterable[Any]) -> Said:
    """A stream with ``include_usage``, read as the reference says: the last chunk tells tokens and has no choice."""
    pieces, finish, tokens = [], None, None
    for chunk in chunks:
        tokens = openai_tokens(getattr(chunk, "usage", None)) or tokens
        for choice in chunk.choices:
            pieces.append(choice.delta.content)
            finish = choice.finish_reason or finish
    return Said(texts(pieces), finish=finish, tokens=tokens)


def openai_results(calls: Iterable[Any]) -> list[dict[str, Any]]:
    return [
        {"role": "tool", "tool_call_id": call.id, "content": RESULTS[str(arguments(call.function.arguments)["city"])]}
        for call in calls
    ]


class OpenAi(Client):
    """``openai``; its streams with tools through the ``stream`` helper, which puts the fragments together."""

    lacks = frozenset({"complete_with_image"})

    def __init__(self, url: str) -> None:
        import openai

        self._client: Any = openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)

    def models(self) -> list[str]:
        return [self._client.models.retrieve(model.id).id for model in self._client.models.list()]

    def chat(self, turns: Turns, image: str = "") -> Said:
        return openai_said(self._client.chat.completions.create(model=MODEL, messages=openai_turns(turns, image)))

    def stream(self, turns: Turns) -> Said:
        return openai_streamed(
            self._client.chat.completions.create(
                model=MODEL, messages=openai_turns(turns), stream=True, stream_options={"include_usage": True}
            )
        )

    def complete(self, prompt: str) -> Said:
        answer = self._client.completions.create(model=MODEL, prompt=prompt)
        return Said(texts([answer.choices[0].text]), (), answer.choices[0].finish_reason, openai_tokens(answer.usage))

    def stream_completion(self, prompt: str) -> Said:
        chunks = list(
            self._client.completions.create(
                model=MODEL, prompt=prompt, stream=True, stream_options={"include_usage": True}
            )
        )
        choices = [choice for chunk in chunks for choice in chunk.choices]
        return Said(
            texts(choice.text for choice in choices), (), choices[-1].finish_reason, openai_tokens(chunks[-1].usage)
        )

    def use_tool(self, question: str, stream: bool) -> tuple[Said, Said]:
        messages = user(question)
        first = self._ask_with_tool(messages, stream)
        message = first.choices[0].message
        messages += [message.model_dump(exclude_none=True), *openai_results(message.tool_calls)]
        return openai_said(first), openai_said(self._ask_with_tool(messages, stream))

    def _ask_with_tool(self, messages: list[dict[str, Any]], stream: bool) -> Any:
        if not stream:
            return self._client.chat.completions.create(model=MODEL, messages=messages, tools=[TOOL])
        with self._client.chat.completions.stream(model=MODEL, messages=messages, tools=[TOOL]) as events:
            return events.get_final_completion()

    def break_off(self, question: str) -> str:
        stream = self._client.chat.completions.create(model=MODEL, messages=user(question), stream=True)
        piece = next(chunk.choices[0].delta.content for chunk in stream if chunk.choices[0].delta.content)
        stream.close()
        return str(piece)

    def give_up(self, question: str) -> None:
        self._client.with_options(timeout=IMPATIENT_SECONDS).chat.completions.create(
            model=MODEL, messages=user(question)
        )

    def close(self) -> None:
        self._client.close()


class LiteLlmOpenAi(Client):
    """``litellm`` as a client of an OpenAI-compatible server."""

    chat_prefix, text_prefix, list_prefix, path = "openai/", "text-completion-openai/", "", "/v1"
    provider = "openai"
    lacks = frozenset({"complete_with_image"})

    def __init__(self, url: str) -> None:
        import litellm

        self._litellm = litellm
        self._loop = asyncio.new_event_loop()
        self._options = {"api_base": url + self.path, "api_key": KEY, "max_retries": 0, "num_retries": 0}

    def models(self) -> list[str]:
        listed = self._litellm.get_valid_models(
            check_provider_endpoint=True,
            custom_llm_provider=self.provider,
            api_key=KEY,
            api_base=self._options["api_base"],
        )
        return [name.removeprefix(self.list_prefix) for name in listed]

    def chat(self, turns: Turns, image: str = "") -> Said:
        return openai_said(self._ask(openai_turns(turns, image)))

    def stream(self, turns: Turns) -> Said:
        return openai_streamed(self._ask(openai_turns(turns), stream=True, stream_options={"include_usage": True}))

    def complete(self, prompt: str) -> Said:
        answer = self._litellm.text_completion(model=self.text_prefix + MODEL, prompt=prompt, **self._options)
        return Said(texts([answer.choices[0].text]), (), answer.choices[0].finish_reason, openai_tokens(answer.usage))

    def stream_completion(self, prompt: str) -> Said:
        chunks = list(
            self._litellm.text_completion(model=self.text_prefix + MODEL, prompt=prompt, stream=True, **self._options)
        )
        choices = [choice for chunk in chunks for choice in chunk.choices]
        return Said(texts(choice.text for choice in choices), (), choices[-1].finish_reason)

    def use_tool(self, question: str, stream: bool) -> tuple[Said, Said]:
        messages = user(question)
        first = self._ask_with_tool(messages, stream)
        message = first.choices[0].message
        messages += [message.model_dump(exclude_none=True), *openai_results(message.tool_calls)]
        return openai_said(first), openai_said(self._ask_with_tool(messages, stream))

    def _ask_with_tool(self, messages: list[dict[str, Any]], stream: bool) -> Any:
        answer = self._ask(messages, tools=[TOOL], stream=stream)
        return self._litellm.stream_chunk_builder(list(answer), messages=messages) if stream else answer

    def break_off(self, question: str) -> str:
        """The package closes a stream that is not read to its end from asynchronous code only."""
        return self._loop.run_until_complete(self._break_off(question))

    async def _break_off(self, question: str) -> str:
        stream = await self._litellm.acompletion(
            model=self.chat_prefix + MODEL, messages=user(question), stream=True, **self._options
        )
        piece = ""
        async for chunk in stream:
            piece = chunk.choices[0].delta.content
            if piece:
                break
        await stream.aclose()
        await asyncio.sleep(0.02)  # sockets are closed by later turns of the loop
        return str(piece)

    def give_up(self, question: str) -> None:
        self._ask(user(question), timeout=IMPATIENT_SECONDS)

    def close(self) -> None:
        self._loop.close()

    def _ask(self, messages: list[dict[str, Any]], **options: Any) -> Any:
        return self._litellm.completion(model=self.chat_prefix + MODEL, messages=messages, **self._options, **options)


class LiteLlmOllama(LiteLlmOpenAi):
    """``litellm`` as a client of Ollama: ``/api/chat`` for chats, ``/api/generate`` for texts."""

    chat_prefix, text_prefix, list_prefix, path = "ollama_chat/", "ollama/", "ollama/", ""
    provider = "ollama"
    lacks = frozenset()

    def models(self) -> list[str]:
        return [
            name
            for name in super().models()
            if self._litellm.get_model_info(self.chat_prefix + name, api_base=self._options["api_base"])[
                "supports_function_calling"
            ]
        ]

    def complete_with_image(self, prompt: str, image: str) -> Said:
        return openai_said(
            self._litellm.completion(
                model=self.text_prefix + MODEL, messages=openai_turns([("user", prompt)], image), **self._options
            )
        )


# -- ollama ------------------------------------------------------------------------------------------------------------
class Ollama(Client):
    """``ollama``."""

    def __init__(self, url: str) -> None:
        import ollama

        self._ollama = ollama
        self._url = url
        self._client: Any = ollama.Client(host=url)

    def models(self) -> list[str]:
        loaded = {model.model for model in self._client.ps().models}
        names = [str(model.model) for model in self._client.list().models]
        able = [name for name in names if {"tools", "vision"} <= set(self._client.show(name).capabilities)]
        return [name.removesuffix(":latest") for name in able if name in loaded]

    def chat(self, turns: Turns, image: str = "") -> Said:
        messages: list[dict[str, Any]] = [{"role": role, "content": text} for role, text in turns]
        if image:
            messages[-1]["images"] = [image]
        return self._said([self._client.chat(model=MODEL, messages=messages)])

    def stream(self, turns: Turns) -> Said:
        return self._said(
            self._client.chat(
                model=MODEL, messages=[{"role": role, "content": text} for role, text in turns], stream=True
            )
        )

    def complete(self, prompt: str) -> Said:
        return self._generated([self._client.generate(model=MODEL, prompt=prompt)])

    def complete_with_image(self, prompt: str, image: str) -> Said:
        return self._generated([self._client.generate(model=MODEL, prompt=prompt, images=[base64.b64decode(image)])])

    def stream_completion(self, prompt: str) -> Said:
        return self._generated(self._client.generate(model=MODEL, prompt=prompt, stream=True))

    def use_tool(self, question: str, stream: bool) -> tuple[Said, Said]:
        messages: list[Any] = user(question)
        parts = self._ask_with_tool(messages, stream)
        first = self._said(parts)
        calls = [call for part in parts for call in part.message.tool_calls or ()]
        messages.append({"role": "assistant", "content": first.text, "tool_calls": calls})
        messages += [
            {"role": "tool", "tool_name": call.function.name, "content": RESULTS[call.function.arguments["city"]]}
            for call in calls
        ]
        return first, self._said(self._ask_with_tool(messages, stream))

    def _ask_with_tool(self, messages: list[Any], stream: bool) -> list[Any]:
        answer = self._client.chat(model=MODEL, messages=messages, tools=[TOOL], stream=stream)
        return list(answer) if stream else [answer]

    def break_off(self, question: str) -> str:
        parts = self._client.chat(model=MODEL, messages=user(question), stream=True)
        piece = next(part.message.content for part in parts if part.message.content)
        parts.close()
        return str(piece)

    def give_up(self, question: str) -> None:
        with self._ollama.Client(host=self._url, timeout=IMPATIENT_SECONDS) as client:
            client.chat(model=MODEL, messages=user(question))

    def close(self) -> None:
        self._client.close()

    @staticmethod
    def _said(parts: Iterable[Any]) -> Said:
        parts = list(parts)
        calls = [
            (call.function.name, arguments(call.function.arguments))
            for part in parts
            for call in part.message.tool_calls or ()
        ]
        assert [part.done for part in parts].index(True) == len(parts) - 1
        return Said(texts(part.message.content for part in parts), tuple(calls), *_ollama_end(parts[-1]))

    @staticmethod
    def _generated(parts: Iterable[Any]) -> Said:
        parts = list(parts)
        return Said(texts(part.response for part in parts), (), *_ollama_end(parts[-1]))


def _ollama_end(part: Any) -> tuple[str, tuple[int, int]]:
    return part.done_reason, (part.prompt_eval_count, part.eval_count)


PYTHON_CLIENTS: Mapping[str, type[Client]] = {
    "openai": OpenAi,
    "ollama": Ollama,
    "langchain-openai": LangChainOpenAi,
    "langchain-ollama": LangChainOllama,
    "litellm-openai": LiteLlmOpenAi,
    "litellm-ollama": LiteLlmOllama,
    "openai-responses": OpenAiResponses,
    "langchain-responses": LangChainResponses,
    "anthropic": Anthropic,
    "langchain-anthropic": LangChainAnthropic,
}
