"""Invariant 5: parameters belong to one row, and a change acts from the next step not yet launched.

No change made while a request runs is lost.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.api.params import SamplingParams
from engine.api.request import Finish
from tests.cases import soak
from tests.runner.letters import EOS, byte_tokenizer
from tests.runner.small import GREEDY, alone, ask, drain, engine_on, run_to, turn

DEPTHS = pytest.mark.parametrize("depth", [*soak(0), 1])
PROMPT, OTHER = [1, *range(40, 60)], [1, *range(90, 140)]
WARM = SamplingParams(temperature=1.0, seed=5, max_tokens=20, ignore_eos=True)
A, B = (byte_tokenizer().token_to_id(letter) for letter in "ab")
CHANGES: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 3.0},
    {"top_k": 1},
    {"top_p": 0.05},
    {"min_p": 0.9},
    {"repetition_penalty": 3.0},
    {"presence_penalty": 2.0, "frequency_penalty": 2.0},
    {"logit_bias": {A: 50.0}},
    {"seed": 6},
    {"stop_ids": [A], "logprobs": 3, "min_tokens": 15, "stop": ["a"]},
]


@pytest.mark.parametrize("depth", [*soak(0), 1])
@pytest.mark.parametrize("changes", CHANGES, ids=lambda changes: next(iter(changes)))
def test_a_change_does_not_affect_other_requests(llama: Path, changes: dict[str, Any], depth: int) -> None:
    engine = engine_on(llama, depth=depth)
    changed, _ = ask(engine, PROMPT, WARM)
    others = [ask(engine, OTHER, params)[1] for params in (WARM, replace(GREEDY, max_tokens=20))]
    for _ in range(5):
        turn(engine)
    engine.update(changed, **changes)
    drain(engine)
    assert others[0].reply == alone(llama, OTHER, WARM).reply
    assert others[1].reply == alone(llama, OTHER, replace(GREEDY, max_tokens=20)).reply


@DEPTHS
@pytest.mark.parametrize("changes", [{"logit_bias": {A: 100.0}}, {"top_k": 1, "logit_bias": {A: 60.0}}])
def test_a_change_acts_from_the_next_step_not_yet_launched(
    llama: Path, changes: dict[str, Any], depth: int
) -> None:
    engine = engine_on(llama, depth=depth)
    id, output = ask(engine, PROMPT, WARM)
    run_to(engine, output, 5)
    engine.update(id, **changes)
    drain(engine)
    plain = alone(llama, PROMPT, WARM).tokens
    assert output.tokens == plain[: 5 + depth] + [A] * (15 - depth)


ENDS = {"logit_bias": {EOS: 100.0}, "ignore_eos": False, "min_tokens": 5}
LATE: dict[str, tuple[dict[str, Any], dict[str, Any], int, str]] = {
    "floor": (ENDS, {"min_tokens": 15}, 6, ""),
    "eos": (ENDS, {"ignore_eos": True}, 6, ""),
    "old stop": ({"logit_bias": {A: 100.0}, "stop": ["aaaaaa"]}, {"stop": []}, 6, ""),
    "new stop": ({"logit_bias": {A: 100.0}}, {"stop": ["a"]}, 7, "aaaaaa"),
    "stop id": ({"logit_bias": {A: 100.0}}, {"stop_ids": [A]}, 7, "aaaaaa"),
}


@pytest.mark.parametrize(("before", "changes", "count", "text"), LATE.values(), ids=LATE)
def test_a_token_in_flight_ends_a_reply_by_the_old_parameters(
    llama: Path, before: dict[str, Any], changes: dict[str, Any], count: int, text: str
) -> None:
    engine = engine_on(llama, depth=1)
    id, output = ask(engine, PROMPT, GREEDY.changed(**before))
    run_to(engine, output, 5)
    engine.update(id, **changes)
    drain(engine)
    assert (len(output.tokens), output.finish) == (count, Finish.STOP)
    if text or "stop" in changes:
        assert output.text == text


@DEPTHS
def test_penalties_set_midway_count_earlier_tokens(llama: Path, depth: int) -> None:
    """The first token counts, even while only the device has it."""
    engine = engine_on(llama, depth=depth)
    forced = replace(GREEDY, max_tokens=6, logit_bias={A: 100.0})
    id, output = ask(engine, PROMPT, forced)
    turn(engine)
    assert len(output.tokens) == 1 - depth
    engine.update(id, logit_bias={A: 50.0, B: 49.0}, frequency_penalty=2.0, presence_penalty=2.0)
    drain(engine)
    assert output.tokens[:3] == [A, B, A]


@DEPTHS
@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_a_seed_continues_after_a_preemption(llama: Path, preemption: str, depth: int) -> None:
    params = replace(WARM, frequency_penalty=1.0, repetition_penalty=1.2, min_tokens=18, ignore_eos=False)
    engine = engine_on(llama, depth=depth, preemption=preemption, host_blocks=8)
    id, output = ask(engine, PROMPT, params)
    _, other = ask(engine, OTHER, replace(WARM, seed=5))
    for _ in range(3):
        run_to(engine, output, len(output.tokens) + 3)
        engine.preempt(id)
        turn(engine)
    drain(engine)
    assert output.reply == alone(llama, PROMPT, params).reply
    assert other.reply == alone(llama, OTHER, WARM).reply


def test_requests_without_a_seed_get_different_ones(llama: Path) -> None:
    engine = engine_on(llama)
    free = replace(WARM, seed=None)
    one, two = (ask(engine, PROMPT, free)[1] for _ in range(2))
    drain(engine)
    assert one.tokens != two.tokens


@DEPTHS
@pytest.mark.parametrize("most", [1, 4, 5])
def test_max_tokens_below_the_current_length_ends_the_reply(llama: Path, most: int, depth: int) -> None:
    engine = engine_on(llama, depth=depth)
    id, output = ask(engine, PROMPT)
    run_to(engine, output, 5)
    engine.update(id, max_tokens=most)
    drain(engine)
    assert output.finish is Finish.LENGTH
    assert output.tokens == alone(llama, PROMPT).tokens[:5]


@DEPTHS
def test_max_tokens_may_be_raised_midway(llama: Path, depth: int) -> None:
    engine = engine_on(llama, depth=depth)
    id, output = ask(engine, PROMPT, replace(GREEDY, max_tokens=6))
    run_to(engine, output, 5)  # at depth 1 the last one is in flight by now
    engine.update(id, max_tokens=24)
    drain(engine)
    assert output.reply == alone(llama, PROMPT).reply


@DEPTHS
@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_the_only_request_may_be_preempted(llama: Path, preemption: str, depth: int) -> None:
    engine = engine_on(llama, depth=depth, preemption=preemption, host_blocks=8)
    broken: list[object] = []
    engine.bus.subscribe(lambda event: broken.append(event) if event.kind == "stepbroke" else None)
    id, output = ask(engine, PROMPT)
    run_to(engine, output, 3)
    for _ in range(3):
        engine.preempt(id)
        assert engine.step()  # there is work, so the engine does not sleep
    drain(engine)
    assert output.reply == alone(llama, PROMPT).reply
    assert not broken


@pytest.mark.parametrize("prompt", [9, 40, 100])
def test_a_single_prompt_may_be_longer_than_a_step(llama: Path, prompt: int) -> None:
    tokens = [1, *(40 + n % 150 for n in range(prompt - 1))]
    engine = engine_on(llama, max_step_tokens=8)
    _, output = ask(engine, tokens)
    drain(engine)
    assert output.reply == alone(llama, tokens).reply


def test_held_text_keeps_its_order_when_stop_and_min_tokens_change(llama: Path) -> None:
    """Text held back for one stop string is sent before the text that follows it."""
    engine = engine_on(llama)
    only_a = replace(GREEDY, logit_bias={A: 100.0}, stop=("aaab",))
    id, output = ask(engine, PROMPT, only_a)
    for _ in range(2):
        turn(engine)
    assert output.text == ""  # two letters that may begin the stop string
    engine.update(id, min_tokens=20, logit_bias={B: 100.0}, stop=("zz",))
    for _ in range(2):
        turn(engine)
    assert output.text == "aabb"
    drain(engine)
    assert output.text == "aa" + "b" * 22


def test_text_held_for_an_old_stop_string_is_matched_with_a_new_one(llama: Path) -> None:
    engine = engine_on(llama)
    id, output = ask(engine, PROMPT, replace(GREEDY, logit_bias={A: 100.0}, stop=("aaab",)))
    for _ in range(2):
        turn(engine)
    engine.update(id, stop=("aaa",))
    drain(engine)
    assert (output.text, output.finish, len(output.tokens)) == ("", Finish.STOP, 3)


@DEPTHS
def test_no_token_is_kept_after_a_stop_found_one_step_late(llama: Path, depth: int) -> None:
    engine = engine_on(llama, depth=depth)
    ends = replace(GREEDY, logit_bias={EOS: 100.0}, min_tokens=5, ignore_eos=False)
    _, output = ask(engine, PROMPT, ends)
    _, other = ask(engine, OTHER)
    drain(engine)
    assert output.finish is Finish.STOP
    assert (len(output.tokens), output.tokens[-1]) == (6, EOS)
    assert EOS not in output.tokens[:5]
    assert other.reply == alone(llama, OTHER).reply
