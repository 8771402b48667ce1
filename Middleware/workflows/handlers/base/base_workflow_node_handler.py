"""The base of all node handlers and the declaration of a node type's keys."""
from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from Middleware.utilities.config.declarations import ConfigKey
from Middleware.utilities.streaming_utils import stream_static_content, stream_text
from Middleware.utilities.text_utils import as_flag
from Middleware.workflows.models.execution_context import ExecutionContext


@dataclass(frozen=True)
class NodeKey(ConfigKey):
    """One key of a node type.

    Attributes:
        variables: ``full`` (all variables), ``early`` (those known before the endpoint is) or ``none``.
    """

    variables: str = "none"


COMMON_KEYS: tuple[NodeKey, ...] = (
    NodeKey("type", "str", "Standard", "Kind of the node."),
    NodeKey("title", "str", None, "Name of the node in logs."),
    NodeKey("agentName", "str", None, "Name of the node in logs if there is no title."),
    NodeKey("returnToUser", "bool", False, "Makes the node the responder."),
    NodeKey("is_responder", "bool", None, "Same as returnToUser, and wins over it when present."),
    NodeKey("jinja2", "bool", False, "Texts of this node are Jinja2 templates."),
    NodeKey("endpointName", "str", None, "Endpoint that answers this node's prompt.", "early", names="endpoint"),
    NodeKey("preset", "str", None, "Sampler settings.", "early", names="preset"),
    NodeKey("presetName", "str", None, "Other name of preset.", "early", names="preset"),
    NodeKey("maxResponseSizeInTokens", "int", 400, "Longest answer of the LLM.", "early"),
    NodeKey("maxContextTokenSize", "int", 4096, "Accepted without effect.", "early", inert=True),
    NodeKey("dependsOn", "list", None, "With parallelNodes: nodes to wait for, by number (from 1) or title."),
    NodeKey("parallelSafe", "bool", False, "With parallelNodes: need not keep its order among nodes that act."),
)


Acts = Literal["no", "reads", "writes", "outside"]
"""What running a node does besides giving an output, at the most:

* ``no``: nothing. The output depends on the node's keys, the conversation and an LLM only.
* ``reads``: it looks at what others may change: stored data, files, another server.
* ``writes``: it changes data of this installation, or the conversation of the run.
* ``outside``: what this program cannot know: a script, a command, a tool, a request that is no question, another
  workflow.
"""


class BaseHandler(ABC):
    """Runs the node types in ``KEYS``, each declared once with its keys.

    ``handlers/registry.py`` finds every class in a module below ``handlers/impl`` that declares ``KEYS``. The other
    attributes are the traits of its types, which the engine, the checks and the workflow tests go by. A class without
    them is taken for one that may do anything.

    Attributes:
        acts: whether it matters that a node runs twice, or beside others.
        pure: the nodes of a workflow with ``parallelNodes`` may run in any order with this one.
        barrier: with ``parallelNodes`` everything before the node is done and nothing behind it begun when it runs,
            because it ends the run or changes the conversation.
        reaches_outside: it depends on something beyond this process and its files; workflow tests do not run it.
        cleans_itself: its output is not cleaned by the rules of its endpoint, as each answer in it was on arrival.
        needs_endpoint: it fails without an endpoint of its own.
    """

    KEYS: ClassVar[Mapping[str, tuple[NodeKey, ...]]] = {}

    acts: ClassVar[Acts] = "outside"
    pure: ClassVar[bool] = False
    barrier: ClassVar[bool] = False
    reaches_outside: ClassVar[bool] = False
    cleans_itself: ClassVar[bool] = False
    needs_endpoint: ClassVar[bool] = False

    def __init__(self, workflow_manager: Any = None, workflow_variable_service: Any = None) -> None:
        self.workflow_manager = workflow_manager
        self.workflow_variable_service = workflow_variable_service

    @abstractmethod
    def handle(self, context: ExecutionContext) -> object:
        """Run one node. Returns a text, a tool-call dict, another JSON value, or a generator of chunk dicts."""

    @classmethod
    def is_pure(cls, node: Mapping[str, object]) -> bool:
        """Whether ``pure`` holds for a node with these keys."""
        return cls.pure

    @classmethod
    def key(cls, node_type: str, name: str) -> NodeKey:
        for key in cls.KEYS[node_type]:
            if key.name == name:
                return key
        raise KeyError(f"{node_type} declares no key {name!r}")

    def value(self, context: ExecutionContext, name: str) -> Any:
        """The node's value of a declared key, flags as booleans, its default when absent."""
        key = self.key(str(context.config.get("type") or "Standard"), name)
        value = context.config.get(name, key.default)
        if value is None:
            value = key.default
        return as_flag(value) if key.kind == "bool" else value

    def text(self, context: ExecutionContext, name: str) -> str:
        """A declared text key with variables filled in."""
        value = self.value(context, name)
        if value is None or value == "":
            return ""
        return context.substitute(value)

    def static_text(self, context: ExecutionContext, text: str) -> Any:
        """``text`` as the node's result: a stream of words where the node answers a streaming client, paced for one who
        reads it."""
        if not context.stream:
            return text
        trial = context.request.trial is not None
        return stream_text(text) if trial else stream_static_content(text, context.request.cancel_scope)
