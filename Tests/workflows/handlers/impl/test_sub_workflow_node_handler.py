"""CustomWorkflow and ConditionalCustomWorkflow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.exceptions import ConfigurationError
from Middleware.models.request_context import request_scope
from Middleware.workflows.handlers.impl.standard_node_handler import StandardNodeHandler
from Middleware.workflows.managers.workflow_variable_manager import WorkflowVariableManager
from Tests.stub_backend import StubBackend
from Tests.tables import table
from Tests.workflows.engine_lab import EngineLab, Probe, assistant, llm, reply_to, start, static, user


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineLab]:
    with StubBackend() as backend:
        yield EngineLab(tmp_path, monkeypatch, backend)


def child(name: str = "Child", **more: Any) -> dict[str, Any]:
    return {"type": "CustomWorkflow", "workflowName": name, **more}


def fork(key: str, workflows: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "ConditionalCustomWorkflow", "conditionalKey": key, "conditionalWorkflows": workflows, **more}


# -- what a child sees and gives ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        (["{chat_user_prompt_last_two}", 5], "yo\nbye/5"),
        (["{agent1Output}", "{tone}"], "parent/dry"),
        (["{nope}"], "{nope}/{agent2Input}"),
        (None, "{agent1Input}/{agent2Input}"),
    ],
)
def test_scoped_variables(lab: EngineLab, variables: Any, text: str) -> None:
    lab.workflow(
        "Child", [{"type": "StringConcatenator", "strings": ["{agent1Input}", "{agent2Input}"], "delimiter": "/"}]
    )
    lab.workflow("Main", [static("parent"), child(scoped_variables=variables)], tone="dry")
    assert lab.run_named("Main", user("hi"), assistant("yo"), user("bye")) == text


def test_a_bare_scoped_variable_is_one_input(lab: EngineLab) -> None:
    lab.workflow("Child", [static("<{agent1Input}>")])
    assert lab.run([child(scoped_variables="one")]) == "<one>"


def test_child_knows_nothing_else_of_its_parent(lab: EngineLab) -> None:
    lab.workflow("Child", [static("{agent1Output}"), static("{tone}")])
    lab.workflow("Main", [static("secret"), child()], tone="dry")
    assert lab.run_named("Main") == "{tone}"
    lab.workflow("Child", [static("{agent1Output}")])
    assert lab.run_named("Main") == "{agent1Output}"


@pytest.mark.parametrize("stream", [False, True])
def test_flagged_node_of_a_child_gives_its_output(lab: EngineLab, stream: bool) -> None:
    lab.workflow("Child", [llm("c1"), llm("c2", returnToUser=True), llm("c3")])
    nodes = [child(), llm("p {agent1Output}")]
    assert (lab.streamed(nodes) if stream else lab.run(nodes)) == "<p <c2>>"
    assert lab.prompts == ["c1", "c2", "c3", "p <c2>"]
    assert [request.json["stream"] for request in lab.backend.requests] == [False, False, False, stream]


def test_streaming_child_streams_through_levels(lab: EngineLab) -> None:
    lab.workflow("Grandchild", [llm("deep", returnToUser=True), llm("grandchild after")])
    lab.workflow("Child", [child("Grandchild", returnToUser=True), llm("child after {agent1Output}")])
    nodes = [child(returnToUser=True), llm("parent after {agent1Output}")]
    chunks = lab.chunks(nodes)
    assert "".join(chunk["token"] for chunk in chunks) == "<deep>"
    assert [chunk["finish_reason"] for chunk in chunks if chunk["finish_reason"]] == ["stop"]
    assert len([chunk for chunk in chunks if "end" in chunk]) == 1
    assert lab.prompts == ["deep", "grandchild after", "child after <deep>", "parent after <deep>"]


def test_nothing_of_a_chain_waits_for_later_nodes(lab: EngineLab) -> None:
    lab.workflow("Child", [static("now", returnToUser=True), llm("child after")])
    lab.workflow("Main", [child(returnToUser=True), llm("parent after")])
    with request_scope(lab.request):
        items = start(lab)
        assert next(items) == "now"
        assert lab.request.background_nodes and lab.backend.requests == []
        assert list(items) == []
    assert lab.prompts == ["child after", "parent after"]


@pytest.mark.parametrize("nodes", [[], [{"type": "Conditional"}]])
def test_child_without_output_is_an_empty_text(lab: EngineLab, nodes: list[dict[str, Any]]) -> None:
    lab.workflow("Child", nodes)
    expected = "" if not nodes else "FALSE"
    assert lab.run([child()]) == expected
    assert lab.streamed([child()]) == expected
    assert lab.run([child(), static("[{agent1Output}]")]) == f"[{expected}]"


def test_streaming_child_without_nodes_still_ends_the_answer(lab: EngineLab) -> None:
    """The edge must learn that the answer is complete before the parent's later nodes run."""
    lab.workflow("Child", [])
    lab.workflow("Main", [child(returnToUser=True), llm("after")])
    with request_scope(lab.request):
        for chunk in start(lab, stream=True):
            if "end" in chunk:
                break
        assert lab.backend.requests == []


