"""The CSS of features, which may come from packages: one with invalid CSS goes without."""

from textual.css.errors import StylesheetError
from textual.css.stylesheet import Stylesheet, StylesheetParseError
from textual.css.tokenizer import TokenError

from minichat.features.feature import Feature


def add_css(stylesheet: Stylesheet, feature: Feature) -> str:
    """Add the feature's CSS. Return what is wrong with it, or "" if nothing is."""
    where = (f"the feature {feature.name}", "")
    stylesheet.add_source(feature.css, where)
    try:
        stylesheet.parse()
    except StylesheetParseError as error:
        token, _ = next(fault for rule in error.errors.rules for fault in rule.errors)
        problem = f"invalid CSS in the feature {feature.name} at {token.value!r}"
    except (StylesheetError, TokenError) as error:
        problem = f"invalid CSS in the feature {feature.name}: {error}"
    else:
        return ""
    del stylesheet.source[where]
    return problem
