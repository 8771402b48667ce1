"""Find out which LLM server runs at an address, by its answers and not by its port."""
from __future__ import annotations

import json
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from Middleware.cli.init.servers import (
    LOOPBACK,
    LOOPBACK_IPV6,
    OTHER_KIND,
    Model,
    NoServer,
    Server,
    is_not_for_chat,
)
from Middleware.exceptions import ConfigurationError
from Middleware.utilities.http.client import HttpClient
from Middleware.utilities.http.problems import HttpError, HttpProblem, Kind
from Middleware.utilities.http.wire import HttpRequest, parse_target

# For one question to this computer, connecting included. Its servers answer within milliseconds.
SECONDS = 2.0

# To a server that was named, which may be far away, or busy.
NAMED_SECONDS = 6.0

# All questions to one server together may take this many times as long.
QUESTIONS = 3

# Lists of hundreds of models take some hundred kilobytes; anything larger is not such a list.
MAX_BYTES = 4 * 1024 * 1024
_ADVICE = {
    Kind.UNKNOWN_HOST: "; check how it is spelled, or give the IP address",
    Kind.UNTRUSTED: "; if it is one of your own, name the file with the certificate in the environment variable "
                    "REQUESTS_CA_BUNDLE"}

REFUSALS = (401, 403)
KEY_VARIABLES: Mapping[str, str] = {"https://api.openai.com": "OPENAI_API_KEY"}
# The environment variable with the key for a server that the user has named.
KEY_VARIABLE = "WILMER_BACKEND_KEY"

NO_LLM: Mapping[str, str] = {"WilmerAI": "is a WilmerAI itself", "AirPlay": "is the AirPlay Receiver of macOS"}


class Unreachable(Exception):
    """There is no HTTP server, or it does not answer in time. The message follows the address."""


class NothingThere(Unreachable):
    """No connection was accepted. Windows takes seconds to report it, and firewalls never do."""


@dataclass(frozen=True)
class Reply:
    """An answer. ``data``: the JSON of a success, None for anything else; ``server``: the header of that name."""

    status: int
    data: object = None
    server: str = ""

    def part(self, name: str) -> object:
        """A value of the JSON object; None if there is none, or no object."""
        return self.data.get(name) if isinstance(self.data, dict) else None


