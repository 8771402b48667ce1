"""The messages of a request and its answer, as they are remembered word for word."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from Middleware.services.memory.memory_settings import quiet_memory_settings
from Middleware.workflows.models.execution_context import RunRequest

# What reads and writes the index is imported for users who have one.
if TYPE_CHECKING:
    from Middleware.services.memory.remembering import Remembered


class RememberedMessages:
    """What one run has to do with that: the outermost of a request stores its messages, once, before its first node."""

    def __init__(self, run: RunRequest) -> None:
        self._run = run
        self._outermost = len(run.chain) <= 1 and not run.partial

    def begin(self) -> None:
        """Store what the messages bring. A front-end's own request only quotes the conversation."""
        run, request = self._run, self._run.request
        if not (run.discussion_id and self._outermost) or request.task or request.remembered is not None:
            return
        if quiet_memory_settings().remember_messages:
            from Middleware.services.memory import remembering

            request.remembered = remembering.remember(
                request, run.discussion_id, run.messages, run.api_key_hash, run.encryption_key
            )

    def note_answer(self, output: object) -> None:
        """Note the answer of the run, which the client has got as a whole."""
        request, text = self._run.request, output.get("content") if isinstance(output, Mapping) else output
        if self._run.non_responder is None and request.delivered is None:
            whole = text if isinstance(text, str) else ""
            request.delivered = lambda: whole
        remembered = cast("Remembered | None", request.remembered)
        if self._outermost and remembered is not None and remembered.endpoints:
            # Vectors are made as nodes behind the answer would make them.
            request.background_nodes += 1

    def after_answer(self, ended: bool = False) -> None:
        """Store the answer as soon as the client has it; ``ended``: the run is over, or was stopped."""
        request = self._run.request
        remembered = cast("Remembered | None", request.remembered)
        if remembered is None or self._run.non_responder is not None or request.delivered is None:
            return
        if request.answer_complete or (ended and self._outermost):
            from Middleware.services.memory import remembering

            remembering.remember_answer(request, remembered, request.delivered())
        if ended and self._outermost and remembered.endpoints and request.answer_complete:
            from Middleware.services.memory.message_vectors import embed_messages

            embed_messages(request, remembered)
