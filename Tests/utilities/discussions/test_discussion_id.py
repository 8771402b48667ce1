"""The tag that names a conversation's stored data."""

from __future__ import annotations

import logging
import re
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from Middleware.models.request_context import RequestContext, request_scope
from Middleware.utilities.discussions.discussion_id import extract_discussion_id, remove_discussion_id_tag
from Middleware.utilities.files import path_utils
from Middleware.utilities.hashing_utils import hash_single_message
from Tests.corpora import cases
from Tests.properties import examples
from Tests.tables import table


def tag(name: str) -> str:
    return f"[DiscussionId]{name}[/DiscussionId]"


def m(content: Any, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": content}


@table(
    ("contents", "expected"),
    [
        ([f"x{tag('d1')}y"], "d1"),
        (["none", f"{tag('first')}{tag('second')}", tag("third")], "first"),
        ([tag("../z"), tag("ok")], None),
        ([tag("a")], "a"),
        ([tag(" x y ")], " x y "),
        ([tag("a\nb")], None),
        ([tag("a\nb"), tag("ok")], "ok"),
        ([tag("")], None),
        ([tag(""), tag("ok")], None),
        ([tag("  ")], None),
        ([tag(" d1 ")], " d1 "),
        (["[discussionid]x[/discussionid]"], None),
        (["[DiscussionId]open"], None),
        ([f"[DiscussionId]a{tag('b')}"], "a[DiscussionId]b"),
        ([tag("Größe 1.2")], "Größe 1.2"),
        ([tag("{a}")], "{a}"),
        ([None, 5, [tag("x")], tag("ok")], "ok"),
        ([], None),
    ],
)
def test_first_complete_tag(monkeypatch: pytest.MonkeyPatch, contents: list[Any], expected: str | None) -> None:
    for windows in (False, True):
        monkeypatch.setattr(path_utils, "WINDOWS", windows)
        # Windows would leave out a blank at the end of a folder's name.
        usable = expected if not windows or not (expected or "").endswith(" ") else None
        assert extract_discussion_id([m(content) for content in contents]) == usable


@pytest.mark.parametrize(
    "name",
    [
        *["../evil", "a/b", "C:x", "..", ".", "a\\b", "a\tb", "12:30", "a\x85b", "a\x00b", "x" * 256, "é" * 128],
        # A folder there would be in the way of the file, in any spelling that a file system takes for the same.
        *["key-salt.json", "KEY-Salt.json", "key-salt\u200b.json", "ｋey-salt.json"],
    ],
)
def test_unsafe_ids_are_none(name: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert extract_discussion_id([m(tag(name))]) is None
    assert caplog.records


def test_an_unsafe_id_is_told_with_its_request(caplog: pytest.LogCaptureFixture) -> None:
    with request_scope(RequestContext(request_id="r-7")):
        extract_discussion_id([m(tag("../evil"))])
    assert "r-7" in caplog.text and "evil" not in caplog.text


@pytest.mark.parametrize(
    "name",
    [
        "x" * 255,
        "é" * 127,
        "...a",
        "a b-c_d",
        "第一章\u3000始まり",
        "family 👨\u200d👩\u200d👧",
        "می\u200cخواهم",
        "a\u00a0b",
        "a\u00adb",
        "key-salt",
        "my key-salt.json",
    ],
)
def test_unusual_but_safe(name: str) -> None:
    assert extract_discussion_id([m(tag(name))]) == name


@pytest.mark.parametrize("role", ["system", "assistant", "systemMes", "user"])
def test_any_role_but_tool(role: str) -> None:
    assert extract_discussion_id([m(tag("tool"), "tool"), m(tag("d"), role)]) == "d"


def test_a_tool_message_never_selects() -> None:
    assert extract_discussion_id([m(tag("t"), "tool")]) is None


def test_what_is_left_beside_a_tag_counts_for_stored_hashes() -> None:
    messages = [m("[DiscussionId]k1[/DiscussionId] How are you?")]
    remove_discussion_id_tag(messages)
    assert hash_single_message(messages[0]) == "41e469e00a8552419fbd5fbb2177d0024f7f0b1c73ff52f3a1c8e06dbca13174"


def test_all_tags_are_removed_everywhere() -> None:
    messages = [
        m(f"x{tag('a')}y{tag('../z')}"),
        m(tag("t"), "tool"),
        m(None),
        m(tag(""), "system"),
        m("[DiscussionId]"),
    ]
    remove_discussion_id_tag(messages)
    assert [message["content"] for message in messages] == ["xy", "", None, "", "[DiscussionId]"]


# -- hostile names -----------------------------------------------------------------------------------------------------


@table("windows", [False, True], ids=["posix", "windows"])
@table("entry", [case for case in cases("traversal_names") if isinstance(case.values[0]["input"], str)])
def test_only_names_that_can_be_stored_are_ids(
    monkeypatch: pytest.MonkeyPatch, entry: dict[str, Any], windows: bool
) -> None:
    monkeypatch.setattr(path_utils, "WINDOWS", windows)
    flat = entry.get("windows", {}).get("flat", entry["flat"]) if windows else entry["flat"]
    name = entry["input"] if flat and entry["storable"] else None
    assert extract_discussion_id([m(f"[DiscussionId]{entry['input']}[/DiscussionId]")]) == name


# -- the same as a regular expression, in linear time ------------------------------------------------------------------

PATTERN = re.compile(r"\[DiscussionId\](.*?)\[/DiscussionId\]")
PIECES = ["[DiscussionId]", "[/DiscussionId]", "[DiscussionId", "DiscussionId]", "[", "a", "b ", "\n", "\r", "\u2028"]


@examples(1000)
@given(st.lists(st.sampled_from(PIECES), max_size=14).map("".join))
def test_finds_what_the_pattern_finds(text: str) -> None:
    found, messages = PATTERN.search(text), [m(text)]
    name = found.group(1) if found else ""
    usable = name.strip() and not re.search(r"[\x00-\x1f\x7f-\x9f]", name)
    assert extract_discussion_id(messages) == (name if usable else None)
    remove_discussion_id_tag(messages)
    assert messages[0]["content"] == PATTERN.sub("", text)


@pytest.mark.parametrize(
    ("piece", "rest"),
    [
        ("[DiscussionId]", "all"),
        ("[DiscussionId]\n", "all"),
        ("[DiscussionId][/DiscussionId]", "none"),
        ("[/DiscussionId][DiscussionId]\n[/DiscussionId]", "all"),
        ("[DiscussionId][/DiscussionId]\n", "newlines"),
    ],
)
def test_a_megabyte_of_tags_takes_no_time(piece: str, rest: str) -> None:
    count = 1_000_000 // len(piece)
    messages = [m(piece * count)]
    began = time.thread_time()
    assert extract_discussion_id(messages) is None
    remove_discussion_id_tag(messages)
    # Time in proportion to the square of the length would be minutes.
    assert time.thread_time() - began < 10
    assert messages[0]["content"] == {"all": piece * count, "none": "", "newlines": "\n" * count}[rest]
