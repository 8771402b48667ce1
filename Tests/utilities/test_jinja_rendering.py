"""Templates: what they may do, and how soon they are stopped when they do too much."""
from __future__ import annotations

import threading
import time
import tracemalloc
from typing import Any

import pytest

from Middleware.utilities import jinja_limits
from Middleware.utilities.jinja_limits import RenderLimitError
from Middleware.utilities.jinja_rendering import render_template

TALK = [{"role": "user" if i % 2 else "assistant", "content": f"message {i}"} for i in range(200)]
VALUES: dict[str, Any] = {
    "messages": TALK, "big": "x " * 100_000, "word": "y" * 100_000, "n": 5, "text": "some text", "list": [3, 1, 2],
    "none": None, "object": {"a": [1, {"b": "c"}]}, "braces": "{x}"}


def render(text: str, escaped: bool = False, **values: Any) -> str:
    table = {**VALUES, **values}
    return render_template(text, lambda names: {name: table[name] for name in names if name in table}, escaped)


# -- ordinary templates ------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("text", "expected"), [
    ("{{ text }} {{ nope }}{{ none }}", "some text None"),
    ("{% for m in messages[:2] %}{{ loop.index }}/{{ loop.length }} {{ m.content }}{% if not loop.last %}, {% endif %}"
     "{% endfor %}", "1/2 message 0, 2/2 message 1"),
    ("{% for m in messages if m.role == 'tool' %}x{% else %}none{% endfor %}", "none"),
    ("{% for k, v in object.items() %}{{ k }}={{ v }}{% endfor %}", "a=[1, {'b': 'c'}]"),
    ("{% for x in list | sort %}{{ x }}{% endfor %}{{ list | join('-') }}", "1233-1-2"),
    ("{{ n + 1 }} {{ n * 2 }} {{ n ** 2 }} {{ n % 2 }} {{ n // 2 }} {{ n / 2 }} {{ -n }}", "6 10 25 1 2 2.5 -5"),
    ("{{ 'a' * 3 }} {{ 'a' + 'b' }} {{ [1] * 2 }} {{ [1] + [2] }} {{ 'a' ~ 1 ~ none }}", "aaa ab [1, 1] [1, 2] a1None"),
    ("{{ '%s-%03d' % ('a', 7) }} {{ '%s' | format(n) }} {{ '{}:{:>3}'.format(1, 2) }} {{ '{a}'.format_map({'a': 1}) }}",
     "a-007 5 1:  2 1"),
    ("{{ ['a', text][1] }} {{ (1, n)[1] }} {{ {'k': n}['k'] }} {{ text[:4] }} {{ text[-1] }}", "some text 5 5 some t"),
    ("{{ object | tojson }} {{ text | upper | replace('O', '0') }} {{ 'x' | center(3) }}|",
     '{"a": [1, {"b": "c"}]} S0ME TEXT  x |'),
    ("{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list | length }}", "100"),
    ("{{ messages | map(attribute='role') | unique | join(',') }}", "assistant,user"),
    ("{{ [[1], [2]] | sum(start=[]) }} {{ [{'a': 1}, {'a': 2}] | sum(attribute='a') }} {{ (1, 2) | sum }}",
     "[1, 2] 3 3"),
    ("{{ list | batch(2, 0) | list }} {{ list | slice(2) | map('list') | list }}", "[[3, 1], [2, 0]] [[3, 1], [2]]"),
    ("{{ 'a\nb' | indent(2) }} {{ 'aa bb' | wordwrap(2) }} {{ 'abcdef' | truncate(3, true, '.', 0) }}",
     "a\n  b aa\nbb ab."),
    ("{{ 2.345 | round(2) }} {{ '<b>' | e }} {{ '<b>x</b>' | striptags }} {{ nope | default('d') }}",
     "2.35 &lt;b&gt; x d"),
    ("{% macro f(x, y=2) %}{{ x }}{{ y }}{{ caller() if caller }}{% endmacro %}{{ f(1) }}"
     "{% call f(1, 3) %}!{% endcall %}", "1213!"),
    ("{% set ns = namespace(t='') %}{% for x in list %}{% set ns.t = ns.t ~ x %}{% endfor %}{{ ns.t }}", "312"),
    ("{% set l = [] %}{% for x in list %}{% set _ = l.append(x) %}{% endfor %}{{ l }}", "[3, 1, 2]"),
    ("{% set l = [1] %}{% for x in l %}{% if x < 4 %}{% set _ = l.append(x + 1) %}{% endif %}{% endfor %}{{ l }}",
     "[1, 2, 3, 4]"),
    ("{% set x %}{{ braces | lower }}{% endset %}{{ x }} {{ x | length }}", "{x} 3"),
    ("{% filter upper %}{{ text }}{% endfilter %}{{ range(3) | list }}", "SOME TEXT[0, 1, 2]"),
    ("{% for x in [{'c': [{'c': []}]}] recursive %}({{ loop(x.c) }}){% endfor %}", "(())"),
    ("{% if n in [1, 5] and text is string and none is none %}yes{% endif %}", "yes"),
    ("{{ ('a' * 900000) | length }}", "900000"),
    ("{{ 9**9**9 }}", str((9 ** 9) ** 9)),
    ("{{ ''.__class__ }}{{ messages._x }}{{ self.__init__ }}", ""),
    ("a {b} {{ '{' }} c\n", "a {b} { c"),
])
def test_templates(text: str, expected: str) -> None:
    assert render(text) == expected


