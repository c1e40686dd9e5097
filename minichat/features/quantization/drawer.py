"""The quantization drawer: how the engine stores weights and KV cache, and the memory left."""

from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import ClassVar, Self

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import DescendantFocus
from textual.geometry import Region
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from engine.api.snapshot import SchemeView, Snapshot
from minichat.models.progress import size
from minichat.models.welcome import is_dry
from minichat.plural import plural
from minichat.ui.dialogs.options import Options
from minichat.ui.marks import UNICODE, Marks
from minichat.ui.panes.keybar import Hints

_LABEL, _FIGURE = 13, 9  # cells
_BAR = 20  # cells of the progress bar
_PURPOSES = {
    "weights": "weights",
    "cache": "KV cache",
    "host_cache": "host cache",
    "workspace": "workspace",
    "device_free": "free",
}

Row = tuple[str, str, float | None]  # label, figure, and share for a bar


class Figures(Widget):
    """Labels with figures, and bars for shares."""

    rows: reactive[tuple[Row, ...]] = reactive((), layout=True)
    marks: Marks = UNICODE

    def render(self) -> Content:
        return Content("\n").join(self._line(*row) for row in self.rows)

    def _line(self, label: str, figure: str, share: float | None) -> Content:
        line = [(f"{label:{_LABEL}}", "$text-muted"), (figure, "$text")]
        if share is not None:
            room = max(self.size.width - _LABEL - _FIGURE - 2, 0)
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
        width = max(self.scrollable_content_region.width - padding - _LABEL, 1)
        if (shown := (*self._seen, width)) == self._shown:
            return
        at, self._shown, prompts = self.highlighted, shown, dict[str, Content]()
        for above, each in zip((None, *schemes), schemes, strict=False):
            mark = marks.bar if each.name == present else " "
            line = f"{mark} {each.name:{_LABEL - 2}}", "$text-muted" if each.why_not else "$text"
            again = above is not None and above.why_not == each.why_not
            lines = ["as above"] if again else wrap(each.why_not, width)
            if not each.why_not:
                lines = costs(each, times.get(each.name, ""), width)
            rest = f"\n{' ' * _LABEL}".join(lines)
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


