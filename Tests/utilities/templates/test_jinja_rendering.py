"""Templates: what they may do, and how soon they are stopped when they do too much."""

from __future__ import annotations

import gc
import threading
import time
import tracemalloc
from typing import Any

import pytest

from Middleware.utilities.templates import jinja_limits
from Middleware.utilities.templates.jinja_limits import RenderLimitError
from Middleware.utilities.templates.jinja_rendering import render_template
from Tests.corpora import cases, texts_of
from Tests.patience import PATIENCE
from Tests.tables import table

TALK = [{"role": "user" if i % 2 else "assistant", "content": f"message {i}"} for i in range(200)]
VALUES: dict[str, Any] = {
    "messages": TALK,
    "big": "x " * 100_000,
    "word": "y" * 100_000,
    "n": 5,
    "text": "some text",
    "list": [3, 1, 2],
    "none": None,
    "object": {"a": [1, {"b": "c"}]},
    "braces": "{x}",
}


def render(text: str, escaped: bool = False, **values: Any) -> str:
    table = {**VALUES, **values}
    return render_template(text, lambda names: {name: table[name] for name in names if name in table}, escaped)


# -- ordinary templates ------------------------------------------------------------------------------------------------


@table(
    ("text", "expected"),
    [
        ("{{ text }} {{ nope }}{{ none }}", "some text None"),
        (
            "{% for m in messages[:2] %}{{ loop.index }}/{{ loop.length }} {{ m.content }}{% if not loop.last "
            "%}, {% endif %}"
            "{% endfor %}",
            "1/2 message 0, 2/2 message 1",
        ),
        ("{% for m in messages if m.role == 'tool' %}x{% else %}none{% endfor %}", "none"),
        ("{% for k, v in object.items() %}{{ k }}={{ v }}{% endfor %}", "a=[1, {'b': 'c'}]"),
        ("{% for x in list | sort %}{{ x }}{% endfor %}{{ list | join('-') }}", "1233-1-2"),
        ("{{ n + 1 }} {{ n * 2 }} {{ n ** 2 }} {{ n % 2 }} {{ n // 2 }} {{ n / 2 }} {{ -n }}", "6 10 25 1 2 2.5 -5"),
        (
            "{{ 'a' * 3 }} {{ 'a' + 'b' }} {{ [1] * 2 }} {{ [1] + [2] }} {{ 'a' ~ 1 ~ none }}",
            "aaa ab [1, 1] [1, 2] a1None",
        ),
        (
            (
                "{{ '%s-%03d' % ('a', 7) }} {{ '%s' | format(n) }} {{ '{}:{:>3}'.format(1, 2) }} {{ "
                "'{a}'.format_map({'a': 1}) }}"
            ),
            "a-007 5 1:  2 1",
        ),
        (
            "{{ ['a', text][1] }} {{ (1, n)[1] }} {{ {'k': n}['k'] }} {{ text[:4] }} {{ text[-1] }}",
            "some text 5 5 some t",
        ),
        (
            "{{ object | tojson }} {{ text | upper | replace('O', '0') }} {{ 'x' | center(3) }}|",
            '{"a": [1, {"b": "c"}]} S0ME TEXT  x |',
        ),
        ("{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list | length }}", "100"),
        ("{{ messages | map(attribute='role') | unique | join(',') }}", "assistant,user"),
        (
            "{{ [[1], [2]] | sum(start=[]) }} {{ [{'a': 1}, {'a': 2}] | sum(attribute='a') }} {{ (1, 2) | sum }}",
            "[1, 2] 3 3",
        ),
        (
            "{{ list | batch(2, 0) | list }} {{ list | slice(2) | map('list') | list }}",
            "[[3, 1], [2, 0]] [[3, 1], [2]]",
        ),
        (
            "{{ 'a\nb' | indent(2) }} {{ 'aa bb' | wordwrap(2) }} {{ 'abcdef' | truncate(3, true, '.', 0) }}",
            "a\n  b aa\nbb ab.",
        ),
        (
            "{{ 2.345 | round(2) }} {{ '<b>' | e }} {{ '<b>x</b>' | striptags }} {{ nope | default('d') }}",
            "2.35 &lt;b&gt; x d",
        ),
        (
            "{% macro f(x, y=2) %}{{ x }}{{ y }}{{ caller() if caller }}{% endmacro %}{{ f(1) }}"
            "{% call f(1, 3) %}!{% endcall %}",
            "1213!",
        ),
        ("{% set ns = namespace(t='') %}{% for x in list %}{% set ns.t = ns.t ~ x %}{% endfor %}{{ ns.t }}", "312"),
        ("{% set l = [] %}{% for x in list %}{% set _ = l.append(x) %}{% endfor %}{{ l }}", "[3, 1, 2]"),
        (
            (
                "{% set l = [1] %}{% for x in l %}{% if x < 4 %}{% set _ = l.append(x + 1) %}{% endif %}{% endfor "
                "%}{{ l }}"
            ),
            "[1, 2, 3, 4]",
        ),
        ("{% set x %}{{ braces | lower }}{% endset %}{{ x }} {{ x | length }}", "{x} 3"),
        ("{% filter upper %}{{ text }}{% endfilter %}{{ range(3) | list }}", "SOME TEXT[0, 1, 2]"),
        ("{% for x in [{'c': [{'c': []}]}] recursive %}({{ loop(x.c) }}){% endfor %}", "(())"),
        ("{% if n in [1, 5] and text is string and none is none %}yes{% endif %}", "yes"),
        ("{{ ('a' * 900000) | length }}", "900000"),
        ("{{ 9**9**9 }}", str((9**9) ** 9)),
        ("{{ ''.__class__ }}{{ messages._x }}{{ self.__init__ }}", ""),
        ("a {b} {{ '{' }} c\n", "a {b} { c"),
    ],
)
def test_templates(text: str, expected: str) -> None:
    assert render(text) == expected


