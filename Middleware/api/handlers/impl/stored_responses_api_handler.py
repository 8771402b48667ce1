"""The routes of the Responses API about responses that are under way or stored: read, delete, cancel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import TypedDict, TypeVar

from flask import Flask, Response
from flask import request as http

from Middleware.api import api_helpers
from Middleware.api.handlers.base.base_api_handler import BaseApiHandler
from Middleware.api.running.running_requests import running_requests
from Middleware.common.constants import OPENAI_RESPONSES
from Middleware.exceptions import ClientError
from Middleware.models.responses import Item, ResponseObject
from Middleware.services.response_store import (
    CLIENT_CANCELLED,
    Caller,
    ResponseStore,
    get_response_store,
    in_quotes,
    request_id_of,
)
from Middleware.utilities import config_utils
from Middleware.utilities.config.users import configured_users

T = TypeVar("T")

MAX_PAGE, PAGE = 100, 20
# A cancelled run ends in a quarter of a second, unless it is in a script, which the client does not wait for.
CANCEL_SECONDS = 2.0


class Deleted(TypedDict):
    """The answer to the deletion of a response."""

    id: str
    object: str
    deleted: bool


class ItemList(TypedDict):
    """A page of the items of a response's input."""

    object: str
    data: list[Item]
    first_id: object
    last_id: object
    has_more: bool


class StoredResponsesApiHandler(BaseApiHandler):
    """Routes below ``/v1/responses/ID``, with and without ``/v1``. None runs a workflow or waits at the gate."""

    def register_routes(self, app: Flask) -> None:
        for prefix in ("/v1/responses/<name>", "/responses/<name>"):
            for path, view, method in (
                ("", self.retrieve, "GET"),
                ("", self.delete, "DELETE"),
                ("/cancel", self.cancel, "POST"),
                ("/input_items", self.input_items, "GET"),
            ):
                app.add_url_rule(prefix + path, f"{method} {prefix}{path}", view, methods=[method])

    def retrieve(self, name: str) -> Response:
        return self._answer(_retrieve, name)

    def delete(self, name: str) -> Response:
        return self._answer(_delete, name)

    def cancel(self, name: str) -> Response:
        return self._answer(_cancel, name)

    def input_items(self, name: str) -> Response:
        return self._answer(_input_items, name)

    def _answer(self, build: Callable[[ResponseStore, Caller, str], Mapping[str, object]], name: str) -> Response:
        response = self.listing(lambda: build(get_response_store(), _caller(), name))
        # Of all that can be read by GET, only this contains text of a conversation.
        response.headers["Cache-Control"] = "no-store"
        return response


def _caller() -> Caller:
    """Return who asks. Such a request names no user: it is for all that the client's key is for."""
    users, permitted = configured_users() or [config_utils.get_current_username()], api_helpers.permitted_users()
    return Caller.of((user for user in users if permitted is None or user in permitted), api_helpers.extract_api_key())


def _retrieve(store: ResponseStore, caller: Caller, name: str) -> ResponseObject:
    if http.args.get("stream", "").lower() == "true":
        raise ClientError(
            "A stored response cannot be streamed; leave out 'stream'.", param="stream", code="unsupported_parameter"
        )
    return _known(store.response(caller, name), name)


def _delete(store: ResponseStore, caller: Caller, name: str) -> Deleted:
    if not store.delete(caller, name):
        raise _unknown(name)
    return {"id": name, "object": "response", "deleted": True}


def _known(found: T | None, name: str) -> T:
    if found is None:
        raise _unknown(name)
    return found


def _unknown(name: str) -> ClientError:
    return ClientError(
        f"There is no response{in_quotes(name)}: it was not stored, or has been deleted or forgotten.",
        HTTPStatus.NOT_FOUND,
    )


# -- cancelling --------------------------------------------------------------------------------------------------------
def _cancel(store: ResponseStore, caller: Caller, name: str) -> ResponseObject:
    """Stop the run that makes a response, wherever it is, and return what the response has become."""
    running, request_id = store.running(caller, name), request_id_of(name)
    if running is None and store.response(caller, name) is not None:
        raise ClientError("Cannot cancel a completed response.")
    if request_id is None or (running is None and not _is_arriving(caller, request_id)):
        raise _unknown(name)
    with store.awaiting(name) as awaited:
        running_requests().cancel(request_id, CLIENT_CANCELLED)
        ended = awaited.wait(CANCEL_SECONDS)
    # The engine works on something that cannot be interrupted.
    if ended is None and running is not None and running.so_far is not None:
        return {**running.so_far(), "status": "cancelled"}
    # Without either, the request had just ended, perhaps because its client has left.
    return _known(ended or store.response(caller, name), name)


def _is_arriving(caller: Caller, request_id: str) -> bool:
    """Return whether a request of the caller waits at the gate, or is read, so that its response has not begun."""
    # Before its body is read, the user of a request is unknown; its key is not.
    return any(
        request.request_id == request_id and (request.user is None or request.user in caller.users)
        for request in running_requests().of_client(OPENAI_RESPONSES, caller.api_key)
    )


# -- the items of the input --------------------------------------------------------------------------------------------
def _input_items(store: ResponseStore, caller: Caller, name: str) -> ItemList:
    order, limit, after = http.args.get("order", "desc"), api_helpers.page_limit(PAGE, MAX_PAGE), http.args.get("after")
    if limit is None:
        raise ClientError(f"'limit' must be a number from 1 to {MAX_PAGE}.", param="limit")
    if order not in ("asc", "desc"):
        raise ClientError("'order' must be 'asc' or 'desc'.", param="order")
    items = [*_known(store.items(caller, name), name)]
    if order == "desc":
        items.reverse()
    if after is not None:
        ids = [item.get("id") for item in items]
        if after not in ids:
            raise ClientError(
                "'after' must be the id of an item of this response, and it is not.",
                HTTPStatus.NOT_FOUND,
                param="after",
            )
        del items[: ids.index(after) + 1]
    page = [_shown(item) for item in items[:limit]]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0].get("id") if page else None,
        "last_id": page[-1].get("id") if page else None,
        "has_more": len(items) > limit,
    }


def _shown(item: Item) -> Item:
    """Return an item of the input in its long form: a message has a list of parts."""
    if item.get("type", "message") != "message" or not isinstance(item.get("content"), str):
        return item
    kind = "output_text" if item.get("role") == "assistant" else "input_text"
    return {**item, "type": "message", "content": [{"type": kind, "text": item["content"]}]}
