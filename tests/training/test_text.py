"""The generators: their replies pass their own checks, and held-out text is never trained on."""

import re
from collections import Counter, defaultdict
from random import Random
from types import ModuleType

import pytest

from training import evaluate, near
from training.chat import Chat, render
from training.facts import BANKS, all_facts, known_names
from training.kinds import (
    about,
    cannot,
    care,
    instructions,
    json_of,
    languages,
    lists,
    manners,
    numbers,
    unknown,
    wishes,
)
from training.kinds.asking import FRAMES, frames, topic, topics
from training.kinds.instructions import every_way, ways
from training.kinds.memory import RELATIONS
from training.kinds.memory import exchanges as recall
from training.kinds.numbers import spell
from training.kinds.ordering import compose, composed_ways, holds
from training.lexicon import every_key, words
from training.mix import conversation, small_talk
from training.phrasing import families, normal, other_words, reworded, roughly, variants, varied


def test_some_messages_have_emoji() -> None:
    typed = [roughly(Random(seed), "Hello there.", slips) for slips in (0.12, 0) for seed in range(400)]
    pictured = [not each.isascii() for each in typed]
    assert 15 <= sum(pictured[:400]) <= 50 and not any(pictured[400:])


@pytest.mark.parametrize("bank", [*BANKS, "versus"])
def test_held_out_families_are_not_among_the_trained(bank: str) -> None:
    trained = {normal(q) for q in families(bank, held_out=False)}
    assert not trained & {normal(q) for q in families(bank, held_out=True)}
    assert len(families(bank, held_out=True)) >= 2


def test_held_out_words_are_not_among_the_trained() -> None:
    assert all(not set(words(key, True)) & set(words(key, False)) for key in every_key())


def test_held_out_recall_patterns_never_occur_in_training() -> None:
    """Each has words that occur neither in a trained pattern nor in a sample of the training questions."""
    kept = _recall_patterns(held_out=True)
    rng = Random(2)
    questions = [e.user for _ in range(400) for e in recall(rng, small_talk, gaps=0)]
    trained = normal(" / ".join([*_recall_patterns(held_out=False), *questions]))
    assert len(kept) > 100
    assert [pattern for pattern in kept if all(part in trained for part in _fixed(pattern))] == []
    assert all(part in trained for p in _recall_patterns(held_out=False)[:50] for part in _fixed(p))


def test_a_pattern_with_options_is_every_combination_of_them() -> None:
    pattern = "[What|Which food] do I [like|love][ best|]?"
    made = {varied(Random(seed), pattern) for seed in range(200)}
    assert made == set(variants(pattern))
    assert len(made) == 8
    assert {"What do I love?", "Which food do I like best?"} < made
    assert variants("x = [{a}, {b}]") == ["x = [{a}, {b}]"]


@pytest.mark.parametrize(
    ("question", "made"),
    [
        ("How do I open the monitor?", {"How open monitor", "I wonder how to open the monitor."}),
        ("Is there a salt?", {"Tell me if there is a salt.", "A salt, is there one?"}),
        ("What limits speed?", {"limits speed", "Tell me what limits speed."}),
        ("Which keys are there?", {"Which keys are there?"}),
    ],
)  # fmt: skip
def test_a_question_becomes_indirect_speech_or_keywords(question: str, made: set[str]) -> None:
    found = {reworded(Random(seed), question) for seed in range(2000)}
    assert made | {question} <= found
    subject = question.rstrip("?").split()[-1]
    assert [each for each in found if subject not in each] == []


def test_a_question_gets_rarer_words_but_keeps_names_options_and_code() -> None:
    question = "How do I stop a big `stop big` with --stop big_stop, minichat run or Alt+big?"
    found = {other_words(Random(seed), question) for seed in range(300)}
    assert {"How do I halt a huge", "How do I cut off an immense", "How do I stop a bulky"} & {
        each.split(" `")[0] for each in found
    }
    assert len(found) > 10
    assert {each[each.index("`") :] for each in found} == {question[question.index("`") :]}


