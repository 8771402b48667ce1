"""Seven kinds of LLM servers as strict as the real ones, and one server of ours with a model for each of them.

``FAILURES`` and ``EARLY`` say how each of them breaks an answer off and ends one too early; ``Back.refuses`` refuses
the payloads that the real one refuses.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from Tests.api.tool_loops import THINKING, assistants, members
from Tests.backend_dialects import (
    Answer,
    Call,
    Claude,
    Dialect,
    KoboldCpp,
    OllamaChat,
    OpenAiChat,
    OpenAiCompletion,
    named_event,
)
from Tests.integration.client_dialects import FRONTS, Front, Heard, Turn
from Tests.integration.dialect_matrix import TEMPLATE, Asked, copy_shipped
from Tests.integration.launcher import USER, ConfigTree, Launcher, endpoint, llm_node
from Tests.stub_backend import AFTER_PIECES, RecordedRequest, Reply, StubBackend, json_reply, sse_event

THOUGHT = ("Hm, ", "größer {than} noon?")
SIGNATURE = {"google": {"thought_signature": "c2ln"}}
ZONES = ({"zone": "Köln {1}"}, {"zone": "東京"})


# -- servers -----------------------------------------------------------------------------------------------------------
class GeminiChat(OpenAiChat):
    """Each call is a chunk of its own at index 0, and the first has the signature of the thought before it."""

    def whole(self, answer: Answer) -> dict[str, Any]:
        body = super().whole(answer)
        message = body["choices"][0]["message"]
        message.pop("reasoning_content", None)
        if answer.reasoning and answer.calls:
            message["tool_calls"][0]["extra_content"] = SIGNATURE
        return body

    def pieces(self, answer: Answer) -> list[bytes]:
        message = self.whole(answer)["choices"][0]["message"]
        deltas = [{"role": "assistant", "content": text} for text in answer.tokens]
        deltas += [{"role": "assistant", "tool_calls": [{"index": 0, **one}]} for one in message.get("tool_calls", ())]
        events = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
        events[-1]["finish_reason"] = answer.finish
        return [sse_event(event) for event in (*(self._chunk([one]) for one in events), "[DONE]")]


class MistralChat(OpenAiChat):
    """Thoughts are blocks of the content; all calls come in one chunk."""

    def whole(self, answer: Answer) -> dict[str, Any]:
        body = super().whole(answer)
        message = body["choices"][0]["message"]
        if message.pop("reasoning_content", None):
            texts = [{"type": "text", "text": answer.text}] if answer.text else []
            message["content"] = [thought_block("".join(answer.reasoning)), *texts]
        return body

    def pieces(self, answer: Answer) -> list[bytes]:
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
        deltas += [{"content": [thought_block(text)]} for text in answer.reasoning]
        deltas += [{"content": text} for text in answer.tokens]
        if answer.calls:
            calls = self.whole(answer)["choices"][0]["message"]["tool_calls"]
            deltas.append({"tool_calls": [{"index": index, **one} for index, one in enumerate(calls)]})
        events = [self._chunk([{"index": 0, "delta": delta, "finish_reason": None}]) for delta in deltas]
        end = self._chunk([{"index": 0, "delta": {"content": ""}, "finish_reason": answer.finish}])
        return [sse_event(event) for event in (*events, end, "[DONE]")]


def thought_block(text: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": [{"type": "text", "text": text}]}


@dataclass(frozen=True)
class Back:
    """A kind of server, at a path of its own.

    Attributes:
        model: also the first part of its path.
        path: what stands between that and the method.
        ids: those of its calls; empty if it gives none.
        calls: whether its API has tool calls.
        images: whether its API takes images.
        kept: what its message of the model has in the second request of a tool loop; None: not looked at so.
    """

    name: str
    model: str
    dialect: Dialect
    path: str = ""
    ids: tuple[str, ...] = ()
    calls: bool = True
    images: bool = True
    kept: Mapping[str, Any] | None = None

    def says(self, answer: Answer) -> Answer:
        """What a model says, with the ids of this server."""
        calls = [Call(one.name, one.arguments, self.ids[at] if self.ids else "") for at, one in enumerate(answer.calls)]
        return Answer(answer.tokens, answer.finish, answer.reasoning, calls)

    def refuses(self, body: Any) -> Reply | None:
        """The refusal of a payload that the real server refuses."""
        if not self.calls:
            refused = {"messages", "tools", "tool_choice"} & set(body)
            return bad_request(f"Unknown fields {sorted(refused)}") if refused else None
        return _REFUSALS[self.model](body)


DEEPSEEK = Back(
    "DeepSeek",
    "deepseek",
    OpenAiChat(),
    ids=("call_00_Jv3", "call_01_pQ8"),
    kept={"reasoning_content": "".join(THOUGHT)},
)
GEMINI = Back(
    "Gemini",
    "gemini",
    GeminiChat(),
    "/v1beta/openai",
    ids=("function-call-48", "function-call-49"),
    kept={"0.extra_content": SIGNATURE},
)
MISTRAL = Back("Mistral", "mistral", MistralChat(), ids=("D681PevKs", "9aZbY8xWv"))
TEXT = Back("OpenAI text", "plain", OpenAiCompletion(), calls=False, images=False)
OLLAMA = Back("Ollama chat", "ollama", OllamaChat(), kept={"thinking": "".join(THOUGHT)})
KOBOLD = Back("KoboldCpp", "kobold", KoboldCpp(), calls=False)
CLAUDE = Back("Claude", "claude", Claude(), ids=("toolu_01A", "toolu_01B"))
BACKS = (DEEPSEEK, GEMINI, MISTRAL, TEXT, OLLAMA, KOBOLD, CLAUDE)


def bad_request(text: str) -> Reply:
    return json_reply({"error": {"message": text, "type": "invalid_request_error"}}, 400)


def _openai_refuses(body: Any) -> Reply | None:
    """What each chat server of OpenAI's form refuses: calls without results, results without calls."""
    messages = body["messages"]
    for at, message in enumerate(messages):
        calls = message.get("tool_calls") or ()
        results = [one.get("tool_call_id") for one in messages[at + 1 : at + 1 + len(calls)]]
        if sorted(call["id"] for call in calls) != sorted(map(str, results)):
            return bad_request(f"messages[{at}]: tool calls need results right behind them")
        if message["role"] == "tool" and messages[at - 1]["role"] not in ("assistant", "tool"):
            return bad_request(f"messages[{at}]: a result without a call")
        if any(not isinstance(json.loads(call["function"]["arguments"]), dict) for call in calls):
            return bad_request(f"messages[{at}]: arguments are no object")
    return None


