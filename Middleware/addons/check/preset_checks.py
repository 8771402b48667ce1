"""The check of preset files: their samplers have the names of the server's API, and values like those of endpoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

from Middleware.addons.check.findings import Finding, finding_in
from Middleware.addons.check.lookups import files_in
from Middleware.exceptions import ConfigurationError
from Middleware.llmapis.samplers import NULL_MARKER
from Middleware.utilities import config_utils
from Middleware.utilities.config.check import KeyCheck, is_remark, quoted
from Middleware.utilities.config.declarations import ConfigKey, number_from
from Middleware.utilities.config.json_source import child
from Middleware.utilities.config.keys.endpoint import PRESET_SAMPLERS
from Middleware.utilities.text_utils import nearest

# The server may know keys that no API type lists, so only what is nearly certain to be misspelt counts.
PRESET_CUTOFF = 0.9
SENT_AS_STRING = "is a string and is sent as one, which many servers refuse"

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


def unquoted(value: object) -> str:
    """Return how a number that is written as a string is meant to be written; "" for anything else."""
    is_number = isinstance(value, str) and number_from(value, whole=False) is not None
    return f"the number without quotes, {str(value).strip()}" if is_number else ""


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
