"""The responses that clients go on from."""

from __future__ import annotations

import gc
import itertools
import json
import logging
import threading
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from Middleware.exceptions import ClientError
from Middleware.services.response_store import (
    MAX_BYTES,
    MAX_RESPONSE_BYTES,
    MAX_RESPONSES,
    Caller,
    ResponseStore,
    RunningResponse,
    request_id_of,
    response_id_of,
)
from Middleware.utilities.encryption_utils import DerivedKeys
from Tests.llmapis.lab import Lab

ACC = Caller(("acc",))
KEY = "sk-store-1"
SECRET = "Quetzalwibble"
_numbers = itertools.count(1)


@pytest.fixture(autouse=True)
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    lab = Lab(tmp_path, monkeypatch)
    for name in ("acc", "bea"):
        lab.write(f"Users/{name}", {})
    yield lab


def message(text: str, role: str = "user", **more: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": text, **more}


def reference(name: object) -> dict[str, Any]:
    return {"type": "item_reference", "id": name}


def begun(
    store: ResponseStore, caller: Caller = ACC, text: str = "Hi", previous: str | None = None, **options: Any
) -> RunningResponse:
    talk = store.conversation(caller, previous, [message(text)])
    return store.begin(caller, str(uuid.uuid4()), talk.items, previous, **options)


def stored(
    store: ResponseStore, caller: Caller = ACC, text: str = "Hi", previous: str | None = None, **options: Any
) -> str:
    """The id of a response that has ended."""
    running = begun(store, caller, text, previous, **options)
    running.finish(response(running.id, f"<{text}>"))
    running.discard()
    return running.id


def response(name: str, text: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "response",
        "status": "completed",
        "output": [message(text, "assistant", id=f"msg_{next(_numbers)}")],
    }


def texts(items: Any) -> list[str]:
    return [item["content"] for item in items]


def history(store: ResponseStore, previous: str, caller: Caller = ACC) -> list[str]:
    return texts(store.conversation(caller, previous, []).history)


def lost(store: ResponseStore, previous: str, caller: Caller = ACC) -> bool:
    """Whether nobody can go on from a response."""
    try:
        store.conversation(caller, previous, [])
    except ClientError as error:
        assert (error.status, error.code, error.param) == (400, "previous_response_not_found", "previous_response_id")
        assert (previous in str(error)) is (len(previous) > 20) and "whole conversation" in str(error)
        return True
    return False


def test_ids_of_requests_and_responses() -> None:
    request_id = str(uuid.uuid4())
    assert request_id_of(response_id_of(request_id)) == request_id
    assert [request_id_of(name) for name in ("", "resp_1", "resp_" + "g" * 32, f"{response_id_of(request_id)}0")] == [
        None
    ] * 4


def test_a_chain_of_three(store: ResponseStore) -> None:
    first = stored(store, text="a")
    second = stored(store, text="b", previous=first)
    third = stored(store, text="c", previous=second)
    assert history(store, third) == ["a", "<a>", "b", "<b>", "c", "<c>"]
    # Each has only its own.
    assert texts(store.items(ACC, second)) == ["b"]
    assert texts(store.response(ACC, second)["output"]) == ["<b>"]  # type: ignore[index]


def test_two_branches(store: ResponseStore) -> None:
    first = stored(store, text="a")
    left, right = stored(store, text="l", previous=first), stored(store, text="r", previous=first)
    assert history(store, left) == ["a", "<a>", "l", "<l>"] and history(store, right) == ["a", "<a>", "r", "<r>"]


def test_what_is_unknown_is_lost(store: ResponseStore) -> None:
    first = stored(store, text="a")
    second, third = stored(store, text="b", previous=first), stored(store, keep=False)
    assert store.delete(ACC, first) and not store.delete(ACC, first)
    assert store.response(ACC, first) is None and store.items(ACC, first) is None
    assert lost(store, first) and lost(store, second) and lost(store, third) and lost(store, "resp_x")
    assert store.response(ACC, second) is not None and store.response(ACC, third) is None


def test_lone_surrogates_survive(store: ResponseStore) -> None:
    assert history(store, stored(store, text="\ud83d Grüße")) == ["\ud83d Grüße", "<\ud83d Grüße>"]


# -- references --------------------------------------------------------------------------------------------------------
def test_references_to_input_and_output(store: ResponseStore) -> None:
    first = stored(store, text="a")
    asked, answered = (item["id"] for item in store.conversation(ACC, first, []).history)
    items = [reference(asked), reference(answered), message("b", id="mine"), message("c")]
    # Without a chain, they stand for the items; in one that has them, they are left out.
    alone, chained = (store.conversation(ACC, previous, items) for previous in (None, first))
    assert texts(alone.items) == ["a", "<a>", "b", "c"] and alone.history == []
    assert texts(chained.items) == ["b", "c"] and texts(chained.history) == ["a", "<a>"]
    assert alone.items[2]["id"] == "mine" and str(alone.items[3]["id"]).startswith("msg_")


@pytest.mark.parametrize("name", ["msg_0123456789abcdef", "my words", 5, None])
def test_an_unknown_reference(store: ResponseStore, name: object) -> None:
    stored(store)
    with pytest.raises(ClientError) as caught:
        store.conversation(ACC, None, [reference(name)])
    assert (caught.value.status, caught.value.param) == (404, "input")
    # Messages are logged, and must not have a client's words.
    shown = f" '{name}'" if "msg" in str(name) else ""
    assert str(caught.value).startswith(f"The item{shown} that 'input' refers to ")


def test_the_newest_of_equal_ids_is_meant(store: ResponseStore) -> None:
    for text in ("old", "new"):
        running = store.begin(ACC, str(uuid.uuid4()), [message(text, id="same")])
        running.finish(response(running.id, text))
    store.response(ACC, store._entries.items()[0][0])  # the use of a response does not make it newer
    assert texts(store.conversation(ACC, None, [reference("same")]).items) == ["new"]


def test_added_ids_name_their_type(store: ResponseStore) -> None:
    kinds = ("message", "function_call", "function_call_output", "custom_tool_call", "reasoning", "odd", 5, "")
    items = store.conversation(ACC, None, [{"type": kind} for kind in kinds]).items
    prefixes = [str(item["id"]).rpartition("_")[0] for item in items]
    assert prefixes == ["msg", "fc", "fco", "ctc", "rs", "odd", "msg", "msg"]


# -- owners ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "stranger",
    [
        Caller(("acc",), "sk-2"),
        Caller(("bea",), KEY),
        Caller(("acc",)),
        Caller((), KEY),
        Caller(("acc",), KEY, frozenset(("acc",))),
    ],
)
def test_others_see_nothing(store: ResponseStore, stranger: Caller) -> None:
    mine = Caller(("acc",), KEY)
    name = stored(store, mine)
    item = store.items(mine, name)[0]["id"]  # type: ignore[index]
    assert store.response(stranger, name) is None and store.items(stranger, name) is None
    assert not store.delete(stranger, name) and lost(store, name, stranger)
    with pytest.raises(ClientError):
        store.conversation(stranger, None, [reference(item)])
    assert store.response(mine, name) is not None and store.response(Caller(("bea", "acc"), KEY), name) is not None


