"""The pages Memory and one discussion with scripted answers of the API."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import parse_qs

import pytest
from playwright.sync_api import Page, expect

from Tests.console.scripted_server import Failure, ScriptedServer

HEADERS = [
    "Discussion",
    "Key folder",
    "Memories",
    "Summary",
    "Searchable",
    "Messages",
    "State document",
    "Last change",
    "Size",
    "Vectors",
]
MILL = {
    "discussionId": "mill",
    "keyFolder": None,
    "memories": 130,
    "summary": True,
    "searchableMemories": 34,
    "messages": 412,
    "vectors": {"nomic": {"with": 30, "without": 4}},
    "stateDocument": True,
    "encrypted": False,
    "damaged": False,
    "lastChange": "2026-11-20T09:10:00+00:00",
    "bytes": 184_300,
    "user": "me",
}
STATES = {130: "provisional", 128: "elsewhere"}
ELSEWHERE = [
    {"text": "Mara hid the ledger in the boat.", "missing": "I hid it in the boat."},
    {"text": "It rained on the way home.", "missing": ""},
]
LOCKED = {**MILL, "discussionId": "work notes", "keyFolder": "0123456789abcdef", "memories": None, "encrypted": True}


def entry(kind: str, number: int, text: str, **more: object) -> dict[str, object]:
    return {
        "key": f"{kind}-{number}-00000000",
        "number": number,
        "text": text,
        "date": "2026-11-20T18:10:00+00:00",
        **more,
    }


def discussion(scripted: ScriptedServer, **changes: object) -> Callable[[object], dict[str, object]]:
    """Answers ``GET discussions/mill`` as the query of the call says."""

    def answer(_: object) -> dict[str, object]:
        # Calls of other addresses may have come at the same moment.
        asked = next(path for _, path in reversed(scripted.world.calls) if path.startswith("discussions/mill?"))
        query = {name: values[-1] for name, values in parse_qs(asked.partition("?")[2]).items()}
        part, before = query.get("part", "summary"), int(query.get("before", "131"))
        entries = {
            "summary": [entry("summary", 0, "All that happened.")],
            "state": [],
            "memories": [
                entry("memory", number, f"Fact {number}.", summarized=number < 100)
                for number in range(before - 1, max(before - 101, 0), -1)
            ],
            "searchable": [
                entry("searchable", 2, "Mara hid it.", title="The ledger"),
                entry("searchable", 1, "It rained.", title="Weather"),
            ],
            "messages": [
                entry(
                    "message",
                    number,
                    f"Line {number}.",
                    title=("Ines", "Tom")[number % 2],
                    state=STATES.get(number, ""),
                )
                for number in range(before - 1, max(before - 51, 0), -1)
            ],
        }[part]
        if "q" in query:
            entries = [one for one in entries if query["q"] in str(one["text"])]
        oldest = int(str(entries[-1]["number"])) if entries else 0
        return {
            "discussion": MILL,
            "part": part,
            "entries": entries,
            "total": 130,
            "problem": "",
            "locked": False,
            "next": oldest if part in ("memories", "messages") and oldest > 1 else None,
            "elsewhere": ELSEWHERE if part == "memories" and "q" not in query else [],
            **changes,
        }

    return answer


def test_the_list_is_that_of_the_command(page: Page, scripted: ScriptedServer) -> None:
    scripted.world.script(
        {("GET", "discussions"): {"discussions": [MILL, LOCKED]}, ("GET", "discussions/mill"): discussion(scripted)}
    )
    page.goto(f"{scripted.url}#/memory")
    table = page.get_by_role("table", name="Discussions")
    expect(table.get_by_role("row")).to_have_count(3)
    assert table.get_by_role("columnheader").all_inner_texts() == HEADERS
    for words in ("mill", "130", "34", "yes", "nomic 30/34"):
        expect(table.get_by_role("row").nth(1)).to_contain_text(words)
    expect(table.get_by_role("row").nth(2)).to_contain_text("encrypted")
    page.get_by_role("textbox", name="Find a discussion").fill("WORK")
    expect(table.get_by_role("row")).to_have_count(2)
    page.get_by_role("textbox", name="Find a discussion").fill("")
    table.get_by_role("link", name="mill").click()
    expect(page.get_by_role("heading", level=1, name="mill")).to_be_visible()
    expect(page.get_by_role("article", name="Summary")).to_be_visible()
    assert scripted.world.calls[-1][1] == "discussions/mill?folder=none&user=me&part=summary&limit=100"


def test_no_discussion_says_how_to_make_one(page: Page, scripted: ScriptedServer) -> None:
    scripted.world.script({("GET", "discussions"): {"discussions": []}})
    page.goto(f"{scripted.url}#/memory")
    expect(page.get_by_role("heading", name="No discussions yet")).to_be_visible()


def test_tabs_pages_and_search(page: Page, scripted: ScriptedServer) -> None:
    scripted.world.script({("GET", "discussions/mill"): discussion(scripted)})
    page.goto(f"{scripted.url}#/memory/mill")
    expect(page.get_by_role("article", name="Summary")).to_contain_text("All that happened.")
    page.get_by_role("tab", name="Memories").click()
    articles = page.get_by_role("article")
    expect(articles).to_have_count(100)
    expect(page.get_by_role("article", name="Memory 130", exact=True)).to_contain_text("Fact 130.")
    page.get_by_role("button", name="Older memories").click()
    expect(articles).to_have_count(130)
    expect(page.get_by_role("button", name="Older memories")).to_have_count(0)
    page.get_by_role("tab", name="State document").click()
    expect(page.get_by_text("There is no state document.")).to_be_visible()
    # From a single text, a search goes to where there are many.
    page.get_by_role("textbox", name="Search memories").fill("hid")
    expect(articles).to_have_count(1)
    expect(page.get_by_role("tab", name="Searchable")).to_have_attribute("aria-selected", "true")
    expect(page.get_by_text("1 found")).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("tab", name="Searchable")).to_be_focused()
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_role("tab", name="Memories")).to_be_focused()


def test_messages_are_shown_searched_and_forgotten(page: Page, scripted: ScriptedServer) -> None:
    path = "discussions/mill/memories/message-130-00000000"
    scripted.world.script({("GET", "discussions/mill"): discussion(scripted), ("DELETE", path): {}})
    page.goto(f"{scripted.url}#/memory/mill")
    page.get_by_role("tab", name="Messages").click()
    articles = page.get_by_role("article")
    expect(articles).to_have_count(50)
    newest = page.get_by_role("article", name="Message 130", exact=True)
    for words in ("Line 130.", "Ines", "provisional"):
        expect(newest).to_contain_text(words)
    # A message is what was sent: it is not edited here, and no call wrote it.
    expect(newest.get_by_role("button")).to_have_text(["Delete"])
    expect(newest.get_by_role("link")).to_have_count(0)
    page.get_by_role("button", name="Older messages").click()
    expect(articles).to_have_count(100)
    page.get_by_role("textbox", name="Search memories").fill("Line 128")
    expect(articles).to_have_count(1)
    expect(page.get_by_text("1 found, as a Recall node finds them, best first")).to_be_visible()
    expect(page.get_by_role("tab", name="Messages")).to_have_attribute("aria-selected", "true")
    page.get_by_role("textbox", name="Search memories").fill("")
    expect(articles).to_have_count(50)
    newest.get_by_role("button", name="Delete").click()
    dialog = page.get_by_role("dialog", name="Delete message 130?")
    expect(dialog).to_contain_text("It is erased with the memories that were made of it")
    dialog.get_by_role("button", name="Delete").click()
    expect(dialog).to_have_count(0)
    assert any(call[0] == "DELETE" and call[1].startswith(path) for call in scripted.world.calls)


def test_memories_elsewhere_are_folded_below_the_others(page: Page, scripted: ScriptedServer) -> None:
    scripted.world.script({("GET", "discussions/mill"): discussion(scripted)})
    page.goto(f"{scripted.url}#/memory/mill?part=memories")
    fold = page.get_by_role("group").filter(has_text="Elsewhere")
    expect(fold).to_have_count(1)
    expect(page.get_by_text(ELSEWHERE[0]["text"])).to_be_hidden()
    fold.get_by_text("Elsewhere").click()
    for one in ELSEWHERE:
        expect(page.get_by_text(one["text"])).to_be_visible()
    expect(page.get_by_text("not in the conversation now: I hid it in the boat.")).to_be_visible()
    expect(page.get_by_text("Made from messages that are not in the conversation now.")).to_be_visible()
    # It comes back by itself.
    expect(fold.get_by_role("button")).to_have_count(0)
    page.get_by_role("textbox", name="Search memories").fill("Fact 12")
    expect(fold).to_have_count(0)


def test_editing_and_deleting(page: Page, scripted: ScriptedServer) -> None:
    changes = [
        Failure(409, "It has been changed in the meantime; nothing was changed now."),
        {"key": "memory-130-11111111"},
    ]
    path = "discussions/mill/memories/memory-130-00000000"
    scripted.world.script(
        {
            ("GET", "discussions/mill"): discussion(scripted),
            ("PUT", path): lambda _: changes.pop(0),
            ("DELETE", "discussions/mill/memories/memory-129-00000000"): {},
        }
    )
    page.goto(f"{scripted.url}#/memory/mill?part=memories&folder=none")
    memory = page.get_by_role("article", name="Memory 130", exact=True)
    expect(page.get_by_role("button", name="Older memories")).to_be_visible()
    memory.get_by_role("button", name="Edit").click()
    text = memory.get_by_role("textbox", name="Text of memory 130")
    expect(text).to_have_value("Fact 130.")
    expect(memory.get_by_role("button", name="Save")).to_be_disabled()
    text.fill("<b>Fact</b> 131.")
    memory.get_by_role("button", name="Save").click()
    expect(memory.get_by_role("alert")).to_contain_text("changed in the meantime")
    memory.get_by_role("button", name="Save").click()
    # Shown as it is written: a text is never markup.
    expect(memory).to_contain_text("<b>Fact</b> 131.")
    expect(memory.get_by_role("textbox")).to_have_count(0)
    assert scripted.world.sent("PUT", path) == [{"text": "<b>Fact</b> 131."}] * 2
    page.get_by_role("article", name="Memory 129", exact=True).get_by_role("button", name="Delete").click()
    dialog = page.get_by_role("dialog", name="Delete memory 129?")
    expect(dialog).to_contain_text("still count as remembered, so it is not written again. There is no way back.")
    dialog.get_by_role("button", name="Delete").click()
    expect(dialog).to_have_count(0)
    assert any(
        call == ("DELETE", "discussions/mill/memories/memory-129-00000000?folder=none") for call in scripted.world.calls
    )


@pytest.mark.parametrize(
    ("part", "name", "clicks", "wording"),
    [
        ("memories", "Memory 130", 0, {}),
        ("memories", "Memory 130", 1, {"wording": True}),
        # Ticked by mistake.
        ("memories", "Memory 130", 2, {}),
        ("summary", "Summary", 1, {"wording": True}),
        ("state", "State document", 1, {"wording": True}),
        # The database has no backup.
        ("searchable", "Memory 2", None, {}),
    ],
)
def test_an_edit_forgets_the_old_wording_if_asked(
    page: Page, scripted: ScriptedServer, part: str, name: str, clicks: int | None, wording: dict[str, bool]
) -> None:
    number = {"memories": 130, "searchable": 2}.get(part, 0)
    key = f"{part.replace('memories', 'memory')}-{number}-00000000"
    more = {"entries": [entry("state", 0, "Mara: at the mill")]} if part == "state" else {}
    scripted.world.script(
        {
            ("GET", "discussions/mill"): discussion(scripted, **more),
            ("PUT", f"discussions/mill/memories/{key}"): {"key": key},
        }
    )
    page.goto(f"{scripted.url}#/memory/mill?part={part}")
    article = page.get_by_role("article", name=name, exact=True)
    article.get_by_role("button", name="Edit").click()
    box = article.get_by_role("checkbox", name="Forget the old wording")
    expect(box).to_have_count(0 if clicks is None else 1)
    for _ in range(clicks or 0):
        box.click()
    article.get_by_role("textbox").fill("Another text.")
    article.get_by_role("button", name="Save").click()
    expect(article.get_by_role("textbox")).to_have_count(0)
    assert scripted.world.sent("PUT", f"discussions/mill/memories/{key}") == [{"text": "Another text.", **wording}]


def test_where_a_memory_came_from(page: Page, scripted: ScriptedServer) -> None:
    run = str(scripted.world.runs[0]["id"])
    scripted.world.script(
        {
            ("GET", "discussions/mill"): discussion(scripted),
            ("GET", "discussions/mill/memories/searchable-2-00000000"): {"run": None, "span": None},
            ("GET", "discussions/mill/memories/searchable-1-00000000"): {"run": run, "span": 2},
        }
    )
    page.goto(f"{scripted.url}#/memory/mill?part=searchable")
    page.get_by_role("article", name="Memory 2").get_by_role("link", name="Where it came from").click()
    expect(page.get_by_role("article", name="Memory 2")).to_contain_text("not recorded")
    page.get_by_role("article", name="Memory 1").get_by_role("link", name="Where it came from").click()
    expect(page.get_by_role("heading", level=1, name=f"Run {run[:8]}")).to_be_visible()
    assert page.url.endswith(f"#/runs/{run}?span=2")


def test_what_is_done_to_a_whole_discussion(page: Page, scripted: ScriptedServer) -> None:
    scripted.world.script(
        {
            ("GET", "discussions/mill"): discussion(scripted),
            ("GET", "discussions"): {"discussions": []},
            ("GET", "discussions/mill/export"): {"format": "wilmer-discussion"},
            ("POST", "discussions/mill/rebuild"): {"export": "exports/mill.json"},
            ("DELETE", "discussions/mill"): {"deleted": 4, "left": []},
        }
    )
    page.goto(f"{scripted.url}#/memory/mill")
    with page.expect_download() as saved:
        page.get_by_role("button", name="Download").click()
    assert saved.value.suggested_filename == "mill.json"
    page.get_by_role("button", name="Write all memories anew").click()
    page.get_by_role("dialog").get_by_role("button", name="Write anew").click()
    expect(page.get_by_text("exports/mill.json")).to_be_visible()
    page.get_by_role("button", name="Delete discussion").click()
    dialog = page.get_by_role("dialog", name="Delete this discussion?")
    expect(dialog.get_by_role("button", name="Delete")).to_be_disabled()
    dialog.get_by_role("textbox", name="Discussion id").fill("mill")
    dialog.get_by_role("checkbox", name="Delete its recorded runs, too").check()
    dialog.get_by_role("button", name="Delete").click()
    expect(page.get_by_role("heading", name="No discussions yet")).to_be_visible()
    assert ("DELETE", "discussions/mill?&runs=1") in scripted.world.calls


def test_an_encrypted_discussion_shows_facts(page: Page, scripted: ScriptedServer) -> None:
    scripted.world.script(
        {
            ("GET", "discussions/mill"): discussion(
                scripted, discussion=LOCKED, entries=[], problem="encrypted", locked=True
            )
        }
    )
    page.goto(f"{scripted.url}#/memory/mill")
    expect(page.get_by_text("Sign in with that key to read it.")).to_be_visible()
    expect(page.get_by_role("button", name="Download")).to_be_disabled()
    expect(page.get_by_role("button", name="Delete discussion")).to_be_enabled()
