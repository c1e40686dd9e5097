"""The quantization drawer shows what the engine reports, live, and nothing else."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from engine.api.errors import BadInput
from engine.api.snapshot import Change, FormTime, SchemeView
from minichat.clients.fake import FakeBackend
from minichat.features.quantization.drawer import QuantizationDrawer
from minichat.features.quantization.figures import rows_of_steps
from tests.app.conftest import run, snapshot
from tests.cases import SIZES

MEMORY = {"weights": 4_000_000_000, "cache": 12_000_000_000, "host_cache": 0, "workspace": 500_000_000}
MEMORY |= {"device_free": 3_500_000_000, "device_total": 20_000_000_000}


@run
async def test_it_shows_schemes_memory_and_room_live(bench: Callable[..., Any]) -> None:
    shots = [
        replace(snapshot(step, (0,) * (step > 0)), memory=MEMORY, kv_dtype="float16", dtype="bfloat16")
        for step in range(30)
    ]
    async with bench((100, 40), backend=FakeBackend(shots)) as it:
        await it.pilot.press("f4")
        await it.until(lambda: "bfloat16, not quantized" in it.screen_text())
        shown = it.screen_text()
        for words in (
            "KV cache     float16",
            "4.00 GB",
            "12.0 GB",
            "500 MB",
            "3.50 GB",
            "20.0 GB",
            "64 of 16",
        ):
            assert words in shown
        assert "host cache" not in shown
        it.main.prompt.focus()
        await it.say("hello")
        await it.until(lambda: "992 available" in it.screen_text())
        assert it.quantization.display
        await it.pilot.press("f4", "escape")
        await it.until(lambda: not it.quantization.display and it.app.focused is it.main.prompt)
        assert it.main.engine.observers == []


@run
async def test_only_one_drawer_is_open(bench: Callable[..., Any]) -> None:
    async with bench((100, 30)) as it:
        await it.pilot.press("f4", "f3")
        assert (it.quantization.display, it.drawer.display) == (False, True)
        assert it.quantization not in it.main.engine.observers
        await it.pilot.press("f4")
        assert (it.quantization.display, it.drawer.display) == (True, False)
        assert it.app.focused is it.quantization.schemes


@run
async def test_its_key_focuses_an_open_drawer_before_closing_it(bench: Callable[..., Any]) -> None:
    async with bench((100, 30)) as it:
        for key, drawer in (("f3", it.drawer), ("f4", it.quantization)):
            await it.pilot.press(key)
            it.main.prompt.focus()
            await it.pilot.press(key)
            assert drawer.display and drawer.has_focus_within, (
                "so that a value can be changed while a reply runs"
            )
            assert it.main.engine.observers.count(drawer) <= 1
            await it.pilot.press(key)
            assert not drawer.display and it.app.focused is it.main.prompt


@run
@pytest.mark.parametrize("key", ["f2", "f3", "f4"])
async def test_closing_a_drawer_that_hides_the_chat_shows_the_chat_again(
    bench: Callable[..., Any], key: str
) -> None:
    async with bench((60, 16)) as it:
        chats = it.main.query_one("#panes")
        await it.pilot.press(key)
        assert not chats.display
        await it.pilot.press("escape", "escape")
        assert chats.display and it.app.focused is it.main.prompt
        assert it.main.engine.observers == []


@run
async def test_it_can_be_opened_before_the_engine_is_loaded(bench: Callable[..., Any]) -> None:
    backend = FakeBackend([snapshot()])
    backend.loaded.clear()
    async with bench((40, 12), backend=backend) as it:
        await it.pilot.press("f4")
        await it.until(lambda: "The engine is not loaded." in it.screen_text())
        assert "scheme" not in it.screen_text()
        backend.loaded.set()
        await it.until(lambda: "tiny" in it.screen_text())
        assert "The engine is not loaded." not in it.screen_text()


@run
async def test_a_scheme_is_chosen_watched_and_canceled(bench: Callable[..., Any]) -> None:
    schemes = (
        SchemeView("none", "", 4_000_000_000),
        SchemeView("int8", "", 2_200_000_000),
        SchemeView("fp8", "needs a GPU", 0),
    )
    plain = replace(snapshot(), schemes=schemes)
    backend = FakeBackend([plain])
    backend.unquantizable["fp8"] = BadInput("quantization 'fp8': needs a GPU")
    async with bench((100, 40), backend=backend) as it:
        await it.pilot.press("f4")
        await it.until(lambda: "2.20 GB" in it.screen_text() and "needs a GPU" in it.screen_text())
        await it.pilot.press("down", "enter")
        await it.until(lambda: backend.quantized == ["int8"])
        drawer = it.quantization
        drawer.see_snapshot(replace(plain, change=Change("int8", 3, 8)))
        await it.until(lambda: "Enter convert  Esc cancel" in it.screen_text())
        await it.until(lambda: "to int8: 3 of 8 layers" in it.screen_text())
        await it.pilot.press("escape")
        await it.until(lambda: backend.quantized == ["int8", ""])
        assert drawer.display, "the first Esc only cancels the change"
        drawer.see_snapshot(replace(plain, change=Change("int8", 0, 8, "it was canceled", True)))
        await it.until(lambda: "to int8: it was canceled; still" in it.screen_text())
        await it.until(lambda: "Enter convert  Esc close" in it.screen_text())
        await it.pilot.press("down", "enter")
        await it.until(lambda: backend.quantized == ["int8", "", "fp8"])
        await it.pilot.press("escape")
        await it.until(lambda: it.app.focused is it.main.prompt)


@run
async def test_a_reason_shared_by_several_schemes_is_shown_once(bench: Callable[..., Any]) -> None:
    missing = "the library is not installed"
    schemes = (
        SchemeView("none", "", 4_000_000_000),
        SchemeView("fp8", "needs a GPU", 0),
        *(SchemeView(name, missing, 0) for name in ("bnb-int8", "bnb-nf4", "bnb-fp4")),
        SchemeView("own", "", 1_000_000_000),
    )
    async with bench((200, 40), backend=FakeBackend([replace(snapshot(), schemes=schemes)])) as it:
        await it.pilot.press("f4")
        await it.until(lambda: "needs a GPU" in it.screen_text() and "1.00 GB" in it.screen_text())
        assert it.screen_text().count("the library is not") == 1
        assert it.screen_text().count("as above") == 2


@run
async def test_lines_of_a_long_reason_are_indented_at_each_width(bench: Callable[..., Any]) -> None:
    schemes = (
        SchemeView("none", "", 4_000_000_000),
        SchemeView("fp8", "FP8 products need an NVIDIA GPU, but this engine runs on cpu", 0),
    )
    async with bench((120, 40), backend=FakeBackend([replace(snapshot(), schemes=schemes)])) as it:
        await it.pilot.press("f4")
        for width in (120, 80):
            await it.pilot.resize_terminal(width, 40)
            await it.until(lambda: it.screen_text().count("NVIDIA GPU, but this") == 1)
            lines = it.screen_text().splitlines()
            first = next(line for line in lines if "FP8 products" in line)
            second = lines[lines.index(first) + 1]
            assert second.index("NVIDIA") == first.index("FP8")


@run
async def test_the_kv_cache_has_its_own_schemes(bench: Callable[..., Any]) -> None:
    schemes = (SchemeView("none", "", 4_000_000_000),)
    forms = (SchemeView("none", "", 131_072, 900), SchemeView("int8", "", 66_560, 1772))
    forms += (SchemeView("fp8", "attention old supports the KV schemes none, not fp8", 66_560),)
    backend = FakeBackend([replace(snapshot(), schemes=schemes, kv_schemes=forms)])
    backend.unquantizable["int8"] = BadInput("cannot change the cache while requests are alive: wait for 1")
    async with bench((100, 40), backend=backend) as it:
        await it.pilot.press("f4")
        await it.until(lambda: "1,772 blocks" in it.screen_text() and "attention old" in it.screen_text())
        await it.pilot.press("tab", "down", "enter")
        await it.until(lambda: backend.recached == ["int8"])
        await it.until(lambda: any("wait for 1" in notice for notice in it.notices()))
        assert backend.quantized == []


@run
async def test_tab_switches_between_weights_and_cache(bench: Callable[..., Any]) -> None:
    """In both directions, and without a cache's list it stays: it does not go on to the prompt."""
    schemes = (SchemeView("none", "", 4_000_000_000), SchemeView("int8", "", 2_200_000_000))
    forms = (SchemeView("none", "", 131_072, 900), SchemeView("int8", "", 66_560, 1772))
    shot = replace(snapshot(), schemes=schemes, kv_schemes=forms)
    async with bench((100, 40), backend=FakeBackend([shot])) as it:
        await it.pilot.press("f4")
        await it.until(lambda: "1,772 blocks" in it.screen_text())
        drawer = it.app.screen.query_one(QuantizationDrawer)
        for keys in ("tab", "shift+tab"):
            await it.pilot.press(keys)
            assert drawer.forms.has_focus
            await it.pilot.press(keys)
            assert drawer.schemes.has_focus
        it.main.show_snapshot(replace(shot, kv_schemes=()))
        await it.pilot.press("tab")
        assert drawer.schemes.has_focus


