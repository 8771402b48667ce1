"""How curl's arguments are read and what filled-in values may not do to them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from Middleware.workflows.tools.curl.options import (
    _DATA_OR_FILE,
    _FLAGS,
    _IN_THE_HEAD,
    _LETTERS,
    _PLAIN_USERS,
    _SECRET,
    _TOUCH_FILES_OR_PROTOCOLS,
    _USERS,
    _WITH_VALUE,
    URL,
    address_problem,
    has_option,
    injection_problem,
    read_arguments,
    without_last_breaks,
    without_secrets,
)
from Tests.tables import table


def urls(*args: str) -> list[str | None]:
    return [argument.value for argument in read_arguments(args) if argument.name == URL]


@table(
    ("args", "expected"),
    [
        (["http://a"], ["http://a"]),
        (["a.example:80/x", "b"], ["a.example:80/x", "b"]),
        (["-d", "10.0.0.1", "https://ok.example"], ["https://ok.example"]),
        (["-d10.0.0.1", "b"], ["b"]),
        (["-sSd", "x", "b"], ["b"]),
        (["-sS", "b"], ["b"]),
        (["--url", "a", "--url=b", "c"], ["a", "b", "c"]),
        (["--data", "x", "a"], ["a"]),
        (["--data=x", "a"], ["a"]),
        (["--compressed", "a"], ["a"]),
        (["--", "-d", "a"], ["-d", "a"]),
        (["-o"], []),
        (["--data"], []),
        (["-X", "POST", "-H", "A: b", "a"], ["a"]),
        (["--unknown-thing", "a"], ["a"]),
    ],
)
def test_urls(args: list[str], expected: list[str]) -> None:
    assert urls(*args) == expected


def test_the_allowed_options_are_those_of_the_installed_curl() -> None:
    listed = subprocess.run(["curl", "--help", "all"], capture_output=True, text=True, check=True).stdout
    words = [line.replace(",", " ").split() for line in listed.splitlines()]
    named = [
        (next(word[2:] for word in line if word.startswith("--")), line)
        for line in words
        if any(word.startswith("--") for word in line)
    ]
    with_value = {name for name, line in named if line[line.index("--" + name) + 1][0] in "<["}
    known = {name for name, _ in named}
    # Else a URL would count as the value of a flag, or a value as a URL.
    assert with_value - _WITH_VALUE and _WITH_VALUE & known <= with_value and not _FLAGS & with_value
    assert known | {"no-keepalive", "no-buffer", "no-progress-meter"} >= _FLAGS | _WITH_VALUE
    letters = {line[0][1]: name for name, line in named if re.fullmatch("-[^-]", line[0])}
    assert {letter: name for letter, name in letters.items() if name in _FLAGS | _WITH_VALUE} == _LETTERS
    special = _TOUCH_FILES_OR_PROTOCOLS | _DATA_OR_FILE | _IN_THE_HEAD | _USERS | _PLAIN_USERS
    assert special <= _FLAGS | _WITH_VALUE and _SECRET <= _WITH_VALUE


@table(
    ("item", "text"),
    [
        ("--config", "curl's option '--config' is not allowed in a node"),
        ("--outptu", "curl's option '--outptu' is not allowed in a node (the nearest allowed one is '--output')"),
        ("--outp", "curl's option '--outp' is not allowed in a node"),
        ("--expand-data", "option '--expand-data'"),
        ("-K/tmp/x", "curl's option '-K' is not allowed in a node"),
        ("-sSK", "'-K'"),
        ("--ur=a", "option '--ur'"),
        ("--variable=a", "'--variable'"),
        ("--trace", "'--trace'"),
        ("--no-location", "'--no-location'"),
        ("--", None),
        ("-", None),
        ("-sS", None),
        ("--max-time=5", None),
    ],
)
def test_options_that_are_not_allowed(item: str, text: str | None) -> None:
    found = injection_problem([item, "http://a"], [item, "http://a"], False, False)
    assert found is None if text is None else found is not None and text in found
    brought = injection_problem(["{x}", "http://a"], [item, "http://a"], False, False)
    assert text is None or (brought is not None and "that is not allowed" in brought and item not in brought)


def test_the_allowed_options_are_those_of_the_page() -> None:
    page = (Path(__file__).parents[4] / "Docs/User/web-nodes.md").read_text(encoding="utf-8")
    listed = re.findall("`--([a-z0-9.-]+)`", page.split("### Options of curl")[1].split("\n## ")[0])
    assert sorted(listed) == sorted(_FLAGS | _WITH_VALUE)


@pytest.mark.parametrize(
    ("args", "name", "given"),
    [
        (["--max-redirs", "5", "a"], "max-redirs", True),
        (["--max-redirs=5"], "max-redirs", True),
        (["-d", "--max-redirs", "a"], "max-redirs", False),
        (["a"], "max-redirs", False),
    ],
)
def test_has_option(args: list[str], name: str, given: bool) -> None:
    assert has_option(args, name) is given


@pytest.mark.parametrize(
    ("args", "blocked"),
    [
        (["10.0.0.1"], True),
        (["-d", "10.0.0.1", "https://8.8.8.8"], False),
        (["https://8.8.8.8", "127.0.0.1:80/x"], True),
        (["--url", "http://127.0.0.1"], True),
        (["--url=http://127.0.0.1"], True),
        (["ftp://8.8.8.8/"], True),
        (["http:/127.0.0.1/"], True),
        (["file:/etc/hosts"], True),
        (["http://8.8.8.{8,9}/"], True),
        (["@urls"], True),
        (["8.8.8.8:443/{a,b}"], False),
        (["-x", "http://127.0.0.1:1", "http://8.8.8.8"], False),
        ([], False),
    ],
)
def test_address_problem(args: list[str], blocked: bool) -> None:
    assert bool(address_problem(args, True, None)) is blocked


def test_allow_list() -> None:
    assert address_problem(["a.example/x", "https://a.example"], False, ["a.example"]) is None
    assert address_problem(["a.example/x", "https://b.example"], False, ["a.example"])


def problem(
    template: str, filled: str, before: list[str] | None = None, block: bool = False, schemes: bool = False
) -> str | None:
    fixed = before or []
    return injection_problem([*fixed, template], [*fixed, filled], block, schemes)


@pytest.mark.parametrize(
    ("template", "filled", "refused"),
    [
        ("{x}", "file:///etc/hosts", True),
        ("{x}", "FILE:///etc/hosts", True),
        ("{x}", "file:/etc/hosts", True),
        ("{x}", "dict:x", True),
        ("fi{x}", "file:///a", True),
        ("--url={x}", "--url=file:///a", True),
        ("file://{x}", "file:///a", False),
        ("{x}", "http://a", False),
        ("{x}", "HTTPS://a", False),
        ("{x}", "localhost:8080/x", False),
        ("{x}", "a.example:80", False),
        ("{x}", "C:x", False),
        ("{x}", "plain", False),
        ("--url=file://{x}", "--url=file:///a", False),
        ("scp://{x}", "scp://a", False),
    ],
)
def test_schemes(template: str, filled: str, refused: bool) -> None:
    assert bool(problem(template, filled)) is refused
    assert problem(template, filled, schemes=True) is None


@pytest.mark.parametrize(
    ("filled", "refused"),
    [("Note: hello", False), ("data:text", False), ("file:///etc/hosts", True), ("gopher://x/", True)],
)
def test_schemes_in_data(filled: str, refused: bool) -> None:
    assert bool(problem("{x}", filled, ["--data-raw"])) is refused


@pytest.mark.parametrize(
    ("template", "filled", "refused"),
    [
        ("{x}", "-v", True),
        ("{x}", "@/etc/passwd", True),
        ("-{x}", "-v", False),
        ("@{x}", "@a", False),
        ("{x}", "a-@", False),
        ("x{x}", "x-v", False),
    ],
)
def test_option_injection(template: str, filled: str, refused: bool) -> None:
    assert bool(problem(template, filled, block=True)) is refused
    assert problem(template, filled) is None


@table(
    "option",
    [
        "-o/tmp/x",
        "-O",
        "-sSo",
        "-T/etc/passwd",
        "--output",
        "--remote-name",
        "--remote-name-all",
        "--upload-file=x",
        "--proto",
        "-D-",
        "-c/tmp/x",
        "-w",
        "-w%output{/tmp/x}",
        "-sw",
        "--write-out",
        "--write-out=@/etc/passwd",
        "--netrc-file",
        "--unix-socket",
        "-E",
        "--key",
    ],
)
def test_options_that_touch_files_or_protocols(option: str) -> None:
    assert problem("{x}", option, ["http://a"])
    assert problem(option, option, ["http://a"]) is None
    assert problem("{x}", option, ["-d"]) is None  # a value, not an option


@pytest.mark.parametrize(
    ("template", "filled", "refused"),
    [
        ("-o{x}", "-o/tmp/x", False),
        ("--output={x}", "--output=/tmp/x", False),
        ("-{output}", "-o/tmp/x", True),
        ("-s{x}", "-so/tmp/x", True),
        ("{x}", "-v", False),
        ("{x}", "--max-time", False),
    ],
)
def test_who_wrote_the_option(template: str, filled: str, refused: bool) -> None:
    assert bool(problem(template, filled, ["http://a"])) is refused


def test_other_options_may_be_filled_in() -> None:
    refused = {name for name in _FLAGS | _WITH_VALUE if problem("{x}", f"--{name}", ["http://a"])}
    assert refused == _TOUCH_FILES_OR_PROTOCOLS


@pytest.mark.parametrize(
    "option",
    [
        "-d@/etc/passwd",
        "--data=@/etc/passwd",
        "-Fa=@/etc/passwd",
        "-Fa=<x",
        "-H@x",
        "-bfile",
        "--json=@x",
        "--data-urlencode=a@x",
        "--url-query=@x",
        "-sd@x",
    ],
)
def test_options_with_data_from_files(option: str) -> None:
    assert problem("{x}", option, ["http://a"])
    assert problem(option, option, ["http://a"]) is None


@pytest.mark.parametrize("option", ["-dtext", "-Fa=b", "-HA: b", "-ba=b", "--json={}", "--data-urlencode=a=@b", "-b"])
def test_options_with_data(option: str) -> None:
    assert problem("{x}", option, ["http://a"]) is None


@table(
    ("raw", "filled", "refused"),
    [
        (["-H", "X: {a}"], ["-H", "X: a\r\nEvil: b"], True),
        (["-HX: {a}"], ["-HX: a\nb"], True),
        (["--header=X: {a}"], ["--header=X: a\rb"], True),
        (["-A", "{a}"], ["-A", "a\r\nEvil: b"], True),
        (["-e", "{a}"], ["-e", "a\nb"], True),
        (["-b", "c={a}"], ["-b", "c=a\nb"], True),
        (["-X", "{a}"], ["-X", "GET / HTTP/1.1\r\n\r\nGET"], True),
        (["-r", "{a}"], ["-r", "1\nb"], True),
        (["--request-target", "{a}"], ["--request-target", "/\nb"], True),
        (["--oauth2-bearer", "{a}"], ["--oauth2-bearer", "a\nb"], True),
        (["--aws-sigv4", "aws:amz:{a}"], ["--aws-sigv4", "aws:amz:a\nb"], True),
        (["--aws-sigv4", "aws:amz", "-u", "{a}"], ["--aws-sigv4", "aws:amz", "-u", "a\nb"], True),
        (["--digest", "--user={a}"], ["--digest", "--user=a\nb"], True),
        (["-u{a}", "--anyauth"], ["-ua\nb", "--anyauth"], True),
        (["-H", "A: b\r\nX: {a}"], ["-H", "A: b\r\nX: y"], False),
        (["-H", "A: b\nX: {a}"], ["-H", "A: b\nX: y\nZ: z"], True),
        (["-H", "X: {a}"], ["-H", "X: one line"], False),
        (["-d", "{a}"], ["-d", "a\r\nb"], False),
        (["--data-raw", "{a}"], ["--data-raw", "a\nb"], False),
        (["-u", "{a}"], ["-u", "a\nb"], False),
    ],
)
def test_lines_of_the_head(raw: list[str], filled: list[str], refused: bool) -> None:
    found = injection_problem([*raw, "http://a"], [*filled, "http://a"], False, False)
    assert bool(found) is refused
    assert found is None or ("line break" in found and "Evil" not in found)


def test_line_breaks_at_the_end_do_no_harm() -> None:
    assert without_last_breaks(["-H", "X: a\r\n", "--header=Y: b\n", "-d", "c\n", "http://a"]) == [
        "-H",
        "X: a",
        "--header=Y: b",
        "-d",
        "c\n",
        "http://a",
    ]


@pytest.mark.parametrize(
    ("raw", "filled", "refused"),
    [
        (["{a}", "{b}"], ["-d", "@/etc/passwd"], True),
        (["{a}", "@mine"], ["-d", "@mine"], False),
        (["-d", "{b}"], ["-d", "@/etc/passwd"], False),
        (["-d{b}"], ["-d@x"], False),
        (["--url", "{b}"], ["--url", "@/tmp/urls"], True),
        (["--url={b}"], ["--url=@/tmp/urls"], True),
        (["--url", "@{b}"], ["--url", "@/tmp/urls"], False),
        (["--url=@{b}"], ["--url=@urls"], False),
        (["-w", "{b}"], ["-w", "%output{/tmp/x}"], True),
        (["-w{b}"], ["-w%output{>>/tmp/x}"], True),
        (["-w", "{b}"], ["-w", "%{http_code}"], False),
        (["-w%output{{{b}}}"], ["-w%output{x}"], False),
    ],
)
def test_values(raw: list[str], filled: list[str], refused: bool) -> None:
    found = injection_problem(raw, filled, False, False) or ""
    assert bool(found) is refused and "/" not in found


@pytest.mark.parametrize("before", [[], ["--url"]])
def test_globs_in_urls(before: list[str]) -> None:
    assert problem("{x}", "{file}:///etc/hosts", before)
    assert problem("--url={x}", "--url={file}:///etc/hosts")
    assert problem("{x}", "--url={file}:///etc/hosts")
    assert problem("{x}", '{"a": "b/c"}', ["-d"]) is None


def test_messages_quote_no_values() -> None:
    text = problem("{x}", "file:///secret") or ""
    assert "args[0]" in text and "secret" not in text


@table(
    ("args", "shown"),
    [
        (["-sS", "--max-time", "5", "https://h/p?q=1"], ["-sS", "--max-time", "5", "https://h/p?q=1"]),
        (["-H", "Authorization: Bearer x"], ["-H", "Authorization: *"]),
        (["-HX-Key: x"], ["-HX-Key: *"]),
        (["-H", "@file"], ["-H", "*"]),
        (["-u", "ann:pw"], ["-u", "*"]),
        (["-uann:pw"], ["-u*"]),
        (["--user=ann:pw"], ["--user=*"]),
        (["-b", "session=x"], ["-b", "*"]),
        (["-x", "http://u:p@proxy"], ["-x", "*"]),
        (["-E", "file:pw"], ["-E", "*"]),
        (["--oauth2-bearer", "x"], ["--oauth2-bearer", "*"]),
        (["https://ann:pw@h/?token=x&q=1"], ["https://h/?token=*&q=1"]),
        (["ann:pw@h:80/?key=x"], ["h:80/?key=*"]),
        (["--url=https://h/?api_key=x"], ["--url=https://h/?api_key=*"]),
        (["-e", "http://u:p@h/"], ["-e", "http://h/"]),
        (["-d", "a=1&password=x&b=2"], ["-d", "a=1&password=*&b=2"]),
        (["--json", '{"token": "x\\"y", "a": 1}'], ["--json", '{"token": "*", "a": 1}']),
        (["-d", "one\ntwo=&auth=x"], ["-d", "one\ntwo=&auth=*"]),
        (["-o"], ["-o"]),
    ],
)
def test_what_a_record_may_show(args: list[str], shown: list[str]) -> None:
    assert [item.replace("***REDACTED***", "*") for item in without_secrets(args)] == shown