def test_cleaning_happens_once(lab: EngineLab) -> None:
    lab.endpoint("Main", {"removeThinking": True, "startThinkTag": "<t>", "endThinkTag": "</t>"}, lab.backend.url)
    lab.backend.responder = lambda request: reply_to(request, "<t>a</t><t>b</t>c")
    lab.workflow("Child", [llm("x")])
    node = child(endpointName="Main", removeCustomTextFromResponseStart=True, responseStartTextToRemove="<t>")
    assert lab.run([node]) == lab.streamed([node]) == lab.run([node, static("{agent1Output}")]) == "<t>b</t>c"
    node = fork("a", {"a": "Child"}, endpointName="Main")
    assert lab.run([node]) == lab.streamed([node]) == lab.run([node, static("{agent1Output}")]) == "<t>b</t>c"


def test_tool_call_passes_through_parents(lab: EngineLab) -> None:
    answer = {
        "content": "",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f"}}],
        "finish_reason": "tool_calls",
    }
    lab.workflow("Child", [static("x")])
    lab.workflow("Main", [child()])
    assert list(start(lab, probes={"StaticResponse": Probe(answer)})) == [answer]


@pytest.mark.parametrize("stream", [False, True])
def test_responder_chain_is_the_same_in_both_modes(lab: EngineLab, stream: bool) -> None:
    """A child of the responder has non-responder flag None, any other child True."""
    probe = Probe()
    lab.workflow("Child", [static("x")])
    lab.workflow("Main", [child(), child()])
    with request_scope(lab.request):
        list(start(lab, probes={"StaticResponse": probe}, stream=stream))
    assert [context.run.non_responder for context in probe.contexts] == [True, None]  # type: ignore[union-attr]
    assert [context.stream for context in probe.contexts] == [False, stream]


@pytest.mark.parametrize("stream", [False, True])
def test_everything_below_another_child_is_none_of_the_answer(lab: EngineLab, stream: bool) -> None:
    probe = Probe()
    lab.workflow("Grandchild", [static("x")])
    lab.workflow("Child", [child("Grandchild", returnToUser=True), child("Grandchild")])
    lab.workflow("Main", [child(), child("Grandchild", returnToUser=True), child()])
    with request_scope(lab.request):
        list(start(lab, probes={"StaticResponse": probe}, stream=stream))
    assert [
        context.run.non_responder
        for context in probe.contexts  # type: ignore[union-attr]
    ] == [True, True, None, True, True]
    assert [context.stream for context in probe.contexts] == [False, False, stream, False, False]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("responder", [False, True])
