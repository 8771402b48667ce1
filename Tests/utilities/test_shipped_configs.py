"""The shipped configuration: every file parses, and every name that a shipped file mentions exists."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jinja2 import Environment, meta

from Middleware.utilities.config.users import FIRST_USER
from Tests.tables import table

ROOT = Path(__file__).resolve().parents[2] / "Public" / "Configs"
FILES = sorted(ROOT.rglob("*.json"))
USERS = sorted(path for path in (ROOT / "Users").rglob("*.json") if path.name != "_current-user.json")
FIRST_NODE_TYPES = {
    *("Standard", "StaticResponse", "Conditional", "StringConcatenator", "CustomWorkflow", "ConditionalCustomWorkflow"),
}
# user: port, endpoint folder, shared folder
SHIPPED_USERS: dict[str, tuple[int, str, str]] = {
    "chat-ui": (5060, "_shared", "_shared"),
    "chat-ui-cot": (5061, "_shared_manual_cot", "_shared_manual_cot"),
    "chat-ui-cot-discussionid": (5062, "_shared_manual_cot_discussionid", "_shared_manual_cot_discussionid"),
    "chat-ui-discussionid": (5063, "_shared_discussionid", "_shared_discussionid"),
    "_simple_router_no_memory": (5070, "_simple_router_no_memory", ""),
    "_example_assistant_with_vector_memory": (5071, "_example_users", ""),
    "_example_game_bot_with_file_memory": (5072, "_example_users", ""),
    "_wikipedia_multi_step_workflow": (5075, "_example_wikipedia", ""),
    "_wikipedia_quick_workflow": (5076, "_example_wikipedia", ""),
    "isevendays-openwebui-norouting-general-offline-mcp": (
        5022,
        "isevendays-openwebui-norouting-general-offline-mcp",
        "",
    ),
}
SHARED_USERS = [name for name, (_, _, shared) in SHIPPED_USERS.items() if shared]
SHARED_FOLDERS = ("general", "fast", "general-reasoning", "fast-reasoning", "task")
# The folder for coding agents, whose workflow is one node without settings of its own.
AGENT = "agent"
COMMON = (
    "General",
    "General_CoT",
    "General_With_Vision_DiscussionId",
    "General_With_Vision_DiscussionId_CoT",
    "Task",
    "Direct_Model",
    "_DoNothing",
)
OTHER_FILES = (
    "Users/demo",
    "Users/_archived/group-chat-example",
    "Routing/_defaultCategoriesConfig",
    "Routing/_exampleCustomCategoriesConfig",
    "PromptTemplates/_chatonly",
)
ROLE_KEYS = ("{}Model", "{}Preset", "{}ResponseTokenSize", "MinMessagesToSend{}LLM", "MaxTokensToSend{}LLM")
TRANSPORTS = ("stdio", "streamable_http", "sse")
INPUT = re.compile(r"\{agent(\d+)Input\}")


def load(path: Path) -> Any:
    """Reads strict JSON: no repeated keys, no NaN."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len(items) == len(dict(items)), f"{path}: repeated key"
        return dict(items)

    def constant(name: str) -> Any:
        raise AssertionError(f"{path}: {name}")

    return json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=pairs, parse_constant=constant)


def has(path: Path) -> bool:
    """Whether the file exists in exactly this spelling, which Windows and macOS would not tell."""
    return path.parent.is_dir() and path.name in {entry.name for entry in path.parent.iterdir()}


