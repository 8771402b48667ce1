"""LLM calls with prompts from a settings file, whose answers become part of a conversation's stored data."""
from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from functools import cached_property

from Middleware.exceptions import ConfigValueError, WilmerError
from Middleware.llmapis.backend_errors import log_text, public_text
from Middleware.models.llm_handler import LlmHandler
from Middleware.services.llm_calls.direct_calls import raise_if_cancelled, text_to_keep
from Middleware.services.llm_service import LlmHandlerService
from Middleware.utilities.sensitive_logging_utils import is_encryption_active
from Middleware.workflows.models.execution_context import ExecutionContext
from Middleware.workflows.tools.block_prompts import BlockPrompts, without_later_systems
from Middleware.workflows.tools.discussion_context import raw_messages

logger = logging.getLogger(__name__)


class MemoryCall:
    """Calls of one endpoint, named literally in the settings.

    Args:
        settings: the settings file; its keys apply as those of a node would, such as how variables see the
        conversation.
        max_tokens: the longest answer.
    """

    def __init__(self, context: ExecutionContext, settings: Mapping[str, object], endpoint: str, preset: str,
                 max_tokens: int) -> None:
        messages = without_later_systems(raw_messages(context))
        self._context = dataclasses.replace(context, config=dict(settings), messages=messages)
        self._settings = settings
        self._endpoint, self._preset, self._max_tokens = endpoint, preset, max_tokens

    @cached_property
    def _handler(self) -> LlmHandler:
        if not self._endpoint:
            raise ConfigValueError("the settings name no endpoint that could answer", json_path="endpointName")
        return LlmHandlerService().load_model_from_config(
            self._endpoint, self._preset or None, max_tokens=self._max_tokens,
            scope=self._context.request.cancel_scope)

    def ask(self, system_prompt: str, prompt: str, markers: Mapping[str, str]) -> str:
        """Return the cleaned answer to two templates: their variables are filled in first, then the markers.

        The answer is "" if the model's reasoning was cut off.
        Raises BackendError, ConfigurationError, and EarlyTerminationException if the request is cancelled.
        """
        raise_if_cancelled(self._context.request.cancel_scope)
        answer = BlockPrompts(system_prompt, prompt, self._settings, self._context).send(self._handler, markers)
        raise_if_cancelled(self._context.request.cancel_scope)
        return text_to_keep(answer, self._handler)


def failure_reason(error: Exception) -> str:
    """Return why a call failed, without any conversation text: only the kind of an error of another package.

    Unless the request is private, such an error is logged in full at DEBUG.
    """
    if isinstance(error, WilmerError):
        return log_text(error)
    if not is_encryption_active():
        logger.debug("A failure while memories were made", exc_info=error)
    return public_text(error)
