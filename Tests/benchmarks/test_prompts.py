"""``benchmarks/prompts.py``: its cases, and that it reaches each prompt through the real server."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import prompts
from Middleware.addons.init import demo_backend

CONFIGS = prompts.PROJECT / "Public" / "Configs"


def test_the_cases_are_many_varied_and_different() -> None:
    cases = prompts.routing_cases()
    assert len(cases) >= 120
    assert len({tuple(case.messages) for case in cases}) == len(cases)
    by_group = Counter((case.group, case.language) for case in cases)
    assert len(by_group) == 6 * 3
    assert min(by_group.values()) >= 6
    searches = prompts.search_cases()
    assert len(searches) >= 20
    assert all(len(case.messages) % 2 for case in cases + searches)
    assert all(bool(case.words) != case.none for case in searches)


def test_held_out_cases_are_varied_and_in_no_other_file() -> None:
    cases, held_out = (
        [
            *prompts.routing_cases(which),
            *prompts.search_cases(which),
        ]
        for which in (False, True)
    )
    assert len({tuple(case.messages) for case in held_out}) == len(held_out) >= 75
    assert min(Counter((case.group, case.language) for case in prompts.routing_cases(True)).values()) == 3
    assert all(bool(case.words) != case.none for case in held_out[len(prompts.routing_cases(True)) :])
    known, new = ({text for case in some for text in case.messages} for some in (cases, held_out))
    assert not known & new


def test_no_example_of_a_shipped_prompt_is_a_case() -> None:
    asked = {case.messages[-1] for which in (False, True) for case in prompts.routing_cases(which)}
    files = [*CONFIGS.glob("Workflows/**/*.json"), *prompts.PROJECT.glob("Middleware/addons/init/templates/**/*.json")]
    examples = [
        turn["user"]
        for file in files
        if file.name.count(".") == 1
        for node in json.loads(file.read_text(encoding="utf-8")).get("nodes", ())
        for turn in node.get("exampleTurns", ())
    ]
    assert not [example for example in examples for text in asked if len(text) > 12 and text in example]


@pytest.fixture(scope="module")
def model() -> Iterator[str]:
    server = demo_backend.start(delay=0)
    yield server.url
    server.shutdown()
    server.server_close()


@pytest.mark.slow
def test_each_prompt_is_asked_and_its_answers_are_counted(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    target = prompts.Target(CONFIGS, model, "Open-AI-API")
    known = prompts.prompts(CONFIGS)
    for prompt in known:
        prompts.measure(prompt, 40, True, target)
    lines = [line for line in capsys.readouterr().out.splitlines() if line[:1].strip()]
    assert [line.split()[0] for line in lines] == [prompt.name for prompt in known]
    # The demo back-end follows the words that a route's description and a message have in common.
    assert float(next(line for line in lines if line.startswith("demo ")).split()[1]) >= 3


def test_a_configuration_names_one_server_only(tmp_path: Path) -> None:
    target = prompts.Target(CONFIGS, "http://127.0.0.1:9", "LlamaCppServer")
    prompts.write_configuration(tmp_path, prompts.prompts(CONFIGS)[0], target)
    endpoints = [json.loads(file.read_text(encoding="utf-8")) for file in tmp_path.glob("Configs/Endpoints/**/*.json")]
    assert {endpoint["endpoint"] for endpoint in endpoints} == {"http://127.0.0.1:9"}
