"""The pages with a real server behind them, which asks a scripted LLM server."""

from __future__ import annotations

import json
import re
import shutil
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Locator, Page, Response, expect

from Middleware.addons.init import demo_backend
from Tests.console.conftest import PATIENCE
from Tests.integration.launcher import PROJECT, USER, Backend, Launcher, run_launcher, standard_tree, stuck
from Tests.stub_backend import chat_stream_reply

SCRIPT = "run_waitress.py"
LINK = re.compile(r"http://127\.0\.0\.1:\d+/console/#signin=[\w.-]+")


class Console:
    """A server, and how to sign in to its console."""

    def __init__(self, folder: Path, backend: Backend) -> None:
        tree = standard_tree(folder / "Public", backend.url)
        self.arguments = ["--PublicDirectory", tree.public, "--User", USER]
        self.server = Launcher(SCRIPT, *self.arguments, backend=backend)
        self.backend = backend

    def link(self) -> str:
        done = run_launcher(SCRIPT, "console", *self.arguments, timeout=PATIENCE / 1000)
        found = LINK.search(done.stdout)
        assert found, done.stdout + done.stderr
        return found[0]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    with Backend() as backend:
        console = Console(tmp_path_factory.mktemp("console"), backend)
        with console.server:
            yield console


@pytest.fixture
def console(running: Console) -> Console:
    running.backend.reset()
    return running


@pytest.fixture(scope="module")
def state(running: Console, browser: object) -> dict[str, object]:
    """Sign in once with the link, and keep what the browser has stored."""
    context = browser.new_context()  # type: ignore[attr-defined]
    page = context.new_page()
    page.goto(running.link())
    expect(page.get_by_role("heading", level=1)).to_have_text("Runs")
    kept: dict[str, object] = context.storage_state()
    context.close()
    return kept


@pytest.fixture
def page(state: dict[str, object], open_context: Callable[..., BrowserContext]) -> Page:
    return open_context(signed_in=False, storage_state=state).new_page()


def status(page: Page) -> Locator:
    """What the summary says first."""
    return page.get_by_role("region", name="Summary").get_by_role("definition").first


def test_a_run_is_seen_while_it_is_made(console: Console, page: Page) -> None:
    go_on = threading.Event()
    console.backend.replies["single"] = chat_stream_reply(["All ", "of it."], held=go_on)
    page.goto(f"{console.server.url}/console/")
    expect(page.get_by_role("status", name="Live updates")).to_contain_text("live")
    sock = console.server.open("Single", stream=True)
    stop = page.get_by_role("button", name=re.compile("^Stop run "))
    expect(stop).to_be_visible()
    row = page.get_by_role("row").filter(has=stop)
    expect(row).to_contain_text("running")
    row.get_by_role("link").click()
    tree = page.get_by_role("tree", name="Timeline")
    call = tree.get_by_role("treeitem", name=re.compile("^Stub, call, .* running$"))
    expect(call).to_be_visible()
    go_on.set()
    expect(tree.get_by_role("treeitem", name=re.compile("^Stub, call, .* ok$"))).to_be_visible()
    expect(status(page)).to_contain_text("ok")
    expect(page.get_by_role("region", name="Why it took this long")).to_contain_text("Stub")
    tree.get_by_role("treeitem", name=re.compile("^Stub, call, ")).click()
    page.get_by_role("tab", name="Answer").click()
    expect(page.get_by_role("region", name="Details")).to_contain_text("All of it.")
    sock.close()


def test_the_text_appears_and_stop_reaches_the_back_end(console: Console, page: Page) -> None:
    console.backend.replies["single"] = stuck("The first ", "half,")
    sock = console.server.open("Single", stream=True)
    call = console.backend.wait_call("single", timeout=PATIENCE / 1000)
    page.goto(f"{console.server.url}/console/")
    page.get_by_role("row").filter(has_text="running").get_by_role("link").click()
    tree = page.get_by_role("tree", name="Timeline")
    tree.get_by_role("treeitem", name=re.compile("^Stub, call, .* running$")).click()
    page.get_by_role("tab", name="Answer").click()
    expect(page.get_by_role("region", name="Details")).to_contain_text("The first half,")
    page.get_by_role("toolbar", name="Run actions").get_by_role("button", name="Stop").click()
    expect(status(page)).to_contain_text("cancelled")
    assert call.wait_ended(PATIENCE / 1000) and call.client_left
    sock.close()


