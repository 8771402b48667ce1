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
    _READING,
    _ROUTES,
    _SECRET,
    _TIME_LIMITS,
    _USERS,
    _WITH_VALUE,
    URL,
    address_problem,
    has_option,
    injection_problem,
    read_arguments,
    route_problem,
    without_last_breaks,
    without_secrets,
)
from Tests.tables import table
from Tests.windows import needs_curl


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


@needs_curl
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
    special = _DATA_OR_FILE | _IN_THE_HEAD | _USERS | _PLAIN_USERS
    assert special <= _FLAGS | _WITH_VALUE and _SECRET | _ROUTES | _TIME_LIMITS <= _WITH_VALUE and _READING <= _FLAGS


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
        ("{x}", "-s", True),
        ("{x}", "@/etc/passwd", True),
        ("-{x}", "-s", True),
        ("-s{x}", "-sS", True),
        ("--{x}", "--silent", True),
        ("--com{x}", "--compressed", True),
        ("--max-time={x}", "--max-time=5", False),
        ("-m{x}", "-m5", False),
        ("-s{x}", "-s", False),
        ("@{x}", "@a", False),
        ("{x}", "a-@", False),
        ("x{x}", "x-v", False),
    ],
)
def test_option_injection(template: str, filled: str, refused: bool) -> None:
    assert bool(problem(template, filled, block=True)) is refused
    assert problem(template, filled) is None


# What texts bring, in all spellings of curl: the text, and whether an old file lets it through.
BROUGHT = [
    ("-s", True),
    ("-S", True),
    ("-sS", True),
    ("-sSiIGf", True),
    ("--silent", True),
    ("--show-error", True),
    ("--include", True),
    ("--head", True),
    ("--get", True),
    ("--fail", True),
    ("--compressed", True),
    ("-m5", True),
    ("-sm5", True),
    ("-sm0.5", True),
    ("--max-time=5", True),
    ("--connect-timeout=1.5", True),
    ("-m", False),
    ("--max-time", False),
    ("-m-x", False),
    ("-m5 -k", False),
    ("--max-time=5s", False),
    ("--max-time=\u0665", False),
    ("-xhttp://127.0.0.1:1", False),
    ("-x", False),
    ("-sxhttp://127.0.0.1:1", False),
    ("-x=http://127.0.0.1", False),
    ("--proxy", False),
    ("--proxy=http://127.0.0.1", False),
    ("--prox=http://127.0.0.1", False),
    ("--preproxy=socks5://127.0.0.1", False),
    ("--socks5-hostname=127.0.0.1", False),
    ("-Ume:pw", False),
    ("-n", False),
    ("-sn", False),
    ("--netrc", False),
    ("--netrc-optional", False),
    ("--next", False),
    ("-:", False),
    ("-s:", False),
    ("-k", False),
    ("-sk", False),
    ("-ks", False),
    ("-fkI", False),
    ("--insecure", False),
    ("--insec", False),
    ("--no-insecure", False),
    ("--connect-to=::127.0.0.1:1", False),
    ("--connect-to", False),
    ("--resolve=a:80:127.0.0.1", False),
    ("--interface=lo", False),
    ("--noproxy=*", False),
    ("--unix-socket=/run/docker.sock", False),
    ("-L", False),
    ("-sL", False),
    ("--location-trusted", False),
    ("--max-redirs=9", False),
    ("-v", False),
    ("--verbose", False),
    ("--trace-ascii=-", False),
    ("-HX-Evil: 1", False),
    ("-Aagent", False),
    ("-XDELETE", False),
    ("-dtext", False),
    ("-d@/etc/passwd", False),
    ("-Fa=@/etc/passwd", False),
    ("--json={}", False),
    ("-b", False),
    ("-ba=b", False),
    ("-o/tmp/x", False),
    ("-O", False),
    ("-T/etc/passwd", False),
    ("-K/tmp/x", False),
    ("-q", False),
    ("--", False),
    ("--url=http://127.0.0.1", False),
    ("--no-silent", False),
    ("--sil", False),
    ("-\u0000s", False),
]


@table(("text", "passes"), BROUGHT, ids=repr)
def test_options_that_a_text_brings(text: str, passes: bool) -> None:
    after = ["-H", "Authorization: mine", "http://a"]
    for template in ("{x}", "{x}{y}", text[:1] + "{x}", text[:2] + "{x}" if text.startswith("--") else "{x}"):
        raw, filled = [template, *after], [text, *after]
        assert bool(injection_problem(raw, filled, False, False)) is not passes, template
        assert injection_problem(raw, filled, True, False), template


@table(
    ("before", "template", "text"),
    [
        ([], "{x}", "-s"),
        (["--data-raw", "a"], "{x}", "-s"),
        (["-sS"], "{x}", "--silent"),
        (["http://a"], "{x}", "-s"),
    ],
)
def test_the_place_of_an_option_makes_no_difference(before: list[str], template: str, text: str) -> None:
    assert problem(template, text, before) is None and problem(template, text, before, block=True)
    assert problem(template, "-k", before)


