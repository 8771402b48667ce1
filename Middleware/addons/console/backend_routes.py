"""The calls of the page Back-ends: the queue, the endpoints with figures of recorded calls, and asking servers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, TypedDict

from Middleware.addons.console.calls import Call, Role, Routes
from Middleware.addons.records.analysis.backend_figures import BackendFigures, HourFigures, no_figures
from Middleware.api.gate_figures import gate_figures
from Middleware.exceptions import ConfigurationError
from Middleware.llmapis import api_types
from Middleware.llmapis.addresses import MODELS, NO_SUCH_PATH, api_path_of, compose, key_headers
from Middleware.llmapis.api_keys import resolve_api_key
from Middleware.llmapis.backend_errors import says_loop
from Middleware.llmapis.server_questions import ask_server, json_in
from Middleware.models.messages import token_count
from Middleware.models.process import process
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.utilities import config_utils
from Middleware.utilities.config.keys.endpoint import ENDPOINT
from Middleware.utilities.http.problems import HttpError, Kind
from Middleware.utilities.http.wire import parse_target

# Servers that do not answer cost the whole time limit each, so all are asked side by side.
PARALLEL = 16
Health: TypeAlias = Literal["healthy", "slow", "loading", "stopped", "refusing"]

# A server at home answers within milliseconds; the page does not wait longer for all together.
ASK_SECONDS = 2.0
# A healthy server that needs so long is busy with something.
SLOW_SECONDS = 1.0
OLLAMA_TYPES = frozenset((api_types.OLLAMA_CHAT, api_types.OLLAMA_GENERATE, api_types.OLLAMA_EMBEDDINGS))


class EndpointLine(TypedDict):
    """A row of the page. ``status``: ``not asked``, or what the server has said."""

    name: str
    user: str
    server: str
    type: str
    status: str
    problem: str | None
    model: str | None
    slots: str | None
    calls: int
    failed: int
    first_token_us: int | None
    speed: float | None
    last_error: str | None
    hours: list[HourFigures]


@dataclass(frozen=True)
class _Endpoint:
    """An endpoint of a user; ``server`` is None if its files have a mistake, which ``problem`` names."""

    name: str
    user: str
    shown: str
    type: str
    model: str | None
    server: BackendServer | None
    problem: str | None = None


def register(routes: Routes) -> None:
    routes.add("GET", "backends", Role.ALL, show)
    routes.add("POST", "backends/check", Role.OPERATOR, check)


def show(call: Call) -> dict[str, object]:
    return _page(call, {})


def check(call: Call) -> dict[str, object]:
    """Ask the servers of all endpoints, each once."""
    servers = list({one.server: None for one in _endpoints(call) if one.server is not None})
    with ThreadPoolExecutor(min(PARALLEL, max(len(servers), 1))) as pool:
        return _page(call, dict(zip(servers, pool.map(ask, servers), strict=True)))


def _page(call: Call, asked: dict[BackendServer, BackendStatus]) -> dict[str, object]:
    figures = process().one(BackendFigures).of_endpoints(call.records.archive, call.viewer, time.time_ns() // 1000)
    lines: list[EndpointLine] = []
    for one in _endpoints(call):
        found = figures.get(one.name) or no_figures()
        status = asked.get(one.server) if one.server is not None else None
        lines.append(
            {
                "name": one.name,
                "user": one.user,
                "server": one.shown,
                "type": one.type,
                "status": status.status if status else "not asked",
                "problem": status.problem if status else one.problem,
                "model": (status.model if status else None) or one.model or found["model"],
                "slots": status.slots if status else None,
                "calls": found["calls"],
                "failed": found["failed"],
                "first_token_us": found["first_token_us"],
                "speed": found["speed"],
                "last_error": found["last_error"],
                "hours": found["hours"],
            }
        )
    return {"queue": gate_figures(), "endpoints": lines}


def _endpoints(call: Call) -> Iterator[_Endpoint]:
    """Yield the endpoints of the users whose runs may be seen. Users who share a folder share its endpoints."""
    seen: set[tuple[str, str]] = set()
    for user in config_utils.configured_users() or [config_utils.get_current_username()]:
        if call.session.users is not None and user not in call.session.users:
            continue
        with request_scope(RequestContext(user=user)):
            try:
                folder = config_utils.user_name_setting("endpointConfigsSubDirectory") or ""
                names = config_utils.endpoint_names()
            # A user file that does not parse is reported elsewhere.
            except (ConfigurationError, OSError):
                continue
            for name in names:
                if (folder, name) not in seen:
                    seen.add((folder, name))
                    yield _endpoint(name, user)


def _endpoint(name: str, user: str) -> _Endpoint:
    try:
        content = config_utils.load_endpoint(name)
        kind = api_types.canonical_type(
            config_utils.load_api_type(ENDPOINT.text(content, "apiTypeConfigFileName").strip())
        )
        key = resolve_api_key(ENDPOINT.value(content, "apiKey"), name)
        server = BackendServer(ENDPOINT.text(content, "endpoint"), kind, key, api_path_of(content))
        return _Endpoint(name, user, server.origin, kind, api_types.model_name(content) or None, server)
    except (ConfigurationError, OSError) as error:
        return _Endpoint(name, user, "", "", None, None, str(error))


# -- asking a server ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BackendServer:
    """A server, as an endpoint file names it.

    Attributes:
        url: the base URL of its calls.
        kind: the canonical API type.
        api_path: ``apiPath`` of the endpoint file.
    """

    url: str
    kind: str
    key: str = field(default="", repr=False)
    api_path: str | None = None

    @property
    def origin(self) -> str:
        """Scheme, host and port, without a password. Raises ConfigurationError for an invalid address."""
        target = parse_target(self.url)
        return f"{target.scheme}://{target.host_header}"


@dataclass(frozen=True)
class BackendStatus:
    """What a server has said.

    Attributes:
        model: what is loaded, where the server says so.
        slots: how many of its slots are at work, in words.
        problem: why it is not healthy.
    """

    status: Health
    model: str | None = None
    slots: str | None = None
    problem: str | None = None


class _NoAnswerError(Exception):
    """The server did not answer; ``status`` is what follows from it."""

    def __init__(self, status: Health, problem: str) -> None:
        super().__init__(problem)
        self.status = status


@dataclass(frozen=True)
class _Answer:
    status: int
    text: str
    json: object

    def part(self, name: str) -> object:
        """Return a value of the JSON object; None without one, or if the answer is not an object."""
        content = self.json
        return content.get(name) if isinstance(content, Mapping) else None


def ask(server: BackendServer) -> BackendStatus:
    """Return how a server is. Takes about ``ASK_SECONDS`` at most for each of the few questions that a kind needs."""
    asked = _ServerQueries(server)
    try:
        found = asked.status()
    except _NoAnswerError as error:
        return BackendStatus(error.status, problem=str(error))
    except ConfigurationError as error:
        return BackendStatus("stopped", problem=str(error))
    if found.status == "healthy" and asked.slowest >= SLOW_SECONDS:
        return BackendStatus("slow", found.model, found.slots, f"it took {asked.slowest:.1f} s to answer")
    return found


class _ServerQueries:
    """The questions to one server, which load no model and cost it nothing.

    Attributes:
        slowest: the longest that an answer has taken, in seconds.
    """

    def __init__(self, server: BackendServer) -> None:
        self._server = server
        self.slowest = 0.0

    def status(self) -> BackendStatus:
        kind = self._server.kind
        if kind in OLLAMA_TYPES:
            return self._ollama()
        if kind == api_types.KOBOLD_GENERATE:
            return self._kobold()
        if kind == api_types.CLAUDE_MESSAGES:
            return self._models()
        return self._openai()

    def _ollama(self) -> BackendStatus:
        answer = self._get("/api/ps")
        return self._judged(answer) or BackendStatus("healthy", _names(answer.part("models"), "name") or "none loaded")

    def _kobold(self) -> BackendStatus:
        answer = self._get("/api/extra/perf")
        busy = answer.part("idle") == 0
        waiting = token_count(answer.part("queue"))
        slots = f"{'busy' if busy else 'idle'}{f', {waiting} waiting' if waiting else ''}"
        return self._judged(answer) or BackendStatus("healthy", slots=slots)

    def _openai(self) -> BackendStatus:
        """Ask llama.cpp, llama-swap, or any other server with OpenAI's API; the first answer tells which it is."""
        health = self._get("/health")
        if health.status == 503:
            return BackendStatus("loading", problem="the model is being loaded")
        if health.status != 200:
            return self._models()
        if health.part("status") == "ok":
            return self._llama_cpp()
        running = self._get("/running")
        entries = running.part("running")
        if running.status != 200 or not isinstance(entries, list):
            return self._models()
        loading = [one for one in entries if isinstance(one, Mapping) and one.get("state") == "starting"]
        if loading:
            return BackendStatus("loading", _names(loading, "model"), problem="the model is being loaded")
        return BackendStatus("healthy", _names(entries, "model") or "none loaded")

    def _llama_cpp(self) -> BackendStatus:
        props, slots = self._get("/props"), self._get("/slots").json
        alias, path = props.part("model_alias"), props.part("model_path")
        # Of a path only the file's name: its folder must not be shown here.
        model = alias or (path.replace("\\", "/").rpartition("/")[2] if isinstance(path, str) else None)
        busy = None
        if isinstance(slots, list):
            working = sum(bool(one.get("is_processing")) for one in slots if isinstance(one, Mapping))
            busy = f"{working} of {len(slots)} at work"
        elif isinstance(total := props.part("total_slots"), int):
            busy = str(total)
        return BackendStatus("healthy", model if isinstance(model, str) else None, busy)

    def _models(self) -> BackendStatus:
        for url in compose(self._server.url, MODELS, self._server.api_path).urls:
            answer = self._get(url)
            if answer.status not in NO_SUCH_PATH:
                break
        return self._judged(answer) or BackendStatus("healthy")

    @staticmethod
    def _judged(answer: _Answer) -> BackendStatus | None:
        """Return what an error status means; None for an answer, or for a server that only lacks the question."""
        if says_loop(answer.text):
            return BackendStatus("refusing", problem="it leads back to this WilmerAI")
        if answer.status in (401, 403):
            return BackendStatus("refusing", problem="it does not accept the API key of the endpoint")
        if answer.status == 503:
            return BackendStatus("loading", problem="it says that it is not ready (503)")
        return BackendStatus("slow", problem=f"it answers with {answer.status}") if answer.status >= 500 else None

    def _get(self, where: str) -> _Answer:
        """Return the answer at a path of the server, or at a URL.

        The key is sent only if the server wants one, as the endpoint's own calls do.
        """
        server = self._server
        url = server.origin + where if where.startswith("/") else where
        answer = self._send(url, {})
        if answer.status in (401, 403) and server.key:
            answer = self._send(url, key_headers(server.url, server.api_path, server.key, server.kind))
        return answer

    def _send(self, url: str, headers: Mapping[str, str]) -> _Answer:
        began = time.monotonic()
        try:
            response = ask_server(url, headers, ASK_SECONDS)
        except HttpError as error:
            kind = error.problem.kind
            if kind is Kind.READ_TIMEOUT:
                raise _NoAnswerError("slow", f"it has not answered within {ASK_SECONDS:g} s") from error
            raise _NoAnswerError("stopped", error.problem.text) from error
        self.slowest = max(self.slowest, time.monotonic() - began)
        return _Answer(response.head.status, response.body.decode("utf-8", "replace"), json_in(response))


def _names(entries: object, field_name: str) -> str | None:
    """Return the printable names in a list of objects, with commas, or None."""
    if not isinstance(entries, list):
        return None
    names = [
        name
        for one in entries
        if isinstance(one, Mapping) and isinstance(name := one.get(field_name), str) and name.isprintable()
    ]
    return ", ".join(names) or None