def test_an_answered_run_tells_all(console: Console, page: Page) -> None:
    asked = console.server.ask(None, text=f"Hello {console.backend.hello}")
    run = asked.headers["x-request-id"]
    page.goto(f"{console.server.url}/console/#/runs/{run}")
    summary = page.get_by_role("region", name="Summary")
    expect(status(page)).to_contain_text("ok")
    expect(summary).to_contain_text("no category matched")
    tree = page.get_by_role("tree", name="Timeline")
    tree.get_by_role("treeitem", name=re.compile("^plain, Standard, ")).click()
    expect(page.get_by_role("region", name="Details")).to_contain_text("plain says hello.")
    tree.get_by_role("treeitem", name=re.compile("^Stub, call, ")).last.click()
    messages = page.get_by_role("list", name="Messages")
    expect(messages).to_contain_text("node:plain")
    expect(messages).to_contain_text(console.backend.hello)
    page.get_by_role("tab", name="Raw").click()
    expect(page.get_by_role("region", name="Details")).to_contain_text('"max_tokens": 100')


def is_saved(answer: Response) -> bool:
    return answer.request.method == "PUT" and answer.ok


def test_settings_are_kept_and_a_session_can_be_ended(
    console: Console, page: Page, open_context: Callable[..., BrowserContext]
) -> None:
    other = open_context(signed_in=False).new_page()
    other.goto(console.link())
    expect(other.get_by_role("heading", level=1)).to_have_text("Runs")
    page.goto(f"{console.server.url}/console/#/settings")
    days = page.get_by_role("spinbutton", name="Days")
    # What a page has not sent yet when it is left, it does not send.
    with page.expect_response(is_saved):
        days.fill("3")
        days.press("Enter")
    keep = page.get_by_role("switch", name="Keep texts on disk")
    with page.expect_response(is_saved):
        keep.click()
    expect(keep).to_be_checked()
    page.reload()
    expect(days).to_have_value("3")
    expect(keep).to_be_checked()
    browsers = page.get_by_role("table", name="Signed-in browsers").get_by_role("row")
    expect(browsers.filter(has_text="(this one)")).to_have_count(1)
    browsers.filter(has_not_text="(this one)").filter(has=page.get_by_role("button")).get_by_role("button").last.click()
    other.get_by_role("link", name="Settings").click()
    expect(other.get_by_role("heading", level=1)).to_have_text("Sign in")
    keep.click()
    expect(keep).not_to_be_checked()
    page.get_by_role("button", name="Delete all runs").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete all runs").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.get_by_role("link", name="Runs", exact=True).click()
    expect(page.get_by_role("heading", name="No runs yet")).to_be_visible()


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A working folder with the shipped configuration, whose demo back-end has a port of its own."""
    folder = tmp_path_factory.mktemp("clone")
    configs = folder / "Public" / "Configs"
    shutil.copytree(PROJECT / "Public" / "Configs", configs)
    # What a developer has chosen is no part of a clone.
    (configs / "Users" / "_current-user.json").unlink(missing_ok=True)
    server = demo_backend.start(0, delay=0.005)
    file = configs / "Endpoints" / "demo" / "Demo-LLM.json"
    file.write_text(
        json.dumps({**json.loads(file.read_text(encoding="utf-8")), "endpoint": server.url}), encoding="utf-8"
    )
    yield folder
    server.shutdown()
    server.server_close()


def test_a_fresh_clone_prints_a_link_to_its_first_answer(
    clone: Path, open_context: Callable[..., BrowserContext]
) -> None:
    terminal = pytest.importorskip("Tests.integration.terminal", reason="There are no pseudo-terminals.")
    words = [PROJECT / SCRIPT, "--PublicDirectory", clone / "Public", "--port", "0"]
    with terminal.Terminal(words, clone) as screen:
        # The line after the address: the link is whole by then.
        printed = LINK.findall(screen.wait("Demo user:", timeout=2 * PATIENCE / 1000))
        assert len(printed) == 1
        base = printed[0].partition("/console/")[0]
        body = {"messages": [{"role": "user", "content": "Write a poem about rain"}]}
        request = urllib.request.Request(
            f"{base}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
            said = json.loads(answer.read())["choices"][0]["message"]["content"]
        page = open_context(signed_in=False).new_page()
        page.goto(printed[0])
        table = page.get_by_role("table", name="Runs")
        row = table.get_by_role("row").filter(has_text="Write a poem about rain")
        expect(row).to_contain_text("STORY")
        expect(row).to_contain_text("ok")
        row.get_by_role("link").click()
        summary = page.get_by_role("region", name="Summary")
        expect(summary).to_contain_text("category STORY, named by")
        tree = page.get_by_role("tree", name="Timeline")
        nodes = tree.get_by_role("treeitem", name=re.compile(", Standard, "))
        expect(nodes.nth(1)).to_be_visible()
        nodes.last.click()
        expect(page.get_by_role("region", name="Details")).to_contain_text(said[:40])
        tree.get_by_role("treeitem", name=re.compile("^Demo-LLM, call, ")).last.click()
        expect(page.get_by_role("list", name="Messages")).to_contain_text("Write a poem about rain")