class QuantizationDrawer(VerticalScroll, can_focus=False):
    """Beside the chats, in the place of the decoding drawer. Receives snapshots while it is open."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", show=False)]
    HINTS: ClassVar[Hints] = (
        ("quantization.up quantization.down", "choose"),
        ("Tab", "weights, cache"),
        ("Enter", "convert"),
        ("Esc", "close"),
    )

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
        self._snapshot: Snapshot | None = None

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
        self.remove_class("-unloaded")
        self.scheme.rows = scheme(snapshot)
        self.memory.rows = memory(snapshot.memory)
        self.room.rows = room(snapshot)
        offered, forms = schemes(snapshot), snapshot.kv_schemes
        self.schemes.see(
            offered, times(snapshot, offered, of_cache=False), snapshot.quantization, self._marks
        )
        self.forms.see(forms, times(snapshot, forms, of_cache=True), snapshot.kv_scheme, self._marks)
        self.forms.display = self._of_forms.display = bool(snapshot.kv_schemes)
        self._changing = snapshot.change is not None and not snapshot.change.over
        self.change.update(Content(change(snapshot, self._marks)))
        self.change.display = bool(snapshot.change)
        self._snapshot = snapshot
        self._preview()

    def focus(self, scroll_visible: bool = True) -> Self:
        """Focus the list."""
        self.schemes.focus(scroll_visible)
        return self

    @on(OptionList.OptionHighlighted)
    @on(DescendantFocus)
    def _preview(self) -> None:
        """Show the effect of the selected scheme on weights and cache."""
        if self._snapshot is not None:
            of_forms = self.forms.has_focus
            option = (self.forms if of_forms else self.schemes).highlighted_option
            name = option.id if option is not None and option.id else ""
            lines = preview(self._snapshot, name, self._marks, of_cache=of_forms)
            self.preview.update(Content("\n").join(lines))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        if event.option_id is not None:
            kind = self.CacheSchemeChosen if event.option_list is self.forms else self.WeightSchemeChosen
            self.post_message(kind(event.option_id))

    def action_leave(self) -> None:
        """Cancel a running conversion; otherwise close the drawer."""
        self.post_message(self.WeightSchemeChosen("") if self._changing else self.LeaveRequested())


def scheme(shot: Snapshot) -> tuple[Row, ...]:
    if is_dry(shot):
        return ("model", shot.model, None), ("weights", "none (dry run)", None)
    if shot.quantization == "none":
        weights: tuple[Row, ...] = (("weights", f"{shot.dtype}, not quantized", None),)
    else:
        weights = (("weights", shot.quantization, None), ("computed in", shot.dtype, None))
    return (
        ("model", shot.model, None),
        *weights,
        ("KV cache", shot.kv_dtype or "unknown", None),
        ("runs on", f"{shot.device}, {len(shot.ranks)} ranks" if shot.ranks else shot.device, None),
        *([("sizes", "of one rank", None)] if shot.ranks else []),
    )


def schemes(shot: Snapshot) -> tuple[SchemeView, ...]:
    """The schemes of the weights. The size of the present one is measured, except while it changes."""
    held = shot.memory.get("weights", 0) if shot.change is None or shot.change.over else 0
    return tuple(
        each._replace(nbytes=held) if held and each.name == shot.quantization else each
        for each in shot.schemes
    )


def times(shot: Snapshot, offered: Sequence[SchemeView], *, of_cache: bool) -> dict[str, str]:
    """The measured times of a step, by scheme, for as many rows as the newest step had."""
    return {each.name: time for each in offered if (time := step_time(shot, each.name, of_cache=of_cache))}


def step_time(shot: Snapshot, name: str, *, of_cache: bool) -> str:
    """The time of a step with this scheme and the present other one; empty: not measured."""
    form = (shot.quantization, name) if of_cache else (name, shot.kv_scheme)
    if (found := shot.form_time(*form)) is None:
        return ""
    return f"{found.seconds * 1e3:.3g} ms" if found.seconds < 0.9995 else f"{found.seconds:.2f} s"


def costs(of: SchemeView, time: str, width: int) -> list[str]:
    """Bytes, blocks, and the time of a step, in one line if it fits."""
    line = f"{size(of.nbytes):>7}" + (f"  {of.blocks:,} blocks" if of.blocks else "")
    if not time:
        return [line]
    whole = f"{line}  {time} a step"
    return [whole] if len(whole) <= width else [line, f"{time:>7} a step"]


def before_and_then(now: str, then: str) -> tuple[str, str]:
    """The present time of a step and another one, if both are known, in words that fit into the drawer."""
    if not then:
        return ("not measured yet",) * 2
    if not now or now == then:
        return (f"{then} a step",) * 2
    return now.removesuffix(f" {then.rpartition(' ')[2]}"), f"{then} a step"


def rows_of_steps(shot: Snapshot) -> str:
    """How many rows the measured steps had, such as "2-8 rows"; empty: none was measured."""
    if not shot.form_times:
        return ""
    rows, most = shot.form_times[0].rows, shot.form_times[0].most
    if rows == most:
        return plural(rows, "row")
    return f"{rows}-{most} rows" if most else f"{rows}+ rows"


def change(shot: Snapshot, marks: Marks) -> str:
    """A running or failed conversion."""
    if (found := shot.change) is None:
        return ""
    if not found.error:
        full = _BAR * found.done // max(found.total, 1)
        bar = marks.bar * full + marks.rest * (_BAR - full)
        return f"to {found.scheme}: {found.done} of {found.total} layers\n{bar}  Esc cancels"
    state = (
        f"still {shot.quantization}"
        if found.over
        else f"reverting to {shot.quantization}, {found.done} layers"
    )
    return f"cannot use {found.scheme}: {found.error}; {state}"


def preview(shot: Snapshot, name: str, marks: Marks, *, of_cache: bool) -> tuple[Content, ...]:
    """Sizes of weights and cache with a scheme, and its steps; changed figures show both values."""
    of_weights = schemes(shot)
    offered, present = (shot.kv_schemes, shot.kv_scheme) if of_cache else (of_weights, shot.quantization)
    views = {each.name: each for each in offered}
    there, target = views.get(present), views.get(name)
    if there is None or target is None:
        return ()
    of = "cache" if of_cache else "weights"
    if target.why_not:
        return (Content.styled(f"{of} as {name}", "bold"), Content.styled(target.why_not, "$text-muted"))
    form = "not quantized" if name == "none" else f"as {name}"
    title = Content.styled(f"memory {'now,' if name == present else 'with'} {of} {form}", "bold")
    blocks = len(shot.blocks.refs)
    blocks_then = target.blocks or blocks
    weights = weights_then = next((each.nbytes for each in of_weights if each.name == shot.quantization), 0)
    cache = shot.memory.get("cache", 0)
    cache_then = cache * blocks_then // max(blocks, 1)
    if of_cache:
        cache_then = target.nbytes * shot.tokens_in(blocks_then) if target.nbytes else cache_then
    else:
        weights_then = target.nbytes

    def row(label: str, now: str, then: str) -> Content:
        figures = now if now == then else f"{now} {marks.becomes} {then}"
        return Content.assemble((f"{label:{_LABEL}}", "$text-muted"), (figures, "$text"))

    tokens = (f"{shot.tokens_in(count):,}" for count in (blocks, blocks_then))
    steps = (step_time(shot, each, of_cache=of_cache) for each in (present, name))
    return (
        title,
        row("weights", size(weights), size(weights_then)),
        row("KV cache", size(cache), size(cache_then)),
        row("tokens", *tokens),
        row(rows_of_steps(shot) or "a step", *before_and_then(*steps)),
    )


def memory(found: dict[str, int]) -> tuple[Row, ...]:
    """Memory by purpose. Shares are of device memory, so the host cache has none."""
    total = found.get("device_total", 0)
    rows = [
        (name, size(found[key]), found[key] / total if total and key != "host_cache" else None)
        for key, name in _PURPOSES.items()
        if found.get(key)
    ]
    return (*rows, ("total", size(total), None)) if total else tuple(rows)


def room(shot: Snapshot) -> tuple[Row, ...]:
    """Blocks, and the tokens they hold."""
    blocks, count = shot.blocks, len(shot.blocks.refs)
    free = count - blocks.in_use - blocks.cached
    rows: list[Row] = [
        ("blocks", f"{count:,} of {shot.block_size} tokens", None),
        ("in use", f"{blocks.in_use:,}", blocks.in_use / count),
        ("cached", f"{blocks.cached:,}", blocks.cached / count),
        ("free", f"{free:,}", free / count),
        ("tokens", f"{shot.tokens_in(count):,} total", None),
        ("left", f"{shot.tokens_in(count - blocks.in_use):,} available", None),
        ("context", f"at most {shot.max_context:,} tokens", None),
    ]
    if shot.host_size:
        rows.append(("swapped", f"{shot.host_in_use:,} of {shot.host_size:,} blocks", None))
    rows += [
        (tier.name, tier.problem or f"{tier.in_use:,} of {tier.size:,} blocks", None) for tier in shot.tiers
    ]
    return tuple(rows)
