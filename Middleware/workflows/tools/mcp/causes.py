"""Says in one line why something in the ``mcp`` package failed, without absolute paths."""
from __future__ import annotations

import os

LONGEST = 500


def describe(error: BaseException, command: str = "") -> str:
    """``command`` is the program of a stdio server, which an error of the operating system is about."""
    cause = _leaf(error)
    kind = type(cause).__name__
    if kind == "MCPError":
        text = str(getattr(cause, "message", cause))
        return "the server ended the connection" if text == "Connection closed" else _short(text)
    if kind == "ValidationError":
        return "the server's answer does not follow the protocol"
    if isinstance(cause, OSError) and command:
        return f"'{os.path.basename(command)}' cannot be started: {cause.strerror or kind}"
    if is_refused_connection(error):
        return "the server cannot be reached"
    return _short(f"{kind}: {cause}" if str(cause) else kind)


def is_refused_connection(error: BaseException | None) -> bool:
    """Whether no connection came about, so that the server has seen nothing."""
    return error is not None and type(_leaf(error)).__name__ in ("ConnectError", "ConnectTimeout")


def _leaf(error: BaseException) -> BaseException:
    """The most telling of grouped exceptions: not the closed connection that follows from another."""
    while isinstance(error, BaseExceptionGroup):
        inner = [_leaf(part) for part in error.exceptions]
        error = next((part for part in inner if type(part).__name__ != "MCPError"), inner[0])
    return error


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}..."
