"""A long list of runs, a run of many nodes and a long prompt, through the API."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode

import pytest

from Middleware.addons.console.application import PREFIX, ConsoleApplication
from Middleware.addons.records.archive import RunArchive
from Middleware.addons.records.console_folder import ConsoleFolder
from Middleware.addons.records.model import RunDocument, RunFacts, Span
from Middleware.addons.records.queries import RunQuery, key_of
from Middleware.addons.records.ring import RunRing
from Middleware.addons.records.settings import RecordSettings
from Middleware.addons.records.store.writer import RunStore
from Middleware.api.edge.admission_middleware import AdmissionMiddleware
from Middleware.api.edge.browser_safety import BrowserSafety
from Tests.addons.console.console_lab import Browser
from Tests.addons.records.records_lab import Ring, facts, message, run
from Tests.workflows.engine_lab import until

RUNS, IN_MEMORY, MINUTE = 10_000, 200, 60_000_000
# A week: older runs would be removed.
BEGAN = int(time.time() * 1_000_000) - RUNS * MINUTE
WORDS = ("snake", "Fluß", "100%", "a_b", "poem", "owl")
# A person should wait for a second. Of the processor: other work of the machine does not count.
MOST_SECONDS = 5.0


def made(number: int, chance: random.Random) -> RunDocument:
    workflow = chance.choice(("Chat", "Coding", "Search"))
    status = chance.choice(("ok", "ok", "ok", "failed", "cancelled", "refused"))
    began = BEGAN + number * MINUTE
    return RunDocument(
        facts(
            id=f"{number:08x}-0000-4000-8000-000000000000",
            started=began,
            ended=began + 1,
            status=status,
            kind=chance.choice(("chat", "chat", "task", "replay")),
            user=chance.choice(("ann", "bob")),
            workflow=workflow,
            route=f"me:{workflow.lower()}",
            endpoints=chance.choice((["Main"], ["Worker"], ["Main", "Worker"], [])),
            discussion=chance.choice((None, "mill", "lake")),
            question=f"{chance.choice(WORDS)} {chance.choice(WORDS)} {number}",
            answer=chance.choice(WORDS).upper(),
            error="out of memory" if status == "failed" else None,
        ),
        [],
        normalised=True,
    )


class Console:
    """The operator's browser, and the runs that it should find: the oldest on disk, the newest in memory."""

    def __init__(self, folder: Path) -> None:
        chance = random.Random(7)
        self.all = [made(number, chance) for number in range(RUNS)]
        console, self.ring = ConsoleFolder(str(folder / "Console")), Ring(*self.all[-IN_MEMORY:])
        settings = RecordSettings(console, "texts")
        self.store = RunStore(console, self.ring, settings)
        for start in range(0, RUNS, 1000):
            for document in self.all[start : start + 1000]:
                self.store.finished(document)
            assert until(lambda: self.store.reader.used()["runs"] == start + 1000)  # noqa: B023
        self.ring.counter = RunRing().counter  # type: ignore[attr-defined]
        records = SimpleNamespace(
            mode="on",
            recording="texts",
            folder=console,
            settings=settings,
            ring=self.ring,
            store=self.store,
            archive=RunArchive(self.ring, self.store),
        )
        console_app = ConsoleApplication(records, None, BrowserSafety(), lambda environ, start: [])  # type: ignore[arg-type]
        self.browser = Browser(
            AdmissionMiddleware(lambda environ, start: [], 1, None, mounts={PREFIX: console_app})
        ).sign_in(time.time(), console.secret())

    def get(self, path: str, **words: str) -> Any:
        began = time.process_time()
        answer = self.browser.get(f"{path}?{urlencode(words)}" if words else path)
        assert answer.status == 200, answer.data
        assert time.process_time() - began < MOST_SECONDS
        return answer.json

    def expected(self, words: dict[str, str]) -> list[str]:
        query = RunQuery.parse(words)
        return [
            one.facts["id"]
            for one in sorted(self.all, key=lambda one: key_of(one.facts), reverse=True)
            if fits(words, one.facts, query)
        ]


