"""Completion and explanation while a configuration file is written: the declared keys, and the names that exist."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from Middleware.addons.check.file_check import KINDS, FileKind
from Middleware.addons.check.lookups import files_in, folders_in, path_of
from Middleware.addons.check.node_check import COMMON
from Middleware.addons.console.editing.unsaved import folders_of, kind_in, setting_of, users_of, variables_of
from Middleware.exceptions import ConfigurationError
from Middleware.utilities import config_utils
from Middleware.utilities.config.check import shortened
from Middleware.utilities.config.declarations import ConfigKey, KeyTable
from Middleware.utilities.config.json_source import JsonSource, OffsetContext, child
from Middleware.utilities.config.keys.api_type import API_TYPE
from Middleware.utilities.config.keys.endpoint import PRESET_SAMPLERS
from Middleware.utilities.config.store import config_store
from Middleware.utilities.config.users import existing_users
from Middleware.utilities.files.path_utils import split_name
from Middleware.utilities.sensitive_logging_utils import mask_url
from Middleware.workflows.handlers.registry import node_types
from Middleware.workflows.managers.variable_table import BUILT_IN_VARIABLES

# A list that is longer is of no help, and each entry is drawn.
MAX_COMPLETIONS = 500
_KINDS = {
    "str": "text",
    "bool": "true or false",
    "int": "whole number",
    "number": "number",
    "list": "list",
    "object": "object",
    "any": "any value",
}
_PLACEHOLDER = re.compile(r"\{+\s*(\w*)\Z")
_NAME_AT = re.compile(r"\w*")
# Values that the author has to fill in, as they are inserted after a key.
_EMPTY = {"str": '""', "list": "[]", "object": "{}"}


@dataclass(frozen=True)
class Completion:
    """One proposal.

    Attributes:
        label: what is written, and replaces what stands from ``Assistance.start`` on.
        detail: a few words next to it.
        info: a sentence about it.
        apply: what is written in place of the label; empty for the label itself.
    """

    label: str
    detail: str = ""
    info: str = ""
    apply: str = ""


@dataclass(frozen=True)
class Hover:
    """The explanation of the text from ``start`` to ``end``."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Assistance:
    """What may be written at an offset, in place of the text from ``start`` on, and what stands there."""

    start: int
    completions: Sequence[Completion]
    hover: Hover | None


def assist(display: str, text: str, offset: int) -> Assistance:
    """Return the proposals for a position in the text of the file ``display``, which may have mistakes."""
    source = JsonSource(text, display)
    try:
        content: object = source.parse()
    # While it is written, a text seldom is JSON.
    except ConfigurationError:
        content = None
    kind = kind_in(display, content)
    if kind is None:
        return Assistance(offset, (), None)
    return _Assistant(display, kind, source, source.context_at(offset), offset).answer()


