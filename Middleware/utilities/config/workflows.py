"""Workflow files: their lookup, their content, and the shared workflows that clients may select."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from Middleware.exceptions import ConfigNotFoundError, ConfigurationError, ConfigValueError
from Middleware.utilities.config.declarations import read_settings
from Middleware.utilities.config.keys.node import WORKFLOW_FILE
from Middleware.utilities.config.keys.user import USER
from Middleware.utilities.config.lookup import Candidate, candidate, config_lookup, find_file, require_file
from Middleware.utilities.config.paths import get_root_config_directory
from Middleware.utilities.config.store import FoundFile, config_store, read_object
from Middleware.utilities.config.users import (
    DEFAULT_WORKFLOW,
    configured_users,
    current_snapshot,
    flag_in,
    get_current_username,
    int_in,
    settings_for,
    text_setting,
    user_display_path,
    user_name_setting,
)
from Middleware.utilities.files.file_access import listed_name
from Middleware.utilities.files.path_utils import is_flat_name, split_name
from Middleware.utilities.json_data import FrozenDict

logger = logging.getLogger(__name__)

T = TypeVar("T")

_SHARED_FOLDER = USER["sharedWorkflowsSubDirectoryOverride"]

TEST_SUFFIX = ".test.json"
"""The suffix of files that contain tests of the workflow next to them; they are not workflows."""
SETTINGS_SUFFIXES = (MEMORY_SUFFIX, COMPACTOR_SUFFIX) = "MemoryFile-Workflow-Settings.json", "Compactor-Settings.json"
_FOLDED_SUFFIXES = tuple(suffix.casefold() for suffix in SETTINGS_SUFFIXES)
"""The suffixes of files that contain settings of memories and of the compactor; they are not workflows either."""


@dataclass(frozen=True)
class LoadedWorkflow:
    """A workflow file.

    Attributes:
        name: the requested name.
        folder: the folder below ``Workflows``, with forward slashes; children are also looked up there.
        path: the file.
        display: the file relative to the config root, for messages.
        nodes: the nodes, read-only.
        variables: every other top-level key, read-only.
    """

    name: str
    folder: str
    path: str
    display: str
    nodes: list[dict[str, Any]]
    variables: dict[str, Any]


def load_workflow(
    name: str, folder_override: str | None = None, calling_folder: str | None = None, calling_name: str | None = None
) -> LoadedWorkflow:
    """Find and read a workflow.

    ``folder_override`` (below ``Workflows``), if given, is the only folder searched. Otherwise the user's folders come
    first, then ``calling_folder``, the folder of the calling workflow, then the sub-folder that ``calling_name``, the
    name of that workflow, contains. Raises ``ConfigurationError``.
    """
    # The name of a test file without ``.json`` would otherwise lead to it.
    if f"{name}.json".casefold().endswith(TEST_SUFFIX):
        raise ConfigNotFoundError(
            f"workflow '{name}' does not exist, as such a file holds tests of a workflow",
            suggestion=name[: -len(".test")],
        )
    neighbours = _neighbour_folders(calling_folder, calling_name) if calling_folder and not folder_override else []
    found = require_file("workflow", name, *workflow_candidates(name, folder_override, neighbours))
    return _read(name, _caller_folder(found, name), found)


def workflow_at(name: str, path: str) -> LoadedWorkflow:
    """Read the workflow in the file ``path``, which may be anywhere. Raises ``ConfigurationError``."""
    path = os.path.abspath(path)
    root = os.path.abspath(get_root_config_directory())
    inside = path.startswith(os.path.join(root, "Workflows", ""))
    found = FoundFile(path, os.path.relpath(path, root).replace(os.sep, "/") if inside else os.path.basename(path))
    return _read(name, found.folder.partition("/")[2], found)


def workflow_in(data: object, name: str, folder: str, found: FoundFile) -> LoadedWorkflow:
    """Return the workflow that the file ``found`` would be with the content ``data``. Raises ``ConfigurationError``."""
    return LoadedWorkflow(name, folder, found.path, found.display, *_split(data, found.display))


def _read(name: str, folder: str, found: FoundFile) -> LoadedWorkflow:
    # Its author, and the check, take such a file for one that runs nothing.
    if _holds_settings(found):
        raise ConfigValueError(
            f"'{name}' is not run as a workflow, as a file whose name ends like this holds settings; rename a workflow",
            file=found.display,
        )
    nodes, variables = config_store().read_derived(
        found.path, found.display, "workflow", lambda data: _split(data, found.display)
    )
    return LoadedWorkflow(name, folder, found.path, found.display, nodes, variables)


def _holds_settings(found: FoundFile) -> bool:
    # Windows and macOS find a file under other spellings, too.
    name = os.path.basename(found.display)
    return name.endswith(SETTINGS_SUFFIXES) or (
        name.casefold().endswith(_FOLDED_SUFFIXES) and listed_name(found.path).endswith(SETTINGS_SUFFIXES)
    )


def load_settings_file(name: str) -> tuple[dict[str, object], str]:
    """Return a settings file in the user's workflow folders, and its display name. Raises ``ConfigurationError``."""
    found = require_file("settings file", name, *workflow_candidates(name))
    return read_object(found), found.display