@run
async def test_the_current_scheme_is_not_requested_again(bench: Callable[..., Any]) -> None:
    schemes = (SchemeView("none", "", 4_000_000_000), SchemeView("int8", "", 2_200_000_000))
    forms = (SchemeView("none", "", 131_072, 900), SchemeView("int8", "", 66_560, 1772))
    shot = replace(snapshot(), schemes=schemes, quantization="int8", kv_schemes=forms, kv_scheme="none")
    backend = FakeBackend([shot])
    async with bench((100, 40), backend=backend) as it:
        await it.pilot.press("f4")
        await it.until(lambda: "2.20 GB" in it.screen_text())
        await it.pilot.press("enter", "tab", "enter")
        await it.until(lambda: len(it.notices()) == 2)
        said = "weights is already int8", "KV cache is already none"
        assert it.notices() == [f"The scheme of the {each}" for each in said]
        assert (backend.quantized, backend.recached) == ([], [])
        it.main.show_snapshot(replace(shot, change=Change("none", 3, 8)))
        await it.pilot.press("shift+tab", "enter")
        await it.until(lambda: backend.quantized == ["int8"])  # which may be refused and is reported


@run
async def test_without_other_kv_schemes_there_is_no_such_list(bench: Callable[..., Any]) -> None:
    async with bench((100, 40), backend=FakeBackend([snapshot()])) as it:
        await it.pilot.press("f4")
        await it.until(lambda: "not quantized" in it.screen_text())
        assert "a token" not in it.screen_text()


