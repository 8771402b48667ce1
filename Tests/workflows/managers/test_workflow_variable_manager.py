"""The variables of workflow files: table, precedence, fallbacks, Jinja2."""

import copy
import re
import types
from datetime import datetime
from pathlib import Path

import pytest

from Middleware.exceptions import ConfigNotFoundError
from Middleware.models.llm_handler import LlmHandler
from Middleware.utilities.config import users
from Middleware.utilities.config.keys.user import USER
from Middleware.utilities.text_utils import escape_braces
from Middleware.workflows.managers import variable_table, workflow_variable_manager
from Middleware.workflows.managers.variable_table import CATEGORY_VARIABLES, VARIABLES
from Middleware.workflows.managers.workflow_variable_manager import WorkflowVariableManager
from Middleware.workflows.models.execution_context import ExecutionContext

TEMPLATES = {
    "endpoint": {
        "promptTemplateSystemPrefix": "<S>",
        "promptTemplateSystemSuffix": "</S>",
        "promptTemplateUserPrefix": "<U>",
        "promptTemplateUserSuffix": "</U>",
        "promptTemplateAssistantPrefix": "<A>",
        "promptTemplateAssistantSuffix": "</A>",
    },
    "chat": {"promptTemplateUserPrefix": "\n", "promptTemplateAssistantPrefix": "\n"},
}


def talk(*pairs):
    return [{"role": role, "content": escape_braces(content)} for role, content in pairs]


TALK = talk(("system", "S"), ("user", "hi"), ("assistant", "yo"), ("system", "mid"), ("user", "bye"))


@pytest.fixture(autouse=True)
def user(monkeypatch):
    """The user's settings, as a dict that a test fills."""
    settings = {}

    def load_prompt_template(name):
        if name not in TEMPLATES:
            raise ConfigNotFoundError(f"no template '{name}'")
        return TEMPLATES[name]

    stub = types.SimpleNamespace(
        user_setting=lambda key: USER.value(settings, key),
        user_flag=lambda key: USER.flag(settings, key),
        load_prompt_template=load_prompt_template,
        chat_template_name=lambda: "chat",
    )
    monkeypatch.setattr(users, "user_setting", stub.user_setting)
    stub.user_wide_variables = users.user_wide_variables
    for module in (variable_table, workflow_variable_manager):
        monkeypatch.setattr(module, "config_utils", stub)
    return settings


def context(messages=None, node=None, chat=True, endpoint=None, **fields):
    handler = LlmHandler(
        llm=None,
        prompt_template_file_name="endpoint",
        takes_message_collection=chat,
        endpoint_config=endpoint or {},
        max_tokens=fields.pop("max_tokens", None),
    )
    return ExecutionContext(
        "r",
        "w",
        fields.pop("discussion_id", None),
        node or {},
        copy.deepcopy(TALK) if messages is None else messages,
        False,
        llm_handler=handler,
        **fields,
    )


def apply(text, ctx=None, **fields):
    return WorkflowVariableManager().apply_variables(text, ctx or context(**fields))


def early(text, agent_inputs=None, workflow_config=None, **more):
    return WorkflowVariableManager().apply_early_variables(text, agent_inputs or {}, workflow_config or {}, **more)


# --- edge cases of the specification ---


def test_8_output_is_inserted_byte_for_byte():
    assert apply("{agent1Output}", agent_outputs={"agent1Output": '{"a": {}}'}) == '{"a": {}}'


@pytest.mark.parametrize("text", ["{missing} and {agent1Output}", "{}", "a { b", "{agent1Output:q}", "}"])
def test_9_10_whole_text_as_written(text, caplog):
    assert apply(text, agent_outputs={"agent1Output": "Z"}, node={"title": "N", "prompt": text}) == text
    assert "'N'" in caplog.text and "'prompt'" in caplog.text


def test_warning_names_the_placeholder(caplog):
    apply("{missing}")
    assert "{missing}" in caplog.text and "did you mean" not in caplog.text


@pytest.mark.parametrize(
    "name, near",
    [
        ("todays_date_is", "todays_date_iso"),
        ("chat_user_prompt_last_1one", "chat_user_prompt_last_one"),
        ("tome", "tone"),
        ("agent1Inputs", "agent1Input"),
        ("mesages", "messages"),
        ("of_usr", "of_user"),
        ("category_lst", "category_list"),
    ],
)
def test_warning_names_the_nearest_variable(user, caplog, name, near):
    user["userWideWorkflowVariables"] = {"of_user": 1}
    run = types.SimpleNamespace(category_variables={"category_list": []})
    apply("{" + name + "}", workflow_config={"tone": "dry"}, agent_inputs={"agent1Input": "i"}, run=run)
    assert f"'{{{name}}}' (did you mean '{{{near}}}'?)" in caplog.text


