"""The public interface of the configuration.

``load_*`` and ``user_settings`` return read-only data shared by all requests. The getters that users' scripts call
(``get_*_config``, ``get_config_value``, ``load_config``) return private copies, which may be changed. All errors are
``ConfigurationError``; paths in them are relative to the config root.
"""

from __future__ import annotations

import os

from Middleware.exceptions import ConfigNotFoundError, ConfigurationError, ConfigValueError
from Middleware.utilities.config.keys.api_type import API_TYPE
from Middleware.utilities.config.keys.endpoint import ENDPOINT
from Middleware.utilities.config.keys.user import ROUTING
from Middleware.utilities.config.lookup import (
    Candidate,
    candidate,
    config_lookup,
    find_file,
    require_file,
    reset_config_store,
)
from Middleware.utilities.config.paths import (
    clean_directory,
    display_path,
    get_default_logging_directory,
    get_project_root_directory_path,
    get_root_config_directory,
    get_root_public_directory,
)
from Middleware.utilities.config.store import FoundFile, config_store, read_document, read_object
from Middleware.utilities.config.users import (
    CHAT_ONLY_TEMPLATE,
    DEFAULT_WORKFLOW,
    categorization_workflow_name,
    chat_template_name,
    configured_users,
    current_snapshot,
    custom_workflow_name,
    existing_users,
    flag_in,
    get_current_username,
    get_discussions_root_directory,
    get_lock_database_directory,
    is_user,
    settings_for,
    user_config_exists,
    user_flag,
    user_int,
    user_name_setting,
    user_of_folder,
    user_setting,
    user_settings,
    user_wide_variables,
)
from Middleware.utilities.config.workflows import (
    LoadedWorkflow,
    context_length_for_clients,
    list_shared_workflows,
    load_settings_file,
    load_workflow,
    model_ids,
    shared_selection,
    shared_selection_exists,
    shared_workflow_folder,
    workflow_at,
    workflow_candidates,
)
from Middleware.utilities.discussions.discussion_folder import (
    get_discussion_chat_summary_file_path,
    get_discussion_condensation_tracker_file_path,
    get_discussion_context_compactor_old_file_path,
    get_discussion_context_compactor_oldest_file_path,
    get_discussion_memory_file_path,
    get_discussion_state_document_file_path,
    get_discussion_timestamp_file_path,
    get_discussion_vision_responses_file_path,
)
from Middleware.utilities.files.path_utils import is_flat_name
from Middleware.utilities.json_data import FrozenDict, private_copy

# -- private copies, for scripts ---------------------------------------------------------------------------------------


def get_user_config() -> dict[str, object]:
    """Return the current user's settings."""
    return private_copy(user_settings())


def get_user_config_for(user: str) -> dict[str, object]:
    """Return the settings of ``user``."""
    return private_copy(settings_for(user))


def get_config_value(key: str, default: object = None) -> object:
    """Return one of the current user's settings, ``default`` if it is absent."""
    return private_copy(user_settings().get(key, default))


def get_endpoint_config(endpoint: str) -> dict[str, object]:
    """Return an endpoint of the current user."""
    return private_copy(load_endpoint(endpoint))


def get_api_type_config(api_type: str) -> dict[str, object]:
    """Return an ApiTypes file."""
    return private_copy(load_api_type(api_type))


def load_config(path: str) -> object:
    """Return the content of any JSON file by its path."""
    path = os.path.expanduser(path)
    return private_copy(config_store().read_document(os.path.abspath(path), display=display_path(path)))


# -- from a name to the file it means ----------------------------------------------------------------------------------
#
# Each function finds the file of one kind for the current user, readable or not. It raises ``ConfigNotFoundError`` with
# every path that was tried, or ``ConfigValueError`` for a name that no file can have.


def endpoint_candidate(name: object) -> Candidate:
    """Return the one path that an endpoint may have."""
    return candidate(name, "Endpoints", user_name_setting("endpointConfigsSubDirectory"), kind="endpoint")


def endpoint_file(name: str) -> FoundFile:
    """Return an endpoint in the user's endpoint folder, and nowhere else: a prompt must not reach another host."""
    return require_file("endpoint", name, endpoint_candidate(name))


def api_type_file(name: str) -> FoundFile:
    """Return an ApiTypes file."""
    return require_file("ApiType", name, candidate(name, "ApiTypes", kind="ApiType"))


def prompt_template_file(name: str) -> FoundFile:
    """Return a prompt template."""
    return require_file("prompt template", name, candidate(name, "PromptTemplates", kind="prompt template"))


def routing_file(name: str) -> FoundFile:
    """Return a routing file."""
    return require_file("routing configuration", name, candidate(name, "Routing", kind="routing configuration"))


def preset_file(name: str, preset_type: str) -> FoundFile:
    """Return a preset: from the user's or override folder of the type, else from the type's own folder."""
    if not preset_type:
        raise ConfigValueError("the ApiType of the endpoint names no presetType", json_path="presetType")
    folder = user_name_setting("presetConfigsSubDirectoryOverride", current_snapshot().name)
    return require_file(
        "preset",
        name,
        candidate(name, "Presets", preset_type, folder, kind="preset"),
        candidate(name, "Presets", preset_type, kind="preset"),
    )


def structured_output_file(name: str) -> FoundFile:
    """Return a JSON schema for answers: from the user's or override folder, else from the collection's own."""
    if not is_flat_name(name):
        raise ConfigValueError(
            f"{name!r} cannot be the name of a schema",
            json_path="structuredOutputFile",
            expected="the name of a file in StructuredOutputs, without folder",
        )
    folder = user_name_setting("structuredOutputConfigsSubDirectory", current_snapshot().name)
    return require_file(
        "schema",
        name,
        candidate(name, "StructuredOutputs", folder, kind="schema"),
        candidate(name, "StructuredOutputs", kind="schema"),
    )


