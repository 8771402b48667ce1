"""The keys of an endpoint file, and the samplers that its ``presetSamplers`` can hold."""

from __future__ import annotations

from Middleware.utilities.config.declarations import MOST_TOKENS, ONLY_TRUE, SWITCHED_ON, ConfigKey, KeyTable
from Middleware.utilities.json_data import FrozenDict, FrozenList
from Middleware.utilities.text_utils import ESTIMATION_LEVELS

CONTEXT_LEVELS = tuple(ESTIMATION_LEVELS)

# -- samplers, under the names that fit every back-end -----------------------------------------------------------------

CANONICAL_SAMPLER_KEYS: tuple[ConfigKey, ...] = (
    ConfigKey(
        "temperature",
        "number",
        None,
        "How adventurous the choice of words is; 0 always takes the most likely.",
        least=0,
    ),
    ConfigKey(
        "top_p",
        "number",
        None,
        "Considers only the most likely words that together reach this probability.",
        least=0,
        most=1,
    ),
    ConfigKey(
        "top_k", "int", None, "Considers only this many of the most likely words; 0 usually means all.", least=-1
    ),
    ConfigKey(
        "min_p",
        "number",
        None,
        "Considers only words whose probability is at least this share of the most likely one.",
        least=0,
        most=1,
    ),
    ConfigKey("top_n_sigma", "number", None, "Considers only words within this many standard deviations of the best."),
    ConfigKey(
        "typical_p",
        "number",
        None,
        "Prefers words that are about as surprising as expected; 1 is off.",
        least=0,
        most=1,
    ),
    ConfigKey("dynatemp_range", "number", None, "How far the temperature may move around its value; 0 is off."),
    ConfigKey("dynatemp_exponent", "number", None, "How steeply a dynamic temperature follows uncertainty."),
    ConfigKey("repeat_penalty", "number", None, "Makes words that were used before less likely; 1 is off."),
    ConfigKey("repeat_last_n", "int", None, "How many of the newest tokens repeat_penalty considers.", least=-1),
    ConfigKey("presence_penalty", "number", None, "Makes every word that was used before less likely; 0 is off."),
    ConfigKey("frequency_penalty", "number", None, "Makes words less likely the more often they were used; 0 is off."),
    ConfigKey("dry_multiplier", "number", None, "How strongly repeated passages are punished; 0 is off."),
    ConfigKey("dry_base", "number", None, "How fast that punishment grows with the length of the passage."),
    ConfigKey("dry_allowed_length", "int", None, "The longest passage that may be repeated freely.", least=0),
    ConfigKey(
        "dry_penalty_last_n", "int", None, "How many of the newest tokens are searched for repeated passages.", least=-1
    ),
    ConfigKey("dry_sequence_breakers", "list", None, "Texts at which a repeated passage ends.", entries="str"),
    ConfigKey(
        "xtc_probability", "number", None, "How often the most likely words are left out; 0 is off.", least=0, most=1
    ),
    ConfigKey(
        "xtc_threshold", "number", None, "The probability from which words may be left out that way.", least=0, most=1
    ),
    ConfigKey(
        "mirostat", "int", None, "Keeps the surprise constant: 0 is off, 1 and 2 are its versions.", least=0, most=2
    ),
    ConfigKey("mirostat_tau", "number", None, "The surprise that mirostat aims at."),
    ConfigKey("mirostat_eta", "number", None, "How fast mirostat corrects itself."),
    ConfigKey("seed", "int", None, "Makes the choice of words repeatable; -1 usually means a new one each time."),
    ConfigKey("stop", "list", None, "Texts at which the answer ends.", entries="str", also=("str",)),
    ConfigKey("samplers", "list", None, "The order in which llama.cpp applies its samplers.", also=("str",)),
    ConfigKey("ignore_eos", "bool", None, "Continues when the model wants to end."),
    ConfigKey("n_probs", "int", None, "How many probabilities the server reports for each token.", least=0),
    ConfigKey("min_keep", "int", None, "How many words the samplers must leave as choices.", least=0),
    ConfigKey("logit_bias", "any", None, "Makes single tokens more or less likely."),
    ConfigKey("json_schema", "object", None, "The JSON schema that the answer must follow."),
    ConfigKey("grammar", "str", None, "The grammar that the answer must follow."),
)

# No samplers, but sent with each call like them.
SERVER_KEYS: tuple[ConfigKey, ...] = (
    ConfigKey(
        "id_slot", "int", None, "The slot of llama.cpp's server that takes the call; -1 lets it choose.", least=-1
    ),
    ConfigKey("cache_prompt", "bool", None, "Whether llama.cpp's server keeps what it has read for the next call."),
    ConfigKey(
        "n_cache_reuse",
        "int",
        None,
        "The shortest passage in tokens that llama.cpp's server reuses after a change before it; 0 is off.",
        least=0,
    ),
    ConfigKey(
        "keep_alive",
        "str",
        None,
        "How long Ollama keeps the model loaded after a call: a time such as 30m, or seconds; -1 is for ever.",
        also=("number",),
    ),
)

