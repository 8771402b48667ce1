"""The dialogs Replay run and Compare with, opened from One run, with scripted answers of the API."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from Tests.console.scripted_runs import LATER, RUN, run_answer
from Tests.console.scripted_server import Failure, ScriptedServer, World

ADDRESS = f"runs/{RUN['id']}/replay"
NODES = [
    {
        "workflow": "Coding",
        "node": 1,
        "occurrence": 1,
        "title": "Analyse",
        "type": "Standard",
        "acts": "no",
        "recorded": True,
        "name": "Analyse",
        "stands_in": False,
    },
    {
        "workflow": "Coding",
        "node": 2,
        "occurrence": 2,
        "title": "Remember",
        "type": "QualityMemory",
        "acts": "writes",
        "recorded": True,
        "name": "Remember",
        "stands_in": True,
    },
    {
        "workflow": "Coding",
        "node": 3,
        "occurrence": 1,
        "title": "Fetch",
        "type": "WebFetch",
        "acts": "outside",
        "recorded": False,
        "name": "Fetch",
        "stands_in": True,
    },
]


def opened(page: Page, scripted: ScriptedServer, answer: object) -> World:
    runs = {"runs": [LATER, RUN], "next": None, "total": 2, "event": 1}
    scripted.world.script(
        {
            ("GET", f"runs/{RUN['id']}"): run_answer(),
            ("GET", f"runs/{LATER['id']}"): run_answer(LATER),
            ("GET", ADDRESS): {"nodes": NODES},
            ("POST", ADDRESS): answer,
            ("GET", "runs"): runs,
            ("GET", f"compare/{RUN['id']}/{LATER['id']}"): {"a": RUN, "b": LATER, "steps": [], "configuration": []},
        }
    )
    page.goto(f"{scripted.url}#/runs/{RUN['id']}")
    return scripted.world


def test_a_replay_starts_where_it_is_told_to(page: Page, scripted: ScriptedServer) -> None:
    answers = [Failure(409, "The node 'Fetch' was not recorded.", "Fetch"), {"id": LATER["id"]}]
    api = opened(page, scripted, lambda _: answers.pop(0))
    page.get_by_role("toolbar", name="Run actions").get_by_role("button", name="Replay").click()
    dialog = page.get_by_role("dialog", name="Replay run")
    expect(dialog.get_by_role("radio", name="From the beginning")).to_be_checked()
    expect(dialog.get_by_role("combobox", name="Start at")).to_be_disabled()
    also = dialog.get_by_role("group", name="Also run")
    expect(also.get_by_role("checkbox")).to_have_count(2)
    expect(also).to_contain_text("was not recorded")

    dialog.get_by_role("radio", name="From a node").check()
    dialog.get_by_role("combobox", name="Start at").select_option(label="Coding, 2 Remember, time 2")
    dialog.get_by_role("button", name="Start").click()
    expect(dialog.get_by_role("alert")).to_contain_text("The node 'Fetch' was not recorded.")
    also.get_by_role("checkbox", name="Fetch").check()
    dialog.get_by_role("button", name="Start").click()
    expect(page.get_by_role("heading", name="Run 77b0e5d2", level=1)).to_be_visible()
    start = {"workflow": "Coding", "node": 2, "occurrence": 2}
    assert api.sent("POST", ADDRESS) == [{"from": start, "also": []}, {"from": start, "also": ["Fetch"]}]


def test_the_beginning_is_null_and_escape_closes(page: Page, scripted: ScriptedServer) -> None:
    api = opened(page, scripted, {"id": LATER["id"]})
    button = page.get_by_role("toolbar", name="Run actions").get_by_role("button", name="Replay")
    button.click()
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(button).to_be_focused()
    button.click()
    page.get_by_role("dialog").get_by_role("button", name="Start").click()
    expect(page.get_by_role("heading", name="Run 77b0e5d2", level=1)).to_be_visible()
    assert api.sent("POST", ADDRESS) == [{"from": None, "also": []}]


def test_another_run_is_chosen_to_compare_with(page: Page, scripted: ScriptedServer) -> None:
    opened(page, scripted, None)
    page.get_by_role("button", name="Compare with...").click()
    page.get_by_role("dialog", name="Compare with").get_by_role("button", name="Run 77b0e5d2").click()
    expect(page.get_by_role("heading", name="Compare runs", level=1)).to_be_visible()
