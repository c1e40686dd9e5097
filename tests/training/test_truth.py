"""What the built-in model learns about the program is true: keys, commands, options, names and defaults."""

import argparse
import re
from pathlib import Path

import pytest
from textual.widgets import TextArea

from engine.api.config import BLOCK_SIZES, EngineConfig
from engine.api.params import SPECULATION, SamplingParams
from engine.quant.registry import BUILT_IN as SCHEMES
from engine.scheduling.policy import POLICIES
from minichat.cli import COMMANDS, parser
from minichat.commands.bench.arguments import QUESTIONS
from minichat.commands.serve import check
from minichat.features import BUILT_IN
from minichat.features.decoding.knobs import Knobs
from minichat.features.models import ModelScreen
from minichat.features.table import bound
from minichat.session.decoding import KNOBS as DRAWER
from minichat.session.strategies import NAMES as STRATEGIES
from minichat.settings.presets import SHIPPED
from minichat.settings.schema import SAMPLING, Settings
from training.facts import Fact, all_facts
from training.kinds.unknown import KEYS
from training.kinds.wishes import CHOICES, KNOBS

TYPING = {"f6", "f7", "ctrl+y", "ctrl+z"}  # keys of the prompt that the facts explain
ELSEWHERE = {"ssh", "git", "make"}  # the facts name options of these programs, too
SPELLED = {
    "esc": "escape",
    "ctrl+pgdn": "ctrl+pagedown",
    "ctrl+pgup": "ctrl+pageup",
    "/": "slash",
    "+": "plus",
    "-": "minus",
    "=": "equals_sign",
    "{": "left_curly_bracket",
    "}": "right_curly_bracket",
}


def answer_of(fact: Fact) -> str:
    return " ".join((*fact.say, fact.more))


def keys() -> frozenset[str]:
    """Every bound key, as Textual names it."""
    own = [each for widget in (Knobs, ModelScreen) for each in widget.BINDINGS]
    drawers = [key for each in own for key in getattr(each, "key", "").split(",")]
    prompt = {key for each in TextArea.BINDINGS for key in getattr(each, "key", "").split(",")}
    actions = {key for each in bound(BUILT_IN) for key in each.keys}
    return frozenset(actions | {*drawers, "tab", "up"} | prompt & TYPING)


def textual(key: str) -> str:
    """Convert a key to Textual's name: Alt+X to alt+x. Single letters keep their case, since P is not p."""
    return SPELLED.get(key.lower(), key if len(key) == 1 else key.lower())


def options() -> frozenset[str]:
    """All options of all commands."""
    found = {"--help", "--version"}
    for action in parser()._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                found |= {option for each in command._actions for option in each.option_strings}
    return frozenset(found)


def test_every_key_in_a_question_is_bound() -> None:
    asked = {x for fact in all_facts() for bank, x in fact.slots if bank == "key"}
    plain = {x.removeprefix("the ").removesuffix(" arrow") for x in asked}
    assert {key for key in plain if textual(key) not in keys()} == set()
    assert len(plain) > 40


def test_every_bound_key_has_a_question() -> None:
    asked = {x for fact in all_facts() for bank, x in fact.slots if bank == "key"}
    plain = {textual(x.removeprefix("the ").removesuffix(" arrow")) for x in asked}
    assert keys() - plain == set()


def test_every_key_in_an_answer_is_bound() -> None:
    pattern = re.compile(r"(?<![\w+])(?:(?:Ctrl|Alt|Shift)\+(?:[A-Z][a-z]+|\w)|F\d+)(?!\w)")
    named = {key: fact.id for fact in all_facts() for key in pattern.findall(answer_of(fact))}
    assert {key: id for key, id in named.items() if textual(key) not in keys()} == {}
    assert len(named) > 30


def test_the_unknown_keys_are_unbound() -> None:
    assert [key for key in KEYS if textual(key) in keys()] == []


def test_every_option_in_the_facts_exists() -> None:
    texts = [
        (fact.id, text) for fact in all_facts() for text in (answer_of(fact), *(x for _, x in fact.slots))
    ]
    named = {(id, option) for id, text in texts for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)}
    assert {(id, option) for id, option in named if option not in options()} == set()
    assert len({option for _, option in named}) > 40


