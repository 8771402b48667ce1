"""The data of one workflow test: messages, replies of the LLM, and expectations."""
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
        path: its path.
        display: its path relative to the config root, with forward slashes.
        workflow: the name of the workflow beside it.
        folder: the folder of both below ``Workflows``, with forward slashes; "" for ``Workflows`` itself.
        user: the user whose settings apply.
    """

    path: str
    display: str
    workflow: str
    folder: str
    user: str


@dataclass(frozen=True)
class WorkflowTest:
    """One test. ``number`` is its index in the file, from 0."""

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
