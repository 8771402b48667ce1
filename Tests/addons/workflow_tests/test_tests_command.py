"""The command: what it takes, what it prints, how it ends, and that it leaves nothing behind."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from Middleware.cli.commands import all_commands
from Tests.addons.workflow_tests.lab import asks, run, run_json, says, static, test
from Tests.patience import CLIENT_PATIENCE
from Tests.windows import console_decides, needs_links

PROJECT = Path(__file__).resolve().parents[3]
GOOD = test(name="says hello", expect={"answer": "Hello"})
BAD = test(name="says goodbye", expect={"answer": "Goodbye"})
# Two seconds on an idle machine; one wait for a network is longer.
SHIPPED_LIMIT_SECONDS = 60.0


@pytest.fixture
def two(lab):
    """Two workflows, each with a passing and a failing test."""
    for name in ("One", "Two"):
        lab.workflow(name, static("Say", "Hello"))
        lab.suite(name, GOOD, BAD)
    return lab


# -- exit status and output --------------------------------------------------------------------------------------------


def test_the_command_is_known():
    assert "test" in all_commands()


def test_all_passed(lab, capsys):
    lab.workflow("One", static("Say", "Hello"))
    lab.suite("One", GOOD, GOOD)

    status, out, err = run(capsys)

    assert (status, err) == (0, "")
    assert out.splitlines()[0] == "ok    Workflows/tester/One.test.json: 2 passed"
    assert out.splitlines()[1].startswith("2 passed in ")


def test_a_failure_is_explained(two, capsys):
    status, out, _ = run(capsys)

    assert status == 1
    assert out.splitlines()[:5] == [
        "FAIL  Workflows/tester/One.test.json: 1 of 2 passed",
        "  says goodbye",
        "    expect.answer: expected to contain 'Goodbye'; there was:",
        "        Hello",
        "FAIL  Workflows/tester/Two.test.json: 1 of 2 passed",
    ]
    assert "2 passed, 2 failed in " in out.splitlines()[-1]


def test_a_mistake_in_a_file_counts_more_than_a_failure_and_the_others_run(two, capsys):
    two.workflow("Three", static("Say", "Hello"))
    two.suite("Three", GOOD, test(expext={}))

    status, out, _ = run(capsys)

    assert status == 2
    place = os.path.join("Configs", "Workflows", "tester", "Three.test.json")
    assert f"{place}:1:" in out and ": tests[1].expext: the key 'expext' is unknown and has no effect." in out
    assert "Did you mean 'expect'?" in out
    assert "ok    Workflows/tester/Three.test.json: 1 passed" in out
    assert "3 passed, 2 failed, 1 mistake in test files in " in out


def test_verbose_has_a_line_for_each_test(two, capsys):
    _, out, _ = run(capsys, "-v")

    lines = [line.rpartition(" (")[0] for line in out.splitlines() if line.startswith(("ok", "FAIL"))]
    assert lines == [
        f"{word}  Workflows/tester/{name}.test.json: {title}"
        for name in ("One", "Two")
        for word, title in (("ok  ", "says hello"), ("FAIL", "says goodbye"))
    ]


def test_json_says_all(two, capsys):
    two.workflow("Three", static("Say", "Hello"))
    two.suite("Three", test(expext={}))

    status, found = run_json(capsys)

    assert status == 2
    assert (found["passed"], found["failed"]) == (2, 2)
    assert [(entry["file"], entry["number"], entry["name"], entry["passed"]) for entry in found["tests"][:2]] == [
        ("Workflows/tester/One.test.json", 0, "says hello", True),
        ("Workflows/tester/One.test.json", 1, "says goodbye", False),
    ]
    assert found["tests"][1]["failures"] == [
        {"expectation": "expect.answer", "lines": ["expected to contain 'Goodbye'; there was:", "  Hello"]}
    ]
    assert found["mistakes"] == [
        {
            "file": "Workflows/tester/Three.test.json",
            "jsonPath": "tests[0].expext",
            "line": 1,
            "column": 82,
            "message": "the key 'expext' is unknown and has no effect",
            "suggestion": "expect",
            "expected": found["mistakes"][0]["expected"],
        }
    ]


@pytest.mark.parametrize(
    ("terminal", "environment", "coloured"),
    [
        pytest.param(True, {}, True, marks=console_decides),
        (False, {}, False),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"TERM": "dumb"}, False),
    ],
    ids=["terminal", "pipe", "no colour", "dumb"],
)
def test_colours_only_on_a_terminal(two, capsys, monkeypatch, terminal, environment, coloured):
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal, raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    _, out, _ = run(capsys)

    assert ("\x1b[31m" in out) is coloured


def test_warnings_are_shown_with_a_failing_test_only(lab, capsys):
    lab.workflow("One", {"title": "Say", "type": "StaticRespons", "endpointName": "Main"})
    lab.suite("One", test(replies=[{"reply": "x"}], expect={"answer": "y"}))
    lab.suite("One", test(replies=[{"reply": "x"}], expect={"answer": "y"}))

    _, out, err = run(capsys)

    assert "    log: WARNING: Workflow One, node 1: unknown type 'StaticRespons'" in out
    assert err == ""


@pytest.mark.slow
def test_a_pipe_is_utf8_whatever_the_code_page_is(lab, tmp_path):
    lab.workflow("One", static("Say", "Grüße 🦉"))
    lab.suite("One", test(name="Grüße 🦉", expect={"answer": "x"}))

    ended = _process(lab, {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})

    assert ended.returncode == 1
    assert "Grüße 🦉" in ended.stdout


# -- what to run -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("paths", "files"),
    [
        ((), ["One", "Two"]),
        (("tester",), ["One", "Two"]),
        (("tester/One",), ["One"]),
        (("tester/One.json",), ["One"]),
        (("tester/One.test.json",), ["One"]),
        (("tester/Two", "tester/One"), ["Two", "One"]),
        (("tester/One", "tester"), ["One", "Two"]),
        (("tester/",), ["One", "Two"]),
    ],
    ids=["all", "folder", "workflow", "with suffix", "test file", "two", "one twice", "slash"],
)
def test_paths_below_the_workflows(two, capsys, paths, files):
    _, found = run_json(capsys, *paths)

    assert list(dict.fromkeys(entry["file"] for entry in found["tests"])) == [
        f"Workflows/tester/{name}.test.json" for name in files
    ]


@pytest.mark.parametrize(
    "path", ["Workflows/tester/One", "./Workflows/tester/One.json", "Workflows/tester/One.test.json"]
)
def test_paths_from_the_working_directory(two, capsys, monkeypatch, path):
    monkeypatch.chdir(two.root)

    _, found = run_json(capsys, path)

    assert {entry["file"] for entry in found["tests"]} == {"Workflows/tester/One.test.json"}


def test_an_absolute_path(two, capsys):
    _, found = run_json(capsys, str(two.root / "Workflows" / "tester" / "One.json"))

    assert len(found["tests"]) == 2


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("tester/Onne", "there is no such workflow, test file or folder. Did you mean 'tester/One'?"),
        ("nowhere", "there is no such workflow, test file or folder."),
        ("mee", "there is no such workflow, test file or folder. Did you mean 'me'?"),
        ("tester/Bare", "they would be in Bare.test.json next to it; Docs/User/workflow-tests.md"),
        ("empty", "no file below this folder ends with .test.json; Docs/User/workflow-tests.md"),
    ],
    ids=["near", "far", "a folder of folders", "untested", "empty"],
)
def test_a_path_without_tests_is_wrong_use(two, capsys, path, message):
    two.workflow("Bare", static("Say", "x"))
    two.workflow("Bare", static("Say", "x"), folder="empty")
    deep = two.root / "Workflows" / "me" / "assistant" / "One.test.json"
    deep.parent.mkdir(parents=True)
    deep.write_text("{}", "utf-8")

    status, out, err = run(capsys, path)

    assert (status, out) == (2, "")
    assert err.startswith(f"ERROR: {path}: ") and message in err


def test_tests_of_another_configuration_are_refused(two, capsys, tmp_path, monkeypatch):
    other = tmp_path / "elsewhere" / "tester"
    other.mkdir(parents=True)
    (other / "One.test.json").write_text("{}", encoding="utf-8")
    (other / "Other.test.json").write_text("{}", encoding="utf-8")

    for path in (str(other), str(other / "Other"), str(other / "Other.test.json")):
        status, out, err = run(capsys, path)
        assert (status, out) == (2, "")
        assert err.startswith(f"ERROR: {path}: lies outside of ")
        assert str(two.root / "Workflows") in err and "--ConfigDirectory" in err

    monkeypatch.chdir(other.parent)  # a folder here is called like one of the configuration
    _, found = run_json(capsys, "tester")
    assert len(found["tests"]) == 4


@needs_links
def test_a_path_may_lead_over_a_link(two, capsys, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(two.root / "Workflows", target_is_directory=True)

    _, found = run_json(capsys, str(link / "tester" / "One"))

    assert {entry["file"] for entry in found["tests"]} == {"Workflows/tester/One.test.json"}


def test_a_number_of_jobs_that_is_none_is_told_in_words(two, capsys):
    _, _, err = run(capsys, "--jobs", "many")

    assert "argument --jobs: 'many' is not a whole number of at least 1" in err


@pytest.mark.parametrize(("text", "count"), [("goodbye", 2), ("GOODBYE", 2), ("One", 2), ("says", 4)])
def test_a_text_chooses_tests(two, capsys, text, count):
    _, found = run_json(capsys, "-k", text)

    assert len(found["tests"]) == count


def test_a_text_that_fits_nothing_is_wrong_use(two, capsys):
    status, _, err = run(capsys, "-k", "zebra")

    assert (status, err) == (2, "ERROR: no test has 'zebra' in its name or in that of its file\n")


@pytest.mark.parametrize(
    "words",
    [("--jobs", "0"), ("--jobs", "many"), ("--zebra",), ("-k",)],
    ids=["no job", "no number", "unknown", "no text"],
)
def test_wrong_use_prints_the_usage(two, capsys, words):
    status, _, err = run(capsys, *words)

    assert status == 2
    assert err.startswith("usage: ")


def test_an_option_that_is_nearly_one(two, capsys):
    status, _, err = run(capsys, "--verbos")

    assert status == 2 and err.endswith(": error: there is no option --verbos. Did you mean --verbose?\n")


def test_help_names_the_command(capsys):
    status, out, _ = run(capsys, "--help")

    assert status == 0
    assert " test [-h]" in " ".join(out.split()) and "PATH" in out


def test_another_configuration_can_be_named(two, capsys, tmp_path):
    other = tmp_path / "Other"
    (tmp_path / "Configs").rename(other)

    status, _, err = run(capsys, "--PublicDirectory", str(tmp_path / "nowhere"), "--ConfigDirectory", str(other))
    assert (status, err) == (1, "")

    status, _, err = run(capsys, "--ConfigDirectory", str(tmp_path / "nowhere"))
    assert status == 2 and "there is no configuration folder" in err

    other.rename(tmp_path / "Configs")
    status, _, err = run(capsys, "--ConfigDirectory", str(tmp_path))
    assert status == 2 and f"Did you mean --ConfigDirectory {tmp_path / 'Configs'}?" in err


@pytest.mark.parametrize("jobs", ["1", "3", "16"])
def test_the_output_does_not_depend_on_how_many_run_at_a_time(two, capsys, jobs):
    _, out, _ = run(capsys, "--jobs", jobs)

    assert [line for line in out.splitlines() if "Workflows/" in line] == [
        "FAIL  Workflows/tester/One.test.json: 1 of 2 passed",
        "FAIL  Workflows/tester/Two.test.json: 1 of 2 passed",
    ]


# -- as a process ------------------------------------------------------------------------------------------------------


def _process(lab, environment=None, program="server.py", command="test"):
    return subprocess.run(
        [sys.executable, str(PROJECT / program), command, "--ConfigDirectory", str(lab.root)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=CLIENT_PATIENCE,
        cwd=lab.root,
        env={**os.environ, **(environment or {})},
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("program", ["server.py", "run_waitress.py"])
@pytest.mark.parametrize(
    ("tests", "status"), [([GOOD], 0), ([GOOD, BAD], 1), ([GOOD, {}], 2)], ids=["passed", "failed", "wrong"]
)
def test_a_process_ends_with_the_status(lab, tests, status, program):
    lab.workflow("One", static("Say", "Hello"))
    lab.suite("One", *tests)

    assert _process(lab, program=program).returncode == status


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="a signal ends a process there without asking it")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_an_interrupted_run_is_no_success_and_leaves_nothing(lab, tmp_path, name):
    lab.workflow("One", *(static(f"Say {number}", "x") for number in range(200)))
    lab.suite("One", *[test()] * 2000)
    (tmp_path / "temp").mkdir()
    process = subprocess.Popen(
        [sys.executable, str(PROJECT / "server.py"), "test", "-v", "--jobs", "1", "--ConfigDirectory", str(lab.root)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env={**os.environ, "TMPDIR": str(tmp_path / "temp")},
    )
    with process:
        assert process.stdout is not None and process.stdout.readline().startswith("ok")
        process.send_signal(getattr(signal, name))
        _, err = process.communicate(timeout=CLIENT_PATIENCE)

    assert (process.returncode, err) == (130, "ERROR: interrupted; the other tests did not run\n")
    assert list((tmp_path / "temp").iterdir()) == []


@pytest.mark.slow
def test_the_check_of_the_configuration_says_the_same_of_test_files(lab):
    lab.workflow("One", static("Say", "Hello"))
    lab.suite("One", GOOD, test(expext={}))
    lab.text("Two.test.json", "{")
    lab.workflow("Two", static("Say", "Hello"))

    ended = _process(lab, command="check")

    assert ended.returncode == 1
    told = [line for line in ended.stdout.splitlines() if ".test.json:" in line]
    assert len(told) == 2
    assert "tests[1].expext: the key 'expext' is unknown" in told[0]
    assert "Two.test.json:1:2: error: not valid JSON" in told[1]


def _tree(folder):
    """Every file below a folder with what would change if it were touched."""
    return {
        str(path): (path.stat().st_mtime_ns, path.stat().st_size)
        for path in folder.rglob("*")
        if "__pycache__" not in path.parts
        and not path.is_dir()
        # A server that another test runs at the same time has its own files beside the conversations.
        and not path.name.startswith(".server-")
    }


@pytest.mark.slow
def test_nothing_is_left_behind_and_nothing_touched(lab, tmp_path):
    nodes = [
        {"title": "Save", "type": "SaveCustomFile", "filepath": str(tmp_path / "saved.txt"), "content": "x"},
        {"title": "Lock", "type": "WorkflowLock", "workflowLockId": "one"},
        asks("Ask", returnToUser=True),
        {"title": "Stamp", "type": "FullChatSummary"},
    ]
    lab.user(useFileLogging=True, discussionDirectory=str(tmp_path / "talks"), sqlLiteDirectory=str(tmp_path / "locks"))
    lab.workflow("One", *nodes)
    lab.suite(
        "One",
        test(
            messages=[says("hi [DiscussionId]x[/DiscussionId]")],
            replies={"Ask": "x"},
            expect={"files": {str(tmp_path / "saved.txt"): "x"}},
        ),
    )
    (tmp_path / "temp").mkdir()
    before = _tree(tmp_path)

    ended = _process(
        lab, {"TMPDIR": str(tmp_path / "temp"), "TEMP": str(tmp_path / "temp"), "TMP": str(tmp_path / "temp")}
    )

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert _tree(tmp_path) == before
    assert list((tmp_path / "temp").iterdir()) == []


# -- from the standard input -------------------------------------------------------------------------------------------


def test_a_test_file_that_is_not_there_is_read_from_the_standard_input(lab, capsys, monkeypatch):
    lab.workflow("One", static("Say", "Hello"))
    lab.suite("One", BAD)
    text = json.dumps({"tests": [GOOD]}).encode()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))

    status, out, _ = run(capsys, "--stdin-as", "tester/One.test.json")

    assert (status, out.splitlines()[0]) == (0, "ok    Workflows/tester/One.test.json: 1 passed")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--stdin-as", "tester/One.json"], "--stdin-as needs the path of a test file in a folder below"),
        (["--stdin-as", "nobody/One.test.json"], "--stdin-as needs the path of a test file in a folder below"),
        (["--stdin-as", "/etc/One.test.json"], "--stdin-as needs the path of a test file in a folder below"),
        (["tester/One", "--stdin-as", "tester/One.test.json"], "no other paths can be given"),
    ],
)
def test_what_the_standard_input_cannot_be(two, capsys, arguments, text):
    status, _, err = run(capsys, *arguments)

    assert status == 2 and text in err


# -- the shipped workflows ---------------------------------------------------------------------------------------------


def test_the_shipped_workflows_pass_without_network_and_touch_nothing(capsys, monkeypatch):
    monkeypatch.chdir(tempfile.gettempdir())
    public = PROJECT / "Public"
    before = _tree(public)
    started = time.monotonic()

    status, found = run_json(capsys, "--PublicDirectory", str(public))

    assert [(entry["file"], entry["name"], entry["failures"]) for entry in found["tests"] if entry["failures"]] == []
    assert (status, found["mistakes"]) == (0, [])
    assert time.monotonic() - started < SHIPPED_LIMIT_SECONDS
    assert _tree(public) == before


def test_each_demo_workflow_has_tests():
    folder = PROJECT / "Public" / "Configs" / "Workflows" / "demo"
    workflows = {path.name[: -len(".json")] for path in folder.glob("*.json") if not path.name.endswith(".test.json")}

    assert {path.name[: -len(".test.json")] for path in folder.glob("*.test.json")} == workflows


def test_a_shipped_test_file_is_json_with_a_schema():
    for path in (PROJECT / "Public" / "Configs" / "Workflows" / "demo").glob("*.test.json"):
        content = json.loads(path.read_text(encoding="utf-8"))
        assert (path.parent / content["$schema"]).resolve() == (
            PROJECT / "Public" / "Schemas" / "workflow-test.schema.json"
        ).resolve()
