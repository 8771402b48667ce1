"""Every page in every state: axe-core finds nothing, nothing is lost on a phone or at 200 % zoom, and nothing moves."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import BrowserContext, Page

from Tests.amounts import DEEP
from Tests.console.conftest import PHONE, WIDE, Contexts
from Tests.console.every_view import VIEWS, View, full_world
from Tests.console.scripted_server import STATIC, ScriptedServer

# A browser at 200 % has half as many pixels of the style sheet.
ZOOMED = {"width": WIDE["width"] // 2, "height": WIDE["height"] // 2}
SIZES = {"390 px": PHONE, "200 % zoom": ZOOMED, "1400 px": WIDE}
# Where axe-core looks, which takes nearly all of the time. What is lost at a size is looked for at all of them.
AXE_SIZES = SIZES if DEEP else ("1400 px",)
FIND = "(more) => axe.run(document, { resultTypes: ['violations'], ...more })"
# The themes differ in their colours alone.
COLOURS = {"runOnly": ["color-contrast"]}
# What can be used, outside of boxes that scroll by themselves, must stand between the edges of the page.
LOST = """() => {
  const within = (element) => {
    for (let box = element.parentElement; box; box = box.parentElement) {
      if (/auto|scroll/.test(getComputedStyle(box).overflowX) && box.scrollWidth > box.clientWidth) return true;
    }
    return false;
  };
  const lost = [...document.querySelectorAll("a, button, input, select, textarea, summary, h1, h2, [role=treeitem]")]
    .filter((element) => {
      const { left, right, width } = element.getBoundingClientRect();
      return width && !element.matches(".skip") && (left < -1 || right > innerWidth + 1) && !within(element);
    });
  // A cell may be cut where its title has all of it.
  lost.push(...[...document.querySelectorAll("td[data-label]")].filter((cell) => cell.scrollWidth > cell.clientWidth + 1
    && getComputedStyle(cell).overflowX === "hidden" && !cell.title && !within(cell)));
  const wide = document.scrollingElement.scrollWidth - innerWidth;
  return [...(wide > 0 ? [`scrolls sideways by ${wide}`] : []),
    ...lost.map((element) => `lost: ${element.outerHTML.slice(0, 120)}`)];
}"""
MOVING = """() => document.getAnimations().filter((one) => one.playState === "running")
  .map((one) => one.animationName ?? one.transitionProperty)"""

# What listens to the size of the page has drawn it anew by then.
SETTLE = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done))))"


@pytest.fixture(scope="module")
def full() -> Iterator[tuple[ScriptedServer, dict[str, str]]]:
    world, ids = full_world()
    with ScriptedServer(world) as server:
        yield server, ids


def show(page: Page, server: ScriptedServer, view: View, ids: dict[str, str]) -> None:
    server.world.script(view.answers(server))
    page.goto(server.url + re.sub(r"\{(\w+)\}", lambda found: ids[found[1]], view.address))
    view.ready(page).wait_for()
    view.act(page)


def findings(page: Page, options: dict[str, Any]) -> list[str]:
    """What axe-core finds, in one line for each element."""
    answer: dict[str, Any] = page.evaluate(FIND, options)
    return [
        f"{rule['id']}: {node['html'][:160]} {node['failureSummary'].splitlines()[-1].strip()}"
        for rule in answer["violations"]
        for node in rule["nodes"]
    ]


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_in_both_themes_and_all_sizes(
    name: str, full: tuple[ScriptedServer, dict[str, str]], contexts: Contexts
) -> None:
    server, ids = full
    view = VIEWS[name]
    problems = []
    with contexts.tab(view.signed_in) as page:
        show(page, server, view, ids)
        page.evaluate(AXE_SCRIPT)
        for size, viewport in SIZES.items():
            page.set_viewport_size(viewport)
            page.evaluate(SETTLE)
            problems += [f"{size}: {one}" for one in page.evaluate(LOST)]
            for theme, options in (("light", {}), ("dark", COLOURS)) if size in AXE_SIZES else ():
                page.emulate_media(color_scheme=theme, reduced_motion="reduce")
                problems += [f"{size}, {theme}: {one}" for one in findings(page, options)]
        problems += [f"moves: {one}" for one in page.evaluate(MOVING)]
    assert not problems, "\n".join(problems)


def test_something_moves_for_those_who_have_not_asked_for_rest(
    full: tuple[ScriptedServer, dict[str, str]], open_context: Callable[..., BrowserContext]
) -> None:
    server, ids = full
    page = open_context(reduced_motion="no-preference").new_page()
    show(page, server, VIEWS["run, running"], ids)
    assert page.evaluate(MOVING)


def test_every_route_of_the_console_has_a_view() -> None:
    routes = re.findall(r'\{ path: "([^"]+)"', (STATIC / "routes.js").read_text(encoding="utf-8"))
    assert routes
    addresses = [re.sub(r"\?.*", "", view.address.removeprefix("#/")) for view in VIEWS.values()]
    missing = [
        route
        for route in routes
        if not any(re.fullmatch(route.replace("**", ".+").replace("*", "[^/]+"), address) for address in addresses)
    ]
    assert not missing, f"without a view in Tests/console/every_view.py: {missing}"
