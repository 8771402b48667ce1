"""Items of the Responses API to internal messages, and its tools to functions and back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from Middleware.api.requests.offered_tools import ClientTool
from Middleware.api.requests.responses_input import conversation, own_items, require_supported, returned_fields
from Middleware.api.requests.responses_tools import ResponsesTools
from Middleware.exceptions import ClientError
from Tests.tables import table

IMAGE = "data:image/png;base64,QUJD"
FIND = {"type": "function", "name": "find", "description": "Finds", "parameters": {"type": "object"}, "strict": True}
CRM = {"type": "namespace", "name": "crm", "tools": [FIND, {"type": "custom", "name": "note"}]}


def messages(*items: Any, tools: Any = None, instructions: Any = None) -> list[dict[str, Any]]:
    return [
        dict(message)
        for message in conversation(instructions, [], own_items({"input": list(items)}), ResponsesTools(tools))
    ]


def said(role: str, *content: Any) -> dict[str, Any]:
    return {"role": role, "content": list(content)}


def part(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind, **fields}


def call(name: str = "f", arguments: str = "{}", call_id: str = "c1") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def called(call_id: str = "c1", **fields: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}", **fields}


def output(value: Any, call_id: str = "c1", kind: str = "function_call_output") -> dict[str, Any]:
    return {"type": kind, "call_id": call_id, "output": value}


def refused(body: dict[str, Any]) -> ClientError:
    with pytest.raises(ClientError) as info:
        require_supported(body)
        conversation(body.get("instructions"), [], own_items(body), ResponsesTools(body.get("tools")))
    assert info.value.status == 400
    return info.value


# -- messages ----------------------------------------------------------------------------------------------------------
def test_items_of_all_roles_and_unknown_ones() -> None:
    assert messages(
        said("developer", part("input_text", text="d")),
        {"role": "user", "content": [part("input_text", text="a"), part("input_text", text="b")]},
        part("reasoning", summary=[part("summary_text", text="secret")]),
        part("message", role="assistant", content=[part("output_text", text="x"), part("refusal", refusal="no")]),
        part("web_search_call", id="ws_1", status="completed"),
        part("surprise", id="s_1"),
        {"key": "no type"},
        {"role": "user", "content": "c"},
    ) == [
        {"role": "system", "content": "d"},
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": "x\nno"},
        {"role": "user", "content": "c"},
    ]


@table(
    ("content", "text", "images"),
    [
        ("plain", "plain", []),
        (None, "", []),
        ([], "", []),
        (["plain", part("text", text="b")], "plain\nb", []),
        ([part("input_image", image_url=IMAGE), part("input_text", text="a")], "a", [IMAGE]),
        ([part("input_image", image_url={"url": "http://h/x"})], "", ["http://h/x"]),
        ([part("later", note="x")], "", []),
        ([part("summary_text", text="s")], "s", []),
        ([part("output_text", text=None)], "", []),
        (
            [part("input_file", filename="a.md", file_data="data:text/markdown;base64,R3LDvMOfZQ==")],
            "[a.md]\nGrüße",
            [],
        ),
        ([part("input_file", file_data="data:text/plain;charset=utf-8,Gr%C3%BC%C3%9Fe")], "Grüße", []),
    ],
)
def test_content(content: Any, text: str, images: list[str]) -> None:
    assert messages({"role": "user", "content": content}) == [
        {"role": "user", "content": text, **({"images": images} if images else {})}
    ]


@table(
    ("body", "param", "code"),
    [
        ({}, "input", "missing_required_parameter"),
        ({"input": None}, "input", "missing_required_parameter"),
        ({"input": 5}, "input", None),
        ({"input": ["x"]}, "input[0]", None),
        ({"input": [{}, None]}, "input[1]", None),
        ({"input": "x", "background": True}, "background", "unsupported_parameter"),
        ({"input": "x", "conversation": "conv_1"}, "conversation", "unsupported_parameter"),
        ({"input": "x", "prompt": {"id": "p"}}, "prompt", "unsupported_parameter"),
        ({"input": [{"role": "judge", "content": "x"}]}, "input[0].role", None),
        ({"input": [{"type": "message", "content": "x"}]}, "input[0].role", None),
        ({"input": [{"role": "user", "content": 5}]}, "input[0].content", None),
        ({"input": [said("user", part("input_text", text="a"), part("input_audio"))]}, "input[0].content[1]", None),
        ({"input": [said("user", part("input_image", file_id="file_1"))]}, "input[0].content[0]", None),
        ({"input": [said("user", part("input_image", image_url=""))]}, "input[0].content[0]", None),
        ({"input": [{"role": "user", "content": [5]}]}, "input[0].content[0]", None),
        ({"input": [said("user", part("input_file", file_id="file_1"))]}, "input[0].content[0]", "unsupported_file"),
        (
            {"input": [said("user", part("input_file", file_data="data:application/pdf;base64,QUJD"))]},
            "input[0].content[0]",
            "unsupported_file",
        ),
        (
            {"input": [said("user", part("input_file", file_data="data:text/plain;base64,QUJ"))]},
            "input[0].content[0]",
            "unsupported_file",
        ),
        ({"input": "x", "instructions": 5}, "instructions", None),
        ({"input": "x", "tools": {}}, "tools", None),
        ({"input": "x", "tools": ["f"]}, "tools[0]", None),
        ({"input": "x", "tools": [part("function")]}, "tools[0].name", None),
        (
            {"input": "x", "tools": [part("namespace", name="n", tools=[part("custom")])]},
            "tools[0].tools[0].name",
            None,
        ),
    ],
)
def test_what_is_refused_names_the_field(body: dict[str, Any], param: str, code: str | None) -> None:
    error = refused(body)
    assert (error.param, error.code) == (param, code)


@table(
    ("given", "items"),
    [
        ("Hi", [{"type": "message", "role": "user", "content": "Hi"}]),
        ("", []),
        ([], []),
        (None, []),
        (
            [{"id": "msg_1"}, {"id": "msg_2", "type": None}, {"id": "msg_3", "role": "user"}],
            [
                {"id": "msg_1", "type": "item_reference"},
                {"id": "msg_2", "type": "item_reference"},
                {"id": "msg_3", "role": "user"},
            ],
        ),
    ],
)
def test_input(given: Any, items: Any) -> None:
    require_supported({"input": given, "previous_response_id": "resp_1", "background": False})
    assert own_items({"input": given}) == items


@table(
    ("instructions", "text"),
    [
        ("Be terse.", "Be terse."),
        ([said("developer", part("input_text", text="a")), {"content": "b"}, 5], "a\nb"),
        ("", None),
        (None, None),
        ([], None),
    ],
)
def test_instructions_are_the_first_message(instructions: Any, text: str | None) -> None:
    first = [{"role": "system", "content": text}] if text else []
    assert messages({"role": "user", "content": "x"}, instructions=instructions) == [
        *first,
        {"role": "user", "content": "x"},
    ]


# -- calls and outputs -------------------------------------------------------------------------------------------------
def test_text_and_parallel_calls_are_one_turn() -> None:
    assert messages(
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "I look."},
        called("c1"),
        part("reasoning"),
        called("c2", name="g"),
        output("1"),
        output("2", "c2"),
        called("c3"),
        output("3", "c3"),
        {"role": "assistant", "content": "Done."},
    ) == [
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "I look.", "tool_calls": [call(), call("g", call_id="c2")]},
        {"role": "tool", "content": "1", "tool_call_id": "c1"},
        {"role": "tool", "content": "2", "tool_call_id": "c2"},
        {"role": "assistant", "content": "", "tool_calls": [call(call_id="c3")]},
        {"role": "tool", "content": "3", "tool_call_id": "c3"},
        {"role": "assistant", "content": "Done."},
    ]


def test_text_after_a_call_stays_in_its_turn() -> None:
    turn, result = messages(called(), {"role": "assistant", "content": "One moment."}, output("1"))
    assert turn == {"role": "assistant", "content": "One moment.", "tool_calls": [call()]}
    assert result["role"] == "tool"


def test_images_of_outputs_follow_the_last_of_them() -> None:
    seen = [part("input_text", text="seen"), part("input_image", image_url=IMAGE)]
    found = messages(
        called("c1"),
        called("c2"),
        output(seen),
        part("reasoning"),
        output("2", "c2"),
        {"role": "user", "content": "go on"},
    )
    assert [(message["role"], message["content"]) for message in found] == [
        ("assistant", ""),
        ("tool", "seen"),
        ("tool", "2"),
        ("user", "go on"),
    ]
    assert found[3]["images"] == [IMAGE]
    assert messages(output(seen))[-1] == {"role": "user", "content": "", "images": [IMAGE]}
    assert [message["role"] for message in messages(output(seen), called("c2"))] == ["tool", "user", "assistant"]


@table(
    ("item", "name", "arguments"),
    [
        (called(arguments=""), "f", "{}"),
        (called(arguments=None), "f", "{}"),
        (called(arguments={"a": "ü"}), "f", '{"a": "ü"}'),
        (part("custom_tool_call", call_id="c1", name="patch", input="*** Begin"), "patch", '{"input": "*** Begin"}'),
        (part("tool_search_call", call_id="c1", execution="client", arguments={"q": "x"}), "tool_search", '{"q": "x"}'),
        (part("local_shell_call", call_id="c1", action={"command": ["ls"]}), "local_shell", '{"command": ["ls"]}'),
        (
            part("apply_patch_call", id="ap", call_id="c1", status="completed", operation={"a": 1}),
            "apply_patch",
            '{"operation": {"a": 1}}',
        ),
        (called(namespace="crm", name="find"), "crm__find", "{}"),
        (called(namespace="a b", name="find"), "a_b__find_9a9826aa", "{}"),
    ],
)
def test_calls(item: dict[str, Any], name: str, arguments: str) -> None:
    assert messages(item) == [{"role": "assistant", "content": "", "tool_calls": [call(name, arguments)]}]


@table(
    ("item", "content"),
    [
        (output("text"), "text"),
        (output(None), ""),
        (output([]), ""),
        (output({"a": "ü"}), '{"a": "ü"}'),
        (output([{"stdout": "x"}], kind="shell_call_output"), '[{"stdout": "x"}]'),
        (output(5, kind="later_output"), "5"),
        (output([part("input_text", text="a"), part("input_text", text="b")], kind="custom_tool_call_output"), "a\nb"),
        (
            part("tool_search_output", call_id="c1", tools=[FIND, CRM]),
            "These tools can be called now: find, crm__find, crm__note",
        ),
        (part("tool_search_output", call_id="c1", tools=[]), "No tool was found."),
    ],
)
def test_outputs(item: dict[str, Any], content: str) -> None:
    assert messages(item) == [{"role": "tool", "content": content, "tool_call_id": "c1"}]


def test_a_call_without_an_id_gets_one() -> None:
    (turn,) = messages(called(""), called(None))
    ids = [entry["id"] for entry in turn["tool_calls"]]
    assert all(ids) and len(set(ids)) == 2


# -- tools -------------------------------------------------------------------------------------------------------------
def offered(tools: ResponsesTools) -> list[Any]:
    return [tool["function"] for tool in tools.functions]


@table(
    ("tool", "function", "back"),
    [
        (FIND, {"name": "find", "description": "Finds", "parameters": {"type": "object"}}, ClientTool("find")),
        (
            part("function", name="f"),
            {"name": "f", "parameters": {"type": "object", "properties": {}}},
            ClientTool("f"),
        ),
        (
            part("custom", name="patch", description="Patches.", format={"type": "text"}),
            {
                "name": "patch",
                "description": "Patches.",
                "parameters": {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]},
            },
            ClientTool("patch", "custom"),
        ),
        (
            part("tool_search", execution="client", description="Finds tools", parameters={"type": "object"}),
            {"name": "tool_search", "description": "Finds tools", "parameters": {"type": "object"}},
            ClientTool("tool_search", "tool_search"),
        ),
    ],
)
def test_each_tool_is_one_function_and_comes_back_as_it_was(tool: Any, function: Any, back: ClientTool) -> None:
    tools = ResponsesTools([tool])
    assert offered(tools) == [function]
    assert tools.called(function["name"]) == tools.called(function["name"].upper()) == back


def test_a_grammar_is_told_in_the_description() -> None:
    tools = ResponsesTools(
        [
            part(
                "custom",
                name="patch",
                description="Patches.",
                format={"type": "grammar", "syntax": "lark", "definition": "start: x"},
            )
        ]
    )
    assert offered(tools)[0]["description"] == "Patches.\n\nThe input must follow this lark grammar:\nstart: x"


def test_namespaces() -> None:
    long = {"type": "function", "name": "n" * 70}
    tools = ResponsesTools(
        [
            CRM,
            {**CRM, "name": "erp"},
            {"type": "namespace", "name": "crm", "tools": [long]},
            {"type": "namespace", "name": "a__b", "tools": [{"type": "function", "name": "c"}]},
            {"type": "namespace", "name": "a", "tools": [{"type": "function", "name": "b__c"}]},
        ]
    )
    names = [function["name"] for function in offered(tools)]
    assert names[:4] == ["crm__find", "crm__note", "erp__find", "erp__note"] and len(set(names)) == len(names) == 7
    assert all(len(name) <= 64 for name in names)
    assert [tools.called(name) for name in names] == [
        ClientTool("find", namespace="crm"),
        ClientTool("note", "custom", "crm"),
        ClientTool("find", namespace="erp"),
        ClientTool("note", "custom", "erp"),
        ClientTool("n" * 70, namespace="crm"),
        ClientTool("c", namespace="a__b"),
        ClientTool("b__c", namespace="a"),
    ]
    assert tools.offered_name("n" * 70, "crm") == names[4] == ResponsesTools().offered_name("n" * 70, "crm")


def test_hosted_tools_are_named_in_the_log_only(caplog: pytest.LogCaptureFixture) -> None:
    tools = ResponsesTools([part("web_search"), FIND, part("mcp", server_label="x"), part("tool_search")])
    assert [function["name"] for function in offered(tools)] == ["find"]
    (record,) = caplog.records
    assert "web_search, mcp, tool_search" in record.message


def test_a_name_that_was_not_offered_stays_as_it_is() -> None:
    assert ResponsesTools([CRM]).called("Find") == ClientTool("Find")


@table("kind", ["tool_search_output", "additional_tools"])
def test_items_bring_tools(kind: str) -> None:
    tools = ResponsesTools([FIND])
    conversation(None, [part(kind, role="developer", tools=[CRM])], [part(kind, tools=[FIND])], tools)
    assert [function["name"] for function in offered(tools)] == ["find", "crm__find", "crm__note"]


ALL = ["f", "patch", "crm__find", "crm__note"]


def forced(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


@table(
    ("choice", "names", "passed"),
    [
        (None, ALL, None),
        ("auto", ALL, "auto"),
        ("required", ALL, "required"),
        ("none", [], None),
        (part("function", name="f"), ALL, forced("f")),
        (part("custom", name="patch"), ALL, forced("patch")),
        (part("function", name="find"), ALL, forced("crm__find")),
        (part("function", name="find", namespace="crm"), ALL, forced("crm__find")),
        (
            part("allowed_tools", mode="required", tools=[part("function", name="f"), part("custom", name="note")]),
            ["f", "crm__note"],
            "required",
        ),
        (part("allowed_tools", tools=[part("custom", name="patch")]), ["patch"], "auto"),
    ],
)
def test_tool_choice(choice: Any, names: list[str], passed: Any) -> None:
    tools = ResponsesTools([part("function", name="f"), part("custom", name="patch"), CRM, part("web_search")])
    functions, engine_choice = tools.choose(choice)
    assert [function["function"]["name"] for function in functions] == names  # type: ignore[index]
    assert engine_choice == passed


@table(
    "choice",
    [
        "any",
        5,
        part("function"),
        part("function", name="g"),
        part("function", name="find", namespace="erp"),
        part("web_search"),
        part("allowed_tools"),
        part("allowed_tools", mode="any", tools=[]),
        part("allowed_tools", mode="auto", tools=[part("web_search")]),
    ],
)
def test_a_choice_that_cannot_be_made(choice: Any) -> None:
    for tools in (ResponsesTools([part("function", name="f"), CRM, part("web_search")]), ResponsesTools()):
        with pytest.raises(ClientError) as info:
            tools.choose(choice)
        assert (info.value.status, info.value.param) == (400, "tool_choice")


def test_without_tools_there_is_nothing_to_require() -> None:
    assert ResponsesTools([part("web_search")]).choose("required") == ([], None)


# -- what comes back ---------------------------------------------------------------------------------------------------
def test_fields_that_come_back() -> None:
    assert returned_fields({"input": "x"}) == {
        "instructions": None,
        "max_output_tokens": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "prompt_cache_key": None,
        "reasoning": {"effort": None, "summary": None},
        "safety_identifier": None,
        "temperature": None,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
        "user": None,
    }
    sent = {
        "instructions": "Be terse.",
        "max_output_tokens": 9,
        "metadata": {"a": "b"},
        "parallel_tool_calls": False,
        "prompt_cache_key": "k",
        "reasoning": {"effort": "low", "summary": "auto"},
        "safety_identifier": "s",
        "temperature": 0.5,
        "text": {"format": {"type": "json_schema"}, "verbosity": "low"},
        "tool_choice": "none",
        "tools": [part("web_search")],
        "top_p": 1,
        "user": "u",
        "previous_response_id": "resp_1",
    }
    assert returned_fields(json.loads(json.dumps(sent))) == sent
    for text in ({}, {"verbosity": "low"}, None, "x"):
        assert returned_fields({"text": text})["text"]["format"] == {"type": "text"}
    with pytest.raises(ClientError):
        returned_fields({"previous_response_id": 5})
