"""Which server or model a person means who types a name, or part of one."""
from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from typing import TypeVar
from urllib.parse import urlsplit

from Middleware.cli.errors import StartError
from Middleware.cli.init.output import SHOWN_MODELS, name_shown
from Middleware.cli.init.servers import LOOPBACK, Model, Server, normal_address, printable

SHORTEST_PART = 3  # of a name, in characters
_Item = TypeVar("_Item")
Names = Callable[[_Item], tuple[str, ...]]
"""The names of an item; as many for each."""
Pair = tuple[Server, Model]


def named_model(servers: Sequence[Server], name: str) -> Pair:
    """The first server that has this model, and the model; Ollama's ``:latest`` may be left out. Raises StartError."""
    found = find_named(pairs_of(servers), name, _names_of_second)
    if found:
        return found[0]
    refusal = cannot_chat(servers, name)
    raise StartError((refusal or f"No server that was found has a model '{printable(name[:100])}'." +
                      _suggestion(servers, name)) + " Nothing was written.")


def _suggestion(servers: Sequence[Server], name: str) -> str:
    known = [name_shown(model) for server in servers for model in server.models]
    near = [name_shown(model) for _, model in find_by_part(pairs_of(servers), name, _names_of_second)] or \
        difflib.get_close_matches(name, known, n=1)
    if near:
        return " Did you mean " + " or ".join(f"'{one}'" for one in near[:SHOWN_MODELS]) + "?"
    return f" There are: {listed(known, SHOWN_MODELS)}." if known else ""


def cannot_chat(servers: Sequence[Server], name: str) -> str:
    """A sentence for the name of a model that is for something else; empty for any other."""
    others = [other for server in servers for other in server.not_for_chat]
    found = find_named(others, name, lambda other: (other, other.removesuffix(":latest")))
    return f"'{found[0]}' is a model for embeddings or the like and cannot chat." if found else ""


def servers_named(servers: Sequence[Server], text: str) -> list[tuple[Server, Model | None]]:
    """The servers of this kind, port or address; else those that have a model of this name, each with the model."""
    found = find_named(servers, _as_address(text), _names_of_server) or find_named(servers, text, _names_of_server)
    if found:
        return [(server, None) for server in found]
    pairs = pairs_of(servers)
    named = find_named(pairs, text, _names_of_second) or find_by_part(pairs, text, _names_of_second)
    return [*named]


def models_named(models: Sequence[Model], text: str) -> list[Model]:
    """The model of this name, or all whose names have this part."""
    return find_named(models, text, names_of)[:1] or find_by_part(models, text, names_of)


def pairs_of(servers: Sequence[Server]) -> list[Pair]:
    return [(server, model) for server in servers for model in server.models]


def names_of(model: Model) -> tuple[str, ...]:
    """What a model is called, the most exact first; Ollama's ``:latest`` may be left out."""
    return model.name, model.name.removesuffix(":latest"), name_shown(model)


def _names_of_second(pair: Pair) -> tuple[str, ...]:
    return names_of(pair[1])


def port_of(server: Server) -> str:
    parts = urlsplit(server.address)
    return str(parts.port or (443 if parts.scheme == "https" else 80))


def _names_of_server(server: Server) -> tuple[str, ...]:
    parts = urlsplit(server.address)
    return server.address, server.kind, port_of(server), parts.hostname or ""


def _as_address(text: str) -> str:
    """What is typed, the way addresses are shown."""
    try:
        return normal_address(text).replace("://localhost", f"://{LOOPBACK}")
    except ValueError:
        return text


def find_named(items: Sequence[_Item], name: str, names: Names[_Item]) -> list[_Item]:
    """The items that fit best: by the first of their names, then by the others, then whatever the case."""
    for spell in (str, str.casefold):
        for rank in range(max((len(names(item)) for item in items), default=0)):
            found = [item for item in items if spell(names(item)[rank]) == spell(name)]
            if found:
                return found
    return []


def find_by_part(items: Sequence[_Item], part: str, names: Names[_Item]) -> list[_Item]:
    """The items with this in their first name, whatever the case. A number is none of a name: it may be a slip."""
    if len(part) < SHORTEST_PART or part.isdecimal():
        return []
    return [item for item in items if part.casefold() in names(item)[0].casefold()]


def listed(names: Sequence[str], most: int) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
