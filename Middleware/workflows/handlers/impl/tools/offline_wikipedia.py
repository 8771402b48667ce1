"""The offline Wikipedia nodes: articles that a local service finds for a prompt."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

from Middleware.exceptions import ConfigValueError
from Middleware.utilities.config.declarations import ConfigKey
from Middleware.workflows.handlers.base.base_workflow_node_handler import BaseHandler
from Middleware.workflows.models.execution_context import ExecutionContext
from Middleware.workflows.tools.offline_wikipedia_api_tool import OfflineWikiApiClient

PROMPT_TO_SEARCH = ConfigKey("promptToSearch", "str", None, "What to look for.", "full", required=True)
PERCENTILE = ConfigKey("percentile", "number", 0.5, "How well an article must fit, from 0 to 1.", "early",
                       least=0, most=1)

Question = Callable[[OfflineWikiApiClient, str, Callable[[str], Any]], str]
"""Asks the service about a prompt; the last argument gives the node's keys."""

QUESTIONS: Mapping[str, Question] = {
    "OfflineWikiApiPartialArticle": lambda client, prompt, key: client.get_wiki_summary_by_prompt(
        prompt, key("percentile"), key("num_results")),
    "OfflineWikiApiFullArticle": lambda client, prompt, key: client.get_full_wiki_article_by_prompt(prompt),
    "OfflineWikiApiBestFullArticle": lambda client, prompt, key: client.get_top_full_wiki_article_by_prompt(prompt),
    "OfflineWikiApiTopNFullArticles": lambda client, prompt, key: client.get_top_n_full_wiki_articles_by_prompt(
        prompt, key("percentile"), key("num_results"), key("top_n_articles")),
}


class OfflineWikipediaHandler(BaseHandler):
    """A text, whatever the service says."""
    # No node changes the articles, so that the order does not matter.
    acts = "reads"
    pure = True
    reaches_outside = True

    KEYS: ClassVar[Mapping[str, tuple[ConfigKey, ...]]] = {
        "OfflineWikiApiPartialArticle": (
            PROMPT_TO_SEARCH, PERCENTILE, ConfigKey("num_results", "int", 1, "How many summaries.", "early")),
        "OfflineWikiApiFullArticle": (PROMPT_TO_SEARCH,),
        "OfflineWikiApiBestFullArticle": (PROMPT_TO_SEARCH,),
        "OfflineWikiApiTopNFullArticles": (
            PROMPT_TO_SEARCH, PERCENTILE,
            ConfigKey("num_results", "int", 10, "How many articles the best are chosen from.", "early"),
            ConfigKey("top_n_articles", "int", 3, "How many articles; negative: the least fitting first.", "early")),
    }

    def handle(self, context: ExecutionContext) -> object:
        client = OfflineWikiApiClient(context.request.cancel_scope)
        return QUESTIONS[context.node_type](client, prompt_to_search(self, context), partial(self.value, context))


def prompt_to_search(handler: BaseHandler, context: ExecutionContext) -> str:
    """The node's ``promptToSearch`` with variables filled in. Raises ConfigValueError if the node has none."""
    if handler.value(context, "promptToSearch") in (None, ""):
        raise ConfigValueError(f"{context.node_type} node '{context.node_name}' needs a promptToSearch",
                               json_path="promptToSearch", expected="the text to look for")
    return handler.text(context, "promptToSearch")
