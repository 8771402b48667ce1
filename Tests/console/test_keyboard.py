"""Everything can be reached and done by the keyboard alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from Tests.console.conftest import PHONE
from Tests.console.every_view import LONG_NODES, full_world
from Tests.console.scripted_server import ScriptedServer

FOCUSED = "() => { const at = document.activeElement; return at.getAttribute('aria-label') ?? at.textContent.trim(); }"
MARKED = """() => {
  const { outlineStyle, outlineWidth } = getComputedStyle(document.activeElement);
  return outlineStyle !== "none" && parseFloat(outlineWidth) >= 2;
}"""
# More stops than any page has between its first and its last.
MANY = 60


@pytest.fixture(scope="module")
def full() -> Iterator[tuple[ScriptedServer, dict[str, str]]]:
    world, ids = full_world()
    with ScriptedServer(world) as server:
        yield server, ids


def tab_to(page: Page, name: str, key: str = "Tab") -> None:
    """Press Tab until the focus is where it should be, and see at each stop where it is."""
    seen = []
    for _ in range(MANY):
        page.keyboard.press(key)
        seen.append(page.evaluate(FOCUSED))
        assert page.evaluate(MARKED), f"the focus on '{seen[-1]}' cannot be seen"
        if seen[-1] == name:
            return
    raise AssertionError(f"Tab never comes to '{name}': {seen}")


def test_from_the_list_into_a_run_and_through_its_tree(page: Page, full: tuple[ScriptedServer, dict[str, str]]) -> None:
    server, ids = full
    page.goto(server.url)
    page.get_by_role("table", name="Runs").wait_for()
    page.keyboard.press("j")
    first = page.get_by_role("table", name="Runs").get_by_role("link").first
    expect(first).to_be_focused()
    page.keyboard.press("j")
    page.keyboard.press("k")
    expect(first).to_be_focused()
    tab_to(page, f"Run {ids['chat'][:8]}")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1, name=f"Run {ids['chat'][:8]}")).to_be_visible()

    tree = page.get_by_role("tree", name="Timeline")
    tree.wait_for()
    tab_to(page, "Timeline")
    expect(tree).to_be_focused()
    chosen = tree.get_by_role("treeitem", selected=True)
    page.keyboard.press("Home")
    expect(chosen).to_have_accessible_name("Waiting at the gate, wait, 0.4 s, ok")
    page.keyboard.press("ArrowDown")
    expect(chosen).to_have_accessible_name("Route: CODING, route, 1.0 s, ok")
    # A closed row opens, then leads to its first child; back to the parent, which closes.
    closed = chosen.get_attribute("aria-expanded") == "false"
    page.keyboard.press("ArrowRight")
    if closed:
        expect(chosen).to_have_attribute("aria-expanded", "true")
        page.keyboard.press("ArrowRight")
    expect(chosen).to_have_accessible_name("Worker, call, 1.0 s, ok")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    expect(chosen).to_have_accessible_name("Route: CODING, route, 1.0 s, ok")
    expect(chosen).to_have_attribute("aria-expanded", "false")
    # What separates the answer from the rest is passed over.
    page.keyboard.press("End")
    last = chosen.get_attribute("aria-label")
    names = [name for name in tree.get_by_role("treeitem").all() if name.get_attribute("aria-label") == last]
    assert names and tree.get_by_role("treeitem", name="Answer complete").get_attribute("aria-selected") is None


def test_the_rows_of_a_long_tree_know_where_they_stand(page: Page, full: tuple[ScriptedServer, dict[str, str]]) -> None:
    server, ids = full
    page.goto(f"{server.url}#/runs/{ids['long']}")
    tree = page.get_by_role("tree", name="Timeline")
    tree.wait_for()
    assert tree.get_by_role("treeitem").count() < LONG_NODES
    tab_to(page, "Timeline")
    page.keyboard.press("End")
    chosen = tree.get_by_role("treeitem", selected=True)
    expect(chosen).to_be_in_viewport()
    while (chosen.get_attribute("aria-label") or "").split(",")[1].strip() != "Standard":
        page.keyboard.press("ArrowLeft")
    expect(chosen).to_have_attribute("aria-posinset", str(LONG_NODES))
    expect(chosen).to_have_attribute("aria-setsize", str(LONG_NODES))
    expect(chosen).to_be_in_viewport()


def test_a_dialog_keeps_the_focus_and_gives_it_back(page: Page, full: tuple[ScriptedServer, dict[str, str]]) -> None:
    server, ids = full
    page.goto(f"{server.url}#/runs/{ids['chat']}")
    page.get_by_role("tree", name="Timeline").wait_for()
    tab_to(page, "Delete")
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_be_visible()
    inside = "() => document.activeElement === document.body || document.activeElement.closest('dialog') !== null"
    for key in ("Tab", "Tab", "Tab", "Tab", "Shift+Tab", "Shift+Tab", "Shift+Tab"):
        page.keyboard.press(key)
        # Between the last and the first element, the browser itself has the focus for one step.
        assert page.evaluate(inside)
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(page.get_by_role("button", name="Delete", exact=True)).to_be_focused()
    # Keys of the page do nothing while a dialog is open.
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_have_count(1)
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_shortcuts_leave_text_fields_alone_and_can_be_switched_off(page: Page, console_url: str) -> None:
    page.goto(console_url)
    page.get_by_role("table", name="Runs").wait_for()
    page.keyboard.press("/")
    search = page.get_by_role("textbox", name="Search runs")
    expect(search).to_be_focused()
    page.keyboard.type("j?/k")
    expect(search).to_have_value("j?/k")
    page.goto(f"{console_url}#/settings")
    page.get_by_role("switch", name="Keyboard shortcuts").wait_for()
    page.get_by_role("switch", name="Keyboard shortcuts").focus()
    page.keyboard.press("Space")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_the_menu_of_a_phone(open_context: Callable[..., BrowserContext], console_url: str) -> None:
    page = open_context(viewport=PHONE).new_page()
    page.goto(console_url)
    page.get_by_role("table", name="Runs").wait_for()
    tab_to(page, "Menu")
    page.keyboard.press("Enter")
    tab_to(page, "Settings")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Settings")
