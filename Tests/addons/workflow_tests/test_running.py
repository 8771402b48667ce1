"""What runs in a test, what stands in for the world outside, and that nothing outside is touched."""

from __future__ import annotations

import json
import logging
import os
import time

import pytest

from Middleware.addons.workflow_tests import running
from Middleware.addons.workflow_tests.sandbox import sandbox_folder
from Middleware.addons.workflow_tests.suite_reader import read_tests
from Middleware.common import instance_global_variables as instance
from Middleware.services.locking_service import get_locking_service
from Middleware.workflows.handlers.registry import node_types
from Tests.addons.workflow_tests.lab import USER, asks, says, static, test
from Tests.llmapis.lab import OPEN_AI
from Tests.patience import PATIENCE
from Tests.tables import table

OPEN_WEBUI_TITLE = (
    '### Task:\nGenerate a title.\n### Output:\nJSON format: { "title": "x" }\n'
    "### Chat History:\n<chat_history>\nUSER: hello\n</chat_history>"
)
SETTINGS = "_DiscussionId-MemoryFile-Workflow-Settings"
TAG = "[DiscussionId]talk[/DiscussionId]"

OUTSIDE_TYPES = sorted(node_type for node_type, handler in node_types().items() if handler.reaches_outside)


def route_to(lab, **settings):
    lab.write(
        "Routing/routes",
        {"CODE": {"description": "code", "workflow": "Code"}, "TALK": {"description": "talk", "workflow": "Talk"}},
    )
    lab.user(routingConfig="routes", categorizationWorkflow="Sort", **settings)
    lab.workflow("Sort", asks("Sort it", "{category_list}"))
    lab.workflow("Code", static("Answer code", "code"))
    lab.workflow("Talk", static("Answer talk", "talk"))
    lab.workflow("_DefaultWorkflow", static("Answer anyhow", "default"))


# -- the whole way of a request ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("category", "route", "order"),
    [
        ("CODE", "CODE -> Code", ["Sort/Sort it", "Code/Answer code"]),
        ("it is talk", "TALK -> Talk", ["Sort/Sort it", "Talk/Answer talk"]),
        ("no idea", "_DefaultWorkflow", ["Sort/Sort it", "_DefaultWorkflow/Answer anyhow"]),
    ],
    ids=["code", "talk", "default"],
)
def test_a_request_is_routed(lab, category, route, order):
    route_to(lab)

    assert (
        lab.failures(
            static("Beside", "x"),
            entry="request",
            replies={"Sort it": category},
            expect={"route": route, "order": order},
        )
        == {}
    )


def test_a_request_may_choose_a_shared_workflow(lab):
    lab.workflow("_DefaultWorkflow", static("Share", "shared"), folder="_shared/fast")

    assert (
        lab.failures(
            static("Beside", "x"), entry="request", model="fast", expect={"route": "shared fast", "answer": "shared"}
        )
        == {}
    )


def test_a_request_may_name_user_and_workflow(lab):
    lab.workflow("quick", static("Share", "shared"), folder="_shared")

    assert (
        lab.failures(
            static("Beside", "x"), entry="request", model=f"{USER}:quick", expect={"route": {"equals": "shared quick"}}
        )
        == {}
    )


CHOICE = {
    "title": "Take it",
    "type": "ConditionalCustomWorkflow",
    "conditionalKey": "CODE",
    "conditionalWorkflows": {"CODE": "Four-Code", "Default": "Four-Talk"},
    "workflowUserFolderOverride": USER,
    "returnToUser": True,
}


@table(
    ("expected", "holds"),
    [
        ({"equals": "shared four > CODE -> Four-Code"}, True),
        ("shared four > CODE -> Four-Code", True),
        ("CODE -> Four-Code", True),
        ({"equals": 'shared four (model "four") > CODE -> Four-Code'}, True),
        ({"equals": "shared four"}, True),
        ({"lacks": "Four-Talk"}, True),
        ({"lacks": "Four-Code"}, False),
        ("shared four > Default -> Four-Talk", False),
        ({"equals": "CODE -> Four-Code"}, False),
    ],
)
def test_the_branches_of_a_shared_workflow_are_part_of_the_route(lab, expected, holds):
    lab.workflow("_DefaultWorkflow", CHOICE, folder="_shared/four")
    lab.workflow("Four-Code", static("Say", "code"))
    failures = lab.failures(static("Beside", "x"), entry="request", model="four", expect={"route": expected})
    assert list(failures) == ([] if holds else ["expect.route"]), failures
    assert holds or "shared four > CODE -> Four-Code" in str(failures)


