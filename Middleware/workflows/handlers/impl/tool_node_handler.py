"""Nodes that use a tool: scripts, prompts for blocks of text, article services, and search."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from Middleware.exceptions import ConfigValueError
from Middleware.models.run_step import tool
from Middleware.services.memory.memory_store import MemoryStore
from Middleware.utilities.config.check import quoted
from Middleware.utilities.config.declarations import ConfigKey, number_from
from Middleware.utilities.config.keys.node import MANY_LLM_KEYS, NODE, PROMPT_KEYS, SEARCH_KEYS, SEARCH_TARGETS
from Middleware.utilities.json_data import type_name
from Middleware.utilities.search_utils import search_conversation, search_memories
from Middleware.workflows.handlers.base.base_workflow_node_handler import BaseHandler
from Middleware.workflows.handlers.base.network_keys import MAX_SECONDS
from Middleware.workflows.models.execution_context import ExecutionContext
from Middleware.workflows.tools.discussion_context import raw_messages, state_of
from Middleware.workflows.tools.dynamic_module_loader import run_dynamic_module

# Imported where a node uses them: most servers have none of these nodes.
if TYPE_CHECKING:
    from Middleware.workflows.tools.offline_wikipedia_api_tool import OfflineWikiApiClient

logger = logging.getLogger(__name__)


class PythonModuleHandler(BaseHandler):
    """Returns the value of the script's ``Invoke``, unchanged."""

    # A script may do anything.
    acts = "outside"
    reaches_outside = True

    KEYS = {
        "PythonModule": (
            ConfigKey(
                "module_path",
                "str",
                None,
                "The script: a .py file that defines Invoke.",
                "full",
                required=True,
                names="script",
                capability="runs the script",
            ),
            ConfigKey(
                "args",
                "list",
                (),
                "Positional arguments of Invoke, each as a string.",
                "full",
                capability="gives its script the arguments",
            ),
            ConfigKey(
                "kwargs",
                "object",
                {},
                "Named arguments of Invoke, each value as a string.",
                "full",
                capability="gives its script the named arguments",
            ),
        )
    }

    def handle(self, context: ExecutionContext) -> object:
        args = self._container(context, "args", (list, tuple))
        kwargs = self._container(context, "kwargs", dict)
        written, path = self._path(context)
        given = [context.substitute(value) for value in args]
        named = {str(name): context.substitute(value) for name, value in kwargs.items()}
        arguments: dict[str, object] = {"args": given, "kwargs": named}
        with tool(written, "script", arguments if path == written else {"path": path, **arguments}) as step:
            result = run_dynamic_module(path, *given, **named)
            # What a generator yields is in the answer of the node.
            step.texts["result"] = result if isinstance(result, (str, int, float, bool, list, dict)) else None
        return result

    def _path(self, context: ExecutionContext) -> tuple[str, str]:
        """Return the path as the node has it, and with its variables filled in."""
        written = self.value(context, "module_path")
        path = context.substitute(written) if isinstance(written, str) else ""
        if not path.strip():
            raise ConfigValueError(
                f"PythonModule node '{context.node_name}' needs a module_path",
                json_path="module_path",
                expected="the path of a .py file",
            )
        return str(written), path

    def _container(self, context: ExecutionContext, key: str, kind: type | tuple[type, ...]) -> Any:
        value = self.value(context, key)
        if not isinstance(value, kind):
            raise ConfigValueError(
                f"PythonModule node '{context.node_name}': {key} cannot be {type_name(value)}",
                json_path=key,
                expected="a list" if key == "args" else "an object",
            )
        return value


NO_TARGET = "No rag target specified in Slow But Quality RAG node"
NO_TYPE = "No rag type specified in Slow But Quality RAG node"
SHARED_KEYS = frozenset(
    {
        "systemPrompt",
        "prompt",
        "lateSystemPrompt",
        "lateSystemPromptForNow",
        "lateInstruction",
        "exampleTurns",
        "blockGenerationPrompt",
        "nMessagesToIncludeInVariable",
        "estimatedTokensToIncludeInVariable",
        "minMessagesInVariable",
        "maxEstimatedTokensInVariable",
        "messageBlockSize",
        "addUserAssistantTags",
        "includeToolCallsInConversation",
        "removeCustomTextFromResponseStart",
        "responseStartTextToRemove",
        "clampPromptToContextWindow",
        "addDiscussionIdTimestampsForLLM",
        "useRelativeTimestamps",
        "useGroupChatTimestampLogic",
    }
)


