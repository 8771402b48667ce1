"""An OpenAI-compatible server of embeddings over the real model, on a free loopback port."""

from __future__ import annotations

from typing import TYPE_CHECKING

from Tests.backend_dialects import embed
from Tests.real.servers import API_KEY
from Tests.stub_backend import RecordedRequest, Reply, StubBackend, status_reply

if TYPE_CHECKING:
    from Tests.real.minilm import MiniLM

MODEL = "all-minilm-l6-v2"


class EmbeddingServer(StubBackend):
    """Answers ``POST /v1/embeddings`` of clients that know the key and the model's name, one at a time.

    Attributes:
        inputs: the texts of each request, in order.
    """

    def __init__(self, model: MiniLM) -> None:
        super().__init__()
        self.model = model
        self.inputs: list[list[str]] = []

    def respond(self, request: RecordedRequest) -> Reply:
        body = request.json
        if request.path != "/v1/embeddings":
            return status_reply(404, f"no such path: {request.path}")
        if request.headers.get("authorization") != f"Bearer {API_KEY}":
            return status_reply(401, "Incorrect API key provided")
        if body.get("model") != MODEL:
            return status_reply(404, f"The model '{body.get('model')}' does not exist")
        self.inputs.append([body["input"]] if isinstance(body["input"], str) else list(body["input"]))
        return embed(request, self.model.embed)