def identify(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@table("path", FILES, ids=identify)
def test_every_file_is_a_json_object(path: Path) -> None:
    assert isinstance(load(path), dict)


@table("path", FILES, ids=identify)
def test_every_file_is_written_the_same_way(path: Path) -> None:
    """UTF-8, two spaces, a line feed at the end; a short list may stand on one line."""
    text = path.read_bytes().decode("utf-8")
    assert text.endswith("}\n") and not text.endswith("\n\n")
    assert "\r" not in text and "\t" not in text and not text.startswith("\ufeff")
    levels = [len(line) - len(line.lstrip(" ")) for line in text.splitlines()]
    assert all(level % 2 == 0 for level in levels)
    assert levels.count(0) == 2, "the outer braces stand alone on their lines"


def test_without_a_current_user_there_is_the_first_one() -> None:
    assert has(ROOT / "Users" / f"{FIRST_USER}.json")


class User:
    """A shipped user with the folders that its names are looked up in."""

    def __init__(self, path: Path) -> None:
        self.data = load(path)
        self.workflows = ROOT / "Workflows" / (self.data.get("workflowConfigsSubDirectoryOverride") or path.stem)
        self.endpoints = ROOT / "Endpoints" / (self.data.get("endpointConfigsSubDirectory") or "")
        self.presets = self.data.get("presetConfigsSubDirectoryOverride") or path.stem

    def preset_exists(self, endpoint: dict[str, Any], name: str) -> bool:
        donor = self.endpoints / f"{name}.json"
        if has(donor) and load(donor).get("presetSamplers"):
            return True
        folder = ROOT / "Presets" / load(ROOT / "ApiTypes" / f"{endpoint['apiTypeConfigFileName']}.json")["presetType"]
        return has(folder / self.presets / f"{name}.json") or has(folder / f"{name}.json")

    def nodes(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for path in sorted(self.workflows.glob("*.json")):
            for node in load(path).get("nodes", ()):
                yield path.stem, node


DEMO = User(ROOT / "Users" / "demo.json")


@pytest.fixture(params=USERS, ids=identify)
def user(request: pytest.FixtureRequest) -> User:
    return User(request.param)


# -- names that guides and other configurations refer to --------------------------------------------------------------


def test_every_shipped_user_is_there() -> None:
    found = {path.relative_to(ROOT / "Users").with_suffix("").as_posix() for path in USERS}
    assert found == {*SHIPPED_USERS, "demo", "_archived/group-chat-example"}


@pytest.mark.parametrize("name", OTHER_FILES)
def test_a_file_is_there_under_its_name(name: str) -> None:
    assert has(ROOT / f"{name}.json")


@pytest.mark.parametrize("name", SHIPPED_USERS)
def test_a_user_has_its_port_and_folders(name: str) -> None:
    port, endpoints, shared = SHIPPED_USERS[name]
    data = load(ROOT / "Users" / f"{name}.json")
    assert (data["port"], data["endpointConfigsSubDirectory"]) == (port, endpoints)
    if shared:
        assert data["allowSharedWorkflows"] is True
        assert data["sharedWorkflowsSubDirectoryOverride"] == shared
        assert has(ROOT / "Workflows" / name / "_DefaultWorkflow.json")


def test_the_documentation_lists_the_users() -> None:
    text = (ROOT.parents[1] / "Docs" / "User" / "shipped-users.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\S+)` \| (\d+) \| (?:`(\S+)`|the same name) \|", text, re.MULTILINE)
    files = {name: load(ROOT / "Users" / f"{name}.json") for name, _, _ in rows}
    assert len(rows) == len(USERS)
    assert all(
        (int(port), folder or name) == (files[name]["port"], files[name]["endpointConfigsSubDirectory"])
        for name, port, folder in rows
    )


def test_a_user_says_what_it_is_for_and_keeps_within_the_window(user: User) -> None:
    assert user.data["description"].strip()
    assert user.data["clampPromptToContextWindow"] is True
    assert user.data["chatPromptTemplateName"] == "_chatonly"


def test_ports_differ() -> None:
    ports = [load(path)["port"] for path in USERS]
    assert len(ports) == len(set(ports))


@pytest.mark.parametrize("name", COMMON)
def test_the_common_workflows_are_there(name: str) -> None:
    assert has(ROOT / "Workflows" / "_common" / f"{name}.json")


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_there_is_an_mcp_server_of_each_transport(transport: str) -> None:
    files = [load(path) for path in (ROOT / "MCPServers" / "_examples").glob("*.json")]
    assert any(file.get("transport", "stdio") == transport for file in files)


# -- what every workflow has ------------------------------------------------------------------------------------------

WORKFLOWS = [path for path in FILES if path.is_relative_to(ROOT / "Workflows") and "nodes" in load(path)]
SCHEMAS = {
    "Users": "user",
    "Endpoints": "endpoint",
    "Routing": "routing",
    "ApiTypes": "api-type",
    "PromptTemplates": "prompt-template",
    "Workflows": "workflow",
}
# no schema's path in files that are copied to another folder: it would lead nowhere there
COPIED = (ROOT / "Presets", ROOT / "MCPServers", ROOT / "Endpoints" / "_example-endpoints" / "specific_examples")
WITH_SCHEMA = [path for path in FILES if not any(path.is_relative_to(folder) for folder in COPIED)]
CALLS = [
    pytest.param(node, id=f"{identify(path)}: {node['title']}")
    for path in WORKFLOWS
    for node in load(path)["nodes"]
    if node.get("endpointName")
]
COUNTED = re.compile(r"\{agent(\d+)Output\}")


@table("path", WORKFLOWS, ids=identify)
def test_a_workflow_says_what_it_shows(path: Path) -> None:
    assert len(load(path)["description"]) > 20


@table("path", WORKFLOWS, ids=identify)
def test_a_workflow_has_tests_beside_it(path: Path) -> None:
    assert load(path.with_name(f"{path.stem}.test.json"))["tests"]


@table("path", WITH_SCHEMA, ids=identify)
def test_a_file_names_the_schema_of_its_kind(path: Path) -> None:
    kind, *rest = path.relative_to(ROOT).parts
    name = SCHEMAS[kind]
    if path.name == "_current-user.json":
        name = "current-user"
    elif path.name.endswith(".test.json"):
        name = "workflow-test"
    elif kind == "Workflows" and path not in WORKFLOWS:
        name = "(memory|compactor)-settings"
    depth = "../" * (len(rest) + 1)
    assert next(iter(load(path))) == "$schema", "it stands first"
    assert re.fullmatch(rf"{re.escape(depth)}Schemas/{name}\.schema\.json", load(path)["$schema"])
    assert has(path.parent / load(path)["$schema"])


@table("path", sorted(set(FILES) - set(WITH_SCHEMA)), ids=identify)
def test_a_file_that_is_to_be_copied_elsewhere_names_none(path: Path) -> None:
    assert "$schema" not in load(path)


# -- conversations that every back-end takes --------------------------------------------------------------------------


@table("node", CALLS)
def test_a_completion_back_end_gets_a_turn_of_the_user_and_an_open_one(node: dict[str, Any]) -> None:
    """Back-ends that take one text get the prompt between the template's tags only if a node asks for it."""
    assert node.get("addUserTurnTemplate" if node.get("prompt") else "forceGenerationPromptIfEndpointAllows") is True


@table("path", WORKFLOWS, ids=identify)
def test_a_conversation_begins_with_a_message_of_the_user(path: Path) -> None:
    """Chat templates such as Gemma's and Mistral's refuse any other beginning, and two messages of one side in a row.

    In a conversation in turns an odd number of messages does; _MessagesToSend counts for all others.
    """
    nodes = load(path)["nodes"]
    for node in nodes:
        assert not node.get("addAsUserMessage"), "it would stand beside a message of the user"
        if node["type"] == "Standard" and not node.get("prompt"):
            count = node["lastMessagesToSendInsteadOfPrompt"]
            if counted := COUNTED.fullmatch(str(count)):
                assert nodes[int(counted[1]) - 1]["workflowName"] == "_MessagesToSend", node["title"]
            else:
                assert count % 2 == 1, node["title"]
            assert "lastMessagesToSendInsteadOfPromptMaxTokenSize" not in node, "it may cut before an answer"


# -- the folders that a model list is made of -------------------------------------------------------------------------

SELECTABLE = [(name, folder) for name in SHARED_USERS for folder in SHARED_FOLDERS]


@pytest.mark.parametrize("name", SHARED_USERS)
def test_the_model_list_has_these_folders(name: str) -> None:
    folders = {path.name for path in (ROOT / "Workflows" / SHIPPED_USERS[name][2]).iterdir()}
    assert folders == {*SHARED_FOLDERS, AGENT}


@pytest.mark.parametrize("name", SHARED_USERS)
def test_an_agent_gets_its_tools_and_the_whole_conversation(name: str) -> None:
    user = User(ROOT / "Users" / f"{name}.json")
    (node,) = load(ROOT / "Workflows" / SHIPPED_USERS[name][2] / AGENT / "_DefaultWorkflow.json")["nodes"]
    assert node["allowTools"] and node["acceptImages"] and node["clampPromptToContextWindow"] and not node["prompt"]
    # More messages than a request may have.
    assert node["lastMessagesToSendInsteadOfPrompt"] > 100_000
    # It would change what a client's tools get back from the model.
    assert not user.data.get("chatCompleteAddUserAssistant")
    endpoint = load(user.endpoints / f"{node['endpointName']}.json")
    assert 0 < node["maxResponseSizeInTokens"] < endpoint["maxContextTokenSize"]


@table(("name", "folder"), SELECTABLE)
def test_a_selectable_workflow_hands_its_settings_to_a_common_one(name: str, folder: str) -> None:
    file = load(ROOT / "Workflows" / SHIPPED_USERS[name][2] / folder / "_DefaultWorkflow.json")
    (node,) = file["nodes"]
    assert (node["type"], node["workflowUserFolderOverride"]) == ("CustomWorkflow", "_common")
    roles = ["Responding", *(role for role in ("Thinking", "Vision") if f"{role}Model" in file)]
    keys = [key.format(role) for role in roles for key in ROLE_KEYS]
    assert set(file) == {"$schema", "description", "nodes", *keys}
    assert node["scoped_variables"] == [f"{{{key}}}" for key in keys]
    child = (ROOT / "Workflows" / "_common" / f"{node['workflowName']}.json").read_text(encoding="utf-8")
    assert {int(number) for number in INPUT.findall(child)} == set(range(1, len(keys) + 1))


@table(("name", "folder"), SELECTABLE)
def test_the_settings_name_endpoints_and_presets_that_exist(name: str, folder: str) -> None:
    user = User(ROOT / "Users" / f"{name}.json")
    file = load(ROOT / "Workflows" / SHIPPED_USERS[name][2] / folder / "_DefaultWorkflow.json")
    for role in ("Responding", "Thinking", "Vision"):
        if f"{role}Model" in file:
            endpoint = load(user.endpoints / f"{file[f'{role}Model']}.json")
            assert user.preset_exists(endpoint, file[f"{role}Preset"])
            room = endpoint["maxContextTokenSize"] - file[f"{role}ResponseTokenSize"]
            assert 0 < file[f"MaxTokensToSend{role}LLM"] < room


@table(("name", "folder"), SELECTABLE)
def test_thinking_and_seeing_are_steps_of_their_own_where_the_user_says_so(name: str, folder: str) -> None:
    file = load(ROOT / "Workflows" / SHIPPED_USERS[name][2] / folder / "_DefaultWorkflow.json")
    assert ("ThinkingModel" in file) is ("cot" in name and folder.endswith("-reasoning"))
    assert ("VisionModel" in file) is (name.endswith("discussionid") and folder != "task")


# -- names within the files -------------------------------------------------------------------------------------------


def test_a_user_with_routing_has_workflows_for_its_routes(user: User) -> None:
    if not user.data.get("routingConfig"):
        return
    routing = load(ROOT / "Routing" / f"{user.data['routingConfig']}.json")
    for category, route in routing.items():
        if category != "$schema":
            assert route["description"], category
            assert has(user.workflows / f"{route['workflow']}.json")
    assert has(user.workflows / f"{user.data['categorizationWorkflow']}.json")


def test_a_user_has_the_workflows_that_it_names(user: User) -> None:
    assert has(user.workflows / "_DefaultWorkflow.json")
    for key in (
        "backgroundTaskWorkflow",
        "customWorkflow",
        "fileMemoryToolWorkflow",
        "chatSummaryToolWorkflow",
        "conversationMemoryToolWorkflow",
        "recentMemoryToolWorkflow",
        "contextCompactorSettingsFile",
        "discussionIdMemoryFileWorkflowSettings",
    ):
        if user.data.get(key):
            assert has(user.workflows / f"{user.data[key]}.json"), key
    assert has(ROOT / "PromptTemplates" / f"{user.data['chatPromptTemplateName']}.json")


def test_nodes_name_what_exists(user: User) -> None:
    """Names with variables in them are looked at where the values stand."""
    seen = 0
    for workflow, node in user.nodes():
        seen += 1
        where = f"{workflow}: {node['title']}"
        name = node.get("endpointName", "{}")
        if "{" not in name:
            endpoint = user.endpoints / f"{name}.json"
            assert has(endpoint), where
            assert not node.get("preset") or user.preset_exists(load(endpoint), node["preset"]), where
        children = [*node.get("conditionalWorkflows", {}).values(), *filter(None, [node.get("workflowName")])]
        folder = node.get("workflowUserFolderOverride")
        for child in children:
            assert has((ROOT / "Workflows" / folder if folder else user.workflows) / f"{child}.json"), where
    assert seen


def test_an_answer_has_room_for_the_thoughts_of_its_endpoint(user: User) -> None:
    """A model that is cut off while it thinks has said nothing."""
    limits = [(node.get("endpointName", ""), node.get("maxResponseSizeInTokens")) for _, node in user.nodes()]
    shared = ROOT / "Workflows" / user.data["sharedWorkflowsSubDirectoryOverride"]
    for file in map(load, shared.glob("*/_DefaultWorkflow.json")):
        if "RespondingModel" in file:
            limits.append((file["RespondingModel"], file["RespondingResponseTokenSize"]))
        limits += [(node.get("endpointName", ""), node.get("maxResponseSizeInTokens")) for node in file["nodes"]]
    for name, limit in limits:
        if has(user.endpoints / f"{name}.json"):
            samplers = load(user.endpoints / f"{name}.json")["presetSamplers"]
            assert limit > samplers.get("chat_template_kwargs", {}).get("thinking_budget", 0), name


# -- the demo, which everybody sees first -----------------------------------------------------------------------------


def test_the_demo_has_three_routes() -> None:
    routing = load(ROOT / "Routing" / "demo.json")
    routes = [name for name in routing if name != "$schema"]
    assert len(routes) >= 3 and all(re.fullmatch(r"[A-Z]+", name) for name in routes)


def test_the_demo_has_simple_nodes_only() -> None:
    for workflow, node in DEMO.nodes():
        where = f"{workflow}: {node['title']}"
        assert node["type"] in FIRST_NODE_TYPES, where
        assert node["type"] != "Standard" or (node["endpointName"] and node["preset"]), where


def test_every_route_of_the_demo_has_one_responder_and_one_route_has_three_nodes() -> None:
    counts = {}
    for name, route in load(ROOT / "Routing" / "demo.json").items():
        if name != "$schema":
            nodes = load(DEMO.workflows / f"{route['workflow']}.json")["nodes"]
            counts[route["workflow"]] = len(nodes)
            assert [bool(node.get("returnToUser")) for node in nodes] == [False] * (len(nodes) - 1) + [True]
    assert max(counts.values()) >= 3


def test_prompts_of_the_demo_use_only_known_variables() -> None:
    known = {"category_colon_descriptions_newline_bulletpoint", "chat_system_prompt", "chat_user_prompt_last_three"}
    known |= {"chat_user_prompt_last_five", "current_day_of_week", "todays_date_pretty"}
    for path in sorted(DEMO.workflows.glob("*.json")):
        for index, node in enumerate(load(path).get("nodes", ())):
            outputs = {f"agent{number}Output" for number in range(1, index + 1)}
            text = node.get("systemPrompt", "") + node.get("prompt", "")
            jinja = meta.find_undeclared_variables(Environment().parse(text)) if node.get("jinja2") else None
            used = set(re.findall(r"\{(\w*)", text)) if jinja is None else jinja
            assert used <= known | outputs, f"{path.stem}: {node['title']}"
