"""Select the messages that an LLM node sends. The functions are pure: changed messages are copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from Middleware.models.messages import Message, holds_results_images, joined_extra, without_images
from Middleware.utilities.answers.tool_calls import calls_among
from Middleware.utilities.prompt_extraction_utils import (
    extract_last_n_turns,
    extract_last_turns_by_estimated_token_limit,
    leading_systems,
    outside_exchange,
)
from Middleware.utilities.text_utils import estimate_message, message_text

# Estimated tokens of a message in addition to its text.
MESSAGE_OVERHEAD = 8
# What front-ends append as the beginning of an answer.
FILLER = ("", "Assistant:")


def last_messages(messages: Sequence[Message], count: int, token_cap: float | None) -> list[Message]:
    """Return the newest ``count`` messages without leading system messages, as many as fit ``token_cap``."""
    chosen = extract_last_n_turns(messages, count)
    return chosen if token_cap is None else extract_last_turns_by_estimated_token_limit(chosen, token_cap)


def limit_images(messages: Sequence[Message], most: int) -> list[Message]:
    """Return the messages with only the newest ``most`` images; 0 or less keeps all."""
    if most <= 0:
        return list(messages)
    # From the newest message to the oldest, so that the oldest images are left out.
    left, out = most, []
    for index in reversed(range(len(messages))):
        message = messages[index]
        images = message.get("images")
        if images:
            kept = images[-left:] if left else []
            left -= len(kept)
            if not kept and holds_results_images(messages, index):
                continue
            if len(kept) < len(images):
                message = without_images(message)
                if kept:
                    message["images"] = kept
        out.append(message)
    return out[::-1]


def gather_images(messages: Sequence[Message], look_back: int, most: int) -> list[str]:
    """Return the newest ``most`` images (0: all) of the newest ``look_back`` messages, oldest first."""
    images = [
        image
        for message in (messages[-look_back:] if look_back > 0 else ())
        if "images" in message
        for image in message["images"] or ()
    ]
    return images[-most:] if most > 0 else images


def merge_assistant_runs(messages: Sequence[Message], delimiter: str) -> list[Message]:
    """Join the contents of adjacent assistant messages into the first of them."""
    out: list[Message] = []
    for message in messages:
        if out and _is_assistant(message) and _is_assistant(out[-1]):
            extra = joined_extra(out[-1], message)
            out[-1] = {**out[-1], "content": message_text(out[-1]) + delimiter + message_text(message)}
            if extra:
                out[-1]["extra"] = extra
            calls = calls_among(message.get("tool_calls"))
            if calls:
                # Their results follow.
                out[-1]["tool_calls"] = [*calls_among(out[-1].get("tool_calls")), *calls]
        else:
            out.append(message)
    return out


def separate_assistant_runs(messages: Sequence[Message], text: str) -> list[Message]:
    """Put a user message between adjacent assistant messages."""
    out: list[Message] = []
    for message in messages:
        if out and _is_assistant(message) and _is_assistant(out[-1]):
            out.append({"role": "user", "content": text})
        out.append(message)
    return out


def with_user_message(messages: Sequence[Message], history: Sequence[Message]) -> list[Message]:
    """Return the messages; without a user message, add the latest of the history after the system messages."""
    out = list(messages)
    if any(message.get("role") == "user" for message in out):
        return out
    # The chat templates of many models fail without a user message.
    latest = next((message for message in reversed(history) if message.get("role") == "user"), None)
    if latest is not None:
        out.insert(leading_systems(out), latest.copy())
    return out


def places_of_arranged(messages: Sequence[Message], merge: bool) -> list[int]:
    """Return for each message of an arranged list the index in ``messages`` from which it stands there.

    ``merge`` for merge_assistant_runs, else for separate_assistant_runs.
    """
    places: list[int] = []
    for index, message in enumerate(messages):
        follows = index > 0 and _is_assistant(message) and _is_assistant(messages[index - 1])
        # Joined to the message before it; or a message of the user is inserted before it.
        places += [] if follows and merge else [index, index] if follows else [index]
    return places


def fit_budget(
    messages: Sequence[Message], budget: int, added: Mapping[int, int] = MappingProxyType({})
) -> tuple[list[Message], bool]:
    """Return the newest messages within ``budget`` estimated tokens, and whether they fit.

    The newest message is always kept, even alone above the budget, and so is the tool exchange that it ends. An older
    exchange is kept as a whole or not at all. ``added``: tokens that are not in the contents, by index.
    """
    used, start = 0, len(messages)
    for index in range(len(messages) - 1, -1, -1):
        cost = estimate_message(messages[index]) + MESSAGE_OVERHEAD + added.get(index, 0)
        if used + cost > budget and start < len(messages):
            break
        used += cost
        start = index
        if used > budget:
            break
    whole = outside_exchange(messages, start, 1)
    return list(messages[whole:]), used <= budget and whole >= start


def find_tool_exchange(messages: Sequence[Message]) -> tuple[int, int]:
    """Return start and end of the trailing tool exchange (tool calls and their results); (0, 0) without one.

    Empty assistant messages after it are ignored.
    """
    end = len(messages)
    while end and _is_filler(messages[end - 1]):
        end -= 1
    # Images of the results stand behind them.
    last = end - 2 if end and holds_results_images(messages, end - 1) else end - 1
    # Back-ends refuse the results of a call without the call.
    start = outside_exchange(messages, last)
    return (start, end) if start < last else (0, 0)


def _is_assistant(message: Message) -> bool:
    return message.get("role") == "assistant"


def _is_filler(message: Message) -> bool:
    return _is_assistant(message) and not message.get("tool_calls") and message_text(message).strip() in FILLER
