"""Why a run took as long as it did: its critical path in one sentence, and sentences for what is odd.

The parts add up to the time that the client waited, as they are the critical path itself, divided by what the run
waited for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypedDict

from Middleware.addons.records.analysis.critical_path import SpanTree, TimeSlice, critical_path, end_of
from Middleware.addons.records.model import MICROSECONDS, RunDocument, Span, number
from Middleware.utilities.text_utils import counted

if TYPE_CHECKING:
    from Middleware.addons.records.analysis.prefix import PrefixOfCall

# A sentence with more parts is not read to its end.
MOST_PARTS = 6
# Smaller parts of the whole share a sentence.
LEAST_SHARE = 0.02
# Calls with a smaller part of the whole are not divided into reading and writing.
CALL_IN_DETAIL = 0.15
# If this much would be "the rest", the nodes are put together by endpoint instead.
LARGEST_REST = 0.15
# Reading a prompt is explained if it is at least this part of the whole, and if less than this part of the prompt is
# the same as before: most of it could have been in the cache.
READING_MATTERS, MOSTLY_SAME = 0.2, 0.9
# An odd thing that happened fifty times is reported once, and these many different ones are enough.
MOST_ODD = 20


class PartOfRun(TypedDict):
    """A part of the time that the client waited, as the API sends it.

    Attributes:
        what: in words, for a sentence.
        kind: one of ``gate``, ``lock``, ``turn``, ``load``, ``prompt``, ``write``, ``answer``, ``call``, ``server``,
            ``retry``, ``pause``, ``tool``, ``embedding``, ``memory``, ``node``, ``own``.
        us: microseconds.
        tokens: those read or written, None if they are not known.
        node: the title of the node, "" outside of nodes and for several.
        span: the span in which most of the time was spent, None for the rest.
    """

    what: str
    kind: str
    endpoint: str
    us: int
    tokens: int | None
    node: str
    span: int | None


class Explanation(TypedDict):
    """What ``explain`` returns, as the API sends it. ``odd``: a sentence for everything unusual."""

    text: str
    parts: list[PartOfRun]
    odd: list[str]


@dataclass(frozen=True)
class _Time:
    """Time of one kind. ``cached`` and ``tokens`` are None as soon as one of several calls does not say."""

    kind: str
    us: int
    endpoint: str = ""
    node: Span | None = None
    name: str = ""
    tokens: int | None = None
    cached: int | None = None
    ahead: int = 0
    calls: int = 1
    # The tokens are counted here, as pieces of a stream.
    estimated: bool = False
    # The span with the longest piece, and that piece.
    span: int = 0
    longest: int = 0

    def plus(self, other: _Time) -> _Time:
        same_node = self.node is not None and other.node is not None and _title(self.node) == _title(other.node)
        return replace(
            self,
            us=self.us + other.us,
            tokens=_sum(self.tokens, other.tokens),
            cached=_sum(self.cached, other.cached),
            calls=self.calls + other.calls,
            ahead=max(self.ahead, other.ahead),
            estimated=self.estimated or other.estimated,
            node=self.node if same_node else None,
            span=max((self.longest or self.us, self.span), (other.longest or other.us, other.span))[1],
            longest=max(self.longest or self.us, other.longest or other.us),
        )


def explain(
    document: RunDocument, now: int | None = None, compared: Mapping[str, PrefixOfCall] | None = None
) -> Explanation:
    """Return why a run took as long as it did.

    Args:
        now: microseconds since 1970, for a run that goes on.
        compared: the result of ``prefixes``, which says why a prompt had to be read.
    """
    tree, whole = SpanTree(document.spans), end_of(document, now)
    times = [
        replace(time, span=0 if piece.span is None else piece.span.id)
        for piece in critical_path(tree, whole)
        for time in _times(tree, piece)
    ]
    parts = _parts(times, whole)
    text = " ".join([_sentence(document, whole, parts), *_why_read(tree, whole, parts, compared or {})])
    return {"text": text, "parts": parts, "odd": _odd(tree)}


# -- what the run waited for -------------------------------------------------------------------------------------------


def _times(tree: SpanTree, piece: TimeSlice) -> Iterator[_Time]:
    span, us = piece.span, piece.end - piece.start
    if span is None:
        yield _Time("own", us)
        return
    node, endpoint = tree.around(span, "node"), _endpoint(tree, span)
    if span.kind == "wait":
        kind = str(span.attributes.get("for") or "gate")
        yield _Time(
            kind if kind in ("gate", "lock") else "turn",
            us,
            endpoint,
            node,
            ahead=number(span.attributes.get("ahead")) or 0,
        )
    elif span.kind == "attempt":
        yield from _of_attempt(tree, piece, span, endpoint, node)
    elif span.kind == "llm":
        attempts = [child for child in tree.children(span) if child.kind == "attempt"]
        if attempts:
            between = any(child.start >= piece.end for child in attempts) and attempts[0].start < piece.start
            yield _Time("pause" if between else "own", us, endpoint if between else "", node if between else None)
        else:
            # Recorded without its attempts, it is all that is known of the call.
            yield _Time("answer", us, endpoint, node)
    elif span.kind in ("embedding", "tool", "memory"):
        yield _Time(span.kind, us, endpoint if span.kind == "embedding" else "", node, name=_name(span))
    elif span.kind == "node":
        yield _Time("node", us, node=span)
    else:
        yield _Time("own", us)


def _of_attempt(tree: SpanTree, piece: TimeSlice, attempt: Span, endpoint: str, node: Span | None) -> Iterator[_Time]:
    if attempt.status == "error":
        yield _Time("retry", piece.end - piece.start, endpoint, node)
        return
    position = attempt.start
    for kind, length in phases(attempt, tree.around(attempt, "llm")):
        # The piece may be a part of the attempt only: others ran at the same time, or the client left.
        us = min(position + length, piece.end) - max(position, piece.start)
        position += length
        if us > 0:
            tokens, estimated = _tokens(kind, attempt, tree.around(attempt, "llm"))
            yield _Time(
                kind,
                us,
                endpoint,
                node,
                tokens=tokens,
                estimated=estimated,
                cached=number(attempt.attributes.get("usage.cache_read.input_tokens")),
            )
    # An attempt that still runs has no length yet.
    if position < piece.end:
        rest = piece.end - max(position, piece.start)
        yield _Time("write" if attempt.attributes.get("usage.output_tokens") else "answer", rest, endpoint, node)


def _tokens(kind: str, attempt: Span, call: Span | None) -> tuple[int | None, bool]:
    """Return the tokens of a phase, and whether they are counted here because the back-end has not said."""
    name = {"prompt": "usage.input_tokens", "write": "usage.output_tokens", "answer": "usage.output_tokens"}.get(kind)
    reported = number(attempt.attributes.get(name)) if name else None
    if reported is not None or kind != "write" or call is None:
        return reported, False
    return number(call.attributes.get("chunks")) or None, True


def phases(attempt: Span, call: Span | None) -> list[tuple[str, int]]:
    """Return the phases of an attempt that was answered, in order, with microseconds that add up to its duration.

    ``server`` is what the back-end does not account for: the way there and its own queue.
    """
    whole = attempt.duration
    load, prompt, write = (_milliseconds(attempt, f"backend.{name}_ms") for name in ("load", "prompt", "generate"))
    first = _first_token(attempt, call)
    if prompt is None and write is None:
        if first is None:
            return [("answer", whole)]
        loading = min(load or 0, first)
        return [("load", loading), ("prompt", first - loading), ("write", whole - first)]
    reported = [("load", load or 0), ("prompt", prompt or 0), ("write", write or 0)]
    total = sum(us for _, us in reported)
    if total <= whole:
        return [("server", whole - total), *reported]
    # Clocks of two machines, or rounded figures: what was measured here counts.
    scaled = [(kind, us * whole // total) for kind, us in reported]
    return [("server", whole - sum(us for _, us in scaled)), *scaled]


def _first_token(attempt: Span, call: Span | None) -> int | None:
    """Return the microseconds from the start of an attempt to its first token; None if it was not streamed."""
    if call is None:
        return None
    after = number(call.attributes.get("time_to_first_token"))
    if after is None:
        return None
    first = call.start + after - attempt.start
    return first if 0 <= first <= attempt.duration else None


def _milliseconds(span: Span, name: str) -> int | None:
    value = span.attributes.get(name)
    # Python counts True as a number.
    return (
        round(value * 1000) if isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0 else None
    )


def _endpoint(tree: SpanTree, span: Span) -> str:
    """Return the endpoint of a span, or else that of the call or node around it."""
    inner: Span | None = span
    while inner is not None:
        found = inner.attributes.get("endpoint")
        if isinstance(found, str) and found:
            return found
        # An attempt is called by its endpoint.
        if inner.kind == "attempt" and inner.name:
            return inner.name
        inner = tree.parent(inner)
    return ""


def _name(span: Span) -> str:
    for key in ("tool.name", "tool.type", "store"):
        found = span.attributes.get(key)
        if found:
            return str(found)
    return span.name


def _title(node: Span) -> str:
    return str(node.attributes.get("node.title") or node.name)


# -- parts -------------------------------------------------------------------------------------------------------------


def _parts(times: Sequence[_Time], whole: int) -> list[PartOfRun]:
    """Return the parts, the largest first and the rest last. They add up to the whole."""
    by_node = _grouped(_calls_together(times, whole), by_node=True)
    shown, rest = _shown(by_node, whole)
    if rest - _own(by_node) > whole * LARGEST_REST:
        shown, rest = _shown(_grouped(times, by_node=False), whole)
    parts = [_part(time) for time in shown]
    if rest:
        parts.append(
            {"what": "the rest", "kind": "own", "endpoint": "", "us": rest, "tokens": None, "node": "", "span": None}
        )
    return parts


def _calls_together(times: Sequence[_Time], whole: int) -> list[_Time]:
    """Return the times with all phases of the calls of a node in one, if they are a small part of the whole."""
    of_node: dict[tuple[int, str], int] = {}
    for time in times:
        if time.node is not None:
            of_node[time.node.id, time.endpoint] = of_node.get((time.node.id, time.endpoint), 0) + time.us
    together = ("load", "prompt", "write", "answer", "server")
    return [
        replace(time, kind="call", tokens=None, cached=None)
        if time.kind in together
        and time.node is not None
        and of_node[time.node.id, time.endpoint] < whole * CALL_IN_DETAIL
        else time
        for time in times
    ]


def _grouped(times: Iterable[_Time], by_node: bool) -> list[_Time]:
    found: dict[tuple[str, ...], _Time] = {}
    for time in times:
        node = "" if time.node is None or not by_node else _node_words(time.node)
        key = (time.kind, time.endpoint, time.name, node if time.kind != "own" else "")
        known = found.get(key)
        found[key] = time if known is None else known.plus(time)
    return list(found.values())


def _shown(times: Sequence[_Time], whole: int) -> tuple[list[_Time], int]:
    """Return the parts that are large enough to be named, and the sum of the others."""
    named = sorted(
        (time for time in times if time.kind != "own" and time.us > whole * LEAST_SHARE), key=lambda time: -time.us
    )[:MOST_PARTS]
    return named, sum(time.us for time in times) - sum(time.us for time in named)


def _own(times: Iterable[_Time]) -> int:
    return sum(time.us for time in times if time.kind == "own")


def _part(time: _Time) -> PartOfRun:
    return {
        "what": _words(time),
        "kind": time.kind,
        "endpoint": time.endpoint,
        "us": time.us,
        "tokens": time.tokens,
        "node": "" if time.node is None else _title(time.node),
        "span": time.span or None,
    }


def _words(time: _Time) -> str:
    endpoint, kind = time.endpoint or "the back-end", time.kind
    of_node = _node_words(time.node) if time.node is not None else ""
    if kind == "gate":
        return "waiting for a slot at the gate" + (f" ({time.ahead} ahead)" if time.ahead else "")
    if kind == "lock":
        return "waiting for a workflow lock"
    if kind == "turn":
        return f"waiting for its turn at {endpoint}" + (f" ({time.ahead} ahead)" if time.ahead else "")
    if kind == "load":
        return f"{endpoint} loaded its model"
    if kind == "prompt":
        reused = f" ({time.cached:,} reused)" if time.cached is not None else ""
        return (
            f"{endpoint} read {time.tokens:,} prompt tokens{reused}"
            if time.tokens is not None
            else f"{endpoint} read the prompt"
        )
    if kind == "write":
        about = "≈" if time.estimated else ""
        return (
            f"{endpoint} wrote {about}{time.tokens:,}{_speed(time.tokens, time.us)}"
            if time.tokens is not None
            else f"{endpoint} wrote"
        )
    if kind == "answer":
        return f"{endpoint} answered" + (f" with {counted(time.tokens, 'token')}" if time.tokens is not None else "")
    if kind == "server":
        return f"{endpoint} had not begun"
    if kind == "retry":
        return f"failed {'attempt' if time.calls == 1 else 'attempts'} at {endpoint}"
    if kind == "pause":
        return f"waiting to try {endpoint} again"
    if kind == "call":
        return f"{of_node or counted(time.calls, 'call')} on {endpoint}"
    inside = f" in {of_node}" if of_node else ""
    if kind == "tool":
        return f"tool {time.name}{inside}"
    if kind == "embedding":
        return f"embeddings by {endpoint}{inside}"
    if kind == "memory":
        return f"stored data ({time.name}){inside}"
    return of_node or "work of several nodes"


def _node_words(node: Span) -> str:
    index = node.attributes.get("node.index")
    return f"node {index} '{_title(node)}'" if index else f"node '{_title(node)}'"


def _speed(tokens: int, us: int) -> str:
    return f" ({tokens * MICROSECONDS / us:,.0f}/s)" if us and tokens > 1 else ""


def _sum(first: int | None, second: int | None) -> int | None:
    return None if first is None or second is None else first + second


# -- words -------------------------------------------------------------------------------------------------------------


def in_words(us: int) -> str:
    """Return a time for people: ``12.4 s``, ``1 min 4 s``, ``12 ms``."""
    if us >= 60 * MICROSECONDS:
        seconds = round(us / MICROSECONDS)
        return f"{seconds // 60} min {seconds % 60} s"
    if us >= 100_000:
        return f"{us / MICROSECONDS:.1f} s"
    return f"{us / 1000:.0f} ms" if us >= 1000 or us == 0 else f"{us / 1000:.1f} ms"


def _sentence(document: RunDocument, whole: int, parts: Sequence[PartOfRun]) -> str:
    status = document.facts["status"]
    before = {
        "running": "so far ",
        "queued": "so far ",
        "failed": "failed after ",
        "refused": "turned away after ",
        "cancelled": "stopped after ",
        "interrupted": "interrupted after ",
    }.get(status, "")
    if document.facts["answered"]:
        before = ""
    first = f"{before}{in_words(whole)}"
    named = ", ".join(f"{in_words(part['us'])} {part['what']}" for part in parts)
    only_rest = not any(part["kind"] != "own" for part in parts)
    text = (
        f"{first}: {named}."
        if parts and not only_rest
        else f"{first}, all of it our own share."
        if whole
        else f"{first}."
    )
    return text[0].upper() + text[1:]


def _why_read(
    tree: SpanTree, whole: int, parts: Sequence[PartOfRun], compared: Mapping[str, PrefixOfCall]
) -> Iterator[str]:
    """Yield a sentence for the largest reading of a prompt if most of it could not come from the cache."""
    part = next((part for part in parts if part["kind"] == "prompt"), None)
    attempt = next((span for span in tree.spans if part is not None and span.id == part["span"]), None)
    call = tree.around(attempt, "llm")
    found = compared.get(str(call.id)) if call is not None else None
    if part is None or found is None or part["us"] < whole * READING_MATTERS:
        return
    same, characters = found["same"], found["characters"]
    if same is None or not characters or same >= characters * MOSTLY_SAME:
        return
    yield f"{part['endpoint']} could not use what it had read before: {found['difference']}"


# -- what is odd -------------------------------------------------------------------------------------------------------


def _odd(tree: SpanTree) -> list[str]:
    found: dict[str, None] = {}
    for span in tree.within(None):
        if span.kind == "llm":
            found.update(dict.fromkeys(_odd_call(tree, span)))
        elif span.kind == "route":
            found.update(dict.fromkeys(_odd_route(span)))
        elif span.kind == "note":
            found.update(dict.fromkeys(_odd_note(tree, span)))
        elif span.kind == "node" and span.status == "error":
            found[f"{_capital(_node_words(span))} failed{_error_of(span)}."] = None
    return list(found)[:MOST_ODD]


def _odd_call(tree: SpanTree, call: Span) -> Iterator[str]:
    attempts = [span for span in tree.children(call) if span.kind == "attempt"]
    failed = [span for span in attempts if span.status == "error"]
    node = tree.around(call, "node")
    where = f" for {_node_words(node)}" if node is not None else ""
    if failed:
        count = counted(len(failed), "attempt")
        names = _listed(dict.fromkeys(_endpoint(tree, span) for span in failed))
        ending = "the next one was answered" if attempts[-1].status == "ok" else "none was answered"
        yield f"{count} at {names} failed{where}{_error_of(failed[0])}; {ending}."
    for attempt in attempts:
        endpoint = _endpoint(tree, attempt)
        original = attempt.attributes.get("stands_in_for")
        if original:
            yield f"{endpoint} answered in place of {original}{where}."
        dropped = number(attempt.attributes.get("dropped_messages"))
        if dropped:
            yield (
                f"{counted(dropped, 'message')} did not fit into the context window of {endpoint} and "
                f"{'was' if dropped == 1 else 'were'} left out{where}."
            )
        reasons = attempt.attributes.get("response.finish_reasons")
        if "length" in (reasons if isinstance(reasons, list) else [reasons]):
            limit = number(attempt.attributes.get("request.max_tokens"))
            at = f" of {counted(limit, 'token')}" if limit is not None else ""
            yield f"The answer of {endpoint}{where} was cut at its limit{at}."
        left_out = attempt.attributes.get("left_out")
        if isinstance(left_out, list):
            yield f"{endpoint} was asked{where} without what it refuses: {', '.join(left_out)}."
        if attempt.attributes.get("empty"):
            what = "has nothing but reasoning" if attempt.attributes["empty"] == "reasoning" else "is empty"
            yield f"The answer of {endpoint}{where} {what}."


def _odd_route(route: Span) -> Iterator[str]:
    if not route.attributes.get("chosen") and route.status == "ok":
        attempts = number(route.attributes.get("attempts"))
        yield (
            "No category was matched"
            + (f" in {counted(attempts, 'attempt')}" if attempts else "")
            + ", so the default workflow ran."
        )


# What is known about a warning without its text, by the end of its logger's name.
_NOTES = {
    "workflow_variable_manager": "A variable of {node} had no value.",
    "llm_dispatch_service": "{node} logged a warning about its prompt.",
    "vector_memories": "{node} stored no memories of a part of the conversation.",
    "vector_answers": "{node} stored only some of the memories in an answer.",
}


def _odd_note(tree: SpanTree, note: Span) -> Iterator[str]:
    node = tree.around(note, "node")
    where = _node_words(node) if node is not None else "the run"
    message = note.texts.get("message")
    if isinstance(message, str) and message.strip():
        yield message.strip()
        return
    module = str(note.attributes.get("logger") or "").rpartition(".")[2]
    # Without the text there are repetitions of what the attempts have said already.
    if module in _NOTES:
        yield _capital(_NOTES[module].format(node=where))


def _error_of(span: Span) -> str:
    status = span.attributes.get("http.status")
    error = span.texts.get("error")
    if isinstance(error, str) and error.strip():
        line = error.strip().splitlines()[0]
        return f" ({line[:200]})"
    return f" (status {status})" if status else ""


def _listed(names: Iterable[str]) -> str:
    known = [name for name in names if name]
    return " and ".join([", ".join(known[:-1]), known[-1]] if len(known) > 1 else known) or "the back-end"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