class SlowButQualityRAGHandler(BaseHandler):
    """Returns the answers for the blocks of ``ragTarget``, one after the other."""

    # Prompts have no side effects, but the workflow of fileMemoryWorkflowName may have nodes of any type. The answer
    # for each block is cleaned on arrival.
    acts = "outside"
    cleans_itself = True

    KEYS = {
        "SlowButQualityRAG": (
            ConfigKey(
                "ragTarget", "str", None, "The text; --ChunkBreak-- separates its blocks.", "full", required=True
            ),
            ConfigKey("ragType", "str", None, "Must be present; its value has no effect.", required=True),
            *(key for key in PROMPT_KEYS if key.name in SHARED_KEYS),
            *MANY_LLM_KEYS,
            ConfigKey("chunksPerMemory", "int", 3, "Accepted without effect.", "early", inert=True),
        )
    }

    def handle(self, context: ExecutionContext) -> object:
        for name, problem in (("ragTarget", NO_TARGET), ("ragType", NO_TYPE)):
            if self.value(context, name) is None:
                return problem
        if not context.discussion_id:
            logger.info(
                "Node '%s' makes no call and returns an empty text: the conversation has no discussion id",
                context.node_name,
            )
            return ""
        from Middleware.workflows.tools.slow_but_quality_rag_tool import SlowButQualityRAGTool

        return SlowButQualityRAGTool().perform_rag_on_conversation_chunk(
            str(self.value(context, "systemPrompt")),
            str(self.value(context, "prompt")),
            self.text(context, "ragTarget"),
            context,
        )


NO_KEYWORDS = "No keywords specified in Keyword Search node"


class MemoryKeywordSearchHandler(BaseHandler):
    """Returns the blocks of text that hold any of the words; ``searchTarget`` says which texts are searched."""

    acts = "reads"

    KEYS = {"MemoryKeywordSearchPerformerTool": SEARCH_KEYS}

    def handle(self, context: ExecutionContext) -> object:
        if self.value(context, "keywords") is None:
            return NO_KEYWORDS
        keywords = self.text(context, "keywords")
        messages, state = raw_messages(context), state_of(context)
        target = self.value(context, "searchTarget")
        if target == "CurrentConversation":
            return search_conversation(messages, keywords, self.value(context, "lookbackStartTurn"))
        if target == "RecentMemories" and state is not None:
            return search_memories([text for text, _ in MemoryStore(state).read_memories()], messages, keywords)
        if target not in SEARCH_TARGETS:
            logger.warning(
                "Node '%s': searchTarget is %s, which is unknown; nothing is searched. Known: %s",
                context.node_name,
                quoted(target),
                ", ".join(SEARCH_TARGETS),
            )
        return ""


class ConversationKeywordSearchHandler(MemoryKeywordSearchHandler):
    """Returns the blocks of text that hold any of the words; ``searchTarget`` says which texts are searched."""

    KEYS = {"ConversationalKeywordSearchPerformerTool": SEARCH_KEYS}

    @classmethod
    def is_pure(cls, node: Mapping[str, object]) -> bool:
        # Other nodes write memories, which searchTarget may choose.
        return (NODE.value(node, "searchTarget") or "CurrentConversation") == "CurrentConversation"


PROMPT_TO_SEARCH = ConfigKey(
    "promptToSearch", "str", None, "What to search for.", "full", required=True, capability="asks its service for"
)
PERCENTILE = ConfigKey(
    "percentile", "number", 0.5, "How relevant an article must be, from 0 to 1.", "early", least=0, most=1
)

# Queries the service with a prompt; the last argument reads the node's keys.
Question = Callable[["OfflineWikiApiClient", str, Callable[[str], Any]], str]

