"""``benchmarks/prefix_cache.py``: its simulated cache does what llama.cpp's does; a row that reads too much fails."""

from __future__ import annotations

import json

import pytest

from benchmarks import prefix_cache
from benchmarks.cache_backend import Call, Read, Script, SimulatedCache, tokens_of
from Tests.benchmarks import recorded_cache

LONG, OTHER = [f"a{number}" for number in range(100)], [f"b{number}" for number in range(100)]


def served(cache: SimulatedCache, *prompts: list[str]) -> list[int]:
    """The cached tokens of each prompt, all of which are answered with one token."""
    return [cache.serve_tokens(prompt, ["answer"]).cached for prompt in prompts]


def test_the_beginning_is_kept_up_to_the_first_difference() -> None:
    assert served(SimulatedCache(), LONG, [*LONG, "answer", "new"], [*LONG[:40], "new"]) == [0, 101, 40]


def test_one_token_is_always_read() -> None:
    assert served(SimulatedCache(), LONG, LONG) == [0, 99]


def test_on_one_slot_a_prompt_drives_out_the_other_unless_there_is_a_host_cache() -> None:
    assert served(SimulatedCache(1, host_cache=False), LONG, OTHER, [*LONG, "answer", "new"]) == [0, 0, 0]
    assert served(SimulatedCache(1, host_cache=True), LONG, OTHER, [*LONG, "answer", "new"]) == [0, 0, 101]


def test_prompts_that_differ_go_to_slots_of_their_own_and_the_oldest_gives_way() -> None:
    two = SimulatedCache(2, host_cache=False)
    third = [f"c{number}" for number in range(100)]
    assert served(two, LONG, OTHER, LONG, third, LONG, OTHER) == [0, 0, 99, 0, 99, 0]


def test_a_tenth_of_the_prompt_in_common_is_enough_for_a_slot_and_a_quarter_for_the_host_cache() -> None:
    # Of two slots, the one with a similar beginning is taken although the other is empty.
    assert served(SimulatedCache(2, host_cache=False), LONG, [*LONG[:11], *OTHER[:89]], [*LONG[:12]]) == [0, 11, 11]
    few, enough = [*LONG[:24], *OTHER], [*LONG[:26], *OTHER]
    for prompt, cached in ((few, 0), (enough, 26)):
        assert served(SimulatedCache(1), LONG, ["x"] * 300, prompt) == [0, 0, cached]


def test_an_answer_is_split_into_the_same_tokens_when_it_comes_back() -> None:
    cache, script = SimulatedCache(), Script()
    question = {"role": "user", "content": "How are you?"}
    _, text = script.answer([question], 500)
    first = cache.serve([question], text)
    again = cache.serve([question, {"role": "assistant", "content": text}, question], text)
    assert again.cached == first.prompt + len(tokens_of(text))


@pytest.mark.parametrize("scenario", recorded_cache.scenarios())
def test_the_simulation_reads_what_a_real_server_read(scenario: str) -> None:
    calls = recorded_cache.scenarios()[scenario]
    for setting, recorded in json.loads(recorded_cache.FILE.read_text(encoding="utf-8"))[scenario].items():
        ((slots, host_cache),) = [key for key, name in prefix_cache.NAMES.items() if name == setting]
        simulated = SimulatedCache(slots, host_cache)
        reads = [simulated.serve(*call) for call in calls]
        real = [Read(*counts) for counts in recorded]
        total = sum(read.processed for read in real)
        assert abs(sum(read.processed for read in reads) - total) < 0.05 * total, setting
        # They also choose the same slot for each call.
        for number, (one, other) in enumerate(zip(reads, real, strict=True)):
            assert abs(one.processed - other.processed) < 0.05 * other.prompt, (setting, number)


def test_nodes_are_answered_in_the_form_that_they_want() -> None:
    script = Script()
    script.route = "CODING"
    for prompt, most, kind, part in (
        ("Reply with one word: CODING or WRITING.", 50, "route", "CODING"),
        ("Reply with a JSON array and nothing else", 1800, "facts", '"key_phrases"'),
        ("Reply in exactly this form:\n<outcome>", 18000, "turn", "</status>"),
        ("Write five to ten search terms", 120, "terms", ";"),
        ("Do not answer the message above yet. Make notes on it.", 600, "notes", "The "),
        ("Hello", 500, "answer", "The "),
    ):
        found, text = script.answer([{"role": "user", "content": prompt}], most)
        assert (found, part in text) == (kind, True), prompt
        assert kind != "facts" or len(json.loads(text)) == 3


def test_a_row_above_its_limit_is_named_and_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reads = {name: Read(700, 0) for name in prefix_cache.NAMES.values()}
    for limits, status in (((700, 700), 0), ((700, 699), 1)):
        row = prefix_cache.Row("made", "", "any", limits)
        monkeypatch.setattr(prefix_cache, "ROWS", {"made": row})
        monkeypatch.setattr(
            prefix_cache, "lead", lambda row, backend, turns: prefix_cache.result(row, 1, [Call("answer", reads, 0)])
        )
        assert prefix_cache.main(["--only", "made"]) == status
        assert ("MISSED" in capsys.readouterr().out) == bool(status)


def test_the_check_leads_short_conversations_with_limits_of_their_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    led: list[tuple[str, int]] = []

    def lead(row: prefix_cache.Row, backend: object, turns: int) -> prefix_cache.Result:
        led.append((row.name, turns))
        assert row.limits == (9, 9)
        return prefix_cache.result(
            row, 1, [Call("answer", {name: Read(9, 0) for name in prefix_cache.NAMES.values()}, 0)]
        )

    monkeypatch.setattr(
        prefix_cache,
        "ROWS",
        {
            "plain": prefix_cache.Row("plain", "", "any", (5, 5)),
            "short": prefix_cache.Row("short", "", "any", (5, 5), (), (9, 9)),
        },
    )
    monkeypatch.setattr(prefix_cache, "lead", lead)
    assert prefix_cache.main(["--check"]) == 0 and "MISSED" not in capsys.readouterr().out
    assert led == [("short", prefix_cache.CHECK_TURNS)]


@pytest.mark.slow
def test_a_row_is_led_through_the_whole_program(capsys: pytest.CaptureFixture[str]) -> None:
    assert prefix_cache.main(["--only", "me:assistant", "--turns", "2"]) == 1
    assert "{'route': 2, 'answer': 2, 'notes': 1}" in capsys.readouterr().err
