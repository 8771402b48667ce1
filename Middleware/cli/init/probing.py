"""Finds out what runs at an address, by what it answers and not by its port."""
from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Mapping, Sequence

from Middleware.cli.init.asking import NothingThere, Reply, Unreachable, ask
from Middleware.cli.init.recognising import find_kind, read_models
from Middleware.cli.init.servers import LOOPBACK, LOOPBACK_IPV6, NoServer, Server

SECONDS = 2.0  # for one question to this computer
NAMED_SECONDS = 6.0  # to a server that was named, which may be far away, or busy
QUESTIONS = 3  # as many times that is the limit for all questions to one server
REFUSALS = (401, 403)
KEY_VARIABLES: Mapping[str, str] = {"https://api.openai.com": "OPENAI_API_KEY"}
KEY_VARIABLE = "WILMER_BACKEND_KEY"
"""Environment variable with the key for a server that the person has named."""

NO_LLM: Mapping[str, str] = {"WilmerAI": "is a WilmerAI itself", "AirPlay": "is the AirPlay Receiver of macOS"}

Found = Server | NoServer


class Questions:
    """Asks one server, each path once, with or without a key. ``ask`` raises Unreachable."""

    def __init__(self, address: str, seconds: float, key: str | None = None) -> None:
        self.address = address
        self.key = key
        self._seconds = seconds
        self._deadline = time.monotonic() + QUESTIONS * seconds
        self._replies: dict[str, Reply] = {}

    def ask(self, path: str) -> Reply:
        """What it answers; status 0 for a path on which it fails although others are answered."""
        if path not in self._replies:
            self._replies[path] = self._ask(path)
        return self._replies[path]

    def _ask(self, path: str) -> Reply:
        try:
            if time.monotonic() > self._deadline:
                raise Unreachable("takes too long to answer")
            return ask(self.address, path, self.key, seconds=self._seconds)
        except Unreachable:
            if not self._replies:
                raise
            return Reply(0)


def key_of(server: Server) -> str | None:
    """The key that opened a server."""
    return os.environ.get(server.key_variable, "").strip() or None if server.key_variable else None


def probe_all(addresses: Sequence[str], named: bool = False) -> list[Found]:
    """Look at all addresses at the same time; the results are in their order.

    ``named``: the person has given them, so a server that wants a key may be sent the one in the environment.
    """
    results: queue.Queue[tuple[str, Found]] = queue.Queue()
    for address in addresses:
        threading.Thread(target=lambda where: results.put((where, _probe_both(where, named))), args=(address,),
                         daemon=True).start()
    found: dict[str, Found] = {}
    deadline = time.monotonic() + 2 * QUESTIONS * (NAMED_SECONDS if named else SECONDS)
    while len(found) < len(set(addresses)):
        try:
            address, result = results.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            break
        found[address] = result
    return [found.get(address) or NoServer(address, "takes too long to answer") for address in addresses]


def _probe_both(address: str, named: bool) -> Found:
    """What runs at an address; where nothing does at this computer's IPv4 loopback, at its IPv6 one."""
    result = probe(address, named)
    other = address.replace(f"//{LOOPBACK}:", f"//{LOOPBACK_IPV6}:")
    if named or other == address or isinstance(result, Server) or not result.silent:
        return result
    on_ipv6 = probe(other)
    return on_ipv6 if isinstance(on_ipv6, Server) else result


def probe(address: str, named: bool = False) -> Found:
    """What runs at one address. A key is only sent to who was named, and only if nothing can be seen without it."""
    seconds = NAMED_SECONDS if named else SECONDS
    try:
        without_key = _look(Questions(address, seconds))
        variable = KEY_VARIABLES.get(address, KEY_VARIABLE)
        key = os.environ.get(variable, "").strip() if named else ""
        if isinstance(without_key, Server) or not key or without_key.known_as:
            return without_key
        if not (key.isascii() and key.isprintable()):
            return NoServer(address, f"wants an API key, and what the environment variable {variable} holds is none")
        with_key = _look(Questions(address, seconds, key), variable)
        if isinstance(with_key, NoServer) and with_key.wants_key:
            return NoServer(address, f"does not accept the API key in the environment variable {variable}")
        return with_key
    except Unreachable as error:
        return NoServer(address, str(error), silent=isinstance(error, NothingThere))


def _look(questions: Questions, key_variable: str = "") -> Found:
    address, kind = questions.address, find_kind(questions.ask)
    if kind is not None and kind in NO_LLM:
        return NoServer(address, NO_LLM[kind], known_as=kind)
    list_status = questions.ask("/v1/models").status
    if list_status in REFUSALS or kind == "llama.cpp" and questions.ask("/props").status in REFUSALS:
        variable = KEY_VARIABLES.get(address, KEY_VARIABLE)
        return NoServer(address, f"wants an API key: put it into the environment variable {variable}, then run init "
                                 f"with --backend {address}", wants_key=True)
    if kind is None:
        hint = f"; if it wants an API key, put it into the environment variable {KEY_VARIABLE}" \
            if list_status >= 500 and not key_variable else ""
        what = "no list of models" if list_status == 200 else f"status {list_status}"
        return NoServer(address, f"answers, but not as an LLM server that is known here ({what} at /v1/models{hint})")
    models, others = read_models(kind, questions.ask)
    return Server(address, kind, models, others, key_variable)
