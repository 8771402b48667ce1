"""What every client must be able to do with the server. Test files say which clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import pytest

from Tests.backend_dialects import COMPLETION_TOKENS, PROMPT_TOKENS, Answer, Call, speak
from Tests.clients.client import RESULTS, TOOL, Client, data_uri, needs
from Tests.integration.launcher import Backend, stuck
from Tests.stub_backend import (
    AFTER_PIECES,
    RecordedRequest,
    Reply,
    chat_chunk,
    chat_stream_reply,
    sse_reply,
    status_reply,
)

MARKS = [
    pytest.mark.clients,
    pytest.mark.filterwarnings("ignore::UserWarning:pydantic.*"),  # both about the code of litellm
    pytest.mark.filterwarnings("ignore::DeprecationWarning:litellm.*"),
]
"""Of every test file."""

NODE = "talk"

TOKENS = ("It ", "is ", "Tromsø", ": ", "{snow} \u2603\U0001f600\n")
TEXT = "".join(TOKENS).rstrip("\n")
USAGE = (PROMPT_TOKENS, COMPLETION_TOKENS)
CALLS = [Call("weather", {"city": city}, f"call_{number}") for number, city in enumerate(RESULTS)]
IMAGE = "iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAIAAAD91JpzAAAAFklEQVR4nGNwUWiy+fuM4eOhbIOffAAqsQZbsEqMbwAAAABJRU5ErkJggg=="
"""A picture of four points, as PNG."""


def answers(answer: Answer) -> Callable[[RecordedRequest], Reply]:
    """A model that says that, streamed or whole as it is asked."""
    return lambda request: speak(request, answer)


def calls_tool(request: RecordedRequest) -> Reply:
    """A model that calls tools when it has no results yet, saying a word before."""
    answered = any(message["role"] == "tool" for message in request.json["messages"])
    return answers(Answer(TOKENS) if answered else Answer(("Let me ", "look."), "tool_calls", calls=CALLS))(request)


def conversation(request: RecordedRequest) -> list[dict[str, Any]]:
    """The messages that arrived at the back-end, without the system prompt of the node."""
    return [message for message in request.json["messages"] if f"node:{NODE}" not in str(message["content"])]


class ClientCases:
    """The tests. ``clients``: what takes part, by name."""

    clients: ClassVar[Mapping[str, type[Client]]] = {}

    @needs("models")
    def test_models(self, client: Client, model_names: list[str]) -> None:
        assert client.models() == model_names

    @needs("chat")
    def test_chat(self, client: Client, backend: Backend) -> None:
        backend.replies[NODE] = answers(Answer(TOKENS))
        said = client.chat([("user", "Hi."), ("assistant", "Yes?"), ("user", backend.hello)])
        assert (said.text, said.finish, said.tokens) == (TEXT, client.done, USAGE)
        assert conversation(backend.calls()[0]) == [
            {"role": "user", "content": "Hi."},
            {"role": "assistant", "content": "Yes?"},
            {"role": "user", "content": backend.hello},
        ]

    @pytest.mark.contract
    @needs("stream")
    def test_stream(self, client: Client, backend: Backend) -> None:
        backend.replies[NODE] = chat_stream_reply(
            TOKENS, usage={"prompt_tokens": PROMPT_TOKENS, "completion_tokens": COMPLETION_TOKENS}, delay=0.02
        )
        said = client.stream([("user", backend.hello)])
        assert (said.text, said.finish, said.tokens) == (TEXT, client.done, USAGE)
        assert len(said.pieces) > 1
        assert conversation(backend.calls()[0]) == [{"role": "user", "content": backend.hello}]

    @needs("chat")
    def test_turn_without_text(self, client: Client, backend: Backend) -> None:
        """A stopped answer that is empty stays in the conversation of many front-ends."""
        client.chat([("user", backend.hello), ("assistant", ""), ("user", "Go on.")])
        assert [message["content"] for message in conversation(backend.calls()[0])] == [backend.hello, "Go on."]

    @needs("chat")
    def test_answer_that_reached_its_limit(self, client: Client, backend: Backend) -> None:
        backend.replies[NODE] = answers(Answer(TOKENS, "length"))
        assert client.chat([("user", backend.hello)]).finish == client.reached_limit

    @needs("complete")
    def test_text_completion(self, client: Client, backend: Backend) -> None:
        backend.replies[NODE] = answers(Answer(TOKENS))
        said = client.complete(backend.hello)
        assert said.text == TEXT
        assert said.tokens in (USAGE, None) and said.finish in ("stop", None)
        assert backend.hello in conversation(backend.calls()[0])[-1]["content"]

    @needs("stream_completion")
    def test_streamed_text_completion(self, client: Client, backend: Backend) -> None:
        backend.replies[NODE] = chat_stream_reply(TOKENS, delay=0.02)
        said = client.stream_completion(backend.hello)
        assert said.text == TEXT and len(said.pieces) > 1
        assert backend.hello in conversation(backend.calls()[0])[-1]["content"]

    @needs("chat_with_image")
    def test_image(self, client: Client, backend: Backend) -> None:
        assert client.chat([("user", backend.hello)], IMAGE).text == f"{NODE} says hello."
        [message] = conversation(backend.calls()[0])
        self._has_image(message, backend.hello)

    @needs("complete_with_image")
    def test_image_in_text_completion(self, client: Client, backend: Backend) -> None:
        assert client.complete_with_image(backend.hello, IMAGE).text == f"{NODE} says hello."
        [message] = conversation(backend.calls()[0])
        self._has_image(message, backend.hello)

    @staticmethod
    def _has_image(message: Mapping[str, Any], text: str) -> None:
        parts = {part["type"]: part for part in message["content"]}
        assert text in parts["text"]["text"]
        assert parts["image_url"]["image_url"]["url"] == data_uri(IMAGE)
        assert message["role"] == "user" and len(message["content"]) == 2

    @pytest.mark.contract
    @needs("use_tool")
    @pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
    def test_tool(self, client: Client, backend: Backend, stream: bool) -> None:
        """Two calls in one answer, with their results sent back in the same order."""
        backend.replies[NODE] = calls_tool
        first, second = client.use_tool(backend.hello, stream)
        assert first.text == "Let me look."
        assert list(first.calls) == [("weather", {"city": city}) for city in RESULTS]
        assert (second.text, second.calls) == (TEXT, ())
        offered, answered = backend.calls()
        assert self._offered(offered) == [TOOL] == self._offered(answered)
        self._is_exchange(conversation(answered), backend.hello)

    @staticmethod
    def _offered(request: RecordedRequest) -> list[dict[str, Any]]:
        """The tools that arrived, but for what packages add on their own."""
        tools: list[dict[str, Any]] = request.json["tools"]
        return [
            {"type": tool["type"], "function": {key: tool["function"][key] for key in TOOL["function"]}}
            for tool in tools
        ]

    @staticmethod
    def _is_exchange(messages: list[dict[str, Any]], question: str) -> None:
        """What a back-end wants to see: the call with ids, and a result for each of them."""
        asked, call, *results = messages
        assert asked == {"role": "user", "content": question}
        assert (call["role"], call["content"]) == ("assistant", "Let me look.")
        names = [made["function"]["name"] for made in call["tool_calls"]]
        assert names == ["weather"] * len(RESULTS)
        assert [made["type"] for made in call["tool_calls"]] == ["function"] * len(RESULTS)
        given = [made["function"]["arguments"] for made in call["tool_calls"]]
        assert [city in text for city, text in zip(RESULTS, given, strict=True)] == [True] * len(RESULTS)
        ids = [made["id"] for made in call["tool_calls"]]
        assert len(set(ids)) == len(RESULTS)
        assert [(message["role"], message["tool_call_id"], message["content"]) for message in results] == [
            ("tool", number, result) for number, result in zip(ids, RESULTS.values(), strict=True)
        ]

    @pytest.mark.contract
    @needs("break_off")
    def test_broken_off_stream_ends_the_call(self, client: Client, backend: Backend) -> None:
        backend.replies[NODE] = stuck("Once ", "upon ", "a ")
        assert "Once".startswith(client.break_off(backend.hello).strip())
        call = backend.wait_call(NODE)
        assert call.wait_ended(), "the back-end call goes on"
        assert call.client_left
        backend.replies.clear()
        assert client.chat([("user", backend.hello)]).text == f"{NODE} says hello."

    @needs("give_up")
    def test_client_that_gives_up_ends_the_call(self, client: Client, backend: Backend) -> None:
        backend.replies[NODE] = Reply(never=True)
        tries = 0
        # A busy machine may not have called the back-end by then.
        while not backend.calls() and tries < 8:
            tries += 1
            with pytest.raises(Exception, match="(?i)time.?out|timed out|abort"):
                client.give_up(backend.hello)
        calls = backend.calls()
        assert 0 < len(calls) <= tries and all(call.wait_ended() and call.client_left for call in calls)

    @pytest.mark.contract
    @needs("chat")
    @pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
    def test_failure_of_the_backend_is_told(self, client: Client, backend: Backend, stream: bool) -> None:
        backend.replies[NODE] = status_reply(400, "no such model")
        with pytest.raises(Exception, match="no such model"):
            (client.stream if stream else client.chat)([("user", backend.hello)])

    @pytest.mark.contract
    @needs("stream")
    def test_failure_in_the_middle_of_a_stream_is_told(self, client: Client, backend: Backend) -> None:
        """The text that came before must not look like a whole answer."""
        backend.replies[NODE] = sse_reply([chat_chunk({"content": "Once "})], drop=AFTER_PIECES)
        with pytest.raises(Exception, match="Stub"):
            client.stream([("user", backend.hello)])
