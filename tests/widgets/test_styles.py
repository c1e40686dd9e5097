"""CSS is parsed once per set of variables."""

from collections.abc import Iterator
from typing import Any

import pytest
from textual.css import stylesheet as textual_stylesheet
from textual.css.errors import StylesheetError
from textual.css.stylesheet import StylesheetParseError
from textual.css.tokenizer import TokenError

from minichat.ui.css.stylesheet import CachedStylesheet

CSS = "Once { color: $ink; }"


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sources that Textual has parsed, with an empty cache."""
    sources, parse = list[str](), textual_stylesheet.parse

    def counted(scope: str, css: str, *given: Any, **named: Any) -> Iterator[Any]:
        sources.append(css)
        return parse(scope, css, *given, **named)

    monkeypatch.setattr(textual_stylesheet, "parse", counted)
    CachedStylesheet.parsed.clear()
    return sources


def sheet(ink: str, css: str = CSS) -> CachedStylesheet:
    made = CachedStylesheet(variables={"ink": ink})
    made.add_source(css, ("here", ""))
    return made


def color(made: CachedStylesheet) -> str:
    return made.rules[-1].styles.color.hex


def test_another_sheet_and_a_theme_used_before_parse_nothing(parsed: list[str]) -> None:
    first = sheet("#112233")
    assert color(first) == "#112233" and len(parsed) == 1
    first.set_variables({"ink": "#445566"})
    first.reparse()
    assert color(first) == "#445566" and len(parsed) == 2
    first.set_variables({"ink": "#112233"})
    first.reparse()
    assert color(first) == color(sheet("#112233")) == "#112233"
    assert color(sheet("#778899")) == "#778899"
    assert parsed == [CSS] * 3


@pytest.mark.parametrize("css", ["Once { colour: red; }", "Once { color red"])
def test_invalid_css_fails_each_time(parsed: list[str], css: str) -> None:
    made = sheet("#112233")
    made.add_source(css, ("there", ""))
    with pytest.raises((StylesheetParseError, StylesheetError, TokenError)):
        made.reparse()
    with pytest.raises((StylesheetParseError, StylesheetError, TokenError)):
        sheet("#112233", css).parse()


def test_the_rules_stay_after_invalid_variables(parsed: list[str]) -> None:
    made = sheet("#112233")
    assert color(made) == "#112233"
    made.set_variables({"ink": "no color"})
    with pytest.raises(StylesheetParseError):
        made.reparse()
    assert color(made) == "#112233"
