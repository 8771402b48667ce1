"""The selection of messages of a conversation and their conversion to text. No function changes its input.

Roles are compared exactly: ``systemMes`` is not ``system``. Lists are in the order of the conversation.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from Middleware.models.messages import FunctionCall, Message, ToolCall, VisionNote
from Middleware.utilities.answers.tool_calls import calls_among
from Middleware.utilities.config.declarations import SWITCHED_ON, as_flag, number_from
from Middleware.utilities.config.keys.endpoint import ENDPOINT
from Middleware.utilities.config.keys.node import NODE
from Middleware.utilities.discussions.discussion_id import extract_discussion_id, remove_discussion_id_tag
from Middleware.utilities.text_utils import estimate_message, estimation_level_multiplier, message_text

logger = logging.getLogger(__name__)


ROLE_TAGS = {"user": "User: ", "assistant": "Assistant: ", "system": "System: ", "tool": "Tool Result: "}
# In tokens: estimates count the contents of messages, and not the template around them.
RESERVED_TOKENS = 512
# The arguments of a tool call may be a whole file.
_SUMMARY_LENGTH = 200
_CLAMP, _WINDOW = map(ENDPOINT.lookup, ("clampPromptToContextWindow", "maxContextTokenSize"))
_BLOCK_SIZE = NODE.lookup("messageBlockSize")


# --- selection ---


def filter_systems(
    messages: Sequence[Message], include_sysmes: bool = True, remove_all_systems_override: bool = False
) -> list[Message]:
    """Drop the leading run of ``system`` messages (if all are, keep all), or every one of them."""
    if remove_all_systems_override or not include_sysmes:
        return [message for message in messages if message.get("role") != "system"]
    start = leading_systems(messages)
    return list(messages) if start == len(messages) else list(messages[start:])


def extract_last_n_turns(
    messages: Sequence[Message], n: int, include_sysmes: bool = True, remove_all_systems_override: bool = False
) -> list[Message]:
    """Return the newest ``n`` messages after the system filter; none for ``n`` of 0 or less."""
    return newest(filter_systems(messages, include_sysmes, remove_all_systems_override), n)


def extract_last_turns_by_estimated_token_limit(
    messages: Sequence[Message], limit: float, include_sysmes: bool = True, remove_all_systems_override: bool = False
) -> list[Message]:
    """Return the newest messages whose estimates sum to at most ``limit``; the newest one always."""
    return newest_within(filter_systems(messages, include_sysmes, remove_all_systems_override), limit)


def extract_last_turns_with_min_messages_and_token_limit(
    messages: Sequence[Message],
    min_messages: int,
    limit: float,
    include_sysmes: bool = True,
    remove_all_systems_override: bool = False,
    budget_overrides_min: bool = False,
) -> list[Message]:
    """Return the newest ``min_messages`` whatever their size, then older ones while the sum stays within ``limit``.

    With ``budget_overrides_min`` the floor yields to the limit as well, except for the newest message.
    """
    floor = 1 if budget_overrides_min else min_messages
    return newest_within(filter_systems(messages, include_sysmes, remove_all_systems_override), limit, floor)


def newest(messages: Sequence[Message], n: int, as_text: bool = False) -> list[Message]:
    """Return the newest ``n`` messages, and more if the first of them would be the result of a tool call.

    ``as_text``: exactly ``n``, because they become a text, of which no server refuses a part.
    """
    start = max(len(messages) - n, 0)
    return list(messages[start if as_text else outside_exchange(messages, start) :]) if n > 0 else []


def newest_within(messages: Sequence[Message], limit: float, floor: int = 1, as_text: bool = False) -> list[Message]:
    """Return the newest messages that fit ``limit`` estimated tokens together, but at least ``floor``.

    A tool exchange that does not fit as a whole is left out, unless it belongs to the ``floor``, or with ``as_text``.
    """
    used, start = 0, len(messages)
    for index in range(len(messages) - 1, -1, -1):
        used += estimate_message(messages[index])
        if used > limit and len(messages) - index > max(floor, 1):
            break
        start = index
    return list(messages[start if as_text else outside_exchange(messages, start, max(floor, 1)) :])


def outside_exchange(messages: Sequence[Message], index: int, least: int | None = None) -> int:
    """Return where a conversation can be cut instead of before ``index``: never between a tool call and its results.

    That is before the message with the calls. With ``least`` there is no room for it, and the cut is behind the
    results, if at least so many messages are left there. A result whose call the client does not send is not a reason.
    """
    if not 0 < index < len(messages) or messages[index].get("role") != "tool":
        return index
    start = index - 1
    while start and messages[start].get("role") == "tool":
        start -= 1
    if messages[start].get("role") != "assistant" or not calls_among(messages[start].get("tool_calls")):
        return index
    if least is not None:
        # The last element is for a conversation that ends with results.
        end = next((at for at in range(index, len(messages)) if messages[at].get("role") != "tool"), len(messages))
        if len(messages) - end >= least:
            return end
    return start


def block_size(node: Mapping[str, object], user_value: object, count: int | None = None) -> int:
    """Resolve ``messageBlockSize`` (node, then ``user_value``; the first that is a number); 1 has no effect.

    ``count``: the most messages that the window holds, if that is fixed.
    """
    own = number_from(node.get(*_BLOCK_SIZE), whole=True)
    size = number_from(user_value, whole=True) if own is None else own
    # A size for all nodes is not meant for the last three messages, of which it would often leave one; and a window
    # that is shorter than a block moves all the same.
    if size is None or (own is None and count is not None and count <= size):
        return 1
    return max(int(size), 1)


def from_block(
    window: Sequence[Message], conversation: Sequence[Message], size: int, least: int = 1, without_systems: bool = False
) -> list[Message]:
    """Return the window from its first message whose number is a multiple of ``size``.

    The window is the newest part of ``conversation``, of which ``without_systems`` has left out every system message.
    Numbers count from 0 at the first message that is not ``system``, so that a window begins at the same message until
    a whole block has to go, and a server finds the beginning of the prompt in its cache. A block that begins between a
    tool call and its results begins with the call. The window is returned as it is if fewer than ``least`` messages
    would be left.
    """
    if size > 1 and window:
        numbers = _client_numbers(conversation, without_systems)[-len(window) :]
        # A window that is shorter than that already is not cut at all.
        allowed = numbers[: max(len(window) - max(least, 1) + 1, 0)]
        start = next((index for index, number in enumerate(allowed) if number % size == 0), 0)
        return list(window[outside_exchange(window, start) :])
    return list(window)


def _client_numbers(messages: Sequence[Message], without_systems: bool) -> Sequence[int]:
    """Return the numbers that a client would give to its messages; a note of the engine has none and gets -1."""
    first = leading_systems(messages)
    if not without_systems and VisionNote not in set(map(type, messages)):
        # The ordinary case, which must not cost a loop over thousands of messages.
        return range(len(messages) - first)
    number, numbers = 0, []
    for message in messages[first:]:
        # Notes come and go with the images that they describe, and must not move the blocks.
        if isinstance(message, VisionNote):
            numbers.append(-1)
            continue
        if not (without_systems and message.get("role") == "system"):
            numbers.append(number)
        number += 1
    return numbers


def separate_messages(messages: Sequence[Message], separate_sysmes: bool = False) -> tuple[str, list[Message]]:
    """Return the system contents joined by one space, and the rest; with the flag only the leading ones.

    Raises ValueError for a message without role or content.
    """
    for message in messages:
        if "role" not in message or "content" not in message:
            raise ValueError("A message needs a role and a content")
    if separate_sysmes:
        start = leading_systems(messages)
        return " ".join(map(message_text, messages[:start])), list(messages[start:])
    systems = [message_text(message) for message in messages if message["role"] == "system"]
    return " ".join(systems), filter_systems(messages, remove_all_systems_override=True)


def system_text(messages: Sequence[Message], leading_only: bool) -> str:
    """Return the contents of the leading (or of all) ``system`` messages, joined by one space."""
    chosen = messages[: leading_systems(messages)] if leading_only else messages
    return " ".join(message_text(message) for message in chosen if message.get("role") == "system")


def leading_systems(messages: Sequence[Message]) -> int:
    """Return the number of ``system`` messages at the beginning."""
    return next((index for index, message in enumerate(messages) if message.get("role") != "system"), len(messages))


# --- text ---


def join_contents(messages: Iterable[Message], separator: str = "\n", add_role_tags: bool = False) -> str:
    """Return the contents with ``separator`` between them, each led by the name of its role if asked for."""
    if not add_role_tags:
        return separator.join(map(message_text, messages))
    return separator.join(ROLE_TAGS.get(str(message.get("role")), "") + message_text(message) for message in messages)


def extract_last_n_turns_as_string(
    messages: Sequence[Message],
    n: int,
    include_sysmes: bool = True,
    remove_all_systems_override: bool = False,
    separator: str = "\n",
    add_role_tags: bool = False,
) -> str:
    chosen = extract_last_n_turns(messages, n, include_sysmes, remove_all_systems_override)
    return join_contents(chosen, separator, add_role_tags)


def extract_last_turns_by_estimated_token_limit_as_string(
    messages: Sequence[Message],
    limit: float,
    include_sysmes: bool = True,
    remove_all_systems_override: bool = False,
    separator: str = "\n",
    add_role_tags: bool = False,
) -> str:
    chosen = extract_last_turns_by_estimated_token_limit(messages, limit, include_sysmes, remove_all_systems_override)
    return join_contents(chosen, separator, add_role_tags)


def extract_last_turns_with_min_messages_and_token_limit_as_string(
    messages: Sequence[Message],
    min_messages: int,
    limit: float,
    include_sysmes: bool = True,
    remove_all_systems_override: bool = False,
    budget_overrides_min: bool = False,
    separator: str = "\n",
    add_role_tags: bool = False,
) -> str:
    chosen = extract_last_turns_with_min_messages_and_token_limit(
        messages, min_messages, limit, include_sysmes, remove_all_systems_override, budget_overrides_min
    )
    return join_contents(chosen, separator, add_role_tags)


def with_visible_tool_calls(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with tool calls and tool results written out in their contents; changed ones are copies."""
    labels: dict[str, str] = {}
    result: list[Message] = []
    for message in messages:
        calls = calls_among(message.get("tool_calls"))
        if message.get("role") == "assistant" and calls:
            labels.update((str(call.get("id")), _label(call)) for call in calls)
            text = message_text(message)
            lines = [text] if text else []
            result.append({**message, "content": "\n".join([*lines, tool_call_summary(calls)])})
        elif message.get("role") == "tool":
            label = labels.get(str(message.get("tool_call_id"))) or message.get("name") or "unknown_tool"
            result.append({**message, "content": f"[Tool Result: {label}] {message_text(message)}"})
        else:
            result.append(message)
    return result


