"""The ImageProcessor node against a real HTTP back-end, with real images."""

from __future__ import annotations

import base64
import json
import logging
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.common import instance_global_variables as instance
from Middleware.exceptions import BackendStatusError, ConfigValueError, EarlyTerminationException
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.services.vision_cache import recent_descriptions
from Middleware.utilities.hashing_utils import hash_message_with_images
from Middleware.utilities.text_utils import escape_braces
from Middleware.workflows.handlers.impl.specialized.image_processor import (
    DEFAULT_MESSAGE,
    NO_IMAGES,
    ImageProcessorHandler,
)
from Middleware.workflows.managers.workflow_manager import WorkflowManager
from Tests.stub_backend import RecordedRequest, Reply, StubBackend, chat_reply, status_reply
from Tests.workflows.engine_lab import EngineLab, Message, Probe, assistant, llm, reply_to, static, user

SEPARATOR = "\n-------------\n"
TAG = "[DiscussionId]k1[/DiscussionId]"


def png(red: int) -> str:
    """A real picture of one pixel as a data URI."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0))
    data += chunk(b"IDAT", zlib.compress(bytes([0, red, 0, 0]))) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(data).decode()


RED, DARK, BLACK = png(255), png(128), png(0)
NAMES = {RED: "red", DARK: "dark", BLACK: "black"}


def shown(text: str, *images: str, role: str = "user") -> Message:
    return {"role": role, "content": text, "images": list(images)}


def images_sent(request: RecordedRequest) -> list[str]:
    return [
        part["image_url"]["url"]
        for message in request.json["messages"]
        if isinstance(message["content"], list)
        for part in message["content"]
        if part["type"] == "image_url"
    ]


def texts_sent(request: RecordedRequest) -> list[str]:
    return [
        message["content"] if isinstance(message["content"], str) else message["content"][0]["text"]
        for message in request.json["messages"]
    ]


def name_image(request: RecordedRequest) -> Reply:
    """Says which picture came along."""
    images = images_sent(request)
    return reply_to(request, "+".join(NAMES[image] for image in images) if images else f"<{texts_sent(request)[-1]}>")


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineLab]:
    monkeypatch.setattr(instance, "DISCUSSION_DIRECTORY", str(tmp_path / "D"))
    recent_descriptions().clear()
    with StubBackend() as backend:
        lab = EngineLab(tmp_path / "Configs", monkeypatch, backend)
        backend.responder = name_image
        yield lab
    recent_descriptions().clear()


def eyes(**more: Any) -> dict[str, Any]:
    return {"type": "ImageProcessor", "endpointName": "Main", "prompt": "What is shown?", **more}


def saving(**more: Any) -> dict[str, Any]:
    return eyes(saveVisionResponsesToDiscussionId=True, **more)


def run_on(lab: EngineLab, nodes: list[dict[str, Any]], messages: list[Message], **options: Any) -> Any:
    """The result of the nodes, and in ``messages`` what they made of the conversation."""
    lab.workflow("Main", nodes)
    probes = {"ImageProcessor": ImageProcessorHandler(), **options.pop("probes", {})}
    manager = WorkflowManager("Main", listeners=[])
    manager.node_handlers.update(probes)
    with request_scope(lab.request):
        results = list(manager.start(lab.request, messages, **options))
    if options.get("stream"):
        return "".join(chunk["token"] for chunk in results)
    return results[-1]


def run(lab: EngineLab, node: dict[str, Any], *messages: Message, **options: Any) -> Any:
    return run_on(lab, [node], list(messages), **options)


def described(lab: EngineLab) -> list[str]:
    return sorted(NAMES[image] for request in lab.backend.requests for image in images_sent(request))


def stored(lab: EngineLab) -> Any:
    path = Path(str(instance.DISCUSSION_DIRECTORY)) / "k1" / "vision_responses.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


# -- what is described -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("node", [eyes(), eyes(addAsUserMessage=True), saving(), saving(addAsUserMessage=True)])
def test_without_images(lab: EngineLab, node: dict[str, Any]) -> None:
    messages = [user(TAG + "hi"), assistant("yo")]
    assert run_on(lab, [node], messages) == NO_IMAGES
    assert lab.backend.requests == [] and messages == [user("hi"), assistant("yo")] and stored(lab) is None


def test_two_images_in_one_message(lab: EngineLab) -> None:
    assert run(lab, eyes(), shown("look", RED, DARK)) == f"red{SEPARATOR}dark"
    assert [len(images_sent(request)) for request in lab.backend.requests] == [1, 1]


def test_every_message_in_order(lab: EngineLab) -> None:
    conversation = [shown("a", DARK), assistant("b"), shown("c", RED), user("d")]
    assert run(lab, eyes(), *conversation) == f"dark{SEPARATOR}red"


def test_the_same_image_again_is_not_asked_about_again(lab: EngineLab) -> None:
    assert run(lab, eyes(), shown("a", RED, RED), shown("b", RED)) == SEPARATOR.join(["red"] * 3)
    assert described(lab) == ["red"]


def test_blank_descriptions_are_dropped(lab: EngineLab) -> None:
    lab.backend.responder = lambda request: chat_reply(" \n" if images_sent(request) == [RED] else "seen")
    assert run(lab, eyes(), shown("a", RED, DARK)) == "seen"


def test_only_blank_descriptions(lab: EngineLab) -> None:
    lab.backend.responder = lambda request: chat_reply("")
    messages = [shown("a", RED), user("b")]
    assert run_on(lab, [eyes(addAsUserMessage=True)], messages) == "" and len(messages) == 2


@pytest.mark.parametrize("look_back", [0, 1, 5, None])
def test_prompt_mode_attaches_images_however_old(lab: EngineLab, look_back: int | None) -> None:
    conversation = [shown("old", RED), *[user(str(number)) for number in range(9)]]
    node = eyes(systemPrompt="S", lastMessagesToSendInsteadOfPrompt=look_back)
    assert run(lab, node, *conversation) == "red"
    assert texts_sent(lab.backend.requests[0]) == ["S", "What is shown?"]


def test_conversation_mode_keeps_the_image_on_its_message(lab: EngineLab) -> None:
    conversation = [shown("a", RED), assistant("b"), shown("c", DARK)]
    assert run(lab, eyes(prompt=""), *conversation) == f"red{SEPARATOR}dark"
    sent = {NAMES[images_sent(request)[0]]: request for request in lab.backend.requests}
    assert texts_sent(sent["red"]) == texts_sent(sent["dark"]) == ["a", "b", "c"]
    assert isinstance(sent["red"].json["messages"][0]["content"], list)
    assert isinstance(sent["dark"].json["messages"][2]["content"], list)


@pytest.mark.parametrize(
    "more",
    [
        {"lastMessagesToSendInsteadOfPrompt": 2},
        {"lastMessagesToSendInsteadOfPrompt": 0},
        {"lastMessagesToSendInsteadOfPromptMaxTokenSize": 1},
        {"clampPromptToContextWindow": True},
    ],
)
def test_conversation_mode_attaches_images_that_would_be_left_out(lab: EngineLab, more: dict[str, Any]) -> None:
    lab.endpoint("Main", {"maxContextTokenSize": 913}, lab.backend.url)  # leaves room for one token of conversation
    conversation = [shown("old " * 40, RED), assistant("b"), user("c"), assistant("d")]
    assert run(lab, eyes(prompt="", **more), *conversation) == "red"


def test_conversation_mode_attaches_images_before_the_block_that_is_sent(lab: EngineLab) -> None:
    node = eyes(prompt="", lastMessagesToSendInsteadOfPrompt=3, messageBlockSize=2)
    assert run(lab, node, user("a"), shown("b", RED), user("c"), user("d")) == "red"
    assert texts_sent(lab.backend.requests[0]) == ["c", "d"]


@pytest.mark.parametrize("role", ["assistant", "system", "tool"])
@pytest.mark.parametrize("prompt", ["", "What?"])
def test_images_of_any_role_reach_the_model(lab: EngineLab, role: str, prompt: str) -> None:
    conversation = [user("a"), shown("b", RED, role=role), user("c")]
    assert run(lab, eyes(prompt=prompt), *conversation) == "red"


def test_conversation_without_user(lab: EngineLab) -> None:
    assert run(lab, eyes(prompt=""), shown("b", RED, role="assistant")) == "red"


@pytest.mark.parametrize(("prompt", "look_back"), [("", 1), ("", 0), ("What?", 1)])
def test_completion_back_end(lab: EngineLab, prompt: str, look_back: int) -> None:
    lab.write("ApiTypes/Kobold", {"type": "koboldCppGenerate", "presetType": "Kobold", "samplerFieldMap": {}})
    lab.endpoint("Main", {"apiTypeConfigFileName": "Kobold", "promptTemplate": "chatml"}, lab.backend.url)
    lab.backend.responder = lambda request: Reply(body={"results": [{"text": "seen"}]})
    conversation = [shown("a", RED), user("b"), user("c"), user("d")]
    assert run(lab, eyes(prompt=prompt, lastMessagesToSendInsteadOfPrompt=look_back), *conversation) == "seen"
    assert lab.backend.requests[0].json["images"] == [RED.partition(",")[2]]


# -- the answers -------------------------------------------------------------------------------------------------------


def test_never_streamed(lab: EngineLab) -> None:
    assert run(lab, eyes(), shown("a", RED, DARK), stream=True) == f"red{SEPARATOR}dark"
    assert [request.json["stream"] for request in lab.backend.requests] == [False, False]


def test_answer_with_tool_calls_counts_by_its_content(lab: EngineLab) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    lab.backend.responder = lambda request: Reply(
        body={
            "choices": [
                {
                    "message": {"role": "assistant", "content": "seen", "tool_calls": [call]},
                    "finish_reason": "tool_calls",
                }
            ]
        }
    )
    assert run(lab, eyes(), shown("a", RED)) == "seen"


def test_answers_are_cleaned_one_by_one(lab: EngineLab) -> None:
    """Once: ``handle`` is called directly, so that no cleaning of the engine helps."""
    lab.endpoint(
        "Main",
        {"removeCustomTextFromResponseStartEndpointWide": True, "responseStartTextToRemoveEndpointWide": ["A:"]},
        lab.backend.url,
    )
    lab.backend.responder = lambda request: chat_reply("A:A:" + NAMES[images_sent(request)[0]])
    raw: list[Any] = []
    probe = Probe(lambda context: raw.append(ImageProcessorHandler().handle(context)) or "")
    run(lab, eyes(), shown("a", RED, DARK), probes={"ImageProcessor": probe})
    assert raw == [f"A:red{SEPARATOR}A:dark"]


def test_answers_are_cleaned_by_the_rules_of_who_answered(lab: EngineLab) -> None:
    lab.endpoint("Main", {"backupEndpointName": "Second"}, "http://127.0.0.1:1")
    lab.endpoint(
        "Second",
        {"removeCustomTextFromResponseStartEndpointWide": True, "responseStartTextToRemoveEndpointWide": ["B:"]},
        lab.backend.url,
    )
    lab.backend.responder = lambda request: chat_reply("B:seen")
    assert run(lab, eyes(), shown("a", RED)) == "seen"


def test_failure_of_one_call_fails_the_node_and_stops_the_others(lab: EngineLab) -> None:
    lab.backend.responder = lambda request: status_reply(400) if images_sent(request) == [DARK] else Reply(never=True)
    with pytest.raises(BackendStatusError):
        run(lab, eyes(), shown("a", RED, DARK, BLACK))
    for request in lab.backend.requests:
        assert request.wait_ended() or images_sent(request) == [DARK]


def test_without_endpoint(lab: EngineLab) -> None:
    with pytest.raises(ConfigValueError, match="'Eyes'.*endpoint"):
        run(lab, {"type": "ImageProcessor", "title": "Eyes", "prompt": "x"}, shown("a", RED))


# -- side by side ------------------------------------------------------------------------------------------------------


class Together:
    """Lets ``backend`` answer none before ``count`` requests are there at the same time; notes how many ever were."""

    def __init__(self, backend: StubBackend, count: int) -> None:
        self.count, self.all_there = count, threading.Event()
        self.lock = threading.Lock()
        self.now = self.most = 0
        backend._next = self.reply  # type: ignore[method-assign]

    def reply(self, request: RecordedRequest) -> Reply:
        """On the thread of the request's connection."""
        images = images_sent(request)
        if not images:
            return chat_reply("x")
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
            if self.now == self.count:
                self.all_there.set()
        assert self.all_there.wait(60)
        time.sleep(0.1)  # one too many would come now
        with self.lock:
            self.now -= 1
        return chat_reply(images[0][-40:])