@run
async def test_the_scheme_under_the_cursor_is_on_the_screen(bench: Callable[..., Any]) -> None:
    schemes = tuple(SchemeView(name, "", 4_000_000_000) for name in ("none", *(f"w{n}" for n in range(14))))
    forms = tuple(SchemeView(name, "", 131_072, 64) for name in ("none", "k0", "k1", "k2"))
    async with bench((80, 24), backend=FakeBackend([snapshot(schemes=schemes, kv_schemes=forms)])) as it:

        def listed(name: str) -> bool:
            return any(
                f" {name} " in line and f"as {name}" not in line for line in it.screen_text().splitlines()
            )

        await it.pilot.press("f4")
        await it.until(lambda: listed("w0"))
        for name in ("w12", "w13"):
            await it.pilot.press(*["down"] * (13 if name == "w12" else 1))
            await it.until(lambda name=name: listed(name))
        await it.pilot.press(*["up"] * 14)
        await it.until(lambda: listed("w0"))
        await it.pilot.press("tab", *["down"] * 3)
        await it.until(lambda: listed("k2"))
        await it.pilot.press("shift+tab")
        await it.until(lambda: listed("w0"))


@run
async def test_the_scheme_under_the_cursor_is_previewed(bench: Callable[..., Any]) -> None:
    """The current and the resulting size of weights and cache, before the engine is asked for anything."""
    schemes = (
        SchemeView("none", "", 4_000_000_000),
        SchemeView("int8", "", 2_200_000_000, 128),
        SchemeView("fp8", "needs a GPU", 0),
    )
    forms = (SchemeView("none", "", 131_072, 64), SchemeView("int8", "", 66_560, 126))
    known = {"cache": 64 * 16 * 131_072, "weights": 4_000_000_000}
    backend = FakeBackend([snapshot(schemes=schemes, kv_schemes=forms, memory=known)])
    async with bench((80, 24), backend=backend) as it:

        def shown() -> list[str]:
            return str(it.quantization.preview.content).splitlines()

        await it.pilot.press("f4")
        await it.until(shown)
        assert [" ".join(line.split()) for line in shown()] == [
            "memory now, weights not quantized",
            "weights 4.00 GB",
            "KV cache 134 MB",
            "tokens 1,024",
            "a step not measured yet",
        ]
        await it.pilot.press("down")
        await it.until(lambda: "int8" in shown()[0])
        assert [" ".join(line.split()) for line in shown()] == [
            "memory with weights as int8",
            "weights 4.00 GB → 2.20 GB",
            "KV cache 134 MB → 268 MB",
            "tokens 1,024 → 2,048",
            "a step not measured yet",
        ]
        assert "4.00 GB → 2.20 GB" in it.screen_text(), "without scrolling"
        await it.pilot.press("down")
        await it.until(lambda: shown() == ["weights as fp8", "needs a GPU"])
        await it.pilot.press("tab", "down")
        await it.until(lambda: "memory with cache as int8" in shown())
        assert [" ".join(line.split()) for line in shown()[1:]] == [
            "weights 4.00 GB",
            "KV cache 134 MB",
            "tokens 1,024 → 2,016",
            "a step not measured yet",
        ]
        assert (backend.quantized, backend.recached) == ([], [])


