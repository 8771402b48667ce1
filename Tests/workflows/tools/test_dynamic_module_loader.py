"""Running users' scripts."""

from __future__ import annotations

import logging
import os
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from Middleware.common.constants import VALID_NODE_TYPES
from Middleware.exceptions import ConfigurationError, EarlyTerminationException
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.utilities import config_utils
from Middleware.utilities.config import paths
from Middleware.workflows.tools import dynamic_module_loader
from Middleware.workflows.tools.dynamic_module_loader import DynamicModuleError, add_import_paths, run_dynamic_module
from Middleware.workflows.tools.scripts import thread
from Middleware.workflows.tools.scripts.thread import running_scripts
from Tests.workflows.engine_lab import until

UNEXPECTED = "Error: An unexpected error occurred while processing your request. Please check system logs."
ROOT = config_utils.get_project_root_directory_path()

Write = Callable[..., str]


@pytest.fixture
def script(tmp_path: Path) -> Write:
    def write(code: str, name: str = "task.py") -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(code), encoding="utf-8")
        return str(path)

    return write


def returning(expression: str) -> str:
    return f"def Invoke(*args, **kwargs):\n    return {expression}\n"


def raising(statement: str) -> str:
    return f"from {DynamicModuleError.__module__} import DynamicModuleError\ndef Invoke():\n    {statement}\n"


# -- finding -----------------------------------------------------------------------------------------------------------


def test_arguments_and_result(script: Write) -> None:
    path = script("def Invoke(a, b='x', **more):\n    return [a, b, more]\n")
    assert run_dynamic_module(path, "1", b="2", module_path="3") == ["1", "2", {"module_path": "3"}]


@pytest.mark.parametrize("value", ["'text'", "{'k': 1}", "None", "5", "True", "[1, {'a': None}]", "''"])
def test_the_result_is_returned_unchanged(script: Write, value: str) -> None:
    result = run_dynamic_module(script(returning(value)))
    assert result == eval(value) and type(result) is type(eval(value))


def test_home_directory(script: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(returning("'home'"), "sub/task.py")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert run_dynamic_module("~/sub/task.py") == "home"


def test_relative_paths(script: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(returning("'install'"), "install/x/task.py")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    for module in (dynamic_module_loader, paths):
        monkeypatch.setattr(module, "get_project_root_directory_path", lambda: str(tmp_path / "install"))
    assert run_dynamic_module("x/task.py") == "install"
    script(returning("'work'"), "work/x/task.py")
    assert run_dynamic_module("x/task.py") == "work"
    for added in (str(tmp_path / "install"), str(tmp_path / "install" / "Middleware")):
        sys.path.remove(added)


@pytest.mark.parametrize("name", ["nope.py", "a/nope.py", "nul\0.py", "."])
def test_missing_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    for path in (name, str(tmp_path / name)):
        with pytest.raises(FileNotFoundError) as caught:
            run_dynamic_module(path)
        assert isinstance(caught.value, ConfigurationError)
        assert "does not exist" in str(caught.value) and str(tmp_path) not in str(caught.value)


@pytest.mark.parametrize(("code", "kind"), [("x = 1", AttributeError), ("Invoke = 5", TypeError)])
def test_file_that_is_no_script(script: Write, code: str, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=r"'task\.py'") as caught:
        run_dynamic_module(script(code))
    assert isinstance(caught.value, ConfigurationError)


# -- loading -----------------------------------------------------------------------------------------------------------


def test_every_call_loads_afresh(script: Write) -> None:
    path = script("count = 0\ndef Invoke():\n    global count\n    count += 1\n    return count\n")
    assert [run_dynamic_module(path) for _ in range(3)] == [1, 1, 1]


def test_an_edit_within_the_same_second_counts(script: Write) -> None:
    path = script(returning("'a'"))
    stamp = os.stat(path).st_mtime
    assert run_dynamic_module(path) == "a"
    script(returning("'b'"))
    os.utime(path, (stamp, stamp))
    assert run_dynamic_module(path) == "b"
    assert os.listdir(os.path.dirname(path)) == ["task.py"]  # no byte code beside the user's file


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("raise KeyError('x')", KeyError),
        ("def (", SyntaxError),
        ("import no_such_module_x", ImportError),
        ("import sys; sys.exit(3)", RuntimeError),
        ("open('/no/such/file')", FileNotFoundError),
    ],
)
def test_errors_while_loading_are_raised(script: Write, code: str, kind: type[Exception]) -> None:
    known = set(sys.modules)
    with pytest.raises(kind):
        run_dynamic_module(script(code))
    assert not [name for name in set(sys.modules) - known if "task" in name]


