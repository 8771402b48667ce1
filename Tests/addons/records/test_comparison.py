"""The steps of two runs are aligned."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from Middleware.addons.records.analysis.comparison import aligned_steps, config_changes
from Tests.addons.records.made_up import Made
from Tests.properties import examples

_TITLES = st.lists(st.sampled_from(["Analyse", "Answer", "Check", "Remember"]), max_size=6)


def run_of(titles: list[str], nested: list[str] | None = None) -> Made:
    run = Made()
    workflow = run.workflow("Coding", 0, 1)
    for index, title in enumerate(titles, 1):
        node = run.node(index, title, 0, 1, workflow, texts={"output": f"output of {title}"})
        if nested is not None and title == "Search":
            inner = run.workflow("Search", 0, 1, node)
            for number, name in enumerate(nested, 1):
                run.node(number, name, 0, 1, inner, texts={"output": name})
    return run


@given(_TITLES, _TITLES)
@examples(200)
def test_every_node_of_both_runs_stands_in_one_row(first: list[str], second: list[str]) -> None:
    a, b = run_of(first).document(), run_of(second).document()
    steps = aligned_steps(a, b)
    for side, document in (("a", a), ("b", b)):
        spans = [step[side]["span"] for step in steps if step[side]]  # type: ignore[literal-required]
        assert spans == [span.id for span in document.spans if span.kind == "node"]
    assert all(step["a"] or step["b"] for step in steps)


@given(_TITLES)
@examples(50)
def test_a_run_is_the_same_as_itself(titles: list[str]) -> None:
    steps = aligned_steps(run_of(titles).document(), run_of(titles).document())
    assert [(step["title"], step["text"]) for step in steps] == [(title, "same") for title in titles]


def test_a_node_that_was_added_stands_alone() -> None:
    steps = aligned_steps(run_of(["Analyse", "Answer"]).document(), run_of(["Analyse", "Check", "Answer"]).document())
    assert [(step["title"], step["node"], bool(step["a"]), bool(step["b"])) for step in steps] == [
        ("Analyse", 1, True, True),
        ("Check", 2, False, True),
        ("Answer", 3, True, True),
    ]


def test_nodes_of_nested_workflows_are_aligned_below_theirs() -> None:
    steps = aligned_steps(
        run_of(["Search", "Answer"], ["Read"]).document(), run_of(["Search", "Answer"], ["Fetch", "Read"]).document()
    )
    assert [(step["workflow"], step["title"], step["depth"], bool(step["a"])) for step in steps] == [
        ("me/Coding", "Search", 0, True),
        ("me/Search", "Fetch", 1, False),
        ("me/Search", "Read", 1, True),
        ("me/Coding", "Answer", 0, True),
    ]


def test_a_changed_output_a_renamed_node_and_a_repeated_one() -> None:
    a, b = run_of(["Analyse", "Answer", "Answer"]), run_of(["Think", "Answer", "Answer"])
    b.spans[3].texts["output"] = "other"
    steps = aligned_steps(a.document(), b.document())
    assert [(step["title"], step["occurrence"], step["text"]) for step in steps] == [
        ("Think", 1, "changed"),
        ("Answer", 1, "same"),
        ("Answer", 1, "changed"),
    ]


def test_configuration_changes() -> None:
    a, b = (
        [{"path": path, "hash": value} for path, value in files]
        for files in (
            (("Users/me.json", "1"), ("Endpoints/Old.json", "2"), ("Users/_current-user.json", "5")),
            (("Users/me.json", "3"), ("Endpoints/New.json", "4")),
        )
    )
    assert config_changes(a, b) == [  # type: ignore[arg-type]
        {"path": "Endpoints/New.json", "change": "new", "a": None, "b": "4"},
        {"path": "Endpoints/Old.json", "change": "unused", "a": "2", "b": None},
        {"path": "Users/me.json", "change": "changed", "a": "1", "b": "3"},
    ]
