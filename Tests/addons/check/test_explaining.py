"""What the log says when a request fails before it reaches a workflow: where the mistake is, once."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from Middleware.addons.check.load_check import LoadCheck, check_named
from Middleware.addons.check.lookups import Lookups
from Middleware.common import instance_global_variables as instance
from Middleware.exceptions import ConfigurationError
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.utilities.config.lookup import reset_config_store
from Middleware.utilities.config.store import config_store
from Tests.addons.check.checking import without_excerpts

USER, ROUTES, MAIN = "Users/ann.json", "Routing/routes.json", "Workflows/ann/Main.json"
GOOD = {
    "Users/_current-user.json": '{"currentUser": "ann"}',
    USER: '{\n "routingConfig": "routes",\n "categorizationWorkflow": "Main"\n}',
    ROUTES: '{"A": {"description": "all",\n "workflow": "Main"}}',
    MAIN: '{"nodes": [{"type": "StaticResponse", "content": "A"}]}',
}


class Tree:
    """A configuration with a clock, and the lines that were logged about it."""

    def __init__(self, root: Path, caplog: pytest.LogCaptureFixture) -> None:
        self.root, self.now, self._caplog = root, 0.0, caplog
        self.check = LoadCheck()
        for path, text in GOOD.items():
            self.write(path, text)

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        self.now += 1.5

    def explained(self, file: str = "") -> list[str]:
        """What is logged when a request fails."""
        self._caplog.clear()
        with request_scope(RequestContext(request_id="r")):
            self.check.configuration_failed(ConfigurationError("broken", file=file))
        return [line.strip() for record in self._caplog.records for line in without_excerpts(record.getMessage())]


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[Tree]:
    monkeypatch.setattr(instance, "CONFIG_DIRECTORY", str(tmp_path))
    monkeypatch.setattr(instance, "USERS", None)
    caplog.set_level(logging.INFO, "Middleware.addons.check")
    reset_config_store()
    found = Tree(tmp_path, caplog)
    monkeypatch.setattr(config_store(), "clock", lambda: found.now)
    yield found
    reset_config_store()


def test_nothing_is_said_about_what_is_right(tree: Tree) -> None:
    assert tree.explained() == tree.explained(MAIN) == tree.explained("Workflows/ann/None.json") == []


@pytest.mark.parametrize(
    ("path", "text", "line"),
    [
        (
            USER,
            GOOD[USER].replace("routes", "route"),
            "error    routingConfig (line 2): routing configuration "
            "'route' does not exist. Looked for: Routing/route.json. Did you mean 'routes'?",
        ),
        (
            ROUTES,
            '{"A": {"workflow": "Main"}}',
            "error    A (line 1): the key 'description' is missing. Expected: What "
            "belongs to the category; the model that chooses sees this text.",
        ),
        (
            ROUTES,
            '{"A": {"description": "all",\n "workflow": "Mian"}}',
            "error    A.workflow (line 2): workflow 'Mian' "
            "does not exist. Looked for: Workflows/ann/Mian.json. Did you mean 'Main'?",
        ),
        (MAIN, '{\n"nodes": 5}', "error    nodes (line 2): 'nodes' must be a list, not 5"),
        (
            "Users/_current-user.json",
            '{"currentUser": "anna"}',
            "error    currentUser (line 1): user 'anna' does not exist. Did you mean 'ann'?",
        ),
    ],
)
def test_a_mistake_is_told_once_per_version(tree: Tree, path: str, text: str, line: str) -> None:
    tree.write(path, text)
    assert tree.explained() == [f"{'Workflow ann/Main' if path == MAIN else path}: 1 thing to look at", line]
    tree.now += 2
    assert tree.explained() == []
    tree.write(path, GOOD[path])
    assert tree.explained() == []
    tree.write(path, text + " ")
    assert tree.explained()[1:] == [line]


def test_what_keeps_every_request_from_starting(tree: Tree) -> None:
    tree.write(USER, '{"routngConfig": "routes"}')
    found = tree.explained()
    assert found[0] == f"{USER}: 1 thing to look at"
    assert "no workflow to run" in found[1] and "'routingConfig'" in found[1]


def test_the_file_that_the_failure_names(tree: Tree) -> None:
    tree.write("Workflows/_shared/S.json", '{"nodes": [5]}')
    assert tree.explained() == []
    assert tree.explained("Workflows/_shared/S.json")[1:] == [
        "error    nodes[0] (line 1): a node must be an object, not 5"
    ]


def test_what_the_operator_was_told_is_not_told_again(tree: Tree) -> None:
    tree.write(USER, GOOD[USER].replace("routes", "route"))
    with request_scope(RequestContext(request_id="check")):
        told = check_named(USER, "user", Lookups(), "")
    tree.check.remember("ann", told, {})
    assert len(told) == 1
    assert tree.explained() == []


def test_a_mistake_that_another_file_completes_is_noticed(tree: Tree) -> None:
    """The routing file stays as it is; the workflow that it names goes."""
    assert tree.explained() == []
    (tree.root / MAIN).rename(tree.root / "Workflows/ann/Mainly.json")
    tree.now += 2
    assert any("A.workflow (line 2)" in line and "Did you mean 'Mainly'?" in line for line in tree.explained())


def test_a_user_file_that_was_never_readable(tree: Tree) -> None:
    tree.write(USER, '{"routingConfig": }')
    assert tree.explained(USER) == [
        f"{USER}: 1 thing to look at",
        "error    the file (line 1): not valid JSON: the key has no value",
    ]
    assert tree.explained(USER) == []
