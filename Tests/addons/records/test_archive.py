"""Who sees which runs and which texts: the table of the console's roles, over runs in memory and on disk."""

from __future__ import annotations

import pytest

from Middleware.addons.records.archive import RunArchive
from Middleware.addons.records.console_folder import ConsoleFolder
from Middleware.addons.records.queries import RunQuery
from Middleware.addons.records.settings import RecordSettings
from Middleware.addons.records.store.writer import RunStore
from Middleware.addons.records.viewers import Viewer
from Middleware.exceptions import ClientError
from Middleware.utilities.encryption_utils import derive_encryption_key, hash_api_key
from Tests.addons.records.records_lab import Ring, message, run

MINE, OTHERS = "sk-mine-0123456789", "sk-others-0123456789"
VIEWERS = {
    "own": Viewer("own", frozenset({hash_api_key(MINE)}), frozenset({"me"}), MINE),
    "all": Viewer("all", frozenset({hash_api_key(MINE)}), frozenset({"me", "you"}), MINE),
    "operator": Viewer("operator"),
}
# What each role sees of a run: nothing, its facts, its texts too; and whether it may change it.
TABLE = {
    "mine": {"own": ("texts", True), "all": ("texts", True), "operator": ("texts", True)},
    "another key's": {"own": ("-", False), "all": ("texts", False), "operator": ("texts", True)},
    "another user's": {"own": ("-", False), "all": ("-", False), "operator": ("texts", True)},
    "without a key": {"own": ("-", False), "all": ("texts", False), "operator": ("texts", True)},
    "my private": {"own": ("texts", True), "all": ("texts", True), "operator": ("facts", True)},
    "another key's private": {"own": ("-", False), "all": ("facts", False), "operator": ("facts", True)},
    "private without a key": {"own": ("-", False), "all": ("facts", False), "operator": ("facts", True)},
}


def runs():
    mine, others = hash_api_key(MINE), hash_api_key(OTHERS)
    return {
        "mine": run(key_hash=mine),
        "another key's": run(key_hash=others, user="you"),
        "another user's": run(key_hash=others, user="they"),
        "without a key": run(),
        "my private": run(derive_encryption_key(MINE, "me"), key_hash=mine, private=True),
        "another key's private": run(derive_encryption_key(OTHERS, "me"), key_hash=others, private=True),
        "private without a key": run(private=True),
    }


@pytest.fixture(params=["ring", "disk"])
def archive(request, tmp_path):
    """Yield the archive with one run of each kind, and these runs."""
    known = runs()
    folder = ConsoleFolder(str(tmp_path / "Console"))
    ring = Ring(*known.values()) if request.param == "ring" else Ring()
    store = RunStore(folder, ring, RecordSettings(folder, "texts"))
    for one in known.values():
        store.finished(one)
    store.flush()
    yield RunArchive(ring, store), known
    store.close()


@pytest.mark.parametrize("role", VIEWERS)
def test_each_role_sees_and_changes_what_the_table_says(archive, role):
    archive, known = archive
    viewer = VIEWERS[role]
    page = archive.runs(RunQuery(), viewer)
    listed = {one["id"]: one for one in page.runs}
    assert page.total == len(listed)
    for kind, cells in TABLE.items():
        sees, changes = cells[role]
        run_id = known[kind].facts["id"]
        document = archive.run(run_id, viewer)
        if sees == "-":
            assert document is None and run_id not in listed, kind
            assert archive.texts(run_id, 3, viewer) is None, kind
            with pytest.raises(ClientError) as raised:
                archive.note(run_id, viewer, "x")
            assert raised.value.status == 404, kind
            continue
        has_texts = sees == "texts"
        assert document.facts["workflow"] == "Chat" and len(document.spans) == 4, kind
        assert document.encryption_key is None
        assert document.facts["changeable"] == listed[run_id]["changeable"] == changes, kind
        assert document.facts["answer"] == ("Late." if has_texts else None), kind
        assert listed[run_id]["answer"] == ("Late." if has_texts else None), kind
        assert listed[run_id]["texts"] == document.facts["texts"], kind
        assert (document.facts["texts"] == "private") == (not has_texts), kind
        assert archive.texts(run_id, 3, viewer) == ({"answer": "Late."} if has_texts else {}), kind
        if changes:
            archive.note(run_id, viewer, "looked at")
            assert archive.run(run_id, viewer).facts["note"] == "looked at", kind
        else:
            with pytest.raises(ClientError) as raised:
                archive.note(run_id, viewer, "x")
            assert raised.value.status == 403, kind


@pytest.mark.parametrize("role", VIEWERS)
def test_a_search_finds_only_texts_that_its_viewer_may_see(archive, role):
    archive, known = archive
    readable = {known[kind].facts["id"] for kind, cells in TABLE.items() if cells[role][0] == "texts"}
    for all_texts in (False, True):
        found = archive.runs(RunQuery(q="LATE", all_texts=all_texts), VIEWERS[role])
        assert {one["id"] for one in found.runs} == readable


