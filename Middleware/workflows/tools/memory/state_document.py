"""The document about the current state of a conversation, rewritten when new facts are known."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import replace

from Middleware.exceptions import EarlyTerminationException
from Middleware.llmapis.backend_errors import public_text
from Middleware.llmapis.guarded_calls import guarded_calls
from Middleware.models.process import process
from Middleware.services.llm_calls.direct_calls import raise_if_cancelled
from Middleware.services.memory.chunk_facts import fact_line
from Middleware.services.memory.folds import Fold, text_hash
from Middleware.services.memory.memory_settings import MemorySettings
from Middleware.services.memory.memory_store import STATE_FILE, MemoryStore
from Middleware.utilities.discussion_state import DiscussionState
from Middleware.utilities.discussions.discussion_files import Pair, if_readable, logged_as_conflict
from Middleware.utilities.once import BoundedCache
from Middleware.workflows.models.execution_context import ExecutionContext
from Middleware.workflows.tools.discussion_context import helper_prompts, text_of_helper
from Middleware.workflows.tools.memory.memory_texts import clean_memory
from Middleware.workflows.tools.memory.shared import problem_with

logger = logging.getLogger(__name__)

# The facts of so many chunks are added with one call.
CHUNKS_AT_ONCE = 6
# A document of up to this many characters may be replaced by one of any length.
SHORT_DOCUMENT = 500
_FENCED = re.compile(r"```(?:markdown|md)?[ \t]*\n((?:(?!```).)*)\n```", re.DOTALL | re.IGNORECASE)


def update_state_document(
    context: ExecutionContext, settings: MemorySettings, state: DiscussionState, facts: Sequence[str] = ()
) -> None:
    """Let the user's workflow rewrite the document with new facts, if the settings want one.

    If memories follow the history of the request, it gets the facts of the history that it lacks: without ``facts`` all
    of them; with the facts of a new chunk only these, if there are no others. Every failure is logged and leaves the
    document unchanged. Raises only EarlyTerminationException, for a cancelled request.
    """
    if not settings.use_state_document or not (facts or settings.follow_edits):
        return
    if not settings.state_workflow:
        logger.error("useStateDocument is on, but stateDocumentWorkflowName names no workflow")
        return
    try:
        writer = _DocumentWriter(context, settings, MemoryStore(state))
        if not writer.follow(is_last=not facts) and facts:
            writer.rewrite(facts)
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


def keep_state_document(state: DiscussionState) -> None:
    """Let a document that a user has changed be a version, before its facts move. Failures are logged."""
    if_readable(MemoryStore(state).keep_document, None)


class _DocumentWriter:
    def __init__(self, context: ExecutionContext, settings: MemorySettings, store: MemoryStore) -> None:
        self._context, self._settings, self._store = context, settings, store
        self._name = store.state.display(STATE_FILE)

    def rewrite(self, facts: Sequence[str]) -> None:
        """Store the document that the workflow makes of the present one and some facts."""
        current = self._store.state_document()
        answer = self._answer("\n".join(map(fact_line, facts)), current)
        if not answer:
            return
        if self._store.state_document() != current:
            self._log_changed()
        elif answer != current:
            self._store.save_state_document(answer)
            self._log_rewritten(len(facts))

    def follow(self, is_last: bool) -> bool:
        """Add the facts that the document lacks, some chunks at a time; return whether it follows the history.

        ``is_last``: no more chunks are stored in this pass. Otherwise those of holes would each cost another call.
        """
        self._store.settle_document()
        for _ in range(self._settings.repairs_per_pass):
            fold = self._with_known()
            if fold is None:
                return False
            if not fold.missing or (len(fold.missing) > 1 and not is_last):
                break
            batch = fold.missing[:CHUNKS_AT_ONCE]
            facts = "\n".join(lines for lines, _ in batch)
            answer = self._answer(facts, fold.text) or self._in_place_of_refused(fold, batch)
            if not answer:
                break
            now = self._store.document_fold()
            if now is None or now.version != fold.version:
                self._log_changed()
                break
            self._store.save_document_version(fold, batch, answer)
            self._log_rewritten(facts.count("\n") + 1)
        return True

    def _with_known(self) -> Fold | None:
        """Add what was made of the same text and the same facts before; return what fits after that."""
        while (fold := self._store.document_fold()) is not None and fold.missing:
            batch = fold.missing[:CHUNKS_AT_ONCE]
            known = self._store.known_document(fold, batch)
            if not known:
                break
            self._store.save_document_version(fold, batch, known)
        return fold

    def _answer(self, listed: str, current: str) -> str:
        """Return the document that the workflow makes of the present one; "" and a line in the log without one."""
        context, settings = self._context, self._settings
        with guarded_calls(settings.reads_streams):
            answer = text_of_helper(context, settings.state_workflow, (listed, current)).strip()
        answer = _unfenced(clean_memory(answer, helper_prompts(context, settings.state_workflow)))
        if problem := problem_with(answer):
            logger.error("%s is not updated: workflow '%s': %s", self._name, settings.state_workflow, problem)
            return ""
        if loses_too_much(current, answer, settings.state_retention):
            logger.error(
                "%s is not updated: the new text has %d characters, less than %g of the present %d "
                "(stateDocumentMinRetentionRatio)",
                self._name,
                len(answer),
                settings.state_retention,
                len(current),
            )
            return ""
        return answer

    def _in_place_of_refused(self, fold: Fold, batch: Sequence[Pair]) -> str:
        """Return what takes the place of an answer that cannot be used: "" at first, so that it is asked for again.

        After that, the facts stand in the document as they are: another call would give no other answer.
        """
        refused, place = process().one(_refused), self._store.state.place
        named = text_hash(fold.text)
        again = refused.get(place) == named
        refused.put(place, named)
        return replace(fold, missing=batch).shown_with_all if again else ""

    def _log_changed(self) -> None:
        logger.warning("%s is not updated: it was changed in the meantime", self._name)

    def _log_rewritten(self, facts: int) -> None:
        logger.info("%s rewritten with %d new facts", self._name, facts)


def _refused() -> BoundedCache[str, str]:
    """Return the hash of the text whose last answer could not be used, by the place of the discussion."""
    return BoundedCache(1000)


def _unfenced(text: str) -> str:
    # Asked for Markdown, many models put the whole document into a code block, which the next one would stand in, too.
    found = _FENCED.fullmatch(text)
    return found[1].strip() if found else text


def loses_too_much(current: str, new: str, ratio: float) -> bool:
    """Return whether a new document is suspiciously short; a ratio of 0 allows everything."""
    return bool(ratio) and len(current) > SHORT_DOCUMENT and len(new) < ratio * len(current)
