"""Nodes that run another workflow."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn

from Middleware.exceptions import ConfigNotFoundError, ConfigValueError, EarlyTerminationException
from Middleware.models.messages import Message
from Middleware.models.process import process
from Middleware.utilities.config.check import shortened
from Middleware.utilities.config.declarations import ConfigKey
from Middleware.utilities.config.keys.node import (
    CONDITIONAL_WORKFLOWS,
    FOLDER_OVERRIDE,
    NODE,
    SCOPED_VARIABLES,
    WORKFLOW_NAME,
)
from Middleware.utilities.discussions.folder_names import DiscussionNames
from Middleware.utilities.file_utils import (
    load_custom_file,
    read_plain_text_file,
    resolve_file_path,
    save_custom_file,
)
from Middleware.utilities.files.file_access import find_file_ignoring_case
from Middleware.utilities.hashing_utils import find_last_matching_hash_message, hash_single_message
from Middleware.utilities.text_utils import messages_to_text_block, restore_braces
from Middleware.workflows.handlers.base.base_workflow_node_handler import BaseHandler
from Middleware.workflows.models.execution_context import STAND_IN, ExecutionContext, note_branch
from Middleware.workflows.tools.discussion_context import raw_messages
from Middleware.workflows.tools.file_containment import contained_path

logger = logging.getLogger(__name__)


class ChildRun:
    """A child workflow that is the responder of its parent.

    Iterating yields its chunk dicts; ``item`` returns its single result; ``finish`` runs the remaining nodes.
    """

    def __init__(self, items: Iterator[Any]) -> None:
        self._items = items

    def __iter__(self) -> Iterator[Any]:
        return self._items

    def item(self) -> object:
        """Return the child's result, before its later nodes run; an empty text if it has none."""
        value = next(self._items, None)
        return "" if value is None else value

    def finish(self) -> object:
        """Run to the end. Return the last item not yet taken, or an empty text."""
        last = [*self._items][-1:]
        return "" if not last or last[0] is None else last[0]


def scoped_inputs(context: ExecutionContext, authored: bool = False) -> tuple[str, ...]:
    """Return the node's ``scoped_variables`` with variables filled in; a bare value counts as a list of one.

    ``authored``: with a stand-in for what users, models and tools wrote.
    """
    values = NODE.value(context.config, "scoped_variables")
    if values is None:
        return ()
    if not isinstance(values, list):
        values = [values]
    fill = context.substitute_authored if authored else context.substitute
    return tuple(fill(value) for value in values)


OVERRIDE_KEYS: tuple[ConfigKey, ...] = (
    ConfigKey(
        "firstNodeSystemPromptOverride",
        "str",
        None,
        "System prompt for the first node of the sub-workflow that has prompts.",
        "full",
    ),
    ConfigKey("systemPromptOverride", "str", None, "Other name of firstNodeSystemPromptOverride.", "full"),
    ConfigKey(
        "firstNodePromptOverride",
        "str",
        None,
        "Prompt for the first node of the sub-workflow that has prompts.",
        "full",
    ),
    ConfigKey("promptOverride", "str", None, "Other name of firstNodePromptOverride.", "full"),
)


class CustomWorkflowHandler(BaseHandler):
    """Returns the result of the child, which knows only the scoped variables of its parent."""

    # The child may have nodes of any type, and cleans its own answer.
    acts = "outside"
    runs_workflow = True
    cleans_itself = True

    KEYS = {"CustomWorkflow": (WORKFLOW_NAME, FOLDER_OVERRIDE, SCOPED_VARIABLES, *OVERRIDE_KEYS)}

    def handle(self, context: ExecutionContext) -> object:
        name = self.value(context, "workflowName")
        if not name:
            raise ConfigNotFoundError(
                f"node '{context.node_name}' names no workflow: 'workflowName' is missing or empty"
            )
        return _run_child(context, str(name), context.config)


# The value may be a whole answer; a message has room for its beginning.
MAX_VALUE = 60


