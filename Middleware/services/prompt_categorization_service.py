"""Choose a workflow by the category that an LLM assigns to the prompt."""

from __future__ import annotations

import logging
import string
from collections.abc import Callable, Mapping
from typing import Any

from Middleware.exceptions import ConfigNotFoundError
from Middleware.models.request_context import report
from Middleware.utilities import config_utils
from Middleware.utilities.config.check import shortened
from Middleware.utilities.config.keys.user import ROUTING
from Middleware.utilities.sensitive_logging_utils import sensitive_log

logger = logging.getLogger(__name__)

UNKNOWN = "UNKNOWN"
# Proxies and clients limit the size of headers.
MAX_ROUTE_LENGTH = 200
# An answer may be long, and an error message shows its beginning.
MAX_ANSWER = 60
_DELETE_PUNCTUATION = str.maketrans("", "", string.punctuation)


class PromptCategorizationService:
    """Determines the category of a conversation.

    Args:
        run_workflow: runs a workflow by name with the given category variables and returns its result.

    Attributes:
        reason: why the workflow was chosen, for the log.
        unmatched: the last answer of an LLM, if it named no category; then the default workflow is chosen.
    """

    def __init__(self, run_workflow: Callable[[str, Mapping[str, object]], Any]) -> None:
        self._run_workflow = run_workflow
        self.reason = ""
        self.unmatched: str | None = None

    def choose_workflow(self) -> tuple[str, str]:
        """Return ``(category, workflow name)``; without a match ``UNKNOWN`` and the default workflow."""
        name = config_utils.user_name_setting("routingConfig")
        if not name:
            return "", config_utils.DEFAULT_WORKFLOW
        routing = config_utils.load_routing(name)
        category = self._categorize(routing)
        if category in routing:
            self.unmatched = None
            return category, str(ROUTING.value(routing[category], "workflow"))
        return UNKNOWN, config_utils.DEFAULT_WORKFLOW

    def require_default_workflow(self) -> None:
        """Raise ConfigNotFoundError if no category matched and there is no default workflow to run instead."""
        if self.unmatched is None:
            return
        try:
            config_utils.load_workflow(config_utils.DEFAULT_WORKFLOW)
        except ConfigNotFoundError as error:
            name = config_utils.user_name_setting("routingConfig")
            failure = ConfigNotFoundError(
                f"workflow '{config_utils.categorization_workflow_name()}' answered "
                f"'{shortened(self.unmatched.strip(), MAX_ANSWER)}', which is not one of the categories of the routing "
                f"'{name}' ({', '.join(config_utils.load_routing(name))}), and there is no workflow "
                f"'{config_utils.DEFAULT_WORKFLOW}', which would run for every other answer",
                tried=error.tried,
                suggestion=error.suggestion,
            )
            # The answer may quote the conversation, which a redacted log must not hold.
            failure.private = True
            raise failure from error

    def _categorize(self, routing: Mapping[str, Mapping[str, str]]) -> str:
        workflow = config_utils.categorization_workflow_name()
        variables = category_variables(routing)
        attempts = config_utils.user_int("maxCategorizationAttempts")
        report("routing_started", list(routing))
        for attempt in range(1, attempts + 1):
            answer = self._run_workflow(workflow, variables)
            # An answer with tool calls is a dict.
            if isinstance(answer, Mapping):
                answer = answer.get("content")
            sensitive_log(logger, logging.DEBUG, "The category is looked for in: %s", answer)
            self.unmatched = "" if answer is None else str(answer)
            category = match_category(UNKNOWN if answer is None else str(answer), list(routing))
            if category:
                # The choice is logged together with its workflow, so it is logged here only after a retry.
                logger.log(
                    logging.INFO if attempt > 1 else logging.DEBUG,
                    "Category %s, found at attempt %d of %d",
                    category,
                    attempt,
                    attempts,
                )
                self.reason = f"named by {workflow} at attempt {attempt} of {attempts}"
                report("routing_finished", category, attempt)
                return category
        logger.warning(
            "Workflow %s named none of the categories in %d attempt(s): %s", workflow, attempts, ", ".join(routing)
        )
        self.reason = "no category matched"
        report("routing_finished", "", attempts)
        return UNKNOWN


def category_variables(routing: Mapping[str, Mapping[str, str]]) -> dict[str, object]:
    """Return the six variables that a categorization prompt may use."""
    names = list(routing)
    texts = [f"{name}: {entry['description']}" for name, entry in routing.items()]
    return {
        "category_list": names,
        "category_descriptions": [entry["description"] for entry in routing.values()],
        "category_colon_descriptions": "; ".join(texts),
        "category_colon_descriptions_newline_bulletpoint": "".join(f"\n- {text}" for text in texts),
        "categoriesSeparatedByOr": " or ".join(names),
        "categoryNameBulletpoints": "".join(f"\n- {name}" for name in names),
    }


def match_category(answer: str, categories: list[str]) -> str | None:
    """Return the category in an LLM's answer, or None.

    A word equal to a category (or equal words, for one with spaces) has priority over a word that contains one. Earlier
    words have priority over later ones; at the same word, the category with the most words, then the first category.
    """
    words = [word for word in map(_plain, answer.split()) if word]
    plain = {category: _plain(category).split() for category in categories}
    # "CODE REVIEW" must not be taken for "CODE".
    longest_first = sorted(plain, key=lambda category: -len(plain[category]))
    for start in range(len(words)):
        for category in longest_first:
            parts = plain[category]
            if parts and words[start : start + len(parts)] == parts:
                return category
    for word in words:
        for category, parts in plain.items():
            if len(parts) == 1 and parts[0] in word:
                return category
    return None


def _plain(text: str) -> str:
    return text.translate(_DELETE_PUNCTUATION).upper()


def route_header(route: str) -> str:
    """Return the route as the value of an HTTP header: Latin-1 without control characters, of limited length."""
    text = " ".join(route.split()).encode("latin-1", "replace").decode("latin-1")
    if not text.isprintable():
        text = "".join(letter for letter in text if letter.isprintable())
    return text[:MAX_ROUTE_LENGTH]