def test_names_of_jinja_can_be_variables() -> None:
    assert render("{{ range }} {{ dict }}", range="mine", dict="too") == "mine too"


def test_escaped_values() -> None:
    left, right = "__WILMER_L_CURLY__", "__WILMER_R_CURLY__"
    text = "{kept} {{ braces }} {{ object }}{% set x = braces ~ 1 %} {{ x }}"
    assert render(text, escaped=True, object={"{": 1}) == (
        f"{{kept}} {left}x{right} {left}'{left}': 1{right} {left}x{right}1"
    )


@table("entry", cases("template_injection", kind="jinja"))
def test_out_of_reach(entry: dict[str, Any]) -> None:
    if entry["expected"] != "refused":
        assert render(entry["input"]) == entry["expected"]
        return
    with pytest.raises(Exception) as raised:
        render(entry["input"])
    assert not isinstance(raised.value, RenderLimitError)


# -- limits ------------------------------------------------------------------------------------------------------------


def stopped(text: str) -> tuple[float, float]:
    """Seconds and megabytes that a template took before it was stopped.

    Each is measured in a run of its own, as tracing takes time, and so does a garbage collector that goes through what
    all tests before have left.
    """
    gc.disable()
    try:
        started = time.thread_time()
        with pytest.raises(RenderLimitError):
            render(text)
        seconds = time.thread_time() - started
    finally:
        gc.enable()
    tracemalloc.start()
    try:
        with pytest.raises(RenderLimitError):
            render(text)
        return seconds, tracemalloc.get_traced_memory()[1] / 1e6
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@table("entry", cases("template_injection", kind="loop"))
def test_loops_end(entry: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jinja_limits, "RENDER_SECONDS", 0.3)
    seconds, megabytes = stopped(entry["input"])
    assert seconds < 1.5 and megabytes < 250


