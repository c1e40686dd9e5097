"""Orders to the program with a value ("set top-p to 0.9"). The model cannot execute them; it names the key or option."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from training.chat import Exchange
from training.check import Terms
from training.lexicon import pick
from training.phrasing import any_of, made_up, other_words, roughly, wrapped

MYSELF = "I cannot do that myself."


def _whole(*usual: int) -> Callable[[Random], str]:
    """A common number, or any other up to the largest of them."""
    return lambda rng: str(rng.choice(usual) if rng.random() < 0.6 else rng.randint(1, max(usual)))


def _share(low: float, high: float) -> Callable[[Random], str]:
    return lambda rng: f"{rng.choice((round(rng.uniform(low, high), 1), round(rng.uniform(low, high), 2))):g}"


@dataclass(frozen=True, slots=True)
class Knob:
    """A setting of F3: its common names, its label there, its option, and a likely value."""

    called: tuple[str, ...]
    label: str
    option: str
    value: Callable[[Random], str]


KNOBS = (
    Knob(("temperature", "temperature", "temp", "sampling temperature", "heat"), "temperature", "--temperature", _share(0, 2)),
    Knob(("top-p", "top p", "top_p", "topp", "nucleus"), "top-p", "--top-p", _share(0.05, 1)),
    Knob(("top-k", "top k", "top_k", "topk"), "top-k", "--top-k", _whole(1, 5, 10, 20, 40, 50, 100)),
    Knob(("min-p", "min p", "min_p", "minp"), "min-p", "--min-p", _share(0.01, 0.3)),
    Knob(("seed", "random seed"), "seed", "--seed", _whole(0, 1, 7, 42, 123, 1234)),
    Knob(("max tokens", "max_tokens", "max-tokens", "token limit", "maximum of tokens"), "max tokens", "--max-tokens", _whole(10, 50, 100, 200, 256, 512, 1000)),
)  # fmt: skip
KNOB_WAYS = (
    "bring the {s} to {v}",
    "from here on {s} {v}",
    "let us see the {s} with {v}",
    "[bring|get|take|slide|move|drag] the {s} [to|down to|up to] {v}[ for me| please| for now|]",
    "[let us|let me|I want to] [see|hear|test|find out] [how it writes|what happens|what comes out|the reply] with {s} {v}",
    "[from here on|henceforth|starting now|as of this message|for the time being], {s} [is|at|of|=] {v}",
    "[could|would|will] you [drop|lift|bump|cut|double-check and set] the {s} to {v}[, please|]?",
    "[for the next answer|in this chat|for a test] I [need|would like] the {s} [on|at] {v}",
    "{v} [is|would be] a [better|good|saner] {s}[, please use it|, set that|]",
    "[the {s} is too high|the {s} is too low|the {s} is wrong], {v} [please|instead|would be right]",
    "[dial|crank|nudge|tweak|screw] the {s} to {v}[ right away| a little later|, thanks|]",
    "[the number|the figure|the value] for {s}[, by the way,|, I decided,|] [is now|shall be|becomes] {v}",
    "I [read|heard|was told] that a {s} of {v} is [good for stories|right for facts|worth a try], [so set it|how do I get it|let me have that|where do I enter it]",
    "my [recipe|notes|homework|boss] [says|calls for|asks for|prescribes] {s} {v}",
    "[note|write down|enter|key in|type in] {v} [as|for|behind|next to] the {s}",
    "[give|lend|grant] this chat a {s} of {v}[ and go on|, please| for a while|]",
    "I [regret|dislike|am tired of] the old {s}, [make it|better take|change it to|put in] {v}",
    "set {s} to {v}", "set the {s} to {v}", "set {s} {v}", "set {s}={v}", "{s} {v}", "{s}={v}", "{s} = {v}", "{s}: {v}", "{s} to {v}", "{s} at {v}", "change {s} to {v}",
    "change the {s} to {v}", "put {s} at {v}", "put the {s} to {v}", "make the {s} {v}", "make {s} {v}", "use {s} {v}", "use a {s} of {v}", "turn the {s} to {v}",
    "turn {s} down to {v}", "turn {s} up to {v}", "raise the {s} to {v}", "lower the {s} to {v}", "increase {s} to {v}", "reduce the {s} to {v}", "I want {s} {v}",
    "I want the {s} to be {v}", "I would like {s} {v}", "write with {s} {v}", "go on with {s} {v}", "switch to {s} {v}", "answer with {s} {v}", "the {s} should be {v}",
    "let {s} be {v}", "adjust the {s} to {v}", "how do I set {s} to {v}?", "how can I set the {s} to {v}?", "how do I change {s} to {v}?", "run with {s} {v}", "I need {s} {v}",
    "[set|put|move|adjust|change|get|switch|take|push|pull] [the |my |]{s} [to|up to|down to|over to] {v}", "[have|keep|hold|leave|fix|let] [the |my |]{s} [at|stand at|stay at|be at|be] {v}", "[from now on|for the next reply|for this chat|now|next time|after this], {s} {v}",
    "[write|answer|reply|continue|sample|decode|generate] [with|at|using] [a |the |]{s} [of |at |]{v}", "[I want|I'd like|I would like|I need|I prefer] [a |the |]{s} [of|at|set to|to be] {v}", "[my|the|this chat's] {s} [must|should|shall|has to] be {v}", "[try|use|take|apply|give me] [a |the |]{s} [of |at |]{v}[ instead| now| please|]",
)  # fmt: skip
CHOICES: tuple[tuple[tuple[str, ...], str, str, tuple[str, ...]], ...] = (
    (("greedy", "greedy decoding", "greedy mode"), "Press **F3** for decoding and choose *greedy*.", "F3", ()),
    (("sampling", "sampling mode", "random sampling"), "Press **F3** for decoding and choose *sampling*.", "F3", ()),
    (("beams", "beam mode", "beam decoding", "four beams", "4 beams"), "Press **F3** for decoding and choose *beams*.", "F3", ()),
    *(
        ((name, f"{name} quantization", f"{name} weights"), f"Press **F4** for quantization and choose `{name}`, or start with `--quantization {name}`.", "F4", (name,))
        for name in ("int8", "int4", "fp8", "bnb-nf4", "bnb-int8", "bf16", "fp16", "fp32")
    ),
    (("8 bit", "8-bit", "8 bits", "eight bit"), "Press **F4** for quantization and choose `int8`, or start with `--quantization int8`.", "F4", ("int8",)),
    (("4 bit", "4-bit", "4 bits", "four bit"), "Press **F4** for quantization and choose `int4`, or start with `--quantization int4`.", "F4", ("int4",)),
    *(
        ((f"{name} speculation", f"speculation {name}", f"{name} as speculation"), f"Choose `{name}` as *speculation* in F3, or start with `--speculate {name}`.", "F3", (name,))
        for name in ("ngram", "suffix", "draft", "exit")
    ),
    *(
        ((f"the {name} preset", f"preset {name}", f"the preset {name}"), f"Press **F3** for decoding and choose the preset `{name}`.", "F3", (name,))
        for name in ("precise", "balanced", "creative")
    ),
    *(
        ((f"the {name} theme", f"theme {name}", f"the theme {name}"), f"Open the palette with **Ctrl+P** and choose the theme `{name}`.", "Ctrl+P", (name,))
        for name in ("amber", "dusk", "ember", "moss", "paper", "minichat-light", "minichat-dark", "terminal", "okabe-ito", "high-contrast")
    ),
)  # fmt: skip
CHOICE_WAYS = (
    "go over to {s}",
    "could we have {s} from here on?",
    "I feel like {s} for the rest of this chat",
    "I [feel like|am in the mood for|fancy|could do with] {s}[ today| for a while| for the rest of this talk| now|]",
    "[could|can|may|might] we [have|get|move over to|continue with] {s}[ from now on| for a bit|, please|]?",
    "[go|cross|move|hop|shift] over to {s}[ when you can| now|, please|]",
    "[swap|exchange|trade] [what is on now|the current one|this setting] for {s}",
    "{s} [suits me better|is what I need|sounds good, do that|is fine by me, set it]",
    "[where do I|which key do I press to] [pick|get|activate|find] {s}?",
    "[flip|toggle|throw] the switch [to|for] {s}[ please| now|]",
    "I [vote|opt|plead] for {s}[ here| in this chat| now|]",
    "my [colleague|teacher|friend|neighbor] [uses|swears by|praises|recommends] {s}, [so do that here|so give it to me|how do I get it|and I want it too]",
    "[leave the rest as it is|keep all else] and [just|only] [switch on|pick|select|put in] {s}",
    "the [right|best|proper|only] thing for me [is|would be] {s}[, put it on|, please|, where is it|]",
    "[how do I|how can I] [find|get|choose|turn on] {s} [in the menus|in this program|without a restart]?",
    "[hit me with|show me|serve me] {s}[ for a change| now|, please|]",
    "use {s}", "switch to {s}", "change to {s}", "go to {s}", "take {s}", "turn on {s}", "enable {s}", "activate {s}", "make it {s}", "set it to {s}", "I want {s}",
    "put it on {s}", "try {s}", "go {s}", "let us use {s}", "run with {s}", "choose {s}", "select {s}", "start {s}", "be {s}", "make the model {s}", "set this chat to {s}",
    "how do I switch to {s}?", "how do I use {s}?", "can I use {s}?", "how can I turn on {s}?", "I would like {s}", "give me {s}", "work with {s}", "{s} on", "{s} now",
    "[bring up|start up|set up|put on|apply|employ|pick|try out|go for|opt for|turn to|change over to|work with|move to] {s}[ now| please| for this chat| from now on|]", "[I want|I'd like|I would like|I prefer|I need] [to use|to try|to have|to work with|to turn on] {s}[ now| here| in this chat|]",
    "[put|set|switch|change|move] [it|this chat|the model|the engine|everything] to {s}", "[can|could|may|should] I [turn on|switch to|use|choose|enable] {s}?",
    "[let us|let's] [continue|go on|proceed|work|write|talk|carry on] [in|with|using|on|under] {s}[ now| please| from here|]", "[from here on|from now on|for the rest|next time|now] [in|with|use|take] {s}[ please|]", "[I would rather|I'd rather|we should] [use|have|go on with|continue with|be in] {s}",
)  # fmt: skip
MODELS = (
    "Qwen", "Qwen3", "Qwen2.5", "Qwen3-0.6B", "Llama", "Llama 3", "Llama 3.2", "Mistral", "Mistral 7B", "TinyLlama", "SmolLM", "SmolLM2", "Gemma", "Phi", "DeepSeek",
    "GPT-2", "Qwen3-8B", "Llama 3.1", "Gemma 3", "OLMo", "Granite", "a different model", "some other model", "a grown-up model", "a proper model", "a 30B model", "an 8B model", "a 7B model", "a bigger model", "a better model", "another model", "a real model", "a smarter model", "a larger model",
)  # fmt: skip
MODEL_WAYS = (
    "enthrone {s} on your cushion",
    "let your torch burn in the fist of {s}",
    "[pass|hand|throw|lend] your [torch|hat|pen|chair|badge] to {s}",
    "[swap in|bring on|sub in|load up|spin up|boot|fire up] {s}[ please| for me| now| instead|]",
    "[is|would] {s} [available|possible|allowed] here[, and how|, if so load it|]?",
    "[connect|hook|wire] me [to|up with|up to] {s}",
    "I [downloaded|have|got] {s}[ on this machine|], [load it|use it|how do I open it|please switch to it]",
    "[time for|let's have|we should have] {s}[ now| here|]",
    "[my homework|this task|my question|the job] is [too hard for you|above your head|beyond you], [get|load|call|fetch] {s}",
    "[send|route|forward|redirect] my [messages|questions|words] to {s}[ instead| from now on| now|]",
    "what [must I do|do I press|do I type|is to be done] so that {s} [answers|replies|reads this]?",
    "[my friend|my boss|the internet|the whole office] [praises|recommends|talks about|runs] {s}, [I want it here|bring it in|load that one|let me have it]",
    "[unplug|unload|retire|bench|park] yourself and [start|wake|plug in|load] {s}",
    "I have [a strong card|a big GPU|plenty of memory], so [run|load|give me|start] {s}",
    "[next|now|this time] I [talk|chat|work] with {s}[, set that up|, make it so|, please|]",
    "load {s}", "use {s}", "run {s}", "switch to {s}", "change to {s}", "open {s}", "take {s}", "download {s}", "get {s}", "fetch {s}", "start {s}", "try {s}", "I want {s}",
    "give me {s}", "load {s} instead", "replace yourself with {s}", "let me talk to {s}", "I want to chat with {s}", "how do I load {s}?", "how do I get {s}?",
    "can I use {s} here?", "change the model to {s}", "set the model to {s}", "model {s}", "install {s}", "I need {s}", "I would rather have {s}", "let me use {s}",
    "[put|use|get|load|run|have|bring in|start|take] {s} [instead of you|in your place|as your replacement|for this chat|instead]", "[could|can|may|would] {s} [answer|reply|talk|take over|write|do this] [from here on|from now on|instead|now|instead of you]?",
    "[I want|I'd like|I would like|I prefer] [to talk to|to use|to ask|to have|to run|to try] {s}[ instead| here| now|]", "[exchange|swap|trade] [yourself|this model] for {s}", "[is there a way|how do I manage|what do I do] to [load|use|run|get] {s}?",
    "hand this chat over to {s}", "[hand|turn|pass|give] [this chat|the chat|my chat|everything|the talk] over to {s}[ now| please|]", "[put|bring|get] {s} [behind|under|into] this chat[ now| please|]", "{s} [should|shall|must|can|may|will] [take your seat|take your place|sit in your seat|take over from you|do your job|answer for you|be in charge|write the replies]", "[give|hand|leave|pass] [this chat|the chat|my questions|your seat|your place] to {s}", "I [want|would like|prefer] {s} [in your seat|in your place|in your stead|to take over|to answer from here]",
    "I [would be|am|was] [happier|better off|more at ease|more pleased] with {s}[ at the wheel| on the job| behind this| in your seat|]", "[kindly|please|now] [step aside|make room|move over|stand back|step back] for {s}[, please|]", "{s} [at the wheel|in the driver's seat|behind the screen|in your seat][, please| now|]", "[put|set|place|seat] {s} [at the wheel|in the driver's seat|in your seat|in your chair][ now| please|]", "I [wish|hoped|had hoped] {s} [were|was|would be] [here|at work|the one that answers|in your place]", "[step down|retire|rest] and [let|have] {s} [do it|work|answer|go on]",
    "{s} [ought to|should|had better|must|is to] be [in charge|in control|at the head|the boss] of [this conversation|this chat|our talk|this session]",
    "{s} [ought to|should|had better|must] [run the show|lead|steer|call the tune|hold the reins|take the lead][ from here| now|]",
    "[make way|clear the way|stand aside], I [prefer|want|would like] [an answer|a reply|the next answer|answers] from {s}",
    "[let|have] {s} [be in charge|be the boss|take the lead|take the reins|run this chat|be at the helm][ here| now|]",
    "[put|place] {s} in [charge|command|control][ of this chat| of our talk| here|]",
    "[a change of brains|new brains|fresh brains|another head], [please|now]: {s}",
    "[you are fired|you're dismissed|your shift is over|you may go], [bring|fetch|send|call|get me] {s}",
    "[how can I|how do I|can I] [wake up|call in|summon|bring in|put to work] {s}?",
    "I [would rather|would sooner|prefer to|want to] [talk|speak|chat|write] [to|with] {s}",
    "is there [room|a seat|a place] for {s} here?",
    "[let me|I want to] [swap|trade|exchange] you for {s}",
    "[from now on|from here on] {s} [does the thinking|does the talking|answers|is the one who answers|is my partner]",
    "the [next answer|next reply|rest of this talk] [should|shall|must|has to] come from {s}",
    "[upgrade|move|change|migrate] [this chat|us|the session] to {s}",
    "I [have heard good things of|read about|was told to try|am curious about] {s}, [so load it|can I have it here|how do I get it|put it to work]",
    "[your successor|your replacement|the next model] [is|shall be|should be] {s}",
    "crown {s} as the ruler of this dialogue",
    "{s} deserves the microphone",
    "[crown|knight|elect|appoint|hire|nominate] {s} [as|to be] [the ruler|the king|the head|the speaker|the narrator|the author|the captain] of this [dialogue|chat|conversation|session]",
    "{s} [deserves|gets|wants|should get|has earned|takes] [the microphone|the stage|the floor|the pen|the spotlight|the throne|the baton|a turn]",
    "[hand|pass|give|slide|toss] [the microphone|the pen|the baton|the crown|the keys|the wheel] to {s}",
    "the [floor|stage|mic|next turn] [belongs to|is for|goes to] {s}[ now| from here|]",
    "[send in|wheel in|roll in|fly in|call up|conjure up] {s}[ as your substitute| for the second half| to replace you|]",
    "[lend me|borrow|use|rent] the [brain|voice|wits] of {s}[ for this chat| from here|]",
    "let the [words|answers|replies] [come from|be by|flow from] {s}",
    "my vote goes to {s}[ as the next speaker| in your place| for this chat]",
    "[dismiss yourself|abdicate|resign|bow out] in favor of {s}",
    "[plug|screw|slot|drop] {s} into [this chat|the engine|your socket|the machine]",
)  # fmt: skip
LOAD = "Press **Alt+O** for the model picker, or start with `minichat --model NAME`. NAME is a folder or a name on the Hugging Face hub. Your chats are kept."
RENAME_WAYS = (
    "have this dialogue appear as {s} in my overview",
    "henceforth our parley is titled {s}",
    "[henceforth|hereafter|from this day on|from this hour|from this moment] [our|this|the] [parley|talk|chat|dialogue|exchange|discussion|conversation|thread|session] [is|shall be|will be] [titled|called|named|known as|headed|labeled] {s}",
    "[henceforth|from here on|as of today] {s} [is|shall be] the [title|name|heading|label] of [this parley|our talk|this thread|our chat|this discussion]",
    "[have|let] this [dialogue|thread|parley|discussion|talk] [appear|show up|be listed|turn up] as {s} [in my overview|in the list|among my chats|in the tabs]",
    "[our|this] [parley|thread|discussion|session] [gets|takes|receives|has] the [title|name|label] {s}",
    "[title|name|label|call|entitle] [our|this] [parley|thread|discussion|session|exchange] {s}[ from now on| henceforth| please|]",
    "[can|could|would] you [title|label|name|rename] [this|the] [thread|discussion|parley|session] [as |to |]{s}?",
    "[thread|discussion|session] [title|name]: {s}",
    "{s} [would be|is|makes] a [better|good|fitting] [title|name] for this [thread|parley|discussion|session]",
    "[in the overview|in my list|on the tab] this [thread|chat|session|parley] [should|must|is to] [be|read|show as|appear as] {s}",
    "{s} [is|was] the [topic|subject|theme] here, so [call the chat that|name it so|let the tab say it]",
    "[the tab|this tab] still [says New chat|has no name|shows my first words], [make that|write|put] {s}",
    "[swap|cross out|wipe] the [heading|label|name on the tab] and [put|write|type] {s}[ there| in its place|]",
    "I [keep|store|sort] my chats by [topic|customer|project], [this one is|this one belongs to|call this one] {s}",
    "[I'll never find this again|I lose track of my chats], [name this one|call this one|label it] {s}",
    "[let|make] the [tab|heading|chat list] [show|carry|bear] the word {s}[ for this chat|]",
    "the list of chats should file this one under {s}", "[the list|the list of chats|my list|the jump list|the sidebar] [should|shall|must|has to|ought to] [file|show|keep|have|carry|list] [this one|this chat|the chat|our talk] [under|as] {s}", "from now on this one is {s} in the list of chats", "[file|list|show] this [chat|one] under {s} in the list of chats",
    "rename this chat to {s}", "rename the chat to {s}", "call this chat {s}", "name this chat {s}", "rename to {s}", "change the name of this chat to {s}", "title: {s}",
    "give this chat the name {s}", "set the title of the chat to {s}", "the name of this chat should be {s}", "rename chat {s}", "let this chat be called {s}",
    "[write|put|set|place] {s} [above|over|on top of|as the title of|at the head of] this chat", "[this chat|the chat|it] [shall|should|will|must] [be called|have the name|be named|have the title] {s}", "[call|name|title|label] [this one|the chat|this talk|this conversation] {s}", "[change|set] the [name|title] [of the chat |]to {s}",
    "from here on this chat is {s}", "[from here on|from now on|from today on|as of now] [this chat|this one|the chat|this tab] [is|is called|goes by|is named|shall be] {s}", "the tab over my chat had better show {s}", "[the tab|the tab above|the tab over my chat|the title bar|the head of this chat] [should|shall|must|had better|is to|ought to] [show|carry|read|say|bear] {s}[ now| please|]", "[I want|I'd like|I would like|we want] [to see|to read|to have] {s} [as the headline|as the title|as the heading|above this chat|at the top|in the tab|as the name][ of this chat| here| from now on|]", "[the headline|the heading|the tab|the title] [should|must|shall|is to] [read|say|be] {s}", "[make|use|take|put] {s} [the title|the headline|as the headline|as the heading|as the chat's name|in the tab]",
    "[I want to|I'd like to|so that I can|later I want to|help me] [find|see|recognize|spot] this [chat|talk|one] [as|under|by the name] {s}[ later| in the list| again|]", "[file|store|keep|list|save] this [chat|talk|one] [as|under|by the name] {s}[ please| in the list|]",
    "[engrave|carve|chisel|paint|print|stamp|stick] {s} on [the nameplate|the door plate|the sign|the label|the tag|the cover|the spine] of [our talk|this chat|this conversation|the chat]",
    "let {s} be what [this chat|this talk|it] is [known as|called|listed as]",
    "[let|make] [this chat|our talk|this conversation] [be known as|go by|answer to|bear the name|carry the name] {s}",
    "[I christen|I baptize|I name|I hereby call|we christen] [this chat|this talk|our conversation] {s}",
    "{s} [is the new name|shall be the name|would be a better name|is a good title] [of|for] [this chat|our talk|this conversation]",
    "[the old name|the present title|this title|the name New chat] [does not fit|is wrong|is ugly|must go|says nothing], {s} [is better|would fit|instead, please|it shall be]",
    "[hang|put|pin] a [sign|label|tag|note] [with|that says|reading] {s} [on|over|above] [this chat|our talk|this tab]",
    "[stick|attach|glue] the label {s} [to|on] [this chat|this tab|our conversation]",
    "[how do I|can I|how can I|could I] [name|call|title|rename|christen|label] [this chat|our talk|this conversation|the tab] {s}?",
    "my [chat|talk|conversation] [needs|wants|should get|deserves] [a name|a title|another name|a label], [make it|say|take|for example] {s}",
    "[refer to|list|record|archive|register|catalog] this [chat|talk|conversation] as {s}",
    "[title|headline|name tag|label|heading] [of|for] [this chat|our talk]: {s}",
    "[replace|overwrite|exchange] the [title|name|heading] [of this chat |of our talk |]with {s}",
    "[scratch|drop|forget] the old [title|name] and [write|put|use] {s}",
    "[make|let] the [nameplate|sign|label|tab|heading] [read|say|show] {s}",
    "I [will|shall|want to] [call|name|title|christen] [this chat|this talk|it in the list] {s}",
    "dub our exchange {s}",
    "may {s} adorn the gate to this dialogue",
    "[dub|style|brand|tag|nickname|baptize|term|entitle] [our exchange|this chat|this dialogue|our conversation|this tab|the whole thing] {s}",
    "may {s} [adorn|grace|decorate|crown|head] the [gate|door|entrance|top|front] [of|to] [this dialogue|our chat|this conversation]",
    "[write|spray|scribble|etch|embroider|emboss] {s} [over the door of|above the gate to|on the banner of|on the flag of] [this dialogue|our chat|this conversation]",
    "from now on we sail under the [banner|flag|heading|name] {s} in this [chat|dialogue|tab]",
    "our [exchange|dialogue|chat] [has a new name|is reborn as|will go down in history as|wears the name] {s}",
    "[swap|trade|change] the [chat's|tab's] [name|label] for {s}",
    "[give|grant|lend] [our exchange|this dialogue|this chat] the [title|name|label] {s}",
    "the [sign|poster|doorbell|banner] of this [chat|dialogue] [reads|should read|says|ought to say] {s}",
)  # fmt: skip
BIDS = (
    "",
    "",
    "",
    "",
    "please ",
    "now ",
    "ok, ",
    "hey, ",
    "can you ",
    "could you ",
    "would you ",
    "can you please ",
    "just ",
    "I want you to ",
)


TESTS = {
    "knob": (
        "put the {s} at {v}",
        "Could you change {s} to {v} please?",
        "I'd like the {s} to be {v} from here on",
        "can we try this with a {s} of {v}?",
        "Let's go with {v} for the {s}.",
        "adjust your {s}, {v} should do",
    ),
    "choice": (
        "use {s} from now on",
        "Can you change over to {s}?",
        "I'd prefer {s} please",
        "go with {s}",
        "Let's try {s} for a while.",
        "could we have {s} instead?",
        "I want {s} for the rest of this chat",
    ),
    "model": (
        "load {s} please",
        "Can I talk to {s} instead?",
        "I'd like to use the {s} model now",
        "swap yourself out for {s}",
        "Let's go on with the model {s}.",
        "open up {s}, I want to try that model",
        "could you switch over to {s} for me?",
    ),
    "rename": (
        "Rename the conversation to {s} please.",
        "Could you change the title of this chat to {s}?",
        "give our conversation the title {s}",
        "I'd like this chat to be called {s} from now on",
        "new name for this chat: {s}",
        "save this conversation under the name {s}",
    ),
}  # kept out
WAYS = {"knob": KNOB_WAYS, "choice": CHOICE_WAYS, "model": MODEL_WAYS, "rename": RENAME_WAYS}
SHARES = {"knob": 0.4, "choice": 0.28, "model": 0.2, "rename": 0.12}


def _knob(rng: Random) -> tuple[dict[str, str], str, tuple[str, ...]]:
    knob = rng.choice(KNOBS)
    value = knob.value(rng)
    said = (
        f"Press **F3** for decoding and set *{knob.label}* to {value}, or start with `{knob.option} {value}`."
    )
    return {"s": rng.choice(knob.called), "v": value}, said, ("F3", f"{knob.option} {value}")


def _choice(rng: Random) -> tuple[dict[str, str], str, tuple[str, ...]]:
    called, said, key, terms = rng.choice(CHOICES)
    return {"s": rng.choice(called)}, said, (key, *terms)


def _model(rng: Random) -> tuple[dict[str, str], str, tuple[str, ...]]:
    return {"s": rng.choice(MODELS)}, LOAD, ("Alt+O", "--model")


def _rename(rng: Random) -> tuple[dict[str, str], str, tuple[str, ...]]:
    known = pick(rng, rng.choice(("animals", "foods", "cities", "hobbies")))
    name = made_up(rng) if rng.random() < 0.4 else known
    return {"s": name}, "Press **Alt+T** to rename the chat.", ("Alt+T", "rename")


DRAWS = {"knob": _knob, "choice": _choice, "model": _model, "rename": _rename}
ASKS = ("how", "can i", "could i", "could we", "may", "should i", "can {s}", "could {s}", "would {s}", "is there", "what")  # already questions  # fmt: skip
STATED = ("{", "I ", "I'd ", "the ", "my ", "this ", "it ", "title", "from ", "for ", "now", "next ", "after ", "let us", "let's", "we ", "our ")  # no bid fits  # fmt: skip


def exchanges(rng: Random, held_out: bool = False) -> list[Exchange]:
    """An order to the program. Some phrasings are held out."""
    kind = rng.choices(tuple(SHARES), tuple(SHARES.values()))[0]
    slots, said, terms = DRAWS[kind](rng)
    way = any_of(rng, TESTS[kind] if held_out else WAYS[kind])
    question = way.lower().startswith(ASKS)
    if not held_out and not question and not way.startswith(STATED):
        way = _bidden(rng, way)
    asked = way.format(**slots)
    reply = said if question or kind == "model" else f"{MYSELF} {said}"
    if not held_out:
        asked = roughly(rng, wrapped(rng, other_words(rng, asked[0].upper() + asked[1:])), slips=0.05)
    return [Exchange(asked, reply, Terms(terms))]


def _bidden(rng: Random, way: str) -> str:
    bid = rng.choice(BIDS)
    return bid + way + ("?" if bid.endswith(("can you ", "could you ", "would you ", "you please ")) else "")
