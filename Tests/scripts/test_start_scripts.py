"""The start scripts for Linux and macOS find their folder, wherever and however they are called."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from Middleware.cli.installing import NEWEST
from Middleware.cli.prerequisites import OLDEST
from Tests.patience import CLIENT_PATIENCE
from Tests.stub_backend import Reply, StubBackend

PROJECT = Path(__file__).parents[2]
posix = pytest.mark.skipif(os.name == "nt", reason="scripts of other systems")


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The scripts in a folder with an environment, whose Python prints where and with what it was called."""
    project = tmp_path / "my project"
    (project / "venv" / "bin").mkdir(parents=True)
    (project / "Scripts").mkdir()
    for name in ("run_linux.sh", "run_macos.sh", "Scripts/environment.sh"):
        shutil.copy(PROJECT / name, project / name)
    for name in ("requirements.lock", "venv/installed-requirements.lock"):
        (project / name).write_text("x", encoding="utf-8")
    python = project / "venv" / "bin" / "python"
    python.write_text('#!/bin/sh\n[ "$1" = -c ] || echo "$PWD|$WILMER_START_SCRIPT|$*"\n', encoding="utf-8")
    python.chmod(0o755)
    return project


@posix
@pytest.mark.parametrize("script", ["run_linux.sh", "run_macos.sh"])
@pytest.mark.parametrize("way", ["absolute", "relative", "link", "link to a link"])
def test_the_folder_is_found(installed: Path, script: str, way: str) -> None:
    elsewhere = installed.parent / "bin"
    elsewhere.mkdir()
    (elsewhere / "wilmer").symlink_to(f"../{installed.name}/{script}")
    (elsewhere / "again").symlink_to(elsewhere / "wilmer")
    (elsewhere / installed.name).mkdir()  # what CDPATH would lead to
    called = {
        "absolute": installed / script,
        "relative": Path(installed.name) / script,
        "link": "bin/wilmer",
        "link to a link": elsewhere / "again",
    }[way]
    ended = subprocess.run(
        ["bash", str(called), "check", "a b"],
        cwd=installed.parent,
        capture_output=True,
        text=True,
        env={**os.environ, "CDPATH": str(elsewhere)},
        timeout=CLIENT_PATIENCE,
        check=False,
    )
    assert (ended.stdout, ended.stderr, ended.returncode) == (
        f"{installed}|bash {script}|run_waitress.py check a b\n",
        "",
        0,
    )


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return path


def start(project: Path, path: str | None = None) -> subprocess.CompletedProcess[str]:
    """Start the program as a person does, with these folders of programs before all others."""
    programs = os.pathsep.join(filter(None, [path, os.environ["PATH"]]))
    return subprocess.run(
        ["bash", str(project / "run_linux.sh")],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PATH": programs},
        check=False,
    )


# How programs call cmd, as %cmdcmdline% has it. Where the second value is true, the account must be at a screen, too.
CALLS = [
    (r'C:\WINDOWS\system32\cmd.exe /c ""C:\R & D\run_windows.bat" "', True),
    (r'C:\WINDOWS\system32\cmd.exe /c ""C:\100% (x86)\wow!^\run_windows.bat" "', True),
    (r'"C:\Windows\System32\CMD.EXE" /C ""C:\WilmerAI\run_windows.bat" "', True),
    # PowerShell's Start-Process, which opens a window, and nssm, which opens none.
    (r'C:\WINDOWS\system32\cmd.exe /c ""C:\WilmerAI\run_windows.bat" check "', True),
    # PowerShell, and programs.
    (r'C:\WINDOWS\system32\cmd.exe /c ""C:\WilmerAI\run_windows.bat" check"', False),
    (r'C:\WINDOWS\system32\cmd.exe /c ""C:\WilmerAI\run_windows.bat""', False),
    (r'C:\WINDOWS\system32\cmd.exe /c "run_windows.bat"', False),
    (r'C:\WINDOWS\system32\cmd.exe /d /s /c "run_windows.bat "', False),
    # The Task Scheduler, and the server of OpenSSH.
    (r'C:\WINDOWS\SYSTEM32\cmd.exe /c "C:\WilmerAI\run_windows.bat"', False),
    (r'"c:\windows\system32\cmd.exe" /c "C:\WilmerAI\run_windows.bat --listen"', False),
    # A window that was open before, or stays open: start, and cmd /k.
    (r'"C:\WINDOWS\system32\cmd.exe" ', False),
    (r"cmd", False),
    (r"C:\WINDOWS\system32\cmd.exe /K run_windows.bat ", False),
    (r'C:\WINDOWS\system32\cmd.exe /k "C:\WilmerAI\run_windows.bat" --listen', False),
    # run_windows.bat check | more, and type message.txt | run_windows.bat try me -
    (r'C:\WINDOWS\system32\cmd.exe  /S /D /c" run_windows.bat check "', False),
    (r'C:\WINDOWS\system32\cmd.exe  /S /D /c" run_windows.bat try me -"', False),
]


