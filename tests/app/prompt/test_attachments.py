"""Files in a prompt: named, completed, attached and stored."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minichat.chats.model import Attachment, Message
from minichat.features.chats import replies
from minichat.session.attachments import (
    MOST,
    CannotAttach,
    Entry,
    Offer,
    attach,
    entries,
    folder_of,
    missing,
    offers,
    typing,
)
from minichat.shell.first import First, first_message
from tests.app.conftest import run
from tests.app.program.test_key_order import post


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of these tests."""
    place = tmp_path / "papers"
    (place / "src").mkdir(parents=True)
    (place / "src" / "main.py").write_text("print(1)\n")
    (place / "notes.txt").write_text("remember")
    (place / "my file.txt").write_text("spaced")
    (place / ".hidden").write_text("secret")
    monkeypatch.chdir(place)
    monkeypatch.setenv("HOME", str(tmp_path))
    return place


def names(text: str) -> list[tuple[str, str]]:
    return [(each.name, each.text) for each in attach(text)]


def test_names_resolve_to_files_and_trailing_punctuation_is_not_part_of_them() -> None:
    assert names("look at @src/main.py, and (@notes.txt)!") == [
        ("src/main.py", "print(1)\n"),
        ("notes.txt", "remember"),
    ]
    assert names('@"my file.txt" @~/papers/notes.txt') == [
        ("my file.txt", "spaced"),
        ("~/papers/notes.txt", "remember"),
    ]
    assert names("@'my file.txt'") == [("my file.txt", "spaced")]
    assert names("it's '@notes.txt', isn't it") == [("notes.txt", "remember")]
    for text in ('"@notes.txt"', "“@notes.txt”", "**@notes.txt**", "a file—@notes.txt …"):
        assert names(text) == [("notes.txt", "remember")], text
    assert names("@notes.txt @notes.txt") == [("notes.txt", "remember")]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "@",
        "me@notes.txt",
        "@dataclass",
        "@app.route('/')",
        "a @ b",
        "@\0",
        "@.",
        "@..",
        "@" + "x" * 5000,
        "@@notes.txt",
        '@""',
    ],
)
def test_text_that_names_no_file_stays_text(text: str) -> None:
    assert attach(text) == ()


@given(st.text())
def test_any_text_is_accepted_or_refused_with_cannot_attach(text: str) -> None:
    try:
        attach(f"@{text}")
        attach(text)
    except CannotAttach:
        pass
    found = typing(f"@{text}")
    if found is not None:
        offered(found.name)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("@./nowhere.py.", r"^nothing was sent: no such file: \./nowhere\.py"),
        ('@"no such"', "no such file: no such"),
        ("@./src", "./src is a folder; name the files in it"),
        ("@./", r"^nothing was sent: \./ is a folder; name the files in it"),
        ("@picture.png", r"picture\.png: it is not UTF-8 text"),
        ("@latin.txt", r"latin\.txt: it is not UTF-8 text"),
        ("@large.log", r"large\.log is larger than 1\.00 MB"),
        ("@one.log @two.log", r"one\.log, two\.log are 1\.20 MB in total; the limit is 1\.00 MB"),
        ('@"a[/b]"', r"no such file: a\[/b\]"),
        ("@~\0", "no such file: ~"),
        ("@/dev/null", "/dev/null: it is not a regular file"),
        ("@locked.txt", r"cannot read locked\.txt: Permission denied"),
    ],
)
def test_why_a_file_cannot_be_attached(
    folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, sentence: str
) -> None:
    (folder / "picture.png").write_bytes(b"\x89PNG\0\0")
    (folder / "latin.txt").write_bytes("é".encode("latin-1"))
    (folder / "large.log").write_bytes(b"x" * (MOST + 1))
    (folder / "one.log").write_bytes(b"x" * 600_000)
    (folder / "two.log").write_bytes(b"x" * 600_000)
    (folder / "locked.txt").touch()
    usual = Path.open

    def guarded(path: Path, *arguments: Any) -> Any:
        if path.name == "locked.txt":  # the tests may run as root, who can read everything
            raise PermissionError(13, "Permission denied")
        return usual(path, *arguments)

    monkeypatch.setattr(Path, "open", guarded)
    with pytest.raises(CannotAttach, match=sentence):
        attach(text)


def test_the_stored_text_is_used_once_the_file_is_gone(folder: Path) -> None:
    kept = [Attachment("gone.txt", "old"), Attachment("notes.txt", "old"), Attachment("stdin", "piped")]
    (folder / "stdin").write_text("a file of that name")
    found = attach("@gone.txt @notes.txt @stdin.", kept)
    assert [each.text for each in found] == ["old", "remember", "piped"]


