"""What survives between every client dialect and every back-end dialect, observed through one real server.

``observe`` runs the requests; ``LOSSES`` says what is lost or changed, and why; everything else must arrive as the
back-end said it. ``python -m Scripts.generate`` writes the user's table from the same observation.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from Tests.api.api_lab import Answer as Body
from Tests.api.tool_loops import Client
from Tests.backend_dialects import (
    COMPLETION_TOKENS,
    DIALECTS,
    PROMPT_TOKENS,
    Answer,
    Call,
    Dialect,
    dialect_of,
    speak,
    wants_stream,
)
from Tests.integration.client_dialects import FRONTS, Heard, Turn
from Tests.integration.launcher import PROJECT, USER, ConfigTree, Launcher, Response, endpoint, llm_node
from Tests.stub_backend import RecordedRequest, Reply, StubBackend

CLIENTS = {"OpenAI chat": "chat", "OpenAI Responses": "responses", "Anthropic Messages": "messages"} | {
    "Ollama chat": "ollama"
}
"""The four dialects of clients that have tools, and what ``tool_loops`` calls them."""
SHIPPED = PROJECT / "Public" / "Configs"
TEMPLATE = "chatml-fixed"
KEY = "sk-secret"
FINGERPRINT = "b1234-stub"
HARD_TOKENS = (
    "Grüße {",
    "x} ",
    "[DONE]",
    " data: [DONE]\n\n",
    "{{y}} 日本",
    ' 🙂 "quoted\\n" ',
    "\u2028</s>",
    '{"done": true}',
)
FIRST, SECOND = Call("look_up", {"word": "Köln {1}", "n": 2}), Call("stop_it", {}, "call_2")
CALL_TEXT = ("Let me ", "see.")
ANSWERS = {
    "text": Answer(HARD_TOKENS),
    "length": Answer(("cut ", "off"), "length", usage=False),
    "one-call": Answer((), "tool_calls", calls=(FIRST,)),
    "two-calls": Answer(CALL_TEXT, "tool_calls", calls=(FIRST, SECOND)),
    "reasoning": Answer(reasoning=("Hm, ", "größer?")),
    "filter": Answer(("No", "."), "content_filter"),
    "refusal": Answer((), "content_filter", refusal="I cannot {help}."),
    "early": Answer(CALL_TEXT, "tool_calls", calls=(FIRST, SECOND)),
    "failure": Answer(("Half a ", "sentence")),
    "loop": Answer((), "tool_calls", ("I need ", "a {clock}."), (Call("clock", {"zone": "x"}),)),
}
DIED = "The server died."
"""What the back-end says when the client's message names the key. ``length`` comes without token counts."""

PICTURE = (
    "iVBORw0KGgoAAAANSUhEUgAAAAQAAAAECAIAAAAmkwkpAAAAMElEQVR42g3HMQEAMAjEwGj6GSWZEYGSKkFgue0AibQ8KaxY"
    "bV0GJ047l8WN2+7zA1X7D/EhIMjvAAAAAElFTkSuQmCC"
)
HISTORY = (
    Turn("system", "Be {brief}."),
    Turn("user", "What is {x}?"),
    Turn("assistant", call=("look_up", {"word": "x", "n": 1})),
    Turn("tool", "x is a {letter}"),
    Turn("assistant", "A letter."),
    Turn("user", "And this? case:history", image=PICTURE),
)


SHOWN = (
    Turn("user", "What is on the screen?"),
    Turn("assistant", call=("look_up", {"word": "screen", "n": 1})),
    Turn("tool", "This: case:image", image=PICTURE),
)
"""A history that ends with the result of a tool, an image; the back-end says whether it has got that."""
SEEN = "I see it."

BACKS: dict[str, Dialect] = DIALECTS
CHAT, TEXT, OLLAMA, GENERATE, KOBOLD, CLAUDE = BACKS

# -- what is expected ----------------------------------------------------------------------------------------------
KEPT, LOST, STOP, ESTIMATED, OWN, ABSENT = "kept", "lost", "stop", "estimated", "own", "absent"
AS_TEXT = "as text"
FEATURES = {
    "text": "text",
    "stop": "`stop`",
    "length": "`length`",
    "filter": "`content_filter`",
    "refusal": "refusal",
    "call": "tool call",
    "calls": "two calls",
    "ids": "ids",
    "call end": "`tool_calls`",
    "reasoning": "thinking",
    "usage": "tokens",
    "fingerprint": "fingerprint",
    "image": "tool's image",
    "back": "thinking back",
    "early": "early reason",
    "failure": "failure",
}
"""What is observed, and how the table calls it."""


