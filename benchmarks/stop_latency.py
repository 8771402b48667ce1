"""How long after a client has gone does the back-end's socket end?

    python benchmarks/stop_latency.py [--rounds 10] [--launcher run_waitress.py]

Prints, for each phase in which a client may leave, the median and the worst of the rounds in milliseconds, and whether
a later node was started by mistake. Measures; asserts nothing.
"""
from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from Tests.integration.launcher import (  # noqa: E402
    USER,
    Backend,
    Launcher,
    child_node,
    llm_node,
    standard_tree,
)
from Tests.stub_backend import Reply, chat_stream_reply  # noqa: E402

SILENT = Reply(never=True)
FLOWING = chat_stream_reply(["word "] * 2000, delay=0.02)
PHASES = {  # name: (model, stream, node that is at work, what it does)
    "prompt processing": ("slow", True, "Slow", SILENT),
    "mid-stream": ("slow", True, "Slow", FLOWING),
    "nested workflow": ("parent", True, "Inner", SILENT),
    "non-streaming": ("slow", False, "Slow", SILENT),
}


def open_request(port: int, model: str, stream: bool) -> socket.socket:
    body = json.dumps({"model": model, "stream": stream, "messages": [{"role": "user", "content": "hi"}]}).encode()
    connection = socket.create_connection(("127.0.0.1", port))
    connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                       b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
    return connection


def measure(port: int, backend: Backend, model: str, stream: bool, node: str, reply: Reply) -> float:
    backend.reset()
    backend.replies[node] = reply
    connection = open_request(port, model, stream)
    call = backend.wait_call(node)
    if reply is FLOWING:
        received = b""
        while received.count(b"data:") < 5:
            received += connection.recv(65536)
    else:
        time.sleep(0.3)
    left = time.monotonic()
    connection.close()
    if not call.wait_ended(10) or call.ended_at is None:
        return float("inf")
    return (call.ended_at - left) * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--launcher", default="run_waitress.py")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Backend() as backend:
        tree = standard_tree(Path(folder) / "Public", backend.url)
        tree.shared("slow", llm_node("Slow", returnToUser=True), llm_node("Next"))
        tree.private("Child", llm_node("Inner"), llm_node("InnerNext"))
        tree.shared("parent", child_node("Child"), llm_node("Next", returnToUser=True))
        with Launcher(options.launcher, "--PublicDirectory", tree.public, "--User", USER,
                      "--concurrency", "0") as server:
            for phase, (model, stream, node, reply) in PHASES.items():
                times, started = [], set()
                for _ in range(options.rounds):
                    times.append(measure(server.port, backend, model, stream, node, reply))
                    time.sleep(0.3)
                    started |= set(backend.nodes()) - {node}
                print(f"{phase:20} median {statistics.median(times):7.1f} ms, worst {max(times):7.1f} ms, "
                      f"later nodes started: {', '.join(sorted(started)) or 'none'}", flush=True)


if __name__ == "__main__":
    main()
