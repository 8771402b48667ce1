"""The root of what lives as long as the process."""

from __future__ import annotations

import ast
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from Middleware.api.app import create_app
from Middleware.models import process as module
from Middleware.models.process import Process, install, process
from Tests.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
VALUES = {
    "KeyTable",
    "NodeKey",
    "ConfigKey",
    "Process",
    "_State",
    "ResponseBuilderService",
    "Cipher",
    "ServiceHttp",
    "Outside",
}
"""Classes that a module may instantiate when it is imported, besides frozen dataclasses.

Declarations and objects without state; the root itself; and ``_State``, a ``threading.local`` of the template engine:
what it holds belongs to one thread.
"""


class Counter:
    made = 0

    def __init__(self) -> None:
        type(self).made += 1

    def __len__(self) -> int:
        return 0  # an empty cache is an object all the same


@pytest.fixture(autouse=True)
def own_process(monkeypatch: pytest.MonkeyPatch) -> Process:
    monkeypatch.setattr(Counter, "made", 0)
    monkeypatch.setattr(module, "_process", Process())
    return process()


def test_every_caller_gets_the_same_object() -> None:
    found: list[Counter] = []
    threads = [threading.Thread(target=lambda: found.append(process().one(Counter))) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(found) == 20 and Counter.made == 1 and len(set(map(id, found))) == 1


def test_another_process_has_objects_of_its_own() -> None:
    first = process().one(Counter)
    before = install(Process())
    assert process().one(Counter) is not first and before.one(Counter) is first


def test_a_factory_may_ask_for_another_object() -> None:
    def pair() -> tuple[Counter, Counter]:
        return process().one(Counter), process().one(Counter)

    assert len({id(part) for part in process().one(pair)}) == 1
    assert process().factories() == [Counter, pair]


def test_a_substitute_is_never_built(own_process: Process) -> None:
    substitute = Counter()
    own_process.put(Counter, substitute)
    assert process().one(Counter) is substitute and Counter.made == 1


def test_importing_every_module_builds_nothing() -> None:
    paths = [path.relative_to(ROOT).with_suffix("") for path in (ROOT / "Middleware").rglob("*.py")]
    names = sorted(".".join(path.parts) for path in paths if path.name != "__init__")
    code = (
        f"import importlib\nfor name in {names!r}:\n    importlib.import_module(name)\n"
        "from Middleware.models.process import process\nprint(process().factories())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, encoding="utf-8", timeout=100)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_no_module_keeps_an_object_of_its_own() -> None:
    """Classes of this program are instantiated at import only where the instance is a value."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "Middleware").rglob("*.py")}
    classes = {
        node.name
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and not _is_frozen(node)
    } - VALUES
    kept = [
        f"{path.relative_to(ROOT)}:{statement.lineno}"
        for path, tree in trees.items()
        for statement in tree.body
        if isinstance(statement, (ast.Assign, ast.AnnAssign))
        and isinstance(statement.value, ast.Call)
        and _called(statement.value) in classes
    ]
    assert kept == [], "use Middleware.models.process"


def _is_frozen(node: ast.ClassDef) -> bool:
    is_tuple = any(ast.unparse(base) == "NamedTuple" for base in node.bases)
    return is_tuple or any("frozen=True" in ast.unparse(decorator) for decorator in node.decorator_list)


def _called(call: ast.Call) -> str:
    function = call.func
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")


def test_an_app_may_have_a_process_of_its_own() -> None:
    own = Process()
    create_app(own)
    assert process() is own
