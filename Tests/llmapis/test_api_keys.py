"""The key of an endpoint, given directly or by reference."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.exceptions import BackendStatusError, ConfigValueError
from Middleware.llmapis.api_keys import MAX_FILE_BYTES, resolve_api_key
from Middleware.llmapis.backend_errors import secrets_of
from Middleware.llmapis.endpoint_file import EndpointFile
from Middleware.llmapis.llm_api import LlmApiService
from Middleware.utilities.http.wire import parse_target
from Tests.llmapis.lab import Lab
from Tests.stub_backend import StubBackend, chat_reply, status_reply

SECRET = "sk-very-secret-1"
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    return Lab(tmp_path / "configs", monkeypatch)


@pytest.fixture
def backend() -> Iterator[StubBackend]:
    with StubBackend() as stub:
        yield stub


def resolve(value: Any) -> str:
    return resolve_api_key(value, "Endpoints/lab/Main.json")


def problem_of(value: Any) -> str:
    """The message of the refusal, which names the file and the JSON key, and no key or place on the disk."""
    with pytest.raises(ConfigValueError) as caught:
        resolve(value)
    assert (caught.value.file, caught.value.json_path) == ("Endpoints/lab/Main.json", "apiKey")
    message = str(caught.value)
    assert message.startswith("Endpoints/lab/Main.json: ") and "'env:'" in caught.value.expected
    assert SECRET not in message
    return message


@pytest.mark.parametrize(
    ("value", "key"),
    [
        (None, ""),
        ("", ""),
        (SECRET, SECRET),
        (123, "123"),
        ("environment", "environment"),
        ("ENV:X", "ENV:X"),
        ("files:x", "files:x"),
        ("sk env:X", "sk env:X"),
        (" padded\n", "padded"),
    ],
)
def test_anything_else_is_the_key_itself(value: Any, key: str) -> None:
    assert resolve(value) == key


@pytest.mark.parametrize("value", [True, False, 1.5, [SECRET], {"key": SECRET}])
def test_a_key_that_is_not_a_string_is_refused(value: Any) -> None:
    assert "not a string" in problem_of(value)


# -- environment --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reference", ["env:WILMER_TEST_KEY", " env: WILMER_TEST_KEY "])
@pytest.mark.parametrize("content", [SECRET, f"  {SECRET}\r\n"])
def test_environment_variable(monkeypatch: pytest.MonkeyPatch, reference: str, content: str) -> None:
    monkeypatch.setenv("WILMER_TEST_KEY", content)
    assert resolve(reference) == SECRET


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "the environment variable 'WILMER_TEST_KEY' is not set"),
        (" ", "the environment variable 'WILMER_TEST_KEY' is empty"),
        (f"{SECRET}\n{SECRET}", "the environment variable 'WILMER_TEST_KEY' holds more than one line"),
        (f"{SECRET}\x07x", "the environment variable 'WILMER_TEST_KEY' holds control characters"),
    ],
)
def test_unusable_environment_variables(monkeypatch: pytest.MonkeyPatch, content: str | None, text: str) -> None:
    monkeypatch.delenv("WILMER_TEST_KEY", raising=False)
    if content is not None:
        monkeypatch.setenv("WILMER_TEST_KEY", content)
    assert text in problem_of("env:WILMER_TEST_KEY")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("env:", "names no environment variable"),
        ("env: ", "names no environment variable"),
        ("env:\ud800", "is not set"),
        ("file:", "names no file"),
        ("file:a\0b", "has an invalid name"),
    ],
)
def test_references_to_nothing(lab: Lab, value: str, text: str) -> None:
    assert text in problem_of(value)


# -- files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [SECRET.encode(), f"{SECRET}\n".encode(), f"\r\n  {SECRET} \r\n\r\n".encode(), b"\xef\xbb\xbf" + SECRET.encode()],
)
def test_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "key.txt").write_bytes(content)
    assert resolve(f"file:{tmp_path / 'key.txt'}") == SECRET


def test_a_relative_path_counts_from_the_config_root(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "keys").mkdir(parents=True)
    (elsewhere / "keys" / "k").write_text("wrong", encoding="utf-8")
    monkeypatch.chdir(elsewhere)
    (lab.root / "keys").mkdir()
    (lab.root / "keys" / "k").write_text(SECRET, encoding="utf-8")
    (tmp_path / "beside").write_text("outside", encoding="utf-8")
    assert resolve("file:keys/k") == SECRET
    assert resolve("file:../beside") == "outside"


def test_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(variable, str(tmp_path))
    (tmp_path / "k").write_text(SECRET, encoding="utf-8")
    assert resolve("file:~/k") == SECRET


def test_a_changed_file_counts_at_once(tmp_path: Path) -> None:
    for key in ("first", "other"):
        (tmp_path / "k").write_text(key, encoding="utf-8")
        assert resolve(f"file:{tmp_path / 'k'}") == key


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (f"{SECRET}\nsecond".encode(), "holds more than one line"),
        (SECRET.encode("utf-16"), "is not a UTF-8 text"),
        (SECRET.encode("utf-16-le"), "holds control characters"),
        (b"x" * (MAX_FILE_BYTES + 1), "is too large to hold a key"),
    ],
)
def test_unusable_files(lab: Lab, content: bytes, text: str) -> None:
    (lab.root / "k").write_bytes(content)
    message = problem_of("file:k")
    assert f"the key file named in 'apiKey' {text}" in message and str(lab.root) not in message


def test_missing_file_and_directory(lab: Lab) -> None:
    for path, text in (("gone/k", "does not exist"), ("Endpoints", "is a directory")):
        message = problem_of(f"file:{path}")
        assert f"the key file named in 'apiKey' {text}" in message and f"'{path}'" not in message


def test_only_the_log_tells_the_path_and_only_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = str(tmp_path / "gone")
    for _ in range(2):
        assert path not in problem_of(f"file:{path}")
    assert caplog.text.count(path) == 1 and "Endpoints/lab/Main.json" in caplog.text


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_not_waited_for(lab: Lab) -> None:
    os.mkfifo(lab.root / "pipe")
    assert "is not an ordinary file" in problem_of("file:pipe")


def test_a_file_that_cannot_be_opened(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    (lab.root / "k").write_text(SECRET, encoding="utf-8")

    def refuse(path: str, *_: Any) -> None:
        raise PermissionError(13, "Permission denied", path)  # root, who may run the tests, is never refused

    monkeypatch.setattr("builtins.open", refuse)
    message = problem_of("file:k")
    assert "the key file named in 'apiKey' cannot be read (Permission denied)" in message
    assert str(lab.root) not in message


# -- in use -------------------------------------------------------------------------------------------------------


def test_the_key_is_sent(lab: Lab, backend: StubBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WILMER_TEST_KEY", SECRET)
    lab.endpoint("Main", {"apiKey": "env:WILMER_TEST_KEY"}, backend.url)
    backend.script(chat_reply("x"))
    LlmApiService("Main").get_response_from_llm(HI)
    assert backend.requests[0].headers["authorization"] == f"Bearer {SECRET}"


def test_a_mistake_names_the_endpoint_file_of_the_user(lab: Lab) -> None:
    lab.endpoint("Main", {"apiKey": "file:gone"})
    said = r"Endpoints/lab/Main\.json: the key file named in 'apiKey' does not exist \(at ap"
    with pytest.raises(ConfigValueError, match=said):
        LlmApiService("Main")


def test_a_resolved_key_shows_nowhere(lab: Lab, backend: StubBackend) -> None:
    (lab.root / "k").write_text(SECRET, encoding="utf-8")
    lab.endpoint("Main", {"apiKey": "file:k"}, backend.url)
    backend.script(status_reply(401, f"Incorrect API key provided: {SECRET}."))
    with pytest.raises(BackendStatusError, match=r"Incorrect API key provided: \*\*\*\.") as caught:
        LlmApiService("Main").get_response_from_llm(HI)
    assert SECRET not in str(caught.value) + caught.value.body
    file = EndpointFile.load("Main")
    assert file.settings({}).api_key == SECRET
    assert SECRET not in repr(file) + repr(file.settings({})) and file.config["apiKey"] == "file:k"


@pytest.mark.parametrize("stream", [False, True])
def test_a_key_with_blanks_around_it_is_masked(lab: Lab, backend: StubBackend, stream: bool) -> None:
    lab.endpoint("Main", {"apiKey": f" {SECRET}\t"}, backend.url)
    backend.script(status_reply(401, f"Incorrect API key provided: {SECRET}."))
    with pytest.raises(BackendStatusError, match=r"provided: \*\*\*\.") as caught:
        list(LlmApiService("Main", stream=stream).get_response_from_llm(HI))
    assert backend.requests[0].headers["authorization"] == f"Bearer {SECRET}"
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(("header", "value"), [("Authorization", "Bearer  {} "), ("x-api-key", " {}\t")])
def test_secrets_are_known_as_they_go_over_the_wire(header: str, value: str) -> None:
    assert SECRET in secrets_of({header: value.format(SECRET)}, parse_target("http://h/"))


def test_an_echoed_key_is_masked_in_the_debug_log(
    lab: Lab, backend: StubBackend, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    lab.endpoint("Main", {"apiKey": SECRET}, backend.url)
    padding = "x" * (4096 - len('{"error": {"message": "') - 5)  # the key lies across the end of what is logged
    backend.script(status_reply(401, padding + SECRET))
    with pytest.raises(BackendStatusError):
        LlmApiService("Main").get_response_from_llm(HI)
    assert "answered status 401" in caplog.text and "***" in caplog.text
    assert SECRET[:4] not in caplog.text


@pytest.mark.parametrize("key", [SECRET, "a pass phrase"])
@pytest.mark.parametrize(("header", "value"), [("Authorization", "Bearer {}"), ("x-api-key", "{}")])
def test_headers_with_the_key_are_known_as_secret(header: str, value: str, key: str) -> None:
    assert key in secrets_of({header: value.format(key)}, parse_target("http://h/"))
