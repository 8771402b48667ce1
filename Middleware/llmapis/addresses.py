"""Where calls go: an endpoint's ``endpoint`` as people paste it, its ``apiPath``, and the path of a call.

Calls, embeddings, ``check``, ``init`` and the console compose addresses here and nowhere else. A *path* is that of a
call with the usual root of its API, such as ``/v1/chat/completions`` or ``/api/tags``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from Middleware.llmapis.api_types import CLAUDE_MESSAGES
from Middleware.utilities.config.keys.endpoint import ENDPOINT
from Middleware.utilities.once import MAX_REMEMBERED, BoundedCache

API_PATH = ENDPOINT.lookup("apiPath")
# Statuses of a server that does not have the path.
NO_SUCH_PATH = (404, 405)
CLAUDE_VERSION = "2023-06-01"
MODELS, OLLAMA_MODELS = "/v1/models", "/api/tags"
# The paths of KoboldCpp's own API, which has no root that a base could end in.
_KOBOLD = ("/api/v1/", "/api/extra/")
KOBOLD_GENERATE, KOBOLD_STREAM = "/api/v1/generate", "/api/extra/generate/stream"
# Ends of addresses that name one call. The search finds the first position, so the longest end.
_CALL = re.compile(
    r"/(?:api/extra(?:/[^/]+)*|api/v1/(?:generate|model)|api/(?:chat|generate|tags|version|embed|show|ps)"
    r"|chat/completions|completions|messages|responses|embeddings|models)$"
)
_VERSION = r"/v\d+(?:(?:alpha|beta)\d*)?"
# A path that already says which version of the API it is, or which model.
_OWN = re.compile(rf"{_VERSION}(?:/(?:[^/]+/)*openai)?$|/deployments/")
_AZURE = re.compile(r"[?&]api-version=|/deployments/", re.IGNORECASE)


class Address(NamedTuple):
    """What was made of a base.

    Attributes:
        url: the address of the call.
        other: the address to try if the server does not have the first one; "" if the base leaves no doubt.
        cut: the path of another call that was at the end of the base; "" without one.
        path: the path of the base, without that.
    """

    url: str
    other: str = ""
    cut: str = ""
    path: str = ""

    @property
    def urls(self) -> tuple[str, ...]:
        return (self.url, self.other) if self.other else (self.url,)


# Every call composes the address of one of a few endpoints.
@lru_cache(maxsize=256)
def compose(base: str, path: str, api_path: str | None = None) -> Address:
    """Return where the call of ``path`` goes. ``api_path``: the endpoint's key; None without one."""
    server, own, query = _parts(base)
    root = "" if path.startswith(_KOBOLD) else "/" + path.split("/", 2)[1]
    method = path.removeprefix(root)
    if api_path is not None:
        between = api_path.strip().strip("/")
        return Address(f"{server}{own}{f'/{between}' if between else ''}{method}{query}", path=own)
    found = _CALL.search(own)
    end, cut = found[0] if found else "", ""
    if end in (path, method) or {end, path} <= {KOBOLD_GENERATE, KOBOLD_STREAM}:
        own = own.removesuffix(end) + (end if end in (path, method) else path)
        return Address(f"{server}{own}{query}", path=own)
    if end:
        own, cut = own.removesuffix(end).rstrip("/"), end
    if path.startswith("/api/"):
        # The other API of these servers.
        own = own.removesuffix("/v1")
    if not root:
        own = own.removesuffix("/api")
    decided = not root or own.endswith(root) or _OWN.search(own)
    url = f"{server}{own}{'' if decided else root}{method}{query}"
    return Address(url, "" if decided else f"{server}{own}{method}{query}", cut, own)


def api_path_of(endpoint: Mapping[str, object]) -> str | None:
    """Return ``apiPath`` of an endpoint file; None without one."""
    found = endpoint.get(*API_PATH)
    return found if isinstance(found, str) else None


def _parts(base: str) -> tuple[str, str, str]:
    """Return scheme and host, the path without a slash at its end, and the query with its question mark."""
    address, mark, query = base.partition("#")[0].partition("?")
    scheme, separator, rest = address.strip().partition("://")
    host, slash, path = rest.partition("/")
    return scheme + separator + host, (slash + path).rstrip("/"), mark + query.strip()


@lru_cache(maxsize=256)
def key_headers(base: str, api_path: str | None, key: str, kind: str = "") -> Mapping[str, str]:
    """Return the headers that depend on the key of an endpoint, and on its address. ``kind``: its API type."""
    is_claude = kind == CLAUDE_MESSAGES
    headers = {"anthropic-version": CLAUDE_VERSION} if is_claude else {}
    if key:
        headers.update({"x-api-key": key} if is_claude else {"Authorization": f"Bearer {key}"})
        if _AZURE.search(f"{base.partition('#')[0]}{api_path or ''}/"):
            headers["api-key"] = key
    return headers


def listed_models(content: object) -> list[Mapping[str, object]]:
    """Return the entries of a list of models: ``{data: [...]}``, ``{models: [...]}``, or the bare list."""
    if isinstance(content, Mapping):
        content = next((content[key] for key in ("data", "models") if isinstance(content.get(key), list)), None)
    return [entry for entry in content if isinstance(entry, Mapping)] if isinstance(content, list) else []


# -- which of two forms a server has -----------------------------------------------------------------------------------


def answering_forms() -> BoundedCache[str, str]:
    """Return the first form of addresses with the form that has answered in this process."""
    return BoundedCache(MAX_REMEMBERED)


def speaks_of_a_model(text: str, *urls: str) -> bool:
    """Return whether an error body is about a model, so that the path exists; quoted ``urls`` do not make it so."""
    for url in urls:
        server, path, _ = _parts(url)
        for quoted in (path, server.partition("://")[2]):
            text = text.replace(quoted, "") if quoted else text
    return "model" in text.casefold()
