"""The table: each way to start the server, who then asks, and what they get."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from Tests.doors.network import LAN, LAN6, PUBLIC, PUBLIC6
from Tests.integration.launcher import LAUNCHERS

WAITRESS, SERVER, EVENTLET = LAUNCHERS
KEY = "wk-doors-0123456789abcdef0123"
KEYS = "Public/accepted-keys.txt"
PAGE = "https://llm.example.com"
REFUSED, NO_KEY, ANSWERED, CLOSED = 403, 401, 200, 0
WITH_KEY = {"Authorization": f"Bearer {KEY}"}
NO_TRACES = "ERROR: --otel needs native threads: start run_waitress.py instead, without Eventlet."


@dataclass(frozen=True, eq=False)
class Client:
    """Somebody who makes all calls.

    Attributes:
        name: in the table.
        to: the address that it calls.
        expects: the status of each answer; CLOSED: no connection.
        far: it is on the other host, and comes from an address like the one it calls; else on the server's.
        port: where it calls, if not where the server listens.
        prefix: in front of each path.
    """

    name: str
    to: str = "127.0.0.1"
    expects: int = ANSWERED
    headers: Mapping[str, str] = field(default_factory=dict)
    far: bool = False
    port: int | None = None
    prefix: str = ""


@dataclass(frozen=True, eq=False)
class Row:
    """A server. Its flags are written as the pages write them; ``places.py`` knows what stands for what.

    Attributes:
        name: in the table; its flags, if empty.
        by: what starts it, if it is not a launcher: a name of ``STARTERS`` in ``places.py``.
        pages: what pages write to start it, where that is no launcher's command line.
        needs: of ``places.py``: what is prepared.
        everywhere: every launcher is tried in each run; others than Waitress only with ``--deep`` elsewhere. All that
            a launcher does itself (listening on names, on both kinds of addresses, headers, keys) is in one of these.
        refusals: launchers that do not take these flags, and what they say. The exit status is 2 for ``NO_TRACES``,
            else 1.
        port: where it listens.
        host: an address of it that answers on its own host.
    """

    flags: str
    clients: tuple[Client, ...] = (Client("here"),)
    name: str = ""
    by: str = ""
    pages: tuple[str, ...] = ()
    needs: frozenset[str] = frozenset()
    everywhere: bool = False
    refusals: Mapping[str, str] = field(default_factory=dict)
    port: int = 5000
    host: str = "127.0.0.1"

    @property
    def title(self) -> str:
        return self.name or self.flags

    def launchers(self, deep: bool) -> tuple[str, ...]:
        """Return what starts it in a run."""
        if self.by:
            return (self.by,)
        return LAUNCHERS if deep or self.everywhere else (WAITRESS,)


# -- clients -----------------------------------------------------------------------------------------------------------
HERE, HERE6 = Client("here"), Client("here, IPv6", "::1")
NEAR = Client("network", LAN, far=True)
NEAR6 = Client("network, IPv6", LAN6, far=True)
SHUT = Client("network", LAN, CLOSED, far=True)
FORWARDED = (
    Client("proxy of a private one", LAN, headers={"X-Forwarded-For": "192.168.1.5"}, far=True),
    Client("proxy of a private one, Forwarded", "127.0.0.1", headers={"Forwarded": 'for="[fd00::1]:4711"'}),
    Client("proxy of a public one", LAN, REFUSED, {"X-Forwarded-For": "8.8.8.8"}, far=True),
    Client("proxy of a public one, here", "127.0.0.1", REFUSED, {"X-Real-IP": "8.8.8.8"}),
    Client("proxy of a public one, Forwarded", "127.0.0.1", REFUSED, {"Forwarded": 'for="[2001:4860::1]"'}),
)
STRANGER = Client("public", PUBLIC, REFUSED, far=True)
STRANGER6 = Client("public, IPv6", PUBLIC6, REFUSED, far=True)


def with_key(*clients: Client) -> tuple[Client, ...]:
    """Return clients with an accepted key, without one and with a wrong one."""
    return tuple(
        made
        for client in clients
        for made in (
            _changed(client, "key", ANSWERED, WITH_KEY),
            _changed(client, "no key", NO_KEY),
            _changed(client, "wrong key", NO_KEY, {"Authorization": "Bearer wrong"}),
        )
    )


def admitted(*clients: Client) -> tuple[Client, ...]:
    """Return clients whatever their address, as everybody is let in."""
    return tuple(_changed(client, "", ANSWERED) for client in clients)


def _changed(client: Client, name: str, expects: int, headers: Mapping[str, str] | None = None) -> Client:
    return Client(
        f"{client.name}, {name}" if name else client.name,
        client.to,
        expects,
        {**client.headers, **(headers or {})},
        client.far,
        client.port,
        client.prefix,
    )


# -- rows --------------------------------------------------------------------------------------------------------------
FRESH = Row("", (HERE,), name="no flag, fresh clone", needs=frozenset({"demo"}), everywhere=True)
LISTENING = (
    Row(
        "",
        (HERE, Client("proxy here of a public one", headers={"X-Forwarded-For": "8.8.8.8"}), SHUT),
        name="no flag",
        everywhere=True,
    ),
    FRESH,
    Row("--listen", (HERE, NEAR, *FORWARDED, STRANGER)),
    Row(
        "--listen 192.168.1.5",
        (NEAR, FORWARDED[0], FORWARDED[2], Client("here", expects=CLOSED)),
        host=LAN,
        everywhere=True,
    ),
    Row("--listen 192.168.1.5 --port 5001", (NEAR, FORWARDED[2]), host=LAN, port=5001),
    Row("--listen ::", (HERE, HERE6, NEAR, NEAR6, *FORWARDED, STRANGER, STRANGER6), everywhere=True),
    Row("--listen fd77::1", (NEAR6, Client("here", expects=CLOSED)), host=LAN6),
    Row("--listen --allow-public", admitted(HERE, NEAR, *FORWARDED, STRANGER)),
    Row("--listen :: --allow-public", admitted(HERE6, NEAR, NEAR6, STRANGER, STRANGER6)),
    Row("--allow-public", (HERE, SHUT)),
    Row(f"--accepted-keys-file {KEYS}", (*with_key(HERE), SHUT)),
    Row(f"--listen --accepted-keys-file {KEYS}", with_key(HERE, NEAR, FORWARDED[2], STRANGER)),
    Row(f"--listen :: --accepted-keys-file {KEYS}", with_key(HERE6, NEAR, NEAR6, STRANGER6), everywhere=True),
    Row(f"--listen --allow-public --accepted-keys-file {KEYS}", with_key(NEAR, STRANGER), everywhere=True),
    Row(
        f"--allow-origin {PAGE}",
        (
            HERE,
            Client("its page", headers={"Origin": PAGE}),
            Client("page here", headers={"Origin": "http://localhost:3000"}),
            Client("foreign page", expects=REFUSED, headers={"Origin": "https://evil.example"}),
        ),
        everywhere=True,
    ),
)
PROXIED = tuple(
    Client(name, address, expects, {**headers, "Host": "llm.example.com"}, far=True, port=port, prefix=prefix)
    for port, prefix in ((8081, ""), (8082, "/llm"), (8083, ""))
    for address, name, expects, headers in (
        (PUBLIC, f"{port}, key", ANSWERED, WITH_KEY),
        (PUBLIC, f"{port}, no key", NO_KEY, {}),
        (PUBLIC6, f"{port}, page", ANSWERED, {**WITH_KEY, "Origin": PAGE}),
        (LAN, f"{port}, foreign page", REFUSED, {**WITH_KEY, "Origin": "https://evil.example"}),
    )
)
CONTAINER_CLIENTS = (HERE, NEAR, STRANGER)
PAGES = (
    Row(f"--accepted-keys-file {KEYS} --allow-origin {PAGE}", PROXIED, needs=frozenset({"nginx"}), everywhere=True),
    Row(
        "",
        CONTAINER_CLIENTS,
        name="container",
        by="container",
        needs=frozenset({"demo"}),
        pages=(
            "docker compose up -d",
            "docker compose up -d --build",
            "docker compose --profile open-webui up -d",
            "docker run -d --name wilmerai --init -p 127.0.0.1:5000:5000 -v wilmerai_public:/app/Public "
            "--add-host host.docker.internal:host-gateway wilmerai",
        ),
    ),
    Row(
        f"--accepted-keys-file {KEYS}",
        with_key(NEAR, STRANGER),
        name="container with keys",
        by="container",
        pages=('command: ["--accepted-keys-file", "Public/accepted-keys.txt"]',),
    ),
    Row(
        "--listen=127.0.0.1 --port 5001",
        (HERE, SHUT),
        name="container in the computer's network",
        by="container",
        pages=("network_mode: host",),
        port=5001,
    ),
    Row(
        "--concurrency 4 --drain-seconds 60 --console off",
        (HERE, NEAR),
        name="one of several containers",
        by="container",
        needs=frozenset({"database"}),
        pages=("docker compose up -d --no-deps --build worker-1",),
    ),
    Row(
        "",
        (HERE, SHUT),
        name="service of the computer",
        by="deploy/wilmerai.service",
        pages=("systemctl enable --now wilmerai",),
    ),
    Row(
        f"--listen --accepted-keys-file {KEYS}",
        with_key(HERE, NEAR),
        name="service with the flags that it proposes",
        by="deploy/wilmerai.service",
    ),
    Row(
        "",
        (HERE, SHUT),
        name="service of an account",
        by="deploy/wilmerai-user.service",
        pages=("systemctl --user enable --now wilmerai",),
    ),
    Row(
        "",
        (HERE, SHUT),
        name="one of several services",
        by="deploy/wilmerai@.service",
        port=5001,
        needs=frozenset({"database"}),
        pages=("systemctl enable --now wilmerai@1 wilmerai@2",),
    ),
    Row(
        "",
        (HERE, SHUT),
        name="agent of macOS",
        by="deploy/wilmerai.plist",
        pages=("launchctl bootstrap gui/$(id -u) ~/Library/LaunchAgents/wilmerai.plist",),
    ),
    Row("--file-logging", name="task of Windows", by=WAITRESS, pages=("-Argument 'run_waitress.py --file-logging'",)),
    Row("", name="run_linux.sh", by="run_linux.sh"),
    Row("--listen", (HERE, NEAR, STRANGER), name="run_linux.sh --listen", by="run_linux.sh"),
    Row(
        "",
        (HERE,),
        name="server:application under Waitress",
        by="waitress-serve",
        port=8080,
        pages=("waitress-serve server:application",),
    ),
    Row(
        "--concurrency 4 --drain-seconds 60",
        needs=frozenset({"database"}),
        refusals={EVENTLET: "A state database needs native threads"},
    ),
    Row(
        "--workers 4 --concurrency 8 --drain-seconds 60",
        needs=frozenset({"database"}),
        refusals={SERVER: "--workers is for run_waitress.py only", EVENTLET: "A state database needs native threads"},
    ),
    Row("--User chat-ui", needs=frozenset({"shipped"}), port=5060),
    Row("--PublicDirectory /home/ann/old-wilmer/Public --User ann"),
    Row("CONFIGS USER"),
    Row("Public/Configs me"),
)
ELSEWHERE = {
    "gunicorn --workers 3 --threads 20 --timeout 3600 server:application": (
        "Tests/integration/test_wsgi_hosts.py, by a host that loads the application in each process"
    ),
    "lazy-apps = true": "the same",
}
"""Starts by programs that the tests do not install, and where what they do is tried."""
# Each flag alone, on every launcher: tried with --deep. In each run they are tried in the rows of TOGETHER.
FLAGS = (
    Row("--ConfigDirectory FOLDER/Configs"),
    Row("--PublicDirectory FOLDER"),
    Row("--User ann"),
    Row("--LoggingDirectory FOLDER/logs/<user>"),
    Row("--UserLevelSqlLiteDirectory FOLDER/locks"),
    Row("--DiscussionDirectory FOLDER/discussions"),
    Row("--ConsoleDirectory FOLDER/console"),
    Row("--file-logging"),
    Row("--port 5001", port=5001),
    Row("--concurrency 0"),
    Row("--concurrency-timeout 60"),
    Row("--concurrency-level endpoint"),
    Row("--concurrency 4 --concurrency-level endpoint"),
    Row("--max-request-mb 1"),
    Row("--workers 1"),
    Row("--drain-seconds 60"),
    Row("--console off"),
    Row("--console edit"),
    Row("--console on --record texts"),
    Row("--record off"),
    Row("--metrics"),
    Row("--otel", refusals={EVENTLET: NO_TRACES}),
    Row(
        "--database DATABASE",
        needs=frozenset({"database"}),
        refusals={EVENTLET: "A state database needs native threads"},
    ),
    Row("--log-level DEBUG"),
    Row("--verbose"),
    Row("--port 5000 --User me --User story"),
    Row("--User alice --User bob", port=5050),
)
# All that every launcher takes.
EVERYWHERE = (
    "--ConfigDirectory FOLDER/Configs --PublicDirectory FOLDER --User ann --User bob "
    "--LoggingDirectory FOLDER/logs/<user> --UserLevelSqlLiteDirectory FOLDER/locks "
    "--DiscussionDirectory FOLDER/discussions --ConsoleDirectory FOLDER/console --file-logging --port 5001 "
    f"--listen :: --accepted-keys-file {KEYS} --allow-origin {PAGE} --allow-public --concurrency 4 "
    "--concurrency-timeout 60 --concurrency-level endpoint --max-request-mb 1 --drain-seconds 5 "
    "--console edit --record texts --metrics --log-level DEBUG --verbose"
)
TOGETHER = (
    Row(
        f"{EVERYWHERE} --otel",
        with_key(HERE, NEAR6, STRANGER),
        name="all that go together",
        port=5001,
        everywhere=True,
        refusals={EVENTLET: NO_TRACES},
    ),
    Row(EVERYWHERE, with_key(HERE, NEAR6, STRANGER), name="all that go together on Eventlet", by=EVENTLET, port=5001),
    Row(
        "--workers 2 --database DATABASE --listen --concurrency 4 --drain-seconds 5 --console edit --record texts "
        "--metrics --otel",
        (HERE, NEAR, STRANGER, FORWARDED[2]),
        name="all that go with several processes",
        needs=frozenset({"database"}),
        refusals={SERVER: "--workers is for run_waitress.py only", EVENTLET: NO_TRACES},
    ),
    Row(
        "--User alice --User bob --port 5050 --workers 1 --concurrency 0 --console off --record off",
        name="all that leave something out",
        port=5050,
    ),
)
ROWS = (*LISTENING, *PAGES, *FLAGS, *TOGETHER)


def flags_of(row: Row) -> frozenset[str]:
    """Return the names of a row's flags."""
    return frozenset(word.partition("=")[0] for word in row.flags.split() if word.startswith("-"))
