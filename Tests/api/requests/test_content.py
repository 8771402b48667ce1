"""The content of messages: the same parts mean the same in every dialect, and what cannot be passed on is refused."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from Middleware.api.requests.messages import chat_messages
from Middleware.api.requests.messages_input import read_request
from Middleware.api.requests.responses_input import conversation, own_items
from Middleware.api.requests.responses_tools import ResponsesTools
from Middleware.exceptions import ClientError
from Tests.llmapis.lab import Lab
from Tests.tables import table

PNG = "data:image/png;base64,QUJD"
LINK = "http://h/x.png"
JPEG = base64.b64encode(b"\xff\xd8\xff" + b"x" * 99).decode()


@pytest.fixture(autouse=True)
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    return Lab(tmp_path, monkeypatch)


def of_responses(sent: list[Any]) -> list[Any]:
    return list(conversation(None, [], own_items({"input": sent}), ResponsesTools()))


READERS: dict[str, Callable[[list[Any]], list[Any]]] = {
    "chat": chat_messages,
    "ollama": lambda sent: chat_messages(sent, empty_texts_left_out=True),
    "responses": of_responses,
    "messages": lambda sent: read_request({"messages": sent}).messages,
}
ALL = tuple(READERS)
LENIENT = ("responses", "messages")
STRICT = ("chat", "ollama")


def part(kind: Any, **fields: Any) -> dict[str, Any]:
    return {"type": kind, **fields}


def text(value: Any = "t") -> dict[str, Any]:
    return part("text", text=value)


def b64(data: str | bytes) -> str:
    return base64.b64encode(data.encode() if isinstance(data, str) else data).decode()


def user(value: str = "", *images: str) -> dict[str, Any]:
    return {"role": "user", "content": value, **({"images": list(images)} if images else {})}


def called(call_id: str = "c1", arguments: str = "{}") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "f", "arguments": arguments}}


WITHOUT_TEXT = ("reasoning_content", "image", "image_url", "input_image", "thinking", "redacted_thinking", "reasoning")
USE = part("tool_use", id="c1", name="f", input={})


# -- parts -------------------------------------------------------------------------------------------------------------
@table(
    ("content", "said", "images"),
    [
        # Texts, with and without members that carry nothing.
        (part("text", text="a", cache_control={"type": "ephemeral"}), "a", []),
        (part("input_text", text="a"), "a", []),
        (part("output_text", text="a", annotations=[], logprobs=[]), "a", []),
        (part("refusal", refusal="no"), "no", []),
        (part("text", text=None), "", []),
        # Images, by the member that holds them.
        (part("image_url", image_url={"url": PNG, "detail": "low"}), "", [PNG]),
        (part("image_url", image_url=LINK), "", [LINK]),
        (part("input_image", image_url=PNG, detail="auto", file_id=None), "", [PNG]),
        (part("input_image", image_url={"url": LINK}), "", [LINK]),
        (part("image", source={"type": "base64", "media_type": "image/webp", "data": "QUJD"}), "",
         ["data:image/webp;base64,QUJD"]),
        (part("image", source={"type": "base64", "data": "QUJD"}), "", [PNG]),
        (part("image", source={"type": "url", "url": LINK}), "", [LINK]),
        (part("image", image=PNG), "", [PNG]),
        (part("image", image=LINK), "", [LINK]),
        (part("image", image="QUJD", mediaType="image/gif"), "", ["data:image/gif;base64,QUJD"]),
        (part("image", image="QUJD", mimeType="image/gif"), "", ["data:image/gif;base64,QUJD"]),
        (part("image", image="QUJD", mime_type="image/gif"), "", ["data:image/gif;base64,QUJD"]),
        (part("image", data="QUJD", mimeType="image/png"), "", [PNG]),
        (part("image", data="QUJD"), "", [PNG]),
        (part("image", data=JPEG), "", [f"data:image/jpeg;base64,{JPEG}"]),
        # Not reported: one member in the place of another, and the form of Hugging Face's templates.
        (part("image", image_url={"url": LINK}), "", [LINK]),
        (part("image", url=LINK), "", [LINK]),
        (part("image", source=PNG), "", [PNG]),
        (part("image_url", image_url="", image=PNG), "", [PNG]),
        (part("image", source={"type": "base64", "data": PNG}), "", [PNG]),
        # Text files.
        (part("file", file={"filename": "a.csv", "file_data": f"data:text/csv;base64,{b64('x')}"}), "[a.csv]\nx", []),
        (part("input_file", filename="a.json", file_data=f"data:application/json;base64,{b64('{}')}"),
         "[a.json]\n{}", []),
        (part("document", source={"type": "text", "media_type": "text/plain", "data": "d"}, title="T"), "[T]\nd", []),
        (part("document", source={"type": "base64", "media_type": "text/plain", "data": b64("ü")}), "ü", []),
        (part("document", source={"type": "content", "content": [text("d"), part("image", image=PNG)]}), "d", [PNG]),
        (part("document", data=b64("d"), mediaType="application/xml", filename="d.xml"), "[d.xml]\nd", []),
        (part("file", data=b64("a: 1"), mimeType="application/yaml; charset=utf-8"), "a: 1", []),
        (part("file", file={"file_data": b64("plain"), "filename": "x"}), "[x]\nplain", []),
        (part("file", text="plain"), "plain", []),
        # Not reported: no base64 at all, upper case, an empty file, parameters in front of the coding.
        (part("file", file_data="x, y", filename="a.csv"), "[a.csv]\nx, y", []),
        (part("file", file_data=f"DATA:TEXT/PLAIN;charset=utf-8;BASE64,{b64('x')}"), "x", []),
        (part("file", file_data="data:text/plain;base64,", filename="e"), "[e]\n", []),
        (part("file", file_data="data:,a%20b"), "a b", []),
        # MCP.
        (part("resource", resource={"uri": "file:///a", "mimeType": "text/plain", "text": "r"}), "r", []),
        # Blocks of Anthropic.
        (part("search_result", title="Moon", source=LINK, content=[text("far")]), f"Moon\n{LINK}\nfar", []),
        (part("thinking", thinking="hm", signature="s"), "", []),
        (part("redacted_thinking", data="x"), "", []),
        # Not reported: reasoning as other programs call it.
        (part("reasoning", text="hm"), "", []),
        (part("reasoning_content", reasoning_content={"text": "hm"}), "", []),
    ],
)  # fmt: skip
def test_parts_in_every_dialect(content: dict[str, Any], said: str, images: list[str]) -> None:
    for name, read in READERS.items():
        assert read([{"role": "user", "content": [content]}]) == [user(said, *images)], name
        # Between texts, and twice.
        got = read([{"role": "user", "content": [text("a"), content, "b", content]}])
        texts = [] if content["type"] in WITHOUT_TEXT else [said]
        assert got == [user("\n".join(["a", *texts, "b", *texts]), *images, *images)], name


REFUSED = "cannot be passed on"


@table(
    ("content", "kind", "dialects"),
    [
        (part("input_audio", input_audio={"data": "QUJD", "format": "wav"}), "input_audio", ALL),
        (part("input_audio"), "input_audio", ALL),
        (part("audio", data="QUJD", mimeType="audio/wav"), "audio", ALL),
        (part("audio", audio={"id": "a"}), "audio", ALL),
        (part("video_url", video_url={"url": LINK}), "video_url", ALL),
        (part("video", source={"type": "url", "url": LINK}), "video", ALL),
        (part("later", text="x"), "later", ALL),
        (part("later", note="x"), "later", STRICT),
        # Not reported: the payload under another name, and in an object.
        (part("later", picture=PNG), "later", ALL),
        (part("later", uri="HTTPS://h/a.wav"), "later", ALL),
        (part("resource_link", uri="file:///a", name="a"), "resource_link", ALL),
        (part("later", sheet={"data": "QUJD", "kind": "csv"}), "later", ALL),
        (part("later", picture_url={"url": LINK}), "later", ALL),
        (part("image_url", image_url={}), "image_url", ALL),
        (part("image_url"), "image_url", ALL),
        (part("image_url", image_url={"url": ""}), "image_url", ALL),
        (part("image", source={"type": "base64", "data": ""}), "image", ALL),
        (part("image", source={"type": "file", "file_id": "f"}), "image", ALL),
        (part("input_image", file_id="f"), "input_image", ALL),
        (part("image", image=5), "image", ALL),
        (part("file", file={"file_id": "f"}), "file", ALL),
        (part("file", file={"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0="}), "file", ALL),
        (part("input_file", file_id="f"), "input_file", ALL),
        (part("input_file", file_url="http://h/a.txt"), "input_file", ALL),
        (part("document", source={"type": "base64", "media_type": "application/pdf", "data": "QUJD"}), "document", ALL),
        (part("document", source={"type": "url", "url": "http://h/a.pdf"}), "document", ALL),
        (part("document", source={"type": "file", "file_id": "f"}), "document", ALL),
        (part("resource", resource={"uri": "file:///a", "blob": "QUJD"}), "resource", ALL),
        (part("text"), "text", ALL),
        # Not reported: a PDF without a type, bytes without a type, a broken data URL, a type in the wrong member.
        (part("file", file_data="JVBERi0xLjQK"), "file", ALL),
        (part("file", file_data=b64(b"\xff\xfe\x00")), "file", ALL),
        (part("file", file_data=b64("a\0b")), "file", ALL),
        (part("file", file_data="data:text/plain"), "file", ALL),
        (part("file", file_data="data:text/plain;base64,QUJ"), "file", ALL),
        (part("file", data=b64("x"), mimeType="application/zip"), "file", ALL),
        (part("file", file_data="data:text/plain;base64,QUJD", mediaType="application/pdf"), "file", ALL),
        ({"text": "x"}, None, ALL),
        ({}, None, STRICT),
        (part(5, text="x"), None, ALL),
        (part("a secret of 7 words in it", text="x"), None, ALL),
    ],
)
def test_what_cannot_be_passed_on_is_refused_with_its_place(
    content: dict[str, Any], kind: str | None, dialects: tuple[str, ...]
) -> None:
    for name in dialects:
        place = ("input[3]" if name == "responses" else "messages[3]") + ".content[1]"
        sent = [{"role": "user", "content": "hi"}] * 3 + [{"role": "user", "content": [text(), content]}]
        with pytest.raises(ClientError) as error:
            READERS[name](sent)
        named = f"'{kind}'" if kind else "a part without a known type"
        assert str(error.value).startswith(f"{place}: {named} {REFUSED}"), (name, str(error.value))
        assert (error.value.status, error.value.param) == (400, place if name == "responses" else None)
        assert "secret" not in str(error.value)


@table(
    "content",
    [
        part("compaction", content="x"),
        part("server_tool_use", id="s", name="web_search", input={}),
        part("web_search_tool_result", tool_use_id="s", content=[]),
        part("mcp_tool_result", tool_use_id="s", content=[text("x")]),
        part("news"),
        part("news", text=""),
        part("news", at="now", note="see https://h", by={"model": "m", "text": ""}, tags=[PNG]),
        part("mcp_tool_result", tool_use_id="s", picture=PNG),
    ],
)
def test_what_carries_nothing_is_passed_over_where_servers_send_it(content: dict[str, Any]) -> None:
    for name in LENIENT:
        assert READERS[name]([{"role": "user", "content": [content, text("x")]}]) == [user("x")], name
    with pytest.raises(ClientError, match=REFUSED):
        chat_messages([{"role": "user", "content": [content]}])


@table(
    ("content", "role", "words"),
    [
        (5.5, "user", "found a number"),
        ({"text": "x"}, "user", "found an object"),
        ([5], "user", "found a number"),
        ([None], "user", "found nothing"),
        ([text({"value": "x"})], "user", "expected a text, found an object"),
        ([USE], "user", "belongs into a message of the role 'assistant', not 'user'"),
        ([part("tool_result", tool_use_id="c", content="x")], "assistant", "of the role 'user' or 'tool'"),
        ([part("tool_use", id="", name="f")], "assistant", "id: expected a text that is not empty"),
        ([part("tool_result", tool_use_id=None)], "user", "tool_use_id: expected a text"),
        ([part("tool_result", tool_use_id="c", content=[part("video", url=LINK)])], "user",
         "content[0].content[0]: 'video' cannot be passed on"),
        ([part("document", source={"type": "content", "content": [part("audio", data="x")]})], "user",
         "content[0].source.content[0]: 'audio' cannot be passed on"),
    ],
)  # fmt: skip
def test_what_is_malformed_is_refused(content: Any, role: str, words: str) -> None:
    for name, read in READERS.items():
        if name in STRICT and content == 5.5:
            assert read([{"role": role, "content": content}])[0]["content"] == "5.5"
            continue
        with pytest.raises(ClientError) as error:
            read([{"role": role, "content": content}])
        assert error.value.status == 400 and words in str(error.value), (name, str(error.value))


@table(
    ("images", "words"),
    [("x", "images: expected a list"), ({"a": 1}, "images: expected a list"), (["x", 5], "images[1]: expected a text"),
     ([{"url": LINK}], "images[0]: expected a text")],
)  # fmt: skip
def test_images_of_ollama_that_are_no_texts_are_refused(images: Any, words: str) -> None:
    for name in STRICT:
        with pytest.raises(ClientError) as error:
            READERS[name]([{"role": "user", "content": "x"}, {"role": "user", "content": "x", "images": images}])
        assert f"messages[1].{words}" in str(error.value)


# -- calls and results in blocks ---------------------------------------------------------------------------------------
def test_blocks_of_calls_and_results_are_calls_and_results_in_every_dialect() -> None:
    for name, read in READERS.items():
        got = read(
            [
                {"role": "assistant", "content": [part("thinking", thinking="hm"), text("I look."), USE]},
                {
                    "role": "user",
                    "content": [
                        text("before"),
                        part("tool_result", tool_use_id="c1", content=[text("a"), part("image", image=PNG)]),
                        part("tool_result", tool_use_id="c2", content="no", is_error=True),
                        part("image", image=LINK),
                    ],
                },
                {"role": "user", "content": [part("tool_result", tool_use_id="c3")]},
            ]
        )
        assert got == [
            {
                "role": "assistant",
                "content": "I look.",
                "tool_calls": [called()],
                "extra": [{"origin": None, "member": "thinking", "value": "hm", "at": "message"}],
            },
            {"role": "tool", "content": "a", "tool_call_id": "c1"},
            {"role": "tool", "content": "Error: no", "tool_call_id": "c2"},
            user("before", PNG, LINK),
            {"role": "tool", "content": "", "tool_call_id": "c3"},
        ], name


def test_a_call_that_is_sent_in_both_forms_is_one_call() -> None:
    blocks = [USE, {**USE, "id": "c2"}]
    (message,) = chat_messages([{"role": "assistant", "content": blocks, "tool_calls": [called()]}])
    assert message["tool_calls"] == [called(), called("c2")]
    (message,) = chat_messages([{"role": "assistant", "content": blocks, "tool_calls": None}])
    assert message["tool_calls"] == [called(), called("c2")]
    result = part("tool_result", tool_use_id="c1", content="r")
    assert chat_messages([{"role": "tool", "tool_call_id": "other", "content": [result]}]) == [
        {"role": "tool", "content": "r", "tool_call_id": "c1"}
    ]


# -- where images go ---------------------------------------------------------------------------------------------------
CALL = {"role": "assistant", "content": "", "tool_calls": [called("c1"), called("c2")]}


def shown(role: str, *images: str, said: str = "", **more: Any) -> dict[str, Any]:
    return {"role": role, "content": [text(said), *(part("image", image=image) for image in images)], **more}


def tool(call_id: str, *images: str) -> dict[str, Any]:
    return shown("tool", *images, tool_call_id=call_id)


@table(
    ("sent", "expected"),
    [
        ([CALL, tool("c1", PNG), tool("c2")], "a t t u:P"),
        ([CALL, tool("c1", PNG), tool("c2", LINK)], "a t t u:PL"),
        ([CALL, tool("c1", PNG), tool("c2"), shown("user", LINK)], "a t t u:PL"),
        ([CALL, tool("c1", PNG), tool("c2"), {"role": "assistant", "content": "x"}], "a t t u:P a"),
        ([CALL, tool("c1", PNG), {"role": "system", "content": "x"}, shown("user")], "a t u:P s u"),
        ([CALL, tool("c1", PNG), CALL, tool("c2", LINK)], "a t u:P a t u:L"),
        ([shown("assistant", PNG)], "a u:P"),
        ([shown("assistant", PNG), shown("user", LINK)], "a u:PL"),
        ([shown("assistant", PNG), shown("assistant", LINK)], "a u:P a u:L"),
        ([{**CALL, **shown("assistant", PNG)}, tool("c1", LINK), tool("c2")], "a t t u:PL"),
        ([shown("system", PNG), shown("user", LINK)], "s u:PL"),
        ([shown("system", PNG), shown("system", LINK), {"role": "assistant", "content": "x"}, shown("user")],
         "s s a u:PL"),
        ([shown("system", PNG), shown("assistant", LINK), {"role": "assistant", "content": "x"}, shown("user")],
         "s a u:PL a u"),
        ([shown("system", PNG)], "s u:P"),
        ([shown("system", PNG), {"role": "assistant", "content": "x"}], "s u:P a"),
        ([shown("user"), shown("system", PNG), {"role": "assistant", "content": "x"}], "u s u:P a"),
        ([shown("user", PNG), shown("assistant"), shown("user", LINK)], "u:P a u:L"),
    ],
)  # fmt: skip
def test_images_go_into_messages_of_the_user(sent: list[Any], expected: str) -> None:
    got = chat_messages(sent)
    letters = {PNG: "P", LINK: "L"}
    seen = " ".join(
        message["role"][0]
        + (":" + "".join(letters[image] for image in message["images"]) if "images" in message else "")
        for message in got
    )
    assert seen == expected
    # Ollama's member is the same, and so are the other dialects where they have such messages.
    moved = [
        {**message, "content": "", "images": [part_["image"] for part_ in message["content"][1:]]}
        if isinstance(message["content"], list)
        else message
        for message in sent
    ]
    assert chat_messages(moved, empty_texts_left_out=True) == got
    if not any("tool" in message["role"] or "tool_calls" in message for message in sent):
        assert of_responses(sent) == got
        if sent[-1]["role"] != "system":
            assert read_request({"messages": sent}).messages == got


def test_images_of_a_system_prompt_and_of_outputs() -> None:
    """Where the other dialects keep them apart from the messages."""
    image = part("image", image=PNG)
    asked = [{"role": "user", "content": "hi"}]
    expected = [{"role": "system", "content": "s"}, user("hi", PNG)]
    assert read_request({"system": [text("s"), image], "messages": asked}).messages == expected
    given = [{"role": "developer", "content": [text("s"), image]}]
    assert conversation(given, [], asked, ResponsesTools()) == expected
    for output in (
        [image],
        part("computer_screenshot", image_url=PNG),
        [text(""), part("image", data="QUJD", mimeType="image/png")],
    ):
        items = [part("function_call_output", call_id="c", output=output), *asked]
        assert of_responses(items) == [{"role": "tool", "content": "", "tool_call_id": "c"}, user("hi", PNG)]


def test_the_added_message_has_the_prefix_of_the_user(lab: Lab) -> None:
    lab.user(chatCompleteAddUserAssistant=True)
    assert chat_messages([CALL, tool("c1", PNG)])[-1] == user("User: ", PNG)


# -- items of the Responses API ----------------------------------------------------------------------------------------
@table(
    ("items", "expected"),
    [
        ([part("input_text", text="a")], [user("a")]),
        (
            [part("input_text", text="a"), part("input_image", image_url=PNG),
             part("input_file", filename="f", file_data="data:text/plain,x")],
            [user("a\n[f]\nx", PNG)],
        ),
        ([part("input_text", text="a"), {"role": "user", "content": "b"}, part("input_text", text="c")],
         [user("a"), user("b"), user("c")]),
        ([{"role": "assistant", "content": "b"}, part("text", text="c"), part("image_url", image_url={"url": PNG})],
         [{"role": "assistant", "content": "b"}, user("c", PNG)]),
        ([{"role": "tool", "call_id": "c", "content": [text("r"), part("image", image=PNG)]}],
         [{"role": "tool", "content": "r", "tool_call_id": "c"}, user("", PNG)]),
        ([{"role": "tool", "type": "message", "call_id": "c", "output": "r"}],
         [{"role": "tool", "content": "r", "tool_call_id": "c"}]),
        # Other JSON with types is the output of a tool, and no list of parts.
        ([part("function_call_output", call_id="c", output=[part("dir", name="a"), part("link", name="b")])],
         [{"role": "tool", "content": '[{"type": "dir", "name": "a"}, {"type": "link", "name": "b"}]',
           "tool_call_id": "c"}]),
        ([part("function_call_output", call_id="c", output=[part("link", href=LINK)])],
         [{"role": "tool", "content": f'[{{"type": "link", "href": "{LINK}"}}]', "tool_call_id": "c"}]),
        ([part("function_call_output", call_id="c", output=part("success", value=1))],
         [{"role": "tool", "content": '{"type": "success", "value": 1}', "tool_call_id": "c"}]),
        ([{"call_id": "c", "output": "r"}], [{"role": "tool", "content": "r", "tool_call_id": "c"}]),
        ([part("reasoning", summary=[], content=[text("x")]), part("image_generation_call", result="x", url=LINK),
          part("news", id="n"), part([]), {"key": "x"}, {"role": "user", "content": "a"}], [user("a")]),
    ],
)  # fmt: skip
def test_items_that_are_not_messages(items: list[Any], expected: list[Any]) -> None:
    assert of_responses(items) == expected


@table(
    ("item", "kind"),
    [
        (part("input_audio", input_audio={"data": "x"}), "'input_audio'"),
        (part("surprise", text="?"), "'surprise'"),
        (part("surprise", poster=LINK), "'surprise'"),
        (part("input_image"), "'input_image'"),
        (part("input_file", file_id="f"), "'input_file'"),
        (part("video", url=LINK), "'video'"),
        ({"text": "x"}, "a part without a known type"),
    ],
)
def test_items_that_cannot_be_passed_on(item: dict[str, Any], kind: str) -> None:
    with pytest.raises(ClientError) as error:
        of_responses([{"role": "user", "content": "a"}, part("input_text", text="a"), item])
    assert str(error.value).startswith(f"input[2]: {kind} {REFUSED}") and error.value.param == "input[2]"