# The words of thinkingMode, of which users have always written several for the same.
THINKING_OFF = ("off", "false", "no", "0", "disabled", "none")
THINKING_ON = ("on", "true", "yes", "1", "enabled")
THINKING_EFFORTS = ("minimal", "low", "medium", "high", "xhigh", "max", "none")

THINKING_KEYS: tuple[ConfigKey, ...] = (
    ConfigKey(
        "thinkingMode",
        "str",
        None,
        "Whether the model thinks first: off, on, or an effort from minimal to max if the API type supports efforts.",
        also=("bool", "int"),
        caseless=True,
        choices=tuple(dict.fromkeys(("off", "on", *THINKING_EFFORTS, *THINKING_OFF, *THINKING_ON))),
    ),
    ConfigKey("chat_template_kwargs", "object", None, "Values for the server's own chat template."),
)

PRESET_SAMPLER_KEYS = (*CANONICAL_SAMPLER_KEYS, *SERVER_KEYS, *THINKING_KEYS)
PRESET_SAMPLERS = KeyTable(PRESET_SAMPLER_KEYS)


# -- endpoints ---------------------------------------------------------------------------------------------------------

CONNECTION: tuple[ConfigKey, ...] = (
    ConfigKey("modelNameForDisplayOnly", "str", "", "The name of the model, for readers only.", inert=True),
    ConfigKey(
        "endpoint",
        "str",
        "",
        "The address of the LLM server, such as http://127.0.0.1:5001.",
        required=True,
        capability="sends requests to",
    ),
    ConfigKey(
        "apiPath",
        "str",
        None,
        "What stands between the address and the last part of a call's path, such as /v1 before /chat/completions; an "
        "empty text for nothing. If not given, it follows from the address.",
        capability="sends requests to the path",
    ),
    ConfigKey(
        "apiTypeConfigFileName",
        "str",
        "",
        "The file in ApiTypes that describes the server's API.",
        names="api-type",
        required=True,
    ),
    ConfigKey(
        "apiKey",
        "str",
        "",
        "The key that the server requires; env:NAME reads it from an environment variable, file:PATH from a text file.",
        capability="sends the key that it takes from",
    ),
    ConfigKey("modelNameToSendToAPI", "str", "", "The name of the model to request from the server."),
    ConfigKey(
        "dontIncludeModel",
        "bool",
        False,
        "Sends no model name, for servers with only one model; Ollama always gets it.",
    ),
    ConfigKey(
        "loadingTimeoutInSeconds",
        "int",
        300,
        "How long a server that says that it loads its model is waited for; 0 does not wait.",
        least=0,
        most=86400,
    ),
    ConfigKey(
        "maxContextTokenSize",
        "int",
        None,
        "The context window of the model in tokens: sent to servers that accept it, and the limit for "
        "clampPromptToContextWindow.",
        least=1,
        most=MOST_TOKENS,
    ),
    ConfigKey(
        "promptTemplate",
        "str",
        None,
        "The prompt template for completion back-ends; the one in the user file if not given.",
        names="prompt-template",
    ),
    ConfigKey(
        "addGenerationPrompt",
        "bool",
        False,
        "Ends prompts for completion back-ends with the beginning of the assistant's turn.",
    ),
    ConfigKey(
        "alternateRoles",
        "bool",
        False,
        "For models whose template accepts only users and assistants in turn, such as those of Gemma and "
        "Mistral: joins adjacent messages of one role, leaves out empty answers and a beginning of the "
        "assistant, and moves later system messages into the next user message.",
    ),
)

TEXT_INJECTION: tuple[ConfigKey, ...] = (
    ConfigKey("addTextToStartOfSystem", "bool", False, "Puts textToAddToStartOfSystem before the system prompt."),
    ConfigKey("textToAddToStartOfSystem", "str", "", "The text that is put before the system prompt."),
    ConfigKey(
        "addTextToStartOfPrompt",
        "bool",
        False,
        "Puts textToAddToStartOfPrompt before the prompt or the newest message of the user.",
    ),
    ConfigKey(
        "textToAddToStartOfPrompt",
        "str",
        "",
        "The text that is put before the prompt or the newest message of the user.",
    ),
    ConfigKey(
        "addTextToStartOfCompletion", "bool", False, "Starts the model's answer with textToAddToStartOfCompletion."
    ),
    ConfigKey("textToAddToStartOfCompletion", "str", "", "The text with which the answer begins."),
    ConfigKey(
        "ensureTextAddedToAssistantWhenChatCompletion",
        "bool",
        False,
        "On chat back-ends, always puts that text into an assistant turn.",
    ),
)

