"""What a check of a workflow asks about other files and the user's settings."""
from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from Middleware.exceptions import ConfigNotFoundError, ConfigurationError
from Middleware.llmapis.endpoint_file import EndpointFile
from Middleware.llmapis.samplers import find_sources
from Middleware.utilities import config_utils
from Middleware.utilities.config_workflows import LoadedWorkflow


@dataclass(frozen=True)
class Problem:
    """Why something that a workflow names cannot be used. ``suggestion`` is the nearest name that exists, or empty."""

    message: str
    suggestion: str = ""


class Lookups:
    """Answers from the configuration of the current user; None always means: it is there.

    Answers are remembered, so that an object serves one check, or several made at the same time for the same user.

    Attributes:
        built_in: the names of variables that every workflow may use.
    """

    def __init__(self, built_in: Collection[str]) -> None:
        self.built_in = frozenset(built_in)
        self._known: dict[tuple[Any, ...], Problem | None] = {}

    def endpoint(self, name: str) -> Problem | None:
        """An endpoint together with the API type that it names."""
        return self._once(("endpoint", name), lambda: EndpointFile.load(name))

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

    def user_variables(self) -> Mapping[str, Any]:
        """The user's ``userWideWorkflowVariables``."""
        variables = config_utils.user_settings().get("userWideWorkflowVariables")
        return variables if isinstance(variables, Mapping) else {}

    def fills_partially(self) -> bool:
        """Whether an unknown placeholder leaves the others of its text alone."""
        return config_utils.user_flag("partialVariableSubstitution")

    def source(self, loaded: LoadedWorkflow) -> str:
        """The text of a workflow's file, for line numbers; empty if it cannot be read."""
        try:
            with open(loaded.path, "rb") as file:
                return file.read().decode("utf-8-sig", "replace")
        except (OSError, ValueError):  # ValueError: a path that no file can have
            return ""

    def _once(self, key: tuple[Any, ...], find: Callable[[], Any]) -> Problem | None:
        if key not in self._known:
            self._known[key] = _problem(find)
        return self._known[key]


def _problem(find: Callable[[], Any]) -> Problem | None:
    try:
        find()
    except ConfigurationError as error:
        text = str(error).removesuffix(f" Did you mean '{error.suggestion}'?")
        if isinstance(error, ConfigNotFoundError):  # the sentence ends before the paths that were tried
            text = text.rstrip(".")
        return Problem(text, error.suggestion)
    return None


def _is_file(path: str) -> bool:
    try:
        return os.path.isfile(path)
    except ValueError:  # a path that no file can have
        return False
