"""The lines about a request that is over: one for the log, one or two for a terminal.

``now`` is the present in monotonic seconds.
"""

from __future__ import annotations

from Middleware.models.request_context import RequestContext
from Middleware.utilities.text_utils import counted

# Shorter work after the answer delays no client and has no line on a terminal.
SHOWN_SECONDS = 1.0


def outcome(request: RequestContext) -> str:
    """Return ``answered``, ``failed`` or ``cancelled``; the last if the answer was not complete by then."""
    if request.was_cut_short:
        return "cancelled"
    return "failed" if request.failed else "answered"


def log_line(request: RequestContext, now: float) -> str:
    """Return the line of the log."""
    ended = outcome(request)
    before = [*([f"key '{request.key_name}'"] if request.key_name else []), *_misspelt(request)]
    background = f", nodes after the answer {now - request.background_at:.2f} s" if request.background_at else ""
    after = ["cancelled"] if request.cancel_scope.cancelled and ended != "cancelled" else []
    # Without a whole answer the time until the stop is what the client waited.
    seconds = _answered_at(request, now) - request.started
    return (
        f"Request {request.request_id}: route {_route(request) or '-'}, endpoint {request.endpoint or '-'}"
        f"{_added(before, _times(request, now))}, {ended} after {seconds:.2f} s"
        f"{background}, done after {now - request.started:.2f} s{_added(_tokens(request), after)}"
    )


def terminal_line(request: RequestContext, now: float) -> str:
    """Return the line for a terminal about the answer."""
    ended = outcome(request)
    parts = [
        f"{ended} after {_answered_at(request, now) - request.started:.2f} s",
        *_times(request, now),
        *_tokens(request),
        *_misspelt(request),
    ]
    # The name of a model says its route.
    way = " > ".join(request.branches) if request.workflow_override else _route(request)
    names = (request.model, way, request.endpoint, request.key_name)
    return "  ".join([*filter(None, names), ", ".join(parts)])


def background_line(request: RequestContext, now: float) -> str:
    """Return the line for a terminal about the nodes after the answer; "" if nothing is worth a line."""
    seconds = now - (request.background_at or request.started)
    # Most of these nodes find nothing to do.
    if seconds < SHOWN_SECONDS and not request.cancel_scope.cancelled:
        return ""
    stopped = ", cancelled" if request.cancel_scope.cancelled else ""
    return "  ".join([*filter(None, [request.model]), f"nodes after the answer took {seconds:.2f} s{stopped}"])


def _added(*parts: list[str]) -> str:
    return "".join(f", {text}" for group in parts for text in group)


def routes_of(request: RequestContext) -> list[str]:
    """Return the names of the route: with its branches, as the line of the request has it, and without branches."""
    return [
        *dict.fromkeys([" > ".join(filter(None, [request.route, *request.branches])), _route(request), request.route])
    ]


def _route(request: RequestContext) -> str:
    """Return the route with the reason for it, and the branches that its nodes took."""
    reason = f" ({request.route_reason})" if request.route_reason else ""
    return " > ".join([request.route + reason, *request.branches])


def _misspelt(request: RequestContext) -> list[str]:
    """Return the note about a model that the client has nearly named."""
    return [request.misspelt_model] if request.misspelt_model else []


def _answered_at(request: RequestContext, now: float) -> float:
    if request.was_cut_short:
        # The clock starts after the queue, in which the request may have been cancelled.
        return max(request.cancelled_at or now, request.started)
    return request.answered_at or now


def _times(request: RequestContext, now: float) -> list[str]:
    parts = [f"waited {request.waited:.2f} s in the queue"] if request.waited else []
    first, answered = request.first_token_at, _answered_at(request, now)
    if first is not None and answered > first:
        parts.append(f"first token after {first - request.started:.2f} s")
        parts.append(f"{request.tokens / (answered - first):.1f} tokens/s")
    return parts


def _tokens(request: RequestContext) -> list[str]:
    """Return the sums over the LLM calls; nothing if no back-end counts tokens."""
    counts = request.counts
    if counts.prompt_tokens is None:
        return []
    read = counts.processed_tokens
    text = (
        f"{counts.prompt_tokens} prompt tokens"
        if read is None
        else f"{read} of {counts.prompt_tokens} prompt tokens processed"
    )
    return [counted(counts.calls, "call"), text]
