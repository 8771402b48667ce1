"""The service that makes one LLM call: configuration in, request out, over real sockets."""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.exceptions import BackendConnectionError, BackendError, ConfigNotFoundError, ConfigValueError
from Middleware.llmapis.api_types import WHOLE_PROMPT
from Middleware.llmapis.llm_api import LlmApiService
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.services.llm_service import LlmHandlerService
from Tests.llmapis.lab import Lab
from Tests.llmapis.transport_lab import SOON
from Tests.stub_backend import Reply, StubBackend, chat_reply, chat_stream_reply

HI = [{"role": "user", "content": "hi"}]


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    return Lab(tmp_path, monkeypatch)


@pytest.fixture
def backend(lab: Lab) -> Iterator[StubBackend]:
    with StubBackend() as stub:
        lab.endpoint("Main", {}, stub.url)
        yield stub


def test_complete_call(lab: Lab, backend: StubBackend) -> None:
    lab.preset("OpenAiCompatibleApis", "P", {"temperature": 0.4, "max_tokens": 9000, "x": None})
    backend.script(chat_reply("Hello"))
    service = LlmApiService("Main", "P", 300)
    assert service.get_response_from_llm(HI) == "Hello"
    assert backend.requests[0].json == {
        "model": "model-x",
        "messages": HI,
        "temperature": 0.4,
        "max_tokens": 300,
        "stream": False,
    }
    assert service.outcome.finish_reason == "stop"
    assert service.outcome.endpoint_config["modelNameToSendToAPI"] == "model-x"
    assert not service.is_busy()


def test_streaming_call(backend: StubBackend) -> None:
    backend.script(chat_stream_reply(["Hel", "lo"]))
    service = LlmApiService("Main", None, 300, True)
    stream = service.get_response_from_llm(HI)
    assert not isinstance(stream, (str, dict))
    assert service.is_busy() and backend.requests == []
    assert "".join(chunk["token"] for chunk in stream) == "Hello"
    assert backend.requests[0].json["stream"] is True
    assert not service.is_busy()


@pytest.mark.parametrize("pulled", [False, True])
def test_close_abandons_a_stream(backend: StubBackend, pulled: bool) -> None:
    backend.script(chat_stream_reply(["a", "b"], delay=0.05, hang=True))
    service = LlmApiService("Main", stream=True)
    stream: Any = service.get_response_from_llm(HI)
    if pulled:
        next(stream)
    service.close()
    assert not service.is_busy() and list(stream) == []
    assert not pulled or backend.requests[0].wait_ended()


@pytest.mark.parametrize("pulled", [False, True])
def test_a_stream_that_its_reader_closes_is_abandoned(backend: StubBackend, pulled: bool) -> None:
    backend.script(chat_stream_reply(["a", "b"], delay=0.05, hang=True))
    service = LlmApiService("Main", stream=True)
    stream: Any = service.get_response_from_llm(HI)
    if pulled:
        next(stream)
    stream.close()
    assert not service.is_busy()


def test_close_wakes_another_thread_that_reads_the_stream(backend: StubBackend) -> None:
    backend.script(Reply(never=True))
    service = LlmApiService("Main", stream=True)
    chunks: list[Any] = []
    reader = threading.Thread(target=lambda: chunks.extend(service.get_response_from_llm(HI)))
    reader.start()
    backend.wait_requests(1)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(service._handler, "abort", lambda: None)
        stream = service._stream
        service.close()
        assert service.is_busy()  # as long as the other thread is in it
    service._stream = stream
    service.close()
    reader.join(SOON)
    assert not reader.is_alive() and not service.is_busy()
    assert backend.requests[0].wait_ended() and not any(chunk["token"] for chunk in chunks)


def test_model_may_be_left_out(lab: Lab, backend: StubBackend) -> None:
    lab.endpoint("Main", {"dontIncludeModel": "true"}, backend.url + "/v1")
    backend.script(chat_reply("x"))
    LlmApiService("Main").get_response_from_llm(HI)
    assert "model" not in backend.requests[0].json
    assert backend.requests[0].path == "/v1/chat/completions"


def test_images_are_removed_for_a_blind_node_and_the_caller_keeps_them(backend: StubBackend) -> None:
    conversation = [{"role": "user", "content": "hi", "images": ["https://h/x.png"]}]
    before = copy.deepcopy(conversation)
    backend.default = chat_reply("x")
    service = LlmApiService("Main")
    service.get_response_from_llm(conversation)
    service.get_response_from_llm(conversation, llm_takes_images=True)
    assert [request.json["messages"][0]["content"] for request in backend.requests] == [
        "hi",
        [{"type": "text", "text": "hi"}, {"type": "image_url", "image_url": {"url": "https://h/x.png"}}],
    ]
    assert conversation == before


def test_a_blind_node_gets_no_empty_message_for_the_images_of_results(backend: StubBackend) -> None:
    shown = {"role": "user", "content": "", "images": ["https://h/x.png"]}
    conversation = [{"role": "user", "content": "hi"}, {"role": "tool", "content": "r", "tool_call_id": "c"}, shown]
    backend.default = chat_reply("x")
    LlmApiService("Main").get_response_from_llm(conversation)
    assert backend.requests[0].json["messages"] == conversation[:2]
    # An image that the user sends alone is a turn of the user.
    LlmApiService("Main").get_response_from_llm([conversation[0], shown])
    assert backend.requests[1].json["messages"] == [conversation[0], {"role": "user", "content": ""}]


