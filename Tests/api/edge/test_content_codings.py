"""Bodies that a client or a proxy has compressed, and paths as people paste them, through the whole application."""

from __future__ import annotations

import gzip
import io
import json
import random
import tracemalloc
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from werkzeug.test import Client

from Middleware.api.app import build_wsgi_application
from Middleware.api.dialects import Dialect, dialect_of, plain_path
from Middleware.api.edge.admission_middleware import BODY_LEFT_KEY, MEGABYTE, AdmissionMiddleware, take_body
from Middleware.common import instance_global_variables as instance
from Middleware.common.fair_semaphore import FairSemaphore
from Tests.api.api_lab import ApiLab
from Tests.api.front_dialects import message_at
from Tests.stub_backend import StubBackend
from Tests.tables import table
from Tests.workflows.engine_lab import reply_to

PATHS = ("/v1/chat/completions", "/api/chat", "/v1/responses", "/v1/messages")
MESSAGES = [{"role": "user", "content": "hi"}]
ACCEPTED = "gzip, deflate, identity"


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiLab]:
    with StubBackend(lambda request: reply_to(request, "Hello")) as backend:
        yield ApiLab(tmp_path, monkeypatch, backend)


def body_for(path: str, **more: Any) -> bytes:
    field = "input" if "responses" in path else "messages"
    return json.dumps({"model": "m", "stream": False, field: MESSAGES, **more}).encode()


