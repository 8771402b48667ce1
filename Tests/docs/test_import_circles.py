"""Imports for types and in functions count too: a reader of a module has to know what it names."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import grimp

ROOMS = ("cli", "api", "workflows", "services", "llmapis", "utilities", "models", "exceptions", "common")
"""The rooms of the core, from the highest floor down; the last three are on one floor."""
LOWEST_FLOOR = ROOMS.index("models")
OUTSIDE_OF_THE_CORE = len(ROOMS)
LARGEST_CIRCLE = 8
MOST_ARROWS_UP = 2


@cache
def imports() -> grimp.ImportGraph:
    return grimp.build_graph("Middleware", cache_dir=None)


def circles(graph: grimp.ImportGraph) -> set[frozenset[str]]:
    """The sets of modules each of which needs all others."""
    found = (
        (graph.find_upstream_modules(name) & graph.find_downstream_modules(name)) | {name} for name in graph.modules
    )
    return {frozenset(circle) for circle in found if len(circle) > 1}


def arrows_up(graph: grimp.ImportGraph) -> list[str]:
    """The imports of modules from a higher floor."""
    return sorted(
        f"{name} -> {other}"
        for name in graph.modules
        if _floor(name) < OUTSIDE_OF_THE_CORE
        for other in graph.find_modules_directly_imported_by(name)
        if _floor(other) < _floor(name)
    )


def _floor(module: str) -> int:
    """The floor of a module, counted from the top. Add-ons have contracts of their own in ``pyproject.toml``."""
    room = [*module.split("."), ""][1]
    return min(ROOMS.index(room), LOWEST_FLOOR) if room in ROOMS else OUTSIDE_OF_THE_CORE


def test_no_circle_is_large() -> None:
    assert {tuple(sorted(circle)) for circle in circles(imports()) if len(circle) > LARGEST_CIRCLE} == set()


def test_few_imports_lead_up() -> None:
    assert len(found := arrows_up(imports())) <= MOST_ARROWS_UP, found


def test_that_imports_for_types_count() -> None:
    named_for_types = imports().find_modules_directly_imported_by("Middleware.llmapis.call_watch")
    assert "Middleware.llmapis.handlers.base.backend_call" in named_for_types
    assert len(imports().modules) > 300


def test_that_a_circle_and_an_arrow_are_found() -> None:
    graph = grimp.ImportGraph()
    circle = ("Middleware.api.a", "Middleware.models.b", "Middleware.models.c")
    for importer, imported in pairwise((*circle, circle[0], "Middleware.addons.d", "Middleware.cli.e")):
        graph.add_import(importer=importer, imported=imported)
    assert circles(graph) == {frozenset(circle)}
    assert arrows_up(graph) == ["Middleware.models.c -> Middleware.api.a"]