def test_tools_are_forwarded(backend: StubBackend) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    backend.script(chat_reply("x"), chat_reply("y"))
    service = LlmApiService("Main")
    service.get_response_from_llm(HI, tools=tools, tool_choice="auto")
    service.get_response_from_llm(HI, tools=[])
    assert backend.requests[0].json["tools"] == tools and backend.requests[0].json["tool_choice"] == "auto"
    assert not {"tools", "tool_choice"} & backend.requests[1].json.keys()


def test_the_scope_of_the_current_request_stops_the_call(backend: StubBackend) -> None:
    request = RequestContext(cancel_scope=CancelScope())
    with request_scope(request):
        service = LlmApiService("Main")
    request.cancel_scope.cancel()
    assert service.get_response_from_llm(HI) == "" and backend.requests == []


def test_backend_errors_reach_the_caller(lab: Lab, backend: StubBackend) -> None:
    lab.user(connectTimeoutInSeconds=30)
    lab.endpoint("Main", {}, "http://127.0.0.1:1")
    service = LlmApiService("Main")
    with pytest.raises(BackendConnectionError, match="Main"):
        service.get_response_from_llm(HI)
    assert not service.is_busy()


# -- mistakes in the configuration --------------------------------------------------------------------------------


def test_missing_files_are_named(lab: Lab) -> None:
    with pytest.raises(ConfigNotFoundError, match="Endpoints/lab/Mian.json") as caught:
        LlmApiService("Mian")
    assert caught.value.suggestion == "Main"
    lab.endpoint("Main", {"apiTypeConfigFileName": "OpenAi-X"})
    with pytest.raises(ConfigNotFoundError, match="ApiTypes/OpenAi-X.json"):
        LlmApiService("Main")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"apiTypeConfigFileName": None}, "names no API type"),
        ({"endpoint": ""}, "no usable URL"),
        ({"endpoint": "127.0.0.1:5001"}, "no usable URL"),
        ({"apiTypeConfigFileName": "Odd"}, "unsupported type 'odd'"),
    ],
)
def test_mistakes_are_explained(lab: Lab, changes: dict[str, Any], text: str) -> None:
    lab.write("ApiTypes/Odd", {"type": "odd"})
    lab.endpoint("Main", changes)
    with pytest.raises(ConfigValueError, match=text):
        LlmApiService("Main")


def test_embeddings_endpoint_is_refused_before_its_preset_is_looked_up(lab: Lab) -> None:
    lab.write("ApiTypes/Embed", {"type": "openAIEmbeddings"})
    lab.endpoint("Main", {"apiTypeConfigFileName": "Embed"})
    with pytest.raises(ConfigValueError, match="Endpoints/lab/Main.json: .*embeddings"):
        LlmApiService("Main", "does-not-exist")


def test_keys_do_not_show_in_representations(lab: Lab) -> None:
    lab.endpoint("Main", {"apiKey": "sk-secret"})
    handle = LlmHandlerService().load_model_from_config("Main")
    assert "sk-secret" not in f"{handle!r} {handle.llm.outcome!r} {handle.llm.settings!r}"


ADDED_TEXTS = {
    "addTextToStartOfSystem": True,
    "textToAddToStartOfSystem": "[sys]",
    "addTextToStartOfPrompt": True,
    "textToAddToStartOfPrompt": "[user]",
    "addTextToStartOfCompletion": True,
    "textToAddToStartOfCompletion": "[end]",
    "alternateRoles": True,
}


@pytest.mark.parametrize(
    "api_type",
    [
        "openAIChatCompletion",
        "claudeMessages",
        "ollamaApiChat",
        "openAIV1Completion",
        "ollamaApiGenerate",
        "koboldCppGenerate",
    ],
)
def test_a_payload_that_is_sent_verbatim_gets_no_texts_again(lab: Lab, backend: StubBackend, api_type: str) -> None:
    lab.write("ApiTypes/OpenAI", {"type": api_type, "presetType": "Any"})
    lab.endpoint("Main", {"apiTypeConfigFileName": "OpenAI", **ADDED_TEXTS}, backend.url)
    service = LlmApiService("Main", None, 300, True)
    with contextlib.suppress(BackendError):
        if service.takes_message_collection:
            list(
                service.get_response_from_llm(
                    [
                        {"role": "system", "content": "s"},
                        {"role": "user", "content": "a"},
                        {"role": "user", "content": "b {x}"},
                    ]
                )
            )
        else:
            list(service.get_response_from_llm(system_prompt="s", prompt="b {x}"))
    first = backend.requests[0].json
    messages = first.get("messages") or [{"role": WHOLE_PROMPT, "content": first["prompt"]}]
    if first.get("system"):
        messages = [{"role": "system", "content": first["system"]}, *messages]
    with contextlib.suppress(BackendError):
        list(LlmApiService("Main", None, 300, True).stream_verbatim(messages))
    assert backend.requests[1].json == first


def test_messages_reach_a_back_end_of_completions_through_its_template(lab: Lab, backend: StubBackend) -> None:
    lab.write("ApiTypes/OpenAI", {"type": "openAIV1Completion", "presetType": "Any"})
    lab.endpoint("Main", {"apiTypeConfigFileName": "OpenAI", **ADDED_TEXTS}, backend.url)
    with contextlib.suppress(BackendError):
        list(LlmApiService("Main", None, 300, True).stream_verbatim([{"role": "user", "content": "hi"}]))
    assert backend.requests[0].json["prompt"] == "<|im_start|>user\nhi<|im_end|>\n"