def test_distinct_images_are_described_side_by_side_and_bounded(lab: EngineLab) -> None:
    pictures = [png(number) for number in range(8)]
    together = Together(lab.backend, 2)
    result = run(lab, eyes(), shown("a", *pictures))
    assert result == SEPARATOR.join(picture[-40:] for picture in pictures)
    assert 2 <= together.most <= 4


def test_no_more_calls_at_a_time_than_the_gate_admits(lab: EngineLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance, "CONCURRENCY_LEVEL", "endpoint")
    monkeypatch.setattr(instance, "CONCURRENCY_LIMIT", 1)
    instance.initialize_request_semaphore(1)
    together = Together(lab.backend, 1)
    try:
        run(lab, eyes(), shown("a", RED, DARK, BLACK))
    finally:
        instance.initialize_request_semaphore(0)
    assert together.most == 1


def test_cancellation(lab: EngineLab) -> None:
    lab.backend.responder = lambda request: Reply(never=True)
    threading.Thread(target=lambda: (lab.backend.wait_requests(4), lab.request.cancel_scope.cancel())).start()
    began = time.monotonic()
    with pytest.raises(EarlyTerminationException) as caught:
        run(lab, eyes(), shown("a", *[png(number) for number in range(6)]))
    assert caught.value.is_cancellation and time.monotonic() - began < 60
    assert all(request.wait_ended() for request in lab.backend.requests)
    assert recent_descriptions().keys() == []


