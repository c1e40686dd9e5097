"""Memorized styles are the styles that Textual computes from the same rules."""

from collections.abc import Callable
from typing import Any, ClassVar

from textual.app import App, ComposeResult
from textual.css.model import RuleSet
from textual.css.styles import RenderStyles, RulesMap
from textual.css.stylesheet import Stylesheet
from textual.dom import DOMNode
from textual.widget import Widget

from minichat.ui.css.matching import component
from minichat.ui.css.stylesheet import CachedStylesheet
from tests.app.conftest import run

FLAGS = "_has_hover_style _has_focus_within _has_order_style _has_odd_or_even".split()


class Textual(Stylesheet):
    """Textual's own stylesheet. It keeps the styles of the last node instead of setting them."""

    def __init__(self, rules: list[RuleSet]) -> None:
        super().__init__(variables={})
        self._rules, self._require_parse = rules, False

    def replace_rules(self, node: DOMNode, rules: RulesMap, animate: bool = False) -> None:  # type: ignore[override]
        self.found = rules

    def _process_component_classes(self, node: DOMNode) -> None:
        pass

    def of(self, node: DOMNode) -> RulesMap:
        self.found: RulesMap = {}
        self.apply(node)
        return self.found


def set_rules(styles: RenderStyles) -> dict[str, object]:
    """What is set. Whether a flag is false or unset depends on the order in which Textual sets the rules."""
    return {name: value for name, value in styles.base._rules.items() if value is not False}


def check(app: Any) -> int:
    """Compare the styles of all nodes and component classes of all screens, and return how many there are."""
    ours, theirs = app.stylesheet, Textual(app.stylesheet.rules)
    assert isinstance(ours, CachedStylesheet)
    widgets = [
        app,
        *(each for screen in app.screen_stack for each in screen.walk_children(Widget, with_self=True)),
    ]
    count = 0
    for widget in widgets:
        ours.apply(widget)
        flags = [getattr(widget, name) for name in FLAGS]
        candidates = ours.matcher.candidates(widget._selector_names)
        assert candidates.styles[candidates.key(widget)] == theirs.of(widget), widget
        assert [getattr(widget, name) for name in FLAGS] == flags, widget
        for name in widget._get_component_classes():
            expected = component(widget, name)
            rules = theirs.of(expected)
            assert widget._component_styles.rules[name] == rules, (widget, name)
            Stylesheet.replace_rules(expected, rules)
            assert set_rules(widget._component_styles[name]) == set_rules(expected.styles), (widget, name)
            count += 1
    return count + len(widgets)


class Short(Widget):
    COMPONENT_CLASSES: ClassVar[set[str]] = {"part--a"}


class Long(Widget):
    COMPONENT_CLASSES: ClassVar[set[str]] = {"part--a", "part--b"}


@run
async def test_widgets_with_the_same_rules_keep_their_own_component_classes() -> None:
    class Two(App[None]):
        CSS = ".part--a { color: #112233; }"

        def __init__(self) -> None:
            super().__init__()
            self.stylesheet = CachedStylesheet(variables=self.get_css_variables())

        def compose(self) -> ComposeResult:
            yield from (Short(), Long(), Short())

    async with Two().run_test() as pilot:
        for widget in pilot.app.query("Short, Long"):
            assert set(widget._component_styles.rules) == widget.COMPONENT_CLASSES
            assert widget.get_component_styles("part--a").color.hex == "#112233"


@run
async def test_each_node_has_the_styles_that_textual_computes(bench: Callable[..., Any]) -> None:
    async with bench((200, 50)) as it:
        assert check(it.app) > 150
        await it.command("chat.new")
        it.app.set_class(True, "-ascii")
        it.main.prompt.set_class(True, "-fault")
        await it.pilot.hover(it.main.tabs)
        check(it.app)
        it.app.theme = "minichat-light"
        await it.pilot.resize_terminal(70, 18)
        await it.command("view.decoding")
        await it.pilot.pause()
        check(it.app)
        await it.command("view.help")
        await it.pilot.press("a")
        check(it.app)
        it.app.screen.query("*").first().disabled = True
        it.app.app_focus = False
        check(it.app)
