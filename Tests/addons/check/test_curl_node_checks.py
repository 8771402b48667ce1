"""A curl node whose texts from elsewhere may name a file that curl then sends."""

from __future__ import annotations

from typing import Any

import pytest

from Tests.addons.check.checking import FakeLookups, brief, check, only, static
from Tests.tables import table

URL = "https://example.net"


def curl(*args: Any, **more: Any) -> dict[str, Any]:
    return {"type": "CurlCommand", "args": [*args, URL], **more}


@pytest.mark.parametrize(
    ("args", "where", "instead"),
    [
        (("-d", "{agent1Output}"), 1, "--data-raw"),
        (("-sSd", "{agent1Output}"), 1, "--data-raw"),
        (("-sS", "--data", "{chat_user_prompt_last_one}"), 2, "--data-raw"),
        (("--data-ascii", "{agent1Input}"), 1, "--data-raw"),
        (("--data-binary", "{messages[0][content]}"), 1, "--data-raw"),
        (("--data-binary={agent1Output}",), 0, "--data-raw"),
        (("-d{agent1Output} and more",), 0, "--data-raw"),
        (("-d", "{todays_date_iso}{agent1Output}"), 1, "--data-raw"),
        (("--json", "{agent1Output}"), 1, "--data-raw"),
        (("-F", "text={agent1Output}"), 1, "--form-string"),
        (("--form", "{agent1Output}"), 1, "--form-string"),
        (("-H", "{agent1Output}"), 1, "-H 'X-Name: ...'"),
        (("--data-urlencode", "{agent1Output}"), 1, "--data-urlencode 'name=...'"),
        (("--data-urlencode", "text{agent1Output}"), 1, "--data-urlencode 'name=...'"),
    ],
)
def test_a_text_that_may_name_a_file(args: tuple[str, ...], where: int, instead: str) -> None:
    found = only(check(static(), curl(*args)))
    assert (found.severity, found.json_path) == ("warning", f"nodes[1].args[{where}]")
    assert "curl send a file" in found.message
    assert instead in found.expected


@table(
    "args",
    [
        ("--data-raw", "{agent1Output}"),
        ("--form-string", "text={agent1Output}"),
        ("-d", "text={agent1Output}"),
        ("-d", " {agent1Output}"),
        ("-d", '{{"text": "{agent1Output}"}}'),
        ("-F", "text=a {agent1Output}"),
        ("-H", "X-Text: {agent1Output}"),
        ("-b", "text={agent1Output}"),
        ("-b", "{agent1Output}"),
        ("--data-urlencode", "text={agent1Output}"),
        ("-d", "{safe}"),
        ("-d", "@fixed.json"),
        ("-d", "@{folder}/fixed.json"),
        ("-d", "{today}"),
        ("-d", "{body}"),
        ("-d", 5),
        ("-A", "{agent1Output}"),
        ("{agent1Output}",),
        ("-d",),
        ("-d", "{agent1Output"),
        ("-d", "{}"),
    ],
)
def test_nothing_to_look_at(args: tuple[Any, ...]) -> None:
    found = check(
        static(), curl(*args), folder="/srv", today="{todays_date_iso}", body="fixed", safe="text={agent1Output}"
    )
    assert [one for one in found if "curl send a file" in one.message] == []


def test_a_variable_of_the_file_that_brings_such_a_text() -> None:
    node = curl("-d", "{body}")
    assert brief(check(static(), node, body="{agent1Output}")) == [("warning", "nodes[1].args[1]")]
    user = FakeLookups({"body": "{agent1Output}"})
    assert brief(check(static(), node, lookups=user)) == [("warning", "nodes[1].args[1]")]


def test_jinja() -> None:
    assert brief(check(static(), curl("-d", "{{ agent1Output | trim }}", jinja2=True))) == [
        ("warning", "nodes[1].args[1]")
    ]
    assert check(static(), curl("-d", "text={{ agent1Output }}", jinja2=True)) == []


def test_block_option_injection_refuses_whole_items_only() -> None:
    assert check(static(), curl("-d", "{agent1Output}", blockOptionInjection=True)) == []
    for args in (("-F", "text={agent1Output}"), ("--data={agent1Output}",)):
        assert len(check(static(), curl(*args, blockOptionInjection=True))) == 1


@pytest.mark.parametrize("args", [None, "x", {}, [None, {"a": "{agent1Output}"}, ["-d"]], []])
def test_any_arguments(args: Any) -> None:
    found = check(static(), {"type": "CurlCommand", "args": args})
    assert all("curl send a file" not in one.message for one in found)


@table(
    ("args", "where", "text"),
    [
        (("--config", "x"), 0, "'--config' is not allowed"),
        (("-sS", "--outptu", "x"), 1, "is '--output'"),
        (("-sK{agent1Output}",), 0, "'-K'"),
    ],
)
def test_an_option_that_is_not_allowed(args: tuple[str, ...], where: int, text: str) -> None:
    found = only(check(static(), curl(*args)))
    assert (found.severity, found.json_path) == ("error", f"nodes[1].args[{where}]")
    assert text in found.message
