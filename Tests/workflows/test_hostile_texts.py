"""Texts that look like templates, from everyone who is not the author of the workflow: they stay what they are."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.api.workflow_gateway import handle_user_prompt
from Middleware.models.request_context import request_scope
from Middleware.utilities.text_utils import restore_braces
from Tests.api.api_lab import ApiLab
from Tests.corpora import texts_of
from Tests.stub_backend import StubBackend
from Tests.tables import table
from Tests.workflows.engine_lab import EngineLab, Message, assistant, llm, reply_to, static, user

HOSTILE = texts_of("template_injection", kind="text")
"""The workflow has a variable ``secret``; its value must show up nowhere."""

SECRET = "s3cr3t-value"


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineLab]:
    with StubBackend() as backend:
        lab = EngineLab(tmp_path, monkeypatch, backend)
        lab.user(userWideWorkflowVariables={"secret_of_user": SECRET})
        yield lab


def ask(lab: EngineLab, *messages: Message, stream: bool = False) -> str:
    """The answer of ``_DefaultWorkflow`` to a conversation, the way a client's request goes."""
    with request_scope(lab.request):
        result = handle_user_prompt("r-1", list(messages) or [user("hi")], stream)
        return "".join(chunk["token"] for chunk in result) if stream else str(result)


def default(lab: EngineLab, *nodes: dict[str, Any], **variables: Any) -> None:
    lab.workflow("_DefaultWorkflow", list(nodes), secret=SECRET, **variables)


def answering(lab: EngineLab, text: str) -> None:
    lab.backend.responder = lambda request: reply_to(request, text)


# -- where the text comes from: each gives the nodes that bring it, the messages, and the variable that holds it -------

Source = Callable[[EngineLab, str], "tuple[list[dict[str, Any]], list[Message], str]"]


def from_user(lab: EngineLab, text: str) -> tuple[list[dict[str, Any]], list[Message], str]:
    return [], [user("first"), assistant("a"), user(text)], "chat_user_prompt_last_one"


def from_assistant(lab: EngineLab, text: str) -> tuple[list[dict[str, Any]], list[Message], str]:
    return [], [user("first"), assistant(text)], "templated_user_prompt_last_one"


def from_system(lab: EngineLab, text: str) -> tuple[list[dict[str, Any]], list[Message], str]:
    return [], [{"role": "system", "content": text}, user("hi")], "chat_system_prompt"


def from_model(lab: EngineLab, text: str) -> tuple[list[dict[str, Any]], list[Message], str]:
    answering(lab, text)
    return [llm("x")], [user("hi")], "agent1Output"


def from_tool(lab: EngineLab, text: str) -> tuple[list[dict[str, Any]], list[Message], str]:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    return (
        [],
        [user("hi"), assistant(None, tool_calls=[call]), {"role": "tool", "tool_call_id": "c1", "content": text}],
        "chat_user_prompt_last_one",
    )


def from_file(lab: EngineLab, text: str) -> tuple[list[dict[str, Any]], list[Message], str]:
    (lab.root / "notes.txt").write_bytes(text.encode())
    return [{"type": "GetCustomFile", "filepath": str(lab.root / "notes.txt")}], [user("hi")], "agent1Output"


def from_child(lab: EngineLab, text: str) -> tuple[list[dict[str, Any]], list[Message], str]:
    lab.workflow("Echo", [static("{agent1Input}")], secret=SECRET)
    return (
        [{"type": "CustomWorkflow", "workflowName": "Echo", "scoped_variables": ["{chat_user_prompt_last_one}"]}],
        [user(text)],
        "agent1Output",
    )


SOURCES = [from_user, from_assistant, from_system, from_model, from_tool, from_file, from_child]


@pytest.fixture(params=SOURCES, ids=lambda source: source.__name__[5:])
def source(request: pytest.FixtureRequest) -> Source:
    return request.param


@pytest.fixture(params=[False, True], ids=["plain", "jinja"])
def jinja(request: pytest.FixtureRequest) -> bool:
    return request.param


def placeholder(name: str, jinja: bool) -> str:
    return "{{ " + name + " }}" if jinja else "{" + name + "}"


# -- what workflows do with it -----------------------------------------------------------------------------------------


@table("text", HOSTILE)
def test_in_prompts_choices_and_the_answer(lab: EngineLab, source: Source, jinja: bool, text: str) -> None:
    nodes, messages, name = source(lab, text)
    variable = placeholder(name, jinja)
    number = len(nodes)
    default(
        lab,
        *nodes,
        llm(f"p {variable} {variable}", systemPrompt=f"s {variable}", jinja2=jinja),
        {"type": "Conditional", "condition": f'"{variable}" == "other"', "jinja2": jinja},
        {
            "type": "ConditionalCustomWorkflow",
            "conditionalKey": variable,
            "conditionalWorkflows": {},
            "UseDefaultContentInsteadOfWorkflow": "no " + variable,
            "jinja2": jinja,
        },
        {
            "type": "StringConcatenator",
            "delimiter": " ",
            "jinja2": jinja,
            "strings": [variable, *(placeholder(f"agent{number + step}Output", jinja) for step in (2, 3))],
        },
    )
    answer = ask(lab, *messages)
    system, prompt = lab.backend.requests[-1].json["messages"]
    text = restore_braces(text)
    assert (system["content"], prompt["content"]) == (f"s {text}", f"p {text} {text}")
    assert answer == f"{text} FALSE no {text}"


