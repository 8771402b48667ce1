"""Mistakes of newcomers that the check once did not see, or did not name well, each with the one message about it.

``test_check_names_it_once`` makes each of them. Further rows are further tuples in ``NEWCOMERS``.
"""

from __future__ import annotations

from Tests.integration.configuration_mistakes import (
    API_TYPE,
    BACKUP,
    CATEGORIZE,
    CHAT,
    MAIN,
    MEMORY,
    PRESET,
    TEMPLATE,
    USER,
    Mistake,
)
from Tests.integration.mistake_tree import FILES, URL

SCHEMA = "StructuredOutputs/Shape.json"

TEMPLATE_NODE = (
    '"type": "StaticResponse",\n      "jinja2": true,\n'
    '      "content": "{% if agent1Output %}{{ agent2Output }}{% endif %}"'
)
UNREADABLE = "the condition cannot be read and counts as FALSE"


def condition(name: str, text: str, *says: str, at: str, nearest: str = "") -> Mistake:
    """A row whose condition cannot be read."""
    return Mistake(
        f"condition-{name}",
        CHAT,
        TEMPLATE_NODE,
        f'"type": "Conditional",\n      "condition": "{text}"',
        (UNREADABLE, *says),
        nearest,
        at=at,
    )


CONDITIONS = (
    condition("one-equals-sign", "{agent1Output} = yes", "'=' is not part of a condition", nearest="==", at="} |= yes"),
    condition("not", "({agent1Output} NOT", "there is no NOT", at="} |NOT"),
    condition("open-parenthesis", "({agent1Output} == yes", "a parenthesis is not closed", at='"|({agent1Output} =='),
    condition("no-comparison", "{agent1Output} yes", "a comparison, AND or OR is missing before this", at="} |yes"),
)

PRESETS = (
    Mistake(
        "preset-word", PRESET, "0.5", '"warm"', ("'temperature' must be a number, not 'warm'",), at='"temperature"'
    ),
    Mistake("preset-list", PRESET, "0.5", "[0.5]", ("'temperature' must be a number, not a list",), at='"temperature"'),
    Mistake(
        "preset-range",
        PRESET,
        "0.5",
        "-0.5",
        ("'temperature' is -0.5, which is out of range", "0 or more"),
        at='"temperature"',
    ),
    Mistake(
        "preset-quoted-number",
        PRESET,
        "0.5",
        '"0.5"',
        ("is sent as one", "the number without quotes, 0.5"),
        at='"temperature"',
    ),
)

TEMPLATES = (
    Mistake(
        "template-empty",
        TEMPLATE,
        "",
        "{}\n",
        ("the template has no marks", "the keys for each kind of message"),
        at="{",
    ),
    Mistake(
        "template-without-assistant",
        TEMPLATE,
        ',\n  "promptTemplateAssistantSuffix": "\\n"',
        "",
        (
            "nothing marks a message of the assistant: promptTemplateAssistantPrefix, promptTemplateAssistantSuffix "
            "are missing",
        ),
        at="{",
    ),
)

SCHEMAS = (
    Mistake(
        "schema-type",
        SCHEMA,
        '"type": "object"',
        '"type": "objct"',
        ("'objct' is not a type of JSON Schema",),
        "object",
    ),
    Mistake(
        "schema-list",
        SCHEMA,
        '{"text": {"type": "string"}}',
        '["text"]',
        ("this is not a JSON Schema",),
        at='"properties"',
    ),
    Mistake(
        "schema-of-values",
        SCHEMA,
        "",
        '{\n  "name": "Ann",\n  "age": 30\n}\n',
        ("none of the keys is a keyword of JSON Schema",),
        at="{",
    ),
)

DEFAULT = "Workflows/ann/_DefaultWorkflow.json"
FACTS, FORK = "Workflows/ann/Facts.json", '"conditionalWorkflows": {"Default": "Facts"}'

CHOICES = (
    Mistake(
        "free-text-without-default",
        CHAT,
        FORK,
        '"conditionalWorkflows": {"Yes": "Facts", "No": "Facts"}',
        ("what the LLM of node 1 'Summary' writes, which may be any text", "there is no 'Default'"),
    ),
    Mistake(
        "yes-no-behind-a-conditional",
        CHAT,
        "",
        """{"nodes": [
  {"title": "Is it long?", "type": "Conditional", "condition": "'{chat_user_prompt_last_one}' == 'x'",
   "valueSafe": true},
  {"type": "ConditionalCustomWorkflow", "conditionalKey": "{agent1Output}",
   "conditionalWorkflows": {"Yes": "Titles", "No": "Titles"}}
]}
""",
        ("'Is it long?', which is 'TRUE' or 'FALSE'", "the keys are 'Yes', 'No'", "and no 'Default'"),
        at='"conditionalWorkflows"',
    ),
    Mistake(
        "no-category",
        CATEGORIZE,
        "",
        """{"nodes": [
  {"type": "Standard", "endpointName": "Main", "prompt": "Is it {categoriesSeparatedByOr}?"},
  {"type": "ConditionalCustomWorkflow", "conditionalKey": "{agent1Output}",
   "conditionalWorkflows": {
     "CHATS": "Titles",
     "Default": "Titles"}}
]}
""",
        ("'CHATS' is not a category of the routing 'routes'", "CHAT, TALK"),
        "CHAT",
        at='"CHATS"',
        more={DEFAULT: FILES["Workflows/ann/Titles.json"]},
    ),
    Mistake(
        "routing-without-default",
        USER,
        '"Categorize"',
        '"Sort"',
        (
            "the answer of workflow 'Sort' may name no category of the routing 'routes' (CHAT, TALK)",
            "there is no workflow _DefaultWorkflow, which would run then",
        ),
        at='"routingConfig"',
        more={"Workflows/ann/Sort.json": '[{"type": "Standard", "endpointName": "Main", "prompt": "CHAT?"}]\n'},
    ),
    Mistake(
        "routing-by-a-text-that-is-no-category",
        USER,
        '"Categorize"',
        '"Titles"',
        ("the answer of workflow 'Titles' may name no category",),
        at='"routingConfig"',
    ),
    Mistake(
        "routing-without-a-chooser",
        USER,
        '"Categorize"',
        '""',
        ("no workflow chooses a category of the routing 'routes'", "nor a workflow _DefaultWorkflow"),
        at='"routingConfig"',
    ),
)

