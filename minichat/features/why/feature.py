"""F8: where a step spends its time, and its bottleneck."""

from collections.abc import Callable, Sequence
from dataclasses import astuple
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from engine.api.commands import MeasureSpeeds
from engine.api.errors import EngineError
from engine.api.snapshot import Snapshot
from engine.api.speeds import Speeds
from minichat.clients.protocol import Backend
from minichat.features.feature import Context, Feature, ScreenCommand
from minichat.features.why.speed import Speed, Use, explain
from minichat.models.progress import size
from minichat.shell.background import begin
from minichat.ui.dialogs.dialog import Dialog
from minichat.ui.engine_watch import EngineWatch
from minichat.ui.monitor.figures import duration, per_second
from minichat.ui.monitor.graphs import bar, shares
from minichat.ui.monitor.pane import ASCII, UNICODE, Signs

_PARTS = ("plan", "launch", "wait", "commit")
_WORK = ("attention", "products", "sampling", "rest")
_LATE = "Open this during a reply to see what a step consists of."
_DRAFTS = "(without what drafting reads and computes, which takes a part of the launch)"
_STYLES = ("$primary", "$accent", "$text-success", "$text-warning")
_ASKS_EVERY = 5.0  # seconds: an engine profiles its steps only while requested
_LABEL = 12  # cells


