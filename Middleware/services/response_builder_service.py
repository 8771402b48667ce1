"""The format of all answers: complete bodies, chunks, lists and errors.

Sources of the formats: the OpenAI API reference (chat completions, completions, models) and Ollama's API documentation
(chat, generate, tags, version, show, ps). ``stream_renderers`` frames the chunks of a stream.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TypedDict

from Middleware.common import instance_global_variables as globals_
from Middleware.common.constants import OLLAMA_VERSION
from Middleware.llmapis.finish_reasons import with_calls
from Middleware.models.messages import ToolCall, Usage
from Middleware.models.request_context import new_request_id
from Middleware.utilities import config_utils
from Middleware.utilities.answers.tool_calls import arguments_object, new_call_id, read_fragment
from Middleware.utilities.json_data import compact_json
from Middleware.utilities.text_utils import encode_text

logger = logging.getLogger(__name__)

STREAM_FINGERPRINT = "fp_44709d6fcb"
FINGERPRINT = "wmr_123456789"
LATEST = ":latest"
MODIFIED_AT = "2024-11-23T00:00:00Z"
# Ollama uses this date for a model that stays loaded.
NEVER = "2318-01-01T00:00:00Z"
DETAILS = {
    "format": "gguf",
    "family": "wilmer",
    "families": ["wilmer"],
    "parameter_size": "N/A",
    "quantization_level": "Q8",
}

ToolCalls = Sequence[ToolCall]

# OpenAI's types of errors by HTTP status. All others are "server_error".
ERROR_TYPES: Mapping[int, str] = {
    **dict.fromkeys((400, 404, 405, 409, 413), "invalid_request_error"),
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}
# Anthropic's. All others are "api_error".
ANTHROPIC_ERROR_TYPES: Mapping[int, str] = {
    **dict.fromkeys((400, 405, 409, 415), "invalid_request_error"),
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
# OpenAI's words for programs. It has one for few statuses, and null for the others.
ERROR_CODES: Mapping[int, str] = {401: "invalid_api_key", 429: "rate_limit_exceeded"}


def to_json(value: object) -> bytes:
    """Return compact JSON in UTF-8, without escaping non-ASCII characters; lone surrogates become U+FFFD."""
    return encode_text(compact_json(value))


def current_model_name() -> str:
    """Return the model name in answers to the current request: ``user`` or ``user:workflow``."""
    user, workflow = config_utils.get_current_username(), globals_.get_workflow_override()
    return f"{user}:{workflow}" if workflow else user


def timestamp() -> str:
    """Return the current time in Ollama's format: UTC with microseconds and ``Z``."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def nanoseconds(seconds: float) -> int:
    """Return a time as Ollama's answers have it."""
    return int(seconds * 1_000_000_000)


@dataclass(frozen=True)
class Counters:
    """Ollama's statistics of an answer; durations in nanoseconds."""

    total_duration: int = 0
    load_duration: int = 0
    prompt_eval_count: int = 0
    prompt_eval_duration: int = 0
    eval_count: int = 0
    eval_duration: int = 0


class AnthropicModel(TypedDict):
    """An entry of Anthropic's list of models."""

    type: str
    id: str
    display_name: str
    created_at: str
    lifecycle: str
    max_input_tokens: int
    max_tokens: int


class AnthropicModels(TypedDict):
    """A page of that list."""

    data: list[AnthropicModel]
    has_more: bool
    first_id: str | None
    last_id: str | None


