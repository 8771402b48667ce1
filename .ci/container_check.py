"""Runs inside the container image: what is in it, whose it is, and whether the server starts, answers and ends."""

import os
import signal
import subprocess
import sys
import time

APP = {
    "Middleware",
    "Scripts",
    "deploy",
    "Defaults",
    "Public",
    "LICENSE",
    "requirements.lock",
    "requirements-database.lock",
    "run_waitress.py",
    "server.py",
    "__pycache__",
}
WRITTEN_AT_RUN_TIME = ("DiscussionIds", "SqlLiteDBs", "logs", "accepted-keys.txt")
# Other steps of .ci/run keep the machine busy.
START_SECONDS, STOP_SECONDS = 300, 60

os.chdir("/app")
assert set(os.listdir()) == APP, sorted(os.listdir())
assert not any(os.path.exists(os.path.join("Defaults", name)) for name in WRITTEN_AT_RUN_TIME)
assert os.path.isdir("Middleware/__pycache__"), "nothing is compiled"
assert os.getuid() == 1000 == os.stat("Public").st_uid, (os.getuid(), os.stat("Public").st_uid)

server = subprocess.Popen([sys.executable, "-m", "deploy.container.start"], stdin=subprocess.DEVNULL)
try:
    deadline = time.monotonic() + START_SECONDS
    while subprocess.run([sys.executable, "-m", "deploy.container.health"], stderr=subprocess.DEVNULL).returncode:
        assert server.poll() is None and time.monotonic() < deadline, "the server does not answer"
        time.sleep(0.5)
    assert os.path.isdir("Public/Configs/Users"), "the empty volume was not filled"
    server.send_signal(signal.SIGTERM)
    assert server.wait(STOP_SECONDS) == 0
finally:
    server.kill()
print("The image is built, starts, answers and stops.")
