"""Lookups, users, flags and listings of the configuration."""

from __future__ import annotations

import builtins
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.common import instance_global_variables as instance
from Middleware.exceptions import (
    ConfigNotFoundError,
    ConfigSyntaxError,
    ConfigurationError,
    ConfigValueError,
    WilmerError,
)
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.utilities import config_utils as config
from Tests.windows import tells_capitals_apart

ROOT = Path(__file__).resolve().parents[2]


class Tree:
    """A config tree on disk, and a clock that moves the store's memory on."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.now = 1000.0

    def put(self, name: str, data: Any) -> Path:
        path = self.root / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
        self.now += 1
        return path

    def user(self, name: str = "ann", **settings: Any) -> None:
        self.put(f"Users/{name}", settings)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tree]:
    tree = Tree(tmp_path / "cfg")
    for name in ("PUBLIC_DIRECTORY", "DISCUSSION_DIRECTORY", "USER_LEVEL_SQLITE_DIRECTORY"):
        monkeypatch.setattr(instance, name, None)
    monkeypatch.setattr(instance, "CONFIG_DIRECTORY", str(tree.root))
    monkeypatch.setattr(instance, "USERS", ["ann"])
    monkeypatch.setattr(config.config_store(), "clock", lambda: tree.now)
    config.reset_config_store()
    with request_scope(None):  # type: ignore[arg-type]
        yield tree
    config.reset_config_store()


# -- directories -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["/srv/cfg///", "/srv/cfg\\", "  /srv/cfg ", '/srv/cfg"', '/srv/cfg\\"'])
def test_config_directory_is_cleaned(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setattr(instance, "CONFIG_DIRECTORY", value)
    assert config.get_root_config_directory() == "/srv/cfg"


@pytest.mark.parametrize("value", [None, "", "   ", "///", "\\"])
def test_a_blank_config_directory_is_the_default(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    monkeypatch.setattr(instance, "CONFIG_DIRECTORY", value)
    monkeypatch.setattr(instance, "PUBLIC_DIRECTORY", None)
    assert config.get_project_root_directory_path() == str(ROOT)
    assert config.get_root_public_directory() == str(ROOT / "Public")
    assert config.get_root_config_directory() == str(ROOT / "Public" / "Configs")


def test_both_directory_flags(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.user()
    monkeypatch.setattr(instance, "PUBLIC_DIRECTORY", "B/")
    assert config.get_root_config_directory() == str(tree.root)
    assert config.get_lock_database_directory() == os.path.join("B", "SqlLiteDBs")
    assert config.get_default_logging_directory() == os.path.join("B", "logs")
    assert config.get_discussions_root_directory() == os.path.join("B", "DiscussionIds")
    monkeypatch.setattr(instance, "CONFIG_DIRECTORY", None)
    assert config.get_root_config_directory() == os.path.join("B", "Configs")


def test_home_is_expanded_if_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/x")
    monkeypatch.setenv("USERPROFILE", "/home/x")
    assert config.clean_directory("~/cfg/") == "/home/x/cfg"
    assert config.clean_directory("~no-such-user-here/cfg") == "~no-such-user-here/cfg"


def test_data_directories_flag_then_user_then_default(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tree.user(discussionDirectory="/data/d/", sqlLiteDirectory="D:\\temp\\db")
    assert config.get_discussions_root_directory() == "/data/d"
    if os.name != "nt":
        assert config.get_lock_database_directory() == str(ROOT / "Public" / "SqlLiteDBs")
        assert config.get_lock_database_directory() == str(ROOT / "Public" / "SqlLiteDBs")
        assert caplog.text.count("sqlLiteDirectory is a Windows path") == 1
    monkeypatch.setattr(instance, "USER_LEVEL_SQLITE_DIRECTORY", "/flag")
    assert config.get_lock_database_directory() == "/flag"


# -- the current user --------------------------------------------------------------------------------------------------


def test_current_user_order(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.put("Users/_current-user", {"currentUser": "zoe"})
    monkeypatch.setattr(instance, "USERS", None)
    assert config.get_current_username() == "zoe"
    monkeypatch.setattr(instance, "USERS", ["ann", "ann"])
    assert config.get_current_username() == "ann"
    monkeypatch.setattr(instance, "USERS", ["ann", "bob"])
    with pytest.raises(WilmerError, match="several users"):
        config.get_current_username()
    with request_scope(RequestContext(user="bob")):
        assert config.get_current_username() == "bob"


@pytest.mark.parametrize("content", [None, "{}", '{"currentUser": " "}', '{"currentUser": 3}', "[]", "{oops"])
def test_no_readable_active_user(tree: Tree, monkeypatch: pytest.MonkeyPatch, content: str | None) -> None:
    monkeypatch.setattr(instance, "USERS", [])
    if content is not None:
        tree.put("Users/_current-user", content)
    with pytest.raises(ConfigurationError, match="Users/_current-user.json"):
        config.get_current_username()


def test_user_file_lower_case_then_as_given_then_any_case(tree: Tree) -> None:
    # Where all these names are one file, it has each of these contents in turn.
    tree.put("Users/aNN", {"which": "any"})
    assert config.settings_for("ANN")["which"] == "any"
    tree.put("Users/ANN", {"which": "given"})
    assert config.settings_for("ANN")["which"] == "given"
    tree.put("Users/ann", {"which": "lower"})
    assert config.settings_for("ANN")["which"] == "lower"


def test_user_spelled_otherwise_than_its_files(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(instance, "USERS", ["ALICE"])
    tree.user("alice")
    tree.put("Workflows/alice/Flow", {"nodes": []})
    assert config.load_workflow("Flow").nodes == []
    assert config.model_ids() == ["ALICE"]
    tree.now += 1
    config.load_workflow("Flow")
    assert caplog.text.count("Workflows/alice is used") == tells_capitals_apart(tree.root)


def test_missing_user_names_the_paths_and_the_nearest(tree: Tree) -> None:
    tree.user("annika")
    with pytest.raises(ConfigNotFoundError) as caught:
        config.get_user_config_for("Annik")
    assert caught.value.tried == ["Users/annik.json", "Users/Annik.json"]
    assert caught.value.suggestion == "annika"
    assert str(tree.root) not in str(caught.value)
    assert not config.user_config_exists("Annik") and config.user_config_exists("annika")


def test_user_file_must_be_an_object(tree: Tree) -> None:
    tree.put("Users/ann", "[]")
    with pytest.raises(ConfigValueError, match="Users/ann.json: the file must hold a JSON object"):
        config.user_settings()


# -- one snapshot per request ------------------------------------------------------------------------------------------


def test_an_edit_between_two_requests_changes_the_second_only(tree: Tree) -> None:
    tree.user(port=1)
    with request_scope(RequestContext()):
        first = config.user_settings()
        assert first["port"] == 1
        tree.user(port=2)
        tree.now += 5
        assert config.user_settings() is first
        assert config.get_config_value("port") == 1
    with request_scope(RequestContext()):
        assert config.get_config_value("port") == 2


def test_the_snapshot_follows_a_change_of_user(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance, "USERS", ["ann", "bob"])
    tree.user("ann", port=1)
    tree.user("bob", port=2)
    with request_scope(RequestContext(user="ann")) as request:
        assert config.user_settings()["port"] == 1
        request.user = "bob"
        assert config.user_settings()["port"] == 2


def test_a_warm_request_opens_and_lists_nothing(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.user(workflowConfigsSubDirectoryOverride="w", endpointConfigsSubDirectory="e")
    tree.put("Workflows/w/Flow", {"nodes": [{"type": "Standard"}]})
    tree.put("Endpoints/e/E", {})
    tree.put("ApiTypes/A", {})
    tree.put("PromptTemplates/T", {})
    tree.put("Presets/P/Only", {})
    tree.put("Routing/R", {"A": {"description": "a", "workflow": "Flow"}})

    def request() -> None:
        with request_scope(RequestContext()):
            config.load_workflow("Flow")
            config.load_endpoint("E")
            config.endpoint_exists_with_samplers("Only")
            config.load_api_type("A")
            config.load_prompt_template("T")
            config.find_preset("Only", "P")
            config.load_routing("R")
            config.user_int("connectTimeoutInSeconds")

    calls: list[str] = []
    for module, name in ((builtins, "open"), (os, "scandir"), (os, "stat")):
        real = getattr(module, name)

        def counted(*args: Any, _real: Any = real, _name: str = name, **kwargs: Any) -> Any:
            calls.append(_name)
            return _real(*args, **kwargs)

        monkeypatch.setattr(module, name, counted)
    monkeypatch.setattr("time.time", lambda: 4e9)  # all files are old
    request()
    calls.clear()
    request()
    assert calls == []
    tree.now += 1
    request()
    assert set(calls) == {"stat"}


# -- private copies ----------------------------------------------------------------------------------------------------


def test_getters_for_scripts_return_private_copies(tree: Tree) -> None:
    tree.user(userWideWorkflowVariables={"a": [1]})
    tree.put("Endpoints/E", {"presetSamplers": {"x": 1}})
    tree.put("ApiTypes/A", {"x": {}})
    for get in (
        config.get_user_config,
        lambda: config.get_user_config_for("ann"),
        lambda: config.get_endpoint_config("E"),
        lambda: config.get_api_type_config("A"),
        lambda: config.load_config(str(tree.root / "Users" / "ann.json")),
    ):
        copied = get()
        before = json.dumps(copied)
        copied["new"] = 1
        next(iter(copied.values()))["y"] = 2  # type: ignore[index]
        assert json.dumps(get()) == before
    value = config.get_config_value("userWideWorkflowVariables")
    value["a"].append(2)
    assert config.get_config_value("userWideWorkflowVariables") == {"a": [1]}
    assert config.get_config_value("none") is None and config.get_config_value("none", 3) == 3
    with pytest.raises(TypeError):
        config.load_endpoint("E")["new"] = 1


def test_load_config_of_a_missing_file_hides_where_it_is(tree: Tree, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        config.load_config(str(tree.root / "Users" / "x.json"))
    assert str(caught.value).startswith("Users/x.json: ")
    with pytest.raises(FileNotFoundError) as caught:
        config.load_config(str(tmp_path / "else" / "x.json"))
    assert str(caught.value).startswith("x.json: ")


def test_paths_for_scripts(tree: Tree) -> None:
    tree.user()
    tree.put("Workflows/ann/Flow", [])
    assert config.get_config_path("ApiTypes", "A") == str(tree.root / "ApiTypes" / "A.json")
    assert config.get_workflow_path("Flow") == str(tree.root / "Workflows" / "ann" / "Flow.json")
    assert config.get_workflow_path("x/No", "_common") == str(tree.root / "Workflows" / "_common" / "x" / "No.json")
    assert config.get_default_tool_prompt_path() == str(tree.root / "default_tool_prompt.txt")


def test_a_bom_and_a_foreign_locale_do_no_harm(tmp_path: Path) -> None:
    (tmp_path / "Users").mkdir()
    (tmp_path / "Users" / "ann.json").write_bytes(b"\xef\xbb\xbf" + '{"täg": "｜Ω"}'.encode())
    code = (
        "import sys; from Middleware.common import instance_global_variables as i; i.USERS = ['ann'];"
        "i.CONFIG_DIRECTORY = sys.argv[1]; from Middleware.utilities.config_utils import get_user_config;"
        "print(ascii(get_user_config()))"
    )
    environment = {**os.environ, "LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    shown = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=ROOT,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert shown.strip() == ascii({"täg": "｜Ω"})


# -- flags and numbers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, True),
        (False, False),
        ("true", True),
        ("FALSE", False),
        (" True ", True),
        ("", False),
        (None, False),
        (1, True),
        (0, False),
        ("yes", True),
        ("off", False),
    ],
)
def test_flags(tree: Tree, value: object, expected: bool) -> None:
    tree.user(useOfflineWikiApi=value)
    assert config.user_flag("useOfflineWikiApi") is expected
    assert config.user_flag("allowSharedWorkflows") is False


def test_bad_values_fall_back_with_a_warning_naming_file_and_key(tree: Tree, caplog: pytest.LogCaptureFixture) -> None:
    tree.user(
        useOfflineWikiApi="perhaps-so",
        offlineWikiApiPort="ten-ish",
        offlineResearcherApiPort=[1],
        connectTimeoutInSeconds=True,
        port=70000,
    )
    assert config.user_flag("useOfflineWikiApi") is False
    assert config.user_int("offlineWikiApiPort") == 5728
    assert config.user_int("offlineResearcherApiPort") == 8890
    assert config.user_int("connectTimeoutInSeconds") == 30
    assert config.user_int("port") == 5000
    config.user_int("offlineWikiApiPort")
    assert "Users/ann.json: useOfflineWikiApi is 'perhaps-so'" in caplog.text
    assert caplog.text.count("Users/ann.json: offlineWikiApiPort is 'ten-ish'") == 1
    assert "Users/ann.json: port is 70000, which cannot be used; 5000 is used instead." in caplog.text


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("offlineWikiApiPort", 0, 5728),
        ("offlineWikiApiPort", -5, 5728),
        ("offlineWikiApiPort", 65536, 5728),
        ("offlineWikiApiPort", "1", 1),
        ("port", -1, 5000),
        ("port", 0, 0),
        ("port", 65535, 65535),
    ],
)
def test_a_number_outside_of_its_range_is_the_default(
    tree: Tree, caplog: pytest.LogCaptureFixture, key: str, value: object, expected: int
) -> None:
    tree.user(**{key: value})
    assert config.user_int(key) == expected
    assert (f"Users/ann.json: {key} is {value!r}, which cannot be used" in caplog.text) is (str(value) != str(expected))


@pytest.mark.parametrize(
    "read",
    [config.user_flag, config.user_int, config.user_name_setting, config.user_setting],
    ids=lambda read: read.__name__,
)
@pytest.mark.parametrize("given", [{}, {"useOfflineWikiAPI": True}], ids=["absent", "in the file"])
def test_a_key_that_is_not_declared_cannot_be_read(
    tree: Tree, read: Callable[[str], object], given: dict[str, object]
) -> None:
    tree.user(**given)
    with pytest.raises(KeyError, match="useOfflineWikiAPI"):
        read("useOfflineWikiAPI")


@pytest.mark.parametrize(
    ("attempts", "timeout", "expected"),
    [(0, 0, (1, 1)), ("3", "5", (3, 5)), (None, None, (1, 30)), ("", -4, (1, 1)), (2.9, 1e400, (2, 30))],
)
def test_attempts_and_timeout(tree: Tree, attempts: Any, timeout: Any, expected: tuple[int, int]) -> None:
    text = json.dumps({"maxCategorizationAttempts": attempts, "connectTimeoutInSeconds": timeout})
    tree.put("Users/ann", text.replace("Infinity", "1e400"))
    assert (config.user_int("maxCategorizationAttempts"), config.user_int("connectTimeoutInSeconds")) == expected


def test_absent_numbers(tree: Tree) -> None:
    tree.user()
    assert (config.user_int("maxCategorizationAttempts"), config.user_int("connectTimeoutInSeconds")) == (1, 30)


def test_blank_names(tree: Tree, caplog: pytest.LogCaptureFixture) -> None:
    tree.user(customWorkflowOverride=True, customWorkflow=" ", chatPromptTemplateName="", routingConfig=None)
    assert config.chat_template_name() == "_chatonly"
    assert config.load_prompt_template("_chatonly") == {}
    assert config.user_name_setting("routingConfig") == ""
    assert config.categorization_workflow_name() == "_DefaultWorkflow"
    assert "categorizationWorkflow" in caplog.text
    with pytest.raises(ConfigValueError, match="Users/ann.json: .*customWorkflow names no workflow"):
        config.custom_workflow_name()
    tree.user(customWorkflowOverride="true", customWorkflow="Flow", categorizationWorkflow="C")
    assert config.custom_workflow_name() == "Flow"
    assert config.categorization_workflow_name() == "C"
    tree.user(customWorkflow="Flow")
    assert config.custom_workflow_name() is None
    tree.user(chatPromptTemplateName=5)
    with pytest.raises(ConfigValueError, match="Users/ann.json: chatPromptTemplateName must be a string"):
        config.chat_template_name()


# -- endpoints, presets, templates, routing ----------------------------------------------------------------------------


def test_a_name_is_not_suggested_in_place_of_itself(tree: Tree) -> None:
    tree.user()
    file = tree.put("Endpoints/Easel", {})
    with pytest.raises(ConfigNotFoundError, match="Did you mean 'Easel'"):
        config.load_endpoint("Esel")  # the folder is known from now on
    file.unlink()
    with pytest.raises(ConfigNotFoundError) as caught:
        config.load_endpoint("Easel")
    assert not caught.value.suggestion


def test_an_endpoint_is_never_taken_from_the_root(tree: Tree) -> None:
    tree.user(endpointConfigsSubDirectory="home")
    tree.put("Endpoints/E", {"where": "root"})
    tree.put("Endpoints/home/Easel", {"where": "home"})
    with pytest.raises(ConfigNotFoundError) as caught:
        config.load_endpoint("E")
    assert caught.value.tried == ["Endpoints/home/E.json"]
    assert config.load_endpoint("Easel") == {"where": "home"}
    with pytest.raises(ConfigNotFoundError, match="Did you mean 'Easel'"):
        config.load_endpoint("Esel")
    tree.user(endpointConfigsSubDirectory="")
    assert config.load_endpoint("E") == {"where": "root"}


def test_preset_in_the_user_folder_then_in_the_type_root(tree: Tree) -> None:
    tree.user()
    tree.put("Presets/T/P", {"from": "root"})
    assert config.find_preset("P", "T") == {"from": "root"}
    tree.put("Presets/T/ann/P", {"from": "user"})
    assert config.find_preset("P", "T") == {"from": "user"}
    tree.user(presetConfigsSubDirectoryOverride="home/deep")
    assert config.find_preset("P", "T") == {"from": "root"}
    with pytest.raises(ConfigNotFoundError) as caught:
        config.find_preset("sub/Q", "T")
    assert caught.value.tried == ["Presets/T/home/deep/sub/Q.json", "Presets/T/sub/Q.json"]
    with pytest.raises(ConfigValueError, match="presetType"):
        config.find_preset("P", "")


def test_exact_spelling_in_any_folder_comes_before_another_case(tree: Tree) -> None:
    tree.user()
    tree.put("Presets/T/ann/preset", {"from": "user"})
    tree.put("Presets/T/Preset", {"from": "root"})
    expected = "root" if tells_capitals_apart(tree.root) else "user"
    assert config.find_preset("Preset", "T") == {"from": expected}
    assert config.find_preset("PRESET", "T") == {"from": "user"}


def test_a_folder_in_another_case_is_warned_about_once(tree: Tree, caplog: pytest.LogCaptureFixture) -> None:
    tree.user(endpointConfigsSubDirectory="home-server")
    for name in ("Coder", "Thinker", "Main"):
        tree.put(f"Endpoints/Home-Server/{name}", {"endpoint": "http://127.0.0.1:1"})
    for name in ("Coder", "Thinker", "main"):
        config.load_endpoint(name)
    warned = [record.getMessage().partition(", whose")[0] for record in caplog.records]
    expected = [
        "There is no Endpoints/home-server; Endpoints/Home-Server is used",
        "There is no Endpoints/Home-Server/main.json; Endpoints/Home-Server/Main.json is used",
    ]
    assert warned == (expected if tells_capitals_apart(tree.root) else [])


def test_another_case_is_accepted_with_one_warning_and_several_are_an_error(
    tree: Tree, caplog: pytest.LogCaptureFixture
) -> None:
    tree.put("ApiTypes/Open-AI-API", {"type": "x"})
    for _ in range(3):
        tree.now += 1
        assert config.load_api_type("Open-Ai-Api") == {"type": "x"}
    if not tells_capitals_apart(tree.root):
        assert not caplog.records
        return
    assert len(caplog.records) == 1
    assert "no ApiTypes/Open-Ai-Api.json; ApiTypes/Open-AI-API.json is used" in caplog.text
    tree.put("ApiTypes/open-ai-api", {"type": "y"})
    with pytest.raises(ConfigValueError, match="ApiTypes/Open-AI-API.json, ApiTypes/open-ai-api.json"):
        config.load_api_type("Open-Ai-Api")
    assert config.load_api_type("open-ai-api") == {"type": "y"}


def test_several_folders_that_differ_in_case_are_an_error(tree: Tree) -> None:
    tree.user(endpointConfigsSubDirectory="HOME")
    tree.put("Endpoints/Home/E", {})
    assert config.load_endpoint("E") == {}
    tree.put("Endpoints/home/E", {"maxContextTokenSize": 5})
    if not tells_capitals_apart(tree.root):
        assert config.load_endpoint("E") == {"maxContextTokenSize": 5}  # the same file, written anew
        return
    with pytest.raises(ConfigValueError, match="Endpoints/Home, Endpoints/home"):
        config.load_endpoint("E")


def test_the_probe_for_an_endpoint_as_preset(tree: Tree) -> None:
    tree.user()
    tree.put("Endpoints/E", {"presetSamplers": {"temperature": 1}})
    tree.put("Endpoints/Bare", {"presetSamplers": {}})
    tree.put("Endpoints/sub/E", {"presetSamplers": {"temperature": 1}})
    assert config.endpoint_exists_with_samplers("E") == {"presetSamplers": {"temperature": 1}}
    for name in ("Bare", "None", "sub/E", "../Endpoints/E", "", None, 5):
        assert config.endpoint_exists_with_samplers(name) is None


@pytest.mark.parametrize("name", ["../Users/ann", "/etc/passwd", "C:\\x", "a\0b", "", "  ", None, 7, ["x"]])
def test_names_that_lead_out_or_mean_nothing(tree: Tree, name: Any) -> None:
    tree.user()
    for load in (
        config.load_endpoint,
        config.load_api_type,
        config.load_prompt_template,
        config.load_routing,
        config.load_workflow,
        lambda wanted: config.find_preset(wanted, "T"),
    ):
        with pytest.raises(ConfigValueError):
            load(name)
    with pytest.raises(ConfigValueError):
        config.load_workflow("x", folder_override="../Users")


def test_syntax_errors_name_file_line_and_column(tree: Tree) -> None:
    tree.user()
    tree.put("Endpoints/E", '{\n "a": 1\n "b": 2}')
    with pytest.raises(ConfigSyntaxError) as caught:
        config.load_endpoint("E")
    assert str(caught.value).startswith("Endpoints/E.json, line 3, column 2: not valid JSON")


def test_a_routing_file_that_breaks_keeps_working(tree: Tree, caplog: pytest.LogCaptureFixture) -> None:
    tree.put("Routing/R", {"B": {"description": "b", "workflow": "W"}, "A": {"description": "a", "workflow": "V"}})
    assert list(config.load_routing("R")) == ["B", "A"]
    tree.put("Routing/R", "{")
    assert list(config.load_routing("R")) == ["B", "A"]
    assert "Routing/R.json, line 1" in caplog.text


@pytest.mark.parametrize(
    ("entry", "key"),
    [
        ({"workflow": "W"}, "description"),
        ({"description": "d"}, "workflow"),
        ("W", "description"),
        ({"description": "d", "workflow": 3}, "workflow"),
    ],
)
def test_routing_needs_both_keys(tree: Tree, entry: Any, key: str) -> None:
    tree.put("Routing/R", {"A": entry})
    with pytest.raises(ConfigValueError) as caught:
        config.load_routing("R")
    assert (caught.value.file, caught.value.json_path) == ("Routing/R.json", f"A.{key}")


# -- workflows ---------------------------------------------------------------------------------------------------------


def test_a_workflow_is_split_into_nodes_and_variables(tree: Tree) -> None:
    tree.user()
    tree.put("Workflows/ann/Flow", {"tone": "dry", "nodes": [{"type": "Standard"}]})
    tree.put("Workflows/ann/Legacy", [{"type": "Standard"}])
    tree.put("Workflows/ann/Empty", {"x": 1})
    loaded = config.load_workflow("Flow")
    assert (loaded.name, loaded.folder, loaded.display) == ("Flow", "ann", "Workflows/ann/Flow.json")
    assert loaded.path == str(tree.root / "Workflows" / "ann" / "Flow.json")
    assert (loaded.nodes, loaded.variables) == ([{"type": "Standard"}], {"tone": "dry"})
    assert config.load_workflow("Flow").nodes is loaded.nodes
    legacy, empty = config.load_workflow("Legacy"), config.load_workflow("Empty")
    assert (legacy.nodes, legacy.variables) == ([{"type": "Standard"}], {})
    assert (empty.nodes, empty.variables) == ([], {"x": 1})


@pytest.mark.parametrize(
    ("data", "path"),
    [("3", ""), ({"nodes": {}}, "nodes"), ({"nodes": None}, "nodes"), ({"nodes": [{}, "x"]}, "nodes[1]"), ([3], "[0]")],
)
def test_workflows_of_the_wrong_shape(tree: Tree, data: Any, path: str) -> None:
    tree.user()
    tree.put("Workflows/ann/Flow", data)
    with pytest.raises(ConfigValueError) as caught:
        config.load_workflow("Flow")
    assert (caught.value.file, caught.value.json_path) == ("Workflows/ann/Flow.json", path)


def test_override_folder_then_the_bare_one_per_file(tree: Tree) -> None:
    tree.user(workflowConfigsSubDirectoryOverride="coding")
    tree.put("Workflows/coding/A", [])
    tree.put("Workflows/coding/B", [])
    tree.put("Workflows/_overrides/coding/A", [])
    tree.put("Workflows/ann/C", [])
    assert config.load_workflow("A").folder == "_overrides/coding"
    assert config.load_workflow("B").folder == "coding"
    with pytest.raises(ConfigNotFoundError) as caught:
        config.load_workflow("C")
    assert caught.value.tried == ["Workflows/_overrides/coding/C.json", "Workflows/coding/C.json"]


def test_a_child_is_found_beside_its_caller_if_the_user_has_none(tree: Tree) -> None:
    tree.user()
    tree.put("Workflows/_shared/greet/_DefaultWorkflow", [])
    tree.put("Workflows/_shared/greet/parts/Child", [])
    parent = config.load_workflow("_DefaultWorkflow", folder_override="_shared/greet")
    assert parent.folder == "_shared/greet"
    child = config.load_workflow("parts/Child", calling_folder=parent.folder)
    assert child.folder == "_shared/greet"
    assert child.display == "Workflows/_shared/greet/parts/Child.json"
    tree.put("Workflows/ann/parts/Child", [])
    assert config.load_workflow("parts/Child", calling_folder=parent.folder).folder == "ann"
    with pytest.raises(ConfigNotFoundError) as caught:
        config.load_workflow("Child", folder_override="_common", calling_folder=parent.folder)
    assert caught.value.tried == ["Workflows/_common/Child.json"]


# -- shared workflows --------------------------------------------------------------------------------------------------


def test_what_can_be_selected_and_what_is_listed(tree: Tree) -> None:
    tree.user(allowSharedWorkflows=True)
    for name in (
        "greet/_DefaultWorkflow",
        "_hidden/_DefaultWorkflow",
        "b/_DefaultWorkflow",
        "b",
        "empty/Other",
        "flat",
        "_flat",
    ):
        tree.put(f"Workflows/_shared/{name}", [])
    assert config.list_shared_workflows() == ["b", "flat", "greet"]
    assert config.model_ids() == ["ann:b", "ann:flat", "ann:greet"]
    for name in ("greet", "_hidden", "empty", "flat", "_flat", "b"):
        assert config.shared_selection_exists(name)
    for name in ("nope", "../../y", "greet/x", "", ".", "..", None, 5, "a\0b", "\ud800", "gpt-4", "flat.json"):
        assert not config.shared_selection_exists(name)
    assert config.shared_selection("greet") == ("_DefaultWorkflow", "_shared/greet")
    assert config.shared_selection("b") == ("_DefaultWorkflow", "_shared/b")
    assert config.shared_selection("flat") == ("flat", "_shared")
    assert config.load_workflow(*config.shared_selection("flat") or ("", "")).display == "Workflows/_shared/flat.json"


def test_a_file_beside_a_folder_of_what_it_calls_can_be_selected(tree: Tree) -> None:
    tree.user(allowSharedWorkflows=True)
    tree.put("Workflows/_shared/coding", [])
    tree.put("Workflows/_shared/coding/Steps", [])
    assert config.model_ids() == ["ann:coding"]
    assert config.shared_selection("coding") == ("coding", "_shared")
    assert config.shared_selection_exists("coding")


def test_listing_is_gated_but_selection_is_not(tree: Tree) -> None:
    tree.user()
    tree.put("Workflows/_shared/greet/_DefaultWorkflow", [])
    assert config.model_ids() == ["ann"]
    assert config.shared_selection_exists("greet")


def test_listing_of_an_empty_or_missing_shared_folder(tree: Tree) -> None:
    tree.user(allowSharedWorkflows=True)
    assert config.model_ids() == ["ann"]
    (tree.root / "Workflows" / "_shared").mkdir(parents=True)
    tree.now += 1
    assert config.model_ids() == ["ann"]


@pytest.mark.parametrize("folder", [5, ["x"], "../x", "/abs"])
def test_a_bad_shared_folder_of_one_user_hides_no_other(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, folder: Any
) -> None:
    monkeypatch.setattr(instance, "USERS", ["bob", "ann"])
    tree.user("ann", allowSharedWorkflows=True)
    tree.user("bob", allowSharedWorkflows=True, sharedWorkflowsSubDirectoryOverride=folder)
    tree.put("Workflows/_shared/greet/_DefaultWorkflow", [])
    with caplog.at_level(logging.WARNING):
        assert config.model_ids() == ["bob", "ann:greet"]
    assert "The models of user bob cannot be listed: Users/bob.json: sharedWorkflowsSubDirectoryOverride" in caplog.text
    with pytest.raises(ConfigValueError, match="Users/bob.json: sharedWorkflowsSubDirectoryOverride") as caught:
        config.shared_selection("greet", "bob")
    assert caught.value.file == "Users/bob.json"


def test_each_user_has_an_own_shared_folder(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(instance, "USERS", ["bob", "ann", "ghost"])
    tree.user("ann", allowSharedWorkflows=True)
    tree.user("bob", allowSharedWorkflows=True, sharedWorkflowsSubDirectoryOverride="_bobs/own")
    tree.put("Workflows/_shared/greet/_DefaultWorkflow", [])
    tree.put("Workflows/_bobs/own/z/_DefaultWorkflow", [])
    tree.put("Workflows/_bobs/own/a/_DefaultWorkflow", [])
    with caplog.at_level(logging.WARNING):
        assert config.model_ids() == ["bob:a", "bob:z", "ann:greet", "ghost"]
    assert "ghost" in caplog.text
    assert config.shared_workflow_folder("bob") == "_bobs/own"
    assert config.shared_selection_exists("z", "bob") and not config.shared_selection_exists("z", "ann")
    with request_scope(RequestContext(user="bob")):
        assert config.shared_selection("a") == ("_DefaultWorkflow", "_bobs/own/a")


def test_a_new_shared_folder_can_be_selected_a_second_later(tree: Tree) -> None:
    tree.user()
    tree.put("Workflows/_shared/greet/_DefaultWorkflow", [])
    assert not config.shared_selection_exists("late")
    tree.put("Workflows/_shared/late/_DefaultWorkflow", [])
    assert config.shared_selection_exists("late")


# -- schemas for answers ---------------------------------------------------------------------------------------------


def test_schema_in_the_user_folder_then_in_the_root(tree: Tree) -> None:
    tree.user()
    tree.put("StructuredOutputs/S", {"from": "root"})
    assert config.load_structured_output("S") == {"from": "root"}
    tree.put("StructuredOutputs/ann/S", {"from": "user"})
    assert config.load_structured_output("S") == {"from": "user"}
    tree.user(structuredOutputConfigsSubDirectory="home/deep")
    assert config.load_structured_output("S") == {"from": "root"}
    tree.put("StructuredOutputs/home/deep/S", {"from": "override"})
    assert config.load_structured_output("S") == {"from": "override"}
    with pytest.raises(ConfigNotFoundError) as caught:
        config.load_structured_output("Q")
    assert caught.value.tried == ["StructuredOutputs/home/deep/Q.json", "StructuredOutputs/Q.json"]
    with pytest.raises(ConfigNotFoundError, match="Did you mean 'Mood'"):
        tree.put("StructuredOutputs/Mood", {"type": "object"})
        config.load_structured_output("Mod")


@pytest.mark.parametrize("name", ["", " ", ".", "..", "a/b", "ann/S", "a\\b", "C:S", "/S", "../S", "a\0b", None, 5])
def test_a_schema_name_is_one_path_component(tree: Tree, name: Any) -> None:
    tree.user()
    tree.put("StructuredOutputs/ann/S", {"type": "object"})
    tree.put("StructuredOutputs/a/b", {"type": "object"})
    with pytest.raises(ConfigValueError) as caught:
        config.load_structured_output(name)
    assert caught.value.json_path == "structuredOutputFile"


@pytest.mark.parametrize("content", ["{}", "[]", "null", "3", '"text"', '[{"type": "object"}]', "{oops"])
def test_a_schema_is_an_object_that_says_something(tree: Tree, content: str) -> None:
    tree.user()
    tree.put("StructuredOutputs/S", content)
    with pytest.raises(ValueError, match="StructuredOutputs/S.json"):
        config.load_structured_output("S")
