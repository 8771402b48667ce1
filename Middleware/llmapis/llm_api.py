"""One LLM call: from the names in a node to the back-end's answer."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import logging
from collections.abc import Generator, Iterator, Mapping, Sequence
from functools import partial

from Middleware.exceptions import (
    BackendLoopError,
    ClientError,
    ConfigurationError,
    EarlyTerminationException,
    FailoverError,
    GateTimeoutError,
)
from Middleware.llmapis import api_types, failover
from Middleware.llmapis.backend_errors import public_text
from Middleware.llmapis.call_queue import Turn
from Middleware.llmapis.call_turns import loaded_stand_in, turn_for
from Middleware.llmapis.call_watch import CallWatch
from Middleware.llmapis.endpoint_file import EndpointFile, mistake
from Middleware.llmapis.guarded_calls import guard_of_calls, guarded_answer
from Middleware.llmapis.handlers.base.backend_call import BackendSettings, Prompt
from Middleware.llmapis.handlers.base.base_chat_completions_handler import BaseChatCompletionsHandler
from Middleware.llmapis.handlers.base.base_llm_api_handler import BaseLlmApiHandler
from Middleware.llmapis.handlers.impl.claude_api_handler import ClaudeApiHandler
from Middleware.llmapis.handlers.impl.koboldcpp_api_handler import KoboldCppApiHandler
from Middleware.llmapis.handlers.impl.ollama_chat_api_handler import OllamaChatHandler
from Middleware.llmapis.handlers.impl.ollama_generate_api_handler import OllamaGenerateHandler
from Middleware.llmapis.handlers.impl.openai_api_handler import OpenAiApiHandler
from Middleware.llmapis.handlers.impl.openai_completions_api_handler import OpenAiCompletionsApiHandler
from Middleware.llmapis.samplers import SamplerResolver, inject_structure, normalise, remedy
from Middleware.llmapis.transport import get_transport
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.llm_call import LlmOutcome, NodeSite
from Middleware.models.messages import Answer, Chunk, Message, Usage, without_all_images
from Middleware.models.process import process
from Middleware.models.request_context import RequestContext, current_node, current_outside, current_request

logger = logging.getLogger(__name__)

TYPES: Mapping[str, type[BaseLlmApiHandler]] = {
    api_types.OPENAI_CHAT: OpenAiApiHandler,
    api_types.OPENAI_COMPLETION: OpenAiCompletionsApiHandler,
    api_types.OLLAMA_CHAT: OllamaChatHandler,
    api_types.OLLAMA_GENERATE: OllamaGenerateHandler,
    api_types.KOBOLD_GENERATE: KoboldCppApiHandler,
    api_types.CLAUDE_MESSAGES: ClaudeApiHandler,
}

# A full gate is not a failure of the back-end, and the backup would wait at the same gate. In a loop, the inner one of
# two requests would ask it.
_NO_FAILOVER = (EarlyTerminationException, GateTimeoutError, BackendLoopError)


class LlmApiService:
    """The LLM behind one endpoint, or behind its backup when it fails, for one call at a time.

    The constructor reads the endpoint, its API type and the samplers, so that a mistake in them is reported before
    anything is sent. After a call, ``outcome`` holds the metadata of the answer and the endpoint that answered.

    Args:
        presetname: None or blank for the endpoint's own ``presetSamplers``.
        max_tokens: response limit; None sends no limit.
        scope: cancel scope; None for that of the current request, if there is one.
        state: the endpoints that have failed before this one.
    """

    def __init__(
        self,
        endpoint: str,
        presetname: str | None = None,
        max_tokens: int | None = 400,
        stream: bool = False,
        *,
        scope: CancelScope | None = None,
        state: failover.FailoverState = failover.NO_FAILOVER,
    ) -> None:
        self.endpoint_name = endpoint
        self.presetname = presetname
        self.max_tokens = max_tokens
        self.streaming = stream
        self._state, self._guard = state, None if stream else guard_of_calls()
        self._file = EndpointFile.load(endpoint)
        self.endpoint_config, self.type = self._file.config, self._file.type
        self._handler_type = self._handler_class()
        if scope is None:
            request = current_request()
            scope = request.cancel_scope if request is not None else None
        # The handler's is another one while it makes a call that may be stopped to make room.
        self._scope = self._handler_scope = scope
        self._backup_name = failover.backup_name(self.endpoint_config)
        self._handler = self.create_api_handler(self._settings(), scope)
        # At the first call and not at the first failure: a warning during an outage comes too late.
        failover.check_backup(self._file)
        self._backup: LlmApiService | None = None
        # Seconds in the queue of calls.
        self._waited = 0.0
        self._stream: Generator[Chunk, None, None] | None = None
        self._busy = False

    def stand_in(self) -> LlmApiService:
        """Return the service of the endpoint that takes the calls of this one at the moment, as a rule this one."""
        other = loaded_stand_in(self.endpoint_name, self.endpoint_config)
        return self._standing_in(other) if other else self

    def _standing_in(self, other: str) -> LlmApiService:
        preset = failover.preset_of_call(self.endpoint_name, self.endpoint_config, self.presetname)
        service = LlmApiService(other, preset, self.max_tokens, self.streaming, scope=self._scope)
        logger.info("Endpoint '%s' stands in for '%s', as its model is loaded", other, self.endpoint_name)
        return service

    @property
    def settings(self) -> BackendSettings:
        return self._handler.settings

    def kept_sizes(self, messages: Sequence[Message]) -> Mapping[int, int]:
        """Return how many estimated tokens the keepsakes of messages add to a call, by index."""
        handler = self._handler
        handler.changes.begin()
        return handler.sending().sizes(messages) if isinstance(handler, BaseChatCompletionsHandler) else {}

    @property
    def outcome(self) -> LlmOutcome:
        """The outcome of the endpoint that answered or, during a call, of the one that is being called."""
        return self._handler.outcome if self._backup is None else self._backup.outcome

    @property
    def takes_message_collection(self) -> bool:
        """Return whether the back-end takes a list of messages and not a single text."""
        return self.type not in api_types.COMPLETION_TYPES

    def get_response_from_llm(
        self,
        conversation: Sequence[Message] | None = None,
        system_prompt: str | None = None,
        prompt: str | None = None,
        llm_takes_images: bool = False,
        request_id: str | None = None,
        tools: Sequence[Mapping[str, object]] | None = None,
        tool_choice: object = None,
        structured_output_schema: Mapping[str, object] | None = None,
        answer_choices: Sequence[str] = (),
        conversation_of: str = "",
        textless: bool = False,
    ) -> Answer | Generator[Chunk, None, None]:
        """Call the LLM.

        Returns the uncleaned text, or ``{"content", "tool_calls", "finish_reason"}`` for an answer with tool calls;
        a streaming service returns a generator of chunks that sends the request at its first ``next``. A cancelled call
        returns ``""`` or a generator that ends. ``request_id`` is used for the log only. Raises BackendError; with a
        backup only if that fails too, or if the first endpoint's answer had begun. With ``conversation_of`` and
        ``textless``, which are those of ``Prompt``, raises ClientError if an endpoint would get nothing to answer.
        """
        if conversation is not None and not llm_takes_images:
            conversation = without_all_images(conversation)
        watch = CallWatch.of(self.endpoint_name, self.streaming, request_id)
        call = Prompt(
            conversation,
            system_prompt,
            prompt,
            tools or None,
            tool_choice,
            structured_output_schema,
            answer_choices,
            watch,
            conversation_of=conversation_of,
            textless=textless,
        )
        logger.debug(
            "Request %s calls endpoint '%s'%s", request_id, self.endpoint_name, " (streaming)" if self.streaming else ""
        )
        self._busy, self._backup, self._waited = True, None, 0.0
        if not self.streaming:
            return self._run(call)
        self._stream = self._run_stream(call)
        return self._stream

    def stream_verbatim(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, object]] | None = None,
        tool_choice: object = None,
        schema: Mapping[str, object] | None = None,
        answer_choices: Sequence[str] = (),
    ) -> Generator[Chunk, None, None]:
        """Send messages that contain the endpoint's texts already, so that none are added; return a stream.

        A single message of the role ``prompt`` is the whole text for a back-end of completions.
        """
        call = Prompt(
            messages,
            tools=tools or None,
            tool_choice=tool_choice,
            schema=schema,
            choices=answer_choices,
            verbatim=True,
            watch=CallWatch.of(self.endpoint_name, True, None),
        )
        if len(messages) == 1 and messages[0]["role"] == api_types.WHOLE_PROMPT:
            call = dataclasses.replace(call, conversation=None, prompt=messages[0]["content"])
        elif not self.takes_message_collection:
            call = failover.prompt_for_backup(call, self._file, templated=False)
        self._busy, self._backup, self._waited = True, None, 0.0
        self._stream = self._run_stream(call)
        return self._stream

    def is_busy(self) -> bool:
        """Return True from the call until its result, or until its stream is exhausted or abandoned."""
        closed = self._stream is not None and inspect.getgeneratorstate(self._stream) == inspect.GEN_CLOSED
        # A generator that was closed before it started never ran the cleanup that resets ``_busy``.
        return self._busy and not closed

    def close(self) -> None:
        """Abandon a stream; other calls are not affected.

        If another thread is reading the stream, it wakes up and the stream ends; until then the service is busy.
        """
        stream, self._stream = self._stream, None
        if stream is None:
            return
        try:
            stream.close()
        # Another thread is inside next().
        except ValueError:
            self._abort()
        else:
            # The cleanup of a generator that never started did not run.
            self._busy = False

    def _abort(self) -> None:
        backup = self._backup
        if backup is None:
            self._handler.abort()
        else:
            backup._abort()

    # -- the call ------------------------------------------------------------------------------------------------
    def _run(self, call: Prompt) -> Answer:
        try:
            with self._watched(call):
                answer = self._generate(call, call)
                if call.watch is not None:
                    call.watch.answered(answer, self.outcome.reasoning)
                return answer
        except EarlyTerminationException:
            return ""
        finally:
            self._busy = False

    def _run_stream(self, call: Prompt) -> Generator[Chunk, None, None]:
        chunks = self._generate_stream(call, call)
        try:
            with self._watched(call):
                yield from chunks
        except EarlyTerminationException:
            return
        finally:
            self._busy = False

    @contextlib.contextmanager
    def _watched(self, call: Prompt) -> Iterator[None]:
        """Report the start and every kind of end of the call to its watch, and add its tokens to the sums."""
        error: BaseException | None = None
        watch = call.watch
        request = current_request()
        # Asked for now: an abandoned stream ends in whatever context the garbage collector runs.
        site = current_node(request)
        if watch is not None:
            watch.start(call, self.settings)
        try:
            yield
        except BaseException as problem:
            error = problem
            raise
        finally:
            last, waited = self, self._waited
            while last._backup is not None:
                last = last._backup
                waited += last._waited
            _count(last.outcome.usage, waited, site, request)
            if watch is not None:
                watch.end(error, last.outcome, last.settings, last._state.visited, self._scope, waited)

    def _generate(self, call: Prompt, sent: Prompt) -> Answer:
        """Return the answer. ``sent`` is ``call`` in the form for this endpoint; a backup gets its own form."""
        turn = turn_for(self.endpoint_name, self.endpoint_config, self._scope)
        self._name_for_the_log()
        try:
            if turn is None:
                return self._complete(self._handler, self._scope, sent)
            # Its place is free again before a backup is called; holding two could block both queues.
            return turn.run(lambda scope: self._generate_in_turn(turn, scope, call, sent))
        except _NO_FAILOVER:
            raise
        # Any error of this back-end is a reason to use the backup.
        except Exception as error:
            if not self._may_hand_over():
                failover.mention_failed_endpoint(error, self._state)
                raise
            backup, sent = self._hand_over(call, error)
            return backup._generate(call, sent)
        finally:
            if turn is not None:
                self._waited += turn.waited

    def _generate_in_turn(self, turn: Turn, scope: CancelScope | None, call: Prompt, sent: Prompt) -> Answer:
        if turn.restarts:
            # The server has worked on the call that gave way, too.
            request = current_request()
            _count(self.outcome.usage, 0.0, current_node(request), request)
        service, sent = self._called(turn, call, sent)
        return service._complete(service._handler_for(scope), scope, sent)

    def _complete(self, handler: BaseLlmApiHandler, scope: CancelScope | None, sent: Prompt) -> Answer:
        if self._guard is None:
            return handler.handle_non_streaming(sent)
        return guarded_answer(handler, sent, self._guard, scope, self.endpoint_name)

    def _called(self, turn: Turn, call: Prompt, sent: Prompt) -> tuple[LlmApiService, Prompt]:
        """Return the service that a turn has come to, and the prompt in its form: perhaps one that stands in."""
        other = turn.needs.endpoint
        if other == self.endpoint_name:
            self._backup = None
            return self, sent
        service = self._backup = self._standing_in(other)
        return service, failover.prompt_for_backup(call, service._file, self.type in api_types.COMPLETION_TYPES)

    def _generate_stream(self, call: Prompt, sent: Prompt) -> Generator[Chunk, None, None]:
        turn = turn_for(self.endpoint_name, self.endpoint_config, self._scope, streamed=True)
        self._name_for_the_log()
        # The client has received a part of this endpoint's answer.
        begun = False
        try:
            if turn is not None:
                for _ in turn.waiting():
                    yield {"token": "", "finish_reason": None}
            service, prompt = (self, sent) if turn is None else self._called(turn, call, sent)
            with contextlib.closing(service._handler.handle_streaming(prompt)) as chunks:
                if self._backup_name:
                    begun = yield from failover.up_to_visible(chunks)
                yield from chunks
        except _NO_FAILOVER:
            raise
        # Any error of this back-end is a reason to use the backup.
        except Exception as error:
            if begun:
                logger.error(
                    "Endpoint '%s' failed after its answer had begun, too late for its backup '%s': %s",
                    self.endpoint_name,
                    self._backup_name,
                    public_text(error),
                )
            if begun or not self._may_hand_over():
                failover.mention_failed_endpoint(error, self._state)
                raise
            # The backup waits for its own turn; holding two places could block both queues.
            if turn is not None:
                turn.end()
            backup, sent = self._hand_over(call, error)
            yield from backup._generate_stream(call, sent)
        finally:
            if turn is not None:
                turn.end()
                self._waited += turn.waited

    def create_api_handler(self, settings: BackendSettings, scope: CancelScope | None) -> BaseLlmApiHandler:
        """Return a handler for the kind of server that the endpoint is; ``scope`` cancels its calls."""
        return current_outside().caller(self._handler_type(settings, get_transport(), scope))

    def _handler_for(self, scope: CancelScope | None) -> BaseLlmApiHandler:
        """Return the handler of a call that ``scope`` cancels; a call that may have to begin again has its own."""
        if scope is not self._handler_scope:
            self._handler, self._handler_scope = self.create_api_handler(self.settings, scope), scope
        return self._handler

    def _name_for_the_log(self) -> None:
        request = current_request()
        if request is not None and not request.answer_complete:
            request.endpoint = self.endpoint_name

    # -- the backup ----------------------------------------------------------------------------------------------
    def _may_hand_over(self) -> bool:
        return bool(self._backup_name) and not (self._scope is not None and self._scope.cancelled)

    def _hand_over(self, call: Prompt, error: Exception) -> tuple[LlmApiService, Prompt]:
        """Return the service of the backup, and ``call`` in its form. Raises FailoverError, caused by ``error``."""
        try:
            state = failover.next_state(self._file, self._state, self._scope)
            preset = failover.backup_preset(self.endpoint_name, self.endpoint_config, self.presetname)
            backup = LlmApiService(
                self._backup_name, preset, self.max_tokens, self.streaming, scope=self._scope, state=state
            )
            sent = failover.prompt_for_backup(call, backup._file, state.templated)
        except (ConfigurationError, FailoverError) as problem:
            # The server has not failed: it was not asked, as the conversation has nothing for it.
            if isinstance(error, ClientError):
                raise error from problem
            raise failover.backup_unusable(self.endpoint_name, self._backup_name, error, problem) from error
        logger.warning(
            "Endpoint '%s' failed; its backup '%s' is used. %s",
            self.endpoint_name,
            self._backup_name,
            public_text(error),
        )
        self._backup = backup
        return backup, sent

    # -- configuration -------------------------------------------------------------------------------------------
    def _handler_class(self) -> type[BaseLlmApiHandler]:
        if self.type in api_types.EMBEDDINGS_TYPES:
            raise mistake(
                self.endpoint_name,
                "this endpoint makes embeddings and cannot answer a prompt",
                "apiTypeConfigFileName",
                "an API type that generates text",
            )
        return TYPES[self.type]

    def _settings(self) -> BackendSettings:
        endpoint, api_type = self._file.config, self._file.api_type
        samplers = inject_structure(
            process().one(SamplerResolver).resolve(self.endpoint_name, endpoint, api_type, self.presetname),
            endpoint,
            api_type,
            self.streaming or (self._guard is not None and self._guard.streams),
            self.max_tokens,
        )
        return dataclasses.replace(
            self._file.settings(normalise(samplers)),
            single_attempt=bool(self._backup_name),
            local_only=self._state.local_only,
            remedy=partial(remedy, self._file, self.presetname),
        )


def _count(usage: Usage | None, waited: float, site: NodeSite | None, request: RequestContext | None) -> None:
    """Add a call to the sums of its node and its request."""
    for counts in (site and site.counts, request and request.counts):
        if counts:
            counts.add(usage, waited)
