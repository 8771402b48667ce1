"""KoboldCpp's own API, for SillyTavern's KoboldAI Classic and other front-ends of the Kobold family."""

from __future__ import annotations

from functools import partial
from weakref import WeakValueDictionary

from flask import Flask, Response
from flask import request as http

from Middleware.api import api_helpers
from Middleware.api.answers.answer import FinishedAnswer
from Middleware.api.answers.stream_renderers import KoboldStream
from Middleware.api.edge.client_addresses import is_same_peer, peer_of
from Middleware.api.handlers.base.base_api_handler import BaseApiHandler, read_json_body
from Middleware.api.requests.messages import generate_messages
from Middleware.api.running.running_requests import running_requests
from Middleware.common.constants import KOBOLD_GENERATE
from Middleware.exceptions import ClientError
from Middleware.models.process import process
from Middleware.models.request_context import RequestContext
from Middleware.services.response_builder_service import ResponseBuilderService
from Middleware.utilities import config_utils
from Middleware.utilities.text_utils import rough_estimate_token_length

# Front-ends switch on stop words, streaming and aborting by these.
UNITED_VERSION, KOBOLDCPP_VERSION = "1.2.5", "1.100"
# KoboldCpp's name for no model.
NO_MODEL = "inactive"


def _streams() -> WeakValueDictionary[str, KoboldStream]:
    """The streams that are under way, by the ids of their requests."""
    return WeakValueDictionary()


class KoboldApiHandler(BaseApiHandler):
    """Routes below ``/api/v1`` and ``/api/extra``. A request names no model: the user is the only one, or the key's."""

    def __init__(self) -> None:
        self.builder = ResponseBuilderService()

    def register_routes(self, app: Flask) -> None:
        for path, value in (
            ("v1/info/version", {"result": UNITED_VERSION}),
            ("extra/version", {"result": "KoboldCpp", "version": KOBOLDCPP_VERSION}),
        ):
            app.add_url_rule(
                f"/api/{path}", f"kobold {path}", partial(self.listing, partial(dict, value)), methods=["GET"]
            )
        for path, answer, methods in (
            ("v1/model", self._model, ["GET"]),
            ("v1/config/max_context_length", self._window, ["GET"]),
            ("extra/true_max_context_length", self._window, ["GET"]),
            ("extra/abort", self._abort, ["POST"]),
            ("extra/tokencount", self._token_count, ["POST"]),
            ("extra/generate/check", self._check, ["GET", "POST"]),
        ):
            app.add_url_rule(f"/api/{path}", f"kobold {path}", partial(self.listing, answer), methods=methods)
        for path, stream in (("v1/generate", False), ("extra/generate/stream", True)):
            app.add_url_rule(
                f"/api/{path}",
                f"kobold {path}",
                partial(self.serve, KOBOLD_GENERATE, partial(self._generate, stream=stream)),
                methods=["POST"],
            )

    # -- without a workflow --------------------------------------------------------------------------------------
    @staticmethod
    def _model() -> dict[str, object]:
        return {"result": next(iter(api_helpers.visible_model_ids()), NO_MODEL)}

    def _window(self) -> dict[str, object]:
        return {"value": config_utils.context_length_for_clients(str(self._model()["result"]))}

    @staticmethod
    def _token_count() -> dict[str, object]:
        prompt = read_json_body().get("prompt")
        if not isinstance(prompt, str):
            raise ClientError("The 'prompt' field must be a text.")
        return {"value": rough_estimate_token_length(prompt), "ids": []}

    @staticmethod
    def _abort() -> dict[str, object]:
        """Cancel all runs of the client. Front-ends send no body with it."""
        for request in _running():
            request.cancel_scope.cancel("its client has sent an abort")
        return {"success": "true"}

    @staticmethod
    def _check() -> dict[str, object]:
        """Return the text of the client's newest stream so far; "" without a stream."""
        streams = process().one(_streams)
        newest = next(
            (stream for request in reversed(_running()) if (stream := streams.get(request.request_id)) is not None),
            None,
        )
        return {"results": [{"text": newest.so_far if newest is not None else ""}]}

    # -- answers -------------------------------------------------------------------------------------------------
    def _generate(self, context: RequestContext, body: dict[str, object], stream: bool) -> Response:
        messages = generate_messages(body)
        context.stream = stream

        def renderer() -> KoboldStream:
            made = process().one(_streams)[context.request_id] = KoboldStream()
            return made

        def whole(answer: FinishedAnswer) -> dict[str, object]:
            return self.builder.build_kobold_response(answer.text, answer.finish_reason)

        return self.run(context, messages, renderer, whole)


def _running() -> list[RequestContext]:
    """Return the requests of the current client to this API that have no answer yet, oldest first.

    Those are the ones with its key; without a key, those of the same peer, as anyone may send none.
    """
    key, peer = api_helpers.extract_api_key(), peer_of(http.environ)
    running = running_requests().of_client(KOBOLD_GENERATE, key)
    return [request for request in running if key is not None or is_same_peer(request.peer, peer)]
