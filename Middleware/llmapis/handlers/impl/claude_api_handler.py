"""The dialect of Claude's Messages API."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from Middleware.llmapis.api_types import CLAUDE_MESSAGES
from Middleware.llmapis.handlers.base import claude_messages
from Middleware.llmapis.handlers.base.answer_forms import text_in, usage_of, with_tool_calls
from Middleware.llmapis.handlers.base.backend_call import BackendMessage, Prompt, bearer_headers
from Middleware.llmapis.handlers.base.base_chat_completions_handler import BaseChatCompletionsHandler
from Middleware.llmapis.keepsakes import BLOCKS, exchange_start, origin_of, signed
from Middleware.models.messages import Answer, Chunk, ToolCall, Usage, token_count
from Middleware.utilities.answers.tool_calls import arguments_text

logger = logging.getLogger(__name__)

THOUGHTS = ("thinking", "redacted_thinking")
_USE = frozenset({"type", "id", "name", "input"})
PARAMETERS = frozenset(
    {
        "model",
        "messages",
        "max_tokens",
        "system",
        "temperature",
        "top_p",
        "top_k",
        "stream",
        "stop_sequences",
        "metadata",
        "thinking",
        "tools",
        "tool_choice",
    }
)
# The API counts these tokens separately.
CACHED = "cache_read_input_tokens"
PROMPT_COUNTS = ("input_tokens", "cache_creation_input_tokens", CACHED)


@dataclass
class _StreamedCall:
    """A tool call whose arguments are arriving.

    Attributes:
        index: its position among the calls of the answer.
        start: the arguments in its first event; they are used only if no others follow.
    """

    index: int
    start: object
    has_arguments: bool = False

    def unstreamed(self) -> ToolCall:
        """Return the fragment with the arguments of the first event."""
        return {"index": self.index, "function": {"arguments": _arguments(self.start)}}


class ClaudeApiHandler(BaseChatCompletionsHandler):
    """Calls ``/v1/messages``."""

    PATH = "/v1/messages"
    text_member = None
    takes_schema = False

    def _reset(self) -> None:
        super()._reset()
        # The calls that have not ended, by content block.
        self._calls: dict[int | None, _StreamedCall] = {}
        self._call_count = 0
        # The blocks of thinking that have not ended.
        self._thoughts: dict[int | None, dict[str, Any]] = {}
        self._prompt_counts: dict[str, int] = {}

    # -- request -------------------------------------------------------------------------------------------------
    def headers(self) -> dict[str, str]:
        return bearer_headers(self.settings, CLAUDE_MESSAGES)

    def payload(self, prompt: Prompt) -> dict[str, object]:
        body: dict[str, Any] = super().payload(replace(prompt, tools=None, tool_choice=None))
        unknown = [key for key in body if key not in PARAMETERS]
        if unknown:
            self._warn("the Messages API does not take these fields, they are not sent: %s", ", ".join(unknown))
        body = {key: value for key, value in body.items() if key in PARAMETERS}
        system = claude_messages.system_text(body["messages"])
        self._settle_thinking(body)
        turns = self._turns(body["messages"])
        if system and turns:
            body["system"] = system
        # The API rejects a system prompt without messages.
        body["messages"] = turns or ([{"role": "user", "content": system}] if system else [])
        self._attach_tools(body, prompt)
        return body

    def finish_messages(self, messages: list[BackendMessage]) -> list[BackendMessage]:
        try:
            converted, unusable = claude_messages.with_images(messages)
        # The text is worth an answer even if an image cannot be converted.
        except Exception as error:
            self._warn("converting images failed (%s), only text is sent", type(error).__name__)
            return claude_messages.texts_only(messages)
        if unusable:
            self.unreadable(f"{unusable} image(s) that are neither data, base64 nor a web address")
        return converted

    def _settle_thinking(self, body: dict[str, Any]) -> None:
        """Leave the thinking out where the server would refuse it, and the blocks of earlier thinking without it."""
        messages = body["messages"]
        is_on = _object(body.get("thinking")).get("type", "disabled") != "disabled"
        calling = [message for message in messages[exchange_start(messages) :] if message.get("tool_calls")]
        # Later messages rightly have none, where the model does not think between its calls.
        first = messages if self.changes.has_just("missed") else calling[:1]
        if is_on and [message for message in first if message.get("tool_calls") and not _blocks_kept(message)]:
            del body["thinking"]
            is_on = False
            logger.info(
                "Endpoint '%s': the thinking before the tool calls of this exchange is not known, so 'thinking' is "
                "left out.",
                self.settings.endpoint_name,
            )
        # They are copies.
        for message in [] if is_on else messages:
            if "extra" in message:
                message["extra"] = [one for one in message["extra"] if one["member"] != BLOCKS]

    def _turns(self, messages: list[BackendMessage]) -> list[BackendMessage]:
        out = claude_messages.turns(messages)
        claude_messages.trim_prefill(out)
        if out and out[0]["role"] != "user":
            self._warn("the first message is not the user's, the Messages API may refuse that")
        return out

    def _attach_tools(self, body: dict[str, object], prompt: Prompt) -> None:
        if prompt.tool_choice == "none":
            body.pop("tools", None)
            body.pop("tool_choice", None)
            return
        tools = [claude_messages.claude_tool(tool) for tool in prompt.tools or ()]
        named = [tool for tool in tools if tool is not None]
        if len(named) < len(tools):
            self._warn("%d tool(s) without a name are not sent", len(tools) - len(named))
        if named:
            body["tools"] = named
        choice = claude_messages.claude_tool_choice(prompt.tool_choice)
        # The API rejects a tool choice without tools.
        if choice is not None and body.get("tools"):
            body["tool_choice"] = choice

    def _warn(self, text: str, *values: object) -> None:
        logger.warning(f"Endpoint '%s': {text}.", self.settings.endpoint_name, *values)

    # -- streamed answer -----------------------------------------------------------------------------------------
    def read_event(self, body: dict[str, object], name: str | None) -> Chunk | None:
        # A name counts for all events up to the next one, and an error between them may have none.
        kind = body.get("type") or ("error" if body.get("error") else name)
        self.formed = self.formed or str(kind).startswith(("content_block_", "message_start"))
        if kind == "message_delta":
            return self._read_end(body)
        if kind == "message_stop":
            self.closed = True
        if self.closed:
            return None
        if kind == "content_block_delta":
            return self._read_delta(body)
        if kind == "content_block_start":
            return self._read_block_start(body)
        if kind == "content_block_stop":
            return self._read_block_end(body)
        if kind == "message_start":
            message = _object(body.get("message"))
            self.outcome.model = text_in(message, "model")
            self._note_prompt_tokens(_object(message.get("usage")))
        else:
            self._raise_error(body, kind)
        return None

    def _read_delta(self, body: Mapping[str, object]) -> Chunk | None:
        delta = _object(body.get("delta"))
        kind = delta.get("type")
        if kind == "text_delta":
            return _text_chunk(delta.get("text"))
        thought = self._thoughts.get(_block_index(body))
        if thought is not None and kind in ("thinking_delta", "signature_delta"):
            member = str(kind).removesuffix("_delta")
            thought[member] = str(thought.get(member) or "") + text_in(delta, member)
        if kind == "thinking_delta":
            return _reasoning_chunk(delta.get("thinking"))
        call, part = self._calls.get(_block_index(body)), delta.get("partial_json")
        if kind != "input_json_delta" or call is None or not isinstance(part, str) or not part:
            return None
        call.has_arguments = True
        return _call_chunk({"index": call.index, "function": {"arguments": part}})

    def _read_block_start(self, body: Mapping[str, object]) -> Chunk | None:
        block = _object(body.get("content_block"))
        kind, index = block.get("type"), _block_index(body)
        self._calls.pop(index, None)
        if kind == "text":
            return _text_chunk(block.get("text"))
        if kind in THOUGHTS:
            thought = self._thoughts[index] = dict(block)
            # It is filled by what follows; some proxies leave its end out.
            self.kept.add(BLOCKS, [thought])
            return _reasoning_chunk(block.get("thinking"))
        if kind != "tool_use":
            return None
        call = self._calls[index] = _StreamedCall(self._call_count, block.get("input"))
        self._call_count += 1
        return _call_chunk({"index": call.index, **_call(block, "")})

    def _read_block_end(self, body: Mapping[str, object]) -> Chunk | None:
        """Add the arguments of a call that streamed none as a JSON object, because clients cannot parse ``""``."""
        thought = self._thoughts.pop(_block_index(body), None)
        if thought is not None:
            return {"token": "", "finish_reason": None, "thought": self._signed(thought)}
        call = self._calls.pop(_block_index(body), None)
        return None if call is None or call.has_arguments else _call_chunk(call.unstreamed())

    def _signed(self, thought: Mapping[str, object]) -> Mapping[str, object]:
        """Return a block of thinking as a client of the Messages API gets it."""
        if not thought.get("signature"):
            return thought
        return {**thought, "signature": signed(thought["signature"], origin_of(self.settings))}

    def _read_end(self, body: Mapping[str, object]) -> Chunk | None:
        """Parse the event with the stop reason and the final token counts."""
        self._raise_error(body, None)
        chunk: Chunk = {"token": "", "finish_reason": None}
        usage = self._note_usage(body)
        if usage:
            chunk["usage"] = usage
        delta = _object(body.get("delta"))
        reason = delta.get("stop_reason")
        chunk["token"] = self.refused(_explanation(delta))
        chunk["finish_reason"] = str(reason) if reason else None
        if reason and self._calls:
            # Of blocks whose ends a proxy has left out.
            left, self._calls = self._calls.values(), {}
            chunk["tool_calls"] = [call.unstreamed() for call in left if not call.has_arguments]
        return chunk if usage or reason else None

    # -- complete answer -----------------------------------------------------------------------------------------
    def read_response(self, body: Mapping[str, object]) -> Answer:
        self._raise_error(body, body.get("type"))
        self.outcome.model = text_in(body, "model")
        self._note_usage(body)
        reason, content = body.get("stop_reason"), body.get("content")
        self.outcome.finish_reason = str(reason) if reason else None
        if not isinstance(content, list):
            raise self.no_answer(body)
        blocks = [block for block in content if isinstance(block, Mapping)]
        text, self.outcome.reasoning = _joined(blocks, "text"), _joined(blocks, "thinking")
        self.refusal = _explanation(body)
        thoughts = [block for block in blocks if block.get("type") in THOUGHTS]
        self.kept.add(BLOCKS, thoughts)
        self.outcome.thoughts = [self._signed(thought) for thought in thoughts]
        calls = [_call(block, _arguments(block.get("input"))) for block in blocks if block.get("type") == "tool_use"]
        return with_tool_calls(text, calls)

    # -- both ----------------------------------------------------------------------------------------------------
    def _raise_error(self, body: Mapping[str, object], kind: object) -> None:
        """Raise BackendResponseError if the object is an error by its kind or its ``error``."""
        if kind == "error" or body.get("error"):
            self.raise_error_object(body.get("error") or body, body)

    def _note_usage(self, body: Mapping[str, object]) -> Usage | None:
        """Return all token counts in OpenAI's form, if this object completes them.

        The first event of a stream has the prompt's tokens, the last one those of the answer and sometimes both.
        """
        usage = _object(body.get("usage"))
        self._note_prompt_tokens(usage)
        completion = token_count(usage.get("output_tokens"))
        if completion is None or "input_tokens" not in self._prompt_counts:
            return None
        prompt = token_count(sum(self._prompt_counts.values()))
        self.outcome.usage = usage_of(prompt, completion, self._prompt_counts.get(CACHED))
        self.outcome.reported = self._prompt_counts
        return self.outcome.usage

    def _note_prompt_tokens(self, usage: Mapping[str, Any]) -> None:
        counts = ((key, token_count(usage.get(key))) for key in PROMPT_COUNTS)
        self._prompt_counts |= {key: count for key, count in counts if count is not None}


def _blocks_kept(message: Mapping[str, Any]) -> bool:
    return any(one["member"] == BLOCKS for one in message.get("extra", ()))


def _object(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _explanation(end: Mapping[str, object]) -> str:
    """Return why the model refuses to answer, "" if it does not."""
    return text_in(_object(end.get("stop_details")), "explanation") if end.get("stop_reason") == "refusal" else ""


def _block_index(body: Mapping[str, object]) -> int | None:
    index = body.get("index")
    return index if isinstance(index, int) else None


def _text_chunk(text: object) -> Chunk | None:
    return {"token": text, "finish_reason": None} if isinstance(text, str) and text else None


def _reasoning_chunk(text: object) -> Chunk | None:
    return {"token": "", "finish_reason": None, "reasoning": text} if isinstance(text, str) and text else None


def _call_chunk(call: ToolCall) -> Chunk:
    return {"token": "", "finish_reason": None, "tool_calls": [call]}


def _call(block: Mapping[str, Any], arguments: str) -> ToolCall:
    call = {"id": block.get("id"), "type": "function", "function": {"name": block.get("name"), "arguments": arguments}}
    return cast(ToolCall, {**{key: value for key, value in block.items() if key not in _USE}, **call})


def _arguments(value: object) -> str:
    return arguments_text(value).strip() or "{}"


def _joined(blocks: list[Mapping[str, Any]], kind: str) -> str:
    """Return the texts of the blocks of one type, which is also the key of the text."""
    return "".join(block[kind] for block in blocks if block.get("type") == kind and isinstance(block.get(kind), str))