@pytest.mark.parametrize(
    ("setting", "kept"),
    [(None, True), ("memory", True), (" Memory ", True), ("none", False), ("disk", False), (False, False), (5, False)],
)
def test_the_users_setting(lab: Lab, store: ResponseStore, setting: object, kept: bool) -> None:
    before = stored(store)
    lab.write("Users/acc", {"responsesStore": setting})
    caller = Caller.of(("acc", "nobody"), None)
    assert caller.keep_none == {"nobody"} | (set() if kept else {"acc"})
    caller = Caller.of(("acc",), None)
    running = store.begin(caller, str(uuid.uuid4()), [])
    running.finish(response(running.id, "x"))
    assert running.kept is kept and (store.response(caller, running.id) is not None) is kept
    assert lost(store, before, caller) is not kept


def test_encryption(lab: Lab, store: ResponseStore) -> None:
    lab.write("Users/acc", {"encryptUsingApiKey": True})
    mine = Caller.of(("acc",), KEY)
    name = stored(store, mine, SECRET)
    gc.collect()
    entry = store._entries.get(name)
    assert SECRET.encode() not in entry.response + entry.items and entry.encrypted
    assert history(store, name, mine) == [SECRET, f"<{SECRET}>"]
    # Keys with the same hash are still different keys.
    forged = Caller(("acc",), "sk-forged")
    object.__setattr__(entry, "owner", ("acc", forged.key_mark))
    assert store.response(forged, name) is None and store.items(forged, name) is None and lost(store, name, forged)
    # Without a key there is nothing to encrypt with, as in the files of discussions.
    assert not store._entries.get(stored(store)).encrypted


