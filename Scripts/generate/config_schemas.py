"""The JSON Schemas in Public/Schemas for all kinds of configuration files, and the VS Code settings that use them."""

from __future__ import annotations

import json
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from Middleware.addons.check.file_check import KINDS, FileKind
from Middleware.utilities.files.file_access import atomic_write
from Scripts.generate import generated_files, schema_values, schema_workflows
from Scripts.generate.schema_rules import add_rules
from Scripts.generate.schema_values import Schema
from Scripts.generate.vscode_settings import Entry, with_schemas

ROOT = generated_files.ROOT
FOLDER = ROOT / "Public" / "Schemas"
DRAFT = "http://json-schema.org/draft-07/schema#"
WORKFLOW_FOLDER = "workflow-folder"
SETTINGS = ("memory-settings", "compactor-settings")
LINE = 80  # characters that a list or object in one line may have
CONFIG_ROOTS = (".", "Configs", "Public/Configs")


def file_name(kind: str) -> str:
    """The file in Public/Schemas with the schema of a kind."""
    return f"{kind}.schema.json"


# -- schemas -----------------------------------------------------------------------------------------------------------


def schemas() -> dict[str, Schema]:
    """The schema of every kind of file, by name, and that of whatever lies in a folder of workflows."""
    made = {kind.name: _of_kind(kind) for kind in KINDS.values()}
    folder = schema_workflows.of_folder(
        {file_name(name): KINDS[name].keys for name in SETTINGS}, file_name("workflow"), KINDS["workflow"].keys
    )
    made[WORKFLOW_FOLDER] = _file(
        "Workflow or settings",
        "A workflow, memory settings or compactor settings, distinguished by what the file contains.",
        folder,
    )
    return made


def _of_kind(kind: FileKind) -> Schema:
    return _file(kind.title[:1].upper() + kind.title[1:], kind.meaning, add_rules(kind, _content(kind)))


def _file(title: str, meaning: str, content: Schema) -> Schema:
    return {"$schema": DRAFT, "title": title, "description": meaning, **content}


def _content(kind: FileKind) -> Schema:
    if kind.name == "workflow":
        return schema_workflows.of_workflow(kind.keys)
    if kind.name == "structured-output":
        return {"type": "object", "minProperties": 1, "allOf": [{"$ref": DRAFT}]}
    if kind.entries:
        entry = schema_values.of_object(kind.keys, kind.is_open)
        return schema_values.of_object(kind.top, is_open=True) | {"additionalProperties": entry}
    return schema_values.of_object(kind.keys, kind.is_open)


# -- VS Code -----------------------------------------------------------------------------------------------------------


def associations(config_root: str, schema_folder: str) -> list[Entry]:
    """Which files have which schema, as ``json.schemas`` of VS Code says it.

    ``config_root``: relative to the opened folder, "." for the folder itself; ``schema_folder``: a URL, or a path that
    begins with ``./``. Files of the older layout, and all workflows, are distinguished by what they contain.
    """
    begin = "" if config_root == "." else f"/{config_root}"
    entries: list[Entry] = []
    earlier: list[str] = []
    for kind in KINDS.values():
        pattern = f"{begin}/{kind.pattern}"
        but = [f"!{other}" for other in earlier if fnmatch(other.replace("*", "x"), pattern.replace("**/", "*"))]
        schema = WORKFLOW_FOLDER if kind.name == "workflow" else kind.name
        entries.append({"fileMatch": [pattern, *but], "url": f"{schema_folder}/{file_name(schema)}"})
        earlier.append(pattern)
    return entries


def is_own(url: str) -> bool:
    """Whether an entry in someone's settings leads to one of these schemas, wherever they lay when it was written."""
    folder, _, name = url.rpartition("/")
    return folder.endswith(f"/{FOLDER.name}") and name in map(file_name, (*KINDS, WORKFLOW_FOLDER))


def set_up_vscode(folder: Path) -> Path:
    """Let VS Code use the schemas for the configuration in ``folder``. Returns the settings file that was written.

    Raises ValueError if there is no configuration, or if the settings file cannot be understood.
    """
    root = next((name for name in CONFIG_ROOTS if _is_config_root(folder / name)), None)
    if root is None:
        raise ValueError(
            f"{folder} holds no configuration: there is no folder Users or Workflows in it, in its "
            "Configs or in its Public/Configs"
        )
    path = settings_path(folder)
    try:
        text = path.read_bytes().decode("utf-8") if path.is_file() else ""
        text = with_schemas(text, associations(root, FOLDER.as_uri()), is_own)
    except ValueError as error:
        raise ValueError(f"{path}: {error}; correct it, or delete it") from None
    atomic_write(str(path), text.encode("utf-8"))
    return path


def settings_path(folder: Path) -> Path:
    """The settings of VS Code for one folder."""
    return folder / ".vscode" / "settings.json"


def _is_config_root(folder: Path) -> bool:
    return (folder / "Users").is_dir() or (folder / "Workflows").is_dir()


# -- files -------------------------------------------------------------------------------------------------------------


def files() -> dict[Path, str]:
    """Everything that is written for this project."""
    texts = {FOLDER / file_name(name): pretty(schema) + "\n" for name, schema in schemas().items()}
    path = settings_path(ROOT)
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    texts[path] = with_schemas(text, associations("Public/Configs", "./Public/Schemas"), is_own)
    return texts


def pretty(value: Any, indent: str = "") -> str:
    """JSON in which what has no further parts, and is short, stands in one line."""
    short = json.dumps(value, ensure_ascii=False)
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if len(indent + short) <= LINE and not any(isinstance(part, (dict, list)) for part in parts):
        return short
    deeper = f"{indent}  "
    if isinstance(value, dict):
        lines = [f"{json.dumps(name, ensure_ascii=False)}: {pretty(part, deeper)}" for name, part in value.items()]
    else:
        lines = [pretty(part, deeper) for part in parts]
    begin, end = "{}" if isinstance(value, dict) else "[]"
    return "\n".join([begin, ",\n".join(f"{deeper}{line}" for line in lines), f"{indent}{end}"]) if lines else short
