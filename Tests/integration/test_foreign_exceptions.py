"""Exceptions of users' scripts that no ``except Exception`` sees: the client gets an answer all the same.

Waitress never closes a connection whose application let such an exception through.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from Tests.integration.launcher import USER, Backend, Launcher, standard_tree
from Tests.patience import PATIENCE

RAISED = {
    "asyncio": "asyncio.CancelledError()",
    "exit": "SystemExit(3)",
    "interrupt": "KeyboardInterrupt()",
    "odd": "Odd()",
    "closed": "GeneratorExit()",
}
TOLD = ("asyncio", "exit")  # like any other failure of a script
SCRIPT = """
import asyncio

class Odd(BaseException):
    pass

def Invoke():
    BODY
    raise ERROR
"""
TEXT = "unexpected"  # a word of the fixed text, which is streamed word by word


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    folder = tmp_path_factory.mktemp("foreign")
    with Backend() as backend:
        tree = standard_tree(folder / "Public", backend.url)
        for name, error in RAISED.items():
            for kind, body in (("Call", "pass"), ("Stream", "yield 'begun '")):
                script = script_file(folder, f"{kind}{name}.py", SCRIPT.replace("BODY", body).replace("ERROR", error))
                tree.shared(
                    f"{kind}{name}",
                    {"title": "script", "type": "PythonModule", "module_path": str(script), "returnToUser": True},
                )
        with Launcher("run_waitress.py", "--PublicDirectory", tree.public, "--User", USER) as launcher:
            yield launcher


def script_file(folder: Path, name: str, code: str) -> Path:
    file = folder / name
    file.write_text(code, encoding="utf-8")
    return file


@pytest.mark.parametrize("name", RAISED)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", ["openai", "ollama"])
def test_before_the_answer(server: Launcher, name: str, stream: bool, dialect: str) -> None:
    path = "/v1/chat/completions" if dialect == "openai" else "/api/chat"
    answer = server.request(
        "POST",
        path,
        {"model": f"Call{name}", "stream": stream, "messages": [{"role": "user", "content": "Hello"}]},
        timeout=PATIENCE,
    )
    if name in TOLD:
        assert answer.status == 200 and TEXT in answer.body.decode()
    else:
        assert answer.status == 500 and "Internal error" in answer.error
    assert server.ask("Single").status == 200


@pytest.mark.parametrize("name", RAISED)
@pytest.mark.parametrize("stream", [False, True])
def test_out_of_a_generator(server: Launcher, name: str, stream: bool) -> None:
    answer = server.request(
        "POST",
        "/v1/chat/completions",
        {"model": f"Stream{name}", "stream": stream, "messages": [{"role": "user", "content": "Hello"}]},
        timeout=PATIENCE,
    )
    body = answer.body.decode()
    if name in TOLD or stream:
        assert answer.status == 200 and "begun " in body
        assert (TEXT if name in TOLD else "Internal error") in body
        assert not stream or body.endswith("data: [DONE]\n\n")
    else:
        assert answer.status == 500 and "Internal error" in answer.error


def test_the_log_says_where(server: Launcher) -> None:
    server.ask("Callodd")
    assert "Callodd.py" in server.wait_output("Traceback")