def test_calls_side_by_side_are_those_of_the_requests_user(lab: EngineLab) -> None:
    lab.write(
        "Users/other",
        {
            "endpointConfigsSubDirectory": "elsewhere",
            "chatPromptTemplateName": "chatml",
            "workflowConfigsSubDirectoryOverride": "tester",
        },
    )
    lab.write("Endpoints/elsewhere/Mine", {"endpoint": lab.backend.url, "apiTypeConfigFileName": "OpenAI"})
    lab.request.user = "other"
    assert run(lab, eyes(endpointName="Mine"), shown("a", RED, DARK)) == f"red{SEPARATOR}dark"


# -- notes -------------------------------------------------------------------------------------------------------------

NOTE = "[Picture notes: [IMAGE_BLOCK]]"


def test_note_before_the_last_message(lab: EngineLab) -> None:
    messages = [shown("u1", RED), assistant("a1"), user("u2")]
    assert run_on(lab, [eyes(addAsUserMessage=True, message=NOTE)], messages) == "red"
    assert messages == [shown("u1", RED), assistant("a1"), user("[Picture notes: red]"), user("u2")]


def test_note_after_the_only_message(lab: EngineLab) -> None:
    messages = [shown("u1", RED, DARK)]
    run_on(lab, [eyes(addAsUserMessage=True, message=NOTE)], messages)
    assert messages[1:] == [user(f"[Picture notes: red{SEPARATOR}dark]")]


