"""What two ranks or two stages gain or cost on a CPU, in decode steps and in sums: `--only NAME ...`."""

import json
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch

from benchmarks.engine.techniques import pocket
from engine.distributed.collective import SharedMemoryCollective
from engine.distributed.stages import PipelineLink
from engine.distributed.team import Team
from engine.serving.engine import Engine
from minichat.bench.harness import Bench, note_all, rounds
from minichat.bench.traffic import abort_all, ask, drain, prompts

STEPS = 12  # in a sample
WIDE = {  # 110 million parameters, so that products take most of a step
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 4096,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "max_position_embeddings": 2048,
    "dtype": "float32",
}
CONTENDERS = {  # threads of each process, ranks, and stages
    "one rank, one thread": (1, 1, 1),
    "one rank, two threads": (2, 1, 1),
    "two ranks, one thread each": (1, 2, 1),
    "two stages, one thread each": (1, 1, 2),
}


def steps(bench: Bench) -> None:
    """A decode step of a small model and of one whose products take most of a step."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(WIDE))

        def wide(**config: Any) -> Engine:
            return pocket(**{"blocks": 256} | config, model=folder, dummy_weights=True)

        for name, start, rows in (("pocket", pocket, 8), ("110M", wide, 8)):
            engines = {
                each: start(threads=threads, tp=tp, pp=pp, depth=int(pp > 1))
                for each, (threads, tp, pp) in CONTENDERS.items()
            }
            contenders: dict[str, Callable[[], float]] = {
                each: partial(_decode, engine, rows, CONTENDERS[each][0], CONTENDERS[each][2])
                for each, engine in engines.items()
            }
            note_all(bench, f"decode step, {name}, {rows} rows", rounds(bench, contenders))
            for each, engine in engines.items():
                shot = engine.snapshot()
                if bubbles := [each * 100 for each in shot.bubbles]:
                    bench.note(f"bubble, {name}, {rows} rows, {each}", bubbles, "%")
                elif shares := [rank.joining * 100 for rank in shot.ranks]:
                    bench.note(f"of a step in collectives, {name}, {rows} rows, {each}", shares, "%")
                engine.ranks.close()


def work(bench: Bench) -> None:
    """What each rank holds and exchanges. These figures are counted, and the same on any machine."""
    held = {}
    for ranks in (1, 2):
        engine = pocket(threads=1, tp=ranks)
        held[ranks] = engine.runner.memory()
        if ranks > 1:
            collective = cast(SharedMemoryCollective, cast(Team, engine.ranks).sums)
            sizes = list[int]()
            plain = collective._exchanges

            def counted(flat: torch.Tensor, plain: Any = plain, sizes: list[int] = sizes) -> Any:
                sizes.append(flat.nbytes)
                return plain(flat)

            _begin(engine, 8)
            collective._exchanges = counted  # type: ignore[method-assign]
            engine.step()
            bench.note("exchanges in a decode step", len(sizes), "exchanges")
            bench.note("bytes that a rank writes in a decode step of 8 rows", sum(sizes), "bytes")
            abort_all(engine)
            drain(engine)
        engine.ranks.close()
    for kind in ("weights", "cache"):
        bench.note(f"{kind} of a rank / of one process", held[2][kind] / held[1][kind], "x")
    _stages_work(bench, held[1])


def _stages_work(bench: Bench, whole: dict[str, int]) -> None:
    """The same of two stages, of which the engine's own process is the last."""
    engine = pocket(threads=1, pp=2, depth=1)
    link, sizes = cast(PipelineLink, cast(Team, engine.ranks).link), list[int]()
    receive = link.receive

    def counted(tokens: int) -> torch.Tensor:
        stream = receive(tokens)
        sizes.append(stream.nbytes)
        return stream

    _begin(engine, 8)
    for _ in range(4):  # until no prompt is in flight
        engine.step()
    link.receive = counted  # type: ignore[method-assign]
    for _ in range(4):  # two steps of half of the rows are one token of each
        engine.step()
    bench.note("steps of two stages for a token of each of 8 rows", len(sizes) / 2, "steps")
    bench.note("bytes that the first stage sends for them", sum(sizes) / 2, "bytes")
    held = engine.runner.memory()
    abort_all(engine)
    drain(engine)
    engine.ranks.close()
    for kind in ("weights", "cache"):
        bench.note(f"{kind} of the last stage / of one process", held[kind] / whole[kind], "x")


def sums(bench: Bench) -> None:
    """One sum of a hidden state of 1,024 float32 numbers between two processes."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(WIDE | {"num_hidden_layers": 2}))
        engine = pocket(blocks=64, threads=1, tp=2, model=folder, dummy_weights=True)
        collective = cast(SharedMemoryCollective, cast(Team, engine.ranks).sums)
        _begin(engine, 1)
        before = collective.exchanged.seconds
        for _ in range(STEPS):
            engine.step()
        each = (collective.exchanged.seconds - before) / (STEPS * 6)  # the embedding, four terms, the logits
        bench.note("a sum or gather, with the wait for the other rank", each, "s")
        drain(engine)
        engine.ranks.close()


def _decode(engine: Engine, rows: int, threads: int, stages: int) -> float:
    """Return the seconds of a decode step; in a pipeline, of one for each micro-batch."""
    torch.set_num_threads(threads)  # engines of one process share the number
    _begin(engine, rows)
    began = time.perf_counter()
    for _ in range(STEPS * stages):
        engine.step()
    seconds = (time.perf_counter() - began) / STEPS
    abort_all(engine)
    drain(engine)
    return seconds


def _begin(engine: Engine, rows: int) -> None:
    """Start as many requests, up to their first tokens."""
    ids = prompts()
    for _ in range(rows):
        ask(engine, ids, 64, STEPS + 32)
    drain(engine, lambda: sum(each.known > 64 for each in engine.scheduler.running) == rows)


PARTS = {each.__name__: each for each in (steps, work, sums)}


def run(bench: Bench, *, only: tuple[str, ...] = tuple(PARTS)) -> None:
    for name in only:
        PARTS[name](bench)
