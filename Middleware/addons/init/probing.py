"""Find out which LLM server runs at an address, by its answers and not by its port."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any
from urllib.parse import quote, urlsplit

from Middleware.addons.init.plan import window_of
from Middleware.addons.init.servers import (
    LOOPBACK,
    LOOPBACK_IPV6,
    OPENAI_ADDRESS,
    OTHER_KIND,
    Model,
    NoServer,
    Server,
    at,
)
from Middleware.exceptions import ConfigurationError, WilmerError
from Middleware.llmapis.addresses import MODELS, NO_SUCH_PATH, compose, key_headers, listed_models
from Middleware.llmapis.server_questions import ask_server, json_in
from Middleware.utilities.http.addresses import is_loopback
from Middleware.utilities.http.problems import HttpError, HttpProblem, Kind

# For one question to this computer, connecting included. Its servers answer within milliseconds.
SECONDS = 2.0
# To a server that was named, which may be far away, or busy.
NAMED_SECONDS = 6.0
# All questions to one server together may take this many times as long.
QUESTIONS = 3
# A server with more models or longer names is faulty or hostile; its answers are shown on a terminal.
MAX_MODELS = 1000
MAX_NAME = 200
# Each is a request to the server.
MAX_LOOKS = 3

REFUSALS = (401, 403)
KEY_VARIABLES: Mapping[str, str] = {OPENAI_ADDRESS: "OPENAI_API_KEY"}
# The environment variable with the key for a server that the user has named.
KEY_VARIABLE = "WILMER_BACKEND_KEY"

# What listens at the usual ports, too, and must not be offered: WilmerAI itself, and macOS at port 5000.
NO_LLM: Mapping[str, str] = {"WilmerAI": "is a WilmerAI itself", "AirPlay": "is the AirPlay Receiver of macOS"}
OWNERS = {
    "vllm": "vLLM",
    "tabbyapi": "TabbyAPI",
    "wilmer": "WilmerAI",
    "llamacpp": "llama.cpp",
    "llama-swap": "llama-swap",
}
"""Servers that are known by ``owned_by`` in OpenAI's list of models."""

_ADVICE = {
    Kind.UNKNOWN_HOST: "; check how it is spelled, or give the IP address",
    Kind.UNTRUSTED: "; if it is one of your own, name the file with the certificate in the environment variable "
    "REQUESTS_CA_BUNDLE",
}
# OpenAI's list of models does not say what each is for, so only the name can.
_NOT_FOR_CHAT = re.compile(
    r"embed|rerank|whisper|dall-e|minilm|\b(bge|gte|e5|tts)\b|image|stable-diffusion|sdxl|realtime|audio|video|speech"
    r"|moderation|transcrib|guard|(?<![a-z0-9])(sora|veo|flux|asr|ocr)(?![a-z0-9])|\*",
    re.IGNORECASE,
)
# What servers call models to chat with, as a type or an ability.
_FOR_CHAT = frozenset("chat completion completion_chat llm vlm language text text-generation tool_use tools".split())
# The window of a model, among the words that llama.cpp's router starts its server with.
_WINDOWS = ("max_model_len", "context_length", "context_window", "max_context_length")
_WINDOW_FLAGS = ("-c", "-ctx", "--ctx-size")

# What Linux shows of a GPU: NVIDIA's, AMD's, any with a driver for drawing, and that of Windows around it.
GPU_DEVICES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dri", "/dev/dxg")
# Words in the chat template of a model that can think.
_THINKS = re.compile(r"enable_thinking|<think>|reasoning")


class UnreachableError(WilmerError):
    """There is no HTTP server, or it does not answer in time. The message follows the address.

    ``silent``: no connection was accepted.
    """

    def __init__(self, message: str, silent: bool = False) -> None:
        super().__init__(message)
        self.silent = silent


