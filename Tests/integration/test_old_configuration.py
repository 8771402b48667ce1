"""A configuration written for the published original runs unchanged: every workflow is executed, in every mode."""

from __future__ import annotations

import os
import re
import tempfile
from typing import Any

import pytest

from Middleware.common.constants import VALID_NODE_TYPES
from Tests.integration.old_configuration import expected
from Tests.integration.old_configuration.installation import MODES, PIXEL, never_run, said, workflow_files
from Tests.integration.old_configuration.visits import ALL, LISTED, OLD_TIMER, SHARER, USERS, Case, Visit, visit


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Visit:
    """Multi-user mode."""
    users = [word for user in USERS for word in ("--User", user)]
    return visit(tmp_path_factory.mktemp("several"), ALL, "run_waitress.py", "--ConfigDirectory", "CONFIGS/", *users)


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Visit:
    """One user, named as start scripts of the time did it."""
    names = (
        Case("general:latest", "The model answers."),
        Case("x:Quick:latest", "The quick one answers."),
        Case("gpt-4", "The doorman answers."),
    )
    return visit(tmp_path_factory.mktemp("single"), (*SHARER, *names), "run_eventlet.py", "CONFIGS", "sharer")


@pytest.fixture(scope="module")
def legacy(tmp_path_factory: pytest.TempPathFactory) -> Visit:
    """No user named: ``Users/_current-user.json`` does."""
    return visit(tmp_path_factory.mktemp("legacy"), OLD_TIMER, "server.py", "--ConfigDirectory", "CONFIGS")


@pytest.fixture(params=["several", "single", "legacy"])
def any_visit(request: pytest.FixtureRequest) -> Visit:
    found: Visit = request.getfixturevalue(request.param)
    return found


# -- whatever the mode -------------------------------------------------------------------------------------------------


def test_every_answer_is_right_in_every_dialect(any_visit: Visit) -> None:
    wrong = [
        (str(exchange.case), MODES[exchange.mode], exchange.heard)
        for exchange in any_visit.exchanges
        if (exchange.heard.status, exchange.heard.text, exchange.heard.finish, exchange.heard.error)
        != (200, exchange.case.answer, "stop", "")
    ]
    assert not wrong


def test_the_files_stay_as_they_are(any_visit: Visit) -> None:
    assert any_visit.home.config_bytes() == any_visit.before


def test_nothing_fails_but_the_script_that_complains(any_visit: Visit) -> None:
    records = re.split(r"^(?=\[\d{4}-)", any_visit.log, flags=re.MULTILINE)
    failures = [record for record in records if re.search(r"Traceback|\] (ERROR|CRITICAL) ", record)]
    assert [record for record in failures if "complaint.py failed in Invoke" not in record] == []


def test_the_check_reports_no_error(any_visit: Visit) -> None:
    findings = re.findall(r"^  error +.*$", any_visit.log, re.MULTILINE)
    assert not findings


# -- that everything ran -----------------------------------------------------------------------------------------------


def test_no_two_workflows_look_alike_in_the_log() -> None:
    files = workflow_files()
    assert len({(name.lower(), nodes) for name, nodes in files.values()}) == len(files) > 25


def test_the_tree_holds_every_type_of_node_that_there_was_then() -> None:
    written = {kind for _, nodes in workflow_files().values() for kind, _ in nodes}
    assert written <= set(VALID_NODE_TYPES) and len(written) == 41


def test_every_workflow_of_the_tree_ran(several: Visit) -> None:
    assert never_run(several.log, workflow_files()) == []


def test_every_workflow_of_the_single_user_ran(single: Visit) -> None:
    mine = [file for file in workflow_files() if file.startswith(("sharer/", "_shared/", "_common/"))]
    assert len(mine) == 7
    assert never_run(single.log, mine) == []


def test_every_workflow_of_the_current_user_ran(legacy: Visit) -> None:
    mine = [file for file in workflow_files() if file.startswith("old-timer/")]
    assert len(mine) == 9
    assert never_run(legacy.log, mine) == []


# -- what clients can choose -------------------------------------------------------------------------------------------


def listed(found: Visit) -> list[str]:
    assert [model["name"] for model in found.tags["models"]] == [model["id"] for model in found.models["data"]]
    return [model["id"] for model in found.models["data"]]


