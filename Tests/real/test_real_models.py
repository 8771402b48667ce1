"""A model that understands what it reads, behind llama.cpp's server, with the workflows that ``init`` writes for it.

SmolLM2 135M writes sentences but knows little; what only a larger model gets right is asked of the one at the path in
the environment variable ``LLAMA_MODEL``. Each checks the wire and the form of answers, and none how clever they are.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.prefix_cache import written_by_init
from Tests.integration.launcher import USER, ConfigTree, Launcher, Response, read_until, sse_payloads
from Tests.real.servers import RealServer, busy, llama_server, smollm2
from Tests.stub_backend import RecordedRequest, Reply, StubBackend, chat_reply, json_reply

pytestmark = pytest.mark.real

SMALL, GIVEN = "SmolLM2", "LLAMA_MODEL"
SECONDS = 600.0
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome", "Madrid"]}},
    "required": ["city"],
    "additionalProperties": False,
}

# Gemma's and Mistral's templates refuse what this one does.
STRICT = """{% for message in messages %}{% if message['role'] == 'system' and loop.index0 > 0 %}\
{{ raise_exception('system in the middle') }}{% endif %}{% endfor %}\
{% set said = messages | rejectattr('role', 'eq', 'system') | list %}\
{% for message in said %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('Conversation roles must alternate') }}{% endif %}\
{{ message['role'] }}: {{ message['content'] }}
{% endfor %}assistant:"""


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def system(text: str) -> dict[str, str]:
    return {"role": "system", "content": text}


CONVERSATIONS = {
    "plain": [user("Hello"), assistant("Hi."), user("How are you?")],
    "system": [system("Be kind."), user("Hello"), assistant("Hi."), user("How are you?")],
    "greeting first": [system("Be kind."), assistant("Welcome!"), user("Hello"), assistant("Hi."), user("And you?")],
    "two users": [user("Hello"), user("Are you there?")],
    "two assistants": [user("Hello"), assistant("Hi."), assistant("There."), user("And you?")],
    "empty answer": [user("Hello"), assistant(""), user("Once more: hello")],
    "system in the middle": [user("Hello"), assistant("Hi."), system("Now be brief."), user("And you?")],
    "continue": [user("Tell me a story."), assistant("Once upon a time")],
    "two systems": [system("Be kind."), system("Be brief."), user("Hello")],
}
PLAIN = ("plain", "system", "two users")


@dataclass
class Behind:
    """WilmerAI with the configuration that ``init`` wrote for a server, and workflows of these tests."""

    name: str
    model: RealServer
    tree: ConfigTree
    wilmer: Launcher

    def ask(self, model: str, messages: Sequence[dict[str, str]], stream: bool = False, **fields: Any) -> Response:
        answer = self.wilmer.request(
            "POST",
            "/v1/chat/completions",
            {"model": f"{USER}:{model}", "messages": messages, "stream": stream, **fields},
            SECONDS,
        )
        assert answer.status == 200, answer.body
        return answer

    def post(self, path: str, body: Any) -> tuple[int, Any]:
        """Status and JSON of a request to the model's server itself."""
        connection = http.client.HTTPConnection("127.0.0.1", self.model.port, timeout=SECONDS)
        try:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()


def given_model() -> Path:
    if not (path := os.environ.get(GIVEN)):
        pytest.skip(f"left out: {GIVEN} names no GGUF file of a larger model")
    return Path(path)


@pytest.fixture(scope="module")
def recorder() -> Iterator[StubBackend]:
    """A server that keeps the prompts which reach it."""

    def reply(request: RecordedRequest) -> Reply:
        if request.path.endswith("/chat/completions"):
            return chat_reply("CONVERSATION")
        return json_reply({"choices": [{"index": 0, "text": "Fine.", "finish_reason": "stop"}]})

    with StubBackend() as backend:
        backend.responder = reply
        yield backend


