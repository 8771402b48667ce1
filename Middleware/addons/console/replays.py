"""The replay of a recorded run: the same request through today's configuration, as a trial.

In it, LLM calls are real, and what would read or change something answers from the recording.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from wsgiref.types import StartResponse, WSGIEnvironment

from Middleware.addons.records.analysis.comparison import chain_of, title_of, type_of
from Middleware.addons.records.analysis.critical_path import SpanTree
from Middleware.addons.records.model import RunDocument, Span, number
from Middleware.addons.records.recorded_request import recorded_request
from Middleware.addons.workflow_tests.sandbox import FolderTrial
from Middleware.api.answers.answer import StreamingAnswer, WholeAnswer, estimated_usage
from Middleware.api.answers.stream_renderers import OpenAIChatStream
from Middleware.api.api_helpers import parse_model_field
from Middleware.api.concurrency_middleware import place_of, wait_for_slot
from Middleware.api.errors import log_error
from Middleware.api.handlers.base.base_api_handler import is_private
from Middleware.api.running.running_requests import running_requests
from Middleware.api.workflow_gateway import start_user_prompt
from Middleware.common.constants import OPENAI_CHAT
from Middleware.exceptions import WilmerError
from Middleware.models.llm_call import current_site
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.services.memory.discussion_keys import discussion_keys
from Middleware.services.response_builder_service import current_model_name
from Middleware.services.timestamp_service import FILE_NAME
from Middleware.utilities import config_utils
from Middleware.utilities.discussions.discussion_folder import stored_discussion
from Middleware.workflows.handlers.base.base_workflow_node_handler import BaseHandler
from Middleware.workflows.models.execution_context import ExecutionContext

if TYPE_CHECKING:
    from Middleware.addons.console.calls import Call
# What a node of a replay would do, for the message about one that was not recorded.
_ACTS = {"reads": "reads data", "writes": "writes data", "outside": "may act outside of this program"}


def start_replay(
    call: Call, document: RunDocument, recording: Recording, start: RecordedNode | None, also: Collection[str]
) -> str:
    """Begin a replay on a thread of its own and return its id. It passes the gate as a client's request does."""
    request = repeating_request(call, document, "replay", None if start is None else start.span.id)
    folder = Path(tempfile.mkdtemp(prefix="wilmer-replay-"))
    request.on_end = partial(shutil.rmtree, folder, ignore_errors=True)
    try:
        with request_scope(request):
            user = config_utils.get_current_username()
            known = _stored_times(document, request)
            trial = ReplayTrial(recording, folder / "trial", user, start, also)
            _copy_times(known, trial.discussions_root)
        request.outside = trial
        # Read now, so that the caller gets an error about it.
        sent = recorded_request(document)
        messages: Any = [dict(message) for message in sent.messages]
        tools: Any = [dict(tool) for tool in sent.tools] or None
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    request.has_tools = bool(tools)

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        with request_scope(request):
            return _answer(
                request,
                environ,
                lambda: start_user_prompt(request, messages, request.stream, request.api_key, tools, sent.tool_choice),
            )

    call.application.run_in_background(call.environ, request, answer)
    return request.request_id


def repeating_request(call: Call, document: RunDocument, kind: str, span: int | None) -> RequestContext:
    """Return a request that repeats a run, or a part of it, for its user."""
    facts = document.facts
    request = call.request or RequestContext(key_name=call.session.key_name)
    # Data of a discussion is that of the key with which the run was made.
    key = call.session.key
    request.api_key = key if facts["key_hash"] in call.viewer.key_names else None
    request.api_type, request.stream = OPENAI_CHAT, facts["stream"]
    request.kind, request.origin = kind, (facts["id"], span)
    request.asked_model = facts["model"] or ""
    with request_scope(request):
        user, request.workflow_override = parse_model_field(facts["model"])
        request.user = facts["user"] or user
        # A run that was private stays so, whatever the settings say today.
        request.redact = facts["private"] or is_private(request)
        request.model = current_model_name()
    return request


def _stored_times(document: RunDocument, request: RequestContext) -> tuple[bytes, Path] | None:
    """Return what is stored of the times of the run's messages, and its path below a folder of discussions."""
    discussion = document.facts["discussion"]
    if not discussion:
        return None
    keys = discussion_keys(request.api_key)
    # It may have been removed a moment ago, and a trial can do without it.
    with contextlib.suppress(ValueError, OSError):
        stored = stored_discussion(discussion, keys.key_hash, keys.encryption_key).read(FILE_NAME)
        if stored is not None:
            return stored, Path(*filter(None, (keys.key_hash, discussion)), FILE_NAME)
    return None


def _copy_times(known: tuple[bytes, Path] | None, discussions: str) -> None:
    """Give the trial a copy of the times, which are part of prompts, and to which a run adds some."""
    if known is None:
        return
    target = Path(discussions, known[1])
    target.parent.mkdir(parents=True)
    with contextlib.suppress(OSError):
        target.write_bytes(known[0])


def _answer(request: RequestContext, environ: WSGIEnvironment, begin: Any) -> Iterable[bytes]:
    """Run the engine as for a client that does not read its answer; nodes behind the answer run when it is closed."""
    place = place_of(environ)

    def start() -> Iterator[object]:
        wait_for_slot(place)
        items: Iterator[object] = begin()
        return items

    running_requests().begin(request, None)
    try:
        if request.stream:
            renderer = OpenAIChatStream(request.model)
            return StreamingAnswer(request, start, renderer, lambda text: estimated_usage(request, [], text)).begin(0)
        answer = WholeAnswer(request, start)
        answer.value()
    # The run shows the error; no client waits for an answer.
    except BaseException as error:
        log_error(error, request, "before the answer")
        return []
    return [] if answer.complete() else _EmptyBody(answer)


