"""Redaction of conversations and secrets in the log."""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Callable, Iterable
from urllib.parse import urlsplit, urlunsplit

from Middleware.models.request_context import RequestContext, current_request, set_current_request

REDACTED = "[Redacted]"
MASK = "***REDACTED***"
TRUNCATED = "...[truncated]..."
# Longer values would make the logged requests unreadable.
MAX_IMAGE_CHARACTERS = 200
MAX_TEXT_CHARACTERS = 1000
# To look through more takes seconds, for which a request would wait.
MAX_MASKED_CHARACTERS = 256 * 1024
_RULE = "*" * 80

# -- secrets in texts --------------------------------------------------------------------------------------------------

# How names of secrets end. Of headers, parameters and members, the beginning varies: X-Goog-Api-Key.
SECRET_ENDING = (
    r"(?:key|token|secret|passw(?:or)?d|passphrase|pwd|auth|authorization|credentials?|cookie|signature|jwt"
    r"|(?<![a-z])(?:sig|sas))"
)
# Declared keys that only sound like secrets.
_HARMLESS = frozenset({"conditionalKey", "promptTemplateEndToken", "encryptUsingApiKey"})
_NAME = re.compile(rf"(?i){SECRET_ENDING}\W*\Z")
_LINK = r"(?:[_.-]|%5f|%2d)?"
_WORDS = r"(?:secret|passw(?:or)?d|passphrase|pwd|signature)"
# Names that a prompt does not have as words: sorted(names, key=len) is not a secret.
_COMPOUND = (
    rf"(?:(?:api|access|secret|private|account|auth|client|license|master|subscription|signing|shared){_LINK}key"
    rf"|(?:access|auth|bearer|bot|csrf|id|refresh|security|session){_LINK}token"
    rf"|(?:app|client|consumer|webhook){_LINK}secret|(?<=[a-z\d][_-]){_WORDS})"
)
_SURE = rf"(?:{_COMPOUND}|{_WORDS})"
# No more backslashes than JSON in a string of JSON has. The first is a mark between the marks of a shell.
_MARK = r"(?:'\\{0,8}\"'\\{0,8}\"'|\\{0,8}[\"'])"
# Between marks, which may be escaped, or up to what ends a value.
_VALUE = rf"(?:(?P<mark>{_MARK})(?P<inner>(?:(?!(?P=mark))(?:\\.|.))*)|(?P<bare>(?:\{{[\w.]+}}|[^\s&;,\"'#\\)\]}}])+))"
# Behind a name that may also stand in a sentence or in code, as in ``api_key: str``: in marks, or with a digit.
_KEY_VALUE = rf"(?={_MARK}|[^\s\"'\\]*\d){_VALUE}"
_SCHEMES = r"(?:(?:Bearer|Basic|Token|Digest)\s+)?"
_REST = rf"(?P<bare>(?:(?!{_MARK}|\\n)[^\n])+)"
_TO_SPACE = rf"(?:(?P<mark>{_MARK})(?P<inner>(?:(?!(?P=mark))(?:\\.|.))*)|(?P<bare>(?:(?!{_MARK})\S)+))"
_FLAG_LETTERS = "[0-9#:aCfgGiIjJkKlLnNoOqRsSvVZ]*"
# The last letter of curl's short options with a secret, after those without a value.
SECRET_FLAGS = f"{_FLAG_LETTERS}[uUbE]"
# Between words of a command: a line may go on after a backslash, and both may be escaped in a string of JSON.
_GAP = r"(?:\s|\\{1,16}[nrt]|\\{1,16}(?=\s))"
# Where a word begins, also after an escaped line end.
_BEGIN = r"(?:(?<![\w-])|(?<=\\[nrt]))"

