"""Convert requests of Anthropic's Messages API to the engine's form.

Source of the form: the API reference of Anthropic, and the types of its packages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from Middleware.api.requests.content import (
    ContentReader,
    Fields,
    alternatives,
    has_stray_images,
    kind_of,
    shown,
    with_images_moved,
)
from Middleware.api.requests.messages import with_user_options
from Middleware.api.requests.offered_tools import OfferedTools, log_not_offered
from Middleware.exceptions import ClientError
from Middleware.models.messages import Message, add_times
from Middleware.utilities.text_utils import did_you_mean

ROLES = ("user", "assistant", "system")
CHOICES = ("auto", "any", "tool", "none")
# The types of ``thinking`` with which a client can show the model's reasoning.
THINKING = ("enabled", "adaptive", "between_tools")
# Claude Code begins its system prompt with a block that contains a checksum of the conversation. It changes with each
# request, so that no back-end could use its prompt cache.
BILLING = "x-anthropic-billing-header:"
# Fields that change what is answered, so that ignoring them would be wrong.
NOT_OFFERED = ("container", "mcp_servers")
_READER = ContentReader(dotted=True, lenient=True)


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
    if has_stray_images(messages):
        messages = with_images_moved(messages)
    messages = _with_question_last(messages)
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
    content = _READER.read(system, "system", "system")
    texts = [text for text in content.texts if text and not text.startswith(BILLING)]
    content.texts = ["\n\n".join(texts)]
    return content.messages("system") if texts or content.images else []


def _turns(body: Fields, loaded: set[str]) -> list[Message]:
    """Return the messages of all turns. The names of the tools that results refer to are added to ``loaded``."""
    turns = body.get("messages")
    if turns is None:
        raise ClientError("messages: this field is required.")
    if not isinstance(turns, list):
        raise ClientError(f"messages: expected a list of objects, found {kind_of(turns)}.")
    messages: list[Message] = []
    for number, turn in enumerate(turns):
        if not isinstance(turn, dict):
            raise ClientError(f"messages.{number}: expected an object, found {kind_of(turn)}.")
        role, content = turn.get("role"), turn.get("content")
        if role not in ROLES:
            raise ClientError(f"messages.{number}.role: expected {alternatives(ROLES)}, found {shown(role)}.")
        # By far the most turns of a long chat are of this form.
        if isinstance(content, str):
            messages.append({"role": role, "content": content})
        else:
            read = _READER.read(content, f"messages[{number}].content", role)
            loaded.update(read.loaded)
            messages += read.messages(role)
        if len(turn) > 2:
            add_times(messages[-1], turn)
    return messages


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
        raise ClientError(f"tool_choice.type: expected {alternatives(CHOICES)}, found {shown(kind)}.{hint}")
    return str(kind), _READER.name(choice, "name", "tool_choice") if kind == "tool" else ""


def _functions(tools: object) -> Iterator[Fields]:
    """Yield the tools that the client runs itself. The others are those of Anthropic's own servers and models."""
    if tools is None:
        return
    if not isinstance(tools, list):
        raise ClientError(f"tools: expected a list of objects, found {kind_of(tools)}.")
    left_out = []
    for number, tool in enumerate(tools):
        if not isinstance(tool, dict):
            raise ClientError(f"tools.{number}: expected an object, found {kind_of(tool)}.")
        if tool.get("input_schema") is None:
            left_out.append(str(tool.get("type") or tool.get("name")))
            continue
        if not isinstance(tool["input_schema"], dict):
            raise ClientError(
                f"tools.{number}.input_schema: expected an object, found {kind_of(tool['input_schema'])}."
            )
        _READER.name(tool, "name", f"tools.{number}")
        yield tool
    log_not_offered(left_out)
