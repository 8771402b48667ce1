"""No back-end gets a conversation without a text, an image or a tool call: through the application, in all dialects."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Tests.api.api_lab import CHAT, Answer, ApiLab
from Tests.api.front_dialects import message_at
from Tests.backend_dialects import DIALECTS, speak, texts_of
from Tests.backend_dialects import Answer as Spoken
from Tests.llmapis.lab import CLAUDE, OLLAMA, OPEN_AI
from Tests.stub_backend import StubBackend
from Tests.tables import check_all, table
from Tests.workflows.engine_lab import llm, static, user

CHATS = (CHAT, "/api/chat", "/v1/responses", "/v1/messages")
MODES = (False, True)
OPENAI, OLLAMA_CHAT, CLAUDE_MESSAGES = "openAIChatCompletion", "ollamaApiChat", "claudeMessages"
COMPLETION, OLLAMA_TEXT, KOBOLD = "openAIV1Completion", "ollamaApiGenerate", "koboldCppGenerate"
WITHOUT_IMAGES = (COMPLETION,)
PNG = "data:image/png;base64,iVBORw0KGgo="
PICTURE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": PNG}}]}
SYSTEM = {"role": "system", "content": "Be {terse}."}
BLANKS: tuple[list[Any], ...] = (
    [],
    [user(" ")],
    [user("")],
    [{"role": "user", "content": [{"type": "text", "text": ""}]}],
    [user("[DiscussionId]talk[/DiscussionId]")],
    [user("\n"), {"role": "assistant", "content": ""}, user("\t")],
    [{"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}]}],
    [{"role": "system", "content": " "}],
)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiLab]:
    with StubBackend() as backend:
        made = ApiLab(tmp_path, monkeypatch, backend)
        for name, dialect in DIALECTS.items():
            base = {"claudeMessages": CLAUDE, "ollamaApiChat": OLLAMA}.get(name, OPEN_AI)
            made.write(f"ApiTypes/{name}", {**base, "type": dialect.api_type})
            made.endpoint(name, {"apiTypeConfigFileName": name}, backend.url)
        yield made


def use(lab: ApiLab, endpoint: str, **node: Any) -> None:
    """Let a node with this endpoint answer, which sends the conversation unless it has a prompt."""
    lab.default([llm(title="Answer", **{"endpointName": endpoint, **node})])


def ask(lab: ApiLab, path: str, messages: list[Any], stream: bool = False) -> Answer:
    lab.backend.requests.clear()
    lab.backend.responder = lambda request: speak(request, Spoken(("Hello",)))
    field = "input" if "responses" in path else "messages"
    return lab.post({"model": "m", "stream": stream, field: messages}, path)


def assert_refused(lab: ApiLab, answer: Answer, path: str, endpoint: str) -> None:
    said = f"The conversation has no text: node 'Answer' has nothing to send to endpoint '{endpoint}'."
    assert (answer.status, message_at(path, answer.json, 400)) == (400, said), answer.data
    assert not lab.backend.requests


@table("endpoint", list(DIALECTS))
def test_nothing_is_refused_before_the_call(lab: ApiLab, endpoint: str) -> None:
    use(lab, endpoint)

    def check(row: tuple[str, list[Any], bool]) -> None:
        path, messages, stream = row
        assert_refused(lab, ask(lab, path, messages, stream), path, endpoint)

    # Ollama's clients load a model with an empty list.
    check_all(
        [
            (path, messages, stream)
            for path in CHATS
            for messages in BLANKS
            for stream in MODES
            if messages or path != "/api/chat"
        ],
        check,
    )


def test_blank_prompts_and_items_are_refused(lab: ApiLab) -> None:
    use(lab, OPENAI)
    for stream in MODES:
        for path, fields in (("/v1/completions", {"prompt": " "}), ("/api/generate", {"prompt": "\n"}),
                             ("/v1/completions", {"prompt": ""}), ("/v1/responses", {"input": ""}),
                             ("/v1/responses", {"input": [{"type": "input_text", "text": " "}]})):  # fmt: skip
            assert_refused(lab, lab.post({"model": "m", "stream": stream, **fields}, path), path, OPENAI)


def test_what_the_settings_of_the_user_add_is_no_text(lab: ApiLab) -> None:
    lab.user(chatCompleteAddUserAssistant=True, chatCompletionAddMissingAssistantGenerator=True)
    for endpoint in (OPENAI, CLAUDE_MESSAGES, KOBOLD):
        use(lab, endpoint)
        for path in CHATS:
            assert_refused(lab, ask(lab, path, [user(" ")]), path, endpoint)


@table("node", [{"prompt": "Say hello."}, {"systemPrompt": "Say hello."}, {"systemPrompt": "{chat_system_prompt}."}])
def test_a_node_with_words_of_its_own_answers(lab: ApiLab, node: dict[str, Any]) -> None:
    for endpoint in DIALECTS:
        use(lab, endpoint, **node)
        for stream in MODES:
            assert ask(lab, CHAT, [], stream).status == 200, endpoint
            (request,) = lab.backend.requests
            assert [text for _, text in texts_of(request) if text.strip()]
            # Servers refuse an empty list, whatever the system prompt says.
            assert request.json.get("messages") != []


def test_a_static_answer_needs_no_text_and_no_tokens_need_no_answer(lab: ApiLab) -> None:
    lab.default([static("Hello")])
    assert ask(lab, CHAT, []).text == "Hello"
    use(lab, OPENAI)
    answer = lab.post({"model": "m", "messages": [], "max_tokens": 0}, "/v1/messages")
    assert (answer.status, answer.json["content"]) == (200, [])


# -- images ------------------------------------------------------------------------------------------------------------
@table("endpoint", list(DIALECTS))
def test_an_image_is_something_where_it_is_sent(lab: ApiLab, endpoint: str) -> None:
    for images in MODES:
        use(lab, endpoint, acceptImages=images)
        answer = ask(lab, CHAT, [PICTURE])
        if images and endpoint not in WITHOUT_IMAGES:
            assert answer.status == 200 and "iVBORw0KGgo" in str(lab.backend.requests[0].json)
        else:
            assert_refused(lab, answer, CHAT, endpoint)


@table(
    ("first", "backup", "answered"),
    [
        (COMPLETION, OPENAI, True),
        (COMPLETION, CLAUDE_MESSAGES, True),
        (COMPLETION, KOBOLD, True),
        (COMPLETION, COMPLETION, False),
        (OPENAI, COMPLETION, True),
    ],
)
def test_a_backup_that_would_get_something_is_asked(lab: ApiLab, first: str, backup: str, answered: bool) -> None:
    lab.endpoint("Backup", {"apiTypeConfigFileName": backup}, lab.backend.url)
    lab.endpoint("First", {"apiTypeConfigFileName": first, "backupEndpointName": "Backup"}, lab.backend.url)
    use(lab, "First", acceptImages=True)
    for stream in MODES:
        answer = ask(lab, CHAT, [PICTURE], stream)
        if answered:
            assert answer.status == 200 and len(lab.backend.requests) == 1
        else:
            assert_refused(lab, answer, CHAT, "Backup")
        assert_refused(lab, ask(lab, CHAT, [user(" ")], stream), CHAT, "Backup")


def test_a_backup_that_cannot_be_used_does_not_hide_the_reason(lab: ApiLab) -> None:
    lab.endpoint("First", {"apiTypeConfigFileName": OPENAI, "backupEndpointName": "Missing"}, lab.backend.url)
    use(lab, "First")
    assert_refused(lab, ask(lab, CHAT, []), CHAT, "First")


# -- tool calls, system messages ---------------------------------------------------------------------------------------
def test_a_call_without_a_text_is_something(lab: ApiLab) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    for endpoint in (OPENAI, OLLAMA_CHAT, CLAUDE_MESSAGES):
        use(lab, endpoint, allowTools=True)
        sent = [{"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "c"}]
        sent[1]["content"] = ""
        assert ask(lab, CHAT, sent).status == 200, endpoint


@table(
    ("prompt", "messages", "expected"),
    [
        ("", [SYSTEM], ["Be {terse}."]),
        ("{chat_system_prompt}", [SYSTEM], ["Be {terse}."]),
        ("I am Bo. {chat_system_prompt}", [SYSTEM], ["I am Bo. Be {terse}."]),
        ("I am Bo.", [SYSTEM], ["I am Bo.", "Be {terse}."]),
        ("{chat_system_prompt}", [SYSTEM, {"role": "system", "content": "Now."}], ["Be {terse}. Now."]),
        ("{chat_system_prompt}", [SYSTEM, user("hi")], ["Be {terse}.", "hi"]),
        ("", [SYSTEM, user("hi"), SYSTEM], ["hi", "Be {terse}."]),
    ],
)
def test_system_messages_alone_are_sent_once(
    lab: ApiLab, prompt: str, messages: list[Any], expected: list[str]
) -> None:
    for endpoint in (OPENAI, OLLAMA_CHAT):
        for stream in MODES:
            use(lab, endpoint, systemPrompt=prompt)
            assert ask(lab, CHAT, messages, stream).status == 200
            assert [" ".join(text.split()) for _, text in texts_of(lab.backend.requests[0])] == expected


def test_system_messages_alone_are_a_message_where_a_system_prompt_is_none(lab: ApiLab) -> None:
    for prompt in ("", "{chat_system_prompt}"):
        use(lab, CLAUDE_MESSAGES, systemPrompt=prompt)
        assert ask(lab, CHAT, [SYSTEM]).status == 200
        assert texts_of(lab.backend.requests[0]) == [("user", "Be {terse}.")]


def test_a_small_body_takes_no_large_memory(lab: ApiLab) -> None:
    """Hundreds of thousands of empty lists are refused before they are made of their text."""
    body = b'{"model": "m", "messages": [{"role": "user", "content": [' + b"[]," * 600_000 + b"[]]}]}"
    paths = [*CHATS, "/v1/completions", "/api/generate", "/api/v1/generate", "/v1/embeddings", "/api/show"]

    def check(path: str) -> None:
        answer = lab.client.post(path, data=body, content_type="application/json")
        assert answer.status_code == 400 and "arrays, objects and texts" in answer.text

    check_all(paths, check)
    # It slows the rest down.
    tracemalloc.start()
    try:
        check(CHAT)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # The body of the test's client and of the server.
    assert peak < 4 * len(body)