@table(
    ("nodes", "route"),
    [
        ([CHOICE], {"equals": "CODE -> Four-Code"}),
        ([static("Say", "x")], {"equals": ""}),
        ([{**CHOICE, "returnToUser": False}, static("Say", "x", returnToUser=True)], {"equals": ""}),
        ([{**CHOICE, "conditionalKey": "x", "UseDefaultContentInsteadOfWorkflow": "y"}], "Default -> a text"),
    ],
)
def test_the_route_of_a_workflow_is_its_branches(lab, nodes, route):
    lab.workflow("Four-Code", static("Say", "code"))
    assert lab.failures(*nodes, expect={"route": route}) == {}


def test_a_custom_workflow_runs_for_every_request(lab):
    lab.user(customWorkflowOverride=True, customWorkflow="Main")

    assert lab.failures(static("Beside", "x"), entry="request", expect={"route": {"equals": "Main"}}) == {}


def test_a_request_for_a_title_runs_the_background_workflow(lab):
    route_to(lab, backgroundTaskWorkflow="Talk")

    assert (
        lab.failures(
            static("Beside", "x"),
            entry="request",
            messages=[says(OPEN_WEBUI_TITLE)],
            expect={"route": "background task -> Talk", "order": ["Answer talk"]},
        )
        == {}
    )


def test_the_user_of_the_file_counts(lab):
    lab.write("Users/other", {"customWorkflowOverride": True, "customWorkflow": "Own"})
    lab.workflow("Own", static("Own", "other's"), folder="other")
    lab.workflow("Main", static("Beside", "x"))
    lab.suite("Main", test(entry="request", expect={"answer": "other's"}), user="other")

    assert _run_written(lab) == [[]]


def test_the_settings_of_the_user_shape_the_messages(lab):
    lab.user(chatCompleteAddUserAssistant=True)

    assert lab.failures(asks("Ask"), replies={"Ask": "x"}, expect={"prompts": {"Ask": {"prompt": "User: hi"}}}) == {}


# -- a workflow alone --------------------------------------------------------------------------------------------------


def test_scoped_variables_are_the_inputs_of_the_workflow(lab):
    assert (
        lab.failures(
            static("Say", "{agent1Input}-{agent2Input}"),
            scoped_variables=["one", "{two}"],
            expect={"answer": {"equals": "one-{two}"}},
        )
        == {}
    )


def test_the_workflow_beside_the_file_runs_whatever_the_users_folder_is(lab):
    lab.workflow("Child", static("Say", "child"), folder="_elsewhere")
    lab.workflow("Main", {"title": "Run", "type": "CustomWorkflow", "workflowName": "Child"}, folder="_elsewhere")
    path = lab.suite("Main", test(expect={"order": ["Run", "Child/Say"]}), folder="_elsewhere", user=USER)

    assert _run_written(lab, path) == [[]]


def test_nodes_after_the_answer_run_too(lab):
    assert (
        lab.failures(
            static("Say", "answer", returnToUser=True),
            static("Later", "later"),
            expect={"answer": {"equals": "answer"}, "order": ["Say", "Later"], "outputs": {"Later": "later"}},
        )
        == {}
    )


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_the_answer_of_a_child_is_the_answer(lab, stream):
    lab.workflow("Child", asks("Ask", returnToUser=True), static("Later", "later"))

    assert (
        lab.failures(
            {"title": "Run", "type": "CustomWorkflow", "workflowName": "Child", "returnToUser": True},
            static("Last", "last"),
            stream=stream,
            replies={"Ask": "yes"},
            expect={"answer": {"equals": "yes"}, "order": ["Run", "Ask", "Later", "Last"]},
        )
        == {}
    )


def test_nodes_side_by_side_are_told_in_the_order_of_the_file(lab):
    nodes = [asks(f"Ask {number}", "x") for number in range(6)]

    [result] = lab.results(
        *nodes,
        static("Say", "x"),
        parallelNodes=True,
        tests=[test(replies=[{"reply": "x"}], expect={"order": [*(f"Ask {number}" for number in range(6)), "Say"]})],
    )

    assert result.failures == []