def test_names_of_jinja_can_be_variables() -> None:
    assert render("{{ range }} {{ dict }}", range="mine", dict="too") == "mine too"


def test_escaped_values() -> None:
    left, right = "__WILMER_L_CURLY__", "__WILMER_R_CURLY__"
    text = "{kept} {{ braces }} {{ object }}{% set x = braces ~ 1 %} {{ x }}"
    assert render(text, escaped=True, object={"{": 1}) == (
        f"{{kept}} {left}x{right} {left}'{left}': 1{right} {left}x{right}1")


@pytest.mark.parametrize("text", [
    "{{ messages.__class__.__mro__ }}", "{{ ''.__class__.__base__ }}", "{{ messages[0].__class__.mro() }}",
    "{{ render.__globals__ }}", "{{ cycler.__init__.__globals__ }}", "{{ '{0.__class__.__mro__}'.format(1) }}",
    "{{ messages | map(attribute='__class__.__mro__') | list }}", "{% include 'x' %}", "{% import 'x' as x %}",
    "{% from 'x' import y %}", "{% extends 'x' %}", "{{ (messages | attr('__class__')).mro() }}", "{% if %}",
    "{{ 1/0 }}", "{{ '%d' % 'x' }}"])
def test_out_of_reach(text: str) -> None:
    with pytest.raises(Exception) as raised:  # noqa: PT011
        render(text)
    assert not isinstance(raised.value, RenderLimitError)


# -- limits ------------------------------------------------------------------------------------------------------------

LOOPS = r"""
{% for a in messages %}{% for b in messages %}{% for c in messages %}{% for d in messages %}{{ a.role }}{% endfor %}{% endfor %}{% endfor %}{% endfor %}
{% for a in messages %}{% for b in messages %}{% for c in messages %}{% for d in messages %}{% endfor %}{% endfor %}{% endfor %}{% endfor %}
{% for a in range(99999) %}{% for b in range(99999) if false %}{% endfor %}{% endfor %}
{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}x{% endmacro %}{{ f(60) }}
{% macro m() %}{% for i in range(99999) %}{% for j in range(99999) %}{{ i * j }}{% endfor %}{% endfor %}{% endmacro %}{{ m() }}
{% set x %}{% for i in range(99999) %}{% for j in range(99999) %}text{% endfor %}{% endfor %}{% endset %}{{ x | length }}
{% set l = [] %}{% for i in range(99999) %}{% for j in range(99999) %}{% set _ = l.append(word) %}{% endfor %}{% endfor %}
{% set l = [] %}{% for i in range(99999) %}{% set _ = l.extend(range(99999) | map('string')) %}{% endfor %}
{% set l = [] %}{% for i in range(99999) %}{% set _ = l.append(big[i:]) %}{% endfor %}
{% macro m() %}{% for i in range(99999) %}{{ big[i:] }}{% endfor %}{% endmacro %}{{ m() }}
{{ ''.join(range(99999) | map('string') | map('replace', '1', word)) }}
{{ range(99999) | map('replace', '1', word) | join }}
{{ (('{0}' * 10000) | escape).format(word) }}
{% for i in range(99999) %}{{ word | upper | lower | title | length }}{% endfor %}
{% for i in range(99999) %}{{ messages | tojson | length }}{{ word.upper() | length }}{% endfor %}
{% for i in range(99999) %}{% for x in messages | batch(2) %}{% endfor %}{% endfor %}
""".strip().splitlines()  # noqa: E501