@pytest.mark.parametrize(
    ("code", "kind", "text"),
    [
        ("x = 1\n  y = 2", SyntaxError, "line 2: unexpected indent"),
        ("# coding: nonsense\nx = 1", SyntaxError, "unknown encoding: nonsense"),
        (
            "import no_such_module_x",
            ModuleNotFoundError,
            "No module named 'no_such_module_x'. Is its package installed in WilmerAI's environment?",
        ),
    ],
)
def test_mistakes_of_the_file_itself_are_told(script: Write, code: str, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind) as caught:
        run_dynamic_module(script(code))
    assert isinstance(caught.value, ConfigurationError)
    assert str(caught.value) == f"the Python script 'task.py' cannot be loaded: {text}"


def test_a_mistake_in_a_file_that_a_script_imports(script: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(os.path.dirname(script("def (", "broken_helper_x.py")))
    with pytest.raises(SyntaxError, match="'task.py' cannot be loaded: broken_helper_x.py, line 1: "):
        run_dynamic_module(script("import broken_helper_x"))


def test_a_missing_script_is_looked_for_once_in_the_same_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(paths, "get_project_root_directory_path", lambda: os.getcwd())
    with pytest.raises(FileNotFoundError):
        run_dynamic_module("none.py")
    assert caplog.text.count("none.py") == 1


def test_byte_order_mark_and_encoding(tmp_path: Path) -> None:
    (tmp_path / "bom.py").write_bytes(b"\xef\xbb\xbf" + returning("'\u00e4'").encode())
    (tmp_path / "latin.py").write_bytes(b"# -*- coding: latin-1 -*-\n" + returning("'\u00e4'").encode("latin-1"))
    assert run_dynamic_module(str(tmp_path / "bom.py")) == run_dynamic_module(str(tmp_path / "latin.py")) == "\u00e4"


def test_what_a_script_knows_of_itself(script: Write) -> None:
    path = script("""
        from __future__ import annotations
        import dataclasses, sys, typing
        @dataclasses.dataclass
        class Point:
            x: Other
        class Other: pass
        def Invoke():
            assert sys.modules[__name__].Point is Point
            assert typing.get_type_hints(Point) == {"x": Other}
            return __file__, __name__ == "__main__"
        """)
    assert run_dynamic_module(path) == (path, False)


def test_scripts_of_the_same_name_never_meet(script: Write) -> None:
    code = """
        import sys, time
        value = None
        def Invoke(given):
            global value
            value = given
            time.sleep(0.02)
            return "OWN" + value + sys.modules[__name__].value
        """
    paths = [script(code.replace("OWN", name), f"{name}/utils.py") for name in ("one", "two")]
    known = set(sys.modules)
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda n: run_dynamic_module(paths[n % 2], str(n)), range(24)))
    assert results == [f"{('one', 'two')[n % 2]}{n}{n}" for n in range(24)]
    assert not [name for name in set(sys.modules) - known if "utils" in name and "wilmer" in name]


def test_import_paths_are_added_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = (ROOT, os.path.join(ROOT, "Middleware"))
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ours])
    before = list(sys.path)
    barrier = threading.Barrier(8)

    def add(_: int) -> None:
        barrier.wait()
        add_import_paths()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(8)))
    assert sys.path == [*ours, *before]


