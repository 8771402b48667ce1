"""Two runs next to each other: their nodes aligned, and the configuration files in which they differ."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypedDict

from Middleware.addons.records.analysis.critical_path import SpanTree
from Middleware.addons.records.analysis.prefix import last_attempt, payload_of
from Middleware.addons.records.model import ConfigVersion, RunDocument, Span, number
from Middleware.addons.records.payloads import prompt_parts
from Middleware.utilities.config.users import CURRENT_USER_FILE

Sameness: TypeAlias = Literal["same", "changed"]


class StepOfRun(TypedDict):
    """A node of one of the two runs, as the API sends it. The tokens are sums over its own calls."""

    span: int
    us: int
    tokens_in: int | None
    tokens_out: int | None
    endpoint: str
    status: str


class Step(TypedDict):
    """A row of the comparison, as the API sends it.

    Attributes:
        workflow, title: as in the run that has the node, the newer title if it was renamed.
        occurrence: counts the runs of this node of this workflow from 1.
        depth: how many workflows are around that of the node.
        a, b: None where a run has no such node.
        text, prompt: whether the outputs and the prompts are the same; None if one was not kept.
    """

    workflow: str
    node: int | None
    title: str
    type: str
    occurrence: int
    depth: int
    a: StepOfRun | None
    b: StepOfRun | None
    text: Sameness | None
    prompt: Sameness | None


class ConfigChange(TypedDict):
    """A configuration file that differs; a hash is None if that run did not use the file."""

    path: str
    change: Literal["changed", "new", "unused"]
    a: str | None
    b: str | None


@dataclass(frozen=True)
class _ComparedRun:
    tree: SpanTree
    # By the id of a node's span.
    occurrences: dict[int, int]

    @staticmethod
    def of(document: RunDocument) -> _ComparedRun:
        tree = SpanTree(document.spans)
        seen: Counter[tuple[str, str, str]] = Counter()
        occurrences = {}
        for span in document.spans:
            if span.kind == "node":
                key = node_key(tree, span)
                seen[key] += 1
                occurrences[span.id] = seen[key]
        return _ComparedRun(tree, occurrences)


def node_key(tree: SpanTree, node: Span) -> tuple[str, str, str]:
    """Return the chain of workflows around a node, its index and its title; equal for all runs of the same node."""
    return chain_of(tree, node), str(node.attributes.get("node.index")), title_of(node)


def chain_of(tree: SpanTree, span: Span) -> str:
    """Return the workflows around a span from the outermost on, each with its folder: ``me/A > me/B``."""
    names: list[str] = []
    around = tree.parent(span)
    while around is not None:
        if around.kind == "workflow":
            names.append(workflow_name(around))
        around = tree.parent(around)
    return " > ".join(reversed(names))


def workflow_name(workflow: Span) -> str:
    name, folder = str(workflow.attributes.get("workflow.name") or workflow.name), workflow.attributes.get("folder")
    return f"{folder}/{name}" if folder else name


def title_of(node: Span) -> str:
    return str(node.attributes.get("node.title") or node.name)


def type_of(node: Span) -> str:
    return str(node.attributes.get("node.type") or "")


# -- steps -------------------------------------------------------------------------------------------------------------


def aligned_steps(a: RunDocument, b: RunDocument) -> list[Step]:
    """Return the nodes of two runs, each next to the same node of the other run where that has one.

    Nodes are the same if they have the same title and type at corresponding places, so that nodes which were added or
    removed do not shift the others.
    """
    first, second = _ComparedRun.of(a), _ComparedRun.of(b)
    return list(_aligned(first, second, _inner(first.tree, None), _inner(second.tree, None), 0))


def _inner(tree: SpanTree, span: Span | None) -> list[Span]:
    """Return the workflows that a span started itself, also through a route or a pass over memories."""
    found: list[Span] = []
    for child in tree.children(span):
        found += [child] if child.kind == "workflow" else _inner(tree, child) if child.kind != "node" else []
    return found


def _aligned(
    a: _ComparedRun, b: _ComparedRun, runs_a: Sequence[Span], runs_b: Sequence[Span], depth: int
) -> Iterator[Step]:
    for run_a, run_b in _pairs(runs_a, runs_b, workflow_name, lambda run: ""):
        for node_a, node_b in _pairs(_nodes(a, run_a), _nodes(b, run_b), _title_and_type, type_of):
            yield _step(a, b, run_a, run_b, node_a, node_b, depth)
            inner_a = _inner(a.tree, node_a) if node_a is not None else ()
            inner_b = _inner(b.tree, node_b) if node_b is not None else ()
            yield from _aligned(a, b, inner_a, inner_b, depth + 1)


def _title_and_type(node: Span) -> str:
    return f"{title_of(node)}\0{type_of(node)}"


def _nodes(side: _ComparedRun, run: Span | None) -> list[Span]:
    if run is None:
        return []
    nodes = [span for span in side.tree.children(run) if span.kind == "node"]
    # Parallel nodes start in any order.
    return sorted(nodes, key=lambda node: (number(node.attributes.get("node.index")) or 0, node.id))


def _pairs(
    a: Sequence[Span], b: Sequence[Span], key: Callable[[Span], str], weak_key: Callable[[Span], str]
) -> Iterator[tuple[Span | None, Span | None]]:
    """Yield the spans with the same key as pairs, in the order of both lists, and the others alone.

    Where the lists differ at the same length, spans with the same weak key are pairs, as they were renamed.
    """
    matcher = difflib.SequenceMatcher(None, [key(span) for span in a], [key(span) for span in b], autojunk=False)
    for tag, a1, a2, b1, b2 in matcher.get_opcodes():
        renamed = (
            tag == "replace"
            and a2 - a1 == b2 - b1
            and all(weak_key(one) == weak_key(other) for one, other in zip(a[a1:a2], b[b1:b2], strict=True))
        )
        if tag == "equal" or renamed:
            yield from zip(a[a1:a2], b[b1:b2], strict=True)
        else:
            yield from ((span, None) for span in a[a1:a2])
            yield from ((None, span) for span in b[b1:b2])


def _step(
    a: _ComparedRun,
    b: _ComparedRun,
    run_a: Span | None,
    run_b: Span | None,
    node_a: Span | None,
    node_b: Span | None,
    depth: int,
) -> Step:
    node, run, side = (node_b, run_b, b) if node_b is not None else (node_a, run_a, a)
    assert node is not None
    return {
        "workflow": workflow_name(run) if run is not None else "",
        "node": number(node.attributes.get("node.index")),
        "title": title_of(node),
        "type": type_of(node),
        "occurrence": side.occurrences[node.id],
        "depth": depth,
        "a": _figures(a.tree, node_a),
        "b": _figures(b.tree, node_b),
        "text": _sameness(_output(node_a), _output(node_b)),
        "prompt": _sameness(_prompt(a.tree, node_a), _prompt(b.tree, node_b)),
    }


def _figures(tree: SpanTree, node: Span | None) -> StepOfRun | None:
    if node is None:
        return None
    calls = own_calls(tree, node)
    endpoint = node.attributes.get("endpoint")
    return {
        "span": node.id,
        "us": node.duration,
        "tokens_in": _tokens(tree, calls, "usage.input_tokens"),
        "tokens_out": _tokens(tree, calls, "usage.output_tokens"),
        "endpoint": str(endpoint) if endpoint else "",
        "status": node.status,
    }


def own_calls(tree: SpanTree, node: Span) -> list[Span]:
    """Return the LLM calls of a node itself, without those of workflows that it runs."""
    found: list[Span] = []
    for child in tree.children(node):
        if child.kind == "llm":
            found.append(child)
        elif child.kind != "workflow":
            found += own_calls(tree, child)
    return found


def _tokens(tree: SpanTree, calls: Sequence[Span], name: str) -> int | None:
    counts = [
        number(attempt.attributes.get(name)) for call in calls if (attempt := last_attempt(tree, call)) is not None
    ]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _output(node: Span | None) -> object:
    return None if node is None else node.texts.get("output")


def _prompt(tree: SpanTree, node: Span | None) -> object:
    """Return the prompts of a node's calls without their samplers; None if it made none, or one was not kept."""
    if node is None:
        return None
    payloads = [payload_of(tree, call) for call in own_calls(tree, node)]
    kept = [payload for payload in payloads if payload is not None]
    return (
        [[(part.role, part.text) for part in prompt_parts(payload)] for payload in kept]
        if kept and len(kept) == len(payloads)
        else None
    )


def _sameness(a: object, b: object) -> Sameness | None:
    return None if a is None or b is None else "same" if a == b else "changed"


# -- configuration -----------------------------------------------------------------------------------------------------


def config_changes(a: Sequence[ConfigVersion], b: Sequence[ConfigVersion]) -> list[ConfigChange]:
    """Return the files whose text differs between two runs, and those that only one of them used, by path."""
    before, after = ({version["path"]: version["hash"] for version in side} for side in (a, b))
    # It names the user of requests that name none, and a replay names its own.
    paths = {*before, *after} - {f"Users/{CURRENT_USER_FILE}.json"}
    return [
        {
            "path": path,
            "change": "new" if path not in before else "changed" if path in after else "unused",
            "a": before.get(path),
            "b": after.get(path),
        }
        for path in sorted(paths)
        if before.get(path) != after.get(path)
    ]
