"""Ollama's own embeddings dialect."""
from __future__ import annotations

from collections.abc import Mapping

from Middleware.llmapis.handlers.base.base_embeddings_handler import BaseEmbeddingsHandler


class OllamaEmbeddingsApiHandler(BaseEmbeddingsHandler):
    """Calls ``/api/embed``, which answers in the order of the texts."""

    PATH = "/api/embed"

    def read_vectors(self, body: Mapping[str, object]) -> list[object]:
        vectors = body.get("embeddings")
        if not isinstance(vectors, list):
            raise self.malformed("an object without a list 'embeddings'")
        return vectors
