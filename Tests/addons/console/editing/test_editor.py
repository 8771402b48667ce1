"""Reading and saving configuration files for the console: what is refused, kept, and never leaves the server."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from Middleware.addons.console.calls import ConsoleError
from Middleware.addons.console.editing import editor
from Middleware.addons.console.editing.editor import ConfigEditor
from Middleware.addons.records.console_folder import ConsoleFolder
from Middleware.addons.records.ring import RunRing
from Middleware.addons.records.settings import RecordSettings
from Middleware.addons.records.store.writer import RunStore
from Middleware.utilities.files.file_access import wait_until
from Tests.addons.check.config_tree import CHILD, CODING, ENDPOINT, GENERAL, MCP, USER
from Tests.windows import LOCK_FILES

SECRET = "sk-Canary-77"


class Lab:
    """An editor of the configuration at ``root``, and the changes that it noted."""

    def __init__(self, root: Path, console: Path) -> None:
        self.root, self.console = root, console
        folder = ConsoleFolder(str(console))
        self.store = RunStore(folder, RunRing(), RecordSettings(folder))
        self.editor = ConfigEditor(folder, self.store)

    def read(self, file: str) -> str:
        return (self.root / file).read_text(encoding="utf-8")

    def write(self, file: str, text: str) -> None:
        (self.root / file).write_text(text, encoding="utf-8")

    @property
    def changes(self) -> list[Any]:
        with self.store.index() as index:
            return index.execute("SELECT session, path, what, backup FROM change").fetchall()

    def edit(self, file: str, old: str, new: str, confirm: str = "") -> Any:
        shown = self.editor.file(file)
        text = str(shown["text"])
        assert old in text
        return self.editor.save(file, text.replace(old, new), str(shown["base"]), confirm, "laptop")

    def _files(self) -> dict[Path, bytes]:
        files = (path for path in self.root.rglob("*") if path.is_file() and path.name not in LOCK_FILES)
        return {path: path.read_bytes() for path in files}

    def refused(self, file: str, old: str, new: str, confirm: str = "") -> ConsoleError:
        before = self._files()
        with pytest.raises(ConsoleError) as raised:
            self.edit(file, old, new, confirm)
        assert self._files() == before
        assert not self.console.exists()
        return raised.value


@pytest.fixture
def lab(configs: Path, tmp_path: Path) -> Iterator[Lab]:
    made = Lab(configs, tmp_path / "Console")
    yield made
    made.store.close()


def test_a_save_keeps_the_old_text_and_is_noted(lab: Lab) -> None:
    before = lab.read(GENERAL)
    os.chmod(lab.root / GENERAL, 0o640)
    saved = lab.edit(GENERAL, '"Think"', '"Ponder"')
    assert lab.read(GENERAL) == before.replace('"Think"', '"Ponder"') == saved["text"]
    [version] = lab.editor.history(GENERAL)["versions"]  # type: ignore[misc]
    assert lab.editor.history(GENERAL, version["at"])["text"] == before
    [(session, file, what, backup)] = lab.changes
    assert (session, file, what) == ("laptop", GENERAL, "1 line added, 1 removed")
    kept = lab.console / "backups" / backup
    assert kept.read_text(encoding="utf-8") == before
    if os.name != "nt":
        assert stat.S_IMODE(os.stat(kept).st_mode) == 0o600
        assert stat.S_IMODE(os.stat(lab.console).st_mode) == 0o700
        assert stat.S_IMODE(os.stat(lab.root / GENERAL).st_mode) == 0o640


def test_a_file_that_changed_meanwhile_is_left_alone(lab: Lab) -> None:
    shown = lab.editor.file(GENERAL)
    lab.write(GENERAL, lab.read(GENERAL).replace("Think", "Muse"))
    with pytest.raises(ConsoleError) as raised:
        lab.editor.save(GENERAL, "{}", str(shown["base"]), "", "laptop")
    assert raised.value.status == 409 and "Muse" in str(raised.value.further["text"])
    assert raised.value.further["base"] == lab.editor.file(GENERAL)["base"] != shown["base"]
    assert "Muse" in lab.read(GENERAL)


NEW_FLOW = "Workflows/alice/New.json"
USES_URL = '{"nodes": [{"type": "WebFetch", "url": "{agent1Input}"}]}'


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (GENERAL, '{"nodes": []}'),
        (GENERAL, None),
        (CHILD, USES_URL),
        (CHILD, None),
        (CODING, '{"nodes": [}'),
        (USER, "{}"),
        (NEW_FLOW, USES_URL),
        ("Workflows/bob/General.json", "[]"),
    ],
)
def test_a_save_holds_only_for_the_files_that_it_was_judged_by(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, file: str, text: str | None
) -> None:
    """Another program, here a text editor, changes one of them between the question and the write."""
    judge, shown, before = editor.gained, lab.editor.file(GENERAL), lab.read(GENERAL)

    def judged_and_changed(*capabilities: Any) -> Any:
        (lab.root / file).parent.mkdir(exist_ok=True)
        (lab.root / file).unlink() if text is None else lab.write(file, text)
        return judge(*capabilities)

    with monkeypatch.context() as patch, pytest.raises(ConsoleError) as raised:
        patch.setattr(editor, "gained", judged_and_changed)
        lab.editor.save(GENERAL, before.replace("Think", "Ponder"), str(shown["base"]), "", "laptop")
    assert raised.value.status == 409 and f"{file} has changed" in str(raised.value)
    assert set(raised.value.further) == {"text", "base"} and not lab.console.exists()
    if file != GENERAL:
        assert lab.read(GENERAL) == before
        # Once it is judged again, it is saved.
        lab.editor.save(GENERAL, before.replace("Think", "Ponder"), str(raised.value.further["base"]), "", "laptop")
        assert "Ponder" in lab.read(GENERAL)


OTHER_SERVER = """
import sys
from Middleware.utilities.files.file_access import folder_lock
with folder_lock(sys.argv[1]):
    print("locked", flush=True)
    sys.stdin.readline()
    open(sys.argv[2], "w", encoding="utf-8").write(sys.argv[3])
