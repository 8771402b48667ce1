"""What changes a key, what does not, and which messages a front-end has inserted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from Middleware.utilities.conversations.message_keys import (
    PathMessage,
    injected,
    next_tails,
    path_messages,
    recognised,
)
from Middleware.utilities.hashing_utils import hash_content, recognition_keys
from Tests.tables import table

Said = tuple[str, str]
CHAT: list[Said] = [
    ("user", "Where is the key?"),
    ("assistant", "Mara hid it in the mill."),
    ("user", "And  the ledger?\n"),
    ("assistant", "It burned: in May."),
    ("user", "Who saw it?"),
]


def keys(said: Sequence[Said]) -> list[PathMessage]:
    return path_messages([{"role": role, "content": text} for role, text in said])


def prefixed(prefix: Callable[[int, str], str]) -> list[Said]:
    return [(role, prefix(index, role) + text) for index, (role, text) in enumerate(CHAT)]


NAMES = {"user": "Tom: ", "assistant": "Ines: "}


@table(
    "said",
    [
        prefixed(lambda index, role: NAMES[role]),
        prefixed(lambda index, role: f"[2026-11-{index + 1:02} 18:30] "),
        prefixed(lambda index, role: f"({index + 2} minutes ago) "),
        prefixed(lambda index, role: f"<Wednesday, {index}>\n"),
        prefixed(lambda index, role: f"[12:3{index}] {NAMES[role]}"),
        prefixed(lambda index, role: f"{NAMES[role]}[12:3{index}] "),
        prefixed(lambda index, role: "User: " if role == "user" else "Assistant: "),
        prefixed(lambda index, role: f"User: [12:3{index}] {NAMES[role]}"),
        # Dates of one role alone.
        prefixed(lambda index, role: f"[12:3{index}] " if role == "user" else ""),
        [(role, f"  {text.replace(' ', '   ')} ") for role, text in CHAT],
        [(role, text.replace(" ", "\n\n")) for role, text in CHAT],
        [("narrator", text) for _, text in CHAT],
    ],
)
def test_what_stands_before_a_text_changes_no_key(said: list[Said]) -> None:
    assert [one.key for one in keys(said)] == [one.key for one in keys(CHAT)]


@table(
    ("one", "other"),
    [
        ("Where is the key?", "Where is the key"),
        ("Where is the key?", "where is the key?"),
        ("Where is the key?", "Where is the kéy?"),
        ("Note: where?", "Memo: where?"),  # neither has spoken before
        ("(edited 3) Where?", "Where?"),  # a stamp that no other message has
        ("[no digit] Where?", "Where?"),
        ("[1, but of far more than forty characters in all] Where?", "Where?"),
        ("EDIT 1: Where?", "Where?"),  # a name, where no other message has one
    ],
)
def test_an_edit_is_an_edit(one: str, other: str) -> None:
    first = keys([("user", one), *CHAT[1:]])[0]
    second = keys([("user", other), *CHAT[1:]])[0]
    assert not set(first.keys) & set(second.keys)


def test_the_key_of_a_plain_text_is_its_recognition_key() -> None:
    texts = ["Where is the key?", "Kim: hello", "Kim: there", " ok "]
    found = keys([("user", text) for text in texts])
    expected = recognition_keys([{"content": text} for text in texts])
    assert [one.key for one in found] == [key[:16] for key in expected]
    assert found[1].other == hash_content("Kim: hello")[:16]


@table(
    ("before", "after"),
    [
        # A speaker who has spoken once is not recognised as one.
        ([("user", "Kim: hello"), ("assistant", "Sera: hi")], [("user", "Kim: more"), ("assistant", "Sera: well")]),
        # In a window he has spoken once again.
        ([("user", "Kim: hello"), ("assistant", "Sera: hi"), ("user", "Kim: a"), ("assistant", "Sera: b")], []),
        ([("assistant", "[10:01] hi"), ("user", "[10:00] hello")], [("user", "[10:02] a"), ("assistant", "[10:03] b")]),
    ],
)
def test_the_first_message_stays_the_same_with_the_second(before: list[Said], after: list[Said]) -> None:
    first, later = keys(before)[:2], keys([*before[:2], *after])[:2]
    assert all(set(one.keys) & set(other.keys) for one, other in zip(first, later, strict=True))


def test_pictures_and_calls_have_keys() -> None:
    messages = [
        {"role": "user", "content": "", "images": ["a"]},
        {"role": "user", "content": "", "images": ["b"]},
        {"role": "assistant", "content": "", "tool_calls": [{}]},
        {"role": "user", "content": "look", "images": ["a"]},
        {"role": "user", "content": "[12:30]"},
        {"role": "user", "content": "Kim:"},
    ]
    found = path_messages(messages)
    assert len({one.key for one in found}) == len(messages)
    assert path_messages(messages) == found


@table(
    ("text", "parts"),
    [
        ("Tom: [12:30] hello", ("[12:30]", "Tom", "hello")),
        ("[12:30] Tom: hello: you", ("[12:30]", "Tom", "hello: you")),
        ("[12:30] hello", ("[12:30]", "", "hello")),
        ("hello", ("", "", "hello")),
        ("Note: hello", ("", "", "Note: hello")),
    ],
)
def test_the_parts_of_a_message(text: str, parts: tuple[str, str, str]) -> None:
    others = [{"role": "user", "content": f"[12:3{index}] Tom: {index}"} for index in range(4)]
    message = {"role": "user", "content": text}
    assert recognised([*others, message]).parts(message) == parts


# -- injected messages -------------------------------------------------------------------------------------------------

LORE: Said = ("user", "The mill stands by the river, and its wheel has not turned for years.")
AT_LENGTH: list[Said] = [("user", f"{LORE[1]} {number}") for number in range(6)]
NOTE: Said = ("user", "A short note.")


def chat(count: int, first: int = 0) -> list[Said]:
    return [("user" if index % 2 == 0 else "assistant", f"message {index}") for index in range(first, first + count)]


def at_depth(said: Sequence[Said], depth: int, lore: Said = LORE) -> list[Said]:
    return [*said[: len(said) - depth], lore, *said[len(said) - depth :]]


@table(
    ("requests", "found"),
    [
        # Each request of the conversation, and what is injected in the last one.
        ([at_depth(chat(9), 4)], []),  # the first time it is not known
        ([at_depth(chat(9), 4), at_depth(chat(11), 4)], [7]),
        ([at_depth(chat(9), 4), at_depth(chat(11), 4), at_depth(chat(11), 4)], [7]),  # regenerated
        ([at_depth(chat(9), 4, NOTE), at_depth(chat(11), 4, NOTE)], []),  # too short
        ([at_depth(chat(9), 4), chat(11), at_depth(chat(13), 4)], []),  # switched off and on
        # A window of ten that slides.
        ([at_depth(chat(10, 2), 4), at_depth(chat(10, 4), 4)], [6]),
        # Behind a greeting that the client keeps.
        ([[*chat(1), *at_depth(chat(9, 3), 4)], [*chat(1), *at_depth(chat(9, 5), 4)]], [6]),
        # Nothing has moved: an edited greeting, a larger window, a message that was deleted at the beginning.
        ([[LORE, *chat(8, 1)], [("user", "edited"), LORE, *chat(8, 1)]], []),
        ([chat(8, 12), chat(20)], []),
        ([[*[LORE] * 3, *chat(8)], [*[LORE] * 2, *chat(8)]], []),
        # A message in the middle was deleted, or inserted, and the last one asked for again.
        (
            [[LORE, *chat(9), *AT_LENGTH], [LORE, *chat(7), *AT_LENGTH]],
            [],
        ),
        # At the very end.
        ([at_depth(chat(9), 0), at_depth(chat(11), 0)], [11]),
        # Two of them at depths of their own.
        (
            [
                at_depth(at_depth(chat(9), 4), 2, ("user", LORE[1] + " Still.")),
                at_depth(at_depth(chat(11), 4), 2, ("user", LORE[1] + " Still.")),
            ],
            [7, 10],
        ),
        # What the user says again and again is short.
        ([[("user", "go on"), ("assistant", "a")] * 3, [("user", "go on"), ("assistant", "a")] * 4], []),
        # A long message far away that only went on with the others.
        ([[LORE, *chat(9)], [LORE, *chat(11)]], []),
    ],
)
def test_injected_messages(requests: list[list[Said]], found: list[int]) -> None:
    tails: tuple[object, ...] = ()
    for said in requests:
        messages = keys(said)
        seen = injected(messages, tails)  # type: ignore[arg-type]
        tails = next_tails(messages, tails)  # type: ignore[arg-type]
    assert sorted(seen) == found