@dataclass(frozen=True)
class Loss:
    """What does not arrive as the back-end said it. The first that fits a pair counts.

    Attributes:
        outcomes: by feature, what the client gets instead.
        streamed: None: streamed or not.
    """

    reason: str
    outcomes: Mapping[str, str]
    fronts: tuple[str, ...] = tuple(FRONTS)
    backs: tuple[str, ...] = tuple(BACKS)
    streamed: bool | None = None

    def fits(self, pair: Pair, feature: str) -> bool:
        return (
            feature in self.outcomes
            and pair.front in self.fronts
            and pair.back in self.backs
            and self.streamed in (None, pair.stream)
        )


_NO_CALLS = {"call": LOST, "calls": LOST, "ids": ABSENT, "call end": STOP, "back": LOST}
_TEXT_FRONTS = ("OpenAI text", "Ollama generate")
_NO_FINGERPRINT = ("OpenAI Responses", "Anthropic Messages", "Ollama chat", "Ollama generate")
LOSSES = (
    Loss(
        "This back-end's API has no tool calls; the tools that a client offers are not sent to it.",
        _NO_CALLS,
        backs=(TEXT, GENERATE, KOBOLD),
    ),
    Loss(
        "This client API cannot carry tool calls; they become text, after the text next to them.",
        {"call": AS_TEXT, "calls": AS_TEXT, "ids": ABSENT, "call end": STOP, "image": LOST, "back": LOST},
        _TEXT_FRONTS,
    ),
    Loss(
        "This back-end's calls have no ids; the client gets ids that WilmerAI makes.",
        {"ids": OWN},
        backs=tuple(name for name, back in BACKS.items() if not back.gives_call_ids),
    ),
    Loss(
        "This client API has no reason of its own for it: such an answer ends as any other.",
        {"call end": STOP},
        ("OpenAI Responses",),
    ),
    Loss(
        "This client API has no reasons but `stop` and `length`: such an answer ends as any other.",
        {"call end": STOP, "filter": STOP},
        ("Ollama chat", "Ollama generate"),
    ),
    Loss("This back-end's API has no reason of its own for it.", {"filter": STOP}, backs=(OLLAMA, GENERATE, KOBOLD)),
    Loss(
        "This back-end's API has no words for a refusal.",
        {"refusal": ABSENT},
        backs=(TEXT, OLLAMA, GENERATE, KOBOLD),
    ),
    Loss("This back-end's API cannot carry images.", {"image": LOST}, backs=(TEXT,)),
    Loss(
        "This back-end's API does not separate thinking from the answer.",
        {"reasoning": LOST, "back": LOST},
        backs=(TEXT, KOBOLD),
    ),
    Loss("This client API cannot carry thinking.", {"reasoning": LOST}, _TEXT_FRONTS),
    Loss(
        "KoboldCpp reports no token counts in streams; the client gets an estimate.",
        {"usage": ESTIMATED},
        backs=(KOBOLD,),
        streamed=True,
    ),
    Loss("This client API has no `system_fingerprint`.", {"fingerprint": ABSENT}, _NO_FINGERPRINT),
    Loss(
        "This back-end sends none; the client gets one of WilmerAI's.",
        {"fingerprint": OWN},
        backs=(OLLAMA, GENERATE, KOBOLD, CLAUDE),
    ),
)


@dataclass(frozen=True)
class Pair:
    """A client dialect, a back-end's API type, and whether the answer is streamed."""

    front: str
    back: str
    stream: bool

    def __str__(self) -> str:
        return f"{self.front} from {self.back}, {'streamed' if self.stream else 'whole'}"

    def loss(self, feature: str) -> Loss | None:
        return next((loss for loss in LOSSES if loss.fits(self, feature)), None)

    def expected(self, feature: str) -> str:
        loss = self.loss(feature)
        return loss.outcomes[feature] if loss else KEPT


PAIRS = [Pair(front, back, stream) for front in FRONTS for back in BACKS for stream in (False, True)]


# -- what is observed ----------------------------------------------------------------------------------------------
@dataclass
class Observation:
    """What clients heard by pair and name of the answer, and the calls of the pair whose client sent ``HISTORY``."""

    heard: dict[Pair, dict[str, Heard]] = field(default_factory=dict)
    sent: dict[Pair, RecordedRequest] = field(default_factory=dict)

    def outcome(self, pair: Pair, feature: str) -> str:
        """What became of a feature, in the words of the expectation; anything else is shown as it is."""
        return _OUTCOMES[feature](self.heard[pair])


