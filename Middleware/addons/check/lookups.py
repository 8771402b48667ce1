"""The questions that checks ask about folders, other files, scripts and the settings of the user."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from Middleware.addons.check.findings import Finding
from Middleware.exceptions import ConfigNotFoundError, ConfigurationError
from Middleware.llmapis.api_types import EMBEDDINGS_TYPES
from Middleware.llmapis.endpoint_file import EndpointFile
from Middleware.llmapis.samplers import find_sources
from Middleware.utilities import config_utils
from Middleware.utilities.config.check import meant_key, quoted
from Middleware.utilities.config.json_source import JsonSource
from Middleware.utilities.config.keys.api_type import API_TYPE
from Middleware.utilities.config.keys.endpoint import ENDPOINT
from Middleware.utilities.config.lookup import config_lookup, forbidden_folder
from Middleware.utilities.config.paths import below_install_directory
from Middleware.utilities.config.store import FoundFile, read_object
from Middleware.utilities.config.users import find_user_file
from Middleware.utilities.config.workflows import LoadedWorkflow, user_workflow_folders
from Middleware.utilities.files.path_utils import is_flat_name, split_name
from Middleware.utilities.text_utils import nearest
from Middleware.workflows.tools.dynamic_module_loader import is_script_name, text_of
from Middleware.workflows.tools.file_containment import DIRECTORIES_KEY, allowed_directories, real_path_within

# Folders are few, so that a distant match is still a useful suggestion.
FOLDER_CUTOFF = 0.6


def path_of(display: str) -> str:
    """Return the path of a file by its name in messages."""
    return os.path.join(config_utils.get_root_config_directory(), *display.split("/"))


def located(finding: Finding) -> Finding:
    """Return a finding with its position in its file, which is read for it."""
    return finding.located(JsonSource.read(path_of(finding.file)))


def files_in(*parts: str) -> list[str]:
    """Return the names of the JSON files in a folder below the config root, without suffix; none without a folder."""
    names = config_lookup().folder_names(config_utils.get_root_config_directory(), parts)
    return [name[:-5] for name, is_folder in names.items() if not is_folder and name.endswith(".json")]


def folders_in(*parts: str) -> list[str]:
    """Return the names of the folders in a folder below the config root; none if there is no such folder."""
    names = config_lookup().folder_names(config_utils.get_root_config_directory(), parts)
    return [name for name, is_folder in names.items() if is_folder]


def folder_exists(*parts: str) -> bool:
    """Return whether there is such a folder below the config root; the case of its own name is ignored."""
    names = config_lookup().folder_names(config_utils.get_root_config_directory(), parts[:-1])
    # Nearly every name is spelled as it is on disk.
    return names.get(parts[-1]) or parts[-1].casefold() in (name.casefold() for name in names if names[name])


def folder_problem(folder: str, *parents: str) -> Problem | None:
    """Return the problem if none of ``parents``, paths below the config root, has the folder; None if one has it."""
    try:
        *above, name = split_name(folder)
    except ConfigurationError as error:
        return Problem(str(error), is_invalid=True)
    if any(folder_exists(*parent.split("/"), *above, name) for parent in parents):
        return None
    # The last part stands for a file in the folder.
    forbidden = forbidden_folder(*((*parent.split("/"), *above, name, "") for parent in parents))
    if forbidden is not None:
        return problem_of(forbidden, forbidden.file)
    near = nearest(
        name, {other for parent in parents for other in folders_in(*parent.split("/"), *above)}, FOLDER_CUTOFF
    )
    where = " or ".join(parents) if len(parents) < 3 else "any folder of Presets"
    return Problem(f"there is no folder {quoted(folder)} in {where}", "/".join((*above, near)) if near else "")


@dataclass(frozen=True)
class Problem:
    """The reason why something that a workflow names cannot be used.

    Attributes:
        suggestion: the nearest name that exists, or empty.
        file: the file with the mistake, if the name is right; the check of that file reports it.
        is_invalid: no file or folder can have the name.
    """

    message: str
    suggestion: str = ""
    file: str = ""
    is_invalid: bool = False


@dataclass(frozen=True)
class ConfigFile:
    """A user file or settings file: its content, and its name in messages."""

    content: Mapping[str, Any]
    display: str


class Lookups:
    """Answers from the configuration of the current user; None always means that the named thing exists.

    Answers are remembered, so an object serves one check, or several made at the same time for the same user.
    ``changed`` returns whether the configuration would give other answers now.

    Attributes:
        has_user: there is a user, whose settings the answers come from.
        named: every file that was found by a name, by its name in messages, with the kind of file that it must be.
    """

    has_user = True

    def __init__(self) -> None:
        self.named: dict[str, str] = {}
        self._known: dict[tuple[object, ...], tuple[Callable[[], Any], Any]] = {}
        self._settings_files: list[ConfigFile] = []
        self._always_run: dict[str, list[LoadedWorkflow]] = {}

    def changed(self) -> bool:
        """Return whether anything asked before has another answer now. Reads only through the store of the
        configuration.
        """
        return any(_ask(find) != answer for find, answer in list(self._known.values()))

    def endpoint(self, name: str) -> Problem | None:
        """Look up an endpoint together with the API type that it names."""
        return self._problem(("endpoint", name), lambda: self._endpoint(name))

    def makes_embeddings(self, name: str) -> bool:
        """Return whether an endpoint makes embeddings, and no text."""
        answer = self._answer(("endpoint", name), lambda: self._endpoint(name))
        return isinstance(answer, EndpointFile) and answer.type in EMBEDDINGS_TYPES

    def embeddings_endpoint(self, name: str) -> Problem | None:
        """Look up an endpoint that must make embeddings."""
        problem = self.endpoint(name)
        if problem is None and self.has_user and not self.makes_embeddings(name):
            problem = Problem(f"endpoint {quoted(name)} generates text and cannot make embeddings")
        return problem

    def context_window(self, name: str) -> int | None:
        """Return the context window of an endpoint in tokens; None if its file does not give it."""
        answer = self._answer(("endpoint", name), lambda: self._endpoint(name))
        window = ENDPOINT.value(answer.config, "maxContextTokenSize") if isinstance(answer, EndpointFile) else None
        return window if isinstance(window, int) and not isinstance(window, bool) and window > 0 else None

    def endpoint_config(self, name: str) -> Mapping[str, object] | None:
        """Return the content of an endpoint file; None if it cannot be used, or the user is not known."""
        answer = self._answer(("endpoint", name), lambda: self._endpoint(name))
        return answer.config if isinstance(answer, EndpointFile) else None

    def preset(self, name: str | None, endpoint: str) -> Problem | None:
        """Return the samplers that ``name`` means for a usable endpoint; None: those it has without a preset."""
        return self._problem(("preset", name, endpoint), lambda: self._preset(name, endpoint))

    def workflow(self, name: str, folder: str | None, parent: LoadedWorkflow) -> Problem | None:
        """Look up a child workflow of ``parent``. If ``folder`` is given, only that folder is searched."""
        return self._problem(
            ("workflow", name, folder, parent.folder, parent.name),
            lambda: self._workflow(name, folder, parent.folder, parent.name),
        )

    def child(self, name: str, folder: str | None, parent: LoadedWorkflow) -> LoadedWorkflow | None:
        """Return a child workflow of ``parent``; None if it cannot be read, or only a user's settings choose it."""
        found = self._answer(
            ("child", name, folder, parent.folder, parent.name),
            lambda: config_utils.load_workflow(name, folder, parent.folder, parent.name),
        )
        return found if isinstance(found, LoadedWorkflow) else None

    def always_run_by(
        self, loaded: LoadedWorkflow, find: Callable[[LoadedWorkflow], Iterator[LoadedWorkflow]]
    ) -> list[LoadedWorkflow]:
        """Return the workflows that ``find`` says ``loaded`` runs in any case; it is asked once for each."""
        if loaded.display not in self._always_run:
            self._always_run[loaded.display] = list(find(loaded))
        return self._always_run[loaded.display]

    def workflow_folder(self, folder: str) -> Problem | None:
        """Look up a folder below Workflows."""
        return folder_problem(folder, "Workflows")

    def user_workflow(self, name: str) -> Problem | None:
        """Look up a workflow that the user's own file names."""
        return self._problem(("workflow", name, None, None, None), lambda: self._workflow(name, None, None, None))

    def own_workflow(self, name: str) -> LoadedWorkflow | None:
        """Return a workflow that the user's own file names; None if it cannot be read."""
        found = self._answer(("own", name), lambda: config_utils.load_workflow(name))
        return found if isinstance(found, LoadedWorkflow) else None

    def structured_output(self, name: str) -> Problem | None:
        """Look up a JSON schema in StructuredOutputs."""
        return _only_problem(
            self._file(
                "structured-output", name, config_utils.structured_output_file, config_utils.load_structured_output
            )
        )

    def mcp_server(self, name: str) -> Problem | None:
        """Look up the file of an MCP server."""
        return _only_problem(self._file("mcp-server", name, config_utils.mcp_server_file, config_utils.load_mcp_server))

    def prompt_template(self, name: str) -> Problem | None:
        """Look up a prompt template."""
        return _only_problem(
            self._file("prompt-template", name, config_utils.prompt_template_file, config_utils.load_prompt_template)
        )

    def routing(self, name: str) -> Mapping[str, Mapping[str, str]] | Problem:
        """Return the categories of a routing file."""
        answer: Mapping[str, Mapping[str, str]] | Problem = self._file(
            "routing", name, config_utils.routing_file, config_utils.load_routing
        )
        return answer

    def script(self, path: str) -> Problem | None:
        """Look up a Python script: a relative path counts from the working or the install directory."""
        expanded = os.path.expanduser(path)
        paths = (expanded, below_install_directory(expanded))
        name = os.path.basename(path)
        found = next(filter(os.path.isfile, paths), None)
        if found is None:
            near = next(filter(None, map(_nearest_script, paths)), "")
            return Problem(f"the Python script '{name}' does not exist", path.removesuffix(name) + near if near else "")
        if not is_script_name(found):
            return Problem(f"'{name}' is not a Python script, whose name ends in .py")
        mistake = script_mistake(found)
        return Problem(f"the Python script '{name}' {mistake}") if mistake else None

    def file_path(self, path: str, reading: bool = False) -> Problem | None:
        """Look up the path of a file, existing or not; for one with a placeholder only the allowed directories are
        checked.

        ``reading``: a relative path may also count from the public root.
        """
        directories = self._answer(("file directories",), allowed_directories)
        if directories is None or isinstance(directories, Problem):
            return directories
        meant = [path, os.path.join(config_utils.get_root_public_directory(), path)] if reading else [path]
        # The rest of a path is known only when the node runs, and checked then.
        if "{" in path or any(real_path_within(one, directories) is not None for one in meant):
            return None
        return Problem(f"the path leads out of the directories that '{DIRECTORIES_KEY}' in the user file allows")

    def user_file(self) -> ConfigFile:
        """Return the user's own file."""
        snapshot = config_utils.current_snapshot()
        found = find_user_file(snapshot.name)
        return ConfigFile(snapshot.settings, found.display if found else f"Users/{snapshot.name}.json")

    def user_name(self, key: str) -> str | Problem:
        """Return the name that the user's file has under ``key``; empty if it has none."""
        answer: str | Problem = self._answer(("user key", key), lambda: config_utils.user_name_setting(key))
        return answer

    def misspelt_user_key(self, key: str, known: Collection[str]) -> str:
        """Return the key of the user's file that was probably meant to be ``key``; empty without one."""
        answer: str = self._answer(
            ("misspelt", key),
            lambda: next(
                (name for name in self.user_file().content if name not in known and meant_key(name, {key})), ""
            ),
        )
        return answer

    def settings_file(self, name: str) -> ConfigFile | Problem:
        """Return a settings file among the user's workflows."""

        def find() -> ConfigFile | Problem:
            try:
                content, display = config_utils.load_settings_file(name)
            except ConfigNotFoundError as error:
                return self._without_folder(error)
            return ConfigFile(content, display)

        answer: ConfigFile | Problem = self._answer(("settings", name), find)
        return answer

    def settings_files(self) -> list[ConfigFile]:
        """The settings files that were looked up."""
        return self._settings_files

    def user_variables(self) -> Mapping[str, object]:
        """The user's ``userWideWorkflowVariables``."""
        variables = self._answer(("user variables",), config_utils.user_wide_variables)
        return variables if isinstance(variables, Mapping) else {}

    def fills_partially(self) -> bool:
        """Whether an unknown placeholder leaves the others of its text unaffected."""
        return self._answer(("fills partially",), lambda: config_utils.user_flag("partialVariableSubstitution")) is True

    def source(self, path: str) -> JsonSource:
        """Return the text of a file, for the positions of findings; empty if it cannot be read."""
        return JsonSource.read(path)

    # -- finding ---------------------------------------------------------------------------------------------------
    def _endpoint(self, name: str) -> EndpointFile | Problem:
        try:
            found = config_utils.endpoint_file(name)
        except ConfigNotFoundError as error:
            folder = config_utils.user_name_setting("endpointConfigsSubDirectory")
            if folder and not folder_exists("Endpoints", *split_name(folder)):
                return Problem(str(error), file=self.user_file().display)
            raise
        self.named[found.display] = "endpoint"
        try:
            file = EndpointFile.load(name)
        # The error names the file only if the file exists.
        except ConfigurationError as error:
            missing = isinstance(error, ConfigNotFoundError)
            return Problem(str(error), file=found.display if missing else error.file or found.display)
        finally:
            # Also for an endpoint that cannot be used: the mistake may be in a file that it names.
            self._note_needs(found)
        return file

    def _note_needs(self, found: FoundFile) -> None:
        """Record the files that an endpoint file names, as far as they exist."""
        try:
            content = read_object(found)
        except ConfigurationError:
            return
        for key, kind, find in (
            ("apiTypeConfigFileName", "api-type", config_utils.api_type_file),
            ("promptTemplate", "prompt-template", config_utils.prompt_template_file),
            ("backupEndpointName", "endpoint", config_utils.endpoint_file),
        ):
            name = content.get(key)
            try:
                if isinstance(name, str) and name.strip():
                    self.named[find(name.strip()).display] = kind
            # Reported at the endpoint.
            except ConfigurationError:
                pass

    def _preset(self, name: str | None, endpoint: str) -> object:
        """Return the samplers of an endpoint that lends them, or of a preset file of that name."""
        file, preset = EndpointFile.load(endpoint), (name or "").strip()
        preset_type = str(API_TYPE.value(file.api_type, "presetType") or "")
        if preset and not self._is_donor(preset):
            try:
                self.named[config_utils.preset_file(preset, preset_type).display] = "preset"
            except ConfigNotFoundError as error:
                cause = self._wrong_folder()
                if cause:
                    return Problem(str(error), file=cause)
                raise
        try:
            return find_sources(file.config, file.api_type, name)
        # The preset that the endpoint adds does not exist.
        except ConfigNotFoundError as error:
            return Problem(str(error), file=config_utils.endpoint_file(endpoint).display)

    def _is_donor(self, name: str) -> bool:
        if not is_flat_name(name):
            return False
        try:
            donor = config_utils.endpoint_file(name)
        except ConfigNotFoundError:
            return False
        if config_utils.endpoint_exists_with_samplers(name) is None:
            return False
        self.named[donor.display] = "endpoint"
        return True

    def _wrong_folder(self) -> str:
        """Return the user's file if it names a missing folder of presets, while one with nearly that name exists."""
        folder = config_utils.user_name_setting("presetConfigsSubDirectoryOverride")
        known = [name for preset_type in folders_in("Presets") for name in folders_in("Presets", preset_type)]
        return self.user_file().display if folder and folder not in known and nearest(folder, known, 0.6) else ""

    def _workflow(
        self, name: str, folder: str | None, calling_folder: str | None, calling_name: str | None
    ) -> Problem | None:
        try:
            self.named[config_utils.load_workflow(name, folder, calling_folder, calling_name).display] = "workflow"
        except ConfigurationError as error:
            # The file exists and cannot be used.
            if error.file:
                self.named[error.file] = "workflow"
            if folder is None and isinstance(error, ConfigNotFoundError):
                return self._without_folder(error)
            raise
        return None

    def _without_folder(self, error: ConfigNotFoundError) -> Problem:
        """Return the problem that a file is not among the user's workflows, or that the user has no folder of
        workflows.
        """
        lacking = not any(folder_exists("Workflows", *split_name(one)) for one in user_workflow_folders())
        return problem_of(error, self.user_file().display if lacking else error.file)

    def _file(self, kind: str, name: str, locate: Callable[[str], FoundFile], load: Callable[[str], Any]) -> Any:
        """Return the content of the file ``name`` of a kind, or the problem with it."""

        def find() -> object:
            self.named[locate(name).display] = kind
            return load(name)

        return self._answer((kind, name), find)

    def _problem(self, key: tuple[object, ...], find: Callable[[], Any]) -> Problem | None:
        return _only_problem(self._answer(key, find))

    def _answer(self, key: tuple[object, ...], find: Callable[[], Any]) -> Any:
        if key not in self._known:
            answer = _ask(find)
            self._known[key] = find, answer
            # Kept apart, because they are asked for after each workflow, of which there may be thousands.
            if isinstance(answer, ConfigFile):
                self._settings_files.append(answer)
        return self._known[key][1]


