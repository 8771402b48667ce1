"""The nodes of a recorded run, found again by the nodes of its replay."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from Middleware.addons.records.analysis.comparison import chain_of, title_of, type_of
from Middleware.addons.records.analysis.critical_path import SpanTree
from Middleware.addons.records.model import RunDocument, Span, number


@dataclass(frozen=True)
class NodePlace:
    """A node of a run: the workflows around it, outermost first (``me/A > me/B``), its index, and which of its runs."""

    workflow: str
    node: int
    occurrence: int


@dataclass(frozen=True)
class RecordedNode:
    """One recorded run of a node. ``inside``: the ids of the nodes around it."""

    span: Span
    place: NodePlace
    inside: frozenset[int]

    @property
    def title(self) -> str:
        return title_of(self.span)

    @property
    def type(self) -> str:
        return type_of(self.span)

    @property
    def delivered(self) -> bool:
        return self.span.status in ("ok", "stand-in")

    @property
    def output(self) -> object:
        return self.span.texts.get("output", "")


class Recording:
    """The recorded nodes, each to be taken once. Thread-safe.

    Attributes:
        nodes: in the order of their starts.
    """

    def __init__(self, document: RunDocument) -> None:
        tree = SpanTree(document.spans)
        seen: Counter[tuple[str, int]] = Counter()
        self.nodes: list[RecordedNode] = []
        for span in document.spans:
            if span.kind == "node":
                key = chain_of(tree, span), number(span.attributes.get("node.index")) or 0
                seen[key] += 1
                self.nodes.append(RecordedNode(span, NodePlace(*key, seen[key]), _nodes_around(tree, span)))
        self._lock = threading.Lock()
        self._left = {node.span.id: node for node in self.nodes}

    def at(self, place: NodePlace) -> RecordedNode | None:
        return next((node for node in self.nodes if node.place == place), None)

    def take(self, chain: Iterable[str], index: int, title: str, node_type: str) -> RecordedNode | None:
        """Return the next recorded run of a node, which is not returned again; None after the last.

        A node that has moved since within its workflow is recognised by its title and type.
        """
        workflow = chain_text(chain)
        with self._lock:
            here = [node for node in self._left.values() if node.place.workflow == workflow]
            same = [node for node in here if (node.title, node.type) == (title, node_type)]
            found = next((node for node in same if node.place.node == index), same[0] if same else None)
            if found is not None:
                del self._left[found.span.id]
            return found

    def pass_over(self, node: RecordedNode) -> None:
        """Take all nodes inside a node that does not run."""
        with self._lock:
            self._left = {key: left for key, left in self._left.items() if node.span.id not in left.inside}


def chain_text(chain: Iterable[str]) -> str:
    """Return the workflows around a node as one text; those directly below ``Workflows`` have no folder."""
    return " > ".join(name.lstrip("/") for name in chain)


def _nodes_around(tree: SpanTree, span: Span) -> frozenset[int]:
    found = set()
    around = tree.parent(span)
    while around is not None:
        if around.kind == "node":
            found.add(around.id)
        around = tree.parent(around)
    return frozenset(found)
