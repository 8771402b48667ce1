"""The calls about recorded runs: list, one, its texts, export, stop, pin, note, delete."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, TypedDict

from Middleware.addons.console.calls import Call, ConsoleError, Download, Role, Routes
from Middleware.addons.records.queries import NAMES, RunQuery
from Middleware.api.running.running_requests import running_requests
from Middleware.services.response_builder_service import to_json

if TYPE_CHECKING:
    from Middleware.addons.records.model import RunDocument

STOPPED = "it was stopped in the console"
# A longer text is sent by reference: a page of a run with fifty prompts would have megabytes that are never opened.
INLINE_CHARACTERS = 2048
START_CHARACTERS = 200
FORMAT = "wilmer-run/1"
# The note is the user's own, and may quote the conversation.
_FACTS_WITH_TEXT = ("question", "answer", "error", "note")


class LongText(TypedDict):
    """Stands for a text that is too long to be sent with its run."""

    long: int
    start: str


def register(routes: Routes) -> None:
    routes.add("GET", "runs", Role.OWN, listed, query=NAMES)
    routes.add("DELETE", "runs", Role.OPERATOR, delete_all)
    routes.add("GET", "runs/ID", Role.OWN, show)
    routes.add("PUT", "runs/ID", Role.OWN, change)
    routes.add("DELETE", "runs/ID", Role.OWN, delete)
    routes.add("GET", "runs/ID/texts/SPAN", Role.OWN, texts)
    routes.add("GET", "runs/ID/export", Role.OWN, export, query=("texts",))
    routes.add("POST", "runs/ID/stop", Role.OWN, stop)


def listed(call: Call) -> dict[str, object]:
    archive, query = call.records.archive, RunQuery.parse(call.query)
    # Taken before the runs are read: what changes during that time comes as an event, too, and nothing is missed.
    event = next(call.records.ring.counter)
    page = archive.runs(query, call.viewer)
    answer: dict[str, object] = {"runs": page.runs, "next": page.next, "total": page.total, "event": event}
    if page.searched is not None:
        answer["searched"] = page.searched
    # The filters of the page change little, so only its first call gets them.
    return answer if query.before else {**answer, "choices": archive.choices(call.viewer)}


def delete_all(call: Call) -> dict[str, int]:
    return {"deleted": call.records.archive.delete_all(call.viewer)}


def show(call: Call) -> dict[str, object]:
    # Imported here: the two are pure functions that only this call needs.
    from Middleware.addons.records.analysis.explanation import explain
    from Middleware.addons.records.analysis.prefix import prefixes

    event = next(call.records.ring.counter)
    archive, document = call.records.archive, known_run(call)
    spans = []
    for span in list(document.spans):
        row = span.as_row()
        row[-1] = {name: shortened(value) for name, value in span.texts.items()}
        spans.append(row)
    compared = prefixes(document, archive.earlier(document, call.viewer))
    return {
        "run": document.facts,
        "event": event,
        "spans": spans,
        "spans_left_out": document.spans_left_out,
        "text_bytes_left_out": document.text_bytes_left_out,
        "explanation": explain(document, time.time_ns() // 1000, compared),
        "prefix": compared,
    }


def texts(call: Call) -> dict[str, object]:
    found = call.records.archive.texts(call.parts["ID"], span_id_of(call), call.viewer)
    if found is None:
        raise ConsoleError(404, "There is no such span, or its run is not yours to see.", where="SPAN")
    return found


def export(call: Call) -> Download:
    """Return the run file. Without texts it holds no word of the conversation."""
    wanted = call.query.get("texts", "0")
    if wanted not in ("0", "1"):
        raise ConsoleError(400, "'texts' is 0 or 1.", where="texts")
    document = known_run(call)
    facts, kept = dict(document.facts), {}
    spans = []
    for span in document.spans:
        row = span.as_row()
        inline = {name: shortened(value) for name, value in span.texts.items()} if wanted == "1" else {}
        row[-1] = inline
        # Long texts stand next to the rows, as the API has them.
        if inline != span.texts and inline:
            kept[str(span.id)] = span.texts
        spans.append(row)
    if wanted == "0":
        facts.update(dict.fromkeys(_FACTS_WITH_TEXT))
    body = {"format": FORMAT, "run": facts, "spans": spans, "texts": kept}
    name = f"run-{document.facts['id'][:8]}{'' if wanted == '1' else '-without-texts'}.json"
    return Download(to_json(body), name)


def change(call: Call) -> dict[str, object]:
    """Pin a run, or write a note on it."""
    body, archive, run_id = call.checked_body("pinned", "note"), call.records.archive, call.parts["ID"]
    pinned, note = body.get("pinned"), body.get("note")
    if not isinstance(pinned, bool | None):
        raise ConsoleError(400, "'pinned' is true or false.", where="pinned")
    if not isinstance(note, str | None):
        raise ConsoleError(400, "'note' is a text, or null for none.", where="note")
    if "note" in body:
        archive.note(run_id, call.viewer, note)
    if pinned is not None:
        archive.pin(run_id, call.viewer, pinned)
    return {"run": known_run(call).facts}


def delete(call: Call) -> dict[str, bool]:
    archive, run_id = call.records.archive, call.parts["ID"]
    archive.delete(run_id, call.viewer)
    return {"deleted": True}


def known_run(call: Call, run_id: str = "") -> RunDocument:
    """Return a run that the session may see, by default the one of the path. Raises ConsoleError."""
    document = call.records.archive.run(run_id or call.parts["ID"], call.viewer)
    if document is None:
        raise ConsoleError(
            404,
            "There is no such run, or it is not yours to see. Runs are kept for as long as Settings says.",
            where="ID",
        )
    return document


def span_id_of(call: Call) -> int:
    """Return the number of the span in the path. Raises ConsoleError."""
    text = call.parts["SPAN"]
    # Longer numbers than any run has spans.
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise ConsoleError(404, "A span is named by its number.", where="SPAN")
    return int(text)


def shortened(value: object) -> object:
    """Return a text as it is sent with its run: itself, or its length and beginning."""
    shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if len(shown) <= INLINE_CHARACTERS:
        return value
    return LongText(long=len(shown), start=shown[:START_CHARACTERS])


def stop(call: Call) -> dict[str, bool]:
    document = known_run(call)
    if document.finished:
        raise ConsoleError(409, "This run has ended already.", where="ID")
    running_requests().cancel(document.facts["id"], STOPPED)
    return {"stopping": True}
