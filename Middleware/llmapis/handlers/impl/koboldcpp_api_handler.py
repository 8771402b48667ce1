"""KoboldCpp's own dialect."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from Middleware.llmapis.addresses import KOBOLD_GENERATE, KOBOLD_STREAM, compose
from Middleware.llmapis.handlers.base.answer_forms import first_object, text_in, usage_of
from Middleware.llmapis.handlers.base.backend_call import Prompt
from Middleware.llmapis.handlers.base.base_completions_handler import BaseCompletionsHandler
from Middleware.llmapis.transport import BackendRequest
from Middleware.models.cancel_scope import GAVE_WAY
from Middleware.models.messages import Answer, Chunk, token_count
from Middleware.models.process import process
from Middleware.utilities.daemon_threads import run_in_pool

logger = logging.getLogger(__name__)

ABORT_PATH = "/api/extra/abort"
# No caller waits for an abort, but its thread must not live long.
ABORT_CONNECT_SECONDS = 2.0
ABORT_READ_SECONDS = 5.0


class CallCounter:
    """Counts the running calls of this process by server. Thread-safe.

    Any string that is the same for all calls to a server identifies it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: Counter[str] = Counter()

    @contextmanager
    def counted(self, server: str) -> Iterator[None]:
        """Count a call for as long as the block runs."""
        with self._lock:
            self._calls[server] += 1
        try:
            yield
        finally:
            with self._lock:
                self._calls[server] -= 1
                if not self._calls[server]:
                    del self._calls[server]

    def busy(self, server: str) -> bool:
        with self._lock:
            return self._calls[server] > 0


class KoboldCppApiHandler(BaseCompletionsHandler):
    """Calls ``/api/v1/generate``, for streams ``/api/extra/generate/stream``.

    KoboldCpp continues to generate for a client that disconnects before the first token, so an abort follows a
    cancelled call. It stops everything on the server, so it is sent only if no other call of this process is running.
    """

    PATH = KOBOLD_GENERATE

    def path(self, stream: bool) -> str:
        return KOBOLD_STREAM if stream else self.PATH

    def payload(self, prompt: Prompt) -> dict[str, object]:
        body = super().payload(prompt)
        # Images of presets are dropped: only those of this call count.
        body.pop("images", None)
        images = self.base64_images(self.images(prompt), "KoboldCpp")
        if images:
            body["images"] = images
        return body

    # -- answers -------------------------------------------------------------------------------------------------
    def read_event(self, body: dict[str, object], name: str | None) -> Chunk | None:
        if name not in (None, "message", "error"):
            return None
        self._raise_if_error(body, name == "error")
        finish_reason = text_in(body, "finish_reason") or None
        self.formed = self.formed or "token" in body
        if "token" not in body and finish_reason is None:
            return None
        return {"token": text_in(body, "token"), "finish_reason": finish_reason}

    def read_response(self, body: Mapping[str, object]) -> str:
        self._raise_if_error(body)
        result = first_object(body.get("results"))
        text = result.get("text")
        if not isinstance(text, str):
            raise self.no_answer(body)
        self.outcome.finish_reason = text_in(result, "finish_reason") or None
        self.outcome.usage = usage_of(
            token_count(result.get("prompt_tokens")), token_count(result.get("completion_tokens"))
        )
        return text

    def _raise_if_error(self, body: Mapping[str, object], failed: bool = False) -> None:
        detail = body.get("detail")
        error = body.get("error") or (detail.get("msg") if isinstance(detail, Mapping) else detail)
        if error or failed:
            self.raise_error_object(error or body, body)

    # -- calls and their abort -----------------------------------------------------------------------------------
    def handle_non_streaming(self, prompt: Prompt) -> Answer:
        with self._aborting():
            return super().handle_non_streaming(prompt)

    def handle_streaming(self, prompt: Prompt) -> Generator[Chunk, None, None]:
        with self._aborting():
            yield from super().handle_streaming(prompt)

    @contextmanager
    def _aborting(self) -> Iterator[None]:
        """Count the call; if it is cancelled before its end, stop the server too."""
        # Nothing will be sent.
        if self.is_cancelled:
            yield
            return
        request = BackendRequest(
            endpoint_name=self.settings.endpoint_name,
            url=compose(self.settings.base_url, ABORT_PATH, self.settings.api_path).url,
            payload={},
            headers=self.headers(),
            connect_timeout=ABORT_CONNECT_SECONDS,
            read_timeout=ABORT_READ_SECONDS,
            single_attempt=True,
            local_only=self.settings.local_only,
        )
        running = process().one(CallCounter)
        try:
            with running.counted(request.url):
                yield
        finally:
            answered = self.ended or self.closed
            if self.is_cancelled and not answered and not running.busy(request.url):
                if self._scope is not None and self._scope.reason == GAVE_WAY:
                    # The call that needs the place begins next, and would keep the abort from being sent.
                    self._abort(request)
                else:
                    run_in_pool(partial(self._abort, request), "koboldcpp-abort")

    def _abort(self, request: BackendRequest) -> None:
        # A call that started in the meantime must not be aborted.
        if process().one(CallCounter).busy(request.url):
            return
        try:
            self._transport.post_json(request)
        # No caller waits for this thread, so the error can only be logged.
        except Exception as error:
            logger.debug("Endpoint '%s' could not be aborted: %s", request.endpoint_name, error)
