"""The pages Workflows and one workflow with scripted answers of the API."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from Tests.console.scripted_server import Failure, ScriptedServer

USE = {"kind": "category", "name": "CODING", "path": "Routing/demo.json", "node": 0}
CODING = {
    "path": "Workflows/demo/Coding.json",
    "folder": "demo",
    "name": "Coding",
    "nodes": 3,
    "endpoints": ["Main"],
    "children": ["Workflows/demo/Search.json"],
    "users": ["me"],
    "used_by": [USE],
    "problem": "",
}
SEARCH = {
    **CODING,
    "path": "Workflows/demo/Search.json",
    "name": "Search",
    "nodes": 1,
    "children": [],
    "used_by": [{"kind": "workflow", "name": "demo/Coding", "path": "Workflows/demo/Coding.json", "node": 3}],
}
SPARE = {
    **CODING,
    "path": "Workflows/_old/Spare.json",
    "folder": "_old",
    "name": "Spare",
    "users": [],
    "used_by": [],
    "problem": "",
    "children": [],
    "endpoints": [],
}
MAP = {
    "boxes": [
        {"id": "routing:Routing/demo.json", "kind": "routing", "label": "demo"},
        {"id": "workflow:Workflows/demo/Coding.json", "kind": "workflow", "label": "Coding"},
        {"id": "endpoint:Main", "kind": "endpoint", "label": "Main"},
    ],
    "arrows": [
        {"source": "routing:Routing/demo.json", "target": "workflow:Workflows/demo/Coding.json", "labels": ["CODING"]},
        {"source": "workflow:Workflows/demo/Coding.json", "target": "endpoint:Main", "labels": []},
    ],
}


def node(index: int, title: str, **more: object) -> dict[str, object]:
    return {
        "index": index,
        "title": title,
        "type": "Standard",
        "endpoints": ["Main"],
        "preset": "",
        "responder": False,
        "after_answer": False,
        "uses": [],
        "children": [],
        "line": index * 6,
        "findings": [],
        "figures": None,
        **more,
    }


FINDING = {
    "severity": "error",
    "text": "unknown key 'endpointNam'. Did you mean 'endpointName'?",
    "line": 13,
    "column": 27,
}
NODES = [
    node(1, "Analyse", preset="Fast", figures={"runs": 96, "failed": 2, "median_us": 1_200_000}),
    node(2, "Answer", responder=True, uses=[1], findings=[FINDING]),
    node(
        3,
        "Look it up",
        type="CustomWorkflow",
        endpoints=[],
        after_answer=True,
        uses=[2],
        children=[{"name": "Search", "path": "Workflows/demo/Search.json"}, {"name": "{x}", "path": ""}],
    ),
]
ONE = {**CODING, "hash": "00", "nodes": NODES, "findings": [], "runs": 96}


def test_the_list_and_the_map(page: Page, scripted: ScriptedServer) -> None:
    scripted.world.script(
        {
            ("GET", "workflows"): {"workflows": [SPARE, CODING, SEARCH]},
            ("GET", "map"): MAP,
            ("GET", "workflows/demo/Coding"): ONE,
        }
    )
    page.goto(f"{scripted.url}#/workflows")
    known = page.get_by_role("list", name="Workflows", exact=True)
    expect(known.get_by_role("heading")).to_have_count(2)
    # What nobody uses comes last.
    assert [text.split("\n")[0] for text in known.get_by_role("heading").all_inner_texts()] == ["demo", "_old"]
    expect(known).to_contain_text("used by category CODING of routing demo")
    expect(known).to_contain_text("used by node 3 of demo/Coding")
    expect(known).to_contain_text("used by nothing")
    figure = page.get_by_role("figure", name="Map")
    expect(figure.get_by_role("link", name="workflow Coding")).to_be_visible()
    expect(figure.get_by_role("link", name="routing demo")).to_be_visible()
    assert sorted(call for _, call in scripted.world.calls if call != "session") == ["map", "workflows"]
    page.get_by_role("button", name="Map as table").click()
    table = page.get_by_role("table", name="Map as table")
    expect(table.get_by_role("row")).to_have_count(3)
    expect(table.get_by_role("row").nth(1)).to_contain_text("CODING")
    figure.get_by_role("link", name="workflow Coding").click()
    expect(page.get_by_role("heading", level=1, name="Coding")).to_be_visible()


def test_one_workflow(page: Page, scripted: ScriptedServer) -> None:
    scripted.world.script({("GET", "workflows/demo/Coding"): ONE})
    page.goto(f"{scripted.url}#/workflows/demo/Coding")
    nodes = page.get_by_role("list", name="Nodes")
    for words in (
        "Analyse",
        "preset Fast",
        "median 1.2 s, 2 of 96 failed",
        "Line 6",
        "uses 1",
        "→ Search",
        "→ {x}",
        "endpointNam",
    ):
        expect(nodes).to_contain_text(words)
    lines = nodes.inner_text()
    assert lines.index("Answer") < lines.index("answer complete") < lines.index("Look it up")
    expect(page.get_by_role("list", name="Used by")).to_contain_text("category CODING of routing demo")
    expect(page.get_by_text("Of the last 100 runs, 96 came here.")).to_be_visible()
    figure = page.get_by_role("figure", name="Map")
    expect(figure.get_by_role("link", name="workflow demo/Search")).to_have_attribute("href", "#/workflows/demo/Search")
    expect(nodes.get_by_role("link", name="Search")).to_be_visible()
    assert [call for _, call in scripted.world.calls if call != "session"] == ["workflows/demo/Coding"]


def test_the_path_of_a_run_is_lit(page: Page, scripted: ScriptedServer) -> None:
    spans = [
        [1, None, "workflow", "Coding", 0, 9, "ok", {"workflow.name": "Coding", "folder": "demo"}, {}],
        [2, 1, "node", "Analyse", 0, 1_500_000, "ok", {"node.index": 1}, {}],
    ]
    run = scripted.world.add(7, spans)
    scripted.world.script({("GET", "workflows/demo/Coding"): ONE})
    page.goto(f"{scripted.url}#/workflows/demo/Coding?run={run['id']}")
    expect(page.get_by_role("link", name=f"run {str(run['id'])[:8]}")).to_be_visible()
    expect(page.get_by_role("list", name="Nodes").get_by_role("listitem").first).to_contain_text("1.5 s in this run")
    expect(page.get_by_role("list", name="Nodes").get_by_text("in this run")).to_have_count(1)


def test_what_is_not_there(page: Page, scripted: ScriptedServer) -> None:
    scripted.world.script(
        {
            ("GET", "workflows/demo/No"): Failure(404, "There is no workflow 'demo/No'."),
            ("GET", "workflows"): {"workflows": []},
            ("GET", "map"): {"boxes": [], "arrows": []},
        }
    )
    page.goto(f"{scripted.url}#/workflows/demo/No")
    expect(page.get_by_role("heading", name="This workflow is not here")).to_be_visible()
    page.goto(f"{scripted.url}#/workflows")
    expect(page.get_by_role("heading", name="No workflows")).to_be_visible()
