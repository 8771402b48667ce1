"""The calls about settings: what is kept, for how long, and what was changed."""

from __future__ import annotations

from Middleware.addons.console.calls import Call, ConsoleError, Role, Routes
from Middleware.common.constants import VERSION

CHANGES = 200


def register(routes: Routes) -> None:
    routes.add("GET", "settings", Role.OPERATOR, show)
    routes.add("PUT", "settings", Role.OPERATOR, change)


def show(call: Call) -> dict[str, object]:
    records = call.records
    return {
        **records.settings.values(),
        "used": records.store.reader.used(),
        "dropped": records.store.dropped(),
        "version": VERSION,
        "changes": _changes(call),
        "folder": records.folder.path,
        "mode": records.mode,
    }


def change(call: Call) -> dict[str, object]:
    if not call.body:
        raise ConsoleError(400, "The body names no setting.")
    try:
        call.records.settings.change(call.body)
    except OSError as error:
        raise ConsoleError(
            500, f"The settings cannot be written: {error.strerror or type(error).__name__}.", where="settings.json"
        ) from None
    call.records.folder.remove_old_exports(call.records.settings.current().days)
    return show(call)


def _changes(call: Call) -> list[dict[str, object]]:
    """Return the saved changes of configuration files, newest first; none if the index cannot be read."""
    import sqlite3

    try:
        with call.records.store.index() as index:
            rows = index.execute(
                "SELECT at, session, path, what, backup FROM change ORDER BY n DESC LIMIT ?", (CHANGES,)
            ).fetchall()
    except (sqlite3.Error, OSError):
        return []
    return [dict(zip(("at", "who", "path", "what", "backup"), row, strict=True)) for row in rows]
