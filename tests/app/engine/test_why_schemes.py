"""What parts of a step cost: weights in a scheme, of experts, of the head; attention as a CPU measures it."""

from dataclasses import replace

import pytest

from engine.api.snapshot import StepSplit, StepTimes, Throughput
from engine.api.speculation import Speculation
from engine.api.speeds import Reads, Speeds
from minichat.features.why.feature import described
from minichat.features.why.speed import explain
from minichat.ui.monitor.pane import ASCII
from tests.app.engine.test_why import SPEEDS, shot

COUNTED = Reads(100_000_000, ((0, 1000),), products=400_000_000)  # of weights in 4 bits
TIMES = StepTimes(plan=0.001, launch=0.121, commit=0.003)
SPLIT = StepSplit(attention=0.098, products=0.012, sampling=0.004, launch=0.121)
CHATS = shot(TIMES, rows=12.0, split=SPLIT)
LONG = replace(CHATS, rates=replace(CHATS.rates, contexts=((0, 19_200.0), (16, 192.0))))
OF_CHATS = (
    "Limited by attention over 19,200 tokens of context: it takes 78% of a step, and grows with each chat "
    "and its length; more or longer ones slow each other down."
)


def test_products_count_whatever_the_scheme() -> None:
    packed = shot(StepTimes(launch=0.05), tokens=5.0, quantization="int4", reads=COUNTED)
    speed = explain(packed, SPEEDS)
    assert speed.arithmetic.amount == 5 * 400_000_000
    assert (
        "nor arithmetic (40%)" not in speed.sentence and "arithmetic  " in described(speed, 60, ASCII).plain
    )
    assert speed.sentence.startswith("Compute-bound: 40% of the device's peak;")
    assert "(4%)" in explain(replace(packed, step_times=StepTimes(launch=0.5)), SPEEDS).sentence


def test_arithmetic_that_is_not_known_is_no_reason() -> None:
    packed = shot(StepTimes(launch=0.0125), quantization="int4")
    assert explain(packed, SPEEDS).arithmetic.amount == 0
    assert explain(packed, SPEEDS).sentence == (
        "Memory-bound (weights): 1 row uses 81% of the memory bandwidth; "
        "more concurrent chats share one read."
    )
    packed = replace(packed, step_times=StepTimes(launch=0.1))
    for speeds, reads in (SPEEDS, packed.reads), (SPEEDS._replace(multiply=0), COUNTED):
        assert explain(replace(packed, reads=reads), speeds).sentence == (
            "Not limited by memory (10%); how fast this device multiplies weights in int4 is not known."
        )


def test_most_tokens_of_a_prompt_need_no_logits() -> None:
    reads = Reads(100_000_000, products=300, head=100)
    for tokens, prefill, with_logits in (512.0, 51_200.0, 1), (516.0, 51_200.0, 4), (5.0, 0.0, 5):
        each = shot(StepTimes(launch=0.1), tokens=tokens, prefill=prefill, reads=reads)
        assert explain(each, SPEEDS).arithmetic.amount == tokens * 200 + with_logits * 100


def test_a_step_reads_the_experts_that_its_tokens_choose() -> None:
    reads = Reads(1000, experts=800, chosen=0.25)
    assert [reads.of_step(tokens) for tokens in (1, 2, 100)] == [400, 550, 1000]
    one = explain(shot(StepTimes(launch=0.1), reads=reads, memory={"weights": 1_000_000}), SPEEDS)
    assert one.weights == 400
    text = described(one, 80, ASCII).plain
    assert "(of 1.00 MB in all: experts that no token chooses are not read)" in text


def test_drafts_of_a_model_are_said_not_to_be_counted() -> None:
    plain = shot(StepTimes(launch=0.1))
    for kind, made, said in ("exit", 3, True), ("draft", 3, True), ("draft", 0, False), ("ngram", 3, False):
        speculation = Speculation(kind, True, made, 4 * made, made)
        some = replace(plain, requests=(plain.requests[0]._replace(speculation=speculation),))
        text = described(explain(some, SPEEDS), 90, ASCII).plain
        assert ("without what drafting reads and computes" in text) is said
    assert "drafting" not in described(explain(plain, SPEEDS), 90, ASCII).plain


