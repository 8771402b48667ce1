"""The configuration as the run console shows and changes it: the only code behind its calls ``config/*``."""

from __future__ import annotations

import contextlib
import difflib
import errno
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from Middleware.addons.check.file_check import KINDS, kind_of
from Middleware.addons.check.findings import Finding
from Middleware.addons.check.tree import OTHER_ENDINGS, read_tree
from Middleware.addons.console.calls import ConsoleError
from Middleware.addons.console.command_process import CommandTooSlowError, run_command
from Middleware.addons.console.editing.assist import assist
from Middleware.addons.console.editing.capabilities import CARRIED, Capability, capabilities_in, capabilities_of, gained
from Middleware.addons.console.editing.flows import Contents, Flows, identity
from Middleware.addons.console.editing.saved_files import save_file, versions
from Middleware.addons.console.editing.unsaved import check_unsaved, kind_in
from Middleware.addons.records.console_folder import ConsoleFolder
from Middleware.addons.records.kept_secrets import KeptSecretError, Masked, masked, put_back, versions_named
from Middleware.addons.records.store.writer import RunStore
from Middleware.common import instance_global_variables as instance
from Middleware.exceptions import ConfigSyntaxError, ConfigurationError
from Middleware.utilities.config.json_source import JsonSource, decode
from Middleware.utilities.config.paths import get_root_config_directory
from Middleware.utilities.files.file_access import folder_lock, path_lock, why_unreadable
from Middleware.utilities.files.path_utils import split_name
from Middleware.utilities.sensitive_logging_utils import MASK
from Middleware.utilities.text_utils import counted, nearest

# No configuration comes near it, and a browser has to show it.
MAX_BYTES = 4 * 1024 * 1024
# A shorter secret occurs in messages by chance.
SHORTEST_SECRET = 4
# Comparing longer texts line by line takes seconds.
MAX_COMPARED_LINES = 5000
CHECK_SECONDS = 300.0
# What flows into the keys of nodes stands in workflows and users, and in what their variables bring.
FOLLOWED = ("Workflows/", "Users/")
FED_BY = (*FOLLOWED, *(KINDS[name].pattern.partition("/")[0] + "/" for name in CARRIED))

JsonObject = dict[str, object]
Files = dict[str, tuple[object, Callable[[], Contents]]]
"""By name: content, and a function that returns it together with the one without secrets."""


@dataclass(frozen=True)
class OnDisk:
    """A configuration file as it is on the disk. A missing one is empty, and its ``base`` too.

    Attributes:
        text: with line feeds as line ends, and with its secrets.
        base: SHA-256 of the file.
    """

    display: str
    path: str
    data: bytes
    text: str
    hidden: Masked
    base: str

    @property
    def line_end(self) -> str:
        """What ends the lines of the file."""
        return "\r\n" if b"\r\n" in self.data else "\n"


