"""The run console of a real server: signing in by the link, live events, stop, playground, and what it leaves alone."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from Middleware.addons.records.store.writer import WRITER
from Tests.integration.console_server import API, Console, Stream, found_in_time
from Tests.integration.launcher import (
    PROJECT,
    USER,
    Backend,
    Launcher,
    run_launcher,
    standard_tree,
    streamed_text,
    stuck,
)
from Tests.workflows.engine_lab import until

SCRIPT = "run_waitress.py"
STREAMS = 16


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    with Backend() as backend:
        console = Console(tmp_path_factory.mktemp("console"), backend, SCRIPT)
        with console.server:
            console.sign_in()
            yield console


@pytest.fixture
def console(running: Console) -> Console:
    running.backend.reset()
    return running


def test_the_start_names_the_console(console: Console) -> None:
    # Not on a terminal, so no code is printed into what may be a log file.
    output = console.server.output()
    assert f"  Console:        {console.server.url}/console/\n" in output and "signin" not in output


def test_a_request_is_listed_with_what_was_sent_and_answered(console: Console) -> None:
    answer = console.server.ask("Chain", text="What is " + console.backend.hello)
    run = found_in_time(
        lambda: next(
            (run for run in console.runs() if run["id"] == answer.headers["x-request-id"] and run["status"] == "ok"),
            None,
        )
    )
    assert run["workflow"] == "_shared/Chain" or "Chain" in str(run["workflow"])
    whole = console.call("GET", f"runs/{run['id']}")
    titles = [span[3] for span in whole["spans"] if span[2] == "node"]
    assert titles == ["first", "second", "third"] and whole["explanation"]["text"]
    attempt = next(span for span in whole["spans"] if span[2] == "attempt")
    texts = console.call("GET", f"runs/{run['id']}/texts/{attempt[0]}")
    assert texts["payload"] == json.loads(console.backend.calls("first")[0].body)


def test_a_stream_tells_of_a_run_from_its_beginning_to_its_end(console: Console) -> None:
    console.backend.replies["single"] = stuck("Once ")
    stream = Stream(console.send("GET", "events"))
    sock = console.server.open("Single", stream=True)
    begun = stream.wait_for(lambda name, value: name == "run" and value["run"]["status"] == "running")["run"]
    console.backend.wait_call("single")
    one = Stream(console.send("GET", f"events?run={begun['id']}&after=0"))
    # While the model writes, and not only at the end.
    reading = one.wait_for(
        lambda name, value: name == "span" and value["span"][2] == "llm" and value["span"][7].get("time_to_first_token")
    )
    assert reading["run"] == begun["id"] and reading["span"][6] == "running"
    one.close()
    assert console.call("POST", f"runs/{begun['id']}/stop")["stopping"]
    ended = stream.wait_for(
        lambda name, value: name == "run" and value["run"]["id"] == begun["id"] and value["run"]["ended"] is not None
    )["run"]
    assert ended["status"] == "cancelled"
    sock.close()
    stream.close()


def test_events_go_on_where_the_last_stream_ended(console: Console) -> None:
    number = console.call("GET", "runs")["event"]
    answer = console.server.ask("Single")
    news = console.call("GET", f"events?wait=0&after={number}")
    assert [event["data"]["run"]["id"] for event in news["events"] if event["event"] == "run"] == [
        answer.headers["x-request-id"]
    ]
    assert all(number < event["n"] <= news["next"] for event in news["events"] if event["event"] != "hello")
    # Of a server that was stopped, and of one whose clock was ahead.
    for unknown in (number - 10**12, number + 10**12):
        begun_again = console.call("GET", f"events?wait=0&after={unknown}")["events"][0]
        assert begun_again["event"] == "hello" and begun_again["data"]["reset"]


def test_stop_reaches_the_back_end(console: Console) -> None:
    console.backend.replies["single"] = stuck()
    sock = console.server.open("Single", stream=True)
    console.backend.wait_call("single")
    run = found_in_time(lambda: next((run for run in console.runs("?status=running")), None))
    began = time.monotonic()
    console.call("POST", f"runs/{run['id']}/stop")
    assert until(lambda: console.call("GET", f"runs/{run['id']}")["run"]["ended"], 60)
    # A stop that does not reach the server ends with the silence that it may keep: minutes.
    assert time.monotonic() - began < 20
    sock.close()
    assert console.call("POST", f"runs/{run['id']}/stop", status=409)["error"]["message"]


def test_a_full_gate_holds_up_no_call_of_the_console(console: Console) -> None:
    console.backend.replies["single"] = stuck()
    socks = [console.server.open("Single", stream=True) for _ in range(2)]
    waiting = found_in_time(lambda: next((run for run in console.runs("?status=queued")), None))
    assert console.call("GET", "session")["role"] == "operator"
    for run in console.runs("?status=running,queued"):
        console.call("POST", f"runs/{run['id']}/stop", status=None)
    until(lambda: console.call("GET", f"runs/{waiting['id']}")["run"]["ended"])
    for sock in socks:
        sock.close()


def test_the_playground_answers_as_a_client_is_answered(console: Console) -> None:
    models = [model["id"] for model in console.call("GET", "playground")["models"]]
    assert "Single" in models or f"{USER}:Single" in models
    message = {"role": "user", "content": console.backend.hello}
    answer = console.send("POST", "playground", {"model": "Single", "messages": [message]})
    assert answer.status == 200 and streamed_text(answer.read()) == "single says hello."
    run_id = answer.headers["X-Request-Id"]
    run = found_in_time(
        lambda: next((run for run in console.runs("?kind=playground&status=ok") if run["id"] == run_id), None)
    )
    assert run["model"] == "Single"
    whole = console.call("POST", "playground", {"model": "Single", "messages": [message], "stream": False})
    assert whole["choices"][0]["message"]["content"] == "single says hello."
    wrong = console.call("POST", "playground", {"messages": [], "discussion": "../x"}, status=400)
    assert wrong["error"]["where"] == "messages"


def test_calls_of_the_console_are_no_runs(console: Console) -> None:
    before = console.call("GET", "runs")["total"]
    console.call("PUT", "settings", {"days": 7})
    console.call("POST", "session", {"key": "nobody"}, status=200)
    console.call("GET", "settings")
    assert console.call("GET", "runs")["total"] == before
    assert "/console" not in console.server.output().split("Console:")[1].split("\n", 1)[1]


def test_sixteen_streams_and_no_more(console: Console) -> None:
    streams: list[http.client.HTTPResponse] = []

    def all_open() -> bool:
        for stream in streams:
            stream.close()
        # The server looks for news, and for closed connections, twice a second.
        time.sleep(1.2 if streams else 0)
        streams[:] = [console.send("GET", "events") for _ in range(STREAMS)]
        return {stream.status for stream in streams} == {200}

    # That the streams of earlier tests were closed is noticed at the next write.
    assert until(all_open)
    refused = console.send("GET", "events")
    assert refused.status == 503 and refused.headers["Retry-After"] == "3"
    refused.close()
    assert console.call("GET", "events?wait=0")["next"]
    for stream in streams:
        stream.close()
    assert until(lambda: console.send("GET", "events").status == 200)


def test_revoking_signs_every_operator_out(console: Console) -> None:
    assert "Operator sessions ended: " in console.link("--revoke").stdout
    assert console.call("GET", "session", status=401)["error"]["type"] == "unauthorized"
    console.token = ""
    console.sign_in()


def test_without_a_server_there_is_no_link(tmp_path: Path) -> None:
    done = run_launcher(SCRIPT, "console", "--PublicDirectory", tmp_path)
    assert done.returncode == 1 and "No server of this configuration is running" in done.stderr


# A server that says what it has imported, and which threads it has, when a file appears.
WATCHED = """
import json, os, sys, threading, time

