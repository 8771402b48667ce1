"""The page Compare runs with scripted answers of the API."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from Tests.console.scripted_runs import LATER, RUN, SECOND
from Tests.console.scripted_server import ScriptedServer, World

ADDRESS = f"compare/{RUN['id']}/{LATER['id']}"


def side(span: int, us: int = SECOND) -> dict[str, object]:
    return {"span": span, "us": us, "tokens_in": 4096, "tokens_out": 97}


STEPS = [
    {"workflow": "Coding", "node": 1, "occurrence": 1, "title": "Analyse", "a": side(2), "b": side(2), "text": "same"},
    {"workflow": "Coding", "node": 2, "occurrence": 1, "title": "Check it", "a": None, "b": side(5), "text": None},
    {
        "workflow": "Coding",
        "node": 3,
        "occurrence": 1,
        "title": "Answer",
        "a": side(8, 2 * SECOND),
        "b": side(9),
        "text": "changed",
    },
]
CHANGES = [
    {"path": "Workflows/me/Coding.json", "change": "changed", "before": '{"nodes": 2}', "after": '{"nodes": 3}'},
    {"path": "Presets/Fast.json", "change": "new", "before": None, "after": "{}"},
    # As one who is no operator gets it.
    {"path": "Endpoints/Old.json", "change": "unused"},
]


def compared(
    page: Page, scripted: ScriptedServer, steps: list[dict[str, object]], changes: list[dict[str, object]]
) -> World:
    texts = {
        ("GET", f"runs/{run['id']}/texts/{span}"): {"output": f"from span {span} of {run['id'][:4]}"}
        for run in (RUN, LATER)
        for span in (2, 5, 8, 9)
    }
    scripted.world.script({("GET", ADDRESS): {"a": RUN, "b": LATER, "steps": steps, "configuration": changes}, **texts})
    page.goto(f"{scripted.url}#/compare/{RUN['id']}/{LATER['id']}")
    expect(page.get_by_role("heading", name="Compare runs", level=1)).to_be_visible()
    return scripted.world


def test_steps_stand_beside_each_other_and_show_their_texts(page: Page, scripted: ScriptedServer) -> None:
    compared(page, scripted, STEPS, CHANGES)
    steps = page.get_by_role("table", name="Steps")
    expect(steps.get_by_role("row")).to_have_count(4)
    # Numbers and their units have a narrow space between them.
    rows = [
        [text.replace("\u202f", " ") for text in row.get_by_role("cell").all_inner_texts()]
        for row in steps.get_by_role("row").all()[1:]
    ]
    assert rows == [
        ["Coding", "1 Analyse", "1", "1.0 s", "1.0 s", "4,096/97", "4,096/97", "same"],
        ["Coding", "2 Check it", "1", "-", "1.0 s", "-", "4,096/97", "only after"],
        ["Coding", "3 Answer", "1", "2.0 s", "1.0 s", "4,096/97", "4,096/97", "changed"],
    ]
    # The first changed step is chosen at once.
    texts = page.get_by_role("group", name="Difference").first
    expect(texts).to_contain_text("from span 8 of 3f2a")
    expect(texts).to_contain_text("from span 9 of 77b0")
    steps.get_by_role("button", name="2 Check it").click()
    expect(page.get_by_role("heading", name="Texts of 2 Check it")).to_be_visible()
    expect(texts).to_contain_text("from span 5 of 77b0")

    changes = page.get_by_role("region", name="Configuration changes")
    expect(changes).to_contain_text("Presets/Fast.json, new")
    expect(changes.get_by_text("Endpoints/Old.json, no longer used")).to_be_visible()
    changes.get_by_text("Workflows/me/Coding.json").click()
    expect(changes.get_by_role("group", name="Difference").first).to_contain_text('"nodes": 3')


def test_runs_without_steps_or_changes(page: Page, scripted: ScriptedServer) -> None:
    api = compared(page, scripted, [], [])
    expect(page.get_by_text("Neither run came as far as a node.")).to_be_visible()
    expect(page.get_by_role("region", name="Configuration changes")).to_contain_text("the same configuration")
    assert [call for _, call in api.calls if call != "session"] == [ADDRESS]
