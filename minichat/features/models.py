"""The model dialog: local models, and any name on the Hugging Face hub."""

from collections.abc import Sequence
from functools import partial
from typing import ClassVar

from rich.cells import cell_len
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import Input, OptionList

from minichat.clients.bridge import in_thread
from minichat.features.feature import Context, Feature, ScreenCommand
from minichat.models.catalog import MISSING, Model, Source, arranged, identity, local, on_hub, sources
from minichat.models.lifecycle import EngineLifecycle
from minichat.models.progress import size
from minichat.shell.background import begin
from minichat.shell.remembered import Remembered
from minichat.ui.dialogs.pick import Choice, PickScreen
from minichat.ui.marks import ASCII, UNICODE, ending
from minichat.ui.transcript.glyphs import one_line

_WIDEST, _REST = 110, 50  # cells: the dialog, and everything in it but the names
_HINT = "filter, or enter a folder or a hub name such as Qwen/Qwen3-0.6B"
_CANCEL = "  ^X cancels the download"


class ModelScreen(PickScreen[Model]):
    """Returns a model to load or download. A line below the list explains why one is unavailable."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+x", "cancel_fetching", show=False, priority=True)]

    def __init__(self, lifecycle: EngineLifecycle, folders: Sequence[str]) -> None:
        super().__init__("Choose a model", self._fitting, _HINT)
        self._lifecycle = lifecycle
        self._sources = sources(folders, Remembered.read(lifecycle.program.paths.remembered).models)
        self._found_in: dict[int, list[Model]] = {}  # by source index; other sources have not answered
        self._typed: dict[str, list[Model]] = {}  # typed queries, resolved on the file system
        self._present = identity(lifecycle.model)
        self._ellipsis = (ASCII if lifecycle.program.start.ascii else UNICODE).ellipsis
        self._noted = ""  # the model that the last remark was about
        self._sure = ""  # the model for which replies may be stopped

    def on_mount(self) -> None:
        self.query_one(".sheet").add_class("-wide")
        self._lifecycle.tell = self._show_progress
        if self._lifecycle.fetching:
            self._show_progress(f"downloading {self._lifecycle.fetching}")
        if not self._lifecycle.ready.is_set():
            begin(self, self._follow_load)
        for place, source in enumerate(self._sources):
            begin(self, partial(self._look, place, source))

    def on_unmount(self) -> None:
        self._lifecycle.tell = None

    def on_resize(self) -> None:
        self._fill()  # a line is as wide as the dialog

    # File systems are queried in threads, because a network mount may be slow or never answer.

    async def _look(self, place: int, source: Source) -> None:
        self._found_in[place] = await in_thread(source)
        self._fill()

    async def _look_for(self, query: str) -> None:
        self._typed[query] = await in_thread(lambda: local(query))
        self._fill()

    def _fill(self) -> None:
        """Update the list with new results and keep the selection."""
        if not self.query(OptionList):  # the dialog is closing
            return
        options = self.query_one(OptionList)
        chosen = self.choice(options.highlighted_option) if options.highlighted else None
        self._list(self.query_one(Input).value)
        if chosen is not None:
            values = [choice.value for choice in self._choices.values()]
            options.highlighted = values.index(chosen.value) if chosen.value in values else 0

    def _fitting(self, query: str) -> Sequence[Choice[Model]]:
        found = arranged(models for _, models in sorted(self._found_in.items()))
        models = [model for model in found if model.holds(query)]
        if query not in self._typed:
            self._typed[query] = []
            begin(self, partial(self._look_for, query))
        hub = on_hub(query)
        typed = self._typed[query] or ([hub] if hub else [])
        known = {model.name for model in models}
        models += [model for model in typed if model.name not in known]
        if not models and len(self._found_in) == len(self._sources) and not self._lifecycle.fetching:
            self._noted = ""
            self.say("No model matches. Enter a folder or a full hub name")
        return [Choice(self._line(model), model) for model in models]

    def _line(self, model: Model) -> Content:
        """A line: name, size of the weights, family, and location or state."""
        support = model.support
        if model.trouble:
            state = (model.place if model.place == MISSING else "not supported", "$text-error")
        elif self._runs(model):
            state = ("running", "$text-success")
        else:
            state = ("Enter downloads" if support is None else model.place, "$text-muted")
        room = max(min(int(self.app.size.width * 0.96), _WIDEST) - _REST, 8)
        name = ending(one_line(model.title), room, self._ellipsis)
        style = "$text-muted" if model.trouble else "bold" if self._runs(model) else ""
        weights = size(support.bytes) if support and support.bytes else ""
        return Content.assemble(
            (f" {name}{' ' * (room - cell_len(name))} ", style),
            (f"{weights:>8}  {one_line(support.family) if support else '':16.16} ", "$text-muted"),
            state,
        )

    def _runs(self, model: Model) -> bool:
        return model.name == self._present and self._lifecycle.alive

    def _remark(self, model: Model) -> str:
        """What the user should know before choosing the model."""
        if model.trouble:
            return one_line(f"{model.title}: {model.trouble}")
        if model.support is None:
            return ""
        if not model.support.native:
            return one_line(f"{model.support.family} is not supported natively; it runs through transformers")
        key = self._lifecycle.program.keys.name("view.quantization")
        way = f"; {key} shows its size in memory" if self._runs(model) else ""
        return f"{size(model.support.bytes)} on disk{way}"

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        """Show a remark when a line is selected, but not again when the list is refilled around it."""
        choice = self.choice(event.option)
        if self._lifecycle.fetching or choice is None or event.option_index != event.option_list.highlighted:
            return
        if choice.value.name != self._noted:
            self._noted = choice.value.name
            self.say(self._remark(choice.value))

    def take(self, model: Model) -> None:
        if reason := model.trouble or self._lifecycle.busy:
            self.say(one_line(reason) + (_CANCEL if self._lifecycle.fetching else ""))
        elif model.support is None:
            self._lifecycle.choose(model)  # the dialog stays open to show the progress
        elif self._runs(model):
            self.dismiss(None)
        elif (running := self._lifecycle.program.chats.running) and self._sure != model.name:
            self._sure = model.name
            self.say(f"{running}; press Enter again to stop and load {one_line(model.title)}")
        else:
            self.dismiss(model)

    async def _follow_load(self) -> None:
        """The model that was loading is there, or cannot be loaded, which a notice behind the dialog says."""
        await self._lifecycle.ready.wait()
        self._present = identity(self._lifecycle.model)
        if not self._lifecycle.trouble:
            self._noted = ""
        self.say(one_line(self._lifecycle.trouble))
        self._fill()

    def action_cancel_fetching(self) -> None:
        self._lifecycle.cancel_fetching()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return action != "cancel_fetching" or bool(self._lifecycle.fetching)

    def _show_progress(self, words: str) -> None:
        """Show the progress of a download. Empty text: it has finished and the model will load."""
        if words:
            self.say(words + (_CANCEL if self._lifecycle.fetching else ""))
        else:
            self.dismiss(None)


def choose(context: Context) -> None:
    def take(model: Model | None) -> None:
        if model is not None:
            context.lifecycle.choose(model)

    if place := context.program.backend.elsewhere:  # which models it could load is not known here
        why = f"An attached screen cannot change the model of {place}. Start that engine with another one"
        context.app.notify(why, severity="warning")
        return
    folders = context.program.settings.engine.folders
    context.app.push_screen(ModelScreen(context.lifecycle, folders), take)


MODELS = Feature(
    name="models",
    title="Models",
    commands=(ScreenCommand("model.pick", "Program", "Choose a model", choose, "alt+o", also="load switch"),),
)
