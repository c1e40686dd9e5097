"""The quantization drawer: how the engine stores weights and KV cache, and the memory left."""

from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import ClassVar, Self

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import Click, DescendantBlur, DescendantFocus
from textual.geometry import Region
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from engine.api.snapshot import SchemeView, Snapshot
from minichat.features.quantization import figures
from minichat.features.quantization.figures import LABEL, Row
from minichat.ui.dialogs.options import Options
from minichat.ui.marks import UNICODE, Marks
from minichat.ui.panes.keybar import Hints, HintsChanged

_FIGURE = 9  # cells
_TEXT = 24  # cells beside a label in a drawer of the usual width


class Figures(Widget):
    """Labels with figures, and bars for shares."""

    rows: reactive[tuple[Row, ...]] = reactive((), layout=True)
    marks: Marks = UNICODE

    def render(self) -> Content:
        return Content("\n").join(self._line(*row) for row in self.rows)

    def _line(self, label: str, figure: str, share: float | None) -> Content:
        line = [(f"{label:{LABEL}}", "$text-muted"), (figure, "$text")]
        if share is not None:
            room = max(self.size.width - LABEL - _FIGURE - 2, 0)
            full = min(round(share * room), room) or int(share > 0 and room > 0)
            line[1] = (f"{figure:>{_FIGURE}}  ", "$text")
            line += [(self.marks.bar * full, "$primary"), (self.marks.rest * (room - full), "$text-muted")]
        return Content.assemble(*line)


