"""The program as the container image has it: started, asked, checked and stopped by the image's own entry points.

The image itself is built and tried by ``.ci/container_image.sh`` where a container engine is installed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
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
from Tests.free_ports import free_port
from Tests.integration.compose_file import read_compose
from Tests.integration.launcher import PROJECT, START_SECONDS, clean_environment
from Tests.patience import PATIENCE
from Tests.stub_backend import RecordedRequest, Reply, StubBackend, chat_answer, json_reply

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the image runs Linux")
DOCKERFILE = (PROJECT / "Dockerfile").read_text(encoding="utf-8")
PORT, VOLUME, HOME = "5000", "/app/Public", "/tmp"
STOP_SECONDS = 8.0  # of an idle server on a slow machine; an engine kills after ten by default


class Container:
    """The image's entry point on a free port of loopback, in a folder like its ``/app``.

    It is ended by its own process id.
    """

    def __init__(self, folder: Path, *words: str) -> None:
        self._folder, self._words = folder, words
        self.port = free_port()
        self.environment = {**environment(), "WILMER_PORT": str(self.port)}

    def __enter__(self) -> Container:
        self._log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [*command("ENTRYPOINT"), "--listen=127.0.0.1", *self._words],
            cwd=self._folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        deadline = time.monotonic() + START_SECONDS
        while self.health() != 0:
            assert self.process.poll() is None and time.monotonic() < deadline, self.output()
            time.sleep(0.1)
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(PATIENCE)
        self._log.close()

    def output(self) -> str:
        self._log.seek(0)
        return self._log.read().decode("utf-8", "replace")

    def health(self) -> int:
        """The exit status of the Dockerfile's health check."""
        return subprocess.run(
            command("HEALTHCHECK"),
            cwd=self._folder,
            env=self.environment,
            timeout=START_SECONDS,
            stderr=subprocess.DEVNULL,
        ).returncode

    def request(self, path: str, body: Any = None) -> Any:
        """The JSON of an answer. Raises HTTPError."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", data, {"Content-Type": "application/json"}
        )
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
            request, timeout=START_SECONDS
        ) as answer:
            return json.load(answer)

    def stop(self) -> None:
        """Ask the process to end as an engine does."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(PATIENCE)


def command(instruction: str) -> list[str]:
    """The words of ``ENTRYPOINT`` or ``HEALTHCHECK``, run by the Python of this test."""
    _, words = re.search(rf"^({instruction})\b.*?(\[.*\])$", DOCKERFILE, re.MULTILINE).groups()  # type: ignore[union-attr]
    program, *rest = json.loads(words)
    assert program == "python"
    return [sys.executable, *rest]


