"""One LLM call: from the names in a node to the back-end's answer."""
from __future__ import annotations

import contextlib
import logging
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from Middleware.exceptions import ConfigValueError, EarlyTerminationException
from Middleware.llmapis import api_types
from Middleware.llmapis.call_gate import CallSlot
from Middleware.llmapis.handlers.base.base_llm_api_handler import (
    BackendSettings,
    Chunk,
    LlmApiHandler,
    LlmOutcome,
    Message,
    Prompt,
)
from Middleware.llmapis.handlers.impl.openai_api_handler import OpenAiApiHandler
from Middleware.llmapis.samplers import SamplerResolver, inject_structure, normalise
from Middleware.llmapis.transport import Transport, get_transport
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.request_context import current_request
from Middleware.utilities import config_utils

logger = logging.getLogger(__name__)

TYPES: Mapping[str, type[LlmApiHandler]] = {
    api_types.OPENAI_CHAT: OpenAiApiHandler,
}

_sampler_resolver = SamplerResolver()


class LlmApiService:
    """The LLM behind one endpoint, for one call at a time.

    Building it reads the endpoint, its API type and the samplers, so that a mistake in them is reported before
    anything is sent. ``outcome`` tells, after a call, what the back-end said besides its text.

    Args:
        presetname: None or blank: the endpoint's own ``presetSamplers``.
        max_tokens: response limit; None sends none.
        scope: stop switch of the request; None: that of the current request, if there is one.
        visited: endpoints already tried for the same call.
    """

    def __init__(self, endpoint: str, presetname: str | None = None, max_tokens: int | None = 400,
                 stream: bool = False, *, scope: CancelScope | None = None, transport: Transport | None = None,
                 visited: Sequence[str] = ()) -> None:
        self.endpoint_name = endpoint
        self.presetname = presetname
        self.max_tokens = max_tokens
        self.streaming = stream
        self.visited = (*visited, endpoint)
        self.endpoint_config = config_utils.load_endpoint(endpoint)
        self.api_type_config = self._load_api_type()
        self.type = api_types.canonical_type(self.api_type_config, f"ApiTypes/{self._api_type_name}.json")
        handler = self._handler_class()
        if scope is None:
            request = current_request()
            scope = request.cancel_scope if request is not None else None
        self._scope = scope
        self._handler = handler(self._settings(), transport or get_transport(), scope)
        self._stream: Generator[Chunk, None, None] | None = None
        self._busy = False

    @property
    def settings(self) -> BackendSettings:
        return self._handler.settings

    @property
    def outcome(self) -> LlmOutcome:
        return self._handler.outcome

    @property
    def takes_message_collection(self) -> bool:
        """Whether the back-end takes a list of messages; otherwise it takes one text."""
        return self.type not in api_types.COMPLETION_TYPES

    def get_response_from_llm(
            self, conversation: Sequence[Message] | None = None, system_prompt: str | None = None,
            prompt: str | None = None, llm_takes_images: bool = False, request_id: str | None = None,
            tools: Sequence[Mapping[str, Any]] | None = None, tool_choice: Any = None,
            structured_output_schema: Mapping[str, Any] | None = None,
    ) -> str | dict[str, Any] | Generator[Chunk, None, None]:
        """Call the LLM.

        Returns the uncleaned text, or ``{"content", "tool_calls", "finish_reason"}`` for an answer with tool calls;
        a streaming service returns a generator of chunks that sends nothing before it is pulled. A cancelled call
        returns ``""`` or a generator that ends. ``request_id`` only names the call in the log. Raises BackendError.
        """
        if conversation is not None and not llm_takes_images:
            conversation = [{key: value for key, value in message.items() if key != "images"}
                            if "images" in message else message for message in conversation]
        call = Prompt(conversation, system_prompt, prompt, tools or None, tool_choice, structured_output_schema)
        logger.debug("Request %s calls endpoint '%s'%s", request_id, self.endpoint_name,
                     " (streaming)" if self.streaming else "")
        self._busy = True
        if self.streaming:
            self._stream = self._run_stream(call)
            return self._stream
        slot = CallSlot(self._scope)
        try:
            slot.acquire()
            return self._handler.generate(call)
        except EarlyTerminationException:
            return ""
        finally:
            slot.release()
            self._busy = False

    def is_busy(self) -> bool:
        """True from the call until its result, or until its stream is exhausted or abandoned."""
        return self._busy

    def close(self) -> None:
        """Abandon a stream that is not being read at the moment; other calls are not touched."""
        stream, self._stream = self._stream, None
        if stream is not None:
            with contextlib.suppress(ValueError):  # another thread is reading it right now
                stream.close()
            self._busy = False  # a generator that never started runs no cleanup of its own

    def _run_stream(self, call: Prompt) -> Generator[Chunk, None, None]:
        slot = CallSlot(self._scope)
        try:
            for _ in slot.waiting():
                yield {"token": "", "finish_reason": None}
            yield from self._handler.stream(call)
        except EarlyTerminationException:
            return
        finally:
            slot.release()
            self._busy = False

    # -- configuration -------------------------------------------------------------------------------------------
    @property
    def _api_type_name(self) -> str:
        return str(self.endpoint_config.get("apiTypeConfigFileName") or "")

    def _load_api_type(self) -> Mapping[str, Any]:
        if not self._api_type_name.strip():
            raise self._mistake("the endpoint names no API type", "apiTypeConfigFileName",
                                "the name of a file in ApiTypes")
        return config_utils.load_api_type(self._api_type_name)

    def _handler_class(self) -> type[LlmApiHandler]:
        if self.type in api_types.EMBEDDINGS_TYPES:
            raise self._mistake("this endpoint makes embeddings and cannot answer a prompt", "apiTypeConfigFileName",
                                "an API type that generates text")
        if self.type not in TYPES:
            raise self._mistake(f"API type '{self.type}' is not available yet", "apiTypeConfigFileName",
                                f"an API type of type {', '.join(sorted(TYPES))}")
        return TYPES[self.type]

    def _settings(self) -> BackendSettings:
        config = self.endpoint_config
        base_url = str(config.get("endpoint") or "").strip()
        if not base_url.lower().startswith(("http://", "https://")):
            raise self._mistake("the endpoint has no usable URL", "endpoint", "a URL such as http://127.0.0.1:5001")
        samplers = inject_structure(
            _sampler_resolver.resolve(self.endpoint_name, config, self.api_type_config, self.presetname),
            config, self.api_type_config, self.streaming, self.max_tokens)
        model = None if api_types.is_on(config, "dontIncludeModel") else str(config.get("modelNameToSendToAPI") or "")
        return BackendSettings(
            endpoint_name=self.endpoint_name, base_url=base_url, endpoint=config, api_type=self.api_type_config,
            samplers=normalise(samplers), model=model, api_key=str(config.get("apiKey") or ""),
            connect_timeout=config_utils.get_connect_timeout())

    def _mistake(self, message: str, key: str, expected: str) -> ConfigValueError:
        folder = config_utils.user_name_setting("endpointConfigsSubDirectory")
        file = "/".join(part for part in ("Endpoints", folder, f"{self.endpoint_name}.json") if part)
        return ConfigValueError(message, file=file, json_path=key, expected=expected)
