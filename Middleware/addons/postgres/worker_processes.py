"""Several server processes on one listening socket: the parent, which starts and watches them, and its children.

The parent holds the socket and starts every child with its own command line. It imports next to nothing, so that it
needs little memory of its own: ``become_parent`` replaces the launcher, which has read and checked everything, where
the system can.

Parent and child are connected by a pair of sockets. A child writes to it when it serves, and ends in an orderly way
when the other end is closed, which also happens when the parent is killed. Children have sessions of their own: Ctrl-C
reaches the parent only, which passes it on.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from Middleware.common.constants import CHILD_VARIABLE

# A child that ends unasked is started again after this time. The time doubles while it keeps dying early.
FIRST_DELAY_SECONDS = 1.0
LONGEST_DELAY_SECONDS = 30.0
EARLY_SECONDS = 10.0

# Ends of children and signals wake the parent. Only Windows does not report all ends.
LOOK_SECONDS = 1.0

# What the parent runs: its own module, wherever the program was started.
_PARENT = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from Middleware.addons.postgres.worker_processes import main; sys.exit(main(sys.argv[1:]))"
)
_ROOT = str(Path(__file__).resolve().parents[3])

# Windows has no SIGHUP and no SIGUSR1, and only Windows has SIGBREAK.
_STOPS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK") if hasattr(signal, name)]
_HANG_UP: int | None = getattr(signal, "SIGHUP", None)
_ROLL: int | None = getattr(signal, "SIGUSR1", None)

_SERVES = b"s"


# -- the child ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ParentConnection:
    """A child's connection to its parent, and what the parent has sent over it.

    Attributes:
        number: the child's own, from 1.
        announces: this child prints the lines about the server, which are the same for all.
        sock: the listening socket of all children.
        channel: the connection to the parent.
    """

    number: int
    announces: bool
    sock: socket.socket
    channel: socket.socket

    def report_serving(self, stop: Callable[[], object]) -> None:
        """Tell the parent that the child serves, and have ``stop`` called when it is to end."""
        threading.Thread(target=self._watch, args=(stop,), name="parent-watch", daemon=True).start()

    def _watch(self, stop: Callable[[], object]) -> None:
        # The parent writes nothing. A reset connection on Windows means the same as its end.
        with contextlib.suppress(OSError):
            self.channel.sendall(_SERVES)
            self.channel.recv(1)
        stop()


def connect_to_parent() -> ParentConnection:
    """Return what the parent has sent to this child. It can be called once."""
    # Not for the programs that the child starts.
    del os.environ[CHILD_VARIABLE]
    sent = json.loads(sys.stdin.buffer.readline())
    return ParentConnection(sent["number"], sent["speaks"], _received(sent["listener"]), _received(sent["channel"]))


def _received(sent: int | str) -> socket.socket:
    if sys.platform == "win32":
        return socket.fromshare(base64.b64decode(str(sent)))
    received = socket.socket(fileno=int(sent))
    # Programs that the child starts must not hold it.
    received.set_inheritable(False)
    return received


# -- the parent ---------------------------------------------------------------------------------------------------


def become_parent(sock: socket.socket, count: int) -> int:
    """Start ``count`` processes with this command line on a bound socket, and watch them until they have ended.

    Returns the exit status, or does not return: elsewhere than on Windows the parent takes the place of this process.
    """
    command = [sys.executable, *sys.orig_argv[1:]]
    if sys.platform != "win32":
        sock.set_inheritable(True)
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, "-c", _PARENT, _ROOT, str(sock.fileno()), str(count), *command])
    return WorkerProcesses(sock, count, command).run()


def main(words: Sequence[str]) -> int:
    """Be the parent of the command in ``words``, behind the number of the socket and the number of processes."""
    sock = socket.socket(fileno=int(words[0]))
    sock.set_inheritable(False)
    return WorkerProcesses(sock, int(words[1]), words[2:]).run()


class _Child:
    """One of the processes, again and again."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.process: subprocess.Popen[bytes] | None = None
        self.channel: socket.socket | None = None
        # The other end, which Windows needs until the child has read what was sent.
        self._theirs: socket.socket | None = None
        # Of this process, and of one of its predecessors.
        self.serves = self.has_served = False
        # It was asked to end, so that another takes its place.
        self.is_replaced = False
        self.started = 0.0
        self.starts_at = 0.0
        self._delay = FIRST_DELAY_SECONDS

    def start(self, listener: socket.socket, command: Sequence[str]) -> None:
        """Start the process. Raises OSError."""
        self.started, self.serves, self.is_replaced = time.monotonic(), False, False
        self.channel, self._theirs = ours, theirs = socket.socketpair()
        try:
            if sys.platform == "win32":
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    env=_environment(),
                    creationflags=subprocess.CREATE_NEW_PROCESS_GROUP,
                )
                sent = [base64.b64encode(shared.share(process.pid)).decode("ascii") for shared in (listener, theirs)]
            else:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    env=_environment(),
                    start_new_session=True,
                    pass_fds=(listener.fileno(), theirs.fileno()),
                )
                sent = [listener.fileno(), theirs.fileno()]
            self.process = process
            assert process.stdin is not None
            # A parent of an earlier release starts children of this one when it replaces them: the names must stay.
            message = {
                "number": self.number,
                "speaks": self.number == 1 and not self.has_served,
                "listener": sent[0],
                "channel": sent[1],
            }
            # A process that has ended already is noticed below.
            with contextlib.suppress(OSError), process.stdin:
                process.stdin.write(json.dumps(message).encode("ascii") + b"\n")
        finally:
            # The child has its own copy. If it was not started, the other end gets no bytes.
            if sys.platform != "win32" or self.process is None:
                theirs.close()
            if self.process is None:
                ours.close()

    def note_serving(self) -> None:
        self.serves = self.has_served = True
        self._close(self._theirs)

    def ask_to_end(self) -> None:
        if self.channel is not None:
            with contextlib.suppress(OSError):
                self.channel.shutdown(socket.SHUT_WR)

    def end_at_once(self) -> None:
        if self.process is not None:
            with contextlib.suppress(OSError):
                self.process.terminate()

    def forget(self) -> None:
        """Note that the process has ended, and when the next one starts."""
        self.process, self.serves = None, False
        self._close(self.channel)
        self._close(self._theirs)
        self.channel = self._theirs = None
        now = time.monotonic()
        if self.is_replaced:
            self.starts_at = now
            return
        early = now - self.started < EARLY_SECONDS
        self.starts_at = now + self._delay if early else now + FIRST_DELAY_SECONDS
        self._delay = min(2 * self._delay, LONGEST_DELAY_SECONDS) if early else FIRST_DELAY_SECONDS

    @staticmethod
    def _close(end: socket.socket | None) -> None:
        if end is not None:
            end.close()


