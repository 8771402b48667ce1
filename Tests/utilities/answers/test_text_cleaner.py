"""The response cleaner, against a second, non-incremental writing of its rules."""

from __future__ import annotations

import itertools
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from Middleware.utilities.answers.text_cleaner import (
    CleaningRules,
    ResponseCleaner,
    SurrogateJoiner,
    ThinkFilter,
    ThinkRule,
    clean_text,
    find_generation_prompt,
    fold_case,
)
from Middleware.utilities.text_utils import escape_braces
from Tests.properties import examples
from Tests.tables import table

THINK = {"removeThinking": True, "startThinkTag": "<think>", "endThinkTag": "</think>"}
STAMP = "[Sent less than a minute ago]"


def cut(text: str, cuts: list[int]) -> list[str]:
    places = sorted({0, len(text), *(c % (len(text) + 1) for c in cuts)})
    return [text[a:b] for a, b in itertools.pairwise(places)]


def streamed(pieces: list[str], rules: CleaningRules) -> str:
    cleaner = ResponseCleaner(rules)
    return "".join([cleaner.feed(piece) for piece in pieces]) + cleaner.finish()


# --- the rules as one would write them for a whole text ---------------------------------------------------------------


def expected_think(text: str, rule: ThinkRule | None) -> str:
    if rule is None:
        return text
    closing = re.compile(re.escape(rule.end_tag), re.IGNORECASE)
    if rule.closing_only:
        end = closing.search(text)
        return text[end.end() :] if end else text
    start = re.search(re.escape(rule.start_tag), text, re.IGNORECASE)
    if not start or start.start() > rule.grace_period:
        return text
    end = closing.search(text, start.end())
    return text[: start.start()] + text[end.end() :] if end else text


def expected_prefixes(text: str, steps: tuple[tuple[str, ...], ...]) -> str:
    text = text.lstrip()
    for step in steps:
        for entry in step:
            if text.startswith(entry):
                text = text[len(entry) :].lstrip()
                break
    return text


def expected(text: str, rules: CleaningRules) -> str:
    text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    text = expected_think(text, rules.think)
    if not rules.verbatim:
        text = expected_prefixes(text, rules.steps)
    prompt = rules.generation_prompt
    if prompt:
        text = text.lstrip()
        if not 1 <= text.find(":") <= len(prompt) + 9:
            text = f"{prompt} {text}"
            if not rules.verbatim:
                text = expected_prefixes(text, rules.steps)
    return text.strip() if rules.trim else text


PIECES = st.sampled_from(
    [
        "<think>",
        "</think>",
        "<THINK>",
        "</Think>",
        "<",
        "<<",
        "thi",
        "nk>",
        "</",
        "/think>",
        "aab",
        "AAB",
        "a",
        "b",
        ":",
        "Out:",
        "Out",
        "Reply:",
        "EP:",
        "EP",
        STAMP,
        "[Sent",
        "Assistant:",
        "Assis",
        "Old Tom:",
        "Old",
        " Tom:",
        " ",
        "\n",
        "\u00a0",
        "x" * 7,
        "word",
        "\u0130",
        "\u03a3",
        "\u03c2",
        "\U0001f600",
        "\ud83d",
        "\ude00",
        "\u4f60\u597d",
    ]
)
TEXTS = st.lists(PIECES, max_size=14).map("".join)
LISTS = st.one_of(
    st.sampled_from(["Out:", "", None]),
    st.lists(st.sampled_from(["Out:", "Out", "Reply:", "", "EP:", "Old Tom:", " x", "word"]), max_size=4),
)
TAGS = st.sampled_from(["<think>", "</think>", "aab", "a", "<<a", "\u03a3", "<|channel|>"])
RULES = st.builds(
    lambda endpoint, node, prompt, both, has: CleaningRules.build(endpoint, node, prompt, both, has_endpoint=has),
    st.fixed_dictionaries(
        {},
        optional={
            "removeThinking": st.booleans(),
            "startThinkTag": TAGS,
            "endThinkTag": TAGS,
            "openingTagGracePeriod": st.sampled_from([0, 1, 3, 10, 100]),
            "expectOnlyClosingThinkTag": st.booleans(),
            "removeCustomTextFromResponseStartEndpointWide": st.booleans(),
            "responseStartTextToRemoveEndpointWide": LISTS,
            "trimBeginningAndEndLineBreaks": st.booleans(),
        },
    ),
    st.fixed_dictionaries(
        {},
        optional={
            "removeCustomTextFromResponseStart": st.booleans(),
            "responseStartTextToRemove": LISTS,
            "addDiscussionIdTimestampsForLLM": st.booleans(),
        },
    ),
    st.sampled_from([None, None, "Old Tom:", "A:", "Assistant:"]),
    st.booleans(),
    st.sampled_from([True, True, True, False]),
)