def test_a_key_is_derived_only_where_it_is_needed(monkeypatch: pytest.MonkeyPatch, store: ResponseStore) -> None:
    monkeypatch.setattr(DerivedKeys, "get", None)
    stored(store, Caller(("acc",), KEY))


# -- limits ------------------------------------------------------------------------------------------------------------
def test_the_limits() -> None:
    assert (MAX_RESPONSES, MAX_BYTES, MAX_RESPONSE_BYTES) == (1000, 64 * 2**20, 16 * 2**20)


def test_a_thousand_and_one() -> None:
    store = ResponseStore()
    first, second, *others = (stored(store) for _ in range(1000))
    store.response(ACC, first)
    last = stored(store)
    assert store.response(ACC, second) is None
    assert all(store.response(ACC, name) is not None for name in (first, last, *others))


def test_going_on_uses_the_whole_chain() -> None:
    store = ResponseStore(max_responses=4)
    first = stored(store)
    second = stored(store, previous=first)
    others = [stored(store), stored(store)]
    third = stored(store, previous=second)
    assert history(store, third) and lost(store, others[0]) and not lost(store, others[1])


def test_a_reference_is_a_use() -> None:
    store = ResponseStore(max_responses=3)
    first, second, third = stored(store), stored(store), stored(store)
    asked = store.items(ACC, second)[0]["id"]  # type: ignore[index]
    for name in (first, second, third):
        store.response(ACC, name)
    store.conversation(ACC, None, [reference(asked)])
    stored(store)
    stored(store)
    assert [store.response(ACC, name) is None for name in (first, second, third)] == [True, False, True]


def test_bytes_in_all() -> None:
    store = ResponseStore(max_bytes=100_000)
    names = [stored(store, text="x" * 10_000) for _ in range(10)]
    assert store._entries.weight <= 100_000
    gone = [name for name in names if store.response(ACC, name) is None]
    assert gone == names[: len(gone)] and len(gone) == 6


def test_many_small_items_weigh_too() -> None:
    store = ResponseStore(max_bytes=100_000)
    for _ in range(3):
        running = store.begin(ACC, str(uuid.uuid4()), [{"id": f"i{number}"} for number in range(500)])
        running.finish(response(running.id, ""))
    assert len(store._entries.items()) == 1


@pytest.mark.parametrize("limits", [{"max_responses": 6}, {"max_bytes": 60_000}])
def test_the_owner_that_holds_most_makes_room(limits: Mapping[str, int]) -> None:
    store, bea = ResponseStore(**limits), Caller(("bea",))
    hers = [stored(store, bea, "x" * 4_000)]
    mine = [stored(store, text="x" * 4_000) for _ in range(20)]
    assert all(store.response(bea, name) is not None for name in hers)
    assert store.response(ACC, mine[0]) is None and store.response(ACC, mine[-1]) is not None


def test_a_large_response_of_a_new_owner_stays() -> None:
    store, bea = ResponseStore(max_bytes=50_000), Caller(("bea",))
    mine = [stored(store, text="x" * 2_000) for _ in range(8)]
    hers = stored(store, bea, "x" * 15_000)
    assert store.response(bea, hers) is not None and store.response(ACC, mine[0]) is None


def test_one_that_is_too_large(caplog: pytest.LogCaptureFixture) -> None:
    store = ResponseStore()
    with caplog.at_level(logging.WARNING):
        name = stored(store, text="x" * (17 * 2**20))
    assert [record.getMessage() for record in caplog.records] == [
        f"Response {name} is not kept, because it has 34 MB of JSON; at most 16 MB are kept of one."
    ]
    assert store.response(ACC, name) is None and store.items(ACC, name) is None and not store.delete(ACC, name)
    with pytest.raises(ClientError, match="too large to be stored"):
        store.conversation(ACC, name, [])
    assert lost(store, name) and store._entries.weight == 0


