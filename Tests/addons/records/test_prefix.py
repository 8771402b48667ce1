"""The prefix comparison names the message and the character of a change."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from Middleware.addons.records.analysis.prefix import NO_CALL_BEFORE, NOT_KEPT, common_prefix, compare_prompts, prefixes
from Middleware.addons.records.payloads import PromptPart
from Tests.addons.records.made_up import Made
from Tests.properties import examples

_TEXTS = st.text("ab \n", max_size=30)


def parts(texts: list[str]) -> list[PromptPart]:
    return [PromptPart(number, "user", f"message {number} (user)", text) for number, text in enumerate(texts, 1)]


@given(_TEXTS, _TEXTS)
@examples(300)
def test_the_common_beginning_is_the_longest(first: str, second: str) -> None:
    length = common_prefix(first, second)
    assert first[:length] == second[:length]
    assert length in (len(first), len(second)) or first[length] != second[length]


@given(st.lists(_TEXTS, min_size=1, max_size=5), st.data())
@examples(200)
def test_a_planted_change_is_found(texts: list[str], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(texts) - 1))
    place = data.draw(st.integers(0, len(texts[index])))
    changed = [*texts]
    changed[index] = texts[index][:place] + "#" + texts[index][place:]
    found = compare_prompts(parts(texts), parts(changed))
    assert found["part"] is not None and found["part"].number == index + 1
    assert found["same"] == sum(map(len, texts[:index])) + place and "#" in found["new"]
    assert found["characters"] == sum(map(len, changed))


def run_with(system: str, run_id: str, kept: bool = True, cached: int | None = None) -> Made:
    run = Made(id=run_id)
    node = run.node(1, "Answer", 0, 1, run.workflow("Coding", 0, 1))
    payload = {"model": "m", "messages": [{"role": "system", "content": system}, {"role": "user", "content": "Hello"}]}
    run.attempt(
        "Main",
        0,
        1,
        run.call("Main", 0, 1, node),
        usage__input_tokens=18204,
        usage__cache_read__input_tokens=cached,
        texts={"payload": payload} if kept else {},
    )
    return run


MONDAY = "You know everything. " * 40 + "Today is Monday, 3 May."
TUESDAY = MONDAY.replace("Monday", "Tuesday")


@pytest.mark.parametrize(
    ("new", "old", "text"),
    [
        (
            run_with(TUESDAY, "b", cached=412),
            [run_with(MONDAY, "a")],
            "412 of 18,204 prompt tokens reused. Same up to character 849 of 869 (97%). First difference in message 1 "
            '(system): "everything. Today is Monday, 3 May." / "everything. Today is Tuesday, 3 May.".',
        ),
        (
            run_with(MONDAY, "b"),
            [run_with(MONDAY, "a")],
            "Reused prompt tokens: not reported. All of its 868 characters are the same as in the call before.",
        ),
        (run_with(MONDAY, "b"), [], f"Reused prompt tokens: not reported. {NO_CALL_BEFORE}"),
        (run_with(MONDAY, "b"), [run_with(MONDAY, "a", kept=False)], f"Reused prompt tokens: not reported. {NOT_KEPT}"),
    ],
)
def test_sentences(new: Made, old: list[Made], text: str) -> None:
    found = prefixes(new.document(), (run.document() for run in old))
    assert list(found) == ["3"] and found["3"]["text"] == text
    assert found["3"]["earlier"] == ({"run": "a", "span": 3} if old else None)


def test_messages_that_fell_out_are_counted() -> None:
    found = compare_prompts(parts(["one", "two", "three", "four"]), parts(["three", "four", "five"]))
    assert (found["same"], found["left_out"]) == (0, 2)


def test_the_newest_earlier_call_at_the_same_place_counts() -> None:
    other, older, same = run_with("x", "other"), run_with("y", "older"), run_with("z", "newest")
    other.spans[2].attributes["endpoint"] = "Worker"
    asked: list[str] = []

    def earlier() -> object:
        for run in (other, same, older):
            asked.append(run.facts["id"])
            yield run.document()

    found = prefixes(run_with("new", "now").document(), earlier())  # type: ignore[arg-type]
    assert found["3"]["earlier"] == {"run": "newest", "span": 3} and asked == ["other", "newest"]


def test_the_call_before_may_be_in_the_same_run() -> None:
    run = run_with("a", "now")
    node = run.node(1, "Answer", 1, 2, run.workflow("Coding", 1, 2))
    run.attempt("Main", 1, 2, run.call("Main", 1, 2, node), texts=run.spans[3].texts)
    assert prefixes(run.document(), ())["7"]["earlier"] == {"run": "now", "span": 3}
