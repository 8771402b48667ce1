"""The keys at the top of workflow files, of every node, and of nodes that call an LLM."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from Middleware.utilities.config.declarations import MOST_TOKENS, ONLY_TRUE, SWITCHED_ON, ConfigKey, KeyTable
from Middleware.utilities.json_data import FrozenDict, FrozenList

logger = logging.getLogger(__name__)

COMMON_KEYS: tuple[ConfigKey, ...] = (
    ConfigKey("type", "str", "Standard", "Type of the node.", also=("any",)),
    ConfigKey("title", "str", None, "Name of the node in logs."),
    ConfigKey("agentName", "str", None, "Name of the node in logs if there is no title."),
    ConfigKey("returnToUser", "bool", False, "Makes the node the responder."),
    ConfigKey("is_responder", "bool", None, "Same as returnToUser, and takes precedence over it when present."),
    ConfigKey("jinja2", "bool", False, "The texts of this node are Jinja2 templates."),
    ConfigKey("endpointName", "str", None, "Endpoint that answers this node's prompt.", "early", names="endpoint"),
    ConfigKey("preset", "str", None, "Sampler settings.", "early", names="preset"),
    ConfigKey("presetName", "str", None, "Other name of preset.", "early", names="preset"),
    ConfigKey(
        "maxResponseSizeInTokens",
        "int",
        400,
        "Maximum length of the LLM's answer, in tokens.",
        "early",
        least=1,
        most=MOST_TOKENS,
    ),
    ConfigKey("maxContextTokenSize", "int", 4096, "Accepted without effect.", "early", inert=True),
    ConfigKey("dependsOn", "list", None, "With parallelNodes: nodes to wait for, by number (from 1) or title."),
    ConfigKey(
        "parallelSafe", "bool", False, "With parallelNodes: need not keep its order among nodes with side effects."
    ),
)

# One entry of ``exampleTurns``, in the order of its messages.
EXAMPLE_TURN = KeyTable(
    (
        ConfigKey("user", "str", "", "What a user writes.", "full", required=True),
        ConfigKey("assistant", "str", "", "What the model is to answer to that.", "full", required=True),
    )
)

PROMPT_KEYS: tuple[ConfigKey, ...] = (
    ConfigKey("systemPrompt", "str", "", "System prompt.", "full"),
    ConfigKey("prompt", "str", "", "The prompt; empty: the conversation is sent instead.", "full"),
    ConfigKey(
        "lateSystemPrompt",
        "str",
        "",
        "Put in front of the newest user message, or of the prompt: for what "
        "changes from call to call, such as memories.",
        "full",
    ),
    ConfigKey(
        "lateSystemPromptStays",
        "bool",
        False,
        "With a discussion id, lateSystemPrompt stays at the message where it was first inserted, until it changes.",
    ),
    ConfigKey(
        "lateSystemPromptForNow",
        "str",
        "",
        "Like lateSystemPrompt, after it, and never stays: for what belongs to the newest message alone, "
        "such as what a Recall node has found.",
        "full",
    ),
    ConfigKey(
        "lateInstruction",
        "str",
        "",
        "Put after the newest user message, or the prompt: what this node has to "
        "do, if its prompt begins like those of other nodes.",
        "full",
    ),
    ConfigKey(
        "exampleTurns",
        "list",
        FrozenList(),
        'Example messages, sent after the system prompt: {"user": message, "assistant": answer}.',
        "full",
        entries="object",
        keys=tuple(EXAMPLE_TURN.values()),
        is_open=False,
    ),
    ConfigKey("lastMessagesToSendInsteadOfPrompt", "int", 5, "How many messages are sent without a prompt.", "early"),
    ConfigKey(
        "lastMessagesToSendInsteadOfPromptMaxTokenSize",
        "int",
        None,
        "The most tokens for these messages.",
        "early",
        least=0,
        most=MOST_TOKENS,
    ),
    ConfigKey(
        "messageBlockSize",
        "int",
        None,
        "Windows of messages begin at multiples of this number; 1: at any message.",
        "early",
        least=1,
    ),
    ConfigKey("addUserTurnTemplate", "bool", False, "Wrap the prompt as a user turn (completion back-ends)."),
    ConfigKey("addOpenEndedAssistantTurnTemplate", "bool", False, "Put an assistant prefix before the prompt."),
    ConfigKey("forceGenerationPromptIfEndpointAllows", "bool", False, "End the prompt with an assistant prefix."),
    ConfigKey("blockGenerationPrompt", "bool", False, "Never end the prompt with an assistant prefix."),
    ConfigKey("nMessagesToIncludeInVariable", "int", 5, "Size of the _n_messages variables.", "early"),
    ConfigKey(
        "estimatedTokensToIncludeInVariable",
        "int",
        2048,
        "Size of the token limit variables.",
        "early",
        least=0,
        most=MOST_TOKENS,
    ),
    ConfigKey("minMessagesInVariable", "int", 5, "Fewest messages of the min_n variables.", "early"),
    ConfigKey(
        "maxEstimatedTokensInVariable",
        "int",
        2048,
        "Most tokens of the min_n variables.",
        "early",
        least=0,
        most=MOST_TOKENS,
    ),
    ConfigKey("addUserAssistantTags", "bool", False, "Prefix messages in variables with their role."),
    ConfigKey("includeToolCallsInConversation", "bool", False, "Show tool calls in variables as text."),
    ConfigKey("acceptImages", "bool", False, "Send images along."),
    ConfigKey("maxImagesToSend", "int", 0, "How many images to send at most; 0: all.", "early"),
    ConfigKey("allowTools", "bool", False, "Pass the client's tools on."),
    ConfigKey(
        "structuredOutputFile",
        "str",
        None,
        "JSON schema in StructuredOutputs that the answer must follow.",
        names="structured-output",
    ),
    ConfigKey("lowercaseToolCallFunctionNames", "bool", False, "Lower-case function names of tool calls."),
    ConfigKey(
        "removeCustomTextFromResponseStart",
        "bool",
        False,
        "Remove a text from the start of the answer.",
        true_texts=ONLY_TRUE,
    ),
    ConfigKey("responseStartTextToRemove", "any", None, "The text, or a list of texts, to remove."),
    ConfigKey("mergeConsecutiveAssistantMessages", "bool", False, "Join adjacent assistant messages."),
    ConfigKey("mergeConsecutiveAssistantMessagesDelimiter", "str", "\n", "The text between them."),
    ConfigKey("insertUserTurnBetweenAssistantMessages", "bool", False, "Insert a user turn between them."),
    ConfigKey("insertedUserTurnText", "str", "Continue.", "Text of that user turn."),
    ConfigKey("appendNativeToolExchange", "bool", False, "Deliver the trailing tool exchange as messages."),
    ConfigKey(
        "clampPromptToContextWindow",
        "bool",
        None,
        "Keep the prompt within the endpoint's window.",
        true_texts=SWITCHED_ON,
    ),
    ConfigKey("addDiscussionIdTimestampsForLLM", "bool", False, "Show the model the time of each message."),
    ConfigKey("useRelativeTimestamps", "bool", False, "Show how long ago each message was sent."),
    ConfigKey("useGroupChatTimestampLogic", "bool", False, "Start the answer with the speaker's name."),
    ConfigKey("injectLivenessToolCall", "bool", False, "Add the configured liveness tool call.", true_texts=ONLY_TRUE),
)

CHOICE_KEYS: tuple[ConfigKey, ...] = (
    ConfigKey(
        "answerChoices",
        "list",
        None,
        "The only answers, where the back-end can enforce them: a list, or a text with one on each line.",
        "full",
        also=("str",),
    ),
    ConfigKey(
        "rememberChoice",
        "bool",
        False,
        "With answerChoices: the same prompt within ten minutes gets the same answer without a call.",
    ),
)

MANY_LLM_KEYS: tuple[ConfigKey, ...] = (
    ConfigKey("multiModelList", "list", None, 'Several LLMs in parallel: {"endpointName": name}.', "early"),
    ConfigKey(
        "fileMemoryWorkflowName", "str", None, "A workflow that answers instead of the prompt.", names="workflow"
    ),
)

SEARCH_TARGETS = ("CurrentConversation", "RecentMemories")
SEARCH_KEYS: tuple[ConfigKey, ...] = (
    ConfigKey("keywords", "str", None, "The words to search for.", "full", required=True),
    ConfigKey("searchTarget", "str", "CurrentConversation", "What to search.", choices=SEARCH_TARGETS),
    ConfigKey(
        "lookbackStartTurn",
        "int",
        0,
        "Search only this many of the newest messages; 0: all except the newest one.",
        "early",
    ),
)

WORKFLOW_NAME = ConfigKey("workflowName", "str", None, "The workflow to run.", required=True, names="workflow")
CONDITIONAL_WORKFLOWS = ConfigKey(
    "conditionalWorkflows", "object", FrozenDict(), "Value -> workflow; Default is the fallback.", names="workflow"
)
FOLDER_OVERRIDE = ConfigKey(
    "workflowUserFolderOverride", "str", None, "Folder of the sub-workflow below Workflows.", names="workflow-folder"
)
SCOPED_VARIABLES = ConfigKey(
    "scoped_variables", "list", None, "The sub-workflow's agent1Input, agent2Input, ...", "full", also=("any",)
)

# What means something at the top of a workflow file; every other key is a variable of the workflow.
WORKFLOW_FILE_KEYS: tuple[ConfigKey, ...] = (
    ConfigKey("description", "str", "", "What the workflow does, for readers; also a variable."),
    ConfigKey("nodes", "list", FrozenList(), "The steps of the workflow, in the order in which they run."),
    ConfigKey(
        "parallelNodes",
        "bool",
        False,
        "Nodes that do not need each other's outputs run at the same time; also a variable.",
    ),
)
WORKFLOW_FILE = KeyTable(WORKFLOW_FILE_KEYS)

NODE = KeyTable(
    (
        *COMMON_KEYS,
        *PROMPT_KEYS,
        *CHOICE_KEYS,
        *MANY_LLM_KEYS,
        *SEARCH_KEYS,
        WORKFLOW_NAME,
        CONDITIONAL_WORKFLOWS,
        FOLDER_OVERRIDE,
        SCOPED_VARIABLES,
    )
)


def is_responder(node: Mapping[str, Any]) -> bool:
    """Return whether a node is declared as the responder. A null ``is_responder`` takes precedence too."""
    key = "is_responder" if "is_responder" in node else "returnToUser"
    return key in node and NODE.flag(node, key)


KEEP = object()
"""The default of keys whose value stays if it is not a number."""

NUMERIC_FIELDS: dict[str, Any] = {
    **{
        key.name: KEEP if key.default is None else key.default
        for key in (*COMMON_KEYS, *PROMPT_KEYS)
        if key.kind == "int"
    },
    "limit": 5,
    "maxTurnsToPull": KEEP,
    "maxSummaryChunksFromFile": KEEP,
    "lookbackStart": 0,
    "lookbackStartTurn": 0,
    "minMemoriesPerSummary": 3,
    "loopIfMemoriesExceed": 3,
    "visionScanMessageLimit": 20,
    "num_results": 10,
    "top_n_articles": 3,
    "chunksPerMemory": 3,
    "vectorMemoryMaxResponseSizeInTokens": 1024,
    "vectorMemoryChunkEstimatedTokenSize": 1000,
    "vectorMemoryMaxMessagesBetweenChunks": 5,
    "appendMemoriesUpToTokens": 0,
    "chunkEstimatedTokenSize": 1000,
    "maxMessagesBetweenChunks": 5,
    "memoryCondensationBuffer": 0,
    "offlineWikiApiPort": KEEP,
}
"""The keys that are numbers in nodes of any type, with the default for a string that is not a number."""
FLOAT_FIELDS: dict[str, float] = {"percentile": 0.5}
_NUMBERS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    **{key: (default, int) for key, default in NUMERIC_FIELDS.items()},
    **{key: (default, float) for key, default in FLOAT_FIELDS.items()},
}


def coerce_numeric_fields(config: dict[str, Any], substitute: Callable[[str], str], node_name: str) -> None:
    """Turn the numeric keys present in ``config`` into numbers, in place.

    The placeholders of a string are replaced by early variables. A string that is not a number is replaced by the
    default, or stays if the key has none.
    """
    for key in config.keys() & _NUMBERS.keys():
        default, convert = _NUMBERS[key]
        config[key] = _coerce(config[key], key, default, convert, substitute, node_name)


def _coerce(
    value: Any, key: str, default: Any, convert: Callable[[Any], Any], substitute: Callable[[str], str], node_name: str
) -> Any:
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, (str, float)):
        text = substitute(value) if isinstance(value, str) and "{" in value else value
        try:
            return convert(text)
        # A string that is not a number, or an infinite number.
        except (ValueError, OverflowError):
            pass
    if default is KEEP:
        logger.error("Node '%s': '%s' is not a number: %r", node_name, key, value)
        return value
    logger.warning("Node '%s': '%s' is not a number: %r; using %s", node_name, key, value, default)
    return default