class _Assistant:
    """One question about one place."""

    def __init__(self, display: str, kind: FileKind, source: JsonSource, place: OffsetContext, offset: int) -> None:
        self._display, self._kind, self._source, self._place, self._offset = display, kind, source, place, offset
        self._users = users_of(display, kind)

    def answer(self) -> Assistance:
        place = self._place
        if place.key is None:
            keys = self._keys(place.around) or {}
            word = self._source.text[place.start : place.end]
            return Assistance(
                place.start,
                [*self._missing(keys)][:MAX_COMPLETIONS],
                self._explained(keys[word]) if word in keys else None,
            )
        key = self._key(place)
        variable = self._variable(key)
        if variable is not None:
            return variable
        found = [*self._values(key)] if key is not None else []
        return Assistance(place.start, found[:MAX_COMPLETIONS], self._explained(key) if key is not None else None)

    def _explained(self, key: ConfigKey) -> Hover:
        return Hover(self._place.start, self._place.end, description(key))

    # -- keys --------------------------------------------------------------------------------------------------------
    def _keys(self, around: Sequence[str | int]) -> Mapping[str, ConfigKey] | None:
        """Return the declared keys of the object at ``around``; None if its keys are the author's."""
        if self._kind is KINDS["workflow"]:
            steps = ["nodes", *around] if around and isinstance(around[0], int) else [*around]
            if not steps:
                return self._kind.key
            if steps[0] != "nodes" or len(steps) < 2 or not isinstance(steps[1], int):
                return None
            return _inside(self._node_keys(steps[1]), steps[2:])
        if self._kind.name == "preset":
            return preset_keys(self._display) if not around else None
        if self._kind.entries:
            return _inside(self._kind.key, around[1:]) if around else KeyTable(self._kind.top)
        return _inside(self._kind.key, around)

    def _node_keys(self, index: int) -> Mapping[str, ConfigKey]:
        written = self._source.string_at(f"{self._nodes}[{index}].type") or "Standard"
        handler = node_types().get(written)
        return {**COMMON, **({key.name: key for key in handler.KEYS[written]} if handler is not None else {})}

    @property
    def _nodes(self) -> str:
        return "" if self._source.is_list else "nodes"

    def _missing(self, keys: Mapping[str, ConfigKey]) -> Iterator[Completion]:
        here = _json_path(self._place.around)
        present = self._source.paths()
        for name, key in sorted(keys.items(), key=lambda item: (not item[1].required, item[1].inert)):
            if child(here, name) not in present:
                yield Completion(
                    name,
                    _KINDS[key.kind] + (", required" if key.required else ""),
                    description(key),
                    self._as_key(name, key),
                )

    def _as_key(self, name: str, key: ConfigKey) -> str:
        """Return a key with a colon and the beginning of its value, as far as they are not written yet."""
        rest = self._source.text[self._place.end + self._place.is_string :]
        if rest.lstrip().startswith(":"):
            return "" if self._place.is_string else json.dumps(name)
        start = "" if self._place.is_string else '"'
        # A default shows the form of the value; the quotation mark at the end of the word, if there is one, is used.
        shown = key.default if key.in_new is None else key.in_new
        value = _EMPTY.get(key.kind, "" if shown is None else json.dumps(shown))
        return f'{start}{name}": {value}' if not self._place.is_string else name

    # -- values ------------------------------------------------------------------------------------------------------
    def _key(self, place: OffsetContext) -> ConfigKey | None:
        """Return the declaration of the value at a place; None for a value under a key of the author's."""
        assert place.key is not None
        keys = self._keys(place.around)
        if keys is not None and isinstance(place.key, str):
            return keys.get(place.key)
        # An entry of a declared list, or of a declared object whose keys are free.
        last = place.around[-1] if place.around else None
        holder = (self._keys(place.around[:-1]) or {}).get(last) if isinstance(last, str) else None
        return holder if holder is not None and (holder.entries or holder.names or holder.kind == "list") else None

    def _values(self, key: ConfigKey) -> Iterator[Completion]:
        if key.name == "type" and self._kind is KINDS["workflow"]:
            for name, handler in node_types().items():
                yield self._text(name, "node type", _first_line(handler))
        elif key.name == "dependsOn":
            yield from (self._text(title, "node") for title in self._titles())
        elif key.kind == "bool":
            yield from (
                Completion(word, "the default" if key.default is (word == "true") else "")
                for word in ("true", "false")
                if not self._place.is_string
            )
        for choice in key.choices:
            yield self._text(choice, "the default" if choice == key.default else "")
        for name, detail in self._names(key):
            yield self._text(name, detail)

    def _text(self, value: str, detail: str = "", info: str = "") -> Completion:
        return Completion(value, detail, info, "" if self._place.is_string else json.dumps(value, ensure_ascii=False))

    def _titles(self) -> Iterator[str]:
        # Only nodes above can be waited for.
        number = next((step for step in self._place.around if isinstance(step, int)), 0)
        for index in range(number):
            title = self._source.string_at(f"{self._nodes}[{index}].title")
            if title:
                yield title

    # -- names -------------------------------------------------------------------------------------------------------
    def _names(self, key: ConfigKey) -> Iterator[tuple[str, str]]:
        """Yield the existing things that a value may name, each once, with what tells them apart."""
        find = _NAMED.get(key.names)
        users = self._users or existing_users()
        folder = self._folder_override() if key.names == "workflow" else ""
        if folder:
            yield from ((name, folder) for name in _files("Workflows", folder))
        elif find is not None:
            found: dict[str, str] = {}
            for user in users:
                for name, detail in find(user):
                    found.setdefault(name, detail)
            if key.names == "workflow" and self._kind is KINDS["workflow"]:
                folder = self._display.removeprefix("Workflows/").rpartition("/")[0]
                found.update((name, folder) for name in _files("Workflows", folder) if name not in found)
            yield from sorted(found.items())

    def _folder_override(self) -> str:
        path = _json_path(self._place.around)
        return self._source.string_at(child(path, "workflowUserFolderOverride")) or "" if path else ""

    # -- variables ---------------------------------------------------------------------------------------------------
    def _variable(self, key: ConfigKey | None) -> Assistance | None:
        """Return the proposals for a variable, if the offset is behind the brace of one."""
        place, text = self._place, self._source.text
        holds = key.variables != "none" if key is not None else self._kind.name in ("workflow", "user")
        match = _PLACEHOLDER.search(text, place.start, self._offset) if place.is_string and holds else None
        if match is None:
            return None
        known = dict(self._variables())
        end = self._offset + len(_NAME_AT.match(text, self._offset)[0])  # type: ignore[index]
        word = text[match.start(1) : end]
        hover = Hover(match.start(1), end, f"{{{word}}}: {known[word]}") if word in known else None
        return Assistance(match.start(1), [Completion(name, detail) for name, detail in known.items()], hover)

    def _variables(self) -> Iterator[tuple[str, str]]:
        number = next((step for step in self._place.around if isinstance(step, int)), None)
        for index in range(number or 0):
            title = self._source.string_at(f"{self._nodes}[{index}].title") or "without title"
            yield f"agent{index + 1}Output", f"output of node {index + 1}, {shortened(title, 40)}"
        if self._kind is KINDS["workflow"] and not self._source.is_list:
            for path in self._source.paths():
                if path.isidentifier() and path != "nodes":
                    yield path, "a key of this file"
        for user in self._users:
            yield from ((name, f"a variable of user {user}") for name in variables_of(user))
        yield from ((name, "built in") for name in sorted(BUILT_IN_VARIABLES))


