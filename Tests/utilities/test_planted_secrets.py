"""Every function that masks secrets, tried with a list of texts that have one, and with what mistakes make of JSON."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable

from Middleware.addons.records.kept_secrets import masked, put_back
from Middleware.utilities.config.check import quoted
from Middleware.utilities.config.excerpts import excerpt
from Middleware.utilities.config.json_source import JsonSource
from Middleware.utilities.sensitive_logging_utils import mask_data, mask_url, secret_spans, spans_after_names
from Middleware.workflows.tools.curl.options import without_secrets
from Tests.corpora.planted_secrets import CURL, DATA, DSNS, HARMLESS, HEADERS, SECRET, URLS
from Tests.tables import check_all, table

WORKFLOW = "Workflows/me/A.json"
TEXTS = (*URLS, *DSNS, *DATA, *HEADERS)
# On one line, in a sentence, with the arguments on a line of their own, and with each of them on one.
COMMANDS = tuple(
    f"{before}curl{gap}{(' ' if gap == ' ' else join).join(map(shlex.quote, [*arguments, 'http://host']))}"
    for before, gap, join in (("", " ", " "), ("Try (", " ", " "), ("", " \\\n", " "), ("Now:\n", " \\\n  ", " \\\n  "))
    for arguments in CURL
)


def kept(text: str) -> str:
    """The text of a file as the console shows it; what is hidden comes back."""
    found = masked(text, WORKFLOW)
    assert put_back(found.text, WORKFLOW, {None: found.secrets}) == text
    return found.text


def shown(text: str) -> str:
    """The only line of a file as a finding shows it."""
    return "\n".join(excerpt(JsonSource(text), 1, 1))


def in_list(text: str) -> str:
    return json.dumps({"nodes": [{"args": [text, "-s"]}]})


def in_text(text: str) -> str:
    return json.dumps({"n": 1, "prompt": text})


Mask = Callable[[str], str]
FILES: dict[str, Mask] = {"console": kept, "excerpt": shown}
ALL: dict[str, tuple[Mask, tuple[str, ...]]] = {
    "mask_url": (mask_url, (*URLS, *DSNS[:6])),
    "mask_data": (mask_data, (*DATA, *DSNS)),
    "quoted": (quoted, (*TEXTS, *COMMANDS)),
    **{f"{name}, list": (lambda text, mask=mask: mask(in_list(text)), TEXTS) for name, mask in FILES.items()},  # type: ignore[misc]
    **{
        f"{name}, text": (lambda text, mask=mask: mask(in_text(text)), (*TEXTS, *COMMANDS))  # type: ignore[misc]
        for name, mask in FILES.items()
    },
    **{
        f"{name}, text in text": (lambda text, mask=mask: mask(in_text(in_text(text))), (*TEXTS, *COMMANDS))  # type: ignore[misc]
        for name, mask in FILES.items()
    },
}


@table("name", ALL)
def test_no_planted_secret_is_shown(name: str) -> None:
    mask, texts = ALL[name]

    def check(text: str) -> None:
        assert SECRET not in mask(text), mask(text)

    check_all(texts, check)


@table("arguments", CURL)
def test_no_argument_of_curl_shows_its_secret(arguments: tuple[str, ...]) -> None:
    command = [*arguments, "http://host"]
    assert SECRET not in " ".join(without_secrets(command))
    text = json.dumps({"nodes": [{"args": command}]})
    assert SECRET not in kept(text) and SECRET not in shown(text)


def test_no_mistake_in_json_shows_the_secrets_of_its_line() -> None:
    """One mark more, one less, or another one in place of each character before and after the secret."""
    whole = f'{{"a": 1, "apiKey": "{SECRET}", "b": "x"}}'
    changed = {
        text
        for position in range(len(whole))
        for mark in ("", *"\"',:{}[]\\")
        for text in (whole[:position] + mark + whole[position + 1 :], whole[:position] + mark + whole[position:])
        if SECRET in text and "apiKey" in text
    }
    assert len(changed) > 400

    def check(text: str) -> None:
        for mask in FILES.values():
            assert SECRET not in mask(text), mask(text)

    check_all(sorted(changed), check)


@table("text", HARMLESS)
def test_what_only_looks_like_a_secret_stays(text: str) -> None:
    assert json.dumps(text)[1:-1] in kept(in_text(text)) and json.dumps(text)[1:-1] in shown(in_text(text))
    assert text in (mask_url(text), mask_data(text))


# Made by fuzzing: what a mistake leaves of a name and of the marks around it and its secret.
BROKEN = (
    f'{{"a"\' 1, apikey": "{SECRET}/a+b=[=", "b": "x"}}',
    f'{{"a": 1, ,private_key{{": "0x{SECRET}", "b": "x"}}',
    f'{{\\"authorization\\] : "{SECRET}"}}',
    f'{{`authorization[ {{: "{SECRET}"}}',
    f'{{"a": 1, "cookie"  "p\'{SECRET}", "b": "x"}}',
    f'{{[a": 1}}, "api-key": "p"{SECRET}", "b": "x"}}',
    f'{{"jwt" "{SECRET}", "signature"" "{SECRET}"}}',
    f'{{"passphrase": "a" "{SECRET}"}}',
    f'{{"clientSecret""": "{SECRET}"}}',
    f'{{"pwd"\':""eyJh.{SECRET}.sig-x"}}',
    f'{{\\access_key" : "p"${SECRET}"}}',
    f'{{"db_password:\\"": "{SECRET}"}}',
)


def test_no_broken_file_shows_its_secret_or_loses_it() -> None:
    def check(text: str) -> None:
        for mask in FILES.values():
            assert SECRET not in mask(text), mask(text)

    check_all(BROKEN, check)


def test_an_empty_key_hides_nothing_of_a_broken_file() -> None:
    for empty in ('""', "null", '"{my_key}"'):
        text = f'{{"apiKey": {empty}, "b": "x" "c"}}'
        assert kept(text) == text


HOSTILE = (
    "a",
    "-",
    "\\",
    '"',
    "&",
    "key=",
    "password = ",
    '"key":',
    "a:",
    "a:b@",
    "http://",
    ";a",
    '\\"',
    "'key",
    " {a}",
    "-H",
    "-sH",
    "-H\\n",
    "--header=-H",
    "-uX-H",
    '@\\"-',
    "\\'\"'",
    "x-",
    "cookie:a",
    "-u\\",
    '"key" "x",',
)


@table("part", HOSTILE)
def test_no_text_keeps_the_masks_busy(part: str) -> None:
    """Twice as much takes about twice as long; a pattern that looks back over all of it would take minutes."""
    text = f'curl "key" {part * (50_000 // len(part))}'
    started = time.process_time()
    secret_spans(text, is_command=True)
    spans_after_names(text)
    # With a mistake at its end, and no secret that comes back from a text that is so made.
    masked(f"{text}\\", WORKFLOW)
    shown(f"{text}\\")
    assert time.process_time() - started < 10
