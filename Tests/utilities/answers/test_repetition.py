"""Answers of models that repeat themselves: where they are ended, and what is kept; others stay as they are."""

from __future__ import annotations

import json

from Middleware.utilities.answers.repetition import MOST_LIST_ITEMS, RepetitionGuard
from Tests.tables import table

MARA, TOM, INES = "Mara hid the ledger.", "Tom rents a van on Friday.", "Ines moved to Ghent in May."
ONE = json.dumps({"title": "t", "summary": MARA, "entities": ["the user", "b"], "key_phrases": []})
PARAGRAPH = " ".join(f"Sentence number {number} says something else again." for number in range(60))
SALAD = " ".join(f"word{number}" for number in range(400))


def guarded(text: str, size: int, lines: bool = False) -> tuple[str, str, int]:
    """What is kept of a text in pieces of ``size``, what repeats in it, and how much of it was read."""
    guard, read = RepetitionGuard(lines), 0
    for start in range(0, len(text), size):
        piece = text[start : start + size]
        read += len(piece)
        if guard.add(piece):
            break
    return guard.end(), guard.found, read


def objects(count: int) -> list[dict[str, object]]:
    return [{"title": f"t{number}", "summary": f"Fact number {number} of the mill."} for number in range(count)]


@table(
    ("text", "kept", "found", "lines"),
    [
        # The same line.
        (f"{MARA}\n{TOM}\n" + f"{INES}\n" * 50, f"{MARA}\n{TOM}\n{INES}", "a line", False),
        (f"{MARA}\n{TOM}\n" * 40, f"{MARA}\n{TOM}", "a line", False),
        ("".join(f"{number}. {MARA}\n" for number in range(1, 50)), f"1. {MARA}\n2. {MARA}", "a line", False),
        (f"- {MARA}\n* {MARA}\n  {MARA.upper()}\n" * 9, f"- {MARA}\n* {MARA}", "a line", False),
        (f"{MARA}\n{TOM}\n{MARA}\n{INES}\n{MARA}", f"{MARA}\n{TOM}\n{MARA}\n{INES}", "a line", False),
        ("我喜欢喝茶。\n" * 20, "我喜欢喝茶。", "a line", False),
        # A loop.
        (MARA + " " + "and the old mill by the river " * 40, MARA, "the same words", False),
        (f"{MARA} " * 40, MARA, "the same words", False),
        (f"{MARA}\n" + "ha" * 300, MARA, "the same words", False),
        (f"{MARA}\n" + " " * 500, MARA, "the same words", False),
        (f"{MARA}\n" + "\n" * 500, MARA, "the same words", False),
        ("na " * 200, "", "the same words", False),
        (
            f"{MARA}用户喜欢喝绿茶和红茶也喜欢喝咖啡。" + "用户喜欢喝绿茶和红茶也喜欢喝咖啡和水果茶，还有牛奶，" * 20,
            None,
            "the same words",
            False,
        ),
        ('[{"title": "t", "key_phrases": [' + '"mill", "ledger", ' * 40, None, "the same words", False),
        # A list without an end.
        (json.dumps(objects(200)), json.dumps(objects(MOST_LIST_ITEMS))[:-1], "a list", False),
        (f"```json\n{json.dumps(objects(60), indent=1)}", None, "a list", False),
        ('{"entities": ' + json.dumps([f"name {number}" for number in range(90)]), None, "a list", False),
        # A line without an end.
        (SALAD, "", "a line without an end", False),
        (f"{MARA}\n{SALAD}", MARA, "a line without an end", False),
        (f"{MARA} {SALAD}", MARA, "a line without an end", False),
        (f"{MARA}\n{PARAGRAPH}", MARA, "a line without an end", True),
        (f"{MARA}\n" + "".join(map(chr, range(0x4E00, 0x4F00))), MARA, "a line without an end", True),
        # Thoughts.
        ("<think>" + "Wait, let me see. " * 30, None, "the same words", False),
        (f"<think>Hm.</think>\n{TOM}\n" + f"{MARA}\n" * 40, f"<think>Hm.</think>\n{TOM}\n{MARA}", "a line", False),
    ],
)
def test_what_stands_before_a_repetition_is_kept(text: str, kept: str | None, found: str, lines: bool) -> None:
    for size in (1, 3, 64, len(text)):
        result, reason, read = guarded(text, size, lines)
        assert reason == found
        assert kept is None or result.rstrip("\n") == kept
        assert size > 3 or read < len(text) or text.endswith(MARA)


@table(
    ("text", "lines"),
    [
        (f"{MARA}\n{TOM}\n{INES}\n", True),
        (PARAGRAPH, False),
        (PARAGRAPH.replace(". ", ".\n"), True),
        ("\n".join(f"- Task {number}: open" for number in range(200)), False),
        (json.dumps([json.loads(ONE) | {"summary": f"Fact {number}."} for number in range(12)], indent=2), False),
        (json.dumps([json.loads(ONE) | {"summary": f"Fact {number} of it."} for number in range(12)]), True),
        ("# Tasks\n\nOpen:\n- none\n\n# Places\n\nOpen:\n- none\n\n# People\n\nOpen:\n- none\n", False),
        ("| a | b |\n|---|---|\n" + "\n".join(f"| {number} | x |" for number in range(50)), False),
        ("Yes.\nYes.\nYes.\nYes.\n", False),
        (f"{MARA}\n{TOM}\n{MARA}\n", False),
        ("<think>\n" + "Wait, is it Mara?\nNo.\n" * 3 + f"</think>\n{MARA}", False),
        ("He came [with, " + ", ".join(f"guest {number}" for number in range(50)) + "]. So.", False),
        ("She said: " + "far, " * 4 + "away.", False),
        ("", False),
        ("\n", False),
    ],
)
def test_other_answers_are_not_changed(text: str, lines: bool) -> None:
    for size in (1, 5, max(len(text), 1)):
        assert guarded(text, size, lines) == (text, "", len(text))