def test_import_surface(script: Write) -> None:
    assert run_dynamic_module(
        script("""
        from Middleware.common.constants import VALID_NODE_TYPES
        from Middleware.common.instance_global_variables import INSTANCE_ID
        from Middleware.utilities.config_utils import (
            get_api_type_config, get_config_path, get_config_value, get_current_username, get_default_tool_prompt_path,
            get_endpoint_config, get_project_root_directory_path, get_root_config_directory,
            get_root_public_directory, get_user_config, get_user_config_for, get_workflow_path, load_config)
        from Middleware.utilities.text_utils import return_brackets_in_string
        from Middleware.workflows.tools.dynamic_module_loader import DynamicModuleError
        from Middleware.workflows.tools.mcp_client_tool import MCPClient, MCPToolCallError
        from utilities.text_utils import return_brackets_in_string as as_old_scripts_write_it
        def Invoke():
            return VALID_NODE_TYPES, as_old_scripts_write_it("__WILMER_L_CURLY__")
        """)
    ) == (VALID_NODE_TYPES, "{")


# -- failures inside Invoke --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        ("raise ValueError('secret')", UNEXPECTED),
        ("import sys; sys.exit(1)", UNEXPECTED),
        ("1/0", UNEXPECTED),
        ("raise OSError('x')", UNEXPECTED),
        ("import asyncio; raise asyncio.CancelledError", UNEXPECTED),
        ("None.nope", "Error: Module 'task.py' setup issue. Please check logs."),
        ("raise TypeError('x')", "Error: Module 'task.py' setup issue. Please check logs."),
        ("raise DynamicModuleError('It broke')", "Error processing request in module 'task.py'. It broke"),
        ("raise DynamicModuleError('It broke', 'Weather')", "Error processing request in module 'Weather'. It broke"),
        (
            "raise DynamicModuleError('It broke', details={'a': 1})",
            "Error processing request in module 'task.py'. It broke. Details: {'a': 1}",
        ),
        ("raise DynamicModuleError('It broke', 'W', '')", "Error processing request in module 'W'. It broke"),
    ],
)
def test_failures_become_texts(script: Write, caplog: pytest.LogCaptureFixture, statement: str, text: str) -> None:
    path = script(raising(statement))
    assert run_dynamic_module(path) == text
    record = next(record for record in caplog.records if record.levelno == logging.ERROR)
    assert record.exc_info and path in record.getMessage() and "in Invoke" in caplog.text


def test_wrong_number_of_arguments(script: Write) -> None:
    assert run_dynamic_module(script("def Invoke(a): pass"), "1", "2") == (
        "Error: Module 'task.py' setup issue. Please check logs."
    )


def test_error_class_imported_under_its_old_short_name(script: Write) -> None:
    code = raising("raise DynamicModuleError('It broke', 'W')").replace("from Middleware.", "from ")
    assert run_dynamic_module(script(code)) == "Error processing request in module 'W'. It broke"


def test_file_missed_inside_invoke_is_raised(script: Write) -> None:
    with pytest.raises(FileNotFoundError):
        run_dynamic_module(script(raising("open('/no/such/file')")))


def test_cancellation_inside_invoke_is_raised(script: Write) -> None:
    path = script(
        "from Middleware.exceptions import EarlyTerminationException\n"
        "def Invoke():\n    raise EarlyTerminationException('x')\n"
    )
    with pytest.raises(EarlyTerminationException):
        run_dynamic_module(path)


# -- generators --------------------------------------------------------------------------------------------------------

GENERATOR = """
    import sys
    def Invoke(log):
        try:
            yield {"token": "a", "finish_reason": None}
            yield "b"
            assert sys.modules[__name__].Invoke is Invoke
            FAILURE
            yield {"token": "", "finish_reason": "stop"}
        finally:
            with open(log, "a") as file:
                file.write("closed")
    """
A, B = {"token": "a", "finish_reason": None}, {"token": "b", "finish_reason": None}


def test_generator_of_chunks(script: Write, tmp_path: Path) -> None:
    known = set(sys.modules)
    chunks = run_dynamic_module(script(GENERATOR.replace("FAILURE", "pass")), str(tmp_path / "log"))
    assert list(chunks) == [A, B, {"token": "", "finish_reason": "stop"}]
    assert not [name for name in set(sys.modules) - known if "task" in name]


