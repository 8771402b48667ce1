"""The folders, files, stubs and the LLM of one test, and the settings of the process while tests run."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import threading
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from Middleware.addons.records.analysis.critical_path import SpanTree
from Middleware.addons.records.model import Span, number
from Middleware.addons.records.payloads import output_text
from Middleware.addons.records.recorder import UNNAMED, RunRecorder
from Middleware.addons.records.ring import RunRing
from Middleware.addons.workflow_tests.scripted_llm import Script, ScriptedLlm
from Middleware.addons.workflow_tests.suites import WorkflowTest, is_title, title_of
from Middleware.common import instance_global_variables as instance
from Middleware.exceptions import EarlyTerminationException, WilmerError
from Middleware.models.llm_call import current_site
from Middleware.models.outside import Outside
from Middleware.models.request_context import current_outside
from Middleware.utilities.discussions.discussion_folder import DiscussionFolders
from Middleware.utilities.files.file_access import resolve_file_path
from Middleware.utilities.text_utils import encode_text, restore_braces
from Middleware.workflows.events import RunRecord
from Middleware.workflows.models.execution_context import ExecutionContext, NodeExecutionInfo
from Middleware.workflows.processors.workflows_processor import find_responder

DISCUSSIONS = "DiscussionIds/"
"""How paths in tests begin that mean the folder of stored conversations, wherever it is."""


class MissingStubError(WilmerError):
    """A node that reaches outside has no stub."""


class FolderTrial(Outside):
    """The outside of a trial, whose conversations and locks are in a folder of its own, which it creates.

    Args:
        user: the user whose lock database is not searched for in the locations of older versions.
    """

    # Each run of a test gives its nodes answers of its own, and nothing of it is read by a user.
    remembers = paced = False

    def __init__(self, folder: Path, user: str) -> None:
        self.discussions_root, self.locks_root = str(folder / "discussions"), str(folder / "locks")
        for directory in (self.discussions_root, self.locks_root):
            os.makedirs(directory)
        # With an empty database here, the user's real one is not searched for in older locations.
        database = Path(self.locks_root, f"WilmerDb.{user}.sqlite")
        database.parent.mkdir(parents=True, exist_ok=True)
        database.write_bytes(b"")

    def discussions(self, stored: Any) -> Any:
        # Those in a database belong to the users.
        return DiscussionFolders()

    def run_node(self, handle: Callable[[Any], object], context: Any) -> object:
        output = self.stub(context)
        if output is None:
            return handle(context)
        context.replaced = True
        return context.node_handlers[context.node_type].use_output(context, output)

    @abstractmethod
    def stub(self, context: ExecutionContext) -> object | None:
        """Return the output of a node that is not to be run; None to run it."""


class Sandbox(FolderTrial):
    """The replacement for the outside world in one test.

    Attributes:
        log: warnings that were logged during the test.
        unstubbed: a message for each node that was about to reach outside and has no stub.
    """

    calls_servers = False

    def __init__(self, test: WorkflowTest, folder: Path) -> None:
        self.recorder = Recorder()
        self.script = Script(test.rules)
        self.llm = ScriptedLlm(self.script, self.recorder.caller)
        super().__init__(folder, test.suite.user)
        self._files = folder / "files"
        self._files.mkdir()
        self._stubs = test.stubs
        # By the name of a stub: how many of its outputs were used.
        self._used: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.log: list[str] = []
        self.unstubbed: list[str] = []

    def write_files(self, files: Mapping[str, str]) -> None:
        """Create the files that the workflow expects. Raises OSError for a path that no file can have."""
        for name, text in files.items():
            _write(Path(self._place(name)), encode_text(text))

    # -- LLMs and nodes -----------------------------------------------------------------------------------------------
    def caller(self, handler: Any) -> Any:
        return self.llm.caller(handler)

    def stub(self, context: ExecutionContext) -> str | None:
        """Return the stub of a node. Raises MissingStubError for a node that would reach outside and has none."""
        workflow = context.run.workflow_name if context.run is not None else ""
        node_type = context.node_type
        title = title_of(context.config, node_type)
        # Of two names for the same node, the more exact one applies.
        for name in (f"{workflow}/{title}", title):
            if name in self._stubs:
                return self._output(name)
        if context.node_handlers[node_type].reaches_outside:
            message = f"node '{workflow}/{title}' ({node_type}) would reach outside: name its output in \"stubs\""
            self.unstubbed.append(message)
            raise MissingStubError(message)
        return None

    def _output(self, name: str) -> str:
        outputs = self._stubs[name]
        with self._lock:
            used = self._used[name]
            self._used[name] += 1
        return outputs[min(used, len(outputs) - 1)]

    # -- files ---------------------------------------------------------------------------------------------------
    def path(self, path: str) -> str:
        if not path.strip():
            return path
        # On Windows, each drive becomes a folder.
        drive, rest = os.path.splitdrive(os.path.abspath(resolve_file_path(path)))
        parts = [part.rstrip(":") for part in f"{drive}{os.sep}{rest}".replace("\\", "/").split("/")]
        target = str(self._files.joinpath(*filter(None, parts)))
        # The slash at the end says that a folder is meant.
        return os.path.join(target, "") if path.endswith(("/", os.sep)) else target

    def text_of_file(self, path: str) -> str | None:
        """Return the content of a file that a test names; None if there is no such file, or cannot be."""
        try:
            return Path(self._place(path)).read_bytes().decode("utf-8", "replace")
        # ValueError is raised for a path that no file can have.
        except (OSError, ValueError):
            return None

    def file_names(self) -> list[str]:
        """Return the existing files, as paths below the folder that replaces the root of all drives.

        Those of conversations are in ``DiscussionIds``.
        """
        roots = (("", self._files), (DISCUSSIONS, Path(self.discussions_root)))
        return sorted(
            f"{prefix}{path.relative_to(root).as_posix()}"
            for prefix, root in roots
            for path in root.rglob("*")
            if path.is_file()
        )

    def _place(self, path: str) -> str:
        """Return the path to open for one that a test names: a file of a workflow, or of a stored conversation."""
        inside = os.path.normpath(path.replace("\\", "/")).replace(os.sep, "/")
        if not inside.startswith(DISCUSSIONS):
            return self.path(path)
        return os.path.join(self.discussions_root, *inside.removeprefix(DISCUSSIONS).split("/"))


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


class _TestLog(logging.Handler):
    """Adds warnings to the log of the test during which they were logged."""

    def emit(self, record: logging.LogRecord) -> None:
        sandbox = current_outside()
        if isinstance(sandbox, Sandbox):
            sandbox.log.append(f"{record.levelname}: {record.getMessage()}")


@contextlib.contextmanager
def sandbox_folder() -> Iterator[Path]:
    """Yield a folder for the data of all tests, which the settings of the process point to in the meantime."""
    names = ("DISCUSSION_DIRECTORY", "USER_LEVEL_SQLITE_DIRECTORY", "LOGGING_DIRECTORY", "USERS")
    before = {name: getattr(instance, name) for name in names}
    handler = _TestLog(logging.WARNING)
    root = logging.getLogger()
    # On Windows, a file that a workflow left open cannot be deleted, which must not fail the tests.
    with tempfile.TemporaryDirectory(prefix="wilmer-test-", ignore_cleanup_errors=True) as name:
        folder = Path(os.path.realpath(name))
        root.addHandler(handler)
        try:
            # Each test has its own folders; these are for what belongs to no request.
            instance.DISCUSSION_DIRECTORY = str(folder / "discussions")
            instance.USER_LEVEL_SQLITE_DIRECTORY = str(folder / "locks")
            instance.LOGGING_DIRECTORY = str(folder / "logs")
            instance.USERS = None
            yield folder
        finally:
            root.removeHandler(handler)
            for key, value in before.items():
                setattr(instance, key, value)


# -- the recorded run --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NodeRun:
    """One node that ran.

    Attributes:
        output: None if it delivered none.
        endpoint: its endpoint as the log names it: the last one that answered, or would have; "" for none.
    """

    workflow: str
    title: str
    output: str | None
    endpoint: str

    @property
    def name(self) -> str:
        return f"{self.workflow}/{self.title}"

    def is_meant_by(self, name: str) -> bool:
        return is_title(name, self.workflow, self.title)


class Recorder(RunRecorder):
    """Records the run of one test, and tells its nodes in an order that does not depend on threads.

    Attributes:
        late_failures: nodes, as ``Workflow/title``, with the errors that they raised after the answer of their run.
            Only the log shows these.
    """

    def __init__(self) -> None:
        super().__init__(RunRing())
        self.late_failures: list[tuple[str, BaseException]] = []
        # By the id of the node's span.
        self._endpoints: dict[int, str] = {}

    def node_finished(self, record: RunRecord, info: NodeExecutionInfo) -> None:
        span = self._runs[record.run.request_id].nodes[record.run.workflow_id, info.node_index]
        self._endpoints[span.id] = info.endpoint_name
        super().node_finished(record, info)

    def node_failed(self, record: RunRecord, index: int, node_type: str, name: str, error: BaseException) -> None:
        # A lock that is held ends the run on purpose.
        if index - 1 > find_responder(record.run.nodes) and not isinstance(error, EarlyTerminationException):
            title = node_type if name == UNNAMED else name
            self.late_failures.append((f"{record.run.workflow_name}/{title}", error))
        super().node_failed(record, index, node_type, name, error)

    def nodes(self) -> list[NodeRun]:
        """Return all nodes that ran, in the order of their file, each followed by the nodes that it started."""
        return [node for run in self._runs.values() for node in self._below(SpanTree(run.spans), None)]

    def _below(self, tree: SpanTree, around: Span | None) -> Iterator[NodeRun]:
        # Nodes that ran in parallel may have started in any order.
        for span in sorted(tree.children(around), key=lambda span: number(span.attributes.get("node.index")) or 0):
            if span.kind == "node" and around is not None:
                output = text_of(span.texts["output"]) if "output" in span.texts else None
                yield NodeRun(around.name, span.name, output, self._endpoints.get(span.id, ""))
            yield from self._below(tree, span)

    def caller(self) -> tuple[str, str]:
        """Return workflow and title of the node that this thread runs; two empty strings outside a node."""
        site = current_site()
        if site is None:
            return "", ""
        # A thread that a script has left behind may call after its node.
        node = self._around(self._runs[site.request_id])
        return site.workflow_name, site.node_name if node is None else node.name


def text_of(output: object) -> str:
    """Return an output as tests see it: with real braces, and with tool calls as JSON on a separate line."""
    return restore_braces(output_text(output))
