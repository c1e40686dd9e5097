"""A message with a file, from `@file` or a pipe: the model says that it cannot work with it."""

from random import Random

from minichat.chats.model import Attachment
from training.chat import Exchange
from training.check import Terms
from training.kinds.slots import COMMON, sentence
from training.phrasing import made_up, roughly

ASKS = {
    False: (
        "review this", "Explain this.", "Summarize this file.", "What does this do?", "Is there a bug in this?", "Find the bug.", "What is in this file?",
        "Explain this code.", "Summarize it.", "What is this?", "Write a commit message for this.", "Translate this.", "Make this shorter.", "What changed?",
        "Improve this text.", "Fix this.", "Is this good?", "What do you think of this?", "Tell me about this file.", "Please read this.",
        "Why does this fail?", "What does this error mean?", "Check my spelling.", "Refactor this.", "Write tests for this.", "What is wrong here?",
        "Give me a summary.", "Look at this.", "Document this function.", "How can I make this faster?", "Review my diff.", "What does the log say?",
    ),
    True: ("Go through this and comment on it.", "What would you change in here?", "Put this into three sentences."),
}  # fmt: skip
STEMS = (
    "main notes README test report data app letter todo server index parser setup error build draft".split()
)
ENDINGS = ("py", "txt", "md", "log", "json", "toml", "csv", "js", "rs", "c", "go", "sh", "html", "diff")
CODE = (
    "def {a}({b}):", "    return {a} + {b}", "import {a}", "for {a} in {b}:", "    {a} = {b}({c})", "if {a} == {b}:", "class {a}:", "# {a} {b} {c}",
    "const {a} = {b};", "fn {a}({b}: u32) -> {c} {{", "}}", "let {a} = {b};", '"{a}": "{b}",', "{a} = {n}", "print({a})", "self.{a} = {b}",
)  # fmt: skip
DIFF = ("+{a} = {b}", "-{a} = {c}", "@@ -{n},7 +{n},9 @@", "diff --git a/{a}.py b/{a}.py", "+    return {b}", "-    return {a}", " def {a}({b}):")  # fmt: skip
LOG = ("ERROR {a}: {b} failed", "INFO {a} started in {n} ms", "WARNING no {b} for {a}", "Traceback (most recent call last):", '  File "{a}.py", line {n}')  # fmt: skip


def _word(rng: Random) -> str:
    return rng.choice(COMMON) if rng.random() < 0.6 else made_up(rng)


def _line(rng: Random, lines: tuple[str, ...]) -> str:
    slots = {key: _word(rng) for key in "abc"} | {"n": str(rng.randint(1, 999))}
    return rng.choice(lines).format(**slots)


def _content(rng: Random) -> str:
    """Lines of code, of a diff, of a log, or of text."""
    size = rng.choice((1, 2, 4, 8, 16, 30))
    kind = rng.choice((CODE, DIFF, LOG, ()))
    return "\n".join(_line(rng, kind) if kind else sentence(rng, False) + "." for _ in range(size))


def exchanges(rng: Random, held_out: bool = False) -> list[Exchange]:
    """A question about a file; every reply names the file and an alternative."""
    piped = rng.random() < 0.4
    name = "stdin" if piped else f"{rng.choice((*STEMS, made_up(rng)))}.{rng.choice(ENDINGS)}"
    asked = rng.choice(ASKS[held_out])
    ask = asked if held_out else roughly(rng, asked)
    if not piped:
        ask = rng.choice((f"{ask} @{name}", f"{ask.rstrip('.?')} @{name}", f"@{name} {ask}"))
    what = "what was piped in" if piped else f"`{name}`"
    reply = f"I can see {what}, but I can't work with files: I am a tiny demo model. A larger one can: load it with **Alt+O** or `--model NAME`."
    check = Terms(("can't work", "piped" if piped else name))
    return [Exchange(f"{ask}\n\n{Attachment(name, _content(rng)).fenced}", reply, check)]
