"""The page Playground with scripted answers of the API."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from Tests.console.scripted_runs import RUN, run_answer
from Tests.console.scripted_server import Failure, ScriptedServer, Stream, World

MODELS = {"models": [{"id": "me:chat"}, {"id": "me:coding"}]}


def chunks(*texts: str) -> Stream:
    events = [("message", {"choices": [{"delta": {"content": text}}]}) for text in texts]
    return Stream([*events, ("message", "[DONE]")], {"X-Request-Id": RUN["id"]})


def opened(page: Page, scripted: ScriptedServer, answer: object) -> World:
    scripted.world.script(
        {("GET", "playground"): MODELS, ("POST", "playground"): answer, ("GET", f"runs/{RUN['id']}"): run_answer()}
    )
    page.goto(f"{scripted.url}#/playground")
    expect(page.get_by_role("combobox", name="Model")).to_have_value("me:chat")
    return scripted.world


def say(page: Page, text: str) -> None:
    page.get_by_role("textbox", name="Message").fill(text)
    page.get_by_role("button", name="Send").click()


def test_a_conversation_is_sent_as_a_client_sends_it(page: Page, scripted: ScriptedServer) -> None:
    api = opened(page, scripted, chunks("Blue", ", mostly."))
    page.get_by_role("combobox", name="Model").select_option("me:coding")
    page.get_by_role("textbox", name="System prompt").fill("Be brief.")
    page.get_by_role("textbox", name="Discussion id").fill("mill")
    log = page.get_by_role("log", name="Conversation")
    say(page, "What colour is the sky?")
    expect(log).to_contain_text("Blue, mostly.")
    say(page, "Why?")
    # The article is there before the question is sent; the answer says that it arrived.
    expect(log.get_by_role("article").nth(3)).to_contain_text("Blue, mostly.")
    expect(log.get_by_role("article")).to_have_count(4)

    first = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What colour is the sky?"}]
    earlier = [*first, {"role": "assistant", "content": "Blue, mostly."}, {"role": "user", "content": "Why?"}]
    assert api.sent("POST", "playground") == [
        {"model": "me:coding", "messages": messages, "stream": True, "discussion": "mill"}
        for messages in (first, earlier)
    ]

    expect(page.get_by_role("tree", name="Timeline")).to_be_visible()
    expect(page.get_by_role("link", name="Open run")).to_have_attribute("href", f"#/runs/{RUN['id']}")

    # Another page and back: the conversation is still there, until it is cleared.
    page.get_by_role("link", name="Runs", exact=True).click()
    page.go_back()
    expect(log.get_by_role("article")).to_have_count(4)
    page.get_by_role("button", name="New conversation").click()
    expect(log.get_by_role("article")).to_have_count(0)


def test_a_failed_answer_is_an_alert_and_can_be_tried_again(page: Page, scripted: ScriptedServer) -> None:
    answers = [
        Failure(503, "No server answered."),
        Stream([("message", {"error": {"message": "It broke off."}})]),
        chunks("Now it works."),
    ]
    api = opened(page, scripted, lambda _: answers.pop(0))
    say(page, "Hello")
    expect(page.get_by_role("alert")).to_contain_text("No server answered.")
    page.get_by_role("alert").get_by_role("button", name="Try again").click()
    expect(page.get_by_role("alert")).to_contain_text("It broke off.")
    page.get_by_role("alert").get_by_role("button", name="Try again").click()
    expect(page.get_by_role("log", name="Conversation")).to_contain_text("Now it works.")
    expect(page.get_by_role("alert")).to_have_count(0)
    assert [body["messages"] for body in api.sent("POST", "playground")] == [[{"role": "user", "content": "Hello"}]] * 3
