"""Which file a name in the configuration means, whether it can be read or not.

Each function finds the file of one kind for the current user. It raises ``ConfigNotFoundError`` naming every path that
was tried, or ``ConfigValueError`` for a name that no file can have.
"""
from __future__ import annotations

from Middleware.exceptions import ConfigValueError
from Middleware.utilities.config.files import candidate, require_file
from Middleware.utilities.config.lookup import Candidate, FoundFile
from Middleware.utilities.config.users import current_snapshot, user_name_setting
from Middleware.utilities.files.path_utils import is_flat_name


def endpoint_candidate(name: object) -> Candidate:
    """The one place that an endpoint may have."""
    return candidate(name, "Endpoints", user_name_setting("endpointConfigsSubDirectory"), kind="endpoint")


def endpoint_file(name: str) -> FoundFile:
    """An endpoint in the user's endpoint folder, and nowhere else: a prompt must not reach another host."""
    return require_file("endpoint", name, endpoint_candidate(name))


def api_type_file(name: str) -> FoundFile:
    """An ApiTypes file."""
    return require_file("ApiType", name, candidate(name, "ApiTypes", kind="ApiType"))


def prompt_template_file(name: str) -> FoundFile:
    """A prompt template."""
    return require_file("prompt template", name, candidate(name, "PromptTemplates", kind="prompt template"))


def routing_file(name: str) -> FoundFile:
    """A routing file."""
    return require_file("routing configuration", name, candidate(name, "Routing", kind="routing configuration"))


def preset_file(name: str, preset_type: str) -> FoundFile:
    """A preset: from the user's or override folder of the type, else from the type's own folder."""
    if not preset_type:
        raise ConfigValueError("the ApiType of the endpoint names no presetType", json_path="presetType")
    folder = user_name_setting("presetConfigsSubDirectoryOverride", current_snapshot().name)
    return require_file("preset", name, candidate(name, "Presets", preset_type, folder, kind="preset"),
                        candidate(name, "Presets", preset_type, kind="preset"))


def structured_output_file(name: str) -> FoundFile:
    """A JSON schema for answers: from the user's or override folder, else from the collection's own."""
    if not is_flat_name(name):
        raise ConfigValueError(f"{name!r} cannot be the name of a schema", json_path="structuredOutputFile",
                               expected="the name of a file in StructuredOutputs, without folder")
    folder = user_name_setting("structuredOutputConfigsSubDirectory", current_snapshot().name)
    return require_file("schema", name, candidate(name, "StructuredOutputs", folder, kind="schema"),
                        candidate(name, "StructuredOutputs", kind="schema"))


def mcp_server_file(name: str) -> FoundFile:
    """The file of an MCP server, which lies in the collection's own folder: its name is one plain path component."""
    if not is_flat_name(name):
        raise ConfigValueError(f"{name!r} cannot be the name of an MCP server",
                               expected="the name of a file in MCPServers, without folder")
    return require_file("MCP server", name, candidate(name, "MCPServers", kind="MCP server"))