QUESTIONS: Mapping[str, Question] = {
    "OfflineWikiApiPartialArticle": lambda client, prompt, key: client.get_wiki_summary_by_prompt(
        prompt, key("percentile"), key("num_results")
    ),
    "OfflineWikiApiFullArticle": lambda client, prompt, key: client.get_full_wiki_article_by_prompt(prompt),
    "OfflineWikiApiBestFullArticle": lambda client, prompt, key: client.get_top_full_wiki_article_by_prompt(prompt),
    "OfflineWikiApiTopNFullArticles": lambda client, prompt, key: client.get_top_n_full_wiki_articles_by_prompt(
        prompt, key("percentile"), key("num_results"), key("top_n_articles")
    ),
}


class OfflineWikipediaHandler(BaseHandler):
    """Returns a text, whatever the service answers."""

    acts = "reads"
    reaches_outside = True

    KEYS = {
        "OfflineWikiApiPartialArticle": (
            PROMPT_TO_SEARCH,
            PERCENTILE,
            ConfigKey("num_results", "int", 1, "How many summaries.", "early"),
        ),
        "OfflineWikiApiFullArticle": (PROMPT_TO_SEARCH,),
        "OfflineWikiApiBestFullArticle": (PROMPT_TO_SEARCH,),
        "OfflineWikiApiTopNFullArticles": (
            PROMPT_TO_SEARCH,
            PERCENTILE,
            ConfigKey("num_results", "int", 10, "How many articles to find; the best of these are chosen.", "early"),
            ConfigKey(
                "top_n_articles", "int", 3, "How many articles to return; negative: the least relevant first.", "early"
            ),
        ),
    }

    def handle(self, context: ExecutionContext) -> object:
        from Middleware.workflows.tools.offline_wikipedia_api_tool import OfflineWikiApiClient

        client = OfflineWikiApiClient(context.request.cancel_scope)
        return QUESTIONS[context.node_type](client, prompt_to_search(self, context), partial(self.value, context))


def prompt_to_search(handler: BaseHandler, context: ExecutionContext) -> str:
    """Return the node's ``promptToSearch`` with variables filled in. Raises ConfigValueError if the node has none."""
    if handler.value(context, "promptToSearch") in (None, ""):
        raise ConfigValueError(
            f"{context.node_type} node '{context.node_name}' needs a promptToSearch",
            json_path="promptToSearch",
            expected="the text to look for",
        )
    return handler.text(context, "promptToSearch")


MODES = {"OfflineResearcherApiQuickSearch": "quick", "OfflineResearcherApiDeepResearch": "deep"}


def _keys(seconds: int) -> tuple[ConfigKey, ...]:
    return (
        PROMPT_TO_SEARCH,
        ConfigKey("maxIterations", "int", None, "How many rounds of searching the service may do."),
        ConfigKey("timeoutSeconds", "number", seconds, "The longest silence of the service, in seconds."),
        ConfigKey("includeSources", "bool", False, "Put a list of sources under the answer."),
    )


class OfflineResearcherHandler(BaseHandler):
    """Returns a text, whatever the service answers."""

    acts = "reads"
    reaches_outside = True

    KEYS = {"OfflineResearcherApiQuickSearch": _keys(240), "OfflineResearcherApiDeepResearch": _keys(600)}

    def handle(self, context: ExecutionContext) -> object:
        from Middleware.workflows.tools.offline_researcher_api_tool import OfflineResearcherApiClient

        query = prompt_to_search(self, context)
        return OfflineResearcherApiClient(context.request.cancel_scope).search(
            query,
            MODES[context.node_type],
            timeout=self._timeout(context),
            max_iterations=self._max_iterations(context),
            include_sources=self.value(context, "includeSources"),
        )

    def _timeout(self, context: ExecutionContext) -> float:
        number = number_from(self.value(context, "timeoutSeconds"), whole=False)
        if number is not None and number > 0:
            return min(number, MAX_SECONDS)
        default = self.table(context)["timeoutSeconds"].default
        _warn(context, "timeoutSeconds", "a positive number", f"using {default}")
        return float(default)

    def _max_iterations(self, context: ExecutionContext) -> int | None:
        value = self.value(context, "maxIterations")
        number = None if value is None else number_from(value, whole=False)
        if value is not None and number is None:
            _warn(context, "maxIterations", "a number", "leaving it to the service")
        return None if number is None else int(number)


def _warn(context: ExecutionContext, key: str, expected: str, instead: str) -> None:
    logger.warning(
        "Node '%s': '%s' is not %s: %r; %s", context.node_name, key, expected, context.config.get(key), instead
    )
