"""Checks of the values in endpoint files and API types, beyond their types, with their backups and presets."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from Middleware.addons.check.findings import Finding, shown_address
from Middleware.addons.check.lookups import files_in, folder_problem, folders_in, problem_of
from Middleware.exceptions import ConfigurationError
from Middleware.llmapis.addresses import api_path_of, compose
from Middleware.llmapis.api_keys import resolve_api_key
from Middleware.llmapis.api_types import (
    ALIASES,
    COMPLETION_TYPES,
    EMBEDDINGS_TYPES,
    KNOWN_TYPES,
    injected_text,
    model_name,
)
from Middleware.llmapis.call_turns import group_of
from Middleware.llmapis.embedding_api import TYPES as EMBEDDING
from Middleware.llmapis.failover import classify_host
from Middleware.llmapis.llm_api import TYPES as GENERATING
from Middleware.utilities import config_utils
from Middleware.utilities.config.check import Severity, is_remark, quoted
from Middleware.utilities.config.declarations import number_from
from Middleware.utilities.config.json_source import child
from Middleware.utilities.config.keys.api_type import API_TYPE
from Middleware.utilities.config.keys.endpoint import CANONICAL_SAMPLER_KEYS, ENDPOINT, SERVER_KEYS
from Middleware.utilities.config.lookup import candidate, find_file
from Middleware.utilities.config.store import FoundFile, read_object
from Middleware.utilities.files.path_utils import split_name
from Middleware.utilities.http.via import is_own_host
from Middleware.utilities.http.wire import parse_target
from Middleware.utilities.text_utils import nearest

CANONICAL = frozenset(key.name for key in (*CANONICAL_SAMPLER_KEYS, *SERVER_KEYS))
NUMBERS = frozenset(key.name for key in CANONICAL_SAMPLER_KEYS if key.kind in ("int", "number"))
# Lists of models. That the path of one is left out changes nothing.
LISTS = ("/models", "/api/tags", "/api/version")
# A part of a path that follows itself: ``/v1/v1``.
DOUBLED = re.compile(r"((?:/[^/]+)+)\1(?=/|$)")
# Parts of the names of models whose chat template refuses anything but users and assistants in turn.
STRICT_MODELS = re.compile(r"gemma|mistral", re.IGNORECASE)
TURN_ON = "'alternateRoles': true, which sends such messages in a form that every template accepts"
SENT_AS_STRING = "is a string and is sent as one, which many servers refuse"


def named_as_strict(content: Mapping[str, object]) -> bool:
    """Return whether the name of an endpoint's model says that it needs ``alternateRoles``, which is off."""
    return not ENDPOINT.flag(content, "alternateRoles") and STRICT_MODELS.search(model_name(content)) is not None


def strict_template(what: str) -> str:
    """Return the message about an endpoint that needs ``alternateRoles``."""
    return (
        f"{what} accepts only users and assistants in turn, so that requests with two messages of the user in a "
        "row, an empty answer or a later system message fail"
    )


def check_key(display: str, content: Mapping[str, object]) -> Iterator[Finding]:
    """Yield why the API key of an endpoint in use cannot be read. Its text is never shown."""
    value = content.get("apiKey")
    # Reported as the wrong type.
    if not isinstance(value, str):
        return
    try:
        resolve_api_key(value, display)
    except ConfigurationError as error:
        message = str(error).removeprefix(f"{display}: ").partition(" (at apiKey)")[0]
        yield Finding("warning", display, "apiKey", None, message, error.expected)


def check_own_port(endpoints: Mapping[str, object], port: int | None) -> Iterator[Finding]:
    """Yield the endpoint files whose address is that of a server for the current user. No name is resolved.

    ``port``: that of the command line; None for the user's own.
    """
    port = config_utils.user_int("port") if port is None else port
    for display, content in endpoints.items():
        url = ENDPOINT.text(content, "endpoint").strip() if isinstance(content, Mapping) else ""
        target = parse_target(url) if is_address(url) else None
        if target is not None and target.port == port and is_own_host(target.host):
            yield Finding(
                "error",
                display,
                "endpoint",
                None,
                f"the address leads back to this WilmerAI, which listens on port {port}",
                "the address of the LLM server, or another 'port' of the user",
            )


