"""The keys of an endpoint file."""
from __future__ import annotations

from Middleware.utilities.config.declarations import ONLY_TRUE, SWITCHED_ON, ConfigKey, KeyTable
from Middleware.utilities.config.keys.samplers import PRESET_SAMPLER_KEYS
from Middleware.utilities.json_data import FrozenDict, FrozenList
from Middleware.utilities.text_utils import ESTIMATION_LEVELS

CONTEXT_LEVELS = tuple(ESTIMATION_LEVELS)

CONNECTION: tuple[ConfigKey, ...] = (
    ConfigKey("modelNameForDisplayOnly", "str", "", "The name of the model, for readers only.", inert=True),
    ConfigKey("endpoint", "str", "", "The address of the LLM server, such as http://127.0.0.1:5001.", required=True),
    ConfigKey("apiTypeConfigFileName", "str", "", "The file in ApiTypes that describes the server's API.",
              names="api-type", required=True),
    ConfigKey("apiKey", "str", "",
              "The key that the server requires; env:NAME reads it from an environment variable, file:PATH from a "
              "text file."),
    ConfigKey("modelNameToSendToAPI", "str", "", "The name of the model to request from the server."),
    ConfigKey("dontIncludeModel", "bool", False,
              "Sends no model name, for servers with only one model; Ollama always gets it."),
    ConfigKey("maxContextTokenSize", "int", None,
              "The context window of the model in tokens: sent to servers that accept it, and the limit for "
              "clampPromptToContextWindow.", least=1),
    ConfigKey("promptTemplate", "str", None,
              "The prompt template for completion back-ends; the one in the user file if not given.",
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
              "Starts the model's answer with textToAddToStartOfCompletion."),
    ConfigKey("textToAddToStartOfCompletion", "str", "", "The text with which the answer begins."),
    ConfigKey("ensureTextAddedToAssistantWhenChatCompletion", "bool", False,
              "On chat back-ends, always puts that text into an assistant turn."),
)

SAMPLERS_AND_FAILOVER: tuple[ConfigKey, ...] = (
    ConfigKey("presetSamplers", "object", FrozenDict(),
              "Samplers under names that work for every back-end; the endpoint's name can then be used as a preset.",
              keys=PRESET_SAMPLER_KEYS),
    ConfigKey("appendPresetName", "str", "",
              "A preset in the back-end's own names that is applied on top of the samplers.",
              names="preset"),
    ConfigKey("backupEndpointName", "str", "", "The endpoint that answers when this one fails.", names="endpoint"),
    ConfigKey("backupPresetName", "str", "", "The preset that the backup uses; the node's preset if not given.",
              names="preset"),
    ConfigKey("allowRemoteBackup", "bool", False,
              "Allows this endpoint to be a backup although it is not in the local network."),
    ConfigKey("clampPromptToContextWindow", "bool", None,
              "Leaves out the oldest messages if a prompt would not fit; the user file decides if not given.",
              true_texts=SWITCHED_ON),
    ConfigKey("wilmerContextEstimationLevel", "str", "conservative",
              "How far to trust that the token estimate is too high, so that more fits the window.",
              choices=CONTEXT_LEVELS, caseless=True),
    ConfigKey("backendSupportsToolTurns", "bool", True,
              "The server accepts tool calls and their results as separate messages."),
)

RESPONSE_CLEANING: tuple[ConfigKey, ...] = (
    ConfigKey("removeThinking", "bool", False,
              "Removes the first block between startThinkTag and endThinkTag from answers.", true_texts=ONLY_TRUE),
    ConfigKey("startThinkTag", "str", "", "The text with which such a block begins, such as <think>."),
    ConfigKey("endThinkTag", "str", "", "The text with which such a block ends, such as </think>."),
    ConfigKey("openingTagGracePeriod", "int", 100,
              "The last position, in characters, at which the first tag may begin."),
    ConfigKey("expectOnlyClosingThinkTag", "bool", False,
              "Removes everything up to endThinkTag, for models that leave out the first tag.", true_texts=ONLY_TRUE),
    ConfigKey("thinkTagText", "str", "",
              "The name of both tags without brackets; startThinkTag and endThinkTag take precedence."),
    ConfigKey("removeCustomTextFromResponseStartEndpointWide", "bool", False,
              "Removes the texts of responseStartTextToRemoveEndpointWide from the start of answers.",
              true_texts=ONLY_TRUE),
    ConfigKey("responseStartTextToRemoveEndpointWide", "list", FrozenList(),
              "Texts; the first one with which an answer begins is removed.", entries="str", also=("str",)),
    ConfigKey("trimBeginningAndEndLineBreaks", "bool", False, "Removes whitespace from both ends of answers.",
              true_texts=ONLY_TRUE),
)

SETTINGS_LEVEL = ConfigKey("wilmerContextEstimationLevel", "str", CONTEXT_LEVELS[0],
                           "How far to trust token estimates.", choices=CONTEXT_LEVELS, caseless=True)
"""The same level in the settings of memories and of the compactor."""

ENDPOINT_KEYS = (*CONNECTION, *TEXT_INJECTION, *SAMPLERS_AND_FAILOVER, *RESPONSE_CLEANING)
ENDPOINT = KeyTable(ENDPOINT_KEYS)
