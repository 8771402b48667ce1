"""What the product's design documents name is in the tree, or in the table that says where that job is done now."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from Middleware.api.app import create_app
from Middleware.workflows.managers.variable_table import VARIABLES
from Tests.docs.pages import moved_names
from Tests.integration.launcher import PROJECT
from Tests.tables import table

DATA = Path(__file__).with_name("design_documents.txt")


def entries() -> list[tuple[str, str]]:
    """Each entry of the data with the heading above it."""
    kind, found = "", []
    for line in DATA.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            kind = line.strip("[]")
        elif line and not line.startswith("#"):
            found.append((kind, line))
    return found


@cache
def names_in(folder: Path) -> frozenset[str]:
    return frozenset(path.name for path in folder.iterdir()) if folder.is_dir() else frozenset()


@cache
def program() -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted((PROJECT / "Middleware").rglob("*.py")))


def is_path(name: str) -> bool:
    """Return whether there is such a file or folder, with these capital letters on every system."""
    return all(
        part in names_in(PROJECT.joinpath(*name.split("/")[:depth])) for depth, part in enumerate(name.split("/"))
    )


def target(path: str) -> Any:
    return importlib.import_module(path.removesuffix(".py").replace("/", "."))


def is_name(path: str, name: str) -> bool:
    """Return whether a module has a name. That of a class may also be a field, or set in a method."""
    owner = target(path)
    *outer, last = name.split(".")
    for each in outer:
        owner = getattr(owner, each, None)
    if owner is None or hasattr(owner, last):
        return owner is not None
    return inspect.isclass(owner) and (
        last in inspect.get_annotations(owner)
        or bool(re.search(rf"\bself\.{last}\b[^=\n]* = ", inspect.getsource(owner)))
    )


def is_call(path: str, written: str) -> bool:
    call = ast.parse(written, mode="eval").body
    assert isinstance(call, ast.Call)
    try:
        inspect.signature(getattr(target(path), ast.unparse(call.func))).bind(
            *call.args, **{str(keyword.arg): keyword.value for keyword in call.keywords}
        )
    except TypeError:
        return False
    return True


def is_route(name: str) -> bool:
    method, path = name.split()
    return any(rule.rule == path and method in (rule.methods or ()) for rule in create_app().url_map.iter_rules())


IS_THERE: Mapping[str, Callable[[str], bool]] = {
    "paths": is_path,
    "names": lambda entry: is_name(*entry.split(" ", 1)),
    "calls": lambda entry: is_call(*entry.split(" ", 1)),
    "routes": is_route,
    "strings": lambda name: f'"{name}"' in program(),
    "variables": lambda name: name.strip("{}") in VARIABLES,
    "words": lambda name: re.search(rf"\b{name}\b", program()) is not None,
}


def shown(kind: str, entry: str) -> str:
    """Return an entry as the table has it: names without their file."""
    return entry.split(" ", 1)[1] if kind in ("names", "calls") else entry


@table("kind, entry", entries())
def test_a_name_is_in_the_tree_or_in_the_table(kind: str, entry: str) -> None:
    assert IS_THERE[kind](entry) is not (shown(kind, entry) in moved_names()), "in neither, or in both"


def test_the_table_has_no_other_names() -> None:
    assert moved_names() <= {shown(kind, entry) for kind, entry in entries()}


def test_what_is_not_there_is_noticed() -> None:
    assert {kind for kind, _ in entries()} == set(IS_THERE) and len(entries()) > 340
    assert not any(IS_THERE[kind](f"{entry}x") for kind, entry in entries() if kind != "calls")
