"""Extremely large chats on a real terminal: old messages are read, searched and resized."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.cells import cell_len

from minichat.chats.export import to_json
from minichat.chats.model import Chat, Message
from minichat.chats.store import Store
from minichat.shell.paths import locate
from tests.app.display.test_terminal import Tmux, terminal

__all__ = ["terminal"]

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")

EVIL = "\x1b]0;stolen\x07\x1b]52;c;c3RvbGVu\x07\x1b[2J\x1b[31m\x1bPq#0~\x1b\\\x9b5n\x1b[6n\r\x00 end of evil"
WIDE = "עברית 漢字 العربية 👩‍👩‍👧 é́́́́́ ｆｕｌｌ ไทย end of wide\n" * 30
TEXTS = {
    "many": [f"message number {number}." for number in range(10_000)],
    "large": ["go", "\n\n".join(f"Line {number} of a **large** text." for number in range(32_000))],
    "long": ["go", "x" * 100_000],
    "wide": ["go", WIDE],
    "evil": ["go", EVIL * 200],
}


@pytest.fixture
def chats(tmp_path: Path) -> None:
    """Chats that an earlier session left in the store."""
    store = Store(locate({"HOME": str(tmp_path)}).chats)
    for title, texts in TEXTS.items():
        roles = ("user", "assistant") * (len(texts) // 2)
        messages = [Message(0, role, text) for role, text in zip(roles, texts, strict=True)]  # type: ignore[arg-type]
        store.import_json(to_json(Chat(0, "", title, messages=messages)))
    store.close()


@pytest.mark.soak
@pytest.mark.usefixtures("chats")
def test_large_chats_can_be_read(terminal: Callable[..., Tmux], tmp_path: Path) -> None:
    sent = tmp_path / "sent"
    tmux = terminal("--model", "/nowhere", size=(100, 30))
    tmux.until(lambda screen: "no engine" in screen and "end of evil" in screen)
    tmux("pipe-pane", f"cat > {sent}")
    tmux.type("C-l", "PageUp", "PageUp", "End")
    tmux.until(lambda screen: "␛]0;stolen␇␛]52;c;c3RvbGVu␇" in screen)

    tmux.type("M-4")
    shown = tmux.until(lambda screen: "end of wide" in screen and "漢字" in screen)
    border = next(line for line in shown.splitlines() if line.startswith("╭"))
    assert cell_len(border) == 100, "wide characters shift nothing else"

    tmux.type("M-3")
    tmux.until(lambda screen: screen.count("x" * 99) > 10)
    tmux("resize-window", "-x", "40", "-y", "12")
    small = tmux.until(lambda screen: screen.count("x" * 39) > 5)
    assert max(map(len, small.splitlines())) <= 40
    tmux("resize-window", "-x", "100", "-y", "30")

    tmux.type("M-2")
    tmux.until(lambda screen: "Line 31999 of a large text." in screen)
    tmux.type("PageUp", "PageUp")
    tmux.until(lambda screen: "Line 31999" not in screen and "Line 319" in screen)
    tmux.type("typed")
    tmux.until(lambda screen: "typed" in screen)
    tmux.type("C-u")

    tmux.type("M-1")
    tmux.until(lambda screen: "message number 9999." in screen)
    tmux.type("C-f")
    tmux.until(lambda screen: "Enter next" in screen)
    tmux.type("number 17.")
    tmux.until(lambda screen: "message number 17." in screen and "1 of 1" in screen)
    tmux.type("Escape")
    tmux.until(lambda screen: "1 of 1" not in screen)
    tmux.type("End")
    tmux.until(lambda screen: "message number 9999." in screen)

    raw = sent.read_bytes()
    assert b"message number 17." in raw
    for sequence in (b"\x1b]0;", b"\x1b]52;", b"\x1bPq", b"\x1b[6n", b"\x9b5n", b"\x00"):
        assert sequence not in raw.replace(b"\xc2\x9b", b""), sequence
    assert "stolen" not in tmux("display-message", "-p", "#{pane_title}") + tmux("show-buffer")
    tmux.type("C-q")
    tmux.until(lambda screen: "ended with 0" in screen)
