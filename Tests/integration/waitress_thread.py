"""The app behind a real Waitress server within the process of the tests, which can look at its objects."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any

import pytest
from waitress import wasyncore

from Middleware.api.app import build_wsgi_application
from Middleware.cli.serving.limits import WORKER_THREADS
from Middleware.cli.serving.listening import bind_socket
from Middleware.cli.serving.serve_waitress import loop_once, make_server
from Middleware.cli.serving.waitress_connections import Channel, SlowClients
from Middleware.common import instance_global_variables as instance
from Middleware.common.fair_semaphore import FairSemaphore
from Middleware.models.process import process
from Middleware.utilities import config_utils
from Tests.integration.launcher import USER, ConfigTree
from Tests.patience import PATIENCE


def use_tree(tree: ConfigTree, slots: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this process serve ``USER`` from ``tree``, ``slots`` requests at a time, as a launcher's arguments would."""
    for name, value in {
        "PUBLIC_DIRECTORY": str(tree.public),
        "CONFIG_DIRECTORY": None,
        "DISCUSSION_DIRECTORY": None,
        "USER_LEVEL_SQLITE_DIRECTORY": None,
        "USERS": [USER],
    }.items():
        monkeypatch.setattr(instance, name, value)
    monkeypatch.setattr(process().one(instance.Gate), "semaphore", FairSemaphore(slots))
    config_utils.config_store().clear()


class WaitressThread:
    """The server, on a free loopback port."""

    def __init__(self) -> None:
        self._channels: dict[int, Any] = {}
        self._stopping = threading.Event()
        self._loop = threading.Thread(target=self._run, name="waitress-loop", daemon=True)

    def __enter__(self) -> WaitressThread:
        sock = bind_socket("127.0.0.1", 0)
        self.port: int = sock.getsockname()[1]
        self._server = make_server(build_wsgi_application(threads=WORKER_THREADS), sock, self._channels)
        self._loop.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._server.pull_trigger()
        self._loop.join(PATIENCE)
        self._server.task_dispatcher.shutdown()
        wasyncore.close_all(self._channels)

    @property
    def connections(self) -> int:
        """How many clients are connected, as far as the server knows."""
        return sum(isinstance(channel, Channel) for channel in list(self._channels.values()))

    def _run(self) -> None:
        slow_clients = SlowClients()
        while not self._stopping.is_set():
            loop_once(self._channels)
            slow_clients.sweep(self._channels.values())