class ResponseBuilderService:
    """Builds response objects as dicts. ``model`` None means the model name of the current request."""

    # -- OpenAI --------------------------------------------------------------------------------------------------
    def build_openai_models_response(self, model_ids: Sequence[str] | None = None) -> dict[str, object]:
        ids = config_utils.model_ids() if model_ids is None else model_ids
        return {"object": "list", "data": [self.build_openai_model(name) for name in ids]}

    def build_openai_model(self, name: str) -> dict[str, object]:
        length = config_utils.context_length_for_clients(name)
        # The first member is that of OpenRouter, which coding agents read; the second that of llama.cpp.
        return {
            "id": name,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "Wilmer",
            "context_length": length,
            "meta": {"n_ctx": length},
        }

    def build_openai_chat_completion_response(
        self,
        text: str,
        tool_calls: ToolCalls | None = None,
        *,
        model: str | None = None,
        finish_reason: str | None = None,
        usage: Usage | None = None,
        reasoning: str = "",
        fingerprint: str = "",
        request_id: str = "",
        legacy: bool = False,
    ) -> dict[str, object]:
        """Return a chat completion. ``legacy``: its client knows functions, and no tools."""
        message: dict[str, object] = {"role": "assistant", "content": text}
        if reasoning:
            message["reasoning_content"] = reasoning
        if tool_calls:
            # OpenAI sends null, not an empty text, with tool calls.
            message["content"] = text or None
            message.update(_calls(tool_calls, legacy))
        choice = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": _chat_reason(with_calls(finish_reason, bool(tool_calls)) or "stop", legacy),
        }
        return self._openai_body("chatcmpl", "chat.completion", choice, model, usage, fingerprint, request_id)

    def build_openai_completion_response(
        self,
        text: str,
        *,
        model: str | None = None,
        finish_reason: str | None = None,
        usage: Usage | None = None,
        fingerprint: str = "",
        request_id: str = "",
    ) -> dict[str, object]:
        choice = {"text": text, "index": 0, "logprobs": None, "finish_reason": _text_reason(finish_reason)}
        return self._openai_body("cmpl", "text_completion", choice, model, usage, fingerprint, request_id)

    def build_openai_tool_call_response(self, model: str | None = None) -> dict[str, object]:
        """The answer that no tool is wanted, to a front-end that asks which of its tools to use."""
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": None, "tool_calls": []},
            "logprobs": None,
            "finish_reason": "tool_calls",
        }
        return self._openai_body(
            "chatcmpl-opnwui-tool", "chat.completion", choice, model, None, "", str(int(time.time()))
        )

    @staticmethod
    def _openai_body(
        prefix: str,
        kind: str,
        choice: dict[str, object],
        model: str | None,
        usage: Usage | None,
        fingerprint: str,
        request_id: str,
    ) -> dict[str, object]:
        return {
            "id": answer_id(prefix, request_id),
            "object": kind,
            "created": int(time.time()),
            "model": current_model_name() if model is None else model,
            "system_fingerprint": fingerprint or FINGERPRINT,
            "choices": [choice],
            "usage": dict(usage or {}),
        }

    def build_openai_chat_completion_chunk(
        self,
        token: str,
        finish_reason: str | None,
        tool_calls: ToolCalls | None = None,
        *,
        model: str | None = None,
        chunk_id: str = "",
        created: int = 0,
        role: str | None = None,
        reasoning: str = "",
        fingerprint: str = "",
        legacy: bool = False,
    ) -> dict[str, object]:
        delta: dict[str, object] = {"role": role} if role else {}
        if reasoning:
            delta["reasoning_content"] = reasoning
        if token:
            delta["content"] = token
        if tool_calls:
            delta.update(_calls(tool_calls, legacy))
        reason = finish_reason and _chat_reason(finish_reason, legacy)
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return self._openai_chunk("chatcmpl", "chat.completion.chunk", choice, model, chunk_id, created, fingerprint)

    def build_openai_completion_chunk(
        self,
        token: str,
        finish_reason: str | None,
        *,
        model: str | None = None,
        chunk_id: str = "",
        created: int = 0,
        fingerprint: str = "",
    ) -> dict[str, object]:
        choice = {
            "text": token,
            "index": 0,
            "logprobs": None,
            "finish_reason": finish_reason and _text_reason(finish_reason),
        }
        return self._openai_chunk("cmpl", "text_completion", choice, model, chunk_id, created, fingerprint)

    @staticmethod
    def _openai_chunk(
        prefix: str,
        kind: str,
        choice: dict[str, object],
        model: str | None,
        chunk_id: str,
        created: int,
        fingerprint: str,
    ) -> dict[str, object]:
        return {
            "id": chunk_id or answer_id(prefix),
            "object": kind,
            "created": created or int(time.time()),
            "model": current_model_name() if model is None else model,
            "system_fingerprint": fingerprint or STREAM_FINGERPRINT,
            "choices": [choice],
        }

    def build_openai_error(
        self, message: str, status: int, code: str | None = None, param: str | None = None
    ) -> dict[str, object]:
        """Return an error as OpenAI's clients parse it. They choose their exception by the HTTP status.

        ``code``: a short word for programs, such as ``model_not_found``; by default that of the status, if it has one.
        ``param``: the JSON path of the field that is wrong, None if no single one is.
        """
        return {
            "error": {
                "message": message,
                "type": ERROR_TYPES.get(status, "server_error"),
                "param": param,
                "code": code or ERROR_CODES.get(status),
            }
        }

    # -- Ollama --------------------------------------------------------------------------------------------------
    def build_ollama_tags_response(self, model_ids: Sequence[str] | None = None) -> dict[str, object]:
        ids = config_utils.model_ids() if model_ids is None else model_ids
        return {"models": [self.build_ollama_model(name) for name in ids]}

    def build_ollama_model(self, name: str) -> dict[str, object]:
        """Return one entry of the model list."""
        return {
            "name": name,
            "model": name + LATEST,
            "modified_at": MODIFIED_AT,
            "size": 1,
            "digest": hashlib.sha256(name.encode("utf-8")).hexdigest(),
            "details": dict(DETAILS),
        }

    def build_ollama_ps_response(self, model_ids: Sequence[str] | None = None) -> dict[str, object]:
        """Return the loaded models: the whole list, because none of them has to be loaded."""
        ids = config_utils.model_ids() if model_ids is None else model_ids
        return {
            "models": [
                {
                    **self.build_ollama_model(name),
                    "expires_at": NEVER,
                    "size_vram": 0,
                    "context_length": config_utils.context_length_for_clients(name),
                }
                for name in ids
            ]
        }

    def build_ollama_show_response(self, name: str) -> dict[str, object]:
        """Return the properties of a model. Clients read the capabilities and the context length."""
        return {
            "license": "",
            "modelfile": f"FROM {name}",
            "parameters": "",
            # Some clients search the template for tools.
            "template": "{{ .System }}{{ .Tools }}{{ .Prompt }}",
            "details": {**DETAILS, "parent_model": ""},
            "modified_at": MODIFIED_AT,
            "model_info": {
                "general.architecture": "wilmer",
                "general.basename": name,
                "wilmer.context_length": config_utils.context_length_for_clients(name),
            },
            "capabilities": ["completion", "tools", "vision"],
        }

    def build_ollama_version_response(self) -> dict[str, object]:
        return {"version": OLLAMA_VERSION}

    def build_ollama_chat_response(
        self,
        text: str,
        model_name: str | None = None,
        request_id: str | None = None,
        tool_calls: ToolCalls | None = None,
        *,
        finish_reason: str | None = None,
        reasoning: str = "",
        counters: Counters | None = None,
    ) -> dict[str, object]:
        return {
            **self.build_ollama_chat_chunk(
                text, finish_reason or "stop", None, tool_calls, model=model_name, reasoning=reasoning
            ),
            **asdict(counters or Counters()),
            **_identified(request_id),
        }

    def build_ollama_generate_response(
        self,
        text: str,
        model: str | None = None,
        request_id: str | None = None,
        *,
        finish_reason: str | None = None,
        usage: Usage | None = None,
        counters: Counters | None = None,
    ) -> dict[str, object]:
        chunk = self.build_ollama_generate_chunk(text, finish_reason or "stop", model=model)
        return {
            "id": answer_id("gen", request_id or ""),
            "object": "text_completion",
            "created": int(time.time()),
            **chunk,
            "choices": [{"text": text, "index": 0, "logprobs": None, "finish_reason": _text_reason(finish_reason)}],
            "usage": dict(usage or {}),
            **asdict(counters or Counters()),
            **_identified(request_id),
        }

    def build_ollama_tool_call_response(self, model: str | None = None) -> dict[str, object]:
        """The answer that no tool is wanted, to a front-end that asks which of its tools to use."""
        return self.build_ollama_chat_response("", model)

    def build_ollama_chat_chunk(
        self,
        token: str,
        finish_reason: str | None,
        request_id: str | None = None,
        tool_calls: ToolCalls | None = None,
        *,
        model: str | None = None,
        reasoning: str = "",
    ) -> dict[str, object]:
        message: dict[str, object] = {"role": "assistant", "content": token}
        if reasoning:
            message["thinking"] = reasoning
        if tool_calls is not None:
            message["tool_calls"] = ollama_tool_calls(tool_calls)
        return self._ollama_chunk({"message": message}, finish_reason, request_id, model)

    def build_ollama_generate_chunk(
        self, token: str, finish_reason: str | None, request_id: str | None = None, *, model: str | None = None
    ) -> dict[str, object]:
        return self._ollama_chunk({"response": token}, finish_reason, request_id, model)

    @staticmethod
    def _ollama_chunk(
        content: dict[str, object], finish_reason: str | None, request_id: str | None, model: str | None
    ) -> dict[str, object]:
        done = {"done_reason": ollama_done_reason(finish_reason), "done": True} if finish_reason else {"done": False}
        return {
            "model": current_model_name() if model is None else model,
            "created_at": timestamp(),
            **content,
            **done,
            **_identified(request_id),
        }

    def build_ollama_error(self, message: str) -> dict[str, object]:
        return {"error": message}

    # -- Anthropic and KoboldCpp ---------------------------------------------------------------------------------
    def build_anthropic_models_response(self, page: Sequence[str], has_more: bool) -> AnthropicModels:
        return {
            "data": [self.build_anthropic_model(name) for name in page],
            "has_more": has_more,
            "first_id": page[0] if page else None,
            "last_id": page[-1] if page else None,
        }

    def build_anthropic_model(self, name: str) -> AnthropicModel:
        length = config_utils.context_length_for_clients(name)
        return {
            "type": "model",
            "id": name,
            "display_name": name,
            "created_at": MODIFIED_AT,
            "lifecycle": "active",
            "max_input_tokens": length,
            "max_tokens": length,
        }

    def build_anthropic_error(
        self, message: str, status: int, request_label: str | None, details: Mapping[str, object] | None = None
    ) -> dict[str, object]:
        error: dict[str, object] = {"type": ANTHROPIC_ERROR_TYPES.get(status, "api_error"), "message": message}
        if details:
            error["details"] = dict(details)
        return {"type": "error", "error": error, "request_id": request_label}

    def build_kobold_response(self, text: str, finish_reason: str | None) -> dict[str, object]:
        return {"results": [{"text": text, "finish_reason": _text_reason(finish_reason)}]}

    def build_kobold_chunk(self, token: str, finish_reason: str | None) -> dict[str, object]:
        return {"token": token, "finish_reason": finish_reason and _text_reason(finish_reason)}

    def build_kobold_error(self, message: str, status: int) -> dict[str, object]:
        return {"detail": {"msg": message, "type": ERROR_TYPES.get(status, "server_error")}}