def test_recurrent_states_take_memory_bandwidth() -> None:
    """32 MB of them per row."""
    reads = Reads(100_000_000, ((0, 1000),), states=32_000_000)
    found = explain(shot(StepTimes(launch=0.04), rows=4, reads=reads), SPEEDS)
    assert found.states == 4 * 32_000_000
    assert found.memory.amount == 100_000_000 + 4 * 1007 * 1000 + 4 * 32_000_000
    assert found.sentence == (
        "Memory-bound (states): 4 rows use 58% of the memory bandwidth; fewer chats are faster."
    )
    assert "128 MB of recurrent states, read and written" in described(found, 72, ASCII).plain
    assert "states" not in described(explain(shot(StepTimes(launch=0.0125)), SPEEDS), 72, ASCII).plain


def test_the_arithmetic_of_recurrent_states_counts() -> None:
    reads = Reads(100_000_000, products=50_000_000, recurrence=10_000_000)
    found = explain(shot(StepTimes(launch=0.0125), rows=2, tokens=8, reads=reads), SPEEDS)
    assert found.arithmetic.amount == 8 * 60_000_000
    uncounted = reads._replace(products=0)
    found = explain(shot(StepTimes(launch=0.0125), reads=uncounted, quantization="int8"), SPEEDS)
    assert not found.arithmetic.known


def test_adapters_are_read_and_multiplied() -> None:
    plain = shot(StepTimes(launch=0.04), rows=2)
    some = replace(plain, rates=replace(plain.rates, adapters=200_000_000, adapted=300_000_000.0))
    found, without = explain(some, SPEEDS), explain(plain, SPEEDS)
    assert found.adapters == 200_000_000
    assert found.memory.amount == without.memory.amount + 200_000_000
    assert found.arithmetic.amount == without.arithmetic.amount + 300_000_000
    assert found.sentence == (
        "Memory-bound (adapters): 2 rows use 76% of the memory bandwidth; "
        "steps with fewer adapters are faster."
    )
    assert "200 MB of LoRA adapters per step" in described(found, 72, ASCII).plain
    assert "LoRA" not in described(without, 72, ASCII).plain


def test_no_share_exceeds_the_whole() -> None:
    """Steps that run while the device is measured make its peak too low."""
    one = shot(StepTimes(launch=0.0125))
    rate = explain(one, Speeds(1e18, 1e18)).memory.rate
    found = explain(one, Speeds(rate / 2, 1.0))
    assert (found.memory.share, found.arithmetic.share) == (1.0, 1.0)
    assert explain(one, None).memory.most == 0.0


def test_long_chats_are_limited_by_attention_and_not_by_small_operations() -> None:
    assert explain(LONG, SPEEDS).sentence == OF_CHATS
    short = replace(LONG, split=SPLIT._replace(attention=0.06))
    assert "small operations" in explain(short, SPEEDS).sentence, "half of it or less"
    assert "small operations" in explain(replace(LONG, split=None), SPEEDS).sentence, "it is not measured"


def test_the_parts_of_a_launch_may_take_longer_than_the_whole() -> None:
    """They are means of other steps."""
    slower = SPLIT._replace(attention=0.15, launch=0.1)
    assert "it takes 87% of a step" in explain(replace(LONG, split=slower), SPEEDS).sentence


@pytest.mark.parametrize("quantization", ["none", "int4"])
def test_it_is_said_whether_or_not_the_arithmetic_is_known(quantization: str) -> None:
    assert explain(replace(LONG, quantization=quantization), SPEEDS).sentence == OF_CHATS


def test_recurrent_states_are_not_called_attention() -> None:
    states = replace(LONG, reads=LONG.reads._replace(states=1000))
    assert "attention" not in explain(states, SPEEDS).sentence


def test_with_drafts_it_is_the_same() -> None:
    """Each request reads its context once more for each draft."""
    drafts = Speculation("draft", 4, 40, 30, 10, True)
    requests = tuple(each._replace(speculation=drafts) for each in LONG.requests)
    rates = replace(LONG.rates, step_tokens=60.0)
    assert explain(replace(LONG, requests=requests, rates=rates), SPEEDS).sentence == OF_CHATS


def test_prompts_in_pieces_are_limited_by_attention_over_long_prompts() -> None:
    rates = Throughput(prefill=2_000.0, steps=4.0, batch=1.0, step_tokens=512.0, contexts=((0, 7_000.0),))
    reads = Reads(1_000_000, ((0, 1000),), attention=((0, 1000),))
    pieces = replace(LONG, rates=rates, reads=reads)
    assert explain(pieces, SPEEDS).sentence == (
        "Limited by attention over long prompts: it takes 78% of a step; shorter ones are faster."
    )
