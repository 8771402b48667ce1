"""The calls of the Playground: a real request, as a chat program would send it, with the session's key."""

from __future__ import annotations

from typing import Any

from Middleware.addons.console.calls import Call, ConsoleError, Forward, Role, Routes
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.utilities import config_utils
from Middleware.utilities.discussions.discussion_id import with_discussion_id
from Middleware.utilities.files.path_utils import is_storable_name

CHAT_PATH = "/v1/chat/completions"
KIND = "playground"


def register(routes: Routes) -> None:
    routes.add("GET", "playground", Role.OWN, models)
    routes.add("POST", "playground", Role.OWN, send)


def models(call: Call) -> dict[str, list[dict[str, str]]]:
    """Return the models that the session's clients see."""
    users = call.session.users
    with request_scope(RequestContext()):
        names = config_utils.model_ids()
    # With one user, the names of models do not begin with it.
    everybody = users is None or len(config_utils.configured_users()) <= 1
    return {"models": [{"id": name} for name in names if everybody or name.partition(":")[0] in (users or ())]}


def send(call: Call) -> Forward:
    body = call.checked_body("model", "messages", "discussion", "stream")
    messages, discussion = body.get("messages"), body.get("discussion") or ""
    if not isinstance(messages, list) or not messages or not all(isinstance(one, dict) for one in messages):
        raise ConsoleError(400, "'messages' is a list of messages with 'role' and 'content'.", where="messages")
    if not isinstance(discussion, str) or (discussion and not is_storable_name(discussion)):
        raise ConsoleError(400, "This discussion id cannot be the name of a folder.", where="discussion")
    sent: dict[str, Any] = {"messages": messages, "stream": body.get("stream", True)}
    if body.get("model"):
        sent["model"] = body["model"]
    if discussion:
        sent["messages"] = with_discussion_id(messages, discussion)
    return Forward(CHAT_PATH, sent, KIND)
