"""An untrusted template renders as in transformers, and can only fail its own request."""

import signal
import subprocess
import threading
from typing import Any

import pytest

from engine.api.errors import TemplateError
from engine.text import TemplateRenderer

ROWS = "{% for i in range(99999) %}{% for j in range(99999) %}"
ENDS = "{% endfor %}{% endfor %}"
DOUBLING = "{% set ns = namespace(t='a') %}{% for i in range(99) %}{% set ns.t = ns.t + ns.t %}{% endfor %}"


def render(renderer: TemplateRenderer, template: str, **values: object) -> str:
    return renderer.render(template, values)


def test_template_features(renderer: TemplateRenderer) -> None:
    template = """
    {%- for m in messages %}
        {%- if m.role == "skip" %}{% continue %}{% endif %}
{{ m.role }}: {{ m.content | tojson }}
        {% if loop.last %}{% break %}{% endif %}
    {% endfor %}
    {%- generation %}{% set x = 1 %}g{% endgeneration %}
    {%- set ns = namespace(n=0) %}{% set ns.n = 5 %}{{ ns.n }}{{ x is defined }}{{ missing }}"""
    messages = [{"role": "a", "content": "<é>"}, {"role": "skip"}, {"role": "b", "content": [1]}]
    assert render(renderer, template, messages=messages) == 'a: "<é>"\nb: [1]\ng5False'


def test_the_clock(renderer: TemplateRenderer) -> None:
    assert render(renderer, "{{ strftime_now('%%') }}") == "%"


def test_any_text_is_passed_to_a_template_unchanged(renderer: TemplateRenderer) -> None:
    text = "日本語 😀 \x00 \u2028 \ufdd0 \r\n" + "x" * 3_000_000
    assert render(renderer, "{{ text }}", text=text) == text


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("a\n{% if %}", "syntax error in line 2"),
        ("{{ missing.part }}", "uses a value that these messages do not have: 'missing' is undefined"),
        ("{{ raise_exception('roles must alternate') }}", "refused the messages: roles must alternate"),
        ("{{ raise_exception('x' * 10000) }}", r"x\.\.\.$"),
        ("{{ 1 // 0 }}", "ZeroDivisionError"),
        ("{{ 'a' + 1 }}", "failed: TypeError"),
        ("{{ range(999999) }}", "OverflowError"),
        ("{{ 'a' * 10 ** 9 }}", "too much memory"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recurses without end"),
        ("{{" + "(" * 5000, "nested too deep"),
        (ROWS + "{{ 'a' * 9999 }}" + ENDS, "writes more than 16,000,000 characters"),
        ("{{ lipsum() }}", "'lipsum' is undefined"),
        ("{{ ''.__class__.__mro__ }}", "unsafe|undefined"),
        ("{{ messages.append(1) }}", "violates its sandbox"),
        ("{% set ns = namespace(_a=1) %}{% set ns._a = 1 %}", "violates its sandbox"),
        ("{% include 'other' %}", "failed|violates|no loader"),
    ],
)  # fmt: skip
def test_forbidden_and_failing_templates(renderer: TemplateRenderer, template: str, message: str) -> None:
    with pytest.raises(TemplateError, match=message):
        render(renderer, template, messages=[])
    assert render(renderer, "fine") == "fine"


def test_a_text_that_doubles_runs_out_of_memory() -> None:
    little = TemplateRenderer(megabytes=192)  # taking more needs processor time, too
    with little as renderer, pytest.raises(TemplateError, match="too much memory"):
        render(renderer, DOUBLING)


@pytest.mark.parametrize("template", [ROWS + ENDS, "{{ 7 ** (10 ** 8) }}"])
def test_an_endless_template_is_stopped(template: str) -> None:
    with TemplateRenderer(seconds=0.2) as renderer:  # of CPU time
        with pytest.raises(TemplateError, match=r"took more than 0\.2 s"):
            render(renderer, template)
        renderer.seconds = 2.0
        assert render(renderer, "fine") == "fine"  # in a new process


@pytest.fixture
def helpers(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """The helper processes, in the order in which they were started."""
    started: list[subprocess.Popen[bytes]] = []

    class Recorded(subprocess.Popen[bytes]):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Recorded)
    return started


def test_the_helper_is_restarted_after_it_dies(helpers: list[subprocess.Popen[bytes]]) -> None:
    with TemplateRenderer() as renderer:
        assert render(renderer, "fine") == "fine"
        [helper] = helpers
        helper.kill()
        helper.wait()
        assert render(renderer, "fine again") == "fine again"
        assert len(helpers) == 2


def test_a_helper_that_stops_answering_is_killed(helpers: list[subprocess.Popen[bytes]]) -> None:
    with TemplateRenderer() as renderer:
        render(renderer, "fine")
        [helper] = helpers
        helper.send_signal(signal.SIGSTOP)
        renderer.seconds = 0.01
        with pytest.raises(TemplateError, match="took more than"):
            render(renderer, "fine")
        assert helper.returncode == -signal.SIGKILL


def test_the_helper_ends_with_its_owner(helpers: list[subprocess.Popen[bytes]]) -> None:
    renderer = TemplateRenderer()
    render(renderer, "fine")
    del renderer
    [helper] = helpers
    assert helper.returncode is not None


def test_a_helper_that_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(TemplateError, match=r"did not start \(exit code 1\)"):
        render(TemplateRenderer(), "fine")


def test_many_threads(renderer: TemplateRenderer) -> None:
    found: dict[int, str] = {}

    def work(n: int) -> None:
        found[n] = render(renderer, "{{ n }}" * (n % 3 + 1), n=n)

    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {n: str(n) * (n % 3 + 1) for n in range(24)}