@pytest.mark.parametrize("way", every_way())
def test_held_out_order_patterns_are_not_among_the_trained(way: str) -> None:
    trained = {normal(pattern) for pattern in ways(way, held_out=False)}
    assert not trained & {normal(pattern) for pattern in ways(way, held_out=True)}
    assert len(ways(way, held_out=True)) >= 2


@pytest.mark.parametrize("way", sorted(composed_ways()))
def test_orders_are_composed_in_hundreds_of_ways_but_never_as_a_held_out_one(way: str) -> None:
    rng = Random(6)
    kept = ways(way, held_out=True)
    made = [compose(rng, way, kept) for _ in range(600)]
    assert len({normal(pattern) for pattern in made}) > 450
    assert [pattern for pattern in made for each in kept if holds(pattern, each)] == []
    text = set(re.findall(r"\{\w\}", kept[0]))
    assert all(set(re.findall(r"\{\w\}", pattern)) == text for pattern in made)


def test_a_held_out_wording_is_not_composed() -> None:
    rng = Random(8)
    free = [compose(rng, "upper", ()) for _ in range(1500)]
    assert any(holds(pattern, "{t} in capital letters") for pattern in free)
    rng = Random(8)
    kept = [compose(rng, "upper", ("{t} in capital letters",)) for _ in range(1500)]
    assert not any(holds(pattern, "{t} in capital letters") for pattern in kept)


def test_a_composed_order_contains_its_text_unchanged() -> None:
    rng = Random(7)
    seen = 0
    for _ in range(2000):
        order = rng.choice(instructions.SHAPES)(rng, False)
        if order.way in composed_ways() and "l" not in order.slots:
            asked = order.composed(rng)
            assert all(value in asked for slot, value in order.slots.items() if slot != "n"), asked
            seen += 1
    assert seen > 800


def test_a_list_in_any_format_has_all_its_items() -> None:
    rng = Random(3)
    made = {instructions.listed(rng, ["ant", "bee", "cat"]) for _ in range(200)}
    assert all(re.findall("ant|bee|cat", text) == ["ant", "bee", "cat"] for text in made)
    assert {"ant, bee and cat", "ant\nbee\ncat", "\n- ant\n- bee\n- cat"} <= made


def test_two_questions_at_once_get_both_answers() -> None:
    rng = Random(5)
    for _ in range(200):
        two = about.both(rng)
        assert two.check.right(two.reply)
        assert sum(fact.say[0] in two.reply for fact in all_facts()) >= 2


def test_facts_have_questions_about_their_use() -> None:
    known = {fact.id: fact for fact in all_facts()}
    assert set(about.USE) | set(about.USE.values()) <= set(known)
    assert ("use", known["f3"]) in about.followers(known["temperature"])


def test_wishes_are_answered_and_their_tests_are_held_out() -> None:
    rng = Random(5)
    for _ in range(400):
        wish, kept = wishes.exchanges(rng)[0], wishes.exchanges(rng, held_out=True)[0]
        assert wish.check.right(wish.reply)
        assert kept.check.right(kept.reply)
    for kind, lines in wishes.TESTS.items():
        trained = {normal(each) for pattern in wishes.WAYS[kind] for each in variants(pattern)}
        assert not {normal(line) for line in lines} & trained


def test_nonsense_contains_no_known_word() -> None:
    rng = Random(5)
    typed = [e for _ in range(4000) for e in unknown.exchanges(rng) if e.reply == unknown.NONSENSE]
    assert len(typed) > 60
    assert not {e.user for e in typed} & {slot for fact in all_facts() for _, slot in fact.slots}
    assert all(e.check.right(e.reply) for e in typed)


def test_near_things_are_unknown_and_share_a_word_with_a_fact() -> None:
    rng = Random(5)
    made = {near.thing(rng, held_out) for held_out in (False, True) for _ in range(2000)}
    assert not made & known_names()
    assert [text for text in made if not set(text.split()) & set(near.HEADS)] == []
    assert len(made) > 3000
    tasks = [near.task(rng, False) for _ in range(1000)]
    assert not set(tasks) & known_names()


