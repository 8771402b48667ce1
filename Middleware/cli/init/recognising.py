"""The servers' own ways to say what they are and which models they have."""
from __future__ import annotations

from collections.abc import Callable, Iterator

from Middleware.cli.init.asking import Reply
from Middleware.cli.init.servers import OTHER_KIND, Model, is_not_for_chat

Ask = Callable[[str], Reply]
"""Takes a path and returns what the server answers."""

MAX_MODELS = 1000
MAX_NAME = 200
OWNERS = {"vllm": "vLLM", "tabbyapi": "TabbyAPI", "wilmer": "WilmerAI", "llamacpp": "llama.cpp"}
"""Servers that are known by ``owned_by`` in OpenAI's list of models."""


def find_kind(ask: Ask) -> str | None:
    """What runs there; None if it is no LLM server. KoboldCpp and WilmerAI speak Ollama's API, too: they come first."""
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
    """The models to chat with, those in memory first, and the names of those that are for something else."""
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
    """What else the server says of the chosen model. ``show`` asks Ollama about a model; others have said it all."""
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
    """A number of tokens; None for what is none, or makes no sense."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
        return None
    return int(value)


def _is_name(name: str) -> bool:
    return 0 < len(name) <= MAX_NAME and name.isprintable() and bool(name.strip())