class ConfigEditor:
    """Reads, checks and saves configuration files.

    Args:
        folder: holds the versions that a save replaces.
        store: keeps the list of changes.
    """

    def __init__(self, folder: ConsoleFolder, store: RunStore) -> None:
        self._folder, self._store = folder, store

    # -- reading -----------------------------------------------------------------------------------------------------
    def files(self) -> JsonObject:
        """Return all files that the program reads, each with its kind."""
        tree = read_tree(get_root_config_directory())
        return {
            "files": [
                {"path": file.display, "kind": file.kind.name, "title": file.kind.title}
                for file in tree.files.values()
                if file.kind is not None
            ]
        }

    def file(self, path: str) -> JsonObject:
        """Return a file without its secrets."""
        file = self._existing(path)
        return {
            "path": file.display,
            "text": file.hidden.text,
            "base": file.base,
            "secrets": len(file.hidden.secrets),
            "findings": self._checked(file, file.hidden.text),
        }

    def findings(self, path: str) -> list[JsonObject]:
        """Return the findings about a file as it is on the disk."""
        file = self._existing(path)
        return self._checked(file, file.hidden.text)

    def check(self, path: str, text: str) -> JsonObject:
        """Return the findings about a text of a file that is not saved."""
        return {"findings": self._checked(self._file(path), text)}

    def assist(self, path: str, text: str, offset: int) -> JsonObject:
        """Return what may be written at an offset, which counts UTF-16 units, as browsers do, and what stands there."""
        file = self._file(path)
        found = assist(file.display, text, len(_utf16_start(text, offset)))
        hover = found.hover
        return {
            "from": _utf16_length(text[: found.start]),
            "completions": [
                {name: value for name, value in asdict(one).items() if value or name == "label"}
                for one in found.completions
            ],
            "hover": hover
            and {
                "from": _utf16_length(text[: hover.start]),
                "to": _utf16_length(text[: hover.end]),
                "text": hover.text,
            },
        }

    def check_all(self) -> JsonObject:
        """Return the result of ``check`` for the whole configuration, made in a process of low priority."""
        try:
            done = run_command(["check", "--json"], seconds=CHECK_SECONDS)
            result = json.loads(done.output)
        except CommandTooSlowError:
            raise ConsoleError(503, f"The check did not end within {CHECK_SECONDS:.0f} seconds.") from None
        except ValueError:
            raise ConsoleError(500, f"The check failed: {done.errors.strip()[-500:] or 'no output'}") from None
        result["findings"] = [self._without_secrets_of_files(finding) for finding in result["findings"]]
        return dict(result)

    def history(self, path: str, version: int | None = None) -> JsonObject:
        """Return the older versions of a file, or the text of one of them without its secrets."""
        file = self._file(path)
        if version is None:
            return {
                "path": file.display,
                "versions": [{"at": one.at, "size": one.size} for one in versions(self._folder, file.display)],
            }
        return {"path": file.display, "at": version, "text": self._older(file, version).text}

    # -- saving ------------------------------------------------------------------------------------------------------
    def save(self, path: str, text: str, base: str, confirm: str, session: str) -> JsonObject:
        """Replace a file. Raises ConsoleError.

        Args:
            base: of the file that was edited: a file that has changed since is left alone.
            confirm: the number of a list of what the new text lets the server do, as an earlier call returned it.
            session: who saves, for the log.
        """
        display, full_path = _located(path)
        # What a save lets the server do depends on other files: no server saves one between question and answer.
        with folder_lock(get_root_config_directory()), path_lock(full_path):
            file, others = self._unchanged(path, base), _others(display)
            full = self._complete(file, text)
            content = _parsed(display, text, full)
            self._require_confirmation(file, others, Contents(content, JsonSource(text).parse()), text, confirm)
            # Other programs know no such lock.
            self._unchanged(path, base, others)
            self._write(file, full, session)
        return self.file(display)

    def _unchanged(self, path: str, base: str, others: Files | None = None) -> OnDisk:
        """Return a file. Raises ConsoleError if it is no longer what was edited, or ``others`` what they were."""
        file = self._file(path)
        about = f"{file.display} has changed since it was opened"
        if file.base == base:
            changed = _first_changed(others, _others(file.display)) if others is not None else ""
            if not changed:
                return file
            about = f"{changed} has changed while {file.display} was being saved"
        raise ConsoleError(409, f"{about}.", file.display, text=file.hidden.text, base=file.base)

    def _write(self, file: OnDisk, full: str, session: str) -> None:
        try:
            save_file(
                self._folder,
                self._store,
                file.display,
                full.replace("\n", file.line_end),
                session,
                _difference(file.text, full),
            )
        except OSError as error:
            full_disk = error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise ConsoleError(
                507 if full_disk else 403, f"{file.display} cannot be saved: {why_unreadable(error)}.", file.display
            ) from error

    def _require_confirmation(self, file: OnDisk, others: Files, contents: Contents, text: str, confirm: str) -> None:
        before = _capabilities(file.display, others, _contents_of(file))
        new = gained(before, _capabilities(file.display, others, contents))
        if not new:
            return
        listed = identity([(capability.identity, capability.action) for capability in new])[:16]
        if confirm == listed:
            return
        source = JsonSource(text)
        raise ConsoleError(
            428,
            f"With this change, {file.display} lets the server do more than before.",
            file.display,
            confirm=listed,
            powers=[
                {
                    "text": f"{'' if is_own else f'{capability.file}: '}{capability.sentence}",
                    "json_path": capability.json_path if is_own else "",
                    "line": position.line if position and is_own else None,
                }
                for capability in new
                for is_own in [capability.file == file.display]
                for position in [source.position(capability.json_path)]
            ],
        )

    # -- texts -------------------------------------------------------------------------------------------------------
    def _existing(self, path: str) -> OnDisk:
        file = self._file(path)
        if file.base:
            return file
        files = [one.display for one in read_tree(get_root_config_directory()).files.values() if one.kind is not None]
        near = nearest(file.display, files, 0.6)
        hint = f" Did you mean {near}?" if near else ""
        raise ConsoleError(404, f"There is no file {file.display}.{hint}", "path")

    def _file(self, path: str) -> OnDisk:
        display, full_path = _located(path)
        try:
            with open(full_path, "rb") as stream:
                data = stream.read(MAX_BYTES + 1)
        except FileNotFoundError:
            return OnDisk(display, full_path, b"", "", Masked(""), "")
        except OSError as error:
            raise ConsoleError(403, f"{display} cannot be read: {why_unreadable(error)}.", "path") from error
        if len(data) > MAX_BYTES:
            raise ConsoleError(413, f"{display} is larger than {MAX_BYTES // 1024 // 1024} MB.", "path")
        text = decode(data)[0].replace("\r\n", "\n")
        return OnDisk(display, full_path, data, text, masked(text, display), hashlib.sha256(data).hexdigest())

    def _older(self, file: OnDisk, version: int) -> Masked:
        path = next((one.path for one in versions(self._folder, file.display) if one.at == version), None)
        try:
            data = Path(path or "").read_bytes()
        except OSError:
            raise ConsoleError(404, f"There is no such older version of {file.display}.", "version") from None
        return masked(decode(data)[0].replace("\r\n", "\n"), file.display, version)

    def _complete(self, file: OnDisk, text: str) -> str:
        """Return a text with its secrets. Raises ConsoleError."""
        kept: dict[int | None, Sequence[str]] = {None: file.hidden.secrets}
        for version in versions_named(text):
            kept[version] = self._older(file, version).secrets
        try:
            return put_back(text, file.display, kept)
        except KeptSecretError as error:
            line, column = JsonSource(text).position_of(error.position)
            raise ConsoleError(
                422, f"{file.display}:{line}:{column}: {error}.", file.display, line=line, column=column
            ) from error

    def _checked(self, file: OnDisk, text: str) -> list[JsonObject]:
        try:
            full = self._complete(file, text)
        except ConsoleError as error:
            about = Finding("error", file.display, "", None, str(error.__cause__ or error))
            return [{**_as_json(about), **error.further}]
        secrets = {*file.hidden.secrets, *masked(full, file.display).secrets}
        return [_without(secrets, _as_json(finding)) for finding in check_unsaved(file.display, text, full)]

    def _without_secrets_of_files(self, finding: JsonObject) -> JsonObject:
        try:
            secrets: Iterable[str] = self._file(str(finding["file"])).hidden.secrets
        # A finding about a folder, or about data that is not part of the configuration.
        except ConsoleError:
            secrets = ()
        return _without(secrets, finding)


