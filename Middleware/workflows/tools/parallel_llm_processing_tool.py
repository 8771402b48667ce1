"""One prompt for many blocks of text, answered by several LLMs side by side."""

from __future__ import annotations

import contextvars
import logging
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from Middleware.exceptions import ConfigValueError, EarlyTerminationException
from Middleware.llmapis.backend_errors import public_text
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.llm_handler import LlmHandler
from Middleware.models.messages import Message
from Middleware.models.request_context import current_request
from Middleware.services.llm_calls.direct_calls import raise_if_cancelled
from Middleware.services.llm_service import LlmHandlerService
from Middleware.utilities.config.keys.node import NODE
from Middleware.workflows.models.execution_context import ExecutionContext
from Middleware.workflows.tools.block_prompts import TEXT_CHUNK, BlockPrompts

logger = logging.getLogger(__name__)

_LONGEST_ANSWER = NODE.lookup("maxResponseSizeInTokens")


class ParallelLlmProcessingTool:
    """The LLMs named in ``config["multiModelList"]``; an LLM that is named twice takes two blocks at a time.

    ``context`` provides variables and the cancel scope; without it the current request's scope applies. Raises
    ConfigurationError for an entry that cannot be used.
    """

    def __init__(self, config: Mapping[str, object], context: ExecutionContext | None = None) -> None:
        self._config, self._context = config, context
        request = context.request if context is not None else current_request()
        self._scope = request.cancel_scope if request is not None else CancelScope()
        self._handlers = [self._handler(entry, index) for index, entry in enumerate(_entries(config))]

    def process_prompt_chunks(
        self,
        chunks: Sequence[str],
        prompt: str,
        system_prompt: str,
        messages: list[Message] | None,
        custom_delimiter: str = "",
        context: ExecutionContext | None = None,
        markers: Mapping[str, str] | None = None,
    ) -> str:
        """Return the answers to all ``chunks`` in their order, joined.

        ``[TextChunk]`` in the prompts is the chunk; ``markers`` are further markers. A failed call is retried once on
        another LLM; then, as for a blank chunk, the answer is empty. An LLM that failed gets no further chunk. Raises
        what the first call raised if every LLM failed, and EarlyTerminationException for a cancelled request.
        """
        context = context or self._context
        if context is not None:
            context = replace(context, messages=messages if messages is not None else context.messages)
        prompts = BlockPrompts(system_prompt, prompt, self._config, context)
        work = _Work(chunks, prompts, markers or {}, self._scope)
        # A worker without a chunk of its own may get one that failed on another LLM.
        handlers = self._handlers if work.queue else []
        with ThreadPoolExecutor(max(len(handlers), 1), "wilmer-block") as pool:
            for handler in handlers:
                pool.submit(contextvars.copy_context().run, work.run, handler)
        raise_if_cancelled(self._scope)
        if handlers and len(work.errors) == len(handlers):
            raise work.errors[0]
        return custom_delimiter.join(work.results)

    def _handler(self, entry: object, index: int) -> LlmHandler:
        name = NODE.value(entry, "endpointName") if isinstance(entry, Mapping) else None
        if not isinstance(name, str) or not name.strip():
            raise ConfigValueError(
                "an entry of multiModelList names no endpoint",
                json_path=f"multiModelList[{index}].endpointName",
                expected="the name of a file in Endpoints",
            )
        preset = NODE.value(self._config, "preset") or NODE.value(self._config, "presetName")
        blocked = NODE.flag(self._config, "blockGenerationPrompt")
        return LlmHandlerService().load_model_from_config(
            self._early(name),
            self._early(str(preset)) if preset else None,
            False,
            self._config.get(*_LONGEST_ANSWER),
            False if blocked else None,
            self._scope,
        )

    def _early(self, text: str) -> str:
        return text if self._context is None else self._context.substitute_early(text)


class _Work:
    """The chunks of one call and their answers. ``run`` is one worker; the rest is internal to it."""

    def __init__(
        self, chunks: Sequence[str], prompts: BlockPrompts, markers: Mapping[str, str], scope: CancelScope
    ) -> None:
        self._chunks, self._prompts, self._markers, self._scope = chunks, prompts, markers, scope
        self.queue = deque(index for index, chunk in enumerate(chunks) if chunk.strip())
        self._returned: set[int] = set()
        self._running = 0
        self._changed = threading.Condition()
        self.results = [""] * len(chunks)
        self.errors: list[Exception] = []

    def run(self, handler: LlmHandler) -> None:
        while (index := self._take()) is not None:
            error: Exception | None = None
            try:
                self.results[index] = self._prompts.send(handler, {**self._markers, TEXT_CHUNK: self._chunks[index]})
            except EarlyTerminationException:
                logger.debug("A worker stops: the request was cancelled.")
            # Whatever is wrong with this LLM, another one may work.
            except Exception as failure:
                error = failure
            self._give_back(index, handler, error)
            if error is not None:
                return

    def _take(self) -> int | None:
        """Return the next chunk; None when no chunk is left or could come back."""
        with self._changed:
            # A chunk that fails elsewhere comes back. A cancellation does not notify, so it is looked for.
            while not self.queue and self._running and not self._scope.cancelled:
                self._changed.wait(0.1)
            if not self.queue or self._scope.cancelled:
                return None
            self._running += 1
            return self.queue.popleft()

    def _give_back(self, index: int, handler: LlmHandler, error: Exception | None) -> None:
        with self._changed:
            self._running -= 1
            if error is not None:
                self._fail(index, handler, error)
            self._changed.notify_all()

    def _fail(self, index: int, handler: LlmHandler, error: Exception) -> None:
        self.errors.append(error)
        if index in self._returned:
            logger.error(
                "Block %d failed on two endpoints and stays empty; the second was '%s': %s",
                index + 1,
                handler.endpoint_name,
                public_text(error),
            )
            return
        self._returned.add(index)
        self.queue.append(index)
        logger.warning(
            "Endpoint '%s' failed and gets no further block; block %d goes to another: %s",
            handler.endpoint_name,
            index + 1,
            public_text(error),
        )


def _entries(config: Mapping[str, object]) -> Sequence[object]:
    entries = NODE.value(config, "multiModelList")
    if not isinstance(entries, (list, tuple)) or not entries:
        raise ConfigValueError(
            "multiModelList names no endpoints",
            json_path="multiModelList",
            expected='a list of objects such as {"endpointName": "Worker-A"}',
        )
    return entries