def load_settings(cls: type[T], user_key: str, purpose: str, level: int = logging.ERROR) -> T | None:
    """Return the settings in the file that the user's ``user_key`` names; None, with a line in the log, without one.

    ``purpose`` begins that line: it says what does not happen without them.
    """
    try:
        name = user_name_setting(user_key)
        if not name:
            logger.log(level, "%s: the user's file names no settings file ('%s')", purpose, user_key)
            return None
        return read_settings(cls, *load_settings_file(name))
    except ConfigurationError as error:
        logger.log(level, "%s: %s", purpose, error)
        return None


def workflow_candidates(
    name: str, folder_override: str | None = None, neighbours: Sequence[str] = ()
) -> tuple[Candidate, ...]:
    """Return the paths that a workflow may have, below the config root; last those in the folders ``neighbours``."""
    folders = [*([folder_override] if folder_override else user_workflow_folders()), *neighbours]
    return tuple(dict.fromkeys(candidate(name, "Workflows", folder, kind="workflow") for folder in folders))


def _neighbour_folders(folder: str, name: str | None) -> list[str]:
    """Return the folder that the name of a workflow is relative to, and the folder of its file."""
    return [folder, "/".join([folder, *split_name(name)[:-1]])] if name else [folder]


def user_workflow_folders() -> list[str]:
    """Return the current user's workflow folders below ``Workflows``, in order of lookup."""
    override = user_name_setting("workflowConfigsSubDirectoryOverride")
    return [f"_overrides/{override}", override] if override else [current_snapshot().name]


def _caller_folder(found: FoundFile, name: str) -> str:
    """Return the folder in which ``name`` was found: the one that a name with sub-folders is relative to."""
    folder = found.folder.split("/")[1:]
    depth = len(split_name(name)) - 1
    return "/".join(folder[: len(folder) - depth])


def _split(data: object, display: str) -> tuple[list[dict[str, object]], dict[str, object]]:
    if isinstance(data, list):
        nodes, variables = data, FrozenDict()
    elif isinstance(data, dict):
        nodes = data.get("nodes", WORKFLOW_FILE["nodes"].default)
        variables = FrozenDict((key, value) for key, value in data.items() if key != "nodes")
    else:
        raise ConfigValueError("a workflow must be a JSON object with 'nodes', or a list of nodes", file=display)
    if not isinstance(nodes, list):
        raise ConfigValueError("'nodes' must be a list", file=display, json_path="nodes")
    prefix = "" if isinstance(data, list) else "nodes"
    for index, node in enumerate(nodes):
        if not isinstance(node, dict):
            raise ConfigValueError("a node must be a JSON object", file=display, json_path=f"{prefix}[{index}]")
    return nodes, variables


