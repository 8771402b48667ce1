"""Convert the items of a request to the Responses API into messages of the engine.

Source: OpenAI's reference of ``POST /v1/responses``. Items of hosted tools, and types that are not known, are passed
over: clients live with servers that do not know them. Those with something for the model in them are refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from Middleware.api.requests.content import (
    FILES,
    IMAGES,
    REFUSED,
    TEXTS,
    Content,
    ContentReader,
    carries,
    has_stray_images,
    holds_data,
    with_images_moved,
)
from Middleware.api.requests.messages import ROLE_NAMES
from Middleware.api.requests.responses_tools import ResponsesTools
from Middleware.exceptions import ClientError
from Middleware.llmapis.keepsakes import of_reasoning
from Middleware.models.messages import Keepsake, Message, ToolCall, add_times, joined_extra
from Middleware.models.responses import Item, RequestFields
from Middleware.services.response_store import REFERENCE

ROLES = ("user", "assistant", "system", "developer")
# These would change what is answered, so that ignoring them would be wrong.
REFUSED_FIELDS = ("background", "conversation", "prompt")
_PASSED_OVER = frozenset(("compaction",))
_CALL, _OUTPUT = "_call", "_output"
# Calls and outputs without an id are accepted; of other types, only those with one are for the client.
_CLIENT_CALLS = frozenset(("function_call", "custom_tool_call"))
_CLIENT_OUTPUTS = frozenset(f"{kind}{_OUTPUT}" for kind in _CLIENT_CALLS)
_READER = ContentReader(param=True, lenient=True)
# What clients put into the input itself, and not into a message of the user.
_LOOSE_PARTS = frozenset(("text", "input_text")) | IMAGES | FILES | REFUSED
_READ = TEXTS.keys() | IMAGES | FILES
_NO_ARGUMENTS = frozenset(("type", "id", "call_id", "status", "name", "namespace", "execution", "arguments"))


def require_supported(body: Mapping[str, object]) -> None:
    """Refuse a request without input, or with a field that asks for another service."""
    for field in REFUSED_FIELDS:
        if body.get(field) not in (None, False):
            raise ClientError(
                f"WilmerAI does not support the field '{field}'. Leave it out.",
                param=field,
                code="unsupported_parameter",
            )
    if body.get("input") is None and previous_response_id(body) is None:
        raise ClientError("The 'input' field is required.", param="input", code="missing_required_parameter")


def own_items(body: Mapping[str, object]) -> list[Item]:
    """Return the ``input`` of a request as items. A text is one message of the user."""
    given = body.get("input")
    if given is None or given == "":
        return []
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    if not isinstance(given, list):
        raise ClientError("The 'input' field must be a text or a list of items.", param="input")
    for number, item in enumerate(given):
        if not isinstance(item, dict):
            raise ClientError("Each item of 'input' must be an object.", param=f"input[{number}]")
    # An item that has nothing but an id refers to another one.
    return [
        {**item, "type": REFERENCE}
        if item.get("type") is None and "role" not in item and isinstance(item.get("id"), str)
        else item
        for item in given
    ]


def returned_fields(body: Mapping[str, object]) -> RequestFields:
    """Return the fields of a request that come back in its response; most have no other effect."""
    reasoning, text, metadata = (
        value if isinstance(value := body.get(field), dict) else {} for field in ("reasoning", "text", "metadata")
    )
    tools, parallel = body.get("tools"), body.get("parallel_tool_calls")
    return {
        "instructions": body.get("instructions"),
        "max_output_tokens": body.get("max_output_tokens"),
        "metadata": metadata,
        "parallel_tool_calls": True if parallel is None else parallel,
        "previous_response_id": previous_response_id(body),
        "prompt_cache_key": body.get("prompt_cache_key"),
        "reasoning": {"effort": reasoning.get("effort"), "summary": reasoning.get("summary")},
        "safety_identifier": body.get("safety_identifier"),
        "temperature": body.get("temperature"),
        "text": {**text, "format": text.get("format") or {"type": "text"}},
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": tools if isinstance(tools, list) else [],
        "top_p": body.get("top_p"),
        "user": body.get("user"),
    }


def previous_response_id(body: Mapping[str, object]) -> str | None:
    """Return the id of the response that a request continues, None for none."""
    value = body.get("previous_response_id")
    if value is not None and not isinstance(value, str):
        raise ClientError("The 'previous_response_id' field must be a text.", param="previous_response_id")
    # Some clients send "" for their first message.
    return value or None


def conversation(
    instructions: object,
    history: Sequence[Mapping[str, object]],
    items: Sequence[Mapping[str, object]],
    tools: ResponsesTools,
) -> list[Message]:
    """Return the messages of a request, without what the user's settings add to them.

    Args:
        instructions: the field of the request, which becomes the first system message.
        history: the items of the responses that the request continues.
        items: those of the request itself.
        tools: also gets the tools that items bring.
    """
    translation = _Translation(tools)
    opening = _instructions(instructions)
    if opening.text or opening.images:
        translation.messages += opening.messages("system")
    # Their errors could not be found by an index into the request's input.
    for item in history:
        translation.add(item, "previous_response_id")
    messages = translation.messages
    for number, item in enumerate(items):
        role, content = item.get("role"), item.get("content")
        # A conversation has thousands of messages like these, and calls for each would be felt.
        if (
            isinstance(content, str)
            and role in ("user", "assistant")
            and item.get("type", "message") == "message"
            and translation.loose is None
            and not translation.thoughts
            and (not messages or "tool_calls" not in messages[-1])
        ):
            messages.append({"role": role, "content": content})
            # Type, role and content.
            if len(item) > 3:
                add_times(messages[-1], item)
        else:
            translation.add(item, f"input[{number}]")
    translation.end_loose_parts()
    return with_images_moved(messages) if has_stray_images(messages) else messages


def _instructions(value: object) -> Content:
    if value is None or isinstance(value, str):
        return Content([value] if value else [])
    if not isinstance(value, list):
        raise ClientError("The 'instructions' field must be a text.", param="instructions")
    found = Content()
    for number, item in enumerate(value):
        if isinstance(item, dict):
            content = _READER.read(item.get("content"), f"instructions[{number}].content", "system")
            found.texts += [content.text] if content.text else []
            found.images += content.images
    return found


class _Translation:
    """The messages of the items so far.

    Attributes:
        loose: the parts at the end of the input so far that belong to no message; None without any.
        thoughts: those of the assistant's calls that follow.
    """

    def __init__(self, tools: ResponsesTools) -> None:
        self.messages: list[Message] = []
        self._tools = tools
        self.loose: Content | None = None
        self.thoughts: list[Keepsake] = []

    def add(self, item: Mapping[str, object], path: str) -> None:
        """Add an item; ``path`` is its JSON path in the request."""
        given = item.get("type")
        kind = given if isinstance(given, str) else "message" if item.get("role") else ""
        if kind in _LOOSE_PARTS:
            self.loose = self.loose or Content()
            _READER.add(self.loose, item, path, "user")
            return
        self.end_loose_parts()
        if kind == "message":
            self._add_message(item, path)
        # The tools of this type have a role, too.
        elif kind in ("tool_search_output", "additional_tools"):
            self._add_tools(item, path, kind)
        elif kind == "reasoning":
            self.thoughts += of_reasoning(item)
        elif kind in _PASSED_OVER:
            return
        elif kind in _CLIENT_OUTPUTS or (isinstance(item.get("call_id"), str) and "output" in item):
            self._add_output(item, item.get("output"), f"{path}.output")
        elif kind in _CLIENT_CALLS or (kind and isinstance(item.get("call_id"), str)):
            self._add_call(item, kind)
        # Calls of hosted tools and their outputs have no part of a conversation, whatever is in them.
        elif holds_data(item) and not kind.endswith((_CALL, _OUTPUT)):
            raise _READER.refusal(item, path)

    def end_loose_parts(self) -> None:
        """Make a message of the parts that belong to none."""
        if self.loose is not None:
            self.messages += self.loose.messages("user")
            self.loose = None

    def _add_message(self, item: Mapping[str, object], path: str) -> None:
        role = item.get("role")
        if role == "tool" and isinstance(item.get("call_id"), str):
            key = "content" if "content" in item else "output"
            self._add_output(item, item.get(key), f"{path}.{key}")
            return
        if not isinstance(role, str) or role not in ROLES:
            raise ClientError(f"The 'role' of a message must be one of: {', '.join(ROLES)}.", param=f"{path}.role")
        role = ROLE_NAMES.get(role, role)
        self.thoughts = self.thoughts if role == "assistant" else []
        made = _READER.read(item.get("content"), f"{path}.content", role).messages(role)
        turn = self._open_turn() if role == "assistant" else None
        # Text that came after calls: results must follow the message with the calls directly.
        if turn is not None and "tool_calls" in turn:
            (message,) = made
            turn["content"] = "\n".join(part for part in (turn["content"], message["content"]) if part)
            turn["tool_calls"] += message.get("tool_calls", [])
            if images := message.get("images"):
                turn["images"] = [*turn.get("images", ()), *images]
            return
        add_times(made[-1], item)
        self.messages += made

    def _open_turn(self) -> Message | None:
        """Return the message of the assistant at the end; None if something else is there."""
        last = self.messages[-1] if self.messages else None
        return last if last is not None and last["role"] == "assistant" else None

    def _add_call(self, item: Mapping[str, object], kind: str) -> None:
        name, namespace = item.get("name"), item.get("namespace")
        name = name if isinstance(name, str) and name else kind.removesuffix(_CALL)
        offered = self._tools.offered_name(name, namespace if isinstance(namespace, str) else "")
        call: ToolCall = {
            "id": str(item.get("call_id") or f"call_{len(self.messages)}"),
            "type": "function",
            "function": {"name": offered, "arguments": _arguments(item)},
        }
        turn = self._open_turn()
        if turn is None:
            turn = {"role": "assistant", "content": ""}
            self.messages.append(turn)
        turn.setdefault("tool_calls", []).append(call)
        if self.thoughts:
            turn["extra"] = joined_extra(turn, {"extra": self.thoughts})
            self.thoughts = []

    def _add_output(self, item: Mapping[str, object], output: object, path: str) -> None:
        found = _output(output, path)
        self._add_result(item, found.text)
        if found.images:
            self.messages[-1]["images"] = found.images

    def _add_result(self, item: Mapping[str, object], text: str) -> None:
        self.thoughts = []
        message: Message = {"role": "tool", "content": text}
        if item.get("call_id"):
            message["tool_call_id"] = str(item["call_id"])
        self.messages.append(message)

    def _add_tools(self, item: Mapping[str, object], path: str, kind: str) -> None:
        brought = item.get("tools")
        names = self._tools.add(brought if isinstance(brought, list) else [], f"{path}.tools")
        if kind == "tool_search_output" and isinstance(item.get("call_id"), str):
            text = f"These tools can be called now: {', '.join(names)}" if names else "No tool was found."
            self._add_result(item, text)


def _output(output: object, path: str) -> Content:
    """Return what is in a tool's output: a text, a list of parts, or any other JSON value, as a text."""
    if output is None or isinstance(output, str):
        return Content([output or ""])
    parts = [output] if isinstance(output, dict) and str(output.get("type")) in IMAGES else output
    # Other objects of tools may have a type as well.
    if (
        isinstance(parts, list)
        and all(isinstance(part, dict) and isinstance(part.get("type"), str) for part in parts)
        and (not parts or any(part["type"] in _READ or carries(part) for part in parts))
    ):
        return _READER.read(parts, path, "")
    return Content([json.dumps(output, ensure_ascii=False)])


def _arguments(item: Mapping[str, object]) -> str:
    """Return the arguments of a call as JSON text, whatever the field of its type is."""
    if item.get("arguments") is not None:
        given = item["arguments"]
    elif isinstance(item.get("input"), str):
        given = {"input": item["input"]}
    else:
        given = (
            item.get("input")
            or item.get("action")
            or {key: value for key, value in item.items() if key not in _NO_ARGUMENTS}
        )
    text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    return text if text.strip() else "{}"
