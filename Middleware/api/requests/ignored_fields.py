"""Fields of requests that would change the answer, and do not: they are refused, or logged once for each user."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from Middleware.exceptions import ClientError
from Middleware.models.process import process
from Middleware.utilities import config_utils
from Middleware.utilities.once import Once

logger = logging.getLogger(__name__)

# Those of OpenAI and Ollama that have no effect, unless they are empty. A schema is logged where an LLM is called.
_IGNORED = frozenset(
    "logprobs top_logprobs echo logit_bias prediction web_search_options audio template context".split()
)
# How many answers the client wants; 1 is the default.
_COUNTS = ("n", "best_of")
_LOOKED_AT = _IGNORED | {*_COUNTS, "suffix", "modalities"}


def _logged() -> Once[tuple[str, str]]:
    """Return the users and fields that were logged, until the process ends."""
    return Once()


def first_ignored(field: str) -> bool:
    """Return whether this field is ignored for the first time in a request of the current user."""
    return process().one(_logged).first((config_utils.get_current_username(), field))


def look_at_fields(body: Mapping[str, object]) -> None:
    """Log the fields of a request that are ignored. Raises ClientError if it asks for text before its ``suffix``."""
    # Most requests have none of them.
    if _LOOKED_AT.isdisjoint(body):
        return
    if not _is_blank(body.get("suffix")):
        raise ClientError("WilmerAI writes at the end of a text and cannot insert: 'suffix' is not supported.")
    # Not through its own get(), which refuses what cannot be used.
    sent = dict(body.items())
    fields = [field for field in _IGNORED & sent.keys() if not _is_blank(sent[field])]
    fields += [field for field in _COUNTS if isinstance(count := sent.get(field), int | float) and count > 1]
    modalities = sent.get("modalities")
    if isinstance(modalities, list) and any(modality != "text" for modality in modalities):
        fields.append("modalities")
    for field in filter(first_ignored, fields):
        logger.info("A client sends '%s', which has no effect (user %s).", field, config_utils.get_current_username())


def _is_blank(value: object) -> bool:
    return not (value.strip() if isinstance(value, str) else value)
