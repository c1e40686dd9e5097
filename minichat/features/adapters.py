"""LoRA adapters: choose one for the chat, load another one, drop one."""

from collections.abc import Iterator
from functools import partial

from textual.content import Content

from engine.api.commands import DropAdapter, LoadAdapter
from engine.api.errors import BadInput, EngineError
from engine.api.places import AdapterPlace
from engine.api.snapshot import AdapterView
from minichat.features.feature import Context, Feature, Offer, ScreenCommand
from minichat.models.progress import size
from minichat.session.conversation import Conversation
from minichat.ui import sending
from minichat.ui.dialogs.ask import ask
from minichat.ui.dialogs.pick import Choice, PickScreen
from minichat.ui.transcript.glyphs import one_line

_LOAD = "="  # the choice that loads another one; not the name of any
_LATE = 1.0  # seconds that loading one takes before a notice says so


def use(context: Context, name: str, conversation: Conversation | None = None) -> None:
    """Compute the next replies of a chat, by default the active one, with an adapter; "" for none."""
    chats, conversation = context.chats, conversation or context.chats.active
    conversation.chat.adapter = name
    chats.services.store.change_chat(conversation.chat.id, adapter=name)
    chats.services.changed(conversation)


def choose(context: Context) -> None:
    """List the loaded adapters."""

    def take(name: str | None) -> None:
        if name == _LOAD:
            load(context)
        elif name is not None:
            use(context, name)

    present = context.chats.active.chat.adapter
    loaded = context.engine.latest.adapters if context.engine.latest else ()
    choices = [
        _choice("", "the model itself", present),
        *(_choice(each.name, _facts(each), present) for each in loaded),
    ]
    if present and present not in [each.name for each in loaded]:
        choices.append(_choice(present, "not loaded", present))
    choices.append(Choice(Content.assemble(("   load another ...", "$text-muted")), _LOAD))
    context.app.push_screen(PickScreen("Choose a LoRA adapter for this chat", lambda _: choices), take)


def _choice(name: str, facts: str, present: str) -> Choice[str]:
    mark = "*" if name == present else " "
    label = Content.assemble(f" {mark} ", (f"{name or 'none':24} ", "bold"), (facts, "$text-muted"))
    return Choice(label, name)


def _facts(adapter: AdapterView) -> str:
    return f"rank {adapter.rank}  {size(adapter.nbytes)}  {one_line(adapter.source)}"


def load(context: Context) -> None:
    """Ask for a name and a folder; the chat uses the adapter as soon as it is loaded."""
    conversation = context.chats.active  # loading takes time, and another may be active then
    place = context.program.backend.elsewhere
    where = f" on {place}, or" if place else ", a folder or"
    question = f"Load a LoRA adapter: NAME=PATH{where} a name on the hub"

    async def ask_engine(adapter: AdapterPlace, answer: str) -> None:
        before, waits = context.workspace.prompt.text, f"Waiting for the adapter {adapter.name} ..."
        try:
            with context.app.late_notice(lambda: waits, _LATE):
                await context.program.backend.send(LoadAdapter(adapter.name, adapter.path))
        except EngineError:
            undisturbed = len(context.app.screen_stack) == 1 and context.workspace.prompt.text == before
            if undisturbed and context.chats.active is conversation:
                again = partial(ask, context.app, question, accept, answer, refused=True)
                context.app.call_later(again)  # once the notice is there
            raise
        if conversation not in context.chats:
            context.app.notify(f"The adapter {adapter.name} is loaded. The chat that asked for it is closed")
            return
        use(context, adapter.name, conversation)
        context.app.notify(f"{conversation.chat.letter.upper()} uses the adapter {adapter.name}")

    def accept(text: str) -> bool:
        if text.strip():
            try:
                sending.ask(context, ask_engine(AdapterPlace.parse(text.strip()), text))
            except BadInput as error:
                context.program.report(str(error))
                return False
        return True

    ask(context.app, question, accept)


def _offers(context: Context) -> Iterator[Offer]:
    """A palette entry to drop each adapter."""
    for each in context.engine.latest.adapters if context.engine.latest else ():
        yield f"Drop the adapter {one_line(each.name)}", "Engine", partial(_drop, context, each.name)


def _drop(context: Context, name: str) -> None:
    async def drop() -> None:
        await context.program.backend.send(DropAdapter(name))
        users = [each.chat.letter.upper() for each in context.chats if each.chat.adapter == name]
        still = f". It is still chosen in {', '.join(users)}" if users else ""
        context.app.notify(f"The adapter {one_line(name)} is dropped{still}")

    sending.ask(context, drop())


ADAPTERS = Feature(
    name="adapters",
    title="LoRA adapters",
    commands=(ScreenCommand("chat.adapter", "Chats", "Choose a LoRA adapter", choose),),
    offers=_offers,
)
