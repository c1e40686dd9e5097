"""Everything a person can do, once: the bindings, the palette and the help screen are made of this table."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from textual.binding import Binding

from minichat.settings.keymap import Bound
from minichat.widgets.knobs import Knobs
from minichat.widgets.monitor import KVMap, MonitorPanel
from minichat.widgets.picker import TokenPicker
from minichat.widgets.quantization import Schemes
from minichat.widgets.transcript import Transcript


@dataclass(frozen=True, slots=True)
class Command:
    """`id` is what the settings remap; an action without a dot is the main screen's."""

    id: str
    group: str
    title: str
    action: str
    keys: str = ""
    footer: str = ""
    priority: bool = False
    palette: bool = True


COMMANDS = (
    Command("prompt.send", "Prompt", "Send", "prompt.send", "enter", palette=False),
    Command(
        "prompt.newline",
        "Prompt",
        "New line",
        "prompt.newline",
        "ctrl+j,alt+enter,shift+enter",
        priority=True,
        palette=False,
    ),
    Command("reply.stop", "Reply", "Stop this reply", "chat('stop')", "escape", "stop"),
    Command("reply.stop_all", "Reply", "Stop all replies", "stop_all"),
    Command("reply.retry", "Reply", "Draw the last reply again", "chat('retry')", "alt+r", "retry"),
    Command("reply.edit", "Reply", "Edit the last message and send it again", "chat('edit')", "alt+e"),
    Command("reply.copy", "Reply", "Send the last reply to the clipboard", "chat('copy_reply')", "alt+y"),
    Command("reply.pick", "Reply", "Tokens of the last reply: pick another one", "chat('pick')", "alt+c"),
    Command("reply.broadcast", "Reply", "Send to all open panes, on or off", "chat('broadcast')", "alt+a"),
    Command("chat.new", "Chats", "New chat", "chat('new')", "ctrl+n", "new"),
    Command("chat.fork", "Chats", "Fork this chat here", "chat('fork')", "alt+k"),
    Command("chat.rename", "Chats", "Rename this chat", "ask('rename')", "alt+t"),
    Command("chat.system", "Chats", "System prompt of this chat", "ask('instruct')", "alt+s"),
    Command("chat.close", "Chats", "Close this chat", "chat('close')", "alt+w"),
    Command("chat.reopen", "Chats", "Bring back the chat closed last", "chat('reopen')", "alt+z"),
    Command("chat.delete", "Chats", "Delete this chat for good", "ask('delete_chat')", "alt+d"),
    Command("chat.next", "Chats", "Next chat", "go_by(1)", "ctrl+pagedown,alt+l"),
    Command("chat.previous", "Chats", "Previous chat", "go_by(-1)", "ctrl+pageup,alt+h"),
    Command("chat.jump", "Chats", "Go to a chat, or search in all", "ask('jump')", "ctrl+o", "jump"),
    Command("chat.find", "Chats", "Find in this chat", "find", "ctrl+f"),
    Command("chat.export", "Chats", "Export this chat to Markdown or JSON", "ask('export')"),
    *(
        Command(f"chat.{n}", "Chats", f"Go to chat {n}", f"go({n - 1})", f"alt+{n}", palette=False)
        for n in range(1, 10)
    ),
    Command("view.help", "View", "Help: keys and what is where", "ask('help')", "f1", "help"),
    Command("view.monitor", "View", "Monitor: the engine at work", "beside('monitor')", "f2", "monitor"),
    Command(
        "view.to_monitor",
        "View",
        "Go to the monitor",
        "beside('to_monitor')",
        "alt+m",
    ),
    Command("view.decoding", "View", "Decoding of this chat", "beside('decoding')", "f3", "decoding"),
    Command("decoding.save", "View", "Save this decoding as a preset", "ask('save_preset')"),
    Command("decoding.delete", "View", "Delete a saved preset", "ask('delete_preset')"),
    Command(
        "view.quantization", "View", "Quantization and memory of the engine", "beside('quantization')", "f4"
    ),
    Command("view.panes", "View", "Several chats side by side, or one", "panes", "alt+p"),
    Command("view.follow", "View", "Follow the end of the chat", "follow"),
    Command("view.why", "View", "Why this speed", "ask('why')", "f8"),
    Command("engine.switches", "View", "Turn a technique off or on", "ask('switches')", "alt+x"),
    Command("view.mouse", "View", "Leave the mouse to the terminal, or take it back", "app.mouse", "ctrl+g"),
    Command("view.theme", "View", "Choose a theme", "app.change_theme"),
    Command("view.redraw", "View", "Draw all of the screen again", "app.redraw", "ctrl+l", priority=True),
    Command(
        "program.palette", "Program", "All commands", "app.command_palette", "ctrl+p", "all", palette=False
    ),
    Command(
        "program.interrupt",
        "Program",
        "Copy, else stop; twice quits",
        "app.interrupt",
        "ctrl+c",
        priority=True,
        palette=False,
    ),
    Command("model.pick", "Program", "Choose another model", "ask('models')", "alt+o"),
    Command("program.tour", "Program", "A tour of the engine", "app.tour"),
    Command("program.restart", "Program", "Start the program again, chats as they are", "app.restart", "f5"),
    Command("program.quit", "Program", "Quit", "app.quit", "ctrl+q", priority=True),
)