def observe() -> Observation:
    """Run every pair through one server of its own; takes some seconds."""
    observation = Observation()
    with matrix_server() as (server, backend):
        for pair in PAIRS:
            observation.heard[pair] = {
                name: _ask(server, pair, (Turn("user", f"Say case:{name}."),)) for name in ANSWERS
            }
            observation.heard[pair]["image"] = _ask(server, pair, SHOWN)
            if pair.front in CLIENTS:
                observation.heard[pair]["loop"] = _loop(server, pair)
            _ask(server, pair, HISTORY)
            observation.sent[pair] = backend.requests[-1]
    return observation


def _ask(server: Launcher, pair: Pair, turns: tuple[Turn, ...]) -> Heard:
    front = FRONTS[pair.front]
    return front.read(server.request("POST", front.path, front.body(pair.back, turns, pair.stream)), pair.stream)


class _Body(Body):
    """A response that has come over a socket."""

    def __init__(self, response: Response) -> None:
        self.status, self.headers, self.data = response.status, response.headers, response.body


@dataclass
class Asked:
    """A running server, as the clients of ``tool_loops`` see it.

    Attributes:
        model: the one that clients ask.
        heard: what they have heard of it, read by the letter.
    """

    server: Launcher
    model: str = ""
    heard: list[Heard] = field(default_factory=list)

    def post(self, body: Any, path: str, *, headers: Mapping[str, str] | None = None) -> Body:
        front = next(front for front in FRONTS.values() if front.path == path)
        counts = {"stream_options": {"include_usage": True}} if body["stream"] and "completions" in path else {}
        response = self.server.request("POST", path, {**body, "model": self.model, **counts})
        self.heard.append(front.read(response, body["stream"]))
        return _Body(response)


def _loop(server: Launcher, pair: Pair) -> Heard:
    """What the client hears after it has sent the results of the model's calls, if there were any."""
    asked = Asked(server, pair.back)
    client = Client(asked, CLIENTS[pair.front], pair.stream)
    client.asks(f"Say case:loop. {pair}")
    if client.calls:
        client.answers_calls()
    return asked.heard[-1]


@contextmanager
def matrix_server() -> Iterator[tuple[Launcher, StubBackend]]:
    """A server with a shared workflow per back-end dialect, named like its type, and the back-end behind all."""
    with TemporaryDirectory() as folder, StubBackend() as backend:
        backend.responder = reply
        tree = dialect_tree(Path(folder) / "Public", backend.url)
        with Launcher(
            "run_waitress.py", "--PublicDirectory", tree.public, "--User", USER, "--concurrency", "0"
        ) as server:
            yield server, backend


def dialect_tree(public: Path, url: str) -> ConfigTree:
    """One endpoint and one shared workflow per back-end dialect, with the shipped API types and prompt template."""
    tree = ConfigTree(public)
    tree.write("Users/_current-user.json", {"currentUser": USER})
    tree.write(
        f"Users/{USER}.json",
        {"allowSharedWorkflows": True, "sendReasoningToClient": True, "chatPromptTemplateName": "_chatonly"},
    )
    # Only with this does a Claude take its thoughts back.
    tree.write("Presets/ClaudeMessages/Thinking.json", {"thinking": {"type": "adaptive"}})
    for dialect in BACKS.values():
        copy_shipped(tree, f"ApiTypes/{dialect.name}.json")
        tree.write(
            f"Endpoints/{dialect.api_type}.json",
            endpoint(
                url,
                apiTypeConfigFileName=dialect.name,
                apiKey=KEY,
                promptTemplate=TEMPLATE,
                presetSamplers={"temperature": 0.5, "stop": ["###"]},
                appendPresetName="Thinking" if dialect.name == "Claude" else "",
            ),
        )
        tree.shared(
            dialect.api_type,
            llm_node(
                f"ask-{dialect.api_type}",
                endpointName=dialect.api_type,
                preset="",
                systemPrompt="{chat_system_prompt}",
                lastMessagesToSendInsteadOfPrompt=20,
                allowTools=True,
                acceptImages=True,
                returnToUser=True,
            ),
        )
    for template in (TEMPLATE, "_chatonly"):
        copy_shipped(tree, f"PromptTemplates/{template}.json")
    return tree


def copy_shipped(tree: ConfigTree, path: str) -> None:
    """Put a shipped configuration file into the tree."""
    target = tree.configs / path
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(SHIPPED / path, target)


