"""F3: how the active chat's replies are sampled. Changes apply immediately."""

from dataclasses import dataclass

from textual import on
from textual.content import Content

from engine.api.errors import EngineError
from engine.api.snapshot import BeamsView, Snapshot
from engine.api.speculation import Speculation
from minichat.features.decoding.drawer import DecodingDrawer
from minichat.features.decoding.knobs import Knobs
from minichat.features.feature import Context, Feature, HelpSection, PanelSpec, ScreenCommand
from minichat.session.conversation import Conversation
from minichat.session.decoding import grammar_of, preset_of
from minichat.session.run import RunningReply
from minichat.ui.dialogs.ask import ask
from minichat.ui.dialogs.pick import Choice, PickScreen
from minichat.ui.marks import ASCII


@dataclass(slots=True)
class _Seen:
    """A chat's newest reply, and what was last seen of it; kept after it ends."""

    run: RunningReply
    beams: BeamsView | None = None
    speculation: Speculation | None = None


class DecodingPanel(DecodingDrawer):
    """Shows the active chat. Only its likeliest tokens are requested, and only while the drawer is open."""

    def __init__(self, context: Context) -> None:
        super().__init__(id="decoding", classes="drawer")
        self.context = context
        self._seen: dict[int, _Seen] = {}  # by chat id
        self.knobs.move_keys = context.keys.names(("decoding.up", "decoding.down"))
        self.knobs.default = context.program.start.params
        if context.program.start.ascii:
            self.obey(ASCII)
        signals = context.signals
        for signal in (signals.chat_changed, signals.arranged, signals.presets):
            signal.connect(self._update)
        signals.changed.connect(self._changed)
        signals.snapshot.connect(self._look)
        signals.replaced.connect(self._seen.clear)

    def see_snapshot(self, snapshot: Snapshot) -> None:
        self.knobs.kinds = snapshot.speculates
        self._show()

    def _update(self) -> None:
        """Update after a change of the active chat, the layout or the presets."""
        active = self.context.chats.active
        for each in self.context.chats:
            each.watch(self.display and each is active)
        self.knobs.presets, self.knobs.own = self.context.presets.all, self.context.presets.names
        self.knobs.show_params(active.chat.params, active.strategies)
        self._show()

    def _changed(self, conversation: Conversation) -> None:
        """A reply started or ended, or the settings of its chat have changed."""
        self._see(conversation)
        if conversation is self.context.chats.active:
            self.knobs.params = conversation.chat.params  # the engine may have refused the change
            self._show()

    def _show(self) -> None:
        active = self.context.chats.active
        words, seen, run = self.context.program.backend.words, self._seen.get(active.chat.id), active.run
        self.likely.show(active.likely, words)
        searching, beams = active.chat.params.beams > 1, seen.beams if seen else None
        # Until a reply has a token, the likeliest ones are those of the reply before.
        over = run is None or (not searching and run.first is None)
        self.show_search(searching, beams, words, over=over)
        self.show_gains(self._speculation(active, seen), over=not active.streaming)

    def _speculation(self, active: Conversation, seen: _Seen | None) -> Speculation | None:
        """What the kind of drafts that is set brings the running reply, or brought the last one."""
        kind, found = active.chat.params.speculate, None
        if seen is not None:
            found = seen.speculation if active.streaming else seen.run.speculation
        if kind and found is not None and found.kind == kind:
            return found
        return Speculation(kind) if kind and active.streaming else None

    def _look(self, snapshot: Snapshot) -> None:
        """Follow the requests of all chats, also while the drawer is closed."""
        for each in self.context.chats:
            if (seen := self._see(each)) is not None and seen.run.reply is not None:
                self._look_at(seen, seen.run.reply.id, snapshot)

    def _look_at(self, seen: _Seen, request: int, snapshot: Snapshot) -> None:
        seen.beams = next((each for each in snapshot.beams if each.request == request), seen.beams)
        views = (each.speculation for each in snapshot.requests if each.id == request)
        seen.speculation = next(views, None) or seen.speculation

    def _see(self, conversation: Conversation) -> _Seen | None:
        """What was seen of the chat's newest reply."""
        run, seen = conversation.run, self._seen.get(conversation.chat.id)
        if run is not None and (seen is None or seen.run is not run):
            seen = self._seen[conversation.chat.id] = _Seen(run)
        return seen

    # User actions

    @on(Knobs.Changed)
    def _tune(self, event: Knobs.Changed) -> None:
        for each in self.context.chats:  # maybe no longer the active one
            if each.strategies is event.strategies:
                with self.context.program.reporting_errors():
                    each.tune(event.params)

    @on(Knobs.Refused)
    def _refused(self, event: Knobs.Refused) -> None:
        """Report it, unless the drawer shows it."""
        if self.display and event.strategies is self.knobs.strategies:
            return
        for each in self.context.chats:
            if each.strategies is event.strategies:
                self.context.program.report(f"Chat {each.chat.letter.upper()} is not changed. {event.why}")

    @on(Knobs.SaveRequested)
    async def _save(self) -> None:
        await self.context.run(SAVE)

    @on(Knobs.DeleteRequested)
    async def _delete(self) -> None:
        await self.context.run(DELETE)

    @on(Knobs.GrammarRequested)
    def _ask_for_grammar(self) -> None:
        ask_for_grammar(self.context)

    @on(DecodingDrawer.LeaveRequested)
    def _leave(self) -> None:
        self.context.panels.leave()


