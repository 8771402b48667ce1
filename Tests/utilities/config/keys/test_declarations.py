"""What is declared about the keys of all kinds of files makes sense, and the program reads what is declared."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from Middleware.addons.check.file_check import KINDS
from Middleware.llmapis import api_types
from Middleware.utilities import config_utils
from Middleware.utilities.config.declarations import ONLY_TRUE, SWITCHED_ON, ConfigKey, KeyTable
from Middleware.utilities.config.keys import (
    api_type,
    endpoint,
    mcp_server,
    user,
)
from Middleware.utilities.config.keys.node import COMMON_KEYS, NODE, WORKFLOW_FILE
from Middleware.utilities.text_utils import ESTIMATION_LEVELS, estimation_level_multiplier
from Middleware.workflows.handlers.registry import node_types
from Tests.tables import table

ROOT = Path(__file__).resolve().parents[4]
SOURCES = [path for folder in ("Middleware", "Scripts") for path in sorted((ROOT / folder).rglob("*.py"))]
TABLES: Mapping[str, KeyTable] = {
    "USER": user.USER,
    "ENDPOINT": endpoint.ENDPOINT,
    "API_TYPE": api_type.API_TYPE,
    "THINKING": api_type.THINKING,
    "STRUCTURED_OUTPUT": api_type.STRUCTURED_OUTPUT,
    "MCP_SERVER": mcp_server.MCP_SERVER,
    "ROUTING": user.ROUTING,
    "PROMPT_TEMPLATE": api_type.PROMPT_TEMPLATE,
    "CURRENT_USER": user.CURRENT_USER,
    "WORKFLOW_FILE": WORKFLOW_FILE,
    "NODE": NODE,
    "LIVENESS_CALL": user.LIVENESS_CALL,
    "PRESET_SAMPLERS": endpoint.PRESET_SAMPLERS,
}
TYPES: Mapping[str, tuple[type, ...]] = {
    "str": (str,),
    "bool": (bool,),
    "int": (int,),
    "number": (int, float),
    "float": (int, float),
    "list": (list, tuple),
    "object": (dict,),
    "any": (object,),
}
FILES = {
    "memory-settings",
    "compactor-settings",
    "endpoint",
    "api-type",
    "preset",
    "prompt-template",
    "routing",
    "workflow",
    "user",
    "mcp-server",
    "structured-output",
}
FOLDERS = {"endpoint-folder", "preset-folder", "preset-type-folder", "workflow-folder", "structured-output-folder"}
OUTSIDE = {"directory", "file", "script"}


def nested(where: str, keys: Iterable[ConfigKey]) -> Iterator[tuple[str, ConfigKey]]:
    for key in keys:
        yield f"{where}: {key.name}", key
        yield from nested(f"{where}: {key.name}", key.keys)


def groups() -> Iterator[tuple[str, tuple[ConfigKey, ...]]]:
    for kind in KINDS.values():
        yield kind.name, (*kind.keys, *kind.top)
    yield "all nodes", COMMON_KEYS
    for node_type, handler in node_types().items():
        yield node_type, handler.KEYS[node_type]


ALL = [pytest.param(key, id=name) for where, keys in groups() for name, key in nested(where, keys)]


# -- each declaration --------------------------------------------------------------------------------------------------


@table("key", ALL)
def test_a_key_is_explained_in_one_sentence(key: ConfigKey) -> None:
    assert key.meaning.endswith(".") and key.meaning == key.meaning.strip() and "\n" not in key.meaning
    assert key.meaning[:1] == key.meaning[:1].upper() and len(key.meaning) > 5


@table("key", ALL)
def test_a_default_is_of_the_kind_and_among_the_choices(key: ConfigKey) -> None:
    assert key.kind in TYPES and set(key.also) <= TYPES.keys() and (key.entries or "any") in TYPES
    if key.default is None:
        return
    assert isinstance(key.default, TYPES[key.kind])
    assert isinstance(key.default, bool) is (key.kind == "bool") or key.kind == "any"
    chosen = key.default if key.kind == "list" else [key.default]
    assert not key.choices or set(chosen) <= set(key.choices) or (key.required and key.default == "")
    if key.kind in ("int", "number"):
        assert key.least is None or key.default >= key.least
        assert key.most is None or key.default <= key.most


@table("key", ALL)
def test_bounds_choices_and_names_fit_the_kind(key: ConfigKey) -> None:
    numeric = key.kind in ("int", "number", "float")
    assert numeric or (key.least is None and key.most is None)
    assert key.least is None or key.most is None or key.least < key.most
    # The choices of a list are those of its entries.
    kind = key.entries if key.kind == "list" else key.kind
    assert not key.choices or (kind == "str" and len(set(key.choices)) == len(key.choices) > 1)
    assert not key.names or (key.names in FILES | FOLDERS | OUTSIDE and key.kind in ("str", "list", "object", "any"))
    assert not key.keys or key.kind in ("object", "list")
    assert not key.entries or {key.kind, *key.also} & {"list", "object"}
    assert not (key.required and key.inert)
    assert KINDS.keys() >= FILES


@table(("where", "keys"), [pytest.param(where, keys, id=where) for where, keys in groups()])
def test_no_key_is_declared_twice(where: str, keys: tuple[ConfigKey, ...]) -> None:
    names = [name for name, _ in nested(where, keys)]
    assert len(set(names)) == len(names)


# -- the readers -------------------------------------------------------------------------------------------------------

USER_READERS: Mapping[str, int] = {
    "user_flag": 0,
    "user_int": 0,
    "user_name_setting": 0,
    "user_setting": 0,
    "flag_in": 1,
    "int_in": 1,
    "user_name": 0,
}
TABLE_READERS: Mapping[str, int] = {"value": 1, "flag": 1, "read": 1, "number": 1, "text": 1, "has": 1, "lookup": 0}


def trees() -> Iterator[tuple[Path, ast.Module]]:
    for path in SOURCES:
        yield path, ast.parse(path.read_text(encoding="utf-8"))


def text(node: ast.AST, path: Path) -> str | None:
    """The text that an argument is: written there, or a constant of the module."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.Name) and node.id.isupper():
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        value = getattr(importlib.import_module(module), node.id, None)
        return value if isinstance(value, str) else None
    return None


