"""The routes of the Workflows pages: the list, one workflow with what its last runs took, and the map."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from statistics import median
from typing import TYPE_CHECKING, TypedDict

from Middleware.addons.console.calls import Call, ConsoleError, Role, Routes
from Middleware.addons.console.workflow_catalog import WorkflowCatalog, WorkflowSummary
from Middleware.addons.records.queries import RunQuery

if TYPE_CHECKING:
    from Middleware.addons.records.archive import RunArchive
    from Middleware.addons.records.model import RunDocument, Span
    from Middleware.addons.records.viewers import Viewer

# The runs from which medians are made.
LAST_RUNS = 100
# dagre needs seconds for some hundred boxes; beyond this there is a box per folder.
MOST_BOXES = 80


class Box(TypedDict):
    """A box of the map; ``kind``: ``user``, ``routing``, ``workflow``, ``folder`` or ``endpoint``."""

    id: str
    kind: str
    label: str


class Arrow(TypedDict):
    """An arrow of the map, with the categories or nodes that it stands for."""

    source: str
    target: str
    labels: list[str]


def register(routes: Routes) -> None:
    """Add the routes."""
    routes.add("GET", "workflows", Role.ALL, workflows)
    routes.add("GET", "map", Role.ALL, map_, query=("user",))
    routes.add("GET", "workflows/FOLDER/NAME", Role.ALL, workflow)


def workflows(call: Call) -> object:
    """Return the list of workflows."""
    return {"workflows": [asdict(listed) for listed in _catalog(call).workflows()]}


def workflow(call: Call) -> object:
    """Return one workflow, its nodes, and what they took in the last runs."""
    path = f"{call.parts['FOLDER']}/{call.parts['NAME']}".removeprefix("/")
    found = _catalog(call).workflow(path)
    if found is None:
        raise ConsoleError(
            404, f"There is no workflow {path[:200]!r}, or is not used by a user whose runs you may see.", where="NAME"
        )
    runs, figures = figures_of(call.records.archive, call.viewer, path)
    nodes = [{**asdict(node), "figures": figures.get(node.index)} for node in found.nodes]
    return {
        **asdict(found.summary),
        "hash": found.hash,
        "nodes": nodes,
        "findings": [asdict(finding) for finding in found.findings],
        "runs": runs,
    }


def map_(call: Call) -> object:
    """Return the map: boxes and arrows, of what one user or any user reaches."""
    user = call.query.get("user")
    boxes, arrows = map_of([one for one in _catalog(call).workflows() if one.users and (not user or user in one.users)])
    return {"boxes": boxes, "arrows": arrows}


def _catalog(call: Call) -> WorkflowCatalog:
    return WorkflowCatalog(call.viewer.users)


# -- figures -----------------------------------------------------------------------------------------------------------


class Figures(TypedDict):
    """What a node took in the last runs: how often it ran and failed, and the median of its times."""

    runs: int
    failed: int
    median_us: int | None


def figures_of(archive: RunArchive, viewer: Viewer, path: str) -> tuple[int, dict[int, Figures]]:
    """Return how many of the last runs had the workflow, and by its number what each of its nodes took in them."""
    times: dict[int, list[int]] = {}
    failed: dict[int, int] = {}
    runs = 0
    for document in archive.documents(RunQuery(limit=LAST_RUNS), viewer):
        nodes = list(nodes_in(document, path))
        runs += bool(nodes)
        for number, span in nodes:
            if span.status in ("ok", "error"):
                times.setdefault(number, []).append(span.duration)
                failed[number] = failed.get(number, 0) + (span.status == "error")
    return runs, {
        number: {"runs": len(took), "failed": failed[number], "median_us": int(median(took))}
        for number, took in times.items()
    }


def nodes_in(document: RunDocument, path: str) -> Iterator[tuple[int, Span]]:
    """Yield the spans of a workflow's nodes in a run, each with the number of the node."""
    inside = {span.id for span in document.spans if span.kind == "workflow" and path_of(span) == path}
    for span in document.spans:
        number = span.attributes.get("node.index")
        if span.kind == "node" and span.parent in inside and isinstance(number, int):
            yield number, span


def path_of(span: Span) -> str:
    """Return the path below ``Workflows`` of the workflow that a span is a run of."""
    folder, name = span.attributes.get("folder"), span.attributes.get("workflow.name")
    return f"{folder}/{name}" if folder else str(name)


# -- the map -----------------------------------------------------------------------------------------------------------


def map_of(listed: Sequence[WorkflowSummary]) -> tuple[list[Box], list[Arrow]]:
    """Return boxes and arrows: users and routings, workflows, endpoints. Too many workflows become their folders."""
    endpoints = {name for one in listed for name in one.endpoints}
    by_folder = len(listed) + len(endpoints) > MOST_BOXES
    boxes: dict[str, Box] = {}
    arrows: dict[tuple[str, str], Arrow] = {}

    def box(kind: str, name: str, label: str) -> str:
        return boxes.setdefault(f"{kind}:{name}", {"id": f"{kind}:{name}", "kind": kind, "label": label})["id"]

    def of(one: WorkflowSummary) -> str:
        return box("folder", one.folder, one.folder) if by_folder else box("workflow", one.path, one.name)

    def arrow(source: str, target: str, label: str = "") -> None:
        found = arrows.setdefault((source, target), {"source": source, "target": target, "labels": []})
        if label and label not in found["labels"]:
            found["labels"].append(label)

    by_path = {one.path: one for one in listed}
    for one in listed:
        for use in one.used_by:
            if use.kind == "category":
                arrow(box("routing", use.path, _stem(use.path)), of(one), use.name)
            elif use.kind != "workflow":
                user = use.name.partition(":")[0] if use.kind in ("model", "default") else _stem(use.path)
                kind = "settings" if use.kind == "settings" else "user"
                arrow(box(kind, user, user), of(one), use.name)
        for child in one.children:
            if child in by_path and of(by_path[child]) != of(one):
                arrow(of(one), of(by_path[child]))
        for name in one.endpoints:
            arrow(of(one), box("endpoint", name, name))
    for one in listed:
        of(one)
    return list(boxes.values()), list(arrows.values())


def _stem(path: str) -> str:
    return path.rpartition("/")[2].removesuffix(".json")
