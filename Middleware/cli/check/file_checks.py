"""The check of one configuration file by itself: its text, its JSON, and its keys as its kind declares them."""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from Middleware.cli.check.endpoint_checks import BackupCheck, check_api_type, check_endpoint
from Middleware.cli.check.file_kinds import KINDS, FileKind
from Middleware.cli.check.findings import Finding
from Middleware.cli.check.lookups import ConfigFile
from Middleware.cli.check.other_file_checks import check_mcp_server, check_preset, check_workflow_top
from Middleware.cli.check.settings_checks import SettingsKeys
from Middleware.cli.check.workflow_checks import located
from Middleware.exceptions import ConfigSyntaxError
from Middleware.services.memory.compactor_settings import CompactorSettings
from Middleware.services.memory.memory_settings import MemorySettings
from Middleware.utilities.config.check import KeyCheck, Severity, is_remark, quoted
from Middleware.utilities.config.declarations import KeyTable
from Middleware.utilities.config.json_source import JsonSource, Position, child, decode, legacy_code_page
from Middleware.utilities.json_data import freeze

SETTINGS = {"memory-settings": MemorySettings, "compactor-settings": CompactorSettings}
HOMES = {key.name: f"{'an' if kind.title[0] in 'aeiouA' else 'a'} {kind.title} file ({kind.pattern})"
         for kind in (KINDS["endpoint"], KINDS["api-type"], KINDS["user"]) for key in kind.keys}
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


@dataclass
class SourceCheck:
    """What the check of a file's text found.

    Attributes:
        content: the parsed JSON, read-only; None if there is none.
        source: the text, for the positions of further findings; None if it is not JSON.
    """

    findings: list[Finding] = field(default_factory=list)
    content: object = None
    source: JsonSource | None = None

    @property
    def is_broken(self) -> bool:
        return self.source is None


def check_source(path: str, display: str, kind: FileKind | None) -> SourceCheck:
    """Everything that can be said about a file without knowing who uses it."""
    check = SourceCheck()
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        check.findings.append(_finding("error", display, f"the file cannot be read: {error.strerror or error}"))
        return check
    text, foreign = decode(data)
    source = JsonSource(text, display)
    try:
        check.content = freeze(source.parse())
    except ConfigSyntaxError as error:
        check.findings.append(syntax_finding(display, error))
        return check
    check.source = source
    check.findings += [*_encoding(foreign, display), *_duplicates(source)]
    if kind is not None:
        found = check_content(display, kind, check.content)
        check.findings += [located(finding, source) for finding in found]
    return check


def check_content(display: str, kind: FileKind, content: object) -> list[Finding]:
    """Everything about the keys of a file, without places; files with tests are checked by those who run them."""
    if kind.name == "workflow-test":
        return []
    if not isinstance(content, dict):
        if kind.name == "workflow" and isinstance(content, (list, tuple)):
            return [*_nodes(display, content, "nodes")]
        wanted = "an object with 'nodes', or a list of nodes" if kind.name == "workflow" else "an object: { ... }"
        return [_finding("error", display, f"the file holds {quoted(content)}", wanted)]
    if kind.name in SETTINGS:
        return [*SettingsKeys(ConfigFile(content, display, "")).keys(SETTINGS[kind.name])]
    return [*_keys(display, kind, content), *_more(display, kind, content)]


def syntax_finding(display: str, error: ConfigSyntaxError) -> Finding:
    """What is wrong with a file that is no JSON, with its place if that is known."""
    place = (error.lineno, error.colno) if error.doc else (None, None)
    return Finding("error", display, "", place[0], f"not valid JSON: {error.msg}", column=place[1])


def _keys(display: str, kind: FileKind, content: Mapping[str, object]) -> Iterator[Finding]:
    check = KeyCheck(partial(_keyed, display), homes=HOMES)
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
            yield Finding("error", display, child("", name), None, f"'{name}' must be an object, not {quoted(entry)}",
                          " and ".join(f"'{key.name}'" for key in kind.keys))


def _more(display: str, kind: FileKind, content: Mapping[str, object]) -> Iterator[Finding]:
    if kind.name == "endpoint":
        yield from check_endpoint(display, content)
        yield from BackupCheck(display, content).findings()
    elif kind.name == "api-type":
        yield from check_api_type(display, content)
    elif kind.name == "preset":
        yield from check_preset(display, content)
    elif kind.name == "mcp-server":
        yield from check_mcp_server(display, content)
    elif kind.name == "structured-output" and not content:
        yield _finding("error", display, "the schema is empty", "a JSON schema such as an object with 'type' and "
                                                                "'properties'")
    elif kind.name == "workflow":
        nodes = content.get("nodes")
        yield from check_workflow_top(display, content)
        yield from _nodes(display, nodes, "nodes") if isinstance(nodes, (list, tuple)) else ()


def _nodes(display: str, nodes: Any, path: str) -> Iterator[Finding]:
    for index, node in enumerate(nodes):
        if not isinstance(node, dict):
            yield Finding("error", display, child(path, index), None, f"a node must be an object, not {quoted(node)}")


def _encoding(foreign: Position | None, display: str) -> Iterator[Finding]:
    if foreign is not None:
        yield Finding("warning", display, "", foreign.line, f"the file is not UTF-8; it is read as "
                      f"{legacy_code_page()}", "a file saved as UTF-8", column=foreign.column)


def _duplicates(source: JsonSource) -> Iterator[Finding]:
    for key in source.duplicates():
        yield Finding("warning", source.display, key.json_path, key.line, "the key stands twice in one object, "
                      f"first in line {key.first_line}; this one counts", "each key once", column=key.column)


def _keyed(display: str, severity: Severity, path: str, message: str, expected: str, suggestion: str) -> Finding:
    return Finding(severity, display, path, None, message, expected, suggestion)


def _finding(severity: Severity, display: str, message: str, expected: str = "") -> Finding:
    return Finding(severity, display, "", None, message, expected)