@pytest.mark.slow
def test_two_seconds() -> None:
    started = time.monotonic()
    with pytest.raises(RenderLimitError, match="longer than 2 seconds"):
        render("{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}x{% endmacro %}{{ f(60) }}")
    assert time.monotonic() - started >= 2


@pytest.mark.slow
@table("entry", cases("template_injection", kind="step"))
def test_large_steps_are_not_taken(entry: dict[str, Any]) -> None:
    seconds, megabytes = stopped(entry["input"])
    assert seconds < 1.5 and megabytes < 40


@pytest.mark.parametrize(
    "text",
    ['{{ "%(a(b))9999999s" % {"a(b)": "x"} }}', '{{ "%(a(b)c)999999s%(a(b)c)999999s" | format(**{"a(b)c": "x"}) }}'],
)
def test_widths_behind_keys_with_parentheses_count(text: str) -> None:
    assert stopped(text)[1] < 1


def test_a_long_run_of_spaces_is_not_wrapped_for_minutes() -> None:
    assert stopped("{{ (' ' * 999999) | wordwrap(2) }}")[0] < 1


def test_a_format_of_unclosed_keys_takes_no_time() -> None:
    started = time.process_time()
    with pytest.raises(ValueError, match="incomplete format key"):
        render("{{ ('%(' * 20_000) % {'a': 1} }}")
    assert time.process_time() - started < 1


@table(
    ("text", "expected"),
    [
        ("{{ '%(a)5d %% %(b(c))07.2f' % {'a': 1, 'b(c)': 2} }}", "    1 % 0002.00"),
        ("{{ '**%s** (030)5551234567' % 5000000 }}", "**5000000** (030)5551234567"),
        (
            "{{ '%s' | format(5000000) }} {{ '{}'.format(5000000) }} {{ '{:{w}}'.format(1, w=3) }}",
            "5000000 5000000   1",
        ),
    ],
)
def test_numbers_that_are_no_widths(text: str, expected: str) -> None:
    assert render(text) == expected


@pytest.mark.parametrize(
    "text", [*texts_of("template_injection", kind="python"), "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}"]
)
def test_python_stops_some_by_itself(text: str) -> None:
    started = time.thread_time()
    with pytest.raises((OverflowError, RecursionError, SyntaxError, MemoryError)):
        render(text)
    assert time.thread_time() - started < 3


def test_the_deadline_works_in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jinja_limits, "RENDER_SECONDS", 1.0)
    monkeypatch.setattr(jinja_limits, "MAX_WORK", 10**15)
    reasons: list[str] = []

    def work() -> None:
        with pytest.raises(RenderLimitError) as raised:
            render("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}")
        reasons.append(str(raised.value))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert render("{{ n }}") == "5"  # other renderings have budgets of their own
    for thread in threads:
        thread.join(PATIENCE)
    assert reasons == ["it takes longer than 1 seconds"] * 4


@pytest.mark.parametrize(
    "piece", ["{{ x }}", "{{ x | upper }}", "{{ x ~ '' }}", "{% for a in [x] %}{{ a }}{% endfor %}"]
)
def test_the_output_limit_comes_on_top_of_what_was_given(piece: str) -> None:
    text = "x" * 1_200_000
    assert len(render(piece, x=text)) == 1_200_000
    with pytest.raises(RenderLimitError, match="characters"):
        render(piece * 3, x=text)


@pytest.mark.parametrize(("count", "fits"), [(999_990, True), (1_000_001, False)])
def test_the_output_limit(count: int, fits: bool) -> None:
    text = "{% for a in range(1000) %}" + "x" * (count // 1000) + "{% endfor %}" + "y" * (count % 1000)
    if fits:
        assert len(render(text)) == count
    else:
        with pytest.raises(RenderLimitError):
            render(text)


def test_a_stopped_template_leaves_no_trace() -> None:
    with pytest.raises(RenderLimitError):
        render("{{ 'x' * 10**9 }}")
    assert render("{% for m in messages %}{{ m.role[0] }}{% endfor %}") == "au" * 100