def reply(request: RecordedRequest) -> Reply:
    """What a real server of the dialect at the request's path answers."""
    found = re.search(rb"case:([a-z-]+)", request.body)
    case = found[1].decode() if found else ""
    answer, dialect = ANSWERS.get(case, Answer()), dialect_of(request)
    if dialect is not None and case in ("early", "failure"):
        stream = wants_stream(request)
        return dialect.early(answer, stream) if case == "early" else dialect.broken(answer, stream, DIED)
    if case == "loop" and b"It is noon." in request.body:
        answer = Answer((SEEN,)) if "".join(answer.reasoning).encode() in request.body else Answer()
    if case == "image" and PICTURE.encode() in request.body:
        answer = Answer((SEEN,))
    return speak(request, answer)


# -- what became of a feature --------------------------------------------------------------------------------------
def _text(heard: Mapping[str, Heard]) -> str:
    return _matched(heard["text"].text, {KEPT: ANSWERS["text"].text})


def _calls(name: str, heard: Mapping[str, Heard]) -> str:
    answer, got = ANSWERS[name], heard[name]
    lines = [json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False) for call in answer.calls]
    if got.text == "\n\n".join(part for part in (answer.text, "\n".join(lines)) if part) and not got.calls:
        return AS_TEXT
    if got.text != answer.text:
        return f"text {got.text!r}"
    calls = [(call.name, dict(call.arguments)) for call in answer.calls]
    return KEPT if got.calls == calls else LOST if not got.calls else repr(got.calls)


def _call_ids(got: list[str]) -> str:
    made = got if all(re.fullmatch("call_[0-9a-f]{24}", one) for one in got) and len(set(got)) == len(got) else None
    return _matched(got, {KEPT: [call.id for call in ANSWERS["two-calls"].calls], ABSENT: [], OWN: made})


def _reasoning(heard: Mapping[str, Heard]) -> str:
    answer, got = ANSWERS["reasoning"], heard["reasoning"]
    if got.text != answer.text:
        return f"text {got.text!r}"
    return _matched(got.reasoning, {KEPT: "".join(answer.reasoning), LOST: ""})


def _usage(heard: Mapping[str, Heard]) -> str:
    usage = heard["text"].usage
    if usage == (PROMPT_TOKENS, COMPLETION_TOKENS):
        return KEPT
    return ESTIMATED if usage and min(usage) > 0 else repr(usage)


def _fingerprint(heard: Mapping[str, Heard]) -> str:
    got = heard["text"].fingerprint
    own = got or "" if re.match("wmr_|fp_", got or "") else "?"
    return _matched(got, {KEPT: FINGERPRINT, ABSENT: None, OWN: own})


def _failure(heard: Mapping[str, Heard]) -> str:
    """Whether the client has all that came before, and learns that this is not all, and why."""
    got, text = heard["failure"], ANSWERS["failure"].text
    return KEPT if DIED in got.error and got.text == (text if got.status == 200 else "") else repr(got)


def _content(heard: Heard) -> Any:
    return heard.text, heard.calls, heard.finish


def _matched(got: Any, words: Mapping[str, Any]) -> str:
    return next((word for word, value in words.items() if got == value), repr(got))


_OUTCOMES = {
    "text": _text,
    "stop": lambda heard: _matched(heard["text"].finish, {KEPT: "stop"}),
    "length": lambda heard: _matched(heard["length"].finish, {KEPT: "length"}),
    "refusal": lambda heard: _matched(heard["refusal"].text, {KEPT: ANSWERS["refusal"].refusal, ABSENT: ""}),
    "filter": lambda heard: _matched(heard["filter"].finish, {KEPT: "content_filter", STOP: "stop"}),
    "call": lambda heard: _calls("one-call", heard),
    "calls": lambda heard: _calls("two-calls", heard),
    "ids": lambda heard: _call_ids(heard["two-calls"].call_ids),
    "call end": lambda heard: _matched(heard["two-calls"].finish, {KEPT: "tool_calls", STOP: "stop"}),
    "reasoning": _reasoning,
    "usage": _usage,
    "fingerprint": _fingerprint,
    "image": lambda heard: KEPT if heard["image"].text == SEEN else LOST,
    "back": lambda heard: KEPT if heard["loop"].text == SEEN else LOST,
    # The same answer with its reason at the end is the other one.
    "early": lambda heard: _matched(_content(heard["early"]), {KEPT: _content(heard["two-calls"])}),
    "failure": _failure,
}