def tool_call_summary(calls: Iterable[ToolCall]) -> str:
    """Return one line per call: ``[Tool Call: NAME] SUMMARY``."""
    return "\n".join(f"[Tool Call: {_function(call).get('name')}] {_arguments_summary(call)}" for call in calls)


def _label(call: ToolCall) -> str:
    return f"{_function(call).get('name')} {_arguments_summary(call)}".rstrip()


def _function(call: ToolCall) -> FunctionCall:
    function = call.get("function")
    return function if isinstance(function, Mapping) else {}


def _arguments_summary(call: ToolCall) -> str:
    raw = _function(call).get("arguments")
    arguments: object = raw
    if isinstance(raw, str):
        try:
            arguments = json.loads(raw)
        except ValueError:
            arguments = None
    elif raw is not None:
        raw = json.dumps(raw, ensure_ascii=False)
    # The first string is usually the one that matters, such as a path or a query.
    if isinstance(arguments, Mapping):
        first = next((value for value in arguments.values() if isinstance(value, str)), None)
        if first is not None:
            return first[:_SUMMARY_LENGTH]
    return (raw or "")[:_SUMMARY_LENGTH]


# --- context window ---


@dataclass(frozen=True)
class ContextClamp:
    """The part of a context window that a conversation may fill.

    Attributes:
        budget: estimated tokens that the conversation may take, None without a limit. May be zero or less.
        multiplier: factor of the endpoint's estimation level for other token limits; 1.0 while the clamp is off.
    """

    budget: int | None = None
    multiplier: float = 1.0

    def limit(self, tokens: int) -> int:
        """Return a configured token limit, scaled by the level and capped by the budget."""
        scaled = int(tokens * self.multiplier)
        return scaled if self.budget is None else min(scaled, self.budget)


def context_clamp(
    node: Mapping[str, object], endpoint: Mapping[str, object], user_flag: object, response_tokens: object
) -> ContextClamp:
    """Resolve ``clampPromptToContextWindow`` (node, endpoint, then ``user_flag``; the first that is not null)."""
    flags = (flag for flag in (node.get(*_CLAMP), endpoint.get(*_CLAMP), user_flag) if flag is not None)
    window = _number(endpoint.get(*_WINDOW))
    if not as_flag(next(flags, False), SWITCHED_ON) or window <= 0:
        return ContextClamp()
    response = max(_number(response_tokens), 0)
    multiplier = estimation_level_multiplier(ENDPOINT.value(endpoint, "wilmerContextEstimationLevel"))
    return ContextClamp(int((window - response) * multiplier) - RESERVED_TOKENS, multiplier)


def _number(value: object) -> float:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else 0
