"""Every page of the console as a reader may meet it: full, empty, failed, running, very long, with a dialog open."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from playwright.sync_api import Locator, Page

from Tests.console import (
    made_runs,
    test_again,
    test_backends,
    test_compare,
    test_config,
    test_make_test,
    test_memory,
    test_playground,
    test_replay_dialog,
    test_run_file,
    test_workflows,
)
from Tests.console.scripted_runs import LATER, RUN, run_answer
from Tests.console.scripted_server import Answers, Failure, ScriptedServer, World

NO_RUNS = {"runs": [], "next": None, "total": 0, "event": 1, "choices": {"workflow": [], "endpoint": [], "user": []}}
ID = str(RUN["id"])
LONG_NODES = 500
DAY = 86_400 * made_runs.SECOND


@dataclass(frozen=True)
class View:
    """A page in one state.

    Attributes:
        address: its hash; a name in braces stands for the id of a run of ``full_world``.
        ready: finds what is drawn last.
        answers: what the API answers beyond the runs of ``full_world``.
        act: what is done before the page is looked at, such as opening a dialog.
        signed_in: whether somebody is signed in.
    """

    address: str
    ready: Callable[[Page], Locator]
    answers: Callable[[ScriptedServer], Answers] = lambda _: {}
    act: Callable[[Page], None] = lambda _: None
    signed_in: bool = True


def full_world() -> tuple[World, dict[str, str]]:
    """Return runs of every kind, with the ids of some by name."""
    world = World(12)
    spans = {
        "chat": (made_runs.chat_spans(), "ok", {}),
        "long": (made_runs.long_spans(LONG_NODES), "ok", {"workflow": "Long", "route": "LONG"}),
        "failed": (
            made_runs.failed_spans(),
            "failed",
            {"error": "Main: connection refused, 127.0.0.1:8080", "workflow": "Chat", "route": "me:chat"},
        ),
        "running": (made_runs.running_spans(), "running", {"answered": None}),
    }
    ids = {
        name: str(world.add(number, rows, status, **changes)["id"])
        for number, (name, (rows, status, changes)) in enumerate(spans.items(), 1)
    }
    # It began 20 seconds ago, by the clock of the list, and its times are as wide as they get.
    times = {
        name: world.now + seconds * made_runs.SECOND
        for name, seconds in (("first_token", 78), ("answered", 5 * 60 + 28), ("ended", 5 * 60 + 30))
    }
    world.add(len(spans) + 1, made_runs.chat_spans(), **times)
    # Of earlier days, with one digit and with two.
    world.runs += [made_runs.facts(2_000_000 + days, world.now - days * DAY) for days in (2, 12)]
    return world, ids


def named(role: str, name: str) -> Callable[[Page], Locator]:
    return lambda page: page.get_by_role(role, name=name, exact=True).first  # type: ignore[arg-type]


def _fixed(answers: Mapping[tuple[str, str], object]) -> Callable[[ScriptedServer], Answers]:
    return lambda _: answers


def _compare_versions(page: Page) -> None:
    page.get_by_role("button", name="History").click()
    page.get_by_role("dialog", name="History").get_by_role("radio").first.check()
    page.get_by_role("group", name="Difference").wait_for()


def _press(*names: str) -> Callable[[Page], None]:
    def press(page: Page) -> None:
        for name in names:
            page.get_by_role("button", name=name, exact=True).first.click()

    return press


def _choose(label: str, *tabs: str) -> Callable[[Page], None]:
    """Choose a span of the timeline by the beginning of its name, then tabs of its details."""

    def choose(page: Page) -> None:
        page.get_by_role("treeitem", name=label).first.click()
        for tab in tabs:
            page.get_by_role("tab", name=tab, exact=True).click()
            page.get_by_role("tab", name=tab, exact=True, selected=True).wait_for()

    return choose


def _talk(page: Page) -> None:
    test_playground.say(page, "What colour is the sky?")
    page.get_by_role("tree", name="Timeline").wait_for()


def _open_file(page: Page) -> None:
    test_run_file.choose(page, test_run_file.RUN_FILE)
    page.get_by_role("tree", name="Timeline").wait_for()


def _send_again(page: Page) -> None:
    page.get_by_role("button", name="Send", exact=True).click()
    page.get_by_role("group", name="Difference").wait_for()


def _fail_to_sign_in(page: Page) -> None:
    page.get_by_role("textbox", name="Access key").fill("wrong")
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("alert").wait_for()


def _show_keys(page: Page) -> None:
    page.keyboard.press("?")
    page.get_by_role("dialog").wait_for()


RUNS = named("table", "Runs")
TIMELINE = named("tree", "Timeline")
COMPARED = {
    ("GET", f"compare/{ID}/{LATER['id']}"): {
        "a": RUN,
        "b": LATER,
        "steps": test_compare.STEPS,
        "configuration": test_compare.CHANGES,
    },
    **{
        ("GET", f"runs/{run['id']}/texts/{span}"): {"output": f"from span {span} of {str(run['id'])[:4]}"}
        for run in (RUN, LATER)
        for span in (2, 5, 8, 9)
    },
}
AGAIN = {
    ("GET", test_again.ADDRESS): test_again.CALL,
    ("POST", test_again.ADDRESS): test_again.stream(("The new ", "words.")),
    ("GET", f"runs/{LATER['id']}"): test_again.made("ok"),
}
TEST = {("GET", f"runs/{ID}"): run_answer(), ("POST", test_make_test.BASE): test_make_test.made}
REPLAY = {("GET", f"runs/{ID}"): run_answer(), ("GET", test_replay_dialog.ADDRESS): {"nodes": test_replay_dialog.NODES}}
FLOWS = {
    ("GET", "workflows"): {"workflows": [test_workflows.SPARE, test_workflows.CODING, test_workflows.SEARCH]},
    ("GET", "map"): test_workflows.MAP,
    ("GET", "workflows/demo/Coding"): test_workflows.ONE,
}
TALK = {
    ("GET", "playground"): test_playground.MODELS,
    ("GET", f"runs/{ID}"): run_answer(),
    ("POST", "playground"): test_playground.chunks("Blue", ", mostly."),
}


def _mill(scripted: ScriptedServer) -> Answers:
    return {
        ("GET", "discussions"): {"discussions": [test_memory.MILL, test_memory.LOCKED]},
        ("GET", "discussions/mill"): test_memory.discussion(scripted),
    }


VIEWS = {
    "sign in": View("#/runs", named("heading", "Sign in"), signed_in=False),
    "sign in, refused": View("#/runs", named("heading", "Sign in"), act=_fail_to_sign_in, signed_in=False),
    "no such page": View("#/nowhere", named("heading", "No such page")),
    "runs": View("#/runs", RUNS),
    "runs, a search without hits": View("#/runs?q=xyzzy", named("heading", "No run matches")),
    "runs, none": View("#/runs", named("heading", "No runs yet"), _fixed({("GET", "runs"): NO_RUNS})),
    "runs, failed": View(
        "#/runs",
        lambda page: page.get_by_role("alert"),
        _fixed({("GET", "runs"): Failure(500, "The index cannot be read.", "Console/index.db")}),
    ),
    "shortcuts": View("#/runs", RUNS, act=_show_keys),
    "run": View("#/runs/{chat}", TIMELINE, act=_choose("Main, call", "Prompt")),
    "run, answer": View("#/runs/{chat}", TIMELINE, act=_choose("Main, call", "Answer")),
    "run, settings": View("#/runs/{chat}", TIMELINE, act=_choose("Main, call", "Settings")),
    "run, timing": View("#/runs/{chat}", TIMELINE, act=_choose("Main, call", "Timing")),
    "run, raw": View("#/runs/{chat}", TIMELINE, act=_choose("Main, call", "Raw")),
    "run, node": View("#/runs/{chat}", TIMELINE, act=_choose("Analyse,", "Output", "Configuration")),
    "run, failed": View("#/runs/{failed}", TIMELINE),
    "run, running": View("#/runs/{running}", TIMELINE),
    "run, long": View("#/runs/{long}", TIMELINE),
    "run, unknown": View("#/runs/0123", named("heading", "This run is not here")),
    "run, export": View("#/runs/{chat}", TIMELINE, act=_press("Export")),
    "run, delete": View("#/runs/{chat}", TIMELINE, act=_press("Delete")),
    "run, replay": View(f"#/runs/{ID}", TIMELINE, _fixed(REPLAY), _press("Replay")),
    "run, compare with": View("#/runs/{chat}", TIMELINE, act=_press("Compare with...")),
    "run file": View("#/file", named("heading", "No file is open"), act=_open_file),
    "make a test": View(f"#/runs/{ID}/test", named("textbox", "Test file"), _fixed(TEST)),
    "try again": View(f"#/again/{ID}/3", named("heading", "Try again"), _fixed(AGAIN), _send_again),
    "compare runs": View(f"#/compare/{ID}/{LATER['id']}", named("table", "Steps"), _fixed(COMPARED)),
    "workflows": View("#/workflows", named("figure", "Map"), _fixed(FLOWS), _press("Map as table")),
    "workflow": View("#/workflows/demo/Coding", named("figure", "Map"), _fixed(FLOWS)),
    "playground": View("#/playground", named("log", "Conversation"), _fixed(TALK), _talk),
    "memory": View("#/memory", named("table", "Discussions"), _mill),
    "memory, one": View(
        "#/memory/mill?part=searchable&folder=none",
        named("article", "Memory 2"),
        _mill,
        lambda page: page.get_by_role("button", name="Edit").first.click(),
    ),
    "memory, messages": View(
        "#/memory/mill?part=messages&folder=none", named("article", "Message 128"), _mill, _press("Delete")
    ),
    "memory, elsewhere": View(
        "#/memory/mill?part=memories&folder=none",
        named("article", "Memory 130"),
        _mill,
        lambda page: page.get_by_text("Elsewhere").click(),
    ),
    "memory, delete": View("#/memory/mill", named("article", "Summary"), _mill, _press("Delete discussion")),
    "backends": View(
        "#/backends",
        named("table", "Endpoints"),
        _fixed(
            {
                ("GET", "backends"): {
                    **test_backends.asked(status="loading"),
                    "endpoints": [test_backends.MAIN, *test_backends.asked()["endpoints"]],
                }
            }
        ),
    ),
    "configuration": View("#/config", named("tree", "Files"), _fixed(test_config.SCRIPT)),
    "configuration, a file": View(
        "#/config?file=Workflows/demo/Coding.json",
        lambda page: page.get_by_role("list", name="Findings").get_by_role("listitem"),
        _fixed(test_config.SCRIPT),
    ),
    "configuration, history": View(
        "#/config?file=Workflows/demo/Coding.json",
        named("textbox", "Configuration file"),
        _fixed(test_config.SCRIPT),
        _compare_versions,
    ),
    "settings": View("#/settings", named("table", "Changes")),
}