def test_warning_about_an_output_that_is_not_there_yet(caplog):
    apply("{agent7Output}", agent_outputs={"agent1Output": "x"})
    assert "'{agent7Output}' (no node with that number has run before this one)" in caplog.text


@pytest.mark.parametrize(
    "node, field",
    [
        ({"prompt": "{x}"}, "prompt"),
        ({"strings": ["a", "{x}"]}, "strings[1]"),
        ({"arguments": {"q": [{"deep": "{x}"}]}}, "arguments.q[0].deep"),
        ({}, "a text"),
    ],
)
def test_warning_names_the_field(caplog, node, field):
    apply("{x}", node={"title": "T", **node})
    assert f"Node 'T': '{field}' was left as written" in caplog.text


def test_warning_shows_no_text_of_a_conversation(caplog):
    apply('{"secret thing": "my diary, {agent1Output}"}')
    assert "diary" not in caplog.text and 'secret thing": ' not in caplog.text


def test_11_double_braces():
    outputs = {"agent1Output": "Z"}
    assert apply("{{x}}", agent_outputs=outputs) == "{x}"
    assert apply("{{agent1Output}}", agent_outputs=outputs) == "Z"
    assert apply("{{}}", agent_outputs=outputs) == "{}"
    assert apply("}}") == "}"


def test_12_13_14_custom_variables():
    variables = {"p": "/d/{Discussion_Id}/f", "a": "{q}", "q": "{Discussion_Id}", "j": '{"a": 1}', "nodes": []}
    assert apply("{p}", workflow_config=variables, discussion_id="k7") == "/d/k7/f"
    assert apply("{p}", workflow_config=variables) == "/d//f"
    assert apply("{a}", workflow_config=variables, discussion_id="k7") == "{Discussion_Id}"
    assert apply("{j}", workflow_config=variables) == '{"a": 1}'
    assert apply("{nodes}", workflow_config=variables) == "{nodes}"


def test_15_precedence(user):
    user["userWideWorkflowVariables"] = {"YYYY_MM_DD": "x", "mine": "u", "both": "u"}
    variables = {
        "todays_date_iso": "x",
        "Discussion_Id": "x",
        "both": "w",
        "agent1Output": "w",
        "messages": "w",
        "chat_user_prompt_last_one": "w",
    }
    ctx = context(
        workflow_config=variables,
        discussion_id="d",
        agent_outputs={"agent1Output": "o", "agent1Input": "m"},
        agent_inputs={"agent1Input": "i"},
    )
    assert apply("{YYYY_MM_DD}", ctx) == datetime.now().strftime("%Y_%m_%d")
    assert apply("{todays_date_iso} {Discussion_Id} {both} {mine} {agent1Output} {agent1Input}", ctx) == "x d w u o i"
    assert apply("{chat_user_prompt_last_one} {messages[0][content]}", ctx) == "bye S"


def test_user_wide_variables_must_be_an_object(user):
    user["userWideWorkflowVariables"] = ["mine"]
    assert apply("{mine}") == "{mine}"


def test_16_output_that_looks_like_a_placeholder():
    outputs = {"agent1Output": "See {agent2Output}", "agent2Output": "no"}
    assert apply("{agent1Output}", agent_outputs=outputs) == "See {agent2Output}"
    assert apply("{c}", agent_outputs=outputs, workflow_config={"c": "<{agent1Output}>"}) == "<See {agent2Output}>"


def test_17_slices():
    chat, text = context(), context(chat=False)
    assert apply("{chat_user_prompt_last_two}", chat) == "mid\nbye"
    assert apply("{templated_user_prompt_last_two}", chat) == "yobye"
    assert apply("{chat_system_prompt}", chat) == "S"
    assert apply("{chat_user_prompt_last_two}", text) == "yo\nbye"
    assert apply("{chat_system_prompt}", text) == "S mid"
    assert apply("{templated_system_prompt}", text) == "<S>S mid</S>"
    assert apply("{templated_user_prompt_last_two}", text) == "<A>yo</A><U>bye</U>"
    assert apply("{chat_user_prompt_without_system}", text) == "\nhi\nyo\nbye"
    assert apply("{templated_user_prompt_without_system}", text) == "<U>hi</U><A>yo</A><U>bye</U>"
    assert apply("{chat_user_prompt_without_system}|{templated_system_prompt}", chat) == "hiyobye|S"