def test_the_models_of_several_users(several: Visit) -> None:
    assert listed(several) == LISTED


def test_the_models_of_one_user(single: Visit, legacy: Visit) -> None:
    assert listed(single) == [name for name in LISTED if name.startswith("sharer:")]
    assert listed(legacy) == ["Old-Timer"]


def test_every_listed_model_was_asked_whole_and_streamed(several: Visit) -> None:
    asked = {(exchange.case.model, *MODES[exchange.mode]) for exchange in several.exchanges}
    assert {(model, *mode) for model in LISTED for mode in MODES[:4]} <= asked


# -- what the back-ends are asked --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topic", "role", "body"),
    [
        ("NOTHING", "companion", expected.COMPANION),
        ("CODING", "sorter", expected.SORTER),
        ("CODING", "planner", expected.PLANNER),
        ("CODING", "coder", expected.CODER),
        ("REASONING", "thinker", expected.THINKER),
        ("FACTUAL", "librarian", expected.LIBRARIAN),
        ("CREATIVE WRITING", "novelist", expected.NOVELIST),
        ("CREATIVE WRITING", "critic", expected.CRITIC),
        ("CREATIVE WRITING", "poet", expected.POET),
        *(("MODELS", role, body) for role, body in expected.MODELS.items()),
    ],
)
@pytest.mark.parametrize("mode", ["several", "legacy"])
def test_templates_samplers_and_injected_texts(
    request: pytest.FixtureRequest, mode: str, topic: str, role: str, body: dict[str, Any]
) -> None:
    assert request.getfixturevalue(mode).sent("Old-Timer", topic, role) == body


def test_only_the_answer_is_streamed(several: Visit) -> None:
    exchange = several.of("Old-Timer", "CODING", mode=1)
    assert (exchange.request("planner").json["stream"], exchange.request("coder").json["stream"]) == (False, True)
    companion = several.of("Old-Timer", "NOTHING", mode=1).request("companion")
    assert companion.json == {**expected.COMPANION, "stream": True}
    assert companion.path == "/api/extra/generate/stream"


def test_an_unmatched_topic_is_asked_for_as_often_as_the_text_says(several: Visit) -> None:
    assert several.of("Old-Timer", "NOTHING").roles == [*2 * ["analyst", "sorter"], "companion"]


def test_the_encyclopedia_is_asked_with_numbers_given_as_texts(several: Visit) -> None:
    asked = [request.path for request in several.of("Old-Timer", "FACTUAL").asked if request.method == "GET"]
    query = "?prompt=The+searcher+answers.&percentile="
    assert asked == [
        f"/articles{query}0.5&num_results=1",
        f"/top_article{query}0.5&num_results=10",
        f"/top_n_articles{query}0.4&num_results=7&num_top_articles=2",
        f"/summaries{query}0.6&num_results=2",
    ]


def test_keys_go_where_they_belong_and_nowhere_if_there_are_none(several: Visit) -> None:
    exchange = several.of("Old-Timer", "MODELS")
    assert exchange.request("claude").headers["x-api-key"] == "old-secret"
    assert [role for role in expected.MODELS if "authorization" in exchange.request(role).headers] == []


@pytest.mark.parametrize(
    ("model", "role", "endpoint", "temperature", "limit"),
    [
        ("sharer:general", "model", "general-70b", 0.4, 1234),
        ("sharer:Quick", "quick one", "fast-8b", 0.2, 55),
        ("sharer:self-contained", "neighbour", "fast-8b", 0.2, 400),
        ("sharer", "doorman", "fast-8b", 0.2, 99),
        ("teamster:review", "reviewer", "general-70b", 0.4, 400),
        ("Minimal", "minimalist", "plain-model", 0.3, 400),
    ],
)
def test_shared_folders_hand_endpoint_preset_and_limit_on(
    several: Visit, model: str, role: str, endpoint: str, temperature: float, limit: int
) -> None:
    body = several.sent(model, "", role)
    assert (body["model"], body["temperature"], body["max_tokens"]) == (endpoint, temperature, limit)