@dataclass(frozen=True)
class Reply:
    """An answer. ``data``: the JSON of a success, None for anything else; ``server``: the header of that name."""

    status: int
    data: object = None
    server: str = ""

    def part(self, name: str) -> object:
        """Return a value of the JSON object; None without one, or if the answer is not an object."""
        return self.data.get(name) if isinstance(self.data, dict) else None


def ask(url: str, key: str = "", body: object = None, seconds: float = SECONDS) -> Reply:
    """Return the answer at a URL. Redirects are not followed. Raises UnreachableError."""
    try:
        response = ask_server(url, key_headers(url, None, key), seconds, body)
    except HttpError as error:
        raise _unreachable(error.problem, seconds) from error
    except ConfigurationError as error:
        raise UnreachableError(f"cannot be reached: {error}") from error
    found = json_in(response) if response.head.status == 200 else None
    return Reply(response.head.status, found, response.head.headers.get("server", ""))


def _unreachable(problem: HttpProblem, seconds: float) -> UnreachableError:
    if problem.kind is Kind.REFUSED:
        return UnreachableError("nothing runs there", silent=True)
    if problem.kind in (Kind.CONNECT_TIMEOUT, Kind.READ_TIMEOUT):
        # Firewalls never answer where nothing may connect, and Windows takes seconds to refuse.
        return UnreachableError(f"did not answer within {seconds:g} s", silent=problem.kind is Kind.CONNECT_TIMEOUT)
    if problem.kind in (Kind.LOST, Kind.UNREADABLE):
        return UnreachableError("does not speak HTTP")
    return UnreachableError(f"cannot be reached: {problem.text}{_ADVICE.get(problem.kind, '')}")


Found = Server | NoServer
Ask = Callable[[str], Reply]
"""Takes a path and returns what the server answers."""


class Questions:
    """Asks one server, each path once, with or without a key. ``ask`` raises UnreachableError."""

    def __init__(self, address: str, seconds: float, key: str = "") -> None:
        self.address = address
        self.key = key
        # Where below a path of the user's the list of models was found, as an endpoint file says it.
        self.api_path: str | None = None
        self._seconds = seconds
        self._deadline = time.monotonic() + QUESTIONS * seconds
        self._replies: dict[str, Reply] = {}

    def ask(self, path: str) -> Reply:
        """Return its answer; status 0 for a path on which it fails although others are answered."""
        if path not in self._replies:
            self._replies[path] = self._list() if path == MODELS else self._ask(at(self.address, path))
        return self._replies[path]

    def _list(self) -> Reply:
        """Return the list of models, below a path of the user's the one that there is."""
        address = compose(self.address, MODELS)
        places = (None, "/v1") if not address.other else ("/v1", "") if address.path else (None,)
        for place in places:
            reply = self._ask(compose(self.address, MODELS, place).url)
            if reply.status not in (0, *NO_SUCH_PATH):
                self.api_path = place
                break
        return reply

    def _ask(self, url: str) -> Reply:
        try:
            if time.monotonic() > self._deadline:
                raise UnreachableError("takes too long to answer")
            return ask(url, self.key, seconds=self._seconds)
        except UnreachableError:
            # A server that has answered exists, even if it closes the connection for a path that it does not know.
            if not self._replies:
                raise
            return Reply(0)


def probe_all(addresses: Sequence[str], named: bool = False) -> list[Found]:
    """Look at all addresses at the same time; the results are in their order.

    ``named``: the user has given them, so a server that wants a key may be sent the one in the environment.
    """
    found: dict[str, Found] = {}

    def look(address: str) -> None:
        found[address] = _probe_both(address, named)

    # Daemons, so that Ctrl-C does not wait for them.
    threads = [threading.Thread(target=look, args=(address,), daemon=True) for address in addresses]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[address] for address in addresses]


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
    variable = KEY_VARIABLES.get(address, KEY_VARIABLE)
    key = os.environ.get(variable, "").strip() if named else ""
    try:
        found = _look(Questions(address, seconds), variable)
        if isinstance(found, Server) or found.known_as or not key:
            return found
        # A header cannot hold other characters, and the error about it would show the key.
        if not (key.isascii() and key.isprintable()):
            return NoServer(address, f"wants an API key, and what the environment variable {variable} holds is not one")
        return _look(Questions(address, seconds, key), variable)
    except UnreachableError as error:
        return NoServer(address, str(error), silent=error.silent)


