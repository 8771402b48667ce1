"""A browser for the tests of the console's pages.

They need the environment of ``Scripts/developer/run_browser_tests.sh``; in any other, nothing here is collected.
``page``: a tab, signed in as operator, which fails its test if the browser reports an error or asks another host.
``scripted``: the pages with a scripted API behind them, one server for each module; ``console_url`` is its address.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from Tests.console.scripted_server import TOKEN, ScriptedServer, World

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

INSTALLED = importlib.util.find_spec("playwright") is not None
collect_ignore_glob = [] if INSTALLED else ["test_*.py"]

CHROMIUM = (
    os.environ.get("WILMER_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser") or "chromium"
)
# Milliseconds. Nothing takes seconds, but on a machine with a load of twenty all of it takes ten times as long.
PATIENCE = 60_000
WIDE = {"width": 1400, "height": 900}
PHONE = {"width": 390, "height": 800}
# The script runs in the empty first page of a tab, too, which has no storage.
SIGNED_IN = f"if (location.host) localStorage.setItem('wilmer-console:/console/', '{TOKEN}')"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        # In a container the tests run as root, for whom Chromium has no sandbox.
        started = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-background-networking"]
        )
        yield started
        started.close()


@pytest.fixture(scope="module")
def scripted() -> Iterator[ScriptedServer]:
    with ScriptedServer(World()) as server:
        yield server


@pytest.fixture(scope="module")
def console_url(scripted: ScriptedServer) -> str:
    return scripted.url


def watched(browser: Browser, reports: list[str], signed_in: bool = True, **options: object) -> BrowserContext:
    """Make a context whose pages put into ``reports`` what no page may do."""
    context = browser.new_context(**{"viewport": WIDE, "reduced_motion": "reduce", **options})
    context.set_default_timeout(PATIENCE)
    if signed_in:
        context.add_init_script(SIGNED_IN)
    context.on("weberror", lambda error: reports.append(f"uncaught: {error.error}"))
    context.on(
        "console", lambda message: reports.append(message.text) if _is_error(message.type, message.text) else None
    )
    context.on(
        "request", lambda request: None if _is_local(request.url) else reports.append(f"asked for {request.url}")
    )
    return context


class Contexts:
    """One context for tests that need none of their own.

    What a tab has loaded and compiled stays in their cache as long as one tab is open, so that the next one costs a
    third of the time.
    """

    def __init__(self, browser: Browser) -> None:
        self._reports: list[str] = []
        self._open = {signed_in: watched(browser, self._reports, signed_in) for signed_in in (True, False)}

    @contextmanager
    def tab(self, signed_in: bool = True) -> Iterator[Page]:
        """Open a tab that finds nothing stored by another. Nothing may be reported until the end of the block."""
        context = self._open[signed_in]
        self._reports.clear()
        page = context.new_page()
        try:
            yield page
        finally:
            address = urlsplit(page.url)
            page.close()
            if address.scheme == "http":
                _forget(context, f"{address.scheme}://{address.netloc}")
        assert not self._reports, "\n".join(self._reports)

    def close(self) -> None:
        for context in self._open.values():
            context.close()


def _forget(context: BrowserContext, origin: str) -> None:
    """Clear what the pages of a server have stored, and leave an empty one of them open."""
    if not context.pages:
        kept = context.new_page()
        kept.route("**/*", lambda route: route.fulfill(body="", content_type="text/html"))
        kept.goto(origin)
    session = context.new_cdp_session(context.pages[0])
    session.send("Storage.clearDataForOrigin", {"origin": origin, "storageTypes": "all"})
    session.detach()


@pytest.fixture(scope="module")
def contexts(browser: Browser) -> Iterator[Contexts]:
    shared = Contexts(browser)
    yield shared
    shared.close()


@pytest.fixture
def open_context(browser: Browser) -> Iterator[Callable[..., BrowserContext]]:
    """Make browser contexts whose pages are watched; options are those of Playwright's ``new_context``."""
    contexts: list[BrowserContext] = []
    reports: list[str] = []

    def make(signed_in: bool = True, **options: object) -> BrowserContext:
        contexts.append(watched(browser, reports, signed_in, **options))
        return contexts[-1]

    yield make
    for context in contexts:
        context.close()
    assert not reports


def _is_error(kind: str, text: str) -> bool:
    # The browser itself writes a line for each answer with an error status, which some tests provoke.
    return kind in ("error", "warning") and not text.startswith("Failed to load resource")


def _is_local(url: str) -> bool:
    return url.startswith(("http://127.0.0.1:", "data:", "blob:"))


@pytest.fixture
def page(contexts: Contexts) -> Iterator[Page]:
    with contexts.tab() as tab:
        yield tab
