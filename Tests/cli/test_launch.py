"""What a launch does with what add-ons have given it."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from wsgiref.types import StartResponse, WSGIEnvironment

import pytest
from werkzeug.test import Client

from Middleware.addons.postgres.addon import Postgres
from Middleware.api.edge.admission_middleware import AdmissionMiddleware
from Middleware.cli import preparation
from Middleware.cli.arguments import LaunchArguments
from Middleware.cli.launch import Launch
from Middleware.cli.program import StartError
from Tests.tables import table


def test_each_add_on_ends_what_it_has_begun(caplog: pytest.LogCaptureFixture) -> None:
    ended: list[str] = []

    def failing() -> None:
        raise OSError("disk full")

    launch = Launch(LaunchArguments(), on_stop=[lambda: ended.append("first"), failing, lambda: ended.append("last")])
    launch.close()
    assert ended == ["last", "first"] and launch.on_stop == []
    assert [record.getMessage() for record in caplog.records] == ["An add-on could not end what it has begun"]


def test_a_command_that_starts_the_engine_needs_the_packages_of_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "_is_installed", lambda module: False)
    flags = argparse.Namespace(database="postgresql://127.0.0.1/none")
    with pytest.raises(StartError, match="--database needs packages that are not installed"):
        Postgres().connect(Launch(LaunchArguments(flags=flags), serves=False))


class Page:
    def refuses(self, environ: WSGIEnvironment) -> bool:
        return False

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        start_response("200 OK", [])
        return [b"page"]


def other(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    start_response("200 OK", [])
    return [b"other"]


@table(
    "prefix,path,answer",
    [
        ("/birds", "/birds", b"page"),
        ("/birds", "/birds/", b"page"),
        ("/birds", "/birds/nests/3", b"page"),
        ("/birds/", "/birds", b"page"),
        ("/birds/", "/birds/nests", b"page"),
        ("/birds", "/birdsong", b"other"),
        ("/birds", "/", b"other"),
        ("/birds", "/v1/birds", b"other"),
    ],
)
def test_a_mount_gets_its_path_and_all_below_it(prefix: str, path: str, answer: bytes) -> None:
    assert Client(AdmissionMiddleware(other, mounts={prefix: Page()})).get(path).data == answer
