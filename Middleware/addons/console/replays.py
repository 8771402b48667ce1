"""The replay of a recorded run: the same request through today's configuration, as a trial."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from wsgiref.types import StartResponse, WSGIEnvironment

from Middleware.addons.console.replay_recording import RecordedNode, Recording
from Middleware.addons.console.replay_trial import ReplayTrial
from Middleware.addons.records.model import RunDocument
from Middleware.addons.records.recorded_request import recorded_request
from Middleware.api.answers.answer import StreamingAnswer, WholeAnswer, estimated_usage
from Middleware.api.answers.stream_renderers import OpenAIChatStream
from Middleware.api.api_helpers import parse_model_field
from Middleware.api.concurrency_middleware import place_of, wait_for_slot
from Middleware.api.errors import log_error
from Middleware.api.handlers.base.base_api_handler import is_private
from Middleware.api.running.running_requests import running_requests
from Middleware.api.workflow_gateway import start_user_prompt
from Middleware.common.constants import OPENAI_CHAT
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.services.memory.discussion_keys import discussion_keys
from Middleware.services.response_builder_service import current_model_name
from Middleware.services.timestamp_service import FILE_NAME
from Middleware.utilities import config_utils
from Middleware.utilities.conversations.discussion_folder import stored_discussion
from Middleware.utilities.encryption_utils import hash_api_key

if TYPE_CHECKING:
    from Middleware.addons.console.calls import Call


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
    request.api_key = key if key is not None and hash_api_key(key) == facts["key_hash"] else None
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
