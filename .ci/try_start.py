"""Starts WilmerAI by the command that follows, asks it once, and stops it: python .ci/try_start.py bash run_linux.sh

Exit status 1 if it ends, if there is no answer, or if it does not stop. Needs nothing but Python, on Windows as well.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable

# The first start installs packages.
SECONDS_TO_START, SECONDS_TO_ANSWER, SECONDS_TO_STOP = 900, 60, 60
CHAT = {"messages": [{"role": "user", "content": "Write a story about rain"}]}


def ask(address: str, body: object = None) -> bytes:
    """Return the answer; a POST if there is a body."""
    data = None if body is None else json.dumps(body).encode("utf-8")
    request = urllib.request.Request(address, data, {"Content-Type": "application/json"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=SECONDS_TO_ANSWER) as answer:
        return answer.read()


def is_healthy(address: str) -> bool:
    try:
        return bool(ask(f"{address}/health"))
    except (OSError, urllib.error.URLError):
        return False


def wait_for(what: str, condition: Callable[[], object], seconds: float) -> None:
    """Wait until the condition holds, or end the process with status 1."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            sys.exit(f"{what} took longer than {seconds} s.")
        time.sleep(0.2)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End the program. On Windows it is the child of the start script, which does not end it."""
    if sys.platform == "win32":
        subprocess.run(["taskkill", "/T", "/F", "/PID", str(process.pid)], check=False, stdout=subprocess.DEVNULL)
    else:
        process.terminate()


def main(command: list[str]) -> int:
    """Return the exit status."""
    port = command[command.index("--port") + 1] if "--port" in command else "5000"
    address = f"http://127.0.0.1:{port}"
    if is_healthy(address):
        sys.exit(f"Another server answers at {address}.")
    began = time.monotonic()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        wait_for("The start", lambda: process.poll() is not None or is_healthy(address), SECONDS_TO_START)
        if process.poll() is not None:
            sys.exit(f"It ended with status {process.returncode} before it answered.")
        print(f"-- It answers after {time.monotonic() - began:.0f} s.", flush=True)
        text = json.loads(ask(f"{address}/v1/chat/completions", CHAT))["choices"][0]["message"]["content"]
        print(f"-- The chat: {text!r}", flush=True)
        assert text.strip()
    finally:
        stop(process)
        wait_for("The stop", lambda: process.poll() is not None, SECONDS_TO_STOP)
    print("-- It stopped.", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
