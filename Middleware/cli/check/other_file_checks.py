"""Checks of what presets, MCP servers and workflow files say beyond the kinds of their keys."""
from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

from Middleware.cli.check.findings import Finding, shown_address
from Middleware.cli.check.lookups import files_in
from Middleware.exceptions import ConfigurationError
from Middleware.utilities import config_utils
from Middleware.utilities.config.check import is_remark, quoted
from Middleware.utilities.config.json_source import child
from Middleware.utilities.text_utils import nearest, plain

PRESET_CUTOFF = 0.9
_NEEDED = {"stdio": "command", "sse": "url", "streamable_http": "url"}


def check_preset(display: str, content: Mapping[str, object]) -> Iterator[Finding]:
    """Keys that are nearly samplers of the API that the preset is for. What the server takes besides is its affair."""
    parts = display.split("/")
    known = native_samplers(parts[1]) if len(parts) > 2 else frozenset()
    plain_known = {plain(name) for name in known}
    for name in content:
        if name in known or is_remark(name):
            continue
        near = nearest(name, known, PRESET_CUTOFF)
        if near and (plain(name) not in plain_known or plain(name) == plain(near)):
            yield Finding("warning", display, child("", name), None, f"the key {quoted(name)} is sent as it is, and "
                          "the server probably does not know it", "", near)


def native_samplers(preset_type: str) -> frozenset[str]:
    """The names that the samplers have in the API types of a folder of presets; empty if these are not known."""
    names: set[str] = set()
    for api_type in _api_types():
        fields = api_type.get("samplerFieldMap")
        if api_type.get("presetType") == preset_type and isinstance(fields, Mapping):
            names.update(value for value in fields.values() if isinstance(value, str))
    return frozenset(names)


def _api_types() -> Iterator[Mapping[str, object]]:
    for name in files_in("ApiTypes"):
        try:
            yield config_utils.load_api_type(name)
        except ConfigurationError:  # reported at that file
            pass


def check_mcp_server(display: str, content: Mapping[str, object]) -> Iterator[Finding]:
    """What the transport needs."""
    transport = content.get("transport")
    needed = _NEEDED.get(transport) if isinstance(transport, str) else None
    if needed is None:
        return
    value = content.get(needed)
    if value is None or value == "":
        yield Finding("error", display, needed if needed in content else "", None, f"the transport '{transport}' needs "
                      f"'{needed}'", "the program that is the server" if needed == "command" else
                      "an address such as http://127.0.0.1:8000/mcp")
    elif needed == "url" and isinstance(value, str) and not _is_url(value):
        yield Finding("error", display, "url", None, f"'url' is {shown_address(value)}, which is no address",
                      "a text that begins with http:// or https://")
    folder = content.get("cwd")
    if transport == "stdio" and isinstance(folder, str) and folder.strip() and not os.path.isdir(
            os.path.expanduser(folder.strip())):
        yield Finding("error", display, "cwd", None, f"the folder {quoted(folder)} does not exist")


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text.strip())
        return parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        return False


def check_workflow_top(display: str, content: Mapping[str, object]) -> Iterator[Finding]:
    """Keys at the top of a workflow that were probably meant to be those that mean something."""
    nodes = content.get("nodes")
    if nodes is not None and not isinstance(nodes, (list, tuple)):
        yield Finding("error", display, "nodes", None, f"'nodes' must be a list, not {quoted(nodes)}")
    for name in content:
        if name != "parallelNodes" and nearest(name, ("parallelNodes",), 0.85):
            yield Finding("warning", display, child("", name), None, f"the key {quoted(name)} is a variable of the "
                          "workflow and nothing else", "", "parallelNodes")
