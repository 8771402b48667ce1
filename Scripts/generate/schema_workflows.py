"""JSON Schemas of workflow files, and of all that lies in the same folders."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from Middleware.utilities.config.declarations import ConfigKey
from Middleware.utilities.config.keys.node import COMMON_KEYS
from Middleware.workflows.handlers.base.base_workflow_node_handler import BaseHandler
from Middleware.workflows.handlers.registry import node_types
from Scripts.generate import schema_values
from Scripts.generate.node_reference import summary
from Scripts.generate.schema_values import Schema

NODES = "nodes"


# -- a workflow --------------------------------------------------------------------------------------------------------


def of_workflow(keys: Iterable[ConfigKey]) -> Schema:
    """An object with ``nodes`` or, in the older form, a bare list of them. Other keys are variables."""
    nodes = {"type": "array", "minItems": 1, "items": {"$ref": "#/definitions/node"}}
    properties = {key.name: schema_values.of_key(key) for key in keys}
    shown = {name: text for name, text in properties.pop(NODES, {}).items() if name in ("title", "description")}
    return {
        "type": ["object", "array"],
        "properties": {NODES: {**shown, **nodes}, **properties},
        "required": [NODES],
        "minItems": 1,
        "items": nodes["items"],
        "definitions": _definitions(),
    }


def _definitions() -> Schema:
    """The node, and what each type adds to it."""
    types = dict(sorted(node_types().items()))
    special = {key.name for node_type, node in types.items() for key in node.KEYS[node_type]}
    own = {node_type: _type(node_type, node, special) for node_type, node in types.items()}
    return {"node": _node(types, special), **own}


def _node(types: Mapping[str, type[BaseHandler]], special: set[str]) -> Schema:
    common = {key.name: schema_values.of_key(key, of_node=True) for key in COMMON_KEYS if key.name not in special}
    common["type"] = {
        **common["type"],
        "type": "string",
        "enum": list(types),
        "enumDescriptions": [summary(node).replace("`", "") for node in types.values()],
    }
    choice = [{"if": _is_of_type(name), "then": {"$ref": f"#/definitions/{name}"}} for name in types]
    return {
        "type": "object",
        "title": "Node",
        "description": "One step of the workflow.",
        "properties": common,
        "allOf": choice,
    }


def _is_of_type(name: str) -> Schema:
    """Holds for nodes of this type. Those without a type are of the type Standard."""
    return {"properties": {"type": {"const": name}}} | ({} if name == "Standard" else {"required": ["type"]})


def _type(node_type: str, node: type[BaseHandler], special: set[str]) -> Schema:
    keys = {key.name: key for key in (*COMMON_KEYS, *node.KEYS[node_type]) if key.name in special}
    declared = {key.name: key for key in node.KEYS[node_type]}
    schema = schema_values.of_object({**keys, **declared}.values(), is_open=True, of_node=True)
    schema["description"] = summary(node).replace("`", "")
    schema.pop("type")  # which is described once, for every node
    if node.needs_endpoint:
        schema["required"] = [*schema.get("required", []), "endpointName"]
    return schema


# -- a folder ----------------------------------------------------------------------------------------------------------


def of_folder(settings: Mapping[str, Iterable[ConfigKey]], workflow: str, shared: Iterable[ConfigKey]) -> Schema:
    """A workflow or a settings file, distinguished by what they contain.

    ``settings``: the file of each schema of settings, with its keys; ``workflow``: the file of that of workflows;
    ``shared``: keys that both can have.
    """
    both = {key.name for key in shared}
    names = {file: [key.name for key in keys if key.name not in both] for file, keys in settings.items()}
    every = {name for each in names.values() for name in each}
    return {
        "if": {"type": "object", "not": {"required": [NODES]}, **_has_one_of(every)},
        "then": _choice(names),
        "else": {"$ref": workflow},
    }


def _choice(names: Mapping[str, list[str]]) -> Schema:
    """The schema of the settings of which a file has a key that no other settings have; else any of them."""
    schema: Schema = {"anyOf": [{"$ref": file} for file in names]}
    for file, each in names.items():
        others = {name for other, every in names.items() if other != file for name in every}
        schema = {"if": _has_one_of(set(each) - others), "then": {"$ref": file}, "else": schema}
    return schema


def _has_one_of(names: Iterable[str]) -> dict[str, Any]:
    return {"allOf": [{"not": {"propertyNames": {"not": {"enum": sorted(names)}}}}]}
