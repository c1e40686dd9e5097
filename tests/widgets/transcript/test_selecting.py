"""Selected text is the source text, wherever lines wrap."""

from textwrap import indent

from hypothesis import given
from hypothesis import strategies as st
from rich.color import Color as RichColor
from rich.style import Style
from textual.color import Color
from textual.geometry import Offset
from textual.selection import SELECT_ALL, Selection

from minichat.ui.picture import strips_of
from minichat.ui.transcript import UNICODE, Transcript
from minichat.ui.transcript.entry import EntryPart, Spot
from minichat.ui.transcript.glyphs import pasteable
from minichat.ui.transcript.markdown.canvas import Canvas
from minichat.ui.transcript.selecting import selected
from minichat.ui.transcript.view import Place, View
from tests.themes.colors import contrast
from tests.widgets.transcript.reader import Reader, reading, reply, scene, user
from tests.widgets.transcript.texts import EVERYTHING, texts

LIST = "Take these:\n\n- **one** of a few words\n- two `code`\n\nand go"


def view_of(*sources: str, width: int = 30) -> View:
    view = View(Canvas(width, UNICODE, lambda look: Style()))
    view.show([reply(text, number) for number, text in enumerate(sources)], "a")
    return view


def key(view: View, message: int, leaf: int) -> int:
    view.entries[message].open(lambda: False)
    return Place(view.entries[message], Spot(EntryPart.BODY, leaf, 0)).key


def chosen(reader: Reader) -> str:
    return reader.app.screen.get_selected_text() or ""


@given(texts, st.integers(5, 60))
def test_selecting_all_of_a_message_gives_its_source(text: str, width: int) -> None:
    view = view_of(text, "end", width=width)
    assert selected(view, SELECT_ALL) == (pasteable(text) + "\n\n" + "end" if text else "end")


@given(texts, st.integers(5, 60), st.data())
def test_a_selection_does_not_depend_on_the_width(text: str, width: int, data: st.DataObject) -> None:
    one, other = view_of(text, width=width), view_of(text, width=33)
    count = len(one.entries[0].open(lambda: False).leaves)
    ends = [
        Offset(data.draw(st.integers(0, 30)), key(one, 0, data.draw(st.integers(0, max(0, count - 1)))))
        for _ in range(2)
    ]
    selection = Selection.from_offsets(*ends)
    assert selected(one, selection) == selected(other, selection)


def test_whole_leaves_give_source_and_parts_give_rendered_text() -> None:
    view = view_of(LIST)
    assert selected(view, Selection(Offset(5, key(view, 0, 0)), Offset(3, key(view, 0, 2)))) == (
        "these:\n\n- **one** of a few words\ntwo"
    )
    assert selected(view, Selection(Offset(0, key(view, 0, 1)), Offset(99, key(view, 0, 1)))) == (
        "- **one** of a few words"
    )
    assert selected(view, Selection(Offset(0, key(view, 0, 1)), Offset(8, key(view, 0, 1)))) == "one of a"


def test_code_alone_is_copied_without_its_fence() -> None:
    view = view_of("do\n\n```sh\nls\t-l\n```")
    assert selected(view, Selection(Offset(0, key(view, 0, 1)), Offset(99, key(view, 0, 1)))) == "ls\t-l"
    assert selected(view, Selection(Offset(0, key(view, 0, 0)), Offset(99, key(view, 0, 1)))).endswith("```")


def test_long_code_alone_is_copied_without_its_fence_and_indent() -> None:
    """It is drawn in several pieces."""
    code = "\n\n".join(f"def f{number}():\n    return {number}" for number in range(120))
    block = f"```py\n{code}\n```"
    for text in (f"do\n\n{block}\n\nend", f"- do\n\n{indent(block, '  ')}"):
        view = view_of(text)
        leaves = view.entries[0].open(lambda: False).leaves
        pieces = [at for at, leaf in enumerate(leaves) if leaf.kind == "code"]
        assert len(pieces) > 1
        first, last = key(view, 0, pieces[0]), key(view, 0, pieces[-1])
        assert selected(view, Selection(Offset(0, first), Offset(9999, last))) == code


def test_table_cells_are_separated_by_tabs() -> None:
    view = view_of("| a | b |\n|---|---|\n| 1 | 2 |")
    assert selected(view, Selection(Offset(2, key(view, 0, 0)), Offset(7, key(view, 0, 0)))) == "b\n1\t2"


@scene
async def test_a_word_of_a_table_without_columns_is_selected() -> None:
    async with reading((21, 12)) as reader:
        table = "\n".join("|" + 8 * f" {word} |" for word in ("head", "---", "one"))
        reader.transcript.show([reply(table, 1)], "a")
        await reader.settled()
        assert reader.lines()[1:3] == ["head │ head │ head │", "head │ head │ head │"]
        await reader.pilot.mouse_down(Transcript, offset=(9, 1))
        await reader.pilot.hover(Transcript, offset=(3, 2))
        await reader.pilot.mouse_up(Transcript, offset=(3, 2))
        assert chosen(reader) == "ad\thead\thead"


