"""Embeddings: vectors for texts, by the name of an endpoint."""
from __future__ import annotations

from collections.abc import Mapping, Sequence

from Middleware.llmapis import api_types
from Middleware.llmapis.endpoint_file import EndpointFile
from Middleware.llmapis.handlers.base.base_embeddings_handler import BaseEmbeddingsHandler
from Middleware.llmapis.handlers.impl.ollama_embeddings_api_handler import OllamaEmbeddingsApiHandler
from Middleware.llmapis.handlers.impl.openai_embeddings_api_handler import OpenAiEmbeddingsApiHandler
from Middleware.llmapis.transport import Transport, get_transport
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.request_context import current_request

TYPES: Mapping[str, type[BaseEmbeddingsHandler]] = {
    api_types.OPENAI_EMBEDDINGS: OpenAiEmbeddingsApiHandler,
    api_types.OLLAMA_EMBEDDINGS: OllamaEmbeddingsApiHandler,
}


class EmbeddingApiService:
    """The embedding model behind one endpoint.

    The constructor reads the endpoint and its API type, so that a mistake in them is reported before anything is sent.
    Calls need no slot of the concurrency gate.

    Attributes:
        model_name: the endpoint's ``modelNameToSendToAPI``, under which vectors are stored; vectors of different
            models cannot be compared.

    Args:
        scope: cancel scope; None for that of the current request, if there is one.
    """

    def __init__(self, endpoint_name: str, *, scope: CancelScope | None = None,
                 transport: Transport | None = None) -> None:
        self.endpoint_name = endpoint_name
        file = EndpointFile.load(endpoint_name)
        handler = TYPES.get(file.type)
        if handler is None:
            raise file.mistake("this endpoint generates text and cannot make embeddings", "apiTypeConfigFileName",
                               f"an API type whose 'type' is {' or '.join(TYPES)}")
        self.model_name = api_types.model_name(file.config)
        if scope is None:
            request = current_request()
            scope = request.cancel_scope if request is not None else None
        transport = transport or get_transport()
        self._handler = transport.caller(handler(file.settings({}), transport, scope))

    def embed(self, texts: Sequence[str]) -> list[list[float]] | None:
        """Return the vectors of ``texts``, see ``BaseEmbeddingsHandler.embed``."""
        return self._handler.embed(texts)
