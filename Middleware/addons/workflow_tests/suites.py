"""The data of one workflow test: messages, replies of the LLM, expectations, and the titles by which it names nodes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from Middleware.models.messages import ToolCall
from Middleware.utilities.config.keys.node import NODE


@dataclass(frozen=True)
class Condition:
    """One condition on a string. ``operation`` is ``equals``, ``contains``, ``matches`` or ``lacks``."""

    operation: str
    text: str

    def holds(self, value: str) -> bool:
        if self.operation == "equals":
            return value == self.text
        if self.operation == "matches":
            return re.search(self.text, value) is not None
        return (self.text in value) is (self.operation == "contains")


Pattern = tuple[Condition, ...]


def fits(pattern: Pattern, value: str) -> bool:
    return all(condition.holds(value) for condition in pattern)


def title_of(node: Mapping[str, object], node_type: str = "") -> str:
    """Return the title by which tests name a node. ``node_type``: the type that an unknown or missing one runs as."""
    return str(
        NODE.value(node, "title")
        or NODE.value(node, "agentName")
        or node_type
        or NODE.value(node, "type")
        or "Standard"
    )


def is_title(name: str, workflow: str, title: str) -> bool:
    """Return whether ``name`` in a test refers to the node ``title`` of ``workflow``."""
    return name in (title, f"{workflow}/{title}")


@dataclass(frozen=True)
class Reply:
    """One answer of the LLM."""

    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True)
class Rule:
    """The replies to certain calls.

    Attributes:
        node: a node's title, also as ``Workflow/title``; "" for all.
        endpoint: "" for all.
        replies: one for each call; the last is repeated.
        fail: the error that the back-end reports instead of answering.
        times: the number of calls that the rule answers; None for any number.
    """

    node: str = ""
    endpoint: str = ""
    prompt: Pattern = ()
    replies: tuple[Reply, ...] = ()
    fail: str | None = None
    times: int | None = None


@dataclass(frozen=True)
class PromptPattern:
    """The patterns for the prompts that a node sent."""

    system: Pattern = ()
    prompt: Pattern = ()


@dataclass(frozen=True)
class Expectations:
    """The patterns for the results of a run; None or empty: not checked."""

    answer: Pattern | None = None
    route: Pattern | None = None
    order: tuple[str, ...] | None = None
    outputs: Mapping[str, Pattern] = field(default_factory=dict)
    prompts: Mapping[str, PromptPattern] = field(default_factory=dict)
    endpoints: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, Pattern] = field(default_factory=dict)
    error: Pattern | None = None


@dataclass(frozen=True)
class Suite:
    """A test file.

    Attributes:
        display: its path relative to the config root, with forward slashes.
        workflow: the name of the workflow next to it.
        folder: the folder of both below ``Workflows``, with forward slashes; "" for ``Workflows`` itself.
        user: the user whose settings apply.
    """

    display: str
    workflow: str
    folder: str
    user: str


@dataclass(frozen=True)
class WorkflowTest:
    """One test. ``number`` is its index in the file, from 0; ``stubs`` has an output for each run of a node."""

    suite: Suite
    number: int
    name: str
    messages: tuple[Mapping[str, Any], ...]
    model: str = ""
    is_request: bool = False
    scoped_inputs: tuple[str, ...] = ()
    stream: bool = False
    tools: tuple[Mapping[str, object], ...] = ()
    rules: tuple[Rule, ...] = ()
    stubs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    expect: Expectations = field(default_factory=Expectations)
