"""The loop that runs the nodes of one workflow."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from types import GeneratorType
from typing import Any, TypeGuard

from Middleware.exceptions import ConfigurationError, EarlyTerminationException, WilmerError
from Middleware.exceptions.early_termination_exception import CANCELLED
from Middleware.llmapis.backend_errors import public_text
from Middleware.llmapis.call_turns import loading_order
from Middleware.models.llm_call import NodeSite, Observer, TokenCounts, enter_node, leave_node
from Middleware.models.llm_handler import LlmHandler
from Middleware.models.messages import Chunk
from Middleware.services.llm_service import LlmHandlerService, response_limit
from Middleware.services.locking_service import get_locking_service
from Middleware.utilities import config_utils
from Middleware.utilities.answers.text_cleaner import CleaningRules, clean_answer, find_generation_prompt
from Middleware.utilities.answers.tool_calls import calls_as_text
from Middleware.utilities.config.keys.endpoint import ENDPOINT
from Middleware.utilities.config.keys.node import NODE, WORKFLOW_FILE, coerce_numeric_fields, is_responder
from Middleware.utilities.sensitive_logging_utils import log_prompt_content, mask_url
from Middleware.utilities.streaming_utils import (
    lowercase_tool_call_names,
    post_process_llm_output,
    strip_assistant_prefix_enabled,
)
from Middleware.utilities.text_utils import nearest, restore_braces
from Middleware.workflows.events import RunRecord
from Middleware.workflows.handlers.base.base_workflow_node_handler import BaseHandler
from Middleware.workflows.handlers.impl.sub_workflow_handler import ChildRun
from Middleware.workflows.models.execution_context import (
    ChildStarter,
    ExecutionContext,
    NodeExecutionInfo,
    RunRequest,
    VariableService,
    helper_calls,
    name_of,
)
from Middleware.workflows.processors.message_times import MessageTimes
from Middleware.workflows.processors.parallel_nodes import dependencies, run_when_ready
from Middleware.workflows.processors.remembered_messages import RememberedMessages
from Middleware.workflows.streaming.response_handler import StreamingResponseHandler
from Middleware.workflows.streaming.value_stream import as_message, chunks_to_value, value_to_chunks

logger = logging.getLogger(__name__)

# These two are read by name and default, because null has a meaning of its own: an unknown type, and no answer limit.
_TYPE, _LONGEST_ANSWER = map(NODE.lookup, ("type", "maxResponseSizeInTokens"))

OVERRIDABLE = ("systemPrompt", "prompt")

# What a node for front-ends' own requests needs at most for an answer, in tokens. A limit above it has room for the
# thoughts of a model that thinks, which a lower limit for a title must not take away.
ROOM_FOR_A_TASK = 1000

# Closes the answer of a streaming run: what an iterator yields after it belongs to the nodes behind the responder.
END: Chunk = {"token": "", "finish_reason": None, "end": True}


class WorkflowProcessor:
    """Runs one ``RunRequest``: every node once, in order.

    ``execute`` yields the responder's output (chunk dicts when streaming, else one item) as soon as it is there; the
    nodes after the responder run when the caller goes on iterating.
    """

    def __init__(
        self,
        run: RunRequest,
        *,
        node_handlers: Mapping[str, BaseHandler],
        llm_handler_service: LlmHandlerService,
        workflow_variable_service: VariableService,
        workflow_manager: ChildStarter,
        listeners: Observer,
    ) -> None:
        self.run = run
        self.node_handlers = node_handlers
        self.llm_handler_service = llm_handler_service
        self.variables = workflow_variable_service
        self.workflow_manager = workflow_manager
        self.listeners = listeners
        self.agent_inputs = {f"agent{number}Input": text for number, text in enumerate(run.scoped_inputs, 1)}
        self.agent_outputs: dict[str, object] = {}
        self.responder_index = find_responder(run.nodes)
        self.override_index = self._find_override_target()
        self.record = RunRecord(run, self.responder_index)
        self.times = MessageTimes(run)
        self.remembered = RememberedMessages(run)
        self._no_llm: LlmHandler | None = None
        self._call = run.request.outside.run_node

    # -- the loop ------------------------------------------------------------------------------------------------
    def execute(self) -> Generator[Any, None, None]:
        started = time.perf_counter()
        self.listeners.emit("run_started", self.record)
        try:
            self.times.begin()
            self.remembered.begin()
            if WORKFLOW_FILE.flag(self.run.variables, "parallelNodes"):
                yield from self._run_in_parallel()
            else:
                for index in range(len(self.run.nodes)):
                    self._report((yield from self._run_node(index)))
        # The client has its answer, and does not see that a node after it failed.
        except _RunEndedError as end:
            self.record.error = type(end.__cause__).__name__
        except BaseException as error:
            self.record.error = type(error).__name__
            raise
        finally:
            self._finish(started)

    def _finish(self, started: float) -> None:
        # Locks are held until the end of the run, however it ends.
        try:
            get_locking_service().release(self.run.workflow_id)
            self.remembered.after_answer(ended=True)
        finally:
            self.record.seconds = time.perf_counter() - started
            self.listeners.emit("run_finished", self.record)

    def _run_in_parallel(self) -> Iterator[object]:
        """Run the nodes before the responder together, then the responder, then the nodes after it together."""
        needed = dependencies(
            [self._node(index) for index in range(len(self.run.nodes))],
            {**config_utils.user_wide_variables(), **self.run.variables},
            self.node_handlers,
        )
        self._together(range(self.responder_index), needed)
        if self.run.nodes:
            self._report((yield from self._run_node(self.responder_index)))
        self._together(range(self.responder_index + 1, len(self.run.nodes)), needed)

    def _together(self, indexes: range, needed: Sequence[frozenset[int]]) -> None:
        """Run nodes side by side, and report those that delivered in their order."""
        done: dict[int, NodeExecutionInfo] = {}

        def run(index: int) -> None:
            done[index] = self._run_quietly(index)

        try:
            run_when_ready(
                indexes,
                needed,
                run,
                lambda index: loading_order(str(NODE.value(self.run.nodes[index], "endpointName") or "")),
            )
        # Also those that delivered before another failed.
        finally:
            for index in sorted(done):
                self._report(done[index])

    def _run_quietly(self, index: int) -> NodeExecutionInfo:
        """Run one node that does not answer the client and so yields nothing."""
        try:
            next(self._run_node(index))
        except StopIteration as end:
            info: NodeExecutionInfo = end.value
            return info
        raise AssertionError("only the responder delivers")

    def _report(self, info: NodeExecutionInfo) -> None:
        if info.node_index == self.responder_index + 1:
            self.remembered.after_answer()
        self.record.nodes.append(info)
        self.listeners.emit("node_finished", self.record, info)

    def _run_node(self, index: int) -> Generator[Any, None, NodeExecutionInfo]:
        """Run one node and keep its output. Yields only what the responder delivers."""
        self._raise_if_cancelled()
        run, started = self.run, time.perf_counter()
        node_type, name = self._node_type(index), name_of(run.nodes[index])
        self.listeners.emit("node_started", self.record, index + 1, node_type, name)
        site = NodeSite(
            self.listeners,
            run.request.request_id,
            run.workflow_name,
            index + 1,
            name,
            run.chain,
            TokenCounts(),
            run.discussion_id or "",
            run.workflow_id,
        )
        before = enter_node(site)
        try:
            context = self._prepare(index, node_type, name)
            if context.is_responder:
                output = yield from self._respond(context, node_type)
            else:
                output = self._clean(context, self._call(self.node_handlers[node_type].handle, context))
        # The run was abandoned, which is not a failure of the node.
        except GeneratorExit:
            raise
        # Code of other packages may raise anything.
        except BaseException as error:
            self.listeners.emit("node_failed", self.record, index + 1, node_type, name, error)
            if isinstance(error, Exception):
                self._pass_on(error, index, name)
            raise
        finally:
            leave_node(site, before)
        self.agent_outputs[f"agent{index + 1}Output"] = output
        if logger.isEnabledFor(logging.DEBUG):
            self._log_output(index, name, output)
        self.listeners.emit("node_delivered", self.record, index + 1, output)
        return NodeExecutionInfo(
            index + 1,
            node_type,
            _get_node_name(node_type, context.config, name),
            *_get_endpoint_details(context.llm_handler),
            time.perf_counter() - started,
            site.counts,
            context.replaced,
        )

    def _log_output(self, index: int, name: str, output: object) -> None:
        where = f"Request {self.run.request_id}: workflow {self.run.where}, output of node {index + 1} '{name}'"
        log_prompt_content(logger, where, restore_braces(str(output)))

    def _pass_on(self, error: Exception, index: int, name: str) -> None:
        """Raise ``error`` as the caller should see it; after the responder only a cancellation leaves the run."""
        early = isinstance(error, EarlyTerminationException)
        mark_if_private(error, self.run.nodes[index])
        if self.run.request.cancel_scope.cancelled:
            raise error if early else self._cancelled() from error
        where = self.run.where
        if index > self.responder_index and early:
            logger.info(
                "Request %s: workflow %s, node %d '%s' ended the run: %s",
                self.run.request_id,
                where,
                index + 1,
                name,
                error,
            )
            raise _RunEndedError from error
        if index > self.responder_index:
            logger.error(
                "Request %s: workflow %s, node %d '%s' failed after the answer: %s",
                self.run.request_id,
                where,
                index + 1,
                name,
                public_text(error),
                exc_info=not isinstance(error, WilmerError),
            )
            raise _RunEndedError from error
        # The innermost workflow names the position; the workflows around it must not replace it.
        if not early and not hasattr(error, "location"):
            problem = self._type_problem(index)
            note = f", which has the unknown type {problem} and ran as Standard" if problem else ""
            error.location = (  # type: ignore[attr-defined]
                f"workflow '{self._shown_name()}', node {index + 1} '{name}'{note}"
            )
        raise error

    def _shown_name(self) -> str:
        """Return the workflow's name, with its folder if every folder may hold a workflow of that name."""
        name = self.run.workflow_name
        return f"{self.run.folder}/{name}" if name == config_utils.DEFAULT_WORKFLOW and self.run.folder else name

    def _raise_if_cancelled(self) -> None:
        if self.run.request.cancel_scope.cancelled:
            raise self._cancelled()

    def _cancelled(self) -> EarlyTerminationException:
        return EarlyTerminationException(f"Request {self.run.request_id} was cancelled", CANCELLED)

    # -- the role of each node -----------------------------------------------------------------------------------
    def _find_override_target(self) -> int:
        if self.run.system_prompt_override is None and self.run.prompt_override is None:
            return -1
        return next((i for i, node in enumerate(self.run.nodes) if any(key in node for key in OVERRIDABLE)), -1)

    def _node_type(self, index: int) -> str:
        node_type = self.run.nodes[index].get(*_TYPE)
        if isinstance(node_type, str) and node_type in self.node_handlers:
            return node_type
        logger.warning(
            "Workflow %s, node %d: unknown type %s, running it as Standard",
            self._shown_name(),
            index + 1,
            self._type_problem(index),
        )
        return "Standard"

    def _type_problem(self, index: int) -> str:
        """Return the unknown type of a node, which may be why it fails; an empty string for a known one."""
        node_type = self.run.nodes[index].get(*_TYPE)
        if isinstance(node_type, str) and node_type in self.node_handlers:
            return ""
        near = nearest(str(node_type), self.node_handlers, 0.6)
        return f"{node_type!r:.80}" + (f" (did you mean '{near}'?)" if near else "")

    # -- one node ------------------------------------------------------------------------------------------------
    def _node(self, index: int) -> dict[str, object]:
        """Return a copy of the node, with the prompts that the parent sets."""
        config = dict(self.run.nodes[index])
        if index == self.override_index:
            prompts = zip(OVERRIDABLE, (self.run.system_prompt_override, self.run.prompt_override), strict=True)
            config.update({key: text for key, text in prompts if text is not None})
        return config

    def _prepare(self, index: int, node_type: str, name: str) -> ExecutionContext:
        run = self.run
        config = self._node(index)
        config["type"] = node_type
        is_responder = index == self.responder_index
        # The outputs are copied: nodes that run at the same time go on adding theirs.
        context = ExecutionContext(
            request_id=run.request.request_id,
            workflow_id=run.workflow_id,
            discussion_id=run.discussion_id,
            config=config,
            messages=self.times.messages_for(config),
            stream=run.stream and is_responder,
            workflow_config=run.variables,
            agent_inputs=self.agent_inputs,
            agent_outputs={**self.agent_inputs, **self.agent_outputs},
            workflow_variable_service=self.variables,
            workflow_manager=self.workflow_manager,
            node_handlers=self.node_handlers,
            api_key=run.api_key,
            api_key_hash=run.api_key_hash,
            encryption_key=run.encryption_key,
            tools=run.tools,
            tool_choice=run.tool_choice,
            is_responder=is_responder,
            request=run.request,
            run=run,
        )
        coerce_numeric_fields(config, context.substitute_early, name)
        context.llm_handler = self._llm_handler(context)
        return context

    def _llm_handler(self, context: ExecutionContext) -> LlmHandler:
        config = context.config
        endpoint = NODE.value(config, "endpointName")
        if not endpoint:
            return self._without_endpoint()
        preset = NODE.value(config, "preset") or NODE.value(config, "presetName")
        return self.llm_handler_service.load_model_from_config(
            context.substitute_early(str(endpoint)),
            context.substitute_early(str(preset)) if preset else None,
            context.stream,
            self._longest_answer(context),
            self._generation_prompt_flag(config, context.is_responder),
            context.request.cancel_scope,
        )

    def _without_endpoint(self) -> LlmHandler:
        """Return the handler of the nodes that call no LLM of their own; they share one, which nothing changes."""
        if self._no_llm is None:
            self._no_llm = self.llm_handler_service.without_endpoint()
        return self._no_llm

    @staticmethod
    def _longest_answer(context: ExecutionContext) -> object:
        """Return the node's limit of the answer, lower for a front-end's own request that needs less."""
        given, needed = context.config.get(*_LONGEST_ANSWER), context.request.longest_answer
        if needed is None or not context.is_responder:
            return given
        limit = response_limit(given)
        return needed if limit is None else min(limit, needed + max(limit - ROOM_FOR_A_TASK, 0))

    def _generation_prompt_flag(self, config: Mapping[str, object], is_responder: bool) -> bool | None:
        if NODE.flag(config, "blockGenerationPrompt"):
            return False
        lifted = NODE.flag(config, "forceGenerationPromptIfEndpointAllows") or NODE.flag(config, "addUserTurnTemplate")
        if not lifted and (not is_responder or self.run.non_responder is None):
            return False
        return None

    def _clean(self, context: ExecutionContext, result: object) -> object:
        """Return the output of a node that does not answer the client, cleaned if its own LLM produced it."""
        # An answer that arrived in spite of a cancellation is not used.
        self._raise_if_cancelled()
        if is_stream(result):
            result = chunks_to_value(result)
        endpoint_config = _endpoint_config(context)
        if endpoint_config is None:
            return result
        if isinstance(result, str):
            return post_process_llm_output(result, endpoint_config, context.config)
        if isinstance(result, dict) and isinstance(result.get("content"), str) and result["content"]:
            return {**result, "content": post_process_llm_output(result["content"], endpoint_config, context.config)}
        return result

    # -- the responder -------------------------------------------------------------------------------------------
    def _respond(self, context: ExecutionContext, node_type: str) -> Generator[Any, None, Any]:
        """Call the responder; return the generator that delivers its answer and returns it as the node's output."""
        self.times.before_answer(context.config)
        result = self._call(self.node_handlers[node_type].handle, context)
        if not self.run.stream:
            return self._respond_whole(context, result)
        if isinstance(result, ChildRun):
            return self._pass_child_on(context, result)
        return self._respond_streaming(context, result)

    def _respond_whole(self, context: ExecutionContext, result: object) -> Generator[Any, None, Any]:
        if isinstance(result, ChildRun):
            output = result.item()
            self._end_early(result)
            yield self._announce(context, output)
            result.finish()
            return output
        self._raise_if_cancelled()
        self._note_outcome(context)
        output = self._clean_answer(context, result)
        yield self._announce(context, output)
        return output

    def _clean_answer(self, context: ExecutionContext, result: object) -> object:
        if is_stream(result):
            result = chunks_to_value(result)
        message = as_message(result)
        if message is not None and message["tool_calls"]:
            if NODE.flag(context.config, "lowercaseToolCallFunctionNames"):
                message["tool_calls"] = lowercase_tool_call_names(message["tool_calls"])
            message["content"] = self._clean_text(context, message["content"], tool_calls_seen=True)
            unoffered = self._on_unoffered(context)
            if unoffered is None:
                return message
            unoffered()
            if self.run.request.outcome.finish_reason == "tool_calls":
                self.run.request.outcome.finish_reason = "stop"
            return message["content"] + calls_as_text(message["tool_calls"], message["content"])
        # The model could have asked for tools, and did not.
        if message is not None:
            result = message["content"]
        if isinstance(result, str) or result is None:
            return self._clean_text(context, result or "")
        return result

    def _clean_text(self, context: ExecutionContext, text: str, tool_calls_seen: bool = False) -> str:
        """Return the cleaned text; the reasoning is recorded for clients that want it separately."""
        endpoint_config = _endpoint_config(context)
        rules = CleaningRules.build(
            endpoint_config,
            context.config,
            self._speaker(context.config),
            strip_assistant_prefix_enabled(),
            has_endpoint=endpoint_config is not None,
        )
        cleaned, reasoning = clean_answer(text, rules, tool_calls_seen)
        # The reasoning of a workflow that does not answer the client stays inside.
        if reasoning and self.run.non_responder is None:
            self.run.request.outcome.reasoning += reasoning
        return cleaned

    def _on_unoffered(self, context: ExecutionContext) -> Callable[[], object] | None:
        """Return what logs that the model of an answering node called a tool although the client has sent none.

        Return None if calls are passed on: to a client with tools, to another node, or because a script made them.
        """
        if self.run.request.has_tools or self.run.non_responder is not None or _endpoint_config(context) is None:
            return None
        return lambda: logger.warning(
            "Node '%s': its model called a tool, but the client has sent none; the client gets the call as text.",
            context.node_name,
        )

    def _speaker(self, config: Mapping[str, object]) -> str:
        """Return the line ``Name:`` at the end of the conversation that the answer is to start with, or ""."""
        if not self.run.messages or not NODE.flag(config, "useGroupChatTimestampLogic"):
            return ""
        return find_generation_prompt(self.run.messages[-1].get("content"))

    def _respond_streaming(self, context: ExecutionContext, result: object) -> Generator[Any, None, Any]:
        chunks = result if is_stream(result) else value_to_chunks(result)
        stream = StreamingResponseHandler(
            lambda: _endpoint_config(context),
            context.config,
            generation_prompt=self._speaker(context.config),
            request_id=self.run.request_id,
            liveness=self._liveness(),
            has_endpoint=_endpoint_config(context) is not None,
            on_unoffered=self._on_unoffered(context),
        )

        if self.run.non_responder is None:
            self.run.request.delivered = lambda: stream.full_response_text

        def ending() -> tuple[Chunk]:
            self._note_outcome(context)
            self._announce(context, stream.full_response_text)
            return (END,)

        return stream.process_stream(chunks, ending)

    def _pass_child_on(self, context: ExecutionContext, child: ChildRun) -> Generator[Any, None, Any]:
        parts: list[str] = []
        ended = False
        for chunk in child:
            if chunk["token"]:
                parts.append(chunk["token"])
            if chunk is END:
                ended = True
                self._end_early(child)
                self._announce(context, "".join(parts))
            yield chunk
        # A child without nodes ends without a final chunk.
        if not ended:
            self._announce(context, "".join(parts))
            yield END
        return "".join(parts)

    def _end_early(self, child: ChildRun) -> None:
        """End a child that has answered the client and has no nodes left: before the last byte of its answer is sent.

        Nodes that are left run later, and the child keeps its locks for them.
        """
        if self.run.non_responder is None and not self.run.request.background_nodes:
            child.finish()

    def _liveness(self) -> Mapping[str, object] | None:
        value = config_utils.user_setting("livenessToolCall") if self.run.non_responder is None else None
        return value if isinstance(value, Mapping) else None

    def _announce(self, context: ExecutionContext, output: object) -> object:
        """Record that the answer is complete, before the client receives its end."""
        self.times.after_answer(context.config, output)
        self.remembered.note_answer(output)
        remaining = len(self.run.nodes) - self.responder_index - 1
        if self.run.non_responder is None and remaining > 0:
            self.run.request.background_nodes += remaining
        return output

    def _note_outcome(self, context: ExecutionContext) -> None:
        request, handler, calls = self.run.request, context.llm_handler, helper_calls.get()
        if self.run.non_responder is not None:
            if calls is not None:
                calls.append(handler)
            return
        request.endpoint = handler.answering_endpoint[0] if handler is not None else ""
        if handler is not None and handler.llm is not None:
            # A copy: what is cut off the answer later counts as reasoning of the request alone.
            request.outcome = dataclasses.replace(handler.llm.outcome)


