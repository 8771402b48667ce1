"""The samplers that ``presetSamplers`` of an endpoint file can hold, under the names that fit every back-end."""
from __future__ import annotations

from Middleware.utilities.config.declarations import ConfigKey, KeyTable

CANONICAL_SAMPLER_KEYS: tuple[ConfigKey, ...] = (
    ConfigKey("temperature", "number", None, "How adventurous the choice of words is; 0 always takes the most likely.",
              least=0),
    ConfigKey("top_p", "number", None, "Considers only the most likely words that together reach this probability.",
              least=0, most=1),
    ConfigKey("top_k", "int", None,
              "Considers only this many of the most likely words; 0 usually means all.", least=-1),
    ConfigKey("min_p", "number", None,
              "Considers only words whose probability is at least this share of the most likely one.",
              least=0, most=1),
    ConfigKey("top_n_sigma", "number", None, "Considers only words within this many standard deviations of the best."),
    ConfigKey("typical_p", "number", None, "Prefers words that are about as surprising as expected; 1 is off.",
              least=0, most=1),
    ConfigKey("dynatemp_range", "number", None, "How far the temperature may move around its value; 0 is off."),
    ConfigKey("dynatemp_exponent", "number", None, "How steeply a dynamic temperature follows uncertainty."),
    ConfigKey("repeat_penalty", "number", None, "Makes words that were used before less likely; 1 is off."),
    ConfigKey("repeat_last_n", "int", None, "How many of the newest tokens repeat_penalty considers.", least=-1),
    ConfigKey("presence_penalty", "number", None, "Makes every word that was used before less likely; 0 is off."),
    ConfigKey("frequency_penalty", "number", None,
              "Makes words less likely the more often they were used; 0 is off."),
    ConfigKey("dry_multiplier", "number", None, "How strongly repeated passages are punished; 0 is off."),
    ConfigKey("dry_base", "number", None, "How fast that punishment grows with the length of the passage."),
    ConfigKey("dry_allowed_length", "int", None, "The longest passage that may be repeated freely.", least=0),
    ConfigKey("dry_penalty_last_n", "int", None, "How many of the newest tokens are searched for repeated passages.",
              least=-1),
    ConfigKey("dry_sequence_breakers", "list", None, "Texts at which a repeated passage ends.", entries="str"),
    ConfigKey("xtc_probability", "number", None, "How often the most likely words are left out; 0 is off.",
              least=0, most=1),
    ConfigKey("xtc_threshold", "number", None, "The probability from which words may be left out that way.",
              least=0, most=1),
    ConfigKey("mirostat", "int", None, "Keeps the surprise constant: 0 is off, 1 and 2 are its versions.",
              least=0, most=2),
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

THINKING_KEYS: tuple[ConfigKey, ...] = (
    ConfigKey("thinkingMode", "str", None,
              "Whether the model thinks first: off, on, or low, medium, high if the API type supports efforts.",
              also=("bool", "int")),
    ConfigKey("chat_template_kwargs", "object", None, "Values for the server's own chat template."),
)

PRESET_SAMPLER_KEYS = (*CANONICAL_SAMPLER_KEYS, *THINKING_KEYS)
PRESET_SAMPLERS = KeyTable(PRESET_SAMPLER_KEYS)
