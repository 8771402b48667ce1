"""The objects that travel through the engine: one per run, one per node, one per line of the summary."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypedDict, Unpack

from Middleware.models.llm_call import TokenCounts
from Middleware.models.llm_handler import LlmHandler
from Middleware.models.messages import Message
from Middleware.models.request_context import RequestContext
from Middleware.utilities.config.keys.node import NODE
from Middleware.utilities.sensitive_logging_utils import sensitive_log_lazy

logger = logging.getLogger(__name__)

# What a condition results in; it takes no branch of its own, and the node that does names the result.
_RESULTS = ("TRUE", "FALSE")
# What stands for the texts of users, models and tools in ``substitute_authored``: a host that no resolver knows.
STAND_IN = "stand-in.invalid"
# The LLM calls, in order, with which the responders of a helper workflow have answered, None without one. None outside
# of a helper workflow.
helper_calls: ContextVar[list[LlmHandler | None] | None] = ContextVar("wilmer_helper_calls", default=None)

if TYPE_CHECKING:
    from Middleware.workflows.handlers.base.base_workflow_node_handler import BaseHandler


@dataclass(frozen=True)
class RunRequest:
    """One run of one workflow; never changed while it runs.

    Attributes:
        non_responder: None for the responder chain, True for a run whose result becomes a variable.
        scoped_inputs: texts that become ``agent1Input``, ``agent2Input``, ...
        authored_inputs: the same with a stand-in for what users, models and tools wrote; by default, they wrote all.
        chain: names of the workflows from the outermost to this one, to stop endless nesting.
        category_variables: the six routing variables, in a categorization run only.
        api_key_hash, encryption_key: where the data of a client with an API key lies, and what encrypts it.
        partial: ``messages`` are only a part of the conversation.
    """

    request: RequestContext
    workflow_id: str
    workflow_name: str
    nodes: list[dict[str, object]]
    variables: Mapping[str, Any]
    folder: str
    messages: list[Message]
    discussion_id: str | None = None
    stream: bool = False
    non_responder: bool | None = None
    system_prompt_override: str | None = None
    prompt_override: str | None = None
    scoped_inputs: tuple[str, ...] = ()
    authored_inputs: Callable[[], tuple[str, ...]] = tuple
    # Keys and what they encrypt with must not appear in a log or a traceback.
    api_key: str | None = field(default=None, repr=False)
    api_key_hash: str | None = None
    encryption_key: bytes | None = field(default=None, repr=False)
    tools: list[dict[str, object]] | None = None
    tool_choice: object = None
    partial: bool = False
    chain: tuple[str, ...] = ()
    category_variables: Mapping[str, object] = field(default_factory=dict)

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def where(self) -> str:
        """Folder and name of the workflow, for messages."""
        return f"{self.folder}/{self.workflow_name}" if self.folder else self.workflow_name


class Filling(TypedDict, total=False):
    """How a text is filled in; see ``WorkflowVariableManager.apply_variables``."""

    restore: bool
    marked: bool
    authored: bool


class VariableService(Protocol):
    """Fills in the variables of a node's texts (``WorkflowVariableManager``)."""

    def apply_variables(self, text: str, context: ExecutionContext, **how: Unpack[Filling]) -> str: ...

    def fill_early(self, text: str, context: ExecutionContext) -> str: ...


class ChildOptions(TypedDict, total=False):
    """How a child differs from its parent: its folder, its ``agentNInput`` and the prompts of its first node."""

    folder_override: str | None
    scoped_inputs: tuple[str, ...]
    authored_inputs: Callable[[], tuple[str, ...]]
    system_prompt_override: str | None
    prompt_override: str | None


class ChildStarter(Protocol):
    """Starts the workflows that nodes run (``WorkflowManager``)."""

    def start_child(self, context: ExecutionContext, name: str, **options: Unpack[ChildOptions]) -> Iterator[Any]: ...


def name_of(node: Mapping[str, object]) -> str:
    """Return the title of a node, by which logs and errors call it."""
    return str(NODE.value(node, "title") or NODE.value(node, "agentName") or "N/A")