@table("text", HOSTILE)
def test_in_a_child(lab: EngineLab, jinja: bool, text: str) -> None:
    """Inputs and overrides, through two workflows: filled in by the parent, then once more by the child."""
    answering(lab, text)
    output, inherited = placeholder("agent1Output", jinja), placeholder("agent1Input", jinja)
    lab.workflow(
        "Child",
        [llm("unused", systemPrompt="unused", jinja2=jinja), static("i " + inherited, jinja2=jinja)],
        secret=SECRET,
    )
    default(
        lab,
        llm("x"),
        {
            "type": "CustomWorkflow",
            "workflowName": "Child",
            "scoped_variables": [output],
            "promptOverride": f"p {output}",
            "systemPromptOverride": f"s {output}",
            "jinja2": jinja,
        },
    )
    text = restore_braces(text)
    assert ask(lab) == f"i {text}"
    assert [message["content"] for message in lab.backend.requests[-1].json["messages"]] == [f"s {text}", f"p {text}"]


@table("text", HOSTILE)
def test_from_a_template_to_a_plain_child(lab: EngineLab, text: str) -> None:
    answering(lab, text)
    lab.workflow("Child", [llm("unused")], secret=SECRET)
    default(
        lab,
        llm("x"),
        {
            "type": "CustomWorkflow",
            "workflowName": "Child",
            "jinja2": True,
            "scoped_variables": ["in"],
            "promptOverride": "{{ agent1Output }} {agent1Input}",
        },
    )
    ask(lab)
    assert lab.prompts[-1] == f"{restore_braces(text)} in"


@table("text", HOSTILE)
def test_messages_as_objects(lab: EngineLab, text: str) -> None:
    default(
        lab,
        static("{messages[0][content]}"),
        static("{% for m in messages %}{{ m.content }}{% endfor %}", jinja2=True),
        static("{% if messages[0].content == agent1Output %}same{% endif %}", jinja2=True),
        static("{agent1Output}|{agent2Output}|{agent3Output}"),
    )
    text = restore_braces(text)
    assert ask(lab, user(text)) == f"{text}|{text}|same"


@table("text", HOSTILE)
def test_the_conversation_itself(lab: EngineLab, text: str) -> None:
    default(lab, llm(""))
    ask(lab, user("a"), assistant(text), user(text))
    assert [m["content"] for m in lab.backend.requests[0].json["messages"]] == ["a", *[restore_braces(text)] * 2]


# -- names, folders and settings ---------------------------------------------------------------------------------------


@table("text", HOSTILE)
def test_in_settings_that_know_early_variables(lab: EngineLab, text: str) -> None:
    answering(lab, text)
    default(
        lab, llm("x"), llm("y", maxResponseSizeInTokens="{agent1Output}", endpointName="{endpoint}"), endpoint="Main"
    )
    ask(lab)
    assert lab.backend.requests[-1].json["max_tokens"] == 400
    assert SECRET not in str([request.json for request in lab.backend.requests])


# -- texts of the configuration may hold placeholders, one level deep, and nothing worse -------------------------------


@pytest.mark.parametrize("kind", ["of the workflow", "of the user"])
@table(
    ("text", "expected"),
    [
        ("{x.__class__}", None),
        ("{messages.__class__}", None),
        ("{secret.__class__}", None),
        ("{0}", None),
        ("{agent9Output}", None),
        ("{}", None),
        ("{", None),
        ("{secret:>999999999999}", None),
        ("{% for a in range(10**9) %}x{% endfor %}", None),
        ('{"a": {"b": 1}}', None),
        ("%(secret)s", None),
        ("{secret}", SECRET),
        ("{agent1Output}", "{secret} {{secret}}"),
        ("{{ ''.__class__ }}", "{ ''.__class__ }"),
        ("{{secret}}", "{secret}"),
        ("__WILMER_L_CURLY__secret__WILMER_R_CURLY__", "{secret}"),
    ],
)
def test_variables_of_the_configuration(lab: EngineLab, kind: str, text: str, expected: str | None) -> None:
    """The values that they bring along are not filled in again."""
    answering(lab, "{secret} {{secret}}")
    variables = {"hostile": text} if kind == "of the workflow" else {}
    if not variables:
        lab.user(userWideWorkflowVariables={"hostile": text})
    default(
        lab,
        llm("x"),
        static("<{hostile}>"),
        static("<{{ hostile }}>", jinja2=True),
        static("{agent2Output} {agent3Output}"),
        **variables,
    )
    plain = text if expected is None else expected
    assert ask(lab) == f"<{plain}> <{restore_braces(text)}>"


# -- what the client gets ----------------------------------------------------------------------------------------------


@table("stream", [False, True])
@table("text", HOSTILE)
def test_byte_for_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: bool, text: str) -> None:
    """From the LLM server to the client and, as part of the conversation, back again."""
    with StubBackend() as backend:
        lab = ApiLab(tmp_path, monkeypatch, backend)
        answering(lab, text)
        answer = lab.chat(user(text), stream=stream)
        assert (answer.streamed_text if stream else answer.text) == text
        assert backend.requests[0].json["messages"] == [user(restore_braces(text))]


def test_nothing_hostile_is_logged_above_debug(lab: EngineLab, caplog: pytest.LogCaptureFixture) -> None:
    answering(lab, "{agent1Output.diary}")
    default(lab, llm("x"), static("{agent1Output} {nope}"), static("{{ agent1Output.diary.x }}", jinja2=True))
    with caplog.at_level(logging.INFO):
        ask(lab, user("{my.diary}"))
    assert "{nope}" in caplog.text and "my.diary" not in caplog.text and "agent1Output.diary}" not in caplog.text
