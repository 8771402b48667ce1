"""Validation of JSON data against the schemas of Public/Schemas with the package jsonschema."""

from __future__ import annotations

from functools import cache
from typing import Any

from jsonschema import Draft7Validator
from jsonschema_specifications import REGISTRY
from referencing import Registry, Resource

from Middleware.addons.check.file_check import kind_of
from Scripts.generate import config_schemas, generated_files

CONFIGS = generated_files.ROOT / "Public" / "Configs"


@cache
def schemas() -> dict[str, dict[str, Any]]:
    """The schemas as they are made now, by name."""
    return config_schemas.schemas()


@cache
def _registry() -> Registry[Any]:
    """All schemas under their file names, as they refer to each other. Nothing is fetched."""
    return REGISTRY.with_resources(
        (config_schemas.file_name(name), Resource.from_contents(schema)) for name, schema in schemas().items()
    )


@cache
def validator(name: str) -> Draft7Validator:
    """The validator of one schema."""
    return Draft7Validator(schemas()[name], registry=_registry())


def mistakes(name: str, data: Any) -> list[str]:
    """Where and why the data does not fit the schema, such as ``$.port: 'x' is not ...``; empty if it does."""
    return [f"{error.json_path}: {error.message[:200]}" for error in validator(name).iter_errors(data)]


def schema_of(path: str) -> str:
    """The schema that belongs to a file below the config root."""
    kind = kind_of(path)
    assert kind is not None, f"{path} is of no kind"
    return config_schemas.WORKFLOW_FOLDER if kind.name == "workflow" else kind.name


def shipped_files() -> list[str]:
    """The files that come with the program, below its config root."""
    return sorted(path.relative_to(CONFIGS).as_posix() for path in CONFIGS.rglob("*.json"))