@scene
async def test_the_mouse_selects_across_wrapped_lines() -> None:
    async with reading((21, 12)) as reader:
        reader.transcript.show([user("alpha beta gamma delta epsilon zeta")], "a")
        await reader.settled()
        assert reader.lines()[1:3] == ["alpha beta gamma", "delta epsilon zeta"]
        await reader.pilot.mouse_down(Transcript, offset=(6, 1))
        await reader.pilot.hover(Transcript, offset=(4, 2))
        await reader.pilot.mouse_up(Transcript, offset=(4, 2))
        assert chosen(reader) == "beta gamma delta"
        before = reader.app.screen.selections
        await reader.pilot.resize_terminal(60, 12)
        await reader.settled()
        assert reader.app.screen.selections == before
        assert chosen(reader) == "beta gamma delta"


@scene
async def test_a_bullet_selects_the_text_after_it() -> None:
    async with reading() as reader:
        reader.transcript.show([reply("- one two\n- three", 1)], "a")
        await reader.settled()
        await reader.pilot.mouse_down(Transcript, offset=(0, 1))
        await reader.pilot.hover(Transcript, offset=(4, 1))
        await reader.pilot.mouse_up(Transcript, offset=(4, 1))
        assert chosen(reader) == "one"


@scene
async def test_a_double_click_selects_a_word_and_a_triple_click_its_paragraph() -> None:
    async with reading() as reader:
        reader.transcript.show([user("alpha beta-two gamma")], "a")
        await reader.settled()
        await reader.pilot.click(Transcript, offset=(8, 1), times=2)
        assert chosen(reader) == "beta-two"
        await reader.pilot.click(Transcript, offset=(8, 1), times=3)
        assert chosen(reader) == "alpha beta-two gamma"


@scene
async def test_a_triple_click_selects_all_of_a_long_code_block() -> None:
    code = "\n\n".join(f"def f{number}():\n    return {number}" for number in range(120))
    async with reading((40, 12)) as reader:
        reader.transcript.show([reply(f"first\n\n```py\n{code}\n```\n\n```py\nx\n```")], "a")
        await reader.settled()
        for y in (0, reader.transcript.max_scroll_y // 2):
            reader.transcript.scroll_to(y=y, animate=False)
            await reader.settled()
            await reader.pilot.click(Transcript, offset=(6, 8), times=3)
            assert chosen(reader) == code


@scene
async def test_keys_select_and_copy() -> None:
    async with reading((40, 12)) as reader:
        reader.transcript.show([reply("first line  \nsecond line", 1), reply("the reply")], "a")
        await reader.settled()
        await reader.press("shift+up", "y")
        await reader.press("shift+up")
        assert chosen(reader) == "second line\n\nthe reply".replace("\n\n", "\n\n")
        await reader.press("shift+right")
        assert chosen(reader).startswith("econd")
        await reader.press("shift+home", "shift+left", "shift+left")
        assert chosen(reader).startswith("e\nsecond")
        await reader.press("a")
        assert chosen(reader) == "the reply"
        await reader.press("ctrl+a")
        assert chosen(reader) == "first line  \nsecond line\n\nthe reply"
        reader.app.screen.clear_selection()
        await reader.press("y")
        texts = [event.text for event in reader.app.asked if isinstance(event, Transcript.CopyRequested)]
        assert texts == ["the reply", "the reply"]


@scene
async def test_the_chosen_message_is_copied() -> None:
    async with reading((40, 12)) as reader:
        reader.transcript.show([reply("the first", 1), reply("the second", 2), reply("the last")], "a")
        await reader.settled()
        await reader.press("y", "ctrl+up", "ctrl+up", "y", "a", "y")
        texts = [event.text for event in reader.app.asked if isinstance(event, Transcript.CopyRequested)]
        assert texts == ["the last", "the second", "the second"]


@scene
async def test_selecting_with_keys_scrolls() -> None:
    async with reading((40, 10)) as reader:
        reader.transcript.show([user("\n\n".join(f"line {number}" for number in range(30)))], "a")
        await reader.settled()
        await reader.press(*["shift+up"] * 20)
        assert chosen(reader).startswith("line 10")
        assert "line 10" in reader.drawn()
        await reader.press("shift+pagedown", *["shift+down"] * 30)
        assert not chosen(reader)


@scene
async def test_a_selection_is_marked_by_more_than_color() -> None:
    async with reading() as reader:
        reader.app.no_color = True
        reader.transcript.show([reply(EVERYTHING, 1)], "a")
        await reader.settled()
        await reader.press("ctrl+a")
        strip = next(strip for strip in strips_of(reader.app.screen) if "Under" in strip.text)
        assert any(segment.style.reverse for segment in strip if segment.style and "Under" in segment.text)


@scene
async def test_last_reply_is_the_newest_with_text() -> None:
    async with reading() as reader:
        reader.transcript.show([reply("old", 1), reply("new", 2), user("x", 3), reply("", 4)], "a")
        assert reader.transcript.last_reply() == "new"


@scene
async def test_selected_text_is_readable() -> None:
    async with reading() as reader:
        reader.transcript.show([reply("plain, `code` and **bold**\n\n```python\nx = 1  # one\n```")], "a")
        await reader.settled()
        await reader.press("ctrl+a")
        drawn = [segment for strip in strips_of(reader.app.screen) for segment in strip]
        ground = reader.app.screen.get_component_rich_style("screen--selection").bgcolor
        chosen = [each for each in drawn if each.style and each.style.bgcolor == ground and each.text.strip()]
        assert "plain" in "".join(each.text for each in chosen)
        for text, style, _ in chosen:
            assert style and style.color and style.bgcolor
            assert contrast(color(style.color), color(style.bgcolor)) >= 4.5, text


def color(rich: RichColor) -> str:
    return Color.from_rich_color(rich).hex
