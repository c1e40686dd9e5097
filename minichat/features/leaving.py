"""Ctrl+C, restart and quit."""

from textual.widgets import Input, TextArea

from minichat.features.feature import Context, Feature, ScreenCommand

RESTART = 64  # the exit code that requests a restart
_TWICE = 1.0  # seconds within which a second Ctrl+C quits


class Interrupts:
    """Handles Ctrl+C and remembers the time of the last one."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._at = -_TWICE

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
        if now - self._at < _TWICE:
            await program.end(0)
            return
        self._at = now
        if not self._context.chats.active.stop():
            key = self._context.keys.name("program.interrupt").replace("^", "Ctrl+")
            app.notify(f"Press {key} again to quit", timeout=_TWICE)


async def interrupt(context: Context) -> None:
    await context.part(Interrupts).interrupt()


async def restart(context: Context) -> None:
    if not context.lifecycle.again():
        await context.program.end(RESTART)


async def leave(context: Context) -> None:
    await context.program.end(0)


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
    commands=(
        ScreenCommand("program.restart", "Program", "Restart, keeping all chats", restart, "f5"),
        ScreenCommand("program.quit", "Program", "Quit", leave, "ctrl+q", priority=True, also="exit"),
    ),
)
