"""Values that variables insert into a URL: encoded where they are one part of it, unchanged where they are more."""

from __future__ import annotations

import re

from Middleware.utilities.templates.substitution import VALUE_BEGINS, VALUE_ENDS, without_marks
from Middleware.utilities.text_utils import without_surrogates

# Scheme and host, also of a URL without a scheme, as curl takes it.
_ORIGIN = re.compile(r"\s*(?:[a-zA-Z][a-zA-Z0-9+.-]*:)?(?://)?[^/?#]*")
# What would end a part of a URL, and what no URL has. A plus sign stays, as it may stand for a blank.
_TO_ENCODE = re.compile(r"%(?![0-9A-Fa-f]{2})|[^!$%'()*+,\-./0-9:;@A-Z_a-z~]")


def with_encoded_values(marked: str) -> str:
    """Return a URL whose values stand between marks (``substitution.mark``) without these.

    A value in the path, behind the ``=`` of a parameter, or as a part of its name is percent-encoded, without blanks
    at its ends. One that begins the URL or belongs to its host, and one that makes whole parameters, may be ready-made:
    it is left as it is, and values in it are looked at in the same way.
    """
    url, position = "", 0
    while (start := marked.find(VALUE_BEGINS, position)) >= 0:
        url += without_marks(marked[position:start])
        end = _end(marked, start)
        if _is_one_part(url, marked[end:].lstrip(VALUE_ENDS)):
            url += encoded(without_marks(marked[start:end]).strip())
            position = end
        else:
            position = start + 1
    return url + without_marks(marked[position:])


def encoded(value: str) -> str:
    """Return a value percent-encoded, as far as it is not; a slash stays as it is."""
    return _TO_ENCODE.sub(
        lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode("utf-8")), without_surrogates(value)
    )


def _end(marked: str, start: int) -> int:
    """Return the position of the mark that ends the value that begins at ``start``."""
    depth = 0
    for position in range(start, len(marked)):
        depth += (marked[position] == VALUE_BEGINS) - (marked[position] == VALUE_ENDS)
        if not depth:
            return position
    return len(marked)


def _is_one_part(before: str, after: str) -> bool:
    """Return whether a value between the two is one part of a URL: of its path, or of one parameter."""
    origin = _ORIGIN.match(before)
    rest = before[origin.end() if origin else 0 :]
    if not rest or "#" in rest:
        return False
    _, question_mark, query = rest.partition("?")
    parameter = query.rpartition("&")[2]
    return not question_mark or bool(parameter) or after[:1] not in ("", "&", "#")
