"""The base of all node handlers and the declaration of a node type's keys."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from Middleware.exceptions import ConfigValueError
from Middleware.utilities.config.declarations import ConfigKey, KeyTable
from Middleware.utilities.config.keys.node import NODE
from Middleware.utilities.streaming_utils import stream_static_content
from Middleware.utilities.text_utils import whole_number
from Middleware.workflows.models.execution_context import ChildStarter, ExecutionContext, VariableService

_TYPE = NODE.lookup("type")


# The side effects that running a node may have, at the most:
# no: nothing. The output depends on the node's keys, the conversation and an LLM only.
# reads: it reads what others may change: stored data, files, another server.
# writes: it changes data of this installation, or the conversation of the run.
# outside: effects that this program cannot know: those of a script, a command, a tool, a request other than GET and
# HEAD, or another workflow.
Acts = Literal["no", "reads", "writes", "outside"]


class BaseHandler(ABC):
    """Runs the node types in ``KEYS``, each declared once with its keys. Editors show users the docstring of a class.

    ``handlers/registry.py`` finds every class in a module below ``handlers/impl`` that declares ``KEYS``. The other
    attributes are the traits of its types, which the engine, the checks and the workflow tests use. A class without
    them may do anything.

    Attributes:
        acts: the side effects, which decide whether a node may run twice, or at the same time as others.
        barrier: with ``parallelNodes`` everything before the node is done and nothing behind it begun when it runs,
            because it ends the run or changes the conversation.
        reaches_outside: it depends on something beyond this process and its files; workflow tests do not run it.
        runs_workflow: all it does is to run another workflow, whose nodes have side effects of their own.
        cleans_itself: its output is not cleaned by the rules of its endpoint, as each answer in it was on arrival.
        needs_endpoint: it fails without an endpoint of its own.
    """

    KEYS: ClassVar[Mapping[str, tuple[ConfigKey, ...]]] = {}
    TABLES: ClassVar[Mapping[str, KeyTable]] = {}

    acts: ClassVar[Acts] = "outside"
    barrier: ClassVar[bool] = False
    reaches_outside: ClassVar[bool] = False
    runs_workflow: ClassVar[bool] = False
    cleans_itself: ClassVar[bool] = False
    needs_endpoint: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        cls.TABLES = {node_type: KeyTable(keys) for node_type, keys in cls.KEYS.items()}

    def __init__(
        self, workflow_manager: ChildStarter | None = None, workflow_variable_service: VariableService | None = None
    ) -> None:
        self.workflow_manager = workflow_manager
        self.workflow_variable_service = workflow_variable_service

    @abstractmethod
    def handle(self, context: ExecutionContext) -> object:
        """Run one node. Return a string, a tool-call dict, another JSON value, or a generator of chunk dicts."""

    def use_output(self, context: ExecutionContext, output: object) -> object:
        """Return ``output`` without running the node, after changing the run as the node would have done."""
        return output

    @classmethod
    def is_pure(cls, node: Mapping[str, object]) -> bool:
        """Return whether a node with these keys may run in any order with the others, with ``parallelNodes``.

        So may one without side effects, and one that reads only what no node changes: that of another server.
        """
        return cls.acts == "no" or (cls.acts == "reads" and cls.reaches_outside)

    @staticmethod
    def check_endpoint(context: ExecutionContext) -> None:
        """Raise ConfigValueError for a node without an endpoint of its own."""
        if context.llm_handler is None or context.llm_handler.llm is None:
            raise ConfigValueError(
                f"node '{context.node_name}' calls an LLM but names no endpoint",
                json_path="endpointName",
                expected="the name of a file in Endpoints",
            )

    def table(self, context: ExecutionContext) -> KeyTable:
        """Return the keys of the node's type."""
        return self.TABLES[context.config.get(*_TYPE) or "Standard"]

    def value(self, context: ExecutionContext, name: str) -> Any:
        """Return the node's value of a declared key, flags as booleans, its default when absent."""
        config = context.config
        return self.TABLES[config.get(*_TYPE) or "Standard"].value(config, name)

    def number(self, context: ExecutionContext, name: str) -> int:
        """Return a declared whole number; its default for any other value."""
        return int(self.table(context).number(context.config, name))

    def count(self, context: ExecutionContext, name: str) -> Any:
        """Return the value of a declared count: the number that a text with a placeholder becomes, others unchanged."""
        value = self.value(context, name)
        if not isinstance(value, str) or "{" not in value:
            return value
        number = whole_number(context.substitute(value))
        return value if number is None else number

    def text(self, context: ExecutionContext, name: str) -> str:
        """Return a declared text key with variables filled in."""
        value = self.value(context, name)
        return "" if value in (None, "") else context.substitute(value)

    def static_text(self, context: ExecutionContext, text: str) -> Any:
        """Return ``text`` as the node's result: for a streaming client a stream of words, paced for reading."""
        if not context.stream:
            return text
        return stream_static_content(text, context.request.cancel_scope, context.request.outside.paced)
