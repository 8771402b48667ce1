"""Embeddings: vectors for texts of clients, from the endpoints that the user's file names. No workflow runs."""

from __future__ import annotations

import base64
import logging
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypedDict

from flask import Flask, Response
from flask import request as http

from Middleware.api import api_helpers
from Middleware.api.handlers.base.base_api_handler import BaseApiHandler, is_private, json_response
from Middleware.api.running.disconnect_watcher import probe_for
from Middleware.api.running.running_requests import is_cut_off, running_requests
from Middleware.common.constants import EMBEDDINGS
from Middleware.exceptions import ClientError, ServerStoppingError
from Middleware.llmapis.embedding_api import EmbeddingApiService
from Middleware.models.request_context import RequestContext
from Middleware.services.response_builder_service import nanoseconds
from Middleware.utilities import config_utils
from Middleware.utilities.text_utils import rough_estimate_token_length

logger = logging.getLogger(__name__)

# OpenAI's limit, which its clients know: they send longer lists in several requests.
MAX_TEXTS = 2048
NO_TOKENS = (
    "The 'input' field contains token numbers, which only the tokenizer of one model can read; send texts. "
    "LangChain sends texts with OpenAIEmbeddings(check_embedding_ctx_length=False)."
)


class OpenAiEmbedding(TypedDict):
    """One vector: numbers, or base64 of little-endian 32-bit floats."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(TypedDict):
    """OpenAI's token counts of embeddings."""

    prompt_tokens: int
    total_tokens: int


class OpenAiEmbeddings(TypedDict):
    """The answer of ``/v1/embeddings``."""

    object: Literal["list"]
    data: list[OpenAiEmbedding]
    model: str
    usage: EmbeddingUsage


class OllamaEmbed(TypedDict):
    """The answer of ``/api/embed``; durations in nanoseconds."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


@dataclass(frozen=True)
class EmbeddingResult:
    """The vectors of a request's texts, the number of their tokens, and the name of the model that made them."""

    vectors: list[list[float]]
    tokens: int
    model: str


class EmbeddingsApiHandler(BaseApiHandler):
    """The routes for vectors of OpenAI, KoboldCpp and Ollama, with Ollama's older one for a single text."""

    def register_routes(self, app: Flask) -> None:
        for path, answer in (
            ("/v1/embeddings", self._openai),
            ("/embeddings", self._openai),
            ("/api/extra/embeddings", self._openai),
            ("/api/embed", self._ollama),
            ("/api/embeddings", self._ollama_single),
        ):
            app.add_url_rule(path, f"embeddings {path}", partial(self.serve, EMBEDDINGS, answer), methods=["POST"])

    def identify(self, context: RequestContext, body: dict[str, object]) -> None:
        """Set user and redaction of the request. Nothing of its body is logged: it contains whole documents."""
        api_helpers.set_request_user_from_model(body.get("model"))
        api_helpers.require_identified_user(http.remote_addr or "")
        context.redact = is_private(context)

    # -- dialects ------------------------------------------------------------------------------------------------
    @staticmethod
    def _openai(context: RequestContext, body: dict[str, object]) -> Response:
        encoded = _encoding(body.get("encoding_format"))
        found = _embed(context, body, texts_of(body.get("input"), "input"), dimensions_of(body.get("dimensions")))
        answer: OpenAiEmbeddings = {
            "object": "list",
            "data": [
                {"object": "embedding", "index": index, "embedding": encoded(vector)}
                for index, vector in enumerate(found.vectors)
            ],
            "model": found.model,
            "usage": {"prompt_tokens": found.tokens, "total_tokens": found.tokens},
        }
        return json_response(answer)

    @staticmethod
    def _ollama(context: RequestContext, body: dict[str, object]) -> Response:
        sent = body.get("input")
        # With an empty input Ollama only loads the model.
        texts = texts_of(sent, "input") if sent not in (None, "", []) else []
        found = _embed(context, body, texts, dimensions_of(body.get("dimensions")))
        answer: OllamaEmbed = {
            "model": str(body.get("model") or found.model),
            "embeddings": found.vectors,
            "total_duration": nanoseconds(time.monotonic() - context.started),
            "load_duration": 0,
            "prompt_eval_count": found.tokens,
        }
        return json_response(answer)

    @staticmethod
    def _ollama_single(context: RequestContext, body: dict[str, object]) -> Response:
        prompt = body.get("prompt")
        if prompt is not None and not isinstance(prompt, str):
            raise ClientError("The 'prompt' field must be a text.", param="prompt")
        found = _embed(context, body, [prompt] if prompt else [], None)
        return json_response({"embedding": found.vectors[0] if found.vectors else []})


