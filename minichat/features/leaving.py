"""Ctrl+C, restart and quit."""

from collections.abc import Callable

from textual.widgets import Input, TextArea

from minichat.features.feature import Context, Feature, ScreenCommand
from minichat.ui import sending

RESTART = 64  # the exit code that requests a restart
_TWICE = 1.0  # seconds within which a second Ctrl+C quits
_SURE_WITHIN = 4.0  # seconds; the notice is shown as long


Loss = tuple[str, str]  # a problem, and what the key does in spite of it: {does} is to quit or to restart


class Leaver:
    """Ends the program. Asks first if messages are lost, as on a full disk, or replies cut.

    `losses`: each returns what an exit code would lose, if anything.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._asked_at = -_SURE_WITHIN
        self._asked = ""  # the key that would lose them
        self.losses: list[Callable[[int], Loss | None]] = [self._unsaved, self._unfinished]

    async def leave(self, key: str, does: str, code: int) -> None:
        """`key`: what was pressed. `does`: what it does."""
        program, now = self._context.program, self._context.program.start.clock()
        sure = self._asked == key and now - self._asked_at < _SURE_WITHIN
        lost = next(filter(None, (loss(code) for loss in self.losses)), None)
        if lost and not sure:
            self._asked, self._asked_at = key, now
            problem, way = lost
            program.app.notify(f"{problem}; press {key} again to {way.format(does=does)}", severity="warning")
        else:
            await program.end(code)

    def _unsaved(self, code: int) -> Loss | None:
        lost = self._context.chats.services.store.loses()
        return ("New messages are not saved", "{does} and lose them") if lost else None

    def _unfinished(self, code: int) -> Loss | None:
        """Replies of an engine elsewhere go on. Those of the tour are its pages'."""
        program, chats = self._context.program, self._context.chats
        if program.start.tour and code != RESTART:
            return None
        if unsent := sum(each.run is not None and each.run.reply is None for each in chats):
            many = unsent > 1
            problem = f"{unsent} messages are waiting" if many else "A message is waiting"
            return f"{problem} to be sent", f"{{does}} without sending {'them' if many else 'it'}"
        if program.backend.elsewhere:
            return None
        work = chats.running or (self._context.lifecycle.converting if code == RESTART else "")
        return (work, "stop and {does}") if work else None


class Interrupts:
    """Handles Ctrl+C and remembers until when another one quits."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._until = 0.0

    async def interrupt(self) -> None:
        """Copy the selection, or stop the reply. A second press within a second quits."""
        app, program = self._context.app, self._context.program
        field = app.focused
        selected = field.selected_text if isinstance(field, Input | TextArea) else ""
        if selected := selected or app.screen.get_selected_text() or "":
            app.screen.clear_selection()
            await program.send_to_clipboard(selected)
            return
        now = program.start.clock()
        if now < self._until:
            self._until = now + _SURE_WITHIN  # it may ask first
            await self._context.part(Leaver).leave(self._context.keys.name("program.interrupt"), "quit", 0)
            return
        self._until = now + _TWICE
        if not sending.stop(self._context, self._context.chats.active):
            key = self._context.keys.name("program.interrupt")
            app.notify(f"Press {key} again to quit", timeout=_TWICE)


async def interrupt(context: Context) -> None:
    await context.part(Interrupts).interrupt()


async def restart(context: Context) -> None:
    if not context.lifecycle.again():
        await context.part(Leaver).leave(context.keys.name("program.restart"), "restart", RESTART)


async def leave(context: Context) -> None:
    await context.part(Leaver).leave(context.keys.name("program.quit"), "quit", 0)


INTERRUPT = Feature(
    name="interrupt",
    title="Ctrl+C",
    commands=(
        ScreenCommand(
            "program.interrupt",
            "Program",
            "Copy or stop; press twice to quit",
            interrupt,
            "ctrl+c",
            priority=True,
            palette=False,
        ),
    ),
    part=Interrupts,
)
LEAVING = Feature(
    name="leaving",
    title="Quit",
    part=Leaver,
    commands=(
        ScreenCommand("program.restart", "Program", "Restart, keeping all chats", restart, "f5"),
        ScreenCommand("program.quit", "Program", "Quit", leave, "ctrl+q", priority=True, also="exit"),
    ),
)
