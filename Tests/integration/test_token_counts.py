"""The token counts that clients and the log get: those of the back-end, in streams and whole answers alike."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from Tests.backend_dialects import Answer as Said
from Tests.backend_dialects import named_event, speak
from Tests.integration.launcher import (
    PROJECT,
    USER,
    Backend,
    Launcher,
    endpoint,
    llm_node,
    run_launcher,
    sse_payloads,
    standard_tree,
)
from Tests.patience import CLIENT_PATIENCE
from Tests.stub_backend import RecordedRequest, Reply, chat_chunk, json_reply, sse_event, sse_reply
from Tests.tables import check_all
from Tests.workflows.engine_lab import until

KEY = "a-key-of-a-client"
SECRET = "The treasure lies under the oak."
SAID = ("Dig ", "at ", "night.")
TIMINGS = {"cache_n": 69, "prompt_n": 13, "predicted_n": 20}
COUNTS = {"prompt_tokens": 82, "completion_tokens": 20, "total_tokens": 102}
CACHED = {**COUNTS, "prompt_tokens_details": {"cached_tokens": 69}}
CLAUDE = {"input_tokens": 13, "cache_read_input_tokens": 69, "cache_creation_input_tokens": 0}
ESTIMATE = -1
"""In place of a count: the back-end did not say it, so that the client gets an estimate."""


def openai(whole: Mapping[str, Any], stream: Mapping[str, Any], own_event: bool = False) -> Any:
    """A server of OpenAI's dialect that adds ``whole`` to an answer, and ``stream`` to a stream's last event."""

    def reply(request: RecordedRequest) -> Reply:
        if not request.json.get("stream"):
            message = {"role": "assistant", "content": "".join(SAID)}
            return json_reply({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], **whole})
        tokens = [chat_chunk({"content": token}) for token in SAID]
        asked = request.json.get("stream_options") == {"include_usage": True}
        after = [{"choices": [], **stream}] if own_event and asked else []
        return sse_reply([*tokens, chat_chunk({}, "stop", **({} if own_event else stream)), *after, "[DONE]"])

    return reply


def llama_cpp_text(request: RecordedRequest) -> Reply:
    """llama.cpp's ``/v1/completions``."""
    reply = speak(request, Said(SAID, usage=False))
    if reply.pieces is None:
        reply.body |= {"usage": COUNTS, "timings": TIMINGS}
    else:
        # Before [DONE], in the event with the finish reason.
        last = json.loads(reply.pieces[-2].decode().removeprefix("data: "))
        reply.pieces = [*reply.pieces[:-2], sse_event({**last, "timings": TIMINGS}), reply.pieces[-1]]
    return reply


def claude(request: RecordedRequest) -> Reply:
    reply = speak(request, Said(SAID))
    if reply.pieces is None:
        reply.body["usage"] = {**CLAUDE, "output_tokens": 20}
        return reply
    events = [json.loads(piece.decode().partition("data: ")[2]) for piece in reply.pieces]
    events[0]["message"]["usage"] = {**CLAUDE, "output_tokens": 1}
    next(event for event in events if event["type"] == "message_delta")["usage"] = {"output_tokens": 20}
    reply.pieces = [named_event(event["type"], event) for event in events]
    return reply


def ollama(**counts: int) -> Any:
    def reply(request: RecordedRequest) -> Reply:
        reply = speak(request, Said(SAID, usage=False))
        if reply.pieces is None:
            reply.body |= counts
        else:
            reply.pieces = [*reply.pieces[:-1], json.dumps({**json.loads(reply.pieces[-1]), **counts}).encode()]
        return reply

    return reply


def kobold(request: RecordedRequest) -> Reply:
    """Counts the tokens of whole answers only."""
    reply = speak(request, Said(SAID, usage=False))
    if reply.pieces is None:
        reply.body["results"][0] |= {"prompt_tokens": 82, "completion_tokens": 20}
    return reply


@dataclass(frozen=True)
class Server:
    """A kind of back-end: what it says, and (prompt, completion, cached) for a client, cached None if it is unknown."""

    api_type: str
    reply: Callable[[RecordedRequest], Reply]
    whole: tuple[int, int, int | None]
    stream: tuple[int, int, int | None]
    samplers: Mapping[str, object] = field(default_factory=dict)