def test_key_and_tools_reach_all_levels(lab: EngineLab, responder: bool, stream: bool) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    lab.workflow("Grandchild", [llm("", allowTools=True)])
    lab.workflow("Child", [child("Grandchild")])
    lab.workflow("Main", [child(returnToUser=responder), static("x")])
    probe = Probe(lambda context: lab_handler.handle(context))
    lab_handler = StandardNodeHandler(None, WorkflowVariableManager())
    with request_scope(lab.request):
        list(
            start(
                lab, probes={"Standard": probe}, stream=stream, api_key="k-secret", tools=tools, tool_choice="required"
            )
        )
    (context,) = probe.contexts
    assert (context.api_key, context.tools, context.tool_choice) == ("k-secret", tools, "required")
    body = lab.backend.requests[0].json
    assert (body["tools"], body["tool_choice"], body["stream"]) == (tools, "required", stream and responder)


# -- an endpoint for the node's own texts ------------------------------------------------------------------------------

SEEN = "{templated_user_prompt_last_two}|{chat_user_prompt_last_two}|{chat_system_prompt}"
COMPLETION_TALK = {"role": "system", "content": "S"}, user("hi"), {"role": "system", "content": "mid"}, user("bye")


@pytest.fixture
def text_endpoint(lab: EngineLab) -> str:
    """What a node with the endpoint ``Text`` makes of ``SEEN``: it goes by a template of its own."""
    lab.write("ApiTypes/Text", {"type": "openAIV1Completion", "presetType": "OpenAiCompatibleApis"})
    lab.write("PromptTemplates/own", {"promptTemplateUserPrefix": "<U>", "promptTemplateUserSuffix": "</U>"})
    lab.endpoint("Text", {"apiTypeConfigFileName": "Text", "promptTemplate": "own"}, lab.backend.url)
    seen = lab.run([static(SEEN, endpointName="Text")], *COMPLETION_TALK)
    assert seen.startswith("<U>hi</U><U>bye</U>|hi\nbye|") and "S mid" in seen
    assert lab.run([static(SEEN)], *COMPLETION_TALK) == "hibye|mid\nbye|S"
    return str(seen)


def test_scoped_variables_follow_the_endpoint(lab: EngineLab, text_endpoint: str) -> None:
    lab.workflow("Child", [static("{agent1Input}")])
    nodes = [
        child(scoped_variables=[SEEN]),
        child(scoped_variables=[SEEN], endpointName="{e}"),
        fork("a", {"a": "Child"}, scoped_variables=[SEEN], endpointName="Text"),
        static("{agent1Output}\n--\n{agent2Output}\n--\n{agent3Output}"),
    ]
    lab.workflow("Main", nodes, e="Text")
    plain, *with_endpoint = lab.run_named("Main", *COMPLETION_TALK).split("\n--\n")
    assert plain == "hibye|mid\nbye|S"
    assert with_endpoint == [text_endpoint] * 2


@pytest.mark.parametrize(("more", "answer"), [({"endpointName": "Text"}, "yes"), ({}, "no")])
def test_conditional_key_follows_the_endpoint(
    lab: EngineLab, text_endpoint: str, more: dict[str, Any], answer: str
) -> None:
    lab.workflow("Yes", [static("yes")])
    lab.workflow("No", [static("no")])
    node = fork("{templated_user_prompt_last_one}", {"<u>bye</u>": "Yes", "Default": "No"}, **more)
    assert lab.run([node], *COMPLETION_TALK) == lab.streamed([node], *COMPLETION_TALK) == answer


@pytest.mark.parametrize(("more", "text"), [({"endpointName": "Text"}, "<U>bye</U>"), ({}, "bye")])
def test_prompt_overrides_follow_the_endpoint(
    lab: EngineLab, text_endpoint: str, more: dict[str, Any], text: str
) -> None:
    lab.workflow("Child", [llm("old", systemPrompt="old")])
    keys = {
        "systemPromptOverride": "S {templated_user_prompt_last_one}",
        "promptOverride": "P {templated_user_prompt_last_one}",
    }
    lab.run([child(**keys, **more), fork("a", {"a": "Child"}, routeOverrides={"a": keys}, **more)], *COMPLETION_TALK)
    assert [request.json["messages"] for request in lab.backend.requests] == [
        [{"role": "system", "content": f"S {text}"}, user(f"P {text}")]
    ] * 2


