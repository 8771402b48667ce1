"""``init`` in a container: it looks outside, and what it tells to type is typed outside, too."""

from __future__ import annotations

import pytest

from Middleware.addons.init import init_output, servers
from Middleware.addons.init.plan import Choice
from Middleware.cli import announcement
from Middleware.utilities.command_lines import own_command

RUN = "docker compose run --rm wilmerai"


@pytest.fixture
def container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WILMER_CONTAINER", "1")
    monkeypatch.setattr("sys.argv", ["/app/run_waitress.py", "init"])


def test_looks_for_servers_of_the_computer_around_it_and_says_so(container: None) -> None:
    addresses = servers.usual_addresses()
    assert addresses and all(address.startswith("http://host.docker.internal:") for address in addresses)
    assert "this computer (host.docker.internal)" in init_output.asking(addresses, False)[0]


def test_commands_are_those_of_the_engine(container: None) -> None:
    assert init_output.init_command_line("--user", "ann") == f"{RUN} init --user ann"
    assert own_command("keys", "add") == f"{RUN} keys add"
    assert any("must let containers in" in line for line in init_output.nothing_found([], False))


def test_elsewhere_nothing_is_different(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WILMER_CONTAINER", raising=False)
    assert all(address.startswith("http://127.0.0.1:") for address in servers.usual_addresses())
    assert "docker" not in init_output.init_command_line() + own_command("keys") + "".join(
        init_output.nothing_found([], False)
    )


def test_port_is_that_of_the_computer_around_it(container: None) -> None:
    choice = Choice(servers.Server("http://host.docker.internal:11434", "Ollama"), servers.Model("m"), "me", 5000)
    assert any("WILMER_PUBLISH" in line for line in init_output.client_lines(choice))


def test_warning_about_keys_names_the_file_of_the_engine(container: None) -> None:
    lines = announcement.describe_access("0.0.0.0")
    assert any(f"{RUN} keys add --accepted-keys-file " in line for line in lines)
    assert any('command: ["--accepted-keys-file", "' in line and "accepted-keys.txt" in line for line in lines)
    assert not any("run_waitress.py" in line for line in lines)