def _look(questions: Questions, variable: str) -> Found:
    """Return what answers. ``variable``: the environment variable for its key."""
    address, kind = questions.address, find_kind(questions.ask)
    if kind is not None and kind in NO_LLM:
        return NoServer(address, NO_LLM[kind], known_as=kind)
    list_status = questions.ask(MODELS).status
    # llama.cpp shows its list of models without a key, but answers nothing else without its key.
    if list_status in REFUSALS or (kind == "llama.cpp" and questions.ask("/props").status in REFUSALS):
        return NoServer(
            address,
            f"does not accept the API key in the environment variable {variable}"
            if questions.key
            else f"wants an API key: put it into the environment variable {variable}, then run init with "
            f"--backend {address}",
        )
    if kind is None:
        what = "no list of models" if list_status == 200 else f"status {list_status}"
        # LiteLLM's proxy answers with status 500 to a request without a key.
        hint = (
            f"; if it wants an API key, put it into the environment variable {variable}"
            if list_status >= 500 and not questions.key
            else ""
        )
        return NoServer(address, f"answers, but not as an LLM server that is known here ({what} at /v1/models{hint})")
    return Server(
        address,
        kind,
        *read_models(kind, questions.ask),
        key_variable=variable if questions.key else "",
        places=_places(kind, address, questions.ask),
        # Ollama's other API is not below the same path.
        api_path=None if kind == "Ollama" else questions.api_path,
    )


# -- what the answers say ----------------------------------------------------------------------------------------------


def find_kind(ask: Ask) -> str | None:
    """Return what runs there; None if it is not an LLM server.

    KoboldCpp and WilmerAI speak Ollama's API, too, so they come first; WilmerAI also speaks KoboldCpp's.
    """
    first = ask("/api/extra/version")
    if "AirTunes" in first.server:
        return "AirPlay"
    owners = {str(entry.get("owned_by", "")).lower() for entry in listed_models(ask(MODELS).data)}
    if first.part("result") == "KoboldCpp" and "wilmer" not in owners:
        return "KoboldCpp"
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
    is_list = isinstance(ask(MODELS).part("data"), list) or any(map(_name, listed_models(ask(MODELS).data)))
    return OTHER_KIND if is_list else None


def read_models(kind: str, ask: Ask) -> tuple[tuple[Model, ...], int, tuple[Model, ...], bool]:
    """Return the models to chat with, the number of those for another purpose, those that could not be loaded, and
    whether the first are all of them, as none is one to chat with by its name. Those in memory come first."""
    listed = list(_READERS.get(kind, _openai)(ask))[:MAX_MODELS]
    named = {model.name: model for model in listed if _is_name(model.name)}.values()
    failed = tuple(model for model in named if model.failed)
    able = [model for model in named if not model.failed and model.chats is not False]
    chat = [model for model in able if model.chats or not _NOT_FOR_CHAT.search(model.name)]
    offered = sorted(chat or able, key=lambda model: not model.loaded)
    return tuple(offered), len(named) - len(failed) - len(offered), failed, bool(able and not chat)


def _places(kind: str, address: str, ask: Ask) -> int:
    """Return how many calls a server had better run side by side; 0 if it does not say."""
    if kind == "Ollama":
        # It does not say. More at once need OLLAMA_NUM_PARALLEL and memory for a window each.
        return 1
    slots = (_number(ask("/props").part("total_slots")) or 0) if kind == "llama.cpp" else 0
    # A memory that is written at the same time would take the processor away from the answer.
    return min(slots, 1) if is_loopback(urlsplit(address).hostname or "") and not _may_have_gpu() else slots


