"""The command for stored conversations, from command line to output and exit status."""

from __future__ import annotations

import contextlib
import getpass
import io
import json
import os
import re
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from Middleware.addons.discussions import memory_command as memory_tool
from Middleware.addons.discussions import memory_output as memory_tool_output
from Middleware.addons.records.console_folder import ConsoleFolder
from Middleware.addons.records.queries import RunQuery
from Middleware.addons.records.records import stored_runs
from Middleware.addons.records.ring import RunRing
from Middleware.addons.records.settings import RecordSettings
from Middleware.addons.records.store.writer import RunStore
from Middleware.addons.records.viewers import Viewer
from Middleware.common import instance_global_variables as instance
from Tests.addons.records.records_lab import run as run_of
from Tests.backend_dialects import openai_embeddings
from Tests.patience import CLIENT_PATIENCE
from Tests.services.discussion_lab import HASH, KEY, DiscussionLab
from Tests.stub_backend import StubBackend, json_reply

SCRIPT = Path(__file__).parents[2] / "Scripts" / "memory_tool.py"


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DiscussionLab:
    return DiscussionLab(tmp_path, monkeypatch)


class Tool:
    """Runs the tool in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str], lab: DiscussionLab) -> None:
        self._capsys, self._lab = capsys, lab
        self.out = self.err = ""

    def __call__(self, *arguments: str) -> int:
        status = memory_tool.main(
            [
                *arguments,
                "--User",
                "tester",
                "--ConfigDirectory",
                str(self._lab.config.root),
                "--DiscussionDirectory",
                str(self._lab.root),
            ]
        )
        self.out, self.err = self._capsys.readouterr()
        assert KEY not in self.out + self.err
        return status


@pytest.fixture
def tool(capsys: pytest.CaptureFixture[str], lab: DiscussionLab) -> Tool:
    return Tool(capsys, lab)


# -- list --------------------------------------------------------------------------------------------------------------


def test_list(lab: DiscussionLab, tool: Tool) -> None:
    lab.store("plain")
    lab.store("private", KEY)
    assert tool("list") == 0
    lines = {line.split()[0]: line.split() for line in tool.out.splitlines() if line}
    assert lines["plain"][1:5] == ["-", "2", "yes", "2"] and lines["plain"][-2:] == ["embedder", "1/2"]
    assert lines["private"][1:3] == [HASH, "encrypted"]
    assert "encrypted (needs --api-key)" in tool.out


def test_columns_are_aligned(lab: DiscussionLab, tool: Tool) -> None:
    for name in ("a", "a much longer name", "日本語"):
        lab.store(name)
    tool("list")
    lines = tool.out.splitlines()[:4]
    columns = {memory_tool_output._width(line[: line.rindex("embedder")]) for line in lines[1:]}
    assert columns == {lines[0].index("VECTORS")}


def test_list_as_json(lab: DiscussionLab, tool: Tool) -> None:
    lab.store("plain")
    assert tool("list", "--json") == 0
    [row] = json.loads(tool.out)
    assert (row["discussionId"], row["memories"], row["searchableMemories"], row["summary"]) == ("plain", 2, 2, True)
    assert row["vectors"] == {"embedder": {"with": 1, "without": 1}} and row["bytes"] > 0


def test_a_key_shows_its_own_discussions(lab: DiscussionLab, tool: Tool) -> None:
    lab.config.user(encryptUsingApiKey=True)
    lab.store("plain")
    lab.store("private", KEY)
    assert tool("list", "--json", "--api-key", KEY) == 0
    [row] = json.loads(tool.out)
    assert (row["discussionId"], row["memories"], row["encrypted"]) == ("private", 2, False)


def test_empty_list(tool: Tool) -> None:
    assert tool("list") == 0
    assert tool.out == "No discussions are stored.\n"


@pytest.mark.slow
def test_a_thousand_discussions_are_listed_quickly(lab: DiscussionLab, tool: Tool) -> None:
    source = Path(lab.store("d0").folder)
    for number in range(1, 1000):
        target = lab.root / f"d{number}"
        target.mkdir()
        for path in source.iterdir():
            (target / path.name).write_bytes(path.read_bytes())
    assert tool("list") == 0
    assert "1000 discussions" in tool.out


# -- show --------------------------------------------------------------------------------------------------------------


def test_show(lab: DiscussionLab, tool: Tool) -> None:
    lab.store("plain", texts=("First.", "Second.", "Third."))
    assert tool("show", "plain") == 0
    order = [
        tool.out.index(text)
        for text in (
            "== Summary",
            "All that happened.",
            "Mara: at the mill",
            "[1] ",
            "First.",
            "[2] ",
            "Second.",
            "Third.",
            "== Searchable",
            "About First.",
        )
    ]
    assert order == sorted(order)


def test_show_the_newest_only(lab: DiscussionLab, tool: Tool) -> None:
    lab.store("plain", texts=("First.", "Second.", "Third."))
    assert tool("show", "plain", "--limit", "1") == 0
    assert tool.out.count("Third.") == 3 and "Second." not in tool.out  # memory; title and text of the searchable one
    assert tool.out.count("(2 older ones are not shown)") == 2


@pytest.mark.parametrize(
    "flags, shown",
    [
        ([], "encrypted (needs --api-key)"),
        (["--api-key", KEY], "Mara hid the ledger."),
        (["--api-key", KEY, "--key-folder", HASH], "Mara hid the ledger."),
    ],
)
def test_show_encrypted_data(lab: DiscussionLab, tool: Tool, flags: list[str], shown: str) -> None:
    lab.config.user(encryptUsingApiKey=True)
    lab.store("private", KEY)
    assert tool("show", "private", *flags) == 0
    assert shown in tool.out and "gAAAA" not in tool.out


def test_the_user_encrypts_no_more(lab: DiscussionLab, tool: Tool) -> None:
    lab.store("private", KEY)
    tool("show", "private", "--api-key", KEY)
    assert "encryptUsingApiKey of this user is off" in tool.out


@pytest.mark.parametrize("way", ["environment", "prompt"])
def test_the_key_need_not_be_on_the_command_line(
    lab: DiscussionLab, tool: Tool, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    lab.config.user(encryptUsingApiKey=True)
    lab.store("private", KEY)
    if way == "environment":
        monkeypatch.setenv("WILMER_API_KEY", KEY)
    else:
        monkeypatch.setattr(getpass, "getpass", lambda prompt: KEY)
    assert tool("show", "private", *(["--ask-key"] if way == "prompt" else [])) == 0
    assert "Mara hid the ledger." in tool.out


def test_a_damaged_part_does_not_hide_the_others(lab: DiscussionLab, tool: Tool) -> None:
    lab.store("plain")
    (lab.root / "plain" / "memories.json").write_text("[\n{", encoding="utf-8")
    assert tool("show", "plain") == 1
    assert "plain/memories.json" in tool.out and "line 2" in tool.out and "About Mara" in tool.out


def test_texts_do_not_steer_the_terminal(lab: DiscussionLab, tool: Tool) -> None:
    lab.store("plain", texts=("red \x1b[31m\nnext",))
    tool("show", "plain")
    assert "\x1b" not in tool.out and "\nnext" in tool.out


def test_line_ends_of_windows_are_line_ends(lab: DiscussionLab, tool: Tool) -> None:
    lab.store("plain")
    (lab.root / "plain" / "state_document.md").write_bytes(b"# Mill\r\nlocked\r\n")
    tool("show", "plain")
    assert "# Mill\nlocked\n" in tool.out


def test_braces_are_shown_as_the_user_wrote_them(lab: DiscussionLab, tool: Tool) -> None:
    lab.store("plain", texts=("__WILMER_L_CURLY__x__WILMER_R_CURLY__",))
    tool("show", "plain")
    assert "\n{x}" in tool.out and "CURLY" not in tool.out


# -- search and index --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "phrases, flags, found",
    [
        ("ledger", [], "Mara hid the ledger."),
        ("nothing; inspector", [], "The inspector came."),
        ("ledger", ["--weights", "3,2,2,2,1", "--recency"], "Mara hid the ledger."),
        ("ledger", ["--dates"], "[20"),
        ("dragon", [], "No relevant memories found"),
    ],
)
def test_search(lab: DiscussionLab, tool: Tool, phrases: str, flags: list[str], found: str) -> None:
    lab.store("plain")
    assert tool("search", "plain", phrases, *flags) == 0
    assert tool.out.startswith(found)


def test_search_in_encrypted_data(lab: DiscussionLab, tool: Tool) -> None:
    lab.config.user(encryptUsingApiKey=True)
    lab.store("private", KEY)
    assert tool("search", "private", "ledger") == 1
    assert "encrypted (needs --api-key)" in tool.err
    assert tool("search", "private", "ledger", "--api-key", KEY) == 0
    assert tool.out == "Mara hid the ledger.\n"


@pytest.mark.parametrize(
    "flags", [["--weights", "1,2"], ["--weights", "a,b,c,d,e"], ["--limit", "0"], ["--mode", "psychic"]]
)
def test_wrong_search_arguments(lab: DiscussionLab, tool: Tool, flags: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        tool("search", "plain", "x", *flags)
    assert ended.value.code == 2


def test_semantic_search_asks_the_endpoint(lab: DiscussionLab, tool: Tool) -> None:
    lab.store("plain")
    lab.config.write("ApiTypes/Embeddings", {"type": "openAIEmbeddings"})
    with StubBackend(json_reply(openai_embeddings([[1.0, 1.0, 1.0]]))) as server:
        lab.config.endpoint(
            "Emb", {"apiTypeConfigFileName": "Embeddings", "modelNameToSendToAPI": "embedder"}, server.url
        )
        assert tool("search", "plain", "no such word", "--mode", "semantic", "--endpoint", "Emb") == 0
    assert tool.out == "Mara hid the ledger.\n"


def test_semantic_search_needs_an_endpoint(lab: DiscussionLab, tool: Tool) -> None:
    lab.store("plain")
    assert tool("search", "plain", "x", "--mode", "semantic") == 1
    assert "--endpoint" in tool.err


def test_a_lost_index_is_noticed_and_made_anew(lab: DiscussionLab, tool: Tool) -> None:
    folder = lab.store("plain")
    with folder.memories(write=True) as memories:
        memories._db.execute("DELETE FROM memories_fts")
    assert tool("check", "plain") == 1 and "rebuild-index" in tool.out
    assert tool("rebuild-index", "plain") == 0 and "2 memories" in tool.out
    assert tool("check", "plain") == 0
    assert tool("search", "plain", "ledger") == 0 and "Mara" in tool.out


def test_a_damaged_database_is_no_empty_one(lab: DiscussionLab, tool: Tool) -> None:
    lab.store("plain")
    (lab.root / "plain" / "vector_memory.db").write_bytes(b"no database" * 100)
    assert tool("search", "plain", "ledger") == 1 and "vector_memory.db" in tool.err and tool.out == ""


def test_no_index_without_searchable_memories(lab: DiscussionLab, tool: Tool) -> None:
    (lab.root / "bare").mkdir(parents=True)
    assert tool("rebuild-index", "bare") == 1
    assert list((lab.root / "bare").iterdir()) == []


# -- check -------------------------------------------------------------------------------------------------------------


def test_check_all(lab: DiscussionLab, tool: Tool) -> None:
    lab.store("sound")
    lab.store("private", KEY)
    assert tool("check") == 0
    assert "2 discussions checked, no problems." in tool.out and "note: private/" in tool.out
    notes = [line for line in tool.out.splitlines() if line.startswith("note: ")]
    assert all(line.endswith(f" (key folder {HASH})") for line in notes)
    (lab.root / "sound" / "timestamps.json").write_text("{,", encoding="utf-8")
    assert tool("check") == 1
    (problem,) = [line for line in tool.out.splitlines() if line.startswith("PROBLEM: sound/timestamps.json")]
    assert "line 1" in problem and "key folder" not in problem


# -- export ------------------------------------------------------------------------------------------------------------


def test_export(lab: DiscussionLab, tool: Tool, tmp_path: Path) -> None:
    lab.store("plain")
    target = tmp_path / "out.json"
    assert tool("export", "plain", "--output", str(target)) == 0
    assert json.loads(target.read_text(encoding="ascii"))["discussionId"] == "plain"
    if os.name != "nt":
        assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert tool("export", "plain", "--output", str(target)) == 1 and "--overwrite" in tool.err
    assert tool("export", "plain", "--output", str(target), "--overwrite") == 0


@pytest.mark.parametrize("name", ["a file/out.json", "x" * 300, "ü" * 200 + ".json", "new folder/" + "y" * 300])
def test_an_export_that_cannot_be_written_is_named(lab: DiscussionLab, tool: Tool, tmp_path: Path, name: str) -> None:
    lab.store("plain")
    (tmp_path / "a file").touch()
    target = str(tmp_path / name)
    assert tool("export", "plain", "--output", target) == 1
    assert re.fullmatch(rf"{re.escape(target)} cannot be written: [A-Z].*\.\n", tool.err) and tool.out == ""


def test_export_without_the_key_writes_nothing(lab: DiscussionLab, tool: Tool, tmp_path: Path) -> None:
    lab.store("private", KEY)
    assert tool("export", "private", "--output", str(tmp_path / "out.json")) == 1
    assert not (tmp_path / "out.json").exists() and "encrypted (needs --api-key)" in tool.err


# -- delete ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("typed, status", [("plain\n", 0), ("Plain\n", 1), ("y\n", 1), ("", 1)])
def test_delete_asks_for_the_id(
    lab: DiscussionLab, tool: Tool, monkeypatch: pytest.MonkeyPatch, typed: str, status: int
) -> None:
    lab.store("plain")
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    assert tool("delete", "plain") == status
    assert (lab.root / "plain").exists() == bool(status)
    assert str(lab.root / "plain") in tool.out


def test_delete_without_asking_and_without_the_key(lab: DiscussionLab, tool: Tool) -> None:
    lab.store("private", KEY)
    copy = lab.root / f"{HASH}_backup" / "private"
    copy.mkdir(parents=True)
    assert tool("delete", "private", "--yes") == 0
    assert not (lab.root / HASH).exists()
    assert f"stays:\n  {copy}" in tool.out and copy.exists()


@pytest.mark.parametrize(
    ("flags", "typed", "left"),
    [(["--yes"], "", 3), (["--yes", "--runs"], "", 1), ([], "plain\nplain\n", 1), ([], "plain\nno\n", 3)],
)
def test_delete_offers_the_runs_of_the_discussion(
    lab: DiscussionLab,
    tool: Tool,
    tmp_path: Path,
    flags: list[str],
    typed: str,
    left: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    console = tmp_path / "Console"
    monkeypatch.setattr(instance, "CONSOLE_DIRECTORY", str(console))
    lab.store("plain")
    # Nothing was recorded, and nothing is made.
    assert tool("delete", "plain", "--yes") == 0 and not console.exists()
    lab.store("plain")
    folder = ConsoleFolder(str(console))
    store = RunStore(folder, RunRing(), RecordSettings(folder, "texts"))
    for discussion in ("plain", "plain", "other"):
        store.began()
        store.finished(run_of(discussion=discussion))
    store.close()
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    assert tool("delete", "plain", *flags, "--ConsoleDirectory", str(console)) == 0
    assert ("2 runs" in tool.out) is (flags != ["--yes"])
    with stored_runs() as archive:
        assert archive.runs(RunQuery(), Viewer("operator")).total == left


HOLDER = """
import sys
sys.path.insert(0, {root!r})
from Middleware.utilities.files.file_access import process_lock
with process_lock({path!r}):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_delete_refuses_while_another_process_works(lab: DiscussionLab, tool: Tool) -> None:
    folder = lab.store("busy")
    code = HOLDER.format(root=str(SCRIPT.parents[1]), path=str(Path(folder.folder) / ".memories.lock"))
    holder = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout and holder.stdout.readline() == "held\n"
        assert tool("delete", "busy", "--yes") == 1
        assert "running server" in tool.err and (lab.root / "busy" / "memories.json").exists()
    finally:
        holder.communicate("")
    assert tool("delete", "busy", "--yes") == 0