class _EmptyBody:
    """The empty body of a complete answer."""

    def __init__(self, answer: WholeAnswer) -> None:
        self._answer = answer

    def __iter__(self) -> Iterator[bytes]:
        return iter(())

    def close(self) -> None:
        self._answer.close()


# -- the recording -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NodePlace:
    """A node of a run: the workflows around it, outermost first (``me/A > me/B``), its index, and which of its runs."""

    workflow: str
    node: int
    occurrence: int


@dataclass(frozen=True)
class RecordedNode:
    """One recorded run of a node. ``inside``: the ids of the nodes around it."""

    span: Span
    place: NodePlace
    inside: frozenset[int]

    @property
    def title(self) -> str:
        return title_of(self.span)

    @property
    def type(self) -> str:
        return type_of(self.span)

    @property
    def delivered(self) -> bool:
        return self.span.status in ("ok", "stand-in")

    @property
    def output(self) -> object:
        return self.span.texts.get("output", "")


class Recording:
    """The nodes of a recorded run, found again by those of its replay, each to be taken once. Thread-safe.

    Attributes:
        nodes: in the order of their starts.
    """

    def __init__(self, document: RunDocument) -> None:
        tree = SpanTree(document.spans)
        seen: Counter[tuple[str, int]] = Counter()
        self.nodes: list[RecordedNode] = []
        for span in document.spans:
            if span.kind == "node":
                key = chain_of(tree, span), number(span.attributes.get("node.index")) or 0
                seen[key] += 1
                self.nodes.append(RecordedNode(span, NodePlace(*key, seen[key]), _nodes_around(tree, span)))
        self._lock = threading.Lock()
        self._left = {node.span.id: node for node in self.nodes}

    def at(self, place: NodePlace) -> RecordedNode | None:
        return next((node for node in self.nodes if node.place == place), None)

    def take(self, chain: Iterable[str], index: int, title: str, node_type: str) -> RecordedNode | None:
        """Return the next recorded run of a node, which is not returned again; None after the last.

        A node that has moved since within its workflow is recognised by its title and type.
        """
        workflow = _chain_text(chain)
        with self._lock:
            here = [node for node in self._left.values() if node.place.workflow == workflow]
            same = [node for node in here if (node.title, node.type) == (title, node_type)]
            found = next((node for node in same if node.place.node == index), same[0] if same else None)
            if found is not None:
                del self._left[found.span.id]
            return found

    def pass_over(self, node: RecordedNode) -> None:
        """Take all nodes inside a node that does not run."""
        with self._lock:
            self._left = {key: left for key, left in self._left.items() if node.span.id not in left.inside}


def _chain_text(chain: Iterable[str]) -> str:
    """Return the workflows around a node as one text; those directly below ``Workflows`` have no folder."""
    return " > ".join(name.lstrip("/") for name in chain)


def _nodes_around(tree: SpanTree, span: Span) -> frozenset[int]:
    found = set()
    around = tree.parent(span)
    while around is not None:
        if around.kind == "node":
            found.add(around.id)
        around = tree.parent(around)
    return frozenset(found)


# -- the trial ---------------------------------------------------------------------------------------------------------


class NotRecordedError(WilmerError):
    """A node that acts has no recorded output."""


class ReplayTrial(FolderTrial):
    """The replacement for the outside world in a replay.

    Args:
        start: the node with which the replay begins; those before it answer from the recording. None: the beginning.
        also: the names of nodes that act after all, as ``name_of_node`` gives them.
    """

    def __init__(
        self,
        recording: Recording,
        folder: Path,
        user: str,
        start: RecordedNode | None = None,
        also: Collection[str] = (),
    ) -> None:
        super().__init__(folder, user)
        self._recording = recording
        self._start = start
        self._also = frozenset(also)

    def stub(self, context: ExecutionContext) -> object | None:
        """Return the recorded output of a node before the start, or of one that acts; None for any other.

        Raises NotRecordedError for a node that acts and has none.
        """
        site = current_site()
        assert site is not None
        handler = context.node_handlers[context.node_type]
        title = context.node_name if context.node_name != "N/A" else context.node_type
        recorded = self._recording.take(site.chain, site.node_index, title, context.node_type)
        if recorded is not None and recorded.delivered and self._is_before(recorded):
            return self._output(recorded)
        if not is_replaced(handler) or name_of_node(site.workflow_name, title) in self._also:
            return None
        if recorded is None or not recorded.delivered:
            raise NotRecordedError(
                f"the replay stops at node '{site.workflow_name}/{title}' ({context.node_type}): it "
                f"{_ACTS.get(handler.acts, 'acts')}, and the run has no output of it. 'Also run' lets it act"
            )
        return self._output(recorded)

    def _output(self, recorded: RecordedNode) -> object:
        self._recording.pass_over(recorded)
        output = recorded.output
        return "" if output is None else output

    def _is_before(self, recorded: RecordedNode) -> bool:
        start = self._start
        return start is not None and recorded.span.id < start.span.id and recorded.span.id not in start.inside


def is_replaced(handler: type[BaseHandler] | BaseHandler) -> bool:
    """Return whether a node of this type does not run in a replay: it reads or changes something beyond the run."""
    return handler.acts != "no" and not handler.runs_workflow


def name_of_node(workflow: str, title: str) -> str:
    """Return the name by which ``also`` calls a node."""
    return f"{workflow}/{title}"
