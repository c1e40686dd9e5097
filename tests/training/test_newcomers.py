"""The fixed lists of questions: complete, judged by their terms, and never trained on."""

import re
import string
import tomllib
from itertools import chain
from random import Random

import pytest

from training import evaluate
from training.chat import Chat
from training.facts import all_facts
from training.lexicon import TEXT
from training.mix import conversation
from training.newcomers import Answer, for_each_fact, newcomers
from training.phrasing import normal

NO_LETTERS = dict.fromkeys(map(ord, string.punctuation + string.whitespace))


def test_there_are_enough_questions_on_each_subject() -> None:
    subjects = [about for about, _ in newcomers()]
    assert len(subjects) >= 150
    assert len({normal(e.user) for _, e in newcomers()}) == len(subjects)
    assert min(subjects.count(about) for about in subjects) >= 5


def test_each_fact_has_one_question_of_its_own() -> None:
    raw = tomllib.loads((TEXT / "asked.toml").read_text(encoding="utf-8"))
    asked = [(room, fact) for room, questions in raw.items() for fact in questions]
    assert asked == [(fact.room, fact.id) for fact in all_facts()]
    assert len({normal(question) for question in every_question()}) == len(every_question())


def every_question() -> list[str]:
    return [e.user for e in (*(e for _, e in newcomers()), *for_each_fact())]


@pytest.mark.soak
def test_no_question_is_in_the_training_text() -> None:
    """Neither in a list of the training text, nor among all questions of the facts."""
    files = [*TEXT.rglob("*.toml"), *(TEXT.parent / "kinds").glob("*.py")]
    lines = (
        part
        for file in files
        if file.stem not in ("newcomers", "asked")
        for part in re.split(r'["|\n]', file.read_text("utf-8"))
    )
    known = [*every_question(), "Tell me a joke."]
    likely = {letters(normal(question)) for question in known}  # there are a million, and `normal` is slow
    asked = (q for fact in all_facts() for q in fact.questions(held_out=False))
    trained = {normal(q) for q in chain(lines, asked) if not q.isascii() or letters(q) in likely}
    assert [question for question in every_question() if normal(question) in trained] == []
    assert normal("Tell me a joke.") in trained


def letters(text: str) -> str:
    """Equal for all ASCII texts whose normal forms are equal."""
    return text.lower().translate(NO_LETTERS)


def test_generated_text_that_equals_a_question_is_discarded() -> None:
    asked = {normal(question) for question in every_question()}
    kept = evaluate.test_questions(evaluate.make_cases(count=1, seed=5))
    assert asked <= kept
    rng = Random(2)
    items = (conversation(rng, kept) for _ in range(400))
    assert not asked & {normal(e.user) for item in items if isinstance(item, Chat) for e in item.exchanges}


@pytest.mark.parametrize(
    ("answer", "right", "wrong"),
    [
        (Answer(("112|911",)), "Call 911.", "Call them."),
        (Answer(("sorry",), never=("story",)), "I am sorry.", "Sorry. A story?"),
        (Answer((), exact="1, 2"), "1, 2", "1, 2, 3"),
        (Answer((), items=2), "1. pear\n2. fig", "1. pear\n2. pear"),
        (Answer((), items=3), "pear, fig and plum", "pear and fig"),
        (Answer((), times=(("hi", 2),)), "hi hi", "hi this hi hi"),
    ],
)
def test_right_and_wrong(answer: Answer, right: str, wrong: str) -> None:
    assert answer.right(right)
    assert not answer.right(wrong)
