"""The shell around every page: landmarks, sign-in, navigation, theme, keyboard."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from Tests.console.conftest import PHONE
from Tests.console.scripted_server import PROOF_KEY, ScriptedServer, World


def test_landmarks(page: Page, console_url: str) -> None:
    page.goto(console_url)
    expect(page.get_by_role("banner")).to_be_visible()
    expect(page.get_by_role("main").get_by_role("heading", level=1)).to_have_text("Runs")
    expect(page).to_have_title("Runs · WilmerAI")
    expect(page.get_by_role("status", name="Live updates")).to_contain_text("live")
    links = page.get_by_role("navigation", name="Console").get_by_role("link")
    expect(links.first).to_have_text("Runs")
    expect(links.last).to_have_text("Settings")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("main")).to_be_focused()


def test_each_link_of_the_navigation_opens_a_page(page: Page, console_url: str) -> None:
    page.goto(console_url)
    navigation = page.get_by_role("navigation", name="Console")
    navigation.get_by_role("link").first.wait_for()
    for name in navigation.get_by_role("link").all_text_contents():
        navigation.get_by_role("link", name=name, exact=True).click()
        expect(page.get_by_role("heading", level=1, name=name, exact=True)).to_be_visible()
        expect(navigation.get_by_role("link", name=name, exact=True)).to_have_attribute("aria-current", "page")


def test_sign_in_with_a_key(open_context: Callable[..., BrowserContext], console_url: str) -> None:
    page = open_context(signed_in=False).new_page()
    page.goto(f"{console_url}#/settings")
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
    expect(page.get_by_text("python server.py console")).to_be_visible()
    key = page.get_by_role("textbox", name="Access key")
    expect(key).to_have_attribute("type", "password")
    key.fill("wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("must say console=own")
    key.fill("right")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Settings")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")


def test_a_sign_in_link_leaves_no_code_in_the_address(
    open_context: Callable[..., BrowserContext], console_url: str
) -> None:
    page = open_context(signed_in=False).new_page()
    page.goto(f"{console_url}#signin=secretcode")
    expect(page.get_by_role("heading", level=1)).to_have_text("Runs")
    assert "secretcode" not in page.url
    page.go_back()
    assert "secretcode" not in page.url


def test_a_session_that_has_ended_shows_sign_in(page: Page, console_url: str) -> None:
    page.goto(console_url)
    # Later calls are those of the next page.
    expect(page.get_by_role("status", name="Live updates")).to_contain_text("live")
    page.evaluate(f"localStorage.setItem('wilmer-console:/console/', 'stale.{PROOF_KEY.hex()}')")
    page.get_by_role("link", name="Settings").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
    expect(page.get_by_role("alert")).to_contain_text("has ended")


def test_pages_above_the_role_are_absent(open_context: Callable[..., BrowserContext]) -> None:
    with ScriptedServer(World(3, role="own")) as server:
        page = open_context().new_page()
        page.goto(server.url)
        expect(page.get_by_role("navigation", name="Console").get_by_role("link", name="Runs")).to_be_visible()
        expect(page.get_by_role("link", name="Settings")).to_have_count(0)
        page.goto(f"{server.url}#/settings")
        expect(page.get_by_role("heading", level=1)).to_have_text("Not for this session")


def test_theme(open_context: Callable[..., BrowserContext], console_url: str) -> None:
    page = open_context(color_scheme="light").new_page()
    page.goto(console_url)
    back = "getComputedStyle(document.documentElement).backgroundColor"
    light = page.evaluate(back)
    page.get_by_role("button", name="Theme").click()
    dark = page.evaluate(back)
    assert dark != light
    page.reload()
    page.get_by_role("button", name="Theme").wait_for()
    assert page.evaluate(back) == dark


def test_keyboard_shortcuts(page: Page, console_url: str) -> None:
    page.goto(console_url)
    page.get_by_role("table", name="Runs").wait_for()
    page.keyboard.press("?")
    dialog = page.get_by_role("dialog", name="Keyboard shortcuts")
    expect(dialog).to_contain_text("next run")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    page.keyboard.press("/")
    search = page.get_by_role("search").get_by_role("textbox", name="Search runs")
    expect(search).to_be_focused()
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("j")
    second = page.get_by_role("table", name="Runs").get_by_role("link").nth(1)
    expect(second).to_be_focused()
    name = second.get_attribute("aria-label")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text(name or "")


def test_keys_that_follow_at_once(page: Page, console_url: str) -> None:
    """A key between the drawing of a page and its focus must not leave two rows that take the focus from each other."""
    page.goto(console_url)
    page.get_by_role("table", name="Runs").wait_for()
    page.evaluate("""async () => {
        for (let key = 0; key < 4; key += 1) {
            document.dispatchEvent(new KeyboardEvent("keydown", { key: "j", bubbles: true }));
            await new Promise((resolve) => setTimeout(resolve, 0));
        }
    }""")
    expect(page.get_by_role("table", name="Runs").get_by_role("link").nth(3)).to_be_focused()


def test_menu_on_a_phone(open_context: Callable[..., BrowserContext], console_url: str) -> None:
    page = open_context(viewport=PHONE).new_page()
    page.goto(console_url)
    menu = page.get_by_role("button", name="Menu")
    expect(menu).to_have_attribute("aria-expanded", "false")
    expect(page.get_by_role("link", name="Settings")).to_have_count(0)
    menu.click()
    page.get_by_role("link", name="Settings").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Settings")


@pytest.mark.parametrize("address", ["#/nowhere", "#/runs/a/b/c/d"])
def test_an_unknown_address(page: Page, console_url: str, address: str) -> None:
    page.goto(console_url + address)
    expect(page.get_by_role("heading", level=1)).to_have_text("No such page")