class EndpointCheck:
    """The findings about an endpoint file that apply to every user."""

    def __init__(self, display: str, content: Mapping[str, object]) -> None:
        self._display, self._content = display, content

    def findings(self) -> Iterator[Finding]:
        yield from self._address()
        yield from self._api_type()
        yield from self._quoted_numbers()
        yield from self._cleaning()
        yield from self._backup()
        yield from self._linked("swapStandIn", self._check_stand_in)
        yield from self._group()

    def _at(self, severity: Severity, path: str, message: str, expected: str = "", suggestion: str = "") -> Finding:
        return Finding(severity, self._display, path, None, message, expected, suggestion)

    def _address(self) -> Iterator[Finding]:
        url = _name(self._content, "endpoint")
        if not url:
            # Reported as missing.
            return
        expected = "an address such as http://127.0.0.1:5001"
        if not is_address(url):
            near = f"http://{url}" if not any(mark in url for mark in ("://", "@", "?", " ")) else ""
            yield self._at(
                "error", "endpoint", f"'endpoint' is {shown_address(url)}, which is not an address", expected, near
            )
        else:
            yield from self._paths(url)

    def _paths(self, url: str) -> Iterator[Finding]:
        """Yield what is odd about the path of the address, and where calls go if that leaves a doubt."""
        if "#" in url:
            # It may hold a password.
            problem = "the part from '#' on belongs to web pages and is left out"
            yield self._at("warning", "endpoint", problem, "the address of the server without it")
        kind, api_path = _type_of(self._content), api_path_of(self._content)
        if not kind:
            return
        address = compose(url, (GENERATING.get(kind) or EMBEDDING[kind]).PATH, api_path)
        shown = " or ".join(parse_target(one).display for one in address.urls)
        if address.cut and not address.cut.endswith(LISTS):
            yield self._at(
                "warning",
                "endpoint",
                f"the address ends in {quoted(address.cut)}, which the API type does not call; calls go to {shown}",
                "the address of the server without the path of a call",
            )
        elif doubled := DOUBLED.search(parse_target(address.url).path.partition("?")[0]):
            key = "endpoint" if api_path is None else "apiPath"
            yield self._at(
                "warning", key, f"calls go to {shown}, in which {quoted(doubled[1])} stands twice", "each part once"
            )
        elif address.other and address.path:
            yield self._at(
                "note",
                "endpoint",
                f"calls go to {shown}, whichever the server has",
                '\'apiPath\' with what stands before the last part, such as "/v1" or ""',
            )

    def _api_type(self) -> Iterator[Finding]:
        name = _name(self._content, "apiTypeConfigFileName")
        if not name:
            return
        try:
            found = config_utils.api_type_file(name)
        except ConfigurationError as error:
            yield missing(self._display, "apiTypeConfigFileName", error)
            return
        api_type = _content(found)
        if api_type is not None:
            yield from self._samplers(api_type, name)
            yield from self._template(api_type)
            yield from self._chat(api_type)

    def _samplers(self, api_type: Mapping[str, object], name: str) -> Iterator[Finding]:
        samplers, fields = self._content.get("presetSamplers"), api_type.get("samplerFieldMap")
        if not isinstance(samplers, Mapping):
            return
        fields = fields if isinstance(fields, Mapping) else {}
        rejected = []
        for sampler, value in samplers.items():
            if sampler in fields or is_remark(sampler):
                continue
            if sampler in CANONICAL:
                rejected.append(sampler)
            # These two have settings of their own in an API type, in place of the name of a field.
            elif sampler not in ("thinkingMode", "chat_template_kwargs"):
                yield self._at(
                    "warning",
                    child("presetSamplers", sampler),
                    f"the sampler {quoted(sampler)} is unknown, likely a typo; it is not sent",
                    "",
                    nearest(sampler, {*CANONICAL, *fields}),
                )
            elif value is not None and not _takes(api_type, sampler):
                rejected.append(sampler)
        if rejected:
            yield self._at(
                "warning",
                child("presetSamplers", rejected[0]),
                f"API type '{name}' does not take {', '.join(rejected)}; not sent",
            )

    def _template(self, api_type: Mapping[str, object]) -> Iterator[Finding]:
        name = _name(self._content, "promptTemplate")
        kind = str(api_type.get("type"))
        # Only text completion builds its prompt from a template.
        if name and ALIASES.get(kind, kind) in COMPLETION_TYPES:
            try:
                config_utils.prompt_template_file(name)
            except ConfigurationError as error:
                yield missing(self._display, "promptTemplate", error)

    def _chat(self, api_type: Mapping[str, object]) -> Iterator[Finding]:
        """Yield findings about models that answer conversations."""
        kind = str(api_type.get("type"))
        kind = ALIASES.get(kind, kind)
        if kind in KNOWN_TYPES - EMBEDDINGS_TYPES and named_as_strict(self._content):
            yield self._at(
                "note", "modelNameToSendToAPI", strict_template("the chat template of such a model usually"), TURN_ON
            )
        if kind in KNOWN_TYPES - EMBEDDINGS_TYPES - COMPLETION_TYPES and injected_text(
            self._content, "addTextToStartOfPrompt", "textToAddToStartOfPrompt"
        ):
            found = self._at(
                "note",
                "addTextToStartOfPrompt",
                "the text stands before the newest message of the user "
                "only, so that the server reads this message and the answer to it again with the next "
                "one",
                "the text in 'lateInstruction' of the nodes that need it, or before the system "
                "prompt with 'addTextToStartOfSystem'",
            )
            yield replace(found, is_advice=True)

    def _quoted_numbers(self) -> Iterator[Finding]:
        """Yield numbers that are written as strings and sent as such, which most LLM servers refuse."""
        samplers = self._content.get("presetSamplers")
        for name, value in samplers.items() if isinstance(samplers, Mapping) else ():
            if name in NUMBERS and unquoted(value):
                yield self._at("warning", child("presetSamplers", name), f"'{name}' {SENT_AS_STRING}", unquoted(value))
        window = self._content.get("maxContextTokenSize")
        if unquoted(window):
            yield self._at(
                "warning",
                "maxContextTokenSize",
                f"'maxContextTokenSize' {SENT_AS_STRING}; and conversations are not shortened to it",
                unquoted(window),
            )

    def _cleaning(self) -> Iterator[Finding]:
        content = self._content
        start, end, legacy = (
            isinstance(content.get(key), str) and content[key] != ""
            for key in ("startThinkTag", "endThinkTag", "thinkTagText")
        )
        # The older key gives both tags, and counts only if neither of the others does.
        usable = legacy if not start and not end else start and end
        if ENDPOINT.flag(content, "removeThinking") and not usable:
            what = "a tag is missing" if start or end else "the tags are missing"
            yield self._at(
                "warning",
                "removeThinking",
                f"'removeThinking' is on, but {what}; thinking is kept",
                "'startThinkTag' and 'endThinkTag', such as <think> and </think>",
            )

    # -- the backup --------------------------------------------------------------------------------------------------
    def _backup(self) -> Iterator[Finding]:
        key = "backupEndpointName"
        if _name(self._content, "backupPresetName") and not _name(self._content, key):
            yield self._at("note", "backupPresetName", f"'backupPresetName' has no effect without '{key}'")
        yield from self._linked(key, self._check_backup)

    def _linked(
        self, key: str, check: Callable[[str, str, FoundFile, Mapping[str, object]], Iterator[Finding]]
    ) -> Iterator[Finding]:
        """Yield a finding if there is no endpoint of the name under ``key``, else what ``check`` finds about it."""
        name = _name(self._content, key)
        found = nearby(self._display, name) if name else None
        if name and found is None:
            folder, _, own = self._display.rpartition("/")
            near = nearest(name, [file for file in files_in(*folder.split("/")) if f"{file}.json" != own], 0.6)
            yield self._at("error", key, f"endpoint {quoted(name)} does not exist in {folder}", "", near)
        other = _content(found) if found is not None else None
        # A file that cannot be read is reported itself.
        if found is not None and other is not None:
            yield from check(key, name, found, other)

    def _check_backup(self, key: str, name: str, found: FoundFile, backup: Mapping[str, object]) -> Iterator[Finding]:
        circle = self._circle(found, key)
        if circle:
            yield self._at("warning", key, f"the backups form a circle: {circle}", "a last endpoint without a backup")
        own_type, other = _type_of(self._content), _type_of(backup)
        if own_type and other and (own_type in EMBEDDINGS_TYPES) != (other in EMBEDDINGS_TYPES):
            what = (
                "makes embeddings and cannot write text"
                if other in EMBEDDINGS_TYPES
                else "generates text and cannot make embeddings"
            )
            yield self._at("error", key, f"endpoint {quoted(name)} {what}")
        elif not ENDPOINT.flag(backup, "allowRemoteBackup") and _is_remote(backup):
            yield self._at(
                "warning",
                key,
                f"endpoint {quoted(name)} is beyond the local network, and its file does "
                "not allow that, so that it is never used as a backup",
                '"allowRemoteBackup": true in the file of that endpoint',
            )

    def _check_stand_in(self, key: str, name: str, found: FoundFile, other: Mapping[str, object]) -> Iterator[Finding]:
        """Yield a finding if the endpoint in ``swapStandIn`` can never take the calls of this one."""
        group = group_of(self._content)
        expected = (
            f"another endpoint with the 'swapGroup' {quoted(group)}"
            if group
            else ("an endpoint with the same 'swapGroup' as this one, which has none")
        )
        if found.display == self._display:
            yield self._at("error", key, "the endpoint names itself", expected)
        elif not group or group_of(other) != group:
            where = f" but in {quoted(group_of(other))}" if group and group_of(other) else ""
            yield self._at(
                "error", key, f"endpoint {quoted(name)} is not in the same group{where}, and never stands in", expected
            )
        elif {_type_of(self._content), _type_of(other)} & EMBEDDINGS_TYPES:
            whose = f"endpoint {quoted(name)}" if _type_of(other) in EMBEDDINGS_TYPES else "this endpoint"
            yield self._at(
                "error",
                key,
                f"{whose} makes embeddings, for which no other model can stand in",
                "endpoints that write text",
            )
        elif circle := self._circle(found, key):
            yield self._at(
                "error",
                key,
                f"the endpoints stand in for each other: {circle}",
                "a last endpoint without 'swapStandIn'",
            )

    def _group(self) -> Iterator[Finding]:
        """Yield a finding if the swap group has no other member, but another group is called almost the same."""
        key, group = "swapGroup", group_of(self._content)
        # What is wrong with a stand-in says so, too.
        if not group or _name(self._content, "swapStandIn"):
            return
        folder, _, own = self._display.rpartition("/")
        members: dict[str, list[str]] = {}
        for name in files_in(*folder.split("/")):
            found = nearby(self._display, name) if f"{name}.json" != own else None
            other = group_of(_content(found) or {}) if found is not None else ""
            members.setdefault(other, []).append(f"{name}.json")
        # Groups such as "card 0" and "card 1" are two on purpose.
        near = nearest(group, [one for one in members if one and re.sub(r"\d", "", one) != re.sub(r"\d", "", group)])
        # Of two groups of one endpoint each, only one is reported.
        if group not in members and near and (len(members[near]) > 1 or members[near][0] < own):
            yield self._at(
                "note",
                key,
                f"no other endpoint is in {quoted(group)}, so that the key has no effect; "
                f"there is a group {quoted(near)}",
                "",
                near,
            )

    def _circle(self, found: FoundFile, key: str) -> str:
        """Return the names of endpoints whose ``key`` leads in a circle, at the first of their files; "" elsewhere."""
        chain = [self._display]
        following: FoundFile | None = found
        while following is not None and following.display not in chain:
            chain.append(following.display)
            name = _name(_content(following) or {}, key)
            following = nearby(following.display, name) if name else None
        if following is None or not following.display == self._display == min(chain):
            return ""
        return " -> ".join(display.rpartition("/")[2].removesuffix(".json") for display in (*chain, self._display))


