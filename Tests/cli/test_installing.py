"""The progress of an installation: what is shown of pip's lines, and what a failure leaves on the screen."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from Middleware.cli import installing
from Middleware.cli.installing import NEWEST, WIDTH, Progress, count_requirements, way_out
from Middleware.cli.prerequisites import OLDEST

PROJECT = Path(__file__).resolve().parents[2]
LINES = [
    "Ignoring pywin32: markers 'sys_platform == \"win32\"' don't match your environment",
    "Collecting flask==3.1.2 (from -r requirements.lock (line 5))",
    "  Downloading flask-3.1.2-py3-none-any.whl (103 kB)",
    "Looking in indexes: https://pypi.org",
    "Requirement already satisfied: h11>=0.16 in ./venv (from x)",
    "Processing /opt/wheels/charset_normalizer-3.4-py3.whl (from -r requirements.lock (line 6))",
    "Collecting typing-extensions>=4 (from x)",
    "Collecting flask==3.1.2 (from again)",
    "Installing collected packages: flask",
    "Successfully installed flask-3.1.2",
]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def wheel(folder: Path, name: str) -> None:
    """Write the smallest package that pip installs."""
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as file:
        file.writestr(f"{name}.py", "")
        file.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", "")


def install(folder: Path, requirements: str) -> subprocess.CompletedProcess[str]:
    (folder / "wanted.txt").write_text(requirements, "utf-8")
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "Middleware.cli.installing",
            "--no-index",
            "--find-links",
            str(folder),
            "--no-deps",
            "--target",
            str(folder / "target"),
            "-r",
            str(folder / "wanted.txt"),
        ],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_without_a_terminal_each_package_has_a_line() -> None:
    output = io.StringIO()
    progress = Progress(output, 4)
    for line in LINES:
        progress.read(line)
    progress.end()
    assert output.getvalue().splitlines() == [
        "  1 of 4: pywin32",
        "  2 of 4: flask",
        "  3 of 4: h11",
        "  4 of 4: charset_normalizer",
        "  5: typing-extensions",
        "  5: flask",
        "  Unpacking and compiling them ...",
    ]
    assert progress.problems == []


def test_a_terminal_has_one_line_that_is_rewritten() -> None:
    output = Terminal()
    progress = Progress(output, 4)
    for line in (*LINES, "Collecting " + "x" * 200):
        progress.read(line)
    progress.end()
    shown = output.getvalue()
    assert "\n" not in shown and shown.endswith(" \r")
    assert max(map(len, shown.split("\r"))) == WIDTH


def test_what_is_wrong_is_kept_and_a_retry_is_shown() -> None:
    output = io.StringIO()
    progress = Progress(output, 1)
    for line in (
        "WARNING: Retrying (Retry(total=4)) after connection broken",
        "WARNING: a location is ignored",
        "ERROR: No matching distribution found for flask",
    ):
        progress.read(line)
    assert output.getvalue().startswith("WARNING: Retrying")
    assert progress.problems == ["WARNING: a location is ignored", "ERROR: No matching distribution found for flask"]


def test_requirements_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(
        "flask==3.1 \\\n    --hash=sha256:1 \\\n    # via x\n-r b.txt\n# h11==1\nflask==3.0 ; os_name == 'nt'\n",
        "utf-8",
    )
    (tmp_path / "b.txt").write_text('jinja2>=3 ; sys_platform == "win32"\nmcp[cli]==1\n\n--no-index\n', "utf-8")
    assert count_requirements(str(tmp_path / "a.txt")) == 3
    assert count_requirements(str(PROJECT / "requirements.lock")) > 20


def test_packages_are_installed(tmp_path: Path) -> None:
    for name in ("one", "two"):
        wheel(tmp_path, name)
    done = install(tmp_path, "one==1.0\ntwo==1.0\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["  1 of 2: one", "  2 of 2: two", "  Unpacking and compiling them ..."]
    assert (tmp_path / "target" / "two.py").is_file()


ZEROS = "0" * 64


@pytest.mark.slow
@pytest.mark.parametrize(
    ("requirements", "said"),
    [
        ("three==1.0\n", ["ERROR: No matching distribution found for three==1.0"]),
        ("one==2.0\n", ["ERROR: No matching distribution found for one==2.0"]),
        # pip's reasons stand in lines that begin with spaces.
        (
            f"one==1.0 --hash=sha256:{ZEROS}\n",
            [
                "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES",
                "    one==1.0 from file:",
                f"        Expected sha256 {ZEROS}",
                "             Got        ",
            ],
        ),
        (
            f"one==1.0\ntwo==1.0 --hash=sha256:{ZEROS}\n",
            ["ERROR: Hashes are required in --require-hashes mode", "    one==1.0 --hash=sha256:"],
        ),
        ("one==1.0\none==2.0\n", ["The conflict is caused by:", "    The user requested one==1.0"]),
    ],
)
def test_a_failure_says_why(tmp_path: Path, requirements: str, said: list[str]) -> None:
    for name in ("one", "two"):
        wheel(tmp_path, name)
    done = install(tmp_path, requirements)
    assert done.returncode == 1
    assert [words for words in said if words not in done.stderr] == []
    assert "Processing" not in done.stderr and "Looking in" not in done.stderr


def test_the_lines_of_a_build_that_fails_are_shown_and_those_of_progress_are_not() -> None:
    progress = Progress(io.StringIO(), 1)
    failure = [
        "  error: subprocess-exited-with-error",
        "  × Getting requirements to build wheel did not run successfully.",
        "  ╰─> [1 lines of output]",
        "      cc: not found",
    ]
    for line in (
        "Collecting one",
        "  Downloading one-1.0.tar.gz (1 kB)",
        "  Getting requirements to build wheel: started",
        *failure,
        "Collecting two",
        "  Downloading two-1.0.tar.gz (1 kB)",
    ):
        progress.read(line)
    assert progress.problems == failure


LATER = (NEWEST[0], NEWEST[1] + 1, 0)
BUILD = r"build them, with compilers for C and Rust, by .+ -m pip install --require-hashes -r a.lock, and start"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, None),
        ({"system": "linux-aarch64"}, None),
        ({"sys.platform": "darwin", "system": "macosx-10.15-x86_64"}, None),
        ({"sys.platform": "win32", "system": "win-amd64"}, None),
        (
            {"sys.version_info": LATER},
            r"for Python 3\.11 to 3\.\d+, and this is Python .*: install Python 3\.\d+, delete .+, and start again\.$",
        ),
        ({"free-threaded": True}, "this is free-threaded Python: install Python 3"),
        ({"sys.implementation.name": "pypy"}, "install Python 3"),
        ({"sys.platform": "win32", "system": "win-arm64"}, r"\(win-arm64\): install Python 3\.\d+ for x64 .* -m venv "),
        ({"sys.platform": "win32", "system": "win32"}, r"\(win32\): install Python 3\.\d+ for x64"),
        ({"sys.platform": "win32", "system": "mingw_x86_64_ucrt_gnu"}, "install Python 3"),
        # Raspberry Pi OS of 32 bits may have a kernel of 64.
        ({"bits": 32, "system": "linux-aarch64"}, r"which has 32 bits: install .*Raspberry Pi OS \(64-bit\)\.$"),
        ({"bits": 32, "system": "linux-i686"}, "which has 32 bits"),
        ({"system": "linux-riscv64"}, BUILD),
        ({"system": "freebsd-14.3-release-amd64", "sys.platform": "freebsd14"}, BUILD),
        ({"glibc": "2.17"}, BUILD),
    ],
)
def test_what_is_not_served_is_told_the_way_out(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], said: str | None
) -> None:
    found = {
        "system": "linux-x86_64",
        "bits": 64,
        "glibc": "2.36",
        "free-threaded": False,
        "sys.platform": "linux",
        "sys.version_info": (*NEWEST, 0),
        "sys.implementation.name": "cpython",
        **changes,
    }
    for name in ("sys.platform", "sys.version_info", "sys.implementation.name"):
        monkeypatch.setattr(name, found[name])
    monkeypatch.setattr("sysconfig.get_platform", lambda: found["system"])
    monkeypatch.setattr("sysconfig.get_config_var", lambda _: found["free-threaded"])
    monkeypatch.setattr("struct.calcsize", lambda _: found["bits"] // 8)
    monkeypatch.setattr("platform.libc_ver", lambda: ("glibc", found["glibc"]))
    advice = way_out(["--require-hashes", "--only-binary", ":all:", "-r", "a.lock"])
    assert advice is None if said is None else advice is not None and re.search(said, advice), advice


@pytest.mark.slow
def test_the_way_out_comes_after_the_reason_and_nothing_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "one-1.0.tar.gz").write_bytes(b"never opened")
    (tmp_path / "a.lock").write_text(f"one==1.0 --hash=sha256:{ZEROS}\n", "utf-8")
    monkeypatch.setattr(installing, "NEWEST", OLDEST)
    monkeypatch.setattr("sys.version_info", LATER)
    status = installing.main(
        [
            "--no-index",
            "--find-links",
            str(tmp_path),
            "--require-hashes",
            "--only-binary",
            ":all:",
            "-r",
            str(tmp_path / "a.lock"),
        ]
    )
    *reason, advice = capsys.readouterr().err.splitlines()
    assert status == 1 and reason[-1] == "ERROR: No matching distribution found for one==1.0"
    assert advice.startswith("The packages have wheels for Python")


@pytest.mark.slow
def test_a_network_that_fails_is_no_matter_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sysconfig.get_platform", lambda: "linux-riscv64")
    (tmp_path / "a.lock").write_text(f"one==1.0 --hash=sha256:{ZEROS}\n", "utf-8")
    assert (
        installing.main(
            [
                "--isolated",
                "--retries",
                "1",
                "--index-url",
                "http://127.0.0.1:9/simple",
                "--only-binary",
                ":all:",
                "--target",
                str(tmp_path / "target"),
                "-r",
                str(tmp_path / "a.lock"),
            ]
        )
        == 1
    )
    shown = capsys.readouterr()
    assert "WARNING: Retrying" in shown.out and "Some packages have no wheels" not in shown.err
