"""A stylesheet that parses each CSS source once per theme, and matches its rules once for equal nodes.

Textual parses all CSS three times before the first frame (for itself, for the theme, for the first widgets
with CSS), and again at each theme change. It matches all rules against each widget and each of its component
classes twice before the first frame, and again after each change of focus.
"""

from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from textual.cache import LRUCache
from textual.css.model import RuleSet
from textual.css.styles import RulesMap
from textual.css.stylesheet import Stylesheet
from textual.css.types import CSSLocation
from textual.dom import DOMNode

from minichat.ui.css.matching import ComponentStyles, Matcher, component


class CachedStylesheet(Stylesheet):
    """Rules depend only on their source and the variables, so all stylesheets of the process share them."""

    parsed: ClassVar[LRUCache[tuple[object, ...], list[RuleSet]]] = LRUCache(512)
    _matchers: ClassVar[LRUCache[tuple[int, ...], Matcher]] = LRUCache(64)
    _replaced: ClassVar[WeakKeyDictionary[DOMNode, tuple[RulesMap, int]]] = WeakKeyDictionary()
    _themes: ClassVar[dict[frozenset[tuple[str, str]], int]] = {}  # as numbers, which compare faster

    def __init__(self, *, variables: dict[str, str]) -> None:
        super().__init__(variables=variables)
        self._theme = self._number(variables)
        self._matched: tuple[list[RuleSet], Matcher] = [], Matcher([])

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

    @property
    def matcher(self) -> Matcher:
        """The matcher of the rules, which each parse replaces."""
        rules, (matched, matcher) = self.rules, self._matched
        if rules is not matched:
            key = tuple(map(id, rules))
            matcher = self._matchers.get(key) or Matcher(rules)  # keeps the rules alive, so no id is reused
            self._matchers[key], self._matched = matcher, (rules, matcher)
        return matcher

    def apply(
        self, node: DOMNode, *, animate: bool = False, cache: dict[tuple[Any, ...], RulesMap] | None = None
    ) -> None:
        candidates = self.matcher.candidates(node._selector_names)
        candidates.flag(node)
        key = candidates.key(node)
        if (rules := candidates.styles.get(key)) is None:
            rules = candidates.styles[key] = candidates.cascade(node)
        if rules:
            self.replace_rules(node, rules, animate=animate)
        self._process_component_classes(node)

    def _process_component_classes(self, node: DOMNode) -> None:
        components = node._get_component_classes()
        if not components:
            return
        matcher = self.matcher
        candidates = matcher.candidates({"*", "DOMNode", *(f".{each}" for each in components)})
        key = (components, candidates.key(node))
        if (rules := candidates.component_styles.get(key)) is None:
            nodes = {each: component(node, each) for each in components}
            rules = candidates.component_styles[key] = {
                name: matcher.candidates(each._selector_names).cascade(each) for name, each in nodes.items()
            }
        before = node._component_styles
        if isinstance(before, ComponentStyles) and before.rules is rules:
            return
        node._component_styles = ComponentStyles(node, rules, self.replace_rules)
        if not isinstance(before, ComponentStyles) or before.rules != rules:
            node.refresh()

    @classmethod
    def replace_rules(cls, node: DOMNode, rules: RulesMap, animate: bool = False) -> None:
        styles, replaced = node.styles.base, cls._replaced
        before, updates = replaced.get(node, (None, 0))
        if before is rules and updates == styles._updates:
            node.notify_style_update()  # setting the same values again changes nothing else
            return
        super().replace_rules(node, rules, animate=animate)
        if animate:  # it may change the styles later
            replaced.pop(node, None)
        else:
            replaced[node] = rules, styles._updates
