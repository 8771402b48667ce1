"""The outside of the program: the engine asks each member where it counts, and knows of no other outside than this."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.exceptions import ConfigValueError
from Middleware.llmapis.api_keys import resolve_api_key
from Middleware.llmapis.call_turns import turn_for
from Middleware.llmapis.failover import find_location
from Middleware.models import process
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.outside import REAL, Outside
from Middleware.models.request_context import RequestContext, current_outside, request_scope
from Middleware.utilities import config_utils
from Middleware.utilities.discussions.discussion_folder import DiscussionFolders, stored_discussion
from Middleware.workflows.tools.file_containment import contained_path
from Tests.integration.launcher import PROJECT
from Tests.stub_backend import StubBackend, chat_reply
from Tests.tables import table
from Tests.workflows.engine_lab import EngineLab, llm, static

ADD_ONS = "Middleware/addons/"


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineLab]:
    monkeypatch.setattr(process, "_process", process.Process())
    real = socket.getaddrinfo
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda host, *rest, **options: real("127.0.0.1" if host == "some.host" else host, *rest, **options),
    )
    with StubBackend() as backend:
        yield EngineLab(tmp_path / "configs", monkeypatch, backend)


class OtherFolders(DiscussionFolders):
    def state(self, discussion_id: str, *keys: object) -> Any:
        return "elsewhere"


class OtherLlm:
    def __init__(self, handler: Any) -> None:
        self.outcome, self.settings = handler.outcome, handler.settings

    def handle_non_streaming(self, prompt: object) -> str:
        return "elsewhere"


class Replaced(Outside):
    """Each member differs from the real one."""

    discussions_root, locks_root = "/elsewhere/discussions", "/elsewhere/locks"
    calls_servers = remembers = paced = False

    def run_node(self, handle: Callable[[Any], object], context: Any) -> object:
        return handle(context) if context.node_type == "StaticResponse" else "elsewhere"

    def caller(self, handler: Any) -> Any:
        return OtherLlm(handler)

    def discussions(self, stored: Any) -> Any:
        return OtherFolders()

    def path(self, path: str) -> str:
        return f"/elsewhere{path}"


def turn(lab: EngineLab) -> bool:
    return turn_for("Main", {"endpoint": "http://127.0.0.1:1", "parallelCalls": 1}, CancelScope()) is not None


def key(lab: EngineLab) -> bool:
    try:
        return bool(resolve_api_key("env:WILMER_TEST_NO_SUCH_KEY", "Endpoints/Main.json"))
    except ConfigValueError:
        return True


def asked_for_a_choice(lab: EngineLab) -> int:
    lab.backend.responder = lambda request: chat_reply("A")
    for _ in range(2):
        assert lab.run([llm("Which?", answerChoices=["A", "B"], rememberChoice=True)]) == "A"
    return len(lab.backend.requests)


def pauses(lab: EngineLab) -> bool:
    return not all(chunk.get("more") for chunk in lab.chunks([static("one two")]) if chunk["token"])


def in_the_answer(lab: EngineLab) -> object:
    return lab.run([llm("ask")])


MEMBERS: dict[str, tuple[Callable[[EngineLab], object], object, object]] = {
    "run_node": (in_the_answer, "<ask>", "elsewhere"),
    "caller": (in_the_answer, "<ask>", "elsewhere"),
    "calls_servers": (
        lambda lab: (turn(lab), key(lab), find_location("http://some.host", None)),
        (True, True, "local"),
        (False, False, "unknown"),
    ),
    "discussions": (lambda lab: stored_discussion("d") == "elsewhere", False, True),
    "discussions_root": (
        lambda lab: config_utils.get_discussions_root_directory() == "/elsewhere/discussions",
        False,
        True,
    ),
    "locks_root": (lambda lab: config_utils.get_lock_database_directory() == "/elsewhere/locks", False, True),
    "remembers": (asked_for_a_choice, 1, 2),
    "path": (lambda lab: contained_path("/a", "filepath", "t"), "/a", "/elsewhere/a"),
    "paced": (pauses, True, False),
}


def only(name: str) -> Outside:
    """The outside with one other member."""
    return type(name, (Outside,), {name: vars(Replaced)[name]})()


@table("name", sorted(MEMBERS))
def test_each_member_is_asked(lab: EngineLab, name: str) -> None:
    look, real, other = MEMBERS[name]
    with request_scope(lab.request):
        assert look(lab) == real
        lab.request.outside = only(name)
        lab.backend.requests.clear()
        assert look(lab) == other


def test_each_member_has_a_row() -> None:
    assert MEMBERS.keys() == {name for name in vars(Outside) if not name.startswith("_")}


def test_the_outside_of_a_client_is_real() -> None:
    assert RequestContext().outside is REAL is current_outside()
    with request_scope(RequestContext(outside=(other := Replaced()))):
        assert current_outside() is other
    assert current_outside() is REAL


def test_the_core_knows_no_other_outside() -> None:
    """Neither by name, nor by the question whether there is another."""
    known = re.compile(r"\w*trial\w*|scripted_\w+|outside(\(\))? is |isinstance\([^)]*outside", re.IGNORECASE)
    found = {
        f"{name}: {match.group()}"
        for path in sorted((PROJECT / "Middleware").rglob("*.py"))
        if not (name := path.relative_to(PROJECT).as_posix()).startswith(ADD_ONS)
        for match in known.finditer(path.read_text(encoding="utf-8"))
    }
    assert not found
