"""What is read from answers of small models: lines, broken JSON, refusals, copies of the prompt."""

from __future__ import annotations

import json

from Middleware.utilities.text_utils import restore_braces
from Middleware.workflows.tools.memory.vector_lines import MOST_LINES, Reading, read_memories
from Middleware.workflows.tools.memory.vector_prompts import JSON, LINES
from Tests.tables import table

EXCERPT = """\
User: Mara hid the ledger under the floor of the old mill in Ghent. Only Tobias knows.
Assistant: When did she do that?
User: On 12 March. The inspector arrived at dusk, and my wife Ines fetched the lantern from the cellar.
Assistant: Will you move it?
User: Yes, next Friday, when Mehmet lends us his boat. He lives around the corner."""
GERMAN = """\
Ines: Ich habe gestern die Werkstatt in Brügge gemietet, für 640 Euro im Monat.
Tom: Großartig! Zieht der Webstuhl gleich mit ein?
Ines: Am 5. Mai, mein Bruder Lukas fährt ihn mit dem Anhänger hin."""
CHINESE = """\
User: 我昨天在布鲁日租了一间工作室，每个月六百四十欧元。
Assistant: 太好了！织布机什么时候搬进去？
User: 五月五日，我哥哥卢卡斯会用拖车把它运过去。"""

LEDGER = "Mara hid the ledger under the floor of the old mill in Ghent."
LANTERN = "The user's wife Ines fetched the lantern from the cellar."
BOAT = "Mehmet lends them his boat next Friday."


def item(summary: str) -> dict[str, object]:
    return {"title": "t", "summary": summary, "entities": [], "key_phrases": []}


def built_in(excerpt: str, cut_off: bool = False, speakers: tuple[str, ...] = ()) -> Reading:
    turns = (*LINES.examples, JSON.example)
    shown = [
        *(text for form in (LINES, JSON) for text in (form.system_prompt, form.prompt)),
        *(text for turn in turns for text in turn.values()),
    ]
    return Reading(excerpt, True, speakers, [*map(restore_braces, shown)], cut_off)


