"""The tool loops of Python frameworks: each runs the loop itself, with one tool, and returns the model's last text.

Each is imported when first used: only the environment of the client tests has them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Coroutine, Mapping
from typing import Any

from Tests.clients.client import KEY, MODEL, RESULTS, TOOL

Loop = Callable[[str, str, bool], str]
"""Takes the server's URL without a path, the question, and whether answers are streamed; returns the last answer."""


def weather(city: str) -> str:
    """Tells the weather.

    Args:
        city: Where?
    """
    return RESULTS[city]


# -- openai-agents -----------------------------------------------------------------------------------------------------
def _agents(responses: bool) -> Loop:
    def loop(url: str, question: str, stream: bool) -> str:
        import agents
        import openai

        agents.set_tracing_disabled(True)

        async def run() -> str:
            async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client:
                kind = agents.OpenAIResponsesModel if responses else agents.OpenAIChatCompletionsModel
                agent = agents.Agent("a", model=kind(MODEL, client), tools=[agents.function_tool(weather)])
                if not stream:
                    return str((await agents.Runner.run(agent, question)).final_output)
                running = agents.Runner.run_streamed(agent, question)
                async for _ in running.stream_events():
                    pass
                return str(running.final_output)

        return _finished(run())

    return loop


# -- pydantic-ai -------------------------------------------------------------------------------------------------------
def _pydantic_model(route: str, url: str) -> Any:
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.ollama import OllamaProvider
    from pydantic_ai.providers.openai import OpenAIProvider

    if route == "ollama":
        return OpenAIChatModel(MODEL, provider=OllamaProvider(base_url=f"{url}/v1", api_key=KEY))
    kind = OpenAIResponsesModel if route == "responses" else OpenAIChatModel
    return kind(MODEL, provider=OpenAIProvider(base_url=f"{url}/v1", api_key=KEY))


async def _read(_: Any, events: AsyncIterable[Any]) -> None:
    async for _ in events:
        pass


def _pydantic(route: str) -> Loop:
    def loop(url: str, question: str, stream: bool) -> str:
        import pydantic_ai

        async def run() -> str:
            agent = pydantic_ai.Agent(_pydantic_model(route, url), tools=[weather])
            # Not run_stream, which takes the text before a call for the answer.
            return str((await agent.run(question, event_stream_handler=_read if stream else None)).output)

        return _finished(run())

    return loop


# -- haystack ----------------------------------------------------------------------------------------------------------
def _haystack_generator(route: str, url: str) -> Any:
    from haystack.utils import Secret

    if route == "ollama":
        from haystack_integrations.components.generators.ollama import OllamaChatGenerator

        return OllamaChatGenerator(model=MODEL, url=url)
    if route == "messages":
        from haystack_integrations.components.generators.anthropic import AnthropicChatGenerator

        generator = AnthropicChatGenerator(model=MODEL, api_key=Secret.from_token(KEY))
        generator.warm_up()
        generator.client.base_url = url
        return generator
    from haystack.components.generators.chat import OpenAIChatGenerator, OpenAIResponsesChatGenerator

    kind = OpenAIResponsesChatGenerator if route == "responses" else OpenAIChatGenerator
    return kind(model=MODEL, api_key=Secret.from_token(KEY), api_base_url=f"{url}/v1")


def _haystack(route: str) -> Loop:
    def loop(url: str, question: str, stream: bool) -> str:
        from haystack.components.agents import Agent
        from haystack.dataclasses import ChatMessage
        from haystack.tools import Tool

        function = TOOL["function"]
        tool = Tool(function["name"], function["description"], function["parameters"], weather)
        pieces: list[Any] = []
        agent = Agent(
            chat_generator=_haystack_generator(route, url),
            tools=[tool],
            streaming_callback=pieces.append if stream else None,
        )
        agent.warm_up()
        answer = agent.run(messages=[ChatMessage.from_user(question)])["last_message"].text
        assert bool(pieces) is stream
        return str(answer)

    return loop


# -- llama-index -------------------------------------------------------------------------------------------------------
def _llama_index(route: str) -> Loop:
    def loop(url: str, question: str, stream: bool) -> str:
        from llama_index.core.agent.workflow import FunctionAgent
        from llama_index.core.tools import FunctionTool

        async def run() -> str:
            agent = FunctionAgent(
                tools=[FunctionTool.from_defaults(weather)], llm=_llama_index_model(route, url), streaming=stream
            )
            return str((await agent.run(question)).response.content)

        return _finished(run())

    return loop


def _llama_index_model(route: str, url: str) -> Any:
    if route == "ollama":
        from llama_index.llms.ollama import Ollama

        return Ollama(model=MODEL, base_url=url, request_timeout=60)
    from llama_index.llms.openai import OpenAI

    class Served(OpenAI):
        """The package knows the windows of OpenAI's own models only; this is how its page says to add others."""

        @property
        def metadata(self) -> Any:
            from llama_index.core.base.llms.types import LLMMetadata

            return LLMMetadata(is_chat_model=True, is_function_calling_model=True, model_name=self.model)

        @property
        def _tokenizer(self) -> None:
            return None

    return Served(model=MODEL, api_base=f"{url}/v1", api_key=KEY, max_retries=0)


def _finished(work: Coroutine[Any, Any, str]) -> str:
    return asyncio.run(work)


STREAMS_LOSE_CALLS = frozenset({"haystack ollama"})
"""What keeps only the last of several calls in one line of a stream."""

LOOPS: Mapping[str, Loop] = {
    "openai-agents chat": _agents(responses=False),
    "openai-agents Responses": _agents(responses=True),
    **{f"pydantic-ai {route}": _pydantic(route) for route in ("chat", "responses", "ollama")},
    **{f"haystack {route}": _haystack(route) for route in ("chat", "responses", "messages", "ollama")},
    **{f"llama-index {route}": _llama_index(route) for route in ("chat", "ollama")},
}
