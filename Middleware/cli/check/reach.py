"""Which workflows the current user can come to run."""
from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from Middleware.cli.check.folders import files_in, folders_in
from Middleware.cli.check.lookups import Lookups
from Middleware.cli.check.target_checks import child_names
from Middleware.cli.check.user_checks import UserCheck
from Middleware.cli.check.workflow_checks import views_of
from Middleware.exceptions import ConfigurationError
from Middleware.services.memory.compactor_settings import CompactorSettings
from Middleware.services.memory.memory_settings import MemorySettings
from Middleware.utilities import config_utils
from Middleware.utilities.config.declarations import settings_keys
from Middleware.utilities.config.workflows import LoadedWorkflow, user_workflow_folders

SETTINGS_WORKFLOWS = tuple(key.name for cls in (MemorySettings, CompactorSettings)
                           for key in settings_keys(cls).values() if key.names == "workflow")


@dataclass(frozen=True)
class Wanted:
    """A workflow to find: by name alone, in one folder, or as the child of another."""

    name: str
    folder: str | None = None
    calling_folder: str | None = None
    calling_name: str | None = None

    def load(self, lookups: Lookups) -> LoadedWorkflow | None:
        """The workflow; None if there is none that can be read: ``lookups`` then know the file, if there is one."""
        try:
            return config_utils.load_workflow(self.name, self.folder, self.calling_folder, self.calling_name)
        except ConfigurationError as error:
            if error.file:
                lookups.named[error.file] = "workflow"
            return None


def reached_workflows(user: UserCheck, lookups: Lookups,
                      workflows: Collection[str]) -> Iterator[LoadedWorkflow]:
    """Every workflow that a request of the user, or a node of another workflow, can lead to, each file once.

    Shared workflows that a client could only guess the names of are not among them (``UserCheck.chooses_shared``).
    ``workflows``: all workflow files, relative to the config root. Those in the user's own folders belong to the user.
    """
    waiting = [*_of_user(user, workflows), *(_shared() if user.chooses_shared() else ())]
    known: set[str] = set()
    asked: set[Wanted] = set()
    while waiting:
        wanted = waiting.pop(0)
        loaded = None if wanted in asked else wanted.load(lookups)
        asked.add(wanted)
        if loaded is None or loaded.display in known:
            continue
        known.add(loaded.display)
        yield loaded
        waiting += _children(loaded, lookups)
        waiting += [Wanted(str(file.content[key])) for file in lookups.settings_files() for key in SETTINGS_WORKFLOWS
                    if isinstance(file.content.get(key), str) and file.content[key].strip()]


def _of_user(user: UserCheck, workflows: Collection[str]) -> Iterator[Wanted]:
    yield from map(Wanted, user.workflow_names())
    try:
        folders = user_workflow_folders()
    except ConfigurationError:  # reported at the user's file
        return
    for folder in folders:
        prefix = f"Workflows/{folder}/".casefold()
        yield from (Wanted(file[len(prefix):-len(".json")]) for file in workflows if file.casefold().startswith(prefix))


def _shared() -> Iterator[Wanted]:
    try:
        shared = config_utils.shared_workflow_folder()
        names = [*folders_in("Workflows", *shared.split("/")), *files_in("Workflows", *shared.split("/"))]
        selections = [config_utils.shared_selection(name) for name in names]
    except ConfigurationError:  # reported at the user's file
        return
    for selection in selections:
        if selection is not None:
            yield Wanted(*selection)


def _children(loaded: LoadedWorkflow, lookups: Lookups) -> Iterator[Wanted]:
    for view in views_of(loaded, lookups):
        folder = view.node.get("workflowUserFolderOverride") if "workflowUserFolderOverride" in view.keys else None
        if folder and (not isinstance(folder, str) or "{" in folder):
            continue
        for _, name in child_names(view):
            if "{" not in name:
                yield Wanted(name, folder or None, loaded.folder, loaded.name)