def _only_problem(answer: object) -> Problem | None:
    return answer if isinstance(answer, Problem) else None


def _ask(find: Callable[[], Any]) -> object:
    """Return the result of ``find``, or the Problem that it runs into."""
    try:
        return find()
    except ConfigurationError as error:
        return problem_of(error, error.file)


def problem_of(error: ConfigurationError, file: str = "") -> Problem:
    """Return the problem in an error. ``file``: the file with the mistake, if the mistake is not in the name."""
    text = str(error).removesuffix(f" Did you mean '{error.suggestion}'?")
    # The sentence ends before the paths that were tried.
    if isinstance(error, ConfigNotFoundError):
        text = text.rstrip(".")
    return Problem(text, error.suggestion, file)


def _nearest_script(path: str) -> str:
    """Return the name of the script next to ``path`` that is most like it; empty without such a script."""
    folder, name = os.path.split(path)
    try:
        return nearest(name, [entry for entry in os.listdir(folder or os.curdir) if entry.endswith(".py")], 0.6)
    # A ValueError means that no file can have this path.
    except (OSError, ValueError):
        return ""


# Parsing this much takes seconds; scripts are far smaller.
MAX_BYTES = 1_000_000
ENTRY = "Invoke"


def script_mistake(path: str) -> str:
    """Return what keeps a script from being run; "" for nothing.

    The script is not executed. A file that cannot be read, or is too large to be checked, counts as correct.
    """
    try:
        facts = os.stat(path)
        return _mistake(path, facts.st_mtime_ns, facts.st_size) if facts.st_size <= MAX_BYTES else ""
    # A ValueError means NUL in the path or in the file.
    except (OSError, ValueError):
        return ""


# An edited script has another time or size, and so an entry of its own.
@lru_cache(maxsize=256)
def _mistake(path: str, _modified: int, _size: int) -> str:
    with open(path, "rb") as file:
        source = file.read()
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        return f"cannot be loaded: {text_of(error)}"
    except (RecursionError, MemoryError):
        return ""
    # The name may be defined in any way, or come with an import.
    if ENTRY.encode() in source or b"import *" in source:
        return ""
    near = nearest(ENTRY, [node.name for node in tree.body if isinstance(node, ast.FunctionDef)])
    return f"defines no function {ENTRY}" + (f"; is '{near}' meant to be it?" if near else "")
