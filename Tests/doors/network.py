"""Two hosts with a cable between them: the server's and a client's, each in a network namespace of its own.

So servers listen on the ports that the documentation names, several at a time, and clients come from other private and
from public addresses. That needs Linux and the rights of root; elsewhere a server listens on a free port of loopback,
and the clients of the other host are left out.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

LAN, LAN6 = "192.168.77.1", "fd77::1"
PUBLIC, PUBLIC6 = "203.0.113.1", "2001:db8:77::1"
"""The server's addresses. The client's end in 2, so that the one that it calls decides where it comes from."""
_LENGTHS = {LAN: 24, LAN6: 64, PUBLIC: 24, PUBLIC6: 64}
_NEW_NETWORK = 0x40000000  # CLONE_NEWNET
_OWN = "/proc/thread-self/ns/net"
# On Debian, it is where only administrators look.
_PATH = f"{os.environ.get('PATH', '')}{os.pathsep}/usr/sbin{os.pathsep}/sbin"


@cache
def missing() -> str:
    """Return what forbids two hosts here; "" if they can be made."""
    if sys.platform != "linux":
        return "network namespaces are Linux's"
    if shutil.which("ip", path=_PATH) is None:
        return "the command ip is not installed (on Debian: apt-get install iproute2)"
    try:
        Hosts().close()
    except subprocess.CalledProcessError as error:
        return f"networks cannot be set up here: {error.stderr.strip()}"
    except OSError as error:
        return f"network namespaces are not allowed here: {error}"
    return ""


@cache
def ipv6_missing() -> str:
    """Return why nothing can listen on IPv6 addresses here; "" if it can."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError as error:
        return f"there is no IPv6 here: {error}"
    return ""


class Hosts:
    """The two hosts. They end with ``close`` and their last process. Raises OSError where they are not allowed."""

    def __init__(self) -> None:
        self._open: list[int] = []
        try:
            self._server, self._client = self._namespace(), self._namespace()
            end = f"/proc/{os.getpid()}/fd/{self._client}"
            self._set_up(self._server, "1", f"link add cable type veth peer name cable netns {end}")
            self._set_up(self._client, "2")
        except BaseException:
            self.close()
            raise

    @contextmanager
    def server(self) -> Iterator[None]:
        """What this thread opens and starts meanwhile belongs to the server's host."""
        own = os.open(_OWN, os.O_RDONLY)
        try:
            _call("setns", self._server)
            yield
        finally:
            _call("setns", own)
            os.close(own)

    def connect(self, address: str, port: int, far: bool, timeout: float) -> socket.socket:
        """Return a connection to the server, from the client's host or, unless ``far``, from the server's own."""
        own = os.open(_OWN, os.O_RDONLY)
        try:
            _call("setns", self._client if far else self._server)
            return socket.create_connection((address, port), timeout)
        finally:
            _call("setns", own)
            os.close(own)

    def close(self) -> None:
        while self._open:
            os.close(self._open.pop())

    def _namespace(self) -> int:
        """Return the descriptor of a new network namespace, made by a thread that ends."""
        failed: list[OSError] = []

        def make() -> None:
            try:
                _call("unshare")
                self._open.append(os.open(_OWN, os.O_RDONLY))
            except OSError as error:
                failed.append(error)

        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
        if failed:
            raise failed[0]
        return self._open[-1]

    @staticmethod
    def _set_up(namespace: int, end: str, *first: str) -> None:
        # Without "nodad" an IPv6 address could be used after a second only.
        addresses = [
            f"addr add {address[:-1]}{end}/{length} dev cable{' nodad' if ':' in address else ''}"
            for address, length in _LENGTHS.items()
        ]
        own = os.open(_OWN, os.O_RDONLY)
        try:
            _call("setns", namespace)
            subprocess.run(
                ["ip", "-batch", "-"],
                input="\n".join(["link set lo up", *first, *addresses, "link set cable up", ""]),
                text=True,
                check=True,
                capture_output=True,
                env={**os.environ, "PATH": _PATH},
            )
        finally:
            _call("setns", own)
            os.close(own)


class Loopback:
    """The server's own host alone, where two cannot be made."""

    @contextmanager
    def server(self) -> Iterator[None]:
        yield

    def connect(self, address: str, port: int, far: bool, timeout: float) -> socket.socket:
        assert not far
        return socket.create_connection((address, port), timeout)

    def close(self) -> None:
        pass


def _call(name: str, *descriptor: int) -> None:
    """Move this thread to a network namespace, or to a new one. Raises OSError."""
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*descriptor, _NEW_NETWORK) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def tool(name: str) -> str | None:
    """Return the path of a program, also of one for administrators."""
    found = shutil.which(name, path=_PATH)
    return str(Path(found)) if found else None