@pytest.mark.parametrize(("line", "is_clicked"), CALLS)
def test_only_a_window_of_a_double_click_waits_for_a_key(line: str, is_clicked: bool, tmp_path: Path) -> None:
    script = (PROJECT / "run_windows.bat").read_text(encoding="utf-8")
    lines = re.search(
        r'^set "CALLED=.*\n(?:.*\n)?if "%CALLED:~-1%"=="(.)" if not "%CALLED:(.+)=%"=="%CALLED%" .*', script, re.M
    )
    assert lines and "S-1-5-4" in script
    called = line.replace('"', "").lower()
    assert (called.endswith(lines[1]) and lines[2].lower() in called) == is_clicked
    if os.name == "nt":
        (tmp_path / "try.bat").write_text(f"@echo off\n{lines[0]}\necho [%CLICKED%]\n", encoding="utf-8")
        environment = {**os.environ, "CMDCMDLINE": line}
        said = subprocess.check_output([tmp_path / "try.bat"], env=environment, text=True, timeout=CLIENT_PATIENCE)
        assert said.strip() == ("[1]" if is_clicked else "[]")


@pytest.mark.parametrize("served", [(3, minor) for minor in range(OLDEST[1], NEWEST[1] + 1)])
@pytest.mark.parametrize("script", ["Scripts/environment.sh", "run_windows.bat"])
def test_every_served_python_is_looked_for(script: str, served: tuple[int, int]) -> None:
    text = (PROJECT / script).read_text(encoding="utf-8")
    assert f"{'py -' if 'windows' in script else 'python'}{served[0]}.{served[1]}" in text
    after = f"({NEWEST[0]}, {NEWEST[1] + 1})"
    assert f"({OLDEST[0]}, {OLDEST[1]}) <= sys.version_info < {after}" in text


