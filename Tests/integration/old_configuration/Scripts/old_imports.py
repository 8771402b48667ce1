"""A tool script as people wrote them for the published original: short imports, changed settings, a dict as result."""

from utilities.config_utils import get_config_value, get_current_username, get_user_config
from utilities.text_utils import return_brackets_in_string

from Middleware.common import instance_global_variables
from Middleware.common.constants import VALID_NODE_TYPES
from Middleware.utilities import config_utils
from Middleware.workflows.tools.dynamic_module_loader import DynamicModuleError
from Middleware.workflows.tools.mcp_client_tool import MCPClient, MCPToolCallError


def Invoke(*args, **kwargs):
    settings = get_user_config()
    settings["port"] = "changed here only"
    endpoint = config_utils.get_endpoint_config("Smith")
    endpoint.clear()
    api_type = config_utils.get_api_type_config("Open-AI-API")
    loaded = config_utils.load_config(config_utils.get_config_path("Endpoints/workshop", "Smith"))
    again = config_utils.get_user_config_for(get_current_username())
    paths = [
        config_utils.get_discussion_memory_file_path("old-tools"),
        config_utils.get_root_config_directory(),
        config_utils.get_root_public_directory(),
        config_utils.get_project_root_directory_path(),
        config_utils.get_workflow_path("Workbench"),
        config_utils.get_default_tool_prompt_path(),
    ]
    if again["port"] != 5008 or get_config_value("port") != 5008 or loaded["modelNameToSendToAPI"] != "smith":
        raise DynamicModuleError("what one script changes must not be seen by others")
    if api_type["type"] != "openAIChatCompletion" or not all(paths) or not issubclass(MCPToolCallError, Exception):
        raise DynamicModuleError("something is missing", "Old imports", {"paths": paths})
    return {
        "user": get_current_username(),
        "args": list(args),
        "kwargs": kwargs,
        "types": len(VALID_NODE_TYPES),
        "text": return_brackets_in_string(args[0]),
        "client": MCPClient.__name__,
        "instance": instance_global_variables.INSTANCE_ID,
    }
