"""F4: send the choices of the quantization drawer to the engine."""

from collections.abc import Sequence

from textual import on

from engine.api.commands import CancelQuantization, SetKvScheme, SetQuantization
from engine.api.errors import EngineError
from engine.api.events import Event, Quantized
from engine.api.snapshot import Snapshot
from minichat.features.feature import Context, Feature, HelpSection, PanelSpec, ScreenCommand
from minichat.features.quantization.drawer import QuantizationDrawer, Schemes
from minichat.features.quantization.reverting import Reverting
from minichat.ui import sending
from minichat.ui.marks import ASCII


class QuantizationPanel(QuantizationDrawer):
    """The drawer, connected to the program's engine."""

    def __init__(self, context: Context) -> None:
        super().__init__(id="quantization", classes="drawer")
        self.context = context
        if context.program.start.ascii:
            self.obey(ASCII)
        context.signals.replaced.connect(lambda: self._date("of the previous engine"))
        context.signals.events.connect(self._report)

    def see_snapshot(self, snapshot: Snapshot) -> None:
        engine = self.context.engine
        self.awaited = engine.gap[0].lower() if engine.unlinked else "preparing"
        super().see_snapshot(snapshot)
        self._date(self.context.engine.cut)

    def _date(self, age: str) -> None:
        """Show how old the figures are, if they are not current."""
        self.title.update("  ".join(filter(None, ("scheme", age))))

    def _report(self, events: Sequence[Event]) -> None:
        """Report a conversion that has failed, unless the drawer shows it."""
        for event in events:
            if isinstance(event, Quantized):
                self.expect("")
                if event.error and not self.display:
                    words = f"The weights are not changed to {event.scheme}: {event.error}"
                    self.context.program.report(words)

    @on(QuantizationDrawer.WeightSchemeChosen)
    def _quantize(self, chosen: QuantizationDrawer.WeightSchemeChosen) -> None:
        """Convert the weights; an empty scheme cancels the running conversion."""
        program, shot, scheme = self.context.program, self.context.engine.latest, chosen.scheme
        if not scheme:
            sending.ask(self.context, program.backend.send(CancelQuantization()))
        elif shot and shot.quantization == scheme and (shot.change is None or shot.change.over):
            self.notify(f"The scheme of the weights is already {scheme}", severity="warning")
        else:
            sending.ask(self.context, self._convert(scheme))

    async def _convert(self, scheme: str) -> None:
        first = not self._changing
        if first:
            self.expect(scheme)
        try:
            await self.context.program.backend.send(SetQuantization(scheme))
        except EngineError:
            if first:
                self.expect("")
            raise

    @on(QuantizationDrawer.CacheSchemeChosen)
    def _recache(self, chosen: QuantizationDrawer.CacheSchemeChosen) -> None:
        program, shot, scheme = self.context.program, self.context.engine.latest, chosen.scheme
        if shot and shot.kv_scheme == scheme:
            self.notify(f"The scheme of the KV cache is already {scheme}", severity="warning")
        else:
            sending.ask(self.context, program.backend.send(SetKvScheme(scheme)))

    @on(QuantizationDrawer.LeaveRequested)
    def _leave(self) -> None:
        self.context.panels.leave()


def toggle(context: Context) -> None:
    context.panels.toggle(context.part(QuantizationPanel))


QUANTIZATION = Feature(
    name="quantization",
    title="Quantization and memory",
    commands=(
        ScreenCommand(
            "view.quantization",
            "View",
            "Quantization and memory",
            toggle,
            "f4",
            also="weights cache int8 int4 fp8 ram",
            greeting="how weights are stored",
        ),
    ),
    part=Reverting,
    panel=PanelSpec(QuantizationPanel, sees=QuantizationPanel.see_snapshot),
    help=(
        HelpSection(
            "In the quantization drawer",
            (
                ("{quantization.up quantization.down}", "previous or next scheme"),
                ("Tab", "switch between weights and cache"),
                ("Enter", "convert to the scheme"),
            ),
        ),
    ),
    keyed=(("quantization", Schemes),),
    css="""
    #quantization Figures { height: auto; }
    #quantization Schemes { height: auto; border: none; padding: 0; background: $surface; }
    #quantization .preview { dock: bottom; height: 5; background: $surface; }
    #quantization.-unloaded .section, #quantization .unloaded { display: none; }
    #quantization.-unloaded .unloaded { display: block; color: $text-muted; }
    #quantization .change { height: auto; display: none; color: $text-warning; }
    """,
)
