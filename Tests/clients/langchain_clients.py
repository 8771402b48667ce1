"""The LangChain packages as clients. Each is imported when first used: only their own environment has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from Tests.clients.client import IMPATIENT_SECONDS, KEY, MODEL, RESULTS, TOOL, Client, Said, Turns, openai_turns, texts


class LangChain(Client):
    """What the LangChain packages share: their messages. Subclasses make ``_chat``, ``_text`` and ``_impatient``."""

    lacks = frozenset({"models", "complete_with_image"})
    finish_key = ""
    _chat: Any
    _text: Any
    _impatient: Any

    def chat(self, turns: Turns, image: str = "") -> Said:
        return self._said([self._chat.invoke(openai_turns(turns, image))])

    def stream(self, turns: Turns) -> Said:
        return self._said(self._chat.stream(openai_turns(turns)))

    def complete(self, prompt: str) -> Said:
        return Said(texts([self._text.invoke(prompt)]))

    def stream_completion(self, prompt: str) -> Said:
        return Said(texts(self._text.stream(prompt)))

    def use_tool(self, question: str, stream: bool) -> tuple[Said, Said]:
        from langchain_core.messages import HumanMessage, ToolMessage

        messages: list[Any] = [HumanMessage(question)]
        first = self._ask_with_tool(messages, stream)
        messages += [
            first,
            *(ToolMessage(RESULTS[call["args"]["city"]], tool_call_id=call["id"]) for call in first.tool_calls),
        ]
        return self._said([first]), self._said([self._ask_with_tool(messages, stream)])

    def _ask_with_tool(self, messages: Sequence[Any], stream: bool) -> Any:
        bound = self._chat.bind_tools([TOOL])
        if not stream:
            return bound.invoke(messages)
        chunks = list(bound.stream(messages))
        return sum(chunks[1:], chunks[0])

    def break_off(self, question: str) -> str:
        stream = self._chat.stream(question)
        piece = next(chunk.text for chunk in stream if chunk.text)
        stream.close()
        return str(piece)

    def give_up(self, question: str) -> None:
        self._impatient.invoke(question)

    def _said(self, messages: Iterable[Any]) -> Said:
        messages = list(messages)
        whole = sum(messages[1:], messages[0])
        usage = whole.usage_metadata
        return Said(
            texts(message.text for message in messages),
            tuple((call["name"], call["args"]) for call in whole.tool_calls),
            whole.response_metadata.get(self.finish_key),
            (usage["input_tokens"], usage["output_tokens"]) if usage else None,
        )


class LangChainOpenAi(LangChain):
    """``langchain-openai``."""

    finish_key = "finish_reason"
    options: Mapping[str, Any] = {}

    def __init__(self, url: str) -> None:
        import langchain_openai

        options: dict[str, Any] = {"base_url": f"{url}/v1", "api_key": KEY, "model": MODEL, "max_retries": 0}
        self._chat = langchain_openai.ChatOpenAI(stream_usage=True, **self.options, **options)
        self._text = langchain_openai.OpenAI(**options)
        self._impatient = langchain_openai.ChatOpenAI(timeout=IMPATIENT_SECONDS, **self.options, **options)


class LangChainOllama(LangChain):
    """``langchain-ollama``, which looks for its model in the list before anything else."""

    finish_key = "done_reason"

    def __init__(self, url: str) -> None:
        import langchain_ollama

        options: dict[str, Any] = {"base_url": url, "model": MODEL}
        self._chat = langchain_ollama.ChatOllama(validate_model_on_init=True, **options)
        self._text = langchain_ollama.OllamaLLM(validate_model_on_init=True, **options)
        self._impatient = langchain_ollama.ChatOllama(client_kwargs={"timeout": IMPATIENT_SECONDS}, **options)
