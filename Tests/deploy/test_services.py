"""The files in ``deploy``: what they start exists, and is started as the launchers expect."""

from __future__ import annotations

import configparser
import plistlib
import shlex
from pathlib import Path

import pytest

from Middleware.addons.postgres.database_address import DATABASE_VARIABLE
from Middleware.cli.arguments import build_parser
from Middleware.cli.serving.limits import SHUTDOWN_SECONDS

PROJECT = Path(__file__).resolve().parents[2]
DEPLOY = PROJECT / "deploy"
INSTALLED = "/opt/wilmerai"


def unit(name: str) -> configparser.ConfigParser:
    """A systemd unit. Keys keep their case; one that stands twice in a section is an error."""
    parser = configparser.ConfigParser(interpolation=None, delimiters="=", comment_prefixes="#")
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string((DEPLOY / name).read_text(encoding="utf-8"))
    return parser


def test_every_file_is_tested() -> None:
    units = {file.name for file in DEPLOY.iterdir() if file.is_file()}
    assert units == {"wilmerai.service", "wilmerai@.service", "wilmerai-user.service", "wilmerai.plist"}


def test_system_service_starts_the_launcher_of_the_installation() -> None:
    service = unit("wilmerai.service")["Service"]
    python, launcher, *flags = shlex.split(service["ExecStart"])
    assert (python, service["WorkingDirectory"]) == (f"{INSTALLED}/venv/bin/python", INSTALLED)
    assert (PROJECT / launcher).is_file()
    build_parser().parse_args(flags)
    assert "venv/bin/python run_waitress.py" in (PROJECT / "run_linux.sh").read_text(encoding="utf-8")


def test_each_of_several_services_has_its_port_and_the_state_database() -> None:
    """Otherwise it is the one service: what is mended in one is mended in both."""
    service, single = unit("wilmerai@.service")["Service"], unit("wilmerai.service")["Service"]
    python, launcher, *flags = shlex.split(service["ExecStart"].replace("%i", "7"))
    arguments = build_parser().parse_args(flags)
    assert shlex.split(single["ExecStart"]) == [python, launcher] and arguments.port == 5007
    # The default lets one request run on all servers together.
    assert arguments.concurrency > 1
    assert int(service["TimeoutStopSec"]) > arguments.drain_seconds + SHUTDOWN_SECONDS
    assert service["EnvironmentFile"] == "/etc/wilmerai.env"
    assert DATABASE_VARIABLE in (DEPLOY / "wilmerai@.service").read_text(encoding="utf-8")
    own = {"ExecStart", "EnvironmentFile", "TimeoutStopSec"}
    assert {key: value for key, value in service.items() if key not in own} == {
        key: value for key, value in single.items() if key not in own
    }


def test_flags_that_the_unit_proposes_exist() -> None:
    lines = (DEPLOY / "wilmerai.service").read_text(encoding="utf-8").splitlines()
    [line] = [line for line in lines if "add --" in line]
    arguments = build_parser().parse_args(shlex.split(line.partition("add ")[2]))
    assert arguments.listen and arguments.accepted_keys_file == "Public/accepted-keys.txt"


def test_system_service_may_write_to_its_public_folder_only() -> None:
    service = unit("wilmerai.service")["Service"]
    assert service["ReadWritePaths"] == f"{INSTALLED}/Public"
    assert (service["ProtectSystem"], service["ProtectHome"], service["NoNewPrivileges"]) == ("strict", "yes", "yes")
    assert service["CapabilityBoundingSet"] == "" and service["User"] not in ("", "root")


@pytest.mark.parametrize("name", ["wilmerai.service", "wilmerai@.service", "wilmerai-user.service"])
def test_services_come_back_and_may_end_in_peace(name: str) -> None:
    parser = unit(name)
    service = parser["Service"]
    assert service["Restart"] == "on-failure" and service["KillMode"] == "mixed"
    assert int(service["TimeoutStopSec"]) > SHUTDOWN_SECONDS
    if name == "wilmerai@.service":
        # A start without the database ends after ten seconds; the database may be back much later.
        assert parser["Unit"]["StartLimitIntervalSec"] == "0"
    else:
        assert int(parser["Unit"]["StartLimitIntervalSec"]) > int(parser["Unit"]["StartLimitBurst"]) * int(
            service["RestartSec"]
        )


def test_system_service_waits_for_the_network() -> None:
    parts = unit("wilmerai.service")["Unit"]
    assert "network-online.target" in parts["After"].split() and parts["Wants"] == "network-online.target"


def test_user_service_starts_the_start_script() -> None:
    service = unit("wilmerai-user.service")["Service"]
    shell, script = shlex.split(service["ExecStart"])
    folder = service["WorkingDirectory"]
    assert (shell, folder) == ("/bin/bash", "%h/WilmerAI")
    assert (PROJECT / script.removeprefix(f"{folder}/")).is_file()


def test_launchd_agent_starts_the_start_script() -> None:
    agent = plistlib.loads((DEPLOY / "wilmerai.plist").read_bytes())
    shell, script = agent["ProgramArguments"]
    folder = agent["WorkingDirectory"]
    assert (PROJECT / script.removeprefix(f"{folder}/")).is_file() and shell == "/bin/bash"
    assert agent["KeepAlive"] == {"SuccessfulExit": False} and agent["RunAtLoad"] is True
    assert agent["ExitTimeOut"] > SHUTDOWN_SECONDS
    assert agent["StandardOutPath"] == agent["StandardErrorPath"] == "/Users/YOU/Library/Logs/wilmerai.log"  # exists
    assert "/opt/homebrew/bin" in agent["EnvironmentVariables"]["PATH"].split(":")
