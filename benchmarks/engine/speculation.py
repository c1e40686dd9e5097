"""Speculative decoding with the built-in model: gains, the cost without gains, and the break-even line.

For the table every step drafts, even at a loss; in the other figures the engine decides.
Both sides of a ratio alternate and return the same tokens; a ratio is of processor time, on a GPU of time.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

import engine
from engine.api.config import EngineConfig
from engine.api.events import Delta
from engine.api.params import SamplingParams
from engine.execution.cuda import choose
from engine.serving.engine import Engine
from engine.serving.warm_up import WarmUp
from engine.speculation.gain import Prices
from engine.start import start
from engine.text.chat import ChatFormat
from minichat.bench.harness import Bench

POCKET = Path(engine.__file__).parent / "pocket"
QUESTIONS = (
    "Tell me a story about a fox and a lantern.",
    "Write a story about a robot who is afraid of the sea.",
    "What is the prefix cache?",
    "Give me a JSON object for a boy named Tom, 9 years old, who likes chess.",
)
HEADINGS = ("draft, K", "accepted", "must accept", "tokens a step", "break-even", "speed", "")
BLOCKS = 2048  # on a GPU
NEAR = 0.02  # of a plain step's speed; a smaller difference counts as none

Clock = Callable[[], float]


class Free(Prices):
    """Reports zero cost, so drafting never stops."""

    def wants_plain(self, rows: int) -> bool:
        return False

    def of(self, kind: str, rows: int) -> float:
        return -1e-3  # even drafts that are never accepted seem to gain


@dataclass(frozen=True, slots=True)
class RunStats:
    """The results of a run."""

    tokens: int
    steps: int
    drafted: int
    accepted: int
    verifications: int


def gain(bench: Bench, tokens: int, draft: str | None) -> None:
    """The engine decides when to draft: on repeated text, on random text, on replies."""
    running = started(draft=draft)
    greedy = SamplingParams(temperature=0, max_tokens=tokens)
    wild = SamplingParams(temperature=8, max_tokens=4 * tokens, ignore_eos=True, seed=1)
    prompts = prompts_of(running, [[ask] for ask in map(user, QUESTIONS)])
    again = prompts_of(running, [repeated(running, ask, greedy) for ask in map(user, QUESTIONS)])
    for kind in ("ngram", "suffix"):
        against(bench, f"{kind}, a question asked again", running, again, greedy, kind)
    short = wild.changed(max_tokens=tokens)
    for kind in ("ngram", "suffix", "draft", "exit"):
        against(bench, f"{kind}, random text", running, prompts[:1], wild, kind)
        against(bench, f"{kind}, short random replies", running, prompts, short, kind)
    replying(bench, running, prompts, tokens)


def own(bench: Bench, tokens: int, draft: str | None) -> None:
    """Only the replies of `gain`, with `draft` and `exit`."""
    running = started(draft=draft)
    replying(bench, running, prompts_of(running, [[ask] for ask in map(user, QUESTIONS)]), tokens)


def replying(bench: Bench, running: Engine, prompts: list[list[int]], tokens: int) -> None:
    sampled = SamplingParams(temperature=0.7, max_tokens=tokens, seed=1)
    for kind in ("draft", "exit"):
        against(bench, f"{kind}, replies", running, prompts, sampled, kind)
        against(bench, f"{kind}, greedy replies", running, prompts, sampled.changed(temperature=0), kind)


def break_even(bench: Bench, tokens: int, draft: str | None) -> None:
    """Draft in every step: the gain of the drafts, and the acceptance at which they break even.

    mini-vllm reports 0.46x to 0.78x for early exits, mini-infer an acceptance of 55.85 %. The acceptance
    required here shows whether that would gain anything with our costs.
    """
    running = started(draft=draft)
    greedy = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    prompts = prompts_of(running, [[ask] for ask in map(user, QUESTIONS)])
    lines = list[tuple[str, ...]]()
    for kind, layer in (("draft", None), ("exit", 2), ("exit", 4), ("exit", 6)):
        lines += table(bench, kind, prompts, greedy, started(layer, draft), layer)
    show(lines)


def gpu(bench: Bench, tokens: int, draft: str | None) -> None:
    """On a GPU: the engine decides when to draft, also with a draft model without graphs of its own.

    Then it drafts in every step.
    """
    running = started(draft=draft, device="cuda")
    greedy = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    prompts = prompts_of(running, [[ask] for ask in map(user, QUESTIONS)])
    again = prompts_of(running, [repeated(running, ask, greedy) for ask in map(user, QUESTIONS)])
    clock = time.perf_counter
    for kind in ("ngram", "draft"):
        against(bench, f"{kind}, greedy replies on a GPU", running, prompts, greedy, kind, clock)
    against(bench, "ngram, a question asked again on a GPU", running, again, greedy, "ngram", clock)
    with patch.object(choose, "REPLAYS_DRAFTS", False):
        launched = started(draft=draft, device="cuda")
    against(bench, "draft, greedy replies, launched one by one", launched, prompts, greedy, "draft", clock)
    show(
        [
            line
            for kind in ("ngram", "draft")
            for line in table(bench, kind, prompts, greedy, running, None, clock)
        ]
    )


def show(lines: Sequence[tuple[str, ...]]) -> None:
    shown = Table(*HEADINGS, box=SIMPLE)
    for column in shown.columns[1:6]:
        column.justify = "right"
    for line in lines:
        shown.add_row(*line)
    Console().print(shown)


def started(exit_layer: int | None = None, draft: str | None = None, device: str = "cpu") -> Engine:
    plain = EngineConfig(model="pocket", device=device, seed=0, threads=1, exit_layer=exit_layer, draft=draft)
    if device == "cpu":
        return start(plain)
    engine = start(
        replace(plain, blocks=BLOCKS)
    )  # several are compared, each of which would take all of a GPU
    warm_up = WarmUp(engine, engine.runner.graph_sizes)
    while not warm_up.over:
        warm_up.step()
    return engine


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def prompts_of(running: Engine, chats: Sequence[list[dict[str, str]]]) -> list[list[int]]:
    with ChatFormat(running.tokenizer) as chat:
        return [chat.prompt(messages) for messages in chats]


def repeated(running: Engine, ask: dict[str, str], params: SamplingParams) -> list[dict[str, str]]:
    """A chat whose second reply repeats the first one."""
    reply: list[int] = []
    running.submit(prompts_of(running, [[ask]])[0], params, partial(collect, reply))
    while running.busy:
        running.step()
    return [ask, {"role": "assistant", "content": running.tokenizer.decode(reply)}, ask]


def against(
    bench: Bench,
    label: str,
    running: Engine,
    prompts: list[list[int]],
    params: SamplingParams,
    kind: str,
    clock: Clock = time.process_time,
) -> None:
    """The speedup over plain steps: the median of rounds, in each of which both run."""
    plain, drafting = (
        partial(replies, running, prompts, params.changed(speculate=each)) for each in ("", kind)
    )
    ratios, stats = rounds(bench, label, plain, drafting, clock)
    bench.note(f"{label}: speed", ratios, "x")
    bench.note(f"{label}: acceptance", 100 * stats.accepted / max(stats.drafted, 1), "%")
    bench.note(f"{label}: tokens a step", stats.tokens / stats.steps, "tok")


def table(
    bench: Bench,
    kind: str,
    prompts: list[list[int]],
    params: SamplingParams,
    running: Engine,
    layer: int | None,
    clock: Clock = time.process_time,
) -> list[tuple[str, ...]]:
    lines = list[tuple[str, ...]]()
    running.scheduler.speculator.prices = Free()
    for length in (2, 4):
        label = f"{kind} {layer}, K {length}" if layer else f"{kind}, K {length}"
        drafting = params.changed(speculate=kind, draft_tokens=length)
        ratios, stats = rounds(
            bench,
            label,
            partial(replies, running, prompts, params),
            partial(replies, running, prompts, drafting),
            clock,
        )
        made, accepted = stats.tokens / stats.steps, 100 * stats.accepted / max(stats.drafted, 1)
        bench.note(f"{label}: acceptance", accepted, "%")
        speed = bench.note(f"{label}: speed", ratios, "x").median
        # The cost of a drafting step in plain steps: to break even, it must return that many tokens.
        costs = [made / ratio for ratio in ratios]
        bench.note(f"{label}: tokens a step", made, "tok")
        line = bench.note(f"{label}: break-even, tokens a step", costs, "tok").median
        must = f"{100 * (line - 1) / length:.1f} %"
        shown = (f"{accepted:.1f} %", must, f"{made:.2f}", f"{line:.2f}", f"{speed:.2f}x")
        lines.append((label, *shown, verdict(speed)))
    return lines


def verdict(speed: float) -> str:
    if abs(speed - 1) < NEAR:
        return "even"
    return "wins" if speed > 1 else "loses"


def rounds(
    bench: Bench, label: str, plain: Callable[[], RunStats], drafting: Callable[[], RunStats], clock: Clock
) -> tuple[list[float], RunStats]:
    """The speed relative to plain steps per round, and the results of the last round."""
    ratios, stats = [], plain()
    for number in range(bench.warmup + bench.repeats):
        spent = {}
        for name, call in [("plain", plain), ("drafting", drafting)][:: 1 if number % 2 else -1]:
            began = clock()
            done = call()
            spent[name] = clock() - began
            stats = done if name == "drafting" else stats
        ratios.append(spent["plain"] / spent["drafting"])
    return ratios[bench.warmup :], stats


def replies(running: Engine, prompts: Sequence[Sequence[int]], params: SamplingParams) -> RunStats:
    """Run the prompts one after another, without reuse of cached prefixes or earlier replies."""
    speculator = running.scheduler.speculator
    before, tokens, steps = speculator.total(), 0, 0
    for prompt in prompts:
        running.scheduler.pool.forget_all()
        speculator.forget_replies()
        reply: list[int] = []
        running.submit(prompt, params, partial(collect, reply))
        while running.busy:
            running.step()
            steps += 1
        tokens += len(reply)
    after = speculator.total()
    return RunStats(
        tokens,
        steps,
        after.drafted - before.drafted,
        after.accepted - before.accepted,
        after.verifications - before.verifications,
    )


def collect(tokens: list[int], delta: Delta) -> None:
    tokens += delta.tokens


@torch.inference_mode()
def couplings(bench: Bench, tokens: int, _: str | None) -> None:
    """How often a first draft of the built-in one is accepted: with one random number, or by rejection."""
    from transformers import AutoModelForCausalLM

    prompts = prompts_of(started(), [[ask] for ask in map(user, QUESTIONS)])
    target, small = (
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        for folder in (POCKET, POCKET / "draft")
    )
    for temperature in (0.7, 1.0, 1.5):
        shared, rejection = [], []
        for prompt in prompts:
            ids = target.generate(
                torch.tensor([prompt]),
                max_new_tokens=tokens,
                do_sample=True,
                temperature=temperature,
                top_k=0,
            )
            p, q = (
                (model(ids).logits[0, len(prompt) - 1 :] / temperature).double().softmax(-1)
                for model in (target, small)
            )
            rejection += torch.minimum(p, q).sum(-1).tolist()
            high = torch.minimum(p.cumsum(-1), q.cumsum(-1))
            low = torch.maximum(p.cumsum(-1) - p, q.cumsum(-1) - q)
            shared += (high - low).clamp(min=0).sum(-1).tolist()
        for name, found in (("one number for both", shared), ("rejection sampling", rejection)):
            bench.note(
                f"draft stands at temperature {temperature}, {name}", 100 * sum(found) / len(found), "%"
            )


PARTS = {each.__name__: each for each in (gain, own, break_even, couplings, gpu)}
ON_CPU = tuple(name for name in PARTS if name != "gpu")


def run(bench: Bench, *, only: tuple[str, ...] = ON_CPU, tokens: int = 96, draft: str | None = None) -> None:
    """`draft`: a folder of another draft model, or of heads, in place of the built-in one."""
    for name in only:
        PARTS[name](bench, tokens, draft)