@run
@pytest.mark.parametrize("size", SIZES)
async def test_the_present_weights_are_as_large_as_in_the_monitor(
    bench: Callable[..., Any], size: tuple[int, int]
) -> None:
    """The sizes of the schemes are estimates; those of the loaded weights are measured."""
    schemes = (SchemeView("none", "", 12_600_000), SchemeView("int8", "", 7_940_000))
    shot = snapshot(schemes=schemes, quantization="int8", memory={"weights": 8_090_000})
    async with bench(size, backend=FakeBackend([shot])) as it:
        await it.pilot.press("f4")
        await it.until(lambda: "weights      8.09 MB" in it.screen_text())
        assert "int8       8.09 MB" in it.screen_text() and "7.94" not in it.screen_text()
        await it.pilot.press("up")
        await it.until(lambda: "8.09 MB → 12.6 MB" in it.screen_text())


WEIGHTS = (SchemeView("none", "", 4_000_000_000, 64), SchemeView("int8", "", 2_200_000_000, 1_128))
WEIGHTS += (SchemeView("int4", "", 1_300_000_000, 2_256),)
FORMS = (SchemeView("none", "", 131_072, 64), SchemeView("int8", "", 66_560, 126))
INT8 = FormTime("int8", "none", 2, 8, 0.00914, 31)
TIMES = (
    INT8,
    FormTime("none", "none", 2, 8, 0.01234, 31),
    FormTime("int8", "int8", 2, 8, 1.5, 4),
    FormTime("int4", "none", 1, 1, 0.000635, 31),  # with another number of rows
)


