"""Templates in the sandbox: the same text as without its bounds, and an end for whatever runs away."""

from __future__ import annotations

import resource
from typing import Any

import pytest
from jinja2 import TemplateError
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from batchgen.sandbox import BoundedEnvironment

EXTENSIONS = ["jinja2.ext.loopcontrols"]


def render(source: str, **names: Any) -> str:
    return BoundedEnvironment(extensions=EXTENSIONS).from_string(source).render(**names)


@pytest.mark.parametrize(
    "source",
    [
        "{% for x in [3, 4, 5] %}{{ loop.index }}/{{ loop.length }}{{ x }}{{ ',' if not loop.last }}{% endfor %}",
        "{% for k, v in names.items() %}{{ k }}={{ v }};{% else %}none{% endfor %}",
        "{% for x in nothing %}{{ x }}{% else %}none{% endfor %}",
        "{% for x in range(9) if x % 2 %}{{ x }}{% if x > 5 %}{% break %}{% endif %}{% endfor %}",
        "{% for x in [[1, [2]], [3]] recursive %}({{ loop(x) if x is iterable else x }}){% endfor %}",
        "{% for x in 'abc' %}{{ loop.previtem }}{{ loop.cycle('o', 'e') }}{{ loop.nextitem }}{% endfor %}",
        "{{ 'a' ~ 1 ~ nothing ~ none ~ names }}{{ 'a' + 'b' }}{{ 'ab' * 3 }}{{ [1] * 2 + [3] }}",
        "{{ 7 % 3 }}{{ 2 ** 10 }}{{ 'a'|center(5) }}{{ 'a\nb'|indent(2) }}",
        "{{ '%s-%5.2f' % ('x', 1.5) }}{{ '%d'|format(3) }}{{ '{:>4}|{}'.format('a', 2) }}",
        "{{ 'a-b'|replace('-', '+') }}{{ 'x.x'.replace('.', '') }}{{ [1, 'a']|join('/') }}{{ '/'.join(['a', 'b']) }}",
        "{{ ['a', 'b']|map('upper')|join }}{{ [{'n': 1}]|join(attribute='n') }}",
        "{% macro f(n) %}{{ n }}{% if n %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}",
        "{% set ns = namespace(n=0) %}{% for x in range(5) %}{% set ns.n = ns.n + x %}{% endfor %}{{ ns.n }}",
        "{% block a %}{% for x in [1] %}{{ x }}{% endfor %}{% endblock %}{{ self.a() }}{{ [1, 2, 3]|batch(2)|list }}",
    ],
)
def test_the_text_is_that_of_jinja(source: str) -> None:
    plain = ImmutableSandboxedEnvironment(extensions=EXTENSIONS).from_string(source)
    names = {"k": 1, "l": "ü"}
    assert render(source, names=names) == plain.render(names=names)


@pytest.mark.parametrize(
    "source",
    [
        "{% for x in range(10**9) %}{% endfor %}",
        "{% for x in range(99999) %}{% for y in range(99999) %}{% endfor %}{% endfor %}",
        "{% for x in text recursive %}{{ loop(text) }}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% block a %}{% for x in range(99999) %}{% for y in range(99999) %}{% endfor %}{% endfor %}{% endblock %}",
        "{% set ns = namespace(s='x') %}{% for x in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{% set ns = namespace(s='x') %}{% for x in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% set ns = namespace(s=[1]) %}{% for x in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% set ns = namespace(s=[1]) %}{% for x in range(60) %}{% set ns.s = ns.s * 2 %}{% endfor %}",
        "{% for x in range(99999) %}{{ text * 99999 }}{% endfor %}",
        "{{ 'x' * 10**12 }}",
        "{{ 10**12 * 'x' }}",
        "{{ [1] * 10**12 }}",
        "{{ 10**99999999 }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%*d' % (1000000000, 1) }}",
        "{{ '%1000000000d'|format(1) }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ '{:{w}}'.format(1, w=1000000000) }}",
        "{{ 'x'|center(1000000000) }}",
        "{{ 'x'|indent(width=1000000000, first=true) }}",
        "{{ 'x'.ljust(1000000000) }}",
        "{{ 'x'.zfill(1000000000) }}",
        "{{ (text * 9999)|replace('x', text * 9999) }}",
        "{{ (text * 9999).replace('x', text * 9999) }}",
        "{{ ([text * 999] * 99999)|join }}",
        "{{ ''.join([text * 999] * 99999) }}",
        "{{ [1]|slice(10**9)|list }}",
        "{{ lipsum(n=10**9) }}",
    ],
)
def test_what_runs_away_is_ended(source: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises((SecurityError, OverflowError, RecursionError, TemplateError)):
        render(source, text="x" * 100)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 512 << 10  # KiB


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ messages.__class__ }}",
        "{{ range.__globals__ }}",
        "{{ self.__init__.__globals__ }}",
        "{% include '/etc/passwd' %}",
        "{% import '/etc/passwd' as x %}",
    ],
)
def test_there_is_no_way_out(source: str) -> None:
    # Names with underscores are undefined within the sandbox: an error as soon as they are used, else an empty text.
    messages = [{"role": "user"}]
    try:
        shown = render(source, messages=messages)
    except (TemplateError, TypeError):
        shown = ""
    assert shown == ""
    assert messages == [{"role": "user"}]


def test_a_chat_as_long_as_they_get_is_far_within_the_bounds() -> None:
    source = "{% for m in messages %}{{ '<' + m.role + '>' + m.content ~ '\n' }}{% endfor %}"
    messages = [{"role": "user", "content": "word " * 100}] * 20_000
    assert len(render(source, messages=messages)) == 20_000 * (len("<user>\n") + 500)
