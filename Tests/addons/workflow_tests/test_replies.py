"""What the LLM answers in a test, and what it was asked."""

from __future__ import annotations

import math

import pytest

from Middleware.addons.workflow_tests.scripted_llm import vector
from Tests.addons.workflow_tests.lab import asks, says, static, test
from Tests.llmapis.lab import CHATML, CLAUDE, OLLAMA, OPEN_AI

API_TYPES = {
    "openAIChatCompletion": OPEN_AI,
    "openAIV1Completion": {**OPEN_AI, "type": "openAIV1Completion"},
    "ollamaApiChat": OLLAMA,
    "ollamaApiGenerate": {**OLLAMA, "type": "ollamaApiGenerate"},
    "koboldCppGenerate": {**OPEN_AI, "type": "koboldCppGenerate"},
    "claudeMessages": CLAUDE,
}
TEXT_TYPES = ("openAIV1Completion", "ollamaApiGenerate", "koboldCppGenerate")
CALL = {"name": "search", "arguments": {"query": "owls"}}
TOOLS = [{"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}]


def other_type(lab, name, **endpoint):
    lab.write("ApiTypes/Other", API_TYPES[name])
    lab.endpoint("Main", {"apiTypeConfigFileName": "Other", "promptTemplate": "chatml", **endpoint})


# -- dialects ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", list(API_TYPES))
def test_every_dialect_gets_its_answer(lab, name, stream):
    other_type(lab, name)

    assert (
        lab.failures(
            asks("Ask"),
            stream=stream,
            replies={"Ask": 'Line 1\nLine "2" {ö}'},
            expect={"answer": {"equals": 'Line 1\nLine "2" {ö}'}, "endpoints": {"Ask": "Main"}},
        )
        == {}
    )


@pytest.mark.parametrize("base", ["http://x", "http://x/", "https://x:1/v1", "http://x/some/proxy"])
def test_the_dialect_is_known_whatever_the_base_url(lab, base):
    lab.endpoint("Main", {}, url=base)

    assert lab.failures(asks("Ask"), replies={"Ask": "yes"}, expect={"answer": "yes"}) == {}


@pytest.mark.parametrize("name", sorted(set(API_TYPES) - set(TEXT_TYPES)))
def test_prompts_of_chat_back_ends_are_split(lab, name):
    other_type(lab, name)
    messages = [says("Be short.", "system"), says("One?"), says("1", "assistant"), says("Two?")]

    assert (
        lab.failures(
            asks("Ask", lastMessagesToSendInsteadOfPrompt=5),
            messages=messages,
            replies={"Ask": "2"},
            expect={
                "prompts": {
                    "Ask": {
                        "system": {"equals": "You are Ask."},
                        "prompt": {"equals": "user: One?\nassistant: 1\nuser: Two?"},
                    }
                }
            },
        )
        == {}
    )


@pytest.mark.parametrize("name", TEXT_TYPES)
def test_prompts_of_completion_back_ends_are_one_text_with_its_template(lab, name):
    other_type(lab, name)
    text = f"{CHATML['promptTemplateSystemPrefix']}You are Ask."

    assert (
        lab.failures(
            asks("Ask", "Say {chat_user_prompt_last_one}"),
            replies={"Ask": "2"},
            expect={"prompts": {"Ask": {"system": [text, "Say hi"], "prompt": [text, "Say hi"]}}},
        )
        == {}
    )


def test_texts_that_the_endpoint_injects_are_seen_and_its_cleaning_done(lab):
    lab.endpoint(
        "Main",
        {
            "addTextToStartOfSystem": True,
            "textToAddToStartOfSystem": "/no_think ",
            "removeThinking": True,
            "startThinkTag": "<think>",
            "endThinkTag": "</think>",
        },
    )

    assert (
        lab.failures(
            asks("Ask"),
            replies={"Ask": "<think>hm</think>Fine."},
            expect={
                "answer": {"equals": "Fine."},
                "prompts": {"Ask": {"system": {"equals": "/no_think You are Ask."}}},
            },
        )
        == {}
    )


def test_images_and_tool_calls_of_the_conversation_are_seen(lab):
    messages = [
        {"role": "user", "content": "Look", "images": ["https://example.com/a.png"]},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "search", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "found"},
    ]

    assert (
        lab.failures(
            asks("Ask", allowTools=True, lastMessagesToSendInsteadOfPrompt=5, acceptImages=True),
            messages=messages,
            tools=TOOLS,
            replies={"Ask": "ok"},
            expect={"prompts": {"Ask": {"prompt": ["Look", "[image]", '"search"', "tool: found"]}}},
        )
        == {}
    )


# -- replies -----------------------------------------------------------------------------------------------------------

TWICE = [
    asks("Ask", "one"),
    {**asks("Ask", "two"), "systemPrompt": "{agent1Output}"},
    static("Join", "{agent1Output}|{agent2Output}"),
]


@pytest.mark.parametrize(
    ("reply", "answer"),
    [("a", "a|a"), (["a"], "a|a"), (["a", "b"], "a|b"), (["a", "b", "c"], "a|b")],
    ids=["text", "list of one", "one per call", "more than needed"],
)
def test_replies_of_a_node_in_turn(lab, reply, answer):
    assert lab.failures(*TWICE, replies={"Ask": reply}, expect={"answer": {"equals": answer}}) == {}


def test_the_more_exact_title_counts(lab):
    lab.workflow("Child", asks("Ask"))
    nodes = [
        asks("Ask"),
        {"title": "Run", "type": "CustomWorkflow", "workflowName": "Child"},
        static("Join", "{agent1Output}|{agent2Output}"),
    ]

    assert (
        lab.failures(*nodes, replies={"Ask": "any", "Child/Ask": "child"}, expect={"answer": {"equals": "any|child"}})
        == {}
    )


@pytest.mark.parametrize(
    ("rules", "answer"),
    [
        ([{"reply": "x"}], "x|x"),
        ([{"prompt": "two", "reply": "second"}, {"reply": "x"}], "x|second"),
        ([{"prompt": {"matches": "tw."}, "reply": "second"}, {"prompt": "Ask", "reply": "x"}], "x|second"),
        ([{"node": "Ask", "endpoint": "Main", "reply": ["x", "y"]}], "x|y"),
        ([{"node": "Ask", "reply": "x", "times": 1}, {"node": "Ask", "reply": "y"}], "x|y"),
        ([{"endpoint": "Other", "reply": "no"}, {"reply": {"content": "x"}}], "x|x"),
    ],
    ids=["any", "prompt", "pattern", "list", "times", "endpoint"],
)
def test_the_first_rule_that_fits_answers(lab, rules, answer):
    lab.write("Endpoints/Other", {})

    assert lab.failures(*TWICE, replies=rules, expect={"answer": {"equals": answer}}) == {}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", ["openAIChatCompletion", "ollamaApiChat", "claudeMessages"])
@pytest.mark.parametrize(
    "call",
    [
        CALL,
        {"type": "function", "id": "c", "function": CALL},
        {"function": {"name": "search", "arguments": '{"query": "owls"}'}},
    ],
    ids=["short", "openai", "text"],
)
def test_tool_calls_reach_the_client(lab, name, call, stream):
    other_type(lab, name)

    assert (
        lab.failures(
            asks("Ask", allowTools=True),
            tools=TOOLS,
            stream=stream,
            replies={"Ask": {"content": "Let me see.", "tool_calls": [call]}},
            expect={"answer": ["Let me see.", '"search"', "owls"]},
        )
        == {}
    )


def test_a_failure_of_the_back_end_fails_the_run(lab):
    failures = lab.failures(asks("Ask"), replies=[{"node": "Ask", "fail": "model is loading"}])

    assert "the run failed: Endpoint 'Main': the server answered with status 500: model is loading" in failures[""][0]


def test_the_backup_stands_in_for_a_failing_endpoint(lab):
    lab.endpoint("Main", {"backupEndpointName": "Spare"})
    lab.endpoint("Spare", {}, url="http://nobody.knows.this.host.example")

    assert (
        lab.failures(
            asks("Ask"),
            replies=[{"endpoint": "Main", "fail": "down"}, {"reply": "from the spare"}],
            expect={"answer": "from the spare", "endpoints": {"Ask": "Spare"}},
        )
        == {}
    )


def test_a_failure_can_end(lab):
    nodes = [{**asks("Ask"), "backupEndpointName": ""}, static("Say", "done")]
    rules = [{"fail": "down", "times": 1}, {"reply": "up"}]

    assert "down" in lab.failures(*nodes, replies=rules)[""][0]


# -- missing replies ---------------------------------------------------------------------------------------------------


def test_a_call_without_reply_fails_with_what_was_asked(lab):
    failures = lab.failures(
        asks("First", "Think of {chat_user_prompt_last_one}"),
        asks("Second"),
        replies={"Second": "x"},
        expect={"answer": "x"},
    )

    assert failures == {
        "replies": [
            "no reply for node 'Main/First' (endpoint 'Main'); replies are there for: Second",
            "its system prompt:",
            "  You are First.",
            "its prompt:",
            "  Think of hi",
        ]
    }


def test_a_long_prompt_is_shown_by_its_beginning(lab):
    failures = lab.failures(asks("First", "\n".join(f"line {number}" for number in range(100))))

    assert "  line 0" in failures["replies"] and "  line 50" not in failures["replies"]
    assert failures["replies"][-1] == "  ... and 88 more lines"


def test_no_backup_hides_a_missing_reply(lab):
    lab.endpoint("Main", {"backupEndpointName": "Spare"})
    lab.endpoint("Spare", {})

    assert "endpoint 'Main'" in lab.failures(asks("Ask"), replies={})["replies"][0]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_missing_reply_fails_even_where_the_run_goes_on(lab, stream):
    nodes = [static("Say", "x", returnToUser=True), asks("Later")]

    assert "node 'Main/Later'" in lab.failures(*nodes, stream=stream, expect={"answer": "x"})["replies"][0]


def test_of_a_list_the_first_rule_that_matches_answers(lab):
    rules = [{"node": "Ask", "reply": "first"}, {"node": "Main/Ask", "reply": "second"}]

    assert lab.failures(asks("Ask"), replies=rules, expect={"answer": "first"}) == {}


# -- keys and vectors --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["env:NO_SUCH_VARIABLE_HERE", "file:/no/such/file"])
def test_no_key_is_needed_and_no_place_of_keys_looked_at(lab, key):
    lab.endpoint("Main", {"apiKey": key})

    assert lab.failures(asks("Ask"), replies={"Ask": "yes"}, expect={"answer": "yes"}) == {}


def test_a_payload_that_could_not_be_sent_fails(lab):
    lab.endpoint("Main", {"presetSamplers": {"temperature": 1}})
    lab.text("../../Presets/OpenAiCompatibleApis/Odd.json", '{"temperature": 1e999}')

    failures = lab.failures(asks("Ask", preset="Odd"), replies={"Ask": "yes"})

    assert "cannot be written as JSON" in failures[""][0]


def test_vectors_depend_on_words_alone():
    same, near, far = vector("Owls hunt at night"), vector("owls hunt, at dawn"), vector("Tax law of Norway")

    assert same == vector("owls HUNT at night")
    assert math.isclose(sum(number * number for number in same), 1.0)
    assert _likeness(same, near) > _likeness(same, far)
    assert vector("") == vector("?!")


def _likeness(one, other):
    return sum(a * b for a, b in zip(one, other, strict=True))


def test_all_calls_are_answered_when_tests_run_beside_each_other(lab):
    tests = [
        test(
            name=str(number),
            messages=[says(f"number {number}")],
            replies={"Ask": f"reply {number}"},
            expect={
                "answer": {"equals": f"reply {number}"},
                "prompts": {"Ask": {"prompt": {"equals": f"number {number}"}}},
            },
        )
        for number in range(40)
    ]

    results = lab.results(asks("Ask"), tests=tests, jobs=8)

    assert [result.failures for result in results] == [[]] * 40
    assert [result.test.name for result in results] == [str(number) for number in range(40)]