def _deepseek_refuses(body: Any) -> Reply | None:
    for at, message in enumerate(body["messages"]):
        if message.get("tool_calls") and not message.get("reasoning_content"):
            return bad_request(f"Missing `reasoning_content` field in the assistant message at message index {at}")
    return _openai_refuses(body)


def _gemini_refuses(body: Any) -> Reply | None:
    """Its errors are lists."""
    refused = _gemini_misses(body) or _openai_refuses(body)
    return json_reply([refused.body], refused.status) if refused else None


def _gemini_misses(body: Any) -> Reply | None:
    for message in assistants(body):
        for name in members(message):
            if not name.endswith("extra_content"):
                return bad_request(f"Invalid JSON payload received. Unknown name \"{name}\" at 'messages[1]'")
        if message.get("tool_calls") and "extra_content" not in message["tool_calls"][0]:
            return bad_request("Function call is missing a thought_signature in functionCall parts.")
    return None


def _mistral_refuses(body: Any) -> Reply | None:
    foreign = [
        {"type": "extra_forbidden", "loc": ["body", "messages", at, name], "msg": "Extra inputs are not permitted"}
        for at, message in enumerate(body["messages"])
        for name in members(message)
        if name not in ("tool_call_id", "name", "prefix")
    ]
    if foreign:
        return json_reply({"detail": foreign}, 422)
    for message in assistants(body):
        for call in message.get("tool_calls") or ():
            if not re.fullmatch("[a-zA-Z0-9]{9}", call["id"]):
                return bad_request(f"Tool call id was {call['id']} but must be a-z, A-Z, 0-9, with a length of 9.")
    return _openai_refuses(body)


def _ollama_refuses(body: Any) -> Reply | None:
    for message in assistants(body):
        if any(not isinstance(call["function"]["arguments"], dict) for call in message.get("tool_calls") or ()):
            return json_reply({"error": "json: cannot unmarshal string into Go struct field arguments"}, 400)
    return None