def test_notes_after_their_messages(lab: EngineLab) -> None:
    messages = [shown(TAG + "u1", RED), assistant("a1"), shown("u2", DARK)]
    result = run_on(lab, [saving(addAsUserMessage=True, message=NOTE)], messages)
    assert result == f"red{SEPARATOR}dark"
    assert messages == [
        shown("u1", RED),
        user("[Picture notes: red]"),
        assistant("a1"),
        shown("u2", DARK),
        user("[Picture notes: dark]"),
    ]


@pytest.mark.parametrize("message", [None, "", ...])
def test_built_in_message(lab: EngineLab, message: Any) -> None:
    messages = [shown("u1", RED)]
    more = {} if message is ... else {"message": message}
    run_on(lab, [eyes(addAsUserMessage=True, **more)], messages)
    assert messages[1]["content"] == DEFAULT_MESSAGE.replace("[IMAGE_BLOCK]", "red")
    assert "<vision_llm_response>\nred\n</vision_llm_response>" in messages[1]["content"]


def test_descriptions_are_no_templates(lab: EngineLab) -> None:
    nasty = "{agent1Output} {{x}} { [IMAGE_BLOCK]"
    lab.backend.responder = lambda request: (
        chat_reply(nasty) if images_sent(request) else reply_to(request, texts_sent(request)[-1])
    )
    node = eyes(addAsUserMessage=True, message="{chat_user_prompt_last_one}: [IMAGE_BLOCK]")
    nodes = [static("one"), node, llm("{agent1Output}|{agent2Output}|{chat_user_prompt_last_two}")]
    messages = [shown("u1", RED), user("u2")]
    assert run_on(lab, nodes, messages) == f"one|{nasty}|u2: {nasty}\nu2"
    assert messages[1]["content"] == escape_braces(f"u2: {nasty}")


