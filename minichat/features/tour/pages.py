"""The pages of the tour: each has the engine do something and reports what it did."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from engine.api.events import Admitted, Copied, Finished, FirstToken, Forked, Preempted, Resumed, Updated
from minichat.features.tour.guide import EndedEarlyError, Guide
from minichat.models.progress import size
from minichat.plural import plural
from minichat.ui.monitor.figures import duration

BLOCKS = 24  # of the tour's cache: too few for three replies
SCHEME = "int8"  # the scheme that the weights are converted to
SYSTEM = (
    "You are a friendly storyteller who lives inside a small engine. You know every animal of the forest by "
    "its name, and you tell short stories about them. Your stories begin with a problem, and they end well. "
    "You speak in plain words, and you are never unkind to anybody."
)
LONG = {"temperature": 0.7, "min_tokens": 140, "max_tokens": 150}
_ANIMALS = "fox hare mouse wolf bear crow hen frog goose horse duck snail cat dog lion".split()


@dataclass(frozen=True, slots=True)
class Page:
    """A page. `do` runs the engine and returns a report of what actually happened."""

    title: str
    text: str  # the ids of bindings in braces are replaced by their keys
    watch: str = ""  # what to look at, shown before it begins; {where} is where the engine is shown
    do: Callable[[Guide], Awaitable[str]] | None = None
    last: bool = False


def _story(guide: Guide) -> str:
    """Ask for a different animal each time, because an earlier prompt would be in the cache."""
    return f"Tell me a story about a {_ANIMALS[next(guide.stories) % len(_ANIMALS)]}."


async def _first_reply(guide: Guide) -> str:
    await guide.quiet()
    chat = await guide.ask(_story(guide), LONG)
    admitted = await guide.wait_for(Admitted, chat)
    guide.glow(chat)
    first = await guide.wait_for(FirstToken, chat)
    return (
        f"Request {admitted.request} was admitted; its first token came {duration(first.seconds)} after the "
        "engine received it. The keys and values of its tokens are in blocks of 16; it allocates more as it "
        "decodes."
    )


async def _prefix(guide: Guide) -> str:
    await guide.quiet()
    chat = await guide.ask(_story(guide), LONG, new=True)
    admitted = await guide.wait_for(Admitted, chat)
    guide.glow(chat)
    tokens = guide.prompt_tokens(chat)
    if not admitted.cached and not guide.reads_prefixes:
        off = "the prefix cache is off"
        return (
            f"None of its {tokens} tokens were looked for: {off}. {guide.key('engine.switches')} turns it on."
        )
    if not admitted.cached:
        return f"None of its {tokens} tokens were found: the blocks of earlier chats have left the cache."
    return (
        f"{admitted.cached} of its {tokens} prompt tokens were in {_blocks(admitted.cached // 16)} of an "
        "earlier chat and were not recomputed: both share the system prompt and its blocks."
    )


async def _fork(guide: Guide) -> str:
    await guide.quiet()
    parent = await guide.ask(_story(guide), LONG)
    await guide.wait_for(FirstToken, parent)
    child = await guide.fork(parent)
    forked = await guide.wait_for(Forked, child)
    guide.glow(child)
    copied = await guide.wait_for((Copied, Finished), parent, child)
    if isinstance(copied, Finished) and copied.finish == "aborted":
        raise EndedEarlyError
    if not isinstance(copied, Copied):
        return (
            f"The fork began with {_blocks(forked.blocks)}, all of them full: nothing had to be copied. "
            "The tour shows a copy if the fork is in the middle of a block."
        )
    return (
        f"The fork began with {_blocks(forked.blocks)} and recomputed none of them. When one of the two "
        f"continued, the half-full block {copied.block} was copied to {copied.to}; full blocks stay shared."
    )


async def _preemption(guide: Guide) -> str:
    await guide.quiet()
    chats = await guide.ask_all([_story(guide) for _ in range(3)], LONG)
    gone = await guide.wait_for(Preempted, *chats)
    chat, blocks = guide.chat_of(gone.request), _blocks(gone.blocks)
    name = chat.chat.letter.upper()
    guide.say(
        f"Chat {name} gave up its {blocks} so that the others can continue. It keeps its text and place in "
        "the queue, and resumes when there is room ..."
    )
    back = await guide.wait_for(Resumed, chat)
    return (
        f"Chat {name} gave up {blocks} and resumed automatically: {plural(back.cached, 'token')} were still "
        "in the cache, the others were recomputed. Its text is the same as without the preemption (on a GPU "
        "except at near ties)."
    )


async def _decoding(guide: Guide) -> str:
    await guide.quiet()
    chat = await guide.ask(_story(guide), LONG)
    await guide.wait_for(FirstToken, chat)
    guide.tune(chat, temperature=0.0)
    updated = await guide.wait_for(Updated, chat)
    done = await guide.wait_for(Finished, chat)
    return (
        f"From step {updated.step} on, the reply was greedy, in the middle of a sentence; it ended after "
        f"{done.tokens} tokens. {guide.key('view.decoding')} shows all decoding settings of a chat and the "
        "likeliest next tokens."
    )


async def _switch(guide: Guide) -> str:
    await guide.quiet()
    chat = await guide.ask(_story(guide), LONG)
    await guide.wait_for(FirstToken, chat)
    switched = await guide.quantize(SCHEME if guide.scheme != SCHEME else "none")
    if switched.error:
        return f"It stayed at {switched.before}: {switched.error}."
    after = duration(switched.seconds)
    done = await guide.wait_for(Finished, chat)
    sizes = f"{size(guide.weights(switched.before))} became {size(guide.weights(switched.scheme))}"
    return (
        f"{sizes} in {after}, one layer at a time, while the request waited. Then it continued, and ended "
        f"after {done.tokens} tokens. {guide.key('view.quantization')} lists all schemes and their sizes."
    )


def _blocks(count: int) -> str:
    return plural(count, "block")


PAGES = (
    Page(
        "A tour of the engine",
        "A real engine runs here, with a tiny model and a cache of only 24 blocks, so that you can see it "
        "work. Each page tells you what to look at and waits for you; then the engine runs, and the page "
        "reports what happened. Nothing is recorded: playing a page again runs the engine again.",
    ),
    Page(
        "A reply",
        "A chat asks for a story. Replies of the tour have about 150 tokens, even if the story ends sooner.",
        "Look at {where}: the request waits (W), prefills its prompt (P), decodes (D), and fills blocks.",
        _first_reply,
    ),
    Page(
        "A cached prefix",
        "A new chat begins with the same system prompt.",
        "Look at {where}: prefill (P) ends immediately, and blocks of an earlier chat are reused.",
        _prefix,
    ),
    Page(
        "Copy on write",
        "The reply of this chat is forked while it runs.",
        "Look at {where}: two replies decode (D 2), but the cache holds their shared prefix once.",
        _fork,
    ),
    Page(
        "Preemption",
        "Three chats send a message at once; together they need more blocks than exist.",
        "Look at {where}: the cache fills up, two of the three are preempted (X) and resume later.",
        _preemption,
    ),
    Page(
        "Changing decoding settings",
        "A reply at temperature 0.7 switches to greedy while it streams.",
        "Look at the title of the prompt: it changes from T 0.7 to greedy in the middle of a sentence.",
        _decoding,
    ),
    Page(
        "Changing weights",
        "The weights are converted to int8 in the middle of a reply; playing again converts them back.",
        "Look at the reply: it waits while the layers change, one after the other, then it goes on.",
        _switch,
    ),
    Page(
        "End of the tour",
        "{view.help} lists the keys, {view.why} explains the current speed, and {engine.switches} turns "
        "techniques off, to see what they are worth. Chat as you like: your keys go to the prompt now. "
        "Shift+Tab leads back here, where k quits and keeps these chats, and q discards them.",
        last=True,
    ),
)