def test_every_option_has_a_question() -> None:
    asked = " ".join(x for fact in all_facts() for x in (*fact.asks, *(slot for _, slot in fact.slots)))
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", asked))
    assert {option for option in options() if option.startswith("--")} - named == set()


def test_every_command_in_the_facts_exists() -> None:
    named = {word for fact in all_facts() for word in re.findall(r"`minichat ([a-z]+)", answer_of(fact))}
    assert named <= set(COMMANDS)
    assert set(COMMANDS) - named <= {"chat"}


@pytest.mark.parametrize(
    ("id", "names"),
    [
        ("speculation-kinds", SPECULATION),
        ("schemes", tuple(name for name in SCHEMES if not name.startswith("int4-"))),
        ("policies", tuple(POLICIES)),
        ("strategies", STRATEGIES),
        ("presets", tuple(SHIPPED)),
        ("commands", tuple(COMMANDS)),
        ("bench-questions", tuple(QUESTIONS)),
        ("settings-sections", tuple(f"[{name}]" for name in Settings.__dataclass_fields__)),
    ],
)
def test_lists_are_complete(id: str, names: tuple[str, ...]) -> None:
    text = answer_of(next(fact for fact in all_facts() if fact.id == id))
    assert [name for name in names if name not in text] == []
    assert len(names) > 2


def test_names_in_wishes_exist(root: Path) -> None:
    """Options and labels of knobs; schemes, kinds of speculation, presets, strategies and themes."""
    assert {knob.option for knob in KNOBS} <= options()
    assert {knob.label for knob in KNOBS} <= {knob.label for knob in DRAWER}
    themes = {path.stem for path in (root / "themes").glob("*.toml")}
    known = {*SCHEMES, *SPECULATION, *SHIPPED, *STRATEGIES, *themes, "bf16", "fp16", "fp32"}
    named = {name for _, reply, _, _ in CHOICES for name in re.findall(r"`([\w-]+)`|choose \*(\w+)\*", reply)}
    names = {name for pair in named for name in pair if name}
    assert {name for name in names if name not in known} == set()
    assert len(names) > 20


def test_every_theme_is_listed(root: Path) -> None:
    text = answer_of(next(fact for fact in all_facts() if fact.id == "default-theme"))
    shipped = {path.stem for path in (root / "themes").glob("*.toml")}
    assert {name for name in shipped if name not in text} == {"high-contrast", "high-contrast-light"}


def test_defaults_match_the_program() -> None:
    of = {fact.id: answer_of(fact) for fact in all_facts()}
    plain, usual = SamplingParams(), EngineConfig(model="pocket")
    served = parser().parse_args(["serve"])
    check(served)
    assert f"{SAMPLING.temperature:g} by default" in of["default-temperature"]
    assert f"HTTP it is {plain.temperature:g}" in of["default-temperature"]
    assert f"{SAMPLING.top_p:g} by default" in of["default-top-p"]
    assert f"{SAMPLING.top_k} by default" in of["default-top-k"]
    assert f"{SAMPLING.min_p:g} by default" in of["default-min-p"]
    assert f"penalty is {plain.repetition_penalty:g}" in of["default-penalties"]
    assert SAMPLING.seed is SAMPLING.max_tokens is None
    assert f"{served.host}, port {served.port}" in of["default-port"]
    assert f"{served.drain:g} seconds" in of["server-end"]
    assert (f"{served.max_in_flight}" in of["server-busy"]) and (f"{served.max_per_key}" in of["server-busy"])
    assert f"default is {served.max_priority}." in of["max-priority"]
    assert f"`{usual.policy}`" in of["default-policy"]
    assert f"`{usual.quantization}`" in of["default-quantization"]
    assert f"{usual.block_size} tokens by default" in of["block-size"]
    assert f"The default is {usual.tp}." in of["tp-option"]
    assert f"The default is {usual.pp}." in of["pp-option"]
    assert [size for size in BLOCK_SIZES if str(size) not in of["block-size"]] == []
    assert f", {usual.kv_sinks} unless" in of["attention-sinks"]