def test_braces_stay_braces(lab):
    assert (
        lab.failures(
            static("Say", "{chat_user_prompt_last_one}"),
            messages=[says("{agent1Output} {x}")],
            expect={"answer": {"equals": "{agent1Output} {x}"}, "outputs": {"Say": {"equals": "{agent1Output} {x}"}}},
        )
        == {}
    )


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_test_that_takes_too_long_ends(lab, monkeypatch, stream):
    monkeypatch.setattr(running, "TIME_LIMIT_SECONDS", 0.0)

    assert (
        lab.failures(*(asks(f"Ask {number}") for number in range(50)), stream=stream, replies=[{"reply": "x"}])[""][0]
        == "the run failed: it was cancelled after 0 s"
    )


def test_a_long_answer_is_not_kept_back(lab):
    began = time.monotonic()

    assert lab.failures(static("Say", "word " * 5000), stream=True, expect={"answer": "word word"}) == {}
    assert time.monotonic() - began < PATIENCE  # word by word, it takes minutes


def test_a_failure_of_the_program_has_a_trace(lab, monkeypatch):
    def fail(*_):
        raise KeyError("boom")

    monkeypatch.setattr(running, "chat_messages", fail)

    lines = lab.failures(static("Say", "x"))[""]

    assert lines[0] == "the run failed: KeyError: 'boom'"
    assert any("test_running.py" in line for line in lines)


def test_warnings_of_a_test_are_kept_with_it(lab, monkeypatch):
    [result, other] = lab.results(
        {"title": "Say", "type": "StaticRespons", "content": "x", "endpointName": "Main"},
        tests=[test(replies=[{"reply": "x"}]), test(replies=[{"reply": "x"}])],
    )

    assert any("unknown type" in line for line in result.log) and any("unknown type" in line for line in other.log)


# -- stubs -------------------------------------------------------------------------------------------------------------


def test_each_run_of_a_node_has_the_next_output_of_its_stub(lab):
    lab.workflow("Child", {"title": "Fetch", "type": "WebFetch", "url": "https://example.com"})
    runs = [{"title": f"Run {number}", "type": "CustomWorkflow", "workflowName": "Child"} for number in range(3)]
    say = static("Say", "{agent1Output} {agent2Output} {agent3Output}")
    assert lab.failures(*runs, say, stubs={"Fetch": ["a", "b"]}, expect={"answer": {"equals": "a b b"}}) == {}


@pytest.mark.parametrize("node_type", OUTSIDE_TYPES)
def test_a_node_that_reaches_outside_is_not_run(lab, node_type):
    node = {"title": "Fetch", "type": node_type}

    assert lab.failures(node, stubs={"Fetch": "from outside"}, expect={"answer": {"equals": "from outside"}}) == {}


@pytest.mark.parametrize("node_type", OUTSIDE_TYPES)
def test_a_node_that_reaches_outside_needs_a_stub(lab, node_type):
    failures = lab.failures(static("Say", "x"), {"title": "Fetch", "type": node_type}, expect={"answer": "x"})

    assert failures == {"stubs": [f"node 'Main/Fetch' ({node_type}) would reach outside: name its output in \"stubs\""]}


def test_a_stub_that_is_missing_in_a_child_is_named(lab):
    lab.workflow("Child", {"title": "Fetch", "type": "WebFetch", "url": "http://127.0.0.1:1"})
    run_child = {"title": "Run", "type": "CustomWorkflow", "workflowName": "Child"}
    save = {"title": "Save", "type": "SaveCustomFile", "filepath": "/data/x", "content": "x"}

    failures = lab.failures(save, run_child)

    assert failures == {"stubs": ["node 'Child/Fetch' (WebFetch) would reach outside: name its output in \"stubs\""]}


def test_a_branch_that_is_not_taken_needs_no_stub(lab):
    lab.workflow("Web", {"title": "Fetch", "type": "WebFetch"})
    lab.workflow("Dry", static("Say", "dry"))
    choice = {
        "title": "Choose",
        "type": "ConditionalCustomWorkflow",
        "conditionalKey": "{agent1Input}",
        "conditionalWorkflows": {"a": "Web", "b": "Dry"},
    }

    assert lab.failures(choice, scoped_variables=["b"], expect={"answer": "dry"}) == {}
    assert lab.failures(choice, scoped_variables=["a"], stubs={"Fetch": "wet"}, expect={"answer": "wet"}) == {}
    assert lab.failures(choice, scoped_variables=["a"])["stubs"] == [
        "node 'Web/Fetch' (WebFetch) would reach outside: name its output in \"stubs\""
    ]


