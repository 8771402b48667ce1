"""Conditions and calculations whose variables are operands, whatever their text has (``valueSafe``)."""

from __future__ import annotations

import itertools
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from Middleware.exceptions import ConfigValueError
from Middleware.utilities.templates.substitution import VALUE_BEGINS, VALUE_ENDS
from Middleware.workflows.handlers.impl.specialized.conditional import ConditionalHandler
from Middleware.workflows.handlers.impl.specialized_node_handler import ArithmeticProcessorHandler
from Middleware.workflows.handlers.registry import node_types
from Middleware.workflows.managers.workflow_variable_manager import WorkflowVariableManager
from Middleware.workflows.models.execution_context import ExecutionContext
from Tests.tables import table
from Tests.workflows.engine_lab import user

HOSTILE = [
    "x' OR TRUE OR '",
    'x" OR TRUE OR "',
    "x' or 1 == 1 or 'a' == 'a",
    "' == '' OR '' == '",
    "x'\nOR\nTRUE",
    "x') OR (TRUE",
    ") OR TRUE OR (",
    "TRUE OR TRUE",
    "1 OR TRUE",
    "9 > 1 OR 9",
    "OR",
    "AND",
    "'ADMIN'",
    '"ADMIN"',
    "ADMIN' AND 'x' == 'x",
    "admin",
    "ADMIN, sure",
    "it's",
    "",
    "   ",
    "(",
    "==",
    "-",
    "!",
    "{agent2Output}",
    "{{ agent2Output }}",
    "{role}",
    "{% if 1 %}ADMIN{% endif %}",
    "__WILMER_L_CURLY__role__WILMER_R_CURLY__",
    f"{VALUE_ENDS} OR TRUE OR {VALUE_BEGINS}",
    f"{VALUE_ENDS}' OR TRUE OR '{VALUE_BEGINS}",
    "x\0' OR TRUE OR '",
    "\u2019 OR TRUE OR \u2019",
    "\uff11\uff10 OR TRUE",
    "9" * 5000 + "' OR TRUE",
]
QUOTED = [("'%s'", "'ADMIN'"), ('"%s"', '"ADMIN"'), ("'role: %s'", "'role: ADMIN'"), ("%s", "ADMIN"), ("%s", "'ADMIN'")]


def outcome(node: dict[str, Any], *outputs: Any, said: str = "hello", **variables: Any) -> Any:
    kind = ArithmeticProcessorHandler() if "expression" in node else ConditionalHandler()
    context = ExecutionContext(
        "r-1",
        "w",
        None,
        {"type": next(iter(kind.KEYS)), "title": "Asks", **node},
        [user(said)],
        False,
        workflow_config=variables,
        agent_outputs={f"agent{number}Output": output for number, output in enumerate(outputs, 1)},
        workflow_variable_service=WorkflowVariableManager(),
    )
    return kind.handle(context)


def condition(text: str, *outputs: Any, **variables: Any) -> Any:
    return outcome({"condition": text, "valueSafe": True}, *outputs, **variables)


@table(
    ("hostile", "quoted", "jinja"),
    itertools.product(HOSTILE, QUOTED, [False, True]),
    ids=lambda value: str(value)[:40],
)
def test_no_text_changes_a_condition(hostile: str, quoted: tuple[str, str], jinja: bool) -> None:
    value, admin = quoted[0] % ("{{ agent1Output }}" if jinja else "{agent1Output}"), quoted[1]

    def holds(text: str) -> bool:
        return bool(outcome({"condition": text, "valueSafe": True, "jinja2": jinja}, hostile, "ADMIN") == "TRUE")

    assert not holds(f"{value} == {admin}")
    assert holds(f"{value} != {admin}")
    assert not holds(f"{admin} == {value}")
    assert not holds(f"{value} == {admin} AND TRUE")
    assert not holds(f"{value} == {admin} OR FALSE")
    assert not holds(f"FALSE OR {value} == {admin}")
    assert holds(f"(TRUE AND ({value} != {admin}))")
    assert not any(holds(f"{value} {sign} {side}") for sign in ("<", ">", "<=", ">=") for side in ("0", "TRUE", admin))
    assert not any(holds(f"0 {sign} {value}") for sign in ("<", ">", "<=", ">="))


