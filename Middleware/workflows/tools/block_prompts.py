"""Prompts with square-bracket markers, which stand for a block of text and for memories."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from Middleware.models.llm_handler import LlmHandler
from Middleware.models.messages import Message
from Middleware.services.llm_calls.direct_calls import answer_text, call_with_texts
from Middleware.services.llm_calls.prompt_parts import PromptParts
from Middleware.utilities.discussions.discussion_id import remove_discussion_id_tag
from Middleware.utilities.prompt_extraction_utils import filter_systems
from Middleware.utilities.text_utils import restore_braces
from Middleware.workflows.models.execution_context import ExecutionContext

TEXT_CHUNK = "[TextChunk]"
MEMORY_FILE = "[Memory_file]"
FULL_MEMORY_FILE = "[Full_Memory_file]"
CHAT_SUMMARY = "[Chat_Summary]"


@dataclass(frozen=True)
class BlockPrompts:
    """The two prompts of a call as written in a node, and the node, whose other keys add late texts and example turns
    and control how the answer is cleaned.

    ``context`` fills in variables; without it they stay as written.
    """

    system_prompt: str
    prompt: str
    node: Mapping[str, object]
    context: ExecutionContext | None = None

    def __post_init__(self) -> None:
        if self.context is not None and self.context.clock is None:
            # All calls of the node state the same time.
            self.context.clock = datetime.now()

    def send(self, handler: LlmHandler, markers: Mapping[str, str]) -> str:
        """Return the cleaned answer of one call; "" for a cancelled one. Raises BackendError and ConfigurationError."""

        def fill(text: str) -> str:
            return _without_tags(fill_markers(self._resolved(text, handler), markers))

        request_id = self.context.request_id if self.context is not None else None
        result = call_with_texts(
            handler, fill(self.system_prompt), fill(self.prompt), request_id, PromptParts.of(self.node, fill)
        )
        return answer_text(result, handler, self.node)

    def _resolved(self, text: str, handler: LlmHandler) -> str:
        if self.context is None:
            return restore_braces(text)
        messages = self.context.messages or []
        if handler.takes_message_collection:
            messages = without_later_systems(messages)
        return replace(self.context, llm_handler=handler, messages=messages).substitute(text)


def fill_markers(text: str, markers: Mapping[str, str]) -> str:
    """Replace every marker in one pass, so that a marker inside an inserted text stays as it is."""
    pattern = "|".join(map(re.escape, markers))
    return re.sub(pattern, lambda found: markers[found.group()], text) if pattern else text


def without_later_systems(messages: list[Message]) -> list[Message]:
    """Return the messages so that no slice shows a system message: slices already leave out those at the start."""
    start = len(messages) - len(filter_systems(messages))
    return messages[:start] + filter_systems(messages[start:], remove_all_systems_override=True)


def _without_tags(text: str) -> str:
    message: Message = {"role": "user", "content": text}
    remove_discussion_id_tag([message])
    return message["content"]
