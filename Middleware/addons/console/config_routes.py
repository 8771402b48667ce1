"""The routes of the Configuration page: files, their findings and older versions, completion, and saving."""

from __future__ import annotations

from Middleware.addons.console.calls import Call, ConsoleError, Role, Routes
from Middleware.addons.console.command_process import Turns
from Middleware.addons.console.editing.editor import ConfigEditor
from Middleware.models.process import process


def check_turns() -> Turns:
    """Return whose turn it is to check the whole configuration."""
    return Turns()


def register(routes: Routes) -> None:
    """Add the routes."""
    routes.add("GET", "config/files", Role.OPERATOR, files)
    routes.add("GET", "config/file", Role.OPERATOR, file, query=("path",))
    routes.add("GET", "config/history", Role.OPERATOR, history, query=("path", "version"))
    routes.add("POST", "config/check", Role.OPERATOR, check)
    routes.add("POST", "config/assist", Role.OPERATOR, assist)
    routes.add("POST", "config/check-all", Role.OPERATOR, check_all)
    routes.add("PUT", "config/file", Role.OPERATOR, save, edit=True)


def files(call: Call) -> object:
    """Return all files that the program reads, each with its kind."""
    return _editor(call).files()


def file(call: Call) -> object:
    """Return a file without its secrets."""
    return _editor(call).file(_path(call))


def history(call: Call) -> object:
    """Return the older versions of a file, or with ``version`` the text of one."""
    version = call.query.get("version")
    if version is not None and not version.isdecimal():
        raise ConsoleError(400, "The version must be a number of the list of versions.", where="version")
    return _editor(call).history(_path(call), int(version) if version is not None else None)


def check(call: Call) -> object:
    """Return the findings about a text that is not saved."""
    body = call.checked_body("path", "text")
    return _editor(call).check(_text(body, "path"), _text(body, "text"))


def assist(call: Call) -> object:
    """Return what may be written at a place, and what stands there."""
    body = call.checked_body("path", "text", "offset")
    text, offset = _text(body, "text"), body.get("offset")
    if not isinstance(offset, int) or isinstance(offset, bool) or offset < 0:
        raise ConsoleError(400, "The field must be a number from 0 on.", where="offset")
    return _editor(call).assist(_text(body, "path"), text, offset)


def check_all(call: Call) -> object:
    """Return the findings about the whole configuration, as ``check --json`` prints them."""
    call.checked_body()
    with process().one(check_turns).taken("Another check of all files"):
        return _editor(call).check_all()


def save(call: Call) -> object:
    """Save a file, and return it as it is then."""
    body = call.checked_body("path", "text", "base", "confirm")
    return _editor(call).save(
        _text(body, "path"),
        _text(body, "text"),
        _text(body, "base"),
        _text({"confirm": "", **body}, "confirm"),
        call.session.id,
    )


def _editor(call: Call) -> ConfigEditor:
    return ConfigEditor(call.records.folder, call.records.store)


def _path(call: Call) -> str:
    path = call.query.get("path", "")
    if not path:
        raise ConsoleError(400, "The query must name a file: path=Users/demo.json.", where="path")
    return path


def _text(body: dict[str, object], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str):
        raise ConsoleError(400, "The field must be a text.", where=name)
    return value
