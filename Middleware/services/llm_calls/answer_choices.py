"""Answers that are one of a few texts, such as the names of routes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import time
from collections.abc import Mapping

from Middleware.llmapis.handlers.base.base_llm_api_handler import CHOICE_FIELD
from Middleware.models.llm_handler import LlmHandler
from Middleware.models.node_context import NodeContext
from Middleware.models.process import process
from Middleware.services.prompt_categorization_service import match_category
from Middleware.utilities.config.keys.node import NODE
from Middleware.utilities.once import BoundedCache
from Middleware.utilities.streaming_utils import remove_thinking_from_text

logger = logging.getLogger(__name__)

KEY = "answerChoices"
# Long enough to read an answer and to ask for another one, short enough when the model on the server is exchanged.
REMEMBERED_SECONDS = 600.0
# About 150 bytes each.
MAX_REMEMBERED = 1000


def choices_of(context: NodeContext) -> tuple[str, ...]:
    """Return the texts of the node's ``answerChoices``, without dashes of a list, and without repetitions."""
    given = NODE.value(context.config, KEY)
    if not given:
        return ()
    lines = (
        context.substitute(given).splitlines()
        if isinstance(given, str)
        else [context.substitute(item) for item in given]
        if isinstance(given, (list, tuple))
        else []
    )
    texts = (" ".join(line.strip().removeprefix("- ").split()) for line in lines)
    found = tuple(dict.fromkeys(text for text in texts if text))
    if not found:
        logger.warning("Node '%s': '%s' holds no text; the answer is not constrained.", context.node_name, KEY)
    return found


def chosen(answer: object, choices: tuple[str, ...], handler: LlmHandler) -> str | None:
    """Return the choice that a complete answer is, as text, JSON string or field of an object; None for any other."""
    if not isinstance(answer, str):
        return None
    outcome = handler.service.outcome
    # A model whose turn begins inside its thoughts cannot leave them where only the choices are allowed.
    text = remove_thinking_from_text(answer, outcome.endpoint_config).strip() or outcome.reasoning.strip()
    if text in choices:
        return text
    found: object = None
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(text)
        found = found.get(CHOICE_FIELD) if isinstance(found, Mapping) else found
    return found if isinstance(found, str) and found in choices else None


def names_choice(answer: object, choices: tuple[str, ...]) -> bool:
    """Return whether a complete answer has one of the choices in it, alone or in a sentence."""
    return isinstance(answer, str) and match_category(answer, list(choices)) is not None


class ChosenBefore:
    """The positions of the choices in the last answers, by a hash of all that was sent. No text is kept."""

    def __init__(self) -> None:
        self._known: BoundedCache[bytes, tuple[int, float]] = BoundedCache(MAX_REMEMBERED)

    def get(self, key: bytes) -> int | None:
        """Return the position; None if it is unknown or too old."""
        position, known_since = self._known.get(key) or (None, 0.0)
        return None if time.monotonic() - known_since > REMEMBERED_SECONDS else position

    def put(self, key: bytes, position: int) -> None:
        self._known.put(key, (position, time.monotonic()))


def chosen_before() -> ChosenBefore:
    """Return the memory of the process."""
    return process().one(ChosenBefore)


def key_of(
    context: NodeContext, handler: LlmHandler, sent: Mapping[str, object], choices: tuple[str, ...]
) -> bytes | None:
    """Return the hash of a call; None for a node that is to ask each time."""
    if not (NODE.flag(context.config, "rememberChoice") and context.request.outside.remembers):
        return None
    settings = handler.service.settings
    parts = [
        context.api_key_hash,
        context.discussion_id,
        settings.endpoint_name,
        settings.base_url,
        settings.model,
        settings.samplers,
        choices,
        sent,
    ]
    return hashlib.blake2b(json.dumps(parts, default=str).encode(), digest_size=16).digest()