def test_moods_share_their_frames_and_never_hold_a_held_out_phrase() -> None:
    rng = Random(5)
    joy, sorrow = manners.MOODS["joy"], manners.MOODS["sorrow"]
    assert not set(joy.feeling + joy.day) & set(sorrow.feeling + sorrow.day)
    for room in manners.MOODS:
        made = {normal(manners.mood(rng, room)) for _ in range(2000)}
        kept = [set(normal(phrase).split()) for phrase in manners.PHRASES[room][-4:]]
        assert len(made) > 1500
        assert [text for text in made for words in kept if words <= set(text.split())] == []


def test_families_of_polite_phrases_hold_no_held_out_one() -> None:
    made = {normal(each) for room in manners.FAMILIES.values() for p in room for each in variants(p)}
    news = {normal(each) for sides in manners.NEWS.values() for p in sides["train"] for each in variants(p)}
    kept = {normal(each) for room in manners.PHRASES.values() for each in room[-4:]}
    kept |= {normal(each) for sides in manners.NEWS.values() for each in sides["test"]}
    assert len(made) > 1000 and len(news) > 1000
    assert not (made | news) & kept


def test_emoji_alone_get_the_answer_of_their_mood_and_news_their_own() -> None:
    rng = Random(5)
    trained = {manners.alone(rng, False) for _ in range(4000)}
    kept = {manners.alone(rng, True) for _ in range(400)}
    assert not trained & kept
    assert {("😂😂😂", "laughter"), ("❤️", "praise"), ("👍", "assent"), ("🙏🙏", "thanks")} <= trained | kept
    for room in manners.NEWS:
        made = [manners.news(rng, room, False) for _ in range(400)]
        assert 200 < sum(not text.isascii() for text in made) < 400
        fitting = {sign for each in manners.FITTING[room] for sign in each}
        assert [text for text in made if {sign for sign in text if not sign.isascii()} - fitting] == []


def test_held_out_requests_for_json_never_occur_in_training() -> None:
    rng = Random(4)
    asked = normal(" / ".join([*json_of.ASKS, *(json_of.exchange(rng).user for _ in range(2000))]))
    for pattern in json_of.TESTS:
        assert all(part not in asked for part in _fixed(pattern)), pattern


def _recall_patterns(held_out: bool) -> list[str]:
    own = [getattr(topic(name), side) for name in topics() for side in (["test"] if held_out else TRAINED)]
    patterns = [p for lists in (*own, *(frames(name, held_out) for name in FRAMES)) for p in lists]
    return [each for pattern in patterns for each in variants(pattern)]


TRAINED = ("whole", "clause", "noun")


def _fixed(pattern: str) -> list[str]:
    """The text between the slots, where it has three words or more."""
    parts = (normal(part) for part in re.split(r"\{.\}", pattern))
    return [part for part in parts if part.count(" ") >= 2]


def test_a_note_repeats_the_name_after_the_thing() -> None:
    for relation in RELATIONS:
        note = relation.note("Ben", "tea")
        assert note.index("Ben") < note.index("tea") < note.rindex("tea") < note.rindex("Ben")


def test_reference_replies_of_the_cases_pass_their_checks() -> None:
    cases = evaluate.make_cases(count=60, seed=11)
    with_reference = [case for case in cases if case.kind not in ("newcomers", "distress", "calm")]
    assert [case.question for case in with_reference if not case.check.right(case.question.reply)] == []
    assert set(Counter(case.kind for case in cases)) >= {"about", "recall", "json", "stories", "unknown"}


def test_no_test_question_is_trained_on() -> None:
    """The second half shows that without the filter some would be, so that the first half can fail."""
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


def test_recall_asks_only_for_what_was_mentioned() -> None:
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


@pytest.mark.parametrize("kind", [care, cannot, languages, lists], ids=lambda kind: kind.__name__)
def test_held_out_questions_are_answered_and_not_trained_on(kind: ModuleType) -> None:
    rng = Random(5)
    trained = [e for _ in range(1500) for e in kind.exchanges(rng)]
    kept = [e for _ in range(300) for e in kind.exchanges(rng, held_out=True)]
    assert [e for e in (*trained, *kept) if not e.check.right(e.reply)] == []
    assert not {normal(e.user) for e in kept} & {normal(e.user) for e in trained}