def environment() -> dict[str, str]:
    return {**clean_environment(), "WILMER_CONTAINER": "1", "WILMER_PORT": PORT}


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the Dockerfile copies to ``/app``, and an empty volume."""
    folder = tmp_path_factory.mktemp("container") / "app"
    leftovers = shutil.ignore_patterns("__pycache__", "DiscussionIds", "SqlLiteDBs", "logs", "accepted-keys.txt")
    for source, target in re.findall(r"^COPY (\S+) (\S+)$", DOCKERFILE, re.MULTILINE):
        if (PROJECT / source).is_dir():
            shutil.copytree(PROJECT / source, folder / target, ignore=leftovers)
    for name in ("LICENSE", "run_waitress.py", "server.py", "requirements.lock", "requirements-database.lock"):
        assert re.search(rf"^COPY .*\b{re.escape(name)}\b", DOCKERFILE, re.MULTILINE)
        shutil.copy(PROJECT / name, folder / name)
    (folder / "Public").mkdir()
    return folder


@pytest.fixture
def public(app: Path) -> Iterator[Path]:
    """The volume, empty."""
    folder = app / "Public"
    shutil.rmtree(folder)
    folder.mkdir()
    yield folder


def run_in(app: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """What ``docker compose run --rm wilmerai WORDS`` does."""
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])
    return subprocess.run(
        [*command("ENTRYPOINT"), *words],
        cwd=app,
        env={**environment(), "PATH": path},
        timeout=60,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )


def one_model(request: RecordedRequest) -> Reply:
    """An LLM server with one model."""
    if request.method == "GET":
        return json_reply(
            {"object": "list", "data": [{"id": "stub", "object": "model", "owned_by": "vllm"}]},
            200 if request.path == "/v1/models" else 404,
        )
    return chat_answer(request, "Hello from the model.")


def test_dockerfile_names_what_the_other_files_rely_on() -> None:
    lines = DOCKERFILE.splitlines()
    assert {f"EXPOSE {PORT}", f"VOLUME {VOLUME}", "STOPSIGNAL SIGTERM", "USER 1000:1000", "CMD []"} <= set(lines)
    assert f"HOME={HOME} " in DOCKERFILE and f"WILMER_PORT={PORT}\n" in DOCKERFILE
    assert "WILMER_CONTAINER=1" in DOCKERFILE
    base = next(line for line in lines if line.startswith("FROM"))
    assert re.match(r"FROM python:3\.\d+-slim-\w+@sha256:[0-9a-f]{64}$", base)
    assert "--require-hashes -r requirements.lock -r requirements-database.lock" in " ".join(DOCKERFILE.split())


def test_everything_that_is_copied_reaches_the_build() -> None:
    kept = {
        line[1:]
        for line in (PROJECT / ".dockerignore").read_text(encoding="utf-8").splitlines()
        if line.startswith("!")
    }
    copied = {name for words in re.findall(r"^COPY (.+) \S+$", DOCKERFILE, re.MULTILINE) for name in words.split()}
    assert copied == kept and all((PROJECT / name).exists() for name in copied)


def test_starts_with_an_empty_volume_and_ends_when_told(app: Path, public: Path) -> None:
    with Container(app, "--User", "demo") as container:
        assert (public / "Configs" / "Users" / "demo.json").is_file()
        assert "demo" in [model["id"] for model in container.request("/v1/models")["data"]]
        container.stop()
        assert container.process.returncode == 0
        assert container.health() == 1


def test_init_then_chat_then_restart_with_keys(app: Path, public: Path) -> None:
    question = {"model": "me:chat", "messages": [{"role": "user", "content": "Hello"}]}
    with StubBackend() as backend:
        backend.responder = one_model
        done = run_in(app, "init", "--yes", "--backend", backend.url)
        assert done.returncode == 0, done.stdout + done.stderr
        with Container(app) as container:
            answer = container.request("/v1/chat/completions", question)
            assert answer["choices"][0]["message"]["content"] == "Hello from the model."
    made = run_in(app, "python", "Scripts/access_key.py", "--add", "Public/accepted-keys.txt")
    assert made.returncode == 0, made.stderr
    with Container(app, "--accepted-keys-file", "Public/accepted-keys.txt") as container:
        assert container.health() == 0
        with pytest.raises(urllib.error.HTTPError, match="401"):
            container.request("/v1/chat/completions", question)


def test_a_new_image_brings_its_files_into_an_old_volume_when_asked(app: Path, public: Path) -> None:
    page = (PROJECT / "Docs/User/container.md").read_text(encoding="utf-8")
    words = re.search(r"docker compose run --rm wilmerai (cp .*)", page)[1].split()  # type: ignore[index]
    assert run_in(app, "check").returncode == 0
    shipped, own = public / "Configs/ApiTypes/OllamaApiChat.json", public / "Configs/Presets/OllamaApiChat/mine.json"
    shipped.write_text("{}", encoding="utf-8")
    own.write_text('{"temperature": 0.1}', encoding="utf-8")

    assert run_in(app, "check").returncode == 1, "nothing is overwritten without being asked"
    assert run_in(app, *words).returncode == 0
    assert run_in(app, "check").returncode == 0 and own.is_file()


def test_init_looks_at_the_computer_around_the_container(app: Path, public: Path) -> None:
    assert "(host.docker.internal)" in run_in(app, "init", "--yes").stdout


def test_compose_file_is_careful() -> None:
    service = read_compose(PROJECT / "compose.yaml")["services"]["wilmerai"]
    assert service["ports"] == ["${WILMER_PUBLISH:-127.0.0.1:5000}:" + PORT]
    assert service["volumes"] == [f"public:{VOLUME}"]
    assert service["extra_hosts"] == ["host.docker.internal:host-gateway"]
    assert (service["read_only"], service["tmpfs"], service["cap_drop"]) == ("true", [HOME], ["ALL"])
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["restart"] == "unless-stopped" and service["init"] == "true"
    assert int(service["stop_grace_period"].removesuffix("s")) > STOP_SECONDS
    assert set(service["build"]["args"]) == set(re.findall(r"^ARG (\w+)", DOCKERFILE, re.MULTILINE))


def test_compose_file_fits_together() -> None:
    compose = read_compose(PROJECT / "compose.yaml")
    volumes = {volume.partition(":")[0] for service in compose["services"].values() for volume in service["volumes"]}
    assert volumes == set(compose["volumes"])
    webui = compose["services"]["open-webui"]
    assert webui["profiles"] == ["open-webui"]
    assert webui["environment"]["OPENAI_API_BASE_URL"] == f"http://wilmerai:{PORT}/v1"
    assert webui["depends_on"] == {"wilmerai": {"condition": "service_healthy"}}
    assert [port.startswith("${OPEN_WEBUI_PUBLISH:-127.0.0.1:") for port in webui["ports"]] == [True]


def test_flags_in_the_compose_file_exist() -> None:
    text = (PROJECT / "compose.yaml").read_text(encoding="utf-8")
    example = json.loads(re.search(r"for example: command: (\[.*\])", text)[1])  # type: ignore[index]
    assert build_parser().parse_args(example).accepted_keys_file == "Public/accepted-keys.txt"


def test_what_a_server_writes_does_not_reach_the_image() -> None:
    ignored = (PROJECT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    # The folders that a start names, the recorded runs, and the list of keys that "keys add" makes.
    assert {
        f"Public/{name}" for name in ("Console", "DiscussionIds", "SqlLiteDBs", "logs", "accepted-keys.txt")
    } <= set(ignored)
