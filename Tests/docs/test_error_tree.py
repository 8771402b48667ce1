"""The drawing at the top of ``Middleware/exceptions`` has each error of the core, and add-ons derive theirs from it."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from Tests.integration.launcher import PROJECT
from Tests.tables import table

TREE = "exceptions"
ROOTS = ("WilmerError", "OperatorError")
NEVER_LEAVES_ITS_MODULE = {
    "_BodyTooLargeError": "ends the reading of a body, which answers with 413",
    "_BrokenConnectionError": "makes a statement start again on another connection",
    "_NoAnswerError": "becomes the state of a back-end on the page",
    "_NoKeyError": "becomes a ConfigValueError that names the endpoint",
    "_RunEndedError": "ends a run after its answer, without a failure for the caller",
    "_ServerFileError": "becomes an MCPToolCallError that names the file",
    "_UnknownConstantError": "becomes a mistake with line and column",
}
_LINE = re.compile(r"^(?P<indent>[ |]*?)(?:[|`]-- )?(?P<name>\w+Error|\w+Exception)(?=\s|$)(?P<rest>.*)$")
_ALSO = re.compile(r"\(also ([\w.]+)")
_MODULE = re.compile(r"(?<![\w/.])((?:\w+/)+\w+)")


@dataclass(frozen=True)
class Error:
    """A class: its name, the module below ``Middleware`` that defines it, and the names of its bases."""

    name: str
    module: str
    bases: tuple[str, ...]


def classes_in(source: str, module: str) -> Iterator[Error]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            yield Error(node.name, module, tuple(ast.unparse(base) for base in node.bases))


@cache
def classes() -> dict[str, Error]:
    """All classes whose name is that of an error, or that derive from one; by name."""
    root = PROJECT / "Middleware"
    modules = {path.relative_to(root).with_suffix("").as_posix(): path for path in sorted(root.rglob("*.py"))}
    found = [
        each
        for module, path in modules.items()
        for each in classes_in(path.read_text(encoding="utf-8"), module.removesuffix("/__init__"))
    ]
    by_name = {each.name: each for each in found}
    errors = [each for each in found if is_error(each.name, by_name)]
    assert len({each.name for each in errors}) == len(errors), "two errors have the same name"
    return {each.name: each for each in errors}


def is_error(name: str, by_name: dict[str, Error]) -> bool:
    last = name.rpartition(".")[2]
    built_in = getattr(builtins, last, None)
    if isinstance(built_in, type) and issubclass(built_in, BaseException):
        return True
    return last in by_name and any(is_error(base, by_name) for base in by_name[last].bases)


def is_in_tree(name: str) -> bool:
    return name in ROOTS or (name in classes() and any(is_in_tree(base) for base in classes()[name].bases))


@dataclass(frozen=True)
class Drawn:
    """A line of the drawing: the class above it, "" for a root, further bases, and the module, "" for that of all."""

    name: str
    parent: str
    also: str
    module: str


def drawing(text: str) -> list[Drawn]:
    """Return the lines of a drawing; those without a class, such as a sentence, are left out."""
    found: list[Drawn] = []
    above: list[tuple[int, str]] = []
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        depth = match.start("name")
        above = [entry for entry in above if entry[0] < depth]
        also, module = _ALSO.search(match["rest"]), _MODULE.search(match["rest"])
        parent = above[-1][1] if above else ""
        inherited = next((drawn.module for drawn in found if drawn.name == parent), "")
        found.append(Drawn(match["name"], parent, also[1] if also else "", module[1] if module else inherited))
        above.append((depth, match["name"]))
    return found


def drawn() -> dict[str, Drawn]:
    text = ast.get_docstring(ast.parse((PROJECT / "Middleware/exceptions/__init__.py").read_text(encoding="utf-8")))
    lines = drawing((text or "").partition("A path names")[0])
    assert len({line.name for line in lines}) == len(lines) > 40
    return {line.name: line for line in lines}


@table("error", sorted(drawn().values(), key=lambda line: line.name), ids=lambda line: line.name)
def test_a_drawn_error_is_there_as_it_is_drawn(error: Drawn) -> None:
    found = classes()[error.name]
    expected = [base for base in (error.parent or "Exception", error.also) if base]
    assert [*found.bases] == expected and found.module == (error.module or TREE)


def test_each_error_of_the_core_is_drawn() -> None:
    core = {name for name, error in classes().items() if not error.module.startswith("addons/") and name[0] != "_"}
    assert core == set(drawn())


def test_each_error_derives_from_the_tree() -> None:
    others = {name for name in classes() if not is_in_tree(name)}
    assert others == set(NEVER_LEAVES_ITS_MODULE) and all(name.startswith("_") for name in others)


def test_another_parent_and_another_module_are_noticed() -> None:
    lines = drawing("AError\n|-- BError (also ValueError) a/b\n|   `-- CError\n`-- DError   text a/b.\n\nEError")
    assert lines == [
        Drawn("AError", "", "", ""),
        Drawn("BError", "AError", "ValueError", "a/b"),
        Drawn("CError", "BError", "", "a/b"),
        Drawn("DError", "AError", "", "a/b"),
        Drawn("EError", "", "", ""),
    ]
