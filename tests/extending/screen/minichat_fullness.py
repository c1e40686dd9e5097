"""A drawer for minichat's screen in a separate package: how full the cache has been."""

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widgets import Static

from engine.api.snapshot import Snapshot
from minichat.features.feature import Context, Feature, HelpSection, PanelSpec, ScreenCommand


class Fullness(Static, can_focus=True):
    """The largest share of the cache in use while the drawer was open."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("r", "forget", "Forget the largest share", id="fullness.forget", show=False),
        Binding("escape", "leave", show=False),
    ]

    def __init__(self, context: Context) -> None:
        super().__init__("no snapshot yet", classes="drawer")
        self.context = context
        self.largest = 0.0

    def see_snapshot(self, snapshot: Snapshot) -> None:
        self.largest = max(self.largest, snapshot.blocks.in_use / len(snapshot.blocks.refs))
        self.update(f"{self.largest:.1%} at most")

    def action_forget(self) -> None:
        self.largest = 0.0

    def action_leave(self) -> None:
        self.context.panels.leave()


def toggle(context: Context) -> None:
    context.panels.toggle(context.part(Fullness))


FULLNESS = Feature(
    name="fullness",
    title="How full the cache has been",
    commands=(
        ScreenCommand("view.fullness", "View", "How full the cache has been", toggle, "f9", "fullness"),
    ),
    panel=PanelSpec(Fullness, sees=Fullness.see_snapshot),
    help=(HelpSection("In the fullness drawer", (("{fullness.forget}", "forget the largest share"),)),),
    keyed=(("fullness", Fullness),),
    css="Fullness { color: $text-success; }",
)
