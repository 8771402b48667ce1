"""The kinds of configuration files, and the check of one file by itself: its text, its JSON, and its keys."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from types import MappingProxyType
from typing import Any

from Middleware.addons.check.endpoint_check import SENT_AS_STRING, EndpointCheck, check_api_type, is_address, unquoted
from Middleware.addons.check.findings import Finding, finding_in, shown_address
from Middleware.addons.check.lookups import files_in
from Middleware.addons.check.memory_check import check_settings_keys
from Middleware.exceptions import ConfigSyntaxError, ConfigurationError
from Middleware.llmapis.samplers import NULL_MARKER
from Middleware.services.memory.compactor_settings import CompactorSettings
from Middleware.services.memory.memory_settings import MemorySettings
from Middleware.utilities import config_utils
from Middleware.utilities.config.check import (
    CHOICE_CUTOFF,
    KeyCheck,
    Severity,
    is_meant,
    is_remark,
    no_effect,
    quoted,
    shortened,
)
from Middleware.utilities.config.declarations import (
    DESCRIPTION_KEY,
    SCHEMA_KEY,
    ConfigKey,
    KeyTable,
    settings_keys,
)
from Middleware.utilities.config.json_source import JsonSource, Position, child, decode, legacy_code_page
from Middleware.utilities.config.keys.api_type import API_TYPE_KEYS, MARKED_TURNS, PROMPT_TEMPLATE, PROMPT_TEMPLATE_KEYS
from Middleware.utilities.config.keys.endpoint import ENDPOINT_KEYS, PRESET_SAMPLERS
from Middleware.utilities.config.keys.mcp_server import MCP_SERVER_KEYS
from Middleware.utilities.config.keys.node import WORKFLOW_FILE_KEYS
from Middleware.utilities.config.keys.user import CURRENT_USER_KEYS, ROUTING_KEYS, USER_KEYS
from Middleware.utilities.config.keys.workflow_test import WORKFLOW_TEST_KEYS
from Middleware.utilities.config.lookup import dangling_target
from Middleware.utilities.config.workflows import COMPACTOR_SUFFIX, MEMORY_SUFFIX, SETTINGS_SUFFIXES, TEST_SUFFIX
from Middleware.utilities.files.file_access import why_unreadable
from Middleware.utilities.json_data import freeze
from Middleware.utilities.text_utils import nearest

_REMARKS = (SCHEMA_KEY, DESCRIPTION_KEY)


@dataclass(frozen=True)
class FileKind:
    """One kind of configuration file.

    Attributes:
        title: the usual name of such a file.
        pattern: glob below the config root, where ``**`` stands for any number of folders, none included.
        meaning: one sentence about the purpose of such files.
        keys: the keys of the file, or, with ``entries``, of each of its entries.
        is_open: other keys are allowed.
        top: the other keys at the top of a file with ``entries``.
        entries: every key but those of ``top`` is a name of the author's, and its value an object with ``keys``.
    """

    name: str
    title: str
    pattern: str
    meaning: str
    keys: tuple[ConfigKey, ...]
    is_open: bool = False
    top: tuple[ConfigKey, ...] = ()
    entries: bool = False
    key: Mapping[str, ConfigKey] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", KeyTable(self.keys))


_ALL = (
    FileKind(
        "current-user",
        "current user",
        "Users/_current-user.json",
        "Names the user that is served when the command line names none.",
        (*_REMARKS, *CURRENT_USER_KEYS),
    ),
    FileKind(
        "user",
        "user",
        "Users/**/*.json",
        "The settings of one user. Clients see a user as one model or several.",
        (SCHEMA_KEY, *USER_KEYS),
    ),
    FileKind(
        "endpoint", "endpoint", "Endpoints/**/*.json", "One model on one LLM server.", (*_REMARKS, *ENDPOINT_KEYS)
    ),
    FileKind(
        "api-type", "API type", "ApiTypes/**/*.json", "The API of one kind of LLM server.", (*_REMARKS, *API_TYPE_KEYS)
    ),
    FileKind(
        "preset",
        "preset",
        "Presets/**/*.json",
        "Samplers in the back-end's own names, sent as they are.",
        (SCHEMA_KEY,),
        is_open=True,
    ),
    FileKind(
        "prompt-template",
        "prompt template",
        "PromptTemplates/**/*.json",
        "The texts around messages with which the model of a completion back-end was trained.",
        (*_REMARKS, *PROMPT_TEMPLATE_KEYS),
    ),
    FileKind(
        "routing",
        "routing",
        "Routing/**/*.json",
        "The categories of requests, each with its workflow.",
        ROUTING_KEYS,
        top=(SCHEMA_KEY,),
        entries=True,
    ),
    FileKind(
        "mcp-server",
        "MCP server",
        "MCPServers/**/*.json",
        "A server with tools for MCPToolCall nodes.",
        (*_REMARKS, *MCP_SERVER_KEYS),
    ),
    FileKind(
        "structured-output",
        "structured output",
        "StructuredOutputs/**/*.json",
        "A JSON schema that answers must follow.",
        (),
        is_open=True,
    ),
    FileKind(
        "memory-settings",
        "memory settings",
        f"Workflows/**/*{MEMORY_SUFFIX}",
        "Settings for writing memories; the user file names this file.",
        (*_REMARKS, *settings_keys(MemorySettings).values()),
        is_open=True,
    ),
    FileKind(
        "compactor-settings",
        "compactor settings",
        f"Workflows/**/*{COMPACTOR_SUFFIX}",
        "Settings for compacting long conversations; the user file names this file.",
        (*_REMARKS, *settings_keys(CompactorSettings).values()),
        is_open=True,
    ),
    FileKind(
        "workflow-test",
        "workflow test",
        f"Workflows/**/*{TEST_SUFFIX}",
        "Tests of the workflow next to it, which need no LLM.",
        (*_REMARKS, *WORKFLOW_TEST_KEYS),
    ),
    FileKind(
        "workflow",
        "workflow",
        "Workflows/**/*.json",
        "The steps that answer a request, and the variables that they use.",
        (SCHEMA_KEY, *WORKFLOW_FILE_KEYS),
        is_open=True,
    ),
)
# By name. A file is of the first kind whose pattern matches, unless a user file names it as settings.
KINDS: Mapping[str, FileKind] = MappingProxyType({kind.name: kind for kind in _ALL})
# By key: the file that it belongs in, for those who write it in another one.
HOMES: Mapping[str, str] = {
    key.name: f"{'a' if kind.name == 'user' else 'an'} {kind.title} file ({kind.pattern})"
    for kind in (KINDS["endpoint"], KINDS["api-type"], KINDS["user"])
    for key in kind.keys
}


def kind_of(path: str) -> FileKind | None:
    """Return the kind of a file. ``path`` is relative to the config root, with forward slashes."""
    return next((kind for kind in _ALL if _expression(kind.pattern).fullmatch(path)), None)


@cache
def _expression(pattern: str) -> re.Pattern[str]:
    parts = {"**/": "(?:[^/]+/)*", "*": "[^/]*"}
    pieces = re.split(r"(\*\*/|\*)", pattern)
    return re.compile("".join(parts.get(piece) or re.escape(piece) for piece in pieces))


# -- one file ----------------------------------------------------------------------------------------------------------

SETTINGS = {"memory-settings": MemorySettings, "compactor-settings": CompactorSettings}


@dataclass
class SourceCheck:
    """The result of checking a file's text.

    Attributes:
        content: the parsed JSON, read-only; None if it cannot be parsed.
        source: the text, for the positions of further findings; None if the file is not JSON.
    """

    findings: list[Finding] = field(default_factory=list)
    content: object = None
    source: JsonSource | None = None

    @property
    def is_broken(self) -> bool:
        return self.source is None


def check_source(path: str, display: str, kind: FileKind | None) -> SourceCheck:
    """Return all findings about a file that do not depend on its users."""
    check = SourceCheck()
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        target = dangling_target(path)
        if target:
            check.findings.append(
                _finding(
                    "error",
                    display,
                    f"the file is a link that points to {quoted(target)}, which does not exist",
                    "a link to a file that exists, or the file itself",
                )
            )
            return check
        check.findings.append(_finding("error", display, why_unreadable(error)))
        return check
    text, foreign = decode(data)
    source = JsonSource(text, display)
    try:
        check.content = freeze(source.parse())
    except ConfigSyntaxError as error:
        check.findings.append(syntax_finding(display, error))
        return check
    check.source = source
    check.findings += [*_encoding(foreign, display), *duplicate_keys(source)]
    if kind is not None:
        found = check_content(display, kind, check.content)
        check.findings += [finding.located(source) for finding in found]
    return check


def check_content(display: str, kind: FileKind, content: object) -> list[Finding]:
    """Return all findings about the keys of a file, without positions; files with tests have a check of their own."""
    if kind.name == "workflow-test":
        return []
    if not isinstance(content, dict):
        if kind.name == "workflow" and isinstance(content, (list, tuple)):
            return [*_nodes(display, content, "nodes")]
        wanted = "an object with 'nodes', or a list of nodes" if kind.name == "workflow" else "an object: { ... }"
        return [_finding("error", display, f"the file holds {quoted(content)}", wanted)]
    if kind.name in SETTINGS:
        found = [*check_settings_keys(SETTINGS[kind.name], content, display)]
        if "nodes" in content and display.endswith(SETTINGS_SUFFIXES):
            message = "a file whose name ends like this holds settings, and is not run as a workflow"
            found.append(Finding("error", display, "nodes", None, message, "another name for a workflow"))
        return found
    more = KIND_CHECKS.get(kind.name)
    return [*_keys(display, kind, content), *(more(display, content) if more else ())]


def syntax_finding(display: str, error: ConfigSyntaxError) -> Finding:
    """Return the finding for a file that is not JSON, with its position if that is known."""
    line, column = (error.lineno, error.colno) if error.doc else (None, None)
    return Finding("error", display, "", line, f"not valid JSON: {error.msg}", column=column)


def _keys(display: str, kind: FileKind, content: Mapping[str, object]) -> Iterator[Finding]:
    check = KeyCheck(partial(finding_in, display), homes=HOMES)
    if not kind.entries:
        yield from check.findings(content, kind.key, is_open=kind.is_open)
        return
    top = KeyTable(kind.top)
    for name, entry in content.items():
        if name in top or (is_remark(name) and not isinstance(entry, dict)):
            continue
        if isinstance(entry, dict):
            yield from check.findings(entry, kind.key, child("", name), is_open=kind.is_open)
        else:
            yield Finding(
                "error",
                display,
                child("", name),
                None,
                f"'{name}' must be an object, not {quoted(entry)}",
                " and ".join(f"'{key.name}'" for key in kind.keys),
            )


def _nodes(display: str, nodes: Any, path: str) -> Iterator[Finding]:
    for index, node in enumerate(nodes):
        if not isinstance(node, dict):
            yield Finding("error", display, child(path, index), None, f"a node must be an object, not {quoted(node)}")


def _encoding(foreign: Position | None, display: str) -> Iterator[Finding]:
    if foreign is not None:
        yield Finding(
            "warning",
            display,
            "",
            foreign.line,
            f"the file is not UTF-8; it is read as {legacy_code_page()}",
            "a file saved as UTF-8",
            column=foreign.column,
        )


def duplicate_keys(source: JsonSource) -> Iterator[Finding]:
    """Yield a finding for each key that an object of the parsed text repeats."""
    for key in source.duplicates():
        yield Finding(
            "warning",
            source.display,
            key.json_path,
            key.line,
            f"the key appears twice in one object, first in line {key.first_line}; this one counts",
            "each key once",
            column=key.column,
        )


def _finding(severity: Severity, display: str, message: str, expected: str = "") -> Finding:
    return Finding(severity, display, "", None, message, expected)


# -- presets -----------------------------------------------------------------------------------------------------------

# The server may know keys that no API type lists, so only what is nearly certain to be misspelt counts.
PRESET_CUTOFF = 0.9
NativeKeys = dict[str, list[ConfigKey]]


def check_preset(display: str, content: Mapping[str, object]) -> Iterator[Finding]:
    """Yield keys that are nearly samplers of the API that the preset is for, and values that no such sampler has.

    The server may accept further keys.
    """
    parts = display.split("/")
    known = native_samplers(parts[1]) if len(parts) > 2 else {}
    for name, value in content.items():
        near = "" if name in known or is_remark(name) else nearest(name, known, PRESET_CUTOFF)
        if near:
            yield Finding(
                "warning",
                display,
                child("", name),
                None,
                f"the key {quoted(name)} is sent as it is, and the server probably does not know it",
                "",
                near,
            )
        elif name in known and value is not None and value != NULL_MARKER:
            # API types of one folder may give the name different meanings; a value that one of them takes is right.
            yield from min((_value(display, name, key, value) for key in known[name]), key=len)


def _value(display: str, name: str, key: ConfigKey, value: object) -> list[Finding]:
    at = partial(finding_in, display)
    numeric = key.kind in ("int", "number") and not key.also
    if numeric and (quoted_number := unquoted(value)):
        return [at("warning", child("", name), f"'{name}' {SENT_AS_STRING}", quoted_number, "")]
    if numeric and isinstance(value, str) and not value.strip():
        return [at("warning", child("", name), f"'{name}' is blank", "a number, or null to leave it out", "")]
    return [*KeyCheck(at).value(replace(key, name=name), value, child("", name))]


def native_samplers(preset_type: str) -> NativeKeys:
    """Return the names that samplers have in the API types of a folder of presets; empty if these are not known."""
    names: NativeKeys = {}
    for api_type in _api_types():
        if api_type.get("presetType") == preset_type:
            add_native(names, api_type)
    return names


def add_native(names: NativeKeys, api_type: Mapping[str, object]) -> None:
    """Add the names that samplers have in an API type, each with the declarations of the samplers."""
    fields = api_type.get("samplerFieldMap")
    for sampler, name in fields.items() if isinstance(fields, Mapping) else ():
        key = PRESET_SAMPLERS.get(sampler)
        if isinstance(name, str) and key not in names.get(name, []):
            names.setdefault(name, []).append(key or ConfigKey(name, "any", None, ""))


def _api_types() -> Iterator[Mapping[str, object]]:
    for name in files_in("ApiTypes"):
        try:
            yield config_utils.load_api_type(name)
        # Reported at that file.
        except ConfigurationError:
            pass


# -- structured outputs ------------------------------------------------------------------------------------------------

TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
# The longest part of a message of the validator: it quotes the value.
MAX_QUOTED = 200


def check_schema(display: str, content: Mapping[str, object]) -> Iterator[Finding]:
    """Yield a finding if a schema allows anything, or is not a JSON Schema."""
    expected = "a JSON schema such as an object with 'type' and 'properties'"
    if not content:
        yield Finding("error", display, "", None, "the schema is empty", expected)
        return
    validator = _validator(content)
    if validator is None:
        return
    error = next(
        iter(sorted(validator(validator.META_SCHEMA).iter_errors(content), key=lambda one: len(one.path))), None
    )
    if error is not None:
        yield _invalid(display, error)
        return
    keywords = _keywords(validator.META_SCHEMA, validator)
    if not any(name in keywords for name in content):
        # The form in which OpenAI's API takes a schema; the program makes it itself.
        wrapped = "the value of 'schema' alone" if isinstance(content.get("schema"), Mapping) else expected
        yield Finding(
            "error",
            display,
            "",
            None,
            "none of the keys is a keyword of JSON Schema, so that the schema allows anything",
            wrapped,
        )
        return
    for name in content:
        near = "" if name in keywords or is_remark(name) else nearest(name, keywords, 0.85)
        if near and near not in content:
            yield Finding("warning", display, child("", name), None, no_effect(name), "", near)


def _invalid(display: str, error: Any) -> Finding:
    path = ""
    for part in error.absolute_path:
        path = child(path, part)
    if error.absolute_path and error.absolute_path[-1] == "type":
        near = nearest(error.instance, TYPES, CHOICE_CUTOFF) if isinstance(error.instance, str) else ""
        return Finding(
            "error",
            display,
            path,
            None,
            f"{quoted(error.instance)} is not a type of JSON Schema",
            ", ".join(TYPES),
            near,
        )
    return Finding("error", display, path, None, f"this is not a JSON Schema: {shortened(error.message, MAX_QUOTED)}")


def _validator(content: Mapping[str, object]) -> Any:
    """Return the validator class of a schema; None without the package."""
    # The package comes with the one for MCP, and hardly any check needs it.
    try:
        from jsonschema import Draft202012Validator
        from jsonschema.validators import validator_for
    except ImportError:
        return None
    return validator_for(content, default=Draft202012Validator)


def _keywords(meta_schema: Mapping[str, Any], validator: Any) -> Collection[str]:
    """Return the keywords of the schema's version, and the older ones that all versions accept."""
    return {
        *validator.VALIDATORS,
        *meta_schema.get("properties", {}),
        "$schema",
        "$id",
        "$defs",
        "$comment",
        "$anchor",
        "definitions",
        "title",
        "description",
        "default",
        "examples",
        "readOnly",
        "writeOnly",
        "deprecated",
        "then",
        "else",
        "contentMediaType",
        "contentEncoding",
    }


