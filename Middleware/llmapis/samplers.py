"""Find the sampler fields of a payload for an endpoint and a preset name.

There are three steps: ``SamplerResolver`` finds the fields (``presetSamplers`` of a donor endpoint, or a preset file,
plus the endpoint's append preset), ``inject_structure`` adds the fields of the request itself, and ``normalise``
removes nulls. Configuration objects are never changed.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from Middleware.exceptions import ConfigNotFoundError
from Middleware.llmapis.endpoint_file import EndpointFile, endpoint_path
from Middleware.utilities import config_utils
from Middleware.utilities.config.check import quoted
from Middleware.utilities.config.keys.api_type import API_TYPE, THINKING
from Middleware.utilities.config.keys.endpoint import (
    CANONICAL_SAMPLER_KEYS,
    ENDPOINT,
    PRESET_SAMPLERS,
    SERVER_KEYS,
    THINKING_EFFORTS,
    THINKING_KEYS,
    THINKING_OFF,
)
from Middleware.utilities.files.path_utils import is_flat_name
from Middleware.utilities.once import BoundedCache

logger = logging.getLogger(__name__)

# Pairs of endpoint and preset. The preset may come from a variable of a workflow, so there is no natural limit.
MAX_RESOLVED = 256
# A null in a preset omits a field, so that a field with the value null needs a spelling of its own.
NULL_MARKER = "__wilmer_null__"
CANONICAL_SAMPLERS = frozenset(key.name for key in CANONICAL_SAMPLER_KEYS)
FOR_THE_SERVER = frozenset(key.name for key in SERVER_KEYS)
SET_APART = frozenset(key.name for key in THINKING_KEYS)
# In a schema or grammar a null has a meaning, such as ``"default": null``.
VERBATIM_KEYS = frozenset({"json_schema", "grammar"})
NOTHING: Mapping[str, object] = MappingProxyType({})

# Fields that come from a node, or from the file of an endpoint under one key.
_NODE_KEYS = {
    "tools": "Set 'allowTools' of the node to false.",
    "tool_choice": "Set 'allowTools' of the node to false.",
    "images": "It comes from 'acceptImages' of the node.",
    "model": "It is 'modelNameToSendToAPI' of the endpoint.",
}

# Keys of an API type that name a field, and where its value is.
_STRUCTURE = {
    "maxNewTokensPropertyName": "'maxResponseSizeInTokens' of the node",
    "truncateLengthPropertyName": "'maxContextTokenSize' of the endpoint",
    "structuredOutput": "'structuredOutputFile' or 'answerChoices' of the node",
}

_SAMPLERS, _EXTRA, _WINDOW = map(ENDPOINT.lookup, ("presetSamplers", "appendPresetName", "maxContextTokenSize"))
_PRESET_TYPE, _STREAM_KEY, _WINDOW_KEY, _LIMIT_KEY = map(
    API_TYPE.lookup, ("presetType", "streamPropertyName", "truncateLengthPropertyName", "maxNewTokensPropertyName")
)

Samplers = dict[str, Any]


class Sources(NamedTuple):
    """The configuration objects that determine the samplers of one call.

    Attributes:
        donor: the ``presetSamplers`` to translate, empty when a preset file is used.
        preset: the preset file, sent unchanged.
        extra: the preset file that is merged over the others.
    """

    endpoint: Mapping[str, object]
    api_type: Mapping[str, object]
    donor: Mapping[str, object]
    preset: Mapping[str, object]
    extra: Mapping[str, object]

    def same_as(self, other: Sources) -> bool:
        # The configuration store replaces an object when its file changes, so a comparison of contents is not needed.
        return all(map(operator.is_, self, other))


def find_sources(
    endpoint: Mapping[str, object], api_type: Mapping[str, object], preset_name: str | None, endpoint_name: str = ""
) -> Sources:
    """Find the configuration objects for ``preset_name`` of ``endpoint``.

    Without a preset name the endpoint's own ``presetSamplers`` are used, if it has any. Raises ConfigNotFoundError for
    a preset that exists neither as a donor endpoint nor as a file; for an append preset the error names the file of
    ``endpoint_name``.
    """
    preset_type = str(api_type.get(*_PRESET_TYPE) or "")
    name = str(preset_name).strip() if preset_name is not None else ""
    donor = preset = extra = NOTHING
    if not name:
        donor = _block(endpoint.get(*_SAMPLERS))
    else:
        donor = _donor_samplers(name)
        if not donor:
            preset = _block(config_utils.find_preset(name, preset_type))
    append = endpoint.get(*_EXTRA)
    if isinstance(append, str) and append.strip():
        extra = _added_preset(append.strip(), preset_type, endpoint_name)
    return Sources(endpoint, api_type, donor, preset, extra)


def _added_preset(name: str, preset_type: str, endpoint_name: str) -> Mapping[str, object]:
    try:
        return _block(config_utils.find_preset(name, preset_type))
    except ConfigNotFoundError as error:
        if not endpoint_name:
            raise
        raise ConfigNotFoundError(
            f"preset '{name}' does not exist",
            tried=error.tried,
            file=endpoint_path(endpoint_name),
            json_path=_EXTRA[0],
            suggestion=error.suggestion,
        ) from None


def _donor_samplers(name: str) -> Mapping[str, object]:
    """Return the sampler block of the endpoint ``name``, empty without one."""
    if not is_flat_name(name):
        return NOTHING
    donor = config_utils.endpoint_exists_with_samplers(name)
    return _block(donor.get(*_SAMPLERS)) if donor else NOTHING


def combine(sources: Sources, endpoint_name: str = "") -> Samplers:
    """Return the sampler fields with the back-end's names. The result may share values with configuration objects."""
    if not API_TYPE.value(sources.api_type, "maxNewTokensPropertyName"):
        logger.warning(
            "Endpoint '%s': its API type has no maxNewTokensPropertyName; no response limit is sent.", endpoint_name
        )
    base = translate(sources.donor, sources.api_type, endpoint_name) if sources.donor else sources.preset
    return deep_merge(base, sources.extra)


