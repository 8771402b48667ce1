"""The Dockerfile, carried out step by step in a folder, and what it makes: started, asked, checked and stopped."""
from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.cli.arguments import build_parser
from Scripts.container_steps import Image, build
from Tests.integration.compose_file import read_compose
from Tests.integration.launcher import PROJECT
from Tests.stub_backend import RecordedRequest, Reply, StubBackend, chat_reply, chat_stream_reply, json_reply

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the steps need a POSIX shell")
STOP_SECONDS = 8.0  # an engine kills after ten by default


class Container:
    """The image's process on a free port of loopback, its volume the given folder. Ended by its own process id."""

    def __init__(self, image: Image, *words: str) -> None:
        self._image, self._words = image, words
        self.port = free_port()
        self.environment = {**image.environment(), "WILMER_PORT": str(self.port)}

    def __enter__(self) -> Container:
        self._log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            self._image.start_words("--listen=127.0.0.1", *self._words), cwd=self._image.folder, env=self.environment,
            stdin=subprocess.DEVNULL, stdout=self._log, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + 30
        while self.health() != 0:
            assert self.process.poll() is None and time.monotonic() < deadline, self.output()
            time.sleep(0.1)
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(5)
        self._log.close()

    def output(self) -> str:
        self._log.seek(0)
        return self._log.read().decode("utf-8", "replace")

    def health(self) -> int:
        """The exit status of the Dockerfile's health check."""
        return subprocess.run(self._image.health, cwd=self._image.folder, env=self.environment, timeout=20,
                              stderr=subprocess.DEVNULL).returncode

    def request(self, path: str, body: Any = None) -> Any:
        """The JSON of an answer. Raises HTTPError."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data,
                                         {"Content-Type": "application/json"})
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=20) as answer:
            return json.load(answer)

    def stop(self) -> float:
        """Ask the process to end as an engine does; returns the seconds that it took."""
        started = time.monotonic()
        self.process.send_signal(getattr(signal, self._image.stop_signal))
        self.process.wait(STOP_SECONDS)
        return time.monotonic() - started


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    return build(PROJECT, tmp_path_factory.mktemp("container") / "root", reuse_packages=True, say=lambda line: None)


@pytest.fixture
def public(image: Image) -> Iterator[Path]:
    """The volume, empty."""
    folder = image.place("/app/Public")
    for entry in folder.iterdir():  # the folder itself shows whose it is
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    yield folder


def run_in(image: Image, *words: str) -> subprocess.CompletedProcess[str]:
    """What ``docker compose run --rm wilmerai WORDS`` does."""
    return subprocess.run(image.start_words(*words), cwd=image.folder, env=image.environment(), timeout=60,
                          stdin=subprocess.DEVNULL, capture_output=True, text=True)


def owner_of_volume(image: Image) -> str:
    """To whom the steps gave the folder that becomes a volume; only root can really give it away."""
    if sys.platform != "win32" and os.geteuid() == 0:
        status = image.place("/app/Public").stat()
        return f"{status.st_uid}:{status.st_gid}"
    return (image.root / "stand-ins" / "chown.log").read_text().removesuffix(" Public\n")


def one_model(request: RecordedRequest) -> Reply:
    """An LLM server with one model."""
    if request.method == "GET":
        return json_reply({"object": "list", "data": [{"id": "stub", "object": "model", "owned_by": "vllm"}]},
                          200 if request.path == "/v1/models" else 404)
    text = "Hello from the model."
    return chat_stream_reply([text]) if request.json.get("stream") else chat_reply(text)


def test_image_has_the_program_and_nothing_of_the_work_on_it(image: Image) -> None:
    names = {path.name for path in image.folder.iterdir()}
    assert names == {"Middleware", "Scripts", "Defaults", "Public", "LICENSE", "requirements.lock", "run_waitress.py",
                     "server.py", "__pycache__"}
    assert not any((image.folder / "Defaults" / name).exists()
                   for name in ("DiscussionIds", "SqlLiteDBs", "logs", "accepted-keys.txt"))
    assert not any((image.folder / "Public").iterdir())
    assert (image.folder / "Middleware" / "__pycache__").is_dir(), "nothing is compiled"


def test_image_is_not_for_root_and_names_what_it_offers(image: Image) -> None:
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", image.user)
    assert re.fullmatch(r"python:3\.\d+-slim-\w+", image.base)
    assert (image.ports, image.volumes, image.stop_signal) == (["5000"], ["/app/Public"], "SIGTERM")
    assert owner_of_volume(image) == image.user
    assert "--require-hashes -r requirements.lock" in " ".join((PROJECT / "Dockerfile").read_text().split())


def test_starts_with_an_empty_volume_and_ends_when_told(image: Image, public: Path) -> None:
    with Container(image, "--User", "demo") as container:
        assert (public / "Configs" / "Users" / "demo.json").is_file()
        assert "demo" in [model["id"] for model in container.request("/v1/models")["data"]]
        assert container.stop() < STOP_SECONDS
        assert container.process.returncode == 0
        assert container.health() == 1


def test_init_then_chat_then_restart_with_keys(image: Image, public: Path) -> None:
    question = {"model": "me:chat", "messages": [{"role": "user", "content": "Hello"}]}
    with StubBackend() as backend:
        backend.responder = one_model
        done = run_in(image, "init", "--yes", "--backend", backend.url)
        assert done.returncode == 0, done.stdout + done.stderr
        with Container(image) as container:
            answer = container.request("/v1/chat/completions", question)
            assert answer["choices"][0]["message"]["content"] == "Hello from the model."
    made = run_in(image, "python", "Scripts/access_key.py", "--add", "Public/accepted-keys.txt")
    assert made.returncode == 0, made.stderr
    with Container(image, "--accepted-keys-file", "Public/accepted-keys.txt") as container:
        assert container.health() == 0
        with pytest.raises(urllib.error.HTTPError, match="401"):
            container.request("/v1/chat/completions", question)


def test_init_looks_at_the_computer_around_the_container(image: Image, public: Path) -> None:
    assert "(host.docker.internal)" in run_in(image, "init", "--yes").stdout


def test_compose_file_is_careful(image: Image) -> None:
    service = read_compose(PROJECT / "compose.yaml")["services"]["wilmerai"]
    assert service["ports"] == ["${WILMER_PUBLISH:-127.0.0.1:5000}:" + image.ports[0]]
    assert service["volumes"] == [f"public:{image.volumes[0]}"]
    assert service["extra_hosts"] == ["host.docker.internal:host-gateway"]
    assert (service["read_only"], service["tmpfs"], service["cap_drop"]) == ("true", [image.variables["HOME"]], ["ALL"])
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["restart"] == "unless-stopped" and service["init"] == "true"
    assert int(service["stop_grace_period"].removesuffix("s")) > STOP_SECONDS
    assert set(service["build"]["args"]) == set(image.arguments)


def test_compose_file_fits_together(image: Image) -> None:
    compose = read_compose(PROJECT / "compose.yaml")
    volumes = {volume.partition(":")[0] for service in compose["services"].values() for volume in service["volumes"]}
    assert volumes == set(compose["volumes"])
    webui = compose["services"]["open-webui"]
    assert webui["profiles"] == ["open-webui"]
    assert webui["environment"]["OPENAI_API_BASE_URL"] == f"http://wilmerai:{image.ports[0]}/v1"
    assert webui["depends_on"] == {"wilmerai": {"condition": "service_healthy"}}
    assert [port.startswith("${OPEN_WEBUI_PUBLISH:-127.0.0.1:") for port in webui["ports"]] == [True]


def test_flags_in_the_compose_file_exist() -> None:
    text = (PROJECT / "compose.yaml").read_text(encoding="utf-8")
    example = json.loads(re.search(r"for example: command: (\[.*\])", text)[1])  # type: ignore[index]
    assert build_parser().parse_args(example).accepted_keys_file == "Public/accepted-keys.txt"
    assert os.path.basename("Public/accepted-keys.txt") in (PROJECT / ".dockerignore").read_text(encoding="utf-8")
