"""Servers as ``init`` meets them with their calls: their lists, what they refuse, and a model that greets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from Tests.addons.init import llm_servers
from Tests.backend_dialects import Answer, OpenAiChat
from Tests.stub_backend import RecordedRequest, Reply, StubBackend, json_reply, page_of, status_reply

GREETING = "Hello there."
V1 = "/v1"


def openai_error(message: str, param: str, code: str) -> Reply:
    error = {"message": message, "type": "invalid_request_error", "param": param, "code": code}
    return json_reply({"error": error}, 400)


def refuse_as_gpt_5(body: Mapping[str, Any]) -> Reply | None:
    """Refuse one thing at a time, as OpenAI does for models that reason."""
    if "max_tokens" in body:
        text = (
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
        )
        return openai_error(text, "max_tokens", "unsupported_parameter")
    if body.get("temperature", 1) != 1:
        text = (
            "Unsupported value: 'temperature' does not support {} with this model. "
            "Only the default (1) value is supported."
        )
        return openai_error(text.format(body["temperature"]), "temperature", "unsupported_value")
    if body.get("max_completion_tokens", 100) < 16:
        text = "Could not finish the message because max_tokens or model output limit was reached. Please try again."
        return json_reply({"error": {"message": text, "type": "invalid_request_error", "param": None}}, 400)
    return None


@dataclass
class Service:
    """A server with OpenAI's API.

    Attributes:
        path: what its users paste behind the host; its API is below it.
        pages: the answers to questions, by path.
        refuse: returns the answer to a call that it does not take.
        key: what it wants to be sent, and how it says that it is missing.
        calls: the payloads of its calls; ``refused`` the number of those that it did not take.
        expected: what the endpoint files must have.
    """

    path: str
    pages: Mapping[str, Any]
    expected: Mapping[str, Any]
    chat: str = V1
    refuse: Callable[[Mapping[str, Any]], Reply | None] = lambda body: None
    key: str = ""
    missing: Reply = field(default_factory=lambda: status_reply(401, "Missing key"))
    calls: list[Mapping[str, Any]] = field(default_factory=list)
    refused: int = 0

    @contextmanager
    def running(self) -> Iterator[StubBackend]:
        with StubBackend() as backend:
            backend.responder = self._respond
            yield backend

    def _respond(self, request: RecordedRequest) -> Reply:
        if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
            return self.missing
        if request.method == "GET":
            return page_of(self.pages, request)
        if request.path != f"{self.chat}/chat/completions":
            return status_reply(404, "Not Found")
        self.calls.append(request.json)
        refusal = self.refuse(request.json)
        self.refused += refusal is not None
        return refusal or OpenAiChat().reply(Answer(tokens=(GREETING,)), bool(request.json.get("stream")))


def _without_model(body: Mapping[str, Any]) -> Reply | None:
    """A router does not know which model is meant without a name."""
    return None if body.get("model") == "qwen3" else json_reply({"error": {"message": "model name is missing"}}, 400)


GEMINI = "/v1beta/openai"


def services() -> dict[str, Service]:
    """Every server once, as a fresh one."""
    return {
        "OpenAI": Service(
            V1,
            {
                "/v1/models": llm_servers.openai_list(
                    "sora-2",
                    "gpt-image-1",
                    "gpt-realtime",
                    "gpt-5",
                    "gpt-5-mini",
                    "text-embedding-3-small",
                    owner="system",
                )
            },
            {"modelNameToSendToAPI": "gpt-5", "apiTypeConfigFileName": "OpenAI", "presetSamplers": {}},
            refuse=refuse_as_gpt_5,
        ),
        "Gemini": Service(
            GEMINI,
            {
                f"{GEMINI}/models": llm_servers.openai_list(
                    "models/gemini-embedding-001",
                    "models/veo-3.0-generate-001",
                    "models/gemini-2.5-flash-preview-tts",
                    "models/gemini-2.5-flash",
                    owner="google",
                )
            },
            {
                "modelNameToSendToAPI": "models/gemini-2.5-flash",
                "apiTypeConfigFileName": "Open-AI-API",
                "presetSamplers": {"temperature": 0.7},
            },
            chat=GEMINI,
            missing=json_reply(
                [
                    {
                        "error": {
                            "code": 400,
                            "message": "Missing or invalid Authorization header.",
                            "status": "INVALID_ARGUMENT",
                        }
                    }
                ],
                400,
            ),
        ),
        "llama.cpp's router": Service(
            "",
            llm_servers.llama_router(
                {"id": "big", "status": {"value": "unloaded", "args": ["-c", "8192"], "failed": True, "exit_code": 1}},
                {"id": "small", "status": {"value": "unloaded", "args": ["-c", "2048"]}},
                {"id": "qwen3", "status": {"value": "loaded", "args": ["llama-server", "-c", "6144", "--port", "0"]}},
            ),
            {
                "modelNameToSendToAPI": "qwen3",
                "apiTypeConfigFileName": "LlamaCppServer",
                "dontIncludeModel": False,
                "maxContextTokenSize": 6144,
            },
            refuse=_without_model,
        ),
        "LM Studio": Service(
            V1,
            llm_servers.lm_studio(),
            {"modelNameToSendToAPI": "qwen3-14b", "apiTypeConfigFileName": "Open-AI-API", "maxContextTokenSize": 32768},
        ),
        "OpenRouter": Service(
            "/api/v1",
            {
                "/api/v1/models": {
                    "data": [
                        {
                            "id": "google/gemini-image",
                            "architecture": {"output_modalities": ["image"]},
                            "context_length": 32768,
                        },
                        {
                            "id": "openai/gpt-audio-that-writes",
                            "architecture": {"output_modalities": ["text"]},
                            "context_length": 65536,
                        },
                        {"id": "meta/llama", "architecture": {"output_modalities": ["text"]}, "context_length": 131072},
                    ]
                }
            },
            {
                "modelNameToSendToAPI": "openai/gpt-audio-that-writes",
                "apiTypeConfigFileName": "Open-AI-API",
                "maxContextTokenSize": 65536,
            },
            chat="/api/v1",
        ),
    }
