"""The script that carries out a Dockerfile's steps in a folder."""
from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from Scripts import container_steps
from Scripts.container_file import DockerfileError, Step, expand, read_steps
from Scripts.container_ignore import Ignored
from Scripts.container_steps import Image

posix_only = pytest.mark.skipif(sys.platform == "win32", reason="the steps need a POSIX shell")


def steps_of(tmp_path: Path, text: str) -> list[Step]:
    file = tmp_path / "Dockerfile"
    file.write_text(text, encoding="utf-8")
    return read_steps(file)


def build(tmp_path: Path, text: str, **files: str) -> Image:
    """The result of a Dockerfile beside ``files`` (``__`` in a name stands for a slash, ``_dot_`` for a dot)."""
    context = tmp_path / "context"
    for name, content in {**files, "Dockerfile": text}.items():
        file = context / name.replace("__", "/").replace("_dot_", ".")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, encoding="utf-8")
    return container_steps.build(context, tmp_path / "root", reuse_packages=True, say=lambda line: None)


def test_reads_comments_continued_lines_and_flags(tmp_path: Path) -> None:
    steps = steps_of(tmp_path, "# first\nFROM python:3\n\nRUN one && \\\n# between\n    two\ncopy --chown=1:2 a b/\n")
    assert [(step.keyword, step.text.split(), dict(step.flags)) for step in steps] == [
        ("FROM", ["python:3"], {}), ("RUN", ["one", "&&", "two"], {}), ("COPY", ["a", "b/"], {"chown": "1:2"})]
    assert steps[1].place == "Dockerfile, line 4"


@pytest.mark.parametrize(("text", "message"), [("FROM python:3\nRUN a \\\n", "line 2: the step has no end"),
                                               ("FROM python:3\n&& b\n", "line 2: '&&' is no instruction")])
def test_names_the_line_that_cannot_be_read(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DockerfileError, match=message):
        steps_of(tmp_path, text)


def test_json_form_is_taken_as_it_is_and_other_text_goes_to_the_shell() -> None:
    assert Step("CMD", '["a b", "$c"]').command() == ["a b", "$c"]
    assert Step("CMD", "a $b").command() == ["/bin/sh", "-c", "a $b"]
    assert Step("CMD", "[not json").command() == ["/bin/sh", "-c", "[not json"]


def test_variables_are_replaced() -> None:
    variables = {"A": "1", "EMPTY": ""}
    assert expand("$A ${A}x ${EMPTY:-none} ${MISSING} \\$A $B", variables) == "1 1x none  \\$A "


@pytest.mark.parametrize(("path", "out"), [
    ("secret.txt", True), ("kept/a.py", False), ("kept/deep/b.py", False), ("kept/deep/__pycache__/b.pyc", True),
    ("kept/logs/x", True), ("keptx", True), (".git/config", True), ("__pycache__/a", True), ("kept/c.tmp", True)])
def test_ignore_rules(path: str, out: bool) -> None:
    ignored = Ignored(["# all", "*", "", "!kept", "kept/logs/", "**/__pycache__", "**/*.tmp"])
    assert (path in ignored) is out


def test_exception_after_a_rule_and_rule_after_an_exception() -> None:
    assert "a/b" in Ignored(["!a/b", "a"]) and "a/b" not in Ignored(["a", "!a/b"])


@posix_only
def test_copies_folders_by_content_and_files_into_or_as_the_target(tmp_path: Path) -> None:
    image = build(tmp_path, "FROM python:3\nWORKDIR /app\nCOPY one.txt two.txt ./\nCOPY folder target\n"
                            "COPY one.txt renamed\nCOPY folder /elsewhere\n",
                  one_dot_txt="1", two_dot_txt="2", folder__a="a", folder__deep__b="b", folder__c_dot_tmp="c",
                  _dot_dockerignore="**/*.tmp\n")
    made = {path.relative_to(image.root).as_posix() for name in ("app", "elsewhere")
            for path in (image.root / name).rglob("*") if path.is_file()}
    assert made == {"app/one.txt", "app/two.txt", "app/target/a", "app/target/deep/b", "app/renamed",
                    "elsewhere/a", "elsewhere/deep/b"}


@posix_only
def test_runs_with_the_files_variables_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WILMER_SECRET", "leaked")
    image = build(tmp_path, "FROM python:3\nENV A=1 B=\"two words\"\nARG C=${A}3\nWORKDIR app\n"
                            "RUN echo \"$A|$B|$C|$WILMER_SECRET\" > out && python -c 'import pytest'\n")
    assert (image.folder / "out").read_text() == "1|two words|13|\n"
    assert image.environment()["A"] == "1" and "C" not in image.environment()


@posix_only
def test_notes_how_the_container_is_started(tmp_path: Path) -> None:
    image = build(tmp_path, 'FROM python:3\nCMD ["lost"]\nENTRYPOINT ["a"]\nCMD ["b", "c"]\nUSER 5:6\nEXPOSE 1 2/udp\n'
                            'HEALTHCHECK --timeout=5s CMD ["h"]\nSTOPSIGNAL SIGINT\nVOLUME ["/v"]\n')
    assert image.start_words() == ["a", "b", "c"] and image.start_words("d") == ["a", "d"]
    assert (image.user, image.ports, image.health) == ("5:6", ["1", "2/udp"], ["h"])
    assert image.stop_signal == "SIGINT" and image.place("/v").is_dir()
    assert any("user 5:6, ports 1, 2/udp, volumes /v, ended by SIGINT" in line
               for line in container_steps.describe(image))


@posix_only
@pytest.mark.parametrize(("text", "message"), [
    ("FROM python:3\nRUN exit 3\n", "line 2: exit status 3"),
    ("FROM python:3\nSHELL x\n", "line 2: SHELL is not known"),
    ("WORKDIR /a\n", "WORKDIR before FROM"),
    ("FROM debian:12\n", "only one stage, on an image of Python"),
    ("FROM python:3 AS build\n", "only one stage"),
    ("FROM python:3\nCOPY --from=x a b\n", "this form of COPY"),
    ("FROM python:3\nCOPY a Dockerfile b\n", "must end with a slash"),
    ("FROM python:3\nCOPY missing b\n", "missing is not there, or .dockerignore leaves it out"),
    ("FROM python:3\nRUN pip install --require-hashes -r missing.lock\n", "exit status 1"),
    ("FROM python:3\nRUN pip download x\n", "exit status 1"),
    ("FROM python:3\nHEALTHCHECK NONE\n", "HEALTHCHECK without CMD")])
def test_says_which_step_fails(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DockerfileError, match=message):
        build(tmp_path, text)


@posix_only
def test_who_is_not_root_can_carry_out_chown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    image = build(tmp_path, "FROM python:3\nRUN chown nobody:nobody /missing\n")
    assert stat.S_IMODE((image.root / "stand-ins" / "chown").stat().st_mode) == 0o755


@posix_only
def test_folder_must_be_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert container_steps.main([str(tmp_path)]) == 1
    assert "is not empty" in capsys.readouterr().err