@examples(1500)
@given(TEXTS, RULES, st.lists(st.integers(0, 500), max_size=12))
def test_any_chunking_gives_the_text_that_the_rules_ask_for(text: str, rules: CleaningRules, cuts: list[int]) -> None:
    wanted = expected(text, rules)
    assert clean_text(text, rules) == wanted
    assert streamed(cut(text, cuts), rules) == wanted
    assert streamed(list(text), rules) == wanted


@examples(300)
@given(TEXTS, RULES, st.lists(st.integers(0, 500), max_size=12))
def test_the_shortcut_for_ascii_text_returns_the_same(text: str, rules: CleaningRules, cuts: list[int]) -> None:
    usual, short = ResponseCleaner(rules), ResponseCleaner(rules)
    for piece in cut(text, cuts):
        clean = short.ascii_rest if piece.isascii() else None
        assert (clean or short.feed)(piece) == usual.feed(piece)
    assert short.finish() == usual.finish()


def both_ways(
    text: str,
    endpoint: dict,
    node: dict | None = None,
    prompt: str | None = None,
    both: bool = False,
    has_endpoint: bool = True,
) -> str:
    rules = CleaningRules.build(endpoint, node or {}, prompt, both, has_endpoint=has_endpoint)
    whole = clean_text(text, rules)
    assert streamed(list(text), rules) == whole
    return whole


@table(
    ("text", "extra", "wanted"),
    [
        ("<think>p</think>\n\nYes ", {}, "Yes "),
        ("<think>p</think>\n\nYes ", {"trimBeginningAndEndLineBreaks": True}, "Yes"),
        ("x" * 50 + "<think>h</think>v", {"openingTagGracePeriod": 50}, "x" * 50 + "v"),
        ("x" * 51 + "<think>h</think>v", {"openingTagGracePeriod": 50}, "x" * 51 + "<think>h</think>v"),
        ("x" * 100 + "<think>h</think>v", {}, "x" * 100 + "v"),
        ("x" * 101 + "<think>h</think>v", {}, "x" * 101 + "<think>h</think>v"),
        ("A<think>b", {}, "A<think>b"),
        ("<think>a</think>m<think>b</think>", {}, "m<think>b</think>"),
        ("<THINK>q</Think>r", {}, "r"),
        ("junk</think>ok</think>", {"expectOnlyClosingThinkTag": True}, "ok</think>"),
        ("no tag", {"expectOnlyClosingThinkTag": True}, "no tag"),
        ("<think>p</think>Yes", {"startThinkTag": ""}, "<think>p</think>Yes"),
        ("<think>p</think>Yes", {"startThinkTag": "", "endThinkTag": "", "thinkTagText": "think"}, "Yes"),
        ("<think>p</think>Yes", {"startThinkTag": "", "thinkTagText": "think"}, "<think>p</think>Yes"),
        ("<think>p</think>Yes", {"removeThinking": False}, "<think>p</think>Yes"),
        ("<think>p</think>Yes", {"removeThinking": "true"}, "Yes"),
        ("", {}, ""),
    ],
)
def test_think_removal(text: str, extra: dict, wanted: str) -> None:
    assert both_ways(text, {**THINK, "openingTagGracePeriod": 100, **extra}) == wanted


CHANNELS = {
    "removeThinking": True,
    "startThinkTag": "<|channel|>analysis<|message|>",
    "endThinkTag": "<|end|><|start|>assistant<|channel|>final<|message|>",
}
THOUGHT = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>"


@table("trim", [False, True])
@table(
    ("text", "wanted"),
    [
        (f"{THOUGHT}Yes.<|return|>", "Yes."),
        (f"{THOUGHT}Yes.<|end|>", "Yes."),
        (f"{THOUGHT}Yes.<|call|>", "Yes."),
        ("Yes.<|return|>", "Yes."),
        ("Yes.<|end|><|return|>", "Yes."),
        ("Yes.<|return|>\n", "Yes."),
        ("Yes.<|end|>\n<|return|> \n", "Yes."),
        ("<|return|>", ""),
        # Anywhere else they are text, and so is what only begins like one.
        ("a<|end|>b", "a<|end|>b"),
        ("a<|end|>b<|end|>", "a<|end|>b"),
        ("a<|end|>\nb", "a<|end|>\nb"),
        ("Yes.<|retur", "Yes.<|retur"),
        ("Yes.<|end|><|re", "Yes.<|end|><|re"),
        ("Yes.<", "Yes.<"),
        ("1 < 2", "1 < 2"),
        ("Yes.<|message|>", "Yes.<|message|>"),
        ("Yes.<|RETURN|>", "Yes.<|RETURN|>"),
        ("<<|<|end|>", "<<|"),
        ("<<|end|>", "<"),
    ],
)
@table("tags", [CHANNELS, {**CHANNELS, "startThinkTag": "<think>"}, {**CHANNELS, "endThinkTag": "<|end|>"}])
def test_marks_at_the_end_of_a_channel(tags: dict, text: str, wanted: str, trim: bool) -> None:
    if THOUGHT in text and tags is not CHANNELS:
        return
    assert both_ways(text, {**tags, "trimBeginningAndEndLineBreaks": trim}) == wanted


