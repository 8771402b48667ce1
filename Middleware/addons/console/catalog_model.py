"""The workflows as they are connected, with the fields of the console's API."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class WorkflowUse:
    """One thing that uses a workflow.

    Attributes:
        kind: ``category`` (of a routing), ``model`` (that clients choose), ``default`` (of a user), ``key`` (of a
            user's file), ``settings`` (of memories) or ``workflow`` (with a node that runs it).
        name: of the category, the model, the user, the key or the workflow.
        path: of the file that says so, below the config root; "" if no file does.
        node: the number of the node, from 1; 0 for the others.
    """

    kind: str
    name: str
    path: str = ""
    node: int = 0


@dataclass
class WorkflowSummary:
    """A workflow in a list.

    Attributes:
        path: of the file, below the config root.
        nodes: how many it has.
        endpoints: those that its nodes name.
        children: the paths of the workflows that its nodes run.
        users: those who reach it.
    """

    path: str
    folder: str
    name: str
    nodes: int = 0
    endpoints: list[str] = field(default_factory=list)
    children: list[str] = field(default_factory=list)
    users: list[str] = field(default_factory=list)
    used_by: list[WorkflowUse] = field(default_factory=list)
    problem: str = ""


@dataclass(frozen=True)
class Child:
    """A workflow that a node runs; ``path`` is "" if its name has a variable, or there is no such file."""

    name: str
    path: str


@dataclass(frozen=True)
class WorkflowFinding:
    """A finding of the check about a workflow, in words."""

    severity: str
    text: str
    line: int | None
    column: int | None


@dataclass
class Node:
    """A node of a workflow.

    Attributes:
        index: from 1.
        type: what it runs as.
        uses: the numbers of the nodes whose outputs its texts contain.
        after_answer: it runs when the answer is out.
        line: of its beginning in the file.
        json: as it is written, without secrets; None if that cannot be read.
    """

    index: int
    title: str
    type: str
    endpoints: list[str]
    preset: str
    responder: bool
    after_answer: bool
    uses: list[int]
    children: list[Child]
    line: int | None
    json: object = None
    findings: list[WorkflowFinding] = field(default_factory=list)


@dataclass
class Workflow:
    """A workflow with its nodes.

    Attributes:
        findings: those about the file as a whole.
        hash: of the file's text without secrets, as recorded runs have it.
    """

    summary: WorkflowSummary
    nodes: list[Node]
    findings: list[WorkflowFinding]
    hash: str = ""