@table(
    ("answer", "kept"),
    [
        # Lines, as models decorate them.
        (f"{LEDGER}\n{LANTERN}", [LEDGER, LANTERN]),
        (f"- {LEDGER}\n* {LANTERN}\n• {BOAT}", [LEDGER, LANTERN, BOAT]),
        (f"1. {LEDGER}\n2. {LANTERN}\n3) {BOAT}", [LEDGER, LANTERN, BOAT]),
        (f"1: {LEDGER}\n(2) {LANTERN}\n3. {BOAT}", [LEDGER, LANTERN, BOAT]),
        (f"Fact: {LEDGER}\nNote: {LANTERN}\nFact 3: {BOAT}", [LEDGER, LANTERN, BOAT]),
        (f'"{LEDGER}"\n“{LANTERN}”\n- "{BOAT}",', [LEDGER, LANTERN, BOAT]),
        (f"**Fact:** {LEDGER}\n**{LANTERN}**", [LEDGER, LANTERN]),
        (f"Here are the facts about the ledger:\n\n{LEDGER}\n\n{LANTERN}\n", [LEDGER, LANTERN]),
        (f"--- Thursday, 12 March 2026 ---\n{LEDGER}", [LEDGER]),
        (f"# Facts of the old mill in Ghent\n{LEDGER}", [LEDGER]),
        (f"```\n{LEDGER}\n{LANTERN}\n```", [LEDGER, LANTERN]),
        (f"```text\n- {LEDGER}\n```", [LEDGER]),
        (f"<think>Mara hid something, I think.</think>\n{LEDGER}", [LEDGER]),
        (f"<excerpt>\n{LEDGER}\n</excerpt>", [LEDGER]),
        (f"{LEDGER}\r\n{LANTERN}", [LEDGER, LANTERN]),
        (f"{LEDGER}\n{LEDGER}\n{LEDGER.upper()}", [LEDGER]),
        (f"- [ ] {LEDGER}\n- [x] {LANTERN}\n1. [ ] {BOAT}", [LEDGER, LANTERN, BOAT]),
        (f"{LEDGER}\n{LANTERN}\n[]", [LEDGER, LANTERN]),
        (f"- {LEDGER}\n\n```json\n[]\n```", [LEDGER]),
        ("There is nothing worth remembering here.\n[]", []),
        (f"*{LEDGER}*\n_{LANTERN}_", [LEDGER, LANTERN]),
        (f"-{LEDGER}\n✓ {LANTERN}\n→ {BOAT}", [LEDGER, LANTERN, BOAT]),
        (f"1. {LEDGER}\n3. {LANTERN}\n4. {BOAT}", [LEDGER, LANTERN, BOAT]),
        (f"2) {LEDGER}", [LEDGER]),
        ('"Mara" hid the ledger from the "inspector"', ['"Mara" hid the ledger from the "inspector"']),
        ("'Mara's ledger is under the floor of the mill.'", ["Mara's ledger is under the floor of the mill."]),
        ("12 March was the day on which Mara hid the ledger.", ["12 March was the day on which Mara hid the ledger."]),
        ("5. March was the day of the ledger in the mill.", ["5. March was the day of the ledger in the mill."]),
        # JSON, whole and broken.
        (json.dumps([item(LEDGER), item(LANTERN)]), [LEDGER, LANTERN]),
        (f"```json\n{json.dumps([item(LEDGER)])}\n```", [LEDGER]),
        (json.dumps({"memories": [item(LEDGER)]}), [LEDGER]),
        (f"{json.dumps([item(LEDGER), item(LANTERN)])[:-30]}", [LEDGER]),
        (f"[{json.dumps(item(LEDGER))}, {{'title': oops}}, {json.dumps(item(LANTERN))}", [LEDGER, LANTERN]),
        (f'[{json.dumps(item(LEDGER))}, {{"title": "a" "b"}}, {json.dumps(item(LANTERN))}]', [LEDGER, LANTERN]),
        (json.dumps([{"summary": LEDGER}, {"summary": LANTERN, "title": "t"}]), [LEDGER, LANTERN]),
        (json.dumps([LEDGER, LANTERN]), [LEDGER, LANTERN]),
        (f"```json\n{json.dumps([LEDGER, LANTERN])[:-2]}", [LEDGER]),
        (f'{{"title": "a", "summary": "{LEDGER}", "key_phrases": ["a", "a", "a', [LEDGER]),
        ('[\n  {\n    "fact": 1,\n    "key', None),
        # What says nothing.
        ("[]", []),
        ("```json\n[]\n```", []),
        ("None.", []),
        ("- None", []),
        ("Nothing.\n", []),
        ("", None),
        (" \n", None),
        # Refusals, small talk, what the excerpt does not say.
        ("I'm sorry, I cannot assist with that request.", None),
        ("As an AI language model, I cannot remember personal conversations.", None),
        ("Es tut mir leid, dabei kann ich leider nicht helfen.", None),
        ("抱歉，我无法提供帮助。", None),
        ("Certainly! Let me know whether you need anything else today.", None),
        (f"Sure! Below you find everything important:\n{LEDGER}", [LEDGER]),
        ("Napoleon conquered Moscow although winter had already begun.", None),
        # What stands in the prompt, and in its examples.
        (LINES.prompt.splitlines()[-1], None),
        ("- Write down only what the excerpt says.", None),
        (LINES.examples[0]["assistant"], None),
        (f"{LINES.example['assistant'].splitlines()[0]}\n{LEDGER}", [LEDGER]),
        (LINES.examples[1]["assistant"], None),
        (restore_braces(JSON.system_prompt).split("An answer looks like this:")[1].split("Rules:")[0].strip(), None),
        (restore_braces(JSON.example["assistant"]), None),
        # Too short.
        (f"Mara.\nThe mill.\n{LEDGER}", [LEDGER]),
        # Cut off.
        (f"{LEDGER}\n{LANTERN}\nMehmet lends them his bo", [LEDGER, LANTERN]),
        (f"{LEDGER}\nMehmet lives around the corn", [LEDGER]),
        (f"{LEDGER}\nMehmet lives around the corner", [LEDGER, "Mehmet lives around the corner"]),
        (f"{LEDGER}\nMara, Tobias and Ines know about the ledger-", [LEDGER]),
        (f"{LEDGER}\nMara hid the ledger under the floor,", [LEDGER]),
        (f"{LEDGER[:-1]};\n{LANTERN[:-1]},\n{BOAT[:-1]};", [LEDGER[:-1], LANTERN[:-1], BOAT[:-1]]),
        (" ".join(["ledger"] * 121) + f"\n{LEDGER}", [LEDGER]),
    ],
)
def test_answers_to_the_built_in_prompts(answer: str, kept: list[str] | None) -> None:
    found = read_memories(answer, built_in(EXCERPT))
    assert (None if found is None else [item["summary"] for item in found]) == kept


