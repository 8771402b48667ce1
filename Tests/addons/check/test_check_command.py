"""``check`` as people run it: options, exit status, what is printed where, and servers that answer or do not."""

from __future__ import annotations

import json
import os
import re
import socket
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from Middleware.addons.check import directory_check
from Middleware.cli.commands import all_commands
from Middleware.common import instance_global_variables as instance
from Middleware.utilities import config_utils
from Tests.addons.check.config_tree import ENDPOINT, SPARE, USER, changed, llm, nodes, put, write_tree
from Tests.free_ports import free_port
from Tests.integration.launcher import LAUNCHERS, run_launcher
from Tests.stub_backend import StubBackend, status_reply
from Tests.windows import tells_capitals_apart

check = all_commands()["check"].run

WRONG = changed(USER, routingConfig="rutes")
BOB = "Users/bob.json"
ODD = changed(USER, port="abc")


@pytest.fixture(autouse=True)
def process_wide_names(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in (
        "CONFIG_DIRECTORY",
        "PUBLIC_DIRECTORY",
        "DISCUSSION_DIRECTORY",
        "USER_LEVEL_SQLITE_DIRECTORY",
        "USERS",
        "FILE_LOGGING",
        "PORT",
    ):
        monkeypatch.setattr(instance, name, None)
    for name in (
        "LISTEN_ADDRESS",
        "CONCURRENCY_LIMIT",
        "CONCURRENCY_TIMEOUT",
        "CONCURRENCY_LEVEL",
        "MAX_REQUEST_MB",
        "ALLOWED_ORIGINS",
    ):
        monkeypatch.setattr(instance, name, getattr(instance, name))
    config_utils.reset_config_store()
    yield
    config_utils.reset_config_store()


# -- as a process ------------------------------------------------------------------------------------------------------


def launched(public: Path, *words: str, script: str = "server.py") -> subprocess.CompletedProcess[str]:
    return run_launcher(script, "check", "--PublicDirectory", public, *words)


@pytest.mark.slow
@pytest.mark.parametrize("script", LAUNCHERS)
def test_every_launcher_checks(script: str, tmp_path: Path) -> None:
    write_tree(tmp_path, WRONG)
    ended = launched(tmp_path, script=script)
    assert ended.returncode == 1
    path, _, message = ended.stdout.split("\n")[0].partition(":2:3: error: ")
    assert os.path.join(tempfile.gettempdir(), path) == str(tmp_path / "Configs" / "Users" / "alice.json")
    assert message.startswith("routingConfig: routing configuration 'rutes' does not exist")
    assert "Did you mean 'routes'?" in ended.stdout
    assert ended.stderr == ""
    assert "\033" not in ended.stdout  # a pipe is no terminal


@pytest.mark.slow
def test_exit_status(tmp_path: Path) -> None:
    write_tree(tmp_path)
    assert launched(tmp_path).returncode == 0
    write_tree(tmp_path, ODD)
    assert launched(tmp_path).returncode == 0
    assert launched(tmp_path, "--strict").returncode == 1
    assert launched(tmp_path, "--nonsense").returncode == 2


@pytest.mark.slow
def test_json_is_all_that_is_printed(tmp_path: Path) -> None:
    write_tree(tmp_path, WRONG, put("Users/bob.json", b'{"port": "\xe4"}'))
    ended = launched(tmp_path, "--json")
    told = json.loads(ended.stdout)
    assert (ended.returncode, ended.stderr) == (1, "")
    assert told["users"] == ["alice", "bob"] and told["errors"] >= 1
    assert {one["file"] for one in told["findings"]} == {"Users/alice.json", "Users/bob.json"}


@pytest.mark.slow
def test_a_folder_of_that_name(tmp_path: Path) -> None:
    """The word wins over the older positional ConfigDirectory; written as a path it is the folder."""
    configs = write_tree(tmp_path, WRONG)
    for words in ((str(configs),), ("--ConfigDirectory", str(configs)), (str(configs), "alice")):
        ended = run_launcher("server.py", "check", *words)
        assert ended.returncode == 1 and "rutes" in ended.stdout
    ended = run_launcher("server.py", f".{os.sep}check", "alice")
    assert (ended.returncode, "Config file not found for user 'alice'" in ended.stderr) == (1, True)


@pytest.mark.parametrize(
    ("words", "files"),
    [
        ((USER,), [USER]),
        (("{configs}/Users",), [USER, BOB]),
        (
            ("Workflows",),
            ["Workflows/alice/General.json", "Workflows/alice/Other.json.txt", "Workflows/bob/X.json.txt"],
        ),
        (("Workflows/alice/Other.json.txt",), ["Workflows/alice/Other.json.txt"]),
        (("Endpoints/home", "{configs}/" + USER), [ENDPOINT, USER]),
        (("Presets",), []),
        (("alice", "Endpoints"), [ENDPOINT]),
        (("alice", BOB), [BOB]),
        (("alice",), [ENDPOINT, USER, "Workflows/alice/General.json", "Workflows/alice/Other.json.txt"]),
    ],
)
@pytest.mark.parametrize("flag", ["--PublicDirectory", "--ConfigDirectory", ""])
def test_files_and_folders(
    words: tuple[str, ...],
    files: list[str],
    flag: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    configs = write_tree(
        tmp_path,
        ODD,
        changed(ENDPOINT, prt=5),
        put("Workflows/alice/Other.json.txt", "{}"),
        nodes(llm(promt="x")),
        put(BOB, {"prt": 5}),
        put("Workflows/bob/X.json.txt", "{}"),
    )
    monkeypatch.chdir(configs)
    given = {"--PublicDirectory": [flag, str(tmp_path)], "--ConfigDirectory": [flag, str(configs)], "": []}
    if not flag:
        # Without a flag, the root is found from a path inside it.
        if "alice" in words:
            return
        words = tuple(str(configs / word.replace("{configs}/", "")) for word in words)
    check(["--json", *given[flag], *(word.replace("{configs}", str(configs)) for word in words)])
    told = json.loads(capsys.readouterr().out)
    assert sorted({one["file"] for one in told["findings"]}) == files
    assert told["configuration"] == str(configs)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        (
            "Workflows/alice/Generl.json",
            f"There is no file Workflows/alice/Generl.json. Did you mean Workflows/alice{os.sep}General.json?",
        ),
        ("Workflows/alice/notes.md", "notes.md is not a configuration file: their names end in .json."),
        ("{tmp}/x.json", "x.json is in no configuration folder"),
    ],
)
def test_what_is_no_file_of_the_configuration(
    word: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configs = write_tree(tmp_path / "Public", put("Workflows/alice/notes.md", "x"))
    (tmp_path / "x.json").write_text("{}", "utf-8")
    assert check(["--PublicDirectory", str(configs.parent), word.replace("{tmp}", str(tmp_path))]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("words", [("--strict",), ("--strict", USER)])
def test_a_broken_endpoint_is_named_where_it_is_in_scope(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a whole configuration the broken file has the finding; of one file, that file has one about its name."""
    write_tree(tmp_path, put(ENDPOINT, "{"))
    check(["--json", "--PublicDirectory", str(tmp_path), "Workflows/alice/General.json", *words])
    assert {one["file"] for one in json.loads(capsys.readouterr().out)["findings"]} == {"Workflows/alice/General.json"}


@pytest.mark.slow
def test_source_lines(tmp_path: Path) -> None:
    """What a user sees."""
    write_tree(tmp_path, WRONG)
    assert launched(tmp_path).stdout.split("\n")[1:5] == [
        '    2 |   "routingConfig": "rutes",',
        "      |   " + "^" * len('"routingConfig"'),
        "    Did you mean 'routes'?",
        "",
    ]


@pytest.fixture
def alices_public(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_tree(tmp_path, put("Users/bob.json", {}))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


@pytest.mark.parametrize("words", [("alice",), ("ALICE",), ("alice", "bob"), ("--User", "bob", "alice")])
def test_a_name_without_its_flag(
    words: tuple[str, ...], alices_public: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check(["--PublicDirectory", str(alices_public), "--json", *words])
    told = json.loads(capsys.readouterr().out)
    assert sorted(name.lower() for name in told["users"]) == (["alice", "bob"] if "bob" in words else ["alice"])
    assert told["configuration"] == str(alices_public / "Configs")


def test_a_name_beside_the_flag_of_the_folder(alices_public: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(["--ConfigDirectory", str(alices_public / "Configs"), "alice"]) == 0
    assert "1 user" in capsys.readouterr().out


def test_a_folder_comes_before_a_name(alices_public: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (alices_public / "here" / "alice").mkdir()
    check(["--PublicDirectory", str(alices_public), "alice"])
    assert "0 users" in capsys.readouterr().out


def test_a_word_that_is_neither(alices_public: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(["--PublicDirectory", str(alices_public), "alicia"]) == 1
    told = capsys.readouterr()
    assert told.out == "" and told.err == (
        "ERROR: There is no user 'alicia', and no configuration folder of that name.\n"
        "The users that exist: alice, bob. Did you mean 'alice'?\n"
    )


@pytest.mark.parametrize(
    ("words", "missing", "flag"),
    [
        (("--PublicDirectory", "Pulic"), "Pulic", "--PublicDirectory"),
        (("--PublicDirectory", "."), "Configs", "--PublicDirectory"),
        (("--ConfigDirectory", "cfg"), "cfg", "--ConfigDirectory"),
        (("--ConfigDirectory", "cfg", "--PublicDirectory", "Pulic"), "cfg", "--ConfigDirectory"),
        ((f".{os.sep}cfg",), "cfg", "--ConfigDirectory"),
    ],
)
def test_the_missing_folder_and_its_flag(
    words: tuple[str, ...], missing: str, flag: str, alices_public: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(words) == 1
    assert capsys.readouterr().out.startswith(
        f"{missing}: error: there is no such folder\n    Expected: {flag} with the path of the folder"
    )


def test_the_folder_above_the_configuration(alices_public: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(["--ConfigDirectory", str(alices_public)]) == 1
    out = capsys.readouterr().out
    assert out.count("error") == 2 and ": error: the folder holds no folder 'Users'\n" in out
    assert f"Did you mean '{alices_public / 'Configs'}'?" in out


def test_another_spelling_is_noted_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tree(tmp_path, changed(USER, endpointConfigsSubDirectory="HOME"))
    assert check(["--PublicDirectory", str(tmp_path), "--json"]) == 0
    notes = [one for one in json.loads(capsys.readouterr().out)["findings"] if "upper and lower" in one["message"]]
    if not tells_capitals_apart(tmp_path):
        assert notes == []  # it is the folder
        return
    assert [(one["severity"], one["file"]) for one in notes] == [("note", "Endpoints/home")]
    assert "'HOME'" in notes[0]["message"]


# -- options -----------------------------------------------------------------------------------------------------------

ADVISED = nodes(llm(systemPrompt="{current_time_24h}"))


@pytest.mark.parametrize(
    ("words", "shown", "status"),
    [
        ((), ["error", "warning"], 1),
        (("--notes",), ["error", "warning", "note"], 1),
        (("--errors",), ["error"], 1),
        (("--errors", "Workflows"), [], 0),
        (("--strict", "Workflows"), [], 0),
        (("--notes", "Workflows"), ["note"], 0),
    ],
)
def test_which_findings_are_printed(
    words: tuple[str, ...], shown: list[str], status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit status does not depend on it, and JSON has all."""
    write_tree(tmp_path, changed(USER, routingConfig="rutes", port="abc"), ADVISED)
    assert check(["--PublicDirectory", str(tmp_path), *words]) == status
    text = capsys.readouterr().out
    assert re.findall(r"^\S+: (error|warning|note): ", text, re.MULTILINE) == shown
    assert ("1 note about what servers read again: --notes prints it.\n" in text) == (
        "--notes" not in words and "--errors" not in words
    )
    assert ("1 error, 1 warning, 1 note." if "Workflows" not in words else "1 note.") in text
    check(["--PublicDirectory", str(tmp_path), "--json", *words])
    told = json.loads(capsys.readouterr().out)
    assert told["notes"] == 1 and ("note" in [one["severity"] for one in told["findings"]]) == ("--errors" not in words)


def test_errors_and_notes_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="2"):
        check(["--PublicDirectory", str(tmp_path), "--errors", "--notes"])


def test_one_user(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tree(tmp_path, put("Users/bob.json", "{"), put("Workflows/bob/x.json", "{"))
    assert check(["--PublicDirectory", str(tmp_path), "--User", "alice"]) == 0
    assert "1 user" in capsys.readouterr().out
    config_utils.reset_config_store()
    assert check(["--PublicDirectory", str(tmp_path), "--User", "bob"]) == 1
    assert "bob.json:1:2: error: not valid JSON" in capsys.readouterr().out


def test_a_user_who_does_not_exist(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tree(tmp_path)
    assert check(["--PublicDirectory", str(tmp_path), "--User", "alicia"]) == 1
    told = capsys.readouterr()
    assert "Config file not found for user 'alicia'" in told.err and "Did you mean 'alice'?" in told.err
    assert told.out == ""


def test_the_flags_of_a_launch_change_nothing(tmp_path: Path) -> None:
    write_tree(tmp_path)
    assert (
        check(
            [
                "--PublicDirectory",
                str(tmp_path),
                "--port",
                "5999",
                "--listen",
                "--concurrency",
                "4",
                "--log-level",
                "DEBUG",
                "--file-logging",
            ]
        )
        == 0
    )
    assert instance.PORT is None


def test_the_port_of_a_launch_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tree(tmp_path, changed(ENDPOINT, endpoint="http://127.0.0.1:5999"))
    assert check(["--PublicDirectory", str(tmp_path)]) == 0
    assert check(["--PublicDirectory", str(tmp_path), "--port", "5999"]) == 1
    assert "leads back to this WilmerAI, which listens on port 5999" in capsys.readouterr().out


def test_nothing_is_written(tmp_path: Path) -> None:
    write_tree(tmp_path)
    before = sorted(path for path in tmp_path.rglob("*"))
    check(["--PublicDirectory", str(tmp_path)])
    assert sorted(path for path in tmp_path.rglob("*")) == before


def test_no_network_without_being_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    write_tree(
        tmp_path,
        changed(ENDPOINT, endpoint="http://llm.example.com:1", backupEndpointName="Spare"),
        changed(SPARE, endpoint="https://other.example.com"),
    )
    assert check(["--PublicDirectory", str(tmp_path)]) == 0


# -- data directories --------------------------------------------------------------------------------------------------


def told_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    config_utils.reset_config_store()
    check([*words])
    return re.sub(r"\s+", " ", capsys.readouterr().out)


def test_directories_that_cannot_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("x")
    write_tree(
        tmp_path,
        changed(
            USER,
            discussionDirectory=str(tmp_path / "file" / "inner"),
            sqlLiteDirectory=str(tmp_path / "Configs" / "locks"),
        ),
    )
    told = told_of(capsys, "--PublicDirectory", str(tmp_path))
    assert "error: discussionDirectory: the directory of conversations" in told and "is not a directory" in told
    assert "warning: sqlLiteDirectory: the directory of lock databases" in told
    assert "it lies among the configuration files" in told


def test_a_directory_given_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("x")
    write_tree(tmp_path)
    told = told_of(
        capsys,
        "--PublicDirectory",
        str(tmp_path),
        "--DiscussionDirectory",
        str(tmp_path / "file"),
        "--LoggingDirectory",
        str(tmp_path / "file" / "<user>"),
    )
    assert told.count("it is not a directory") == 1  # one path, one finding


@pytest.mark.skipif(os.name == "nt", reason="such paths are right there")
def test_a_windows_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tree(tmp_path, changed(USER, discussionDirectory="D:\\Wilmer"))
    told = told_of(capsys, "--PublicDirectory", str(tmp_path))
    assert "warning: discussionDirectory: 'D:\\Wilmer' is a Windows path" in told
    assert str(tmp_path / "DiscussionIds") in told


def test_a_full_disk(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    write_tree(tmp_path)
    usage = directory_check.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(directory_check.shutil, "disk_usage", lambda path: usage._replace(free=50 * 1024 * 1024))
    assert "warning: the directory of conversations: only 50 MB are free" in told_of(
        capsys, "--PublicDirectory", str(tmp_path)
    )
    monkeypatch.setattr(directory_check.shutil, "disk_usage", lambda path: usage._replace(free=1024))
    assert "error: the directory of conversations: only 0 MB are free" in told_of(
        capsys, "--PublicDirectory", str(tmp_path)
    )


def test_a_directory_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    write_tree(tmp_path)
    (tmp_path / "DiscussionIds").mkdir()
    monkeypatch.setattr(directory_check.tempfile, "TemporaryFile", refuse)
    assert "nothing can be written there: Permission denied" in told_of(capsys, "--PublicDirectory", str(tmp_path))


@pytest.mark.skipif(os.name == "nt", reason="Windows has other permissions")
def test_modes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configs = write_tree(tmp_path, changed(ENDPOINT, apiKey="hunter2"), changed(SPARE, apiKey="env:HOME"))
    for path in configs.rglob("*.json"):
        path.chmod(0o600)
    told = told_of(capsys, "--PublicDirectory", str(tmp_path))
    assert "can read" not in told and "can change" not in told
    (configs / ENDPOINT).chmod(0o644)
    (configs / SPARE).chmod(0o644)
    (configs / USER).chmod(0o666)
    (tmp_path / "DiscussionIds").mkdir()
    (tmp_path / "DiscussionIds").chmod(0o777)
    told = told_of(capsys, "--PublicDirectory", str(tmp_path))
    assert "Main.json: note: apiKey: every user of this computer can read the API key" in told
    assert "alice.json: warning: every user of this computer can change this file" in told
    assert "can change what it holds" in told
    assert "hunter2" not in told
    assert stat.S_IMODE((configs / USER).stat().st_mode) == 0o666  # nothing is changed


@pytest.mark.skipif(os.name == "nt", reason="Windows has other permissions")
def test_conversations_that_others_can_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tree(tmp_path)
    root = tmp_path / "DiscussionIds"
    folders = [root / "k1", root / "0123456789abcdef", root / "0123456789abcdef" / "k2"]
    files = [
        folders[0] / "memories.json",
        folders[2] / "vector_memory.db",
        root / "old_memories.json",
        root / ".gitkeep",
    ]
    for folder in (root, *folders):
        folder.mkdir(mode=0o700)
    for file in files:
        file.touch(0o600)
    files[-1].chmod(0o644)
    root.chmod(0o755)
    assert "other users" not in told_of(capsys, "--PublicDirectory", str(tmp_path))
    for path in (*folders[1:], *files):
        path.chmod(0o755 if path.is_dir() else 0o640)
    told = told_of(capsys, "--PublicDirectory", str(tmp_path))
    assert (
        f"{root}: note: the directory of conversations: other users of this computer have access to 2 folders "
        f"and 3 files in it (0123456789abcdef, {os.path.join('0123456789abcdef', 'k2')}, "
    ) in told
    assert f" and 2 more); new ones are private Expected: chmod -R go= {root}" in told
    assert stat.S_IMODE(files[0].stat().st_mode) == 0o640


# -- servers -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def live() -> Iterator[StubBackend]:
    with StubBackend(status_reply(404)) as server:
        yield server


@pytest.fixture
def dead() -> int:
    return free_port()


@pytest.mark.slow
def test_servers_are_asked(tmp_path: Path, live: StubBackend, dead: int) -> None:
    write_tree(
        tmp_path,
        changed(ENDPOINT, endpoint=f"http://tom:hunter2@127.0.0.1:{live.port}/v1", apiKey="hunter2"),
        changed(SPARE, endpoint=f"http://127.0.0.1:{dead}"),
        put("Endpoints/home/Third.json", {"endpoint": f"http://127.0.0.1:{dead}/v1", "apiTypeConfigFileName": "Chat"}),
        put("Endpoints/_examples/E.json", {"endpoint": "http://192.0.2.1:9", "apiTypeConfigFileName": "Chat"}),
    )
    ended = launched(tmp_path, "--online", "--json")
    (found,) = [one for one in json.loads(ended.stdout)["findings"] if one["severity"] != "note"]
    assert (found["severity"], found["file"], found["jsonPath"], found["line"]) == ("warning", SPARE, "endpoint", 2)
    assert found["message"] == (
        f"http://127.0.0.1:{dead} does not answer: connection refused (1 more endpoint files name it)"
    )
    assert (ended.returncode, launched(tmp_path, "--online", "--strict").returncode) == (0, 1)
    assert live.url in ended.stderr and "192.0.2.1" not in ended.stderr
    # The second one is the list of models, the third tells the chat template of llama.cpp.
    assert {(request.method, request.path) for request in live.requests} <= {
        ("GET", "/"),
        ("GET", "/v1/models"),
        ("GET", "/props"),
    }
    assert live.requests and "hunter2" not in str(live.requests) + ended.stdout + ended.stderr


@pytest.mark.parametrize(
    ("current", "words", "asked"), [("BOB", [], "bob"), ("BOB", ["alice"], "alice"), (None, [], "both")]
)
def test_without_names_the_servers_of_the_current_user_are_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], dead: int, current: str | None, words: list[str], asked: str
) -> None:
    write_tree(
        tmp_path,
        put("Users/bob.json", {"endpointConfigsSubDirectory": "bobs"}),
        put("Users/_current-user.json", {"currentUser": current} if current else {}),
        changed(ENDPOINT, endpoint=f"http://127.0.0.1:{dead}/a"),
        changed(SPARE, endpoint=f"http://127.0.0.1:{dead}/b"),
        put("Endpoints/bobs/Main.json", {"endpoint": "http://no-such-host.invalid", "apiTypeConfigFileName": "Chat"}),
    )
    told = told_of(capsys, "--PublicDirectory", str(tmp_path), "--online", *words)
    assert (f"127.0.0.1:{dead} does not answer" in told) == (asked in ("alice", "both"))
    assert ("no-such-host.invalid does not answer: the host name" in told) == (asked in ("bob", "both"))


@pytest.mark.slow
def test_servers_that_say_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        write_tree(
            tmp_path,
            changed(ENDPOINT, endpoint=f"http://127.0.0.1:{silent.getsockname()[1]}"),
            changed(SPARE, endpoint="http://no-such-host.invalid"),
        )
        told = told_of(capsys, "--PublicDirectory", str(tmp_path), "--online")
    assert "does not answer: no data for 2 seconds" in told
    assert "http://no-such-host.invalid" in told
