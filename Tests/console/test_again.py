"""The page Try again with scripted answers of the API."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from Tests.console.scripted_runs import LATER, RUN
from Tests.console.scripted_server import Failure, ScriptedServer, Stream, World

ADDRESS = f"runs/{RUN['id']}/again/3"
FIGURES = {"us": 3_100_000, "first_token_us": 900_000, "tokens_in": 4096, "tokens_out": 97, "speed": 44.0}
CALL = {
    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Write a snake game"}],
    "endpoint": "Main",
    "preset": "Fast",
    "max_tokens": 800,
    "endpoints": ["Main", "Worker"],
    "presets": ["Fast", "Precise"],
    "recorded": {"text": "The recorded words.", "reasoning": "", **FIGURES},
}


def stream(*texts: tuple[str, ...], failed: str = "") -> Stream:
    """The events of a call that is sent once for each of ``texts``."""
    said = [("message", {"n": n, "text": text}) for n, pieces in enumerate(texts, 1) for text in pieces]
    end = [("error", {"error": {"message": failed}})] if failed else []
    return Stream([("message", {"run": LATER["id"], "time": 1}), *said, *end, ("run", {"run": LATER["id"]})])


def made(*calls: str) -> dict[str, object]:
    """The run that the calls have become, by their states."""
    told = {"usage.input_tokens": None, "usage.output_tokens": 12}
    spans: list[list[object]] = []
    for number, status in enumerate(calls):
        spans += [
            [
                2 * number + 1,
                None,
                "llm",
                "Main",
                0,
                2_000_000,
                status,
                {"time_to_first_token": 1_000_000},
                {} if status == "ok" else {"error": "Main refused the connection."},
            ],
            [2 * number + 2, 2 * number + 1, "attempt", "Main", 0, 2_000_000, status, told, {}],
        ]
    return {"run": LATER, "spans": spans}


def opened(page: Page, scripted: ScriptedServer, answer: object, run: object = None) -> World:
    scripted.world.script(
        {("GET", ADDRESS): CALL, ("POST", ADDRESS): answer, ("GET", f"runs/{LATER['id']}"): run or made("ok")}
    )
    page.goto(f"{scripted.url}#/again/{RUN['id']}/3")
    expect(page.get_by_role("heading", name="Try again", level=1)).to_be_visible()
    return scripted.world


def test_what_was_edited_is_what_is_sent(page: Page, scripted: ScriptedServer) -> None:
    api = opened(page, scripted, stream(("The new ", "words.")))
    system = page.get_by_role("textbox", name="Message 1 (system)")
    expect(system).to_have_value("Be brief.")
    system.fill("Be long.")
    expect(page.get_by_role("spinbutton", name="Times")).to_have_value("1")
    page.get_by_role("combobox", name="Endpoint").select_option("Worker")
    page.get_by_role("combobox", name="Preset").select_option("Precise")
    page.get_by_role("spinbutton", name="Longest answer").fill("50")
    page.get_by_role("button", name="Send").click()

    expect(page.get_by_role("region", name="New answer")).to_contain_text("The new words.")
    expect(page.get_by_role("region", name="Recorded answer")).to_contain_text("The recorded words.")
    expect(page.get_by_role("group", name="Difference")).to_be_visible()
    assert api.sent("POST", ADDRESS) == [
        {
            "messages": [{"role": "system", "content": "Be long."}, CALL["messages"][1]],
            "endpoint": "Worker",
            "preset": "Precise",
            "max_tokens": 50,
            "times": 1,
        }
    ]
    figures = page.get_by_role("table", name="Figures")
    assert figures.get_by_role("columnheader").all_inner_texts() == ["Recorded answer", "New answer"]
    for name, recorded, new in (
        ("Time", "3.1 s", "2.0 s"),
        ("First token", "0.9 s", "1.0 s"),
        ("Tokens in", "4,096", "not reported"),
        ("Tokens out", "97", "12"),
        ("Speed", "44/s", "12/s"),
    ):
        cells = figures.get_by_role("row", name=name).get_by_role("cell")
        expect(cells).to_have_text([recorded, new])
    expect(page.get_by_role("link", name="Open run")).to_have_attribute("href", f"#/runs/{LATER['id']}")


def test_several_answers_and_a_failed_one(page: Page, scripted: ScriptedServer) -> None:
    answers = [Failure(429, "The queue is full."), stream(("First.",), failed="Main refused the connection.")]
    api = opened(page, scripted, lambda _: answers.pop(0), made("ok", "error"))
    page.get_by_role("spinbutton", name="Times").fill("2")
    page.get_by_role("combobox", name="Preset").select_option("none")
    page.get_by_role("spinbutton", name="Longest answer").fill("")
    page.get_by_role("button", name="Send").click()
    page.get_by_role("alert").get_by_role("button", name="Try again").click()
    new = page.get_by_role("region", name="New answer")
    expect(new).to_contain_text("First.")
    expect(page.get_by_role("alert")).to_contain_text("Main refused the connection.")
    new.get_by_role("combobox", name="Answer").select_option("2")
    expect(new).to_contain_text("Main refused the connection.")
    figures = page.get_by_role("table", name="Figures")
    assert figures.get_by_role("columnheader").all_inner_texts() == ["Recorded answer", "New answer 1", "New answer 2"]
    last = api.sent("POST", ADDRESS)[-1]
    assert (last["preset"], last["max_tokens"], last["times"]) == (None, None, 2)


def test_a_call_that_cannot_be_sent_again_says_why(page: Page, scripted: ScriptedServer) -> None:
    scripted.world.script({("GET", ADDRESS): Failure(409, "The texts of this run were not kept.", "span 3")})
    page.goto(f"{scripted.url}#/again/{RUN['id']}/3")
    expect(page.get_by_role("alert")).to_contain_text("The texts of this run were not kept.")