# -- declarations ------------------------------------------------------------------------------------------------------


def description(key: ConfigKey) -> str:
    """Return what a key means, in sentences."""
    meaning = key.meaning if key.meaning.endswith((".", "?")) else f"{key.meaning}."
    parts = [f"{key.name} ({_KINDS[key.kind]}{', required' if key.required else ''}): {meaning}"]
    if key.choices:
        parts.append(f"One of: {', '.join(key.choices)}.")
    if key.default not in (None, "", [], {}, ()):
        parts.append(f"Default: {json.dumps(key.default, default=str)}.")
    if key.inert:
        parts.append("It has no effect.")
    return " ".join(parts)


def _inside(keys: Mapping[str, ConfigKey], steps: Sequence[str | int]) -> Mapping[str, ConfigKey] | None:
    """Return the declared keys of the object that ``steps`` lead to from an object with ``keys``."""
    for step in steps:
        # The index in a list of objects leads to the keys of the list.
        if isinstance(step, int):
            continue
        key = keys.get(step)
        if key is None or not key.keys:
            return None
        keys = KeyTable(key.keys)
    return keys


def preset_keys(display: str) -> Mapping[str, ConfigKey]:
    """Return the samplers of the API types that use a preset, under the names that it has there."""
    folder, found = display.split("/")[1], {}
    for name in files_in("ApiTypes"):
        try:
            api_type = config_utils.load_api_type(name)
        except ConfigurationError:
            continue
        fields = API_TYPE.value(api_type, "samplerFieldMap")
        is_used = API_TYPE.value(api_type, "presetType") == folder and isinstance(fields, Mapping)
        for canonical, field in fields.items() if is_used else ():
            key = PRESET_SAMPLERS.get(canonical)
            if isinstance(field, str) and key is not None:
                found[field] = ConfigKey(field, key.kind, key.default, key.meaning, choices=key.choices)
    return found