class SamplerResolver:
    """Resolves samplers and caches each result as long as its configuration objects are the same.

    A repeated call then takes a few look-ups, and a warning about a sampler appears once per edit of its file.
    """

    def __init__(self) -> None:
        self._known: BoundedCache[tuple[int, str | None], tuple[Sources, Samplers]] = BoundedCache(MAX_RESOLVED)

    def resolve(
        self,
        endpoint_name: str,
        endpoint: Mapping[str, object],
        api_type: Mapping[str, object],
        preset_name: str | None,
    ) -> Samplers:
        """Return the sampler fields of ``endpoint`` with ``preset_name``. They are shared and must not be changed."""
        sources = find_sources(endpoint, api_type, preset_name, endpoint_name)
        # The entry keeps the endpoint alive, so its id is not reused.
        key = (id(endpoint), preset_name)
        known = self._known.get(key)
        if known is not None and known[0].same_as(sources):
            return known[1]
        samplers = combine(sources, endpoint_name)
        self._known.put(key, (sources, samplers))
        return samplers


def remedy(file: EndpointFile, preset_name: str | None, field: str) -> str:
    """Return as advice where a field of a payload comes from; "" if it is not known."""
    api_type_path = f"ApiTypes/{ENDPOINT.value(file.config, 'apiTypeConfigFileName')}.json"
    for key, value in _STRUCTURE.items():
        declared = API_TYPE.value(file.api_type, key)
        if field == (declared.get("field") if isinstance(declared, Mapping) else declared):
            return f"It is {key} in {api_type_path}, with the value of {value}."
    sources = find_sources(file.config, file.api_type, preset_name, file.name)
    added = str(file.config.get(*_EXTRA) or "").strip()
    for name, fields in ((added, sources.extra), (preset_name or "", sources.preset)):
        if field in fields:
            path = config_utils.preset_file(name.strip(), str(file.api_type.get(*_PRESET_TYPE))).display
            return f"Remove '{field}' from {path}."
    thinking = THINKING.value(_block(API_TYPE.value(file.api_type, "thinking")), "field") == field
    names = {sent: key for key, sent in _block(API_TYPE.value(file.api_type, "samplerFieldMap")).items()}
    name = "thinkingMode" if thinking and "thinkingMode" in sources.donor else names.get(field, field)
    if name in sources.donor:
        return f"Set presetSamplers.{name} to null in {endpoint_path((preset_name or '').strip() or file.name)}."
    usage = f"Set requestUsageInStreams to false in {api_type_path}."
    return usage if field == "stream_options" else _NODE_KEYS.get(field, "")