@table(
    ("excerpt", "answer", "kept"),
    [
        (GERMAN, "Ines hat die Werkstatt in Brügge für 640 Euro im Monat gemietet.", 1),
        (GERMAN, "Am 5. Mai fährt Lukas, der Bruder von Ines, den Webstuhl hin.", 1),
        (GERMAN, "5. Mai: Lukas fährt den Webstuhl mit dem Anhänger.", 1),
        (GERMAN, "Henrike hat das Turnier in Verden abgesagt.", 0),
        (CHINESE, "用户在布鲁日租了一间工作室。", 1),
        (CHINESE, "1、用户在布鲁日租了一间工作室。\n2、五月五日卢卡斯用拖车运织布机。", 2),
        (CHINESE, "用户喜欢在周末去山上滑雪和游泳。", 0),
        (CHINESE, "租了", 0),
    ],
)
def test_other_languages(excerpt: str, answer: str, kept: int) -> None:
    assert len(read_memories(answer, built_in(excerpt)) or ()) == kept


@table(
    ("answer", "kept"),
    [
        (f"{LEDGER}\nMehmet lends them his boat", [LEDGER]),
        (f"{LEDGER}\n{BOAT}", [LEDGER, BOAT]),
        (json.dumps([item(LEDGER), item("Mehmet lends them his boat")]), [LEDGER, "Mehmet lends them his boat"]),
    ],
)
def test_the_last_line_of_an_answer_that_was_cut_off(answer: str, kept: list[str]) -> None:
    found = read_memories(answer, built_in(EXCERPT, cut_off=True))
    assert [item["summary"] for item in found or ()] == kept


@table(
    ("answer", "kept"),
    [
        ("Le registre est caché sous le plancher du moulin.", ["Le registre est caché sous le plancher du moulin."]),
        ("- One fact of it\n- Two\n- Write the facts, please.", ["One fact of it"]),
        (json.dumps([item("Elsewhere.")]), ["Elsewhere."]),
        ("[]", []),
        ("None", []),
    ],
)
def test_lines_of_a_prompt_of_the_user_need_not_be_in_the_words_of_the_excerpt(answer: str, kept: list[str]) -> None:
    found = read_memories(answer, Reading(EXCERPT, shown=["Write the facts, please."]))
    assert found is not None and [item["summary"] for item in found] == kept


@table(
    ("line", "excerpt", "speakers", "title", "entities"),
    [
        (LEDGER, EXCERPT, (), "Mara hid the ledger under the floor of", ["Mara", "Ghent"]),
        ("The wife of the user is called Ines.", EXCERPT, (), "The wife of the user is called Ines.", ["Ines"]),
        ("Only Tobias knows where it is.", EXCERPT, (), "Only Tobias knows where it is.", ["Tobias"]),
        ("In Bruges, Mara hid it.", EXCERPT, (), "In Bruges, Mara hid it.", ["Mara"]),
        (
            "Tom: Ines rents the Werkstatt.",
            GERMAN,
            ("Ines", "Tom"),
            "Tom: Ines rents the Werkstatt.",
            ["Tom", "Ines", "Werkstatt"],
        ),
        ("卢卡斯会用拖车把织布机运过去。", CHINESE, ("卢卡斯",), "卢卡斯会用拖车把织", ["卢卡斯"]),
    ],
)
def test_a_line_becomes_a_memory(
    line: str, excerpt: str, speakers: tuple[str, ...], title: str, entities: list[str]
) -> None:
    assert read_memories(line, Reading(excerpt, speakers=speakers)) == [
        {"title": title, "summary": line, "entities": entities, "key_phrases": []}
    ]


def test_at_most_so_many_lines() -> None:
    lines = [f"Mara hid the ledger number {number} in the mill." for number in range(20)]
    assert len(read_memories("\n".join(lines), built_in(EXCERPT)) or ()) == MOST_LINES