@pytest.mark.parametrize("node", [child(), fork("a", {"a": "Child"})])
def test_an_endpoint_that_does_not_exist(lab: EngineLab, node: dict[str, Any]) -> None:
    lab.workflow("Child", [llm("never")])
    with pytest.raises(ConfigurationError, match="endpoint 'Mian'.*Did you mean 'Main'"):
        lab.run([{**node, "endpointName": "Mian"}])
    assert lab.backend.requests == []


# -- prompt overrides --------------------------------------------------------------------------------------------------

CHILD = [static("no prompt here"), llm("old", systemPrompt="old system"), llm("second")]


@pytest.mark.parametrize(
    ("keys", "system", "prompt"),
    [
        ({"firstNodeSystemPromptOverride": "S {agent1Output}", "firstNodePromptOverride": "P"}, "S one", "P"),
        ({"systemPromptOverride": "S", "promptOverride": "P {agent1Output}"}, "S", "P one"),
        ({"firstNodePromptOverride": "first", "promptOverride": "alias"}, "old system", "first"),
        ({"firstNodePromptOverride": None, "promptOverride": "alias"}, "old system", "old"),
        ({"firstNodePromptOverride": "", "systemPromptOverride": ""}, "old system", "old"),
        ({}, "old system", "old"),
    ],
)
def test_overrides(lab: EngineLab, keys: dict[str, Any], system: str, prompt: str) -> None:
    lab.workflow("Child", CHILD)
    lab.run([static("one"), child(**keys)])
    assert lab.backend.requests[0].json["messages"] == [{"role": "system", "content": system}, user(prompt)]
    assert lab.prompts[1] == "second"


def test_override_is_substituted_again_in_the_child(lab: EngineLab) -> None:
    lab.workflow("Child", [llm("old")])
    lab.run([child(promptOverride="take {agent1Input}", scoped_variables=["this"])])
    assert lab.prompts == ["take this"]


def test_values_in_an_override_stay_literal(lab: EngineLab) -> None:
    """Text of a conversation must not act as a template in the child."""
    lab.workflow("Child", [llm("old")])
    lab.run(
        [static("{agent1Input}"), child(promptOverride="[{agent1Output}] {agent1Input}", scoped_variables=["in"])],
        scoped_inputs=["say {agent1Input} and }{"],
    )
    assert lab.prompts == ["[say {agent1Input} and }{] say {agent1Input} and }{"]


# -- ConditionalCustomWorkflow -----------------------------------------------------------------------------------------


@pytest.fixture
def targets(lab: EngineLab) -> dict[str, str]:
    for name in ("Snake", "Other"):
        lab.workflow(name, [static(name)])
    return {"Python": "Snake", "Empty": "", "Default": "Other"}


@pytest.mark.parametrize(
    ("key", "answer"),
    [
        ("python", "Snake"),
        (" PYTHON \n", "Snake"),
        ("{agent1Input}", "Snake"),
        ("ruby", "Other"),
        ("", "Other"),
        ("Default", "Other"),
        ("empty", "Other"),
    ],
)
def test_routes(lab: EngineLab, targets: dict[str, str], key: str, answer: str) -> None:
    assert lab.run([fork(key, targets)], scoped_inputs=["Python"]) == answer
    assert lab.streamed([fork(key.replace("{agent1Input}", "python"), targets)]) == answer


@pytest.mark.parametrize(
    ("keys", "answer"),
    [
        ({" A ": "Snake"}, "Snake"),
        ({"a": "Snake", " A\n": "Other"}, "Snake"),
        ({" A": "Other", "a": "Snake"}, "Snake"),
        ({"b": "Other", "\tdefault ": "Snake"}, "Snake"),
    ],
)
def test_spaces_around_keys_do_not_count(
    lab: EngineLab, targets: dict[str, str], keys: dict[str, str], answer: str
) -> None:
    assert lab.run([fork("a", keys)]) == answer


