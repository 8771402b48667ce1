"""Text streams and cleaning as the nodes use them: think removal, cleaning of whole answers, streams of fixed texts.

A stream is an iterator of chunk dicts ``{"token": str, "finish_reason": str | None}``; ``"more": True`` means that the
next chunk follows at once.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator, Mapping, Sequence

from Middleware.exceptions import ConfigurationError
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.messages import Chunk, ToolCall
from Middleware.models.request_context import current_request
from Middleware.utilities import config_utils
from Middleware.utilities.answers.text_cleaner import CleaningRules, ThinkFilter, ThinkRule, clean_text

logger = logging.getLogger(__name__)

# A fixed text appears at the pace of a fast model.
SECONDS_PER_WORD = 0.02
# A long text must not keep the client waiting for more than 5 seconds.
MAX_PACED_WORDS = 250
_WORDS_AND_GAPS = re.compile(r"\s+|\S+")


class StreamingThinkRemover:
    """Removes the reasoning block from a stream of texts, as the endpoint's keys say; the rest stays unchanged."""

    def __init__(self, endpoint_config: Mapping[str, object] | None) -> None:
        rule = ThinkRule.build(endpoint_config or {})
        self._filter = ThinkFilter(rule) if rule else None

    def process_delta(self, delta: str) -> str:
        """Add the next piece and return the text that is certain to stay."""
        return self._filter.feed(delta) if self._filter else delta

    def finalize(self) -> str:
        """Return the rest at the end of the stream; an unterminated block comes back whole."""
        return self._filter.finish() if self._filter else ""


def remove_thinking_from_text(text: str, endpoint_config: Mapping[str, object] | None) -> str:
    """Return the text without its reasoning block, as the endpoint's keys say."""
    remover = StreamingThinkRemover(endpoint_config)
    return remover.process_delta(text) + remover.finalize()


def post_process_llm_output(
    text: str,
    endpoint_config: Mapping[str, object] | None,
    node_config: Mapping[str, object] | None,
    generation_prompt: str | None = None,
) -> str:
    """Clean the whole answer of an LLM; an empty ``endpoint_config`` counts as an endpoint too."""
    rules = CleaningRules.build(
        endpoint_config, node_config, generation_prompt, strip_assistant_prefix_enabled(), has_endpoint=True
    )
    return clean_text(text, rules)


def strip_assistant_prefix_enabled() -> bool:
    """Return whether both assistant options of the user are on, so that a leading ``Assistant:`` is removed."""
    try:
        return config_utils.user_flag("chatCompleteAddUserAssistant") and config_utils.user_flag(
            "chatCompletionAddMissingAssistantGenerator"
        )
    except ConfigurationError as error:
        logger.debug("No user settings for cleaning an answer: %s", error)
        return False


def lowercase_tool_call_names(tool_calls: Sequence[ToolCall]) -> list[ToolCall]:
    """Return copies of OpenAI tool calls or fragments of them with lower-case function names."""
    return [_with_lowercase_name(call) for call in tool_calls]


def _with_lowercase_name(call: ToolCall) -> ToolCall:
    # Back-ends and scripts send calls without a name, and values that are not calls.
    function = call.get("function") if isinstance(call, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if function is None or not isinstance(name, str):
        return call
    return {**call, "function": {**function, "name": name.lower()}}


def stream_static_content(
    text: object, cancel_scope: CancelScope | None = None, at_a_pace: bool = True
) -> Iterator[Chunk]:
    """Stream a fixed text word by word at a human pace: 20 ms per word, the rest at once after 5 s.

    Cancelling ``cancel_scope`` (default: the current request's) ends the text where it is. The last chunk is an empty
    token with finish reason ``stop``. Without ``at_a_pace`` there are no pauses.
    """
    request = current_request()
    scope = cancel_scope or (request.cancel_scope if request else None)
    pieces = _WORDS_AND_GAPS.findall(_as_text(text))
    words = [index for index, piece in enumerate(pieces) if not piece.isspace()]
    # A pause comes before each word but the first.
    paced = set(words[1 : MAX_PACED_WORDS + 1] if at_a_pace else ())
    for index, piece in enumerate(pieces):
        if index in paced:
            _pause(scope)
        if scope and scope.cancelled:
            break
        yield _chunk(piece, more=index + 1 not in paced)
    yield {"token": "", "finish_reason": "stop"}


def stream_text(text: object) -> Iterator[Chunk]:
    """Stream a text in words and gaps without any pace, ending with an empty token with finish reason ``stop``."""
    for match in _WORDS_AND_GAPS.finditer(_as_text(text)):
        yield _chunk(match.group(), more=True)
    yield {"token": "", "finish_reason": "stop"}


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


def _chunk(token: str, more: bool) -> Chunk:
    return {"token": token, "finish_reason": None, "more": True} if more else {"token": token, "finish_reason": None}


def _pause(scope: CancelScope | None) -> None:
    if scope:
        scope.wait(SECONDS_PER_WORD)
    else:
        time.sleep(SECONDS_PER_WORD)
