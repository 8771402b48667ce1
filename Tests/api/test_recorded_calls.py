"""What is recorded of the requests to LLM servers, and of all other work of nodes."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.addons.records import live_run, run_texts
from Middleware.addons.records.analysis.explanation import explain
from Middleware.addons.records.model import Span
from Middleware.addons.records.repeated_lists import LEAST_MESSAGES
from Middleware.common import instance_global_variables as instance
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.services.memory.memory_store import MemoryStore
from Middleware.services.memory_service import MemoryService
from Middleware.utilities import config_utils
from Middleware.utilities.discussions.discussion_folder import DiscussionFolder
from Middleware.utilities.files.file_access import process_lock
from Middleware.workflows.events import Listeners
from Tests.api.record_lab import RecordLab, named, record_lab
from Tests.backend_dialects import DIALECTS, Answer, Call, openai_embeddings
from Tests.stub_backend import RecordedRequest, Reply, chat_chunk, chat_reply, json_reply, sse_reply, status_reply
from Tests.tables import table
from Tests.workflows.engine_lab import assistant, llm, reply_to, static, user

SHIPPED = Path(__file__).parents[2] / "Public" / "Configs" / "ApiTypes"
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk" + "A" * 400
USAGE = (
    "usage.input_tokens",
    "usage.output_tokens",
    "usage.cache_read.input_tokens",
    "usage.cache_creation.input_tokens",
    "usage.reasoning.output_tokens",
)
TIMES = ("backend.load_ms", "backend.prompt_ms", "backend.generate_ms")


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordLab]:
    with record_lab(tmp_path, monkeypatch) as lab:
        yield lab


def figures(span: Span, names: tuple[str, ...]) -> tuple[object, ...]:
    return tuple(span.attributes[name] for name in names)


def speak(lab: RecordLab, api_type: str, **changes: Any) -> None:
    """Give the endpoint the shipped API type of a dialect."""
    dialect = DIALECTS[api_type]
    lab.write(f"ApiTypes/{dialect.name}", json.loads((SHIPPED / f"{dialect.name}.json").read_text("utf-8")))
    lab.write("Presets/lab/warm", {"temperature": 0.5, "seed": 7})
    lab.endpoint(
        "Main",
        {"apiTypeConfigFileName": dialect.name, "maxContextTokenSize": 8000, "promptTemplate": "chatml", **changes},
        lab.backend.url,
    )


# -- what was sent and what came back --------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("api_type", DIALECTS)
def test_the_payload_is_what_the_server_received(lab: RecordLab, api_type: str, stream: bool) -> None:
    dialect = DIALECTS[api_type]
    speak(lab, api_type)
    takes_tools = api_type in ("openAIChatCompletion", "ollamaApiChat", "claudeMessages")
    answer = Answer(
        reasoning=() if "ompletion" in api_type and not takes_tools else ("Let me ", "think"),
        calls=[Call("Find", {"what": "x"})] if takes_tools else (),
        finish="tool_calls" if takes_tools else "stop",
    )
    lab.backend.responder = lambda request: dialect.reply(answer, stream)
    tools = [{"type": "function", "function": {"name": "Find", "parameters": {"type": "object"}}}]
    lab.ask('Größe {of} "x" \ud83d\ude00 [1]', stream=stream, **({"tools": tools} if takes_tools else {}))
    run = lab.run()
    [attempt], [call] = named(run, "attempt"), named(run, "llm")
    assert attempt.texts["payload"] == lab.backend.requests[0].json, run.facts["error"]
    assert call.texts["answer"] == answer.text
    if takes_tools:
        [called] = call.texts["tool_calls"]  # type: ignore[misc]
        assert json.loads(called["function"]["arguments"]) == {"what": "x"}
    if api_type not in ("openAIV1Completion", "koboldCppGenerate"):
        assert call.texts["reasoning"] == "Let me think"
    assert attempt.attributes["http.status"] == 200 and attempt.attributes["server.address"] == "127.0.0.1"
    assert attempt.attributes["url.full"] == lab.backend.url + lab.backend.requests[0].path
    assert attempt.attributes["operation.name"] == ("chat" if takes_tools else "text_completion")


@pytest.mark.parametrize("in_events", [True, False], ids=["events", "one body"])
def test_a_streamed_call_without_arguments_is_recorded(lab: RecordLab, in_events: bool) -> None:
    speak(lab, "openAIChatCompletion")
    called = {"id": "call_1", "type": "function", "function": {"name": "Find", "arguments": "{}"}}
    # The arguments wait for others up to the end.
    events = [chat_chunk({"tool_calls": [{"index": 0, **called}]}), chat_chunk({}, "tool_calls"), "[DONE]"]
    body = {"choices": [{"message": {"content": None, "tool_calls": [called]}, "finish_reason": "tool_calls"}]}
    lab.backend.responder = lambda request: sse_reply(events) if in_events else json_reply(body)
    lab.ask("hi", stream=True, tools=[{"type": "function", "function": {"name": "Find"}}])
    [call] = named(lab.run(), "llm")
    assert call.texts["tool_calls"] == [called]


def test_the_runs_of_a_long_conversation_keep_each_message_once(lab: RecordLab) -> None:
    speak(lab, "openAIChatCompletion")
    said = [
        {"role": ("user", "assistant")[turn % 2], "content": f"message {turn}"} for turn in range(2 * LEAST_MESSAGES)
    ]
    for turns in (len(said) - 2, len(said)):
        lab.ask(messages=said[:turns])
    lab.run()
    kept: list[Any] = []
    # As they are kept: for whoever looks at them, their messages are compared again.
    for run, turns, request in zip(lab.runs, (len(said) - 2, len(said)), lab.backend.requests, strict=True):
        [sent] = [span.texts["request"] for span in run.spans if "request" in span.texts]
        [payload] = [span.texts["payload"] for span in named(run, "attempt")]
        kept += [sent, payload]
        assert kept[-2]["messages"] == said[:turns] and payload == request.json
    assert (
        len({id(message) for texts in kept for message in texts["messages"] if message["content"] == "message 5"}) == 1
    )


@pytest.mark.parametrize(
    ("api_type", "stream", "usage", "times"),
    [
        ("openAIChatCompletion", False, (11, 7, None, None, None), (None, None, None)),
        ("openAIV1Completion", True, (11, 7, None, None, None), (None, None, None)),
        ("ollamaApiChat", True, (11, 7, None, None, None), (1.0, 1.0, 2.0)),
        ("ollamaApiGenerate", False, (11, 7, None, None, None), (1.0, 1.0, 2.0)),
        ("koboldCppGenerate", True, (None, None, None, None, None), (None, None, None)),
        ("claudeMessages", True, (11, 7, None, None, None), (None, None, None)),
    ],
)
def test_tokens_and_times_are_those_that_were_reported(
    lab: RecordLab, api_type: str, stream: bool, usage: tuple[object, ...], times: tuple[object, ...]
) -> None:
    speak(lab, api_type)
    lab.backend.responder = lambda request: DIALECTS[api_type].reply(Answer(), stream)
    lab.ask(stream=stream)
    run = lab.run()
    [attempt] = named(run, "attempt")
    assert figures(attempt, USAGE) == usage and figures(attempt, TIMES) == times
    assert (run.facts["usage.input_tokens"], run.facts["usage.output_tokens"]) == usage[:2]
    assert run.facts["estimated"] is (usage[1] is None)
    # The word of the server.
    assert attempt.attributes["response.finish_reasons"] == ["end_turn" if api_type == "claudeMessages" else "stop"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_what_a_server_refuses_and_an_empty_answer(lab: RecordLab, stream: bool) -> None:
    def respond(request: RecordedRequest) -> Reply:
        if "temperature" in request.json:
            return status_reply(400, "Unsupported parameter: temperature")
        return DIALECTS["openAIChatCompletion"].reply(Answer((), "length", reasoning=("Hm",)), stream)

    speak(lab, "openAIChatCompletion", presetSamplers={"temperature": 0.5})
    lab.backend.responder = respond
    lab.ask(stream=stream)
    run = lab.run()
    refused, answered = named(run, "attempt")
    assert "left_out" not in refused.attributes and "empty" not in refused.attributes
    assert answered.attributes["left_out"] == ["temperature"] and answered.attributes["empty"] == "reasoning"
    odd = " ".join(explain(run)["odd"])
    assert " was asked for node " in odd and " without what it refuses: temperature." in odd
    assert " has nothing but reasoning." in odd


def test_the_details_of_openai_and_of_claude(lab: RecordLab) -> None:
    counted = {
        "prompt_tokens": 90,
        "completion_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 64},
        "completion_tokens_details": {"reasoning_tokens": 5},
    }
    lab.backend.responder = lambda request: chat_reply("x", usage=counted)  # type: ignore[arg-type]
    lab.ask()
    assert figures(named(lab.run(), "attempt")[0], USAGE) == (90, 12, 64, None, 5)
    assert lab.run().facts["usage.cache_read.input_tokens"] == 64
    speak(lab, "claudeMessages")
    body = {
        **DIALECTS["claudeMessages"].whole(Answer()),
        "usage": {
            "input_tokens": 10,
            "cache_creation_input_tokens": 20,
            "cache_read_input_tokens": 30,
            "output_tokens": 4,
        },
    }
    lab.backend.responder = lambda request: Reply(body=body)
    lab.records.ring.clear()
    lab.ask()
    assert figures(named(lab.run(), "attempt")[0], USAGE) == (60, 4, 30, 20, None)


def test_the_times_of_llama_cpp(lab: RecordLab) -> None:
    timings = {"cache_n": 412, "prompt_n": 88, "prompt_ms": 790.5, "predicted_n": 3, "predicted_ms": 31.25}
    lab.backend.responder = lambda request: sse_reply(
        [
            chat_chunk({"content": "Hel"}),
            chat_chunk({"content": "lo"}),
            chat_chunk({}, "stop", timings=timings),
            "[DONE]",
        ]
    )
    lab.ask(stream=True)
    [attempt] = named(lab.run(), "attempt")
    assert figures(attempt, TIMES) == (None, 790.5, 31.25)
    assert figures(attempt, USAGE) == (500, 3, 412, None, None)
    [call] = named(lab.run(), "llm")
    assert call.attributes["chunks"] == 2 and 0 <= int(call.attributes["time_to_first_token"] or 0) <= call.duration


def test_samplers_are_attributes(lab: RecordLab) -> None:
    speak(lab, "ollamaApiChat", presetSamplers={"temperature": 0.5, "seed": 7})
    lab.default([llm(maxResponseSizeInTokens=99)])
    lab.backend.responder = lambda request: DIALECTS["ollamaApiChat"].reply(Answer(), False)
    lab.ask()
    attributes = named(lab.run(), "attempt")[0].attributes
    assert (attributes["request.model"], attributes["response.model"]) == ("model-x", "stub-model")
    assert (attributes["request.temperature"], attributes["request.seed"], attributes["request.max_tokens"]) == (
        0.5,
        7,
        99,
    )
    assert attributes["provider.name"] == "ollama"


def test_a_retry_and_a_backup_are_attempts(lab: RecordLab) -> None:
    lab.endpoint("Main", {"backupEndpointName": "Spare"}, "http://127.0.0.1:9")
    lab.endpoint("Spare", {}, lab.backend.url)
    lab.backend.responder = None
    lab.backend.script(status_reply(503, "busy", headers={"Retry-After": "0"}), chat_reply("Hello"))
    lab.ask()
    run = lab.run()
    first, second, third = named(run, "attempt")
    [call] = named(run, "llm")
    assert [span.status for span in (first, second, third)] == ["error", "error", "ok"]
    assert [span.attributes["stands_in_for"] for span in (first, second, third)] == [None, "Main", "Main"]
    assert [span.attributes["http.status"] for span in (first, second, third)] == [None, 503, 200]
    assert "busy" in str(second.texts["error"]) and first.name == "Main"
    assert call.name == "Spare" and call.attributes["failed_endpoints"] == ["Main"]
    assert run.facts["endpoints"] == ["Spare"] and run.facts["status"] == "ok"


# -- the route -------------------------------------------------------------------------------------------------------


def test_the_route_and_its_reason(lab: RecordLab) -> None:
    lab.user(routingConfig="ways", categorizationWorkflow="Categorize", maxCategorizationAttempts=2)
    lab.write(
        "Routing/ways",
        {"CODING": {"description": "code", "workflow": "Coding"}, "CHAT": {"description": "talk", "workflow": "Talk"}},
    )
    lab.workflow("Categorize", [llm("Which?", title="Ask")])
    lab.workflow("Coding", [static("print()")])
    lab.backend.responder = None
    lab.backend.script(chat_reply("no idea"), chat_reply("CODING"))
    lab.ask("Write a snake game")
    run = lab.run()
    [route] = named(run, "route")
    assert (run.facts["route"], run.facts["workflow"]) == ("CODING -> Coding", "Coding")
    assert run.facts["route.reason"] == "category CODING, named by Categorize at attempt 2 of 2"
    assert route.attributes == {"candidates": ["CODING", "CHAT"], "chosen": "CODING", "attempts": 2}
    assert route.texts["request"]["messages"] == [user("Write a snake game")]  # type: ignore[index]
    inside = [span.name for span in named(run, "workflow") if span.parent == route.id]
    assert inside == ["Categorize", "Categorize"] and run.facts["answer"] == "print()"


# -- other work ------------------------------------------------------------------------------------------------------


def test_a_script_is_a_tool(lab: RecordLab, tmp_path: Path) -> None:
    script = tmp_path / "shout.py"
    script.write_text("def Invoke(text, mark='!'):\n    return text.upper() + mark\n", encoding="utf-8")
    lab.default([{"type": "PythonModule", "module_path": str(script), "args": ["hi"], "kwargs": {"mark": "?"}}])
    lab.ask()
    [tool] = named(lab.run(), "tool")
    assert (tool.status, tool.attributes["tool.type"]) == ("ok", "script")
    assert tool.texts == {"arguments": {"args": ["hi"], "kwargs": {"mark": "?"}}, "result": "HI?"}


def test_a_web_page_is_a_tool(lab: RecordLab) -> None:
    lab.backend.responder = lambda request: chat_reply("page") if request.method == "GET" else None
    lab.default(
        [
            {
                "type": "WebFetch",
                "url": f"{lab.backend.url}/page?api_key=s3cret",
                "headers": {"Authorization": "Bearer s3cret"},
            }
        ]
    )
    lab.ask()
    run = lab.run()
    [tool] = named(run, "tool")
    assert (tool.attributes["tool.type"], tool.attributes["server.address"], tool.attributes["http.status"]) == (
        "web",
        "127.0.0.1",
        200,
    )
    assert "page" in str(tool.texts["result"]) and "s3cret" not in str(run.spans)


def test_embeddings_have_spans_of_their_own(lab: RecordLab) -> None:
    lab.write("ApiTypes/Vectors", {"type": "openAIEmbeddings"})
    lab.endpoint("Vectors", {"apiTypeConfigFileName": "Vectors"}, lab.backend.url)
    lab.backend.responder = lambda request: (
        Reply(body=openai_embeddings([[1.0, 0.5]])) if "embeddings" in request.path else reply_to(request, "ok")
    )
    script = lab.root / "embed.py"
    script.write_text(
        "from Middleware.llmapis.embedding_api import EmbeddingApiService\n"
        "def Invoke():\n    return str(EmbeddingApiService('Vectors').embed(['a {text}']))\n",
        "utf-8",
    )
    lab.default([{"type": "PythonModule", "module_path": str(script)}])
    lab.ask()
    [span] = named(lab.run(), "embedding")
    assert (span.status, span.attributes["texts"], span.attributes["usage.input_tokens"]) == ("ok", 1, 11)
    assert span.texts["inputs"] == ["a {text}"] and span.attributes["operation.name"] == "embeddings"


def test_warnings_of_the_log_are_notes(lab: RecordLab) -> None:
    lab.records.begin()
    try:
        lab.default([{"type": "NoSuchType", "endpointName": "Main", "prompt": "x", "title": "Odd"}])
        lab.ask()
        logging.getLogger("elsewhere").warning("of no request")
    finally:
        lab.records.close()
    [note] = named(lab.run(), "note")
    assert note.attributes["level"] == "warning" and "NoSuchType" in str(note.texts["message"])


def test_the_configuration_of_a_run_is_named_with_its_version(lab: RecordLab) -> None:
    lab.ask()
    run = lab.run()
    paths = [version["path"] for version in run.facts["config"]]
    assert {
        "Workflows/tester/_DefaultWorkflow.json",
        "Endpoints/lab/Main.json",
        "ApiTypes/OpenAI.json",
        "Users/tester.json",
    } <= set(paths)
    hashes = {version["path"]: version["hash"] for version in run.facts["config"]}
    assert json.loads(run.config_texts[hashes["Endpoints/lab/Main.json"]])["endpoint"] == lab.backend.url


# -- whose run it is, and limits -------------------------------------------------------------------------------------


def test_a_conversation_is_recognised(lab: RecordLab) -> None:
    first = [user("Hello"), {"role": "assistant", "content": "Hi"}, user("Next")]
    lab.ask("Hello")
    lab.ask(messages=first)
    lab.ask("Other")
    hashes = [run_texts.normalised(run).facts["conversation"] for run in lab.runs]
    assert hashes[0] == hashes[1] != hashes[2] and len(str(hashes[0])) == 16


def test_a_private_run_is_marked(lab: RecordLab) -> None:
    lab.user(encryptUsingApiKey=True)
    lab.ask(headers={"Authorization": "Bearer k-1"})
    run = lab.run()
    assert run.facts["private"] and run.encryption_key and run.facts["conversation"] is None
    assert len(str(run.facts["key_hash"])) == 16


@table("stream", [False, True])
@table(
    "model",
    [
        "the owl sleeps in the mill",
        "tester:the owl sleeps in the mill",
        # Nearly the name of a model.
        "tester-the owl sleeps in the mill",
        "tester:Shred the owl sleeps in the mill",
        "the owl sleeps in the mill:latest",
    ],
)
@table("setting", ["encryptUsingApiKey", "redactLogOutput"])
def test_the_model_text_of_a_private_run_is_not_kept(
    lab: RecordLab, caplog: pytest.LogCaptureFixture, setting: str, model: str, stream: bool
) -> None:
    caplog.set_level(logging.DEBUG)
    for is_private in (False, True):
        caplog.clear()
        lab.user(**{setting: is_private})
        config_utils.reset_config_store()
        lab.ask(model=model, stream=stream, headers={"Authorization": "Bearer k-1"})
        run = lab.run()
        attributes = [span.attributes for span in run.spans]
        said = f"{run.facts['model']} {run.facts['route.reason']} {attributes} {caplog.text}"
        assert run.facts["private"] is is_private and run.facts["model"]
        assert ("owl sleeps" in said) is not is_private, said


def test_images_are_not_kept(lab: RecordLab) -> None:
    parts = [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
    ]
    lab.default([llm(acceptImages=True)])
    lab.backend.responder = lambda request: chat_reply("a pixel")
    lab.ask(messages=[{"role": "user", "content": parts}])
    run = lab.run()
    assert PIXEL[:100] not in str([span.as_row() for span in run.spans])
    assert run.facts["question"] == "What is this?"


def test_the_turns_of_a_long_conversation_share_their_messages(lab: RecordLab) -> None:
    picture = {
        "role": "user",
        "content": [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}],
    }
    said: list[dict[str, Any]] = [
        {"role": "assistant" if number % 2 else "user", "content": f"message {number}"} for number in range(60)
    ]
    said.insert(30, picture)
    lab.default([llm(acceptImages=True, lastMessagesToSendInsteadOfPrompt=1000)])
    for turn in range(3):
        lab.ask(messages=[*said, user(f"turn {turn}")], stream=False)
        said += [user(f"turn {turn}"), {"role": "assistant", "content": f"answer {turn}"}]
    found = [run_texts.normalised(run) for run in lab.runs]
    for run, request in zip(found, lab.backend.requests, strict=True):
        payload: Any = named(run, "attempt")[0].texts["payload"]
        sent = request.json
        assert PIXEL[:100] in json.dumps(sent) and PIXEL[:100] not in json.dumps(payload)
        pairs = list(zip(payload["messages"], sent["messages"], strict=True))
        assert [one for one, other in pairs if one != other] == [one for one, other in pairs if PIXEL in str(other)]
    first, last = (run.spans[0].texts["request"]["messages"] for run in (found[0], found[2]))  # type: ignore[index]
    assert all(one is other for one, other in zip(first[:30], last, strict=False))
    assert found[0].size < found[1].size < found[2].size < found[0].size + 200


@pytest.mark.parametrize(
    "api_type", ["openAIChatCompletion", "ollamaApiChat", "claudeMessages", "koboldCppGenerate", "ollamaApiGenerate"]
)
def test_of_an_image_its_type_and_size_are_kept(lab: RecordLab, api_type: str) -> None:
    speak(lab, api_type)
    lab.default([llm(acceptImages=True)])
    lab.backend.responder = lambda request: DIALECTS[api_type].reply(Answer(), False)
    lab.ask(
        messages=[
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "What is this?"},
                    {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
                ],
            }
        ]
    )
    run = lab.run()
    payload = named(run, "attempt")[0].texts["payload"]
    sent = json.dumps(lab.backend.requests[0].json)
    assert PIXEL in sent
    # In place of the image, and nothing else is changed.
    kept = json.dumps({"image": "image/png", "bytes": len(PIXEL) * 3 // 4})
    assert json.dumps(payload).count(kept) == sent.count(PIXEL) == 1
    assert kept in json.dumps(run.spans[0].texts["request"])


def test_long_texts_keep_their_ends(lab: RecordLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_texts, "MAX_TEXT", 1000)
    monkeypatch.setattr(run_texts, "KEPT_END", 400)
    lab.ask("a" * 700 + "b" * 700)
    run = lab.run()
    content = str(named(run, "attempt")[0].texts["payload"]["messages"][0]["content"])  # type: ignore[index]
    assert content.startswith("a" * 400) and content.endswith("b" * 400) and "600 characters" in content
    assert run.text_bytes_left_out >= 600 and len(str(run.facts["question"])) == 500


def test_a_run_keeps_so_many_spans_and_texts(lab: RecordLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_run, "MAX_SPANS", 5)
    monkeypatch.setattr(run_texts, "MAX_RUN_TEXTS", 10)
    lab.default([static(f"number {index}") for index in range(10)])
    lab.ask()
    run = lab.run()
    assert len(run.spans) == 5 and run.spans_left_out == 6 and run.text_bytes_left_out > 0
    assert run.facts["nodes"] == 10


def test_without_recording_nothing_is_kept_of_texts(lab: RecordLab) -> None:
    lab.record("off")
    lab.ask("a secret sentence")
    run = lab.run()
    assert run.facts["question"] is None and not any(span.texts for span in run.spans)
    assert not (lab.root.parent / "Console").exists()


def test_work_on_stored_data_is_a_step(lab: RecordLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance, "DISCUSSION_DIRECTORY", str(tmp_path / "D"))
    request, folder = RequestContext(listeners=Listeners([lab.records.recorder])), DiscussionFolder("mill")
    request.report("request_arrived", request)
    with request_scope(request):
        MemoryStore(folder).append_memory("Mara hid it.", "hash")
        with folder.memories(write=True) as memories:
            memories.store_chunk([("It rained.", "{}")], "later")
        MemoryService().search_vector_memories("mill", "rained")
    request.report("request_finished", request)
    spans = named(lab.run(), "memory")
    assert [span.attributes for span in spans] == [
        {"store": "file", "action": "write", "items": 1, "messages": ["hash"]},
        {"store": "vector", "action": "write", "items": 1, "messages": ["later"]},
        {"store": "vector", "action": "read", "found": 1},
    ]
    assert [span.texts.get("written") for span in spans] == ["Mara hid it.", ["It rained."], None]


def test_what_a_recall_node_looked_for_and_found_is_recorded(
    lab: RecordLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instance, "DISCUSSION_DIRECTORY", str(tmp_path / "D"))
    lab.user(discussionIdMemoryFileWorkflowSettings="memory")
    lab.write("Workflows/tester/memory", {"rememberMessages": True, "timeZone": "none"})
    lab.workflow("_DefaultWorkflow", [{"title": "Look", "type": "Recall"}, static("{agent1Output}")])
    tagged = user("[DiscussionId]mill[/DiscussionId]The ledger is in the boat.")
    lab.ask(messages=[tagged])
    lab.ask(messages=[tagged, assistant("Good."), user("Is the ledger in the boat?")])
    (found,) = named(lab.run(), "memory")
    assert found.attributes == {"store": "messages", "action": "read", "found": 3, "lines": 2, "tokens": 17}
    assert found.texts == {"terms": "ledger; boat"}


def test_a_wait_for_a_lock_is_recorded(lab: RecordLab, tmp_path: Path) -> None:
    request, path = RequestContext(listeners=Listeners([lab.records.recorder])), str(tmp_path / ".lock")
    request.report("request_arrived", request)
    go_on, held = threading.Event(), threading.Event()

    class Waiting:
        """A scope, at which a wait looks after each attempt: it lets go of the lock once the wait has been reported."""

        asked = 0

        @property
        def cancelled(self) -> bool:
            self.asked += 1
            if self.asked > 1:
                go_on.set()
            return False

    def hold() -> None:
        with process_lock(path):
            held.set()
            go_on.wait(60)

    other = threading.Thread(target=hold)
    other.start()
    assert held.wait(60)
    with request_scope(request), process_lock(path, Waiting()):  # type: ignore[arg-type]
        pass
    other.join(60)
    request.report("request_finished", request)
    [wait] = named(lab.run(), "wait")
    assert (wait.name, wait.attributes["for"], wait.status) == ("lock", "lock", "ok") and wait.duration > 0
