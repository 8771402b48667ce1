"""Create the object through which a node calls its LLM."""

from __future__ import annotations

import logging
import math

from Middleware.llmapis.call_turns import STAND_IN_KEY
from Middleware.llmapis.llm_api import LlmApiService
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.llm_handler import LlmHandler
from Middleware.utilities import config_utils
from Middleware.utilities.config.keys.endpoint import ENDPOINT

logger = logging.getLogger(__name__)

DEFAULT_MAX_TOKENS = 400


class LlmHandlerService:
    """Creates ``LlmHandler`` objects from names in the configuration."""

    def load_model_from_config(
        self,
        endpoint_name: str,
        preset: str | None = None,
        stream: bool = False,
        max_tokens: object = DEFAULT_MAX_TOKENS,
        add_generation_prompt: bool | None = None,
        scope: CancelScope | None = None,
    ) -> LlmHandler:
        """Return the handler of one endpoint.

        ``max_tokens`` may be the unvalidated value of a node (see ``response_limit``). ``add_generation_prompt`` False
        disables the generation prompt; otherwise the endpoint decides. Raises ConfigurationError.
        """
        limit = response_limit(max_tokens)
        llm = LlmApiService(endpoint_name, preset, limit, stream, scope=scope)
        # Now and not when it is called: the prompt is made for the window and the template of the one that answers.
        if STAND_IN_KEY in llm.endpoint_config:
            llm = llm.stand_in()
        endpoint = llm.endpoint_config
        return LlmHandler(
            llm=llm,
            prompt_template_file_name=ENDPOINT.value(endpoint, "promptTemplate") or config_utils.chat_template_name(),
            add_generation_prompt=add_generation_prompt is not False and ENDPOINT.flag(endpoint, "addGenerationPrompt"),
            takes_message_collection=llm.takes_message_collection,
            endpoint_name=llm.endpoint_name,
            endpoint_config=endpoint,
            max_tokens=limit,
        )

    def without_endpoint(self) -> LlmHandler:
        """Return the handler of a node that calls no LLM of its own."""
        return LlmHandler(llm=None, prompt_template_file_name=config_utils.chat_template_name())


def response_limit(value: object) -> int | None:
    """Return a node's ``maxResponseSizeInTokens`` as a number: None for null, 400 for an invalid value."""
    # True would be a limit of one token.
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    # JSON files may contain NaN and Infinity, which are not numbers of tokens.
    if isinstance(value, float) and math.isfinite(value):
        return int(value)
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            pass
    logger.warning("maxResponseSizeInTokens is not a number: %r; using %d", value, DEFAULT_MAX_TOKENS)
    return DEFAULT_MAX_TOKENS
