"""Requests of Anthropic's Messages API to internal messages and tools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from Middleware.api.requests.messages_input import MessagesRequest, read_request
from Middleware.exceptions import ClientError
from Tests.llmapis.lab import Lab
from Tests.tables import table

IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}}
LINKED = {"type": "image", "source": {"type": "url", "url": "http://h/x.png"}}
DATA_URL = "data:image/png;base64,QUJD"
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}


@pytest.fixture(autouse=True)
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    return Lab(tmp_path, monkeypatch)


def text(value: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": value, **more}


def document(title: Any = None, **source: Any) -> dict[str, Any]:
    return {"type": "document", "title": title, "source": source}


def result(content: Any = None, use: str = "c1", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": use, "content": content, **more}


def use(call: str = "c1", name: str = "read", given: Any = None) -> dict[str, Any]:
    return {"type": "tool_use", "id": call, "name": name, "input": given}


def called(call: str = "c1", name: str = "read", arguments: str = "{}") -> dict[str, Any]:
    return {"id": call, "type": "function", "function": {"name": name, "arguments": arguments}}


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "input_schema": SCHEMA, **more}


def read(*messages: Any, **fields: Any) -> MessagesRequest:
    return read_request({"messages": list(messages), **fields})


def turns(role: str, content: Any) -> list[Any]:
    return list(read({"role": role, "content": content}).messages)


def offered(request: MessagesRequest) -> list[Any]:
    return [entry["function"]["name"] for entry in request.tools.functions]  # type: ignore[index]


# -- 7: fields ---------------------------------------------------------------------------------------------------------
@table(
    ("system", "expected"),
    [
        ("Be terse.", "Be terse."),
        (None, None),
        ("", None),
        ([], None),
        ([text("")], None),
        ([text("a"), text("b", cache_control={"type": "ephemeral"})], "a\n\nb"),
        (
            [text("x-anthropic-billing-header: cc_version=2.1; cch=0f9a"), text("You are Claude Code.")],
            "You are Claude Code.",
        ),
        ([text("x-anthropic-billing-header: only this")], None),
    ],
)
def test_system(system: Any, expected: str | None) -> None:
    messages = read({"role": "user", "content": "hi"}, system=system).messages
    assert messages == [
        *([{"role": "system", "content": expected}] if expected else []),
        {"role": "user", "content": "hi"},
    ]


def test_turns_stay_as_they_are() -> None:
    """A system turn in the middle, two turns of one role, an empty turn, and the beginning of the answer."""
    sent = [("user", "a"), ("user", "b"), ("assistant", ""), ("system", "now"), ("user", "c"), ("assistant", "It is")]
    assert read(*[{"role": role, "content": content} for role, content in sent]).messages == [
        {"role": role, "content": content} for role, content in sent
    ]
    assert read().messages == []


@table(
    ("roles", "expected"),
    [("u", "u"), ("us", "su"), ("uauss", "uassu"), ("uas", "uas"), ("s", "s"), ("usu", "usu"), ("", "")],
)
def test_system_turns_at_the_end_stand_in_front_of_the_question(roles: str, expected: str) -> None:
    """Claude Code describes its environment behind the first question."""
    names = {"u": "user", "a": "assistant", "s": "system"}
    messages = read(*[{"role": names[role], "content": str(number)} for number, role in enumerate(roles)]).messages
    assert "".join(message["role"][0] for message in messages) == expected
    systems = [message["content"] for message in messages if message["role"] == "system"]
    assert systems == sorted(systems)


@table(
    ("thinking", "wanted", "omitted"),
    [
        (None, False, False),
        ({"type": "disabled"}, False, False),
        ("enabled", False, False),
        ({"type": "enabled", "budget_tokens": 1024}, True, False),
        ({"type": "adaptive"}, True, False),
        ({"type": "between_tools"}, True, False),
        ({"type": "adaptive", "display": "omitted"}, True, True),
        ({"type": "adaptive", "display": "summarized"}, True, False),
    ],
)
def test_thinking(thinking: Any, wanted: bool, omitted: bool) -> None:
    request = read(thinking=thinking)
    assert (request.thinking, request.thinking_omitted) == (wanted, omitted)


def test_user_options(lab: Lab) -> None:
    lab.user(chatCompleteAddUserAssistant=True, chatCompletionAddMissingAssistantGenerator=True)
    assert read({"role": "user", "content": [text("hi")]}).messages == [
        {"role": "user", "content": "User: hi"},
        {"role": "assistant", "content": "Assistant:"},
    ]


# -- 7.1: blocks -------------------------------------------------------------------------------------------------------
@table(
    ("content", "expected", "images"),
    [
        ("plain", "plain", None),
        (None, "", None),
        ([], "", None),
        (["a", text("b")], "a\nb", None),
        ([text("a", citations=[{"cited_text": "x"}]), text("b")], "a\nb", None),
        ([text("look"), IMAGE, LINKED], "look", [DATA_URL, "http://h/x.png"]),
        ([{"type": "image", "source": {"type": "base64", "data": "QUJD"}}], "", [DATA_URL]),
        ([document("Notes", type="text", media_type="text/plain", data="one\ntwo")], "[Notes]\none\ntwo", None),
        ([document(type="text", data="one")], "one", None),
        ([document("Scan", type="content", content=[text("page"), IMAGE])], "[Scan]\npage", [DATA_URL]),
        ([document(type="content", content="page")], "page", None),
        (
            [{"type": "search_result", "title": "Moon", "source": "http://h/moon", "content": [text("It is far.")]}],
            "Moon\nhttp://h/moon\nIt is far.",
            None,
        ),
        (
            [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "compaction", "content": "x"},
                {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
                {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
                {"type": "news"},
                text("said"),
            ],
            "said",
            None,
        ),
    ],
)
def test_blocks(content: Any, expected: str, images: Any) -> None:
    assert turns("user", content) == [{"role": "user", "content": expected, **({"images": images} if images else {})}]


@table(
    ("content", "expected"),
    [
        (
            [use(given={"path": "ä"})],
            [{"role": "assistant", "content": "", "tool_calls": [called(arguments='{"path": "ä"}')]}],
        ),
        (
            [text("I look."), use("c1"), use("c2", given={})],
            [{"role": "assistant", "content": "I look.", "tool_calls": [called("c1"), called("c2")]}],
        ),
    ],
)
def test_tool_use(content: Any, expected: Any) -> None:
    assert turns("assistant", content) == expected


REFERENCE = {"type": "tool_reference", "tool_name": "mcp__crm__find"}


@table(
    ("content", "expected"),
    [
        ([result("done")], [("tool", "done", "c1", None)]),
        ([result()], [("tool", "", "c1", None)]),
        (
            [result([text("a"), text("b")]), result("c", "c2")],
            [("tool", "a\nb", "c1", None), ("tool", "c", "c2", None)],
        ),
        ([result("no such file", is_error=True)], [("tool", "Error: no such file", "c1", None)]),
        ([result("FATAL ERROR: no", is_error=True)], [("tool", "FATAL ERROR: no", "c1", None)]),
        ([result("x" * 36 + "error", is_error=True)], [("tool", "Error: " + "x" * 36 + "error", "c1", None)]),
        ([result("x" * 35 + "error", is_error=True)], [("tool", "x" * 35 + "error", "c1", None)]),
        # The results come first, then the user's own text and images, then those of the results.
        (
            [text("before"), LINKED, result([text("shot"), IMAGE]), text("after")],
            [("tool", "shot", "c1", None), ("user", "before\nafter", None, ["http://h/x.png", DATA_URL])],
        ),
        (
            [result([IMAGE]), result("b", "c2")],
            [("tool", "", "c1", None), ("tool", "b", "c2", None), ("user", "", None, [DATA_URL])],
        ),
        ([result([document("T", type="text", data="d")])], [("tool", "[T]\nd", "c1", None)]),
        ([result([REFERENCE])], [("tool", "The tool mcp__crm__find is loaded and can be called now.", "c1", None)]),
    ],
)
def test_tool_results(content: Any, expected: Any) -> None:
    assert [
        (message["role"], message["content"], message.get("tool_call_id"), message.get("images"))
        for message in turns("user", content)
    ] == expected


# -- 7.3: tools --------------------------------------------------------------------------------------------------------
def test_tools(caplog: pytest.LogCaptureFixture) -> None:
    request = read(
        tools=[
            tool("read", description="Reads.", cache_control={"type": "ephemeral"}, strict=True, type="custom"),
            {"type": "web_search_20250305", "name": "web_search"},
            {"type": "bash_20250124", "name": "bash"},
            {"type": "mcp_toolset"},
        ]
    )
    assert request.tools.functions == [
        {"type": "function", "function": {"name": "read", "description": "Reads.", "parameters": SCHEMA}}
    ]
    assert request.tool_choice is None
    (warning,) = caplog.messages
    assert warning.endswith("web_search_20250305, bash_20250124, mcp_toolset")


def test_deferred_tools() -> None:
    """They are offered when the client's search has found them, in the same request."""
    tools = [tool("search"), tool("mcp__crm__find", defer_loading=True), tool("late", defer_loading=True)]
    assert offered(read(tools=tools)) == ["search"]
    found = {"role": "user", "content": [result([REFERENCE])]}
    assert offered(read(found, tools=tools)) == ["search", "mcp__crm__find"]
    # The choice of a deferred tool loads it.
    assert offered(read(tools=tools, tool_choice={"type": "tool", "name": "late"})) == ["search", "late"]


