"""Every call of the console, made by every role: no answer holds more than the table of the API's page allows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from Middleware.addons.console.api import load_routes
from Middleware.addons.console.calls import Route
from Tests.integration.canary_routes import HIDDEN_TYPE, METHODS, ROLES, SEALED, Canaries
from Tests.integration.launcher import Backend

# Whose runs and whose memories a role reads.
SAID = {"anonymous": "", "own": "own", "all": "own all plain", "operator": "own all plain bob"}
RUNS = {
    "anonymous": "",
    "own": "own own-before",
    "all": "own own-before all plain",
    "operator": "own own-before all plain bob eve",
}
MEMORIES = {"anonymous": "", "own": "own", "all": "", "operator": "own bob nobody"}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Canaries]:
    with Backend() as backend:
        canaries = Canaries(tmp_path_factory.mktemp("canaries"), backend)
        with canaries.console.server:
            canaries.start()
            yield canaries


def may_read(role: str, route: Route, canary: str) -> bool:
    """The table of Docs/User/console-api.md."""
    _, kind, name, *_ = canary.split(".")
    if kind == "said":
        return name in SAID[role].split()
    if kind == "run":
        return name in RUNS[role].split()
    if kind == "memory":
        return name in MEMORIES[role].split()
    if kind == "file" and role == "all":
        # Workflows of the users of the key, by the calls for them.
        place = canary.split(".")[3]
        return route.path == "workflows/FOLDER/NAME" and place.startswith(("Workflows-ann-", "Workflows--shared-"))
    if kind == "name":
        # That a file has changed between two runs, and which.
        return role == "operator" or (route.path == "compare/A/B" and role != "anonymous")
    return role == "operator" and kind == "file"


def test_no_call_says_more_than_the_table(lab: Canaries) -> None:
    routes = sorted(load_routes().all, key=lambda route: METHODS.index(route.method))
    # Once more: by then, runs have been deleted.
    routes += [route for route in routes if route.path == "events"]
    seen: dict[str, set[str]] = {role: set() for role in ROLES}
    failures: dict[str, str] = {}
    for route in routes:
        for role in ROLES:
            for path, body in lab.calls(route):
                status, found = lab.call(role, route.method, path, body)
                seen[role] |= found
                wrong = [canary for canary in found if not may_read(role, route, canary)]
                # Of many arguments, the first that shows it is enough.
                for what in wrong + [str(status)] * (status >= 500):
                    failures.setdefault(f"{role} {route.method} {route.path} {what}", f"{path} {body}")
    assert not failures, "\n".join(f"{call}: {arguments}" for call, arguments in failures.items())
    # What a role may read was there to be read.
    for role in ROLES:
        kinds = {canary.rsplit(".", 1)[0].removeprefix("canary.") for canary in seen[role]}
        wanted = {f"said.{name}" for name in SAID[role].split()} | {f"memory.{name}" for name in MEMORIES[role].split()}
        assert wanted == {kind for kind in kinds if kind.startswith(("said.", "memory."))}, role
    assert seen["anonymous"] == set() and {HIDDEN_TYPE} <= seen["operator"] & seen["own"]
    assert SEALED not in SAID["operator"].split()
