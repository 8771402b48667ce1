"""One test of a workflow, and what the LLM answers in it."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from Middleware.cli.workflow_tests.patterns import Pattern
from Middleware.models.messages import ToolCall


@dataclass(frozen=True)
class Reply:
    """One answer of the LLM."""

    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True)
class Rule:
    """Which calls get which answers.

    Attributes:
        node: a node's title, also as ``Workflow/title``; "" for all.
        endpoint: "" for all.
        replies: one for each call, the last repeats.
        fail: what the back-end reports instead of answering.
        times: how many calls it answers; None for any number.
    """

    node: str = ""
    endpoint: str = ""
    prompt: Pattern = ()
    replies: tuple[Reply, ...] = ()
    fail: str | None = None
    times: int | None = None


@dataclass(frozen=True)
class PromptPattern:
    """What must hold of the texts that a node sent."""

    system: Pattern = ()
    prompt: Pattern = ()


@dataclass(frozen=True)
class Expectations:
    """What must hold after a run; None and empty: anything."""

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
        path: where it is.
        display: its path relative to the config root, with forward slashes.
        workflow: name of the workflow beside it.
        folder: of both, below ``Workflows``, with forward slashes; "" for ``Workflows`` itself.
        user: whose settings count.
    """

    path: str
    display: str
    workflow: str
    folder: str
    user: str


@dataclass(frozen=True)
class WorkflowTest:
    """One test. ``number`` is its place in the file, from 0."""

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
    stubs: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    expect: Expectations = field(default_factory=Expectations)
