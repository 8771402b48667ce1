"""The page Backends with scripted answers of the API."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from Tests.console.scripted_server import Failure, ScriptedServer

QUIET = [{"calls": 0, "failed": 0}] * 22
MAIN = {
    "name": "Main",
    "server": "127.0.0.1:8080",
    "type": "llamaCppServer",
    "status": "not asked",
    "model": None,
    "slots": None,
    "calls": 412,
    "failed": 4,
    "first_token_us": 812_000,
    "speed": 54.2,
    "last_error": None,
    "hours": [*QUIET, {"calls": 400, "failed": 4}, {"calls": 12, "failed": 0}],
}
NEW = {
    "name": "New",
    "server": "llm.example.org",
    "type": "openAIChatCompletion",
    "status": "not asked",
    "model": None,
    "slots": None,
    "calls": 0,
    "failed": 0,
    "first_token_us": None,
    "speed": None,
    "last_error": None,
    "hours": [{"calls": 0, "failed": 0}] * 24,
}
QUEUE = {"level": "request", "limit": 4, "running": 2, "waiting": 1}
HEADERS = [
    "Endpoint",
    "Server",
    "Status",
    "Model",
    "Slots",
    "Calls (24 h)",
    "Failed",
    "First token",
    "Speed",
    "Last error",
]


def asked(**changes: object) -> dict[str, object]:
    known = {**MAIN, "status": "healthy", "model": "qwen3-32b", "slots": "1 of 4 busy", **changes}
    return {"queue": QUEUE, "endpoints": [known, {**NEW, "status": "stopped"}]}


def test_figures_come_without_asking_and_states_only_on_request(page: Page, scripted: ScriptedServer) -> None:
    answers = [asked(), Failure(502, "Nothing answers."), asked(status="loading")]
    scripted.world.script(
        {
            ("GET", "backends"): {"queue": QUEUE, "endpoints": [MAIN, NEW]},
            ("POST", "backends/check"): lambda _: answers.pop(0),
        }
    )
    page.goto(f"{scripted.url}#/backends")
    expect(page.get_by_role("region", name="Queue")).to_contain_text("2 of 4")
    table = page.get_by_role("table", name="Endpoints")
    assert table.get_by_role("columnheader").all_inner_texts() == HEADERS
    main, new = table.get_by_role("row").nth(1), table.get_by_role("row").nth(2)
    for words in ("127.0.0.1:8080", "not asked", "not reported", "412", "4 (1%)", "0.8 s", "54/s", "none"):
        expect(main).to_contain_text(words)
    strip = main.get_by_role("img", name="Last 24 hours: most calls 1 hour ago, 400; 4 failed")
    expect(strip).to_be_visible()
    expect(new.get_by_role("img", name="No calls in the last 24 hours")).to_be_visible()
    expect(page.get_by_role("checkbox", name="Every 5 seconds")).not_to_be_checked()
    assert [call for call in scripted.world.calls if call[1] != "session"] == [("GET", "backends")]

    page.get_by_role("button", name="Check now").click()
    for words in ("healthy", "qwen3-32b", "1 of 4 busy"):
        expect(main).to_contain_text(words)
    expect(new).to_contain_text("stopped")

    # Asked again at once, and what went wrong is said without losing the figures.
    page.get_by_role("checkbox", name="Every 5 seconds").check()
    expect(page.get_by_role("alert")).to_contain_text("Nothing answers.")
    page.get_by_role("alert").get_by_role("button", name="Try again").click()
    expect(main).to_contain_text("loading")
    expect(page.get_by_role("alert")).to_have_count(0)


def test_an_empty_list_says_where_endpoints_come_from(page: Page, scripted: ScriptedServer) -> None:
    scripted.world.script({("GET", "backends"): {"queue": {**QUEUE, "limit": None}, "endpoints": []}})
    page.goto(f"{scripted.url}#/backends")
    expect(page.get_by_role("heading", name="No endpoints")).to_be_visible()
    expect(page.get_by_role("region", name="Queue")).to_contain_text("2 of any number")
