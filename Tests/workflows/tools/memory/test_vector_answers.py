"""Reading memories out of what an LLM wrote."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from Middleware.workflows.tools.memory.memory_texts import plain_words
from Middleware.workflows.tools.memory.vector_answers import (
    MOST_CHARACTERS,
    MOST_ITEM_BYTES,
    MOST_ITEMS,
    MOST_LEVELS,
    parse_memories,
    without_thinking,
)
from Tests.properties import examples
from Tests.tables import table


def item(summary: Any = "s", **more: Any) -> dict[str, Any]:
    return {"title": "t", "summary": summary, "entities": ["e"], "key_phrases": ["k"], **more}


A, B = item("a"), item("b")
JA, JB = json.dumps(A), json.dumps(B)
J = json.dumps([A, B])


def summaries(answer: str) -> list[str] | None:
    found = parse_memories(answer)
    return None if found is None else [entry["summary"] for entry in found]


@table(
    "answer",
    [
        J,
        f"  {J}\n",
        f"```json\n{J}\n```",
        f"```JSON {J}```",
        f"```\n{J}\n```",
        f"Here:\n```json\n{J}",
        f"Sure: {J} Bye.",
        f"[note]\n```json\n{J}\n```",
        f"{{x}} [1] {J}",
        f"<think>{{x}}</think>{J}",
        f"<thinking>{JB}</thinking>{J}",
        f"{JB} was a draft </think> {J}",
        f"[THINK]{JB}[/THINK]{J}",
        f'{{"memories": {J}}}',
        f'Here: {{"memories": {J}}}',
        f"{JA}\n{JB}",
        f"{JA}, {JB}",
        f"[{JA}, {JB},]",
        f'[{JA}, {JB}, {{"title": "cut o',
        f"{{{J}}}",
        f"```json\nnothing yet\n```\n```json\n{J}\n```",
        f"```python\nx = [1]\n```\n```json\n{J}\n```",
        f"```\nan example\n```\n```\n{J}\n```",
        f"{JB}\n```json\n{J}\n```",
        f"```\n{JB}\n```\n```json\n{J}\n```",
        f'[{{"x": 1}}, 5, null, {JA}, "s", {JB}]',
        f'{{"note": "hm"}} {J}',
        f"[] or rather {J}",
        f"[{J}]",
    ],
    ids=lambda answer: answer[:25],
)
def test_memories_are_found(answer: str) -> None:
    assert summaries(answer) == ["a", "b"]


@pytest.mark.parametrize(
    "answer",
    [
        "[]",
        " []\n",
        "```json\n[]\n```",
        "```\n[ ]\n```",
        '"[]"',
        '{"memories": []}',
        "Nothing worth keeping: []",
        "<think>[1]</think>[]",
        "[note] There is nothing. []",
        f"```json\n[]\n```\nNot even {JA}",
    ],
    ids=lambda answer: answer[:25],
)
def test_nothing_worth_keeping(answer: str) -> None:
    assert parse_memories(answer) == []


@table(
    "answer",
    [
        "",
        "  ",
        "Nothing.",
        "{}",
        "[{}]",
        "[1]",
        "null",
        '{"memories": null}',
        '{"memories": "x"}',
        "```json\n```",
        '{"title": "t", "entities": [], "summ',
        '[{"title": "t", "entities": []',
        "[",
        "{",
        "<think>[]",
        f"<think>{JA}",
        f"<think>{JA}</think>",
        "[" * 50_000,
        '{"a":' * 50_000,
        J + " " * MOST_CHARACTERS,
    ],
    ids=lambda answer: answer[:25],
)
def test_unusable(answer: str) -> None:
    assert parse_memories(answer) is None


@pytest.mark.parametrize("key", ["title", "summary", "entities", "key_phrases"])
def test_an_item_that_lacks_a_key_is_left_out_and_its_siblings_stay(key: str) -> None:
    assert summaries(json.dumps([{k: v for k, v in A.items() if k != key}, B])) == ["b"]


@pytest.mark.parametrize("summary", [["a", "list"], None, 5, "", " \n", {"x": "y"}])
def test_a_summary_that_is_no_text_is_rejected(summary: Any) -> None:
    assert parse_memories(json.dumps(item(summary))) is None


@pytest.mark.parametrize(
    "more",
    [
        {"entities": None},
        {"entities": "one text"},
        {"title": None},
        {"sentiment": "calm", "topics": ["x"]},
        {"deep": {"a": [{"b": [1.5, True, None, "ä"]}]}},
        {"count": 10**20},
    ],
)
def test_everything_else_is_kept_as_it_is(more: dict[str, Any]) -> None:
    assert parse_memories(json.dumps(item(**more))) == [item(**more)]


def test_single_object() -> None:
    assert parse_memories(f"[note]\n```json\n{JA}\n```") == [A]


@pytest.mark.parametrize(
    "text, kept",
    [
        ('"title": "x \\ud800"', "x \ufffd"),
        ('"title": "\\u0000"', "\ufffd"),
        ('"title": "\\\\u0000"', "\\u0000"),
        ('"title": "two\nlines"', "two\nlines"),
        ('"title": NaN', None),
        ('"title": -Infinity', None),
        ('"title": 1e999', None),
        (f'"title": {"9" * 5000}', None),
        ('"title": "\\ud83d\\ude00"', "\U0001f600"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_cannot_be_stored_is_replaced(text: str, kept: Any) -> None:
    answer = f'{{{text}, "summary": "s", "entities": null, "key_phrases": []}}'
    found = parse_memories(answer)
    assert found is not None and found[0]["title"] == kept
    json.dumps(found, allow_nan=False, ensure_ascii=False).encode()


def nested(levels: int) -> Any:
    value: Any = "x"
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    "more, kept",
    [
        ({"x": nested(MOST_LEVELS - 1)}, True),
        ({"x": nested(MOST_LEVELS)}, False),
        ({"x": "y" * (MOST_ITEM_BYTES - 200)}, True),
        ({"x": "y" * MOST_ITEM_BYTES}, False),
        ({"x": "ä" * (MOST_ITEM_BYTES // 2)}, False),
    ],
)
def test_an_item_out_of_bounds_is_left_out_with_a_warning(
    more: dict[str, Any], kept: bool, caplog: pytest.LogCaptureFixture
) -> None:
    assert summaries(json.dumps([item("a", **more), B])) == (["a", "b"] if kept else ["b"])
    assert ("is not kept" in caplog.text) is not kept


def test_no_more_items_than_can_be_meant() -> None:
    assert (
        len(parse_memories(json.dumps([item(f"fact {number}") for number in range(MOST_ITEMS + 1)])) or [])
        == MOST_ITEMS
    )


def test_a_model_that_loops_leaves_each_memory_once() -> None:
    looped = [item("Mara lives in Ulm."), B, item("mara lives in  Ulm", title="again"), B, item("?"), item("!"), B]
    assert summaries(json.dumps(looped)) == ["Mara lives in Ulm.", "b", "?", "!"]
    assert summaries(json.dumps(looped)[:-20]) == ["Mara lives in Ulm.", "b", "?", "!"]


@pytest.mark.parametrize(
    "text, rest",
    [
        ("a", "a"),
        ("<think>x</think>a", "a"),
        ("<THINK>x</Think> a", " a"),
        ("a<think>x</think>b", "ab"),
        ('<think>x<think>y</think>{"b"}', '{"b"}'),
        ("<think>x", ""),
        ("a <think>x", "a "),
        ('a <think>{"x"', "a "),
        ('{"a"} <think> b', '{"a"} <think> b'),
        ('x</think>{"b"}', '{"b"}'),
        ('{"a </think> b"}', '{"a </think> b"}'),
        ("<reasoning>a</think>b</reasoning>c", "c"),
        ("[thinking] {a}", "[thinking] {a}"),
        ("[THINK]x[/THINK]{a}", "{a}"),
        ('<think>x</think>{"a"}<think>y</think>', '{"a"}'),
    ],
)
def test_thinking_is_removed(text: str, rest: str) -> None:
    assert without_thinking(text) == rest


def test_tags_within_a_whole_answer_are_text() -> None:
    text = "The <think> tag and </think> are [removed]."
    assert summaries(json.dumps([item(text)])) == [text]


@table(
    "piece",
    [
        "[",
        "{",
        '{"a":',
        "[[1],",
        '["',
        "```json [",
        "```",
        "<think>",
        "</think>[",
        '{"memories":[',
        "[]",
        '[{"a":[]},',
        '{"',
        '[{"',
        '{"a',
        '"',
        "{}",
        '["a", {"b": "',
        JA[:-1],
        JA + ",",
        " ",
        "[note",
        "\\",
    ],
)
def test_hostile_repetition_takes_time_in_proportion(piece: str) -> None:
    """Four times the text may take some four times as long; something quadratic takes sixteen times, here minutes."""
    text = piece * (400_000 // len(piece))
    started = time.thread_time()
    parse_memories(text)
    assert time.thread_time() - started < 20


texts = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), min_size=1).filter(str.strip)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
memories = st.builds(
    lambda summary, title, entities: item(summary, title=title, entities=entities),
    texts,
    values,
    st.lists(texts, max_size=3),
)


def said(memory: dict[str, Any]) -> str:
    return plain_words(memory["summary"]) or str(memory["summary"])


prose = st.text(st.characters(exclude_characters="[]{}<>`"), max_size=40)


@examples(150)
@given(
    found=st.lists(memories, min_size=1, max_size=4, unique_by=said),
    before=prose,
    after=prose,
    fence=st.sampled_from(["", "json", "x"]),
    indent=st.sampled_from([None, 2]),
    thinking=prose,
    wrap=st.booleans(),
    ascii_only=st.booleans(),
)
def test_memories_survive_every_wrapping(
    found: list[dict[str, Any]],
    before: str,
    after: str,
    fence: str,
    indent: int | None,
    thinking: str,
    wrap: bool,
    ascii_only: bool,
) -> None:
    body: Any = {"memories": found} if wrap else found
    text = json.dumps(body, indent=indent, ensure_ascii=ascii_only)
    if not any(mark in text for mark in ("think", "reason", "thought", "```")):
        if fence != "x":
            text = f"```{fence}\n{text}\n```"
        text = f"<think>{thinking}</think>{before}{text}{after}"
    assert parse_memories(text) == found


noise = st.lists(
    st.sampled_from(
        [
            "[",
            "]",
            "{",
            "}",
            '"',
            ",",
            ":",
            "```",
            "json",
            "<think>",
            "</think>",
            " ",
            "\n",
            "x",
            "\\",
            "[]",
            "{}",
            JA,
            '"memories"',
            "1",
            "null",
            "\ud800",
            "\0",
        ]
    ),
    max_size=30,
)


@examples(300)
@given(noise.map("".join) | st.text(max_size=60))
def test_no_text_makes_it_fail(text: str) -> None:
    found = parse_memories(text)
    assert found is None or all(entry["summary"].strip() for entry in found)
