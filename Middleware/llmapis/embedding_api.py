"""Embeddings: vectors for texts, by the name of an endpoint."""

from __future__ import annotations

import json
import logging
import math
from abc import ABC, abstractmethod
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from Middleware.exceptions import BackendResponseError, EarlyTerminationException
from Middleware.llmapis import api_types
from Middleware.llmapis.addresses import compose
from Middleware.llmapis.backend_errors import secrets_of, short_body
from Middleware.llmapis.call_turns import turn_for_embeddings
from Middleware.llmapis.call_watch import embedding_watch
from Middleware.llmapis.endpoint_file import EndpointFile, mistake
from Middleware.llmapis.handlers.base.answer_forms import usage_of
from Middleware.llmapis.handlers.base.backend_call import BackendSettings, bearer_headers
from Middleware.llmapis.transport import BackendRequest, Transport, get_transport
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.llm_call import LlmOutcome
from Middleware.models.messages import token_count
from Middleware.models.request_context import current_outside, current_request
from Middleware.utilities.http.wire import parse_target
from Middleware.utilities.text_utils import restore_braces

logger = logging.getLogger(__name__)

# Embedding a batch takes seconds even on a slow computer.
READ_TIMEOUT = 120.0


class Embeddings(NamedTuple):
    """One vector for each text, in order, and the number of their tokens; None if the back-end does not say."""

    vectors: list[list[float]]
    tokens: int | None = None


class EmbeddingsHandler(ABC):
    """Turns texts into vectors. Subclasses set ``PATH`` and find the vectors in an answer."""

    PATH = ""

    def __init__(self, settings: BackendSettings, transport: Transport, scope: CancelScope | None = None) -> None:
        self.settings = settings
        self._transport = transport
        self._scope = scope

    @abstractmethod
    def read_vectors(self, body: Mapping[str, object]) -> list[object]:
        """Return the vectors of an answer in the order of the texts, unvalidated; raises the error of ``malformed``."""

    @abstractmethod
    def read_tokens(self, body: Mapping[str, object]) -> int | None:
        """Return the number of tokens of the texts; None if the answer does not contain it."""

    def embed(self, texts: Sequence[str], dimensions: int | None = None) -> Embeddings | None:
        """Return the vectors of ``texts``; of none without a request; None for a cancelled call.

        ``dimensions``: the length of the vectors that the back-end is asked for, which not all of them heed. There are
        no retries. Raises BackendError; for an answer without one vector of numbers for each text it is
        BackendResponseError, which is a ValueError.
        """
        if not texts:
            return Embeddings([])
        outcome = LlmOutcome(endpoint_name=self.settings.endpoint_name)
        request = replace(self.request(texts, dimensions), watch=embedding_watch(self.settings, outcome))
        try:
            body = self._transport.post_json(request, self._scope)
        # The request was cancelled before or during the call.
        except EarlyTerminationException:
            return None
        found = self._read(body, request, len(texts))
        outcome.usage = usage_of(found.tokens, None)
        return found

    def request(self, texts: Sequence[str], dimensions: int | None = None) -> BackendRequest:
        settings = self.settings
        payload: dict[str, object] = {"input": [restore_braces(text) for text in texts]}
        if settings.model is not None:
            payload["model"] = settings.model
        if dimensions is not None:
            payload["dimensions"] = dimensions
        logger.debug("Endpoint '%s': embedding %d text(s)", settings.endpoint_name, len(texts))
        address = compose(settings.base_url, self.PATH, settings.api_path)
        return BackendRequest(
            settings.endpoint_name,
            address.url,
            payload,
            bearer_headers(settings),
            settings.connect_timeout,
            READ_TIMEOUT,
            single_attempt=True,
            other_url=address.other,
            file=settings.file,
        )

    def malformed(self, problem: str) -> BackendResponseError:
        """Return an error about the answer, without any of its content."""
        name = self.settings.endpoint_name
        return BackendResponseError(f"endpoint '{name}' answered a call for embeddings with {problem}", endpoint=name)

    # -- the answer ----------------------------------------------------------------------------------------------
    def _read(self, body: object, request: BackendRequest, count: int) -> Embeddings:
        if not isinstance(body, Mapping):
            raise self.malformed("something that is not a JSON object")
        if body.get("error"):
            raise self._error(body, request)
        vectors = self.read_vectors(body)
        if len(vectors) != count:
            raise self.malformed(f"{len(vectors)} vector(s) for {count} text(s)")
        return Embeddings([self._numbers(vector) for vector in vectors], self.read_tokens(body))

    def _error(self, body: Mapping[str, object], request: BackendRequest) -> BackendResponseError:
        """Return the error for an error object with a success status, without the key that some servers repeat."""
        shown = json.dumps({"error": body["error"], "message": body.get("message")}).encode()
        said = short_body(shown, secrets_of(request.headers, parse_target(request.url)))
        error = self.malformed(f"an error: {said}")
        error.body = said
        return error

    def _numbers(self, vector: object) -> list[float]:
        if not isinstance(vector, list):
            raise self.malformed("a vector that is not a list of numbers")
        if not vector:
            raise self.malformed("an empty vector")
        # ``bool`` is a subclass of ``int``, so the types are compared exactly.
        if not all(type(number) is float or type(number) is int for number in vector):
            raise self.malformed("a vector that holds something else than numbers")
        try:
            numbers = [float(number) for number in vector]
        except OverflowError:
            numbers = [math.inf]
        # The vectors are stored as 32-bit numbers, which overflow earlier.
        if not all(map(math.isfinite, array("f", numbers))):
            raise self.malformed("a vector that holds numbers without a finite value")
        return numbers