def _claude_refuses(body: Any) -> Reply | None:
    messages = body["messages"]
    for at, message in enumerate(messages):
        blocks = message["content"] if isinstance(message["content"], list) else []
        used = [block["id"] for block in blocks if block["type"] == "tool_use"]
        behind = messages[at + 1]["content"] if used else []
        if [block.get("tool_use_id") for block in behind[: len(used)]] != used:
            return bad_request(f"messages.{at}: `tool_use` ids were found without `tool_result` blocks after")
        if any(block["type"] == "text" and not block["text"].strip() for block in blocks):
            return bad_request("messages: text content blocks must contain non-whitespace text")
        if used and "thinking" in body and blocks[0]["type"] != "thinking":
            return bad_request(f"messages.{at}.content.0.type: Expected `thinking`, but found `{blocks[0]['type']}`")
        if any(block.get("signature", "sig") != "sig" for block in blocks):
            return bad_request(f"messages.{at}.content.0: Invalid `signature` in `thinking` block")
    return None


_REFUSALS = {
    "deepseek": _deepseek_refuses,
    "gemini": _gemini_refuses,
    "mistral": _mistral_refuses,
    "ollama": _ollama_refuses,
    "claude": _claude_refuses,
}


# -- one server of ours before all of them -----------------------------------------------------------------------------
@dataclass
class Wire(Asked):
    """A running server and what is behind it."""

    backend: StubBackend = field(default_factory=StubBackend)

    def ask(self, front: Front, back: Back, stream: bool, reply: Reply) -> Heard:
        """One question, and this reply to it."""
        self.backend.next_row()
        self.backend.responder = lambda request: reply
        body = front.body(back.model, (Turn("user", "What time is it?"),), stream)
        return front.read(self.server.request("POST", front.path, body), stream)

    def plays(self, *answers: Answer) -> list[RecordedRequest]:
        """Let the servers give these answers to the next requests that they do not refuse; returns the requests."""
        self.backend.next_row()
        waiting = list(answers)

        def respond(request: RecordedRequest) -> Reply:
            back = next(one for one in BACKS if request.path.startswith(f"/{one.model}/"))
            if refusal := back.refuses(request.json):
                return refusal
            return back.dialect.reply(back.says(waiting.pop(0)), bool(request.json.get("stream", back.dialect.streams)))

        self.backend.responder = respond
        return self.backend.requests


@contextmanager
def wire() -> Iterator[Wire]:
    """A server with a shared workflow and an endpoint for each kind of LLM server; each has ended a stream properly."""
    with TemporaryDirectory() as folder, StubBackend() as backend:
        tree = wire_tree(Path(folder) / "Public", backend.url)
        with Launcher(
            "run_waitress.py", "--PublicDirectory", tree.public, "--User", USER, "--concurrency", "0"
        ) as server:
            wired = Wire(server, backend=backend)
            for back in BACKS:
                heard = wired.ask(FRONTS["OpenAI chat"], back, True, back.dialect.reply(Answer(), True))
                assert heard.text == "Hello there"
            yield wired


def wire_tree(public: Path, url: str) -> ConfigTree:
    tree = ConfigTree(public)
    tree.write("Users/_current-user.json", {"currentUser": USER})
    tree.write(
        f"Users/{USER}.json",
        {"allowSharedWorkflows": True, "sendReasoningToClient": True, "chatPromptTemplateName": "_chatonly"},
    )
    for template in (TEMPLATE, "_chatonly"):
        copy_shipped(tree, f"PromptTemplates/{template}.json")
    tree.write("Presets/ClaudeMessages/Thinking.json", {"thinking": THINKING})
    for back in BACKS:
        copy_shipped(tree, f"ApiTypes/{back.dialect.name}.json")
        tree.write(
            f"Endpoints/{back.model}.json",
            endpoint(
                f"{url}/{back.model}{back.path}",
                apiTypeConfigFileName=back.dialect.name,
                promptTemplate=TEMPLATE,
                appendPresetName="Thinking" if back is CLAUDE else "",
            ),
        )
        node = llm_node(back.model, endpointName=back.model, preset="", lastMessagesToSendInsteadOfPrompt=20)
        more = {"systemPrompt": "{chat_system_prompt}", "maxResponseSizeInTokens": 2000, "returnToUser": True}
        tree.shared(back.model, {**node, "allowTools": True, "acceptImages": True, **more})
    return tree


# -- answers that break off, and reasons that come too early -----------------------------------------------------------
@dataclass(frozen=True)
class Failure:
    """What a server says in place of the rest of an answer.

    Attributes:
        words: what the client is told of it.
        after: what comes after the text, in a stream; None: only whole.
        whole: the body of a whole answer with status 200; None: only streamed.
    """

    words: str
    after: tuple[bytes, ...] | None = ()
    whole: Any = None
    drop: str = ""