def test_the_books_are_balanced_after_all_that() -> None:
    store = ResponseStore(max_responses=20, max_bytes=40_000)
    names: list[str] = []
    for number in range(200):
        names.append(stored(store, Caller((f"u{number % 3}",)) if number % 2 else ACC, "x" * (number * 37 % 3_000)))
        if number % 7 == 0:
            store.delete(ACC, names[number // 2])
    entries = [entry for _, entry in store._entries.items()]
    assert store._entries.weight == sum(entry.weight for entry in entries) <= 40_000 and len(entries) <= 20
    assert store._entries._counts == Counter(entry.owner for entry in entries)
    assert store._entries._weights.keys() == store._entries._counts.keys()


# -- under way ---------------------------------------------------------------------------------------------------------
def test_under_way(store: ResponseStore) -> None:
    running = begun(store)
    assert store.response(ACC, running.id) is None  # not begun yet, as the client sees it
    running.so_far = lambda: {"status": "in_progress"}
    assert store.response(ACC, running.id) == {"status": "in_progress"}
    assert texts(store.items(ACC, running.id)) == ["Hi"] and lost(store, running.id)
    assert store.running(Caller(("acc",), KEY), running.id) is None
    assert store.running(Caller(("bea",)), running.id) is None
    assert store.running(Caller(("bea", "acc")), running.id) is running
    running.finish(response(running.id, "a"))
    running.finish(response(running.id, "b"))
    assert history(store, running.id) == ["Hi", "a"] and store.running(ACC, running.id) is None


def test_one_that_is_not_kept_can_only_be_cancelled(store: ResponseStore) -> None:
    running = begun(store, keep=False)
    running.so_far = dict
    assert store.response(ACC, running.id) is None and store.items(ACC, running.id) is None
    assert not store.delete(ACC, running.id) and store.running(ACC, running.id) is running


def test_a_client_that_left_leaves_nothing(store: ResponseStore) -> None:
    running = begun(store)
    running.discard()
    running.finish(response(running.id, "late"))
    assert store.response(ACC, running.id) is None and store.running(ACC, running.id) is None
    assert not store._running and not store._entries.items()


def test_deleted_under_way(store: ResponseStore) -> None:
    running = begun(store)
    running.so_far = dict
    assert store.delete(ACC, running.id) and not store.delete(ACC, running.id)
    running.finish(response(running.id, "a"))
    assert store.response(ACC, running.id) is None


@pytest.mark.parametrize("ended", [True, False])
def test_waiting_for_the_end(store: ResponseStore, ended: bool) -> None:
    running = begun(store)
    with store.awaiting(running.id) as awaited:
        last = response(running.id, "a") if ended else None
        threading.Timer(0.05, running.finish if ended else running.discard, [last] if ended else []).start()
        assert awaited.wait(60) is last
    assert not store._awaited
    with store.awaiting("resp_x") as never:
        assert never.wait(0.01) is None


def test_two_wait_for_the_same_end(store: ResponseStore) -> None:
    running = begun(store)
    with store.awaiting(running.id) as one, store.awaiting(running.id) as two:
        running.finish(last := response(running.id, "a"))
        assert one.wait(0) is last and two.wait(0) is last


def test_nested_as_deeply_as_a_request_may_be(store: ResponseStore) -> None:
    depth = 100_000
    deep: Any = []
    for _ in range(depth):
        deep = [deep]
    running = store.begin(ACC, str(uuid.uuid4()), [{"id": "i", "x": deep}])
    running.finish(response(running.id, "a"))
    assert store.response(ACC, running.id) is None
    while deep:  # or its end would be as deep
        deep = deep.pop()


def test_many_at_once() -> None:
    """Two that go on from the same response, and everybody else: nothing is mixed up, and the limits hold."""
    store, failures = ResponseStore(max_responses=50, max_bytes=100_000), list[str]()

    def talk(user: str) -> None:
        caller = Caller((user,))
        for turn in range(40):
            first = stored(store, caller, f"{user} {turn}")
            try:
                found = history(store, stored(store, caller, "b", first), caller)
            except ClientError:
                continue  # evicted by the others
            if found[0] != f"{user} {turn}":
                failures.append(json.dumps(found))

    threads = [threading.Thread(target=talk, args=[f"user{number}"]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and len(store._entries.items()) <= 50 and store._entries.weight <= 100_000
    assert store._entries.weight == sum(entry.weight for _, entry in store._entries.items())


@pytest.fixture
def store() -> ResponseStore:
    return ResponseStore()