@table(
    ("raw", "filled"),
    [
        (["-d{x}", "-H", "A: b", "http://a"], ["-d", "-H", "A: b", "http://a"]),
        (["-sH{x}", "-k", "http://a"], ["-sH", "-k", "http://a"]),
        (["--data{x}", "-H", "A: b"], ["--data", "-H", "A: b"]),
        (["{x}", "-H", "A: b"], ["--", "-H", "A: b"]),
        (["-{x}", "-H", "A: b"], ["--", "-H", "A: b"]),
        (["{x}--", "-H", "A: b"], ["--", "-H", "A: b"]),
    ],
)
def test_no_text_changes_what_the_next_argument_is(raw: list[str], filled: list[str]) -> None:
    assert injection_problem(raw, filled, False, False)


@table(
    "raw",
    [["-d", "{x}", "http://a"], ["--", "{x}"], ["-s", "--", "{x}"], ["--data={x}", "http://a"], ["-H", "--", "a"]],
)
def test_an_empty_text_that_changes_nothing(raw: list[str]) -> None:
    assert injection_problem(raw, [item.replace("{x}", "") for item in raw], False, False) is None


PRIVATE = "127.0.0.1:9050"


@table(
    ("raw", "authored", "filled", "refused"),
    [
        (["-x", "{x}"], "stand-in.invalid", PRIVATE, True),
        (["-x", "{x}"], "stand-in.invalid", f"socks5h://{PRIVATE}", True),
        (["-x", "{x}"], "stand-in.invalid", "http://8.8.8.8:1", False),
        (["-x", "socks5h://{x}:9050"], "stand-in.invalid", "127.0.0.1", True),
        (["-xhttp://{x}"], "stand-in.invalid", PRIVATE, True),
        (["--proxy=http://{x}"], "stand-in.invalid", PRIVATE, True),
        (["--proxy", "http://{x}"], "stand-in.invalid", "me@10.0.0.1", True),
        (["-sx", "{x}"], "stand-in.invalid", "[::1]:1", True),
        (["-x", f"socks5h://{PRIVATE}"], "", "", False),
        (["-x", "{config}"], PRIVATE, PRIVATE, False),
        (["-x", f"socks5h://{{x}}:pw@{PRIVATE}"], "stand-in.invalid", "chat-1", False),
        (["-x", f"socks5h://{{x}}:pw@{PRIVATE}"], "stand-in.invalid", "a@10.0.0.1/", True),
        (["-x", f"socks5h://{{x}}:pw@{PRIVATE}"], "stand-in.invalid", "a\\@10.0.0.1", True),
        (["-x", f"socks5h://{{x}}:pw@{PRIVATE}"], "stand-in.invalid", "a@127.0.0.1:22/", True),
        (["-x", f"socks5h://{{x}}:pw@{PRIVATE}"], "stand-in.invalid", "a@127.0.0.1?", True),
        (["-x", "http://127.0.0.1:{x}"], "stand-in.invalid", "22", True),
        (["--connect-to", "::{x}:80"], "stand-in.invalid", "127.0.0.1", True),
        (["--connect-to", "::127.0.0.1:80"], "", "", False),
        (["--resolve", "a:80:{x}"], "stand-in.invalid", "8.8.8.8", True),
        (["--resolve", "a:80:{config}"], "127.0.0.1", "127.0.0.1", False),
        (["--unix-socket", "/run/{x}"], "stand-in.invalid", "docker.sock", True),
        (["-d", "{x}"], "stand-in.invalid", PRIVATE, False),
    ],
)
def test_ways_that_a_text_brings(raw: list[str], authored: str, filled: str, refused: bool) -> None:
    def with_text(text: str) -> list[str]:
        return ["-s", *[item.replace("{x}", text).replace("{config}", text) for item in raw], "http://8.8.8.8"]

    assert bool(route_problem(with_text(filled), with_text(authored), True, None)) is refused


@pytest.mark.parametrize(
    ("template", "filled", "refused"),
    [
        ("-o{x}", "-o/tmp/x", False),
        ("--output={x}", "--output=/tmp/x", False),
        ("-{output}", "-o/tmp/x", True),
        ("-s{x}", "-so/tmp/x", True),
        ("-k{x}", "-ks", False),
        ("{x}", "--silent", False),
    ],
)
def test_who_wrote_the_option(template: str, filled: str, refused: bool) -> None:
    assert bool(problem(template, filled, ["http://a"])) is refused
    assert problem(filled, filled, ["http://a"], block=True) is None
    assert problem("{x}", filled, ["--data-raw"]) is None  # a value, not an option


def test_no_other_options_may_be_filled_in() -> None:
    names = {name: f"--{name}=5" if name in _WITH_VALUE else f"--{name}" for name in _FLAGS | _WITH_VALUE}
    allowed = {name for name, item in names.items() if not problem("{x}", item, ["http://a"])}
    assert allowed == _READING | _TIME_LIMITS
    page = (Path(__file__).parents[4] / "Docs/User/web-nodes.md").read_text(encoding="utf-8")
    listed = re.search("A variable can bring only (.*?) to", page, re.DOTALL)
    assert listed is not None
    named = {name.lstrip("-") for name in re.findall("`(-[^`]*)`", listed[1])}
    assert {_LETTERS.get(name, name) for name in named} == allowed


@pytest.mark.parametrize("option", ["-d@/etc/passwd", "-Fa=@/etc/passwd", "-H@x", "--json=@x", "-o/tmp/x", "-T/x"])
def test_the_author_may_write_them(option: str) -> None:
    assert problem(option, option, ["http://a"]) is None


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
        (["{a}", "@mine"], ["-d", "@mine"], True),
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
