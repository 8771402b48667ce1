"""Numbers from LLM servers and clients that no count or time can be: the answer, the record of runs, the metrics."""

from __future__ import annotations

import itertools
import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest
from prometheus_client.parser import text_string_to_metric_families

from Middleware.models.messages import LARGEST_NUMBER
from Tests.backend_dialects import DIALECTS, Answer, embed, speak
from Tests.integration.client_dialects import FRONTS, Turn
from Tests.integration.console_server import Console
from Tests.integration.dialect_matrix import copy_shipped
from Tests.integration.launcher import Backend, Response, endpoint, llm_node
from Tests.stub_backend import RecordedRequest, Reply
from Tests.tables import check_all
from Tests.workflows.engine_lab import until

NUMBERS = {
    "1e23": LARGEST_NUMBER,
    "99999999999999999999999": LARGEST_NUMBER,
    "9007199254740993": LARGEST_NUMBER,
    "-1": 0,
    "-0.0": 0,
    "2.0": 2,
    "2.5": None,
    "1e400": None,
    "-1e400": None,
    "NaN": None,
    "Infinity": None,
    '"12"': None,
    "true": None,
    "null": None,
    "[]": None,
    "{}": None,
}
"""What stands in place of a number in the JSON of a server, and what is taken for it; None: it is absent."""
COUNTS = (
    "prompt_tokens completion_tokens total_tokens cached_tokens reasoning_tokens audio_tokens cost prompt_n "
    "predicted_n cache_n prompt_ms predicted_ms predicted_per_second input_tokens output_tokens "
    "cache_read_input_tokens cache_creation_input_tokens prompt_eval_count eval_count load_duration "
    "prompt_eval_duration eval_duration total_duration"
).split()
_COUNT = re.compile(rf'("(?:{"|".join(COUNTS)})": ?)[0-9]+')
_ASKED = re.compile(r"number (\d+)\.")
SERVERS = {**{dialect.api_type: dialect.name for dialect in DIALECTS.values()}, "llama.cpp": "LlamaCppServer"}
DETAILS = {
    "prompt_tokens_details": {"cached_tokens": 5, "audio_tokens": 1},
    "completion_tokens_details": {"reasoning_tokens": 3},
    "cost": 1,
    "prices": [{"cost": 1}],
}
TIMINGS = {"cache_n": 5, "prompt_n": 6, "predicted_n": 7, "prompt_ms": 8, "predicted_ms": 9, "predicted_per_second": 3}


@dataclass(frozen=True)
class Row:
    """What a server counts with ``number``."""

    server: str
    number: str
    stream: bool


ROWS = [Row(server, number, stream) for server in SERVERS for number in NUMBERS for stream in (False, True)]


def counting(request: RecordedRequest) -> Reply:
    """An answer in which each count and time is the number that stands in the request."""
    number = [*NUMBERS][int(_ASKED.findall(request.body.decode())[-1])]

    def changed(data: bytes) -> bytes:
        text = data.decode().replace('"usage": {', f'"usage": {json.dumps(DETAILS)[:-1]}, ')
        if request.path.startswith("/llama.cpp"):
            text = text.replace('"usage": {', f'"timings": {json.dumps(TIMINGS)}, "usage": {{')
        return _COUNT.sub(lambda match: match[1] + number, text).encode()

    reply = embed(request) if "input" in request.json else speak(request, Answer())
    if reply.pieces is None:
        return Reply(body=changed(json.dumps(reply.body).encode()), headers={"Content-Type": "application/json"})
    return Reply(pieces=[changed(piece) for piece in reply.pieces], headers=reply.headers)


class Counted(Console):
    """A server with the run console and metrics, and a shared workflow for each kind of back-end."""

    def __init__(self, folder: Path, backend: Backend) -> None:
        super().__init__(folder, backend, "run_waitress.py", "--metrics", "--record", "texts")
        backend.responder = counting
        for server, api_type in SERVERS.items():
            copy_shipped(self.tree, f"ApiTypes/{api_type}.json")
            self.tree.write(
                f"Endpoints/{server}.json",
                endpoint(
                    f"{backend.url}/{server}",
                    apiTypeConfigFileName=api_type,
                    promptTemplate="_chatonly",
                    presetSamplers={"temperature": 0.5},
                ),
            )
            self.tree.shared(server, llm_node(server, endpointName=server, preset="", returnToUser=True))

    def ask(self, row: Row, front: str) -> Response:
        dialect = FRONTS[front]
        asked = f"Say number {[*NUMBERS].index(row.number)}."
        body = dialect.body(row.server, (Turn("user", asked),), row.stream)
        if row.stream and "completions" in dialect.path:
            body["stream_options"] = {"include_usage": True}
        return self.server.request("POST", dialect.path, body)

    def stored(self) -> list[tuple[Any, ...]]:
        """Return id, question and tokens of the runs on disk that have ended."""
        path = self.tree.public / "Console/index.db"
        if not path.exists():
            return []
        with closing(sqlite3.connect(path)) as database:
            return database.execute(
                "SELECT id, question, tokens_in, tokens_out, tokens_cached FROM run WHERE ended IS NOT NULL"
            ).fetchall()


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Counted]:
    with Backend() as backend:
        made = Counted(tmp_path_factory.mktemp("counted"), backend)
        with made.server:
            made.sign_in()
            yield made


def refused(name: str) -> NoReturn:
    raise AssertionError(f"{name} is not JSON")


