"""The page Make a test with scripted answers of the API."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from Tests.console.scripted_runs import RUN, run_answer
from Tests.console.scripted_server import Failure, ScriptedServer, World

BASE = f"runs/{RUN['id']}/test"
PATH = "Workflows/me/Coding.test.json"


def made(body: dict[str, object]) -> dict[str, object]:
    return {"path": PATH, "file": json.dumps({"tests": [body]}, indent=2), "writable": True, "why": "", "unticked": []}


@pytest.fixture(autouse=True)
def editing(scripted: ScriptedServer) -> Iterator[None]:
    """An operator of a server that may be edited; a test may change that."""
    scripted.world.mode = "edit"
    yield
    scripted.world.role, scripted.world.mode = "operator", "on"


def opened(page: Page, scripted: ScriptedServer, made_test: object = made, **script: object) -> World:
    scripted.world.script(
        {
            ("GET", f"runs/{RUN['id']}"): run_answer(),
            ("POST", BASE): made_test,
            **{("POST", f"{BASE}/{name}"): answer for name, answer in script.items()},
        }
    )
    page.goto(f"{scripted.url}#/runs/{RUN['id']}/test")
    expect(page.get_by_role("textbox", name="Test file")).to_contain_text("Write a snake game")
    return scripted.world


def test_a_test_is_made_run_downloaded_and_saved(page: Page, scripted: ScriptedServer) -> None:
    reasons = [
        {"expectation": "expect.answer", "reason": "the time of day is in it"},
        {"expectation": "expect.prompts['Answer'].system", "reason": "the date is in it"},
    ]
    api = opened(
        page, scripted, run={"passed": True, "seconds": 0.12, "lines": [], "unticked": reasons}, save={"path": PATH}
    )
    ticked = {
        name: page.get_by_role("checkbox", name=name, exact=True).is_checked()
        for name in ("Route", "Order of nodes", "Answer", "Prompts", "Outputs", "Endpoints")
    }
    assert ticked == {
        "Route": True,
        "Order of nodes": True,
        "Answer": True,
        "Prompts": False,
        "Outputs": False,
        "Endpoints": False,
    }
    expect(page.get_by_text(PATH)).to_be_visible()

    page.get_by_role("textbox", name="Test name").fill("Snake")
    page.get_by_role("checkbox", name="Prompts").check()
    expect(page.get_by_role("textbox", name="Test file")).to_contain_text('"prompts"')
    wish = {"name": "Snake", "expect": ["route", "order", "answer", "prompts"]}
    page.get_by_role("button", name="Run the test").click()
    result = page.get_by_role("status", name="Test result")
    expect(result).to_have_text("passed in 0.1 s")
    assert api.sent("POST", f"{BASE}/run") == [wish]
    # What fails by itself is no longer expected, and says why.
    expect(page.get_by_role("checkbox", name="Answer", exact=True)).not_to_be_checked()
    expect(page.get_by_text("left out: the time of day is in it")).to_be_visible()
    # What is left out of a kind leaves the rest of it.
    expect(page.get_by_text("left out: prompts['Answer'].system, the date is in it")).to_be_visible()
    expect(page.get_by_role("checkbox", name="Prompts")).to_be_checked()

    with page.expect_download() as download:
        page.get_by_role("button", name="Download").click()
    assert download.value.suggested_filename == "Coding.test.json"
    assert '"Snake"' in download.value.path().read_text(encoding="utf-8")

    page.get_by_role("button", name="Save beside the workflow").click()
    expect(result).to_have_text(f"saved in {PATH}")
    assert api.sent("POST", f"{BASE}/save") == [{**wish, "without": [one["expectation"] for one in reasons]}]
    page.get_by_role("button", name="Run the test").click()
    expect(result).to_have_text("passed in 0.1 s")


def test_lines_of_the_runner_and_failures_are_shown(page: Page, scripted: ScriptedServer) -> None:
    runs = [{"passed": False, "seconds": 0.1, "lines": ["FAILED Snake", "  route: expected CODING"], "unticked": []}]
    opened(page, scripted, run=lambda _: runs.pop(0) if runs else Failure(504, "The runner took too long."))
    page.get_by_role("button", name="Run the test").click()
    expect(page.get_by_role("status", name="Test result")).to_contain_text("route: expected CODING")
    page.get_by_role("button", name="Run the test").click()
    expect(page.get_by_role("alert")).to_contain_text("The runner took too long.")


@pytest.mark.parametrize(
    ("role", "mode", "change", "why"),
    [
        ("operator", "on", {}, "start with --console edit"),
        ("own", "edit", {}, "signing in with the link"),
        (
            "operator",
            "edit",
            {"writable": False, "why": "The file has tests of another user."},
            "tests of another user",
        ),
    ],
)
def test_who_may_not_save_is_told_why(
    page: Page, scripted: ScriptedServer, role: str, mode: str, change: dict[str, object], why: str
) -> None:
    scripted.world.role, scripted.world.mode = role, mode
    opened(page, scripted, lambda body: {**made(body), **change})
    expect(page.get_by_text(why)).to_be_visible()
    expect(page.get_by_role("button", name="Save beside the workflow")).to_be_disabled()
