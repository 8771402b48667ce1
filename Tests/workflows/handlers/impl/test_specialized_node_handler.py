"""StaticResponse, StringConcatenator and Conditional."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from Tests.stub_backend import StubBackend
from Tests.workflows.engine_lab import EngineLab, static, user


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineLab]:
    with StubBackend() as backend:
        yield EngineLab(tmp_path, monkeypatch, backend)


def both(lab: EngineLab, *nodes: dict[str, Any]) -> Any:
    """The result, the same whether streamed or not."""
    result = lab.run(list(nodes))
    assert lab.streamed(list(nodes)) == result
    return result


# -- StaticResponse ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("plain", "plain"),
        ("", ""),
        (None, ""),
        (5, "5"),
        ("{chat_user_prompt_last_one}!", "hi!"),
        ("a { b", "a { b"),
        ("{nope}", "{nope}"),
        ("{{x}}", "{x}"),
    ],
)
def test_static_response(lab: EngineLab, content: Any, text: str) -> None:
    assert both(lab, static(content)) == text


def test_static_response_without_content(lab: EngineLab) -> None:
    assert both(lab, {"type": "StaticResponse"}) == ""


def test_static_token_stream(lab: EngineLab) -> None:
    chunks = lab.chunks([static("hi  there\n")])
    assert [chunk["token"] for chunk in chunks if chunk["token"]] == ["hi", "  ", "there", "\n"]
    assert [chunk["finish_reason"] for chunk in chunks if chunk["finish_reason"]] == ["stop"]


def test_outputs_are_inserted_byte_for_byte(lab: EngineLab) -> None:
    lab.backend.responder = None
    text = '{"a": {}} See {agent2Output} {{x}}'
    probe = [user("__WILMER_L_CURLY__x__WILMER_R_CURLY__")]
    assert lab.run([static("{agent1Input}"), static("{agent1Output}")], *probe, scoped_inputs=[text]) == text


def test_jinja(lab: EngineLab) -> None:
    node = static("{% if agent1Output == 'Y' %}a{% endif %}{{ nope }} {single}", jinja2=True)
    assert both(lab, static("Y"), node) == "a {single}"


# -- StringConcatenator ------------------------------------------------------------------------------------------------


def test_concatenator(lab: EngineLab) -> None:
    node = {"type": "StringConcatenator", "strings": ["a", 1, None, "{todays_date_iso}"], "delimiter": "-"}
    assert both(lab, node) == f"a-1-None-{date.today().isoformat()}"


@pytest.mark.parametrize("strings", ["x", None, 5, {"a": "b"}, []])
def test_concatenator_without_a_list(lab: EngineLab, strings: Any) -> None:
    assert both(lab, {"type": "StringConcatenator", "strings": strings, "delimiter": "-"}) == ""


def test_concatenator_without_delimiter(lab: EngineLab) -> None:
    assert both(lab, static("x"), {"type": "StringConcatenator", "strings": ["{agent1Output}", "y"]}) == "xy"


def test_concatenator_delimiter_is_literal(lab: EngineLab) -> None:
    node = {"type": "StringConcatenator", "strings": ["a", "b"], "delimiter": "{todays_date_iso}"}
    assert both(lab, node) == "a{todays_date_iso}b"


# -- Conditional -------------------------------------------------------------------------------------------------------


def condition(text: Any) -> dict[str, Any]:
    return {"type": "Conditional", "condition": text}


@pytest.mark.parametrize(
    ("text", "result"), [("1 == 1", "TRUE"), ("1 == 2", "FALSE"), ("", "FALSE"), (None, "FALSE"), ("5 >", "FALSE")]
)
def test_conditional(lab: EngineLab, text: Any, result: str) -> None:
    assert both(lab, condition(text)) == result


def test_conditional_without_condition(lab: EngineLab) -> None:
    assert both(lab, {"type": "Conditional"}) == "FALSE"


@pytest.mark.parametrize(("text", "result"), [(True, "TRUE"), (False, "FALSE"), (0, "FALSE"), (2.5, "TRUE")])
def test_conditional_that_is_no_text(lab: EngineLab, text: Any, result: str) -> None:
    assert both(lab, condition(text)) == result


def test_conditional_that_cannot_be_read(lab: EngineLab, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        assert lab.run([static("yes, secret"), {**condition("{agent1Output} == yes"), "title": "Agreed?"}]) == "FALSE"
    warning = next(record for record in caplog.records if record.levelname == "WARNING")
    assert "'Agreed?'" in warning.getMessage()
    assert "secret" not in caplog.text


@pytest.mark.parametrize(
    ("output", "text", "result"),
    [
        ("yes", "{agent1Output} == yes", "TRUE"),
        ("yes, sure", "{agent1Output} == yes", "FALSE"),
        ("it's", "'{agent1Output}' == 'a'", "FALSE"),
        ("a", "'{agent1Output}' == 'a'", "TRUE"),
        ("", "{agent1Output} == yes", "FALSE"),
        ("7", "({agent1Output} >= 3 AND 'x' != 'none') OR FALSE", "TRUE"),
    ],
)
def test_conditional_on_an_output(lab: EngineLab, output: str, text: str, result: str) -> None:
    assert both(lab, static(output), condition(text)) == result


def test_conditional_on_a_conditional(lab: EngineLab) -> None:
    assert both(lab, condition("2 > 1"), condition("{agent1Output} == TRUE")) == "TRUE"
