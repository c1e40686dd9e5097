"""What the tour shows: every page has the engine do something, and tells what the engine said of it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from engine.api.events import Admitted, Copied, Finished, FirstToken, Forked, Preempted, Resumed, Updated
from minichat.features.tour.guide import Guide
from minichat.models.progress import size
from minichat.plural import plural
from minichat.ui.monitor.figures import duration

BLOCKS = 24  # of the tour's cache: three replies do not fit
SCHEME = "int8"  # that the weights are converted to
SYSTEM = (
    "You are a friendly storyteller who lives inside a small engine. You know every animal of the forest by "
    "its name, and you tell short stories about them. Your stories begin with a problem, and they end well. "
    "You speak in plain words, and you are never unkind to anybody."
)
LONG = {"temperature": 0.7, "min_tokens": 140, "max_tokens": 150}
_ANIMALS = "fox hare mouse wolf bear crow hen frog goose horse duck snail cat dog lion".split()


@dataclass(frozen=True, slots=True)
class Page:
    """`do` works with the engine and returns what it has seen there; nothing in it is made up."""

    title: str
    text: str
    watch: str = ""  # what to look at, told before it begins; {where} is where the engine is seen
    do: Callable[[Guide], Awaitable[str]] | None = None
    last: bool = False


def _story(guide: Guide) -> str:
    """Another one each time: what was read before would be found in the cache."""
    return f"Tell me a story about a {_ANIMALS[next(guide.stories) % len(_ANIMALS)]}."


async def _first_reply(guide: Guide) -> str:
    await guide.quiet()
    chat = await guide.ask(_story(guide), LONG)
    admitted = await guide.heard(Admitted, chat)
    guide.glow(chat)
    first = await guide.heard(FirstToken, chat)
    return (
        f"Request {admitted.request} was let in, and its first token came {duration(first.seconds)} after it "
        "was sent. The keys and values of its tokens lie in blocks of 16; it takes more as it writes."
    )


async def _prefix(guide: Guide) -> str:
    await guide.quiet()
    chat = await guide.ask(_story(guide), LONG, new=True)
    admitted = await guide.heard(Admitted, chat)
    guide.glow(chat)
    tokens = guide.prompt_tokens(chat)
    if not admitted.cached:
        return f"None of its {tokens} tokens were found: what chat A had read has left the cache."
    return (
        f"{admitted.cached} of its {tokens} prompt tokens lay in {_blocks(admitted.cached // 16)} of chat A, "
        "and were not computed again: the system prompt is the same, and so are its blocks."
    )


async def _fork(guide: Guide) -> str:
    await guide.quiet()
    parent = await guide.ask(_story(guide), LONG)
    await guide.heard(FirstToken, parent)
    child = await guide.fork(parent)
    forked = await guide.heard(Forked, child)
    guide.glow(child)
    copied = await guide.heard((Copied, Finished), parent, child)
    if not isinstance(copied, Copied):
        return (
            f"The fork began with {_blocks(forked.blocks)}, all of them full: there was nothing to copy. "
            "The tour shows a copy when the fork falls into the middle of a block."
        )
    return (
        f"The fork began with {_blocks(forked.blocks)}, and computed none of them. As soon as one of the two "
        f"wrote on, the half-full block {copied.block} was copied to {copied.to}; full ones stay shared."
    )


async def _preemption(guide: Guide) -> str:
    await guide.quiet()
    chats = await guide.ask_all([_story(guide) for _ in range(3)], LONG)
    gone = await guide.heard(Preempted, *chats)
    chat, blocks = guide.chat_of(gone.request), _blocks(gone.blocks)
    name = chat.chat.letter.upper()
    guide.say(
        f"Chat {name} gave up its {blocks}, so that the others can go on. It keeps its text and its place in "
        "line, and comes back when there is room ..."
    )
    back = await guide.heard(Resumed, chat)
    return (
        f"Chat {name} gave up {blocks}, and came back by itself: {plural(back.cached, 'token')} were still "
        "in the cache, the others were computed again. Its words are those it would have said alone."
    )


async def _decoding(guide: Guide) -> str:
    await guide.quiet()
    chat = await guide.ask(_story(guide), LONG)
    await guide.heard(FirstToken, chat)
    guide.tune(chat, temperature=0.0)
    updated = await guide.heard(Updated, chat)
    done = await guide.heard(Finished, chat)
    return (
        f"From step {updated.step} on the reply was greedy, in the middle of a sentence; it ended after "
        f"{done.tokens} tokens. F3 has all the knobs of a chat, and the likeliest next tokens."
    )


async def _switch(guide: Guide) -> str:
    await guide.quiet()
    chat = await guide.ask(_story(guide), LONG)
    await guide.heard(FirstToken, chat)
    switched = await guide.quantize(SCHEME if guide.scheme != SCHEME else "none")
    if switched.error:
        return f"It stayed at {switched.before}: {switched.error}."
    after = duration(switched.seconds)
    done = await guide.heard(Finished, chat)
    sizes = f"{size(guide.weights(switched.before))} became {size(guide.weights(switched.scheme))}"
    return (
        f"{sizes} in {after}, a layer a turn, and the same request went on: it ended after {done.tokens} "
        "tokens. F4 has all schemes with what they take, and the way back."
    )


def _blocks(count: int) -> str:
    return plural(count, "block")


PAGES = (
    Page(
        "A tour of the engine",
        "A real engine runs here, with a tiny model and a cache of only 24 blocks, so that you can see it "
        "work. Each page says what to look at and waits for you; then the engine does it, and the page says "
        "what it was. Nothing is recorded: what you play again, the engine does again.",
    ),
    Page(
        "A reply",
        "Chat A asks for a story.",
        "Look at {where}: the request waits (W), reads its prompt (P) and writes (D), and its blocks fill.",
        _first_reply,
    ),
    Page(
        "A prefix that was read before",
        "A new chat begins with the same system prompt.",
        "Look at {where}: P is over at once, and blocks of chat A are in use again.",
        _prefix,
    ),
    Page(
        "Copy on write",
        "The reply of this chat is forked while it runs.",
        "Look at {where}: two replies are written (D 2), but the cache holds what they share only once.",
        _fork,
    ),
    Page(
        "No room",
        "Three chats ask at once; together they need more blocks than there are.",
        "Look at {where}: the cache fills up, one of the three stops (X), and comes back later.",
        _preemption,
    ),
    Page(
        "Another decoding",
        "A reply at temperature 0.7 becomes greedy while it runs.",
        "Look at the line over the chat: it says T 0.7, and in the middle of a sentence it says greedy.",
        _decoding,
    ),
    Page(
        "Other weights",
        "They are converted to int8 while a reply runs; played again, they come back.",
        "Look at the reply: its words keep coming while the layers change, one after the other.",
        _switch,
    ),
    Page(
        "That was the tour",
        "F1 has the keys, F8 says why it is as fast as it is, Alt+X turns techniques off, to see what they "
        "are worth. Ask the chats something, or leave: k keeps these chats, q leaves nothing behind.",
        last=True,
    ),
)