def test_parents_see_the_notes(lab: EngineLab) -> None:
    lab.workflow("Child", [eyes(addAsUserMessage=True, message=NOTE)])
    nodes = [{"type": "CustomWorkflow", "workflowName": "Child"}, static("{chat_user_prompt_last_two}")]
    assert run_on(lab, nodes, [shown("u1", RED), user("u2")]) == "[Picture notes: red]\nu2"


@pytest.mark.parametrize("node", [eyes(), saving()])
def test_a_stamped_copy_does_not_keep_notes_from_the_others(lab: EngineLab, node: dict[str, Any]) -> None:
    copies: list[list[Message]] = []

    def stamped(context: Any) -> Any:
        context.messages = [{**message, "content": "(stamp) " + message["content"]} for message in context.messages]
        copies.append(context.messages)
        return ImageProcessorHandler().handle(context)

    messages = [shown(TAG + "u1", RED), user("u2")]
    node = {**node, "addAsUserMessage": True, "message": NOTE, "prompt": ""}
    run_on(lab, [node], messages, probes={"ImageProcessor": Probe(stamped)})
    expected = [shown("u1", RED), user("[Picture notes: red]"), user("u2")]
    assert messages == expected
    assert [message["content"] for message in copies[0]] == ["(stamp) u1", "[Picture notes: red]", "(stamp) u2"]
    assert texts_sent(lab.backend.requests[0]) == ["(stamp) u1", "(stamp) u2"]
    if stored(lab):
        assert list(stored(lab)) == [hash_message_with_images(shown("u1", RED))]


# -- kept with the discussion ------------------------------------------------------------------------------------------


def next_request(lab: EngineLab) -> None:
    lab.request = RequestContext(request_id=f"{lab.request.request_id}+")


def test_second_request_asks_nothing(lab: EngineLab) -> None:
    for _ in range(2):
        recent_descriptions().clear()
        assert run(lab, saving(), shown(TAG + "u1 {", RED, DARK)) == f"red{SEPARATOR}dark"
        next_request(lab)
    assert described(lab) == ["dark", "red"]
    assert stored(lab) == {hash_message_with_images(shown("u1 {", DARK, RED)): f"red{SEPARATOR}dark"}


def test_hash_is_of_the_escaped_form(lab: EngineLab) -> None:
    run(lab, saving(), shown(TAG + "__WILMER_L_CURLY__", RED))
    assert list(stored(lab)) == [hash_message_with_images(shown("__WILMER_L_CURLY__", RED))]


def test_only_new_messages_are_described(lab: EngineLab) -> None:
    run(lab, saving(), shown(TAG + "u1", RED))
    next_request(lab)
    assert run(lab, saving(), shown(TAG + "u1", RED), shown("u2", DARK)) == f"red{SEPARATOR}dark"
    assert described(lab) == ["dark", "red"] and len(stored(lab)) == 2


def test_blank_descriptions_are_not_kept(lab: EngineLab) -> None:
    lab.backend.responder = lambda request: chat_reply("")
    assert run(lab, saving(), shown(TAG + "u1", RED)) == ""
    assert stored(lab) is None
    lab.backend.responder = name_image
    next_request(lab)
    assert run(lab, saving(), shown(TAG + "u1", RED)) == "red"


@pytest.mark.parametrize(("limit", "names"), [(2, ["dark"]), (3, ["dark", "red"]), ("{size}", ["dark"]), (0, [])])
def test_scan_limit(lab: EngineLab, limit: Any, names: list[str]) -> None:
    conversation = [shown(TAG + "u1", RED), shown("u2", DARK), user("u3")]
    lab.workflow("Inner", [saving(visionScanMessageLimit=limit)], size=2)
    result = run_on(lab, [{"type": "CustomWorkflow", "workflowName": "Inner"}], conversation)
    assert described(lab) == names and (result == NO_IMAGES) is (not names)