def check_api_type(display: str, content: Mapping[str, object]) -> Iterator[Finding]:
    """Yield findings about an API type beyond the types of its keys."""
    fields = content.get("samplerFieldMap")
    fields = fields if isinstance(fields, Mapping) else {}
    for name in fields:
        near = "" if name in CANONICAL or is_remark(name) else nearest(name, CANONICAL, 0.85)
        if near and near not in fields:
            yield Finding(
                "warning",
                display,
                child("samplerFieldMap", name),
                None,
                f"the sampler {quoted(name)} is unknown, likely a typo",
                "",
                near,
            )


def check_preset_folder(display: str, content: Mapping[str, object]) -> Iterator[Finding]:
    """Yield a finding if the presets of an API type have no folder. A node that names one has an error of its own."""
    folder = content.get("presetType")
    problem = folder_problem(folder.strip(), "Presets") if isinstance(folder, str) and folder.strip() else None
    if problem is not None:
        yield Finding(
            "warning",
            display,
            "presetType",
            None,
            f"{problem.message}, so that endpoints of this API type have no presets",
            "the name of a folder in Presets",
            problem.suggestion,
        )


def is_address(url: str) -> bool:
    """Return whether a call could connect to a URL."""
    try:
        return bool(parse_target(url))
    except ConfigurationError:
        return False


