"""The processes that scripts start, and their end."""

from __future__ import annotations

import contextvars
import logging
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import psutil
import pytest

from Middleware.exceptions import EarlyTerminationException
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.workflows.tools.dynamic_module_loader import run_dynamic_module
from Middleware.workflows.tools.scripts import thread
from Middleware.workflows.tools.scripts.thread import START_SECONDS, ScriptProcesses, running_scripts
from Tests.workflows.engine_lab import until
from Tests.workflows.tools.test_dynamic_module_loader import stop_when

# For a script that ends as it should: on a busy machine that takes longer than the moment a stop waits for it.
A_MOMENT_HERE = 30.0
PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
with open(sys.argv[1] + ".new", "w") as file:
    file.write(str(child.pid))
import os
with open(sys.argv[1] + ".own", "w") as file:
    file.write(str(os.getpid()))
os.replace(sys.argv[1] + ".new", sys.argv[1])
time.sleep(300)
"""
TREE = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
time.sleep(300)
"""
WAYS = {
    "popen": "subprocess.Popen(command).wait()",
    "run": "subprocess.run(command, check=True)",
    "output": "subprocess.check_output(command)",
    "shell": "subprocess.run(subprocess.list2cmdline(command), shell=True)",
    "without closing files": "subprocess.run(command, close_fds=False)",  # os.posix_spawn in older Pythons
    "os.popen": "os.popen(subprocess.list2cmdline(command)).read()",
    "asyncio": "asyncio.run(in_a_loop(command))",
    "not waited for": "subprocess.Popen(command); sleep_until(pids + '.release')",
    "tried again and again": "[subprocess.run(command) for _ in range(100)]",
}
UNTIL_STOPPED = """
    from Middleware.models.request_context import current_request
    def Invoke():
        current_request().cancel_scope.wait(60)
    """
SCRIPT = """
    import asyncio, os, subprocess, time
    async def in_a_loop(command):
        process = await asyncio.create_subprocess_exec(*command)
        await process.wait()
    def sleep_until(path):
        for _ in range(3000):
            if os.path.exists(path):
                return
            time.sleep(0.02)
    def Invoke(python, code, pids):
        command = [python, code, pids]
        WAY
        return "result"
    """