CHOSEN = {"type": "function", "function": {"name": "read"}}


@table(
    ("choice", "names", "expected"),
    [
        (None, ["read", "write"], None),
        ({"type": "auto"}, ["read", "write"], "auto"),
        ({"type": "any", "disable_parallel_tool_use": True}, ["read", "write"], "required"),
        ({"type": "none"}, [], None),
        ({"type": "tool", "name": "read"}, ["read", "write"], CHOSEN),
    ],
)
def test_tool_choice(choice: Any, names: list[str], expected: Any) -> None:
    request = read(tools=[tool("read"), tool("write")], tool_choice=choice)
    assert (offered(request), request.tool_choice) == (names, expected)
    # Back-ends refuse a choice without tools.
    if choice in (None, {"type": "auto"}, {"type": "none"}):
        assert read(tool_choice=choice).tool_choice is None


# -- refusals ----------------------------------------------------------------------------------------------------------
def saying(block: Any, role: str = "user") -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hi"}, {"role": role, "content": [block]}]}


@table(
    ("body", "start"),
    [
        ({}, "messages: "),
        ({"messages": None}, "messages: "),
        ({"messages": "hi"}, "messages: "),
        ({"messages": ["hi"]}, "messages.0: "),
        ({"messages": [{"content": "hi"}]}, "messages.0.role: "),
        (
            {"messages": [{"role": "tool", "content": "hi"}]},
            "messages.0.role: expected 'user', 'assistant' or 'system', found 'tool'",
        ),
        (
            {"messages": [{"role": "a secret", "content": "hi"}]},
            "messages.0.role: expected 'user', 'assistant' or 'system', found a text.",
        ),
        (
            {"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": 5}]},
            "messages.1.content: expected a text or a list of blocks, found a number",
        ),
        ({"messages": [{"role": "user", "content": {}}]}, "messages.0.content: "),
        (saying(5), "messages.1.content.0: "),
        (saying(text(5)), "messages.1.content.0.text: "),  # type: ignore[arg-type]
        (saying({"type": "image"}), "messages[1].content[0]: 'image' cannot be passed on"),
        (
            saying({"type": "image", "source": {"type": "file", "file_id": "f"}}),
            "messages[1].content[0]: 'image' cannot be passed on: WilmerAI keeps no files",
        ),
        (
            saying(document(type="base64", media_type="application/pdf", data="QUJD")),
            "messages[1].content[0]: 'document' cannot be passed on: only texts, JSON, XML and YAML that are in the "
            "request can be read, not 'application/pdf'",
        ),
        (
            saying(document(type="url", url="http://h/x.pdf")),
            "messages[1].content[0]: 'document' cannot be passed on: only texts, ",
        ),
        (saying(document(type="file", file_id="f")), "messages[1].content[0]: 'document' cannot be passed on"),
        (
            saying(result([{"type": "document", "source": {"type": "file"}}])),
            "messages[1].content[0].content[0]: 'document' cannot be passed on",
        ),
        (saying(result("x", "")), "messages.1.content.0.tool_use_id: "),
        (saying(result("x"), "assistant"), "messages.1.content.0: "),
        (saying(use()), "messages.1.content.0: "),
        (saying(use(""), "assistant"), "messages.1.content.0.id: "),
        (saying(use("c1", ""), "assistant"), "messages.1.content.0.name: "),
        ({"messages": [], "system": 5}, "system: "),
        ({"messages": [], "system": [use()]}, "system.0: "),
        ({"messages": [], "system": [{"type": "audio", "data": "x"}]}, "system[0]: 'audio' cannot be passed on"),
        ({"messages": [], "tools": {}}, "tools: "),
        ({"messages": [], "tools": ["x"]}, "tools.0: "),
        ({"messages": [], "tools": [{"input_schema": {}}]}, "tools.0.name: "),
        ({"messages": [], "tools": [tool("x"), {"name": "y", "input_schema": 5}]}, "tools.1.input_schema: "),
        ({"messages": [], "tool_choice": "auto"}, "tool_choice.type: "),
        ({"messages": [], "tool_choice": {"type": "an"}}, "tool_choice.type: "),
        ({"messages": [], "tool_choice": {"type": "tool"}}, "tool_choice.name: "),
        ({"messages": [], "tool_choice": {"type": "any"}}, "tool_choice: "),
        (
            {"messages": [], "tools": [tool("read")], "tool_choice": {"type": "tool", "name": "raed"}},
            "tool_choice.name: ",
        ),
        ({"messages": [], "container": {"id": "c"}}, "container: not offered here"),
        ({"messages": [], "mcp_servers": [{"name": "x"}]}, "mcp_servers: not offered here"),
    ],
)
def test_refused(body: Any, start: str) -> None:
    with pytest.raises(ClientError) as error:
        read_request(body)
    assert str(error.value).startswith(start) and error.value.status == 400


def test_a_thread_is_refused_with_what_the_tool_runners_look_for() -> None:
    with pytest.raises(ClientError) as error:
        read(thread={"id": "t"})
    assert error.value.details == {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    assert read(thread=None, container=None, mcp_servers=[]).messages == []
