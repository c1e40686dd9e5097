"""The facts: many questions for each, none for two of them, and none that is held out among the trained."""

from collections import Counter
from functools import cache
from random import Random

import pytest

from training.facts import Fact, all_facts, any_fact, whole_questions
from training.kinds import about, manners
from training.phrasing import normal, variants, wrapped


def test_every_fact_passes_its_own_check() -> None:
    wrong = [fact.id for fact in all_facts() for say in fact.say if not fact.check.right(say)]
    assert wrong == []


def test_one_question_has_one_answer() -> None:
    first, second = all_facts()[:2]
    assert first.check.right(first.say[0])
    assert not first.check.right(f"{first.say[0]}\n\n{first.say[0]}")
    assert not first.check.right(f"{first.say[0]}\n\n{second.say[0]}")
    assert not second.check.right(f"{first.say[0]}\n\n{second.say[0]}\n")


def test_there_are_hundreds_of_facts_with_several_questions_each() -> None:
    facts = all_facts()
    assert len(facts) >= 200
    assert len({fact.id for fact in facts}) == len(facts)
    whole = [sum(len(variants(pattern)) for pattern in fact.asked(held_out=False)) for fact in facts]
    assert min(len(fact.slots) + asked for fact, asked in zip(facts, whole, strict=True)) >= 5


def test_no_two_facts_are_asked_for_in_the_same_words() -> None:
    slots = Counter(slot for fact in all_facts() for slot in {*fact.slots, *fact.pairs})
    whole = Counter(
        each
        for fact in all_facts()
        for each in {(normal(q), fact.say) for p in fact.asked(False) for q in variants(p)}
    )
    answers = Counter(question for question, _ in whole)
    assert [each for each, count in (*slots.items(), *answers.items()) if count > 1] == []


@cache
def trained() -> dict[str, Fact]:
    """Each whole question that is trained on, with its fact."""
    return {normal(each): fact for fact in all_facts() for q in fact.asked(False) for each in variants(q)}


def test_no_held_out_question_of_a_fact_is_trained_on() -> None:
    kept = [q for fact in all_facts() for q in fact.asked(True)]
    assert [q for q in kept if normal(q) in trained() or variants(q) != [q]] == []
    assert len(kept) > 100


def test_no_polite_phrase_is_a_question_for_a_fact_with_another_answer() -> None:
    families = {room: tuple(v for p in ps for v in variants(p)) for room, ps in manners.FAMILIES.items()}
    said = {
        normal(phrase): room
        for rooms in (manners.PHRASES, families)
        for room, phrases in rooms.items()
        for phrase in phrases
        if normal(phrase)
    }
    answers = {room: says for room, says, _ in manners.ROOMS}
    both = [(q, said[q], fact) for q, fact in trained().items() if q in said]
    assert len(said) > 1500
    assert [(q, fact.id) for q, room, fact in both if not fact.check.right(answers[room][0])] == []


@pytest.mark.parametrize("folder", ["ways", "direct"])
def test_more_ways_to_ask_are_for_facts_and_none_is_a_held_out_one(folder: str) -> None:
    asked = whole_questions(folder)
    assert set(asked) <= {fact.id for fact in all_facts()}
    made = [each for patterns in asked.values() for pattern in patterns for each in variants(pattern)]
    assert [each for each in made if "[" in each or "]" in each or "|" in each or not normal(each)] == []
    kept = {normal(q) for fact in all_facts() for q in fact.questions(held_out=True)}
    assert [each for each in made if normal(each) in kept] == []
    assert len(made) > 10_000


def test_a_fourth_of_the_questions_are_direct_and_half_of_the_others_are_made_from_slots() -> None:
    fact = next(fact for fact in all_facts() if fact.slots and len(fact.asked(False)) > 3 * len(fact.slots))
    direct = {each for pattern in fact.direct for each in variants(pattern)}
    whole = {each for pattern in fact.asked(False) for each in variants(pattern)} - direct
    asked = [fact.ask(Random(seed), held_out=False) for seed in range(400)]
    assert 80 < sum(each in direct for each in asked) < 150
    assert 110 < sum(each in whole for each in asked) < 190


def test_a_fact_that_is_hard_to_tell_apart_is_asked_for_more_often() -> None:
    rng = Random(3)
    asked = Counter(any_fact(rng).id for _ in range(12_000))
    assert asked["key-undo"] > 1.5 * asked["kv-block"] > 0


def test_rarer_words_leave_the_name_of_a_thing_as_it_is() -> None:
    fact = next(fact for fact in all_facts() if fact.id == "chat-template")
    asked = [about.ask(Random(seed), fact).user.lower() for seed in range(600)]
    renamed = ("conversation template", "dialogue template", "discussion template", "talk template")
    assert sum("chat template" in q for q in asked) > 200
    assert [q for q in asked if any(name in q for name in renamed)] == []


def test_a_word_before_a_question_leaves_the_name_of_a_key_as_it_is() -> None:
    made = {wrapped(Random(seed), "P does what?") for seed in range(300)}
    assert len(made) > 20 and all("P does" in each for each in made)
    assert any("what is a seed?" in wrapped(Random(seed), "What is a seed?") for seed in range(100))
