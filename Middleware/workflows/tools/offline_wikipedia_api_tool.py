"""Queries the offline Wikipedia service, and puts its answers into the texts that nodes output."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from Middleware.models.cancel_scope import CancelScope
from Middleware.models.run_step import tool
from Middleware.services.service_http import ServiceHttp, service_http
from Middleware.utilities import config_utils
from Middleware.utilities.config.keys.user import USER

logger = logging.getLogger(__name__)

DEFAULT_HOST = USER["offlineWikiApiHost"].default

DISABLED = "No additional information provided"
NO_TEXT = "No text element found"
_OFFLINE = "The information may not be available in the offline database."


class OfflineWikiApiClient:
    """The service as the current user's settings describe it, read again at each call.

    Every method returns a text, even if there is no service, no article, or an answer that cannot be read. A
    cancelled ``scope`` raises EarlyTerminationException.
    """

    def __init__(self, scope: CancelScope | None = None, http: ServiceHttp = service_http) -> None:
        self._scope = scope
        self._http = http

    def get_wiki_summary_by_prompt(self, prompt: str, percentile: float = 0.5, num_results: int = 1) -> str:
        """Return title and beginning of the best articles."""
        return self._ask(
            "/summaries",
            prompt,
            percentile,
            num_results,
            on_success=lambda found: (
                _titled(found, "Untitled Summary", "\n\n--- END SUMMARY ---\n\n") or f"No summary found for '{prompt}'."
            ),
            not_found=f"Title: Not Found\nNo summaries found for '{prompt}'. {_OFFLINE}",
            disabled=f"Title: Offline Wiki Disabled\n{DISABLED}",
        )

    def get_full_wiki_article_by_prompt(self, prompt: str, percentile: float = 0.5, num_results: int = 1) -> str:
        """Return the text of the first article found."""
        return self._ask(
            "/articles",
            prompt,
            percentile,
            num_results,
            on_success=lambda found: next(
                (_text(article, NO_TEXT) for article in _items(found)), f"No article found for '{prompt}'."
            ),
            not_found=f"No articles found for '{prompt}'. {_OFFLINE}",
        )

    def get_top_full_wiki_article_by_prompt(self, prompt: str, percentile: float = 0.5, num_results: int = 10) -> str:
        """Return the text of the best of the articles found."""
        return self._ask(
            "/top_article",
            prompt,
            percentile,
            num_results,
            on_success=lambda found: _text(found, NO_TEXT),
            not_found=f"No article found for '{prompt}'. {_OFFLINE}",
        )

    def get_top_n_full_wiki_articles_by_prompt(
        self, prompt: str, percentile: float = 0.5, num_results: int = 10, top_n_articles: int = 3
    ) -> str:
        """Return titles and texts of the best articles found; for a negative number, of the worst."""
        return self._ask(
            "/top_n_articles",
            prompt,
            percentile,
            num_results,
            on_success=lambda found: (
                _titled(found, "Untitled Article", "\n\n--- END ARTICLE ---\n\n")
                or f"No articles found for '{prompt}' in the offline database."
            ),
            not_found=f"No articles found for '{prompt}'. {_OFFLINE}",
            more={"num_top_articles": top_n_articles},
        )

    def _ask(
        self,
        path: str,
        prompt: str,
        percentile: float,
        num_results: int,
        *,
        on_success: Callable[[Any], str],
        not_found: str,
        disabled: str = DISABLED,
        more: dict[str, int] | None = None,
    ) -> str:
        if not config_utils.user_flag("useOfflineWikiApi"):
            return disabled
        parameters = {"prompt": prompt, "percentile": percentile, "num_results": num_results, **(more or {})}
        host = str(config_utils.user_setting("offlineWikiApiHost") or "").strip() or DEFAULT_HOST
        port = config_utils.user_int("offlineWikiApiPort")
        with tool("offline Wikipedia", "encyclopedia", parameters, **{"server.address": host}) as step:
            reply = self._http.get(host, port, path, parameters, self._scope)
            step.attributes["http.status"], step.texts["result"] = reply.status, reply.value
        if reply.status == 404:
            return not_found
        if not reply.problem:
            try:
                return on_success(reply.value)
            # The service answered with data of another shape.
            except TypeError as error:
                logger.warning("The offline Wikipedia service answered with something other than articles: %s", error)
        return f"I'm sorry, I couldn't find any Wikipedia information about '{prompt}'."


def _titled(found: object, untitled: str, separator: str) -> str:
    return separator.join(
        f"Title: {_field(article, 'title', untitled)}\n{_text(article, 'No text available.')}"
        for article in _items(found)
    )


def _items(found: object) -> list[object]:
    if not isinstance(found, list):
        raise TypeError(f"{type(found).__name__} instead of a list")
    return found


def _text(article: object, default: str) -> str:
    return _field(article, "text", default)


def _field(article: object, name: str, default: str) -> str:
    if not isinstance(article, dict):
        raise TypeError(f"{type(article).__name__} instead of an article")
    value = article.get(name)
    return value if isinstance(value, str) else default