def test_18_19_bounded_slices():
    node = {
        "estimatedTokensToIncludeInVariable": 1,
        "minMessagesInVariable": 2,
        "maxEstimatedTokensInVariable": 1,
        "nMessagesToIncludeInVariable": 3,
    }
    assert apply("{chat_user_prompt_estimated_token_limit}", node=node) == "bye"
    assert apply("{chat_user_prompt_min_n_max_tokens}", node=node) == "mid\nbye"
    assert apply("{chat_user_prompt_n_messages}", node=node) == "yo\nmid\nbye"
    assert apply("{templated_user_prompt_min_n_max_tokens}", node=node, chat=False) == "<A>yo</A><U>bye</U>"


def test_21_early_variables():
    assert early("{a}-{b}", workflow_config={"a": "X"}) == "X-{b}"
    assert early("{agent1Input}", {"agent1Input": "in"}, {"agent1Input": "custom"}) == "in"


def test_32_jinja():
    ctx = context(node={"jinja2": True}, agent_outputs={"agent1Output": "Y"})
    assert apply("{% if agent1Output == 'Y' %}a{% endif %}{{ nope }}", ctx) == "a"


# --- values ---


def test_the_table_is_complete():
    sizes = (
        "last_one",
        "last_two",
        "last_three",
        "last_four",
        "last_five",
        "last_ten",
        "last_twenty",
        "n_messages",
        "estimated_token_limit",
        "min_n_max_tokens",
        "without_system",
    )
    prompts = {
        f"{form}_{rest}"
        for form in ("chat", "templated")
        for rest in ("system_prompt", *(f"user_prompt_{size}" for size in sizes))
    }
    assert VARIABLES.keys() == prompts | {
        "todays_date_pretty",
        "todays_date_iso",
        "YYYY_MM_DD",
        "current_time_12h",
        "current_time_24h",
        "current_month_full",
        "current_day_of_week",
        "current_day_of_month",
        "Discussion_Id",
        "time_context_summary",
    }


