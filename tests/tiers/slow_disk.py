"""Replies over a disk that does not answer. Run by test_slow_disk.py, which holds its reads and writes.

Arguments: the folder of the tier, and the descriptor of the link to the other process.
"""

import socket
import sys
from contextlib import ExitStack
from pathlib import Path

from engine.api.events import Event, Transferred
from engine.api.params import SamplingParams
from engine.kv.tiers import disk as disk_module
from engine.scheduling.recovery import PATIENCE
from engine.serving.engine import Engine
from tests.engine.ledger import Clock, alone
from tests.outputs import Output
from tests.tiers.disk_engine import disk_engine
from tests.tiers.held_disk import Held

LONG = [*range(100, 180)]  # a prompt of five blocks
WAITING = 8  # blocks that may wait to be written


def submit(engine: Engine, prompt: list[int], chat: str) -> Output:
    output = Output()
    engine.submit(prompt, SamplingParams(max_tokens=4, seed=0), output, chat=chat)
    return output


def until(engine: Engine, output: Output) -> list[int]:
    """Step until a reply has ended, however many transfers are under way; a step takes a millisecond."""
    while output.last is None:
        engine.step()
        engine.scheduler.check()
        engine.clock.now += 0.001
    return output.tokens


def main(disk: Held, folder: Path) -> None:
    room = {"waiting": WAITING * 4096, "blocks": 60, "slots": 99}
    with ExitStack() as held, disk_engine(folder, preemption="auto", clock=Clock(), **room) as (engine, tier):
        seen: list[Event] = []
        engine.bus.subscribe(seen.append)

        def make_loading_pay() -> None:
            for _ in range(5):  # all samples that count
                engine.scheduler.costs.observe_step(64, 0.5)

        def reply(prompt: list[int], chat: str) -> None:
            assert until(engine, submit(engine, prompt, chat)) == alone(prompt, 4)

        def settle() -> None:
            while engine.busy:
                engine.step()
            tier.flush()

        make_loading_pay()
        reply(LONG, "a")
        settle()
        engine.scheduler.pool.forget_all()
        with disk.held():
            waits = submit(engine, [*LONG, 1], "a")
            reply([7] * 40, "b")
            assert engine.scheduler.transfers.loading and waits.last is None
            print("others go on")
            assert until(engine, waits) == alone([*LONG, 1], 4)
            (late,) = (each for each in seen if isinstance(each, Transferred) and each.error)
            assert PATIENCE < late.seconds < PATIENCE + 1
            print(f"{late.blocks} blocks from {late.tier}: {late.error}")
            for each in range(4):
                make_loading_pay()  # computing takes a millisecond by this clock, and storing real time
                reply([each, *LONG], "c")
            print(tier.problem)
        settle()
        print(tier.problem or "stores again")
        engine.scheduler.pool.forget_all()
        tier.cost.load.clear()
        make_loading_pay()
        seen.clear()
        last = submit(engine, [*LONG, 1, 2], "a")
        settle()  # the clock does not run, so that a busy machine cannot make it late
        assert last.tokens == alone([*LONG, 1, 2], 4)
        loads = [each for each in seen if isinstance(each, Transferred) and each.load]
        assert [(each.blocks, each.error) for each in loads] == [(5, "")]
        held.enter_context(disk.held())
        reply([8] * 40, "d")
        engine.step()
        disk_module.LAST = 0.1


if __name__ == "__main__":
    main(Held(socket.socket(fileno=int(sys.argv[2]))), Path(sys.argv[1]))
    print("ended")
