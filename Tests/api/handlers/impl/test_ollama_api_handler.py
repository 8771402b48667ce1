"""The Ollama dialect, from HTTP to HTTP."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.services.cancellation_service import cancellation_service
from Tests.api.api_lab import Answer, ApiLab, pause, settled
from Tests.api.front_dialects import COUNTERS, FRONTS, OLLAMA_CHAT, OLLAMA_TEXT, Front
from Tests.stub_backend import Reply, StubBackend, chat_chunk, chat_stream_reply, json_reply, sse_reply
from Tests.tables import table
from Tests.workflows.engine_lab import llm, static, user

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
BOTH = (OLLAMA_CHAT, OLLAMA_TEXT)
PATHS = [front.path for front in BOTH]


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiLab]:
    with StubBackend() as backend:
        lab = ApiLab(tmp_path, monkeypatch, backend)
        lab.default([llm("", systemPrompt="{chat_system_prompt}")])
        yield lab
    assert settled()


def chat(lab: ApiLab, *messages: Any, **fields: Any) -> Answer:
    return lab.post({"model": "m", "messages": list(messages), "stream": False, **fields}, OLLAMA_CHAT.path)


def generate(lab: ApiLab, **fields: Any) -> Answer:
    return lab.post({"model": "m", "stream": False, **fields}, OLLAMA_TEXT.path)


def sent(lab: ApiLab) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in lab.backend.requests[-1].json["messages"]]


# -- the shape of answers ----------------------------------------------------------------------------------------------


def without_varying(body: dict[str, Any]) -> dict[str, Any]:
    """A body without what differs from request to request; checks those values."""
    assert TIME.fullmatch(body.pop("created_at"))
    assert uuid.UUID(body.pop("request_id")).version == 4
    for key in COUNTERS if body["done"] else ():
        assert type(body[key]) is int and body.pop(key) >= 0
    return body


def test_whole_chat(lab: ApiLab) -> None:
    lab.default([static("Hi")])
    answer = chat(lab, user("x"))
    assert answer.json["request_id"] == answer.headers["X-Request-Id"]
    assert without_varying(answer.json) == {
        "model": "tester",
        "message": {"role": "assistant", "content": "Hi"},
        "done_reason": "stop",
        "done": True,
    }


def test_whole_generate(lab: ApiLab) -> None:
    lab.default([static("Hi")])
    answer = generate(lab, prompt="x")
    assert answer.json["request_id"] == answer.headers["X-Request-Id"]
    request_id = answer.json["request_id"]
    body = without_varying(answer.json)
    assert body.pop("id") == f"gen-{request_id.replace('-', '')}" and body.pop("created")
    assert body.pop("usage").keys() == {"prompt_tokens", "completion_tokens", "total_tokens"}
    assert body == {
        "object": "text_completion",
        "model": "tester",
        "response": "Hi",
        "done_reason": "stop",
        "done": True,
        "choices": [{"text": "Hi", "index": 0, "logprobs": None, "finish_reason": "stop"}],
    }


@pytest.mark.parametrize("front", BOTH, ids=str)
def test_stream(lab: ApiLab, front: Front) -> None:
    answer = lab.post(front.body("x"), front.path)
    items = front.items(answer.data)
    assert {item["request_id"] for item in items} == {answer.headers["X-Request-Id"]}
    *chunks, last = [without_varying(item) for item in items]
    assert "".join(front.text(chunk) for chunk in chunks) == "<x>"

    def shape(text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text}} if front.chat else {"response": text}

    assert chunks == [{"model": "tester", **shape(front.text(chunk)), "done": False} for chunk in chunks]
    assert last == {"model": "tester", **shape(""), "done": True, "done_reason": "stop"}


@pytest.mark.parametrize("front", BOTH, ids=str)
def test_length(lab: ApiLab, front: Front) -> None:
    lab.backend.responder = lambda request: json_reply(
        {"choices": [{"message": {"content": "x"}, "finish_reason": "length"}]}
    )
    answer = lab.post(front.body(stream=False), front.path).json
    assert answer["done_reason"] == "length"
    if not front.chat:
        assert answer["choices"][0]["finish_reason"] == "length"


# -- chat --------------------------------------------------------------------------------------------------------------


def test_roles_prefixes_and_generator(lab: ApiLab) -> None:
    lab.user(chatCompleteAddUserAssistant=True, chatCompletionAddMissingAssistantGenerator=True)
    chat(lab, {"role": "developer", "content": "s"}, user("a"), {"role": "assistant", "content": "b"}, user("c"))
    assert sent(lab) == [
        ("system", "s"),
        ("user", "User: a"),
        ("assistant", "Assistant: b"),
        ("user", "User: c"),
        ("assistant", "Assistant:"),
    ]


def test_parts_and_images(lab: ApiLab) -> None:
    lab.default([llm("")])
    chat(
        lab,
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}], "images": []},
    )
    assert sent(lab) == [("user", "a\nb")]


@pytest.mark.parametrize("linked", [False, True])
def test_tool_turns_of_ollama_clients(lab: ApiLab, linked: bool) -> None:
    call = {"function": {"name": "f", "arguments": {"a": 1}}}
    chat(
        lab,
        user("q"),
        {"role": "assistant", "content": "", "tool_calls": [{"id": "c7", **call} if linked else call]},
        {"role": "tool", "tool_name": "f", "content": "42", **({"tool_call_id": "c7"} if linked else {})},
    )
    _, asked, result = lab.backend.requests[0].json["messages"]
    (made,) = asked["tool_calls"]
    assert made["type"] == "function" and json.loads(made["function"]["arguments"]) == {"a": 1}
    assert made["id"] == result["tool_call_id"] and bool(made["id"])
    assert (made["id"] == "c7") is linked
    assert (result["content"], result["name"]) == ("42", "f")


def test_tool_choice_is_not_an_ollama_word(lab: ApiLab) -> None:
    lab.default([llm("", allowTools=True)])
    tools = [{"type": "function", "function": {"name": "f"}}]
    chat(lab, user("x"), tools=tools, tool_choice="auto")
    body = lab.backend.requests[0].json
    assert body["tools"] == tools and "tool_choice" not in body


def test_invalid_arguments_become_an_empty_object(lab: ApiLab) -> None:
    lab.default([llm("", allowTools=True)])
    lab.backend.responder = lambda request: sse_reply(
        [
            chat_chunk({"tool_calls": [{"index": 1, "id": "b", "function": {"name": "g", "arguments": "{bad"}}]}),
            chat_chunk({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"done":'}}]}),
            chat_chunk({"tool_calls": [{"index": 0, "function": {"arguments": "true}"}}]}),
            chat_chunk({}, "tool_calls"),
            "[DONE]",
        ]
    )
    answer = chat(lab, user("x"), stream=True, tools=[{"type": "function", "function": {"name": "f"}}])
    assert OLLAMA_CHAT.calls(answer.data, True) == [
        {"id": "b", "function": {"index": 0, "name": "g", "arguments": {}}},
        {"id": "a", "function": {"index": 1, "name": "f", "arguments": {"done": True}}},
    ]
    *_, calls, last = [item["message"] for item in OLLAMA_CHAT.items(answer.data)]
    assert len(calls["tool_calls"]) == 2 and "tool_calls" not in last


# -- text generation ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"prompt": "plain"}, [("user", "plain")]),
        ({"prompt": "plain", "system": "Be. "}, [("user", "Be. plain")]),
        (
            {"prompt": "[Beg_Sys]A[Beg_User] c [Beg_Assistant]Mira:"},
            [("system", "A"), ("user", "c"), ("assistant", "Mira:")],
        ),
        ({"prompt": "[Beg_User]c[Beg_Assistant]"}, [("user", "c")]),
        ({"system": "Be brief.", "prompt": "[Beg_User]c"}, [("system", "Be brief."), ("user", "c")]),
        ({"system": "[Beg_Sys]S", "prompt": "[Beg_User]c"}, [("system", "S"), ("user", "c")]),
    ],
)
def test_prompts(lab: ApiLab, fields: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert generate(lab, **fields).status == 200
    assert sent(lab) == expected


def test_image_without_words(lab: ApiLab) -> None:
    lab.default([llm("", acceptImages=True)])
    image = base64.b64encode(b"\xff\xd8\xff" + b"x" * 99).decode()
    assert generate(lab, prompt="", images=[image]).json["response"]
    assert len(lab.backend.requests) == 1


FULL = {"model": "m", "keep_alive": ""}
# The longest body of a call that loads a model.
LONGEST = {**FULL, "keep_alive": "x" * (4096 - len(json.dumps(FULL)))}


@table("stream", [False, True])
@table(
    ("path", "fields"),
    [
        *[
            ("/api/generate", fields)
            for fields in (
                {},
                {"prompt": ""},
                {"prompt": None},
                {"system": "x"},
                {"prompt": "", "system": "", "images": [], "options": {"num_ctx": 9}, "think": True, "raw": True},
                {"images": None, "suffix": "x", "template": "{{ .Prompt }}", "context": [1, 2], "format": "json"},
                LONGEST,
            )
        ],
        *[
            ("/api/chat", fields)
            for fields in (
                {},
                {"messages": []},
                {"messages": None},
                {"messages": [], "tools": [{"type": "function", "function": {"name": "f"}}], "options": {}},
                LONGEST,
            )
        ],
        ("/api/chat/", {}),
    ],
)
def test_load_call_runs_no_workflow(lab: ApiLab, path: str, fields: dict[str, Any], stream: bool) -> None:
    answer = lab.post({"model": "m", **fields, "stream": stream} if fields is not LONGEST else fields, path)
    stream = stream or fields is LONGEST
    kind = "application/x-ndjson" if stream else "application/json"
    assert (answer.status, answer.headers["Content-Type"]) == (200, kind)
    assert answer.data.count(b"\n") == int(stream) and answer.data.endswith(b"\n") is stream
    body = without_varying(answer.json)
    assert body.pop("done_reason") == "load" and body.pop("done") is True and body.pop("model") == "tester"
    assert body.get("message", {"role": "assistant", "content": ""}) == {"role": "assistant", "content": ""}
    assert body.get("response", "") == "" and {"message", "response"} & body.keys()
    assert lab.backend.requests == []


@table(
    ("path", "fields"),
    [
        ("/api/generate", {"prompt": "x"}),
        ("/api/generate", {"prompt": " ", "system": "x"}),
        ("/api/generate", {"prompt": "", "images": ["Zm9v"]}),
        ("/api/chat", {"messages": [user("x")]}),
        # A body that is not read before there is a slot.
        ("/api/generate", {"prompt": "x", "keep_alive": "0" * 4096}),
    ],
)
def test_other_calls_run_the_workflow(lab: ApiLab, path: str, fields: dict[str, Any]) -> None:
    lab.default([static("Hi")])
    answer = lab.post({"model": "m", "keep_alive": 0, **fields, "stream": False}, path).json
    assert (answer["done_reason"], answer.get("response") or answer["message"]["content"]) == ("stop", "Hi")


@table(
    ("model", "said"),
    [("tester", ""), ("tester:latest", ""), ("nobody", "Multi-user"), ("", "Multi-user"), (5, "must be a text")],
)
@table("path", PATHS)
def test_a_load_call_takes_the_names_that_a_run_takes(lab: ApiLab, path: str, model: Any, said: str) -> None:
    lab.users("tester", "bob")
    lab.user_file("bob")
    answers = [lab.post({"model": model, **run}, path) for run in ({}, {"prompt": "x", "messages": [user("x")]})]
    assert answers[0].status == (400 if said else 200)
    if said:
        assert answers[0].json == answers[1].json and answers[0].status == answers[1].status
    if said and model != "":
        assert said in answers[0].json["error"]


@pytest.mark.parametrize(
    ("keep_alive", "reason"),
    [
        (0, "unload"),
        (0.0, "unload"),
        ("0", "unload"),
        ("0s", "unload"),
        ("0m", "unload"),
        ("0h0m0.0s", "unload"),
        ("0h1m", "load"),
        (-1, "load"),
        ("5m", "load"),
        ("10s", "load"),
        (None, "load"),
        (False, "load"),
        ("", "load"),
        ("soon", "load"),
        ("0" * 3000 + "x", "load"),  # at once, however many ways there are to divide it
        ({}, "load"),
    ],
)
def test_unload_call_says_so(lab: ApiLab, keep_alive: Any, reason: str) -> None:
    for path, fields in (("/api/generate", {}), ("/api/chat", {"messages": []}), ("/api/chat", {})):
        body = lab.post({"model": "m", "keep_alive": keep_alive, **fields}, path).json
        assert (body["done"], body["done_reason"]) == (True, reason)
    assert lab.backend.requests == []


# -- models ------------------------------------------------------------------------------------------------------------


def listed(lab: ApiLab) -> ApiLab:
    lab.user(allowSharedWorkflows=True)
    for name in ("b", "a", "_x"):
        lab.shared(name, f"from {name}")
    return lab


def test_tags(lab: ApiLab) -> None:
    models = listed(lab).get("/api/tags").json["models"]
    assert [model["name"] for model in models] == ["tester:a", "tester:b"]
    assert models[0] == {
        "name": "tester:a",
        "model": "tester:a:latest",
        "modified_at": "2024-11-23T00:00:00Z",
        "size": 1,
        "digest": hashlib.sha256(b"tester:a").hexdigest(),
        "details": {
            "format": "gguf",
            "family": "wilmer",
            "families": ["wilmer"],
            "parameter_size": "N/A",
            "quantization_level": "Q8",
        },
    }


@pytest.mark.parametrize("key", ["name", "model"])
def test_listed_names_reach_the_workflow(lab: ApiLab, key: str) -> None:
    for model in listed(lab).get("/api/tags").json["models"]:
        for front in FRONTS:
            answer = lab.post(front.body(model=model[key], stream=False), front.path)
            assert front.text(answer.json) == f"from {model['name'][-1]}"
            assert answer.json["model"] == model["name"]


def test_version(lab: ApiLab) -> None:
    assert lab.get("/api/version").json == {"version": "0.9"}


def test_ps(lab: ApiLab) -> None:
    models = listed(lab).get("/api/ps").json["models"]
    assert [model["model"] for model in models] == ["tester:a:latest", "tester:b:latest"]
    assert all(model.keys() >= {"name", "size", "digest", "details", "expires_at", "size_vram"} for model in models)
    assert all(model["details"]["families"] == ["wilmer"] for model in models)


@pytest.mark.parametrize("body", [{"model": "tester:a"}, {"model": "tester:a:latest"}, {"name": "tester:a"}])
def test_show(lab: ApiLab, body: dict[str, str]) -> None:
    shown = listed(lab).post(body, "/api/show").json
    assert {"completion", "tools"} <= set(shown["capabilities"])
    assert (shown["details"]["family"], shown["details"]["families"]) == ("wilmer", ["wilmer"]) and shown["model_info"]


@table(
    ("body", "status"),
    [
        ({"model": "tester:a"}, 200),
        ({"model": "tester:a:latest"}, 200),
        ({"name": "tester:b"}, 200),
        ({"model": "", "name": "tester:b", "insecure": True}, 200),
        ({"model": "tester:_x"}, 404),
        ({"model": "tester"}, 404),
        ({"model": "a"}, 404),
        ({"model": "llama3.2:latest"}, 404),
        ({"model": "x" * 5000}, 404),
        ({}, 400),
        ({"model": 5}, 400),
        ({"model": ""}, 400),
        ([], 400),
        ("{oops", 400),
    ],
)
@table("stream", [None, True, False])
def test_pull(lab: ApiLab, body: Any, status: int, stream: bool | None) -> None:
    asked = {**body, **({} if stream is None else {"stream": stream})} if isinstance(body, dict) else body
    answer = listed(lab).post(asked, "/api/pull")
    assert answer.status == status
    if status == 404:
        assert answer.json == {"error": f"model '{body['model'][:100]}' is not listed here; it cannot be pulled"}
    elif status == 400:
        assert answer.json.keys() == {"error"}
    elif stream is False:
        assert answer.headers["Content-Type"] == "application/json"
        assert answer.json == {"status": "success"}
    else:
        assert answer.headers["Content-Type"] == "application/x-ndjson"
        assert [json.loads(line) for line in answer.data.splitlines()] == [
            {"status": "pulling manifest"},
            {"status": "success"},
        ]


@table(("named", "status"), [("Vectors", 200), (["One", "Two"], 200), ("", 404), (" ", 404), ([], 404)])
def test_any_name_can_be_pulled_where_there_are_embeddings(lab: ApiLab, named: Any, status: int) -> None:
    lab.users("tester")
    listed(lab).user(allowSharedWorkflows=True, embeddingEndpointName=named)
    assert lab.post({"model": "nomic-embed-text", "stream": False}, "/api/pull").status == status
    # With several users, the name must say whose endpoint it is.
    lab.users("tester", "bob")
    lab.user_file("bob")
    for model, expected in (("tester:nomic-embed-text", status), ("bob:nomic-embed-text", 404), ("nomic", 404)):
        assert lab.post({"model": model, "stream": False}, "/api/pull").status == expected, model


@table(("path", "method"), [("push", "POST"), ("create", "POST"), ("copy", "POST"), ("delete", "DELETE")])
def test_what_changes_models_is_not_offered(lab: ApiLab, path: str, method: str) -> None:
    with lab.client.open(f"/api/{path}", method=method, json={"model": "tester"}) as response:
        assert response.status_code == 404 and response.get_json().keys() == {"error"}


@pytest.mark.parametrize(
    ("body", "status"), [({"model": "nope"}, 404), ({}, 400), ({"model": 5}, 400), ("{oops", 400), ([], 400)]
)
def test_show_unknown(lab: ApiLab, body: Any, status: int) -> None:
    answer = lab.post(body, "/api/show")
    assert answer.status == status
    assert answer.json.keys() == {"error"} and isinstance(answer.json["error"], str)


@pytest.mark.parametrize("path", ["/api/tags", "/api/version", "/api/ps"])
def test_lists_take_head_and_slashes(lab: ApiLab, path: str) -> None:
    assert lab.get(path + "/").status == 200
    with lab.client.head(path) as response:
        assert (response.status_code, response.data) == (200, b"")


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/api/chat", {"POST", "DELETE"}),
        ("/api/generate", {"POST", "DELETE"}),
        ("/api/tags", {"GET", "HEAD"}),
        ("/api/show", {"POST"}),
    ],
)
def test_methods(lab: ApiLab, path: str, methods: set[str]) -> None:
    with lab.client.options(path) as response:
        assert response.status_code == 200
        assert set(response.headers["Allow"].split(", ")) == methods | {"OPTIONS"}
    with lab.client.put(path) as response:
        assert response.status_code == 405
        assert isinstance(response.get_json()["error"], str)
        assert methods <= set(response.headers["Allow"].split(", "))


# -- stopping ----------------------------------------------------------------------------------------------------------


def cancel(lab: ApiLab, body: Any, path: str = "/api/chat") -> Answer:
    data = body if isinstance(body, str) else json.dumps(body)
    return Answer(lab.client.delete(path, data=data))


@pytest.mark.parametrize("path", [*PATHS, "/api/chat/"])
def test_cancelling_an_unknown_request(lab: ApiLab, path: str) -> None:
    answer = cancel(lab, {"request_id": "nope"}, path)
    assert (answer.status, answer.json) == (200, {"status": "cancelled", "request_id": "nope"})
    cancellation_service.acknowledge_cancellation("nope")


@table("path", PATHS)
@table(
    ("body", "text"),
    [
        ({}, "The 'request_id' field is required."),
        ({"request_id": ""}, "The 'request_id' field is required."),
        ({"request_id": 5}, "The 'request_id' field is required."),
        ({"request_id": ["x"]}, "The 'request_id' field is required."),
        ({"request_id": None}, "The 'request_id' field is required."),
        ("", "Invalid JSON data"),
        ("{", "Invalid JSON data"),
        ("[]", "The request body must be a JSON object."),
    ],
)
def test_bad_cancellations(lab: ApiLab, path: str, body: Any, text: str) -> None:
    answer = cancel(lab, body, path)
    assert (answer.status, answer.json) == (400, {"error": text})


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("front", FRONTS, ids=str)
def test_either_path_cancels_any_request(lab: ApiLab, front: Front, path: str) -> None:
    """The client is still connected, so it gets a proper end."""
    lab.default([llm("", returnToUser=True), llm("never")])
    lab.backend.responder = lambda request: chat_stream_reply(["one ", "two"], hang=True)
    response = lab.client.post(front.path, data=json.dumps(front.body(stream=True)))
    body: Iterator[bytes] = iter(response.response)  # type: ignore[arg-type]
    data = b""
    while b"two" not in data:
        data += next(body)
    first = response.headers["X-Request-Id"]
    if front.ollama:
        assert json.loads(data.split(b"\n")[0])["request_id"] == first
    timer = threading.Timer(0.05, cancel, (lab, {"request_id": first}, path))
    timer.start()
    data += b"".join(body)
    response.close()
    timer.join()
    assert front.streamed(data) == "one two"
    assert front.finishes(data) == ["stop"]
    assert lab.backend.requests[0].wait_ended()
    assert settled() and len(lab.backend.requests) == 1
    assert first not in cancellation_service.get_all_cancelled_requests()


def test_cancelled_before_the_first_token(lab: ApiLab, monkeypatch: pytest.MonkeyPatch) -> None:
    pause(monkeypatch, 0.05)
    lab.backend.responder = lambda request: Reply(never=True)
    response = lab.client.post(OLLAMA_TEXT.path, data=json.dumps(OLLAMA_TEXT.body()))
    body: Iterator[bytes] = iter(response.response)  # type: ignore[arg-type]
    data = next(body)
    lab.backend.wait_requests()
    cancel(lab, {"request_id": json.loads(data)["request_id"]})
    data += b"".join(body)
    response.close()
    assert OLLAMA_TEXT.finishes(data) == ["stop"]
    assert lab.backend.requests[0].wait_ended()