def test_held_out_patterns_are_not_variants_of_trained_ones() -> None:
    banks = (lists.ASKS, *lists.banks().values())
    sides = [(bank[False], bank[True]) for bank in banks]
    sides += [((*need.train, *need.short, *need.said), need.test) for need in care.needs().values()]
    sides += [(call.asks, call.test) for call in care.calls()]
    sides += [
        ((*topic["train"], *care.said().get(name, ())), tuple(topic["test"]))
        for name, topic in care.near().items()
    ]
    sides += [(cannot.patterns(name, False), cannot.patterns(name, True)) for name in cannot.SHARES]
    sides += [
        ((*each.asks[: -languages.KEPT], *each.frames), each.asks[-languages.KEPT :])
        for each in languages.languages()
    ]
    sides.append((near.ASKS[False], near.ASKS[True]))
    for trained, kept in sides:
        assert len(kept) >= 2
        assert not {normal(p) for p in kept} & {normal(v) for p in trained for v in variants(p)}


def test_each_list_has_the_maximum_length_and_no_duplicates() -> None:
    for items in lists.kinds_of_lists().values():
        assert len(set(items)) == len(items) == lists.LONGEST


def test_a_question_for_a_list_or_a_count_has_one_answer() -> None:
    rng, answers = Random(5), defaultdict[str, set[str]](set)
    for e in (e for _ in range(20_000) for e in lists.exchanges(rng)):
        answers[normal(e.user)].add(e.reply)
    assert [asked for asked, found in answers.items() if len(found) > 1] == []


def test_complete_lists_have_names_of_their_own() -> None:
    names = [name for known in lists.known_lists() for name in {name.lower() for name in known.names}]
    assert len(set(names)) == len(names)
    assert [known for known in lists.known_lists() if len(set(known.items)) < len(known.items)] == []


def test_every_reply_to_a_crisis_or_emergency_names_whom_to_call() -> None:
    assert [name for name, need in care.needs().items() if not care.numbers_in(need.say)] == []
    assert [call.reply for call in care.calls() if not care.numbers_in(call.reply)] == []


def test_no_message_in_few_words_is_a_sentence_of_the_text() -> None:
    """A composed one may be; a chat with it is discarded, as with any test question."""
    said = {normal(each) for lines in care.said().values() for line in lines for each in variants(line)}
    kept = [e for asked in care.in_few_words().values() for e in asked]
    assert not {normal(e.user) for e in kept} & said
    assert care.in_few_words().keys() == {*care.needs(), "calm"}


def test_states_of_distress_are_said_in_the_words_for_other_moods() -> None:
    rng = Random(5)
    crisis = care.needs()["crisis"]
    made = {crisis.message(rng, held_out=False) for _ in range(5000)}
    assert any("very hopeless" in text for text in made)
    assert not set(crisis.states) & {word for mood in manners.MOODS.values() for word in mood.feeling}


def test_ordinary_messages_near_a_crisis_get_the_usual_answer() -> None:
    rng = Random(5)
    made = [e for held_out in (False, True) for _ in range(400) for e in care.ordinary(rng, held_out)]
    assert [e for e in made if not e.check.right(e.reply) or "988" in e.reply] == []
    assert {e.reply for e in made if e.user == "A sickle dangles above our rain barrel."} <= set(
        manners.NOTED
    )
    assert any(e.reply in manners.NOTED for e in made)


def test_a_task_gets_the_refusal_of_its_topic() -> None:
    assert cannot.refusal("write a python script that sorts a file") == cannot.refusal("write java code")
    assert cannot.refusal("write a novel") not in (None, cannot.refusal("write java code"))
    assert cannot.refusal("water the plants") is None


def test_sums_beyond_the_tables_are_right() -> None:
    rng = Random(5)
    sums = [e for _ in range(3000) for e in numbers.exchanges(rng)]
    assert [e for e in sums if not e.check.right(e.reply)] == []
    for match in (
        found for e in sums for found in re.findall(r"(\d+) / (\d+) = (\d+)(?:, remainder (\d+))?", e.reply)
    ):
        a, b, whole, rest = (int(each or 0) for each in match)
        assert (whole, rest) == divmod(a, b)