def mcp_server_file(name: str) -> FoundFile:
    """Return the file of an MCP server; its name is one plain path component, without a folder."""
    if not is_flat_name(name):
        raise ConfigValueError(
            f"{name!r} cannot be the name of an MCP server", expected="the name of a file in MCPServers, without folder"
        )
    return require_file("MCP server", name, candidate(name, "MCPServers", kind="MCP server"))


# -- which files there are ---------------------------------------------------------------------------------------------


def endpoint_names() -> list[str]:
    """Return the names of the current user's endpoints."""
    return _names_in_folder_of(endpoint_candidate("any"))


def preset_type_of(endpoint: str) -> str:
    """Return the type of the presets that calls of an endpoint may use. Raises ``ConfigurationError``."""
    api_type = load_api_type(str(ENDPOINT.value(load_endpoint(endpoint), "apiTypeConfigFileName")))
    return str(API_TYPE.value(api_type, "presetType") or "")


def preset_names(endpoint: str) -> list[str]:
    """Return the names of the presets that calls of an endpoint may use; none for an endpoint that cannot be read."""
    try:
        preset_type = preset_type_of(endpoint)
        folder = user_name_setting("presetConfigsSubDirectoryOverride", current_snapshot().name)
        own, shared = (
            _names_in_folder_of(candidate("any", "Presets", preset_type, *folders, kind="preset"))
            for folders in ((folder,), ())
        )
    except ConfigurationError:
        return []
    return sorted({*own, *shared})


def _names_in_folder_of(place: Candidate) -> list[str]:
    """Return the names of the JSON files in the folder of a path."""
    names = config_lookup().folder_names(get_root_config_directory(), place[:-1])
    return sorted(
        name.removesuffix(".json") for name, is_folder in names.items() if name.endswith(".json") and not is_folder
    )


# -- read-only files ---------------------------------------------------------------------------------------------------


def load_endpoint(name: str) -> dict[str, object]:
    """Return an endpoint in the user's endpoint folder, and nowhere else: a prompt must not reach another host."""
    return read_object(endpoint_file(name))


def load_api_type(name: str) -> dict[str, object]:
    """Return an ApiTypes file."""
    return read_object(api_type_file(name))


def load_prompt_template(name: str) -> dict[str, object]:
    """Return a prompt template. A missing ``_chatonly`` is an empty one."""
    try:
        return read_object(prompt_template_file(name))
    except ConfigNotFoundError:
        # It is the default, and a chat needs no prefixes or suffixes.
        if name == CHAT_ONLY_TEMPLATE:
            return FrozenDict()
        raise


def load_routing(name: str) -> dict[str, dict[str, str]]:
    """Return a routing file: category to ``description`` and ``workflow``, both of which must be strings."""
    found = routing_file(name)
    categories = read_object(found)
    for category, entry in categories.items():
        for key in ROUTING:
            if not isinstance(entry, dict) or not isinstance(entry.get(key), str):
                raise ConfigValueError(
                    f"category '{category}' needs the string '{key}'", file=found.display, json_path=f"{category}.{key}"
                )
    return categories


def find_preset(name: str, preset_type: str) -> dict[str, object]:
    """Return a preset file: from the user's or override folder of the type, else from the type's own folder."""
    return read_object(preset_file(name, preset_type))


def load_structured_output(name: str) -> dict[str, object]:
    """Return a JSON schema for answers: from the user's or override folder, else from the collection's own.

    Its name is one plain path component, and it says something. Raises ConfigurationError otherwise.
    """
    found = structured_output_file(name)
    schema = read_document(found)
    # An empty schema allows any answer, so the node would seem to work.
    if not schema:
        raise ConfigValueError(
            "the schema is empty",
            file=found.display,
            expected="a JSON schema such as an object with 'type' and 'properties'",
        )
    return schema


def load_mcp_server(name: str) -> dict[str, object]:
    """Return the file of an MCP server; its name is one plain path component, without a folder."""
    return read_object(mcp_server_file(name))


def endpoint_exists_with_samplers(name: object) -> dict[str, object] | None:
    """Return the user's endpoint of that (flat) name, if there is one and its ``presetSamplers`` is not empty."""
    if not is_flat_name(name):
        return None
    found = find_file(endpoint_candidate(name))
    endpoint = read_object(found) if found else FrozenDict()
    samplers = ENDPOINT.value(endpoint, "presetSamplers")
    return endpoint if isinstance(samplers, dict) and samplers else None


# -- paths -------------------------------------------------------------------------------------------------------------


def get_config_path(sub_directory: str, file_name: str) -> str:
    """Return the path of ``<config root>/<sub_directory>/<file_name>.json``, existing or not."""
    return _existing_or_first(candidate(file_name, sub_directory, kind="configuration file"))


def get_workflow_path(workflow_name: str, user_folder_override: str | None = None) -> str:
    """Return the file of a workflow, or the first path that it could have."""
    return _existing_or_first(*workflow_candidates(workflow_name, user_folder_override))


def get_default_tool_prompt_path() -> str:
    """Return the optional text file that example scripts read."""
    return os.path.join(get_root_config_directory(), "default_tool_prompt.txt")


def _existing_or_first(*candidates: Candidate) -> str:
    found = find_file(*candidates)
    return found.path if found else os.path.join(get_root_config_directory(), *candidates[0]) + ".json"