@pytest.fixture(scope="module", params=[SMALL, GIVEN])
def behind(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, recorder: StubBackend
) -> Iterator[Behind]:
    folder = tmp_path_factory.mktemp(request.param)
    with llama_server(folder, given_model() if request.param == GIVEN else smollm2()) as model:
        written_by_init(folder / "Public", USER, model.url)
        tree = ConfigTree(folder / "Public")
        _add_workflows(tree, recorder.url)
        with Launcher("run_waitress.py", "--PublicDirectory", tree.public, "--User", USER) as wilmer:
            yield Behind(request.param, model, tree, wilmer)


def _add_workflows(tree: ConfigTree, recorder_url: str) -> None:
    main = json.loads((tree.configs / f"Endpoints/{USER}/Main.json").read_text(encoding="utf-8"))
    tree.write(
        "ApiTypes/Text.json",
        {
            "type": "openAIV1Completion",
            "presetType": "Text",
            "maxNewTokensPropertyName": "max_tokens",
            "streamPropertyName": "stream",
        },
    )
    tree.write(
        "PromptTemplates/chatml-fixed.json",
        (Path(__file__).parents[2] / "Public/Configs/PromptTemplates/chatml-fixed.json").read_text(encoding="utf-8"),
    )
    tree.write(f"StructuredOutputs/{USER}/city.json", SCHEMA)
    for name, endpoint, node in (
        ("stop", {"presetSamplers": {"grammar": 'root ::= "one two END three"', "stop": ["END"]}}, {}),
        ("schema", {"presetSamplers": {"temperature": 0}}, {"structuredOutputFile": "city"}),
        ("messages", {"endpoint": recorder_url, "alternateRoles": False}, {}),
        # Prompts are trimmed at both ends, and ChatML ends with a line break.
        (
            "text",
            {
                "endpoint": recorder_url,
                "apiTypeConfigFileName": "Text",
                "promptTemplate": "chatml-fixed",
                "alternateRoles": False,
                "addTextToStartOfCompletion": True,
                "textToAddToStartOfCompletion": "\n",
            },
            {},
        ),
    ):
        tree.write(f"Endpoints/{USER}/{name}.json", {**main, **endpoint})
        tree.write(
            f"Workflows/{USER}/{name}/_DefaultWorkflow.json",
            {
                "nodes": [
                    {
                        "type": "Standard",
                        "title": name,
                        "endpointName": name,
                        "systemPrompt": "Answer briefly.",
                        "prompt": "",
                        "lastMessagesToSendInsteadOfPrompt": 20,
                        "maxResponseSizeInTokens": 60,
                        "forceGenerationPromptIfEndpointAllows": True,
                        "returnToUser": True,
                        **node,
                    }
                ]
            },
        )


def sent(recorder: StubBackend) -> Any:
    """The body of the request that the recorder got last."""
    return recorder.requests[-1].json


def test_a_template_of_ours_makes_the_prompt_that_the_model_wants(behind: Behind, recorder: StubBackend) -> None:
    if "<|im_start|>" not in behind.post("/apply-template", {"messages": [user("x")]})[1]["prompt"]:
        pytest.skip("the model's template is not ChatML, which the test compares")
    for name in PLAIN:
        behind.ask("messages", CONVERSATIONS[name])
        messages = sent(recorder)["messages"]
        behind.ask("text", CONVERSATIONS[name])
        assert sent(recorder)["prompt"] == behind.post("/apply-template", {"messages": messages})[1]["prompt"], name