def test_scan_limit_of_twenty_and_output_of_ten(lab: EngineLab) -> None:
    conversation = [
        shown(TAG + "u0", RED),
        shown("u1", DARK),
        *[user(str(number)) for number in range(9)],
        shown("u2", BLACK),
        *[user(str(number)) for number in range(9)],
    ]
    assert run(lab, saving(), *conversation) == "black"
    assert described(lab) == ["black", "dark"]


def test_notes_do_not_count_as_messages(lab: EngineLab) -> None:
    conversation = [shown(TAG + "u1", RED), shown("u2", DARK)]
    first = saving(addAsUserMessage=True, visionScanMessageLimit=2)
    assert run_on(lab, [first, saving(visionScanMessageLimit=2)], conversation) == f"red{SEPARATOR}dark"
    assert len(conversation) == 4 and described(lab) == ["dark", "red"]


def test_saving_without_discussion_id(lab: EngineLab) -> None:
    messages = [shown("u1", RED), assistant("a1"), user("u2")]
    run_on(lab, [saving(addAsUserMessage=True, message=NOTE)], messages)
    assert messages[2] == user("[Picture notes: red]") and stored(lab) is None


def test_broken_file_is_left_alone(lab: EngineLab) -> None:
    path = Path(str(instance.DISCUSSION_DIRECTORY)) / "k1" / "vision_responses.json"
    path.parent.mkdir(parents=True)
    path.write_text("{", encoding="utf-8")
    assert run(lab, saving(), shown(TAG + "u1", RED)) == "red"
    assert path.read_text(encoding="utf-8") == "{"


def test_files_of_api_keys_are_apart(lab: EngineLab) -> None:
    for key in ("secretkey", None):
        run(lab, saving(), shown(TAG + "u1", RED), api_key=key)
        next_request(lab)
    root = Path(str(instance.DISCUSSION_DIRECTORY))
    assert (root / "ad165b11320bc915" / "k1" / "vision_responses.json").exists()
    assert described(lab) == ["red", "red"]


def test_nothing_is_written_in_clear_for_those_who_encrypt(lab: EngineLab) -> None:
    lab.user(encryptUsingApiKey=True)
    for _ in range(2):
        assert run(lab, saving(), shown(TAG + "u1", RED), api_key="secretkey") == "red"
        next_request(lab)
    path = Path(str(instance.DISCUSSION_DIRECTORY)) / "ad165b11320bc915" / "k1" / "vision_responses.json"
    assert path.read_bytes().startswith(b"gAAAA") and described(lab) == ["red"]


# -- kept in memory ----------------------------------------------------------------------------------------------------


def asked_twice(
    lab: EngineLab,
    first: dict[str, Any],
    second: dict[str, Any],
    *later: Message,
    key: str | None = None,
    before: Message | None = None,
) -> int:
    """How often a model is asked about one image by two requests."""
    opening = [before or user("u0"), shown("u1", RED)]
    run(lab, first, *opening)
    next_request(lab)
    assert run(lab, second, *opening, *later, api_key=key) == "red"
    return len(lab.backend.requests)


@pytest.mark.parametrize("prompt", ["", "What?", "{chat_system_prompt}"])
def test_next_turn_without_discussion_id_asks_nothing(lab: EngineLab, prompt: str) -> None:
    assert asked_twice(lab, eyes(prompt=prompt), eyes(prompt=prompt), assistant("a1"), user("u2")) == 1


@pytest.mark.parametrize(
    "second",
    [
        eyes(prompt="Which text?"),
        eyes(systemPrompt="Briefly."),
        eyes(endpointName="Other"),
        eyes(preset="Main"),
        eyes(maxResponseSizeInTokens=9),
    ],
)
def test_other_questions_are_asked(lab: EngineLab, second: dict[str, Any]) -> None:
    lab.endpoint("Main", {"presetSamplers": {"temperature": 0}}, lab.backend.url)
    lab.endpoint("Other", {}, lab.backend.url)
    first = eyes() if "preset" not in second else eyes(preset="Other2")
    lab.endpoint("Other2", {"presetSamplers": {"temperature": 1}}, lab.backend.url)
    assert asked_twice(lab, first, second) == 2


def test_a_prompt_with_the_newest_message_is_asked_anew(lab: EngineLab) -> None:
    node = eyes(prompt="{chat_user_prompt_last_one}")
    assert asked_twice(lab, node, node, user("u2")) == 2


def test_clients_with_keys_share_nothing(lab: EngineLab) -> None:
    assert asked_twice(lab, eyes(), eyes(), key="k") == 2