def missing(display: str, key: str, error: ConfigurationError) -> Finding:
    """Return the finding for a name under ``key`` that no file has."""
    problem = problem_of(error)
    return Finding("error", display, key, None, problem.message, "", problem.suggestion)


def _takes(api_type: Mapping[str, object], sampler: str) -> bool:
    if sampler == "chat_template_kwargs":
        return API_TYPE.flag(api_type, "supportsChatTemplateKwargs")
    thinking = api_type.get("thinking")
    return isinstance(thinking, Mapping) and thinking.get("mode") in ("bool", "effort") and bool(thinking.get("field"))


# -- presets -----------------------------------------------------------------------------------------------------------


def check_endpoint_presets(display: str, content: Mapping[str, object]) -> Iterator[Finding]:
    """Return findings about the presets that an endpoint file names, with the current user's folder of presets."""
    for key, name, preset_type in _presets(display, content):
        try:
            config_utils.preset_file(name, preset_type)
        except ConfigurationError as error:
            yield missing(display, key, error)


def check_presets_anywhere(display: str, content: Mapping[str, object]) -> Iterator[Finding]:
    """Return the same for an endpoint that no user reaches, whose presets may be in any folder of their type."""
    for key, name, preset_type in _presets(display, content):
        folders = ["", *folders_in("Presets", preset_type)]
        if not any(find_file(candidate(name, "Presets", preset_type, folder, kind="preset")) for folder in folders):
            known = [file for folder in folders for file in files_in("Presets", preset_type, *filter(None, [folder]))]
            yield Finding(
                "error",
                display,
                key,
                None,
                f"preset {quoted(name)} does not exist in Presets/{preset_type}",
                "",
                nearest(name, known, 0.6),
            )


