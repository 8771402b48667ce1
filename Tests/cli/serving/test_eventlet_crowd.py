"""Whose connection ends under Eventlet while others make room."""

from __future__ import annotations

import subprocess
import sys

import pytest

from Tests.integration.launcher import PROJECT
from Tests.patience import CLIENT_PATIENCE

# Two uploads must go. The end of the one lets the other become whole, as green threads run in the meantime.
UPLOADS = """
import socket
import run_eventlet
from run_eventlet import BODY_WHOLE_KEY, NoRoomError, eventlet, limits

limits.EVENTLET_CONNECTIONS, limits.SWEEP_SECONDS, limits.CROWDED_GRACE_SECONDS = 2, 0.05, 0.0
arrivals, pairs, whole, ended = run_eventlet._Arrivals(), [socket.socketpair() for _ in range(2)], [], []

def upload(number):
    arrival = arrivals.add(pairs[number][0], ("127.0.0.1", 1))
    environ = {"REQUEST_METHOD": "POST", "CONTENT_LENGTH": "2", "wsgi.input": pairs[number][0].makefile("rb")}
    arrival.take_head(environ)
    try:
        assert environ["wsgi.input"].read(2) == b"ab"
    except NoRoomError:
        ended.append(number)
        arrivals.leave(arrival)
        pairs[1 - number][1].sendall(b"b")
    else:
        environ[BODY_WHOLE_KEY]()
        whole.append(number)

for number in range(2):
    eventlet.spawn(upload, number)
    pairs[number][1].sendall(b"a")
eventlet.spawn(arrivals.sweep)
while len(whole) + len(ended) < 2:
    eventlet.sleep(0.01)
# The next look has begun.
eventlet.sleep(0.2)
for number in whole:
    pairs[number][0].sendall(b"answer")
    print(pairs[number][1].recv(6).decode())
"""


def test_a_body_that_becomes_whole_while_others_end_is_at_work() -> None:
    pytest.importorskip("eventlet")
    done = subprocess.run(
        [sys.executable, "-c", UPLOADS], cwd=PROJECT, text=True, capture_output=True, timeout=CLIENT_PATIENCE
    )
    assert done.stdout == "answer\n", done.stderr
