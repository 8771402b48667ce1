"""Which runs are wanted: the filters of a list of runs, from the words of an address to the test of one run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from Middleware.addons.records.model import RUN_KINDS, RUN_STATUSES, RunDocument, RunFacts
from Middleware.exceptions import ClientError
from Middleware.utilities.json_data import strings_in
from Middleware.utilities.text_utils import did_you_mean

DEFAULT_LIMIT, MOST_RUNS = 50, 200
# A longer text is certainly not a search, and each run is compared with it.
MOST_SEARCHED = 1000

Key: TypeAlias = tuple[int, str]
"""The place of a run in the order of all: when it started, and its id."""


@dataclass(frozen=True)
class RunQuery:
    """The filters of a list of runs; None or empty: not asked for.

    Attributes:
        before: only runs that are older than this place.
        status, kind: one of these words.
        endpoint: one that has answered in the run.
        q: a text to be found in the facts and short texts, or with ``all_texts`` in all texts; in any case.
        since, until: when the run started, in microseconds; ``until`` is not included.
    """

    limit: int = DEFAULT_LIMIT
    before: Key | None = None
    status: frozenset[str] = frozenset()
    kind: frozenset[str] = frozenset()
    workflow: str | None = None
    endpoint: str | None = None
    user: str | None = None
    discussion: str | None = None
    q: str = ""
    all_texts: bool = False
    since: int | None = None
    until: int | None = None

    @staticmethod
    def parse(words: Mapping[str, str]) -> RunQuery:
        """Return the query of an address. Raises ClientError that names the word and what was expected."""
        for name in words:
            if name not in NAMES:
                hint = did_you_mean(name, NAMES, f" Expected: {', '.join(NAMES)}.")
                raise ClientError(f"There is no filter '{name}'.{hint}", param=name)
        # An empty word is what a page sends for "all".
        given = {name: value for name, value in words.items() if value}
        return RunQuery(
            limit=_number(given, "limit", 1, MOST_RUNS) or DEFAULT_LIMIT,
            before=_key(given.get("before")),
            status=_choices(given, "status", RUN_STATUSES),
            kind=_choices(given, "kind", RUN_KINDS),
            workflow=given.get("workflow"),
            endpoint=given.get("endpoint"),
            user=given.get("user"),
            discussion=given.get("discussion"),
            q=_searched(given.get("q", "")),
            all_texts=_flag(given, "all"),
            since=_number(given, "since"),
            until=_number(given, "until"),
        )

    def fits(self, facts: RunFacts, shows_texts: bool) -> bool:
        """Return whether a run is wanted, apart from ``before``. ``shows_texts``: its texts may be searched."""
        return self._fits_facts(facts) and (
            not self.q or self.all_texts or self.found_in(searched_of(facts, shows_texts))
        )

    def _fits_facts(self, facts: RunFacts) -> bool:
        exact = ((self.workflow, facts["workflow"]), (self.user, facts["user"]), (self.discussion, facts["discussion"]))
        return (
            all(wanted is None or wanted == value for wanted, value in exact)
            and (not self.status or facts["status"] in self.status)
            and (not self.kind or facts["kind"] in self.kind)
            and (self.endpoint is None or self.endpoint in facts["endpoints"])
            and (self.since is None or facts["started"] >= self.since)
            and (self.until is None or facts["started"] < self.until)
        )

    def found_in(self, texts: Iterable[str | None]) -> bool:
        """Return whether one of the texts contains what is searched for."""
        wanted = self.q.casefold()
        return any(text is not None and wanted in text.casefold() for text in texts)

    def found_in_json(self, value: object) -> bool:
        """Return whether a string in a value of JSON contains what is searched for."""
        return self.found_in(text for _, text in strings_in(value))

    def found_in_spans(self, document: RunDocument) -> bool:
        """Return whether one of the texts of a run's spans contains what is searched for."""
        return any(self.found_in_json(text) for span in document.spans for text in span.texts.values())


def searched_of(facts: RunFacts, shows_texts: bool) -> list[str | None]:
    """Return what a search in facts and short texts looks at."""
    known = [facts["id"], facts["route"], facts["route.reason"], facts["workflow"], facts["discussion"]]
    return [*known, facts["question"], facts["answer"], facts["error"]] if shows_texts else known


def key_of(facts: RunFacts) -> Key:
    """Return the place of a run in the order of all runs."""
    return facts["started"], facts["id"]


def key_text(key: Key) -> str:
    """Return a place as ``before`` takes it."""
    return f"{key[0]}.{key[1]}"


NAMES = (
    "limit",
    "before",
    "status",
    "workflow",
    "endpoint",
    "user",
    "kind",
    "discussion",
    "q",
    "all",
    "since",
    "until",
)


def _key(text: str | None) -> Key | None:
    if text is None:
        return None
    started, point, run_id = text.partition(".")
    # More digits are not a time, and would not fit into the database.
    if not (point and run_id and started.isascii() and started.isdigit() and len(started) <= 18):
        raise ClientError("'before' is not a place in the list. Expected: the 'next' of an answer.", param="before")
    return int(started), run_id


def _number(given: Mapping[str, str], name: str, least: int = 0, most: int = 10**18) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20 and least <= int(text) <= most):
        wanted = f"a whole number from {least} to {most}" if most <= MOST_RUNS else "microseconds since 1970"
        raise ClientError(f"The filter '{name}' is '{text[:40]}'. Expected: {wanted}.", param=name)
    return int(text)


def _choices(given: Mapping[str, str], name: str, known: tuple[str, ...]) -> frozenset[str]:
    wanted = frozenset(given[name].split(",")) if name in given else frozenset()
    for word in wanted:
        if word not in known:
            hint = did_you_mean(word, known, f" Expected: {', '.join(known)}.")
            raise ClientError(f"The filter '{name}' has no value '{word[:40]}'.{hint}", param=name)
    return wanted


def _flag(given: Mapping[str, str], name: str) -> bool:
    text = given.get(name, "0")
    if text not in _FLAGS:
        raise ClientError(f"The filter '{name}' is '{text[:40]}'. Expected: 0 or 1.", param=name)
    return _FLAGS[text]


_FLAGS = {"0": False, "1": True, "false": False, "true": True}


def _searched(text: str) -> str:
    if len(text) > MOST_SEARCHED:
        raise ClientError(f"'q' has {len(text):,} characters. At most {MOST_SEARCHED:,} are searched for.", param="q")
    return text