# -- which discussion --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["show"], ["check"], ["delete", "--yes"], ["rebuild-index"]])
def test_an_unknown_id(lab: DiscussionLab, tool: Tool, command: list[str]) -> None:
    lab.store("The Mill")
    assert tool(command[0], "the mil", *command[1:]) == 1
    assert "no discussion 'the mil'" in tool.err and "The Mill" in tool.err


def test_an_id_in_two_places(lab: DiscussionLab, tool: Tool) -> None:
    lab.store("both")
    lab.store("both", KEY)
    assert tool("delete", "both", "--yes") == 1 and "--key-folder" in tool.err
    assert tool("delete", "both", "--yes", "--key-folder", "none") == 0
    assert not (lab.root / "both").exists() and (lab.root / HASH / "both").exists()


def test_an_unknown_user(lab: DiscussionLab, capsys: pytest.CaptureFixture[str]) -> None:
    assert memory_tool.main(["list", "--User", "nobody", "--ConfigDirectory", str(lab.config.root)]) == 1
    assert "nobody" in capsys.readouterr().err


# -- as a program ------------------------------------------------------------------------------------------------------


def run(lab: DiscussionLab, *arguments: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """With flags before the command, from another folder, and a console that knows ASCII only."""
    common = ["--ConfigDirectory", str(lab.config.root), "--DiscussionDirectory", str(lab.root), "--User", "tester"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    return subprocess.run(
        [sys.executable, str(SCRIPT), *common, *arguments],
        input=data,
        capture_output=True,
        env=environment,
        timeout=CLIENT_PATIENCE,
        check=False,
        # Without a terminal, from which the key would be read.
        start_new_session=True,
    )


@pytest.mark.skipif(os.name == "nt", reason="the key is read from the console there")
@pytest.mark.parametrize(
    ("data", "error"),
    [
        (KEY.encode() + b"\r\n", ""),
        (b"\xff\xfe\n", "No key was given, or one that is not UTF-8 text."),
        (b"\xef\xbb\xbf\xe9\n", "No key was given, or one that is not UTF-8 text."),
        (b"", "No key was given, or one that is not UTF-8 text."),
    ],
)
def test_a_key_from_a_pipe(lab: DiscussionLab, data: bytes, error: str) -> None:
    lab.config.user(encryptUsingApiKey=True)
    lab.store("private", KEY)
    result = run(lab, "show", "private", "--ask-key", data=data)
    assert (b"Mara hid the ledger." in result.stdout) == (not error) == (result.returncode == 0)
    assert error in result.stderr.decode("utf-8") and b"Traceback" not in result.stderr


@pytest.mark.parametrize("end", ["\n", "\r\n", ""])
def test_an_id_that_is_piped_confirms_a_deletion(lab: DiscussionLab, end: str) -> None:
    lab.store("grün", texts=("one",))
    result = run(lab, "delete", "grün", data=f"grün{end}".encode())
    assert result.returncode == 0 and "grün" not in run(lab, "list").stdout.decode("utf-8")


def test_output_is_utf8_on_any_console(lab: DiscussionLab) -> None:
    lab.store("plain", texts=("Grüße, 日本",))
    result = run(lab, "show", "plain")
    assert result.returncode == 0 and "Grüße, 日本" in result.stdout.decode("utf-8")


@pytest.mark.slow
def test_help_and_missing_command(lab: DiscussionLab) -> None:
    assert b"rebuild-index" in run(lab, "--help").stdout
    assert run(lab).returncode == 2


# -- index -------------------------------------------------------------------------------------------------------------

SAVED = [
    {
        "role": "user",
        "content": "I hide the {ruby} under the floor.",
        "name": "Ines",
        "timestamp": "2026-03-11T10:00:00Z",
    },
    {"role": "assistant", "content": "A fine ruby."},
    {"role": "user", "content": "Nobody must know."},
]


def remembering(lab: DiscussionLab, remembers: bool = True) -> None:
    lab.config.user(discussionIdMemoryFileWorkflowSettings="_Memory")
    lab.config.write("Workflows/tester/_Memory", {"rememberMessages": remembers, "timeZone": "UTC"})


def rows_of(lab: DiscussionLab, discussion_id: str) -> list[tuple[str, int]]:
    path = lab.root / discussion_id / "message_index.db"
    with contextlib.closing(sqlite3.connect(path)) as database:
        return database.execute("SELECT text, said FROM messages ORDER BY place").fetchall()


def test_index(lab: DiscussionLab, tool: Tool, tmp_path: Path) -> None:
    remembering(lab)
    lab.store("plain")
    saved = tmp_path / "chat.json"
    saved.write_text(json.dumps(SAVED), encoding="utf-8")
    os.utime(saved, (1_780_000_000.5, 1_780_000_000.5))
    assert tool("index", "plain", "--from", str(saved)) == 0
    assert "3 new, 0 known before" in tool.out
    # A message without a date was said before the file was written, but when is known of the newest alone.
    assert rows_of(lab, "plain") == [
        ("I hide the {ruby} under the floor.", 1_773_223_200),
        ("A fine ruby.", None),
        ("Nobody must know.", 1_780_000_000),
    ]
    assert tool("index", "plain", "--from", str(saved)) == 0
    assert "0 new, 3 known before" in tool.out


@pytest.mark.parametrize(
    ("remembers", "discussion_id", "content", "words"),
    [
        (False, "plain", SAVED, '"rememberMessages" is off in the memory settings of user tester'),
        (True, "plan", SAVED, "The nearest: plain"),
        (True, "plain", [], "has no messages"),
    ],
)
def test_index_refused(
    lab: DiscussionLab, tool: Tool, tmp_path: Path, remembers: bool, discussion_id: str, content: object, words: str
) -> None:
    remembering(lab, remembers)
    lab.store("plain")
    saved = tmp_path / "chat.json"
    saved.write_text(json.dumps(content), encoding="utf-8")
    assert tool("index", discussion_id, "--from", str(saved)) == 1
    assert words in tool.err
