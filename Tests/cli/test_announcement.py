"""What the operator is told about who can reach the server."""

from __future__ import annotations

import shlex
import subprocess
import sys

import pytest

from Middleware.api.edge.access_keys import KEY_FILE, AccessKeys
from Middleware.cli import announcement
from Middleware.cli.arguments import LaunchArguments
from Middleware.cli.launch import Launch
from Middleware.cli.serving import listening
from Middleware.common import instance_global_variables as instance
from Middleware.utilities import config_utils


@pytest.fixture(autouse=True)
def fresh(config, monkeypatch):
    monkeypatch.setattr(instance, "ACCESS_KEYS", None)
    monkeypatch.setattr(instance, "ALLOWED_ORIGINS", ())
    monkeypatch.setattr(instance, "PRIVATE_CLIENTS_ONLY", False)


@pytest.fixture
def keys(tmp_path, monkeypatch):
    def accept(text):
        path = tmp_path / "keys.txt"
        path.write_text(text, "utf-8")
        path.chmod(0o600)
        monkeypatch.setattr(instance, "ACCESS_KEYS", AccessKeys(str(path), list))
        return str(path)

    return accept


def test_on_this_machine_only(caplog):
    (text,) = announcement.describe_access("127.0.0.1")
    announcement.log_access("127.0.0.1")
    assert "--listen" in text and "WARNING" not in text and caplog.text == ""


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5"])
def test_the_warning_cannot_be_overlooked(host, caplog):
    lines = announcement.describe_access(host)
    framed = lines[lines.index(announcement.RULE) + 1 : -1]
    assert lines[-1] == announcement.RULE and len(framed) > 5 and all(line.startswith("!!") for line in framed)
    assert "WARNING: there is no password" in framed[0]
    announcement.log_access(host)
    (record,) = caplog.records
    assert record.levelname == "WARNING" and host in record.getMessage()


def test_a_private_network_is_no_reason_for_alarm(monkeypatch, caplog):
    monkeypatch.setattr(instance, "PRIVATE_CLIENTS_ONLY", True)
    text = "\n".join(announcement.describe_access("0.0.0.0"))
    announcement.log_access("0.0.0.0")
    assert announcement.RULE not in text and "private address" in text and "--allow-public" in text
    (record,) = caplog.records
    assert record.levelname == "WARNING" and "public addresses are refused" in record.getMessage()


@pytest.mark.parametrize(
    ("address", "name", "warned"),
    [("127.0.0.1", "mybox", False), ("127.0.0.1", "127.0.0.1", False), ("0.0.0.0", "127.my.example", True)],
)
def test_the_address_counts_and_not_its_name(address, name, warned, monkeypatch):
    """A computer's own name often leads to 127.0.1.1, and a name that begins with 127. to anywhere."""
    monkeypatch.setattr(instance, "LOGGING_DIRECTORY", "")
    lines = announcement.describe(Launch(LaunchArguments(), host=name, port=5000, address=address))
    assert (announcement.RULE in lines) == warned
    assert any("Only programs on this machine" in line for line in lines) != warned


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_other_devices_are_told_what_to_type(address, monkeypatch):
    monkeypatch.setattr(instance, "LOGGING_DIRECTORY", "")
    monkeypatch.setattr(listening, "in_container", lambda: False)
    monkeypatch.setattr(listening, "outward_addresses", lambda ipv6: ["192.168.1.5"])
    lines = announcement.describe(Launch(LaunchArguments(), host=address, port=5000, address=address))
    assert any(line.endswith(": http://127.0.0.1:5000") for line in lines)
    assert ("  Other devices:  http://192.168.1.5:5000" in lines) == (address == "0.0.0.0")


def test_its_commands_work_as_they_are_printed(tmp_path, monkeypatch):
    public = tmp_path / "my public"
    public.mkdir()
    monkeypatch.setattr(instance, "PUBLIC_DIRECTORY", str(public))
    monkeypatch.setattr(sys, "argv", ["run_waitress.py", "--User", "a b", "--listen"])
    make, start = [
        line.removeprefix("!!    ") for line in announcement.describe_access("0.0.0.0") if line.startswith("!!    ")
    ]
    subprocess.run(make, shell=True, check=True, capture_output=True)
    file = public / KEY_FILE
    assert len(AccessKeys(str(file), list).keys) == 1
    if sys.platform != "win32":
        program, *words = shlex.split(start)
        assert program == sys.executable
        assert words[1:] == ["--User", "a b", "--listen", "--accepted-keys-file", str(file)]
    assert config_utils.get_project_root_directory_path() in make


def test_with_a_list_of_keys(keys, caplog):
    path = keys("a-key-of-some-length\nanother-key-of-some-length\n")
    for host in ("127.0.0.1", "0.0.0.0"):
        text = "\n".join(announcement.describe_access(host))
        announcement.log_access(host)
        assert path in text and "2, from" in text and "WARNING" not in text and "a-key" not in text
    assert caplog.text == ""


def test_a_poor_list_is_told_of(keys, caplog):
    keys("short\n")
    announcement.log_access("127.0.0.1")
    assert "WARNING" in "\n".join(announcement.describe_access("127.0.0.1")) and "may be guessed" in caplog.text


def test_web_pages(monkeypatch):
    monkeypatch.setattr(instance, "ALLOWED_ORIGINS", ("https://chat.example.com",))
    assert "https://chat.example.com" in announcement.describe_access("127.0.0.1")[0]