@pytest.mark.parametrize(
    ("statement", "logged"),
    [
        ("1/0", "ZeroDivisionError"),
        ("sys.exit(2)", "SystemExit"),
        ("import asyncio; raise asyncio.CancelledError", "CancelledError"),
    ],
)
def test_failing_generator_ends_with_the_text(
    script: Write, tmp_path: Path, caplog: pytest.LogCaptureFixture, statement: str, logged: str
) -> None:
    chunks = run_dynamic_module(script(GENERATOR.replace("FAILURE", statement)), str(tmp_path / "log"))
    assert list(chunks) == [A, B, {"token": UNEXPECTED, "finish_reason": None}]
    assert logged in caplog.text


@pytest.mark.parametrize(
    ("written", "chunk"),
    [
        ("None", {}),
        ("5", {"token": "5"}),
        ("['a']", {"token": "['a']", "finish_reason": None}),
        ("{'token': None}", {"token": ""}),
        ("{'token': 7, 'finish_reason': 'stop'}", {"token": "7", "finish_reason": "stop"}),
        ("{'token': 'a', 'end': True, 'more': True}", {"token": "a"}),
        ("{'tool_calls': ({'id': 'x'}, 1)}", {"tool_calls": [{"id": "x"}]}),
        ("{'tool_calls': 'abc'}", {"tool_calls": []}),
        ("{'tool_calls': True}", {"tool_calls": []}),
        ("{'token': 'a', 'finish_reason': 5}", {"token": "a", "finish_reason": None}),
        ("{'token': '', 'x': None}", {"token": "", "x": None}),
    ],
)
def test_whatever_a_generator_yields_becomes_a_chunk(script: Write, written: str, chunk: dict[str, Any]) -> None:
    whole = {"token": "", "finish_reason": None, **chunk}
    assert list(run_dynamic_module(script(f"def Invoke():\n    yield {written}\n"))) == [whole]


def test_closed_generator_closes_the_script(script: Write, tmp_path: Path) -> None:
    chunks = run_dynamic_module(script(GENERATOR), str(tmp_path / "log"))
    assert next(chunks) == A
    chunks.close()
    assert (tmp_path / "log").read_text(encoding="utf-8") == "closed"


def test_cancelled_request_gets_no_more_chunks(script: Write, tmp_path: Path) -> None:
    request = RequestContext()
    with request_scope(request):
        chunks = run_dynamic_module(script(GENERATOR), str(tmp_path / "log"))
        assert next(chunks) == A
        request.cancel_scope.cancel()
        with pytest.raises(EarlyTerminationException):
            next(chunks)
    assert (tmp_path / "log").read_text(encoding="utf-8") == "closed"


# -- the script's own thread -------------------------------------------------------------------------------------------


def test_a_connection_may_live_across_all_steps(script: Write, tmp_path: Path) -> None:
    """SQLite lets only the thread that made a connection use it; the steps are asked for by several."""
    chunks = run_dynamic_module(
        script("""
        import sqlite3
        early = sqlite3.connect(":memory:")
        def Invoke(path):
            database = sqlite3.connect(path)
            try:
                for number in range(3):
                    database.execute("CREATE TABLE IF NOT EXISTS t (n)")
                    database.execute("INSERT INTO t VALUES (?)", (number,))
                    yield database.execute("SELECT sum(n) FROM t").fetchone()[0]
                    early.execute("SELECT 1")
            finally:
                database.commit()
                database.close()
                early.close()
        """),
        str(tmp_path / "db"),
    )
    tokens: list[str] = []
    for _ in range(2):
        with ThreadPoolExecutor(1) as pool:
            tokens.append(pool.submit(next, chunks).result()["token"])
    tokens += [chunk["token"] for chunk in chunks]
    assert tokens == ["0", "1", "3"]


def test_a_script_knows_its_request(script: Write) -> None:
    path = script("""
        from Middleware.models.request_context import current_request
        def Invoke():
            return current_request().request_id
        """)
    with request_scope(RequestContext(request_id="r-7")):
        assert run_dynamic_module(path) == "r-7"


def stop_when(condition: Callable[[], bool], request: RequestContext) -> None:
    def wait() -> None:
        until(condition)
        request.cancel_scope.cancel("stop")

    threading.Thread(target=wait, daemon=True).start()