class Schemes(Options):
    """The available schemes: the current one marked, and why others are unavailable."""

    DEFAULT_CSS = """
    Schemes {
        max-height: 1000;
        overflow-y: hidden;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "cursor_up", "Previous scheme", id="quantization.up", show=False),
        Binding("down", "cursor_down", "Next scheme", id="quantization.down", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._seen: tuple[Sequence[SchemeView], Mapping[str, str], str, Marks] = ((), {}, "", UNICODE)
        self._shown: tuple[object, ...] = ()

    def see(
        self, schemes: Sequence[SchemeView], times: Mapping[str, str], present: str, marks: Marks
    ) -> None:
        """`times`: of a step, by the names of the schemes that were measured."""
        self._seen = (schemes, times, present, marks)
        self._show()

    def on_resize(self) -> None:
        self._show()

    def _show(self) -> None:
        schemes, times, present, marks = self._seen
        padding = self.get_component_styles("option-list--option").padding.width
        laid_out = self.scrollable_content_region.width  # 0 before its first frame
        width = max(laid_out - padding - LABEL, 1) if laid_out else _TEXT
        if (shown := (*self._seen, width)) == self._shown:
            return
        at, self._shown, prompts = self.highlighted, shown, dict[str, Content]()
        for above, each in zip((None, *schemes), schemes, strict=False):
            mark = marks.bar if each.name == present else " "
            line = f"{mark} {each.name:{LABEL - 2}}", "$text-muted" if each.why_not else "$text"
            again = above is not None and above.why_not == each.why_not
            lines = ["as above"] if again else wrap(each.why_not, width)
            if not each.why_not:
                lines = figures.costs(each, times.get(each.name, ""), width)
            rest = f"\n{' ' * LABEL}".join(lines)
            prompts[each.name] = Content.assemble(line, (rest, "$text-muted"))
        if [each.id for each in self.options] == [*prompts]:  # a new list would scroll to its highlight
            for name, prompt in prompts.items():
                self.replace_option_prompt(name, prompt)
            self.refresh(layout=True)
        else:
            self.clear_options()
            self.add_options([Option(prompt, id=name) for name, prompt in prompts.items()])
        place = next((place for place, each in enumerate(schemes) if each.name == present), None)
        self.highlighted = place if at is None else at

    def scroll_to_highlight(self, top: bool = False) -> None:
        """Scroll the drawer, because the list shows all its lines and does not scroll itself."""
        super().scroll_to_highlight(top)
        if self.has_focus and self.highlighted in self._index_to_line and isinstance(self.parent, Widget):
            place, height = self._index_to_line[self.highlighted], self._heights[self.highlighted]
            line = Region(0, place, self.size.width, height).translate(self.virtual_region.offset)
            self.parent.scroll_to_region(line, spacing=self.dock_gutter, animate=False)

    def on_focus(self) -> None:
        self.call_after_refresh(self.scroll_to_highlight)

    def on_click(self, event: Click) -> None:
        """A click selects a scheme, and a second one chooses it: a conversion can take minutes."""
        clicked = event.style.meta.get("option")
        if clicked is not None and clicked != self.highlighted:
            event.prevent_default()
            self.highlighted = clicked

    def action_page_up(self) -> None:
        """Scroll the drawer: all schemes are in view after a few keys, the figures around them are not."""
        if isinstance(self.parent, Widget):
            self.parent.scroll_page_up(animate=False)

    def action_page_down(self) -> None:
        if isinstance(self.parent, Widget):
            self.parent.scroll_page_down(animate=False)


class QuantizationDrawer(VerticalScroll, can_focus=False):
    """Beside the chats, in the place of the decoding drawer. Receives snapshots while it is open."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", show=False),
        Binding("tab,shift+tab", "switch", show=False),
    ]
    HINTS: ClassVar[Hints] = (
        ("quantization.up quantization.down", "choose"),
        ("Tab", "cache"),
        ("PgDn", "more"),
        ("Enter", "convert"),
        ("Esc", "close"),
    )

    awaited = "preparing"  # before the first layer of a conversion

    @property
    def hints(self) -> Hints:
        """The keys that do something now."""
        choose, other, more, convert, leave = self.HINTS
        other = ("Tab", "weights") if self.forms.has_focus else other
        listed = bool(self.schemes.option_count or self.forms.option_count)
        works = (
            (choose, listed),
            (other, bool(self.forms.option_count)),
            (more, self.show_vertical_scrollbar),
            (convert, listed),
            (("Esc", "cancel") if self._cancels else leave, True),
        )
        return tuple(hint for hint, on in works if on)

    @property
    def _cancels(self) -> bool:
        """Whether Esc cancels a conversion. One that is being reverted ends by itself."""
        change = self._snapshot.change if self._snapshot is not None else None
        return bool(self._expected or (change and not change.over and not change.error))

    class LeaveRequested(Message):
        """Focus should return to the prompt."""

    class WeightSchemeChosen(Message):
        """Convert the weights to this scheme; empty: cancel the running conversion."""

        def __init__(self, scheme: str) -> None:
            super().__init__()
            self.scheme = scheme

    class CacheSchemeChosen(Message):
        """Store the KV cache in this scheme."""

        def __init__(self, scheme: str) -> None:
            super().__init__()
            self.scheme = scheme

    def __init__(self, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.add_class("-unloaded")
        self.title = Static("scheme", classes="section")
        self.scheme, self.memory, self.room = Figures(), Figures(), Figures()
        self.schemes, self.change = Schemes(), Static(classes="change")
        self.forms, self._of_forms = Schemes(), Static("KV cache per token", classes="section")
        self.preview = Static(classes="preview")
        self._marks, self._changing = UNICODE, False
        self._expected = ""  # the scheme of a conversion that the engine has not reported yet
        self._snapshot: Snapshot | None = None
        self._hinted: Hints = ()

    def compose(self) -> ComposeResult:
        yield Static("The engine is not loaded.", classes="unloaded")
        yield self.title
        yield self.scheme
        yield self.change
        yield self.schemes
        yield self._of_forms
        yield self.forms
        yield Static("memory", classes="section")
        yield self.memory
        yield Static("room", classes="section")
        yield self.room
        yield self.preview

    def obey(self, marks: Marks) -> None:
        self._marks = marks
        for each in (self.scheme, self.memory, self.room):
            each.marks = marks

    def see_snapshot(self, snapshot: Snapshot) -> None:
        self.set_class(not snapshot.runs, "-unloaded")
        if not snapshot.runs:  # an engine that has ended has no memory, and converts nothing
            self._clear()
            return
        self.scheme.rows = figures.scheme(snapshot)
        self.memory.rows = figures.memory(snapshot.memory)
        self.room.rows = figures.room(snapshot)
        offered, forms = figures.schemes(snapshot), snapshot.kv_schemes
        times = figures.times(snapshot, offered, of_cache=False)
        self.schemes.see(offered, times, snapshot.quantization, self._marks)
        times = figures.times(snapshot, forms, of_cache=True)
        self.forms.see(forms, times, snapshot.kv_scheme, self._marks)
        self.forms.display = self._of_forms.display = bool(snapshot.kv_schemes)
        changing = snapshot.change is not None and not snapshot.change.over
        if changing or snapshot.quantization == self._expected:
            self._expected = ""
        self._snapshot = snapshot
        self._show_change()

    def _clear(self) -> None:
        self._snapshot, self._expected = None, ""
        for each in (self.scheme, self.memory, self.room):
            each.rows = ()
        for listed in (self.schemes, self.forms):
            listed.see((), {}, "", self._marks)
        self.forms.display = self._of_forms.display = False
        self.preview.update("")
        self._show_change()

    def expect(self, scheme: str) -> None:
        """Show at once that a conversion was asked for: kernels may compile first. Empty: there is none."""
        self._expected = scheme
        self._show_change()

    def _show_change(self) -> None:
        change = self._snapshot.change if self._snapshot is not None else None
        self._changing = bool(self._expected or (change and not change.over))
        self.change.display = bool(self._expected or change)
        self._tell_hints()
        self._preview()

    def watch_show_vertical_scrollbar(self) -> None:
        self._tell_hints()

    def _tell_hints(self) -> None:
        if self.hints != self._hinted:
            self._hinted = self.hints
            self.post_message(HintsChanged())

    def focus(self, scroll_visible: bool = True) -> Self:
        """Focus the list."""
        self.schemes.focus(scroll_visible)
        return self

    @on(OptionList.OptionHighlighted)
    @on(DescendantFocus)
    @on(DescendantBlur)
    def _preview(self) -> None:
        """Show the effect of the selected scheme on weights and cache, and that of Esc on a conversion."""
        if self._snapshot is not None:
            cancels = self.has_focus_within
            words = figures.change(self._snapshot, self._marks, cancels=cancels)
            if self._expected:
                words = "\n".join((f"to {self._expected}: {self.awaited}", *["Esc cancels"] * cancels))
            self.change.update(Content(words))
            of_forms = self.forms.has_focus
            option = (self.forms if of_forms else self.schemes).highlighted_option
            name = option.id if option is not None and option.id else ""
            lines = figures.preview(self._snapshot, name, self._marks, of_cache=of_forms)
            self.preview.update(Content("\n").join(lines))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        if event.option_id is not None:
            kind = self.CacheSchemeChosen if event.option_list is self.forms else self.WeightSchemeChosen
            self.post_message(kind(event.option_id))

    def action_switch(self) -> None:
        """Focus the other list, if there is one."""
        (self.forms if self.forms.display and not self.forms.has_focus else self.schemes).focus()

    def action_leave(self) -> None:
        """Cancel a running conversion; otherwise close the drawer."""
        self.post_message(self.WeightSchemeChosen("") if self._cancels else self.LeaveRequested())