HALF = "Half a"
DIED = "The provider died"
CUT = Failure("the stream ended without its end")
LOST = Failure("", drop=AFTER_PIECES, whole={"choices": [{"message": {"content": "Half a sentence"}}]})


def openai_failures(key: str, end: Mapping[str, Any]) -> tuple[Failure, ...]:
    """The failures of servers of OpenAI's form; ``key``: delta and message, or text."""
    said: Any = {"content": HALF} if key != "text" else HALF
    error = {"message": DIED}

    def event(**choice: Any) -> bytes:
        return sse_event({"choices": [{"index": 0, **end, "finish_reason": None, **choice}]})

    def whole(**more: Any) -> dict[str, Any]:
        return {"choices": [{"index": 0, "message" if key != "text" else "text": said, **more}]}

    empty = {"choices": [{"index": 0, **({"text": ""} if key == "text" else {key: {"content": ""}})}]}
    return (
        # With a piece of text, as ordinary pieces have one.
        Failure(DIED, (sse_event({**empty, "error": error}), sse_event("[DONE]")), {**empty, "error": error}),
        Failure(DIED, (sse_event({"choices": [{**empty["choices"][0], "error": error}]}), sse_event("[DONE]")), None),
        Failure(DIED, (event(error=error), sse_event("[DONE]")), whole(error=error)),
        Failure('"error"', (event(finish_reason="error"), sse_event("[DONE]")), whole(finish_reason="error")),
        Failure('"abort"', (event(finish_reason="abort"),), whole(finish_reason="abort")),
        Failure(DIED, (sse_event({"error": error}),), {"error": error}),
        Failure(DIED, (named_event("error", {"message": DIED}),), {"base_resp": {"status_msg": DIED}}),
        Failure(DIED, None, {"detail": DIED}),
        # None of these may pass for a part that is to be skipped, although an end follows.
        Failure(DIED, (f"event: error\ndata: {DIED}\n\n".encode(), sse_event("[DONE]"))),
        Failure(DIED, (f'event: error\ndata: "{DIED}"\n\n'.encode(), sse_event("[DONE]"))),
        Failure(DIED, (sse_event([{"error": error}]), sse_event("[DONE]")), [{"error": error}]),
        Failure(DIED, (sse_event({"object": "error", "message": DIED}), sse_event("[DONE]")), {"error": DIED}),
        Failure(DIED, (sse_event({"type": "error", "message": DIED}), sse_event("[DONE]")), {"error": [DIED]}),
        CUT,
        LOST,
    )


def ndjson(*values: Any) -> tuple[bytes, ...]:
    return tuple(json.dumps(value).encode() + b"\n" for value in values)


def ollama_end(word: str) -> dict[str, Any]:
    return {"message": {"role": "assistant", "content": ""}, "done": True, "done_reason": word}


def claude_stop(reason: str) -> bytes:
    return named_event("message_delta", {"type": "message_delta", "delta": {"stop_reason": reason}})


