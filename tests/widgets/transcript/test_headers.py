"""Headers of messages: role, time, and what a reply cost."""

from dataclasses import replace

from minichat.chats.model import ReplyStats
from tests.widgets.transcript.reader import reading, reply, scene, streaming, user


@scene
async def test_messages_have_headers_with_role_time_and_cost() -> None:
    async with reading((70, 12)) as reader:
        reader.transcript.show([user("Hello"), reply("Hi **there**")], "b")
        await reader.settled()
        assert reader.lines()[:5] == [
            "▌ you  12:01",
            "Hello",
            "",
            "▌ assistant b  12:01  top-p  38 tok/s  waited 92 ms  214 tok  14 blk",
            "Hi there",
        ]


@scene
async def test_a_message_of_another_day_has_its_date() -> None:
    """Without it, a chat of last week reads as one of today."""
    async with reading((70, 14)) as reader:
        days = [replace(user("Hello"), at=43_260.0 + 86_400 * each) for each in (-400, -1, 0, 1)]
        reader.transcript.show(days, "b")
        await reader.settled()
        heads = [line.removeprefix("▌ you  ") for line in reader.lines() if line.startswith("▌")]
        assert heads == ["1968-11-27 12:01", "1969-12-31 12:01", "12:01", "Jan 2 12:01"]


@scene
async def test_one_token_has_no_rate() -> None:
    async with reading((70, 12)) as reader:
        one = ReplyStats(tokens=1, seconds=0.8, ttft=0.8, prompt_tokens=3, strategy="greedy")
        reader.transcript.show([replace(reply("row"), stats=one)], "b")
        await reader.settled()
        assert reader.lines()[0] == "▌ assistant b  12:01  greedy  waited 800 ms  1 tok"


@scene
async def test_a_slow_reply_has_a_rate_and_a_running_search_says_so() -> None:
    """A wide beam search may go on for half a minute after its text is there."""
    async with reading((70, 12)) as reader:
        slow = ReplyStats(tokens=10, seconds=37.4, ttft=0.4, prompt_tokens=3, strategy="beams 16")
        begun = replace(streaming(), text="19", params={"beams": 16})
        reader.transcript.show([replace(reply("19"), stats=slow), begun], "b")
        await reader.settled()
        heads = [line.partition("12:01  ")[2] for line in reader.lines() if line.startswith("▌")]
        assert heads == ["beams 16  0.24 tok/s  waited 400 ms  10 tok", "searching"]
        for beams, word in (False, "writing"), (True, "searching"):
            reader.transcript.extend("1", "", beams=beams)
            await reader.settled()
            assert [line for line in reader.lines() if line.startswith("▌")][-1].endswith(word)


@scene
async def test_a_forked_reply_says_how_much_it_copied() -> None:
    async with reading((90, 12)) as reader:
        forked = ReplyStats(
            tokens=121, seconds=3.0, ttft=1.0, prompt_tokens=3, strategy="greedy", blocks=9, copied=80
        )
        reader.transcript.show([replace(reply("row"), stats=forked)], "b")
        await reader.settled()
        expected = "▌ assistant b  12:01  greedy  20 tok/s  waited 1.00 s  121 tok  80 copied  9 blk"
        assert reader.lines()[0] == expected, "the rate is that of its own 41 tokens"


@scene
async def test_a_resumed_chat_says_what_a_tier_saved() -> None:
    async with reading((90, 12)) as reader:
        resumed = ReplyStats(
            tokens=1, seconds=0.1, ttft=0.1, prompt_tokens=1990, strategy="greedy", loaded=1888, tier="disk"
        )
        for stats, more in (resumed, ""), (replace(resumed, saved=1.861), "  saved 1.86 s"):
            reader.transcript.show([replace(reply("row"), stats=stats)], "b")
            await reader.settled()
            found = f"1,888 tok from disk{more}"
            assert reader.lines()[0] == f"▌ assistant b  12:01  greedy  waited 100 ms  {found}  1 tok"


@scene
async def test_without_room_changed_settings_are_named_by_the_last_ones() -> None:
    """Without a label the reply would seem to have none; with the first ones only, to have kept them."""
    label = "T 0.7 top-p 0.95 rep 1.15 freq 0.4, then greedy rep 1.15 freq 0.4"
    changed = ReplyStats(tokens=41, seconds=3.0, ttft=1.0, prompt_tokens=3, strategy=label)
    for width, shown in (
        (90, label),
        (78, "…, then greedy rep 1.15 freq 0.4  20 tok/s"),
        (45, "20 tok/s  41 tok"),
    ):
        async with reading((width, 12)) as reader:
            reader.transcript.show([replace(reply("row"), stats=changed)], "b")
            await reader.settled()
            assert reader.lines()[0].startswith(f"▌ assistant b  12:01  {shown}")


@scene
async def test_large_numbers_are_grouped() -> None:
    async with reading((90, 12)) as reader:
        large = ReplyStats(1900, 1.1, 0.1, 3, "greedy", blocks=1200, copied=0)
        reader.transcript.show([replace(reply("row"), stats=large)], "b")
        await reader.settled()
        figures = "1,899 tok/s  waited 100 ms  1,900 tok  1,200 blk"
        assert reader.lines()[0] == f"▌ assistant b  12:01  greedy  {figures}"


@scene
async def test_a_long_wait_is_shown_in_seconds() -> None:
    async with reading((70, 12)) as reader:
        late = ReplyStats(tokens=1, seconds=13.0, ttft=12.649, prompt_tokens=3, strategy="greedy")
        reader.transcript.show([replace(reply("row"), stats=late)], "b")
        await reader.settled()
        assert reader.lines()[0] == "▌ assistant b  12:01  greedy  waited 12.65 s  1 tok"
