"""Prompts are measured before they are sent; a message that must fail is not sent."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.api.errors import EngineError
from engine.api.params import SamplingParams
from minichat.clients.fake import FakeBackend
from minichat.session import attachments
from minichat.session.attachments import CannotAttach, Missing, attach, missing
from minichat.session.fitting import PromptFit
from minichat.ui import composing
from minichat.ui.panes.prompt import Prompt
from tests import impatient
from tests.app.conftest import Bench, run, snapshot
from tests.cases import SIZES


def narrow(**more: Any) -> FakeBackend:
    """A model with a context of 63 tokens: one per character, and one more per message."""
    return FakeBackend([snapshot(max_context=64)], **more)


def below(it: Bench) -> str:
    """The text at the end of the prompt's frame."""
    return str(it.main.prompt.border_subtitle)


@run
@pytest.mark.parametrize("size", SIZES)
async def test_the_tokens_of_a_message_are_shown_before_it_is_sent(
    bench: Callable[..., Any], size: tuple[int, int]
) -> None:
    async with bench(size, backend=narrow()) as it:
        await it.until(lambda: it.app.lifecycle.alive)
        await it.pilot.press("h")
        await it.until(lambda: below(it) == "2 of 63 tokens  Enter send  ^J newline")
        assert below(it) in it.screen_text()
        await it.pilot.press("i")
        await it.until(lambda: below(it).startswith("3 of 63 tokens"))
        await it.pilot.press("enter")
        await it.until(lambda: it.replies and "tokens" not in below(it))
        await it.answered(it.replies[0])
        for rest in ("  ", ""):
            it.main.prompt.put("typed")
            await it.pilot.pause()  # the check is scheduled, but the prompt is empty before it begins
            it.main.prompt.put(rest)
            await impatient.quiet()
            assert "tokens" not in below(it)


@run
async def test_the_tokens_of_a_former_text_are_not_shown_below_a_paste(
    bench: Callable[..., Any],
) -> None:
    async with bench(backend=narrow()) as it:
        await it.until(lambda: it.app.lifecycle.alive)
        it.main.prompt.put("h")
        await it.until(lambda: below(it).startswith("2 of 63 tokens"))
        it.main.prompt.put("h" * 40)
        await it.pilot.pause()
        assert not below(it).startswith("2 of")
        await it.until(lambda: below(it).startswith("41 of 63 tokens"))


@run
async def test_the_tokens_follow_the_settings_and_the_model(bench: Callable[..., Any]) -> None:
    async with bench(backend=narrow()) as it:
        await it.until(lambda: it.app.lifecycle.alive)
        it.main.prompt.put("hello")
        await it.until(lambda: below(it).startswith("6 of 63 tokens"))
        it.app.chats.active.tune(SamplingParams(max_tokens=50))
        await it.until(lambda: below(it).startswith("6 of 14 tokens"))
        it.main.show_snapshot(snapshot(max_context=128, model="wide"))
        await it.until(lambda: below(it).startswith("6 of 78 tokens"))


