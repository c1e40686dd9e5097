from pathlib import Path
from typing import ClassVar

import pytest
from textual.app import App
from textual.binding import Binding

from minichat.features import BUILT_IN
from minichat.features.table import bound
from minichat.settings import load
from minichat.settings.keymap import Bound, keymap, normalized
from minichat.shell.keys import Keys
from tests import impatient

BINDINGS = [
    Bound("chat.new", ("ctrl+n",)),
    Bound("chat.close", ("alt+w",), title="Close this chat"),
    Bound("program.quit", ("ctrl+q",), priority=True),
    Bound("chat.send", ("enter",), "prompt"),
    Bound("monitor.pause", ("p",), "monitor"),
    Bound("monitor.order", ("o",), "monitor"),
    Bound("list.open", ("o",), "list"),
]

BOTH = "is bound to both"


def mapped(tmp_path: Path, keys: str) -> tuple[dict[str, str], list[str]]:
    file = tmp_path / "config.toml"
    file.write_text(f"[keys]\n{keys}")
    loaded = load(file)
    found = keymap(loaded, BINDINGS)
    return found, [str(problem).removeprefix(f"{file}:") for problem in loaded.problems]


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("Ctrl+N", "ctrl+n"),
        ("ctrl + N", "ctrl+n"),
        ("?", "question_mark"),
        ("+", "plus"),
        ("ctrl++", "ctrl+plus"),
        ("A", "A"),
        ("shift+a", "A"),
        ("shift+Tab", "shift+tab"),
        ("F5", "f5"),
        ("ctrl+[", "ctrl+left_square_bracket"),
        ("shift+alt+Up", "alt+shift+up"),
        ("/", "slash"),
        ("ü", "ü"),
    ],
)
def test_key_names_are_normalized_as_in_textual(key: str, name: str) -> None:
    assert normalized(key) == name


def test_free_keys_can_be_assigned(tmp_path: Path) -> None:
    found, problems = mapped(tmp_path, '"chat.new" = ["Ctrl+T", "f9"]\n"monitor.pause" = "x"')
    assert found == {"chat.new": "ctrl+t,f9", "monitor.pause": "x"}
    assert problems == []


def test_keys_that_edit_text_can_be_assigned_where_no_text_is_edited(tmp_path: Path) -> None:
    keys = '"monitor.pause" = "f6"\n"chat.send" = "ctrl+d"\n"program.quit" = "ctrl+x"'
    assert mapped(tmp_path, keys)[1] == []


def test_two_actions_may_swap_keys(tmp_path: Path) -> None:
    found, problems = mapped(tmp_path, '"chat.new" = "alt+w"\n"chat.close" = "ctrl+n"')
    assert (found, problems) == ({"chat.new": "alt+w", "chat.close": "ctrl+n"}, [])


