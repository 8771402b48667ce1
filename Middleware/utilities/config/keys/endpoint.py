"""The keys of an endpoint file."""
from __future__ import annotations

from Middleware.utilities.config.declarations import ONLY_TRUE, SWITCHED_ON, ConfigKey, KeyTable
from Middleware.utilities.config.keys.samplers import PRESET_SAMPLER_KEYS
from Middleware.utilities.json_data import FrozenDict, FrozenList
from Middleware.utilities.text_utils import ESTIMATION_LEVELS

CONTEXT_LEVELS = tuple(ESTIMATION_LEVELS)

CONNECTION: tuple[ConfigKey, ...] = (
    ConfigKey("modelNameForDisplayOnly", "str", "", "The name of the model, for people only.", inert=True),
    ConfigKey("endpoint", "str", "", "The address of the LLM server, such as http://127.0.0.1:5001.", required=True),
    ConfigKey("apiTypeConfigFileName", "str", "", "The file in ApiTypes that says how to talk to the server.",
              names="api-type", required=True),
    ConfigKey("apiKey", "str", "",
              "The key that the server wants; env:NAME takes it from an environment variable, file:PATH from a "
              "text file."),
    ConfigKey("modelNameToSendToAPI", "str", "", "The name of the model that the server is asked for."),
    ConfigKey("dontIncludeModel", "bool", False,
              "Sends no name of a model, for servers that hold only one; Ollama always gets it."),
    ConfigKey("maxContextTokenSize", "int", None,
              "The context window of the model in tokens: sent to servers that take it, and the measure for "
              "clampPromptToContextWindow.", least=1),
    ConfigKey("promptTemplate", "str", None,
              "The prompt template for completion back-ends; that of the user's file if not given.",
              names="prompt-template"),
    ConfigKey("addGenerationPrompt", "bool", False,
              "Ends prompts for completion back-ends with the beginning of the assistant's turn."),
)

TEXT_INJECTION: tuple[ConfigKey, ...] = (
    ConfigKey("addTextToStartOfSystem", "bool", False, "Puts textToAddToStartOfSystem before the system prompt."),
    ConfigKey("textToAddToStartOfSystem", "str", "", "The text that is put before the system prompt."),
    ConfigKey("addTextToStartOfPrompt", "bool", False,
              "Puts textToAddToStartOfPrompt before the prompt or the newest message of the user."),
    ConfigKey("textToAddToStartOfPrompt", "str", "",
              "The text that is put before the prompt or the newest message of the user."),
    ConfigKey("addTextToStartOfCompletion", "bool", False,
              "Begins the answer for the model with textToAddToStartOfCompletion."),
    ConfigKey("textToAddToStartOfCompletion", "str", "", "The text that the answer begins with."),
    ConfigKey("ensureTextAddedToAssistantWhenChatCompletion", "bool", False,
              "On chat back-ends that text always stands in a turn of the assistant."),
)

SAMPLERS_AND_FAILOVER: tuple[ConfigKey, ...] = (
    ConfigKey("presetSamplers", "object", FrozenDict(),
              "Samplers under names that fit every back-end; the endpoint's name then works as a preset.",
              keys=PRESET_SAMPLER_KEYS),
    ConfigKey("appendPresetName", "str", "", "A preset in the back-end's own names that is laid over the samplers.",
              names="preset"),
    ConfigKey("backupEndpointName", "str", "", "The endpoint that answers when this one fails.", names="endpoint"),
    ConfigKey("backupPresetName", "str", "", "The preset that the backup uses; that of the node if not given.",
              names="preset"),
    ConfigKey("allowRemoteBackup", "bool", False,
              "Lets this endpoint stand in for others although it is not in the local network."),
    ConfigKey("clampPromptToContextWindow", "bool", None,
              "Leaves out the oldest messages where a prompt would not fit; what the user's file says if not given.",
              true_texts=SWITCHED_ON),
    ConfigKey("wilmerContextEstimationLevel", "str", "conservative",
              "How far the estimate of tokens is trusted to be too high, so that more fits the window.",
              choices=CONTEXT_LEVELS, caseless=True),
    ConfigKey("backendSupportsToolTurns", "bool", True,
              "The server takes tool calls and their results as messages of their own."),
)

RESPONSE_CLEANING: tuple[ConfigKey, ...] = (
    ConfigKey("removeThinking", "bool", False,
              "Takes the first block between startThinkTag and endThinkTag out of answers.", true_texts=ONLY_TRUE),
    ConfigKey("startThinkTag", "str", "", "The text that such a block begins with, such as <think>."),
    ConfigKey("endThinkTag", "str", "", "The text that such a block ends with, such as </think>."),
    ConfigKey("openingTagGracePeriod", "int", 100,
              "The last position, in characters, at which the first tag may begin."),
    ConfigKey("expectOnlyClosingThinkTag", "bool", False,
              "Takes out everything up to endThinkTag, for models that leave out the first tag.", true_texts=ONLY_TRUE),
    ConfigKey("thinkTagText", "str", "", "The name of both tags without brackets; startThinkTag and endThinkTag win."),
    ConfigKey("removeCustomTextFromResponseStartEndpointWide", "bool", False,
              "Takes the texts of responseStartTextToRemoveEndpointWide from the start of answers.",
              true_texts=ONLY_TRUE),
    ConfigKey("responseStartTextToRemoveEndpointWide", "list", FrozenList(),
              "Texts of which the first that an answer begins with is taken away.", entries="str", also=("str",)),
    ConfigKey("trimBeginningAndEndLineBreaks", "bool", False, "Takes blank space from both ends of answers.",
              true_texts=ONLY_TRUE),
)

SETTINGS_LEVEL = ConfigKey("wilmerContextEstimationLevel", "str", CONTEXT_LEVELS[0],
                           "How far token estimates are trusted.", choices=CONTEXT_LEVELS, caseless=True)
"""The same level in the settings of memories and of the compactor."""

ENDPOINT_KEYS = (*CONNECTION, *TEXT_INJECTION, *SAMPLERS_AND_FAILOVER, *RESPONSE_CLEANING)
ENDPOINT = KeyTable(ENDPOINT_KEYS)
