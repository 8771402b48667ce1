"""Every shipped user starts and answers, whatever the client: each model, any model name, streamed and whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Tests.integration.launcher import Launcher, Response, streamed_text
from Tests.integration.shipped_users import COMPLAINT, TOOL, USERS, Chat, Model, copy_of_shipped

OPENAI, OLLAMA = "/v1/chat/completions", "/api/chat"
UNKNOWN_MODEL = "gpt-4o"
FOLDERS = ("general", "task")  # of chat-ui and its like
QUESTION = [{"role": "user", "content": "Which fish live in the Baltic Sea?"}]
TITLE = [
    {
        "role": "user",
        "content": (
            "### Task:\nGenerate a concise, 3-5 word title with an emoji summarizing the chat history.\n### "
            "Guidelines:\n"
            '- Be brief.\n### Output:\nJSON format: { "title": "your title here" }\n### Chat History:\n<chat_history>\n'
            "USER: Which fish live in the Baltic Sea?\nASSISTANT: Herring.\n</chat_history>"
        ),
    }
]
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
PICTURE = [
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "What does this show?"},
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
        ],
    }
]
FOLLOWED: list[dict[str, Any]] = [
    *PICTURE,
    {"role": "assistant", "content": "A square."},
    {"role": "user", "content": "In which colour?"},
]


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with Model() as model:
        yield model


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory, model: Model) -> Path:
    return copy_of_shipped(tmp_path_factory.mktemp("shipped") / "Public", model)


@pytest.fixture(scope="module", params=USERS)
def chat(request: pytest.FixtureRequest, public: Path, model: Model) -> Iterator[Chat]:
    """The user, served by one process for all tests."""
    with Launcher("run_waitress.py", "--PublicDirectory", public, "--User", request.param) as server:
        chat = Chat(request.param, public, server, model)
        chat.choose(chat.categories()[0])
        yield chat


def whole(response: Response) -> str:
    return response.text


def streamed(response: Response) -> str:
    return streamed_text(response.body)


def ollama(response: Response) -> str:
    return "".join(json.loads(line)["message"]["content"] for line in response.body.splitlines())


def body(messages: list[dict[str, Any]], model: str = UNKNOWN_MODEL, stream: bool = False) -> dict[str, Any]:
    return {"model": model, "messages": messages, "stream": stream}


def long_conversation(name: str, count: int) -> list[dict[str, Any]]:
    """A conversation with a discussion id, long enough to be remembered."""
    turns = [
        {
            "role": ("user", "assistant")[index % 2],
            "content": f"Turn {index}: Mara walks on to the old mill and looks for the ledger. " * 8,
        }
        for index in range(count)
    ]
    return [{"role": "system", "content": f"[DiscussionId]{name}[/DiscussionId]You are kind."}, *turns]


def test_it_starts_without_complaints(chat: Chat) -> None:
    assert not COMPLAINT.findall(chat.server.output())


def test_it_offers_models_in_both_lists(chat: Chat) -> None:
    names = chat.models()
    tags = chat.server.request("GET", "/api/tags").json["models"]
    assert names == [entry["name"] for entry in tags] and names
    assert all(name == chat.user or name.startswith(f"{chat.user}:") for name in names)


def test_every_model_and_every_route_answers_in_both_modes_by_the_same_node(chat: Chat) -> None:
    for category in chat.categories():
        chat.choose(category)
        for name in [UNKNOWN_MODEL, *chat.models()]:
            live = chat.ask(OPENAI, body(QUESTION, name, stream=True), streamed)
            assert live.stream, f"{name}: the answer is not streamed"
            assert chat.ask(OPENAI, body(QUESTION, name), whole).asker == live.asker


def test_a_model_that_only_others_have_is_answered_like_any_other_name(chat: Chat) -> None:
    """The folders of chat-ui's model list have endpoints that the other users lack."""
    for name in (*FOLDERS, f"{chat.user}:general"):
        assert chat.ask(OPENAI, body(QUESTION, name), whole).stream is False