def _first_line(handler: object) -> str:
    return (inspect.getdoc(handler) or "").partition("\n")[0]


def _json_path(steps: Sequence[str | int]) -> str:
    path = ""
    for step in steps:
        path = child(path, step)
    return path


# -- what exists -------------------------------------------------------------------------------------------------------

Found = Iterator[tuple[str, str]]


def _files(*folders: str) -> list[str]:
    try:
        return files_in(*(part for folder in folders if folder for part in split_name(folder)))
    # No folder can have this name.
    except ConfigurationError:
        return []


def _folders(*folders: str) -> list[str]:
    return folders_in(*folders)


def _endpoints(user: str) -> Found:
    folder = setting_of(user, "endpointConfigsSubDirectory")
    for name in _files("Endpoints", folder):
        yield name, _endpoint_detail("/".join(filter(None, ("Endpoints", folder, f"{name}.json"))))


def _endpoint_detail(display: str) -> str:
    try:
        content = config_store().read_json(path_of(display), display=display)
    except ConfigurationError:
        return "cannot be read"
    values = [content.get(key) for key in ("modelNameToSendToAPI", "endpoint")] if isinstance(content, dict) else []
    return shortened(", ".join(mask_url(value) for value in values if isinstance(value, str) and value), 60)


def _presets(user: str) -> Found:
    own = setting_of(user, "presetConfigsSubDirectoryOverride") or user
    for preset_type in folders_in("Presets"):
        for folder in (own, ""):
            yield from (
                (name, "/".join(filter(None, (preset_type, folder)))) for name in _files("Presets", preset_type, folder)
            )
    # The name of an endpoint stands for its samplers.
    yield from ((name, "samplers of the endpoint") for name, _ in _endpoints(user))


def _workflows(user: str) -> Found:
    for folder in folders_of(user):
        yield from ((name, folder) for name in _files("Workflows", folder) if not name.endswith(".test"))


def _schemas(user: str) -> Found:
    for folder in (setting_of(user, "structuredOutputConfigsSubDirectory") or user, ""):
        yield from ((name, folder) for name in _files("StructuredOutputs", folder))


def _in(collection: str) -> Callable[[str], Found]:
    return lambda user: ((name, "") for name in _files(collection))


def _folders_of(*collections: str) -> Callable[[str], Found]:
    return lambda user: ((name, collection) for collection in collections for name in _folders(*collection.split("/")))


def _preset_folders(user: str) -> Found:
    for preset_type in folders_in("Presets"):
        yield from ((name, preset_type) for name in folders_in("Presets", preset_type))


# By what a key names (``ConfigKey.names``): the things that a user can name there.
_NAMED: Mapping[str, Callable[[str], Found]] = {
    "endpoint": _endpoints,
    "preset": _presets,
    "workflow": _workflows,
    "structured-output": _schemas,
    "memory-settings": _workflows,
    "compactor-settings": _workflows,
    "prompt-template": _in("PromptTemplates"),
    "api-type": _in("ApiTypes"),
    "routing": _in("Routing"),
    "mcp-server": _in("MCPServers"),
    "user": lambda user: ((name, "") for name in existing_users()),
    "endpoint-folder": _folders_of("Endpoints"),
    "preset-type-folder": _folders_of("Presets"),
    "preset-folder": _preset_folders,
    "structured-output-folder": _folders_of("StructuredOutputs"),
    "workflow-folder": _folders_of("Workflows", "Workflows/_overrides"),
}
