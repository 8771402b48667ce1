"""The routes of the Memory pages: what each role sees and changes, and what is told when it cannot."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest

from Middleware.addons.console.application import PREFIX, ConsoleApplication
from Middleware.addons.discussions import editing
from Middleware.addons.records.archive import RunArchive
from Middleware.addons.records.console_folder import ConsoleFolder
from Middleware.addons.records.model import RunDocument, Span
from Middleware.addons.records.settings import RecordSettings
from Middleware.addons.records.store.writer import RunStore
from Middleware.api.edge.admission_middleware import AdmissionMiddleware
from Middleware.api.edge.browser_safety import BrowserSafety
from Middleware.services.memory.memory_documents import ELSEWHERE_FILE
from Middleware.services.memory.memory_store import MemoryStore
from Middleware.utilities.conversations.message_keys import path_messages
from Middleware.utilities.discussion_state import MEMORIES
from Middleware.utilities.discussions.message_index.message_tables import ELSEWHERE
from Middleware.utilities.discussions.message_index.row_writing import ChatFacts
from Middleware.utilities.hashing_utils import hash_content
from Tests.addons.console.console_lab import Browser, accepted
from Tests.addons.records.records_lab import Ring, run
from Tests.services.discussion_lab import HASH, KEY, DiscussionLab
from Tests.tables import table
from Tests.utilities.discussions.message_index.lab import said

ALL_KEY, OTHER_KEY = "the-key-of-the-desk", "a-key-of-somebody-else"
FIRST = "Mara hid the ledger."


class Lab:
    """The console of discussions of three kinds: without a key, of the key ``KEY``, and encrypted with it."""

    def __init__(self, discussions: DiscussionLab, folder: Path) -> None:
        self.discussions = discussions
        keys = accepted(
            folder / "keys.txt", f"{KEY} console=own", f"{ALL_KEY} console=all", OTHER_KEY, users=("tester",)
        )
        self.console, self.ring = ConsoleFolder(str(folder / "Console")), Ring()
        settings = RecordSettings(self.console, "texts")
        self.store = RunStore(self.console, self.ring, settings)
        records = SimpleNamespace(
            mode="on",
            recording="texts",
            folder=self.console,
            settings=settings,
            ring=self.ring,
            store=self.store,
            archive=RunArchive(self.ring, self.store),
        )
        console_app = ConsoleApplication(records, keys, BrowserSafety(), lambda environ, start: [])  # type: ignore[arg-type]
        application = AdmissionMiddleware(lambda environ, start: [], 1, keys, mounts={PREFIX: console_app})
        self.own = Browser(application).sign_in_with(KEY)
        self.all = Browser(application).sign_in_with(ALL_KEY)
        self.operator = Browser(application).sign_in(time.time(), self.console.secret())
        discussions.store("open")
        discussions.store("mill", KEY, encrypt=False)
        discussions.config.user(encryptUsingApiKey=True)
        discussions.store("secret", KEY)

    def entries(self, browser: Browser, path: str) -> list[dict[str, Any]]:
        answer = browser.get(path)
        assert answer.status == 200, answer.data
        found: list[dict[str, Any]] = answer.json["entries"]
        return found

    def key(self, browser: Browser, name: str, part: str = "memories", number: int = 1) -> str:
        found = self.entries(browser, f"discussions/{name}?part={part}")
        return str(next(entry["key"] for entry in found if entry["number"] == number))


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    monkeypatch.setattr(editing, "LOCK_SECONDS", 0.05)
    made = Lab(DiscussionLab(tmp_path, monkeypatch), tmp_path)
    yield made
    made.store.close()


def test_who_sees_which_discussions(lab: Lab) -> None:
    def listed(browser: Browser) -> dict[str, bool]:
        return {row["discussionId"]: row["encrypted"] for row in browser.get("discussions").json["discussions"]}

    assert listed(lab.own) == {"mill": False, "secret": False}
    assert listed(lab.all) == {}
    assert listed(lab.operator) == {"open": False, "mill": False, "secret": True}
    # Where they are on the disk is the operator's business alone.
    assert "folders" not in lab.own.get("discussions").json["discussions"][0]
    for path in ("discussions/open", "discussions/nothing"):
        assert lab.own.get(path).status == lab.all.get("discussions/mill").status == 404
        assert "open" not in lab.own.get("discussions/nothing").message


@pytest.mark.parametrize(
    ("who", "name", "readable"),
    [
        ("own", "mill", True),
        ("own", "secret", True),
        ("operator", "open", True),
        ("operator", "mill", True),
        ("operator", "secret", False),
    ],
)
def test_who_reads_and_changes_texts(lab: Lab, who: str, name: str, readable: bool) -> None:
    browser: Browser = getattr(lab, who)
    for part in ("summary", "memories", "searchable", "state"):
        answer = browser.get(f"discussions/{name}?part={part}").json
        assert bool(answer["entries"]) is readable and answer["locked"] is not readable
    assert browser.get(f"discussions/{name}/export").status == (200 if readable else 403)
    key = lab.key(lab.own if name != "open" else lab.operator, name)
    changed = browser.call("PUT", f"discussions/{name}/memories/{key}", {"text": "Tobias has it."})
    assert changed.status == (200 if readable else 403)
    assert browser.post(f"discussions/{name}/rebuild", {}).status == (200 if readable else 403)
    if not readable:
        assert "encrypted" in changed.message
        with_data = lab.entries(lab.own, f"discussions/{name}?part=memories")
        assert [entry["text"] for entry in with_data] == ["The inspector came.", FIRST]
    assert browser.call("DELETE", f"discussions/{name}").json["left"] == []
    assert browser.get(f"discussions/{name}").status == 404


def test_an_edit_is_what_the_next_prompt_has(lab: Lab) -> None:
    # The user has switched encryption on since; what is written now is encrypted.
    folder, path = lab.discussions.folder("mill", KEY), "discussions/mill/memories/"
    key = lab.key(lab.own, "mill")
    new = lab.own.call("PUT", path + key, {"text": "Tobias has it."}).json["key"]
    assert MemoryStore(folder).memories()[0] == ("Tobias has it.", hash_content(FIRST))
    assert lab.own.call("DELETE", path + new).json == {}
    assert [text for text, _ in MemoryStore(folder).memories()] == ["The inspector came."]
    found = lab.entries(lab.own, "discussions/mill?part=searchable&q=ledger")
    assert [entry["text"] for entry in found] == [FIRST]


@table(
    ("name", "header"),
    [
        ("mill", 'attachment; filename="mill.json"'),
        ("日本語", "attachment; filename=\"___.json\"; filename*=UTF-8''%E6%97%A5%E6%9C%AC%E8%AA%9E.json"),
        ("Zoë", "attachment; filename=\"Zo_.json\"; filename*=UTF-8''Zo%C3%AB.json"),
        ("a b;c", 'attachment; filename="a_b_c.json"'),
        ("😀", 'attachment; filename="_.json"'),
    ],
)
def test_a_download_has_the_name_of_its_discussion(lab: Lab, name: str, header: str) -> None:
    if name != "mill":
        lab.discussions.store(name)
    answer = lab.operator.get(f"discussions/{quote(name)}/export")
    assert (answer.status, answer.headers["Content-Disposition"]) == (200, header)
    assert answer.headers["Content-Disposition"].isascii()


def test_all_anew_is_exported_first_as_encrypted_as_it_was(lab: Lab) -> None:
    plain = lab.operator.post("discussions/open/rebuild", {}).json["export"]
    secret = lab.own.post("discussions/secret/rebuild", {}).json["export"]
    texts = [(Path(lab.console.path) / name).read_bytes() for name in (plain, secret)]
    assert json.loads(texts[0])["files"]["memories.json"][0]["text_block"] == FIRST
    assert b"ledger" not in texts[1] and texts[1].startswith(b"gAAAA")
    assert lab.entries(lab.operator, "discussions/open?part=memories") == []


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "where"),
    [
        ("GET", "discussions/open?part=x", None, 400, "part"),
        ("GET", "discussions/open?limit=0", None, 400, "limit"),
        ("GET", "discussions/open?before=x", None, 400, "before"),
        ("GET", "discussions/opem", None, 404, "ID"),
        ("GET", "discussions/open?folder=0123456789abcdef", None, 404, "ID"),
        ("PUT", "discussions/open/memories/memory-1-00000000", {"text": "x"}, 409, "KEY"),
        ("PUT", "discussions/open/memories/what", {"text": "x"}, 409, "KEY"),
        ("PUT", "discussions/open/memories/memory-1-00000000", {"text": 1}, 400, "text"),
        ("PUT", "discussions/open/memories/memory-1-00000000", {"text": " "}, 400, "text"),
        ("PUT", "discussions/open/memories/memory-1-00000000", {"txt": ""}, 400, "txt"),
    ],
)
def test_mistakes_are_told(lab: Lab, method: str, path: str, body: Any, status: int, where: str) -> None:
    answer = lab.operator.call(method, path, body)
    assert (answer.status, answer.json["error"]["where"]) == (status, where), answer.data
    assert answer.message.endswith(".") or answer.message.endswith("?")


def test_an_id_in_two_places(lab: Lab) -> None:
    lab.discussions.store("mill")
    assert lab.operator.get("discussions/mill").status == 404
    assert lab.operator.get("discussions/mill?folder=none").status == 200


def test_while_the_server_writes(lab: Lab) -> None:
    key = lab.key(lab.operator, "open")
    with lab.discussions.folder("open").lock(MEMORIES):
        answer = lab.operator.call("PUT", f"discussions/open/memories/{key}", {"text": "x"})
        assert answer.status == 409 and "try again" in answer.message
        assert lab.operator.call("DELETE", "discussions/open").status == 409


def test_where_a_memory_came_from(lab: Lab) -> None:
    document = run(discussion="open", user="tester")
    document.spans[:] = [
        Span(1, None, "workflow", "W", 0, 9, "ok"),
        Span(2, 1, "node", "N", 0, 9, "ok"),
        Span(3, 2, "llm", "Main", 1, 3, "ok"),
        Span(4, 2, "llm", "Main", 4, 3, "ok"),
        Span(
            5,
            2,
            "memory",
            "memory",
            8,
            1,
            "ok",
            {"store": "file", "action": "write", "messages": ["0", hash_content(FIRST)]},
            {"written": [FIRST]},
        ),
        Span(6, 1, "llm", "Main", 8, 1, "ok"),
    ]
    lab.ring.all.append(document)
    path = "discussions/open/memories/"
    key = lab.key(lab.operator, "open")
    assert lab.operator.get(path + key).json == {"run": document.facts["id"], "span": 4}
    # An edited memory still comes from there.
    key = lab.operator.call("PUT", path + key, {"text": "other"}).json["key"]
    assert lab.operator.get(path + key).json["span"] == 4
    assert lab.operator.get(path + lab.key(lab.operator, "open", number=2)).json == {"run": None, "span": None}


def test_the_runs_of_a_discussion_go_with_it(lab: Lab) -> None:
    lab.ring.all.extend([run(discussion="open", user="tester"), run(discussion="other", user="tester")])
    assert lab.operator.call("DELETE", "discussions/open?runs=1").status == 200
    assert [document.facts["discussion"] for document in lab.ring.all] == ["other"]


def test_exports_go_with_their_discussion_and_after_fewer_days(lab: Lab) -> None:
    folder = Path(lab.console.path) / "exports"
    for name, browser in (("open", lab.operator), ("mill", lab.own), ("secret", lab.own), ("secret", lab.own)):
        assert browser.post(f"discussions/{name}/rebuild", {}).status == 200
    assert len(list(folder.iterdir())) == 4
    # The operator cannot read what is encrypted, and yet delete it.
    assert lab.operator.call("DELETE", "discussions/secret").json["left"] == []
    assert sorted(path.name[:4] for path in folder.iterdir()) == ["mill", "open"]
    [old] = folder.glob("mill*")
    day = 24 * 60 * 60
    os.utime(old, (time.time() - 8 * day,) * 2)
    assert lab.operator.call("PUT", "settings", {"days": 9}).status == 200 and old.exists()
    assert lab.operator.call("PUT", "settings", {"days": 7}).status == 200 and not old.exists()


@pytest.mark.parametrize(("wording", "status", "kept"), [(None, 200, True), (False, 200, True), (True, 200, False)])
@pytest.mark.parametrize("part", ["summary", "memories", "state"])
def test_the_earlier_wording_may_be_forgotten(
    lab: Lab, part: str, wording: bool | None, status: int, kept: bool
) -> None:
    entry = lab.entries(lab.operator, f"discussions/open?part={part}")[-1]
    body = {"text": "Another text.", **({} if wording is None else {"wording": wording})}
    assert lab.operator.call("PUT", f"discussions/open/memories/{entry['key']}", body).status == status
    backups = Path(lab.discussions.folder("open").folder).glob("*.bak")
    assert any(entry["text"] in path.read_text("utf-8") for path in backups) is kept
    for wrong in ("yes", 1, None):
        answer = lab.operator.call("PUT", f"discussions/open/memories/{entry['key']}", {"text": "x", "wording": wrong})
        assert (answer.status, answer.json["error"]["where"]) == (400, "wording")


# -- messages ----------------------------------------------------------------------------------------------------------

SAID = [
    said(f"Line {number} of the ledger.", ("Ines", None)[number % 2], number, said=number * 1_000_000)
    for number in range(70)
]


def _store_messages(lab: Lab, name: str, key: str) -> None:
    with lab.discussions.folder(name, key).messages(write=True) as index, index.writing() as writing:
        writing.put_chat(1, 1, False, ChatFacts())
        for one in [*SAID, said("Never said.", None, 80, state=ELSEWHERE)]:
            writing.add(one)


def test_messages_are_read_searched_and_forgotten(lab: Lab) -> None:
    _store_messages(lab, "secret", KEY)
    path = "discussions/secret?part=messages&limit=50"
    first = lab.own.get(path).json
    # The page shows what is elsewhere, too; the discussion has what its conversations say now.
    assert (first["total"], first["discussion"]["messages"]) == (71, 70)
    assert [(one["text"], one["title"], one["state"]) for one in first["entries"][:3]] == [
        ("Never said.", "User", "elsewhere"),
        ("Line 69 of the ledger.", "User", ""),
        ("Line 68 of the ledger.", "Ines", ""),
    ]
    assert first["entries"][2]["date"] == "1972-02-27T00:53:20+00:00"
    rest = lab.own.get(f"{path}&before={first['next']}").json
    texts = [one["text"] for one in (*first["entries"], *rest["entries"])]
    assert texts == ["Never said.", *(one.text for one in reversed(SAID))] and rest["next"] is None
    found = lab.entries(lab.own, f"{path}&q=line%207")
    assert found[0]["text"] == "Line 7 of the ledger." and "Never said." not in [one["text"] for one in found]
    # Who has no key sees how many there are, and nothing of them.
    hidden = lab.operator.get(path).json
    assert hidden["locked"] and not hidden["entries"] and hidden["discussion"]["messages"] == 70
    key = found[0]["key"]
    assert lab.operator.call("DELETE", f"discussions/secret/memories/{key}").status == 403
    assert lab.own.call("PUT", f"discussions/secret/memories/{key}", {"text": "x"}).status == 400
    assert lab.own.call("DELETE", f"discussions/secret/memories/{key[:-1]}{int(key[-1], 16) ^ 1:x}").status == 409
    assert lab.own.call("DELETE", f"discussions/secret/memories/{key}").status == 200
    assert lab.own.call("DELETE", f"discussions/secret/memories/{key}").status == 409
    assert lab.own.get(path).json["total"] == 70
    assert lab.own.get(f"discussions/secret/memories/{key}").status == 409


def test_memories_elsewhere_say_which_message_is_missing(lab: Lab) -> None:
    _store_messages(lab, "secret", KEY)
    folder = lab.discussions.folder("secret", KEY)
    entries = [
        {"text_block": text, "hash": "", "id": text, "sources": [one.key.hex() for one in sources]}
        for text, sources in (
            ("Of what is gone.", [SAID[3], said("Never said.")]),
            ("Of what is unknown.", [said("Not stored.")]),
            ("Of what is there.", SAID[:2]),
        )
    ]
    folder.write(ELSEWHERE_FILE, json.dumps([*entries, {"text_block": "By hand.", "hash": ""}]).encode())
    shown = lab.own.get("discussions/secret?part=memories").json["elsewhere"]
    assert shown == [
        {"text": "By hand.", "missing": ""},
        {"text": "Of what is there.", "missing": ""},
        {"text": "Of what is unknown.", "missing": ""},
        {"text": "Of what is gone.", "missing": "Never said."},
    ]
    assert lab.own.get("discussions/secret?part=memories&q=gone").json["elsewhere"] == []
    assert lab.own.get("discussions/mill?part=memories").json["elsewhere"] == []


def test_what_is_missing_may_be_known_from_recorded_runs(lab: Lab) -> None:
    def sent(*texts: str) -> RunDocument:
        messages = [{"role": "system", "content": "Be kind."}, *({"role": "user", "content": text} for text in texts)]
        document = run(discussion="mill", user="tester", key_hash=HASH, started=next(times))
        document.spans[0].texts["request"] = {"messages": messages}
        return document

    times = itertools.count(1_770_000_000_000_000, 1_000_000)
    lab.ring.all += [sent("One.", "Two."), sent("One.", "The old text."), run(discussion="mill"), sent("One.", "New.")]
    keys = [one.key for one in path_messages([{"role": "user", "content": text} for text in ("One.", "The old text.")])]
    entry = {"text_block": "Of both.", "hash": "", "id": "1", "sources": keys}
    lab.discussions.folder("mill", KEY, encrypt=False).write(ELSEWHERE_FILE, json.dumps([entry]).encode())
    shown = lab.own.get("discussions/mill?part=memories").json["elsewhere"]
    assert shown == [{"text": "Of both.", "missing": "The old text."}]