def ask(address: str, path: str, key: str | None = None, body: object = None, seconds: float = SECONDS) -> Reply:
    """Ask ``address`` (scheme, host, port, perhaps a path) for ``path``. Redirects are not followed.

    Raises Unreachable.
    """
    headers = {"Accept": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    data = None if body is None else json.dumps(body).encode("utf-8")
    if data is not None:
        headers["Content-Type"] = "application/json"
    try:
        request = HttpRequest(parse_target(address + path), "GET" if data is None else "POST", headers, seconds,
                              seconds, max_bytes=MAX_BYTES)
        response = HttpClient().call(request, data, seconds=seconds)
    except HttpError as error:
        raise _unreachable(error.problem, seconds) from error
    except ConfigurationError as error:
        raise Unreachable(f"cannot be reached: {error}") from error
    found = _parse_json(response.body) if response.head.status == 200 and response.complete else None
    return Reply(response.head.status, found, response.head.headers.get("server", ""))


def _unreachable(problem: HttpProblem, seconds: float) -> Unreachable:
    """Return the error for a missing answer, with a message that follows the address."""
    if problem.kind is Kind.REFUSED:
        return NothingThere("nothing runs there")
    if problem.kind is Kind.CONNECT_TIMEOUT:
        return NothingThere(f"did not answer within {seconds:g} s")
    if problem.kind is Kind.READ_TIMEOUT:
        return Unreachable(f"did not answer within {seconds:g} s")
    if problem.kind in (Kind.LOST, Kind.UNREADABLE):
        return Unreachable("does not speak HTTP")
    return Unreachable(f"cannot be reached: {problem.text}{_ADVICE.get(problem.kind, '')}")


def _parse_json(data: bytes) -> object:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


Found = Server | NoServer
Ask = Callable[[str], Reply]
"""Takes a path and returns what the server answers."""

# A server with more models or longer names is faulty or hostile; its answers are shown on a terminal.
MAX_MODELS = 1000
MAX_NAME = 200
OWNERS = {"vllm": "vLLM", "tabbyapi": "TabbyAPI", "wilmer": "WilmerAI", "llamacpp": "llama.cpp"}
"""Servers that are known by ``owned_by`` in OpenAI's list of models."""


class Questions:
    """Asks one server, each path once, with or without a key. ``ask`` raises Unreachable."""

    def __init__(self, address: str, seconds: float, key: str | None = None) -> None:
        self.address = address
        self.key = key
        self._seconds = seconds
        self._deadline = time.monotonic() + QUESTIONS * seconds
        self._replies: dict[str, Reply] = {}

    def ask(self, path: str) -> Reply:
        """Return its answer; status 0 for a path on which it fails although others are answered."""
        if path not in self._replies:
            self._replies[path] = self._ask(path)
        return self._replies[path]

    def _ask(self, path: str) -> Reply:
        try:
            if time.monotonic() > self._deadline:
                raise Unreachable("takes too long to answer")
            return ask(self.address, path, self.key, seconds=self._seconds)
        except Unreachable:
            if not self._replies:
                raise
            return Reply(0)


def key_of(server: Server) -> str | None:
    """Return the key that opened a server."""
    return os.environ.get(server.key_variable, "").strip() or None if server.key_variable else None


def probe_all(addresses: Sequence[str], named: bool = False) -> list[Found]:
    """Look at all addresses at the same time; the results are in their order.

    ``named``: the user has given them, so a server that wants a key may be sent the one in the environment.
    """
    results: queue.Queue[tuple[str, Found]] = queue.Queue()
    for address in addresses:
        threading.Thread(target=lambda where: results.put((where, _probe_both(where, named))), args=(address,),
                         daemon=True).start()
    found: dict[str, Found] = {}
    deadline = time.monotonic() + 2 * QUESTIONS * (NAMED_SECONDS if named else SECONDS)
    while len(found) < len(set(addresses)):
        try:
            address, result = results.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            break
        found[address] = result
    return [found.get(address) or NoServer(address, "takes too long to answer") for address in addresses]


def _probe_both(address: str, named: bool) -> Found:
    """Return what runs at an address; if nothing does at this computer's IPv4 loopback, at its IPv6 one."""
    result = probe(address, named)
    other = address.replace(f"//{LOOPBACK}:", f"//{LOOPBACK_IPV6}:")
    if named or other == address or isinstance(result, Server) or not result.silent:
        return result
    on_ipv6 = probe(other)
    return on_ipv6 if isinstance(on_ipv6, Server) else result


def probe(address: str, named: bool = False) -> Found:
    """Return what runs at one address. A key is only sent to a server that was named, and only if it is needed."""
    seconds = NAMED_SECONDS if named else SECONDS
    try:
        without_key = _look(Questions(address, seconds))
        variable = KEY_VARIABLES.get(address, KEY_VARIABLE)
        key = os.environ.get(variable, "").strip() if named else ""
        if isinstance(without_key, Server) or not key or without_key.known_as:
            return without_key
        if not (key.isascii() and key.isprintable()):
            return NoServer(address, f"wants an API key, and what the environment variable {variable} holds is none")
        with_key = _look(Questions(address, seconds, key), variable)
        if isinstance(with_key, NoServer) and with_key.wants_key:
            return NoServer(address, f"does not accept the API key in the environment variable {variable}")
        return with_key
    except Unreachable as error:
        return NoServer(address, str(error), silent=isinstance(error, NothingThere))


def _look(questions: Questions, key_variable: str = "") -> Found:
    address, kind = questions.address, find_kind(questions.ask)
    if kind is not None and kind in NO_LLM:
        return NoServer(address, NO_LLM[kind], known_as=kind)
    list_status = questions.ask("/v1/models").status
    if list_status in REFUSALS or (kind == "llama.cpp" and questions.ask("/props").status in REFUSALS):
        variable = KEY_VARIABLES.get(address, KEY_VARIABLE)
        return NoServer(address, f"wants an API key: put it into the environment variable {variable}, then run init "
                                 f"with --backend {address}", wants_key=True)
    if kind is None:
        hint = f"; if it wants an API key, put it into the environment variable {KEY_VARIABLE}" \
            if list_status >= 500 and not key_variable else ""
        what = "no list of models" if list_status == 200 else f"status {list_status}"
        return NoServer(address, f"answers, but not as an LLM server that is known here ({what} at /v1/models{hint})")
    models, others = read_models(kind, questions.ask)
    return Server(address, kind, models, others, key_variable)


# -- what the answers say ----------------------------------------------------------------------------------------------

def find_kind(ask: Ask) -> str | None:
    """Return what runs there; None if it is not an LLM server.

    KoboldCpp and WilmerAI speak Ollama's API, too, so they come first.
    """
    first = ask("/api/extra/version")
    if first.part("result") == "KoboldCpp":
        return "KoboldCpp"
    if "AirTunes" in first.server:
        return "AirPlay"
    owners = {str(entry.get("owned_by", "")).lower() for entry in _entries(ask("/v1/models").part("data"))}
    owner = next((OWNERS[name] for name in sorted(owners) if name in OWNERS), None)
    if owner:
        return owner
    if isinstance(ask("/props").part("default_generation_settings"), dict):
        return "llama.cpp"
    if isinstance(ask("/api/version").part("version"), str) and isinstance(ask("/api/tags").part("models"), list):
        return "Ollama"
    if any("type" in entry and "state" in entry for entry in _entries(ask("/api/v0/models").part("data"))):
        return "LM Studio"
    if isinstance(ask("/v1/internal/model/info").part("model_name"), str):
        return "text-generation-webui"
    return OTHER_KIND if isinstance(ask("/v1/models").part("data"), list) else None


def read_models(kind: str, ask: Ask) -> tuple[tuple[Model, ...], tuple[str, ...]]:
    """Return the models to chat with, those in memory first, and the names of those for another purpose."""
    entries = list(READERS.get(kind, _openai)(ask))[:MAX_MODELS]
    usable = [(model, other) for model, other in entries if _is_name(model.name)]
    chat = list({model.name: model for model, other in usable if not other}.values())
    return (tuple(sorted(chat, key=lambda model: not model.loaded)),
            tuple(model.name for model, other in usable if other))


Listed = Iterator[tuple[Model, bool]]
"""Models, and whether each is for something else, such as embeddings."""


def _openai(ask: Ask) -> Listed:
    for entry in _entries(ask("/v1/models").part("data")):
        name = _text(entry.get("id"))
        window = _number(entry.get("max_model_len")) or _number(entry.get("context_length"))
        yield Model(name, window), is_not_for_chat(name)


def _llama_cpp(ask: Ask) -> Listed:
    props = ask("/props")
    settings = props.part("default_generation_settings")
    window = _number(settings.get("n_ctx")) if isinstance(settings, dict) else None
    abilities = props.part("modalities")
    sees = bool(abilities.get("vision")) if isinstance(abilities, dict) else None
    template = props.part("chat_template_caps")
    tools = bool(template["supports_tools"]) if isinstance(template, dict) and "supports_tools" in template else None
    for entry in _entries(ask("/v1/models").part("data")):
        name = _text(entry.get("id"))
        meta = entry.get("meta")
        trained = _number(meta.get("n_ctx_train")) if isinstance(meta, dict) and not window else None
        yield Model(name, window or trained, True, sees, tools), is_not_for_chat(name)


def _kobold(ask: Ask) -> Listed:
    name = _text(ask("/api/v1/model").part("result"))
    window = _number(ask("/api/extra/true_max_context_length").part("value"))
    vision = ask("/api/extra/version").part("vision")
    if name and name not in ("inactive", "Read Only"):
        yield Model(name, window, True, vision if isinstance(vision, bool) else None), False


def _ollama(ask: Ask) -> Listed:
    running = {_text(entry.get("name")) for entry in _entries(ask("/api/ps").part("models"))}
    for entry in _entries(ask("/api/tags").part("models")):
        name, details = _text(entry.get("name")), entry.get("details")
        details = details if isinstance(details, dict) else {}
        embeds = is_not_for_chat(name) or "bert" in str(details.get("family", "")).lower()
        yield Model(name, loaded=name in running, detail=_text(details.get("parameter_size"))), embeds


def _lm_studio(ask: Ask) -> Listed:
    for entry in _entries(ask("/api/v0/models").part("data")):
        name, kind = _text(entry.get("id")), entry.get("type")
        loaded = entry.get("state") == "loaded"
        window = _number(entry.get("loaded_context_length")) if loaded else None
        abilities = entry.get("capabilities")
        tools = "tool_use" in abilities if isinstance(abilities, list) else None
        yield (Model(name, window, loaded, kind == "vlm" if kind in ("llm", "vlm") else None, tools),
               kind == "embeddings" or is_not_for_chat(name))


def _text_generation_webui(ask: Ask) -> Listed:
    name = _text(ask("/v1/internal/model/info").part("model_name"))
    if name and name != "None":
        yield Model(name, loaded=True), False


READERS: dict[str, Callable[[Ask], Listed]] = {
    "llama.cpp": _llama_cpp, "KoboldCpp": _kobold, "Ollama": _ollama, "LM Studio": _lm_studio,
    "text-generation-webui": _text_generation_webui}


def look_closer(kind: str, model: Model, show: Callable[[str], Reply]) -> Model:
    """Return the chosen model with all details. ``show`` asks Ollama for them; other servers list them."""
    if kind != "Ollama":
        return model
    reply = show(model.name)
    info, abilities = reply.part("model_info"), reply.part("capabilities")
    lengths = [_number(value) for key, value in info.items() if str(key).endswith(".context_length")] \
        if isinstance(info, dict) else []
    known = abilities if isinstance(abilities, list) else None
    return Model(model.name, next(iter(lengths), None), model.loaded,
                 None if known is None else "vision" in known, None if known is None else "tools" in known,
                 None if known is None else "thinking" in known, model.detail)


def _entries(value: object) -> list[dict[str, object]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _number(value: object) -> int | None:
    """Return a number of tokens; None for a value that is not a number, or makes no sense."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
        return None
    return int(value)


def _is_name(name: str) -> bool:
    return 0 < len(name) <= MAX_NAME and name.isprintable() and bool(name.strip())