# -- the request ---------------------------------------------------------------------------------------------------


def texts_of(value: object, field: str) -> list[str]:
    """Return the texts that a client wants vectors of: one, or a list. Raises ClientError."""
    texts = [value] if isinstance(value, str) else value
    if _are_token_ids(value):
        raise ClientError(NO_TOKENS, param=field, code="unsupported_input")
    if not isinstance(texts, list) or not texts:
        raise ClientError(f"The '{field}' field must be a text or a list of texts, and not empty.", param=field)
    if len(texts) > MAX_TEXTS:
        raise ClientError(
            f"The '{field}' field has {len(texts)} texts; {MAX_TEXTS} are the most in one request.", param=field
        )
    for index, text in enumerate(texts):
        if not isinstance(text, str) or not text:
            where = f"'{field}[{index}]'" if texts is value else f"'{field}'"
            raise ClientError(f"{where} must be a text that is not empty.", param=field)
    return texts


def _are_token_ids(value: object) -> bool:
    """Return whether a value is a list of integers, or of lists of integers, judged by its first entry."""
    first = value[0] if isinstance(value, list) and value else None
    if isinstance(first, list) and first:
        first = first[0]
    return type(first) is int


def dimensions_of(value: object) -> int | None:
    """Return the length of vectors that a client wants. Raises ClientError."""
    if value is not None and (type(value) is not int or value < 1):
        raise ClientError("The 'dimensions' field must be a whole number above 0.", param="dimensions")
    return value


def _encoding(name: object) -> Callable[[list[float]], list[float] | str]:
    if name in (None, "float"):
        return list
    if name == "base64":
        return as_base64
    raise ClientError("The 'encoding_format' field must be 'float' or 'base64'.", param="encoding_format")


def as_base64(vector: Sequence[float]) -> str:
    """Return little-endian 32-bit floats as base64, which OpenAI's packages request by default."""
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode("ascii")


def endpoint_for(model: object) -> str:
    """Return the endpoint that ``model`` names, ``NAME`` or ``USER:NAME``; for other names the user's first.

    Raises ClientError if the user's file names no endpoint for embeddings.
    """
    value = config_utils.user_setting("embeddingEndpointName")
    # The check accepts numbers for the strings in a list.
    names = [
        str(name).strip()
        for name in (value if isinstance(value, (list, tuple)) else (value,))
        if isinstance(name, (str, int, float)) and str(name).strip()
    ]
    if not names:
        raise ClientError(
            f"User '{config_utils.get_current_username()}' offers no embeddings: "
            "'embeddingEndpointName' in the user file names the endpoint that makes them.",
            404,
        )
    asked = str(model or "").removesuffix(api_helpers.LATEST)
    return next((name for name in (asked, asked.partition(":")[2]) if name in names), names[0])


# -- the call ------------------------------------------------------------------------------------------------------


def _embed(
    context: RequestContext, body: dict[str, object], texts: list[str], dimensions: int | None
) -> EmbeddingResult:
    """Return the vectors of ``texts``. A client that disconnects ends the call."""
    service = EmbeddingApiService(endpoint_for(body.get("model")))
    logger.info(
        "Request %s asks endpoint '%s' for embeddings of %d text(s)",
        context.request_id,
        service.endpoint_name,
        len(texts),
    )
    running_requests().watcher.watch(context, probe_for(http.environ))
    try:
        found = service.answer(texts, dimensions)
    finally:
        running_requests().answered(context)
    if found is None:
        raise ServerStoppingError if is_cut_off(context) else ClientError("The request was cancelled.")
    odd = next((len(vector) for vector in found.vectors if dimensions not in (None, len(vector))), None)
    if odd is not None:
        raise ClientError(
            f"The model of endpoint '{service.endpoint_name}' makes vectors of {odd} numbers, not of "
            f"{dimensions}; leave 'dimensions' out.",
            param="dimensions",
        )
    tokens = sum(map(rough_estimate_token_length, texts)) if found.tokens is None else found.tokens
    return EmbeddingResult(found.vectors, tokens, service.model_name or service.endpoint_name)