def shared_workflow_folder(user: str | None = None) -> str:
    """Return the folder below ``Workflows`` whose workflows ``user`` (None: the current one) offers as models."""
    if user is None:
        current = current_snapshot()
        return text_setting(current.settings, _SHARED_FOLDER, current.name)
    return text_setting(settings_for(user), _SHARED_FOLDER, user)


def shared_selection(name: object, user: str | None = None) -> tuple[str, str] | None:
    """Return workflow name and folder (below ``Workflows``) of the model ``name``, or None.

    The workflow is ``_DefaultWorkflow`` in a sub-folder of the shared folder, else a file directly in it. ``name``
    comes from a request: it must be a flat name, spelled exactly.
    """
    if not is_flat_name(name):
        return None
    assert isinstance(name, str)
    folder = shared_workflow_folder(user)
    names, file = _shared_names(folder, user), f"{name}.json"
    is_file = names.get(file) is False and not _is_no_workflow(file)
    # A folder next to a file of the same name may contain only what the file calls; then the file is the workflow.
    if names.get(name) and not _is_no_workflow(name) and not (is_file and not _has_default(folder, name)):
        return DEFAULT_WORKFLOW, f"{folder}/{name}"
    return (name, folder) if is_file else None


def shared_selection_exists(name: object, user: str | None = None) -> bool:
    """Return whether a client may select ``name``."""
    return shared_selection(name, user) is not None


def list_shared_workflows(user: str | None = None) -> list[str]:
    """Return the selectable workflows, sorted: sub-folders with a ``_DefaultWorkflow``, and single files.

    Names that start with ``_`` are not listed, though they can be selected. ``allowSharedWorkflows`` is ignored.
    """
    listed, folder = set(), shared_workflow_folder(user)
    for name, is_folder in _shared_names(folder, user).items():
        if name.startswith("_") or _is_no_workflow(name):
            continue
        if not is_folder:
            if name.endswith(".json") and is_flat_name(name[:-5]):
                listed.add(name[:-5])
        elif is_flat_name(name) and _has_default(folder, name):
            listed.add(name)
    return sorted(listed)


def _has_default(folder: str, name: str) -> bool:
    return bool(find_file(candidate(DEFAULT_WORKFLOW, "Workflows", folder, name, kind="workflow")))


def _shared_names(folder: str, user: str | None) -> Mapping[str, bool]:
    try:
        parts = split_name(folder)
    except ConfigValueError as error:
        raise ConfigValueError(
            f"sharedWorkflowsSubDirectoryOverride: {error}", file=user_display_path(user or get_current_username())
        ) from None
    return config_lookup().folder_names(get_root_config_directory(), ("Workflows", *parts))


def _is_no_workflow(name: str) -> bool:
    # A client must not run the tests of a workflow, or settings, as a model.
    return name.endswith((TEST_SUFFIX, *SETTINGS_SUFFIXES))


def model_ids() -> list[str]:
    """Return the ids in lists of models, for each configured user in order (legacy mode: the current one)."""
    ids: list[str] = []
    for user in configured_users() or [get_current_username()]:
        ids.extend([f"{user}:{name}" for name in _shared_models(user)] or [user])
    return ids


def context_length_for_clients(model_id: str) -> int:
    """Return the context length that lists of models state for one of ``model_ids``."""
    user = model_id.partition(":")[0]
    try:
        return int_in(settings_for(user), "contextLengthForClients", user)
    # As for the names of the models: one broken file must not break the list of all.
    except ConfigurationError:
        return int(USER["contextLengthForClients"].default)


def _shared_models(user: str) -> list[str]:
    try:
        return list_shared_workflows(user) if flag_in(settings_for(user), "allowSharedWorkflows", user) else []
    # One broken file must not hide the models of all other users.
    except ConfigurationError as error:
        logger.warning("The models of user %s cannot be listed: %s", user, error)
        return []
