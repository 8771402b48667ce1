"""URL schemes that filled-in values bring, judged by what the installed curl makes of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from Middleware.workflows.tools.curl.options import inserts_scheme_into_data, inserts_scheme_into_url
from Tests.tables import table
from Tests.windows import needs_curl

READ_BY_CURL = [
    "file://{}",
    "FILE://{}",
    "file:{}",
    "file:////{}",
    "file://localhost{}",
    "{{file}}://{}",
    "{{file,http}}://{}",
    "{{gopher,file}}://{}",
    "fil[e-e]://{}",
    "[f-f]ile://{}",
    "fi{{l}}e:{}",
    "{{file:}}//{}",
    "{{file://{}}}",
    "file{{:}}//{}",
    "file:{{//}}{}",
    "file:{{/,}}{}",
    "{{http,file}}:{}",
    "{{FIL,x}}e://localhost{}",
    "{{\\file}}://{}",
    "{{\\f,a}}ile://{}",
    "file{{,}}{{:}}{}",
    "{{x?y,file}}://{}",
]
"""Templates of URLs from which a curl reads the file, after ``str.format``."""

DISGUISED = [
    " file:///a",
    "\tfile:///a",
    "fi\nle:///a",
    "\x01file:///a",
    "file\x7f:///a",
    "\ufeff{file}:///a",
    "\uff46\uff49\uff4c\uff45:///a",
    "file\uff1a///a",
    "file\u2236//a",
    "gopher:\u2215\u2215a/",
    "\uff5bfile\uff5d:///a",
    "file:\\\\a",
    "\\{file}:///a",
    "file:%2f%2fa",
    "user:@file:///a",
]

GUESSED = ["ftp.example", "FTP.example/x", "user@ftp.example", "%66tp.example", "dict.example:1", "smtp.a", "pop3.a"]

HARMLESS = [
    "http://a",
    "HTTPS://a",
    "http://a/{x,y}[1-3]",
    "localhost:8080/x",
    "a.example:80",
    "a.example/{b}",
    "[::1]:80/x",
    "[::1]",
    "plain",
    "b\u00fccher.example/x",
    "a/file://b",
    "a?q=b",
    "ftpx.example",
    "%66ile.example/",
    "C:1",
    "",
]


@needs_curl
@table("form", READ_BY_CURL)
def test_what_curl_reads_a_file_for_is_refused(tmp_path: Path, form: str) -> None:
    path = tmp_path / "secret"
    path.write_text("SECRET", encoding="utf-8")
    windows = sys.platform == "win32"
    url = form.format(f"/{path.as_posix()}" if windows else path)
    done = subprocess.run(["curl", "-s", "-m", "2", "--noproxy", "*", url], capture_output=True, text=True, check=False)
    # So this test would notice a form that no longer matters. Windows takes four slashes for those of another computer.
    assert ("SECRET" in done.stdout) == (not windows or form != "file:////{}")
    assert inserts_scheme_into_url("{x}", url)


@table("url", [*DISGUISED, *GUESSED])
def test_disguises(url: str) -> None:
    assert inserts_scheme_into_url("{x}", url)


@table("url", HARMLESS)
def test_harmless_urls(url: str) -> None:
    assert not inserts_scheme_into_url("{x}", url)


@pytest.mark.parametrize(
    ("template", "url", "refused"),
    [
        ("file://{x}", "file:///a", False),
        ("fi{x}", "file:///a", True),
        ("fi{x}", "fi{le}:///a", True),
        ("http://{x}", "http://{a,b}", False),
        ("http{x}", "http{s,}://a", True),
        ("web[1-3]{x}", "web[1-3].example/", False),
        ("{file,http}://a", "{file,http}://a", False),
        ("{a}{b}", "file:/a", True),
        ("ftp.{x}", "ftp.example", False),
        ("host:{x}", "host:80/{a}", False),
        ("/{x}", "/{a}", False),
        ("{s}://{h}", "{file,http}://h", True),
    ],
)
def test_what_the_author_wrote_is_his(template: str, url: str, refused: bool) -> None:
    assert inserts_scheme_into_url(template, url) is refused


@pytest.mark.parametrize(
    ("item", "refused"),
    [("Note: a", False), ("file:///a", True), ('{"a": "b://c"}', False), ("http://a", False), ("FILE:/a", True)],
)
def test_data(item: str, refused: bool) -> None:
    assert inserts_scheme_into_data("{x}", item) is refused
