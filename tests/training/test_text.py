"""The generators: their own replies pass their checks, and what is kept out stays out."""

import re
from collections import Counter
from random import Random

import pytest

from training import evaluate
from training.chat import Chat, render
from training.check import Terms
from training.facts import BANKS, all_facts
from training.kinds import json_of
from training.kinds.asking import FRAMES, frames, topic, topics
from training.kinds.instructions import every_way, ways
from training.kinds.memory import RELATIONS
from training.kinds.memory import exchanges as recall
from training.kinds.numbers import spell
from training.lexicon import every_key, words
from training.mix import conversation, small_talk
from training.phrasing import families, normal


def test_every_fact_answers_its_own_check() -> None:
    wrong = [fact.id for fact in all_facts() for say in fact.say if not Terms(fact.must).right(say)]
    assert wrong == []


def test_facts_are_hundreds_and_each_can_be_asked_in_many_ways() -> None:
    facts = all_facts()
    assert len(facts) >= 200
    assert len({fact.id for fact in facts}) == len(facts)
    assert min(len(fact.questions(held_out=False)) for fact in facts) >= 5


@pytest.mark.parametrize("bank", [*BANKS, "versus"])
def test_held_out_families_are_not_among_the_trained(bank: str) -> None:
    trained = {normal(q) for q in families(bank, held_out=False)}
    assert not trained & {normal(q) for q in families(bank, held_out=True)}
    assert len(families(bank, held_out=True)) >= 2


def test_held_out_words_are_not_among_the_trained() -> None:
    assert all(not set(words(key, True)) & set(words(key, False)) for key in every_key())


def test_held_out_ways_to_recall_never_occur_in_training() -> None:
    """Each has words that stand neither in a trained pattern nor in a sample of what training asks."""
    kept = _recall_patterns(held_out=True)
    rng = Random(2)
    said = [e.user for _ in range(400) for e in recall(rng, small_talk, gaps=0)]
    trained = normal(" / ".join([*_recall_patterns(held_out=False), *said]))
    assert len(kept) > 100
    assert [pattern for pattern in kept if all(part in trained for part in _fixed(pattern))] == []
    assert all(part in trained for p in _recall_patterns(held_out=False)[:50] for part in _fixed(p))


@pytest.mark.parametrize("way", every_way())
def test_held_out_ways_to_give_an_order_are_not_among_the_trained(way: str) -> None:
    trained = {normal(pattern) for pattern in ways(way, held_out=False)}
    assert not trained & {normal(pattern) for pattern in ways(way, held_out=True)}
    assert len(ways(way, held_out=True)) >= 2


def test_held_out_requests_for_json_never_occur_in_training() -> None:
    rng = Random(4)
    asked = normal(" / ".join([*json_of.ASKS, *(json_of.exchange(rng).user for _ in range(2000))]))
    for pattern in json_of.TESTS:
        assert all(part not in asked for part in _fixed(pattern)), pattern


def _recall_patterns(held_out: bool) -> list[str]:
    own = [getattr(topic(name), side) for name in topics() for side in (["test"] if held_out else TRAINED)]
    return [pattern for lists in (*own, *(frames(name, held_out) for name in FRAMES)) for pattern in lists]


TRAINED = ("whole", "clause", "noun")


def _fixed(pattern: str) -> list[str]:
    """What stands between the slots, where it is three words or more."""
    parts = (normal(part) for part in re.split(r"\{.\}", pattern))
    return [part for part in parts if part.count(" ") >= 2]


def test_a_note_says_the_name_again_after_the_thing() -> None:
    for relation in RELATIONS:
        note = relation.note("Ben", "tea")
        assert note.index("Ben") < note.index("tea") < note.rindex("tea") < note.rindex("Ben")


def test_reference_replies_of_the_cases_are_right() -> None:
    cases = evaluate.make_cases(count=60, seed=11)
    assert [case.question for case in cases if not case.check.right(case.question.reply)] == []
    assert set(Counter(case.kind for case in cases)) >= {"about", "recall", "json", "stories", "unknown"}


def test_no_test_question_is_ever_trained_on() -> None:
    """Without the guard some would be: the second half proves that the first can fail."""
    kept = evaluate.test_questions(evaluate.make_cases(count=20, seed=5))
    common = normal("Tell me more.")
    seen: set[str] = set()
    rng = Random(1)
    for _ in range(600):
        item = conversation(rng, kept | {common})
        if isinstance(item, Chat):
            seen |= {normal(exchange.user) for exchange in item.exchanges}
    assert not seen & (kept | {common})
    rng = Random(1)
    free = (conversation(rng) for _ in range(3000))
    assert any(normal(e.user) == common for item in free if isinstance(item, Chat) for e in item.exchanges)


def test_the_same_seed_gives_the_same_text() -> None:
    def text(seed: int) -> str:
        rng = Random(seed)
        items = (conversation(rng) for _ in range(30))
        return "".join(render(item.turns()) if isinstance(item, Chat) else item.text for item in items)

    assert text(4) == text(4) != text(5)


def test_recall_asks_only_for_what_was_told() -> None:
    rng = Random(9)
    for _ in range(200):
        talk = recall(rng, small_talk, held_out=True, gaps=2)
        assert all(exchange.check.right(exchange.reply) for exchange in talk)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "zero"),
        (13, "thirteen"),
        (40, "forty"),
        (99, "ninety-nine"),
        (305, "three hundred five"),
        (7010, "seven thousand ten"),
    ],
)
def test_numbers_in_words(number: int, text: str) -> None:
    assert spell(number) == text