def test_a_stub_may_name_one_of_several_equal_titles(lab):
    lab.workflow("Child", {"title": "Fetch", "type": "WebFetch"})
    nodes = [
        {"title": "Fetch", "type": "WebFetch"},
        {"title": "Run", "type": "CustomWorkflow", "workflowName": "Child"},
        static("Join", "{agent1Output}|{agent2Output}"),
    ]

    assert (
        lab.failures(*nodes, stubs={"Fetch": "any", "Child/Fetch": "child"}, expect={"answer": {"equals": "any|child"}})
        == {}
    )


def test_a_stub_replaces_a_sub_workflow_whole(lab):
    lab.workflow("Child", {"title": "Fetch", "type": "WebFetch"})

    assert (
        lab.failures(
            {"title": "Run", "type": "CustomWorkflow", "workflowName": "Child"},
            stubs={"Run": "done"},
            expect={"answer": "done", "order": ["Run"]},
        )
        == {}
    )


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_stub_can_be_the_answer(lab, stream):
    assert (
        lab.failures(
            {"title": "Fetch", "type": "PythonModule"},
            static("Later", "{agent1Output}"),
            stream=stream,
            stubs={"Fetch": "text of the page"},
            expect={"outputs": {"Later": "text of the page"}},
        )
        == {}
    )


# -- files -------------------------------------------------------------------------------------------------------------

READ = {"title": "Read", "type": "GetCustomFile", "filepath": "/data/{agent1Input}.txt"}
WRITE = {
    "title": "Write",
    "type": "SaveCustomFile",
    "filepath": "/data/{agent1Input}.txt",
    "content": "new",
    "mode": "append",
}


def test_files_are_found_by_their_path_after_substitution(lab):
    assert (
        lab.failures(
            READ,
            scoped_variables=["notes"],
            files={"/data/notes.txt": "two\nlines äö"},
            expect={"answer": {"equals": "two\nlines äö"}},
        )
        == {}
    )


@pytest.mark.parametrize("path", ["/data/NOTES.TXT", "/data/./sub/../notes.txt"])
def test_a_path_may_be_spelled_otherwise(lab, path):
    node = {**READ, "filepath": path}

    assert lab.failures(node, files={"/data/notes.txt": "found"}, expect={"answer": "found"}) == {}


@pytest.mark.parametrize("path", ["written.txt", "~/written.txt", "sub/written.txt", "/tmp/no-such/written.txt"])
def test_paths_of_every_kind_lead_into_the_sandbox(lab, path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "home"))
    node = {"title": "Write", "type": "SaveCustomFile", "filepath": path, "content": "new"}

    assert lab.failures(node, expect={"files": {path: "new"}}) == {}
    assert not os.path.exists(os.path.expanduser(path))


def test_what_is_written_is_read_again_and_nothing_else(lab):
    assert (
        lab.failures(
            WRITE,
            READ,
            scoped_variables=["notes"],
            files={"/data/notes.txt": "old"},
            expect={"outputs": {"Read": ["old", "new"]}, "files": {"/data/notes.txt": {"matches": "old\\s*new"}}},
        )
        == {}
    )
    assert "did not exist" in str(lab.failures(READ, scoped_variables=["notes"], expect={"answer": "old"}))


def test_a_file_of_the_public_folder_is_found_from_anywhere(lab, tmp_path, monkeypatch):
    """As for a client; the test gives its text, and the real one is not read."""
    monkeypatch.setattr(instance, "PUBLIC_DIRECTORY", str(tmp_path / "public"))
    (tmp_path / "public" / "texts").mkdir(parents=True)
    (tmp_path / "public" / "texts" / "b.md").write_text("secret", encoding="utf-8")
    nodes = {**READ, "filepath": "texts/A.md"}, {**READ, "title": "Other", "filepath": "texts/b.md"}

    assert (
        lab.failures(
            *nodes,
            files={str(tmp_path / "public" / "texts" / "a.md"): "shipped"},
            expect={"outputs": {"Read": "shipped", "Other": {"matches": "did not exist"}}},
        )
        == {}
    )


def test_a_real_file_is_not_read(lab, tmp_path):
    real = tmp_path / "real.txt"
    real.write_text("secret", encoding="utf-8")

    assert lab.failures({**READ, "filepath": str(real)}, expect={"answer": {"lacks": "secret"}}) == {}