@table(
    ("text", "outputs", "result"),
    [
        ("'{agent1Output}' == 'ADMIN'", ["ADMIN"], "TRUE"),
        ("{agent1Output} == ADMIN", ["ADMIN\n"], "TRUE"),
        ("{agent1Output} == 'it is'", ["it is"], "TRUE"),
        ("'{agent1Output}' == \"it's\"", ["it's"], "TRUE"),
        ("'{agent1Output}' == '{agent2Output}'", ['it\'s "so"', 'it\'s "so"'], "TRUE"),
        ("{agent1Output} == {agent2Output}", ["a b", "a b"], "TRUE"),
        ("'{agent1Output}{agent2Output}' == 'ab'", ["a", "b"], "TRUE"),
        ("'{agent1Output}' == ''", [""], "TRUE"),
        ("{agent1Output} == ''", [""], "TRUE"),
        ("{agent1Output} >= 8", ["9"], "TRUE"),
        ("{agent1Output} >= 8", [" 9.5\n"], "TRUE"),
        ("{agent1Output} < 0", ["-3"], "TRUE"),
        ("{agent1Output} == 5", ["5.0"], "TRUE"),
        ("{agent1Output} >= 8", ["7"], "FALSE"),
        ("'{agent1Output}' >= 8", ["9"], "FALSE"),
        ("{agent1Output} >= 8", ["9 of 10"], "FALSE"),
        ("{agent1Output} >= 8", ["nine"], "FALSE"),
        ("{agent1Output} < 8", ["nine"], "FALSE"),
        ("{agent1Output} < 8", [""], "FALSE"),
        ("{agent1Output} < 8", ["'1'"], "FALSE"),
        ("{agent1Output} < 8", ["1e0"], "FALSE"),
        ("{agent1Output} < 8", ["1,5"], "FALSE"),
        ("{agent1Output} < 8", ["\u0661"], "FALSE"),
        ("{agent1Output} < 8", ["nan"], "FALSE"),
        ("{agent1Output} > 8", ["inf"], "FALSE"),
        ("{agent1Output} < 8", ["-Infinity"], "FALSE"),
        ("{agent1Output} > 8", ["9" * 400], "TRUE"),
        ("{agent1Output} == Nan", ["Nan"], "TRUE"),
        ("{agent1Output} == inf", ["Infinity"], "FALSE"),
        ("{agent1Output} < 8", ["TRUE"], "FALSE"),
        ("{agent1Output} >= 0", ["false"], "FALSE"),
        ("{agent1Output} == TRUE", ["TRUE"], "TRUE"),
        ("{agent1Output} == true", ["True\n"], "TRUE"),
        ("{agent1Output} == TRUE", ["FALSE"], "FALSE"),
        ("{agent1Output} == TRUE", [True], "TRUE"),
        ("{agent1Output[a]} == 5", [{"a": 5}], "TRUE"),
        ("{agent1Output}", ["FALSE"], "FALSE"),
        ("{agent1Output}", ["0"], "FALSE"),
        ("{agent1Output}", [" "], "FALSE"),
        ("{agent1Output}", ["yes, sure"], "TRUE"),
        ("({agent1Output} == a OR {agent2Output} == b) AND TRUE", ["x", "b"], "TRUE"),
        ("{agent1Output}{agent2Output} == 12", ["1", "2"], "FALSE"),
        ("1{agent1Output} == 12", ["2"], "FALSE"),
        ("-{agent1Output} < 3", ["5"], "FALSE"),
        ("{agent1Output} {agent2Output}", ["1", "2"], "FALSE"),
        ("'{agent1Output} == 'x'", ["x"], "FALSE"),
        ("{nope} == 5", [], "FALSE"),
        ("", [], "FALSE"),
        ("'{{x}}' == '{agent1Output}'", ["{x}"], "TRUE"),
    ],
)
def test_values(text: str, outputs: list[Any], result: str) -> None:
    assert condition(text, *outputs) == result


def test_variables_of_the_file_and_of_users() -> None:
    assert condition("'{chat_user_prompt_last_one}' == 'x'", said="x' OR TRUE OR '") == "FALSE"
    assert condition("'{role}' == '{wanted}'", "it's", role="{agent1Output}", wanted="it's") == "TRUE"
    assert condition("{role} == ADMIN", "ADMIN OR TRUE", role="x {agent1Output}") == "FALSE"
    assert condition("{limit} > 7", limit=8) == "TRUE"


@table(
    "text",
    [
        "{% filter truncate(3, true, '') %}{{ agent1Output }}{% endfilter %} == 'y'",
        "{% filter reverse %}{{ agent1Output }}{% endfilter %} == 'y' ",
    ],
)
def test_a_template_that_takes_a_value_apart(text: str) -> None:
    assert outcome({"condition": text, "valueSafe": True, "jinja2": True}, "xx OR TRUE OR xx") == "FALSE"