class WhyScreen(Dialog[None]):
    """Follows the engine while it is open. The device is measured when the dialog opens first."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "leave", show=False),
        Binding("up", "scroll(-1)", show=False),
        Binding("down", "scroll(1)", show=False),
        Binding("pageup,home", "scroll(-100)", show=False),
        Binding("pagedown,end", "scroll(100)", show=False),
    ]

    def __init__(
        self, engine: EngineWatch, backend: Backend, signs: Signs, clock: Callable[[], float]
    ) -> None:
        super().__init__()
        self._clock = clock
        self._engine, self._backend, self._signs = engine, backend, signs
        self._speeds: Speeds | None = None
        self._trouble = ""
        self._asked = 0.0
        self._loaded = False
        self._sheet, self._text = VerticalScroll(classes="sheet -figures", can_focus=False), Static(id="why")

    def compose(self) -> ComposeResult:
        with self._sheet:
            yield self._text

    def on_mount(self) -> None:
        self._engine.observe(self)  # asks if the engine is loaded
        self._show()

    def on_unmount(self) -> None:
        self._engine.unobserve(self)

    def on_resize(self) -> None:
        self._show()

    def see_snapshot(self, snapshot: Snapshot) -> None:
        if not self._loaded or self._clock() - self._asked > _ASKS_EVERY:
            self._ask()
        self._loaded = True
        self._show()

    def action_scroll(self, lines: int) -> None:
        self._sheet.scroll_relative(y=lines, animate=False)

    def _note_scrolling(self) -> None:
        more = self._sheet.max_scroll_y > 0
        self._sheet.border_subtitle = f"{'Up Down scroll  ' if more else ''}Esc close"

    def _ask(self) -> None:
        self._asked = self._clock()
        begin(self, self._measure)

    async def _measure(self) -> None:
        try:
            self._speeds, self._trouble = await self._backend.send(MeasureSpeeds()), ""
        except EngineError as error:
            self._trouble = f"Cannot measure the device: {error}"
        self._show()

    def _show(self) -> None:
        self.call_after_refresh(self._note_scrolling)
        shot, before = self._engine.latest, self._engine.at_work
        self._sheet.border_title = "Why this speed"
        if shot is None:
            self._text.update("The engine is not loaded.")
            return
        last, runs = before is not None and before is not shot and not shot.running, shot.runs
        if before is not None and last:
            shot = before
        if when := ", ".join(filter(None, ("last run" if last else "", self._engine.cut))):
            self._sheet.border_title = f"Why this speed ({when})"
        width = max(20, self._sheet.scrollable_content_region.width)
        trouble = self._trouble
        if self._engine.cut and self._speeds is None:
            trouble = "The device is measured when the engine answers."
        lines = described(explain(shot, self._speeds), width, self._signs, trouble)
        late = last and runs and shot.on_cpu and shot.split is None
        self._text.update(Content.assemble(lines, "\n", (_LATE, "$text-muted")) if late else lines)


def described(speed: Speed, width: int, signs: Signs, trouble: str = "") -> Content:
    """The explanation, then the figures behind it."""
    lines = [Content.styled(trouble or speed.sentence, "bold"), Content("")]
    lines += _step(speed, width, signs)
    lines += _use("memory", speed.memory, "/s", width, signs)
    blocks = f", {size(speed.cache)} of KV cache" if speed.cache or speed.idle else ""  # else not known
    parts = f"{size(speed.weights)} of weights{blocks} per step"
    lines.append(Content.assemble(" " * _LABEL, (parts, "$text-muted")))
    held = size(speed.held)  # as the monitor shows it
    if 0 < speed.weights < speed.held and held != size(speed.weights):
        rest = (
            "experts that no token chooses are not read"
            if speed.experts
            else "the embedding is only looked up"
        )
        where = "on a rank" if speed.ranks else "in a replica" if speed.fleet else "in all"
        whole = f"(of {held} {where}: {rest})"
        lines.append(Content.assemble(" " * _LABEL, (whole, "$text-muted")))
    if speed.states:
        states = f"{size(speed.states)} of recurrent states, read and written"
        lines.append(Content.assemble(" " * _LABEL, (states, "$text-muted")))
    if speed.adapters:
        adapters = f"{size(speed.adapters)} of LoRA adapters per step"
        lines.append(Content.assemble(" " * _LABEL, (adapters, "$text-muted")))
    if speed.arithmetic.amount:
        lines += _use("arithmetic", speed.arithmetic, " FLOP/s", width, signs)
    rows = f"{speed.rows:.1f} rows, {speed.tokens:,.1f} tokens per step, {per_second(speed.steps)} steps/s"
    if speed.replicas > 1:
        rows += f" in {speed.replicas} replicas"
    lines.append(Content.assemble(("batch".ljust(_LABEL), "$text-muted"), "idle" if speed.idle else rows))
    if speed.drafts:
        lines.append(Content.assemble(" " * _LABEL, (_DRAFTS, "$text-muted")))
    if speed.traffic:
        each = f"{speed.ranks} ranks send {size(speed.traffic)}/s each on average"
        sent = f"{speed.joining:.0%} of the time; {each}"
        lines.append(Content.assemble(("exchanges".ljust(_LABEL), "$text-muted"), sent))
    return Content("\n").join(lines)


def _step(speed: Speed, width: int, signs: Signs) -> list[Content]:
    """A bar of the four parts with their milliseconds; on a CPU also the parts of the work."""
    lines = _shared("mean step", _PARTS, astuple(speed.times), width, signs)
    if speed.split is not None and speed.staged:
        # The last stage's work is done when its step is collected, so it is in the wait.
        *parts, whole = speed.split
        rest = max(0.0, whole - sum(parts))
        lines += _shared("last stage", (*_WORK[:-1], "rest, waits"), (*parts, rest), width, signs)
    elif speed.split is not None:
        # These are means of other steps than the times: the parts are shown as shares of the launch.
        *parts, whole = speed.split
        scale = speed.times.launch / (max(whole, sum(parts)) or 1.0)
        parts = [seconds * scale for seconds in parts]
        lines += _shared("launch time", _WORK, (*parts, speed.times.launch - sum(parts)), width, signs)
    return lines


def _shared(
    label: str, names: Sequence[str], seconds: Sequence[float], width: int, signs: Signs
) -> list[Content]:
    """A bar, and a legend of its parts below."""
    cells = shares(seconds, width - _LABEL - 10)
    parts = list(zip(signs.parts, _STYLES, names, cells, seconds, strict=True))
    drawn = [(sign * count, style) for sign, style, _, count, _ in parts]
    legends = [
        Content.assemble(
            *(
                words
                for sign, style, name, _, took in parts
                for words in ((f"{gap}{sign} ", style), (f"{name} {duration(took)}", "$text-muted"))
            )
        )
        for gap in ("  ", " ")
    ]
    total = f"  {duration(sum(seconds))}"
    return [
        Content.assemble((label.ljust(_LABEL), "$text-muted"), *drawn, (total, "bold")),
        legends[0] if legends[0].cell_length <= width else legends[1],
    ]


def _use(name: str, use: Use, unit: str, width: int, signs: Signs) -> list[Content]:
    most = f" of {_amount(use.most, unit)} measured" if use.most else ""
    share = f" {use.share:5.0%}" if use.most else f" {'-':>5}"
    drawn = bar(use.share, max(8, width - _LABEL - 10), signs.full, signs.rest)
    return [
        Content.assemble((name.ljust(_LABEL), "$text-muted"), (drawn, "$primary"), (share, "bold")),
        Content.assemble(" " * _LABEL, f"{_amount(use.rate, unit)}{most}"),
    ]


def _amount(value: float, unit: str) -> str:
    """A formatted rate such as 3.40 GB/s or 210 GFLOP/s."""
    return f"{size(value).removesuffix('B')}{unit.strip()}" if "FLOP" in unit else f"{size(value)}{unit}"


def why(context: Context) -> None:
    program = context.program
    signs = ASCII if program.start.ascii else UNICODE
    context.app.push_screen(WhyScreen(context.engine, program.backend, signs, program.start.clock))


WHY = Feature(
    name="why",
    title="Why this speed",
    commands=(ScreenCommand("view.why", "View", "Why this speed", why, "f8"),),
    css=".sheet.-figures { width: 76; scrollbar-size-vertical: 1; }",
)
