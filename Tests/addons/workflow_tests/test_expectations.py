"""Every kind of expectation, holding and not holding."""

from __future__ import annotations

import pytest

from Tests.addons.workflow_tests.lab import asks, static, test
from Tests.tables import table

SAVE = {"title": "Save", "type": "SaveCustomFile", "filepath": "/data/out.txt", "content": "saved {agent1Output}"}
PLAIN = [static("Say", "Hello there")]
TWO = [asks("First", "think of {chat_user_prompt_last_one}"), asks("Second", returnToUser=True)]
REPLIES = {"First": "a thought", "Second": "an answer"}

HOLDING = {
    "answer contains": (PLAIN, {"answer": "lo the"}),
    "answer equals": (PLAIN, {"answer": {"equals": "Hello there"}}),
    "answer matches": (PLAIN, {"answer": {"matches": "^H.*e$"}}),
    "answer lacks": (PLAIN, {"answer": {"lacks": "hello"}}),
    "answer all of a list": (PLAIN, {"answer": ["Hello", {"lacks": "bye"}, {"contains": "there"}]}),
    "several conditions in one object": (PLAIN, {"answer": {"contains": "Hello", "lacks": "bye"}}),
    "order bare": (TWO, {"order": ["First", "Second"]}),
    "order with workflow": (TWO, {"order": ["Main/First", "Main/Second"]}),
    "outputs": (TWO, {"outputs": {"First": {"equals": "a thought"}, "Main/Second": "answer"}}),
    "system prompt": (TWO, {"prompts": {"First": {"system": {"equals": "You are First."}}}}),
    "prompt": (TWO, {"prompts": {"First": {"prompt": {"equals": "think of hi"}}, "Second": {"prompt": "hi"}}}),
    "endpoints": (TWO, {"endpoints": {"First": "Main", "Main/Second": "Main"}}),
    "files": ([*PLAIN, SAVE], {"files": {"/data/out.txt": {"equals": "saved Hello there"}}}),
    "nothing expected": (PLAIN, {}),
}
BROKEN = {
    "answer contains": (PLAIN, {"answer": "goodbye"}, "expect.answer", "expected to contain 'goodbye'; there was:"),
    "answer equals": (PLAIN, {"answer": {"equals": "Hello"}}, "expect.answer", "expected exactly this text"),
    "answer matches": (PLAIN, {"answer": {"matches": "^e"}}, "expect.answer", "expected to match '^e'"),
    "answer lacks": (PLAIN, {"answer": {"lacks": "lo"}}, "expect.answer", "expected without 'lo'"),
    "one of a list": (PLAIN, {"answer": ["Hello", "bye"]}, "expect.answer", "expected to contain 'bye'"),
    "route of a workflow": (PLAIN, {"route": "x"}, "expect.route", "the text is empty"),
    "order": (TWO, {"order": ["Second", "First"]}, "expect.order", "expected (-) and ran (+)"),
    "order with one missing": (TWO, {"order": ["First"]}, "expect.order", "expected (-) and ran (+)"),
    "outputs": (TWO, {"outputs": {"First": "x"}}, "expect.outputs['First']", "expected to contain 'x'"),
    "system prompt": (
        TWO,
        {"prompts": {"First": {"system": "Second"}}},
        "expect.prompts['First'].system",
        "expected to contain 'Second'",
    ),
    "prompt": (TWO, {"prompts": {"Second": {"prompt": "x"}}}, "expect.prompts['Second'].prompt", "contain 'x'"),
    "prompt of a node without LLM": (
        PLAIN,
        {"prompts": {"Say": {"prompt": "x"}}},
        "expect.prompts['Say']",
        "the node called no LLM",
    ),
    "endpoints": (
        TWO,
        {"endpoints": {"First": "Other"}},
        "expect.endpoints['First']",
        "expected 'Other', there was 'Main'",
    ),
    "endpoint of a node without": (
        PLAIN,
        {"endpoints": {"Say": "Main"}},
        "expect.endpoints['Say']",
        "no node of that title ran with an endpoint",
    ),
    "files": ([*PLAIN, SAVE], {"files": {"/data/out.txt": "x"}}, "expect.files['/data/out.txt']", "contain 'x'"),
    "missing file": (
        [*PLAIN, SAVE],
        {"files": {"/data/in.txt": "x"}},
        "expect.files['/data/in.txt']",
        "there is no such file",
    ),
    "a file that cannot be": (PLAIN, {"files": {"a\0b": "x"}}, "expect.files['a\\x00b']", "there is no such file"),
    "an error that does not come": (PLAIN, {"error": "x"}, "expect.error", "the run did not fail"),
}


