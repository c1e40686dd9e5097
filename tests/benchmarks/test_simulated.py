"""Replicas that compute nothing, behind the real router."""

from random import Random

from benchmarks.server.fleet import RoundRobin
from benchmarks.server.simulated import BLOCK, ROW, STEP, replay
from engine.fleet.router import Router

LOAD = {"rate": 100.0, "blocks": 400, "speed": 10_000.0, "tokens": 4}


def chats(count: int, turns: int) -> list[list[int]]:
    """Prompts of chats that grow by turns, each round in another order."""
    draw, texts, prompts = Random(3), [list[int]() for _ in range(count)], list[list[int]]()
    for _ in range(turns):
        for text in draw.sample(texts, count):
            text += (draw.randrange(1000) for _ in range(40))
            prompts.append([*text])
    return prompts


def test_one_request_takes_the_time_of_its_steps() -> None:
    prompt = [*range(2 * BLOCK + 1)]
    alone = replay([prompt], Router(), replicas=1, **LOAD)
    assert alone.firsts == [STEP + len(prompt) / LOAD["speed"]]
    assert alone.found == 0
    again = replay([prompt, prompt], Router(), replicas=1, **LOAD | {"rate": 10.0})
    assert again.found == 2 * BLOCK / (2 * len(prompt))
    assert abs(again.firsts[1] - (STEP + 1 / LOAD["speed"])) < 1e-9
    both = replay([prompt, [*reversed(prompt)]], Router(), replicas=1, **LOAD | {"rate": 1e9})
    assert both.firsts[1] > both.firsts[0] + ROW


def test_chats_stay_where_their_blocks_are() -> None:
    prompts = chats(20, 6)
    routed, in_turn = (replay(prompts, router, replicas=4, **LOAD) for router in (Router(), RoundRobin(4)))
    one = replay(prompts, Router(), replicas=1, **LOAD | {"blocks": 4 * LOAD["blocks"]})
    assert routed.found > 0.9 * one.found
    assert in_turn.found < 0.7 * one.found
    assert sum(routed.firsts) < sum(in_turn.firsts)