def test_the_allowed_directories_of_the_user_count(lab, tmp_path):
    lab.user(allowedFileDirectories=[str(tmp_path)])
    inside, outside = str(tmp_path / "a.txt"), str(tmp_path.parent / "b.txt")
    node = {**READ, "filepath": "{agent1Input}"}

    assert lab.failures(node, scoped_variables=[inside], files={inside: "in"}, expect={"answer": "in"}) == {}
    assert (
        lab.failures(
            node, scoped_variables=[outside], files={outside: "out"}, expect={"error": "leads out of the directories"}
        )
        == {}
    )


STORED = "DiscussionIds/talk"
RECALL = {"title": "Recall", "type": "GetCurrentMemoryFromFile"}
SUM_UP = {"title": "Sum up", "type": "GetCurrentSummaryFromFile"}
KEEP = {"title": "Keep", "type": "WriteCurrentSummaryToFileAndReturnIt", "input": "Mara sails."}
MEMORIES = [{"text_block": "Mara hid a bird.", "hash": "a"}, {"text_block": "It sang.", "hash": "b"}]


@table(
    ("nodes", "keys", "expected"),
    [
        ([RECALL], {"files": {f"{STORED}/memories.json": MEMORIES}}, {"answer": ["Mara hid a bird.", "It sang."]}),
        ([RECALL], {"files": {f"./{STORED}/../talk/memories.json": json.dumps(MEMORIES)}}, {"answer": "It sang."}),
        (
            [SUM_UP],
            {"files": {f"{STORED}/chat_summary.json": [{"text_block": "So far.", "hash": "a"}]}},
            {"answer": "So far."},
        ),
        ([KEEP], {}, {"answer": "Mara sails.", "files": {f"{STORED}/chat_summary.json": "Mara sails."}}),
        ([RECALL], {"files": {"DiscussionIds/other/memories.json": MEMORIES}}, {"answer": {"lacks": "Mara"}}),
    ],
)
def test_stored_conversations_are_files_of_a_test(lab, nodes, keys, expected):
    failures = lab.failures(
        *nodes,
        static("Say", "{agent1Output}", returnToUser=True),
        messages=[says(f"hi {TAG}")],
        expect=expected,
        **keys,
    )
    assert failures == {}


def test_a_missing_file_of_a_conversation_names_those_that_there_are(lab):
    failures = lab.failures(
        KEEP,
        messages=[says(f"hi {TAG}")],
        files={"/notes.txt": "x"},
        expect={"files": {f"{STORED}/memories.json": "x"}},
    )
    lines = failures[f"expect.files['{STORED}/memories.json']"]
    assert lines[0] == "there is no such file"
    # On Windows, the drive of the working directory is a folder.
    notes = "/".join(filter(None, (os.path.splitdrive(os.getcwd())[0].rstrip(":"), "notes.txt")))
    assert f"  {STORED}/chat_summary.json" in lines and f"  {notes}" in lines


def test_a_path_leads_out_of_no_folder_of_conversations(lab, tmp_path):
    path = "DiscussionIds/../../../../escaped.txt"
    assert lab.failures(static("Say", "x"), files={path: "y"}, expect={"files": {path: "y"}}) == {}
    assert not [*tmp_path.parent.rglob("escaped.txt")]


def test_the_progress_of_a_loop_is_kept_in_the_sandbox(lab, tmp_path):
    loop = {
        "title": "Loop",
        "type": "ConversationChunkProcessor",
        "id": "notes",
        "workflowName": "Child",
        "chunkSize": 1,
        "lookbackMessages": 1,
        "cursorDirectory": str(tmp_path / "cursors"),
    }
    lab.workflow("Child", static("Note", "{agent1Input}"))
    messages = [says(f"one {TAG}"), says("two", "assistant"), says("three")]

    assert (
        lab.failures(
            loop,
            static("Say", "x"),
            messages=messages,
            expect={"order": ["Loop", "Note", "Note", "Say"], "outputs": {"Note": "two"}},
        )
        == {}
    )
    assert not (tmp_path / "cursors").exists()


def test_files_that_cannot_be_made_fail_the_test(lab):
    failures = lab.failures(static("Say", "x"), files={"/data": "a file", "/data/below": "impossible"})

    assert "the files cannot be made" in failures["files"][0]


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}


def test_what_one_test_said_of_a_picture_is_unknown_to_the_next(lab):
    look = {"title": "Look", "type": "ImageProcessor", "endpointName": "Main", "systemPrompt": "s", "prompt": "p"}
    tests = [
        test(
            messages=[{"role": "user", "content": [IMAGE]}], replies={"Look": text}, expect={"outputs": {"Look": text}}
        )
        for text in ("an owl", "a cat", "a dog")
    ]

    assert [result.failures for result in lab.results(look, static("Say", "x"), tests=tests, jobs=1)] == [[], [], []]


