"""Servers of the table in ``Docs/User/connecting-backends.md``, with the paths and the errors that they document.

Each answers calls at its own paths, to those who have the key in the header that it wants, and says elsewhere what the
real one says about a path that it does not have.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from Tests.backend_dialects import Answer, OpenAiChat
from Tests.stub_backend import RecordedRequest, Reply, json_reply

KEY = "sk-the-key-of-the-user"
PAGE = "<!DOCTYPE html><html><head><title>{title}</title></head><body><p>{text}</p><a>Models</a></body></html>"


@dataclass(frozen=True)
class NamedServer:
    """A server.

    Attributes:
        name: its name in the table.
        served: paths of chat completions; a query does not count.
        elsewhere: the body of the answer at other paths: JSON, or text. ``{path}`` stands for the path.
        also: other spellings that users paste, each with the number of requests that the first call needs.
        key_header: where it looks for the key; "" for a server on the same computer.
    """

    name: str
    served: Sequence[str]
    elsewhere: object
    also: Sequence[tuple[str, int]]
    status: int = 404
    key_header: str = "authorization"

    def respond(self, request: RecordedRequest) -> Reply:
        path = request.path.partition("?")[0]
        if path not in self.served:
            return self._missing(path)
        wanted = f"Bearer {KEY}" if self.key_header == "authorization" else KEY
        if self.key_header and request.headers.get(self.key_header) != wanted:
            return json_reply({"error": {"message": "Access denied due to a missing key"}}, 401)
        return OpenAiChat().reply(Answer(tokens=("Good", " day")), bool(request.json.get("stream")))

    def _missing(self, path: str) -> Reply:
        if isinstance(self.elsewhere, str):
            body = self.elsewhere.replace("{path}", path)
            kind = "text/html" if body.startswith("<") else "text/plain"
            return Reply(self.status, body.encode(), {"Content-Type": kind})
        return json_reply(json.loads(json.dumps(self.elsewhere).replace("{path}", path)), self.status)


CHAT, V1 = "/chat/completions", "/v1/chat/completions"
NOT_FOUND = {"detail": "Not Found"}
GO = "404 page not found"
SPRING = {"timestamp": "2026-06-23T16:25:06.732+00:00", "status": 404, "error": "Not Found", "path": "{path}"}
AZURE = {"error": {"code": "404", "message": "Resource not found"}}

SERVERS = (
    NamedServer("DeepSeek", (CHAT, V1), "", [("", 1), ("/", 1), (CHAT, 1), (V1, 1), ("/v1/models", 1)]),
    NamedServer(
        "Kimi (Moonshot AI)",
        (V1,),
        {
            "code": 5,
            "error": "url.not_found",
            "message": "not found",
            "method": "POST",
            "scode": "0x5",
            "url": "{path}",
        },
        [("", 1), ("/v1/", 1), (V1, 1)],
    ),
    NamedServer(
        "Mistral",
        (V1,),
        {"message": "no Route matched with those values", "request_id": "4e66bb7f"},
        [("", 1), (V1, 1), ("/v1/models", 1), ("/v1/embeddings", 1)],
    ),
    NamedServer(
        "Gemini",
        ("/v1beta/openai/chat/completions",),
        PAGE.format(title="Error 404 (Not Found)!!1", text="The requested URL {path} was not found on this server."),
        [("/v1beta/openai/", 1), ("/v1beta/openai/chat/completions", 1), ("/v1beta/openai/models", 1)],
    ),
    NamedServer(
        "Groq",
        ("/openai/v1/chat/completions",),
        {
            "error": {
                "message": "Unknown request URL: POST {path}. Please check the URL for typos, or see the docs",
                "type": "invalid_request_error",
                "code": "unknown_url",
            }
        },
        [("/openai", 1), ("/openai/v1/", 1), ("/openai/v1/chat/completions", 1)],
    ),
    NamedServer("xAI", (V1,), "The requested resource was not found.", [("", 1), ("/v1/", 1), (V1, 1)]),
    NamedServer(
        "OpenRouter",
        ("/api/v1/chat/completions",),
        PAGE.format(title="Not Found | OpenRouter", text="Browse models"),
        [("/api", 1), ("/api/v1/", 1), ("/api/v1/chat/completions", 1)],
    ),
    NamedServer(
        "Z.AI",
        ("/api/paas/v4/chat/completions", "/api/coding/paas/v4/chat/completions"),
        SPRING,
        [("/api/paas/v4/", 1), ("/api/paas/v4/chat/completions", 1)],
    ),
    NamedServer(
        "Z.AI, coding plan",
        ("/api/paas/v4/chat/completions", "/api/coding/paas/v4/chat/completions"),
        SPRING,
        [("/api/coding/paas/v4/", 1), ("/api/coding/paas/v4/chat/completions", 1)],
    ),
    NamedServer(
        "GitHub Models",
        ("/inference/chat/completions", "/orgs/octo/inference/chat/completions"),
        GO,
        [("/inference", 2), ("/inference/", 2), ("/orgs/octo/inference", 2)],
    ),
    NamedServer(
        "Azure OpenAI",
        ("/openai/v1/chat/completions",),
        AZURE,
        [("/openai", 1), ("/openai/v1/?api-version=preview", 1)],
    ),
    NamedServer(
        "Azure OpenAI, a deployment",
        ("/openai/deployments/DEPLOYMENT/chat/completions",),
        AZURE,
        [("/openai/deployments/DEPLOYMENT/chat/completions?api-version=2024-10-21", 1)],
        key_header="api-key",
    ),
    NamedServer("Perplexity", (CHAT,), "", [("", 2), ("/", 2)]),
    NamedServer(
        "Together",
        (V1,),
        {"error": {"message": "Invalid URL (POST {path})", "type": "invalid_request_error"}},
        [("", 1), ("/v1/", 1), (V1, 1)],
    ),
    # It says so with a success.
    NamedServer(
        "LM Studio",
        (V1,),
        {"error": "Unexpected endpoint or method. (POST {path})"},
        [("", 1), ("/v1/", 1), (V1, 1), ("/v1/models", 1)],
        status=200,
        key_header="",
    ),
    NamedServer("llama-swap", (V1,), GO, [("", 1), (V1, 1)], key_header=""),
    NamedServer("Olla", ("/olla/openai/v1/chat/completions",), GO, [("/olla/openai", 1)], key_header=""),
    NamedServer("TabbyAPI", (V1,), NOT_FOUND, [("", 1), (V1, 1)]),
    NamedServer("vLLM", (V1,), NOT_FOUND, [("", 1), ("/v1/", 1), (V1, 1)], key_header=""),
)