def _presets(display: str, content: Mapping[str, object]) -> Iterator[tuple[str, str, str]]:
    """Yield the keys that name preset files, with the name and the type of preset."""
    own, backup = _name(content, "appendPresetName"), _name(content, "backupPresetName")
    if own and _preset_type(content):
        yield "appendPresetName", own, _preset_type(content)
    found = nearby(display, _name(content, "backupEndpointName")) if backup else None
    preset_type = _preset_type(_content(found) or {}) if found is not None else ""
    # The name may be that of an endpoint, which lends its samplers.
    donor = nearby(display, backup) if preset_type and len(split_name(backup)) == 1 else None
    if preset_type and (donor is None or not (_content(donor) or {}).get("presetSamplers")):
        yield "backupPresetName", backup, preset_type


# -- other files -------------------------------------------------------------------------------------------------------


def nearby(display: str, name: str) -> FoundFile | None:
    """Return the endpoint ``name`` in the folder of another, or in one around it: users may choose any of them."""
    folders = display.split("/")[:-1]
    for depth in range(len(folders), 0 if len(folders) == 1 else 1, -1):
        try:
            found = find_file(candidate(name, *folders[:depth], kind="endpoint"))
        # No file can have this name.
        except ConfigurationError:
            return None
        if found is not None:
            return found
    return None


def _name(content: Mapping[str, object], key: str) -> str:
    value = content.get(key)
    return value.strip() if isinstance(value, str) else ""


def _content(found: FoundFile) -> Mapping[str, object] | None:
    """Return the content of a file; None if it cannot be read, which is reported at that file."""
    try:
        return read_object(found)
    except ConfigurationError:
        return None


def _api_type_of(content: Mapping[str, object]) -> Mapping[str, object]:
    name = _name(content, "apiTypeConfigFileName")
    try:
        return config_utils.load_api_type(name) if name else {}
    except ConfigurationError:
        return {}


def _type_of(content: Mapping[str, object]) -> str:
    kind = str(_api_type_of(content).get("type") or "")
    kind = ALIASES.get(kind, kind)
    return kind if kind in KNOWN_TYPES else ""


def _preset_type(content: Mapping[str, object]) -> str:
    value = _api_type_of(content).get("presetType")
    return value if isinstance(value, str) and value in folders_in("Presets") else ""


def _is_remote(backup: Mapping[str, object]) -> bool:
    # The host name is not resolved: a check uses no network.
    return classify_host(str(backup.get("endpoint") or ""), resolve=False) == "remote"


def unquoted(value: object) -> str:
    """Return how a number that is written as a string is meant to be written; "" for anything else."""
    is_number = isinstance(value, str) and number_from(value, whole=False) is not None
    return f"the number without quotes, {str(value).strip()}" if is_number else ""
