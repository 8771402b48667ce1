"""Admission to the run console over real sockets: keys with and without the right, names, origins and frames."""

from __future__ import annotations

import http.client
import json
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Tests.integration.console_server import API, Console
from Tests.integration.launcher import Backend
from Tests.patience import CLIENT_PATIENCE
from Tests.workflows.engine_lab import until

OWN, ALL, PLAIN, WRONG = "key-own-0001", "key-all-0002", "key-plain-0003", "key-wrong-0004"
LINES = {OWN: f"{OWN} console=own", ALL: f"{ALL} console=all", PLAIN: PLAIN}


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    folder = tmp_path_factory.mktemp("console")
    write(folder, *LINES)
    with Backend() as backend:
        console = Console(
            folder,
            backend,
            "run_waitress.py",
            "--accepted-keys-file",
            str(folder / "keys.txt"),
            "--file-logging",
            "--log-level",
            "DEBUG",
        )
        with console.server:
            yield console


def write(folder: Path, *keys: str) -> None:
    (folder / "keys.txt").write_text("".join(f"{LINES[key]}\n" for key in keys), encoding="utf-8")


def call(
    console: Console, method: str, path: str, body: Any = None, key: str = "", peer: str = "127.0.0.1", **more: str
) -> tuple[int, Any, Any]:
    """Return status, headers and JSON of a request with these header fields."""
    connection = http.client.HTTPConnection(
        "127.0.0.1", console.server.port, timeout=CLIENT_PATIENCE, source_address=(peer, 0)
    )
    headers = {
        "Content-Type": "application/json",
        **({"Authorization": f"Bearer {key}"} if key else {}),
        **{name.replace("_", "-"): value for name, value in more.items()},
    }
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        data = answer.read()
        is_json = str(answer.headers["Content-Type"]).startswith("application/json")
        return answer.status, answer.headers, json.loads(data) if is_json and data else data
    finally:
        connection.close()


def sign_in(console: Console, key: str, peer: str = "127.0.0.1") -> tuple[int, Any]:
    status, _, body = call(console, "POST", f"{API}session", {"key": key}, peer=peer)
    return status, body


def test_a_key_opens_the_console_as_far_as_its_line_says(console: Console) -> None:
    folder = console.tree.public.parent
    status, refused = sign_in(console, PLAIN)
    assert status == 403 and "console=own" in refused["error"]["message"]
    own, everything = sign_in(console, OWN)[1], sign_in(console, ALL)[1]
    assert (own["role"], everything["role"]) == ("own", "all")
    chat = {"model": "Single", "messages": [{"role": "user", "content": "Hello"}]}
    made = {key: call(console, "POST", "/v1/chat/completions", chat, key)[1]["X-Request-Id"] for key in (OWN, PLAIN)}

    def listed(token: str) -> set[str]:
        return {run["id"] for run in call(console, "GET", f"{API}runs", key=token)[2]["runs"]}

    assert until(lambda: listed(everything["token"]) == {made[OWN], made[PLAIN]})
    assert listed(own["token"]) == {made[OWN]}
    assert call(console, "GET", f"{API}runs/{made[PLAIN]}", key=own["token"])[0] == 404
    # A key may stand in place of a token, too.
    assert listed(ALL) == {made[OWN], made[PLAIN]}

    write(folder, ALL, PLAIN)
    assert until(lambda: call(console, "GET", f"{API}session", key=own["token"])[0] == 401)
    assert call(console, "GET", f"{API}session", key=everything["token"])[0] == 200
    write(folder, *LINES)
    # The list is read again after a second. Asking more often would look like guessing.
    time.sleep(1.5)
    assert sign_in(console, OWN)[0] == 200


def test_a_session_of_a_key_outlives_a_restart_but_not_its_end(tmp_path: Path) -> None:
    flags = ("--accepted-keys-file", str(tmp_path / "keys.txt"))
    write(tmp_path, OWN, ALL)
    with Backend() as backend:
        console = Console(tmp_path, backend, "run_waitress.py", *flags)
        with console.server:
            kept, ended, revoked = (sign_in(console, key)[1]["token"] for key in (OWN, OWN, ALL))
            assert call(console, "DELETE", f"{API}session", key=ended)[0] == 200
        write(tmp_path, OWN)
        console = Console(tmp_path, backend, "run_waitress.py", *flags)
        with console.server:
            statuses = [call(console, "GET", f"{API}session", key=token)[0] for token in (kept, ended, revoked)]
            assert statuses == [200, 401, 401]
    folder = console.tree.public / "Console"
    for file in folder.iterdir():
        assert sys.platform == "win32" or stat.S_IMODE(file.stat().st_mode) == 0o600, file
        content = file.read_bytes()
        assert not [secret for secret in (OWN, ALL, kept, revoked) if secret.encode() in content], file


def test_pages_of_others_get_nothing(console: Console) -> None:
    port, token = console.server.port, sign_in(console, ALL)[1]["token"]
    here = f"127.0.0.1:{port}"
    # A name of a foreign owner that was led to this computer; for the page too.
    for path in ("/console/", f"{API}runs", "/console/static/x/app.js"):
        status, _, body = call(console, "GET", path, key=token, Host=f"rebound.example.com:{port}")
        assert status == 403 and "--allow-origin" in str(body), path
    # A page of another port of the same computer, one of another site, and one that has no origin.
    for more in (
        {"Origin": f"http://127.0.0.1:{port + 1}"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ):
        for method, body in (("GET", None), ("POST", {"key": ALL})):
            path = "runs" if method == "GET" else "session"
            status, headers, _ = call(console, method, API + path, body, token, Host=here, **more)
            assert status == 403 and not [name for name in headers if name.lower().startswith("access-control")]
    status, headers, _ = call(
        console, "OPTIONS", f"{API}runs", Origin="https://evil.example", Access_Control_Request_Method="GET"
    )
    assert status == 403 and not [name for name in headers if name.lower().startswith("access-control")]
    assert call(console, "POST", f"{API}session", {"key": ALL}, Content_Type="text/plain")[0] == 415
    # No page may put it into a frame.
    status, headers, page = call(console, "GET", "/console/")
    assert status == 200 and "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert b"Hello" not in page and call(console, "GET", f"{API}runs")[0] == 401
    assert call(console, "GET", f"{API}runs", key=token, Host=here, Origin=f"http://{here}")[0] == 200


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have one loopback address")
def test_guessing_is_slowed_down_and_no_key_is_in_a_log(console: Console) -> None:
    token = sign_in(console, ALL)[1]["token"]
    statuses = [sign_in(console, f"{WRONG}-{number}", "127.0.0.2")[0] for number in range(12)]
    assert statuses[0] == 401 and set(statuses[10:]) == {429}
    # A correct key of the same address is not locked out; who is signed in, or has another address, notices nothing.
    assert sign_in(console, ALL, "127.0.0.2")[0] == 200 and sign_in(console, ALL)[0] == 200
    assert sign_in(console, f"{WRONG}-0", "127.0.0.2")[0] == 429
    assert call(console, "GET", f"{API}session", key=token, peer="127.0.0.2")[0] == 200
    logs = console.server.output() + "".join(
        path.read_text(encoding="utf-8") for path in (console.tree.public / "logs").rglob("*.log*")
    )
    for secret in (OWN, ALL, PLAIN, WRONG, token):
        assert secret not in logs