@table("tags", [THINK, {**CHANNELS, "removeThinking": False}, {}])
def test_other_tags_leave_such_marks(tags: dict) -> None:
    assert both_ways("Yes.<|return|>", tags) == "Yes.<|return|>"


def test_a_missing_tag_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    assert ThinkRule.build({"removeThinking": True, "endThinkTag": "</think>"}) is None
    assert "startThinkTag" in caplog.text


def test_all_prefixes_in_order() -> None:
    node = {
        "removeCustomTextFromResponseStart": True,
        "responseStartTextToRemove": ["Out:", "Reply:"],
        "addDiscussionIdTimestampsForLLM": True,
    }
    endpoint = {
        "removeCustomTextFromResponseStartEndpointWide": True,
        "responseStartTextToRemoveEndpointWide": [" EP: "],
    }
    assert both_ways(f"Reply: EP: {STAMP} Assistant: T", endpoint, node, both=True) == "T"
    assert both_ways("EP: Reply: T", endpoint, node, both=True) == "Reply: T"


@pytest.mark.parametrize(
    ("node", "text", "wanted"),
    [
        ({"removeCustomTextFromResponseStart": True, "responseStartTextToRemove": []}, "all kept", "all kept"),
        ({"removeCustomTextFromResponseStart": True, "responseStartTextToRemove": ["", "AI:"]}, "AI: x", "x"),
        ({"removeCustomTextFromResponseStart": True, "responseStartTextToRemove": "AI:"}, " AI:x", "x"),
        ({"removeCustomTextFromResponseStart": True, "responseStartTextToRemove": "AI:"}, "ai:x", "ai:x"),
        ({"removeCustomTextFromResponseStart": True, "responseStartTextToRemove": "p" * 5000}, "p" * 5000 + "x", "x"),
        ({"responseStartTextToRemove": "AI:"}, "AI:x", "AI:x"),
        ({}, "\n\t leading goes, trailing stays \n", "leading goes, trailing stays \n"),
    ],
)
def test_prefixes(node: dict, text: str, wanted: str) -> None:
    assert both_ways(text, {}, node) == wanted


def test_a_node_without_endpoint_is_verbatim() -> None:
    node = {"removeCustomTextFromResponseStart": True, "responseStartTextToRemove": ["A:"]}
    assert both_ways("  A: x ", {}, node, has_endpoint=False) == "  A: x "
    assert both_ways(" hi ", {}, node, prompt="Tom:", has_endpoint=False) == "Tom: hi "
    assert not CleaningRules.build({}, node).verbatim


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("Old Tom: hi", "Old Tom: hi"),
        ("hi", "Old Tom: hi"),
        ("", "Old Tom: "),
        (": x", "Old Tom: : x"),
        ("Someone El: x", "Someone El: x"),
        ("x" * 17 + ":", "x" * 17 + ":"),
        ("x" * 18 + ":", "Old Tom: " + "x" * 18 + ":"),
        (f"{STAMP} hi", "Old Tom: hi"),
    ],
)
def test_speaker_name(text: str, wanted: str) -> None:
    assert both_ways(text, {}, {"addDiscussionIdTimestampsForLLM": True}, prompt="Old Tom:") == wanted


def test_speaker_name_over_deltas() -> None:
    rules = CleaningRules.build({}, {}, "Old Tom:", has_endpoint=True)
    assert streamed(["Old", " Tom:", " hi"], rules) == "Old Tom: hi"


def test_text_is_released_as_soon_as_it_is_certain() -> None:
    cleaner = ResponseCleaner(CleaningRules.build(THINK, {}, has_endpoint=True))
    assert cleaner.feed("Hello <") == "Hello "
    assert cleaner.feed("b") == "<b"
    assert cleaner.feed("<think>x</thi") == ""
    assert cleaner.feed("nk> you") == " you"
    assert cleaner.ascii_rest is str
    node = {"removeCustomTextFromResponseStart": True, "responseStartTextToRemove": ["Reply:"]}
    cleaner = ResponseCleaner(CleaningRules.build({}, node, has_endpoint=True))
    assert cleaner.feed("Rep") == ""
    assert cleaner.feed("air") == "Repair"
    assert cleaner.ascii_rest is str