class ConditionalCustomWorkflowHandler(CustomWorkflowHandler):
    """Returns the result of the child that a value selects, or a text if it selects none."""

    KEYS = {
        "ConditionalCustomWorkflow": (
            ConfigKey("conditionalKey", "str", "", "The value that chooses.", "full"),
            CONDITIONAL_WORKFLOWS,
            ConfigKey(
                "UseDefaultContentInsteadOfWorkflow", "any", None, "Text instead of the Default workflow.", "full"
            ),
            ConfigKey("routeOverrides", "object", {}, "Value -> prompt overrides.", "full"),
            FOLDER_OVERRIDE,
            SCOPED_VARIABLES,
        )
    }

    def handle(self, context: ExecutionContext) -> object:
        looked_at = self.text(context, "conditionalKey").strip()
        value, table = looked_at.lower(), self.value(context, "conditionalWorkflows")
        targets = _lower_keys(table)
        overrides = _lower_keys(self.value(context, "routeOverrides"))
        name = targets.get(value)
        if name:
            key = next(key for key in table if str(key).strip().lower() == value)
            note_branch(context, f"{key} -> {name}", looked_at)
            return _run_child(context, str(name), overrides.get(value))
        content = self.value(context, "UseDefaultContentInsteadOfWorkflow")
        if content is not None:
            note_branch(context, "Default -> a text", looked_at)
            return self.static_text(context, context.substitute(content))
        default = targets.get("default")
        if not default:
            raise self._no_route(context)
        note_branch(context, f"Default -> {default}", looked_at)
        return _run_child(context, str(default), overrides.get(value) or overrides.get("default"))

    def _no_route(self, context: ExecutionContext) -> ConfigNotFoundError:
        """Return the error for a value that is not one of the keys. The value may be a whole answer of an LLM."""
        value = shortened(self.text(context, "conditionalKey").strip(), MAX_VALUE)
        table = self.value(context, "conditionalWorkflows")
        keys = [f"'{key}'" for key, name in table.items() if name] if isinstance(table, Mapping) else []
        return ConfigNotFoundError(
            f"node '{context.node_name}' has no workflow for the value '{value}': the keys of 'conditionalWorkflows' "
            f"are {', '.join(keys) or 'missing'}, and there is no 'Default', which would be for every other value"
        )


def _run_child(context: ExecutionContext, name: str, overrides: object) -> object:
    items = context.start_child(
        name,
        folder_override=NODE.value(context.config, "workflowUserFolderOverride") or None,
        scoped_inputs=scoped_inputs(context),
        authored_inputs=partial(scoped_inputs, context, authored=True),
        system_prompt_override=_override(context, overrides, "firstNodeSystemPromptOverride", "systemPromptOverride"),
        prompt_override=_override(context, overrides, "firstNodePromptOverride", "promptOverride"),
    )
    child = ChildRun(items)
    return child if context.is_responder else child.finish()


def _override(context: ExecutionContext, overrides: object, name: str, alias: str) -> str | None:
    if not isinstance(overrides, Mapping):
        return None
    value = overrides.get(name) if name in overrides else overrides.get(alias)
    # Escaped, so that the child's own substitution takes the values literally.
    return context.substitute(value, restore=False) if value else None


def _lower_keys(value: object) -> dict[str, object]:
    """Return the entries by their keys, trimmed and in lower case; a key written without outer spaces wins."""
    if not isinstance(value, Mapping):
        return {}
    lower = {str(key).lower(): entry for key, entry in value.items()}
    return {**{key.strip(): entry for key, entry in lower.items()}, **lower}


# The id becomes part of a file's name.
_ID = re.compile(r"[A-Za-z0-9_.-]+")


@dataclass(frozen=True)
class _Settings:
    """The checked keys of a node. ``folder`` is the child's, ``inputs`` are its ``agent2Input`` and following."""

    workflow: str
    folder: str | None
    chunk_size: int
    lookback: int
    cursor_path: str
    inputs: tuple[str, ...]


