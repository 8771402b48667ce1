"""Names from outside, given to everything that looks up a file by name: nothing is found, read or made elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from Middleware.common import instance_global_variables as instance
from Middleware.exceptions import ConfigurationError
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.utilities import config_utils
from Middleware.utilities.discussions.discussion_folder import DiscussionFolder
from Middleware.utilities.files import path_utils
from Tests.corpora import cases, texts_of
from Tests.llmapis.lab import Lab

LOOK_UPS: dict[str, Callable[[str], Any]] = {
    "endpoint": config_utils.load_endpoint,
    "API type": config_utils.load_api_type,
    "template": config_utils.load_prompt_template,
    "routing": config_utils.load_routing,
    "preset": lambda name: config_utils.find_preset(name, "Chat"),
    "preset type": lambda name: config_utils.find_preset("decoy", name),
    "schema": config_utils.load_structured_output,
    "MCP server": config_utils.load_mcp_server,
    "workflow": config_utils.load_workflow,
    "workflow's folder": lambda name: config_utils.load_workflow("decoy", name),
    "settings": config_utils.load_settings_file,
    "user": config_utils.get_user_config_for,
    "configuration file": lambda name: config_utils.load_config(config_utils.get_config_path("Endpoints", name)),
}
DECOYS = ("evil", "passwd", "x", "a", "b", "d1", "link", "host", "share", "stream", "decoy")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration without a file of any such name, in folders full of them."""
    root = tmp_path_factory.mktemp("names") / "deep" / "deeper"
    for folder in (root, root.parent, root.parent.parent, root / "Configs", root / "evil"):
        folder.mkdir(parents=True, exist_ok=True)
        for name in DECOYS:
            (folder / f"{name}.json").write_text(json.dumps({"decoy": True}), encoding="utf-8")
    return root


@pytest.fixture
def lab(tree: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    monkeypatch.chdir(tree)
    monkeypatch.setattr(instance, "DISCUSSION_DIRECTORY", str(tree / "Discussions"))
    return Lab(tree / "Configs", monkeypatch)


def everything(folder: Path) -> set[Path]:
    return set(folder.parent.parent.rglob("*"))


@pytest.mark.parametrize("kind", LOOK_UPS)
def test_no_name_finds_a_file_elsewhere(lab: Lab, tree: Path, kind: str) -> None:
    before = everything(tree)
    with request_scope(RequestContext()):
        for name in texts_of("traversal_names"):
            with pytest.raises(ConfigurationError):
                LOOK_UPS[kind](name)
    assert everything(tree) == before


def test_no_model_name_selects_a_workflow_elsewhere(lab: Lab) -> None:
    with request_scope(RequestContext()):
        assert [name for name in texts_of("traversal_names") if config_utils.shared_selection(name)] == []


@pytest.mark.parametrize("entry", cases("traversal_names"))
def test_no_discussion_lies_elsewhere(
    lab: Lab, tree: Path, monkeypatch: pytest.MonkeyPatch, entry: dict[str, Any]
) -> None:
    monkeypatch.setattr(path_utils, "WINDOWS", False)
    if not entry["flat"]:
        with pytest.raises(ValueError, match="discussion id"):
            DiscussionFolder(entry["input"])
        return
    with request_scope(RequestContext()):
        folder = Path(DiscussionFolder(entry["input"]).plain_file("memories.json")).parent
    assert folder.parent == tree / "Discussions" and folder.name == entry["input"]