def fits(words: dict[str, str], run_facts: RunFacts, query: RunQuery) -> bool:
    """Return whether a run is wanted: as the page says it, not as the program finds it."""
    texts = [
        run_facts[name]
        for name in (  # type: ignore[literal-required]
            "id",
            "question",
            "answer",
            "error",
            "route",
            "route.reason",
            "workflow",
            "discussion",
        )
    ]
    return all(
        (
            "status" not in words or run_facts["status"] in words["status"].split(","),
            "kind" not in words or run_facts["kind"] in words["kind"].split(","),
            all(words.get(name) in (None, run_facts[name]) for name in ("workflow", "user", "discussion")),  # type: ignore[literal-required]
            words.get("endpoint") in (None, *run_facts["endpoints"]),
            query.since is None or run_facts["started"] >= query.since,
            query.until is None or run_facts["started"] < query.until,
            any(words.get("q", "").casefold() in (text or "").casefold() for text in texts),
        )
    )


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    console = Console(tmp_path_factory.mktemp("many"))
    yield console
    console.store.close()


def test_each_filter_and_each_pair_gives_exactly_the_matching_runs(console: Console) -> None:
    filters = [
        ("status", "failed"),
        ("status", "ok,refused"),
        ("workflow", "Coding"),
        ("endpoint", "Worker"),
        ("user", "bob"),
        ("kind", "task"),
        ("discussion", "mill"),
        ("q", "FLUSS"),
        ("q", "100%"),
        ("q", "a_b"),
        ("q", "OUT OF mem"),
        ("q", "me:search"),
        ("since", str(BEGAN + 9000 * MINUTE)),
        ("until", str(BEGAN + 9900 * MINUTE)),
        ("q", f"{RUNS - 3:08x}"),
        ("q", "no such word"),
    ]
    pairs = [dict(pair) for pair in itertools.combinations(filters, 2) if pair[0][0] != pair[1][0]]
    everything = dict(dict(filters[:10]), q="snake")
    # A sample of the pairs: each costs a search of its own.
    for words in [dict([one]) for one in filters] + random.Random(1).sample(pairs, 12) + [everything]:
        page = console.get("runs", limit="200", **words)
        expected = console.expected(words)
        assert page["total"] == len(expected), words
        assert [one["id"] for one in page["runs"]] == expected[:200], words


def test_pages_lead_to_the_end_of_the_list_without_a_gap(console: Console) -> None:
    found, before = list[str](), ""
    while True:
        page = console.get("runs", limit="200", status="ok", **({"before": before} if before else {}))
        found += [one["id"] for one in page["runs"]]
        if not page["next"]:
            break
        before = page["next"]
    assert found == console.expected({"status": "ok"})


def test_a_search_in_all_texts_ends(console: Console) -> None:
    found, before, searched = list[str](), "", 0
    while True:
        page = console.get("runs", q="Fluß 99", all="1", **({"before": before} if before else {}))
        found += [one["id"] for one in page["runs"]]
        searched += 1
        if not page["next"]:
            break
        before = page["next"]
    assert found == console.expected({"q": "Fluß 99"}) and len(found) > 5


def test_a_run_of_five_hundred_nodes_with_a_prompt_of_a_megabyte(console: Console) -> None:
    text = "long " * 210_000
    document = run(messages=[message("system", text)], started=BEGAN)
    document.spans += [
        Span(
            number,
            1,
            "node",
            f"Step {number}",
            number * 1000,
            900,
            "ok",
            {"node.index": number, "node.type": "Standard", "node.title": f"Step {number}"},
            {"output": "x" * 3000},
        )
        for number in range(5, 505)
    ]
    run_id = document.facts["id"]
    console.ring.all.append(document)
    for where in ("memory", "disk"):
        shown = console.get(f"runs/{run_id}")
        assert len(shown["spans"]) == 504 and shown["explanation"]["parts"], where
        # Long texts are sent by reference: the page of the run stays small.
        assert shown["spans"][3][8]["payload"]["long"] > 1_000_000
        assert len(console.browser.get(f"runs/{run_id}").data) < 400_000
        assert console.get(f"runs/{run_id}/texts/4")["payload"]["messages"][0]["content"] == text
        console.store.finished(document)
        console.store.flush()
        console.ring.remove([run_id])
