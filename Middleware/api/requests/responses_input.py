"""Convert the items of a request to the Responses API into messages of the engine.

Source: OpenAI's reference of ``POST /v1/responses``. Items of hosted tools, and types that are not known, are passed
over: clients live with servers that do not know them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from urllib.parse import unquote_to_bytes

from Middleware.api.requests.messages import ROLE_NAMES, TEXT_PARTS, image_of
from Middleware.api.requests.responses_tools import ResponsesTools
from Middleware.exceptions import ClientError
from Middleware.models.messages import Message, ToolCall
from Middleware.models.responses import Item, RequestFields
from Middleware.services.response_store import REFERENCE

ROLES = ("user", "assistant", "system", "developer")
# These would change what is answered, so that ignoring them would be wrong.
REFUSED_FIELDS = ("background", "conversation", "prompt")
_PASSED_OVER = frozenset(("reasoning", "compaction"))
_CALL, _OUTPUT = "_call", "_output"
# Calls and outputs without an id are accepted; of other types, only those with one are for the client.
_CLIENT_CALLS = frozenset(("function_call", "custom_tool_call"))
_CLIENT_OUTPUTS = frozenset(f"{kind}{_OUTPUT}" for kind in _CLIENT_CALLS)
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
    if body.get("input") is None and body.get("previous_response_id") is None:
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
    return value


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
    text = _instructions(instructions)
    if text:
        translation.messages.append({"role": "system", "content": text})
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
            and not translation.images
            and (not messages or "tool_calls" not in messages[-1])
        ):
            messages.append({"role": role, "content": content})
        else:
            translation.add(item, f"input[{number}]")
    translation.flush_images()
    return messages


def _instructions(value: object) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    if not isinstance(value, list):
        raise ClientError("The 'instructions' field must be a text.", param="instructions")
    texts = [
        _content(item.get("content"), f"instructions[{number}].content")[0]
        for number, item in enumerate(value)
        if isinstance(item, dict)
    ]
    return "\n".join(text for text in texts if text)


class _Translation:
    """The messages of the items so far."""

    def __init__(self, tools: ResponsesTools) -> None:
        self.messages: list[Message] = []
        self._tools = tools
        # Of outputs. Back-ends demand the results of all calls of a turn directly after it, before any other message.
        self.images: list[str] = []

    def add(self, item: Mapping[str, object], path: str) -> None:
        """Add an item; ``path`` is its JSON path in the request."""
        kind = item.get("type")
        if kind is None and item.get("role"):
            kind = "message"
        if kind == "message":
            self._add_message(item, path)
        # The tools of this type have a role, too.
        elif kind in ("tool_search_output", "additional_tools"):
            self._add_tools(item, path, str(kind))
        elif not isinstance(kind, str) or kind in _PASSED_OVER:
            return
        elif kind in _CLIENT_OUTPUTS or (isinstance(item.get("call_id"), str) and "output" in item):
            text, images = _output(item.get("output"), f"{path}.output")
            self._add_result(item, text)
            self.images += images
        elif kind in _CLIENT_CALLS or isinstance(item.get("call_id"), str):
            self._add_call(item, kind)

    def flush_images(self) -> None:
        """Add the images of the latest outputs as a message of the user, as results of tools can have text only."""
        if self.images:
            self.messages.append({"role": "user", "content": "", "images": self.images})
            self.images = []

    def _add_message(self, item: Mapping[str, object], path: str) -> None:
        role = item.get("role")
        if not isinstance(role, str) or role not in ROLES:
            raise ClientError(f"The 'role' of a message must be one of: {', '.join(ROLES)}.", param=f"{path}.role")
        text, images = _content(item.get("content"), f"{path}.content")
        turn = self._open_turn() if role == "assistant" else None
        # Text that came after calls: results must follow the message with the calls directly.
        if turn is not None and "tool_calls" in turn:
            turn["content"] = "\n".join(part for part in (turn["content"], text) if part)
            return
        self.flush_images()
        message: Message = {"role": ROLE_NAMES.get(role, role), "content": text}
        if images:
            message["images"] = images
        self.messages.append(message)

    def _open_turn(self) -> Message | None:
        """Return the message of the assistant at the end; None if something else is there."""
        last = self.messages[-1] if self.messages and not self.images else None
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
            self.flush_images()
            turn = {"role": "assistant", "content": ""}
            self.messages.append(turn)
        turn.setdefault("tool_calls", []).append(call)

    def _add_result(self, item: Mapping[str, object], text: str) -> None:
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


# -- contents ----------------------------------------------------------------------------------------------------------
def _content(content: object, path: str) -> tuple[str, list[str]]:
    """Return the text and the images of a message's content."""
    if content is None or isinstance(content, str):
        return content or "", []
    if not isinstance(content, list):
        raise ClientError("The 'content' of a message must be a text or a list of parts.", param=path)
    texts: list[str] = []
    images: list[str] = []
    for number, part in enumerate(content):
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict):
            _add_part(part, f"{path}[{number}]", texts, images)
    return "\n".join(texts), images


def _add_part(part: Mapping[str, object], path: str, texts: list[str], images: list[str]) -> None:
    kind = part.get("type")
    if kind in TEXT_PARTS or kind == "summary_text":
        texts.append(str(part.get("text") or ""))
    elif kind == "refusal":
        texts.append(str(part.get("refusal") or ""))
    elif kind == "input_file":
        texts.append(_file(part, path))
    elif kind == "input_audio":
        raise ClientError("WilmerAI does not support 'input_audio'.", param=path)
    elif image := image_of(part):
        images.append(image)
    elif kind == "input_image" and part.get("file_id"):
        raise ClientError("WilmerAI keeps no files: send the image itself as a data URL in 'image_url'.", param=path)


def _file(part: Mapping[str, object], path: str) -> str:
    """Return the name and the text of a file."""
    data, name = part.get("file_data"), part.get("filename")
    text = _text_of(data) if isinstance(data, str) else None
    if text is None:
        raise ClientError(
            "Only text files are supported, as a data URL such as data:text/plain;base64, in 'file_data'.",
            param=path,
            code="unsupported_file",
        )
    return f"[{name}]\n{text}" if isinstance(name, str) and name else text


def _text_of(url: str) -> str | None:
    """Return the text in a data URL; None if it is not of a text type or cannot be read."""
    head, comma, data = url.partition(",")
    if not comma or not head.lower().startswith("data:text/"):
        return None
    if not head.lower().endswith(";base64"):
        return unquote_to_bytes(data).decode("utf-8", "replace")
    try:
        return base64.b64decode(data).decode("utf-8", "replace")
    # The error for wrong padding is a ValueError; so is that for characters beyond ASCII.
    except ValueError:
        return None


def _output(output: object, path: str) -> tuple[str, list[str]]:
    """Return the text and the images of a tool's output: a text, a list of parts, or any other JSON value."""
    if output is None or isinstance(output, str):
        return output or "", []
    if isinstance(output, list) and all(
        isinstance(part, dict) and isinstance(part.get("type"), str) for part in output
    ):
        return _content(output, path)
    return json.dumps(output, ensure_ascii=False), []


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