SAMPLERS_AND_FAILOVER: tuple[ConfigKey, ...] = (
    ConfigKey(
        "presetSamplers",
        "object",
        FrozenDict(),
        "Samplers under names that work for every back-end; the endpoint's name can then be used as a preset.",
        keys=PRESET_SAMPLER_KEYS,
    ),
    ConfigKey(
        "appendPresetName",
        "str",
        "",
        "A preset in the back-end's own names that is applied on top of the samplers.",
        names="preset",
    ),
    ConfigKey(
        "reasoningToBackend",
        "str",
        "auto",
        "Which thoughts the server gets back: its own of this exchange, none, all of this exchange, or all.",
        choices=("auto", "none", "exchange", "all"),
        caseless=True,
        exact=True,
    ),
    ConfigKey("backupEndpointName", "str", "", "The endpoint that answers when this one fails.", names="endpoint"),
    ConfigKey(
        "backupPresetName",
        "str",
        "",
        "The preset that the backup uses; the node's preset if not given.",
        names="preset",
    ),
    ConfigKey(
        "allowRemoteBackup",
        "bool",
        False,
        "Allows this endpoint to be a backup although it is not in the local network.",
        capability="takes over calls of others although it is not in the local network",
        guard="false",
    ),
    ConfigKey(
        "clampPromptToContextWindow",
        "bool",
        None,
        "Leaves out the oldest messages if a prompt would not fit; the user file decides if not given.",
        true_texts=SWITCHED_ON,
    ),
    ConfigKey(
        "wilmerContextEstimationLevel",
        "str",
        "conservative",
        "How far to trust that the token estimate is too high, so that more fits the window.",
        choices=CONTEXT_LEVELS,
        caseless=True,
    ),
    ConfigKey(
        "backendSupportsToolTurns",
        "bool",
        True,
        "The server accepts tool calls and their results as separate messages.",
    ),
)

SCHEDULING: tuple[ConfigKey, ...] = (
    ConfigKey(
        "parallelCalls",
        "int",
        0,
        "How many calls the server runs side by side; further ones wait in WilmerAI, those of answers first. 0 "
        "means that it is not known, and no call waits.",
        least=0,
        most=1024,
    ),
    ConfigKey(
        "swapGroup",
        "str",
        "",
        "A name for memory that holds one model at a time: of the endpoints with this name, those whose model is "
        "loaded are called first.",
    ),
    ConfigKey(
        "swapStandIn",
        "str",
        "",
        "An endpoint of the same swapGroup that takes the calls of this one as long as its model is loaded and "
        "this one's is not.",
        names="endpoint",
    ),
    ConfigKey(
        "swapPatienceInSeconds",
        "int",
        30,
        "How long a call of this endpoint waits for calls of the model that is loaded; then its own is the next.",
        least=0,
        most=86400,
    ),
)

RESPONSE_CLEANING: tuple[ConfigKey, ...] = (
    ConfigKey(
        "removeThinking",
        "bool",
        False,
        "Removes the first block between startThinkTag and endThinkTag from answers.",
        true_texts=ONLY_TRUE,
    ),
    ConfigKey("startThinkTag", "str", "", "The text with which such a block begins, such as <think>."),
    ConfigKey("endThinkTag", "str", "", "The text with which such a block ends, such as </think>."),
    ConfigKey(
        "openingTagGracePeriod", "int", 100, "The last position, in characters, at which the first tag may begin."
    ),
    ConfigKey(
        "expectOnlyClosingThinkTag",
        "bool",
        False,
        "Removes everything up to endThinkTag, for models that leave out the first tag.",
        true_texts=ONLY_TRUE,
    ),
    ConfigKey(
        "thinkTagText",
        "str",
        "",
        "The name of both tags without brackets; startThinkTag and endThinkTag take precedence.",
    ),
    ConfigKey(
        "removeCustomTextFromResponseStartEndpointWide",
        "bool",
        False,
        "Removes the texts of responseStartTextToRemoveEndpointWide from the start of answers.",
        true_texts=ONLY_TRUE,
    ),
    ConfigKey(
        "responseStartTextToRemoveEndpointWide",
        "list",
        FrozenList(),
        "Texts; the first one with which an answer begins is removed.",
        entries="str",
        also=("str",),
    ),
    ConfigKey(
        "trimBeginningAndEndLineBreaks",
        "bool",
        False,
        "Removes whitespace from both ends of answers.",
        true_texts=ONLY_TRUE,
    ),
)

SETTINGS_LEVEL = ConfigKey(
    "wilmerContextEstimationLevel",
    "str",
    CONTEXT_LEVELS[0],
    "How far to trust token estimates.",
    choices=CONTEXT_LEVELS,
    caseless=True,
)
"""The same level in the settings of memories and of the compactor."""

ENDPOINT_KEYS = (*CONNECTION, *TEXT_INJECTION, *SAMPLERS_AND_FAILOVER, *SCHEDULING, *RESPONSE_CLEANING)
ENDPOINT = KeyTable(ENDPOINT_KEYS)