def toggle(context: Context) -> None:
    context.panels.toggle(context.part(DecodingPanel))


def save_preset(context: Context) -> None:
    knobs = context.part(DecodingPanel).knobs
    knobs.commit()
    if knobs.trouble:
        return  # the drawer shows what is wrong with the typed value
    params = knobs.params

    def accept(name: str) -> bool:
        if name and not name.strip():
            context.app.notify("A preset's name cannot be blank", severity="warning")
            return False
        return not name or context.presets.save(name.strip(), params)

    ask(context.app, "Save these settings as a preset named", accept)


def delete_preset(context: Context) -> None:
    """Ask which of the user's presets to delete. The one in use is listed first."""
    own = context.presets.own()
    if not own:
        context.app.notify("You have no presets. Built-in presets cannot be deleted", severity="warning")
        return
    used = preset_of(context.chats.active.chat.params, own)
    ordered = sorted(own, key=lambda each: each is not used)
    choices = [Choice(Content.assemble(" ", each.name), each.name) for each in ordered]

    def take(name: str | None) -> None:
        if name is not None:
            context.presets.delete(name)

    context.app.push_screen(PickScreen("Delete a preset permanently", lambda _: choices), take)


def ask_for_grammar(context: Context) -> None:
    """Ask for the grammar of replies: the file of a JSON schema, or a regex between two slashes."""
    active = context.chats.active
    held = active.chat.params.grammar
    given = f"/{held.text}/" if held and held.kind == "regex" else ""

    def accept(answer: str) -> bool:
        if not given and not answer.strip():
            return True  # what there is may be a schema, which the field does not show
        with context.program.reporting_errors():
            try:
                active.tune(active.chat.params.changed(grammar=grammar_of(answer)))
            except EngineError as error:
                context.program.report(str(error))
                return False
        return True

    ask(context.app, "Grammar: the file of a JSON schema, or a /regex/", accept, given)


SAVE = ScreenCommand("decoding.save", "View", "Save the decoding settings as a preset", save_preset)
DELETE = ScreenCommand("decoding.delete", "View", "Delete a decoding preset", delete_preset)
DECODING = Feature(
    name="decoding",
    title="Decoding",
    commands=(
        ScreenCommand(
            "view.decoding",
            "View",
            "Decoding settings of this chat",
            toggle,
            "f3",
            "decoding",
            also="sampling temperature top-k top-p min-p seed beams grammar json regex speculation greedy",
            greeting="how replies are sampled",
        ),
        SAVE,
        DELETE,
    ),
    panel=PanelSpec(DecodingPanel, sees=DecodingPanel.see_snapshot),
    help=(
        HelpSection(
            "In the decoding drawer",
            (
                ("{decoding.up decoding.down}", "previous or next field"),
                ("{decoding.less decoding.more}", "change it"),
                ("{decoding.much_less decoding.much_more}", "change it by ten"),
                ("0-9", "type a value"),
                ("Enter", "select the value; End: add to it"),
                ("^U", "clear the value; ^W: delete its last word"),
                ("Delete", "reset to default; delete your preset"),
                ("Enter", "on grammar: enter a JSON schema file or /regex/"),
                ("^S", "save as a preset"),
            ),
        ),
    ),
    keyed=(("decoding", Knobs),),
    css="""
    Knobs { height: auto; margin-top: 1; }
    LikelyTokens, BeamTree { height: 10; }
    #decoding .gains { height: 1; color: $text-success; }
    """,
)
