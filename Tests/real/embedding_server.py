"""An OpenAI-compatible server of embeddings over the real model, on a free loopback port."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import TYPE_CHECKING, Any

from Tests.real.servers import API_KEY

if TYPE_CHECKING:
    from Tests.real.minilm import MiniLM

MODEL = "all-minilm-l6-v2"


class EmbeddingServer:
    """Answers ``POST /v1/embeddings`` of clients that know the key and the model's name.

    Attributes:
        inputs: the texts of each request, in order.
    """

    def __init__(self, model: MiniLM) -> None:
        self.model = model
        self.inputs: list[list[str]] = []
        self._turn = threading.Lock()  # the model uses all cores by itself
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"owner": self}))
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> EmbeddingServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, path: str, key: str, body: Any) -> tuple[int, dict[str, Any]]:
        """Status and JSON of the answer to a request."""
        if path != "/v1/embeddings":
            return 404, _error(f"no such path: {path}")
        if key != f"Bearer {API_KEY}":
            return 401, _error("Incorrect API key provided")
        if body.get("model") != MODEL:
            return 404, _error(f"The model '{body.get('model')}' does not exist")
        texts = [body["input"]] if isinstance(body["input"], str) else list(body["input"])
        with self._turn:
            self.inputs.append(texts)
            vectors = [self.model.embed(text) for text in texts]
        return 200, {
            "object": "list",
            "model": MODEL,
            "usage": {"prompt_tokens": 0, "total_tokens": 0},
            "data": [
                {"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(vectors)
            ],
        }


def _error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}}


class _Handler(BaseHTTPRequestHandler):
    owner: EmbeddingServer
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        status, answer = self.owner.answer(self.path, self.headers.get("Authorization", ""), body)
        data = json.dumps(answer).encode("utf-8")
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Tests have no use for a line per request."""