class ConversationChunkProcessorHandler(CustomWorkflowHandler):
    """Returns how many blocks were processed, or the content of a file that the child keeps."""

    # It stores its progress in a file.
    runs_workflow = False

    KEYS = {
        "ConversationChunkProcessor": (
            ConfigKey(
                "id",
                "str",
                None,
                "Name of the progress, of letters, digits, '_', '.' and '-'.",
                required=True,
                capability="names its files by",
            ),
            ConfigKey(
                "workflowName", "str", None, "The workflow to run for each block.", required=True, names="workflow"
            ),
            ConfigKey("chunkSize", "int", 10, "Messages in a block.", "full", least=1),
            ConfigKey(
                "lookbackMessages", "int", 4, "How many of the newest messages are left for later.", "full", least=0
            ),
            ConfigKey(
                "cursorDirectory",
                "str",
                None,
                "Folder of the files with the progress.",
                "full",
                required=True,
                names="directory",
                capability="writes files in",
            ),
            ConfigKey(
                "returnFile",
                "str",
                None,
                "File whose content becomes the output.",
                "full",
                names="file",
                capability="reads the file",
            ),
            FOLDER_OVERRIDE,
            replace(SCOPED_VARIABLES, meaning="The sub-workflow's agent2Input, agent3Input, ..."),
        )
    }

    def handle(self, context: ExecutionContext) -> object:
        name = str(self.value(context, "id") or "").strip()
        if not name:
            _refuse(context, "id", "a name for the progress")
        # The path is checked before any work that would be lost.
        self._return_path(context)
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

        def path_of(discussion: str) -> str:
            path = os.path.join(resolve_file_path(directory), f"chunk_cursor_{name}_{discussion}.txt")
            return contained_path(path, "cursorDirectory", self.value(context, "cursorDirectory"))

        path = process().one(DiscussionNames).file(path_of, context.discussion_id or "")
        folder = self.value(context, "workflowUserFolderOverride") or None
        return _Settings(
            workflow,
            folder,
            self._number(context, "chunkSize", 1),
            self._number(context, "lookbackMessages", 0),
            path,
            scoped_inputs(context),
        )

    def _number(self, context: ExecutionContext, key: str, least: int) -> int:
        number = self.count(context, key)
        if not isinstance(number, int) or isinstance(number, bool) or number < least:
            _refuse(context, key, f"a whole number of at least {least}")
        return number

    # -- blocks --------------------------------------------------------------------------------------------------
    def _process(self, context: ExecutionContext, settings: _Settings) -> int:
        """Run the child for every complete block of new messages, oldest first; return how many there were."""
        cursor = ChunkCursor(settings.cursor_path)
        blocks = _new_blocks(raw_messages(context), cursor.hashes, settings)
        for block in blocks:
            if context.request.cancel_scope.cancelled:
                raise EarlyTerminationException(f"Request {context.request_id} was cancelled")
            last = hash_single_message(block[-1])
            self._run_child(context, settings, block)
            # Not before: a block whose child fails is processed again.
            cursor.add(last)
        return len(blocks)

    @staticmethod
    def _run_child(context: ExecutionContext, settings: _Settings, block: list[Message]) -> None:
        # For the child these messages are the whole conversation, and no client waits for an answer.
        text = restore_braces(messages_to_text_block(block))
        messages = [message.copy() for message in block]
        run = replace(context.run, messages=messages, partial=True) if context.run is not None else None
        alone = replace(
            context, run=run, messages=messages, stream=False, is_responder=False, tools=None, tool_choice=None
        )
        ChildRun(
            alone.start_child(
                settings.workflow,
                folder_override=settings.folder,
                scoped_inputs=(text, *settings.inputs),
                authored_inputs=lambda: (STAND_IN, *scoped_inputs(context, authored=True)),
            )
        ).finish()


def _new_blocks(messages: list[Message], known: list[str], settings: _Settings) -> list[list[Message]]:
    """Return the messages after the newest known one, without the newest few, in complete blocks."""
    end = len(messages) - settings.lookback
    if end <= 0:
        return []
    pairs = [("", stored) for stored in known]
    start = end - find_last_matching_hash_message(messages, pairs, turns_to_skip_looking_back=settings.lookback)
    size = settings.chunk_size
    return [messages[at : at + size] for at in range(start, end - size + 1, size)]


def _refuse(context: ExecutionContext, key: str, expected: str) -> NoReturn:
    value = context.config.get(key)
    problem = f"needs '{key}'" if value in (None, "") else f"cannot use {value!r} as '{key}'"
    raise ConfigValueError(
        f"ConversationChunkProcessor node '{context.node_name}' {problem}", json_path=key, expected=expected
    )


class ChunkCursor:
    """The hashes in one file, one per line: those read when the object was made, and those added since.

    A file that is missing or cannot be read counts as empty.
    """

    def __init__(self, path: str) -> None:
        self._path, self._gap = path, ""
        self.hashes = self._read()

    def add(self, message_hash: str) -> None:
        """Add a hash and rewrite the file in one step. A failure to write is logged."""
        self.hashes.append(message_hash)
        try:
            # Another process may have added some in the meantime, which must stay.
            save_custom_file(self._path, f"{self._gap}{message_hash}\n", "append")
            self._gap = ""
        # A ValueError means that no file can have this name.
        except (OSError, ValueError) as error:
            logger.error("The cursor file %s was not written (%s); its messages will come again.", self._path, error)

    def _read(self) -> list[str]:
        try:
            text = read_plain_text_file(self._path)
        except (OSError, ValueError) as error:
            logger.warning("The cursor file %s cannot be read (%s); it counts as empty.", self._path, error)
            return []
        # The file was edited by hand.
        self._gap = "\n" if text and not text.endswith("\n") else ""
        return [line.strip() for line in text.splitlines() if line.strip()]