def find_responder(nodes: Sequence[Mapping[str, object]]) -> int:
    """Return the index of the answering node: the first that is marked as such, else the last; -1 without nodes."""
    for index, node in enumerate(nodes):
        if is_responder(node):
            return index
    return len(nodes) - 1


def is_stream(result: object) -> TypeGuard[Generator[Chunk, None, None]]:
    """Return whether a node answered with a generator of chunk dicts."""
    return isinstance(result, GeneratorType)


class _RunEndedError(Exception):
    """A node after the responder failed: the run ends, the answer stays."""


def _endpoint_config(context: ExecutionContext) -> Mapping[str, object] | None:
    """Return the endpoint file whose cleaning rules apply: that of the endpoint which answered."""
    handler = context.llm_handler
    if (
        handler is None
        or handler.llm is None
        or context.node_handlers[context.node_type].cleans_itself
        or context.replaced
    ):
        return None
    return handler.answering_endpoint[1]


def _get_node_name(node_type: str, config: Mapping[str, object], name: str) -> str:
    if node_type == "CustomWorkflow":
        return f"{name} -> {NODE.value(config, 'workflowName')}"
    if node_type == "ConditionalCustomWorkflow":
        table = NODE.value(config, "conditionalWorkflows")
        targets = [str(target) for target in table.values()] if isinstance(table, Mapping) else []
        # The summary has one line per node.
        shown = targets if len(targets) <= 3 else [*targets[:2], f"+{len(targets) - 2} more"]
        return f"{name} -> [{', '.join(shown)}]"
    return name


