"""Checks of the endpoints that stand in for others, and of the presets that endpoint files name."""
from __future__ import annotations

from collections.abc import Iterator, Mapping

from Middleware.cli.check.endpoint_checks import missing
from Middleware.cli.check.findings import Finding
from Middleware.cli.check.folders import files_in, folders_in
from Middleware.exceptions import ConfigurationError
from Middleware.llmapis.api_types import ALIASES, EMBEDDINGS_TYPES, KNOWN_TYPES
from Middleware.llmapis.failover import classify_host
from Middleware.utilities import config_utils
from Middleware.utilities.config.check import Severity, nearest, quoted
from Middleware.utilities.config.declarations import as_flag
from Middleware.utilities.config.lookup import candidate, find_file
from Middleware.utilities.config.store import FoundFile, read_object
from Middleware.utilities.files.path_utils import split_name


class BackupCheck:
    """The backup of the endpoint in a file."""

    def __init__(self, display: str, content: Mapping[str, object]) -> None:
        self.display, self.content = display, content

    def findings(self) -> Iterator[Finding]:
        name = _name(self.content, "backupEndpointName")
        if not name:
            if _name(self.content, "backupPresetName"):
                yield self._at("note", "'backupPresetName' has no effect without 'backupEndpointName'",
                               key="backupPresetName")
            return
        found = beside(self.display, name)
        if found is None:
            folder, _, own = self.display.rpartition("/")
            near = nearest(name, [file for file in files_in(*folder.split("/")) if f"{file}.json" != own], 0.6)
            yield self._at("error", f"endpoint {quoted(name)} does not exist in {folder}", suggestion=near)
            return
        try:
            backup = read_object(found)
        except ConfigurationError:  # reported at that file
            return
        yield from self._cycle(found)
        yield from self._fits(name, backup)

    def _at(self, severity: Severity, message: str, expected: str = "", suggestion: str = "",
            key: str = "backupEndpointName") -> Finding:
        return Finding(severity, self.display, key, None, message, expected, suggestion)

    def _cycle(self, found: FoundFile) -> Iterator[Finding]:
        """Backups in a circle are reported once, at the first of their files."""
        chain = [self.display]
        following: FoundFile | None = found
        while following is not None and following.display not in chain:
            chain.append(following.display)
            following = _backup_of(following)
        if following is not None and following.display == self.display == min(chain):
            names = " -> ".join(display.rpartition("/")[2].removesuffix(".json") for display in (*chain, self.display))
            yield self._at("warning", f"the backups form a circle: {names}", "a last endpoint without a backup")

    def _fits(self, name: str, backup: Mapping[str, object]) -> Iterator[Finding]:
        own, other = _type_of(self.content), _type_of(backup)
        if own and other and (own in EMBEDDINGS_TYPES) != (other in EMBEDDINGS_TYPES):
            what = ("makes embeddings and cannot write text" if other in EMBEDDINGS_TYPES else
                    "generates text and cannot make embeddings")
            yield self._at("error", f"endpoint {quoted(name)} {what}")
        elif not as_flag(backup.get("allowRemoteBackup")) and _place(backup) == "remote":
            yield self._at("warning", f"endpoint {quoted(name)} is beyond the local network, and its file does not "
                           "allow that, so that it never stands in",
                           '"allowRemoteBackup": true in the file of that endpoint')


# -- presets -----------------------------------------------------------------------------------------------------------

def check_endpoint_presets(display: str, content: Mapping[str, object]) -> Iterator[Finding]:
    """Findings about the presets that an endpoint file names, with the current user's folder of presets."""
    for key, name, preset_type in _presets(display, content):
        try:
            config_utils.preset_file(name, preset_type)
        except ConfigurationError as error:
            yield missing(display, key, error)


def check_presets_anywhere(display: str, content: Mapping[str, object]) -> Iterator[Finding]:
    """The same for an endpoint that nobody uses, whose presets may lie in any folder of their type."""
    for key, name, preset_type in _presets(display, content):
        folders = ["", *folders_in("Presets", preset_type)]
        if not any(find_file(candidate(name, "Presets", preset_type, folder, kind="preset")) for folder in folders):
            known = [file for folder in folders for file in files_in("Presets", preset_type, *filter(None, [folder]))]
            yield Finding("error", display, key, None, f"preset {quoted(name)} does not exist in Presets/{preset_type}",
                          "", nearest(name, known, 0.6))


def _presets(display: str, content: Mapping[str, object]) -> Iterator[tuple[str, str, str]]:
    """The keys that name preset files, with the name and the type of preset."""
    own, backup = _name(content, "appendPresetName"), _name(content, "backupPresetName")
    if own and _preset_type(content):
        yield "appendPresetName", own, _preset_type(content)
    found = beside(display, _name(content, "backupEndpointName")) if backup else None
    try:
        preset_type = _preset_type(read_object(found)) if found is not None else ""
    except ConfigurationError:
        return
    if preset_type and not _lends(display, backup):
        yield "backupPresetName", backup, preset_type


def _lends(display: str, name: str) -> bool:
    """Whether a preset's name is that of an endpoint that lends its samplers."""
    found = beside(display, name) if len(split_name(name)) == 1 else None
    try:
        return found is not None and bool(read_object(found).get("presetSamplers"))
    except ConfigurationError:
        return True


# -- other files -------------------------------------------------------------------------------------------------------

def beside(display: str, name: str) -> FoundFile | None:
    """The endpoint ``name`` in the folder of another, or in one around it: users may choose any of them."""
    folders = display.split("/")[:-1]
    for depth in range(len(folders), 0 if len(folders) == 1 else 1, -1):
        try:
            found = find_file(candidate(name, *folders[:depth], kind="endpoint"))
        except ConfigurationError:  # a name that no file can have
            return None
        if found is not None:
            return found
    return None


def _name(content: Mapping[str, object], key: str) -> str:
    value = content.get(key)
    return value.strip() if isinstance(value, str) else ""


def _backup_of(found: FoundFile) -> FoundFile | None:
    try:
        name = _name(read_object(found), "backupEndpointName")
    except ConfigurationError:
        return None
    return beside(found.display, name) if name else None


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


def _place(backup: Mapping[str, object]) -> str:
    """Where a backup is, as far as that can be said without asking for the address of a name."""
    return classify_host(str(backup.get("endpoint") or ""), lambda _host, _port: ())