SINGLE_STEPS = r"""
{{ 'x' * 10**9 }}
{{ 'x' * 1000000000 }}
{{ 1000000000 * 'x' }}
{{ [0] * 1000000000 }}
{{ ([word] * 9) * 1000 }}
{{ 9**(9**9) }}
{{ (9**9999)**9999 }}
{% set ns = namespace(a=3) %}{% for i in range(99) %}{% set ns.a = ns.a * ns.a %}{% endfor %}
{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}
{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}
{% set ns = namespace(l=['x']) %}{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}
{% set l = [1] %}{% for i in range(99) %}{% set _ = l.extend(l) %}{% endfor %}
{{ 'a' | center(10**9) }}
{{ 'a' | center(1000000000) }}
{{ 'a' | center(width=1000000000) }}
{{ ('a' | escape).center(1000000000) }}
{{ 'a'.center(1000000000) }}
{{ 'a'.ljust(1000000000) }}
{{ 'a'.rjust(1000000000) }}
{{ 'a'.zfill(1000000000) }}
{{ ('\t' * 1000).expandtabs(1000000) }}
{{ (1).to_bytes(1000000000, 'big') }}
{{ range(99999) | join(word) }}
{{ word.join(word) }}
{{ word | replace('y', word) }}
{{ word.replace('', word) }}
{{ word.translate({121: word}) }}
{{ '%999999999d' | format(1) }}
{{ '%999999999d' % 1 }}
{{ '%*d' % (999999999, 1) }}
{{ '%.999999999f' % 1.0 }}
{{ ('%(a)s' * 10000) % {'a': word} }}
{{ '{:999999999}'.format(1) }}
{{ '{:{}}'.format(1, 999999999) }}
{{ '{a:>{b}{b}{b}}'.format_map({'a': 1, 'b': 999}) }}
{{ ('{0}' * 10000).format(word) }}
{{ ([word] * 9) | map('center', 1000000000) | list }}
{{ [[word] * 9, [word] * 9] | pprint }}
{{ ('y ' * 100) | wordwrap(1, wrapstring=word) }}
{{ (word ~ word ~ word ~ word ~ word) | wordwrap(1) }}
{{ big.replace(' ', '\n') | indent(100000) }}
{{ big.replace(' ', '\n') | indent(width=word) }}
{{ [1] | batch(1000000000, 'x') | list }}
{{ [1] | batch(linecount=1000000000, fill_with='x') | list }}
{{ [1] | slice(1000000000) | list }}
{{ 1 | round(1000000000, 'ceil') }}
{{ messages | tojson(indent=1000000000) }}
{{ lipsum(n=1000000) }}
{{ dict.fromkeys(range(99999), word) }}
{{ (range(40000) | batch(1) | list) | sum(start=[]) }}
""".strip().splitlines()


def stopped(text: str) -> tuple[float, float]:
    """Seconds and megabytes that a template took before it was stopped."""
    tracemalloc.start()
    started = time.thread_time()
    try:
        with pytest.raises(RenderLimitError):
            render(text)
        return time.thread_time() - started, tracemalloc.get_traced_memory()[1] / 1e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("text", LOOPS)
def test_loops_end(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jinja_limits, "RENDER_SECONDS", 1.0)
    seconds, megabytes = stopped(text)
    assert seconds < 1.5 and megabytes < 250


def test_two_seconds() -> None:
    started = time.monotonic()
    with pytest.raises(RenderLimitError, match="longer than 2 seconds"):
        render("{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}x{% endmacro %}{{ f(60) }}")
    assert time.monotonic() - started >= 2


@pytest.mark.parametrize("text", SINGLE_STEPS)
def test_large_steps_are_not_taken(text: str) -> None:
    seconds, megabytes = stopped(text)
    assert seconds < 1.5 and megabytes < 40


@pytest.mark.parametrize("text", [
    "{% for a in range(10**9) %}x{% endfor %}", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% for i in [1, 2] recursive %}{{ loop([1, 2]) }}{% endfor %}", "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}"])
def test_python_stops_some_by_itself(text: str) -> None:
    started = time.thread_time()
    with pytest.raises((OverflowError, RecursionError, SyntaxError, MemoryError)):
        render(text)
    assert time.thread_time() - started < 3


def test_the_deadline_works_in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jinja_limits, "RENDER_SECONDS", 0.3)
    monkeypatch.setattr(jinja_limits, "MAX_WORK", 10 ** 15)
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
        thread.join(20)
    assert reasons == ["it takes longer than 0.3 seconds"] * 4


@pytest.mark.parametrize("piece", [
    "{{ x }}", "{{ x | upper }}", "{{ x ~ '' }}", "{% for a in [x] %}{{ a }}{% endfor %}"])
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