@pytest.mark.parametrize(("nodes", "expect"), HOLDING.values(), ids=list(HOLDING))
def test_what_holds_passes(lab, nodes, expect):
    assert lab.failures(*nodes, replies=REPLIES if nodes is TWO else {}, expect=expect) == {}


@table(("nodes", "expect", "place", "line"), BROKEN.values(), ids=list(BROKEN))
def test_what_does_not_hold_is_told_once(lab, nodes, expect, place, line):
    failures = lab.failures(*nodes, replies=REPLIES if nodes is TWO else {}, expect=expect)

    assert list(failures) == [place]
    assert line in failures[place][0]


def test_several_things_that_do_not_hold_are_all_told(lab):
    failures = lab.failures(*TWO, replies=REPLIES, expect={"answer": "x", "order": [], "outputs": {"First": "y"}})

    assert list(failures) == ["expect.answer", "expect.order", "expect.outputs['First']"]


def test_a_failed_run_fails_a_test_that_expects_none(lab):
    failures = lab.failures(asks("First", endpointName="Nowhere"), expect={"answer": "x"})

    assert list(failures) == [""]
    assert "the run failed: endpoint 'Nowhere' does not exist" in failures[""][0]
    assert "  Main/First" in failures[""]


@pytest.mark.parametrize(
    ("error", "passes"), [("Nowhere", True), ({"matches": "does not .xist"}, True), ("zebra", False)]
)
def test_an_expected_failure_is_compared(lab, error, passes):
    failures = lab.failures(asks("First", endpointName="Nowhere"), expect={"error": error})

    assert ("expect.error" not in failures) is passes


def test_the_order_of_a_failed_run_counts(lab):
    nodes = [static("Say", "x"), asks("First", endpointName="Nowhere")]

    assert lab.failures(*nodes, expect={"error": "Nowhere", "order": ["Say", "First"]}) == {}


def test_the_missing_node_is_named_with_those_that_ran(lab):
    choice = {
        "title": "Choose",
        "type": "ConditionalCustomWorkflow",
        "conditionalKey": "a",
        "conditionalWorkflows": {"a": "A", "b": "B"},
    }
    lab.workflow("A", static("In A", "a"))
    lab.workflow("B", static("In B", "b"))

    failures = lab.failures(choice, expect={"outputs": {"In B": "b"}})

    assert failures == {
        "expect.outputs['In B']": ["the node delivered nothing", "nodes that ran:", "  Main/Choose", "  A/In A"]
    }


def test_the_order_shows_what_ran_and_what_did_not(lab):
    failures = lab.failures(static("One", "1"), static("Two", "2"), expect={"order": ["Two", "Main/Two"]})

    assert failures["expect.order"][1:] == ["  +Main/One", "   Main/Two", "  -Main/Two"]


def test_equal_texts_are_compared_line_by_line(lab):
    failures = lab.failures(static("Say", "one\ntwo\nthree"), expect={"answer": {"equals": "one\n2\nthree"}})

    assert failures["expect.answer"][1:] == [" one", "-2", "+two", " three"]


def test_texts_that_differ_in_line_ends_only_are_shown_whole(lab):
    failures = lab.failures(static("Say", "one\r\ntwo"), expect={"answer": {"equals": "one\ntwo"}})

    assert failures["expect.answer"][1:] == ["- 'one\\ntwo'", "+ 'one\\r\\ntwo'"]


def test_of_a_long_text_the_nearest_lines_are_shown(lab):
    text = "\n".join([*(f"line number {number}" for number in range(60)), "The reply is a category name.", "end"])

    failures = lab.failures(static("Say", text), expect={"answer": "Your reply is one category name"})

    lines = failures["expect.answer"]
    assert "the nearest lines" in lines[0]
    assert "  The reply is a category name." in lines
    assert len(lines) <= 4


CHILD = {"type": "CustomWorkflow", "workflowName": "Child"}
TWICE = [
    {**CHILD, "title": "Once", "scoped_variables": ["apples"]},
    {**CHILD, "title": "Again", "scoped_variables": ["pears"]},
]