_IN_TEXT = tuple(
    re.compile(f"(?is){pattern}")
    for pattern in (
        # The user of an address, and that of a driver's for Go.
        r"[a-z][a-z0-9+.-]{0,30}://(?P<bare>[^\s\"'/?#@]*(?:@[^\s\"'/?#@]*)*)@",
        r"(?<![\w.-])[\w.-]{1,64}:(?P<bare>[^\s\"'@/]{1,200})@(?:tcp|unix)?\(",
        rf"(?:^|[?&;#])[^=&?;#\s\"']*{SECRET_ENDING}(?:\]|%5d)?=(?P<bare>[^&;#\s\"'\\]+)",
        # The beginning of a string in a string.
        rf"{_MARK}[^=&?;#\s\"'\\]*{SECRET_ENDING}(?:\]|%5d)?=(?P<bare>[^&;#\s\"'\\]+)(?=[&;\"'\\])",
        rf"^{_MARK}?[\w-]*{SECRET_ENDING}\s*:\s*{_SCHEMES}(?P<bare>[^\n]+?)(?=\"?$)",
        rf"{_MARK}(?:(?:[a-z]\w*-)+{SECRET_ENDING}|authorization|cookie)\s*:\s*{_SCHEMES}{_REST}",
        rf"{_BEGIN}x-(?:\w+-)*{SECRET_ENDING}\s*:\s*{_SCHEMES}{_REST}",
        rf"{_BEGIN}(?:set-)?cookie\s*:\s*(?=[\w.-]+=){_REST}",
        rf"{_SURE}\s?=\s?{_VALUE}",
        rf"{_COMPOUND}\s*:\s*{_KEY_VALUE}",
        rf"--(?:[a-z]+-)*{_SURE}{_GAP}+{_KEY_VALUE}",
        rf"{SECRET_ENDING}{_MARK}\s*[:=]\s*(?:\[\s*)?{_VALUE}",
        rf"(?:api|auth|access|subscription)-(?:key|token)\s*:\s*{_SCHEMES}{_REST}",
        rf"authorization\s*:\s*(?:Bearer|Basic|Token|Digest)\s+{_REST}",
    )
)
_IN_COMMAND = tuple(
    re.compile(f"(?s){pattern}")
    for pattern in (
        rf"(?:^|(?<=[\s\"'])|(?<=\\[nrt]))(?:-{SECRET_FLAGS}{_GAP}*"
        rf"|--(?:user|proxy-user|oauth2-bearer|pass|proxy-pass|cookie|cert)(?:=|{_GAP}+)){_TO_SPACE}",
        # Never in the middle of a word: names of headers would be looked for from each of its letters on.
        rf"(?:{_BEGIN}-{_FLAG_LETTERS}H{_GAP}*|--(?:proxy-)?header(?:=|{_GAP}+)){_MARK}?"
        rf"(?i:[\w-]*{SECRET_ENDING})\s*:\s*{_SCHEMES}{_REST}",
        rf"(?i:(?:^|[?&;#\s\"'])[^=&?;#\s\"']*{SECRET_ENDING}(?:\]|%5d)?)={_VALUE}",
        r"(?<![\w.])[\w.-]{1,64}:(?P<bare>[^\s\"'@/:]+)@[\w.-]",
    )
)
_SIGN = re.compile(r"[=:@]|--\w")
_COMMAND = re.compile(r"(?:^|\W|\\[nrt])curl(?:\.exe)?(?=\s|\\)")
# In JSON with a mistake: what stands after the name of a secret, whatever marks are between the two. More than three
# quotation marks with a comma between them are those of an empty value, and of the next key.
_AFTER_NAME = re.compile(
    rf"(?i)(?:(?<!\\)[\"'][\w.-]*{SECRET_ENDING}"
    rf"|{SECRET_ENDING}(?=[\"']|[^\w\n]{{0,8}}[:=]\s*[\"'])|{_SURE})(?=[^\w\n])"
    r"(?:(?:[^\w\n\"']*[\"']){0,3}[^\w\n\"']*|(?:[^\w\n\"',]*[\"']){4,6}[^\w\n\"',]*)(?P<bare>[^\s\"',{}\[\]:\\](?:\\.|[^\"'\\\n]|(?<=\w)[\"'](?=[^\s,:}\]]))*)"
)
# What is not a secret under any name: variables alone, and what is masked already.
_WORD_OF_JSON = re.compile(r"true|false|null|[-+]?\d[\d.eE+-]{0,15}")
_SHOWN = re.compile(r"\s*(?:\$?\{[\w.]+\}\s*)+|\s*\*+(?:REDACTED\*+)?\s*")


def is_secret_name(name: str) -> bool:
    """Return whether the values under a key of this name are probably passwords, keys or the like."""
    return name not in _HARMLESS and _NAME.search(name) is not None


def secret_spans(text: str, is_command: bool = False) -> list[tuple[int, int]]:
    """Return start and end of each secret inside a text of any kind, in order and without overlaps.

    Found are users of addresses and connection strings, parameters, members of JSON (broken, or escaped in a string,
    too), headers and, in the arguments of a command, curl's options. ``is_command``: the text is such an argument, or
    several; a text with the word curl always is.
    """
    patterns = (*_IN_TEXT, *_IN_COMMAND) if is_command or _COMMAND.search(text) else _IN_TEXT
    found = list[tuple[int, int]]()
    for match in (match for pattern in patterns for match in pattern.finditer(text)):
        group = "bare" if match["bare"] is not None else "inner"
        if match[group] and not _SHOWN.fullmatch(match[group]):
            found.append(match.span(group))
    return joined_spans(found)