def stop_soon(request: RequestContext) -> None:
    threading.Timer(0.05, request.cancel_scope.cancel).start()


HANG = """
import os, time
def hang():
    open("STARTED", "w").close()
    for _ in range(6000):
        if os.path.exists("RELEASE"): return
        time.sleep(0.01)
"""


@pytest.mark.parametrize(
    "code",
    [
        "hang()\ndef Invoke(): pass\n",
        "def Invoke():\n    hang()\n",
        "def Invoke():\n    hang()\n    yield 'late'\n",
        "def Invoke():\n    while True:\n        hang()\n        raise ValueError('late')\n",
    ],
    ids=["loading", "function", "generator", "failure"],
)
def test_a_stop_leaves_a_script_that_hangs(
    script: Write, tmp_path: Path, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    request, release, started = RequestContext(), tmp_path / "release", tmp_path / "started"
    stop_when(started.exists, request)
    hang = HANG.replace("RELEASE", release.as_posix()).replace("STARTED", started.as_posix())
    # If the stop waited for the script, it would have ended by itself, without a warning.
    with request_scope(request), pytest.raises(EarlyTerminationException):
        list(run_dynamic_module(script(hang + code)))
    release.touch()
    assert until(lambda: "has ended" in caplog.text or not len(running_scripts()))
    assert [record.levelname for record in caplog.records] == ["WARNING"]  # its failure is nobody's any more


@pytest.fixture
def long_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a script that ends as it should more time than the moment, which a busy machine exceeds."""
    monkeypatch.setattr(thread, "MOMENT_SECONDS", 60.0)


@pytest.mark.usefixtures("long_moment")
def test_a_script_may_answer_a_stop_with_a_failure_of_its_own(script: Write, caplog: pytest.LogCaptureFixture) -> None:
    path = script("""
        from Middleware.models.request_context import current_request
        def Invoke():
            current_request().cancel_scope.wait(120)
            raise ValueError("stopped")
        """)
    request = RequestContext()
    stop_soon(request)
    with request_scope(request), pytest.raises(EarlyTerminationException):
        run_dynamic_module(path)
    assert caplog.records == []


def documented_loop() -> str:
    """The example of a loop that asks whether it was stopped, as users read it."""
    page = Path(ROOT, "Docs", "User", "python-scripts.md").read_text(encoding="utf-8")
    (code,) = [block.partition("```")[0] for block in page.split("```python\n")[1:] if "current_request" in block]
    return code


@pytest.mark.usefixtures("long_moment")
def test_the_documented_loop_notices_a_stop(script: Write, caplog: pytest.LogCaptureFixture) -> None:
    request = RequestContext()
    stop_soon(request)
    began = time.monotonic()
    with request_scope(request), pytest.raises(EarlyTerminationException):
        run_dynamic_module(script(documented_loop()), "90")
    assert time.monotonic() - began < 60
    assert caplog.records == []  # it was not left alone


def test_the_documented_loop_comes_to_its_end(script: Write) -> None:
    code = documented_loop().replace("wait(1)", "wait(0.01)")
    with request_scope(RequestContext()):
        assert run_dynamic_module(script(code), "3") == "3 steps"


# -- the log -----------------------------------------------------------------------------------------------------------


def messages(caplog: pytest.LogCaptureFixture) -> list[Any]:
    return [(record.levelno, record.getMessage()) for record in caplog.records if record.levelno >= logging.INFO]


def test_path_and_duration_are_logged(script: Write, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    path = script("import time\ndef Invoke(text):\n    time.sleep(0.05)\n    return text")
    run_dynamic_module(path, "private text")
    (first, started), (second, ended) = messages(caplog)
    assert first == second == logging.INFO and path in started and path in ended
    assert 0.05 <= float(ended.rpartition("took ")[2].split()[0]) < 60
    assert "private" not in caplog.text


def test_a_failure_of_an_encrypted_conversation_hides_its_message(
    script: Write, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with request_scope(RequestContext(redact=True)):
        assert run_dynamic_module(script("def Invoke(text):\n    raise ValueError(text)"), "private text") == UNEXPECTED
    assert "ValueError" in caplog.text and "in Invoke" in caplog.text and "private" not in caplog.text