def strict(text: str | bytes) -> Any:
    """Return the value of JSON, as a browser would read it. Raises AssertionError for a number that it cannot hold."""
    value = json.loads(text, parse_constant=refused)
    waiting = [(value, "")]
    while waiting:
        item, name = waiting.pop()
        if isinstance(item, dict):
            waiting.extend((entry, key) for key, entry in item.items())
        elif isinstance(item, list):
            waiting.extend((entry, name) for entry in item)
        elif isinstance(item, (int, float)):
            assert abs(item) <= LARGEST_NUMBER, (name, item)
            assert item >= 0 or not name.endswith(("tokens", "_count", "_ms", "duration")), (name, item)
    return value


def counts_in(response: Response) -> dict[str, Any]:
    """Return the object with the counts of an answer, after reading all of it strictly."""
    texts = [response.body.decode()]
    if response.headers["content-type"].startswith(("text/event-stream", "application/x-ndjson")):
        lines = [line.removeprefix("data: ") for line in response.body.decode().splitlines()]
        texts = [line for line in lines if line.startswith("{")]
    found: dict[str, Any] = {}
    for value in map(strict, texts):
        inner = value.get("response") if isinstance(value.get("response"), dict) else value
        found = {**found, **(inner.get("usage") or {}), **{k: v for k, v in inner.items() if k.endswith("_count")}}
    return found


def check_counts(row: Row, found: dict[str, Any]) -> None:
    """Check the counts that a client gets; what is absent is estimated."""
    taken = NUMBERS[row.number]
    for name in ("prompt_tokens", "completion_tokens"):
        assert type(found[name]) is int and (found[name] > 0 if taken is None else found[name] == taken), found
    if row.server == "openAIChatCompletion" and row.number not in ("null", "{}"):
        assert found["completion_tokens_details"] == ({} if taken is None else {"reasoning_tokens": taken})


def test_answers_record_and_metrics_have_numbers_that_every_reader_holds(counted: Counted) -> None:
    others = itertools.cycle(("OpenAI Responses", "Anthropic Messages", "Ollama chat"))

    def check(row: Row) -> None:
        for front in ("OpenAI chat", next(others)):
            response = counted.ask(row, front)
            assert response.status == 200, response.body
            found = counts_in(response)
            if front == "OpenAI chat" and not (row.server == "koboldCppGenerate" and row.stream):
                check_counts(row, found)

    check_all(ROWS, check)
    expected = 2 * len(ROWS)
    assert until(lambda: len(counted.stored()) >= expected, 60), len(counted.stored())
    assert "could not be recorded" not in counted.server.output()
    for _, question, *tokens in counted.stored():
        taken = [*NUMBERS.values()][int(_ASKED.findall(question)[-1])]
        assert all(count in (None, taken) for count in tokens), (question, tokens)
    for run_id, *_ in counted.stored()[::4]:
        answer = counted.send("GET", f"runs/{run_id}")
        assert answer.status == 200
        strict(answer.read())
        answer.close()
    samples = [
        sample.value
        for family in text_string_to_metric_families(counted.server.request("GET", "/metrics").body.decode())
        for sample in family.samples
        if sample.name.startswith("wilmer_tokens_total")
    ]
    assert samples and all(0 < value < float("inf") for value in samples)


CLIENT_FIELDS = {
    "OpenAI chat": ("max_tokens", "max_completion_tokens", "temperature", "top_p", "seed", "n", "top_k", "keep_alive"),
    "OpenAI Responses": ("max_output_tokens", "temperature", "top_logprobs"),
    "Anthropic Messages": ("max_tokens", "temperature", "top_k"),
    "Ollama chat": ("keep_alive", "num_ctx", "num_predict"),
}


def test_no_number_of_a_client_damages_more_than_its_own_request(counted: Counted) -> None:
    before = len(counted.stored())
    sent = list[int]()

    def check(case: tuple[str, str, str]) -> None:
        front, name, number = case
        body = {**FRONTS[front].body("openAIChatCompletion", (Turn("user", "Say number 2."),), False), name: "PLANTED"}
        if front == "Ollama chat":
            body["options"] = {name: "PLANTED", "seed": "PLANTED"}
        text = json.dumps(body).replace('"PLANTED"', number)
        response = counted.server.request("POST", FRONTS[front].path, text.encode())
        assert response.status < 500, response.body
        # Some dialects repeat what was asked.
        json.loads(response.body, parse_constant=refused)
        sent.append(response.status)

    check_all(
        [(front, name, number) for front, names in CLIENT_FIELDS.items() for name in names for number in NUMBERS], check
    )
    expected = before + sent.count(200)
    assert until(lambda: len(counted.stored()) >= expected, 60)
    answer = counted.send("GET", "runs?limit=200")
    for run in strict(answer.read())["runs"]:
        one = counted.send("GET", f"runs/{run['id']}")
        strict(one.read())
        one.close()
    answer.close()


def test_the_numbers_of_vectors(counted: Counted) -> None:
    def check(number: str) -> None:
        response = counted.server.request(
            "POST", "/v1/embeddings", {"model": "x", "input": f"Say number {[*NUMBERS].index(number)}."}
        )
        assert response.status == 200, response.body
        taken = NUMBERS[number]
        found = strict(response.body)["usage"]["prompt_tokens"]
        assert found > 0 if taken is None else found == taken

    check_all(NUMBERS, check)