def _get_endpoint_details(handler: LlmHandler | None) -> tuple[str, str]:
    """Return the name and the address of the endpoint that answered, or would have answered."""
    if handler is None:
        return "", ""
    name, config = handler.answering_endpoint
    if not config:
        return name, ""
    return name, mask_url(str(ENDPOINT.value(config, "endpoint") or ""))


# Configuration errors never show the values of these keys, so a placeholder in them makes none private.
_NOT_IN_ERRORS = frozenset(
    {
        "systemPrompt",
        "prompt",
        "lateSystemPrompt",
        "lateSystemPromptForNow",
        "lateInstruction",
        "exampleTurns",
        "args",
        "kwargs",
        "arguments",
        "scoped_variables",
    }
)


def mark_if_private(error: Exception, node: Mapping[str, object]) -> None:
    """Keep a configuration error out of the log of redacted requests if a name in the node comes from variables."""
    # Such an error names a missing file or an unusable value, and that name may be text that a model wrote.
    if isinstance(error, ConfigurationError) and any(
        _has_variable(value) for key, value in node.items() if key not in _NOT_IN_ERRORS
    ):
        error.private = True


def _has_variable(value: object) -> bool:
    """Return whether a text in a configured value may hold a placeholder."""
    if isinstance(value, Mapping):
        return any(map(_has_variable, (*value, *value.values())))
    if isinstance(value, (list, tuple)):
        return any(map(_has_variable, value))
    return "{" in str(value)