def _may_have_gpu() -> bool:
    """Return whether this computer may have a GPU; only of Linux is it known that it has none."""
    return sys.platform != "linux" or any(os.path.exists(device) for device in GPU_DEVICES)


def _openai(ask: Ask) -> Iterator[Model]:
    for entry in listed_models(ask(MODELS).data):
        windows = (_number(entry.get(name)) for name in _WINDOWS)
        yield Model(_name(entry), next(filter(None, windows), None), chats=_purpose(entry))


def _llama_swap(ask: Ask) -> Iterator[Model]:
    running = [entry.get("model") for entry in _entries(ask("/running").part("running"))]
    for model in _openai(ask):
        loaded = model.name in running
        yield replace(model, loaded=loaded, state="loaded" if loaded else "unloaded")


def _llama_cpp(ask: Ask) -> Iterator[Model]:
    known = _facts(ask("/props"))
    for entry in listed_models(ask(MODELS).data):
        status, chats = _object(entry.get("status")), _purpose(entry)
        # A router, which loads a model at its first call.
        if state := _text(status.get("value")):
            failed = f"exit code {status.get('exit_code')}" if status.get("failed") else ""
            window = _window_in(status.get("args"))
            yield Model(_name(entry), window, state == "loaded", chats=chats, state=state, failed=failed)
        else:
            # The window of its training, if it does not say with which one it runs.
            trained = _number(_object(entry.get("meta")).get("n_ctx_train"))
            yield Model(_name(entry), loaded=True, **{**known, "window": known["window"] or trained})


def _facts(props: Reply) -> dict[str, Any]:
    """Return what llama.cpp says of a model that is loaded, as attributes of ``Model``."""
    template = _text(props.part("chat_template"))
    return {
        "window": _number(_object(props.part("default_generation_settings")).get("n_ctx")),
        "sees": _flag(_object(props.part("modalities")).get("vision")),
        "calls_tools": _flag(_object(props.part("chat_template_caps")).get("supports_tools")),
        "thinks": _THINKS.search(template) is not None if template else None,
    }


def _window_in(words: object) -> int | None:
    """Return the window that a server was started with; 0 and none at all mean that it is not known."""
    found = [part for word in _list(words) for part in str(word).split("=", 1)]
    sizes = [size for flag, size in pairwise(found) if flag in _WINDOW_FLAGS]
    return _number(int(sizes[-1])) if sizes and sizes[-1].isascii() and sizes[-1].isdigit() else None


def _purpose(entry: Mapping[str, object]) -> bool | None:
    """Return whether the server says that a model is one to chat with; None if it does not say."""
    outputs = _object(entry.get("architecture")).get("output_modalities")
    if isinstance(outputs, list):
        return "text" in outputs
    abilities = entry.get("capabilities")
    said = abilities.items() if isinstance(abilities, dict) else ((name, True) for name in _list(abilities))
    facts = [(_text(entry.get("type")).lower(), True), *((str(name).lower(), on is True) for name, on in said)]
    if any(name in _FOR_CHAT and is_on for name, is_on in facts):
        return True
    is_other = any(name in _FOR_CHAT or (is_on and _NOT_FOR_CHAT.search(name)) for name, is_on in facts)
    return False if is_other else None


def _kobold(ask: Ask) -> Iterator[Model]:
    name = _text(ask("/api/v1/model").part("result"))
    # Its names for no model.
    if name not in ("inactive", "Read Only"):
        yield Model(
            name,
            _number(ask("/api/extra/true_max_context_length").part("value")),
            True,
            _flag(ask("/api/extra/version").part("vision")),
        )


