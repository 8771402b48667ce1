"""Enforce the tool calls that a client requires, if the back-end supports JSON schemas.

A request with ``tool_choice`` "required", or with a function, requires a call. Models often ignore that. If the API
type defines how a schema is sent, the tools go into the system prompt as text, the schema allows only
``{"name": ..., "arguments": {...}}``, and the answer is turned into a tool call.
"""

from __future__ import annotations

import contextlib
import json
import logging
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import isgenerator
from typing import Any

from Middleware.exceptions import ClientError
from Middleware.llmapis.llm_api import LlmApiService
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.messages import Chunk, ToolCall
from Middleware.utilities.streaming_utils import remove_thinking_from_text

logger = logging.getLogger(__name__)

FINISH_REASON = "tool_calls"
ANY_ARGUMENTS: Mapping[str, object] = {"type": "object"}


@dataclass(frozen=True)
class ToolDemand:
    """The tool call that a client requires.

    Attributes:
        names: the functions that may be called.
        schema: JSON schema of the answer.
        instructions: the same in words, for the system prompt.
    """

    names: frozenset[str]
    schema: Mapping[str, object]
    instructions: str

    @staticmethod
    def of(tools: Sequence[object] | None, tool_choice: object) -> ToolDemand | None:
        """Return the demand of a request; None if it requires no call or has no tool to call.

        Raises ClientError for tools whose parameters are nested too deeply to be read.
        """
        functions, forced = _functions(tools or ()), _forced_name(tool_choice)
        wanted = functions if tool_choice == "required" else []
        if tools and forced:
            # A client may demand a function that it did not describe.
            wanted = [next((function for function in functions if function["name"] == forced), {"name": forced})]
        if not wanted:
            return None
        try:
            return ToolDemand(
                frozenset(function["name"] for function in wanted),
                _any_call_schema(wanted),
                _instructions(functions, wanted[0]["name"] if len(wanted) == 1 else ""),
            )
        except RecursionError:
            raise ClientError("The parameters of a tool are nested too deeply") from None

    def extend(self, system_prompt: str) -> str:
        """Return ``system_prompt`` followed by the instructions."""
        return f"{system_prompt}\n\n{self.instructions}" if system_prompt else self.instructions

    def read(self, text: str) -> ToolCall | None:
        """Return the tool call in an answer, in OpenAI's form; None for any other answer."""
        try:
            answer = json.loads(text.strip())
            if not isinstance(answer, dict):
                return None
            name, arguments = answer.get("name"), answer.get("arguments")
            if not isinstance(name, str) or name not in self.names or not isinstance(arguments, dict):
                return None
            encoded = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        # Invalid JSON, numbers that JSON does not have, or very deep nesting.
        except (ValueError, RecursionError):
            return None
        return {
            "id": f"wilmer-{uuid.uuid4().hex}",
            "type": "function",
            "function": {"name": name, "arguments": encoded},
        }


class ToolRound:
    """One call of the LLM, and a second one if the first answer is not a tool call.

    Token counts are those of the answer that is used; those of a discarded one are not added.
    """

    def __init__(
        self, demand: ToolDemand, call: Callable[[], Any], llm: LlmApiService, scope: CancelScope, node_name: str
    ) -> None:
        """
        Args:
            call: sends the request; each time returns a text, a dict with tool calls or a new stream of chunks.
            llm: the service of ``call``; the finish reason in its ``outcome`` is set.
            node_name: for the log.
        """
        self._demand, self._call, self._llm, self._scope, self._node = demand, call, llm, scope, node_name

    def run(self) -> object:
        """Return the answer, in the type that ``call`` returns: a tool call or, after two failures, the raw text.

        A cancelled round returns ``""`` or a stream without content. A stream is read to its end before anything is
        yielded; until then each chunk becomes a heartbeat.
        """
        first = self._call()
        streams: bool = isgenerator(first)
        return self._streamed(first) if streams else self._whole(first)

    def _whole(self, answer: Any) -> object:
        for last in (False, True):
            if isinstance(answer, dict):
                return answer
            if self._scope.cancelled:
                return ""
            call = self._read(answer, last)
            if call is not None:
                return {"content": "", "tool_calls": [call], "finish_reason": FINISH_REASON}
            if not last:
                answer = self._call()
        return answer

    def _streamed(self, chunks: Generator[Chunk, None, None]) -> Generator[Chunk, None, None]:
        for last in (False, True):
            answer = _Buffer()
            with contextlib.closing(chunks):
                for chunk in chunks:
                    answer.chunks.append(chunk)
                    # The client would time out while it hears nothing.
                    yield {"token": "", "finish_reason": None}
            if self._scope.cancelled:
                return
            if answer.has_calls:
                yield from answer.chunks
                return
            call = self._read(answer.text, last)
            if call is not None:
                yield from answer.as_call(call)
                return
            if not last:
                chunks = self._call()
        yield from answer.as_text()

    def _read(self, text: str, last: bool) -> ToolCall | None:
        call = self._demand.read(remove_thinking_from_text(text, self._llm.outcome.endpoint_config))
        if call is not None:
            self._llm.outcome.finish_reason = FINISH_REASON
        elif last:
            logger.error("Node '%s': the LLM twice did not call a tool as required; its text is returned.", self._node)
        else:
            logger.warning("Node '%s': the LLM did not call a tool as required; it is called again.", self._node)
        return call