# -- files ------------------------------------------------------------------------------------------------------------


def _located(path: str) -> tuple[str, str]:
    """Return the name and the path of a configuration file, existing or not. Raises ConsoleError for any other."""
    try:
        parts = split_name(path)
    except ConfigurationError as error:
        raise ConsoleError(400, f"{error}.", "path") from error
    display = "/".join(parts)
    full_path = os.path.join(get_root_config_directory(), *parts)
    keys = getattr(instance.ACCESS_KEYS, "path", None)
    if (
        kind_of(display) is None
        # The walk over all files leaves these out, so that nothing would follow what flows into them.
        or display.lower().endswith(OTHER_ENDINGS)
        or any(part.startswith(".") for part in parts)
        or (keys and os.path.realpath(keys) == os.path.realpath(full_path))
    ):
        raise ConsoleError(
            404,
            f"{display} is not a configuration file: these are the .json files in "
            f"{', '.join(dict.fromkeys(kind.pattern.partition('/')[0] for kind in KINDS.values()))}.",
            "path",
        )
    return display, full_path


def _parsed(display: str, text: str, full: str) -> object:
    """Return the data of a text. Raises ConsoleError with the position of what is not JSON."""
    source = JsonSource(text, display)
    try:
        source.parse()
        return JsonSource(full, display).parse()
    except ConfigSyntaxError as error:
        line, column = (error.lineno, error.colno) if error.doc else (1, 1)
        raise ConsoleError(
            422, f"{display}:{line}:{column}: not valid JSON: {error.msg}.", display, line=line, column=column
        ) from error