_NO_KEY = "no_key"  # which no terminal sends


def bindings(room: str) -> list[Binding]:
    """The bindings of one place: app, or screen."""
    return [
        Binding(
            each.keys or _NO_KEY,  # so that the settings can give it one
            each.action.removeprefix(f"{room}."),
            each.title,
            id=each.id,
            show=False,
            priority=each.priority,
        )
        for each in COMMANDS
        if _room(each) == room
    ]


def keys_of(id: str, keymap: Mapping[str, str]) -> str:
    """The keys of a command, or of a widget's own binding, as the person has them."""
    return keymap.get(id, _USUAL[id])


def keys_for(action: str, keymap: Mapping[str, str]) -> list[str]:
    """All keys of what does this, as the person has them."""
    ids = [command.id for command in COMMANDS if command.action == action]
    return [key for id in ids for key in keys_of(id, keymap).split(",")]


_PLACES = (  # with keys of their own; the lists of the monitor have those of its map
    ("transcript", Transcript),
    ("monitor", MonitorPanel),
    ("monitor", KVMap),
    ("decoding", Knobs),
    ("quantization", Schemes),
    ("tokens", TokenPicker),
)


def bound() -> Iterator[Bound]:
    """Every binding that the settings may remap, here and in the widgets that have their own."""
    for command in COMMANDS:
        yield Bound(command.id, tuple(filter(None, command.keys.split(","))), title=command.title)
    for place, widget in _PLACES:
        for binding in widget.BINDINGS:
            if isinstance(binding, Binding) and binding.id:
                yield Bound(binding.id, tuple(binding.key.split(",")), place, binding.description)


_USUAL = {each.id: ",".join(each.keys) for each in bound()}

_SIGNS = {"slash": "/", "plus": "+", "minus": "-", "left_curly_bracket": "{", "right_curly_bracket": "}"}
_NAMES = {"escape": "Esc", "enter": "Enter", "pagedown": "PgDn", "pageup": "PgUp", "ctrl": "^"}


def key_name(keys: str) -> str:
    """The first of the keys, as people write it: ^P, Alt+W, F1, /."""
    key = keys.split(",")[0]
    if sign := _SIGNS.get(key, key if len(key) == 1 else ""):
        return sign
    parts = key.split("+")
    words = [
        _NAMES.get(part, part.upper() if len(part) == 1 or part[1:].isdigit() else part.title())
        for part in parts
    ]
    return "+".join(words).replace("^+", "^")


_RUNS = (  # of names, as people call them
    ("Shift+Left Shift+Right Shift+Up Shift+Down", "Shift+arrows"),
    ("Left Right Up Down", "Arrows"),
    ("Alt+1 Alt+2 Alt+3 Alt+4 Alt+5 Alt+6 Alt+7 Alt+8 Alt+9", "Alt+1 ... Alt+9"),
    ("1 2 3 4 5", "1 ... 5"),
)


def names_of(ids: Iterable[str], keymap: Mapping[str, str]) -> str:
    """The first keys of some bindings, as the person has them."""
    names = " ".join(key_name(keys_of(id, keymap)) for id in ids)
    for long, short in _RUNS:
        names = names.replace(long, short)
    return names


def _room(command: Command) -> str:
    room, dot, _ = command.action.partition(".")
    return room if dot else "screen"