SLOTS, LOADED = {"id_slot": 0, "cache_prompt": True, "n_cache_reuse": 256}, {"keep_alive": "30m"}
FULL, UNCACHED, NOTHING = (82, 20, 69), (82, 20, None), (ESTIMATE, ESTIMATE, None)
SERVERS = {
    "llama.cpp": Server(
        "LlamaCppServer", openai({"usage": COUNTS, "timings": TIMINGS}, {"timings": TIMINGS}), FULL, FULL, SLOTS
    ),
    "llama.cpp-2026": Server(
        "LlamaCppServer", openai({"usage": CACHED, "timings": TIMINGS}, {"timings": TIMINGS}), FULL, FULL
    ),
    "llama.cpp-text": Server("OpenAI-Compatible-Completions", llama_cpp_text, FULL, FULL),
    # Before September 2025: what was cached is missing from the prompt's count.
    "llama.cpp-2024": Server(
        "LlamaCppServer",
        openai({"usage": COUNTS}, {"timings": {"prompt_n": 13, "predicted_n": 20}}),
        UNCACHED,
        (ESTIMATE, 20, None),
    ),
    "vllm": Server("Open-AI-API", openai({"usage": CACHED}, {"usage": CACHED}, own_event=True), FULL, FULL),
    "vllm-plain": Server(
        "Open-AI-API",
        openai(
            {"usage": {**COUNTS, "prompt_tokens_details": None}},
            {"usage": {**COUNTS, "prompt_tokens_details": None}},
            own_event=True,
        ),
        UNCACHED,
        UNCACHED,
    ),
    # An API type that does not ask for the counts of streams.
    "not-asked": Server("mlx-lm", openai({"usage": CACHED}, {"usage": CACHED}, own_event=True), FULL, NOTHING),
    "silent": Server("Open-AI-API", openai({}, {}), NOTHING, NOTHING),
    "cold": Server(
        "LlamaCppServer",
        openai({}, {"timings": {"cache_n": 0, "prompt_n": 82, "predicted_n": 20}}),
        NOTHING,
        (82, 20, 0),
    ),
    "claude": Server("Claude", claude, FULL, FULL),
    "ollama": Server("OllamaApiChat", ollama(prompt_eval_count=82, eval_count=20), UNCACHED, UNCACHED, LOADED),
    "ollama-text": Server(
        "OllamaApiGenerate",
        ollama(prompt_eval_count=82, eval_count=20),
        UNCACHED,
        UNCACHED,
        LOADED,
    ),
    "ollama-old": Server("OllamaApiChat", ollama(eval_count=20), (ESTIMATE, 20, None), (ESTIMATE, 20, None)),
    "koboldcpp": Server("KoboldCpp", kobold, UNCACHED, NOTHING),
}


@pytest.fixture(scope="module")
def counting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Backend, Launcher, Path]]:
    """A server whose user encrypts what is stored, so that no text may be in the log either."""
    with Backend() as backend:
        tree = standard_tree(tmp_path_factory.mktemp("counts") / "Public", backend.url)
        user: dict[str, Any] = json.loads((tree.configs / f"Users/{USER}.json").read_text(encoding="utf-8"))
        tree.write(f"Users/{USER}.json", {**user, "encryptUsingApiKey": True, "redactLogOutput": True})
        for name, server in SERVERS.items():
            shipped: Path = PROJECT / "Public/Configs/ApiTypes" / f"{server.api_type}.json"
            tree.write(f"ApiTypes/{server.api_type}.json", shipped.read_text(encoding="utf-8"))
            # Each has an address of its own, by which the back-end knows what it is to be.
            tree.write(
                f"Endpoints/{name}.json",
                endpoint(
                    f"{backend.url}/{name}",
                    apiTypeConfigFileName=server.api_type,
                    promptTemplate="_chatonly",
                    presetSamplers={"temperature": 0.5, **server.samplers},
                ),
            )
            tree.shared(f"To-{name}", llm_node(name, endpointName=name, preset="", returnToUser=True))
        backend.responder = lambda request: SERVERS[request.path.split("/")[1]].reply(request)
        with Launcher(
            "run_waitress.py", "--PublicDirectory", tree.public, "--User", USER, "--log-level", "DEBUG"
        ) as launcher:
            yield backend, launcher, tree.public


