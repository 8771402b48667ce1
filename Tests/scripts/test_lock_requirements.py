"""The lock files: in step with what they are made from, and complete."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from Scripts.generate import lock_platforms
from Scripts.generate.lock_requirements import LOCKS

ROOT = Path(__file__).resolve().parents[2]
_PIN = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;\\]+)", re.MULTILINE)
_ENTRY = re.compile(r"^(?=[A-Za-z0-9])(?:.*\\\n)*.*$", re.MULTILINE)


def pins(file: str) -> set[tuple[str, str]]:
    """Normalised names with their versions; a package may have several, with markers."""
    text = (ROOT / file).read_text(encoding="utf-8")
    return {(re.sub(r"[-_.]+", "-", name).lower(), version) for name, version in _PIN.findall(text)}


def entries(file: str) -> list[str]:
    return _ENTRY.findall((ROOT / file).read_text(encoding="utf-8"))


@pytest.mark.parametrize(("source", "lock"), LOCKS)
def test_each_requirement_is_locked_at_its_version(source: str, lock: str) -> None:
    wanted, locked = pins(source), pins(lock)
    advice = "run python -m Scripts.generate.lock_requirements"
    assert wanted and wanted <= locked, advice


def test_the_packages_of_otel_fit_those_that_users_have() -> None:
    """They have no lock of their own, and come on top of ``requirements.lock``."""
    wanted, users, tests = pins("requirements-otel.txt"), pins("requirements.lock"), pins("requirements-test.lock")
    assert len(wanted) == 2 and wanted <= tests
    # Each version of the SDK wants exactly that of the API.
    assert {("opentelemetry-api", version) for _, version in wanted} <= users, "take the version of opentelemetry-api"


def test_the_packages_of_the_database_fit_those_of_users_and_of_the_tests() -> None:
    users, database, tests = (pins(lock) for _, lock in (LOCKS[0], LOCKS[3], LOCKS[1]))
    assert database <= tests
    names = {name for name, _ in database}
    assert {(name, version) for name, version in users if name in names} <= database


def test_tests_run_with_the_versions_that_users_install() -> None:
    users, tests = (pins(lock) for _, lock in LOCKS[:2])
    assert users <= tests


@pytest.mark.parametrize("lock", [lock for _, lock in LOCKS])
def test_each_entry_is_one_exact_version_with_hashes(lock: str) -> None:
    found = entries(lock)
    assert len(found) == len(pins(lock)) > (3 if "database" in lock else 20)
    assert [entry for entry in found if not _PIN.match(entry) or "--hash=sha256:" not in entry] == []


@pytest.mark.parametrize("lock", [lock for _, lock in LOCKS])
def test_no_place_to_install_from_is_named(lock: str) -> None:
    assert "://" not in (ROOT / lock).read_text(encoding="utf-8")


@pytest.mark.parametrize("lock", [lock for _, lock in LOCKS])
def test_the_page_of_systems_is_about_this_lock(lock: str) -> None:
    digest = lock_platforms.digest((ROOT / lock).read_text(encoding="utf-8"))
    advice = "run python -m Scripts.generate.lock_requirements"
    assert f"<!-- {lock} {digest} -->" in lock_platforms.PAGE.read_text(encoding="utf-8"), advice


@pytest.mark.parametrize("lock", ["requirements.lock", "requirements-database.lock"])
@pytest.mark.parametrize("system", [system.name for system in lock_platforms.SYSTEMS if system.promised])
def test_every_promised_system_is_served_by_wheels(lock: str, system: str) -> None:
    page = lock_platforms.PAGE.read_text(encoding="utf-8")
    [row] = [
        line for line in page.split(f"## {lock}")[1].split("## ")[0].splitlines() if line.startswith(f"| {system} |")
    ]
    assert row.count("yes") == len(lock_platforms.PYTHONS), row


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("run_linux.sh", "prepare_environment venv requirements.lock"),
        ("Scripts/environment.sh", "options=(--require-hashes --only-binary :all:)"),
        ("run_windows.bat", "-m Middleware.cli.installing --require-hashes --only-binary :all: -r requirements.lock"),
    ],
)
def test_start_scripts_install_wheels_of_the_lock(script: str, words: str) -> None:
    assert words in (ROOT / script).read_text(encoding="utf-8")