THINKING = FILES[API_TYPE].replace(
    '"structuredOutput"', '"thinking": {"mode": "bool", "field": "think"},\n  "structuredOutput"'
)
LIMIT = '"maxResponseSizeInTokens": 100'

VALUES = (
    Mistake(
        "unknown-thinking-mode",
        MAIN,
        '"temperature": 0.5\n',
        '"temperature": 0.5,\n    "thinkingMode": "offf"\n',
        ("'thinkingMode' is 'offf', which is unknown", "off, on, minimal, low, medium, high"),
        "off",
        at='"thinkingMode"',
        more={API_TYPE: THINKING},
    ),
    Mistake("negative-limit", CHAT, LIMIT, f"{LIMIT[:-3]}-5", ("is -5, which is out of range", "1 to 10000000")),
    Mistake("absurd-limit", CHAT, LIMIT, f"{LIMIT}00000000", ("out of range", "1 to 10000000")),
    Mistake(
        "limit-beyond-the-window",
        CHAT,
        LIMIT,
        f"{LIMIT}00",
        ("is 10000, but the context window of endpoint 'Main' has 8192 tokens", "no room is left for the prompt"),
    ),
    Mistake(
        "memory-limit-beyond-the-window",
        MEMORY,
        '"preset"',
        f'{LIMIT}00,\n  "preset"',
        ("is 10000, but the context window of endpoint 'Main' has 8192 tokens", "no room is left for the prompt"),
        at='"maxResponseSizeInTokens"',
    ),
)

CALLS = (
    Mistake(
        "workflow-runs-itself",
        FACTS,
        "",
        '[\n  {"type": "CustomWorkflow", "workflowName": "Facts"}\n]\n',
        ("runs itself again and again", "ann/Facts -> ann/Facts"),
        at='"workflowName"',
    ),
    Mistake(
        "workflows-in-a-circle",
        CHAT,
        '"workflowName": "Facts"',
        '"workflowName": "Round"',
        ("runs itself again and again", "ann/Chat -> ann/Round -> ann/Chat"),
        more={"Workflows/ann/Round.json": '[{"type": "CustomWorkflow", "workflowName": "Chat"}]\n'},
    ),
    Mistake(
        "answer-only-in-the-child",
        CHAT,
        "",
        """{"nodes": [
  {"title": "Ask", "type": "CustomWorkflow", "workflowName": "Inner"},
  {"title": "Keep", "type": "SaveCustomFile", "filepath": "x.txt", "content": "x"}
]}
""",
        ("'ann/Inner' is marked to answer", "node 2 'Keep' answers", '"returnToUser": true'),
        at='|{"title": "Ask"',
        more={"Workflows/ann/Inner.json": '[{"type": "StaticResponse", "content": "x", "returnToUser": true}]\n'},
    ),
    Mistake(
        "input-that-nobody-passes",
        FACTS,
        "{agent1Input}",
        "{agent2Input}",
        ("{agent2Input} is never filled in", "pass 1 at most"),
        at='"content"',
    ),
    Mistake(
        "child-in-another-folder",
        CHAT,
        '"workflowName": "Facts"',
        '"workflowName": "Tools"',
        ("it lies in Workflows/_ours: move it, or name the folder",),
    ),
    Mistake(
        "endpoint-in-another-folder",
        CHAT,
        '"endpointName": "Main",\n      "preset"',
        '"endpointName": "Far",\n      "preset"',
        ("it lies in Endpoints/away: move it, or name the folder",),
        more={"Endpoints/away/Far.json": FILES[BACKUP].replace(URL, "http://127.0.0.1:9")},
    ),
)

FORBIDDEN = (
    Mistake("forbidden-file", PRESET, "", "", ("no permission to read the file",), has_line=False, unreadable=True),
    Mistake("forbidden-endpoint", MAIN, "", "", ("no permission to read the file",), has_line=False, unreadable=True),
    Mistake(
        "forbidden-folder",
        "Endpoints/home",
        "",
        "",
        ("no permission to read this folder",),
        has_line=False,
        unreadable=True,
    ),
    Mistake(
        "forbidden-collection",
        "Routing",
        "",
        "",
        ("no permission to read this folder",),
        has_line=False,
        unreadable=True,
    ),
    Mistake(
        "forbidden-workflows",
        "Workflows/ann",
        "",
        "",
        ("no permission to read this folder",),
        has_line=False,
        unreadable=True,
    ),
)
NEARLY = (
    Mistake(
        "hidden-ending",
        "Workflows/ann/Chat.json.txt",
        "",
        "[]\n",
        ("does not end in .json", "does not read it"),
        "Chat.json",
        has_line=False,
    ),
)

NEWCOMERS = (*CONDITIONS, *PRESETS, *TEMPLATES, *SCHEMAS, *CHOICES, *VALUES, *CALLS, *FORBIDDEN, *NEARLY)
