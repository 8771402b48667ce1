"""Run files are opened in the browser, and never sent."""

from __future__ import annotations

import base64
import json

import pytest
from playwright.sync_api import Page, expect

from Tests.console.scripted_runs import RUN, spans
from Tests.console.scripted_server import ScriptedServer, World

RUN_FILE = {"format": "wilmer-run/1", "run": RUN, "spans": spans(), "texts": None}
DROP = """content => {
  const carried = new DataTransfer();
  carried.items.add(new File([atob(content)], "run.json", { type: "application/json" }));
  for (const type of ["dragover", "drop"]) {
    document.body.dispatchEvent(new DragEvent(type, { dataTransfer: carried, bubbles: true, cancelable: true }));
  }
}"""


@pytest.fixture
def api(page: Page, scripted: ScriptedServer) -> World:
    runs = {"runs": [], "next": None, "total": 0, "event": 1, "choices": {"workflow": [], "endpoint": [], "user": []}}
    scripted.world.script({("GET", "runs"): runs})
    page.goto(f"{scripted.url}#/runs")
    return scripted.world


def choose(page: Page, content: object) -> None:
    text = content if isinstance(content, str) else json.dumps(content)
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Open run file").click()
    chooser.value.set_files({"name": "run.json", "mimeType": "application/json", "buffer": text.encode()})


def test_a_chosen_and_a_dropped_file_show_the_run(page: Page, api: World) -> None:
    choose(page, RUN_FILE)
    expect(page.get_by_role("heading", name="Run 3f2a91c0", level=1)).to_be_visible()
    tree = page.get_by_role("tree", name="Timeline")
    expect(tree.get_by_role("treeitem", name="Analyse, Standard, 3.0 s, ok")).to_be_visible()
    expect(page.get_by_text("run.json")).to_be_visible()
    other = {**RUN_FILE, "run": {**RUN, "id": "0123456789abcdef"}}
    page.evaluate(DROP, base64.b64encode(json.dumps(other).encode()).decode())
    expect(page.get_by_role("heading", name="Run 01234567", level=1)).to_be_visible()
    # Whether the list came as far as following the events is a matter of time.
    assert {where.partition("?")[0] for _, where in api.calls} <= {"session", "events", "runs"}


LATE = RUN["started"] + 70_000_000


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"stream": False, "answered": LATE, "ended": LATE}, True),
        ({"stream": False, "status": "running", "answered": None, "ended": None}, True),
        ({"stream": False, "answered": RUN["started"] + 9_000_000}, False),
        ({"stream": True, "answered": LATE, "ended": LATE}, False),
        ({"stream": False, "kind": "replay", "answered": LATE, "ended": LATE}, False),
    ],
    ids=["long", "unfinished", "short", "streamed", "replay"],
)
def test_a_client_that_waits_in_silence_is_told_of(
    page: Page, api: World, changes: dict[str, object], shown: bool
) -> None:
    choose(page, {**RUN_FILE, "run": {**RUN, **changes}})
    region = page.get_by_role("region", name="Why it took this long")
    expect(region).to_be_visible()
    expect(region.get_by_text("Let the client stream.")).to_have_count(int(shown))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("no JSON", "is not JSON"),
        ({"format": "wilmer-run/2"}, "its format is wilmer-run/2, expected wilmer-run/1"),
        ({"nodes": []}, 'it has no "format"'),
        ({**RUN_FILE, "run": {}}, "its run has no id"),
        ({**RUN_FILE, "spans": [[1, 2]]}, "span 1 is not a list"),
    ],
)
def test_another_file_says_what_is_wrong_with_it(page: Page, api: World, content: object, words: str) -> None:
    choose(page, content)
    expect(page.get_by_role("alert")).to_contain_text(words)


NODE = [1, None, "node", "N", 0, 5, "ok", {}, {}]
# With each id eight times, a tree of copies has a million rows.
CHAIN = [[number, number - 1 or None, "node", "N", number, 5, "ok", {}, {}] for number in range(1, 8)]
DEEP = [[number, number - 1 or None, "node", "N", number, 5, "ok", {}, {}] for number in range(1, 30_000)]