def test_attachments_are_fenced_with_more_backticks_than_they_contain() -> None:
    message = Message(1, "user", "see @a.md", attachments=(Attachment("a.md", "x\n````\ny"),))
    assert message.whole == "see @a.md\n\na.md:\n`````md\nx\n````\ny\n`````"
    assert Attachment("a", "x").fenced == "a:\n```\nx\n```"
    assert Attachment("a", "x\n").fenced == "a:\n```\nx\n```"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("@$HOME/papers/notes.txt", "no such file: $HOME/papers/notes.txt; did you mean HERE/notes.txt?"),
        ("@${HOME}/nothing", "no such file: ${HOME}/nothing"),
        (r"@my\ file.txt", r'no such file: my\; did you mean "my file.txt"?'),
        ("@my_file.txt", 'no such file: my_file.txt; did you mean "my file.txt"?'),
    ],
)
def test_names_in_the_form_of_a_shell_are_reported(folder: Path, text: str, sentence: str) -> None:
    assert [str(each) for each in missing(text)] == [sentence.replace("HERE", str(folder))]


@pytest.mark.parametrize("text", ["@$x", "costs @$5/6", '{"@type": "x", "@id": 1}'])
def test_a_dollar_or_a_quote_alone_makes_no_file_name(text: str) -> None:
    assert missing(text) == ()


def test_a_name_with_quotes_is_completed_in_a_form_that_attaches_it(folder: Path) -> None:
    (folder / 'say "hi".txt').write_text("hi")
    assert [names(each.insert) for each in offered("sa")] == [[('say "hi".txt', "hi")]]


# Completion


@pytest.mark.parametrize(
    ("before", "start", "name"),
    [("see @sr", 4, "sr"), ("@", 0, ""), ('x (@"my fi', 3, "my fi"), ("@src/", 0, "src/"), ("@a @b", 3, "b")],
)
def test_the_name_that_is_being_typed(before: str, start: int, name: str) -> None:
    found = typing(before)
    assert found is not None
    assert (found.start, found.name) == (start, name)


@pytest.mark.parametrize("before", ["", "me@home", "@done and more", '@"done" '])
def test_no_name_is_being_typed(before: str) -> None:
    assert typing(before) is None


def offered(name: str) -> list[Offer]:
    return offers(name, entries(folder_of(name)))


def test_an_entry_that_cannot_be_examined_hides_no_others(folder: Path) -> None:
    (folder / "loop").symlink_to("loop")
    assert [each.name for each in offered("")] == ["loop", "my file.txt", "notes.txt", "src/"]


def test_offered_names() -> None:
    assert [each.name for each in offered("")] == ["my file.txt", "notes.txt", "src/"]
    assert [each.name for each in offered("f")] == ["my file.txt"]  # in the middle of the name
    assert [each.name for each in offered(".h")] == [".hidden"]
    assert [each.name for each in offered("NOTES")] == ["notes.txt"]
    assert [each.insert for each in offered("src/")] == ["@src/main.py "]
    assert [each.insert for each in offered("my")] == ['@"my file.txt" ']
    assert [each.name for each in offered("~/papers/n")] == ["~/papers/notes.txt"]
    assert offered("notes.txt") == offered("nowhere/") == offered("\0") == []