# -- other kinds -------------------------------------------------------------------------------------------------------

_NEEDED = {"stdio": "command", "sse": "url", "streamable_http": "url"}


def check_mcp_server(display: str, content: Mapping[str, object]) -> Iterator[Finding]:
    """Yield findings about the settings of the transport."""
    transport = content.get("transport")
    needed = _NEEDED.get(transport) if isinstance(transport, str) else None
    if needed is None:
        return
    value = content.get(needed)
    if value is None or value == "":
        yield Finding(
            "error",
            display,
            needed if needed in content else "",
            None,
            f"the transport '{transport}' needs '{needed}'",
            "the program that is the server" if needed == "command" else "an address such as http://127.0.0.1:8000/mcp",
        )
    elif needed == "url" and isinstance(value, str) and not is_address(value):
        yield Finding(
            "error",
            display,
            "url",
            None,
            f"'url' is {shown_address(value)}, which is not an address",
            "a string that begins with http:// or https://",
        )
    folder = content.get("cwd")
    if (
        transport == "stdio"
        and isinstance(folder, str)
        and folder.strip()
        and not os.path.isdir(os.path.expanduser(folder.strip()))
    ):
        yield Finding("error", display, "cwd", None, f"the folder {quoted(folder)} does not exist")


def check_prompt_template(display: str, content: Mapping[str, object]) -> Iterator[Finding]:
    """Yield a finding if nothing marks a kind of message, which the model then takes for part of another."""
    unknown = [name for name in content if name not in PROMPT_TEMPLATE]
    lacking = {
        turn: keys
        for turn, keys in MARKED_TURNS.items()
        if all(content.get(key) is None for key in keys)
        and not any(is_meant(name, key, content) for name in unknown for key in keys)
    }
    expected = 'the keys for each kind of message, with "" for a mark that the model does not have'
    if len(lacking) == len(MARKED_TURNS):
        yield _finding(
            "warning", display, "the template has no marks, so that the model cannot tell who speaks", expected
        )
    elif lacking:
        names = ", ".join(key for keys in lacking.values() for key in keys)
        yield _finding("warning", display, f"nothing marks {' and '.join(lacking)}: {names} are missing", expected)


def check_workflow_top(display: str, content: Mapping[str, object]) -> Iterator[Finding]:
    """Yield keys at the top of a workflow that were probably meant to be those that have a meaning."""
    nodes = content.get("nodes")
    if isinstance(nodes, (list, tuple)):
        yield from _nodes(display, nodes, "nodes")
    elif nodes is not None:
        yield Finding("error", display, "nodes", None, f"'nodes' must be a list, not {quoted(nodes)}")
    for name in content:
        # The other keys are variables, whose names are free.
        if name != "parallelNodes" and nearest(name, ("parallelNodes",), 0.85):
            yield Finding(
                "warning",
                display,
                child("", name),
                None,
                f"the key {quoted(name)} is a variable of the workflow and nothing else",
                "",
                "parallelNodes",
            )


# What is checked beyond the keys. A new check of a kind of file is one function in this table.
KIND_CHECKS: Mapping[str, Callable[[str, Mapping[str, object]], Iterator[Finding]]] = {
    "endpoint": lambda display, content: EndpointCheck(display, content).findings(),
    "api-type": check_api_type,
    "preset": check_preset,
    "mcp-server": check_mcp_server,
    "structured-output": check_schema,
    "prompt-template": check_prompt_template,
    "workflow": check_workflow_top,
}