def test_no_hostile_file_leaves_a_blank_page(page: Page, api: World) -> None:
    """A part of another kind than expected is shown or named, and the next file is shown as ever."""
    changes: list[dict[str, object]] = [
        {"endpoints": None},
        {"endpoints": 7},
        {"endpoints": {"length": 3}},
        {"config": 7},
        {"config": [None]},
        {"status": {"a": 1}},
        {"route": {"type": "script", "props": {}}},
        {"status": None, "ended": "x", "answered": []},
        {"id": "\ud800<img src=x>", "question": ["a"], "note": {"a": 1}},
        {"started": 1e308, "ended": -1e308},
        {"origin": 5, "kind": None, "client": {}},
    ]
    files: list[dict[str, object]] = [{**RUN_FILE, "run": {**RUN, **change}} for change in changes]
    files += [
        {**RUN_FILE, "spans": rows}
        for rows in (
            [NODE, NODE],
            [[1, 2, *NODE[2:]], [2, 1, *NODE[2:]]],
            [[1, 1, *NODE[2:]]],
            [[*NODE[:7], ["x"], 5]],
            [[*NODE[:7], {"node.title": {"a": 1}, "node.index": []}, {"output": {"a": [1]}}]],
            [[1, None, "llm", "N", 0, 5, "ok", {"response.finish_reasons": 5}, {"payload": {"messages": 5}}]],
            [[1, None, "llm", "N", 0, 5, "ok", {}, {"payload": {"messages": [None, 5, {"content": {"a": 1}}]}}]],
            DEEP,
            CHAIN * 8,
        )
    ]
    files += [{**RUN_FILE, "texts": texts} for texts in (5, "x", {"1": 5}, [[]])]
    files += [
        {**RUN_FILE, "explanation": explanation} for explanation in (5, {"parts": 5}, {"text": {}, "parts": [None]})
    ]
    blank = []
    for number, file in enumerate(files):
        choose(page, file)
        try:
            shown = page.get_by_role("alert").or_(page.get_by_role("region", name="Summary"))
            expect(shown.first).to_be_visible()
            expect(page.get_by_role("heading", level=1)).to_be_visible()
        except AssertionError:
            blank.append((number, str(file)[:300]))
            page.reload()
        good = f"{number:04d}cafe01234567"
        choose(page, {**RUN_FILE, "run": {**RUN, "id": good}})
        expect(page.get_by_role("heading", name=f"Run {good[:8]}", level=1)).to_be_visible()
        page.goto(page.url.partition("#")[0] + "#/runs")
    assert not blank, blank


def test_a_hostile_address_is_copied_as_text(page: Page, api: World) -> None:
    """A button that fails would be an error of the page, which fails the test."""
    for number, address in enumerate((5, ["x"], {"replaceAll": 1}, None)):
        rows = spans()
        rows[3][7] = {"endpoint": "Main", "url.full": address}
        run_id = f"{number:04d}cafe01234567"
        choose(page, {**RUN_FILE, "spans": rows, "run": {**RUN, "id": run_id}})
        expect(page.get_by_role("heading", name=f"Run {run_id[:8]}", level=1)).to_be_visible()
        page.get_by_role("treeitem", name="Main").first.click()
        page.get_by_role("button", name="Copy as curl").click()
        said = page.get_by_text("Copied").or_(page.get_by_text("The browser does not allow it"))
        expect(said).to_be_visible()


def test_a_node_shows_what_its_tool_was_asked(page: Page, api: World) -> None:
    rows = [
        [0, None, "workflow", "Look", 0, 900, "ok", {"workflow.name": "Look"}, {}],
        [
            1,
            0,
            "node",
            "Fetch",
            0,
            500,
            "ok",
            {"node.index": 1, "node.type": "WebFetch", "node.title": "Fetch"},
            {"output": "a page"},
        ],
        [
            2,
            1,
            "tool",
            "WebFetch",
            0,
            400,
            "ok",
            {"tool.name": "WebFetch", "tool.type": "web"},
            {"arguments": {"method": "GET", "url": "https://a.example/?q=rock%20%26%20roll"}, "result": "a page"},
        ],
    ]
    choose(page, {**RUN_FILE, "spans": rows})
    page.get_by_role("treeitem", name="Fetch, WebFetch").click()
    details = page.get_by_role("region", name="Details")
    expect(details).to_contain_text("https://a.example/?q=rock%20%26%20roll")
    expect(details).to_contain_text("a page")
    expect(details.get_by_role("heading", level=3)).to_have_text(["arguments", "output"])