@dataclass
class ExecutionContext:
    """Everything a node handler may need; made afresh for each node and its only argument.

    Attributes:
        config: the node's own object, numbers already converted. Belongs to this node; may be changed.
        messages: the conversation in escaped form (braces as sentinels), shared by the whole run.
        stream: the client streams and this node is the responder.
        agent_outputs: inputs and outputs so far by name (``agent1Output``, ``agent1Input``).
        is_responder: this node's output is the result of the run.
        replaced: the node did not run, because ``RequestContext.outside`` had an output for it.
        run: the frozen request of the run this node belongs to.
    """

    request_id: str
    workflow_id: str
    discussion_id: str | None
    config: dict[str, Any]
    messages: list[Message]
    stream: bool
    workflow_config: Mapping[str, Any] = field(default_factory=dict)
    agent_inputs: dict[str, Any] = field(default_factory=dict)
    agent_outputs: dict[str, object] = field(default_factory=dict)
    llm_handler: LlmHandler | None = None
    workflow_variable_service: VariableService | None = None
    workflow_manager: ChildStarter | None = None
    node_handlers: Mapping[str, BaseHandler] = field(default_factory=dict)
    api_key: str | None = field(default=None, repr=False)
    encryption_key: bytes | None = field(default=None, repr=False)
    api_key_hash: str | None = field(default=None, repr=False)
    tools: list[dict[str, object]] | None = None
    tool_choice: object = None
    is_responder: bool = False
    # The two that hold everything are left out of a log's text, where they would repeat the fields above.
    request: RequestContext = field(default_factory=RequestContext, repr=False)
    run: RunRequest | None = field(default=None, repr=False)
    # One reading per node, taken at first use: two texts of a node must not disagree.
    clock: datetime | None = field(default=None, repr=False)
    replaced: bool = False

    @property
    def node_name(self) -> str:
        return name_of(self.config)

    @property
    def node_type(self) -> str:
        return str(NODE.value(self.config, "type") or "Standard")

    def substitute(self, value: object, *, restore: bool = True) -> str:
        """Return ``value`` as text with this node's variables filled in.

        ``restore=False`` leaves the braces of inserted values escaped, for a text that is going to be filled in again.
        """
        assert self.workflow_variable_service is not None
        return self.workflow_variable_service.apply_variables(str(value), self, restore=restore)

    def substitute_marked(self, text: str) -> str:
        """Return ``text`` as ``substitute`` does, with two marks around each value (``templates.substitution``)."""
        assert self.workflow_variable_service is not None
        return self.workflow_variable_service.apply_variables(text, self, marked=True)

    def substitute_authored(self, value: object) -> str:
        """Return ``value`` as ``substitute`` does, with a stand-in for what users, models and tools wrote."""
        assert self.workflow_variable_service is not None
        return self.workflow_variable_service.apply_variables(str(value), self, authored=True)

    def substitute_early(self, text: str) -> str:
        """Return ``text`` with the variables filled in that are known before the node's endpoint is."""
        assert self.workflow_variable_service is not None
        return self.workflow_variable_service.fill_early(text, self)

    def start_child(self, name: str, **options: Unpack[ChildOptions]) -> Iterator[Any]:
        """Start a workflow as a child of this node; what it yields is the responder's output first."""
        assert self.workflow_manager is not None
        return self.workflow_manager.start_child(self, name, **options)


def note_branch(context: ExecutionContext, branch: str, looked_at: str) -> None:
    """Log the branch that a node takes; the line of the request names those on the way to the answer.

    Args:
        branch: from the configuration. It is logged even if the conversation is redacted.
        looked_at: the value that decided. It may be text of the conversation.
    """
    run = context.run
    where = run.where if run is not None else "-"
    logger.info(
        "Request %s: workflow %s, node '%s' takes the branch %s", context.request_id, where, context.node_name, branch
    )
    sensitive_log_lazy(logger, logging.DEBUG, "Node '%s' looked at: %s", lambda: context.node_name, lambda: looked_at)
    if branch not in _RESULTS and context.is_responder and run is not None and run.non_responder is None:
        context.request.branches.append(branch)


class NodeExecutionInfo(NamedTuple):
    """One finished node, for the execution summary.

    ``counts`` are the tokens of its own LLM calls; ``replaced`` as in ``ExecutionContext``.
    """

    node_index: int
    node_type: str
    node_name: str
    endpoint_name: str
    endpoint_url: str
    execution_time_seconds: float
    counts: TokenCounts | None = None
    replaced: bool = False

    def format_time(self) -> str:
        seconds = self.execution_time_seconds
        if seconds == 1.0:
            return "1 second"
        return f"{seconds:.2f} seconds" if seconds < 1 else f"{seconds:.1f} seconds"

    def __str__(self) -> str:
        tokens = self.counts.in_words if self.counts is not None else ""
        return (
            f"Node {self.node_index}: {self.node_type} || '{self.node_name}' || {self.endpoint_name or 'N/A'} || "
            f"{self.endpoint_url or 'N/A'} || {self.format_time()}{tokens and f' || {tokens}'}"
        )
