"""The calls about sign-ins and sessions."""

from __future__ import annotations

from typing import TypedDict

from Middleware.addons.console.calls import Call, ConsoleError, Role, Routes
from Middleware.addons.console.sessions import MAX_LABEL, Session, SessionLine
from Middleware.common.constants import VERSION


class SessionFacts(TypedDict):
    """A session, as the page gets it."""

    role: str
    users: list[str] | None
    expires: int | None
    mode: str
    recording: str
    version: str


class SignedIn(SessionFacts):
    """The same, with the token of a new session."""

    token: str


def register(routes: Routes) -> None:
    routes.add("POST", "session", Role.ANONYMOUS, sign_in)
    routes.add("POST", "session/proof", Role.ANONYMOUS, prove)
    routes.add("GET", "session", Role.OWN, show)
    routes.add("DELETE", "session", Role.OWN, sign_out)
    routes.add("GET", "sessions", Role.OPERATOR, listed)
    routes.add("DELETE", "sessions/ID", Role.OPERATOR, end)


def sign_in(call: Call) -> SignedIn:
    body = call.checked_body("code", "key")
    code, key = body.get("code"), body.get("key")
    given = code if key is None else key
    if (code is None) == (key is None) or not isinstance(given, str) or not given.strip():
        raise ConsoleError(400, "A sign-in needs either 'code', from a sign-in link, or 'key', an access key.")
    environ = call.environ
    token, session = call.application.sessions.sign_in(
        environ.get("REMOTE_ADDR", ""), code, key and key.strip(), _label(environ.get("HTTP_USER_AGENT", ""))
    )
    return {"token": token, **_facts(call, session)}


def prove(call: Call) -> dict[str, str]:
    """Show that this is the server that began a session, before the page sends the session's token."""
    body = call.checked_body("id", "nonce")
    name, nonce = body.get("id"), body.get("nonce")
    if not isinstance(name, str) or not isinstance(nonce, str):
        raise ConsoleError(400, "A proof needs 'id', the session's, and 'nonce', a text that was never sent before.")
    return {"proof": call.application.sessions.proof(name, nonce)}


def show(call: Call) -> SessionFacts:
    return _facts(call, call.session)


def sign_out(call: Call) -> dict[str, bool]:
    call.application.sessions.end_by_id(call.session.id)
    return {"ended": True}


def listed(call: Call) -> dict[str, list[SessionLine]]:
    return {"sessions": call.application.sessions.lines(call.session)}


def end(call: Call) -> dict[str, bool]:
    if not call.application.sessions.end_by_id(call.parts["ID"]):
        raise ConsoleError(404, "There is no such session; it may have ended in the meantime.", where="ID")
    return {"ended": True}


def _facts(call: Call, session: Session) -> SessionFacts:
    records = call.records
    return {
        "role": session.role.word,
        "users": None if session.users is None else sorted(session.users),
        "expires": session.expires,
        "mode": records.mode,
        "recording": records.settings.mode(),
        "version": VERSION,
    }


# What browsers and systems call themselves, in the order in which one contains the name of another.
_BROWSERS = (
    ("Edg", "Edge"),
    ("OPR", "Opera"),
    ("Firefox", "Firefox"),
    ("Chrome", "Chrome"),
    ("Safari", "Safari"),
    ("curl", "curl"),
    ("python", "Python"),
)
_SYSTEMS = (
    ("Android", "Android"),
    ("iPhone", "iPhone"),
    ("iPad", "iPad"),
    ("Windows", "Windows"),
    ("Mac OS", "macOS"),
    ("Linux", "Linux"),
)


def _label(agent: str) -> str:
    """Return the name of a browser for the list of sessions: ``Firefox, Linux``."""
    found = [next((name for mark, name in known if mark in agent), "") for known in (_BROWSERS, _SYSTEMS)]
    text = ", ".join(filter(None, found)) or agent.split(" ", maxsplit=1)[0]
    return "".join(letter for letter in text if letter.isprintable())[:MAX_LABEL] or "unknown program"