def test_ollama_clients_get_the_same_answer(chat: Chat) -> None:
    names = [entry["model"] for entry in chat.server.request("GET", "/api/tags").json["models"]]
    for name in [UNKNOWN_MODEL, names[0]]:
        answer = chat.ask(OLLAMA, body(QUESTION, name, stream=True), ollama)
        assert answer.asker == chat.ask(OPENAI, body(QUESTION, name), whole).asker


def test_a_conversation_with_an_id_goes_on_and_is_remembered_by_users_who_remember(chat: Chat) -> None:
    name = f"trip-{chat.user.replace('/', '-')}"
    endpoint = chat.ask(OPENAI, body(long_conversation(name, 41)), whole).endpoint
    for count in (43, 45):
        assert chat.ask(OPENAI, body(long_conversation(name, count), stream=True), streamed).endpoint == endpoint
    assert bool(chat.stored(name)) is bool(chat.settings.get("discussionIdMemoryFileWorkflowSettings"))


def test_the_services_that_it_names_are_asked(chat: Chat) -> None:
    chat.model.services.clear()
    chat.ask(OPENAI, body(QUESTION), whole)
    assert ("/top_n_articles" in chat.model.services) is (chat.settings.get("useOfflineWikiApi") is True)
    assert (f"/{TOOL}" in chat.model.services) is ("MCPO_URL" in chat.settings)


def test_a_picture_disturbs_nobody(chat: Chat) -> None:
    for name in [UNKNOWN_MODEL, chat.models()[0]]:
        assert chat.ask(OPENAI, body(PICTURE, name, stream=True), streamed).stream
        assert chat.ask(OPENAI, body(FOLLOWED, name, stream=True), streamed).stream


@pytest.mark.parametrize("chat", ["chat-ui-discussionid", "chat-ui-cot-discussionid"], indirect=True)
@pytest.mark.parametrize("name", ["general", "fast-reasoning"])
def test_a_picture_in_a_chat_with_an_id_is_described_once(chat: Chat, name: str) -> None:
    system = {"role": "system", "content": f"[DiscussionId]{name}-{chat.user}[/DiscussionId]You are kind."}
    looks, answers = [], []
    for messages in (PICTURE, FOLLOWED):
        before = len(chat.model.calls)
        answers.append(chat.ask(OPENAI, body([system, *messages], f"{chat.user}:{name}"), whole))
        looks.append([call for call in chat.model.calls[before:] if call.endpoint == "Vision-Endpoint"])
    assert [len(found) for found in looks] == [1, 0]
    assert all(f"<pictures>\n{looks[0][0].text}\n</pictures>" in answer.prompt for answer in answers)


def test_a_request_for_a_title_is_one_call_where_there_is_a_workflow_for_it(chat: Chat) -> None:
    before = len(chat.model.calls)
    for name in [UNKNOWN_MODEL, *chat.models()]:
        assert "Baltic" in chat.ask(OPENAI, body(TITLE, name), whole).prompt
    if chat.settings.get("backgroundTaskWorkflow"):
        assert len(chat.model.calls) - before == 1 + len(chat.models())


def test_all_users_can_be_served_by_one_process(public: Path, model: Model) -> None:
    flags = [flag for user in USERS for flag in ("--User", user)]
    with Launcher("run_waitress.py", "--PublicDirectory", public, *flags) as server:
        assert not COMPLAINT.findall(server.output())
        names = [entry["id"] for entry in server.request("GET", "/v1/models").json["data"]]
        assert {name.partition(":")[0] for name in names} == set(USERS)
        for user in USERS:
            chat = Chat(user, public, server, model)
            chat.choose(chat.categories()[0])
            for name in (user, *(f"{user}:{folder}" for folder in FOLDERS)):
                assert chat.ask(OPENAI, body(QUESTION, name), whole).text


def test_the_demo_of_a_fresh_clone_answers_whatever_the_model_name(public: Path, model: Model) -> None:
    with Launcher("run_waitress.py", "--PublicDirectory", public) as server:
        chat = Chat("demo", public, server, model)
        chat.choose(chat.categories()[0])
        assert chat.models() == ["demo"]
        for name in ("demo", UNKNOWN_MODEL, *FOLDERS, "chat-ui:general"):
            assert chat.ask(OPENAI, body(QUESTION, name), whole).endpoint == "Demo-LLM"
