"""Mistakes of newcomers that the check once did not see, or did not name well, each with the one message about it.

``test_check_names_it_once`` makes each of them. Further rows are further tuples in ``NEWCOMERS``.
"""
from __future__ import annotations

from Tests.integration.configuration_mistakes import CHAT, PRESET, TEMPLATE, Mistake

SCHEMA = "StructuredOutputs/Shape.json"

TEMPLATE_NODE = ('"type": "StaticResponse",\n      "jinja2": true,\n'
                 '      "content": "{% if agent1Output %}{{ agent2Output }}{% endif %}"')
UNREADABLE = "the condition cannot be read and counts as FALSE"


def condition(name: str, text: str, *says: str, at: str, nearest: str = "") -> Mistake:
    """A row whose condition cannot be read."""
    return Mistake(f"condition-{name}", CHAT, TEMPLATE_NODE, f'"type": "Conditional",\n      "condition": "{text}"',
                   (UNREADABLE, *says), nearest, at=at)


CONDITIONS = (
    condition("one-equals-sign", "{agent1Output} = yes", "'=' is no part of a condition", nearest="==", at="} |= yes"),
    condition("not", "({agent1Output} NOT", "there is no NOT", at="} |NOT"),
    condition("open-parenthesis", "({agent1Output} == yes", "a parenthesis is not closed", at='"|({agent1Output} =='),
    condition("no-comparison", "{agent1Output} yes", "a comparison, AND or OR is missing before this", at="} |yes"),
)

PRESETS = (
    Mistake("preset-word", PRESET, "0.5", '"warm"', ("'temperature' must be a number, not 'warm'",),
            at='"temperature"'),
    Mistake("preset-list", PRESET, "0.5", "[0.5]", ("'temperature' must be a number, not a list",), at='"temperature"'),
    Mistake("preset-range", PRESET, "0.5", "-0.5", ("'temperature' is -0.5, which is out of range", "0 or more"),
            at='"temperature"'),
    Mistake("preset-quoted-number", PRESET, "0.5", '"0.5"', ("is sent as one", "the number without quotes, 0.5"),
            at='"temperature"'),
)

TEMPLATES = (
    Mistake("template-empty", TEMPLATE, "", "{}\n", ("the template has no marks", "the keys for each kind of message"),
            at="{"),
    Mistake("template-without-assistant", TEMPLATE, ',\n  "promptTemplateAssistantSuffix": "\\n"', "",
            ("nothing marks a message of the assistant: promptTemplateAssistantPrefix, promptTemplateAssistantSuffix "
             "are missing",), at="{"),
)

SCHEMAS = (
    Mistake("schema-type", SCHEMA, '"type": "object"', '"type": "objct"', ("'objct' is no type of JSON Schema",),
            "object"),
    Mistake("schema-list", SCHEMA, '{"text": {"type": "string"}}', '["text"]', ("this is not a JSON Schema",),
            at='"properties"'),
    Mistake("schema-of-values", SCHEMA, "", '{\n  "name": "Ann",\n  "age": 30\n}\n',
            ("none of the keys is a keyword of JSON Schema",), at="{"),
)

NEWCOMERS = (*CONDITIONS, *PRESETS, *TEMPLATES, *SCHEMAS)
