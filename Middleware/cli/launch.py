"""The launch of a server: what is known of it so far, and what add-ons add to it."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from wsgiref.types import WSGIApplication

from Middleware.cli.arguments import LaunchArguments
from Middleware.cli.program import StartError, program_name, say
from Middleware.cli.served_users import resolve_port
from Middleware.cli.serving.listening import bind_socket, url_of
from Middleware.common import instance_global_variables as instance

if TYPE_CHECKING:
    from flask import Flask

    from Middleware.api.app import Mount


logger = logging.getLogger(__name__)


@dataclass
class Launch:
    """The launch of a server, or of the engine in a command.

    Attributes:
        threads: how many requests the server works on at a time, if that is limited.
        native: the server's threads are those of the operating system.
        several: the launcher can start several processes.
        serves: clients are served; False for a command that starts the engine.
        bound: the socket, which does not listen yet; None before it is bound, and under a WSGI host, which has its own.
        host: what the socket is bound to, as it was given; ``address``: the same in numbers.
        port: the real one, also if 0 was asked for.
        is_first: of several processes on a socket, this one logs and checks the configuration for all.
        announces: of several processes on a socket, this one prints the lines about the server for all.
        listeners: listeners to the engine's events in every request.
        mounts: applications that check requests themselves, by the beginning of their paths, without a slash at the
            end.
        routes: functions that add routes to the application.
        lines: printed below the address of the server; ``hints``: printed last.
        on_listening: called once connections are accepted, with the function that ends the server.
        on_stop: called after the last request, the last one first.
        shared: what add-ons have made for each other, by its type.
        built: the application.
    """

    arguments: LaunchArguments
    threads: int | None = None
    native: bool = True
    several: bool = False
    serves: bool = True
    bound: socket.socket | None = None
    host: str = ""
    address: str = ""
    port: int = 0
    is_first: bool = True
    announces: bool = True
    listeners: list[object] = field(default_factory=list)
    mounts: dict[str, Mount] = field(default_factory=dict)
    routes: list[Callable[[Flask], object]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)
    on_listening: list[Callable[[Callable[[], object]], object]] = field(default_factory=list)
    on_stop: list[Callable[[], object]] = field(default_factory=list)
    shared: dict[type, object] = field(default_factory=dict)
    built: WSGIApplication | None = None

    @property
    def sock(self) -> socket.socket:
        assert self.bound is not None
        return self.bound

    @property
    def application(self) -> WSGIApplication:
        assert self.built is not None
        return self.built

    @property
    def url(self) -> str:
        """The address of the server, without a slash at its end."""
        return url_of(self.host, self.port)

    def bind(self) -> socket.socket:
        """Return the socket, bound now unless it is already. Raises StartError."""
        if self.bound is None:
            try:
                self.bound = bind_socket(instance.LISTEN_ADDRESS, resolve_port())
            except StartError as error:
                # Imported here: the commands import the command line.
                from Middleware.cli.commands import all_commands

                # "--listen check": the word behind the flag is its address.
                if (host := instance.LISTEN_ADDRESS) in all_commands():
                    first = f"To run the command, put it first: {program_name(host)} --listen"
                    raise StartError(f"{error} {first}") from error
                raise
        return self.bound

    def announce(self, stop: Callable[[], object] = lambda: None) -> None:
        """Say that the server accepts connections; ``stop`` ends it."""
        # Imported here: it describes launches.
        from Middleware.cli import announcement

        if self.announces:
            for line in announcement.describe(self):
                say(line)
        for function in self.on_listening:
            function(stop)

    def close(self) -> None:
        """Let add-ons end what they have begun."""
        while self.on_stop:
            try:
                self.on_stop.pop()()
            # The others have something to write or to free, too.
            except Exception:
                logger.exception("An add-on could not end what it has begun")
