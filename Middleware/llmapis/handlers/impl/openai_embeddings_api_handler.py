"""The OpenAI embeddings dialect, spoken by OpenAI, llama.cpp, vLLM, LiteLLM and many others."""
from __future__ import annotations

from collections.abc import Mapping

from Middleware.llmapis.handlers.base.base_embeddings_handler import BaseEmbeddingsHandler


class OpenAiEmbeddingsApiHandler(BaseEmbeddingsHandler):
    """Calls ``/v1/embeddings``; the answer's entries say which text they belong to and may come in any order."""

    PATH = "/v1/embeddings"

    def read_vectors(self, body: Mapping[str, object]) -> list[object]:
        entries = body.get("data")
        if not isinstance(entries, list):
            raise self.malformed("an object without a list 'data'")
        return [entry["embedding"] for entry in sorted(entries, key=self._index)]

    def _index(self, entry: object) -> int:
        if not isinstance(entry, Mapping) or "embedding" not in entry:
            raise self.malformed("an entry without 'embedding'")
        index = entry.get("index")
        if index is None:
            return 0
        if type(index) is not int:
            raise self.malformed("an entry whose 'index' is not a whole number")
        return index