"""


def test_a_save_waits_for_the_save_of_another_server(lab: Lab) -> None:
    """It is judged by what that one has written."""
    shown, outcome = lab.editor.file(CODING), list[ConsoleError]()
    text = str(shown["text"]).replace("{chat_user_prompt_last_one}", "http://evil")
    command = [sys.executable, "-c", OTHER_SERVER, str(lab.root), str(lab.root / CHILD), USES_URL]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin is not None and other.stdout is not None
        assert other.stdout.readline().strip() == b"locked"

        def save() -> None:
            with pytest.raises(ConsoleError) as raised:
                lab.editor.save(CODING, text, str(shown["base"]), "", "laptop")
            outcome.append(raised.value)

        saving = threading.Thread(target=save)
        saving.start()
        waits_for_a_file = partial(is_in, saving, wait_until.__code__)
        while saving.is_alive() and not waits_for_a_file():
            saving.join(0.01)
        other.communicate(b"\n")
    saving.join()
    [refused] = outcome
    assert refused.status == 428 and "http://evil" in str(refused.further["powers"])


def is_in(thread: threading.Thread, code: CodeType) -> bool:
    """Return whether a thread runs this code at the moment."""
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame is not None


def test_what_is_not_json_is_refused_with_its_position(lab: Lab) -> None:
    error = lab.refused(GENERAL, '"Think",', '"Think"')
    assert (error.status, error.further["line"]) == (422, 5)
    assert "a comma is missing" in str(error) and "General.json:5" in str(error)


def test_more_power_needs_a_confirmation_of_exactly_that(lab: Lab) -> None:
    node = '"nodes": [{"type": "PythonModule", "module_path": "/x.py"},'
    error = lab.refused(GENERAL, '"nodes": [', node)
    assert error.status == 428
    assert error.further["powers"] == [
        {"text": "node 1 runs the script /x.py", "json_path": "nodes[0].module_path", "line": 2}
    ]
    other = lab.refused(GENERAL, '"nodes": [', node.replace("/x.py", "/y.py"), str(error.further["confirm"]))
    assert other.status == 428
    lab.edit(GENERAL, '"nodes": [', node, str(error.further["confirm"]))
    assert "/x.py" in lab.read(GENERAL)
    # Once it is there, other edits of the file are no news.
    lab.edit(GENERAL, '"Think"', '"Ponder"')


def test_secrets_stay_on_the_server_and_survive(lab: Lab) -> None:
    lab.write(
        ENDPOINT,
        lab.read(ENDPOINT)
        .replace("{\n", '{\n  "apiKey": "' + SECRET + '",\n', 1)
        .replace("http://", f"http://me:{SECRET}@"),
    )
    saved = lab.edit(ENDPOINT, "8192", "4096")
    assert SECRET not in json.dumps(saved) and saved["secrets"] == 2
    assert lab.read(ENDPOINT).count(SECRET) == 2 and "4096" in lab.read(ENDPOINT)
    moved = lab.editor.file(ENDPOINT)
    with pytest.raises(ConsoleError) as raised:
        lab.editor.save(ENDPOINT, str(moved["text"]).replace('"m"', '"<kept secret 1>"'), str(moved["base"]), "", "me")
    assert raised.value.status == 422 and raised.value.further["line"]
    # Another address would get the key: that is more than before, and shown without the password.
    error = lab.editor.file(ENDPOINT)
    with pytest.raises(ConsoleError) as raised:
        lab.editor.save(ENDPOINT, str(error["text"]).replace("127.0.0.1", "elsewhere"), str(error["base"]), "", "me")
    assert raised.value.status == 428 and SECRET not in json.dumps(raised.value.further)
    assert "elsewhere" in str(raised.value.further["powers"])


def test_an_older_version_can_be_restored_with_its_secrets(lab: Lab) -> None:
    lab.write(ENDPOINT, lab.read(ENDPOINT).replace("{\n", '{\n  "apiKey": "old-' + SECRET + '",\n', 1))
    old = lab.read(ENDPOINT)
    lab.edit(ENDPOINT, '"<kept secret 1>"', '"new"')
    [version] = lab.editor.history(ENDPOINT)["versions"]  # type: ignore[misc]
    text = str(lab.editor.history(ENDPOINT, version["at"])["text"])
    assert SECRET not in text
    assert lab.editor.check(ENDPOINT, text)["findings"] == []
    lab.editor.save(ENDPOINT, text, str(lab.editor.file(ENDPOINT)["base"]), "", "laptop")
    assert lab.read(ENDPOINT) == old


def test_line_ends_stay(lab: Lab) -> None:
    crlf = lab.read(GENERAL).replace("\n", "\r\n").encode()
    (lab.root / GENERAL).write_bytes(crlf)
    lab.edit(GENERAL, '"Think"', '"Ponder"')
    assert (lab.root / GENERAL).read_bytes() == crlf.replace(b'"Think"', b'"Ponder"')


@pytest.mark.parametrize(
    "path",
    [
        "../secret.json",
        "/etc/passwd",
        "Users/../../x.json",
        "Scripts/a.py",
        "Users/.hidden.json",
        "Console/settings.json",
        "readme.md",
        "",
        "Users",
        "Users/alice.txt",
        "C:\\x.json",
        "Users/a\x00b.json",
        ".json",
        "Prompts/x.json",
        "Workflows/alice/x.json.json",
        "Workflows/alice/x.JSON.json",
    ],
)
def test_only_configuration_files_can_be_read_or_saved(lab: Lab, path: str) -> None:
    for call in (
        lambda: lab.editor.file(path),
        lambda: lab.editor.save(path, "{}", "", "", "me"),
        lambda: lab.editor.check(path, "{}"),
        lambda: lab.editor.history(path),
        lambda: lab.editor.assist(path, "{}", 1),
    ):
        with pytest.raises(ConsoleError) as raised:
            call()
        assert raised.value.status in (400, 404)
    assert not lab.console.exists()


def test_a_missing_file_is_named_with_the_nearest(lab: Lab) -> None:
    with pytest.raises(ConsoleError) as raised:
        lab.editor.file("Users/alise.json")
    assert raised.value.status == 404 and "Did you mean Users/alice.json?" in str(raised.value)


def test_files_are_listed_with_their_kinds(lab: Lab) -> None:
    listed = {str(one["path"]): one["kind"] for one in lab.editor.files()["files"]}  # type: ignore[attr-defined]
    assert listed[USER] == "user" and listed["Workflows/alice/Memory.json"] == "memory-settings"
    assert listed[MCP] == "mcp-server" and len(listed) == len([*lab.root.rglob("*.json")])


def test_findings_quote_no_secret(lab: Lab) -> None:
    lab.write(MCP, '{"transport": "stdio", "command": "python3", "env": {"A": "X"}, "url": ["X"]}'.replace("X", SECRET))
    lab.write(ENDPOINT, '{"endpoint": "me:X@host", "apiTypeConfigFileName": "Chat", "apiKey": "X'.replace("X", SECRET))
    for file in (MCP, ENDPOINT):
        shown = lab.editor.file(file)
        assert SECRET not in json.dumps(shown["findings"])


def test_offsets_count_as_browsers_count(lab: Lab) -> None:
    text = '{"modelNameToSendToAPI": "\U0001f600\U0001f600", "apiTypeConfigFileName": "Ch"}'
    offset = text.index('Ch"') + 2
    answer = lab.editor.assist(ENDPOINT, text, offset + 2)
    assert answer["from"] == offset and {"label": "Chat"} in answer["completions"]  # type: ignore[operator]
