"""The keys of a file with tests of a workflow, ``<workflow>.test.json`` next to it."""

from __future__ import annotations

from Middleware.utilities.config.declarations import ConfigKey
from Middleware.utilities.json_data import FrozenDict, FrozenList

ENTRIES = ("workflow", "request")
OPERATIONS = ("equals", "contains", "matches", "lacks")
PATTERN = "a text that must be contained, an object with equals, contains, matches or lacks, or a list of these"

PATTERN_KEYS: tuple[ConfigKey, ...] = (
    ConfigKey("equals", "str", None, "The whole text, character for character."),
    ConfigKey("contains", "str", None, "A part of the text."),
    ConfigKey("matches", "str", None, "A regular expression that fits some part of the text."),
    ConfigKey("lacks", "str", None, "What must not be part of the text."),
)
REPLY_KEYS: tuple[ConfigKey, ...] = (
    ConfigKey("content", "str", "", "What the LLM writes in addition to its tool calls."),
    ConfigKey(
        "tool_calls",
        "list",
        FrozenList(),
        "Tools that the LLM calls: name and arguments, or OpenAI's shape.",
        entries="object",
    ),
)
RULE_KEYS: tuple[ConfigKey, ...] = (
    ConfigKey("node", "str", None, "Only calls of the node with this title."),
    ConfigKey("endpoint", "str", None, "Only calls of this endpoint.", names="endpoint"),
    ConfigKey("prompt", "any", None, f"Only calls whose system prompt and prompt fit: {PATTERN}."),
    ConfigKey(
        "reply",
        "any",
        None,
        "The answer: a text, an object with tool_calls, or a list with one for each call, whose last repeats.",
    ),
    ConfigKey("fail", "str", None, "Instead of an answer: the error that the back-end reports."),
    ConfigKey("times", "int", None, "How many calls the rule answers; any number if absent.", least=1),
)
MESSAGE_KEYS: tuple[ConfigKey, ...] = (
    ConfigKey(
        "role", "str", None, "The sender of the message, such as user, assistant, system or tool.", required=True
    ),
    ConfigKey("content", "any", "", "The text, or a list of parts as in OpenAI's API."),
)
PROMPT_KEYS: tuple[ConfigKey, ...] = (
    ConfigKey("system", "any", None, f"The system prompt as it was sent: {PATTERN}."),
    ConfigKey("prompt", "any", None, f"What was sent after the system prompt: {PATTERN}."),
)
EXPECT_KEYS: tuple[ConfigKey, ...] = (
    ConfigKey("answer", "any", None, f"The answer to the client: {PATTERN}."),
    ConfigKey("route", "any", None, f"The route that was chosen, as the log names it: {PATTERN}."),
    ConfigKey(
        "order", "list", None, "All nodes that ran, of all workflows, in order: title or Workflow/title.", entries="str"
    ),
    ConfigKey("outputs", "object", FrozenDict(), f"Node title to its output: {PATTERN}."),
    ConfigKey(
        "prompts",
        "object",
        FrozenDict(),
        "Node title to what was sent to the LLM: an object with system and prompt.",
        entries="object",
    ),
    ConfigKey(
        "endpoints", "object", FrozenDict(), "Node title to the endpoint that answered its calls.", entries="str"
    ),
    ConfigKey(
        "files",
        "object",
        FrozenDict(),
        "Path to the text of that file after the run; below DiscussionIds/ a "
        f"file of a stored conversation: {PATTERN}.",
    ),
    ConfigKey("error", "any", None, f"The run fails, and the client gets this error: {PATTERN}."),
)
TEST_KEYS: tuple[ConfigKey, ...] = (
    ConfigKey("name", "str", "", "One sentence that says what must be true.", required=True),
    ConfigKey(
        "messages",
        "list",
        FrozenList(),
        "The conversation, as a client sends it.",
        required=True,
        entries="object",
        keys=MESSAGE_KEYS,
    ),
    ConfigKey(
        "model",
        "str",
        "",
        "The model field of the request, such as the name of a shared workflow; only with the entry request.",
    ),
    ConfigKey(
        "entry",
        "str",
        "workflow",
        "What runs: the workflow next to the file, or the whole path of a request.",
        choices=ENTRIES,
    ),
    ConfigKey(
        "scoped_variables",
        "list",
        FrozenList(),
        "The workflow's agent1Input, agent2Input, ...; only with the entry workflow.",
        entries="str",
    ),
    ConfigKey("stream", "bool", False, "The client requests a streamed answer."),
    ConfigKey("tools", "list", FrozenList(), "The tools that the client offers, in OpenAI's format.", entries="object"),
    ConfigKey(
        "replies",
        "object",
        FrozenDict(),
        "What the LLM answers: node title to text, or to a list with one text for each call, whose last entry "
        "repeats; or a list of rules.",
        also=("list",),
    ),
    ConfigKey(
        "stubs",
        "object",
        FrozenDict(),
        "Node title to the output of a node that is not run because it would reach outside, or to a list with "
        "one output for each of its runs, whose last entry repeats.",
    ),
    ConfigKey(
        "files",
        "object",
        FrozenDict(),
        "Path to the text of a file that the workflow finds, or to a list or an "
        "object that is its JSON; below DiscussionIds/ a file of a stored conversation.",
    ),
    ConfigKey("expect", "object", FrozenDict(), "What must be true after the run.", keys=EXPECT_KEYS, is_open=False),
)
WORKFLOW_TEST_KEYS: tuple[ConfigKey, ...] = (
    ConfigKey(
        "user", "str", "", "The user whose settings apply; the name of the workflow's folder if absent.", names="user"
    ),
    ConfigKey(
        "tests",
        "list",
        FrozenList(),
        "The tests; each runs separately.",
        required=True,
        entries="object",
        keys=TEST_KEYS,
        is_open=False,
    ),
)