@run
async def test_a_prompt_that_is_too_long_is_flagged_while_typing_and_not_sent(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = narrow()
    async with bench(backend=backend) as it:
        await it.until(lambda: it.app.lifecycle.alive)
        it.main.prompt.put(f"{'x' * 63}\n\n")  # without the empty lines, which are not sent
        await it.until(lambda: below(it) == "64 tokens; tiny takes 63")
        assert it.main.prompt.has_class("-fault")
        with monkeypatch.context() as patch:
            patch.setattr(backend, "count", lambda _: pytest.fail("it is known already"))
            await it.pilot.press("enter")
            notice = "64 tokens; tiny takes 63. Shorten the message or choose a larger model (Alt+O)"
            await it.until(lambda: notice in it.notices())
        assert (it.main.prompt.message, it.replies, it.texts()) == ("x" * 63, [], [])
        await it.pilot.press(*["backspace"] * 3, "enter")
        await it.until(lambda: it.replies)
        assert it.main.prompt.text == ""
        await it.until(lambda: not it.main.prompt.has_class("-fault"))


@run
async def test_it_says_what_would_make_room(bench: Callable[..., Any]) -> None:
    async with bench(backend=narrow()) as it:
        await it.until(lambda: it.app.lifecycle.alive)
        for bound, way in (("max_context", "raise max_context"), ("blocks", "give the KV cache more blocks")):
            it.main.show_snapshot(snapshot(max_context=64, context_bound=bound))
            it.main.prompt.put("x" * 63)
            await it.pilot.press("enter")
            notice = f"64 tokens; tiny takes 63. Shorten the message or {way}"
            await it.until(lambda: notice in it.notices())  # noqa: B023


@run
async def test_system_prompt_and_files_count_but_earlier_messages_do_not(
    bench: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "long.txt").write_text("x" * 60)
    async with bench(backend=narrow()) as it:
        await it.answered(await it.say("x" * 50))
        it.app.chats.active.instruct("y" * 30)
        it.main.prompt.put("z" * 31)
        await it.until(lambda: below(it).startswith("63 of 63 tokens"))
        it.main.prompt.put("@long.txt")
        await it.pilot.press("enter")
        await it.until(lambda: any("takes 63. Shorten the message" in notice for notice in it.notices()))
        it.app.chats.active.instruct("y" * 80)
        it.main.prompt.put("@long.txt")
        await it.pilot.press("enter")
        await it.until(lambda: any("takes 63. Shorten the system prompt" in each for each in it.notices()))
        assert len(it.replies) == 1


@run
async def test_max_tokens_is_reserved_and_a_remote_engine_offers_no_other_model(
    bench: Callable[..., Any],
) -> None:
    params = SamplingParams(max_tokens=40)
    async with bench(backend=narrow(elsewhere="a box"), params=params) as it:
        await it.until(lambda: it.app.lifecycle.alive)
        room = "25 tokens; tiny takes 24 beside the 40 of max tokens"
        it.main.prompt.put("x" * 24)
        await it.until(lambda: below(it) == room)
        await it.pilot.press("enter")
        await it.until(lambda: f"{room}. Shorten the message or lower max tokens" in it.notices())
        assert it.replies == []


def test_the_error_suggests_what_to_do() -> None:
    notice = PromptFit(3634, 2047, "pocket").refusal("choose a larger model (Alt+O)")
    assert notice == "3,634 tokens; pocket takes 2,047. Shorten the message or choose a larger model (Alt+O)"
    assert PromptFit(9, 8, "it").refusal("") == "9 tokens; it takes 8. Shorten the message"


@run
async def test_a_broadcast_is_measured_for_each_chat(bench: Callable[..., Any]) -> None:
    async with bench((200, 60), backend=narrow()) as it:
        await it.until(lambda: it.app.lifecycle.alive)
        await it.pilot.press("ctrl+n")
        it.app.chats.active.instruct("y" * 40)
        await it.pilot.press("alt+1")
        it.main.sends_to_all = True
        it.main.prompt.put("x" * 30)
        await it.until(lambda: below(it) == "72 tokens; tiny takes 63")
        await it.pilot.press("enter")
        await it.until(lambda: it.notices())
        assert it.replies == []


@run
async def test_a_failing_token_count_does_not_block_sending(bench: Callable[..., Any]) -> None:
    class Mute(FakeBackend):
        async def count(self, prompt: Any) -> int:
            raise EngineError("no")

    async with bench(backend=Mute([snapshot(max_context=64)])) as it:
        await it.until(lambda: it.app.lifecycle.alive)
        await it.say("x" * 100)


# Files


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "papers"
    (place / "src").mkdir(parents=True)
    (place / "src" / "main.py").touch()
    (place / "notes.txt").touch()
    (place / "my plan.txt").touch()
    monkeypatch.chdir(place)
    return place


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("see @note.txt.", Missing("note.txt", "notes.txt")),
        ("see @notess", Missing("notess", "notes.txt")),
        ("(@src/mian.py)", Missing("src/mian.py", "src/main.py")),
        ("@gone.md?", Missing("gone.md")),
        ("@./nowhere", Missing("./nowhere")),
        ('@"no such"', Missing("no such")),
        ("see @my plan.txt", Missing("my", '"my plan.txt"')),
        ("see @NOTES.txt", Missing("NOTES.txt", "notes.txt")),
        ("see @SRC/main.PY", Missing("SRC/main.PY", "src/main.py")),
        ("see @src/MAIN.py", Missing("src/MAIN.py", "src/main.py")),
        ("thank the @src team", Missing("src", folder=True)),
        *(
            (f"sum up @{each} now", Missing(each, folder=True))
            for each in ("/", "./", "../", "src/", "./src")
        ),
        ("import x from '@/library/utils'", Missing("/library/utils")),
        ("Read @src/Dockerfile, please", Missing("src/Dockerfile")),
        ("@src/deep/LICENSE.", Missing("src/deep/LICENSE")),
    ],
)
@pytest.mark.usefixtures("folder")
def test_names_of_missing_files(text: str, found: Missing) -> None:
    assert missing(text) == (found,)


