"""The lock files: in step with what they are made from, and complete."""
from __future__ import annotations

import re
from pathlib import Path

import pytest

from Scripts.generate.lock_requirements import LOCKS

ROOT = Path(__file__).resolve().parents[2]
_PIN = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;\\]+)", re.MULTILINE)
_ENTRY = re.compile(r"^(?=[A-Za-z0-9])(?:.*\\\n)*.*$", re.MULTILINE)


def pins(file: str) -> dict[str, str]:
    """Version by normalised name."""
    text = (ROOT / file).read_text(encoding="utf-8")
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in _PIN.findall(text)}


def entries(file: str) -> list[str]:
    return _ENTRY.findall((ROOT / file).read_text(encoding="utf-8"))


@pytest.mark.parametrize(("source", "lock"), LOCKS)
def test_each_requirement_is_locked_at_its_version(source: str, lock: str) -> None:
    wanted, locked = pins(source), pins(lock)
    advice = "run python -m Scripts.generate.lock_requirements"
    assert wanted and {name: locked.get(name) for name in wanted} == wanted, advice


def test_the_packages_of_otel_fit_those_that_users_have() -> None:
    """They have no lock of their own, and come on top of ``requirements.lock``."""
    wanted, users, tests = pins("requirements-otel.txt"), pins("requirements.lock"), pins("requirements-test.lock")
    assert len(wanted) == 2 and {name: tests.get(name) for name in wanted} == wanted
    # Each version of the SDK wants exactly that of the API.
    assert set(wanted.values()) == {users["opentelemetry-api"]}, "take the version of opentelemetry-api"


def test_the_packages_of_the_database_fit_those_of_users_and_of_the_tests() -> None:
    users, database, tests = (pins(lock) for _, lock in (LOCKS[0], LOCKS[3], LOCKS[1]))
    assert {name: tests.get(name) for name in database} == database
    assert {name: users[name] for name in database if name in users}.items() <= database.items()


def test_tests_run_with_the_versions_that_users_install() -> None:
    users, tests = (pins(lock) for _, lock in LOCKS[:2])
    assert {name: tests.get(name) for name in users} == users


@pytest.mark.parametrize("lock", [lock for _, lock in LOCKS])
def test_each_entry_is_one_exact_version_with_hashes(lock: str) -> None:
    found = entries(lock)
    assert len(found) == len(pins(lock)) > (3 if "database" in lock else 20)
    assert [entry for entry in found if not _PIN.match(entry) or "--hash=sha256:" not in entry] == []


@pytest.mark.parametrize("lock", [lock for _, lock in LOCKS])
def test_no_place_to_install_from_is_named(lock: str) -> None:
    assert "://" not in (ROOT / lock).read_text(encoding="utf-8")


@pytest.mark.parametrize("script", ["run_linux.sh", "run_windows.bat"])
def test_start_scripts_install_from_the_lock(script: str) -> None:
    text = (ROOT / script).read_text(encoding="utf-8")
    [line] = [line for line in text.splitlines() if "Middleware.cli.installing" in line]
    assert "--require-hashes -r requirements.lock" in line
