"""The composition of addresses, from every shape of base that people paste."""

from __future__ import annotations

from Middleware.llmapis.addresses import compose, key_headers, speaks_of_a_model
from Tests.tables import table

CHAT, TEXT, CLAUDE, EMBED = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/embeddings"
OLLAMA, OLLAMA_TEXT, OLLAMA_EMBED = "/api/chat", "/api/generate", "/api/embed"
KOBOLD, KOBOLD_STREAM = "/api/v1/generate", "/api/extra/generate/stream"
H = "https://host"

# (base, path, the paths to ask in turn)
DECIDED = [
    # the root
    (f"{H}/v1", CHAT, "/v1/chat/completions"),
    (f"{H}/v1/", CLAUDE, "/v1/messages"),
    (f"{H}/x/v1", TEXT, "/x/v1/completions"),
    (f"{H}/openai/v1", EMBED, "/openai/v1/embeddings"),
    (f"{H}/api", OLLAMA, "/api/chat"),
    (f"{H}/x/api//", OLLAMA_EMBED, "/x/api/embed"),
    # the call itself
    (f"{H}/v1/chat/completions", CHAT, "/v1/chat/completions"),
    (f"{H}/chat/completions/", CHAT, "/chat/completions"),
    (f"{H}/inference/chat/completions", CHAT, "/inference/chat/completions"),
    (f"{H}/completions", TEXT, "/completions"),
    (f"{H}/x/messages", CLAUDE, "/x/messages"),
    (f"{H}/x/embeddings", EMBED, "/x/embeddings"),
    (f"{H}/api/chat", OLLAMA, "/api/chat"),
    (f"{H}/proxy/api/generate", OLLAMA_TEXT, "/proxy/api/generate"),
    (f"{H}/api/embed", OLLAMA_EMBED, "/api/embed"),
    # another call is cut off
    (f"{H}/v1/chat/completions", TEXT, "/v1/completions"),
    (f"{H}/v1/completions", CHAT, "/v1/chat/completions"),
    (f"{H}/v1/messages", CHAT, "/v1/chat/completions"),
    (f"{H}/v1/responses/", CHAT, "/v1/chat/completions"),
    (f"{H}/v1/models", EMBED, "/v1/embeddings"),
    (f"{H}/api/v3/models", CHAT, "/api/v3/chat/completions"),
    (f"{H}/v1beta/openai/embeddings", CHAT, "/v1beta/openai/chat/completions"),
    (f"{H}/api/embeddings", OLLAMA_EMBED, "/api/embed"),
    # the other API of Ollama and KoboldCpp
    (f"{H}/api/v1", OLLAMA, "/api/chat"),
    # KoboldCpp
    (H, KOBOLD, "/api/v1/generate"),
    (f"{H}/", KOBOLD_STREAM, "/api/extra/generate/stream"),
    (f"{H}/api", KOBOLD, "/api/v1/generate"),
    (f"{H}/api/v1", KOBOLD, "/api/v1/generate"),
    (f"{H}/v1", KOBOLD_STREAM, "/api/extra/generate/stream"),
    (f"{H}/x", KOBOLD, "/x/api/v1/generate"),
    (f"{H}/x/api/v1/generate", KOBOLD_STREAM, "/x/api/extra/generate/stream"),
    (f"{H}/api/extra/generate/stream/", KOBOLD, "/api/v1/generate"),
    (f"{H}/api/v1/generate", KOBOLD, "/api/v1/generate"),
    (f"{H}/v1/chat/completions", KOBOLD, "/api/v1/generate"),
    (f"{H}/api/extra/version", KOBOLD, "/api/v1/generate"),
    # own paths
    (f"{H}/api/paas/v4", CHAT, "/api/paas/v4/chat/completions"),
    (f"{H}/api/v3/", EMBED, "/api/v3/embeddings"),
    (f"{H}/v1beta", CHAT, "/v1beta/chat/completions"),
    (f"{H}/v2alpha1", CLAUDE, "/v2alpha1/messages"),
    (f"{H}/v1beta/openai/", CHAT, "/v1beta/openai/chat/completions"),
    (f"{H}/v1/openai", CHAT, "/v1/openai/chat/completions"),
    (f"{H}/v1/account/gateway/openai", CHAT, "/v1/account/gateway/openai/chat/completions"),
    (f"{H}/openai/deployments/gpt-x", CHAT, "/openai/deployments/gpt-x/chat/completions"),
]
OPEN = [
    (H, CHAT, ""),
    (f" {H}/ ", CLAUDE, ""),
    (H, OLLAMA, ""),
    (f"{H}/v1", OLLAMA, ""),
    (f"{H}/v1/chat/completions", OLLAMA, ""),
    (f"{H}/api/chat", CHAT, ""),
    (f"{H}/api/tags", OLLAMA, ""),
    (f"{H}/x/api/chat", OLLAMA_TEXT, "/x"),
    (f"{H}/api", CHAT, "/api"),
    (f"{H}/inference", CHAT, "/inference"),
    (f"{H}/llm/gateway//", EMBED, "/llm/gateway"),
    (f"{H}/openai", CHAT, "/openai"),
    (f"{H}/V2", CHAT, "/V2"),
    (f"{H}/v1x", CHAT, "/v1x"),
    (f"{H}/version2", CHAT, "/version2"),
    (f"{H}/v1/other", CHAT, "/v1/other"),
    (f"{H}/mychat/completionsx", CHAT, "/mychat/completionsx"),
    ("http://models", CHAT, ""),
    ("http://completions:8080/", TEXT, ""),
    (f"{H}/inference/models", CHAT, "/inference"),
    ("http://h?a=b?c", CHAT, ""),
    ("http://h:1//", CHAT, ""),
]