def test_a_link_that_leads_nowhere_is_named(folder: Path) -> None:
    (folder / "link").symlink_to("gone")
    (found,) = missing("see @link")
    assert str(found) == "link is a link to a file that does not exist"
    assert found.sent_without == "link is a link to a file that does not exist. Sent without it"


@pytest.mark.parametrize(
    "text",
    [
        "@notes.txt",
        "@my plans",
        "@dataclass",
        "@app.route('/')",
        "@pytest.fixture",
        "me@gone.md",
        "@types/node",
        "@notes.txt/x",
        "@",
        "@..",
    ],
)
@pytest.mark.usefixtures("folder")
def test_names_that_are_no_missing_files(text: str) -> None:
    assert missing(text) == ()


@pytest.mark.usefixtures("folder")
def test_pasted_code_with_many_names_is_compared_with_few_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 1,500 names in a folder of as many, Enter did nothing for minutes."""
    listed: list[str] = []
    monkeypatch.setattr(attachments, "entries", lambda folder: listed.append(folder) or [])
    assert [each.name for each in missing(" ".join(f"@gone{n}.py" for n in range(900)))] == [
        "gone0.py",
        "gone1.py",
        "gone2.py",
        "gone3.py",
    ]
    assert missing("@property " * 900) == ()
    assert missing(" ".join(f"@decorator{n}" for n in range(900))) == ()
    assert len(listed) < 60


@pytest.mark.usefixtures("folder")
def test_a_path_that_leads_nowhere_is_refused_with_the_nearest_name() -> None:
    sentence = r"^nothing was sent: no such file: \./note\.txt; did you mean \./notes\.txt\?$"
    with pytest.raises(CannotAttach, match=sentence):
        attach("@./note.txt")


@run
@pytest.mark.usefixtures("folder")
async def test_a_mistyped_file_name_is_reported_before_sending(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        it.main.prompt.put("sum up @note.txt for me")
        await it.until(lambda: "no such file: note.txt; did you mean notes.txt?" in it.screen_text())
        await it.pilot.press("enter")
        notice = "No such file: note.txt; did you mean notes.txt? Press Enter again to send without it"
        await it.until(lambda: notice in it.notices())
        assert (it.main.prompt.text, it.replies) == ("sum up @note.txt for me", [])
        await it.pilot.press("enter")
        await it.until(lambda: it.replies)
        it.main.prompt.put("sum up @note.txt for me")
        await it.pilot.press("enter")
        await it.until(lambda: it.notices().count(notice) == 2)  # another message was sent since


@run
async def test_a_file_that_is_refused_is_reported_before_sending(
    bench: Callable[..., Any], folder: Path
) -> None:
    (folder / "blob.bin").write_bytes(b"\xff\0")
    refusal = "cannot attach blob.bin: it is not UTF-8 text"
    async with bench() as it:
        await it.until(lambda: it.app.lifecycle.alive)
        it.main.prompt.put("read @blob.bin please")
        await it.until(lambda: refusal in it.screen_text())
        assert it.main.prompt.has_class("-fault") and not it.notices()
        it.main.prompt.put("read @src/")
        await it.until(lambda: "tokens" in below(it))  # the rest of its name may follow
        assert not it.main.prompt.has_class("-fault")


@run
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import x from '@/library/utils'", "No such file: /library/utils."),
        ("sum up @./note.txt", "No such file: ./note.txt; did you mean ./notes.txt?"),
        ('sum up @"no such"', "No such file: no such."),
        ("look at @/ now", "/ is a folder; name the files in it."),
        ("import x from '@./src'", "./src is a folder; name the files in it."),
    ],
)
async def test_what_cannot_be_attached_is_sent_as_text_on_the_second_try(
    bench: Callable[..., Any], text: str, why: str
) -> None:
    """Pasted code has names like these, too."""
    async with bench() as it:
        it.main.prompt.put(text)
        await it.pilot.press("enter")
        await it.until(lambda: f"{why} Press Enter again to send without it" in it.notices())
        assert (it.main.prompt.text, it.replies) == (text, [])
        await it.pilot.press("enter")
        await it.until(lambda: it.replies)
        assert it.replies[0].prompt[-1]["content"] == text


@run
async def test_no_second_try_is_offered_for_files_that_are_refused(
    bench: Callable[..., Any], folder: Path
) -> None:
    (folder / "blob.bin").write_bytes(b"\xff\0")
    async with bench() as it:
        it.main.prompt.put(text := "sum up @blob.bin and @note.txt")
        await it.pilot.press("enter")
        await it.until(lambda: it.notices())
        assert "blob.bin: it is not UTF-8" in it.notices()[0] and "again" not in it.notices()[0]
        assert (it.main.prompt.text, it.replies) == (text, [])


@run
@pytest.mark.usefixtures("folder")
async def test_a_word_that_is_also_a_folder_can_be_sent(bench: Callable[..., Any]) -> None:
    async with bench(shows_notices=True) as it:
        it.main.prompt.put("thank the @src team")
        await it.pilot.press("enter")
        notice = "src is a folder; name the files in it. Press Enter again to send without it"
        await it.until(lambda: notice in [each.message for each in it.app._notifications])
        assert not it.replies
        await it.pilot.press("enter")
        await it.until(lambda: it.replies)
        assert notice not in [each.message for each in it.app._notifications]
        assert it.app.chats.active.chat.messages[0].attachments == ()


@run
@pytest.mark.usefixtures("folder")
async def test_the_warning_of_a_missing_file_ends_with_another_text(bench: Callable[..., Any]) -> None:
    async with bench(shows_notices=True) as it:
        it.main.prompt.put("thank the @src team for @note.txt")
        await it.pilot.press("enter")
        await it.until(lambda: it.notices() and it.notices()[0].endswith("to send without them"))
        it.main.prompt.put("thank the team")
        await it.pilot.press("enter")
        await it.until(lambda: it.replies)
        assert not [*it.app._notifications]


@run
@pytest.mark.usefixtures("folder")
async def test_quitting_does_not_wait_for_a_slow_folder(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message that was being checked is kept in the prompt."""
    answers, asked = threading.Event(), threading.Event()

    def stuck(*_: object) -> tuple[Missing, ...]:
        asked.set()
        answers.wait(20)
        return ()

    monkeypatch.setattr(composing, "missing", stuck)
    try:
        async with asyncio.timeout(15), bench() as it:
            it.main.prompt.post_message(Prompt.Submitted("look at @gone.py"))  # a press would wait for it
            await it.until(asked.is_set)
            await it.app.end(0)
            assert it.app.chats.active.chat.draft == "look at @gone.py"
            assert it.replies == []
    finally:
        answers.set()