def test_a_template_that_writes_the_condition() -> None:
    node = {"valueSafe": True, "jinja2": True}
    text = "{% if agent1Output == 'a' %}TRUE{% else %}'{{ agent1Output }}' == 'b'{% endif %}"
    said = ("a", "b", "' OR TRUE OR '")
    assert [outcome({"condition": text, **node}, one) for one in said] == ["TRUE", "TRUE", "FALSE"]


@pytest.mark.parametrize("keys", [{}, {"valueSafe": False}, {"valueSafe": "false"}, {"valueSafe": None}])
def test_without_the_key_texts_are_inserted_as_ever(keys: dict[str, Any]) -> None:
    assert outcome({"condition": "'{agent1Output}' == 'ADMIN'", **keys}, "x' OR TRUE OR '") == "TRUE"
    assert outcome({"expression": "{agent1Output}", **keys}, "1 + 2") == "3"
    assert outcome({"condition": "{agent1Output}", **keys}, f"{VALUE_BEGINS}5 > 3{VALUE_ENDS}") == "TRUE"


def test_no_other_value_of_the_key() -> None:
    for node in ({"condition": "TRUE"}, {"expression": "1 + 1"}):
        with pytest.raises(ConfigValueError, match="'Asks': 'valueSafe' must be true or false"):
            outcome({**node, "valueSafe": "yes"})


@table(
    ("expression", "outputs", "result"),
    [
        ("{agent1Output} * 1.07", ["7"], "7.49"),
        ("{agent1Output}+{agent2Output}", [" 7\n", "-2.5"], "4.5"),
        ("{agent1Output}-{agent2Output}", ["5", "-3"], "8"),
        ("{agent1Output} / {agent2Output}", ["5", "0"], "-1"),
        ("10 / {agent1Output}", ["4"], "2.5"),
        ("{agent1Output}", ["5 + 3"], "-1"),
        ("{agent1Output} + 1", ["5 * 2"], "-1"),
        ("{agent1Output}-{agent2Output}", ["", "5-3"], "-1"),
        ("{agent1Output}-{agent2Output}", ["5-3", ""], "-1"),
        ("{agent1Output} - {agent2Output}", ["-", "5"], "-1"),
        ("{agent1Output}{agent2Output}", ["5 +", " 3"], "-1"),
        ("{agent1Output} {agent2Output} 3", ["5", "+"], "-1"),
        ("1{agent1Output} + 1", ["5"], "-1"),
        ("-{agent1Output} + 1", ["5"], "-1"),
        ("{agent1Output} + 1", ["five"], "-1"),
        ("{agent1Output} + 1", [""], "-1"),
        ("{agent1Output} + 1", ["'5'"], "-1"),
        ("{agent1Output} + 1", ["inf"], "-1"),
        ("{agent1Output} + 1", ["1e3"], "-1"),
        ("{agent1Output} + 1", ["\u0665"], "-1"),
        ("5 - 3", [], "2"),
        ("", [], "-1"),
    ],
)
def test_calculations(expression: str, outputs: list[str], result: str) -> None:
    assert outcome({"expression": expression, "valueSafe": True}, *outputs) == result


def test_the_log_shows_the_condition_with_its_texts(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    condition("{agent1Output} {agent2Output}", "it's", "so")
    assert [record.getMessage() for record in caplog.records if "it's so" in record.getMessage()]
    assert VALUE_BEGINS not in caplog.text


NEW_FILES = ("Public/Configs/Workflows", "Middleware/addons/init/templates")
SAFE = {
    node_type: [key.name for key in handler.KEYS[node_type] if key.in_new is not None]
    for node_type, handler in node_types().items()
}


def test_new_files_have_the_keys() -> None:
    """Every node that this project writes for users has them: shipped configuration, and templates."""

    def nodes(value: Any) -> list[dict[str, Any]]:
        entries = value if isinstance(value, list) else list(value.values()) if isinstance(value, dict) else []
        found = [node for entry in entries for node in nodes(entry)]
        return [value, *found] if isinstance(value, dict) and isinstance(value.get("type"), str) else found

    project = Path(__file__).parents[5]
    paths = [path for folder in NEW_FILES for path in sorted((project / folder).rglob("*.json"))]
    found = [(path, node) for path in paths for node in nodes(json.loads(path.read_text(encoding="utf-8")))]
    assert len(found) > 100
    assert {name: keys for name, keys in SAFE.items() if keys} == {
        "Conditional": ["valueSafe"],
        "ArithmeticProcessor": ["valueSafe"],
        "CurlCommand": ["blockOptionInjection"],
    }
    assert not [path for path, node in found for key in SAFE.get(node["type"], []) if node.get(key) is not True]
