"""What all bodies that are not whole may hold together, and the memory that it is a part of."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace

import pytest

from Middleware.api.edge.admission_middleware import NO_ROOM, take_body
from Middleware.api.edge.body_budget import Body, BodyBudget
from Middleware.models.process import Process, install
from Middleware.utilities import allowed_memory
from Tests.tables import table

# What is done: a letter begins a body, a letter and a number hold so much of it, "-" in front leaves it.


@table(
    ("done", "refused", "ended"),
    [
        ("a a9 a1000 b", "b", "a"),
        ("a a10", "", ""),
        ("a a1000 -a b b1000", "", ""),
        ("a b a5 b5", "", ""),
        ("a b a6 b5", "", "a"),
        ("a b a5 b6", "", "b"),
        ("a b a5 b4 b9", "", "b"),
        ("a b c a5 b3 c3", "", "a"),
        ("a b c a2 b2 c100", "", "c"),
        # It is full, so a new one is refused, and the largest ends.
        ("a b a6 b4 c d", "c", "a"),
        ("a b c a3 b3 c4 d e e4", "d", "c"),
        # One that holds nothing yet does not count.
        ("a b a1000", "", ""),
        ("a b c a1000 b1", "", "a"),
        # A body that has ended counts no more, whatever is still read of it.
        ("a b a9 b2 a50 b9", "", "a"),
        ("a b a9 b2 -a -a -b b b10", "", "a"),
        # Nor does one that has left, of which another thread still read.
        ("a b a5 -a a15 b5 c", "", ""),
        ("a b a5 -a a15 -a b10 c", "c", "b"),
        ("a b a5 -a a1 b9 c", "", ""),
        # It shrinks, too: framing goes.
        ("a b a9 a1 b9", "", ""),
    ],
)
def test_a_budget_of_ten(done: str, refused: str, ended: str) -> None:
    budget, known, given_up = BodyBudget(10), dict[str, Body](), list[str]()
    turned_away = []
    for step in done.split():
        name = step.strip("-0123456789")
        if step.startswith("-"):
            budget.leave(known[name])
        elif step != name:
            budget.hold(known[name], int(step[len(name) :]))
        elif (begun := budget.begin(lambda name=name: given_up.append(name))) is None:  # type: ignore[misc]
            turned_away.append(name)
        else:
            known[name] = begun
    assert ("".join(turned_away), "".join(given_up)) == (refused, ended)
    assert all(known[name].ended for name in given_up)


@table(
    ("memory", "megabytes"),
    [
        (None, 64),
        (0, 64),
        (1 << 20, 64),
        (256 << 20, 64),
        (1 << 30, 256),
        (3 << 30, 768),
        (4 << 30, 1024),
        (1 << 50, 1024),
    ],
)
def test_a_quarter_of_the_memory_between_bounds(
    monkeypatch: pytest.MonkeyPatch, memory: int | None, megabytes: int
) -> None:
    monkeypatch.setattr("Middleware.api.edge.body_budget.allowed_memory", lambda: memory)
    budget = BodyBudget()
    a, b = budget.begin(lambda: None), budget.begin(lambda: None)
    assert a is not None and b is not None
    budget.hold(a, (megabytes << 20) - 1)
    budget.hold(b, 1)
    assert not a.ended
    budget.hold(b, 2)
    assert a.ended


@table(
    ("done", "ended"),
    [
        # They count like others.
        ("a a5 W=5", ""),
        ("a a6 W=5", "a"),
        ("a a4 W=5 b b2", "W"),
        # A large one counts half, so that it waits along with small ones, and alone however large it is.
        ("W=1000", ""),
        ("W=1000 a a5", ""),
        ("W=1000 a a6", "a"),
        ("W=1000 a a4 b b1", ""),
        ("V=1000 W=1000", ""),
        ("V=1000 W=4 a a2", "V"),
        # Its turn comes.
        ("W=5 -W a a10", ""),
        ("V=5 W=5 -V -V a a5", ""),
        ("V=4 W=5 a a1 -V b b4", ""),
    ],
)
def test_whole_bodies_that_wait_for_their_turn(done: str, ended: str) -> None:
    budget, known = BodyBudget(10), dict[str, Body]()
    for step in done.split():
        name = step.strip("=-0123456789")
        number = int(step.lstrip(f"-={name}") or 0)
        if "=" in step:
            known[name] = budget.keep(number)
        elif step.startswith("-"):
            budget.leave(known[name])
        elif number:
            budget.hold(known[name], number)
        elif (begun := budget.begin(lambda: None)) is not None:
            known[name] = begun
    assert "".join(name for name, body in known.items() if body.ended) == ended


@table(
    ("done", "much"),
    [
        ("a a63 -a", False),
        ("a a64 -a", True),
        # Whatever has become of them: in small pieces, one after the other, ended for others.
        ("a a32 -a b b32 -b", True),
        ("a a900 b b200 -b", True),
        # Not while any is held; one that holds nothing does not count.
        ("a a64 b b1 -a", False),
        ("a b a64 -a", True),
        # Each time anew.
        ("a a64 -a ? b b63 -b", False),
        ("a a64 -a ? b b64 -b", True),
    ],
)
def test_whether_bodies_have_left_much_behind(done: str, much: bool) -> None:
    budget, known = BodyBudget(1000 << 20), dict[str, Body | None]()
    for step in done.split():
        name = step.strip("-?0123456789")
        body = known.get(name)
        if step == "?":
            assert budget.has_freed_much() and not budget.has_freed_much()
        elif body is None:
            known[name] = budget.begin(lambda: None)
        elif step.startswith("-"):
            budget.leave(body)
        else:
            budget.hold(body, int(step[len(name) :]) << 20)
    assert budget.has_freed_much() is much


NO_LIMIT = str((1 << 63) - 4096)


@table(
    ("own", "files", "limits"),
    [
        ("", {}, []),
        ("0::/\n", {"memory.max": "max\n"}, []),
        ("0::/\n", {"memory.max": "1048576\n"}, [1048576]),
        ("0::/a.slice/b.service\n", {"a.slice/b.service/memory.max": "max\n", "a.slice/memory.max": "77\n"}, [77]),
        ("0::/a/b\n", {"a/b/memory.max": "5\n", "a/memory.max": "7\n", "memory.max": "9\n"}, [5, 7, 9]),
        # The group's name is that of the host, and its files are those of the root.
        ("0::/docker/1234\n", {"memory.max": "42\n"}, [42]),
        ("3:cpu,cpuacct:/x\n4:memory:/x\n", {"memory/x/memory.limit_in_bytes": "12\n", "x/memory.max": "3"}, [12]),
        ("4:memory:/x\n", {"memory/memory.limit_in_bytes": NO_LIMIT}, [int(NO_LIMIT)]),
    ],
)
def test_limits_of_containers(tmp_path: Path, own: str, files: dict[str, str], limits: list[int]) -> None:
    (tmp_path / "own").write_text(own, encoding="utf-8")
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert list(allowed_memory._of_container(str(tmp_path), str(tmp_path / "own"))) == limits


def test_this_process_may_have_some_memory() -> None:
    assert (allowed_memory.allowed_memory() or 0) > 64 << 20


def test_a_body_that_is_chosen_after_its_last_piece_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others have its room."""
    made, budget = Process(), BodyBudget(8)
    made.put(BodyBudget, budget)
    other = budget.begin(lambda: None)
    assert other is not None
    others_run = SimpleNamespace(sleep=lambda _: budget.hold(other, 4))
    monkeypatch.setattr("Middleware.api.edge.admission_middleware.time", others_run)
    replaced = install(made)
    try:
        assert take_body({"wsgi.input": io.BytesIO(b"abcde"), "CONTENT_LENGTH": "5"}, None) is NO_ROOM
    finally:
        install(replaced)
    assert budget._held == 4
