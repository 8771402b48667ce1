"""Chats that front-ends have saved become the messages that they would send."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from Middleware.addons.discussions.chat_files import read_chats
from Middleware.cli.program import NotDoneError

HEADER = {
    "user_name": "Ines",
    "character_name": "Tom",
    "create_date": "2026-6-19 @14h 20m 00s 000ms",
    "chat_metadata": {},
}


def silly(name: str, text: str, *, user: bool = False, **fields: Any) -> dict[str, Any]:
    return {
        "name": name,
        "is_user": user,
        "is_system": False,
        "send_date": "June 19, 2026 2:20pm",
        "mes": text,
    } | fields


def lines(*rows: object) -> bytes:
    return "\n".join(json.dumps(row, ensure_ascii=False) for row in rows).encode()


def said(role: str, content: str, **fields: Any) -> dict[str, Any]:
    return {"role": role, "content": content} | fields


DATE = {"send_date": "June 19, 2026 2:20pm"}
HELLO, ANSWER = silly("Ines", "Hello", user=True), silly("Tom", "Hi\u2028there")
SENT = [said("user", "Hello", name="Ines", **DATE), said("assistant", "Hi\u2028there", name="Tom", **DATE)]
WEBUI = {
    "id": "c1",
    "title": "Lease",
    "chat": {
        "title": "Lease",
        "history": {
            "currentId": "d",
            "messages": {
                "a": {"id": "a", "parentId": None, "role": "user", "content": "When?", "timestamp": 1_780_000_000},
                "b": {
                    "id": "b",
                    "parentId": "a",
                    "role": "assistant",
                    "content": "In May.",
                    "timestamp": 1_780_000_009,
                },
                "c": {"id": "c", "parentId": "a", "role": "assistant", "content": "Never.", "timestamp": 1_780_000_020},
                "d": {"id": "d", "parentId": "b", "role": "user", "content": [{"type": "text", "text": "Sure?"}]},
            },
        },
    },
}
BRANCH = [
    said("user", "When?", timestamp=1_780_000_000),
    said("assistant", "In May.", timestamp=1_780_000_009),
    said("user", "Sure?"),
]
GENERIC = [said("user", "A", name="Ines", timestamp="2026-03-11T10:00:00Z"), said("assistant", "B")]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (lines(HEADER, HELLO, ANSWER), [SENT]),
        (lines(HEADER, HELLO, ANSWER) + b"\r\n\r\n", [SENT]),
        (b"\xef\xbb\xbf" + lines(HEADER, HELLO, ANSWER), [SENT]),
        (lines(HELLO, ANSWER), [SENT]),
        # One message alone is one JSON object as well.
        (lines(HELLO), [SENT[:1]]),
        # Hidden by its user: said nevertheless.
        (lines(HEADER, HELLO | {"is_system": True}, ANSWER), [SENT]),
        (lines(HEADER, HELLO, silly("System", "Night falls.", extra={"type": "narrator"}), ANSWER), [SENT]),
        (lines(HEADER, HELLO, silly("Note", "x", is_system=True, extra={"type": "comment"}), ANSWER), [SENT]),
        (lines(HEADER, HELLO, ANSWER | {"swipes": ["Hi\u2028there", "Go"], "extra": {"model": "m"}}), [SENT]),
        (lines([WEBUI]), [BRANCH]),
        (lines([WEBUI, WEBUI]), [BRANCH, BRANCH]),
        (lines(WEBUI), [BRANCH]),
        (lines(WEBUI["chat"]), [BRANCH]),
        (lines({"messages": GENERIC}), [GENERIC]),
        (lines(GENERIC), [GENERIC]),
        (lines([said("system", "Be kind."), *GENERIC, said("tool", "7")]), [GENERIC]),
        (lines([*GENERIC, said("assistant", None)]), [GENERIC]),  # type: ignore[arg-type]
        (json.dumps(GENERIC, indent=2).encode("utf-16"), [GENERIC]),
    ],
)
def test_a_saved_chat_is_read(tmp_path: Path, content: bytes, expected: list[Any]) -> None:
    (tmp_path / "chat").write_bytes(content)
    assert read_chats(str(tmp_path / "chat")) == expected


LOOP = {"history": {"currentId": "a", "messages": {"a": {"parentId": "a", "role": "user", "content": "A"}}}}


def test_a_chat_that_names_itself_as_its_beginning_ends(tmp_path: Path) -> None:
    (tmp_path / "chat").write_bytes(lines(LOOP))
    assert read_chats(str(tmp_path / "chat")) == [[said("user", "A")]]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "has no messages"),
        (b"\xff\x00\xc3", "is not UTF-8 text"),
        (b"hello", "line 1, is not JSON"),
        (lines(HEADER, HELLO) + b"\n{oops", "line 3, is not JSON"),
        (lines(HEADER), "is not a chat"),
        (lines(HELLO, 7), "line 2, is not a JSON object"),
        (lines([]), "has no messages"),
        (lines([7]), "entry 1, is not a chat"),
        (lines([WEBUI, {"title": "x"}]), "entry 2, is not a chat"),
        (lines({"messages": [{"content": "A"}]}), "message 1, has no role"),
        (lines(7), "entry 1, is not a chat"),
        (b"[" * 100_000, "is not JSON"),
    ],
)
def test_another_file_is_refused_with_its_place(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "chat").write_bytes(content)
    with pytest.raises(NotDoneError, match=words):
        read_chats(str(tmp_path / "chat"))