def test_the_documentation_has_the_same_names():
    text = (Path(__file__).parents[3] / "Docs" / "User" / "variables.md").read_text(encoding="utf-8")
    rows = text.partition("## Braces")[0].splitlines()
    documented = {name for row in rows if row.startswith("| `") for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert documented == {*VARIABLES, *CATEGORY_VARIABLES, "messages", "agentNOutput", "agentNInput"}


@pytest.mark.parametrize(
    "name",
    [
        "current_chat_summary",
        "userInput",
        "lastUserMessage",
        "userName",
        "currentDate",
        "current_username",
        "llm_responder_output",
        "nodes",
    ],
)
def test_not_variables(name):
    assert apply("{" + name + "}") == "{" + name + "}"


@pytest.mark.parametrize(
    "word, count", [("one", 1), ("two", 2), ("three", 3), ("four", 4), ("five", 5), ("ten", 10), ("twenty", 20)]
)
def test_sizes(word, count):
    messages = talk(*[("user", f"m{i}") for i in range(25)])
    last = [f"m{i}" for i in range(25 - count, 25)]
    ctx = context(messages)
    assert apply("{chat_user_prompt_last_" + word + "}", ctx) == "\n".join(last)
    assert apply("{templated_user_prompt_last_" + word + "}", ctx) == "".join(last)
    assert apply("{chat_user_prompt_last_" + word + "}", context(messages, chat=False)) == "\n".join(last)


@pytest.mark.parametrize("form", ["chat", "templated"])
@pytest.mark.parametrize("count, expected", [(0, ""), (-1, ""), (None, "5"), (2, "2"), (True, "1")])
def test_number_of_messages(form, count, expected):
    messages = talk(*[("user", f"m{i};") for i in range(9)])
    node = {"nMessagesToIncludeInVariable": count}
    text = apply("{" + form + "_user_prompt_n_messages}", context(messages, node))
    assert str(text.count(";") or "") == expected


def test_time_context_is_empty_without_stamps():
    assert apply("<{time_context_summary}>", discussion_id="d") == "<>"


@pytest.mark.parametrize("chat, expected", [(True, "a b|a b|late"), (False, "a b late|<S>a b late</S>|")])
def test_system_texts(chat, expected):
    ctx = context(talk(("system", "a"), ("system", "b"), ("user", "u"), ("system", "late")), chat=chat)
    assert apply("{chat_system_prompt}|{templated_system_prompt}|{chat_user_prompt_last_one}", ctx) == (
        expected + ("u" if not chat else "")
    )


def test_role_names_are_exact():
    messages = talk(("systemMes", "x"), ("user", "u"))
    assert apply("{chat_user_prompt_last_two}|{chat_system_prompt}", context(messages)) == "x\nu|"


def test_a_node_without_endpoint_counts_as_chat():
    ctx = context()
    ctx.llm_handler = None
    assert apply("{chat_user_prompt_last_two} {templated_user_prompt_last_two}", ctx) == "mid\nbye yobye"


def test_role_tags_know_tools():
    messages = talk(("assistant", "a"), ("tool", "t"), ("systemMes", "m"), ("user", "u"))
    assert apply("{chat_user_prompt_last_four}", context(messages, {"addUserAssistantTags": True})) == (
        "Assistant: a\nTool Result: t\nm\nUser: u"
    )


def test_the_separator_needs_its_switch(user):
    user["conversationSeparationDelimiter"] = "~"
    assert apply("{chat_user_prompt_last_two}") == "mid\nbye"
    user["separateConversationInVariables"] = True
    assert apply("{chat_user_prompt_last_two}") == "mid~bye"
    user["conversationSeparationDelimiter"] = None
    assert apply("{chat_user_prompt_last_two}") == "mid\nbye"


def test_date_variables_share_one_clock():
    ctx = context()
    vars(ctx)["clock"] = datetime(2026, 11, 3, 5, 6)
    assert apply("{todays_date_pretty}|{todays_date_iso}|{YYYY_MM_DD}|{current_time_12h}|{current_time_24h}", ctx) == (
        "November 03, 2026|2026-11-03|2026_11_03|5:06 AM|05:06"
    )
    assert apply("{current_month_full} {current_day_of_week} {current_day_of_month}", ctx) == "November Tuesday 03"
    vars(ctx)["clock"] = datetime(2026, 11, 3, 0, 5)
    assert apply("{current_time_12h}", ctx) == "12:05 AM"
    vars(ctx)["clock"] = datetime(2026, 11, 3, 12, 5)
    assert apply("{current_time_12h}", ctx) == "12:05 PM"
    fresh = context()
    apply("{current_time_24h}", fresh)
    assert isinstance(vars(fresh)["clock"], datetime)


@pytest.mark.parametrize("name", [name for name in VARIABLES if "prompt" in name])
def test_no_messages_means_empty(name):
    assert apply("<{" + name + "}>", messages=[]) == "<>"
    assert apply("<{" + name + "}>", messages=[], chat=False) in ("<>", "<S></S>")


@pytest.mark.parametrize(
    "value, text", [([1, 2], "[1, 2]"), (True, "True"), (None, "None"), ({"k": "v"}, "{'k': 'v'}")]
)
def test_custom_values_read_as_python(value, text):
    assert apply("{o}", workflow_config={"o": value}) == text


def test_keys_of_objects():
    ctx = context(workflow_config={"o": {"key": [1, {"deep": "x"}]}}, agent_outputs={"agent1Output": {"field": "{f}"}})
    assert apply("{o[key][1][deep]} {agent1Output[field]}", ctx) == "x {f}"


def test_reach_is_limited_to_data():
    assert apply("{messages.__class__}") == "{messages.__class__}"


def test_braces_of_messages():
    ctx = context(talk(("user", "my {agent1Output} {{x}} {")), agent_outputs={"agent1Output": "no"})
    text = "my {agent1Output} {{x}} {"
    assert apply("{chat_user_prompt_last_one}", ctx) == text
    assert apply("{messages[0][content]}", ctx) == text
    ctx.messages[0]["content"] = text  # not escaped by anyone
    assert apply("{chat_user_prompt_last_one}", ctx) == text


def test_tool_call_answer_reads_as_its_text():
    call = {"id": "1", "function": {"name": "find", "arguments": '{"q": "{cats}"}'}}
    outputs = {
        "agent1Output": {"content": "Hm {x}", "tool_calls": [call], "finish_reason": "tool_calls"},
        "agent2Output": {"content": "", "tool_calls": [call], "finish_reason": "tool_calls"},
    }
    assert apply("{agent1Output}|{agent2Output}|{agent1Output[finish_reason]}", agent_outputs=outputs) == (
        "Hm {x}|[Tool Call: find] {cats}|tool_calls"
    )


def test_visible_tool_calls():
    messages = [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "1", "function": {"name": "find", "arguments": '{"q": "cats"}'}}],
        },
        {"role": "tool", "content": "found", "tool_call_id": "1"},
    ]
    node = {"includeToolCallsInConversation": True}
    assert apply("{chat_user_prompt_last_two}", context(messages, node)) == (
        "[Tool Call: find] cats\n[Tool Result: find cats] found"
    )
    assert apply("{chat_user_prompt_last_two}", context(messages)) == "\nfound"


