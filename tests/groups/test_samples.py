"""Several replies to one prompt: each as it would be alone, over shared blocks computed once."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from engine.api.errors import BadInput, BadParams
from engine.api.events import Admitted, Event, Forked, Queued
from engine.api.params import Grammar, SamplingParams
from engine.api.request import Finish
from engine.serving.engine import Engine
from engine.serving.groups.samples import seed_of
from tests.cases import one_of
from tests.engine.ledger import alone, ledger_engine
from tests.engine.ledger import drain as drain_ledger
from tests.groups.test_company import STOPS
from tests.outputs import Output, Outputs
from tests.runner.replies.test_company import A, B
from tests.runner.small import alone as one_alone
from tests.runner.small import drain, engine_on

PROMPT = [1, *range(40, 77)]
SAMPLED = SamplingParams(temperature=1.2, max_tokens=16, seed=5, ignore_eos=True)


@pytest.mark.parametrize("depth", [0, 1])
def test_each_reply_is_the_same_as_alone(llama: Path, depth: int) -> None:
    result, engine = Outputs(), engine_on(llama, depth=depth)
    engine.submit(PROMPT, replace(SAMPLED, n=4, logprobs=2), result)
    drain(engine)
    for choice in range(4):
        lone = one_alone(llama, PROMPT, replace(SAMPLED, seed=seed_of(5, choice), logprobs=2))
        one = result.choices[choice]
        assert (one.tokens, one.text, one.finish) == lone.reply
        assert [each.token for each in one.logprobs] == one.tokens
    assert len({tuple(tokens) for tokens in result.replies}) == 4
    assert [delta.left for delta in result.deltas if delta.finish] == [3, 2, 1, 0]


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_the_prompt_is_computed_once(prefix_cache: bool) -> None:
    """100 tokens are 6 blocks and a part. Each of 5 replies has its own copy of the part, with its tokens."""
    engine, result = ledger_engine(prefix_cache=prefix_cache, step_tokens=64), Outputs()
    engine.submit([3] * 100, SamplingParams(max_tokens=10, n=5, seed=0), result)
    most = 0
    while engine.busy:
        engine.step()
        engine.scheduler.check()
        most = max(most, engine.scheduler.pool.in_use)
    assert most == 6 + 5
    computed = sum(row.length for step in engine.runner.steps for row in step.rows)
    assert computed == 100 + 4 + 5 * 9  # each fork computes the prompt's last token to sample the next
    assert result.replies == [alone([3] * 100, 10, seed_of(0, choice)) for choice in range(5)]


def test_all_replies_show_the_tokens_that_the_prompt_found_in_the_cache() -> None:
    """Not those that they share since the first token."""
    engine, shown = ledger_engine(), list[set[int]]()
    for _ in range(2):
        engine.submit([3] * 100, SamplingParams(max_tokens=4, n=3, seed=0), Outputs())
        seen = set[int]()
        while engine.busy:
            engine.step()
            seen |= {each.cached_tokens for each in engine.snapshot().requests if each.generated}
        shown.append(seen)
    assert shown == [{0}, {96}]


def test_a_prompt_is_looked_up_once_even_if_replies_wait_for_a_slot() -> None:
    """What a reply that was queued finds of its own request is no gain of the cache."""
    engine, seen = ledger_engine(slots=2), list[Event]()
    engine.bus.subscribe(seen.append)
    engine.submit([3] * 100, SamplingParams(n=4, max_tokens=20), Outputs())
    drain_ledger(engine)
    assert sum(isinstance(each, Admitted) for each in seen) > 1, "none was queued"
    shot = engine.snapshot()
    assert (shot.prompt_tokens, shot.prefix_hit_rate) == (100, 0)


def test_events_name_the_request_that_the_other_replies_answer() -> None:
    engine = ledger_engine()
    seen: list[Event] = []
    engine.bus.subscribe(seen.append)
    engine.submit([3] * 40, SamplingParams(max_tokens=1, n=3, seed=0), Outputs())
    drain_ledger(engine)
    assert [event.request for event in seen if isinstance(event, Queued)] == [0]
    assert [(e.request, e.parent, e.group) for e in seen if isinstance(e, Forked)] == [(1, 0, 0), (2, 0, 0)]


def test_more_replies_than_a_step_has_tokens() -> None:
    """The step size is smaller for a while after a lack of memory. Replies run while another prompt waits."""
    engine, result, other = ledger_engine(step_tokens=16), Outputs(), Outputs()
    engine.scheduler.rules.step_tokens = 3
    engine.submit([3, 4], SamplingParams(max_tokens=8, n=6, seed=1), result)
    engine.submit([5] * 30, SamplingParams(max_tokens=4, seed=2), other)
    drain_ledger(engine)
    assert all(row.length > 0 for step in engine.runner.steps for row in step.rows)
    assert result.replies == [alone([3, 4], 8, seed_of(1, choice)) for choice in range(6)]
    assert other.replies == [alone([5] * 30, 4, 2)]


def test_more_replies_than_rows_of_one_token_each() -> None:
    engine, result = ledger_engine(slots=2), Outputs()
    engine.submit([3, 4], SamplingParams(max_tokens=1, n=7, seed=1), result)
    drain_ledger(engine)
    assert result.replies == [alone([3, 4], 1, seed_of(1, choice)) for choice in range(7)]


def test_the_best_replies_have_the_highest_mean(llama: Path) -> None:
    result, engine = Outputs(), engine_on(llama)
    engine.submit(PROMPT, replace(SAMPLED, n=2, best_of=6), result)
    drain(engine)
    lone = [one_alone(llama, PROMPT, replace(SAMPLED, seed=seed_of(5, n), logprobs=0)) for n in range(6)]
    means = {tuple(each.tokens): sum(p.logprob for p in each.logprobs) / len(each.logprobs) for each in lone}
    best = sorted(means, key=means.__getitem__, reverse=True)[:2]
    assert result.replies == [list(tokens) for tokens in best]
    assert [one.score for one in result.choices.values()] == pytest.approx([means[each] for each in best])
    assert not any(one.logprobs for one in result.choices.values())  # not requested
    assert {delta.text for delta in result.deltas if not delta.finish} == {""}
    assert any(delta.tail for delta in result.deltas)


def running(params: SamplingParams, steps: int = 4) -> tuple[Engine, int, Outputs]:
    engine, result = ledger_engine(), Outputs()
    id = engine.submit([1, 2, 3], params, result)
    for _ in range(steps):
        engine.step()
    return engine, id, result


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_all_end_together_when_aborted(steps: int) -> None:
    engine, id, result = running(SamplingParams(max_tokens=20, n=3), steps)
    engine.abort(id)
    assert result.over and {one.finish for one in result.choices.values()} == {Finish.ABORTED}
    engine.step()
    engine.scheduler.check()
    assert not engine.scheduler.requests and engine.scheduler.pool.in_use == 0


@pytest.mark.parametrize("best_of", [None, 3])
def test_every_reply_gets_an_end_if_the_first_ends_before_the_others_begin(best_of: int | None) -> None:
    for end in ("abort", "length", "death"):
        engine, result = ledger_engine(), Outputs()
        id = engine.submit(
            [1, 2], SamplingParams(max_tokens=20, n=2, best_of=best_of), result, reply_prefix=[3, 4]
        )
        if end == "abort":
            engine.abort(id)
        elif end == "length":
            engine.update(id, max_tokens=2)
        else:
            engine.die("a defect")
        assert result.over and [delta.left for delta in result.deltas if delta.finish] == [1, 0]
        finish = {"abort": Finish.ABORTED, "length": Finish.LENGTH, "death": Finish.FAILED}[end]
        assert {choice: one.finish for choice, one in result.choices.items()} == {0: finish, 1: finish}
        assert not engine.scheduler.requests and engine.outputs.idle


@pytest.mark.parametrize("best_of", [None, 3])
def test_every_reply_ends_when_the_engine_dies(best_of: int | None) -> None:
    engine, _, result = running(SamplingParams(max_tokens=20, n=2, best_of=best_of))
    engine.die("a defect")
    assert result.over and [delta.left for delta in result.deltas if delta.finish] == [1, 0]
    assert [(one.finish, one.error) for one in result.choices.values()] == [(Finish.FAILED, "a defect")] * 2


def test_a_change_applies_to_all_replies() -> None:
    engine, id, result = running(SamplingParams(max_tokens=20, n=3))
    engine.update(id, max_tokens=6)
    drain_ledger(engine)
    assert [len(tokens) for tokens in result.replies] == [6, 6, 6]


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_a_new_seed_and_stops_apply_to_replies_that_have_not_begun(depth: int, steps: int) -> None:
    """At depth 1 the first reply may have a token in flight while the others have none."""
    prompt, result = [1, 2, 3], Outputs()
    engine = ledger_engine(depth=depth)
    id = engine.submit(prompt, SamplingParams(max_tokens=60, n=3, seed=4), result)
    for _ in range(steps):
        engine.step()
    begun = {choice: row.known - len(prompt) for choice, row in enumerate(engine.outputs.rows(id))}
    engine.update(id, seed=9, stop_ids=STOPS)
    drain_ledger(engine)
    for choice in range(3):
        given = alone(prompt, begun.get(choice, 0), seed_of(4, choice))
        rest = alone([*prompt, *given], 60 - len(given), seed_of(9, choice))
        end = next((at for at, token in enumerate(rest, 1) if token in STOPS), len(rest))
        assert result.choices[choice].tokens == given + rest[:end]


@pytest.mark.parametrize("steps", [0, 1])
def test_a_grammar_set_with_the_first_token_in_flight_applies_from_the_next(llama: Path, steps: int) -> None:
    engine, result = engine_on(llama, depth=1), Outputs()
    id = engine.submit(PROMPT, replace(SAMPLED, n=3), result)
    for _ in range(steps):
        engine.step()
    engine.update(id, grammar=Grammar("regex", "[xyz]{3}q"))
    drain(engine)
    begun = [steps, 0, 0]
    for choice, one in result.choices.items():
        assert len(one.tokens) == begun[choice] + 4
        guided = engine.tokenizer.decode(one.tokens[begun[choice] :])
        assert re.fullmatch("[xyz]{3}q", guided), guided


def test_logprobs_can_be_requested_with_best_of(llama: Path) -> None:
    engine, result = engine_on(llama), Outputs()
    id = engine.submit(PROMPT, replace(SAMPLED, n=2, best_of=3), result)
    engine.update(id, logprobs=2)
    branch = Outputs()
    engine.step()
    engine.update(id, temperature=0.7)
    engine.fork(id, branch)
    drain(engine)
    assert [len(one.logprobs) for one in result.choices.values()] == [16, 16]
    assert all(len(each.top) == 2 for each in (*result.first.logprobs, *branch.first.logprobs))


def test_logprobs_for_ranking_only_are_not_returned(llama: Path) -> None:
    engine, result, branch = engine_on(llama), Outputs(), Outputs()
    id = engine.submit(PROMPT, replace(SAMPLED, n=2, best_of=3), result)
    engine.step()
    engine.update(id, temperature=0.7)
    engine.fork(id, branch)
    drain(engine)
    assert not any(one.logprobs for one in (*result.choices.values(), branch.first))


def test_a_single_reply_of_several_cannot_be_changed() -> None:
    engine, id, result = running(SamplingParams(max_tokens=20, n=3))
    other = next(row.id for row in engine.outputs.rows(id) if row.id != id)
    with pytest.raises(BadInput, match=f"request {other} is one of several that answer request {id}"):
        engine.update(other, max_tokens=5)
    engine.abort(other)
    drain_ledger(engine)
    ends = sorted(str(one.finish) for one in result.choices.values())
    assert ends == sorted(map(str, (Finish.ABORTED, Finish.LENGTH, Finish.LENGTH)))


@pytest.mark.parametrize(
    ("field", "changes"), [("n", {"n": 4}), ("best_of", {"best_of": 3}), ("beams", {"beams": 4})]
)
def test_fields_that_cannot_change_are_refused_by_name(field: str, changes: dict[str, int]) -> None:
    engine, id, _ = running(SamplingParams(max_tokens=20, n=3))
    with pytest.raises(BadParams) as caught:
        engine.update(id, **changes)
    assert caught.value.field == field


def test_a_fork_of_one_reply_is_a_single_reply() -> None:
    engine, id, _ = running(SamplingParams(max_tokens=9, n=3, seed=4))
    given = list(engine.scheduler.requests[id].tokens)
    branch = Output()
    engine.fork(id, branch)
    drain_ledger(engine)
    assert branch.tokens == alone(given, 9 + 3 - len(given), 4)


# Replies that continue the tokens of another one


def test_a_continued_reply_shares_the_blocks_before_it() -> None:
    engine, first, other = ledger_engine(), Outputs(), Outputs()
    prompt = list(range(20))
    engine.submit(prompt, SamplingParams(max_tokens=40, seed=1), first)
    drain_ledger(engine)
    given, cached = [*first.first.tokens[:30], 5], list[int]()
    engine.bus.subscribe(lambda event: cached.append(event.cached) if isinstance(event, Admitted) else None)
    id = engine.submit(prompt, SamplingParams(max_tokens=40, seed=2), other, reply_prefix=given)
    engine.step()
    assert cached == [(20 + 30) // 16 * 16]
    assert engine.scheduler.requests[id].cached_tokens == 20  # of the prompt
    drain_ledger(engine)
    assert other.first.tokens == alone([*prompt, *given], 9, 2)


def test_a_continued_copy_of_a_running_reply_shares_its_blocks() -> None:
    engine, first, other = ledger_engine(), Outputs(), Outputs()
    id = engine.submit(list(range(20)), SamplingParams(max_tokens=60, seed=1), first)
    for _ in range(40):
        engine.step()
    given = first.first.tokens[:29]
    branch = engine.submit(list(range(20)), SamplingParams(max_tokens=60, seed=1), other, reply_prefix=given)
    engine.step()
    running, shared = (engine.scheduler.requests[each].blocks for each in (id, branch))
    assert running[:3] == shared[:3] and running[3] != shared[3]
    drain_ledger(engine)
    assert given + other.first.tokens == first.first.tokens


def test_a_stop_string_that_begins_in_the_given_tokens_ends_a_reply(llama: Path) -> None:
    engine, letters = engine_on(llama), replace(SAMPLED, logit_bias={A: 22.0, B: 22.0})
    for stop, floor in (("abb", 0), ("ba", 0), ("bb", 9), ("zz", 0)):
        stopping = replace(letters, stop=(stop,), min_tokens=floor)
        whole = one_alone(llama, PROMPT, stopping)
        for at in range(1, len(whole.tokens)):
            rest = Output()
            engine.submit(PROMPT, stopping, rest, reply_prefix=whole.tokens[:at])
            drain(engine)
            assert (rest.tokens, rest.finish) == (whole.tokens[at:], whole.finish)
            assert whole.text.endswith(rest.text)


@pytest.mark.parametrize(
    "kind", one_of(3, [{}, {"n": 4}, {"n": 2, "best_of": 4}, {"n": 2, "beams": 4}]), ids=str
)
def test_the_last_delta_names_the_stop_string(llama: Path, kind: dict[str, int]) -> None:
    stops, result, engine = ("abb", "ba"), Outputs(), engine_on(llama)
    params = replace(SAMPLED, logit_bias={A: 22.0, B: 22.0}, stop=stops, **kind)
    engine.submit(PROMPT, params, result)
    drain(engine)
    ends = [delta for delta in result.deltas if delta.finish]
    assert any(delta.stop for delta in ends)
    assert all((delta.stop in stops) == (delta.finish is Finish.STOP) for delta in ends)
    assert not any(delta.stop for delta in result.deltas if not delta.finish)


@pytest.mark.parametrize("continues", [True, False])
def test_a_continued_reply_has_the_text_after_the_given_tokens(llama: Path, continues: bool) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True, presence_penalty=0.5)
    engine, whole = engine_on(llama), Output()
    engine.submit(PROMPT, params, whole, continues=continues)
    drain(engine)
    for at in (1, 7, 19):
        rest = Output()
        engine.submit(PROMPT, params, rest, continues=continues, reply_prefix=whole.tokens[:at])
        drain(engine)
        assert whole.tokens[:at] + rest.tokens == whole.tokens
        assert whole.text.endswith(rest.text)
        assert len(rest.text) < len(whole.text)