@run
@pytest.mark.parametrize("size", SIZES)
async def test_the_measured_time_of_a_step_is_beside_each_scheme(
    bench: Callable[..., Any], size: tuple[int, int]
) -> None:
    """Those of weights with the present cache, and the other way around."""
    kind = {"schemes": WEIGHTS, "kv_schemes": FORMS, "quantization": "int8"}
    async with bench(size, backend=FakeBackend([snapshot(**kind)])) as it:

        def shown() -> list[str]:
            return [" ".join(line.split()) for line in str(it.quantization.preview.content).splitlines()]

        await it.pilot.press("f4")
        await it.until(lambda: shown() and shown()[-1] == "a step not measured yet")
        assert " ms a step" not in it.screen_text()
        it.main.show_snapshot(snapshot(**kind, form_times=TIMES))
        await it.until(lambda: "2-8 rows     9.14 ms a step" in it.screen_text())
        assert "12.3 ms a step" in it.screen_text() and "0.635" not in it.screen_text()
        assert it.quantization.schemes.highlighted == 1
        await it.pilot.press("up")
        await it.until(lambda: shown()[-1] == "2-8 rows 9.14 → 12.3 ms a step")
        assert "2-8 rows     9.14 → 12.3 ms a step" in it.screen_text()
        await it.pilot.press("down", "down")
        await it.until(lambda: shown()[-1] == "2-8 rows not measured yet")
        await it.pilot.press("tab", "down")
        await it.until(lambda: shown()[-1] == "2-8 rows 9.14 ms → 1.50 s a step")
        assert "1.50 s a step" in it.screen_text()


@run
@pytest.mark.parametrize("size", SIZES)
async def test_the_list_never_has_a_scrollbar_in_the_scrolling_drawer(
    bench: Callable[..., Any], size: tuple[int, int]
) -> None:
    """Not even for a frame: lines that were wrapped for a scrollbar stayed wrapped without it."""
    many = tuple(SchemeView(f"int{bits}", "", 1_300_000_000) for bits in range(30))
    kind = {"schemes": many, "kv_schemes": FORMS, "quantization": "int8"}
    async with bench(size, backend=FakeBackend([snapshot(**kind)])) as it:
        bars: list[bool] = []
        for each in (it.quantization.schemes, it.quantization.forms):
            it.app.watch(each, "show_vertical_scrollbar", bars.append, init=False)
        await it.pilot.press("f4")
        await it.until(lambda: "int4" in it.screen_text())
        it.main.show_snapshot(snapshot(**kind, form_times=TIMES))
        await it.until(lambda: "9.14 ms a step" in it.screen_text())
        assert not any(bars)
        await it.pilot.press("end")
        await it.until(lambda: "int29" in it.screen_text())


@run
async def test_a_new_time_does_not_scroll_the_drawer(bench: Callable[..., Any]) -> None:
    kind = {"schemes": WEIGHTS, "kv_schemes": FORMS, "quantization": "int8"}
    async with bench((80, 24), backend=FakeBackend([snapshot(**kind, form_times=TIMES)])) as it:
        await it.pilot.press("f4")
        await it.until(lambda: "12.3 ms a step" in it.screen_text())
        it.quantization.scroll_end(animate=False)
        await it.until(lambda: "at most" in it.screen_text())
        at = it.quantization.scroll_y
        it.main.show_snapshot(snapshot(**kind, form_times=(INT8._replace(seconds=0.02), *TIMES[1:])))
        await it.until(lambda: "2-8 rows     20 ms a step" in it.screen_text())
        assert "at most" in it.screen_text() and it.quantization.scroll_y == at


@pytest.mark.parametrize(
    ("rows", "most", "words"), [(1, 1, "1 row"), (33, 128, "33-128 rows"), (129, 0, "129+ rows")]
)
def test_how_many_rows_a_step_had(rows: int, most: int, words: str) -> None:
    assert rows_of_steps(snapshot(form_times=(FormTime("none", "none", rows, most, 0.01, 3),))) == words
    assert rows_of_steps(snapshot()) == ""
