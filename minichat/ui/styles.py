"""A stylesheet that parses each CSS source once per theme.

Textual parses all CSS three times before the first frame (for itself, for the theme, for the first widgets
with CSS), and again at each theme change.
"""

from typing import ClassVar

from textual.cache import LRUCache
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet
from textual.css.types import CSSLocation


class CachedStylesheet(Stylesheet):
    """Rules depend only on their source and the variables, so all stylesheets of the process share them."""

    parsed: ClassVar[LRUCache[tuple[object, ...], list[RuleSet]]] = LRUCache(512)
    _themes: ClassVar[dict[frozenset[tuple[str, str]], int]] = {}  # as numbers, which compare faster

    def __init__(self, *, variables: dict[str, str]) -> None:
        super().__init__(variables=variables)
        self._theme = self._number(variables)

    def set_variables(self, variables: dict[str, str]) -> None:
        super().set_variables(variables)
        self._theme = self._number(variables)

    @classmethod
    def _number(cls, variables: dict[str, str]) -> int:
        return cls._themes.setdefault(frozenset(variables.items()), len(cls._themes))

    def _parse_rules(
        self,
        css: str,
        read_from: CSSLocation,
        is_default_rules: bool = False,
        tie_breaker: int = 0,
        scope: str = "",
    ) -> list[RuleSet]:
        key = (self._theme, css, read_from, is_default_rules, tie_breaker, scope)
        rules = self.parsed.get(key)
        if rules is None:
            rules = super()._parse_rules(css, read_from, is_default_rules, tie_breaker, scope)
            self.parsed[key] = rules
        return rules

    def reparse(self) -> None:
        """Parse again. Invalid CSS leaves the rules as they were."""
        self.parse()
