"""The listener that prints what happens in a request: route, nodes, prompts, outputs, calls and times."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

from Middleware.addons.talk.terminal_writer import TerminalWriter
from Middleware.llmapis.handlers.base.backend_call import Prompt
from Middleware.models.llm_call import LlmCallRecord, current_site
from Middleware.models.request_context import RequestContext
from Middleware.models.run_step import Step
from Middleware.utilities.text_utils import counted, restore_braces
from Middleware.workflows.events import EngineListener, RunRecord
from Middleware.workflows.models.execution_context import NodeExecutionInfo

# A folded text has this many lines, each this long: the answers of ten nodes fit on two screens.
FOLDED_LINES = 3
FOLDED_WIDTH = 110
# Prompts of workflows that call each other are indented by this much for each of them.
INDENT = "  "


class Trace(EngineListener):
    """Prints events as they come. ``full``: whole prompts and outputs, instead of their beginnings."""

    def __init__(self, terminal: TerminalWriter, full: bool = False) -> None:
        self._terminal = terminal
        self._full = full
        self._lock = threading.Lock()
        self._routes: set[str] = set()
        # By request: how many of its branches have been printed.
        self._branches: dict[str, int] = {}
        # By request, workflow and node: how deep the workflow is nested.
        self._depths: dict[tuple[str, str, int], int] = {}

    def run_started(self, record: RunRecord) -> None:
        request, run = record.run.request, record.run
        with self._lock:
            # A categorization runs before the route is known.
            is_new = bool(request.route) and request.request_id not in self._routes
            if is_new:
                self._routes.add(request.request_id)
        if is_new:
            self._print(0, f"route {request.route}")
        self._new_branches(record, _depth(record))
        self._print(
            _depth(record),
            f"workflow {run.folder}/{run.workflow_name}" if run.folder else f"workflow {run.workflow_name}",
        )

    def node_started(self, record: RunRecord, index: int, node_type: str, name: str) -> None:
        with self._lock:
            self._depths[record.run.request_id, record.run.workflow_name, index] = _depth(record)
        self._print(_depth(record), f"> node {index} {node_type} '{name}'")

    def llm_prompt(self, call: LlmCallRecord, prompt: Prompt) -> None:
        depth = self._depths.get((call.request_id, call.workflow_name, call.node_index), 0)
        model = f", model {call.model}" if call.model else ""
        self._print(depth + 1, f"calls {call.endpoint}{model}")
        for role, text in _parts(prompt):
            self._fold(depth + 1, role, text)

    def llm_call_finished(self, call: LlmCallRecord) -> None:
        depth = self._depths.get((call.request_id, call.workflow_name, call.node_index), 0)
        first = call.seconds_to_first_token
        parts = [
            f"{call.endpoint} {'stopped' if call.stopped else 'answered'} after {call.seconds:.2f} s",
            *([f"first token after {first:.2f} s"] if first is not None else []),
            *([counted(call.prompt_tokens, "prompt token")] if call.prompt_tokens is not None else []),
            *([f"{call.cached_tokens} of them cached"] if call.cached_tokens is not None else []),
            *([counted(call.completion_tokens, "token")] if call.completion_tokens is not None else []),
            *([f"in place of {', '.join(call.failed_endpoints)}"] if call.failed_endpoints else []),
        ]
        self._print(depth + 1, ", ".join(parts))

    def llm_call_failed(self, call: LlmCallRecord, error: BaseException) -> None:
        depth = self._depths.get((call.request_id, call.workflow_name, call.node_index), 0)
        self._print(depth + 1, f"{call.endpoint} failed after {call.seconds:.2f} s: {error}")

    def step_started(self, request: RequestContext, step: Step) -> None:
        arguments = step.texts.get("arguments")
        if step.kind == "tool" and arguments is not None:
            self._fold(self._depth_of_site() + 1, f"calls {step.name}", restore_braces(_called_with(arguments)))

    def node_delivered(self, record: RunRecord, index: int, output: object) -> None:
        self._new_branches(record, _depth(record) + 1)
        self._fold(_depth(record) + 1, f"output of node {index}", restore_braces("" if output is None else str(output)))

    def node_finished(self, record: RunRecord, info: NodeExecutionInfo) -> None:
        self._print(_depth(record), f"< node {info.node_index} after {info.execution_time_seconds:.2f} s")

    def node_failed(self, record: RunRecord, index: int, node_type: str, name: str, error: BaseException) -> None:
        self._print(_depth(record), f"< node {index} failed: {type(error).__name__}: {error}")

    def request_finished(self, request: RequestContext) -> None:
        with self._lock:
            self._routes.discard(request.request_id)
            self._branches.pop(request.request_id, None)
            self._depths = {key: depth for key, depth in self._depths.items() if key[0] != request.request_id}

    def _depth_of_site(self) -> int:
        """Return how deep the workflow is nested for which this thread works."""
        site = current_site()
        return self._depths.get((site.request_id, site.workflow_name, site.node_index), 0) if site is not None else 0

    def _new_branches(self, record: RunRecord, depth: int) -> None:
        """Print the branches taken since the last call. The workflow of a branch starts after it was chosen."""
        request = record.run.request
        with self._lock:
            new = request.branches[self._branches.get(request.request_id, 0) :]
            self._branches[request.request_id] = len(request.branches)
        for branch in new:
            self._print(depth, f"takes {branch}")

    def _fold(self, depth: int, title: str, text: str) -> None:
        for number, line in enumerate(_folded(text, self._full)):
            self._print(depth, f"{title}: {line}" if not number else f"{INDENT}{line}")

    def _print(self, depth: int, text: str) -> None:
        self._terminal.note(f"{INDENT * depth}{text}")


def _depth(record: RunRecord) -> int:
    return max(0, len(record.run.chain) - 1)


def _called_with(arguments: object) -> str:
    """Return the arguments of a tool for a reader: a request by its method and address, else as JSON."""
    if isinstance(arguments, str):
        return arguments
    if isinstance(arguments, dict) and {"method", "url"} <= arguments.keys():
        return f"{arguments['method']} {arguments['url']}\n{arguments.get('body') or ''}".rstrip()
    return json.dumps(arguments, ensure_ascii=False, default=str)


def _parts(prompt: Prompt) -> Iterator[tuple[str, str]]:
    """Yield the role and the text of each part of a prompt."""
    for role, text in (("system", prompt.system_prompt), ("prompt", prompt.prompt)):
        if text:
            yield role, restore_braces(text)
    for message in prompt.conversation or ():
        content = message.get("content")
        yield str(message.get("role")), restore_braces(content if isinstance(content, str) else str(content))


def _folded(text: str, full: bool) -> Iterator[str]:
    """Yield the lines of a text, or its first ones and how much is left out."""
    lines = text.strip().splitlines() or ["(empty)"]
    if full:
        yield from lines
        return
    for line in lines[:FOLDED_LINES]:
        yield line if len(line) <= FOLDED_WIDTH else f"{line[:FOLDED_WIDTH]}... ({len(line):,} characters)"
    if len(lines) > FOLDED_LINES:
        yield f"... ({len(lines) - FOLDED_LINES} more lines)"
