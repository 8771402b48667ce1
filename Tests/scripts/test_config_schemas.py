"""The schemas of Public/Schemas: current, complete, and true to the shipped files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator

from Middleware.addons.check.file_check import KINDS
from Middleware.utilities.config.declarations import ConfigKey
from Middleware.utilities.config.keys.node import COMMON_KEYS
from Middleware.workflows.handlers.registry import node_types
from Scripts.generate import config_schemas, generated_files, schema_values
from Tests.scripts.schema_lab import CONFIGS, mistakes, schema_of, schemas, shipped_files
from Tests.tables import table

REGISTRY = node_types()


# -- generated files ---------------------------------------------------------------------------------------------------


def test_all_files_are_current() -> None:
    assert generated_files.stale_files(config_schemas.files()) == [], "run: python -m Scripts.generate"


def test_there_are_no_other_schemas() -> None:
    assert set(config_schemas.FOLDER.iterdir()) <= set(config_schemas.files())


def test_they_are_the_same_each_time() -> None:
    assert list(config_schemas.files().items()) == list(config_schemas.files().items())


@pytest.mark.parametrize("name", schemas())
def test_each_is_a_valid_schema(name: str) -> None:
    Draft7Validator.check_schema(schemas()[name])
    assert schemas()[name]["title"] and schemas()[name]["description"]


# -- completeness ------------------------------------------------------------------------------------------------------


def pairs(keys: tuple[ConfigKey, ...], schema: Mapping[str, Any], path: str) -> Iterator[tuple[str, ConfigKey, Any]]:
    """Each key, keys inside keys included, with its schema; None if there is none."""
    for key in keys:
        found = schema.get("properties", {}).get(key.name)
        yield f"{path}{key.name}", key, found
        inside = (found or {}).get("items", found) if key.kind == "list" else found
        yield from pairs(key.keys, inside or {}, f"{path}{key.name}.")


@pytest.mark.parametrize("name", [name for name in KINDS if name != "workflow"])
def test_every_key_of_a_kind_is_in_its_schema(name: str) -> None:
    kind, schema = KINDS[name], schemas()[name]
    content = schema["additionalProperties"] if kind.entries else schema
    found = [*pairs(kind.keys, content, ""), *pairs(kind.top, schema, "")]
    assert [path for path, key, known in found if known is None or not explains(key, known)] == []
    assert set(content.get("required", [])) == {key.name for key in kind.keys if key.required}


def explains(key: ConfigKey, schema: Mapping[str, Any]) -> bool:
    default = schema.get("default")
    # The choices of a list are those of its entries.
    values = schema["items"] if key.kind == "list" and key.choices else schema
    return (
        schema["title"].startswith(f"{key.name}: ")
        and key.meaning in schema["description"]
        and (default is None or default == schema_values.plain(key.default))
        and all(
            choice in values.get("enum", values.get("anyOf", [values])[0].get("enum", ())) for choice in key.choices
        )
    )


@table("node_type", sorted(REGISTRY))
def test_every_key_of_a_node_type_is_in_the_schema_of_workflows(node_type: str) -> None:
    definitions = schemas()["workflow"]["definitions"]
    known = {**definitions["node"]["properties"], **definitions[node_type]["properties"]}
    declared = (*COMMON_KEYS, *REGISTRY[node_type].KEYS[node_type])
    assert [key.name for key in declared if not explains(key, known[key.name]) and key.name != "type"] == []
    assert node_type in known["type"]["enum"]


@pytest.mark.parametrize("key", KINDS["workflow"].keys, ids=lambda key: key.name)
def test_every_key_at_the_top_of_a_workflow_is_in_its_schema(key: ConfigKey) -> None:
    assert key.meaning in schemas()["workflow"]["properties"][key.name]["description"]


# -- shipped files -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", sorted({path.split("/")[0] for path in shipped_files()}))
def test_every_shipped_file_fits_its_schema(folder: str) -> None:
    files = [path for path in shipped_files() if path.startswith(f"{folder}/")]
    found = {
        path: mistakes(schema_of(path), json.loads((CONFIGS / path).read_text(encoding="utf-8-sig"))) for path in files
    }
    assert {path: problems for path, problems in found.items() if problems} == {}


def test_a_schema_that_a_shipped_file_names_is_its_own() -> None:
    assert {path: named for path in shipped_files() if (named := named_schema(path)) and not is_own(path, named)} == {}


def named_schema(path: str) -> str:
    data = json.loads((CONFIGS / path).read_text(encoding="utf-8-sig"))
    named = data.get("$schema", "") if isinstance(data, dict) else ""
    return "" if named.startswith("http") else named


def is_own(path: str, named: str) -> bool:
    target = ((CONFIGS / path).parent / named).resolve()
    own = schema_of(path)
    fitting = ("workflow", own) if own == config_schemas.WORKFLOW_FOLDER else (own,)
    return target.parent == config_schemas.FOLDER and target.name in map(config_schemas.file_name, fitting)


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_command_writes_and_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(config_schemas, "ROOT", tmp_path)
    monkeypatch.setattr(config_schemas, "FOLDER", tmp_path / "Public" / "Schemas")
    assert generated_files.write_or_check(config_schemas.files(), check=True) == 1
    assert "user.schema.json" in capsys.readouterr().err and list(tmp_path.iterdir()) == []
    assert generated_files.write_or_check(config_schemas.files(), check=False) == 0
    assert generated_files.write_or_check(config_schemas.files(), check=True) == 0
    written = (tmp_path / "Public" / "Schemas" / "user.schema.json").read_bytes()
    assert written == (generated_files.ROOT / "Public" / "Schemas" / "user.schema.json").read_bytes()
    assert b"\r" not in written and written.endswith(b"}\n")