@dataclass
class _Buffer:
    """A stream that was read to its end."""

    chunks: list[Chunk] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(chunk.get("token") or "" for chunk in self.chunks)

    @property
    def has_calls(self) -> bool:
        return any(chunk.get("tool_calls") for chunk in self.chunks)

    def as_call(self, call: ToolCall) -> list[Chunk]:
        return self._two({"token": "", "finish_reason": None, "tool_calls": [{"index": 0, **call}]}, FINISH_REASON)

    def as_text(self) -> list[Chunk]:
        return self._two({"token": self.text, "finish_reason": None}, "stop")

    def _two(self, first: Chunk, finish_reason: str) -> list[Chunk]:
        """Return a chunk with the whole content, and the closing one."""
        reasoning = "".join(chunk.get("reasoning") or "" for chunk in self.chunks)
        if reasoning:
            first["reasoning"] = reasoning
        # Clients expect the finish reason, and token counts, in a last chunk without content.
        end: Chunk = {"token": "", "finish_reason": finish_reason}
        usage = next((chunk["usage"] for chunk in reversed(self.chunks) if chunk.get("usage")), None)
        if usage:
            end["usage"] = usage
        return [first, end]


# -- what the request says ---------------------------------------------------------------------------------------


def _functions(tools: Sequence[object]) -> list[Mapping[str, Any]]:
    """Return the function objects of all tools with a name."""
    found = (tool.get("function") for tool in tools if isinstance(tool, Mapping))
    return [function for function in found if isinstance(function, Mapping) and _is_name(function.get("name"))]


def _forced_name(tool_choice: object) -> str:
    if not isinstance(tool_choice, Mapping) or tool_choice.get("type") != "function":
        return ""
    function = tool_choice.get("function")
    name = function.get("name") if isinstance(function, Mapping) else None
    return str(name) if _is_name(name) else ""


def _is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


# -- the schema --------------------------------------------------------------------------------------------------


def _any_call_schema(functions: Sequence[Mapping[str, object]]) -> dict[str, object]:
    if len(functions) == 1:
        return _call_schema(functions[0], "#")
    return {"anyOf": [_call_schema(function, f"#/anyOf/{index}") for index, function in enumerate(functions)]}


def _call_schema(function: Mapping[str, object], place: str) -> dict[str, object]:
    """Return the schema of a call; ``place`` is its JSON pointer in the whole schema."""
    arguments = _rebased(_parameters(function), f"{place}/properties/arguments")
    return {
        "type": "object",
        "properties": {"name": {"const": function["name"]}, "arguments": arguments},
        "required": ["name", "arguments"],
    }


def _parameters(function: Mapping[str, object]) -> Mapping[str, object]:
    parameters = function.get("parameters")
    return parameters if isinstance(parameters, Mapping) and parameters else ANY_ARGUMENTS


def _rebased(schema: object, place: str) -> object:
    """Return a copy of a schema with its internal references adjusted to the JSON pointer ``place``."""
    if isinstance(schema, Mapping):
        return {
            key: place + value[1:]
            if key == "$ref" and isinstance(value, str) and value.startswith("#")
            else _rebased(value, place)
            for key, value in schema.items()
        }
    return [_rebased(item, place) for item in schema] if isinstance(schema, list) else schema


# -- the words ---------------------------------------------------------------------------------------------------


def _instructions(functions: Sequence[Mapping[str, object]], only: str) -> str:
    """Return the description of all tools and of the answer; ``only`` is the tool to call, "" for any."""
    which = f'Call the tool "{only}" now.' if only else "Call one of these tools now."
    name = json.dumps(only or "<name of the tool>", ensure_ascii=False)
    described = [_description(function) for function in functions]
    return "\n\n".join(
        [
            "Your answer must be the call of a tool." + (" The tools:" if described else ""),
            *described,
            f"{which} Answer with one JSON object of this form, with no text around it and no code fence:\n"
            f'{{"name": {name}, "arguments": {{...}}}}\n'
            'where "arguments" is an object that follows the parameters of the tool.',
        ]
    )


def _description(function: Mapping[str, object]) -> str:
    lines = [f"Tool: {function['name']}"]
    if _is_name(function.get("description")):
        lines.append(f"Description: {function['description']}")
    lines.append(f"Parameters (JSON schema): {json.dumps(_parameters(function), ensure_ascii=False)}")
    return "\n".join(lines)