def called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def table_of(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) and node.id in TABLES else ""


def reads(path: Path, tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(table, key) of everything in a module that reads a declared key by a name known in the code."""
    for node in ast.walk(tree):
        table, arguments = "", []
        if isinstance(node, ast.Subscript):
            table, arguments = table_of(node.value), [node.slice]
        elif isinstance(node, ast.Call) and called(node) in USER_READERS:
            table, arguments = "USER", node.args[USER_READERS[called(node)] :][:1]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in TABLE_READERS:
            table, arguments = table_of(node.func.value), node.args[TABLE_READERS[node.func.attr] :][:1]
        elif isinstance(node, ast.Call) and called(node) == "map" and isinstance(node.args[0], ast.Attribute):
            table, arguments = table_of(node.args[0].value), [*getattr(node.args[1], "elts", ())]
        for argument in arguments if table else ():
            key = text(argument, path)
            if key is not None:
                yield table, key


@pytest.fixture(scope="module")
def all_reads() -> set[tuple[str, str]]:
    return {found for path, tree in trees() for found in reads(path, tree)}


def test_every_key_that_is_read_is_declared(all_reads: set[tuple[str, str]]) -> None:
    assert len(all_reads) > 80
    assert {(table, key) for table, key in all_reads if key not in TABLES[table]} == set()


def test_every_key_that_has_an_effect_is_read() -> None:
    """By its name somewhere in the code beyond its declaration."""
    declared = ROOT / "Middleware" / "utilities" / "config" / "keys"
    known = {
        node.value
        for path, tree in trees()
        if declared not in path.parents
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    scripts = {"MCPO_URL"}
    tables = ("USER", "ENDPOINT", "API_TYPE", "THINKING", "STRUCTURED_OUTPUT", "MCP_SERVER", "CURRENT_USER")
    keys = [key for table in tables for key in TABLES[table].values()]
    assert [key.name for key in keys if not key.inert and key.name not in known | scripts] == []


@pytest.mark.parametrize(
    "read",
    [KeyTable.value, KeyTable.flag, KeyTable.number, KeyTable.text, KeyTable.has],
    ids=["value", "flag", "number", "text", "has"],
)
@pytest.mark.parametrize("config", [{}, {"appendPresetname": "x"}], ids=["absent", "present"])
def test_what_is_not_declared_cannot_be_read(read: Callable[..., object], config: dict[str, Any]) -> None:
    with pytest.raises(KeyError, match="appendPresetname"):
        read(endpoint.ENDPOINT, config, "appendPresetname")
    with pytest.raises(KeyError, match="appendPresetname"):
        endpoint.ENDPOINT.lookup("appendPresetname")


@pytest.mark.parametrize(
    ("true_texts", "true", "false"),
    [
        ((), (True, 1, "true", "no", " "), (False, 0, None, "", "False ")),
        (ONLY_TRUE, (True, 1, " TRUE "), (False, 0, None, "", "yes", "no")),
        (SWITCHED_ON, (True, 1, "TRUE", "1", "yes", " On "), (False, 0, None, "", "no", "maybe")),
    ],
)
def test_which_texts_are_true(true_texts: tuple[str, ...], true: tuple[object, ...], false: tuple[object, ...]) -> None:
    table = KeyTable((ConfigKey("k", "bool", False, "A switch.", true_texts=true_texts),))
    assert [value for value in true if not table.flag({"k": value}, "k") or not table.value({"k": value}, "k")] == []
    assert [value for value in false if table.flag({"k": value}, "k") or table.value({"k": value}, "k")] == []


@pytest.mark.parametrize(
    ("written", "number"),
    [
        (7, 7),
        ("7", 7),
        (2.9, 2),
        (" -3 ", -3),
        (True, 5),
        (None, 5),
        ("2.9", 5),
        ("x", 5),
        ([7], 5),
        (float("inf"), 5),
        (float("nan"), 5),
    ],
)
def test_whole_numbers(written: object, number: int) -> None:
    table = KeyTable((ConfigKey("k", "int", 5, "A number."),))
    assert table.number({"k": written}, "k") == number and table.number({}, "k") == 5


def test_texts() -> None:
    table = KeyTable((ConfigKey("k", "str", "x", "A text."), ConfigKey("none", "str", None, "A text.")))
    assert [table.text({"k": value}, "k") for value in ("y", "", None, 5, ["y"])] == ["y", "", "x", "x", "x"]
    assert table.text({}, "none") == "" and table.has({"k": ""}, "k") and not table.has({"k": None}, "k")


@pytest.mark.parametrize(
    ("config", "value", "flag"),
    [
        ({}, True, True),
        ({"k": None}, True, True),
        ({"k": False}, False, False),
        ({"k": "false"}, "false", False),
        ({"k": " FALSE "}, " FALSE ", False),
        ({"k": 0}, 0, False),
        ({"k": "no"}, "no", True),
        ({"k": ""}, "", False),
    ],
)
def test_values_and_flags(config: dict[str, Any], value: object, flag: bool) -> None:
    table = KeyTable((ConfigKey("k", "bool", True, "A switch."),))
    assert table["k"].of(config) == value and table.value(config, "k") is table.flag(config, "k") is flag
    assert config.get(*table.lookup("k")) == (None if config.get("k", "") is None else value)


# -- one truth ---------------------------------------------------------------------------------------------------------


def test_the_types_of_api_types() -> None:
    assert set(api_type.API_TYPE["type"].choices) == api_types.KNOWN_TYPES | api_types.ALIASES.keys()
    assert api_types.COMPLETION_TYPES | api_types.EMBEDDINGS_TYPES < api_types.KNOWN_TYPES
    assert not api_types.COMPLETION_TYPES & api_types.EMBEDDINGS_TYPES
    assert api_types.ALIASES["koboldCppGenerateImageSpecific"] == api_types.KOBOLD_GENERATE == "koboldCppGenerate"
    assert api_types.OLLAMA_EMBEDDINGS == "ollamaEmbeddings" and api_types.CLAUDE_MESSAGES == "claudeMessages"


def test_the_levels_of_token_estimates() -> None:
    assert tuple(ESTIMATION_LEVELS) == endpoint.CONTEXT_LEVELS
    assert estimation_level_multiplier(endpoint.ENDPOINT["wilmerContextEstimationLevel"].default) == 1.0


def test_names_that_come_from_declarations() -> None:
    assert (config_utils.CHAT_ONLY_TEMPLATE, config_utils.DEFAULT_WORKFLOW) == ("_chatonly", "_DefaultWorkflow")