def _contents_of(file: OnDisk) -> Contents:
    try:
        return Contents(JsonSource(file.text).parse(), JsonSource(file.hidden.text).parse())
    # A file that cannot be read lets the server do nothing.
    except ConfigurationError:
        return Contents(None, None)


def _capabilities(display: str, others: Files, contents: Contents) -> list[Capability]:
    """Return what the configuration lets the server do with this content of a file."""
    flows = Flows({**others, display: (contents.full, lambda: contents)} if display.startswith(FED_BY) else {})
    kind = kind_in(display, contents.full)
    return [*capabilities_of(display, kind, contents, flows), *capabilities_in(flows)]


def _others(display: str) -> Files:
    """Return the other files that decide what a file lets the server do, as they are at this moment on the disk."""
    found: Files = {}
    files = read_tree(get_root_config_directory()).files.values() if display.startswith(FED_BY) else ()
    for file in files:
        if file.display.startswith(FOLLOWED) and file.display != display:
            source = JsonSource.read(file.path)
            with contextlib.suppress(ConfigurationError):
                found[file.display] = (source.parse(), partial(_hidden, source, file.display))
    return found


def _first_changed(before: Files, after: Files) -> str:
    """Return the first file whose content differs; empty if all are equal."""
    contents = [{name: content for name, (content, _) in files.items()} for files in (before, after)]
    return next((name for name in {**before, **after} if contents[0].get(name) != contents[1].get(name)), "")


def _hidden(source: JsonSource, display: str) -> Contents:
    return Contents(source.parse(), JsonSource(masked(source.text, display).text).parse())


# -- answers -----------------------------------------------------------------------------------------------------------


def _as_json(finding: Finding) -> JsonObject:
    return {
        "severity": finding.severity,
        "file": finding.file,
        "line": finding.line,
        "column": finding.column,
        "jsonPath": finding.json_path,
        "message": finding.message,
        "expected": finding.expected,
        "suggestion": finding.suggestion,
        "users": list(finding.users),
    }


def _without(secrets: Iterable[str], finding: JsonObject) -> JsonObject:
    """Return a finding whose texts quote no secret."""
    inner = sorted({secret.strip('"') for secret in secrets}, key=len, reverse=True)
    changed = dict(finding)
    for name in ("message", "expected", "suggestion"):
        for secret in inner:
            if len(secret) >= SHORTEST_SECRET:
                changed[name] = str(changed.get(name) or "").replace(secret, MASK)
    return changed


def _difference(before: str, after: str) -> str:
    old, new = before.split("\n"), after.split("\n")
    if not before:
        return f"new, {counted(len(new), 'line')}"
    if max(len(old), len(new)) > MAX_COMPARED_LINES:
        return "changed"
    changed = [line for line in difflib.unified_diff(old, new, n=0, lineterm="") if line[:3] not in ("+++", "---")]
    added, removed = (sum(line.startswith(mark) for line in changed) for mark in "+-")
    return f"{counted(added, 'line')} added, {removed} removed"


def _utf16_length(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def _utf16_start(text: str, units: int) -> str:
    """Return the first UTF-16 units of a text."""
    return text.encode("utf-16-le", "surrogatepass")[: 2 * units].decode("utf-16-le", "ignore")
