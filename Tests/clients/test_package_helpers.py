"""What only some packages have: tool loops, parsed answers, kept conversations, vectors, error classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from Tests.backend_dialects import Answer, Call, openai_embeddings
from Tests.clients.cases import MARKS, NODE, TEXT, TOKENS, answers, calls_tool, conversation
from Tests.clients.client import KEY, MODEL, RESULTS, TOOL
from Tests.clients.conftest import Connect
from Tests.clients.npm_clients import NPM_CLIENTS
from Tests.integration.launcher import Backend, Launcher
from Tests.stub_backend import json_reply, status_reply
from Tests.tables import table

pytestmark = MARKS

VECTORS = {"one": [3.0, 0.5], "three": [5.0, 0.5]}
TOWN = {"name": "Tromsø", "people": 77544}
TOWN_SCHEMA = {
    "title": "Town",
    "type": "object",
    "required": ["name", "people"],
    "additionalProperties": False,
    "properties": {"name": {"type": "string"}, "people": {"type": "integer"}},
}
Vectors = list[list[float]]


def openai_client(server: Launcher) -> Any:
    import openai

    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_tool_runner_of_npm(server: Launcher, backend: Backend, connect: Connect, stream: bool) -> None:
    """The package sends ``thread`` first and whole conversations when it is told that this is not offered."""
    backend.replies[NODE] = calls_tool
    client: Any = connect(NPM_CLIENTS["anthropic"], server.url)
    last = client.call("run_tools", question=backend.hello, tool=TOOL, results=RESULTS, stream=stream)
    assert "".join(last["pieces"]) == TEXT
    called, results = conversation(backend.calls()[-1])[-len(RESULTS) - 1], conversation(backend.calls()[-1])[-2:]
    assert [call["id"] for call in called["tool_calls"]] == [message["tool_call_id"] for message in results]
    assert [message["content"] for message in results] == list(RESULTS.values())
    assert len(backend.calls()) == 2


def test_conversation_that_the_server_keeps(server: Launcher, backend: Backend, connect: Connect) -> None:
    questions = [f"{backend.hello} {word}" for word in ("One?", "Two?", "Three?")]
    backend.replies[NODE] = answers(Answer(TOKENS))
    expected = [part for question in questions for part in (question, TEXT)][:-1]

    client: Any = connect(NPM_CLIENTS["openai-responses"], server.url)
    assert client.call("go_on", questions=questions) == [TEXT] * 3
    assert [message["content"] for message in conversation(backend.calls()[-1])] == expected

    previous = None
    with openai_client(server) as package:
        for question in questions:
            previous = package.responses.create(model=MODEL, input=question, previous_response_id=previous).id
        assert package.responses.retrieve(previous).output_text == TEXT
        assert [item.content[0].text for item in package.responses.input_items.list(previous)] == questions[-1:]
        package.responses.delete(previous)
    assert [message["content"] for message in conversation(backend.calls()[-1])] == expected


def of_openai(server: Launcher, question: str) -> Any:
    from pydantic import BaseModel

    class Town(BaseModel):
        name: str
        people: int

    with openai_client(server) as client:
        return client.responses.parse(model=MODEL, input=question, text_format=Town).output_parsed.model_dump()


def of_anthropic(server: Launcher, question: str) -> Any:
    import anthropic
    from pydantic import BaseModel

    class Town(BaseModel):
        name: str
        people: int

    with anthropic.Anthropic(base_url=server.url, api_key=KEY, max_retries=0) as client:
        return client.messages.parse(
            model=MODEL, max_tokens=100, messages=[{"role": "user", "content": question}], output_format=Town
        ).parsed_output.model_dump()


def of_langchain_openai(server: Launcher, question: str) -> Any:
    import langchain_openai

    model = langchain_openai.ChatOpenAI(
        base_url=f"{server.url}/v1", api_key=KEY, model=MODEL, max_retries=0, use_responses_api=True
    )
    return model.with_structured_output(TOWN_SCHEMA, method="function_calling").invoke(question)


def of_langchain_anthropic(server: Launcher, question: str) -> Any:
    import langchain_anthropic

    model = langchain_anthropic.ChatAnthropic(
        base_url=server.url, api_key=KEY, model=MODEL, max_retries=0, max_tokens=100
    )
    return model.with_structured_output(TOWN_SCHEMA).invoke(question)


@table(
    ("ask", "by_tool"),
    [(of_openai, False), (of_anthropic, False), (of_langchain_openai, True), (of_langchain_anthropic, True)],
)
def test_parsed_answer(server: Launcher, backend: Backend, ask: Callable[[Launcher, str], Any], by_tool: bool) -> None:
    call = Answer((), "tool_calls", calls=(Call("Town", TOWN, "call_1"),))
    backend.replies[NODE] = answers(call if by_tool else Answer(('{"name": "Tromsø", ', '"people": 77544}')))
    assert ask(server, backend.hello) == TOWN


def test_langchain_goes_on_from_the_last_response(server: Launcher, backend: Backend) -> None:
    import langchain_openai
    from langchain_core.messages import HumanMessage

    model = langchain_openai.ChatOpenAI(
        base_url=f"{server.url}/v1",
        api_key=KEY,
        model=MODEL,
        max_retries=0,
        use_responses_api=True,
        use_previous_response_id=True,
    )
    messages: list[Any] = [HumanMessage(backend.hello)]
    messages += [model.invoke(messages), HumanMessage(f"Go on. {backend.hello}")]
    model.invoke(messages)
    assert [message["role"] for message in conversation(backend.calls()[-1])] == ["user", "assistant", "user"]


def langchain_vectors(server: Launcher) -> Vectors:
    import langchain_openai

    package = langchain_openai.OpenAIEmbeddings(
        base_url=f"{server.url}/v1", api_key=KEY, model="any", check_embedding_ctx_length=False
    )
    return package.embed_documents(list(VECTORS))


def ollama_vectors(server: Launcher) -> Vectors:
    import langchain_ollama

    return langchain_ollama.OllamaEmbeddings(base_url=server.url, model="any").embed_documents(list(VECTORS))


@table("ask", [langchain_vectors, ollama_vectors])
def test_vectors(server: Launcher, backend: Backend, ask: Callable[[Launcher], Vectors]) -> None:
    backend.replies["embed"] = lambda request: json_reply(
        openai_embeddings([VECTORS[text] for text in request.json["input"]])
    )
    assert ask(server) == list(VECTORS.values())


@pytest.mark.parametrize("name", ["openai-responses", "ai-openai", "ollama"])
def test_vectors_of_npm(server: Launcher, backend: Backend, connect: Connect, name: str) -> None:
    backend.replies["embed"] = lambda request: json_reply(
        openai_embeddings([VECTORS[text] for text in request.json["input"]])
    )
    client: Any = connect(NPM_CLIENTS[name], server.url)
    assert client.call("embed", texts=list(VECTORS)) == list(VECTORS.values())


FAILURES: Mapping[str, list[tuple[dict[str, Any], list[Any]]]] = {
    "openai-responses": [
        ({"model": MODEL, "background": True, "input": "Hi"}, ["BadRequestError", 400, "background"]),
        (
            {"model": MODEL, "previous_response_id": "resp_none", "input": "Hi"},
            ["BadRequestError", 400, "previous_response_id"],
        ),
        ({"model": MODEL, "input": [{"type": "item_reference", "id": "msg_none"}]}, ["NotFoundError", 404, "input"]),
        ({"model": MODEL, "input": "Hi"}, ["InternalServerError", 502, None]),
    ],
    "anthropic": [
        (
            {"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": 5}]},
            ["BadRequestError", 400, "invalid_request_error"],
        ),
        (
            {"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]},
            ["InternalServerError", 502, "api_error"],
        ),
    ],
}


@pytest.mark.parametrize("name", FAILURES)
def test_error_classes_of_npm(server: Launcher, backend: Backend, connect: Connect, name: str) -> None:
    backend.replies[NODE] = status_reply(400, "no such model")
    client: Any = connect(NPM_CLIENTS[name], server.url)
    assert [client.call("fail", **body) for body, _ in FAILURES[name]] == [expected for _, expected in FAILURES[name]]


def test_error_classes_of_openai(server: Launcher, backend: Backend) -> None:
    import openai

    backend.replies[NODE] = status_reply(400, "no such model")
    with openai_client(server) as client:
        with pytest.raises(openai.BadRequestError) as wrong:
            client.responses.create(model=MODEL, input="Hi", background=True)
        assert wrong.value.param == "background"
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve("resp_none")
        with pytest.raises(openai.InternalServerError, match="no such model"):
            client.responses.create(model=MODEL, input=backend.hello)
