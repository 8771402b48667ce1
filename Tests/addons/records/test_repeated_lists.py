"""Long lists of messages that repeat those of earlier turns."""

from __future__ import annotations

import random

from Middleware.addons.records.repeated_lists import KnownList, KnownLists, SharedLists


def message(number: object) -> dict[str, object]:
    return {"role": "user", "content": f"message {number}"}


def copies(messages: list[dict[str, object]]) -> list[dict[str, object]]:
    """Return equal messages that are other objects, as the next request brings them."""
    return [dict(one) for one in messages]


def repeated(items: list[dict[str, object]], known: list[dict[str, object]]) -> list[tuple[int, int, int]] | None:
    lists = KnownLists[None]()
    lists.add(KnownList(known, None))
    found = lists.find(items)
    return None if found is None else [tuple(common) for common in found[1]]  # type: ignore[misc]


def test_the_next_turn_repeats_all_of_the_turn_before() -> None:
    before = [message(number) for number in range(100)]
    assert repeated([*copies(before), message("new"), message("newer")], before) == [(0, 100, 0)]


def test_a_changed_system_prompt_and_a_text_near_the_end_are_the_only_differences() -> None:
    before = [message(number) for number in range(100)]
    now = [message("Tuesday"), *copies(before[1:])]
    now[97] = message("late")
    assert repeated(now, before) == [(1, 97, 1), (98, 100, 98)]


def test_a_prompt_has_a_message_more_at_the_beginning_or_lacks_some() -> None:
    before = [message(number) for number in range(100)]
    assert repeated([message("system"), *copies(before)], before) == [(1, 101, 0)]
    assert repeated(copies(before)[20:], before) == [(0, 80, 20)]


def test_another_conversation_repeats_nothing() -> None:
    assert repeated([message(f"other {number}") for number in range(100)], [message(n) for n in range(100)]) is None


def test_common_ranges_are_what_is_equal_and_in_order() -> None:
    chance = random.Random(4)
    for _ in range(300):
        known = [message(chance.randrange(50)) for _ in range(chance.randrange(1, 90))]
        items = copies(known)
        for _ in range(chance.randrange(6)):
            items[chance.randrange(len(items))] = message("other")
        items = items[chance.choice((0, 0, 3)) :] + [message("more")] * chance.randrange(3)
        done = 0
        for start, end, place in repeated(items, known) or []:
            assert done <= start < end and items[start:end] == known[place : place + end - start]
            done = end


def test_a_message_that_was_said_before_is_kept_once() -> None:
    lists, before = SharedLists(), [message(number) for number in range(100)]
    first = lists.shared(before, 1)
    assert first == before and first is not before
    now = [message("Tuesday"), *copies(before[1:]), message("new")]
    second = lists.shared(now, 1)
    assert second == now
    assert [one is other for one, other in zip(second, first, strict=False)] == [False, *[True] * 99]


def test_few_lists_and_few_characters_are_remembered() -> None:
    lists = KnownLists[int]()
    conversations = [[message((number, other)) for number in range(40)] for other in range(20)]
    for other, conversation in enumerate(conversations):
        lists.add(KnownList(conversation, other, 1_000))
    assert [lists.find(one) is not None for one in conversations] == [False] * 12 + [True] * 8
    lists.add(KnownList(conversations[0], 0, 100_000_000))
    assert [lists.find(one) is not None for one in conversations] == [True] + [False] * 19


def test_messages_that_are_nested_deeply_are_not_compared() -> None:
    def nested() -> dict[str, object]:
        found: list[object] = []
        for _ in range(500_000):  # Python 3.14 and later compare 100,000 levels, as far as the stack reaches
            found = [found]
        return {"": found}

    before, now = ([nested()] * 40 for _ in range(2))
    assert repeated(now, before) is None