def test_users_share_nothing(lab: EngineLab, monkeypatch: pytest.MonkeyPatch) -> None:
    run(lab, eyes(), shown("u1", RED))
    lab.write(
        "Users/other",
        {
            "endpointConfigsSubDirectory": "lab",
            "chatPromptTemplateName": "chatml",
            "workflowConfigsSubDirectoryOverride": "tester",
        },
    )
    next_request(lab)
    lab.request.user = "other"
    run(lab, eyes(), shown("u1", RED))
    assert len(lab.backend.requests) == 2


@pytest.mark.parametrize("answer", [" ", "<think>It may be"])
@pytest.mark.parametrize("keys", [{}, {"saveVisionResponsesToDiscussionId": True}])
def test_blank_answers_are_asked_for_again(lab: EngineLab, answer: str, keys: dict[str, Any]) -> None:
    lab.backend.responder = lambda request: chat_reply(answer)
    assert run(lab, eyes(**keys), shown("u1", RED), discussion_id="k1") == ""
    next_request(lab)
    lab.backend.responder = name_image
    assert run(lab, eyes(**keys), shown("u1", RED), discussion_id="k1") == "red"


def test_another_conversation_asks_anew_if_it_is_sent_along(lab: EngineLab) -> None:
    run(lab, eyes(prompt=""), user("What is the text?"), shown("u1", RED))
    next_request(lab)
    run(lab, eyes(prompt=""), user("What is the colour?"), shown("u1", RED))
    assert len(lab.backend.requests) == 2


def test_requests_with_a_discussion_id_ask_each_time(lab: EngineLab) -> None:
    node = eyes()
    assert asked_twice(lab, node, node, before=user(TAG + "u0")) == 2


@pytest.mark.parametrize("prompt", ["", "What?", "{chat_user_prompt_last_two}"])
@pytest.mark.parametrize("opening", ["u0", TAG + "u0"])
def test_a_second_node_of_a_request_asks_nothing(lab: EngineLab, prompt: str, opening: str) -> None:
    node = eyes(prompt=prompt, addAsUserMessage=True, message=NOTE)
    messages = [user(opening), shown("u1", RED), assistant("a1"), shown("u2", DARK)]
    assert run_on(lab, [node, node], messages) == f"red{SEPARATOR}dark"
    assert described(lab) == ["dark", "red"]


# -- images that nobody looks at ---------------------------------------------------------------------------------------


def unseen(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "acceptImages" in record.getMessage()]


BLIND = llm("", title="Talk")


@pytest.mark.parametrize("stream", [False, True])
def test_images_that_the_answering_model_is_not_shown(
    lab: EngineLab, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    caplog.set_level(logging.INFO)
    nodes = [llm("Think"), llm("Think", workflowName="x"), {**BLIND, "returnToUser": True}, llm("Note", title="After")]
    run_on(lab, nodes, [shown("u1", RED), assistant("a1"), shown("u2", DARK)], stream=stream)
    assert unseen(caplog) == [
        "Node 'Talk': the model of endpoint 'Main' is not shown the 2 image(s) of the "
        "conversation, since the node does not accept images ('acceptImages')."
    ]
    next_request(lab)
    run(lab, llm("Answer it", title="Authored"), shown("u1", RED))
    assert len(unseen(caplog)) == 2 and "'Authored'" in unseen(caplog)[1]


@pytest.mark.parametrize(
    "nodes",
    [
        [{**BLIND, "acceptImages": True}],
        [eyes(), BLIND],
        [eyes(saveVisionResponsesToDiscussionId=True), BLIND],
        [llm("What?", acceptImages=True), BLIND],
        [BLIND, static("fixed")],
    ],
)
def test_images_that_somebody_looked_at(
    lab: EngineLab, caplog: pytest.LogCaptureFixture, nodes: list[dict[str, Any]]
) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(2):  # the second time descriptions are at hand
        run_on(lab, nodes, [shown("u1", RED)], discussion_id="k1")
        next_request(lab)
    assert unseen(caplog) == []


def test_images_beyond_what_is_sent_are_no_loss(lab: EngineLab, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    run(lab, {**BLIND, "lastMessagesToSendInsteadOfPrompt": 2}, shown("u1", RED), assistant("a1"), user("u2"))
    assert unseen(caplog) == []