def test_a_strict_template_accepts_every_conversation(tmp_path: Path, recorder: StubBackend) -> None:
    template = tmp_path / "strict.jinja"
    template.write_text(STRICT, encoding="utf-8")
    with llama_server(tmp_path, options=["--chat-template-file", str(template)]) as model:
        written_by_init(tmp_path / "Public", USER, model.url)
        tree = ConfigTree(tmp_path / "Public")
        for name in ("Main", "Worker"):
            path = f"Endpoints/{USER}/{name}.json"
            tree.write(
                path, {**json.loads((tree.configs / path).read_text(encoding="utf-8")), "endpoint": recorder.url}
            )
        with Launcher("run_waitress.py", "--PublicDirectory", tree.public, "--User", USER) as wilmer:
            behind = Behind("", model, tree, wilmer)
            refused = {
                name
                for name, messages in CONVERSATIONS.items()
                if behind.post("/apply-template", {"messages": messages})[0] != 200
            }
            # Otherwise the template would not be strict.
            assert {"two users", "system in the middle", "greeting first"} <= refused
            for name, messages in CONVERSATIONS.items():
                for way in ("chat", "assistant", "memory"):
                    recorder.next_row()
                    behind.ask(way, messages)
                    for request in recorder.requests:
                        status, answer = behind.post("/apply-template", {"messages": request.json["messages"]})
                        assert status == 200, (name, way, answer, request.json["messages"])


def test_a_stop_word_ends_the_answer(behind: Behind) -> None:
    answer = behind.ask("stop", [user("Count.")])
    assert answer.text.strip() == "one two"
    assert answer.json["choices"][0]["finish_reason"] == "stop"


def test_the_answer_keeps_to_a_schema(behind: Behind) -> None:
    city = json.loads(behind.ask("schema", [user("What is the capital of Norway?")]).text)["city"]
    assert city in SCHEMA["properties"]["city"]["enum"]
    assert city == "Oslo" or behind.name == SMALL


def test_a_message_takes_a_route(behind: Behind) -> None:
    size = behind.wilmer.output_size()
    behind.ask("assistant", [user("Write a Python function that adds two numbers.")], max_tokens=40)
    line = behind.wilmer.wait_output(" done after ", 60, since=size)
    found = re.search(r"(_Coding|_Writing|memory/_DefaultWorkflow)", line)
    assert found, line
    assert found[1] == "_Coding" or behind.name == SMALL


def test_memories_are_written_behind_the_answer(behind: Behind) -> None:
    messages = [system("[DiscussionId]real[/DiscussionId]Be brief.")]
    for number in range(7):
        messages += [user(f"My friend number {number} is called Ann and lives in Oslo."), assistant("I see.")]
    size = behind.wilmer.output_size()
    behind.ask("memory", [*messages, user("Who lives in Oslo?")])
    behind.wilmer.wait_output(" done after ", SECONDS, since=size)
    kept = "\n".join(file.read_text(encoding="utf-8") for file in behind.tree.public.rglob("*real*/*memor*.json"))
    assert kept
    assert not re.search(r"</?(part|notes|summary)>", kept), kept


def test_a_second_message_is_read_from_the_cache(behind: Behind) -> None:
    messages = [system("Be brief. " * 100), user("Hello")]
    first = behind.ask("chat", messages).json
    before = first["usage"]["prompt_tokens"]
    messages += [assistant(first["choices"][0]["message"]["content"]), user("And you?")]
    again = behind.ask("chat", messages).json["usage"]
    # Where an answer is trimmed, it is read again.
    assert before - 1 <= again["prompt_tokens_details"]["cached_tokens"] < again["prompt_tokens"]

    streamed = behind.ask("chat", messages, stream=True, stream_options={"include_usage": True})
    usage = [json.loads(payload).get("usage") for payload in sse_payloads(streamed.body) if payload != "[DONE]"][-1]
    assert usage["prompt_tokens"] == again["prompt_tokens"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == again["prompt_tokens"] - 1


def test_a_client_that_leaves_frees_the_slot(behind: Behind) -> None:
    text = "Write a very long story about a harbour town, with many people in it."
    body = json.dumps({"model": f"{USER}:chat", "messages": [user(text)], "stream": True}).encode()
    connection = http.client.HTTPConnection("127.0.0.1", behind.wilmer.port, timeout=SECONDS)
    connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
    assert connection.sock is not None
    try:
        read_until(connection.sock, b'"content"', SECONDS)
        assert busy(behind.model)
    finally:
        connection.close()
    deadline = time.monotonic() + 30
    while busy(behind.model) and time.monotonic() < deadline:
        time.sleep(1)
    assert not busy(behind.model)