def translate(block: Mapping[str, object], api_type: Mapping[str, object], endpoint_name: str = "") -> Samplers:
    """Translate ``presetSamplers`` to the field names of an API type; unsupported ones are dropped with a warning."""
    fields = _block(API_TYPE.value(api_type, "samplerFieldMap"))
    out: Samplers = {}
    for key, value in block.items():
        if key in SET_APART:
            continue
        if key in fields:
            out[fields[key]] = value
        elif key in CANONICAL_SAMPLERS or key in FOR_THE_SERVER:
            logger.warning(
                "Endpoint '%s': its API type does not support sampler '%s'; it is not sent.", endpoint_name, key
            )
        else:
            logger.warning("Endpoint '%s': unknown sampler '%s', likely a typo; it is not sent.", endpoint_name, key)
    mode, kwargs = PRESET_SAMPLERS.value(block, "thinkingMode"), PRESET_SAMPLERS.value(block, "chat_template_kwargs")
    if mode is not None:
        out = deep_merge(out, thinking_fields(mode, _block(API_TYPE.value(api_type, "thinking")), endpoint_name))
    if kwargs is not None:
        if API_TYPE.flag(api_type, "supportsChatTemplateKwargs"):
            out = deep_merge(out, {"chat_template_kwargs": kwargs})
        else:
            logger.warning(
                "Endpoint '%s': its API type does not take chat_template_kwargs; they are not sent.", endpoint_name
            )
    return out


def thinking_fields(value: object, descriptor: Mapping[str, object], endpoint_name: str = "") -> Samplers:
    """Return the payload fields for a ``thinkingMode``, by an API type's ``thinking`` descriptor."""
    mode, field = THINKING.value(descriptor, "mode"), THINKING.value(descriptor, "field")
    if mode not in ("bool", "effort") or not isinstance(field, str) or not field:
        logger.warning("Endpoint '%s': its API type cannot switch thinking; thinkingMode is not sent.", endpoint_name)
        return {}
    text, location = str(value).strip().lower(), THINKING.value(descriptor, "location")
    known = PRESET_SAMPLERS["thinkingMode"].choices
    if text not in known:
        # A guess could switch on, at a price, what the author meant to switch off. Blank counts as not given.
        counts = bool(text) and mode == "effort"
        if text:
            logger.warning(
                "Endpoint '%s': thinkingMode is %s, which is unknown; it %s. Known: %s",
                endpoint_name,
                quoted(value),
                "counts as medium" if counts else "is not sent",
                ", ".join(known),
            )
        if not counts:
            return {}
    fragment: Samplers
    if mode == "bool":
        fragment = {field: text not in THINKING_OFF}
    elif text in THINKING_EFFORTS:
        fragment = {field: text}
    elif text in THINKING_OFF:
        off = THINKING.text(descriptor, "offValue")
        if not off:
            return {}
        fragment = {field: off}
    else:
        fragment = {field: "medium"}
    return {"chat_template_kwargs": fragment} if location == "chat_template_kwargs" else fragment


def inject_structure(
    samplers: Mapping[str, object],
    endpoint: Mapping[str, object],
    api_type: Mapping[str, Any],
    stream: bool,
    max_tokens: int | None,
) -> Samplers:
    """Return ``samplers`` with the stream flag, context size and response limit under the API type's names.

    An explicit null in a preset omits the context size or the limit; ``max_tokens`` None omits the limit.
    """
    out = dict(samplers)
    stream_key = api_type.get(*_STREAM_KEY)
    if stream_key:
        out[stream_key] = stream
    if stream and API_TYPE.flag(api_type, "requestUsageInStreams"):
        out = deep_merge({"stream_options": {"include_usage": True}}, out)
    window_key, window = api_type.get(*_WINDOW_KEY), endpoint.get(*_WINDOW)
    if window_key and window is not None and out.get(window_key, ...) is not None:
        out[window_key] = window
    limit_key = api_type.get(*_LIMIT_KEY)
    if limit_key and max_tokens is None:
        out.pop(limit_key, None)
    elif limit_key and out.get(limit_key, ...) is not None:
        out[limit_key] = max_tokens
    return out


def normalise(samplers: Mapping[str, object]) -> Samplers:
    """Return ``samplers`` without nulls and emptied objects; the marker for an intended null becomes null.

    Lists are not changed, nor are objects under ``json_schema`` and ``grammar``.
    """
    out: Samplers = {}
    for key, value in samplers.items():
        if value is None:
            continue
        if isinstance(value, Mapping):
            if key not in VERBATIM_KEYS:
                value = normalise(value)
                if not value:
                    continue
        elif value == NULL_MARKER:
            value = None
        out[key] = value
    return out


def deep_merge(base: Mapping[str, object], override: Mapping[str, object]) -> Samplers:
    """Return a new object: objects are merged key by key, other values of ``override`` replace those of ``base``."""
    out = dict(base)
    for key, value in override.items():
        known = out.get(key)
        out[key] = deep_merge(known, value) if isinstance(known, Mapping) and isinstance(value, Mapping) else value
    return out


def _block(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else NOTHING