@run
async def test_a_folder_that_hangs_does_not_block_typing(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = threading.Event()

    def slow(folder: str) -> list[Entry]:
        answer.wait(20)
        return entries(folder)

    monkeypatch.setattr("minichat.ui.panes.prompt.entries", slow)
    async with bench() as it:
        await it.pilot.press(*"see @n")
        assert it.main.prompt.text == "see @n"
        assert not it.main.prompt.completion.offers
        answer.set()
        await it.until(lambda: "notes.txt" in it.screen_text())
        await it.pilot.press("enter")
        assert it.main.prompt.text == "see @notes.txt "


@run
async def test_tab_waits_for_the_list(bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(folder: str) -> list[Entry]:
        time.sleep(0.1)
        return entries(folder)

    monkeypatch.setattr("minichat.ui.panes.prompt.entries", slow)
    async with bench() as it:
        post(it.app, "see @n", "tab", "please")
        await it.until(lambda: it.main.prompt.text == "see @notes.txt please")


@run
async def test_a_name_is_completed_from_the_list(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.pilot.press(*"see @")
        await it.until(lambda: "my file.txt" in it.screen_text())
        await it.pilot.press(*"s", "tab")
        assert it.main.prompt.text == "see @src/"
        await it.until(lambda: "src/main.py" in it.screen_text())
        await it.pilot.press("enter")
        assert it.main.prompt.text == "see @src/main.py "
        await it.until(lambda: not it.main.prompt.completion.display)
        assert it.replies == []
        await it.pilot.press("enter")
        await it.until(lambda: it.replies)
        content = it.replies[0].prompt[-1]["content"]
        assert content == "see @src/main.py \n\nsrc/main.py:\n```py\nprint(1)\n```"
        await it.until(lambda: "see @src/main.py" in it.screen_text())
        assert any("src/main.py (9 B)" in notice for notice in it.notices())


@run
async def test_the_arrows_choose_and_escape_leaves_the_list(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.pilot.press("@")
        await it.until(lambda: it.main.prompt.completion.offers)
        await it.pilot.press("down", "down", "up", "tab")
        assert it.main.prompt.text == "@notes.txt "
        await it.pilot.press(*" @n")
        await it.until(lambda: it.main.prompt.completion.offers)
        await it.pilot.press("escape")
        assert not it.main.prompt.completion.display
        await it.pilot.press("o")
        assert not it.main.prompt.completion.display
        await it.pilot.press("enter")
        await it.until(lambda: it.replies)
        assert it.replies[0].prompt[-1]["content"].startswith("@notes.txt  @no\n\nnotes.txt:")


@run
async def test_enter_sends_a_complete_name(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.pilot.press(*"@notes.txt", "enter")
        await it.until(lambda: it.replies)


@run
async def test_a_prompt_with_a_file_that_cannot_be_attached_is_kept(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        it.main.prompt.put("see @./no[/where\x1b.py")
        await it.pilot.press("enter")
        await it.until(lambda: any("No such file: ./no[/where" in notice for notice in it.notices()))
        await it.until(lambda: "no[/where" in it.screen_text())
        assert not any("\x1b" in notice for notice in it.notices())
        assert it.main.prompt.text == "see @./no[/where␛.py"
        assert it.texts() == []


@run
async def test_an_attachment_persists_and_outlives_its_file(bench: Callable[..., Any], folder: Path) -> None:
    async with bench() as it:
        await it.answered(await it.say("read @notes.txt"))
    (folder / "notes.txt").unlink()
    async with bench() as it:
        assert "read @notes.txt" in it.screen_text()
        reply = await it.say("more")
        assert "```txt\nremember\n```" in reply.prompt[0]["content"]
        await it.answered(reply)
        await it.pilot.press("alt+r")
        await it.until(lambda: len(it.replies) == 2)
        assert "remember" in it.replies[-1].prompt[0]["content"]
        await it.answered(it.replies[-1])
        replies.edit(it.app.context, it.app.chats.active.chat.messages[0])
        await it.pilot.press(*" it", "enter")
        await it.until(lambda: len(it.replies) == 3)
        assert it.replies[-1].prompt[-1]["content"].startswith("read @notes.txt it\n\nnotes.txt:")


# The command line


def test_the_first_message_of_words_and_a_pipe() -> None:
    piped = (Attachment("stdin", "+ a line\n"),)
    assert first_message([], None) == First()
    assert first_message(["why", "this?"], None) == First("why this?", send=True)
    assert first_message(["review this"], "+ a line\n") == First("review this @stdin", piped, send=True)
    alone, empty = first_message([], "+ a line\n"), first_message(["review"], " \n")
    assert (alone.text, alone.piped, alone.send) == ("@stdin ", piped, False)
    assert (empty.text, empty.send) == ("review", False)
    assert "The pipe was empty" in empty.notice


@run
async def test_a_question_is_sent_on_start_in_a_new_chat(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.answered(await it.say("before"))
    first = first_message(["review this"], "+ a line\n")
    async with bench(first=first) as it:
        await it.until(lambda: it.replies)
        assert it.replies[0].prompt == [
            {"role": "user", "content": "review this @stdin\n\nstdin:\n```\n+ a line\n```"}
        ]
        assert len(it.app.chats) == 2
        assert it.main.prompt.text == ""
        await it.answered(it.replies[0])
        assert "@stdin\n\nstdin:" in (await it.say("once more @stdin")).prompt[-1]["content"]


@run
async def test_a_question_keeps_the_draft_of_the_open_chat(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        it.main.prompt.put("half a thought")
        await it.pilot.press("ctrl+q")
        await it.until(lambda: it.app.return_code == 0)
    async with bench(first=first_message(["hello there"], None)) as it:
        await it.until(lambda: it.replies)
        assert [each.chat.draft for each in it.app.chats] == ["half a thought", ""]
        assert len(it.app.chats) == 2


@run
async def test_a_pipe_without_a_question_waits_for_one(bench: Callable[..., Any]) -> None:
    async with bench(first=first_message([], "+ a line\n")) as it:
        assert it.main.prompt.text == "@stdin "
        assert any("Type what to do with it" in notice for notice in it.notices())
        await it.pilot.press(*"sum it up", "enter")
        await it.until(lambda: it.replies)
        assert "+ a line" in it.replies[0].prompt[-1]["content"]
        assert len(it.app.chats) == 1
