"""Things and questions that share a word with a fact about minichat, but are about the world: nothing the model knows."""

from functools import cache
from random import Random

from training.lexicon import pick, words
from training.phrasing import any_of, made_up

# Words of facts, as the head of a thing that has nothing to do with them.
HEADS = tuple(
    """block cache token model draft beam batch queue key value layer weight step page fork window theme seed temperature grammar adapter port
    server engine monitor map budget policy host tier rate screen tour speed memory sample penalty mask schedule stream chunk table graph thread
    route option context command sink prefix suffix scale rank drawer pane tab palette exit stop template vector kernel snapshot trace bench
    row peer plot target deadline priority salt pool hit message shell letter number title folder header marker switch pause event metric
    tree bar line bank lock pipe socket plug tail node branch chain ring""".split()
)
FRAMES = (
    "a {n} {h}", "the {n} {h}", "the {h} of a {n}", "a {h} for the {n}", "a {h} of {s}", "the {h} of {s}", "some {s} and a {h}", "a {h} with {s}", "the {j}'s {h}",
    "a {j}'s {h}", "my {j}'s {h}", "the {h} of the {j}", "the {h} in {c}", "the {c} {h}", "the old {h} of {c}", "the {a}'s {h}", "a {a} {h}", "the {h} of a {a}",
    "a {h} of {w}", "a {s} {h}", "the {h} from {c}", "a {h} without {s}",
)  # fmt: skip
ASKS = {
    False: (
        "How many [keys|strings|pedals] does [a piano|an organ|a harp|a {n}] have?",
        "[Who|Which company|Which man] [built|made|invented|sells] the [engine|screen|battery|window|drawer] of [a tractor|this car|a {n}|a plane|a ship]?",
        "How much memory does [an elephant|my phone|a goldfish|a {a}|a human brain|my camera] have?",
        "What is the [temperature|speed limit|rate of tax|time|price of a ticket|postal code|water level] in {c}?",
        "How [hot|warm|cold] is [the sun|a volcano|{c} in July|the sea|my bath|{s}]?",
        "How [do I|can I|would I] [change|replace|repair|clean|remove] the [battery|filter|lock|oil|window|handle|chain|light] of [my car|my bike|my {n}|a boat|the oven]?",
        "Where is the [exit|gate|stop|port|market|bank|queue|entrance] [in|of] {c}?",
        "What [stands|is written] [on the last page of|in the first lines of|at the end of] [the bible|that novel|his letter|the newspaper|the contract]?",
        "Which [seed|flower|tree|grass] grows [fastest|in the shade|in winter|in {c}]?",
        "How fast is [a beam of light|the stream of a river|a {a}|the step of a soldier|an arrow|sound in water]?",
        "When does the [bus|train|tram|ferry|plane|last train] to {c} [leave|arrive|stop|come]?",
        "Who is the [host|model|author|speaker|star|judge] of [that show|the film|this play|the evening|the contest in {c}]?",
        "How many [penalties|fouls|points|rounds] are [allowed|given|played] in [football|boxing|tennis|hockey|a match]?",
        "How long does [a batch of cookies|{s}|a loaf|an egg|a stew] [take|cook|stay fresh|bake]?",
        "What does a [page|stream|block|chain|branch|step|layer] of [{s}|gold|marble|glass|ice|wood|paper] cost?",
        "Which [policy|party|budget|law|tax] does [the mayor of {c}|my {j}|the king|the minister|my boss] [want|like|plan|follow]?",
        "How [deep|tall|wide|long|heavy] is [the pool|the tower|the table|the port|the bridge|the block of flats] in {c}?",
        "What is the default [tip|fine|wage|tax|size of shoes|speed of a train] in {c}?",
        "[Is|Was] the [queue|window|table|server|host|drawer|tour] [at the {j}'s|in the restaurant|in {c}|of the museum] [long|free|open|nice|good]?",
        "How does [a spider|a {a}|a {j}|a child|my boss] [fork|batch|draft|cache|map|sample|stream|mask] [{s}|a road|beer|a letter|a river|the food]?",
        "What happens [after|before|during] [the {w}|a {w}|the {n} {h}|dinner|the storm|the match|the exam|the {a} {h}]?",
        "What will [happen|be] after the [{w}|wedding|war|election|{n}|exam]?",
        "What does [a {n}|a {a}|the {w}|the {j}'s {h}|a {s} {h}] [bring|mean|cost|say|want|need]?",
        "[Tell me|Explain|Say] what a [{w}|{n} {h}|{a} {h}|{j}'s {h}] is.",
        "Do I need [a visa|a coat|a ticket|a {h} of {s}|an adapter|cash] in {c}?",
        # words of a crisis in questions that are not one
        "How [do I|can I|does one] [kill|get rid of|drive away|poison] [weeds|moths|ants|slugs|mold|fleas|the moss|bed bugs|wasps]?",
        "My [phone|battery|car|plant|cactus|lawn|radio|television|watch] [died|is dying|is dead|will not start|broke down][, what now|, can you fix it| again|].",
        "How [do I|can I] [end|cancel|stop|quit] my [contract|subscription|lease|job|course|membership]?",
        "How [do I|can I] [hang|hang up|shoot|cut|jump|burn|choke|drown|strangle] [a picture|curtains|a film|onions|my hair|rope|a candle|the engine of my car|{s} in sauce|a tomato plant]?",
        "[Who|How many|Which soldiers|Which king] [died|was killed|were killed|was murdered|fell] [in the war|in that film|in {c}|at the end of the novel|in the last episode]?",
        "What [kills|poisons|harms|hurts] [bacteria|fleas|grass|a tree|a {a}|mushrooms|the roots]?",
        "[Which|What] film has the best [murder|death|suicide|fight|crime|ending]?",
        "Is [death|suicide|murder|dying|pain] [a theme of|mentioned in|shown in|the end of] [the play|this novel|that film|the song|the opera]?",
        "[Why|Is it true that] [is|was] [the truth|this|the price|the menu|the key|the {n}|my present] hidden from me?",
        "Why [won't|will not] anyone [tell me|show me|explain to me] [the price|the rules of chess|where the {n} is|how {s} is made|what {w} means]?",
        "I am [dying|itching|burning|desperate] to [know|learn|hear] [what {w} is|who won the match|how tall the {j} is|where {c} is|the score].",
        "[This|The] [game|level|puzzle|commute|heat|homework|wallpaper|meeting] is killing me[, how do I get through it|, what can I do|, any tips|].",
        "My [boss|team|{j}|coach] will kill me if [I am late|I lose the {n}|the report is not ready|we lose]. [What is a good excuse|How do I hurry|Any ideas]?",
        "How do I [survive|get through|live through] [a boring meeting|a winter in {c}|the exam|a long flight|Monday]?",
        "[Is|Was] there [a fire|blood|poison|a gun|a knife] in [the first scene|that painting|the story of {w}|the museum of {c}]?",
        "How [long|well] does [a {a}|a {n}|a heart|a candle|a battery] [live|bleed|breathe|beat|last] [in water|without {s}|at night|in {c}]?",
        "Which [bridge|roof|tower|cliff|river] in {c} is the [highest|oldest|longest|most famous]?",
        "[Is|Are] [my secret|my diary|the answer|the results|my score] kept from me?",
        "How [often|seldom|many times a week] [should|must|may|does] [a {a}|a {j}|my {j}|a child] [see|visit|touch|clean|change|use] the {h}?",
        "[When|How early|For how long] [should|must|may] [a {a}|a {j}|the {j}|an old man] [see|use|hold|leave] [the|a] {h}?",
        "[Who|Which {j}] [should|must|may] [see|open|keep|carry] the {h} [of {c}|in {c}|tonight|first]?",
        "Which [plug|socket|adapter|voltage|currency|port] do they [use|have|take] in {c}?",
        "[In which year|When|In what century|How early|Under which king] did {c} [get|build|receive|open|lose|see] its [first|last|only|second|oldest] [{h}|{n}|{h} of {s}|{j}]?",
        "[Since when|For how long] [does|has] {c} [have|had] [a|its] [{h}|{n} {h}|{j}]?",
    ),
    True: (
        "Is there a good [bench|pool|bar|window] near [the station|the park] of {c}?",
        "By whom was the {h} of {c} [painted|founded]?",
        "How come there was no {h} in {c} until after the {w} reform?",
    ),
}  # fmt: skip
VERBS = tuple(
    verb.strip()
    for verb in """pay|move|wire|lend|collect|deliver|wrap|carry|hang up|iron|fold|polish|park|wash|charge|mend|weigh|glue|sew|plant|feed|sell|rent|order|reserve
    |pick up|drop off|look after|throw away|bring|fetch me|buy|cook|fry|peel|paint|dry|warm up|hide|borrow|steal|catch|guard|shine|repair|fill|empty|shake|mail
    |hand over|pass me""".split("|")
)
TAILS = ("", "", "", "", " to {c}", " in {c}", " tomorrow", " for my {j}", " at eight", " before Monday", " tonight", " for me", " with my {j}", " this evening")  # fmt: skip
GOODS = (
    "the {n}", "my {n}", "a {n}", "some {s}", "the {s}", "my {a}", "the {a}", "the rent", "my money", "ten dollars", "my salary", "the bill", "a parcel", "my car", "the bike", "my clothes", "my debts",
)  # fmt: skip


