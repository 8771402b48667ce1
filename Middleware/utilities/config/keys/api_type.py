"""The keys of the files about the formats of a back-end: an ApiTypes file, and a prompt template."""

from __future__ import annotations

from Middleware.utilities.config.declarations import ConfigKey, KeyTable
from Middleware.utilities.json_data import FrozenDict

TYPES = (
    "openAIChatCompletion",
    "claudeMessages",
    "ollamaApiChat",
    "openAIV1Completion",
    "ollamaApiGenerate",
    "koboldCppGenerate",
    "openAIEmbeddings",
    "ollamaEmbeddings",
)
# Older files name the use with images separately; today each of these dialects sends images.
OLDER_TYPES = ("openAIApiChatImageSpecific", "ollamaApiChatImageSpecific", "koboldCppGenerateImageSpecific")

THINKING_KEYS: tuple[ConfigKey, ...] = (
    ConfigKey(
        "mode",
        "str",
        "unsupported",
        "The values of the field: true or false, or an effort.",
        choices=("bool", "effort", "unsupported"),
    ),
    ConfigKey("field", "str", "", "The name of the field."),
    ConfigKey("location", "str", "top", "The position of the field.", choices=("top", "chat_template_kwargs")),
    ConfigKey("offValue", "str", "", "The effort that is sent to switch thinking off; without it, nothing is sent."),
)

STRUCTURED_OUTPUT_KEYS: tuple[ConfigKey, ...] = (
    ConfigKey("field", "str", "", "The name of the field; dots separate nested objects.", required=True),
    ConfigKey("style", "str", "", "How the schema is wrapped.", choices=("openaiJsonSchema", "raw"), required=True),
    ConfigKey("strict", "bool", True, "Asks the server to follow the schema strictly."),
)

API_TYPE_KEYS: tuple[ConfigKey, ...] = (
    ConfigKey("nameForDisplayOnly", "str", "", "The name of the API, for readers only.", inert=True),
    ConfigKey("type", "str", "", "The dialect that the server speaks.", choices=(*TYPES, *OLDER_TYPES), required=True),
    ConfigKey(
        "presetType", "str", "", "The folder below Presets with the presets for this API.", names="preset-type-folder"
    ),
    ConfigKey(
        "maxNewTokensPropertyName",
        "str",
        "",
        "The server's name for the maximum length of an answer in tokens; without it, no limit is sent.",
    ),
    ConfigKey("streamPropertyName", "str", "", "The server's name for streaming; without it, the flag is not sent."),
    ConfigKey(
        "requestUsageInStreams",
        "bool",
        False,
        "Asks the server for token counts at the end of a stream (stream_options), as OpenAI's dialect does.",
    ),
    ConfigKey(
        "truncateLengthPropertyName",
        "str",
        "",
        "The server's name for the context window, which gets the endpoint's maxContextTokenSize.",
    ),
    ConfigKey(
        "samplerFieldMap",
        "object",
        FrozenDict(),
        "The samplers that the server supports, each with the server's name for it.",
        entries="str",
    ),
    ConfigKey("supportsChatTemplateKwargs", "bool", False, "The server accepts chat_template_kwargs."),
    ConfigKey(
        "thinking",
        "object",
        FrozenDict(),
        "The field that switches a model's thinking on and off.",
        keys=THINKING_KEYS,
        is_open=False,
    ),
    ConfigKey(
        "structuredOutput",
        "object",
        None,
        "The field that takes a JSON schema for the answer.",
        keys=STRUCTURED_OUTPUT_KEYS,
        is_open=False,
    ),
)
API_TYPE = KeyTable(API_TYPE_KEYS)
THINKING = KeyTable(THINKING_KEYS)
STRUCTURED_OUTPUT = KeyTable(STRUCTURED_OUTPUT_KEYS)


# -- prompt templates --------------------------------------------------------------------------------------------------

_TURNS = (
    ("system", "the system prompt"),
    ("user", "a message of the user"),
    ("assistant", "a message of the assistant"),
    ("systemMes", "a system message inside the conversation"),
    ("tool", "the result of a tool"),
)


def turn_key(role: str, end: str) -> str:
    """Return the key of the text before (``Prefix``) or after (``Suffix``) a message, also for undeclared roles."""
    return f"promptTemplate{role.capitalize()}{end}"


# The messages that every conversation has, each with the keys of the texts around it. The other kinds are rare.
MARKED_TURNS = {turn: (turn_key(role, "Prefix"), turn_key(role, "Suffix")) for role, turn in _TURNS[:3]}

PROMPT_TEMPLATE_KEYS: tuple[ConfigKey, ...] = (
    *(
        ConfigKey(turn_key(role, end), "str", "", f"The text {place} {turn}.")
        for role, turn in _TURNS
        for end, place in (("Prefix", "before"), ("Suffix", "after"))
    ),
    ConfigKey(
        "promptTemplateEndToken",
        "str",
        "",
        "The text after the assistant's prefix, where the model should begin its turn.",
    ),
    ConfigKey("promptTemplateGenSeparator", "str", "", "Accepted without effect.", inert=True),
)
PROMPT_TEMPLATE = KeyTable(PROMPT_TEMPLATE_KEYS)
