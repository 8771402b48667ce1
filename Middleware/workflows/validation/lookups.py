"""What a check of a workflow asks about other files and the user's settings."""
from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from Middleware.exceptions import ConfigNotFoundError, ConfigurationError
from Middleware.llmapis.api_types import EMBEDDINGS_TYPES
from Middleware.llmapis.endpoint_file import EndpointFile
from Middleware.llmapis.samplers import find_sources
from Middleware.utilities import config_utils
from Middleware.utilities.config_users import find_user_file
from Middleware.utilities.config_workflows import LoadedWorkflow
from Middleware.utilities.file_containment import DIRECTORIES_KEY, allowed_directories, real_path_within
from Middleware.workflows.validation.key_checks import meant_key


@dataclass(frozen=True)
class Problem:
    """Why something that a workflow names cannot be used. ``suggestion`` is the nearest name that exists, or empty."""

    message: str
    suggestion: str = ""


@dataclass(frozen=True)
class ConfigFile:
    """A user file or settings file: its content, its path, and how messages name it."""

    content: Mapping[str, Any]
    display: str
    path: str


class Lookups:
    """Answers from the configuration of the current user; None always means: it is there.

    Answers are remembered, so that an object serves one check, or several made at the same time for the same user.
    ``changed`` tells whether the configuration would answer otherwise now.

    Attributes:
        built_in: the names of variables that every workflow may use.
    """

    def __init__(self, built_in: Collection[str]) -> None:
        self.built_in = frozenset(built_in)
        self._known: dict[tuple[Any, ...], tuple[Callable[[], Any], Any]] = {}

    def changed(self) -> bool:
        """Whether anything asked before has another answer now. Reads through the store of the configuration only."""
        return any(_ask(find) != answer for find, answer in list(self._known.values()))

    def endpoint(self, name: str) -> Problem | None:
        """An endpoint together with the API type that it names."""
        answer = self._answer(("endpoint", name), lambda: EndpointFile.load(name).type)
        return answer if isinstance(answer, Problem) else None

    def makes_embeddings(self, name: str) -> bool:
        """Whether an endpoint makes embeddings, and no text."""
        return self._answer(("endpoint", name), lambda: EndpointFile.load(name).type) in EMBEDDINGS_TYPES

    def preset(self, name: str | None, endpoint: str) -> Problem | None:
        """The samplers that ``name`` means for a usable endpoint; None: those the endpoint has without a preset."""
        def find() -> None:
            file = EndpointFile.load(endpoint)
            find_sources(file.config, file.api_type, name)

        return self._once(("preset", name, endpoint), find)

    def workflow(self, name: str, folder: str | None, parent: LoadedWorkflow) -> Problem | None:
        """A child workflow of ``parent``. ``folder`` is the only one looked at if given."""
        return self._once(("workflow", name, folder, parent.folder, parent.name),
                          lambda: config_utils.load_workflow(name, folder, parent.folder, parent.name))

    def structured_output(self, name: str) -> Problem | None:
        """A JSON schema in StructuredOutputs."""
        return self._once(("schema", name), lambda: config_utils.load_structured_output(name))

    def mcp_server(self, name: str) -> Problem | None:
        """The file of an MCP server."""
        return self._once(("mcp", name), lambda: config_utils.load_mcp_server(name))

    def script(self, path: str) -> Problem | None:
        """A Python script: a relative path counts from the working or the install directory."""
        expanded = os.path.expanduser(path)
        places = (expanded, os.path.join(config_utils.get_project_root_directory_path(), expanded))
        return None if any(map(_is_file, places)) else Problem("the Python script does not exist")

    def file_path(self, path: str) -> Problem | None:
        """The path of a file, existing or not; one with a placeholder is as good as the directories allowed."""
        directories = self._answer(("file directories",), allowed_directories)
        if directories is None or isinstance(directories, Problem):
            return directories
        if "{" in path or real_path_within(path, directories) is not None:
            return None
        return Problem(f"the path leads out of the directories that '{DIRECTORIES_KEY}' in the user file allows")

    def user_file(self) -> ConfigFile:
        """The user's own file."""
        snapshot = config_utils.current_snapshot()
        found = find_user_file(snapshot.name)
        display = found.display if found else f"Users/{snapshot.name}.json"
        return ConfigFile(snapshot.settings, display, found.path if found else "")

    def user_name(self, key: str) -> str | Problem:
        """The name that the user's file has under ``key``; empty if it has none."""
        return self._answer(("user key", key), lambda: config_utils.user_name_setting(key))

    def misspelt_user_key(self, key: str, known: Collection[str]) -> str:
        """The key of the user's file that was probably meant to be ``key``; empty if there is none."""
        return self._answer(("misspelt", key), lambda: next(
            (name for name in self.user_file().content if name not in known and meant_key(name, {key})), ""))

    def settings_file(self, name: str) -> ConfigFile | Problem:
        """A settings file among the user's workflows."""
        def find() -> ConfigFile:
            content, display = config_utils.load_settings_file(name)
            path = os.path.join(config_utils.get_root_config_directory(), *display.split("/"))
            return ConfigFile(content, display, path)

        return self._answer(("settings", name), find)

    def files(self) -> dict[str, ConfigFile]:
        """The user's file and the settings files that were asked for, by how messages name them."""
        files = [self.user_file(), *(answer for _, answer in self._known.values() if isinstance(answer, ConfigFile))]
        return {file.display: file for file in files}

    def user_variables(self) -> Mapping[str, Any]:
        """The user's ``userWideWorkflowVariables``."""
        variables = self._answer(("user variables",),
                                 lambda: config_utils.user_settings().get("userWideWorkflowVariables"))
        return variables if isinstance(variables, Mapping) else {}

    def fills_partially(self) -> bool:
        """Whether an unknown placeholder leaves the others of its text alone."""
        return self._answer(("fills partially",), lambda: config_utils.user_flag("partialVariableSubstitution")) is True

    def source(self, path: str) -> str:
        """The text of a file, for line numbers; empty if it cannot be read."""
        try:
            with open(path, "rb") as file:
                return file.read().decode("utf-8-sig", "replace")
        except (OSError, ValueError):  # ValueError: a path that no file can have
            return ""

    def _once(self, key: tuple[Any, ...], find: Callable[[], Any]) -> Problem | None:
        def exists() -> None:
            find()

        problem: Problem | None = self._answer(key, exists)
        return problem

    def _answer(self, key: tuple[Any, ...], find: Callable[[], Any]) -> Any:
        if key not in self._known:
            self._known[key] = find, _ask(find)
        return self._known[key][1]


def _ask(find: Callable[[], Any]) -> Any:
    """What ``find`` returns, or the Problem that it comes across."""
    try:
        return find()
    except ConfigurationError as error:
        text = str(error).removesuffix(f" Did you mean '{error.suggestion}'?")
        if isinstance(error, ConfigNotFoundError):  # the sentence ends before the paths that were tried
            text = text.rstrip(".")
        return Problem(text, error.suggestion)


def _is_file(path: str) -> bool:
    try:
        return os.path.isfile(path)
    except ValueError:  # a path that no file can have
        return False