def test_a_payload_comes_back_value_for_value(tmp_path):
    folder = ConsoleFolder(str(tmp_path / "Console"))
    store = RunStore(folder, Ring(), RecordSettings(folder, "texts"))
    messages = [
        message("system", "Be brief. " * 50),
        message("user", '\ud800 \u00fc "quoted"'),
        {"content": [{"type": "text", "text": "hello"}], "role": "user"},
        {"content": "x" * 99, "role": "user"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
        message("user", ""),
    ]
    one = run(messages=messages)
    payload = one.spans[3].texts["payload"]
    payload |= {"tools": [{"type": "function"}], "options": {"temperature": 0.5, "stop": ["a"]}, "empty": [], "n": None}
    for document in (one, run(messages=messages)):
        store.finished(document)
        store.flush()
        texts = RunArchive(Ring(), store).texts(document.facts["id"], 4, Viewer("operator"))
        assert texts["payload"] == document.spans[3].texts["payload"]
        assert list(texts["payload"]) == list(document.spans[3].texts["payload"])
    store.close()


def test_pages_join_memory_and_disk_in_the_order_of_the_starts(tmp_path):
    folder = ConsoleFolder(str(tmp_path / "Console"))
    all_runs = [run(started=1_000_000 + number // 2, workflow="Odd" if number % 2 else "Even") for number in range(25)]
    ring = Ring(*all_runs[20:])
    store = RunStore(folder, ring, RecordSettings(folder, "facts"))
    for one in all_runs[:23]:
        store.finished(one)
    store.flush()
    archive, viewer = RunArchive(ring, store), Viewer("operator")
    seen, before, pages = [], None, 0
    while True:
        page = archive.runs(RunQuery.parse({"limit": "7", **({"before": before} if before else {})}), viewer)
        seen += [one["id"] for one in page.runs]
        pages += 1
        assert page.total == 25
        if page.next is None:
            break
        before = page.next
    expected = sorted(all_runs, key=lambda one: (one.facts["started"], one.facts["id"]), reverse=True)
    assert seen == [one.facts["id"] for one in expected] and pages == 4
    assert archive.runs(RunQuery(workflow="Odd"), viewer).total == 12
    assert archive.choices(viewer) == {"workflow": ["Even", "Odd"], "endpoint": ["Main"], "user": ["me"]}
    store.close()


FILTERS = [
    ({"status": "failed"}, {"b"}),
    ({"status": "ok,failed"}, {"a", "b", "c"}),
    ({"kind": "task"}, {"c"}),
    ({"workflow": "Code"}, {"b"}),
    ({"endpoint": "Small"}, {"b", "c"}),
    ({"endpoint": "Smal"}, set()),
    ({"user": "you"}, {"c"}),
    ({"discussion": "mill"}, {"a"}),
    ({"since": "200"}, {"b", "c"}),
    ({"until": "200"}, {"a"}),
    ({"q": "SNAKE"}, {"b"}),
    ({"q": "über"}, {"c"}),
    ({"q": "mill"}, {"a"}),
    ({"q": "code"}, {"b"}),
    ({"q": "%"}, set()),
    ({"q": "snake", "status": "ok"}, set()),
    ({"user": "me", "endpoint": "Main", "since": "50"}, {"a"}),
]


@pytest.mark.parametrize(("words", "expected"), FILTERS)
def test_filters_give_exactly_the_matching_runs(tmp_path, words, expected):
    documents = {
        "a": run(id="a", started=100, discussion="mill"),
        "b": run(
            id="b",
            started=200,
            status="failed",
            workflow="Code",
            route="Code",
            question="A snake game",
            endpoints=["Small", "Other"],
        ),
        "c": run(id="c", started=300, kind="task", user="you", answer="ÜBER alles", endpoints=["Small"]),
    }
    folder = ConsoleFolder(str(tmp_path / "Console"))
    store = RunStore(folder, Ring(), RecordSettings(folder, "texts"))
    for one in documents.values():
        store.finished(one)
    store.flush()
    query = RunQuery.parse(words)
    nothing = ConsoleFolder(str(tmp_path / "Nothing"))
    empty = RunStore(nothing, Ring(), RecordSettings(nothing, "off"))
    for archive in (RunArchive(Ring(*documents.values()), empty), RunArchive(Ring(), store)):
        page = archive.runs(query, Viewer("operator"))
        assert {one["id"] for one in page.runs} == expected
        assert page.total == len(expected)
    store.close()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"limt": "5"}, "'limit'"),
        ({"limit": "0"}, "from 1 to 200"),
        ({"limit": "x"}, "from 1 to 200"),
        ({"status": "faild"}, "'failed'"),
        ({"kind": "chats"}, "'chat'"),
        ({"before": "yesterday"}, "'next'"),
        ({"since": "-1"}, "microseconds"),
        ({"all": "maybe"}, "0 or 1"),
        ({"q": "x" * 2000}, "1,000"),
    ],
)
def test_a_wrong_filter_is_named_with_what_was_expected(words, told):
    with pytest.raises(ClientError) as raised:
        RunQuery.parse(words)
    assert raised.value.status == 400
    assert told in str(raised.value)
