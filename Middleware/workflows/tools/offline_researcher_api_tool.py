"""Queries the offline researcher service, and puts its answers into the text that a node outputs."""

from __future__ import annotations

import logging

from Middleware.exceptions import EarlyTerminationException
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.run_step import tool
from Middleware.services.service_http import INVALID_JSON, ServiceHttp, service_http
from Middleware.utilities import config_utils
from Middleware.utilities.config.keys.user import USER

logger = logging.getLogger(__name__)

DEFAULT_HOST = USER["offlineResearcherApiHost"].default

DISABLED = "offline_researcher_disabled"
NOTHING_FOUND = "No pertinent information was found in the search"


class OfflineResearcherApiClient:
    """The service as the current user's settings describe it, read again at each call."""

    def __init__(self, scope: CancelScope | None = None, http: ServiceHttp = service_http) -> None:
        self._scope = scope
        self._http = http

    def search(
        self, query: str, mode: str, *, timeout: float, max_iterations: int | None = None, include_sources: bool = False
    ) -> str:
        """Return the answer of the service to ``query``, or a text that explains why it is missing.

        ``timeout`` is the longest silence of the service in seconds. Raises EarlyTerminationException when the scope
        is cancelled, and nothing else.
        """
        try:
            found = self._ask(query, mode, timeout, max_iterations)
            if found.get("status") == "error":
                reason = found.get("reason") or "unknown"
                return f"I'm sorry, the offline researcher returned an error ({reason}) for '{query}'."
            return _answer(found, include_sources)
        except EarlyTerminationException:
            raise
        # An external service must not end the workflow.
        except Exception:
            logger.exception("The offline researcher could not be asked")
            return f"I'm sorry, the offline researcher could not be reached for '{query}'."

    def _ask(self, query: str, mode: str, timeout: float, max_iterations: int | None) -> dict[str, object]:
        """Return the service's answer, or an answer of the same shape that describes the failure."""
        if not config_utils.user_flag("useOfflineResearcherApi"):
            return {"status": "error", "reason": DISABLED}
        payload: dict[str, object] = {"query": query, "mode": mode}
        if max_iterations is not None:
            payload["max_iterations"] = max_iterations
        host = str(config_utils.user_setting("offlineResearcherApiHost") or "").strip() or DEFAULT_HOST
        port = config_utils.user_int("offlineResearcherApiPort")
        with tool("offline researcher", "encyclopedia", payload, **{"server.address": host}) as step:
            reply = self._http.post(host, port, "/search", payload, self._scope, timeout)
            step.attributes["http.status"], step.texts["result"] = reply.status, reply.value
        if reply.problem:
            return {"status": "error", "reason": reply.problem}
        if not isinstance(reply.value, dict):
            return {"status": "error", "reason": INVALID_JSON}
        return reply.value


def _answer(found: dict[str, object], include_sources: bool) -> str:
    answer = found.get("answer")
    if found.get("no_information_found") or not isinstance(answer, str) or not answer.strip():
        return NOTHING_FOUND
    lines = _source_lines(found.get("sources")) if include_sources else []
    return "\n".join([answer, "", "Sources:", *lines]) if lines else answer


def _source_lines(sources: object) -> list[str]:
    entries = [source for source in sources if isinstance(source, dict)] if isinstance(sources, list) else []
    named = ([str(source.get(key) or "").strip() for key in ("book", "title")] for source in entries)
    return [f"- {' :: '.join(filter(None, names))}" for names in named if any(names)]