# -- stored data -------------------------------------------------------------------------------------------------------


def test_memory_works_in_a_folder_of_its_own(lab):
    lab.user(discussionIdMemoryFileWorkflowSettings=SETTINGS)
    lab.write(
        f"Workflows/tester/{SETTINGS}",
        {
            "useVectorForQualityMemory": False,
            "endpointName": "Main",
            "preset": "",
            "systemPrompt": "Note facts.",
            "prompt": "Note the facts of: [TextChunk]",
            "chunkEstimatedTokenSize": 1,
            "maxMessagesBetweenChunks": 1,
            "lookbackStartTurn": 0,
            "includeFullMemoriesForSummary": False,
        },
    )
    memory = {"title": "Remember", "type": "QualityMemory"}
    recall = {"title": "Recall", "type": "GetCurrentMemoryFromFile"}
    messages = [says(f"I own an owl. {TAG}"), says("Nice.", "assistant"), says("What do I own?")]
    replies = [{"prompt": "Note the facts of", "reply": "The person owns an owl."}]

    one = test(messages=messages, replies=replies, expect={"outputs": {"Recall": "The person owns an owl."}})
    other = test(messages=messages, replies=[{"reply": "Nothing."}], expect={"outputs": {"Recall": {"lacks": "owl"}}})
    results = lab.results(memory, recall, static("Say", "ok"), tests=[one, other] * 6, jobs=6)

    assert [result.failures for result in results] == [[]] * 12


def test_vector_memory_gets_vectors(lab):
    lab.write("ApiTypes/Vectors", {**OPEN_AI, "type": "openAIEmbeddings"})
    lab.endpoint("Vectors", {"apiTypeConfigFileName": "Vectors"})
    lab.user(discussionIdMemoryFileWorkflowSettings=SETTINGS)
    lab.write(
        f"Workflows/tester/{SETTINGS}",
        {
            "useVectorForQualityMemory": True,
            "vectorMemoryEndpointName": "Main",
            "vectorMemoryPreset": "",
            "vectorMemoryChunkEstimatedTokenSize": 1,
            "vectorMemoryMaxMessagesBetweenChunks": 1,
            "lookbackStartTurn": 0,
            "embeddingEndpointName": "Vectors",
        },
    )
    search = {
        "title": "Search",
        "type": "VectorMemorySearch",
        "input": "Hedwig named owl",
        "searchMode": "semantic",
        "embeddingEndpointName": "Vectors",
    }
    memory = '[{"title": "Owl", "summary": "An owl named Hedwig", "entities": ["Hedwig"], "key_phrases": ["owl"]}]'
    messages = [says(f"My owl is called Hedwig. {TAG}"), says("Nice.", "assistant"), says("Which owl?")]

    assert (
        lab.failures(
            {"title": "Remember", "type": "QualityMemory"},
            search,
            static("Say", "ok"),
            messages=messages,
            replies={"Remember": memory},
            expect={"outputs": {"Search": "Hedwig"}},
        )
        == {}
    )


def test_locks_are_taken_by_each_test_for_itself(lab):
    lock = {"title": "Lock", "type": "WorkflowLock", "workflowLockId": "one"}

    results = lab.results(lock, static("Say", "after"), tests=[test(expect={"answer": "after"})] * 4, jobs=4)

    assert [result.failures for result in results] == [[]] * 4
    assert get_locking_service()._held == {}


def test_a_lock_that_is_held_ends_the_run(lab):
    lock = {"title": "Lock", "type": "WorkflowLock", "workflowLockId": "one"}

    assert lab.failures(lock, {**lock, "title": "Again"}, static("Say", "x"), expect={"error": "lock"}) == {}


def test_settings_of_the_process_are_put_back(lab):
    before = {name: getattr(instance, name) for name in dir(instance) if name.isupper()}
    handlers = list(logging.getLogger().handlers)

    lab.failures(static("Say", "x"), expect={"answer": "y"})

    assert {name: getattr(instance, name) for name in before} == before
    assert logging.getLogger().handlers == handlers


def _run_written(lab, path=None):
    path = path or lab.root / "Workflows" / USER / "Main.test.json"
    read, findings = read_tests([str(path)])
    assert not findings
    with sandbox_folder() as folder:
        return [result.failures for result in running.run_tests(read, folder, 2)]