def test_the_same_key_in_another_place_is_no_conflict(tmp_path: Path) -> None:
    assert mapped(tmp_path, '"monitor.pause" = "enter"') == ({"monitor.pause": "enter"}, [])


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ('"chat.nwe" = "f9"', "2: keys.chat.nwe: is unknown; did you mean chat.new?"),
        ('"chat.new" = "ctlr+t"', '2: keys.chat.new: "ctlr+t": ctlr is unknown; did you mean ctrl?'),
        ('"chat.new" = "ctrl+foo"', '2: keys.chat.new: "ctrl+foo": foo is not a key; write keys like'),
        ('"chat.new" = "ctrl+I"', '2: keys.chat.new: "ctrl+I" is the same as tab in a terminal'),
        ('"chat.new" = "alt+f"', '2: keys.chat.new: "alt+f" is the same as ctrl+right in a terminal'),
        ('"chat.new" = "Ctrl+Shift+N"', '2: keys.chat.new: "Ctrl+Shift+N" is the same as ctrl+n in'),
        ('"chat.new" = "ctrl+["', '2: keys.chat.new: "ctrl+[" is the same as escape in a terminal'),
        ('"chat.send" = "a"', '2: keys.chat.send: "a" would act while you type; use a key like'),
        ('"program.quit" = "q"', '2: keys.program.quit: "q" would act while you type; use a key like'),
        ('"program.quit" = "/"', '2: keys.program.quit: "/" would act while you type; use a key like'),
        ('"chat.send" = "-"', '2: keys.chat.send: "-" would act while you type; use a key like'),
        ('"chat.new" = "?"', '2: keys.chat.new: "?" would be typed into the prompt; add a key like ctrl+n'),
        ('"chat.new" = ["?", "N"]', '2: keys.chat.new: "?", "N" would be typed into the prompt; add a key'),
        (
            '"chat.new" = "Alt+W"',
            f'2: keys.chat.new: "alt+w" {BOTH} chat.new and chat.close (Close this chat): ',
        ),
        ('"chat.new" = "enter"', f'2: keys.chat.new: "enter" {BOTH} chat.new and chat.send: use another key'),
        ('"chat.new" = "f6"', '2: keys.chat.new: "f6" edits text in the prompt; use another key'),
        ('"chat.new" = "Tab"', '2: keys.chat.new: "Tab" moves the focus; use another key'),
        ('"chat.new" = "shift+tab"', '2: keys.chat.new: "shift+tab" moves the focus; use another key'),
        (
            '"chat.new" = ["f9", "Ctrl+X"]',
            '2: keys.chat.new: "Ctrl+X" edits text in the prompt; use another key',
        ),
        ('"monitor.pause" = "o"', f'2: keys.monitor.pause: "o" {BOTH} monitor.pause and monitor.order'),
        ('"monitor.pause" = "ctrl+n"', f'2: keys.monitor.pause: "ctrl+n" {BOTH} monitor.pause and chat.new'),
    ],
)
def test_invalid_keys_are_reported_and_ignored(tmp_path: Path, keys: str, sentence: str) -> None:
    found, problems = mapped(tmp_path, keys)
    assert found == {}
    (problem,) = problems
    assert problem.startswith(sentence)


def test_a_command_is_shown_with_a_key_that_works_in_the_prompt(tmp_path: Path) -> None:
    found, problems = mapped(tmp_path, '"chat.new" = ["?", "f9"]\n"monitor.pause" = ["x", "f8"]')
    keys = Keys(BINDINGS, found)
    assert (problems, keys.name("chat.new"), keys.name("monitor.pause")) == ([], "F9", "x")


def test_a_refused_key_may_cause_another_conflict(tmp_path: Path) -> None:
    keys = '"chat.new" = "enter"\n"chat.close" = "ctrl+n"\n"monitor.pause" = "x"'
    found, problems = mapped(tmp_path, keys)
    assert found == {"monitor.pause": "x"}
    assert [problem.partition(": ")[2].partition(":")[0] for problem in problems] == [
        "keys.chat.new",
        "keys.chat.close",
    ]


def test_textual_accepts_the_keymap(tmp_path: Path) -> None:
    pressed = []

    class Program(App[None]):
        BINDINGS: ClassVar = [Binding("ctrl+n", "new", id="chat.new")]

        def action_new(self) -> None:
            pressed.append("new")

    found, _ = mapped(tmp_path, '"chat.new" = ["Ctrl+T", "?"]')

    async def press() -> None:
        program = Program()
        program.set_keymap(found)
        async with program.run_test() as pilot:
            await pilot.press("ctrl+n", "ctrl+t", "question_mark")

    impatient.run(press())
    assert pressed == ["new", "new"]


def test_a_keymap_of_the_first_version_still_works() -> None:
    loaded = load(Path(__file__).parent / "first_edition.toml")
    found = keymap(loaded, bound(BUILT_IN))
    assert loaded.problems == []
    assert found.keys() == loaded.settings.keys.keys()
    usual = {each.id: tuple(map(normalized, each.keys)) for each in bound(BUILT_IN)}
    moved = {id for id, keys in loaded.settings.keys.items() if usual[id] != tuple(map(normalized, keys))}
    assert all(found[id].startswith(("f1", "f2")) for id in moved), "an old key has another action"
    assert len(found) > 100 and len(moved) == 10
