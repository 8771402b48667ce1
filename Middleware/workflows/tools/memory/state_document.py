"""The document about the current state of a conversation, rewritten when new facts are known."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

from Middleware.exceptions import EarlyTerminationException
from Middleware.llmapis.backend_errors import public_text
from Middleware.llmapis.guarded_calls import guarded_calls
from Middleware.services.llm_calls.direct_calls import raise_if_cancelled
from Middleware.services.memory.memory_settings import MemorySettings
from Middleware.services.memory.memory_store import STATE_FILE, MemoryStore
from Middleware.utilities.discussion_state import DiscussionState
from Middleware.utilities.discussions.discussion_files import logged_as_conflict
from Middleware.workflows.models.execution_context import ExecutionContext
from Middleware.workflows.tools.discussion_context import helper_prompts, text_of_helper
from Middleware.workflows.tools.memory.memory_texts import clean_memory
from Middleware.workflows.tools.memory.shared import problem_with

logger = logging.getLogger(__name__)

# A document of up to this many characters may be replaced by one of any length.
SHORT_DOCUMENT = 500
_FENCED = re.compile(r"```(?:markdown|md)?[ \t]*\n((?:(?!```).)*)\n```", re.DOTALL | re.IGNORECASE)


def update_state_document(
    context: ExecutionContext, settings: MemorySettings, state: DiscussionState, facts: Sequence[str]
) -> None:
    """Let the user's workflow rewrite the document with new facts, if the settings want one.

    Every failure is logged and leaves the document unchanged. Raises only EarlyTerminationException, for a cancelled
    request.
    """
    if not settings.use_state_document or not facts:
        return
    if not settings.state_workflow:
        logger.error("useStateDocument is on, but stateDocumentWorkflowName names no workflow")
        return
    try:
        _rewrite(context, settings, MemoryStore(state), facts)
    # Workflows run code of other packages, and a document is not worth losing the chat.
    except Exception as error:
        raise_if_request_ended(error, context)
        if not logged_as_conflict(error):
            logger.error("%s is not updated: %s", state.display(STATE_FILE), public_text(error))


def raise_if_request_ended(error: Exception, context: ExecutionContext) -> None:
    """Raise EarlyTerminationException if the request was cancelled; a held WorkflowLock ends only its own workflow."""
    raise_if_cancelled(context.request.cancel_scope)
    if isinstance(error, EarlyTerminationException) and error.is_cancellation:
        raise error


def _rewrite(context: ExecutionContext, settings: MemorySettings, store: MemoryStore, facts: Sequence[str]) -> None:
    current = store.state_document()
    listed = "\n".join(f"- {' '.join(fact.splitlines())}" for fact in facts)
    with guarded_calls(settings.reads_streams):
        answer = text_of_helper(context, settings.state_workflow, (listed, current)).strip()
    answer = _unfenced(clean_memory(answer, helper_prompts(context, settings.state_workflow)))
    name = store.state.display(STATE_FILE)
    if problem := problem_with(answer):
        logger.error("%s is not updated: workflow '%s': %s", name, settings.state_workflow, problem)
    elif loses_too_much(current, answer, settings.state_retention):
        logger.error(
            "%s is not updated: the new text has %d characters, less than %g of the present %d "
            "(stateDocumentMinRetentionRatio)",
            name,
            len(answer),
            settings.state_retention,
            len(current),
        )
    elif store.state_document() != current:
        logger.warning("%s is not updated: it was changed in the meantime", name)
    elif answer != current:
        store.save_state_document(answer)
        logger.info("%s rewritten with %d new facts", name, len(facts))


def _unfenced(text: str) -> str:
    # Asked for Markdown, many models put the whole document into a code block, which the next one would stand in, too.
    found = _FENCED.fullmatch(text)
    return found[1].strip() if found else text


def loses_too_much(current: str, new: str, ratio: float) -> bool:
    """Return whether a new document is suspiciously short; a ratio of 0 allows everything."""
    return bool(ratio) and len(current) > SHORT_DOCUMENT and len(new) < ratio * len(current)