PROJECT, QUESTION = {places}

def watch(question):
    while not os.path.exists(question):
        time.sleep(0.02)
    found = dict(modules=sorted(sys.modules), threads=[thread.name for thread in threading.enumerate()])
    with open(question + ".part", "w", encoding="utf-8") as file:
        json.dump(found, file)
    os.replace(question + ".part", question + ".answer")

sys.path.insert(0, PROJECT)
threading.Thread(target=watch, args=[QUESTION], daemon=True).start()
import run_waitress
sys.exit(run_waitress.main())
"""
PACKAGES = (
    "Middleware.addons.console",
    "Middleware.addons.records",
    "Middleware.addons.console.workflow_catalog",
    "Middleware.addons.console.editing",
)


@pytest.mark.parametrize("mode", ["off", "on"])
def test_off_leaves_no_trace(tmp_path: Path, shared_backend: Backend, mode: str) -> None:
    tree = standard_tree(tmp_path / "Public", shared_backend.url)
    script, question = tmp_path / "watched.py", tmp_path / "question"
    script.write_text(WATCHED.format(places=[str(PROJECT), str(question)]), "utf-8")
    before = set(tmp_path.rglob("*"))
    with Launcher(
        str(script), "--PublicDirectory", tree.public, "--User", USER, "--console", mode, backend=shared_backend
    ) as server:
        assert server.ask("Single").status == 200
        paths = [
            "/console/",
            "/console",
            "/console/static/app.js",
            "/metrics",
            *{f"{API}{one}" for one in ("session", "runs", "runs/1", "events", "settings", "config/files")},
        ]
        statuses = {path: server.request("GET", path).status for path in paths}
        unknown = server.request("GET", "/no-such-path").status
        if mode == "on":
            assert until(lambda: (tree.public / "Console").exists())
        question.touch()
        answer = question.with_name("question.answer")
        assert until(answer.exists)
        found = json.loads(answer.read_text("utf-8"))
        output = server.output()
    # What names an add-on's flags and commands is loaded at every start.
    rooms = [
        name for name in found["modules"] if name.startswith(PACKAGES) and name.removesuffix(".addon") not in PACKAGES
    ]
    threads = [name for name in found["threads"] if name == WRITER]
    files = {path for path in tmp_path.rglob("*") if path not in before and "Console" in path.parts}
    if mode == "off":
        assert set(statuses.values()) == {unknown} == {404}
        assert (rooms, threads, files) == ([], [], set()) and "Console" not in output
    # What this test looks for is what there would be.
    else:
        assert statuses["/console/"] == 200 and rooms and threads and files and "Console" in output
