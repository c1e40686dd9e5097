"""The styles that CSS rules give to a node, computed once for all nodes that are the same to these rules.

Textual matches all rules against each widget and each of its component classes twice before the first frame,
and again after each change of focus.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import itemgetter
from typing import Any, ClassVar, cast

from textual.cache import LRUCache
from textual.css.model import RuleSet, Selector, SelectorType
from textual.css.styles import RenderStyles, RulesMap
from textual.css.stylesheet import _DEFAULT_STYLES, Stylesheet
from textual.dom import DOMNode

Key = tuple[object, ...]  # what the selectors of some rules can see of a node and of all nodes above it

_ORDER = frozenset(("first-of-type", "last-of-type", "first-child", "last-child", "empty"))


class MatchableRules:
    """The rules that nodes with certain names may match, and the styles that they gave so far."""

    def __init__(self, rules: Iterable[RuleSet]) -> None:
        self.rules = tuple(rules)
        self.styles: dict[Key, RulesMap] = {}
        self.component_styles: dict[Key, Mapping[str, RulesMap]] = {}
        self._names: dict[SelectorType, set[str]] = {each: set() for each in SelectorType}
        self._names[SelectorType.CLASS].add("-textual-system")  # `*` does not match such nodes
        self._with_pseudo_classes: list[Selector] = []
        for selector in self._selectors():
            self._names[selector.type].add(selector.name)
            if selector.pseudo_classes:
                self._with_pseudo_classes.append(selector)
        self.pseudo_classes = set[str]().union(*(rule.pseudo_classes for rule in self.rules))

    def _selectors(self) -> Iterator[Selector]:
        for rule in self.rules:
            for chain in rule.selector_set:
                yield from chain.selectors

    def key(self, node: DOMNode) -> Key:
        """Nodes with the same key match the same selectors."""
        types, classes = self._names[SelectorType.TYPE], self._names[SelectorType.CLASS]
        ids, with_pseudo_classes = self._names[SelectorType.ID], self._with_pseudo_classes
        key: list[object] = []
        above: object = node
        while isinstance(above, DOMNode):
            key += (
                above._css_type_names & types,
                frozenset(above._classes & classes),
                above._id if above._id in ids else None,
                tuple([each.check(above) for each in with_pseudo_classes if each._check(above)]),
            )
            above = above._parent
        return tuple(key)

    def flag(self, node: DOMNode) -> None:
        """Set after which changes Textual applies the rules to the node again."""
        node._has_hover_style = "hover" in self.pseudo_classes
        node._has_focus_within = "focus-within" in self.pseudo_classes
        node._has_order_style = not self.pseudo_classes.isdisjoint(_ORDER)
        node._has_odd_or_even = not self.pseudo_classes.isdisjoint(("odd", "even"))

    def cascade(self, node: DOMNode) -> RulesMap:
        """The value of the most specific rule for each property, as Textual's stylesheet computes it."""
        path = node.css_path_nodes
        declared = defaultdict[str, list[tuple[Any, Any]]](list)
        for rule in reversed(self.rules):
            for specificity in Stylesheet._check_rule(rule, path):
                declarations = rule.styles.extract_rules(specificity, rule.is_default_rules, rule.tie_breaker)
                for name, strength, value in declarations:
                    declared[name].append((strength, value))
        return cast(RulesMap, {name: _strongest(name, values) for name, values in declared.items()})


def _strongest(name: str, declared: list[tuple[Any, Any]]) -> object:
    """The value of the most specific declaration. None is `initial`: the default CSS applies."""
    value = max(declared, key=itemgetter(0))[1]
    if value is not None:
        return value
    default = [each for each in declared if not each[0][0]]
    if len(default) == len(declared):
        return getattr(_DEFAULT_STYLES, name)
    return max(default, key=itemgetter(0))[1] if default else None


class Matcher:
    """The rules of a stylesheet, by the names that a node must have to match one."""

    _known: ClassVar[LRUCache[tuple[int, ...], MatchableRules]] = LRUCache(2048)  # for all stylesheets

    def __init__(self, rules: list[RuleSet]) -> None:
        self.rules = rules
        self.by_name = defaultdict[str, list[RuleSet]](list)
        self._place = {id(rule): place for place, rule in enumerate(rules)}
        self._candidates: dict[frozenset[str], MatchableRules] = {}
        for rule in rules:
            for name in rule.selector_names:
                self.by_name[name].append(rule)

    def candidates(self, names: set[str]) -> MatchableRules:
        """The rules that a node with these names may match."""
        known = frozenset(self.by_name.keys() & names)
        if (found := self._candidates.get(known)) is None:
            places = sorted({self._place[id(rule)] for name in known for rule in self.by_name[name]})
            rules = [self.rules[place] for place in places]
            key = tuple(map(id, rules))
            if (found := self._known.get(key)) is None:
                found = self._known[key] = MatchableRules(rules)  # keeps the rules alive, so no id is reused
            self._candidates[known] = found
        return found


class ComponentStyles(dict[str, RenderStyles]):
    """The styles of a widget's component classes, each made when it is first read."""

    def __init__(
        self, widget: DOMNode, rules: Mapping[str, RulesMap], apply: Callable[[DOMNode, RulesMap], None]
    ) -> None:
        super().__init__()
        self.rules = rules
        self._widget, self._apply = widget, apply

    def __contains__(self, name: object) -> bool:
        return name in self.rules

    def __missing__(self, name: str) -> RenderStyles:
        node = component(self._widget, name)
        self._apply(node, self.rules[name])
        self[name] = node.styles
        return node.styles


def component(widget: DOMNode, name: str) -> DOMNode:
    """A node that stands for a component class of a widget."""
    node = DOMNode(classes=name)
    node._attach(widget)
    return node
