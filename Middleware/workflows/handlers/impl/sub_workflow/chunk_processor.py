"""ConversationChunkProcessor: runs a child once for every block of messages that it has not seen yet."""
from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, NoReturn

from Middleware.exceptions import ConfigValueError, EarlyTerminationException
from Middleware.models.messages import Message
from Middleware.services.chunk_cursor import ChunkCursor
from Middleware.utilities.config.declarations import ConfigKey
from Middleware.utilities.config.keys.node import FOLDER_OVERRIDE, SCOPED_VARIABLES
from Middleware.utilities.file_utils import load_custom_file, resolve_file_path
from Middleware.utilities.files.file_access import find_file_ignoring_case
from Middleware.utilities.hashing_utils import find_last_matching_hash_message, hash_single_message
from Middleware.utilities.text_utils import messages_to_text_block, restore_braces
from Middleware.workflows.handlers.base.base_workflow_node_handler import BaseHandler
from Middleware.workflows.handlers.impl.specialized.counts import resolved_count
from Middleware.workflows.handlers.impl.sub_workflow.children import ChildRun, scoped_inputs
from Middleware.workflows.models.execution_context import ExecutionContext
from Middleware.workflows.tools.discussion_context import raw_messages
from Middleware.workflows.tools.file_containment import contained_path

_ID = re.compile(r"[A-Za-z0-9_.-]+")


@dataclass(frozen=True)
class _Settings:
    """The node's keys, checked. ``folder`` is the child's, ``inputs`` are its ``agent2Input`` and following."""

    workflow: str
    folder: str | None
    chunk_size: int
    lookback: int
    cursor_path: str
    inputs: tuple[str, ...]


class ConversationChunkProcessorHandler(BaseHandler):
    """Says how many blocks were processed, or gives the content of a file that the child keeps."""
    # The child may have nodes of any type, and cleans its own answer.
    acts = "outside"
    cleans_itself = True

    KEYS: ClassVar[Mapping[str, tuple[ConfigKey, ...]]] = {
        "ConversationChunkProcessor": (
            ConfigKey("id", "str", None, "Name of the progress, of letters, digits, '_', '.' and '-'.", required=True),
            ConfigKey("workflowName", "str", None, "The workflow to run for each block.", required=True,
                      names="workflow"),
            ConfigKey("chunkSize", "int", 10, "Messages in a block.", "full", least=1),
            ConfigKey("lookbackMessages", "int", 4, "How many of the newest messages wait for later.", "full",
                      least=0),
            ConfigKey("cursorDirectory", "str", None, "Folder of the files that hold the progress.", "full",
                      required=True, names="directory"),
            ConfigKey("returnFile", "str", None, "File whose content becomes the output.", "full", names="file"),
            FOLDER_OVERRIDE,
            replace(SCOPED_VARIABLES, meaning="The child's agent2Input, agent3Input, ..."))}

    def handle(self, context: ExecutionContext) -> object:
        name = str(self.value(context, "id") or "").strip()
        if not name:
            _refuse(context, "id", "a name for the progress")
        self._return_path(context)  # before anything is done for nothing
        count = self._process(context, self._settings(context, name)) if context.discussion_id else 0
        path = self._return_path(context)
        if not path:
            return f"ConversationChunkProcessor '{name}' processed {count} chunk(s)."
        return "" if find_file_ignoring_case(resolve_file_path(path)) is None else load_custom_file(path)

    def _return_path(self, context: ExecutionContext) -> str:
        template = self.value(context, "returnFile")
        return contained_path(self.text(context, "returnFile"), "returnFile", template, reading=True)

    # -- settings ------------------------------------------------------------------------------------------------
    def _settings(self, context: ExecutionContext, name: str) -> _Settings:
        if not _ID.fullmatch(name):
            _refuse(context, "id", "letters, digits, '_', '.' and '-' only")
        workflow = self.value(context, "workflowName")
        if not isinstance(workflow, str) or not workflow.strip():
            _refuse(context, "workflowName", "the name of a workflow")
        directory = self.text(context, "cursorDirectory")
        if not directory.strip():
            _refuse(context, "cursorDirectory", "the path of a folder")
        path = os.path.join(resolve_file_path(directory), f"chunk_cursor_{name}_{context.discussion_id}.txt")
        path = contained_path(path, "cursorDirectory", self.value(context, "cursorDirectory"))
        folder = self.value(context, "workflowUserFolderOverride") or None
        return _Settings(workflow, folder, self._number(context, "chunkSize", 1),
                         self._number(context, "lookbackMessages", 0), path, scoped_inputs(context))

    def _number(self, context: ExecutionContext, key: str, least: int) -> int:
        number = resolved_count(context, self.value(context, key))
        if not isinstance(number, int) or isinstance(number, bool) or number < least:
            _refuse(context, key, f"a whole number of at least {least}")
        return number

    # -- blocks --------------------------------------------------------------------------------------------------
    def _process(self, context: ExecutionContext, settings: _Settings) -> int:
        """Run the child for every complete block of new messages, oldest first; returns how many there were."""
        cursor = ChunkCursor(settings.cursor_path)
        blocks = _new_blocks(raw_messages(context), cursor.hashes, settings)
        for block in blocks:
            if context.request.cancel_scope.cancelled:
                raise EarlyTerminationException(f"Request {context.request_id} was cancelled")
            last = hash_single_message(block[-1])
            self._run_child(context, settings, block)
            cursor.add(last)
        return len(blocks)

    @staticmethod
    def _run_child(context: ExecutionContext, settings: _Settings, block: list[Message]) -> None:
        """Run the child to its end, as if these messages were the conversation and nobody waited for an answer."""
        text = restore_braces(messages_to_text_block(block))
        messages = [message.copy() for message in block]
        run = replace(context.run, messages=messages, partial=True) if context.run is not None else None
        alone = replace(context, run=run, messages=messages, stream=False, is_responder=False, tools=None,
                        tool_choice=None)
        ChildRun(alone.start_child(settings.workflow, folder_override=settings.folder,
                                   scoped_inputs=(text, *settings.inputs))).finish()


def _new_blocks(messages: list[Message], known: list[str], settings: _Settings) -> list[list[Message]]:
    """The messages behind the newest known one, without the newest few, in complete blocks."""
    end = len(messages) - settings.lookback
    if end <= 0:
        return []
    pairs = [("", stored) for stored in known]
    start = end - find_last_matching_hash_message(messages, pairs, turns_to_skip_looking_back=settings.lookback)
    size = settings.chunk_size
    return [messages[at:at + size] for at in range(start, end - size + 1, size)]


def _refuse(context: ExecutionContext, key: str, expected: str) -> NoReturn:
    value = context.config.get(key)
    problem = f"needs '{key}'" if value in (None, "") else f"cannot use {value!r} as '{key}'"
    raise ConfigValueError(f"ConversationChunkProcessor node '{context.node_name}' {problem}", json_path=key,
                           expected=expected)
