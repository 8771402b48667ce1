"""Recall: finds messages of a conversation, however old they are."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from Middleware.exceptions import StateUnavailableError
from Middleware.models.messages import Message
from Middleware.models.run_step import reading
from Middleware.services.memory.memory_settings import quiet_memory_settings
from Middleware.utilities import config_utils
from Middleware.utilities.config.declarations import MOST_TOKENS, ConfigKey, number_from
from Middleware.utilities.discussion_state import MESSAGE_INDEX, DiscussionState
from Middleware.utilities.prompt_extraction_utils import (
    block_size,
    filter_systems,
    from_block,
    newest,
    newest_within,
)
from Middleware.workflows.handlers.base.base_workflow_node_handler import BaseHandler
from Middleware.workflows.models.execution_context import ExecutionContext
from Middleware.workflows.tools.discussion_context import state_of

# What searches is imported where a node does it: most servers have none of these nodes.
if TYPE_CHECKING:
    from Middleware.services.memory.recall import Recall, Recalled
    from Middleware.services.memory.remembering import Remembered

logger = logging.getLogger(__name__)

SOURCES = ("messages", "facts")
MOST_NEIGHBOURS = 3


class RecallHandler(BaseHandler):
    """Returns messages of the conversation, and memories, that fit the input best; a result a line. Calls no LLM."""

    acts = "reads"

    KEYS = {
        "Recall": (
            ConfigKey(
                "input",
                "str",
                "{chat_user_prompt_last_one}",
                "What to look for: a sentence, or words or phrases separated by ; or lines.",
                "full",
            ),
            ConfigKey(
                "maxTokens", "int", 600, "How long the output is at most, in tokens.", "full", least=1, most=MOST_TOKENS
            ),
            ConfigKey(
                "sources",
                "list",
                list(SOURCES),
                "Where to look: in the messages of the conversation, and in searchable memories (facts).",
                entries="str",
                choices=SOURCES,
            ),
            ConfigKey(
                "newestShown",
                "int",
                0,
                "So many of the newest messages are in the prompt anyway, and are not returned.",
                "full",
                least=0,
            ),
            ConfigKey(
                "newestShownTokens",
                "int",
                0,
                "The same, as the limit in tokens that the node which answers has for its messages.",
                "full",
                least=0,
                most=MOST_TOKENS,
            ),
            ConfigKey(
                "order",
                "str",
                "best",
                "Whether the best result comes first, or the oldest.",
                choices=("best", "time"),
                caseless=True,
            ),
            ConfigKey(
                "neighbours",
                "int",
                0,
                "How many messages before and after each result are returned with it.",
                least=0,
                most=MOST_NEIGHBOURS,
            ),
            ConfigKey(
                "embeddingEndpointName",
                "str",
                "",
                "Endpoint whose vectors are compared, to find by meaning as well.",
                names="endpoint",
            ),
            ConfigKey(
                "dates", "bool", True, "Each result begins with its date, and 'yesterday' and the like get theirs."
            ),
            ConfigKey("nothing", "str", "", "The output if nothing is found.", "full"),
            ConfigKey(
                "whoSaidIt",
                "str",
                "note",
                "If the input names one speaker, and another one's words fit best: a line that says so (note), "
                "or only a line that nothing was found of that speaker (withhold).",
                choices=("note", "withhold", "off"),
                caseless=True,
            ),
        )
    }

    def handle(self, context: ExecutionContext) -> object:
        state, remembered = state_of(context), cast("Remembered | None", context.request.remembered)
        lines: list[str] = []
        # A front-end's own request only quotes the conversation.
        if state is not None and not context.request.task:
            with reading("messages") as step:
                found = self._found(context, state, remembered)
                lines = found.lines if found is not None else []
                if found is not None:
                    step.attributes.update(found=found.rows, lines=len(found.results), tokens=found.tokens)
                    step.texts["terms"] = "; ".join(found.terms)
        return "\n".join(lines) if lines else self.text(context, "nothing")

    def _found(
        self, context: ExecutionContext, state: DiscussionState, remembered: Remembered | None
    ) -> Recalled | None:
        import sqlite3

        from Middleware.services.memory.chunks import chunks_elsewhere
        from Middleware.services.memory.recall import recall

        scope = context.request.cancel_scope
        try:
            with contextlib.ExitStack() as opened:
                index = opened.enter_context(state.messages(scope=scope))
                search = self._search(context, remembered)
                facts = opened.enter_context(state.memories(scope=scope)) if "facts" in search.sources else None
                if facts is not None:
                    facts.leave_out(chunks_elsewhere(state, facts))
                return recall(index, search, scope, facts)
        # The conversation goes on without what it cannot read.
        except (sqlite3.Error, StateUnavailableError, OSError) as error:
            logger.error("%s cannot be searched: %s", state.display(MESSAGE_INDEX), error)
            return None

    def _search(self, context: ExecutionContext, remembered: Remembered | None) -> Recall:
        from Middleware.services.memory.recall import Recall
        from Middleware.utilities.said_times import calendar_of

        settings = quiet_memory_settings()
        filled = remembered.filled if remembered is not None else None
        endpoint = str(self.value(context, "embeddingEndpointName")).strip()
        if endpoint and remembered is not None and endpoint not in remembered.endpoints:
            remembered.endpoints.append(endpoint)
        return Recall(
            self._input(context, remembered),
            max(1, self._count(context, "maxTokens")),
            [str(source) for source in self.value(context, "sources") or ()],
            str(self.value(context, "order")).lower() != "time",
            min(self.number(context, "neighbours"), MOST_NEIGHBOURS),
            self.value(context, "dates"),
            str(self.value(context, "whoSaidIt")).lower(),
            calendar_of(settings.time_zone),
            remembered.rows_of(self._shown(context, remembered.all)) if remembered is not None else (),
            filled.states if filled is not None else (),
            filled.conversation if filled is not None and settings.other_chats == "hide" else None,
            endpoint,
        )

    def _input(self, context: ExecutionContext, remembered: Remembered | None) -> str:
        """Return what to look for, without the name of the person who asks: it would prefer that person's own words."""
        text = self.text(context, "input")
        if remembered is None:
            return text
        sent, said = remembered.newest()
        return text.replace(sent, said) if sent else text

    def _count(self, context: ExecutionContext, name: str) -> int:
        """Return a number, which may come from a variable."""
        key = self.table(context)[name]
        number = number_from(self.count(context, name), whole=False)
        return int(key.default if number is None else key.within(number))

    def _shown(self, context: ExecutionContext, messages: Sequence[Message]) -> list[Message]:
        """Return the messages that the prompt holds anyway, as the node that answers chooses them; and the question."""
        question = [message for message in messages if message.get("role") == "user"][-1:]
        count, limit = self._count(context, "newestShown"), self._count(context, "newestShownTokens")
        if not count and not limit:
            return question
        chosen = said = filter_systems(messages)
        if limit:
            chosen = newest_within(chosen, limit)
        if count:
            chosen = newest(chosen, count)
        if len(chosen) < len(said):
            # A window that begins at a block holds fewer messages: none may be in neither.
            user_value = config_utils.user_setting("messageBlockSize")
            chosen = from_block(chosen, messages, block_size(context.config, user_value, count or None))
        return [*chosen, *question]