def raw(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


def in_members(data: bytes) -> bytes:
    return b"".join(map(gzip.compress, (data[:7], b"", data[7:])))


def send(lab: ApiLab, path: str, data: bytes, coding: str | None, **options: Any) -> Any:
    headers = {"Content-Encoding": coding} if coding is not None else {}
    return Client(build_wsgi_application(lab.client.application)).post(path, data=data, headers=headers, **options)


@table(
    ("coding", "pack"),
    [
        (None, bytes),
        ("", bytes),
        (" ", bytes),
        ("identity", bytes),
        ("Identity, ", bytes),
        ("gzip", gzip.compress),
        ("GZip", gzip.compress),
        ("x-gzip", gzip.compress),
        ("identity, gzip", gzip.compress),
        ("gzip,identity,,", gzip.compress),
        ("gzip", in_members),
        ("gzip", lambda data: gzip.compress(data) + b"\0" * 20),
        ("deflate", zlib.compress),
        ("deflate", raw),
        ("Deflate", lambda data: zlib.compress(data, 0)),
        ("deflate", lambda data: raw(data) if data else b""),
    ],
)
def test_codings_that_are_read(lab: ApiLab, coding: str | None, pack: Any) -> None:
    for path in PATHS:
        answer = send(lab, path, pack(body_for(path)), coding)
        assert answer.status_code == 200, answer.text
        assert lab.backend.requests[-1].json["messages"] == MESSAGES


@table(
    ("coding", "data", "status", "words"),
    [
        ("zstd", b"x", 415, "'zstd'"),
        ("br", b"x", 415, "'br'"),
        ("gzip, br", gzip.compress(b"{}"), 415, "'gzip, br'"),
        ("gzip, gzip", gzip.compress(b"{}"), 415, "'gzip, gzip'"),
        ("compress, identity", b"x", 415, "'compress'"),
        ("gz\xefp", b"x", 415, "'gz\\xefp'"),
        ("gzip", gzip.compress(b"{}" * 100)[:-9], 400, "'gzip'"),
        ("gzip", b"{}", 400, "'gzip'"),
        ("gzip", gzip.compress(b"{}") + b"{}", 400, "'gzip'"),
        ("x-gzip", b"\x1f", 400, "'x-gzip'"),
        ("deflate", zlib.compress(b"{}" * 100)[:-1], 400, "'deflate'"),
        ("deflate", zlib.compress(b"{}") + b"{}", 400, "'deflate'"),
        ("deflate", b"{}", 400, "'deflate'"),
        ("gzip", zlib.compress(b"{}"), 400, "'gzip'"),
        ("gzip", b"", 400, "Invalid JSON data"),
        ("br", b"", 400, "Invalid JSON data"),
    ],
)
def test_codings_that_are_refused(lab: ApiLab, coding: str, data: bytes, status: int, words: str) -> None:
    for path in PATHS:
        answer = send(lab, path, data, coding)
        assert answer.status_code == status and words in message_at(path, answer.json, status), answer.text
        assert answer.headers.get("Accept-Encoding") == (ACCEPTED if status == 415 else None)
    assert not lab.backend.requests


# -- the limit ---------------------------------------------------------------------------------------------------------
CHUNKED = {"HTTP_TRANSFER_ENCODING": "chunked", "wsgi.input_terminated": True}
WAITRESS = {"waitress.client_disconnected": lambda: False}


class Stream(io.BytesIO):
    """A body that counts what is taken of it, some bytes at a time."""

    def read(self, size: int | None = -1) -> bytes:
        return super().read(min(size or 0, 1000) if size and size > 0 else 1000)


def taken(data: bytes, limit: int | None, more: dict[str, Any]) -> tuple[str, Any, Stream]:
    stream = Stream(data)
    environ = {"HTTP_CONTENT_ENCODING": "gzip", "wsgi.input": stream, "CONTENT_LENGTH": str(len(data)), **more}
    refusal = take_body(environ, limit)
    assert (BODY_LEFT_KEY in environ) is (refusal is not None)
    return refusal.status[:3] if refusal else "", environ, stream


@table("more", [{}, {**CHUNKED, "CONTENT_LENGTH": ""}, WAITRESS])
def test_the_limit_is_that_of_the_decoded_body(more: dict[str, Any]) -> None:
    for size, status in ((MEGABYTE, ""), (MEGABYTE + 1, "413")):
        for data in (b"x" * size, random.Random(3).randbytes(size)):
            packed = gzip.compress(data)
            got, environ, _ = taken(packed, MEGABYTE, dict(more))
            assert got == status
            if not status:
                assert environ["wsgi.input"].read() == data and environ["CONTENT_LENGTH"] == str(size)
                assert "HTTP_CONTENT_ENCODING" not in environ and "HTTP_TRANSFER_ENCODING" not in environ


@table("more", [{}, {**CHUNKED, "CONTENT_LENGTH": ""}, WAITRESS])
def test_a_small_body_that_becomes_a_large_one_is_not_inflated(more: dict[str, Any]) -> None:
    packed = gzip.compress(b"\0" * 40 * MEGABYTE)
    assert len(packed) < 50_000
    tracemalloc.start()
    try:
        status, _, stream = taken(packed, MEGABYTE, dict(more))
        assert status == "413" and stream.tell() < 3000
        assert tracemalloc.get_traced_memory()[1] < 4 * MEGABYTE
    finally:
        tracemalloc.stop()


def test_members_without_content_do_not_go_on_for_ever() -> None:
    status, _, stream = taken(gzip.compress(b"") * 200_000, MEGABYTE, {**CHUNKED, "CONTENT_LENGTH": ""})
    assert status == "413" and stream.tell() < 2 * MEGABYTE


def test_a_body_that_is_lost_is_incomplete() -> None:
    status, _, _ = taken(gzip.compress(b"x")[:-3], None, {"CONTENT_LENGTH": "999"})
    assert status == "400"


@table(
    ("path", "field", "used"),
    [
        *((path, field, False) for path in PATHS for field in ("max_tokens", "top_k", "later")),
        ("/v1/responses", "temperature", True),
        ("/v1/responses", "metadata", True),
        ("/v1/messages", "temperature", False),
        *((path, "tools", True) for path in PATHS),
    ],
)
def test_a_number_beyond_all_is_refused_where_its_field_is_used(lab: ApiLab, path: str, field: str, used: bool) -> None:
    answer = send(lab, path, body_for(path)[:-1] + f', "{field}": 1e400000}}'.encode(), None)
    assert answer.status_code == (400 if used else 200), answer.text
    assert (f"The '{field}' field has a number that is too large." in answer.text) is used


def test_an_empty_id_of_an_earlier_response_is_none(lab: ApiLab) -> None:
    answer = send(lab, "/v1/responses", body_for("/v1/responses", previous_response_id=""), None)
    assert answer.status_code == 200 and answer.json["previous_response_id"] is None
    answer = send(lab, "/v1/responses", b'{"previous_response_id": ""}', None)
    assert (answer.status_code, answer.json["error"]["param"]) == (400, "input")


# -- paths -------------------------------------------------------------------------------------------------------------
@table(
    ("path", "plain"),
    [
        ("/v1/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/chat/completions", "/v1/chat/completions"),
        ("/v1//chat/completions", "/v1/chat/completions"),
        ("//v1//chat///completions/", "/v1/chat/completions"),
        ("/v1/v1/v1/messages//", "/v1/messages"),
        ("//v1//v1/models/a", "/v1/models/a"),
        ("/v1/models/v1/v1/", "/v1/models/v1/v1"),
        ("/api//chat//", "/api/chat"),
        ("//", "/"),
        ("/", "/"),
        ("", ""),
        ("*", "*"),
    ],
)
def test_plain_paths(path: str, plain: str) -> None:
    assert plain_path(path) == plain
    assert dialect_of({"PATH_INFO": path}) is dialect_of({"PATH_INFO": plain})


def test_pasted_paths_have_the_route_the_dialect_and_the_gate_of_the_plain_one(
    lab: ApiLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instance, "get_request_semaphore", lambda: slots)
    monkeypatch.setattr(instance, "CONCURRENCY_LEVEL", "wilmer")
    monkeypatch.setattr(instance, "CONCURRENCY_TIMEOUT", 0.05)
    slots = FairSemaphore(1)
    client = Client(build_wsgi_application(lab.client.application))
    for plain in (*PATHS, "/v1/completions", "/api/generate"):
        pasted = ["/" + plain.replace("/", "//") + "/"]
        pasted += ["/v1" + plain, "//v1/" + plain + "//"] if plain.startswith("/v1") else []
        data = json.dumps({**json.loads(body_for(plain)), **({} if plain in PATHS else {"prompt": "hi"})})
        for path in pasted:
            # A URL that begins with two slashes would name a host.
            assert client.post(path="/", data=data, environ_overrides={"PATH_INFO": path}).status_code == 200, path
            place = slots.enqueue(0)
            assert place.wait(0)
            busy = client.post(path="/", data=data, environ_overrides={"PATH_INFO": path})
            place.leave()
            assert (busy.status_code, bool(message_at(plain, busy.json, 503))) == (503, True), path
    assert client.get("/v1/v1/models").json == client.get("/v1/models").json
    assert client.get("/v1/v1/nothing").status_code == 404


@table(
    ("path", "seen", "answered"),
    [
        ("/console//x/", "/console//x/", "mount"),
        ("/console", "/console", "mount"),
        ("//console/x", "//console/x", "app"),
        ("/console/", "/console/", "mount"),
        ("/consoles//x/", "/consoles/x", "app"),
        ("/v1/v1/models", "/v1/models", "app"),
    ],
)
def test_the_parts_of_the_server_have_paths_of_their_own(path: str, seen: str, answered: str) -> None:
    found: list[tuple[str, str]] = []

    class Part:
        def __init__(self, name: str) -> None:
            self.name = name

        def refuses(self, environ: dict[str, Any]) -> bool:
            return self.name == "mount"

        def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
            found.append((environ["PATH_INFO"], self.name))
            start_response("200 OK", [])
            return []

    admission = AdmissionMiddleware(Part("app"), mounts={"/console": Part("mount")})
    Client(admission).get("/", environ_overrides={"PATH_INFO": path}).close()
    assert found == [(seen, answered)]
    environ = {"PATH_INFO": path, "REQUEST_METHOD": "GET", "HTTP_HOST": "localhost"}
    assert admission.refuses(environ) is (answered == "mount") and environ["PATH_INFO"] == seen


def test_anthropic_at_a_pasted_path() -> None:
    assert dialect_of({"PATH_INFO": "/v1//v1/messages/count_tokens"}) is Dialect.ANTHROPIC