@pytest.fixture(autouse=True)
def all_have_ended(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # On a busy machine a process may be created long after its start was noted.
    monkeypatch.setattr(thread, "START_SECONDS", 60.0)
    yield
    assert until(lambda: len(running_scripts()) == 0)


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    def write(code: str) -> str:
        path = tmp_path / "task.py"
        path.write_text(textwrap.dedent(code), encoding="utf-8")
        return str(path)

    return write


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    """A program that starts another one and names both in the file given to it."""
    path = tmp_path / "parent.py"
    path.write_text(PARENT, encoding="utf-8")
    return path


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    yield process
    process.kill()
    process.wait(60)


def runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


# The scripts that are stopped here close neither their pipes nor their children.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("way", WAYS)
def test_a_stop_ends_them_with_their_children(
    script: Callable[[str], str],
    parent: Path,
    tmp_path: Path,
    way: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pids = tmp_path / "pids"
    request = RequestContext()
    left_alone = way == "not waited for"  # it sleeps
    if not left_alone:
        monkeypatch.setattr(thread, "MOMENT_SECONDS", A_MOMENT_HERE)
    stop_when(pids.exists, request)
    with request_scope(request), pytest.raises(EarlyTerminationException):
        run_dynamic_module(script(SCRIPT.replace("WAY", WAYS[way])), sys.executable, str(parent), str(pids))
    Path(f"{pids}.release").touch()
    child, own = (int(file.read_text()) for file in (pids, Path(f"{pids}.own")))
    assert until(lambda: not runs(child) and not runs(own))
    assert [record.levelname for record in caplog.records if record.levelno >= logging.WARNING] == [
        "WARNING"
    ] * left_alone


def test_the_script_ends_within_its_moment_when_its_process_was_killed(
    script: Callable[[str], str],
    parent: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pids = tmp_path / "pids"
    request = RequestContext()
    monkeypatch.setattr(thread, "MOMENT_SECONDS", A_MOMENT_HERE)
    stop_when(pids.exists, request)
    path = script(SCRIPT.replace("WAY", WAYS["run"]))
    with request_scope(request), pytest.raises(EarlyTerminationException):
        run_dynamic_module(path, sys.executable, str(parent), str(pids))
    assert len(running_scripts()) == 0 and caplog.records == []


# As above.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_of_two_scripts_at_once_a_stop_ends_those_of_the_one_alone(
    script: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both start the same command at the same time: neither says whose process it is."""
    path = script("""
        import subprocess
        def Invoke(python, code, both, pids):
            both.wait(60)
            started = [subprocess.Popen([python, "-c", code]) for _ in range(3)]
            pids.extend(process.pid for process in started)
            for process in started:
                process.wait()
        """)
    monkeypatch.setattr(thread, "MOMENT_SECONDS", A_MOMENT_HERE)
    both, requests = threading.Barrier(2), (RequestContext(), RequestContext())
    pids: tuple[list[int], list[int]] = ([], [])

    def run(request: RequestContext, own: list[int]) -> None:
        with request_scope(request), pytest.raises(EarlyTerminationException):
            run_dynamic_module(path, sys.executable, TREE, both, own)

    with ThreadPoolExecutor(2) as pool:
        calls = list(pool.map(partial(pool.submit, run), requests, pids))
        try:
            assert until(lambda: all(len(with_children(own)) == 6 for own in pids))
            one, other = map(with_children, pids)
            requests[0].cancel_scope.cancel()
            calls[0].result(60)
            assert until(lambda: not any(map(runs, one))) and all(map(runs, other))
        finally:
            for request in requests:
                request.cancel_scope.cancel()
        calls[1].result(60)
        assert until(lambda: not any(map(runs, other)))


def with_children(pids: list[int]) -> list[int]:
    return pids + [child.pid for pid in pids for child in psutil.Process(pid).children()]


def test_those_of_a_script_that_has_ended_go_on(script: Callable[[str], str], tmp_path: Path) -> None:
    path = script("""
        import subprocess
        def Invoke(python):
            return subprocess.Popen([python, "-c", "import time; time.sleep(300)"])
        """)
    request = RequestContext()
    with request_scope(request):
        process = run_dynamic_module(path, sys.executable)
        request.cancel_scope.cancel()
        running_scripts().end_processes()
        time.sleep(0.05)
        assert process.poll() is None
    process.kill()
    process.wait(60)


def test_those_of_others_go_on(script: Callable[[str], str], sleeper: subprocess.Popen[bytes]) -> None:
    request = RequestContext()
    stop_when(lambda: len(running_scripts()) == 1, request)
    with request_scope(request), pytest.raises(EarlyTerminationException):
        run_dynamic_module(script(UNTIL_STOPPED))
    assert sleeper.poll() is None


def test_no_process_starts_after_the_end(sleeper: subprocess.Popen[bytes]) -> None:
    call = ScriptProcesses()
    call.end()
    with pytest.raises(EarlyTerminationException):
        call.add(sleeper)


@pytest.mark.parametrize("way", ["subprocess.run([python, '-V'])", "os.system('echo no')"])
def test_no_process_starts_from_a_stopped_script(script: Callable[[str], str], way: str) -> None:
    path = script(f"""
        import os, subprocess
        def Invoke(python, answers, stopped):
            stopped.wait(60)
            try:
                {way}
            except Exception as error:
                answers.append(type(error).__name__)
                raise
        """)
    answers: list[str] = []
    request, stopped = RequestContext(), threading.Event()
    stop_when(lambda: len(running_scripts()) == 1, request)
    with request_scope(request), pytest.raises(EarlyTerminationException):
        run_dynamic_module(path, sys.executable, answers, stopped)
    stopped.set()
    assert until(lambda: answers == ["EarlyTerminationException"])


def test_one_that_starts_during_the_end_is_ended(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets its number while the end waits for it."""
    call, pid = ScriptProcesses(), sleeper.pid
    monkeypatch.setattr(thread, "NUMBER_SECONDS", 30.0)  # for a busy machine
    monkeypatch.setattr(sleeper, "pid", None)
    call.add(sleeper)
    threading.Timer(0.03, setattr, (sleeper, "pid", pid)).start()
    call.end()
    assert sleeper.wait(60) != 0


def _ended_before_its_number(process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> ScriptProcesses:
    """The call of a script that was ended while this process of it was about to start."""
    call = ScriptProcesses()
    with monkeypatch.context() as patch:
        patch.setattr(process, "pid", None)
        call.add(process)
        call.end()
    return call


def test_a_start_that_failed_delays_the_end_only_for_a_moment(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    _ended_before_its_number(sleeper, monkeypatch)
    assert sleeper.poll() is None


def test_one_that_starts_after_the_end_is_ended_with_the_server(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy machine may take longer to start it than a stop waits."""
    _ended_before_its_number(sleeper, monkeypatch).end()
    assert sleeper.wait(60) != 0


@pytest.mark.parametrize("over", [False, True], ids=["goes on", "has ended"])
def test_the_server_ends_what_a_stop_has_not_ended_yet(
    script: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, over: bool
) -> None:
    """On a busy machine it may end while a stopped request is about to end its script's processes."""
    path = script("""
        import subprocess
        def Invoke(python, started, stopped):
            started.append(subprocess.Popen([python, "-c", "import time; time.sleep(300)"]))
            stopped.wait(60)
        """)
    request, started, stopped, go_on = RequestContext(), list[subprocess.Popen[bytes]](), threading.Event(), Hold()
    monkeypatch.setattr(thread, "_end", partial(go_on.before, thread._end))
    stop_when(lambda: bool(started), request)
    with request_scope(request), ThreadPoolExecutor(1) as pool:
        call = pool.submit(contextvars.copy_context().run, run_dynamic_module, path, sys.executable, started, stopped)
        try:
            assert go_on.reached.wait(60)
            if over:
                stopped.set()
                assert until(lambda: not any(one.name == "script" for one in threading.enumerate()))
            running_scripts().end_processes()
            assert started[0].wait(60) != 0
        finally:
            go_on.event.set()
            stopped.set()
        with pytest.raises(EarlyTerminationException):
            call.result(60)


class Hold:
    """Holds up the first that comes by, until ``event`` is set."""

    def __init__(self) -> None:
        self.reached, self.event = threading.Event(), threading.Event()

    def before(self, function: Callable[..., bool], *args: object) -> bool:
        if not self.reached.is_set():
            self.reached.set()
            self.event.wait(60)
        return function(*args)


def test_the_end_of_a_process_needs_no_import(script: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    """For which the end of the server would leave no time on a busy machine."""
    monkeypatch.delitem(sys.modules, "psutil")
    path = script("import subprocess\ndef Invoke(*command):\n    subprocess.run(command)\n")
    run_dynamic_module(path, sys.executable, "-c", "pass")
    assert "psutil" in sys.modules


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no os.posix_spawn")
@pytest.mark.parametrize(
    "start",
    ["os.system('exit 0')", "os.waitpid(os.posix_spawn(python, [python, '-V'], {}), 0)", "Own([python, '-V']).wait()"],
)
def test_what_cannot_be_found_is_logged(
    script: Callable[[str], str], caplog: pytest.LogCaptureFixture, start: str
) -> None:
    path = script(f"""
        import os, subprocess
        class Own(subprocess.Popen):
            def wait(self):
                os.system("exit 0")
                return super().wait()
        def Invoke(python, started, release):
            {start}
            started.set()
            release.wait(60)
        """)
    request, started, release = RequestContext(), threading.Event(), threading.Event()
    stop_when(started.is_set, request)
    with request_scope(request), pytest.raises(EarlyTerminationException):
        run_dynamic_module(path, sys.executable, started, release)
    release.set()
    assert f"has used {'os.posix_spawn' if 'spawn' in start else 'os.system'}" in caplog.text


def test_one_that_has_ended_is_not_touched(sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number may be that of another process by now."""
    call = ScriptProcesses()
    call.add(sleeper)
    sleeper.kill()
    sleeper.wait(60)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"]) as other:
        monkeypatch.setattr(sleeper, "pid", other.pid)
        call.end()
        time.sleep(0.05)
        assert other.poll() is None
        other.kill()


def test_one_that_was_reaped_behind_its_back_is_not_touched(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop that has to note the end may be busy; the number may be that of another process by now."""
    call = ScriptProcesses()
    with subprocess.Popen([sys.executable, "-c", "pass"]) as process:
        call.add(process)
        process.wait(60)
        monkeypatch.setattr(process, "returncode", None)
        monkeypatch.setattr(thread, "START_SECONDS", START_SECONDS)
        time.sleep(START_SECONDS + 1.1)  # the kernel rounds to seconds
        with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"]) as other:
            monkeypatch.setattr(process, "pid", other.pid)
            call.end()
            time.sleep(0.05)
            assert other.poll() is None
            other.kill()
        monkeypatch.undo()  # the block around it waits


def test_one_of_another_parent_is_not_touched(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    call = ScriptProcesses()
    with monkeypatch.context() as patch:
        call.add(sleeper)
        patch.setattr("os.getpid", lambda: 1)
        call.end()
    time.sleep(0.05)
    assert sleeper.poll() is None


def test_the_standard_library_stays_as_it_is(script: Callable[[str], str]) -> None:
    run_dynamic_module(script("def Invoke():\n    pass\n"))
    assert subprocess.Popen.__init__.__module__ == "subprocess"
    assert not hasattr(subprocess.Popen.__init__, "__wrapped__")


def test_without_psutil_the_process_itself_is_ended(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    caplog.set_level(logging.WARNING)
    call = ScriptProcesses()
    call.add(sleeper)
    call.end()
    assert sleeper.wait(60) != 0
    assert "psutil" in caplog.text


def test_the_end_of_all_running_scripts(script: Callable[[str], str], parent: Path, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    path = script(SCRIPT.replace("WAY", WAYS["popen"]))
    caller = threading.Thread(target=run_dynamic_module, args=(path, sys.executable, str(parent), str(pids)))
    caller.start()
    assert until(pids.exists)
    child = int(pids.read_text())
    assert runs(child)
    running_scripts().end_processes()
    caller.join(60)
    assert not caller.is_alive()
    assert until(lambda: not runs(child))