class OpenAiEmbeddings(EmbeddingsHandler):
    """Calls ``/v1/embeddings``; the answer's entries say which text they belong to and may come in any order."""

    PATH = "/v1/embeddings"

    def read_vectors(self, body: Mapping[str, object]) -> list[object]:
        entries = body.get("data")
        if not isinstance(entries, list):
            raise self.malformed("an object without a list 'data'")
        return [entry["embedding"] for entry in sorted(entries, key=self._index)]

    def read_tokens(self, body: Mapping[str, object]) -> int | None:
        usage = body.get("usage")
        return token_count(usage.get("prompt_tokens")) if isinstance(usage, Mapping) else None

    def _index(self, entry: object) -> int:
        if not isinstance(entry, Mapping) or "embedding" not in entry:
            raise self.malformed("an entry without 'embedding'")
        index = entry.get("index")
        if index is None:
            return 0
        if type(index) is not int:
            raise self.malformed("an entry whose 'index' is not a whole number")
        return index


class OllamaEmbeddings(EmbeddingsHandler):
    """Calls ``/api/embed``, which answers in the order of the texts."""

    PATH = "/api/embed"

    def read_vectors(self, body: Mapping[str, object]) -> list[object]:
        vectors = body.get("embeddings")
        if not isinstance(vectors, list):
            raise self.malformed("an object without a list 'embeddings'")
        return vectors

    def read_tokens(self, body: Mapping[str, object]) -> int | None:
        return token_count(body.get("prompt_eval_count"))


TYPES: Mapping[str, type[EmbeddingsHandler]] = {
    api_types.OPENAI_EMBEDDINGS: OpenAiEmbeddings,
    api_types.OLLAMA_EMBEDDINGS: OllamaEmbeddings,
}


class EmbeddingApiService:
    """The embedding model behind one endpoint.

    The constructor reads the endpoint and its API type, so that a mistake in them is reported before anything is sent.
    Calls need no slot of the concurrency gate, and wait for a place on their server if its ``parallelCalls`` are known.

    Attributes:
        model_name: the endpoint's ``modelNameToSendToAPI``, under which vectors are stored; vectors of different
            models cannot be compared.

    Args:
        scope: cancel scope; None for that of the current request, if there is one.
    """

    def __init__(self, endpoint_name: str, *, scope: CancelScope | None = None) -> None:
        self.endpoint_name = endpoint_name
        file = EndpointFile.load(endpoint_name)
        handler = TYPES.get(file.type)
        if handler is None:
            raise mistake(
                endpoint_name,
                "this endpoint generates text and cannot make embeddings",
                "apiTypeConfigFileName",
                f"an API type whose 'type' is {' or '.join(TYPES)}",
            )
        self.model_name = api_types.model_name(file.config)
        if scope is None:
            request = current_request()
            scope = request.cancel_scope if request is not None else None
        self._scope, self._config = scope, file.config
        self._handler_type, self._settings = handler, file.settings({})

    def embed(self, texts: Sequence[str]) -> list[list[float]] | None:
        """Return only the vectors of ``answer``."""
        found = self.answer(texts)
        return None if found is None else found.vectors

    def answer(self, texts: Sequence[str], dimensions: int | None = None) -> Embeddings | None:
        """Return vectors and token count, see ``EmbeddingsHandler.embed``."""
        turn = turn_for_embeddings(self.endpoint_name, self._config, self._scope) if texts else None
        if turn is None:
            return self._answer(texts, dimensions, self._scope)
        try:
            return turn.run(partial(self._answer, texts, dimensions))
        # The request was cancelled while the call waited.
        except EarlyTerminationException:
            return None

    def _answer(self, texts: Sequence[str], dimensions: int | None, scope: CancelScope | None) -> Embeddings | None:
        handler = self._handler_type(self._settings, get_transport(), scope)
        return current_outside().caller(handler).embed(texts, dimensions)