@posix
@pytest.mark.parametrize(
    ("present", "taken"),
    [
        ({"python3": "3.10", "python3.13": "3.13", "python3.12": "3.12"}, "python3.13"),
        # Those that the lock files serve go before a newer one, whatever it is called.
        ({"python3": "3.16", "python3.15": "3.15", "python": "3.16"}, "python3.15"),
        ({"python3": "3.16", "python": "3.11"}, "python"),
        ({"python3": "3.16"}, "python3"),
        ({"python3": "3.10"}, ""),
        # Debian splits off what makes environments: "-".
        ({"python3": "3.13-", "python3.12": "3.12"}, "python3.12"),
        ({"python3": "3.13-", "python3.14": "3.14-", "python": "3.11"}, "python"),
        ({"python3": "3.13-", "python3.14": "3.14-"}, "python3"),
        ({"python3": "3.13-", "python": "3.16"}, "python3"),
        # The links of Windows to the Microsoft Store; python.org's installer may put only "py" on the path.
        ({"python3": "store", "python": "3.13"}, "python"),
        ({"python3": "store", "python": "store", "py": "3.14"}, "py"),
        ({"python3": "store", "python": "3.16", "py": "3.12"}, "py"),
        ({"python3": "store", "python": "store"}, ""),
    ],
)
def test_a_served_python_is_taken(tmp_path: Path, present: dict[str, str], taken: str) -> None:
    on_windows = "store" in present.values()
    for name, version in present.items():
        if version == "store":
            executable(tmp_path / name, "#!/bin/sh\necho 'Python was not found; install it from the Store'\nexit 49\n")
            continue
        numbers = version.rstrip("-").replace(".", ", ")
        without = 'sys.modules["ensurepip"] = None; ' if version.endswith("-") else ""
        program = f'import sys; {without}sys.version_info = ({numbers}, 1, "final", 0); exec(sys.argv[2])'
        executable(tmp_path / name, f"#!/bin/sh\nexec '{sys.executable}' -c '{program}' \"$@\"\n")
    for name in ("python3.15", "python3.14", "python3.13", "python3.12", "python3.11", "python3", "python", "py"):
        if name not in present:
            executable(tmp_path / name, "#!/bin/sh\nexit 1\n")
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    found = subprocess.run(
        ["bash", "-c", ". Scripts/environment.sh; find_python"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": path, "OS": "Windows_NT" if on_windows else ""},
        check=True,
    )
    assert found.stdout.strip() == taken


@posix
@pytest.mark.slow
@pytest.mark.parametrize("obstacle", ["a file", "a link into nothing", "a folder that cannot be written"])
def test_a_folder_that_cannot_be_written_is_named(installed: Path, obstacle: str) -> None:
    folder = installed / "venv"
    shutil.rmtree(folder)
    if obstacle == "a file":
        folder.write_text("", encoding="utf-8")
    elif obstacle == "a link into nothing":
        folder.symlink_to("/dev/null/venv")
    else:  # the system refuses that to every user
        folder.symlink_to("/proc/venv")
    done = start(installed)
    assert done.returncode == 1 and done.stdout == "Creating the Python environment venv ...\n"
    assert re.fullmatch(
        r"ERROR: The environment could not be made in \S.*/my project/venv \(.*\[Errno \d+\] .*\)\. "
        r"Put WilmerAI into a folder that you may write to, with 300 MB of free space\.\n",
        done.stderr,
    )


@posix
@pytest.mark.slow
def test_an_environment_without_pip_is_made_anew(installed: Path) -> None:
    """That is what Ctrl-C leaves while it is made."""
    shutil.rmtree(installed / "venv")
    python = executable(
        installed.parent / "programs" / "python3",
        f"""#!/bin/sh
case $* in
    *--clear*) mkdir -p "$4/bin"; printf '#!/bin/sh\\necho "anew: $*"\\n' > "$4/bin/python"; chmod +x "$4/bin/python";;
    *) exec "{sys.executable}" "$@";;
esac
""",
    )
    executable(installed / "venv" / "bin" / "python", '#!/bin/sh\n[ "$1" = -c ]\n')
    done = start(installed, str(python.parent))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-2:] == [
        "anew: -m Middleware.cli.installing --require-hashes --only-binary :all: -r requirements.lock",
        "anew: run_waitress.py",
    ]


@posix
def test_a_python_that_makes_no_environments_is_named(installed: Path) -> None:
    shutil.rmtree(installed / "venv")
    for name in ("python3", "python", *(f"python3.{minor}" for minor in range(OLDEST[1], NEWEST[1] + 1))):
        python = executable(
            installed.parent / "programs" / name,
            f"""#!/bin/sh
case $* in *venv*) echo "The environment was not created: ensurepip is not available" >&2; exit 1;; esac
exec "{sys.executable}" "$@"
""",
        )
    done = start(installed, str(python.parent))
    assert (done.returncode, done.stderr) == (
        1,
        "ERROR: This Python cannot make environments. On Debian and Ubuntu: sudo apt install python3-venv\n",
    )


@pytest.fixture
def silent_index() -> Iterator[StubBackend]:
    """A package index that answers nothing."""
    with StubBackend(Reply(never=True)) as index:
        yield index


@posix
@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_during_the_installation_is_no_error(installed: Path, silent_index: StubBackend, times: int) -> None:
    shutil.copytree(PROJECT / "Middleware" / "cli", installed / "Middleware" / "cli")
    (installed / "Middleware" / "utilities").mkdir()
    shutil.copy(PROJECT / "Middleware" / "utilities" / "quoting.py", installed / "Middleware" / "utilities")
    executable(installed / "venv" / "bin" / "python", f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (installed / "requirements.lock").write_text(f"one==1.0 --hash=sha256:{'0' * 64}\n", encoding="utf-8")
    process = subprocess.Popen(
        ["bash", str(installed / "run_linux.sh")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={
            **os.environ,
            "PIP_INDEX_URL": f"{silent_index.url}/simple",
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "",
            "PIP_FIND_LINKS": "",
            "PIP_RETRIES": "0",
        },
    )
    silent_index.wait_requests(timeout=120)
    for _ in range(times):
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    stdout, stderr = process.communicate(timeout=120)
    assert (process.returncode, stderr) == (130, "The installation was interrupted. The next start continues it.\n")
    assert "Traceback" not in stdout
