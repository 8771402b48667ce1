"""LLM servers as ``init`` meets them: what each answers to the questions it is asked, on real sockets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from Tests.backend_dialects import Answer, speak
from Tests.stub_backend import RecordedRequest, Reply, StubBackend, page_of, status_reply

Routes = Mapping[str, Any]
"""Path -> the JSON of the answer, or a Reply. Every other path is answered with 404."""


def openai_list(*names: str, owner: str | None = None, **more: Any) -> dict[str, Any]:
    owned = {} if owner is None else {"owned_by": owner}
    return {
        "object": "list",
        "data": [{"id": name, "object": "model", "created": 1, **owned, **more} for name in names],
    }


def ollama(*names: str, running: tuple[str, ...] = (), show: Any = None, sized: bool = False) -> Routes:
    """``show``: the answer about a model; it has to be asked with POST. ``sized``: names tell how large models are."""
    details = {} if sized else {"parameter_size": "8.0B"}
    tags = [{"name": name, "model": name, "size": 1, "details": {"family": _family(name), **details}} for name in names]
    return {
        "/api/version": {"version": "0.12.3"},
        "/api/tags": {"models": tags},
        "/api/ps": {"models": [{"name": name} for name in running]},
        "/v1/models": openai_list(*names, owner="library"),
        "/api/show": show
        or {
            "model_info": {"general.architecture": "llama", "llama.context_length": 131072},
            "capabilities": ["completion", "tools"],
        },
    }


def llama_cpp(name: str = "/models/qwen3-8b.gguf", window: int = 4096, **props: Any) -> Routes:
    return {
        "/v1/models": openai_list(name, owner="llamacpp", meta={"n_ctx_train": 40960}),
        "/props": {
            "default_generation_settings": {"n_ctx": window},
            "total_slots": 1,
            "modalities": {"vision": False, "audio": False},
            **props,
        },
    }


def llama_router(*entries: dict[str, Any], window: int = 5120) -> Routes:
    """llama.cpp's server with several models; ``entries`` are those of its list, with ``status``."""
    return {
        "/v1/models": {
            "object": "list",
            "data": [{"object": "model", "owned_by": "llamacpp", **one} for one in entries],
        },
        "/props": {
            "role": "router",
            "default_generation_settings": {"params": {}, "n_ctx": 0},
            "model_alias": "llama-server",
            "model_path": "none",
        },
        **{
            f"/props?model={one['id']}{more}": {
                "default_generation_settings": {"n_ctx": window},
                "total_slots": 4,
                "modalities": {"vision": True},
                "chat_template_caps": {"supports_tools": True},
            }
            for one in entries
            for more in ("", "&autoload=false")
        },
    }


def llama_swap(*names: str, running: tuple[str, ...] = ()) -> Routes:
    return {
        "/v1/models": openai_list(*names, owner="llama-swap"),
        "/running": {"running": [{"model": name, "state": "ready"} for name in running]},
        "/health": Reply(body=b"OK"),
    }


def koboldcpp(name: str = "koboldcpp/Mistral-Nemo", window: int = 8192) -> Routes:
    """It plays an Ollama and an OpenAI server, too."""
    return {
        "/api/extra/version": {"result": "KoboldCpp", "version": "1.98", "vision": True},
        "/api/v1/model": {"result": name},
        "/api/extra/true_max_context_length": {"value": window},
        "/v1/models": openai_list(name, owner="koboldcpp"),
        "/api/version": {"version": "0.7.0"},
        "/api/tags": {"models": [{"name": "koboldcpp", "details": {"family": "koboldcpp"}}]},
    }


def lm_studio() -> Routes:
    return {
        "/v1/models": openai_list("gemma-3-4b", "qwen3-14b", "text-embedding-nomic", owner="organization_owner"),
        "/api/v0/models": {
            "object": "list",
            "data": [
                {"id": "gemma-3-4b", "type": "vlm", "state": "not-loaded", "max_context_length": 131072},
                {
                    "id": "qwen3-14b",
                    "type": "llm",
                    "state": "loaded",
                    "loaded_context_length": 32768,
                    "capabilities": ["tool_use"],
                },
                {"id": "text-embedding-nomic", "type": "embeddings", "state": "not-loaded"},
            ],
        },
    }


def vllm(name: str = "mistralai/Mistral-7B", window: int = 32768) -> Routes:
    return {"/v1/models": openai_list(name, owner="vllm", max_model_len=window)}


def text_generation_webui(name: str = "Nemo-12B") -> Routes:
    return {
        "/v1/models": openai_list(name, "gpt-3.5-turbo", owner="user"),
        "/v1/internal/model/info": {"model_name": name, "lora_names": []},
    }


def wilmer() -> Routes:
    return {
        "/v1/models": openai_list("demo", owner="Wilmer"),
        "/api/version": {"version": "0.9"},
        "/api/extra/version": {"result": "KoboldCpp", "version": "1.100"},
        "/api/v1/model": {"result": "demo"},
        "/api/tags": {"models": [{"name": "demo", "details": {"family": "wilmer"}}]},
    }


def serving(routes: Routes, key: str = "", say: Callable[[dict[str, Any]], str] | None = None) -> StubBackend:
    """A server with these answers. ``key``: without it, the answer is 401. ``say``: what the model says to a request
    for text."""

    def respond(request: RecordedRequest) -> Reply:
        if key and request.headers.get("authorization") != f"Bearer {key}":
            return status_reply(401)
        if say is not None and request.method == "POST" and request.path != "/api/show":
            return speak(request, Answer(tokens=(say(request.json),)))
        if (request.path == "/api/show") != (request.method == "POST"):
            return status_reply(404)
        return page_of(routes, request)

    backend = StubBackend()
    backend.responder = respond
    return backend


def _family(name: str) -> str:
    return "nomic-bert" if name.startswith("nomic") else "llama"