def test_separator_and_role_tags(user):
    ctx = context(node={"addUserAssistantTags": True})
    assert apply("<{chat_user_prompt_last_two}> <{templated_user_prompt_last_two}>", ctx) == (
        "<System: mid\nUser: bye> <yobye>"
    )
    user.update(separateConversationInVariables=True, conversationSeparationDelimiter=" {~} ")
    assert apply("{chat_user_prompt_last_two}") == "mid {~} bye"


def test_context_clamp_bounds_slices():
    messages = talk(*[("user", "x" * 350)] * 10)  # 110 tokens each
    endpoint = {"maxContextTokenSize": 1024, "clampPromptToContextWindow": True}
    ctx = context(messages, {"minMessagesInVariable": 9}, endpoint=endpoint, max_tokens=100)  # budget 412
    for name in ("last_ten", "min_n_max_tokens", "estimated_token_limit"):
        assert apply("{chat_user_prompt_" + name + "}", ctx).count("\n") == 2
    assert len(apply("{chat_user_prompt_without_system}", ctx)) == 3 * 350


def test_category_variables():
    run = types.SimpleNamespace(
        category_variables={"category_list": ["RECIPES", "OTHER"], "categoriesSeparatedByOr": "RECIPES or OTHER"}
    )
    assert apply("{category_list}: {categoriesSeparatedByOr}", run=run) == "['RECIPES', 'OTHER']: RECIPES or OTHER"
    assert apply("{category_list}") == "{category_list}"


def test_missing_template_file_is_an_error():
    ctx = context(chat=False)
    ctx.llm_handler.prompt_template_file_name = "gone"
    with pytest.raises(ConfigNotFoundError):
        apply("{templated_user_prompt_last_one}", ctx)
    assert apply("{chat_user_prompt_last_one}", ctx) == "bye"


# --- modes ---


def test_sentinels_in_a_config_come_out_as_braces():
    assert apply("__WILMER_L_CURLY__agent1Output__WILMER_R_CURLY__", agent_outputs={"agent1Output": "x"}) == (
        "{agent1Output}"
    )


def test_text_for_a_child_keeps_values_escaped():
    manager, parent = WorkflowVariableManager(), context(agent_outputs={"agent1Output": "{agent2Input}"})
    override = manager.apply_variables("{agent1Output} {{agent1Input}}", parent, restore=False)
    assert manager.apply_variables(override, context(agent_inputs={"agent1Input": "in", "agent2Input": "no"})) == (
        "{agent2Input} in"
    )


@pytest.mark.parametrize(
    "text, expected",
    [
        ("{missing} and {agent1Output} {", "{missing} and {o} {"),
        ("{missing} {p} }", "{missing} <{o}> }"),
        ("{} {agent1Output[0]} {agent1Output!r:>6} {0}", "{} {  '{o}' {0}"),
        ("{messages.__class__} {n}", "{messages.__class__} 5"),
    ],
)
def test_partial_substitution(user, caplog, text, expected):
    fields = {"agent_outputs": {"agent1Output": "{o}"}, "workflow_config": {"p": "<{agent1Output}>", "n": 5}}
    assert apply(text, **fields) == text
    user["partialVariableSubstitution"] = True
    assert apply(text, **fields) == expected
    assert ["left as written" in record.message for record in caplog.records] == [True, False]


def test_not_text():
    assert apply(5) == "5"
    assert apply(None) == ""