def ollama_done_reason(finish_reason: str | None) -> str:
    return "length" if finish_reason == "length" else "stop"


def ollama_tool_calls(calls: ToolCalls) -> list[dict[str, object]]:
    """Return tool calls in Ollama's form: with an id and an index, arguments as an object."""
    found = [call for call in calls if isinstance(call, Mapping)]
    return [_ollama_call(index, call) for index, call in enumerate(found)]


def _ollama_call(index: int, call: ToolCall) -> dict[str, object]:
    call_id, name, arguments = read_fragment(call)
    # A script may have written it in this form already.
    native = call["function"] if isinstance(arguments, Mapping) else {}
    function = {**native, "index": index, "name": name, "arguments": _arguments(arguments)}
    return {"id": call_id or new_call_id(), "function": function}


def _arguments(value: object) -> dict[str, object]:
    found = arguments_object(value)
    if found is None:
        logger.warning("The arguments of a tool call are not a JSON object; they are left out.")
    return found or {}


def answer_id(prefix: str, request_id: str = "") -> str:
    """Return the id of an answer: the digits of its request's id."""
    return f"{prefix}-{(request_id or new_request_id()).replace('-', '')}"


def _calls(calls: ToolCalls, legacy: bool) -> dict[str, object]:
    """Return the field of a message or delta that has the calls; clients with functions can read one call."""
    return {"function_call": calls[0].get("function")} if legacy else {"tool_calls": list(calls)}


def _chat_reason(finish_reason: str, legacy: bool) -> str:
    return "function_call" if legacy and finish_reason == "tool_calls" else finish_reason


def _identified(request_id: str | None) -> dict[str, str]:
    return {"request_id": request_id} if request_id else {}


def _text_reason(finish_reason: str | None) -> str:
    """Return the finish reason of a text completion, which cannot contain tool calls."""
    return finish_reason if finish_reason and finish_reason != "tool_calls" else "stop"
