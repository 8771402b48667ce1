"""The timestamps that a run gives to messages, and the time that it records for its answer."""

from __future__ import annotations

from collections.abc import Mapping

from Middleware.common.constants import COMPLETION_APIS
from Middleware.models.messages import Message
from Middleware.services.timestamp_service import TimestampService
from Middleware.utilities import config_utils
from Middleware.utilities.config.keys.node import NODE
from Middleware.workflows.models.execution_context import RunRequest

STAMPED = "addDiscussionIdTimestampsForLLM"
RELATIVE = "useRelativeTimestamps"
AT_ONCE = "useGroupChatTimestampLogic"

# What chatCompleteAddUserAssistant puts before an answer that comes back.
ANSWER_PREFIX = "Assistant: "

# The steps that a request takes once, however many workflows it runs.
_RESOLVED, _NOTED, _COMMITTED = "resolved", "noted", "committed"


class MessageTimes:
    """The timestamps of one run. History is resolved, and an answer recorded and committed, once per request."""

    def __init__(self, run: RunRequest) -> None:
        self._run = run
        self._wanted = bool(run.discussion_id) and any(NODE.flag(node, STAMPED) for node in run.nodes)
        self._service = TimestampService(run.api_key_hash, run.encryption_key, scope=run.request.cancel_scope)

    def begin(self) -> None:
        """Give times to the new messages."""
        # The newest message of a part of a conversation is not that of the conversation.
        if self._wanted and not self._run.partial and self._first(_RESOLVED):
            self._service.resolve_and_track_history(self._run.messages, self._run.discussion_id)

    def messages_for(self, node: Mapping[str, object]) -> list[Message]:
        """Return the conversation as ``node`` sees it: copies with times if it wants them, else the run's own list."""
        if not self._applies(node):
            return self._run.messages
        return self._service.format_messages_with_timestamps(
            self._run.messages, self._run.discussion_id, NODE.flag(node, RELATIVE)
        )

    def before_answer(self, node: Mapping[str, object]) -> None:
        """Record the time at which the responder starts."""
        if self._applies(node) and self._first(_NOTED):
            self._service.save_placeholder_timestamp(self._run.discussion_id)

    def after_answer(self, node: Mapping[str, object], output: object) -> None:
        """Give that time to the answer, where the node does not wait for the client to send the answer back."""
        if not self._applies(node) or not NODE.flag(node, AT_ONCE) or not self._first(_COMMITTED):
            return
        content = output.get("content") if isinstance(output, Mapping) else output
        text = content if isinstance(content, str) else ""
        prefix = ANSWER_PREFIX if text and self._prefixed() else ""
        self._service.commit_assistant_response(self._run.discussion_id, prefix + text)

    def _applies(self, node: Mapping[str, object]) -> bool:
        return self._wanted and self._run.non_responder is None and NODE.flag(node, STAMPED)

    def _prefixed(self) -> bool:
        # The completion APIs have no roles, so nothing is put before an answer there.
        plain = self._run.request.api_type in COMPLETION_APIS
        return not plain and config_utils.user_flag("chatCompleteAddUserAssistant")

    def _first(self, step: str) -> bool:
        """Return whether this request takes the step for the first time."""
        done = self._run.request.stamping
        if step in done:
            return False
        done.add(step)
        return True