def test_a_node_that_runs_several_times_fits_if_one_run_does(lab):
    lab.workflow("Child", asks("Ask", "{agent1Input}"))

    assert (
        lab.failures(
            *TWICE,
            replies={"Ask": ["one", "two"]},
            expect={
                "outputs": {"Ask": {"equals": "two"}},
                "prompts": {"Ask": {"prompt": ["apples", {"lacks": "bananas"}]}},
                "order": ["Once", "Ask", "Again", "Ask"],
            },
        )
        == {}
    )


def test_what_must_be_absent_must_be_absent_from_all_calls(lab):
    lab.workflow("Child", asks("Ask", "{agent1Input}"))

    failures = lab.failures(*TWICE, replies={"Ask": "one"}, expect={"prompts": {"Ask": {"prompt": {"lacks": "pears"}}}})

    assert "expected without 'pears'" in failures["expect.prompts['Ask'].prompt"][0]


def test_late_texts_and_example_turns_are_part_of_the_prompt(lab):
    node = asks(
        "Sort",
        lateSystemPrompt="Notes on '{chat_user_prompt_last_one}'",
        lateInstruction="Name the kind.",
        exampleTurns=[{"user": "Fix it", "assistant": "CODE"}],
    )
    whole = {"equals": "user: Fix it\nassistant: CODE\nuser: Notes on 'hi'\n\nhi\n\nName the kind."}

    assert (
        lab.failures(
            node,
            replies=[{"prompt": "Name the kind.", "reply": "TALK"}],
            expect={"prompts": {"Sort": {"system": "You are Sort.", "prompt": whole}}},
        )
        == {}
    )
    assert "assistant: CODE" in str(
        lab.failures(node, replies={"Sort": "TALK"}, expect={"prompts": {"Sort": {"prompt": {"lacks": "CODE"}}}})
    )


def test_conditions_must_hold_together_of_one_run(lab):
    lab.workflow("Child", asks("Ask", "{agent1Input}"))

    failures = lab.failures(*TWICE, replies={"Ask": ["one", "two"]}, expect={"outputs": {"Ask": ["one", "two"]}})

    assert "expected to contain" in failures["expect.outputs['Ask']"][0]


def _fails_late(**more):
    return [
        static("Say", "answer", returnToUser=True, **more),
        {"title": "Keep", "type": "Standard", "endpointName": "Nowhere", "prompt": "x"},
    ]


@pytest.mark.parametrize("more", [{}, {"stream": True}], ids=["whole", "streamed"])
@pytest.mark.parametrize("top", [{}, {"parallelNodes": True}], ids=["one by one", "side by side"])
def test_a_node_that_fails_after_the_answer_fails_the_test(lab, more, top):
    [result] = lab.results(*_fails_late(), tests=[test(expect={"answer": "answer"}, **more)], **top)

    [failure] = result.failures
    assert failure.lines[0].startswith("the run failed: node 'Main/Keep' failed after the answer: ")
    assert "Nowhere" in failure.lines[0]


def test_a_failure_after_the_answer_of_a_child_counts(lab):
    lab.workflow("Child", *_fails_late())
    child = {"title": "Run", "type": "CustomWorkflow", "workflowName": "Child", "returnToUser": True}

    assert "node 'Child/Keep' failed after the answer" in lab.failures(child)[""][0]


def test_a_failure_after_the_answer_can_be_expected(lab):
    assert lab.failures(*_fails_late(), expect={"answer": "answer", "error": ["Main/Keep", "Nowhere"]}) == {}


def test_a_run_that_is_ended_after_the_answer_is_no_failure(lab):
    lock = {"title": "Lock", "type": "WorkflowLock", "workflowLockId": "one"}

    assert (
        lab.failures(
            lock,
            static("Say", "x", returnToUser=True),
            {**lock, "title": "Again"},
            static("Never", "y"),
            expect={"order": ["Lock", "Say", "Again"]},
        )
        == {}
    )


def test_a_long_list_of_nodes_is_cut(lab):
    lines = lab.failures(
        *(static(f"Say {number}", "x") for number in range(200)),
        expect={"files": {"/x": "y"}, "prompts": {"Say 1": {"system": "x"}}},
    )["expect.prompts['Say 1']"]

    assert len(lines) < 50 and lines[-1].strip() == "... and 160 more lines"