def ask(port: int, path: str, name: str, stream: bool) -> dict[str, Any]:
    """The object with the counts: of a whole answer, or the last one of a stream."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=CLIENT_PATIENCE)
    body = {
        "model": f"To-{name}",
        "stream": stream,
        "stream_options": {"include_usage": True},
        "messages": [{"role": "user", "content": SECRET}],
        "prompt": SECRET,
    }
    connection.request(
        "POST", path, json.dumps(body), {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    )
    response = connection.getresponse()
    answer = response.read()
    connection.close()
    assert response.status == 200, answer
    if not stream:
        return dict(json.loads(answer))
    return dict(json.loads(answer.splitlines()[-1] if path.startswith("/api/") else sse_payloads(answer)[-2]))


def check_answer(body: Mapping[str, Any], path: str, counts: tuple[int, int, int | None]) -> None:
    prompt, completion, cached = counts
    usage = body.get("usage") or {}
    if path.startswith("/api/"):
        said = body["prompt_eval_count"], body["eval_count"]
    else:
        said = usage["prompt_tokens"], usage["completion_tokens"]
        assert usage["total_tokens"] == sum(said)
        # Unknown is absent or null, never 0.
        assert (usage.get("prompt_tokens_details") or {}).get("cached_tokens") == cached, usage
    for number, expected in zip(said, (prompt, completion), strict=True):
        # The estimates for these texts are 10 or less.
        assert number == expected or (expected == ESTIMATE and 0 < number <= 12), said


def check_log(log: str, counts: tuple[int, int, int | None], name: str) -> None:
    prompt, completion, cached = (None if number == ESTIMATE else number for number in counts)
    words = ", ".join(
        [
            *([f"{prompt} tokens in"] if prompt is not None else []),
            *([f"{cached} cached"] if cached is not None else []),
            *(
                [f"{completion} out" if prompt is not None else f"{completion} tokens out"]
                if completion is not None
                else []
            ),
        ]
    )
    [node] = [line for line in log.splitlines() if line.startswith("Node 1: Standard")]
    assert node.endswith(f" || {words}" if words else "seconds") or (not words and node.endswith("second")), node
    ends = (
        ""
        if prompt is None
        else f", 1 call, {prompt} prompt tokens"
        if cached is None
        else (f", 1 call, {prompt - cached} of {prompt} prompt tokens processed")
    )
    [line] = re.findall(r"Request \S+: route .*", log)
    assert re.search(rf"done after \d+\.\d\d s{ends}$", line.strip()) and f"endpoint {name}," in line, line


def test_every_kind_of_back_end(counting: tuple[Backend, Launcher, Path]) -> None:
    backend, launcher, public = counting

    def check(row: tuple[str, str, bool]) -> None:
        name, path, stream = row
        counts = SERVERS[name].stream if stream else SERVERS[name].whole
        logged = launcher.output_size()
        check_answer(ask(launcher.port, path, name, stream), path, counts)
        assert until(
            lambda: "=== End of Summary" in launcher.output(logged) and "done after" in launcher.output(logged)
        ), launcher.output(logged)
        check_log(launcher.output(logged), counts, name)

    check_all(
        [
            (name, path, stream)
            for name in SERVERS
            for stream in (False, True)
            for path in ("/v1/chat/completions", "/v1/completions", "/api/chat", "/api/generate")
        ],
        check,
    )
    sent = {request.path.split("/")[1]: request.json for request in backend.requests}
    asks = {name for name, payload in sent.items() if "stream_options" in payload}
    assert asks == {name for name, server in SERVERS.items() if server.api_type == "Open-AI-API"}
    checked = run_launcher("run_waitress.py", "check", "--PublicDirectory", public, "--User", USER).stdout
    for name, server in SERVERS.items():
        # At the top, where Ollama reads them, too, and not among its options.
        assert {key: sent[name].get(key) for key in server.samplers} == server.samplers
        assert not any(key in checked for key in server.samplers), checked
    log = launcher.output()
    for text in (SECRET, "treasure", "night", KEY):
        assert text not in log
