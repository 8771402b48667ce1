"""LLM servers: the ports at which they usually listen, and the facts that were found out about one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from Middleware.llmapis.addresses import MODELS, compose
from Middleware.utilities.command_lines import in_project_container

LOOPBACK = "127.0.0.1"
LOOPBACK_IPV6 = "[::1]"
CONTAINER_HOST = "host.docker.internal"
USUAL_PORTS: Mapping[int, str] = {
    11434: "Ollama",
    8080: "llama.cpp, mlx-lm",
    5001: "KoboldCpp",
    1234: "LM Studio",
    8000: "vLLM",
    5000: "text-generation-webui, TabbyAPI",
    4000: "LiteLLM",
    8081: "llama.cpp",
}

API_TYPES: Mapping[str, str] = {
    "Ollama": "OllamaApiChat",
    "llama.cpp": "LlamaCppServer",
    "text-generation-webui": "Text-Generation-WebUI",
}
"""The file in ApiTypes for a kind of server. All others speak OpenAI's API; KoboldCpp, too, which then applies the chat
template of its model by itself."""
OPENAI_API = "Open-AI-API"
# The same with OpenAI's newer name for the response limit.
OPENAI, OPENAI_ADDRESS = "OpenAI", "https://api.openai.com"
OTHER_KIND = "OpenAI-compatible"

# Billions (or millions) of parameters, as names have them: qwen3:1.7b, Mistral-7B. Of 30b-a3b the first number counts.
_SIZE = re.compile(r"(?<![\w.])(\d{1,4}(?:\.\d{1,3})?)\s*([bm])(?![a-z0-9])", re.IGNORECASE)
# Trained for one purpose, these follow other instructions badly.
_SPECIAL = re.compile("code|math|guard", re.IGNORECASE)
# Below the first, models seldom keep to a format; above the second, small jobs hardly get better. In billions.
SMALLEST_WORKER, USUAL_WORKER = 1.0, 4.0


@dataclass(frozen=True)
class Model:
    """A model that a server lists. None means that the server does not say.

    Attributes:
        window: tokens of conversation and answer together, as they can be used now.
        loaded: it is in memory already, and answers without a wait.
        sees, calls_tools, thinks: whether it accepts images, uses tools, reasons before it answers.
        detail: a few words for the user, such as its size.
        chats: whether it is to chat with, as the server says.
        state: ``loaded``, ``unloaded`` and the like, where the server loads a model at its first call.
        failed: why the server could not load it; such a model is not offered.
    """

    name: str
    window: int | None = None
    loaded: bool = False
    sees: bool | None = None
    calls_tools: bool | None = None
    thinks: bool | None = None
    detail: str = ""
    chats: bool | None = None
    state: str = ""
    failed: str = ""

    @property
    def size(self) -> float | None:
        """The billions of parameters, as the server or the name says; None if neither does."""
        found = _SIZE.search(self.detail) or _SIZE.search(self.name)
        return float(found[1]) / (1000 if found[2] in "mM" else 1) if found else None


@dataclass(frozen=True)
class Server:
    """A server that answered.

    Attributes:
        address: scheme, host, port and perhaps a path; what an endpoint file names.
        kind: what it is, such as ``Ollama``.
        models: those that can chat; the ones in memory first.
        others: the number of models for something else, such as embeddings.
        key_variable: the environment variable whose content opened it; empty if it asks for no key.
        places: how many calls it runs side by side; 0 if that is not known.
        api_path: what stands between a path in the address and that of a call; None if it follows from the address.
        failed: the models that it could not load.
        renames_limit: it refuses the older name of the response limit.
        is_guess: no model is one to chat with by its name, so that ``models`` are all of them.
    """

    address: str
    kind: str
    models: tuple[Model, ...] = ()
    others: int = 0
    failed: tuple[Model, ...] = ()
    is_guess: bool = False
    key_variable: str = ""
    places: int = 0
    api_path: str | None = None
    renames_limit: bool = False

    @property
    def endpoint(self) -> str:
        """The address for endpoint files."""
        return at(self.address, self.api_path or "")

    @property
    def api_type(self) -> str:
        if self.kind not in API_TYPES and (self.renames_limit or self.address == OPENAI_ADDRESS):
            return OPENAI
        return API_TYPES.get(self.kind, OPENAI_API)

    def workers_for(self, model: Model) -> list[Model]:
        """Return models of at most half the size that could do its small jobs, the best first."""
        most = (model.size or 0) / 2
        sizes = {one: one.size for one in self.models if one.size and not _SPECIAL.search(one.name)}
        return sorted(
            (one for one, size in sizes.items() if SMALLEST_WORKER <= size <= most),
            key=lambda one: (abs(sizes[one] - USUAL_WORKER), one.name),
        )


@dataclass(frozen=True)
class NoServer:
    """An address without a server that can be used, and why, in words that follow the address.

    Attributes:
        silent: nothing listens there.
        known_as: the name of the program there, if it is known and not an LLM server.
    """

    address: str
    reason: str
    silent: bool = False
    known_as: str = ""


def usual_host() -> str:
    """Return the name under which this computer's servers are reached: a container's own loopback leads nowhere."""
    return CONTAINER_HOST if in_project_container() else LOOPBACK


def usual_addresses() -> list[str]:
    return [f"http://{usual_host()}:{port}" for port in USUAL_PORTS]


def normal_address(text: str) -> str:
    """Return a typed address the way an endpoint file has it. Raises ValueError that says what is wrong."""
    typed = text.strip()
    if not typed:
        raise ValueError("it is empty")
    if not typed.isprintable() or " " in typed:
        raise ValueError("it has a blank in it" if " " in typed else "it has a character in it that cannot be shown")
    try:
        parts = urlsplit(typed if "://" in typed else f"http://{typed}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError("its host or port is not valid") from error
    if parts.scheme.lower() not in ("http", "https") or not host:
        raise ValueError("it does not begin with http:// or https://")
    if parts.username is not None or parts.password is not None:
        raise ValueError("names and passwords have no place in it")
    shown = f"[{host}]" if ":" in host else host
    server = f"{parts.scheme.lower()}://{shown}" + (f":{port}" if port else "")
    # The path of one of its calls is left out, and the root, which most servers have.
    path = compose(server + parts.path, MODELS).path.removesuffix("/v1")
    return server + path + (f"?{parts.query}" if parts.query else "")


def at(address: str, path: str) -> str:
    """Return the URL of a path below an address, whose query stays at the end."""
    base, mark, query = address.partition("?")
    return base + path + (mark.replace("?", "&") if "?" in path else mark) + query
