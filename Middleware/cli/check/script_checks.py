"""What can be seen of a Python script without running it."""
from __future__ import annotations

import ast
import os
from functools import lru_cache

from Middleware.utilities.config.check import nearest
from Middleware.workflows.tools.dynamic_module_loader import text_of

MAX_BYTES = 1_000_000
ENTRY = "Invoke"


def script_mistake(path: str) -> str:
    """What keeps a script from being run; "" for nothing.

    It is not executed. A file that cannot be read, or is too large to be looked at, counts as right.
    """
    try:
        facts = os.stat(path)
        return _mistake(path, facts.st_mtime_ns, facts.st_size) if facts.st_size <= MAX_BYTES else ""
    except (OSError, ValueError):  # ValueError: NUL in the path or in the file
        return ""


@lru_cache(maxsize=256)
def _mistake(path: str, _modified: int, _size: int) -> str:
    with open(path, "rb") as file:
        source = file.read()
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        return f"cannot be loaded: {text_of(error)}"
    except (RecursionError, MemoryError):
        return ""
    if ENTRY.encode() in source or _takes_all_names(tree):  # however it comes about
        return ""
    functions = [node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    near = nearest(ENTRY, functions)
    return f"defines no function {ENTRY}" + (f"; is '{near}' meant to be it?" if near else "")


def _takes_all_names(tree: ast.AST) -> bool:
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    return any(alias.name == "*" for node in imports for alias in node.names)