class WorkerProcesses:
    """The parent: it keeps ``count`` processes of one command alive until a signal to stop.

    The first signal asks all to end, a further one makes them end at once. SIGUSR1 replaces one after the other, each
    when the one before it serves again.
    """

    def __init__(self, listener: socket.socket, count: int, command: Sequence[str]) -> None:
        self._listener = listener
        self._command = list(command)
        self._children = [_Child(number) for number in range(1, count + 1)]
        self._stops = self._stops_seen = 0
        self._wants_roll = False
        self._to_roll: list[_Child] = []
        self._rolling: _Child | None = None
        self._status = 0
        self._selector = selectors.DefaultSelector()

    def run(self) -> int:
        """Start and watch the processes until a signal to stop. Returns 0, or the status of one that cannot start."""
        self._catch_signals()
        while True:
            self._pass_on_stops()
            for child in self._children:
                self._look_after(child)
            if self._stops and not any(child.process for child in self._children):
                return self._status
            if self._wants_roll or self._to_roll or self._rolling:
                self._roll()
            self._wait()

    def _catch_signals(self) -> None:
        for number in _STOPS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._note_stop)
        if _ROLL is not None:
            signal.signal(_ROLL, self._note_roll)
        # A signal does not interrupt the wait, but writes to this socket.
        woken, waker = socket.socketpair()
        for end in (woken, waker):
            end.setblocking(False)
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        self._waker = waker
        self._selector.register(woken, selectors.EVENT_READ)

    def _note_stop(self, number: int, frame: FrameType | None) -> None:
        # A terminal that is closed may say so twice: that is not a second request.
        if number != _HANG_UP or not self._stops:
            self._stops += 1

    def _note_roll(self, number: int, frame: FrameType | None) -> None:
        self._wants_roll = True

    def _wait(self) -> None:
        now = time.monotonic()
        starts = [child.starts_at - now for child in self._children if child.process is None and not self._stops]
        for key, _ in self._selector.select(max(0.0, min([LOOK_SECONDS, *starts]))):
            child: _Child | None = key.data
            assert isinstance(key.fileobj, socket.socket)
            try:
                received = key.fileobj.recv(64)
            except OSError:
                received = b""
            if child is None:
                continue
            if received:
                child.note_serving()
            else:
                # The process has closed its end, and is about to end.
                self._selector.unregister(key.fileobj)
                self._wait_for_end(child)

    @staticmethod
    def _wait_for_end(child: _Child) -> None:
        if child.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.process.wait(LOOK_SECONDS)

    def _look_after(self, child: _Child) -> None:
        """Start a process if it is time, or note that it has ended."""
        if child.process is None:
            if not self._stops and time.monotonic() >= child.starts_at:
                self._start(child)
            return
        status = child.process.poll()
        if status is None:
            return
        pid, was_replaced = child.process.pid, child.is_replaced
        if child.channel is not None and child.channel.fileno() in self._selector.get_map():
            self._selector.unregister(child.channel)
        child.forget()
        if self._stops or was_replaced:
            return
        # A wrong command line or a broken configuration: another attempt would end like this one.
        if status > 0 and not child.has_served:
            self._status = status
            self._stops += 1
            return
        how = f"with status {status}" if status >= 0 else f"by signal {-status}"
        _say(
            f"worker {child.number} (process {pid}) has ended {how}; it is started again in "
            f"{child.starts_at - time.monotonic():.0f} s"
        )

    def _start(self, child: _Child) -> None:
        try:
            child.start(self._listener, self._command)
        except OSError as error:
            _say(f"worker {child.number} cannot be started: {error}")
            child.forget()
            return
        assert child.channel is not None
        self._selector.register(child.channel, selectors.EVENT_READ, child)

    def _pass_on_stops(self) -> None:
        if self._stops == self._stops_seen:
            return
        first, self._stops_seen = not self._stops_seen, self._stops
        # No child accepts connections any more, so no client may be kept waiting for one that does.
        self._listener.close()
        for child in self._children:
            if first:
                child.ask_to_end()
            else:
                child.end_at_once()

    def _roll(self) -> None:
        if self._stops:
            return
        if self._rolling is not None:
            if not self._rolling.serves or self._rolling.is_replaced:
                return
            _say(f"worker {self._rolling.number} was replaced")
            self._rolling = None
        if not self._to_roll and self._wants_roll:
            self._wants_roll = False
            self._to_roll = list(self._children)
        if self._to_roll:
            self._rolling = child = self._to_roll.pop(0)
            # One that is not there will be started anyway.
            child.is_replaced = child.process is not None
            child.ask_to_end()


def _environment() -> dict[str, str]:
    return {**os.environ, CHILD_VARIABLE: "1"}


def _say(text: str) -> None:
    # A closed console does not end the server.
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"WilmerAI: {text}\n")
        sys.stderr.flush()