def _ollama(ask: Ask) -> Iterator[Model]:
    running = {entry.get("name") for entry in _entries(ask("/api/ps").part("models"))}
    for entry in _entries(ask("/api/tags").part("models")):
        name, details = _text(entry.get("name")), _object(entry.get("details"))
        # Models of this family make embeddings, whatever their name.
        chats = False if "bert" in str(details.get("family", "")).lower() else _purpose(entry)
        yield Model(name, loaded=name in running, detail=_text(details.get("parameter_size")), chats=chats)


def _lm_studio(ask: Ask) -> Iterator[Model]:
    for entry in _entries(ask("/api/v0/models").part("data")):
        kind, abilities = entry.get("type"), entry.get("capabilities")
        loaded = entry.get("state") == "loaded"
        yield Model(
            _text(entry.get("id")),
            _number(entry.get("loaded_context_length")) if loaded else None,
            loaded,
            kind == "vlm" if kind in ("llm", "vlm") else None,
            "tool_use" in abilities if isinstance(abilities, list) else None,
            chats=_purpose(entry),
            state=_text(entry.get("state")),
        )


def _text_generation_webui(ask: Ask) -> Iterator[Model]:
    name = _text(ask("/v1/internal/model/info").part("model_name"))
    # Its name for no model.
    if name != "None":
        yield Model(name, loaded=True)


_READERS: dict[str, Callable[[Ask], Iterator[Model]]] = {
    "llama.cpp": _llama_cpp,
    "llama-swap": _llama_swap,
    "KoboldCpp": _kobold,
    "Ollama": _ollama,
    "LM Studio": _lm_studio,
    "text-generation-webui": _text_generation_webui,
}


def look_closer(server: Server, model: Model) -> Model:
    """Return the chosen model with all details, which Ollama and llama.cpp's router give for one model at a time."""
    is_router = server.kind == "llama.cpp" and bool(model.state)
    if server.kind != "Ollama" and not is_router:
        return model
    key = os.environ.get(server.key_variable, "").strip()
    # Without the parameter, the question would load the model.
    question = "" if model.loaded else "&autoload=false"
    path = f"/props?model={quote(model.name, safe='')}{question}" if is_router else "/api/show"
    try:
        reply = ask(at(server.address, path), key, None if is_router else {"model": model.name}, NAMED_SECONDS)
    except UnreachableError:
        return model
    if is_router:
        facts = _facts(reply)
        return replace(model, **{**facts, "window": model.window or facts["window"]})
    # The key is ``<architecture>.context_length``.
    lengths = (
        _number(value) for name, value in _object(reply.part("model_info")).items() if name.endswith(".context_length")
    )
    abilities = reply.part("capabilities")
    # Versions before 0.6.4 do not list them.
    if not isinstance(abilities, list):
        return replace(model, window=next(lengths, None))
    return replace(
        model,
        window=next(lengths, None),
        sees="vision" in abilities,
        calls_tools="tools" in abilities,
        thinks="thinking" in abilities,
    )


def smaller_model(server: Server, model: Model) -> Model | None:
    """Return a model of the server that could take over the small jobs of ``model`` as it is configured, or None."""
    for one in server.workers_for(model)[:MAX_LOOKS]:
        worker = look_closer(server, one)
        # The workflows share out the window of the first model, and leave no room for thoughts that it does not have.
        if window_of(server, worker)[0] >= window_of(server, model)[0] and (
            worker.thinks is False or model.thinks is not False
        ):
            return worker
    return None


# -- what a foreign server sends may have any type ---------------------------------------------------------------------


def _name(entry: Mapping[str, object]) -> str:
    return _text(entry.get("id")) or _text(entry.get("name"))


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _entries(value: object) -> list[dict[str, object]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _object(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _flag(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _number(value: object) -> int | None:
    """Return a number of tokens; None for a value that is not a number, or makes no sense."""
    return value if type(value) is int and 0 < value < 1e9 else None


def _is_name(name: str) -> bool:
    return 0 < len(name) <= MAX_NAME and name.isprintable() and bool(name.strip())
