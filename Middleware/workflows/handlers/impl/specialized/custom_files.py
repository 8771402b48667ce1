"""GetCustomFile and SaveCustomFile: files that the workflow names."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from Middleware.exceptions import ConfigValueError
from Middleware.models.request_context import current_outside
from Middleware.utilities.config.declarations import ConfigKey
from Middleware.utilities.config.paths import get_root_public_directory
from Middleware.utilities.file_utils import CUSTOM_FILE_MODES, load_custom_file, resolve_file_path, save_custom_file
from Middleware.utilities.files.file_access import find_file_ignoring_case
from Middleware.workflows.handlers.base.base_workflow_node_handler import BaseHandler
from Middleware.workflows.models.execution_context import ExecutionContext
from Middleware.workflows.tools.file_containment import contained_path

logger = logging.getLogger(__name__)

NO_PATH = "No filepath specified"


class GetCustomFileHandler(BaseHandler):
    """Returns the text of a file, or a text that explains why it is not available."""

    # Not pure: a SaveCustomFile before it may write the same file.
    acts = "reads"

    KEYS = {
        "GetCustomFile": (
            ConfigKey(
                "filepath",
                "str",
                None,
                "The file; the case of its name is ignored.",
                "full",
                required=True,
                names="file",
                capability="reads the file",
            ),
            ConfigKey("delimiter", "str", None, "Text to replace; customReturnDelimiter, or else a line feed."),
            ConfigKey("customReturnDelimiter", "str", None, "What to replace it with; delimiter if absent."),
            ConfigKey("headCount", "int", None, "Keep this many of the first pieces, at least 1.", "full", least=1),
            ConfigKey("tailCount", "int", None, "Keep this many of the last pieces, at least 1.", "full", least=1),
            ConfigKey("chunkDelimiter", "str", "\n", "The text between the pieces that are counted."),
        )
    }

    def handle(self, context: ExecutionContext) -> object:
        if not self.value(context, "filepath"):
            return NO_PATH
        counts = {name: self.count(context, name) for name in ("headCount", "tailCount")}
        problem = _count_problem(counts)
        if problem:
            return problem
        delimiter, custom = self._optional(context, "delimiter"), self._optional(context, "customReturnDelimiter")
        path = contained_path(
            _path_meant(self.text(context, "filepath")), "filepath", self.value(context, "filepath"), reading=True
        )
        try:
            return load_custom_file(
                path,
                delimiter if delimiter is not None else custom or "\n",
                custom if custom is not None else delimiter,
                counts["headCount"],
                counts["tailCount"],
                self._optional(context, "chunkDelimiter") or "\n",
            )
        except OSError as error:
            raise ConfigValueError(
                f"node '{context.node_name}': the file of 'filepath' cannot be read: {error.strerror}",
                json_path="filepath",
            ) from error

    def _optional(self, context: ExecutionContext, name: str) -> str | None:
        value = self.value(context, name)
        return None if value is None else str(value)


class SaveCustomFileHandler(BaseHandler):
    """Returns a text that describes what was done to the file, or why nothing was done."""

    acts = "writes"

    KEYS = {
        "SaveCustomFile": (
            ConfigKey(
                "filepath",
                "str",
                None,
                "The file; missing folders are created.",
                "full",
                required=True,
                names="file",
                capability="writes the file",
            ),
            ConfigKey(
                "content",
                "str",
                None,
                "The text; required for all modes except remove and trim.",
                "full",
                capability="writes into its file",
            ),
            ConfigKey(
                "mode",
                "str",
                "overwrite",
                "What to do with the file.",
                choices=CUSTOM_FILE_MODES,
                capability="changes its file in the mode",
            ),
            ConfigKey(
                "find",
                "str",
                None,
                "What replace and remove search for, literally.",
                "full",
                capability="changes in its file",
            ),
        )
    }

    def handle(self, context: ExecutionContext) -> object:
        problem = self._problem(context)
        if problem:
            return problem
        mode = str(self.value(context, "mode"))
        path, content, find = (self.text(context, name) for name in ("filepath", "content", "find"))
        target = contained_path(path, "filepath", self.value(context, "filepath"))
        try:
            count = save_custom_file(target, content, mode, find, context.request.cancel_scope)
        except OSError as error:
            return _failure(context, str(error.strerror), f"{resolve_file_path(path)}: {error.strerror}")
        except ValueError as error:
            return _failure(context, str(error), str(error))
        return _report(mode, resolve_file_path(path), count)

    def _problem(self, context: ExecutionContext) -> str:
        mode = self.value(context, "mode")
        if not self.value(context, "filepath"):
            return NO_PATH
        if mode not in CUSTOM_FILE_MODES:
            return (
                "SaveCustomFile: 'mode' must be one of 'overwrite', 'append', 'replace', 'remove', or 'trim', "
                f"got '{mode}'"
            )
        if mode not in ("remove", "trim") and self.value(context, "content") is None:
            return "No content specified"
        if mode in ("replace", "remove") and self.value(context, "find") in (None, ""):
            return f"SaveCustomFile: mode '{mode}' requires a 'find' value"
        return ""


def _path_meant(path: str) -> str:
    """Return ``path``, or its counterpart below the public root if the working directory holds no such file."""
    # The files that come with a configuration are found wherever the server was started.
    plain = resolve_file_path(path)
    if not path.strip() or os.path.isabs(plain) or _exists(plain):
        return path
    counterpart = os.path.join(get_root_public_directory(), plain)
    return counterpart if _exists(counterpart) else path


def _exists(path: str) -> bool:
    return find_file_ignoring_case(current_outside().path(path)) is not None


def _count_problem(counts: Mapping[str, object]) -> str:
    given = {name: count for name, count in counts.items() if count is not None}
    if len(given) > 1:
        return "GetCustomFile: specify only one of 'headCount' or 'tailCount', not both"
    # A boolean is an int in Python, but not a count.
    wrong = next(
        (name for name, count in given.items() if not isinstance(count, int) or isinstance(count, bool) or count < 1),
        None,
    )
    return f"GetCustomFile: '{wrong}' must be an integer >= 1" if wrong else ""


def _failure(context: ExecutionContext, log_text: str, output: str) -> str:
    # The log gets no path, which may be made of conversation text.
    logger.warning("Node '%s': the file was not saved: %s", context.node_name, log_text)
    return f"Error saving file: {output}"


def _report(mode: str, path: str, count: int | None) -> str:
    done, nothing = {
        "replace": (f"updated: replaced {count} occurrence(s) in", "no occurrence of the target text found in"),
        "remove": (f"updated: removed {count} line(s) from", "no line matching the target text found in"),
        "trim": (f"tidied: removed {count} blank line(s) from", "no blank lines to remove in"),
    }.get(mode, ("saved to", ""))
    return f"File unchanged: {nothing} {path}" if count == 0 else f"File successfully {done} {path}"