def test_prompts_of_shared_workflows(several: Visit) -> None:
    conversation = said(0), said(1), said(2)
    assert several.sent("sharer:general", "", "model")["messages"] == expected.chat(
        "You are the model. Be kind.", *conversation
    )
    assert several.sent("sharer", "", "doorman")["messages"] == expected.chat("You are the doorman.", *conversation)
    assert several.sent("sharer:Quick", "", "quick one")["messages"] == expected.chat(
        "You are the quick one.", f"Q: {said(2)}"
    )
    assert several.sent("sharer:self-contained", "", "teller")["messages"] == expected.chat(
        "You are the teller. The neighbour answers.", said(2)
    )


# -- memories ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("role", "bodies"),
    [("memory keeper", [expected.MEMORY_KEEPER]), ("summarizer", [expected.SUMMARIZER]), ("worker", expected.WORKERS)],
)
def test_memories_are_made_of_the_old_files(several: Visit, role: str, bodies: list[Any]) -> None:
    asked = [request.json for request in several.of("archivist").requests(role)]
    assert sorted(asked, key=str) == sorted(bodies, key=str)


@pytest.mark.parametrize(
    ("role", "messages"),
    [("clerk", expected.CLERKS), ("storyteller", [expected.STORYTELLER]), ("watchman", [expected.WATCHMAN])],
)
def test_memories_are_told_to_the_nodes_that_want_them(several: Visit, role: str, messages: list[Any]) -> None:
    assert [request.json["messages"] for request in several.of("archivist").requests(role)] == messages


def test_what_is_remembered_stays_in_the_old_flat_files(several: Visit) -> None:
    home = several.home
    assert [memory["text_block"] for memory in home.read("old-chat_memories.json")] == list(expected.ALL_MEMORIES)
    assert [entry["text_block"] for entry in home.read("old-chat_chat_summary.json")] == [
        "Kept: The summarizer answers."
    ]
    assert not [name for name in ("memories", "chat_summary") if (home.discussions / f"old-chat/{name}.json").exists()]
    assert (home.discussions / "old-chat-1" / "memories.json").is_file()


def test_the_old_state_of_the_compactor_holds(several: Visit) -> None:
    assert "compactor" not in several.of("archivist").roles
    assert several.of("archivist", mode=1).roles.count("compactor") == 1


def test_searchable_memories_and_the_state_document(several: Visit) -> None:
    assert several.sent("curator", "", "guide")["messages"] == expected.GUIDE
    document = several.home.discussions / "cafe" / "state_document.md"
    assert document.read_text("utf-8") == "The document writer answers."


# -- tools -------------------------------------------------------------------------------------------------------------


def test_what_every_tool_gives(several: Visit) -> None:
    assert several.sent("tinkerer", "", "smith")["messages"] == expected.SMITH


def test_texts_around_the_tools(several: Visit) -> None:
    extractor, witness = (several.sent("tinkerer", "", role)["messages"] for role in ("extractor", "witness"))
    assert extractor == expected.chat("You are the extractor.", f"{said(3)}\n~\n{said(4)}")
    assert [message["content"] for message in witness] == [
        "You are the witness. The describer answers.",
        "[Picture: The describer answers.]",
        said(4),
    ]


def test_the_picture_reaches_the_vision_model(several: Visit) -> None:
    assert several.sent("tinkerer", "", "describer") == {
        **expected.EVERYONE_KOBOLD,
        "max_length": 77,
        "images": [PIXEL],
        "prompt": expected.chatml("You are the describer.", "What is it?"),
    }


def test_files_are_written_where_the_workflow_says(several: Visit) -> None:
    notes = several.home.root / "notes"
    assert (notes / "log" / "old-tools.txt").read_text("utf-8") == "The smith answers.\n"
    blocks = f"[Be kind.\n{said(0)}][{said(1)}\n{said(2)}]"
    assert (notes / "blocks.txt").read_text("utf-8") == 4 * blocks


def test_directories_are_those_of_the_user_files(several: Visit) -> None:
    assert {path.name for path in (several.home.root / "Locks").glob("*.sqlite")} == {
        "WilmerDb.archivist.sqlite",
        "WilmerDb.tinkerer.sqlite",
    }
    assert os.name == "nt" or "D:\\Temp\\Wilmer" not in os.listdir(tempfile.gettempdir())