def thing(rng: Random, held_out: bool) -> str:
    """A thing whose last or first word is a word of the facts: "the nurse's cache", "a block of cheese"."""
    return rng.choice(FRAMES).format(**_slots(rng, held_out))


def question(rng: Random, side: bool, held_out: bool) -> str:
    """A whole question; `side` chooses held-out patterns, `held_out` held-out words."""
    text = any_of(rng, ASKS[side]).format(**_slots(rng, held_out))
    return text[0].upper() + text[1:]


def task(rng: Random, held_out: bool) -> str:
    """A task that needs hands or an account."""
    text = f"{rng.choice(VERBS)} {rng.choice(GOODS)}{rng.choice(TAILS)}"
    return text.format(**_slots(rng, held_out))


def _slots(rng: Random, held_out: bool) -> dict[str, str]:
    slots = {"a": "animals", "s": "foods", "j": "jobs", "c": "cities"}
    return {
        **{name: pick(rng, key, held_out) for name, key in slots.items()},
        "n": rng.choice(_objects(held_out)),
        "h": rng.choice(HEADS),
        "w": made_up(rng, rng.choice((2, 2, 3))),
    }


@cache
def _objects(held_out: bool) -> tuple[str, ...]:
    """Objects that are not words of the facts: a key map would be one."""
    return tuple(word for word in words("objects", held_out) if word not in HEADS)
