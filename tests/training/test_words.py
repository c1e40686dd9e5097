"""Words to spell: known ones, and none that is held out."""

from random import Random

from training.kinds import slots


def test_words_of_the_answers_are_spelled_and_no_held_out_word_is_among_them() -> None:
    spelled = set(slots.of_the_answers())
    assert {"deadline", "temperature", "distance"} <= spelled
    rng = Random(5)
    kept = {slots.a_word(rng, held_out=True) for _ in range(3000)}
    assert not spelled & kept and len(kept) > 200
    assert len(spelled & {slots.a_word(rng, held_out=False) for _ in range(3000)}) > 300


def test_a_held_out_word_is_spelled_with_other_endings_only() -> None:
    rng = Random(6)
    made = [slots.stretched(rng) for _ in range(2000)]
    kept = {slots.a_word(rng, held_out=True) for _ in range(3000)}
    assert not kept & set(made)
    assert {"horse", "water", "latency"} <= kept
    assert all(any(word.startswith(stem) for word in made) for stem in ("horse", "water", "latency"))
