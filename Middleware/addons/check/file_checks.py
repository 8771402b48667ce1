"""The check of one configuration file by itself: its text, its JSON, and its keys as its kind declares them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from Middleware.addons.check.endpoint_checks import EndpointCheck, check_api_type, is_address
from Middleware.addons.check.file_kinds import HOMES, FileKind
from Middleware.addons.check.findings import Finding, finding_in, shown_address
from Middleware.addons.check.memory_checks import check_settings_keys
from Middleware.addons.check.preset_checks import check_preset
from Middleware.addons.check.schema_checks import check_schema
from Middleware.exceptions import ConfigSyntaxError
from Middleware.services.memory.compactor_settings import CompactorSettings
from Middleware.services.memory.memory_settings import MemorySettings
from Middleware.utilities.config.check import KeyCheck, Severity, is_meant, is_remark, quoted
from Middleware.utilities.config.declarations import KeyTable
from Middleware.utilities.config.json_source import JsonSource, Position, child, decode, legacy_code_page
from Middleware.utilities.config.keys.api_type import MARKED_TURNS, PROMPT_TEMPLATE
from Middleware.utilities.config.lookup import dangling_target
from Middleware.utilities.files.file_access import why_unreadable
from Middleware.utilities.json_data import freeze
from Middleware.utilities.text_utils import nearest

SETTINGS = {"memory-settings": MemorySettings, "compactor-settings": CompactorSettings}


@dataclass
class SourceCheck:
    """The result of checking a file's text.

    Attributes:
        content: the parsed JSON, read-only; None if there is none.
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
        return [*check_settings_keys(SETTINGS[kind.name], content, display)]
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