class TestJinja:
    def render(self, text, **fields):
        return apply(text, context(node={"jinja2": "true"}, **fields))

    def test_loop_and_braces(self):
        assert (
            self.render(
                "{% for m in messages %}{{ m.role }}={{ m.content }};{% endfor %}{not replaced}",
                messages=talk(("user", "{a}")),
            )
            == "user={a};{not replaced}"
        )

    def test_comparison_with_braces(self):
        outputs = {"agent1Output": "{}"}
        assert self.render("{% if agent1Output == '{}' %}same{% endif %}", agent_outputs=outputs) == "same"

    def test_objects(self):
        outputs = {"agent2Output": {"field": [1, "{x}"]}}
        assert self.render("{{ agent2Output.field[1] }} {{ agent2Output.field | tojson }}", agent_outputs=outputs) == (
            '{x} [1, "{x}"]'
        )

    def test_no_second_pass(self):
        assert self.render("{{ p }}", workflow_config={"p": "{{ q }}{q}", "q": "x"}) == "{{ q }}{q}"

    def test_final_newline(self):
        assert self.render("a\n") == "a" and self.render("a\n\n") == "a\n"

    @pytest.mark.parametrize(
        "text",
        [
            "{% if %}",
            "{{ 1 / 0 }}",
            "{{ nope.field }}",
            "{{ messages.__class__.__mro__ }}",
            "{% include 'x' %}",
            "{% for",
        ],
    )
    def test_errors_leave_the_text(self, text, caplog):
        assert self.render(text) == text
        assert caplog.records

    @pytest.mark.parametrize("text", ["{{ 'x' * 10**9 }}", "{{ 'a' | center(1000000000) }}", "{{ 9 ** (9 ** 9) }}"])
    def test_limits_leave_the_text(self, text, caplog):
        ctx = context(node={"jinja2": True, "title": "T", "prompt": text})
        assert apply(text, ctx) == text
        assert "Node 'T': 'prompt' was left as written: the template was stopped because it" in caplog.text

    def test_a_large_conversation_is_no_large_text(self):
        messages = talk(*[("user", "x" * 1000)] * 1500)
        assert len(self.render("{% for m in messages %}{{ m.content }}{% endfor %}", messages=messages)) == 1_500_000

    def test_braces_inside_of_blocks(self):
        outputs = {"agent1Output": "{X}"}
        assert (
            self.render(
                "{% set x %}{{ agent1Output | lower }}{% endset %}{{ x }} {{ x | length }}", agent_outputs=outputs
            )
            == "{x} 3"
        )

    def test_templates_change_copies_only(self):
        ctx = context(node={"jinja2": True}, workflow_config={"l": [1]})
        assert apply("{% set _ = l.append(2) %}{% set _ = messages.clear() %}{{ l }}", ctx) == "[1, 2]"
        assert ctx.workflow_config["l"] == [1] and len(ctx.messages) == 5

    def test_off(self):
        assert apply("{{agent1Output}}", context(node={"jinja2": "false"}, agent_outputs={"agent1Output": "Z"})) == "Z"

    def test_for_a_child(self):
        ctx = context(node={"jinja2": True}, agent_outputs={"agent1Output": "{agent1Input}"})
        text = WorkflowVariableManager().apply_variables("{{ agent1Output }}{agent1Input}", ctx, restore=False)
        assert apply(text, context(agent_inputs={"agent1Input": "in"})) == "{agent1Input}in"


class TestEarly:
    def test_sources(self):
        values = {"agent_outputs": {"agent1Output": "out"}, "discussion_id": "d", "user_wide": {"u": 5, "c": "low"}}
        assert early("{agent1Output} {Discussion_Id} {u} {c} {n}", {}, {"c": "high", "n": None}, **values) == (
            "out d 5 high None"
        )

    def test_nesting_and_limits(self):
        assert early("{a}", workflow_config={"a": "{b}", "b": "{c}", "c": "x"}) == "{c}"
        assert early("{a}", {"agent1Input": "{b}"}, {"a": "{agent1Input}", "b": "x"}) == "{b}"
        assert early("{nodes}", workflow_config={"nodes": []}) == "{nodes}"

    @pytest.mark.parametrize("text", ["plain", "{a} {", "{}", "{a:q}"])
    def test_left_alone(self, text):
        assert early(text, workflow_config={"a": "x"}) == text


def test_the_images_of_tool_results_are_no_message_for_texts():
    shown = {"role": "user", "content": "", "images": ["x"]}
    messages = [{"role": "user", "content": "look"}, {"role": "tool", "content": "r"}, shown]
    assert apply("{chat_user_prompt_last_one}|{chat_user_prompt_last_two}", messages=messages) == "r|look\nr"
    # An image that the user sends alone is a message.
    assert apply("{chat_user_prompt_last_one}", messages=[messages[0], shown]) == ""