def _server(base: str) -> str:
    return "/".join(base.strip().partition("?")[0].split("/")[:3])


@table("base, path, found", DECIDED)
def test_a_base_that_leaves_no_doubt(base: str, path: str, found: str) -> None:
    for decorated, query in ((base, ""), (f"  {base}?a=/v1&b=2 ", "?a=/v1&b=2"), (f"{base}#/v1", "")):
        assert compose(decorated, path).urls == (f"{_server(base)}{found}{query}",)
    assert compose(f"{base} ?a=1#x?y", path).urls == (f"{_server(base)}{found}?a=1",)


@table("base, path, found", OPEN)
def test_a_base_that_leaves_two_forms(base: str, path: str, found: str) -> None:
    root = "/api" if path.startswith("/api") else "/v1"
    usual, other = f"{_server(base)}{found}{path}", f"{_server(base)}{found}{path.removeprefix(root)}"
    query = base.strip().partition("?")[1] + base.strip().partition("?")[2]
    assert compose(base, path).urls == (usual + query, other + query)
    base = base.partition("?")[0]
    assert compose(f"{base.strip()}?key=a/b?c", path).urls == (f"{usual}?key=a/b?c", f"{other}?key=a/b?c")


@table(
    "base, api_path, path, url",
    [
        (H, "/v9", CHAT, f"{H}/v9/chat/completions"),
        (H, "v9/", CHAT, f"{H}/v9/chat/completions"),
        (f"{H}/", "", CHAT, f"{H}/chat/completions"),
        (f"{H}/", " / ", OLLAMA, f"{H}/chat"),
        (f"{H}/v1", "", CLAUDE, f"{H}/v1/messages"),
        (f"{H}/v1", "/v1", CHAT, f"{H}/v1/v1/chat/completions"),
        (f"{H}/models", "", CHAT, f"{H}/models/chat/completions"),
        (f"{H}/x?v=1#y", "/a/b", EMBED, f"{H}/x/a/b/embeddings?v=1"),
        (f"{H}/chat/completions", "", CHAT, f"{H}/chat/completions/chat/completions"),
        (f"{H}/k", "", KOBOLD, f"{H}/k/api/v1/generate"),
    ],
)
def test_api_path_replaces_every_rule(base: str, api_path: str, path: str, url: str) -> None:
    assert compose(base, path, api_path).urls == (url,)


@table(
    "base, api_path, azure",
    [
        (f"{H}/openai/deployments/gpt-x", None, True),
        (f"{H}/openai/v1?api-version=preview", None, True),
        (f"{H}/openai/v1?x=1&API-Version=preview", None, True),
        (H, "/openai/deployments/gpt-x", True),
        (f"{H}/deployments", None, True),
        (f"{H}/openai/v1", None, False),
        (f"{H}/mydeployments/x", None, False),
        (f"{H}/v1?my-api-version=2", None, False),
        (f"{H}/v1#/deployments/x", None, False),
    ],
)
def test_the_key_of_azure(base: str, api_path: str | None, azure: bool) -> None:
    more = {"api-key": "k"} if azure else {}
    assert key_headers(base, api_path, "k") == {"Authorization": "Bearer k", **more}
    claude = {"anthropic-version": "2023-06-01"}
    assert key_headers(base, api_path, "k", "claudeMessages") == {**claude, "x-api-key": "k", **more}
    assert (key_headers(base, api_path, ""), key_headers(base, api_path, "", "claudeMessages")) == ({}, claude)


@table(
    "text, speaks",
    [
        ("model 'x' not found", True),
        ('{"error": {"message": "does not exist", "code": "model_not_found"}}', True),
        ("The requested MODEL is gone", True),
        ("Not Found", False),
        ("", False),
        ("Cannot POST /models/x/v1/chat/completions", False),
        ("nothing at models.example.org", False),
    ],
)
def test_whether_an_error_is_about_a_model(text: str, speaks: bool) -> None:
    assert speaks_of_a_model(text, "https://models.example.org/models/x/v1/chat/completions?a=1") is speaks