def claude_error(text: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": "api_error", "message": text}}


CHAT_FAILURES = (
    *openai_failures("delta", {"delta": {}}),
    Failure(
        DIED,
        (sse_event({"choices": [{"delta": {"content": "", "error": {"message": DIED}}}]}), sse_event("[DONE]")),
        {"choices": [{"message": {"content": HALF, "error": {"message": DIED}}, "finish_reason": "stop"}]},
    ),
)
FAILURES: dict[str, tuple[Failure, ...]] = {
    "deepseek": (
        *CHAT_FAILURES,
        Failure(
            '"insufficient_system_resource"',
            (sse_event({"choices": [{"delta": {}, "finish_reason": "insufficient_system_resource"}]}),),
            {"choices": [{"message": {"content": HALF}, "finish_reason": "insufficient_system_resource"}]},
        ),
    ),
    "gemini": (
        *CHAT_FAILURES,
        Failure(
            '"MALFORMED_FUNCTION_CALL"',
            (sse_event({"choices": [{"delta": {}, "finish_reason": "MALFORMED_FUNCTION_CALL"}]}),),
            {"choices": [{"message": {"content": HALF}, "finish_reason": "MALFORMED_FUNCTION_CALL"}]},
        ),
        Failure(
            DIED, (sse_event([{"error": {"message": DIED, "status": "INTERNAL"}}]),), [{"error": {"message": DIED}}]
        ),
    ),
    "mistral": (*CHAT_FAILURES, Failure(DIED, None, {"object": "error", "message": DIED, "code": 3000})),
    "plain": openai_failures("text", {"text": ""}),
    "ollama": (
        Failure(DIED, ndjson({"error": DIED}), {"error": DIED}),
        Failure('"error"', ndjson(ollama_end("error")), ollama_end("error")),
        CUT,
        LOST,
    ),
    "kobold": (
        Failure(DIED, (named_event("error", {"message": DIED}),), {"detail": {"msg": DIED, "type": "server_error"}}),
        Failure(DIED, (sse_event({"error": DIED}),), {"error": DIED}),
        Failure(
            '"error"',
            (named_event("message", {"token": "", "finish_reason": "error"}),),
            {"results": [{"text": HALF, "finish_reason": "error"}]},
        ),
        CUT,
        LOST,
    ),
    "claude": (
        Failure(DIED, (named_event("error", claude_error(DIED)),), claude_error(DIED)),
        Failure(
            '"error"', (claude_stop("error"),), {"content": [{"type": "text", "text": HALF}], "stop_reason": "error"}
        ),
        CUT,
        LOST,
    ),
}


def half(back: Back) -> bytes:
    """The beginning of a stream: its text is ``HALF``."""
    if back.model == "claude":
        events: list[dict[str, Any]] = [
            {"type": "message_start", "message": {"usage": {"input_tokens": 1}}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": HALF}},
        ]
        return b"".join(named_event(event["type"], event) for event in events)
    return _piece(back, HALF, None)


def _piece(back: Back, text: str, reason: str | None, calls: Sequence[Call] = ()) -> bytes:
    """A piece of a stream with text, calls and a reason to end; of a Claude, a whole block for each."""
    if back.model == "kobold":
        return named_event("message", {"token": text, "finish_reason": reason})
    if back.model == "plain":
        return sse_event({"choices": [{"index": 0, "text": text, "finish_reason": reason}]})
    if back.model == "claude":
        blocks = b"".join(back.dialect.pieces(Answer((text,) if text else (), calls=calls))[2:-2])
        return blocks + (claude_stop(reason) if reason else b"")
    whole = back.dialect.whole(Answer((text,) if text else (), calls=calls))
    message = whole.get("message") or whole["choices"][0]["message"]
    if back.model == "ollama":
        return ndjson({"message": message, "done": False, "done_reason": reason})[0]
    if calls:
        message["tool_calls"] = [{"index": at, **one} for at, one in enumerate(message["tool_calls"])]
    return sse_event({"choices": [{"index": 0, "delta": message, "finish_reason": reason}]})


Piece = tuple[str, str | None, bool]
"""Text, a reason, and whether two calls come with it."""
EARLY: dict[str, tuple[tuple[Piece, ...], str]] = {
    "on each piece": ((("One ", "stop", False), ("two.", "stop", False), ("", "stop", True)), "stop"),
    "on a piece of its own": ((("One ", None, False), ("", "stop", False), ("two.", None, True)), "stop"),
    "with the text before": ((("One ", "stop", False), ("two.", None, False), ("", None, True)), "stop"),
    "before the calls": ((("One two.", None, False), ("", "eos", False), ("", None, True)), "stop"),
    "words for none before": ((("One ", "null", False), ("two.", "none", True), ("", "Stop", False)), "stop"),
    "another one last": ((("One ", "stop", False), ("two.", None, True), ("", "length", False)), "length"),
    "calls that are announced": ((("One ", "tool_calls", False), ("two.", None, True), ("", "stop", False)), "stop"),
}
"""The pieces of a stream by what is odd about it, and the reason of an answer without calls."""


def early(back: Back, pieces: Sequence[Piece], calls: Sequence[Call]) -> Reply:
    """A stream of these pieces; its end follows."""
    words = {"stop": "end_turn", "length": "max_tokens"} if back.model == "claude" else {}
    made = [
        _piece(back, text, words.get(reason or "", reason), back.says(Answer(calls=calls)).calls if with_calls else ())
        for text, reason, with_calls in pieces
    ]
    ends = {
        "ollama": ndjson(ollama_end(pieces[-1][1] or "")),
        "claude": (named_event("message_stop", {"type": "message_stop"}),),
        "kobold": (),
    }
    made += ends.get(back.model, (sse_event("[DONE]"),))
    return Reply(pieces=made, headers={"Content-Type": back.dialect.content_type})