def spans_after_names(text: str) -> list[tuple[int, int]]:
    """Return start and end of what stands after names of secrets in JSON that may be broken, as ``secret_spans``."""
    found = list[tuple[int, int]]()
    for match in _AFTER_NAME.finditer(text):
        start, value = match.start("bare"), match["bare"].rstrip(" ,]}")
        is_variable = text[start - 1] == "{" and _SHOWN.match(text, start - 1)
        if value and not is_variable and not _WORD_OF_JSON.fullmatch(value):
            found.append((start, start + len(value)))
    return joined_spans(found)


def joined_spans(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return spans in order, with those that overlap or touch as one."""
    joined = list[tuple[int, int]]()
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return joined


def mask_text(text: str, is_command: bool = False) -> str:
    """Return a text with the secrets that ``secret_spans`` finds masked."""
    for start, end in reversed(secret_spans(text, is_command)):
        text = f"{text[:start]}{MASK}{text[end:]}"
    return text


def set_encryption_context(active: bool) -> None:
    """Set whether conversation text of the current request is redacted in the log."""
    request = current_request()
    # Scripts and tests set it without a request.
    if request is None:
        request = RequestContext()
        set_current_request(request)
    request.redact = bool(active)


def clear_encryption_context() -> None:
    """End the redaction of the current request, if there is one."""
    request = current_request()
    if request is not None:
        request.redact = False


def is_encryption_active() -> bool:
    """Return whether conversation text of the current request is redacted in the log."""
    request = current_request()
    return request is not None and request.redact


def sensitive_log(logger: logging.Logger, level: int, msg: str, *args: object) -> None:
    """Log a message; ``[Redacted]`` while conversation text of the current request is redacted."""
    # The record names the caller, as with ``logger.log``.
    if is_encryption_active():
        logger.log(level, REDACTED, stacklevel=2)
    else:
        logger.log(level, msg, *args, stacklevel=2)


def sensitive_log_lazy(logger: logging.Logger, level: int, msg: str, *callables: Callable[[], object]) -> None:
    """Like ``sensitive_log``; the arguments are the results of ``callables``, called only if they will be written."""
    if not logger.isEnabledFor(level):
        return
    if is_encryption_active():
        logger.log(level, REDACTED, stacklevel=2)
    else:
        logger.log(level, msg, *(compute() for compute in callables), stacklevel=2)


def log_prompt_content(logger: logging.Logger, label: str, text: object) -> None:
    """Log conversation text between two rules of asterisks, or one line that it was redacted; at the level DEBUG."""
    if is_encryption_active():
        logger.debug("[%s redacted]", label, stacklevel=2)
    else:
        logger.debug("%s:\n%s\n%s\n%s", label, _RULE, text, _RULE, stacklevel=2)


def places_of(error: BaseException) -> str:
    """Return type and traceback of an error and of its cause, without messages."""
    # A message may quote a conversation.
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return _raised_at(error) if cause is None else f"{_raised_at(error)}\nafter {_raised_at(cause)}"


def _raised_at(error: BaseException) -> str:
    return f"{type(error).__name__}, raised at\n{''.join(traceback.format_tb(error.__traceback__)).rstrip()}"


def truncate_for_log(value: object) -> object:
    """Return a copy of a request body in which image data over 200 characters and other text over 1000 is shortened."""
    if isinstance(value, dict):
        return {key: truncate_for_log(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [truncate_for_log(item) for item in value]
    return _shorten(value) if isinstance(value, str) else value


def _shorten(text: str) -> str:
    if text.startswith("data:image"):
        header, mark, data = text.partition("base64,")
        if mark and len(text) > MAX_IMAGE_CHARACTERS:
            return f"{header}{mark}{data[:50]}{TRUNCATED}{data[-50:]}"
        if mark:
            return text
    return text if len(text) <= MAX_TEXT_CHARACTERS else f"{text[:100]}{TRUNCATED}{text[-100:]}"


def mask_url(url: str) -> str:
    """Return ``url`` without user name and password, and with the values of secret-like parameters masked."""
    # Nothing to mask: neither a password nor a parameter can do without one of these.
    if "@" not in url and "=" not in url:
        return url
    try:
        parts = urlsplit(url)
    # It is not a URL, so the password in it, if there is one, cannot be found.
    except ValueError:
        return MASK if "@" in url else url
    host = parts.netloc.rpartition("@")[2]
    bare = url if host == parts.netloc else urlunsplit((parts.scheme, host, *parts[2:]))
    return mask_text(bare)


def mask_data(text: str) -> str:
    """Return data of a request with its secrets masked; of very long data, its beginning and its end."""
    # A secret has a sign between it and its name, or an option before it.
    if not _SIGN.search(text):
        return text
    if len(text) > MAX_MASKED_CHARACTERS:
        half = MAX_MASKED_CHARACTERS // 2
        text = f"{text[:half]}{TRUNCATED}{text[-half:]}"
    return mask_text(text, is_command=True)


def host_in(url: str) -> str | None:
    """Return the host of ``url``, or None."""
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None