def test_flush_releases_what_is_held_and_otherwise_stays_armed() -> None:
    node = {"removeCustomTextFromResponseStart": True, "responseStartTextToRemove": ["Reply:"]}
    rules = CleaningRules.build(THINK, node, has_endpoint=True)
    armed = ResponseCleaner(rules)
    assert armed.flush() == ""
    assert armed.feed("<think>a</think>Reply: b") + armed.finish() == "b"
    held = ResponseCleaner(rules)
    assert held.feed("<think>a") == ""
    assert held.flush() == "<think>a"
    assert held.feed("</think>Reply:") == "</think>Reply:"
    speaker = ResponseCleaner(CleaningRules.build({}, {}, "Tom:", has_endpoint=True))
    assert (speaker.feed("hi"), speaker.flush(), speaker.finish()) == ("", "", "Tom: hi")


def test_flush_releases_a_prefix_held_behind_a_new_speaker() -> None:
    node = {"removeCustomTextFromResponseStart": True, "responseStartTextToRemove": ["Tom: go away"]}
    cleaner = ResponseCleaner(CleaningRules.build({}, node, "Tom:", has_endpoint=True))
    assert cleaner.feed(":") == "Tom: :"
    cleaner = ResponseCleaner(CleaningRules.build({}, node, "Tom:", has_endpoint=True))
    assert cleaner.feed("go awake and stay there") == "Tom: go awake and stay there"
    node["responseStartTextToRemove"] = ["Tom: " + "x" * 40]
    cleaner = ResponseCleaner(CleaningRules.build({}, node, "Tom:", has_endpoint=True))
    assert cleaner.feed("x" * 20) == ""
    assert cleaner.flush() == "Tom: " + "x" * 20
    assert cleaner.feed("x" * 20) == "x" * 20


@pytest.mark.parametrize(("value", "period"), [("7", 7), (0, 0), (None, 100), ("", 100), ("many", 100), ([], 100)])
def test_grace_period(value: object, period: int) -> None:
    rule = ThinkRule.build({**THINK, "openingTagGracePeriod": value})
    assert rule is not None and rule.grace_period == period


def test_an_answer_of_tool_calls_alone_gets_no_speaker() -> None:
    rules = CleaningRules.build({}, {}, "Tom:", has_endpoint=True)
    assert ResponseCleaner(rules).finish(tool_calls_seen=True) == ""
    spoken = ResponseCleaner(rules)
    assert spoken.feed("hi") + spoken.finish(tool_calls_seen=True) == "Tom: hi"


def test_surrogates() -> None:
    joiner = SurrogateJoiner()
    out = [joiner.feed("a\ud83d"), joiner.feed(""), joiner.feed("\ude00b"), joiner.finish()]
    assert out == ["a", "", "\U0001f600b", ""]
    out = [joiner.feed("\ude00"), joiner.feed("\ud83d"), joiner.feed("x\ud83d"), joiner.finish()]
    assert out == ["\ufffd", "", "\ufffdx", "\ufffd"]


@given(st.text(alphabet="A\u0130\u03a3\u00df\u1e9e\ufb01z"))
def test_folding_keeps_length_and_ignores_neighbours(text: str) -> None:
    assert fold_case(text) == "".join(fold_case(char) for char in text)
    assert len(fold_case(text)) == len(text)


def test_folding_unites_the_cases_of_a_letter() -> None:
    for group in ("\u03a3\u03c3\u03c2", "\u1e9e\u00df", "\u00c4\u00e4", "\u0416\u0436", "Aa"):
        assert len({fold_case(char) for char in group}) == 1


@pytest.mark.parametrize(
    ("message", "prompt"),
    [
        (" Tom: ", "Tom:"),
        (":", ":"),
        ("x" * 98 + ":", "x" * 98 + ":"),
        ("x" * 99 + ":", ""),
        ("Tom", ""),
        ("a\nTom:", ""),
        ("", ""),
        (None, ""),
        ([], ""),
        (escape_braces("{a}:"), "{a}:"),
        (escape_braces("{" * 98) + ":", "{" * 98 + ":"),
    ],
)
def test_generation_prompt(message: object, prompt: str) -> None:
    assert find_generation_prompt(message) == prompt


def test_a_long_block_takes_linear_time() -> None:
    rule = ThinkRule("<think>", "</think>")
    think = ThinkFilter(rule)
    started = time.process_time()
    think.feed("<think>")
    for _ in range(200_000):
        think.feed("word <")
    assert think.feed("</think>x") == "x"
    assert time.process_time() - started < 5  # quadratic work would take minutes