def test_spaces_around_keys_of_overrides_do_not_count(lab: EngineLab) -> None:
    lab.workflow("Child", [llm("p")])
    lab.run([fork("yes", {"yes": "Child"}, routeOverrides={" Yes ": {"promptOverride": "other"}})])
    assert lab.prompts == ["other"]


@pytest.mark.parametrize("content", ["", "fixed {agent1Output}", 7, False])
def test_default_content_goes_before_the_default_workflow(
    lab: EngineLab, targets: dict[str, str], content: Any
) -> None:
    nodes = [static("x"), fork("ruby", targets, UseDefaultContentInsteadOfWorkflow=content)]
    expected = str(content).replace("{agent1Output}", "x")
    assert lab.run(nodes) == expected
    chunks = lab.chunks(nodes)
    assert "".join(chunk["token"] for chunk in chunks) == expected
    assert [chunk["finish_reason"] for chunk in chunks if chunk["finish_reason"]] == ["stop"]


def test_default_content_null_and_match(lab: EngineLab, targets: dict[str, str]) -> None:
    assert lab.run([fork("ruby", targets, UseDefaultContentInsteadOfWorkflow=None)]) == "Other"
    assert lab.run([fork("python", targets, UseDefaultContentInsteadOfWorkflow="no")]) == "Snake"


NO_DEFAULT = "and there is no 'Default', which would be for every other value."


@table(
    "node, text",
    [
        (
            fork("x", {"a": "A", "B ": "B"}),
            f"has no workflow for the value 'x': the keys of 'conditionalWorkflows' are 'a', 'B ', {NO_DEFAULT}",
        ),
        (
            fork("{agent1Input}", {"a": "A", "b": "", "c": None}),
            f"the value '{'long ' * 11}lo...': the keys of 'conditionalWorkflows' are 'a', {NO_DEFAULT}",
        ),
        (fork("x", {}), f"for the value 'x': the keys of 'conditionalWorkflows' are missing, {NO_DEFAULT}"),
        ({"type": "ConditionalCustomWorkflow"}, "for the value ''"),
        (
            {"type": "CustomWorkflow", "title": "Child"},
            "node 'Child' names no workflow: 'workflowName' is missing or empty.",
        ),
    ],
)
def test_nowhere_to_go(lab: EngineLab, node: dict[str, Any], text: str) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        lab.run([node], scoped_inputs=["long " * 40])
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("key", "system", "prompt"),
    [("YES", "yes s", "yes hi"), ("no", "s", "no p"), ("maybe", "s", "default p"), ("default", "s", "default p")],
)
def test_route_overrides(lab: EngineLab, key: str, system: str, prompt: str) -> None:
    lab.workflow("Child", [llm("p", systemPrompt="s")])
    routes = {"yes": "Child", "no": "Child", "Default": "Child"}
    node = fork(
        key,
        routes,
        systemPromptOverride="ignored",
        routeOverrides={
            "Yes": {"systemPromptOverride": "yes s", "promptOverride": "yes {chat_user_prompt_last_one}"},
            "NO": {"firstNodePromptOverride": "no p"},
            "Default": {"promptOverride": "default p"},
        },
    )
    lab.run([node])
    assert lab.backend.requests[0].json["messages"] == [{"role": "system", "content": system}, user(prompt)]


def test_conditional_scoped_variables_and_folder(lab: EngineLab) -> None:
    lab.workflow("Child", [static("<{agent1Input}>")], folder="_common")
    node = fork("a", {"A": "Child"}, scoped_variables=["v"], workflowUserFolderOverride="_common")
    assert lab.run([node]) == "<v>"


def test_workflow_names_are_not_substituted(lab: EngineLab) -> None:
    with pytest.raises(FileNotFoundError, match="{agent1Output}"):
        lab.run([static("Main"), child("{agent1Output}")])
