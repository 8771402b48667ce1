"""Convert requests of Anthropic's Messages API to the engine's form.

Source of the form: the API reference of Anthropic, and the types of its packages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from Middleware.api.requests.messages import with_user_options
from Middleware.api.requests.offered_tools import OfferedTools, log_not_offered
from Middleware.exceptions import ClientError
from Middleware.models.messages import Message, ToolCall
from Middleware.utilities.text_utils import did_you_mean

Fields = Mapping[str, object]

ROLES = ("user", "assistant", "system")
CHOICES = ("auto", "any", "tool", "none")
# The types of ``thinking`` with which a client can show the model's reasoning.
THINKING = ("enabled", "adaptive", "between_tools")
# Claude Code begins its system prompt with a block that contains a checksum of the conversation. It changes with each
# request, so that no back-end could use its prompt cache.
BILLING = "x-anthropic-billing-header:"
# A tool's own text usually says that it failed. This far into it, the word is looked for.
ERROR_WITHIN = 40
# Fields that change what is answered, so that ignoring them would be wrong.
NOT_OFFERED = ("container", "mcp_servers")
# A role, a type or a MIME type.
_WORD = re.compile(r"[\w./-]{1,60}")


@dataclass(frozen=True, slots=True)
class MessagesRequest:
    """A request in the engine's form.

    Attributes:
        tool_choice: in OpenAI's form; None without one.
        thinking: the client wants the model's reasoning.
        thinking_omitted: the client wants to know only that there was reasoning, not its text.
    """

    messages: list[Message]
    tools: OfferedTools
    tool_choice: object
    thinking: bool
    thinking_omitted: bool


def read_request(body: Fields) -> MessagesRequest:
    """Return the request in the body.

    Raises:
        ClientError: something in it is wrong or not offered; the message begins with its place.
    """
    _refuse_not_offered(body)
    loaded: set[str] = set()
    messages = [*_system(body.get("system")), *_turns(body, loaded)]
    thinking = body.get("thinking")
    thinking = thinking if isinstance(thinking, Mapping) else {}
    tools, choice = _tools(body, loaded)
    return MessagesRequest(
        with_user_options(messages),
        tools,
        choice,
        thinking.get("type") in THINKING,
        thinking.get("display") == "omitted",
    )


def _refuse_not_offered(body: Fields) -> None:
    if body.get("thread") is not None:
        # The tool runners of Anthropic's packages send only new messages in a thread. After this error, they send all.
        raise ClientError(
            "thread: WilmerAI keeps no threads; send the whole conversation in 'messages'.",
            details={"error_code": "thread_unsupported_request", "unsupported": ["thread"]},
        )
    for name in NOT_OFFERED:
        if body.get(name):
            raise ClientError(f"{name}: not offered here; leave it out.")


# -- messages ----------------------------------------------------------------------------------------------------------
def _system(system: object) -> list[Message]:
    """Return the first system message, if the request has one."""
    texts = []
    for path, block in _blocks(system, "system"):
        if block.get("type") != "text":
            raise ClientError(f"{path}: expected a text block, found {_shown(block.get('type'))}.")
        text = _text(block, "text", path)
        if text and not text.startswith(BILLING):
            texts.append(text)
    return [{"role": "system", "content": "\n\n".join(texts)}] if texts else []


def _turns(body: Fields, loaded: set[str]) -> list[Message]:
    """Return the messages of all turns. The names of the tools that results refer to are added to ``loaded``."""
    turns = body.get("messages")
    if turns is None:
        raise ClientError("messages: this field is required.")
    if not isinstance(turns, list):
        raise ClientError(f"messages: expected a list of objects, found {_kind(turns)}.")
    messages: list[Message] = []
    for number, turn in enumerate(turns):
        if not isinstance(turn, dict):
            raise ClientError(f"messages.{number}: expected an object, found {_kind(turn)}.")
        role, content = turn.get("role"), turn.get("content")
        if role not in ROLES:
            raise ClientError(f"messages.{number}.role: expected {_alternatives(ROLES)}, found {_shown(role)}.")
        # By far the most turns of a long chat are of this form.
        if isinstance(content, str):
            messages.append({"role": role, "content": content})
        else:
            messages += _Turn(role, loaded).read(content, f"messages.{number}.content")
    return _with_question_last(messages)


def _with_question_last(messages: list[Message]) -> list[Message]:
    """Return the messages with system turns at their end in front of the user's turn that they stand behind.

    Claude Code describes its environment there in its first request. Nodes and routing take the last message for the
    question of the user.
    """
    end = len(messages)
    while end and messages[end - 1]["role"] == "system":
        end -= 1
    if not end or messages[end - 1]["role"] != "user":
        return messages
    return [*messages[: end - 1], *messages[end:], messages[end - 1]]


@dataclass
class _Parts:
    """The texts and images in blocks."""

    texts: list[str] = field(default_factory=list)
    images: list[str] = field(default_factory=list)

    def add(self, block: Fields, path: str) -> None:
        """Add a block that contains a text or images. A block of any other type is passed over."""
        match block.get("type"):
            case "text":
                self.texts.append(_text(block, "text", path))
            case "image":
                self.images.append(_image(block, path))
            case "document":
                self._add_document(block, path)
            case "search_result":
                lines = [_text(block, "title", path), _text(block, "source", path)]
                lines += _parts(block.get("content"), f"{path}.content").texts
                self.texts.append("\n".join(line for line in lines if line))

    def _add_document(self, block: Fields, path: str) -> None:
        source = _source(block, path)
        kind, title = source.get("type"), _text(block, "title", path)
        if kind == "text":
            texts = [_text(source, "data", f"{path}.source")]
        elif kind == "content":
            parts = _parts(source.get("content"), f"{path}.source.content")
            texts = parts.texts
            self.images += parts.images
        else:
            given = f"{_shown(kind)} of {_shown(source.get('media_type'))}" if kind == "base64" else _shown(kind)
            raise ClientError(
                f"{path}.source: documents of the type {given} cannot be read here. "
                "Expected: text, or content with texts and images."
            )
        self.texts.append("\n".join([f"[{title}]", *texts] if title else texts))

    @property
    def text(self) -> str:
        return "\n".join(self.texts)


def _parts(content: object, path: str) -> _Parts:
    parts = _Parts()
    for place, block in _blocks(content, path):
        parts.add(block, place)
    return parts


class _Turn(_Parts):
    """One turn of a conversation, which may become several messages: results of tools, and what the user adds."""

    def __init__(self, role: str, loaded: set[str]) -> None:
        super().__init__()
        self._role, self._loaded = role, loaded
        self._calls: list[ToolCall] = []
        self._results: list[Message] = []
        self._images_of_results: list[str] = []

    def read(self, content: object, path: str) -> list[Message]:
        for place, block in _blocks(content, path):
            match block.get("type"):
                case "tool_use":
                    self._require("assistant", place)
                    self._calls.append(_call(block, place))
                case "tool_result":
                    self._require("user", place)
                    self._add_result(block, place)
                case _:
                    self.add(block, place)
        return self._messages()

    def _require(self, role: str, path: str) -> None:
        if self._role != role:
            raise ClientError(f"{path}: such a block belongs into a turn of the role '{role}', not '{self._role}'.")

    def _add_result(self, block: Fields, path: str) -> None:
        parts = _Parts()
        for place, inner in _blocks(block.get("content"), f"{path}.content"):
            if inner.get("type") == "tool_reference":
                name = _name(inner, "tool_name", place)
                self._loaded.add(name)
                parts.texts.append(f"The tool {name} is loaded and can be called now.")
            else:
                parts.add(inner, place)
        text = parts.text
        if block.get("is_error") is True and "error" not in text[:ERROR_WITHIN].lower():
            text = f"Error: {text}"
        self._results.append({"role": "tool", "content": text, "tool_call_id": _name(block, "tool_use_id", path)})
        self._images_of_results += parts.images

    def _messages(self) -> list[Message]:
        """Return the results first, because back-ends require them directly behind the calls."""
        images = self.images + self._images_of_results
        if self._results and not self.text and not images:
            return self._results
        message: Message = {"role": self._role, "content": self.text}
        if images:
            message["images"] = images
        if self._calls:
            message["tool_calls"] = self._calls
        return [*self._results, message]


# -- blocks ------------------------------------------------------------------------------------------------------------
def _blocks(content: object, path: str) -> Iterator[tuple[str, Fields]]:
    """Yield the blocks of a content, each with its place; a text is one block, null has no blocks."""
    if content is None:
        return
    if isinstance(content, str):
        yield path, {"type": "text", "text": content}
        return
    if not isinstance(content, list):
        raise ClientError(f"{path}: expected a text or a list of blocks, found {_kind(content)}.")
    for number, block in enumerate(content):
        if isinstance(block, str):
            block = {"type": "text", "text": block}
        if not isinstance(block, dict):
            raise ClientError(f"{path}.{number}: expected an object, found {_kind(block)}.")
        yield f"{path}.{number}", block


def _call(block: Fields, path: str) -> ToolCall:
    given = block.get("input")
    try:
        arguments = json.dumps({} if given is None else given, ensure_ascii=False)
    except RecursionError:
        raise ClientError(f"{path}.input: nested too deeply.") from None
    return {
        "id": _name(block, "id", path),
        "type": "function",
        "function": {"name": _name(block, "name", path), "arguments": arguments},
    }


def _source(block: Fields, path: str) -> Fields:
    source = block.get("source")
    if not isinstance(source, Mapping):
        raise ClientError(f"{path}.source: expected an object, found {_kind(source)}.")
    return source


def _image(block: Fields, path: str) -> str:
    """Return an image as a data URL or as the address that the client has sent."""
    source = _source(block, path)
    if source.get("type") == "base64" and (data := _text(source, "data", f"{path}.source")):
        return f"data:{source.get('media_type') or 'image/png'};base64,{data}"
    if source.get("type") == "url" and (url := _text(source, "url", f"{path}.source")):
        return url
    raise ClientError(
        f"{path}.source: expected base64 with 'data', or url with 'url', found {_shown(source.get('type'))}."
    )


def _text(fields: Fields, key: str, path: str) -> str:
    """Return a text of a block; "" for null or none."""
    value = fields.get(key)
    if value is not None and not isinstance(value, str):
        raise ClientError(f"{path}.{key}: expected a text, found {_kind(value)}.")
    return value or ""


def _name(fields: Fields, key: str, path: str) -> str:
    """Return a text that must be there."""
    if not (name := _text(fields, key, path)):
        raise ClientError(f"{path}.{key}: expected a text that is not empty.")
    return name


# -- tools -------------------------------------------------------------------------------------------------------------
def _tools(body: Fields, loaded: set[str]) -> tuple[OfferedTools, object]:
    """Return the tools that the LLM is offered, and the choice among them in OpenAI's form.

    ``loaded``: the names of tools with ``defer_loading`` that the client's own search has found in this conversation.
    """
    kind, name = _choice(body.get("tool_choice"))
    offered = OfferedTools()
    for tool in _functions(body.get("tools")):
        own = str(tool["name"])
        if kind != "none" and (tool.get("defer_loading") is not True or own in loaded or own == name):
            schema = tool["input_schema"]
            description = tool.get("description")
            offered.add(
                own,
                description if isinstance(description, str) else None,
                schema if isinstance(schema, Mapping) else None,
            )
    if kind == "tool":
        return offered, offered.choice(name, "tool_choice.name")
    if kind == "any" and not offered:
        raise ClientError("tool_choice: 'any' needs a tool that the LLM can call, and the request offers none.")
    # Back-ends refuse a choice among no tools.
    return offered, {"any": "required", "auto": "auto"}.get(kind) if offered else None


def _choice(choice: object) -> tuple[str, str]:
    """Return the type of ``tool_choice``, and the tool that it names, each "" without one."""
    if choice is None:
        return "", ""
    kind = choice.get("type") if isinstance(choice, Mapping) else None
    if not isinstance(choice, Mapping) or kind not in CHOICES:
        hint = did_you_mean(kind, CHOICES) if isinstance(kind, str) else ""
        raise ClientError(f"tool_choice.type: expected {_alternatives(CHOICES)}, found {_shown(kind)}.{hint}")
    return str(kind), _name(choice, "name", "tool_choice") if kind == "tool" else ""


def _functions(tools: object) -> Iterator[Fields]:
    """Yield the tools that the client runs itself. The others are those of Anthropic's own servers and models."""
    if tools is None:
        return
    if not isinstance(tools, list):
        raise ClientError(f"tools: expected a list of objects, found {_kind(tools)}.")
    left_out = []
    for number, tool in enumerate(tools):
        if not isinstance(tool, dict):
            raise ClientError(f"tools.{number}: expected an object, found {_kind(tool)}.")
        if tool.get("input_schema") is None:
            left_out.append(str(tool.get("type") or tool.get("name")))
            continue
        if not isinstance(tool["input_schema"], dict):
            raise ClientError(f"tools.{number}.input_schema: expected an object, found {_kind(tool['input_schema'])}.")
        _name(tool, "name", f"tools.{number}")
        yield tool
    log_not_offered(left_out)


def _alternatives(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names[:-1]) + f" or '{names[-1]}'"


def _shown(value: object) -> str:
    """Return a word from the request for an error. Anything else than a word could be a text of the conversation."""
    return f"'{value}'" if isinstance(value, str) and _WORD.fullmatch(value) else _kind(value)


def _kind(value: object) -> str:
    """Return what kind of JSON value the request has, without any text of the conversation."""
    kinds = {bool: "true or false", int: "a number", float: "a number", str: "a text", list: "a list"}
    return "nothing" if value is None else kinds.get(type(value), "an object")
