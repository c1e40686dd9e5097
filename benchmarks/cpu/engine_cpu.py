"""Decoding on a CPU, compared with transformers' generate on the same random Llama: 1 request, and 8 at once.

All contenders get the same prompts, return the same number of tokens, and alternate. Decoding alone is the
difference between a long run and a short one, in processor time. `parts`: where the time of a step with one
request goes, by torch's profiler. `--quantization`: of ours; transformers has plain weights.
`--parameters 335 --dtype bfloat16` is the shape that docs/cpu-products.md compares with llama.cpp.
"""

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from engine.api.config import EngineConfig
from engine.api.params import SamplingParams
from engine.serving.engine import Engine
from engine.start import start
from minichat.bench.harness import FASTER, Bench, Call, timed

# Millions of parameters: hidden size, MLP, layers, heads, key-value heads.
SHAPES = {100: (768, 2048, 12, 12, 4), 335: (1024, 3584, 20, 16, 4)}
PROMPT = 32
SHORT = 4  # tokens of the short run, whose time is subtracted from a longer one's
PARTS, LARGEST = ("speed", "parts"), 6  # operations of a step that are listed by name


def run(
    bench: Bench,
    *,
    parameters: int = 100,
    dtype: str = "float32",
    quantization: str = "none",
    tokens: int = 64,
    threads: int = 1,
    only: tuple[str, ...] = ("speed",),
) -> None:
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as folder:
        reference = random_llama(Path(folder), SHAPES[parameters], dtype)
        engine = start(EngineConfig(model=folder, quantization=quantization, threads=threads, blocks=512))
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(3, 32000, (8, PROMPT), generator=generator)
    if "speed" in only:
        speed(bench, reference, engine, prompts, tokens)
    if "parts" in only:
        parts(bench, engine, prompts[0].tolist(), tokens)


def speed(bench: Bench, reference: Any, engine: Engine, prompts: torch.Tensor, tokens: int) -> None:
    bench.compare(
        {
            "transformers, 1 request": generates(reference, prompts[:1], tokens),
            "minichat, 1 request": batches(engine, [prompts[:1].tolist()], tokens),
        },
        unit="tok/s",
    )
    bench.compare(
        {
            "transformers, batch of 8": generates(reference, prompts, tokens),
            "minichat, 8 at once": batches(engine, [prompts.tolist()], tokens),
        },
        unit="tok/s",
    )
    for rows, label in ((1, "1 request"), (8, "8 at once")):
        theirs = partial(generates, reference, prompts[:rows])
        ours = partial(batches, engine, [prompts[:rows].tolist()])
        decoding(bench, label, theirs, ours, tokens)
    bench.compare(
        {
            "minichat, 8 one after another": batches(engine, [[each] for each in prompts.tolist()], tokens),
            "minichat, 8 together": batches(engine, [prompts.tolist()], tokens),
        },
        unit="tok/s",
    )


def decoding(
    bench: Bench, label: str, theirs: Callable[[int], Call], ours: Callable[[int], Call], tokens: int
) -> None:
    """Processor seconds of one step without its prompt, and our speed relative to theirs."""
    lengths = (SHORT, tokens)
    calls = {(who, count): make(count) for who, make in enumerate((theirs, ours)) for count in lengths}
    rounds = []
    for number in range(bench.warmup + bench.repeats):
        order = list(calls) if number % 2 == 0 else list(calls)[::-1]
        spent = {key: timed(label, calls[key]).cpu for key in order}
        rounds.append([(spent[who, tokens] - spent[who, SHORT]) / (tokens - SHORT) for who in (0, 1)])
    rounds = rounds[bench.warmup :]
    for name, samples in zip(("transformers", "minichat"), zip(*rounds, strict=True), strict=True):
        bench.note(f"{name}, {label}, a decode step's processor time", samples, "s")
    ratios = [theirs / ours for theirs, ours in rounds]
    bench.note(f"minichat / transformers, {label}, decoding alone", ratios, FASTER)


def parts(bench: Bench, engine: Engine, prompt: list[int], tokens: int) -> None:
    """Milliseconds of a step by operation, and of all other operations together."""
    params = SamplingParams(temperature=0.6, max_tokens=SHORT + tokens, ignore_eos=True)
    engine.submit(prompt, params, lambda delta: None)
    for _ in range(SHORT):
        engine.step()
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as trace:
        while engine.busy:
            engine.step()
    spent = {each.key: each.self_cpu_time_total / tokens / 1e3 for each in trace.key_averages()}
    largest = sorted(spent, key=lambda name: -spent[name])[:LARGEST]
    for name in largest:
        bench.note(f"a step, {name}", spent.pop(name), "ms")
    bench.note("a step, other operations", sum(spent.values()), "ms")


def random_llama(folder: Path, shape: tuple[int, ...], dtype: str) -> Any:
    """A random Llama of this shape in transformers, also saved to the folder, with a tokenizer of numbers."""
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM

    hidden, mlp, layers, heads, kv_heads = shape
    config = LlamaConfig(
        hidden_size=hidden,
        intermediate_size=mlp,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        vocab_size=32000,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).to(getattr(torch, dtype)).eval()
    model.save_pretrained(folder)
    words = {str(n): n for n in range(32000)}
    Tokenizer(models.WordLevel(words, unk_token="0")).save(str(folder / "tokenizer.json"))
    return model


def generates(model: Any, prompts: torch.Tensor, tokens: int) -> Callable[[], float]:
    def call() -> float:
        with torch.inference_mode():
            out = model.generate(
                prompts,
                attention_mask=torch.ones_like(prompts),
                max_new_tokens=tokens,
                min_new_tokens=tokens,
                do_sample=False,
                pad_token_id=0,
            )
        return float(out.numel() - prompts.numel())

    return call


def batches(engine: Engine, groups: list[list[list[int]]], tokens: int) -> Callable[[], float]:
    """Run the groups one after another, each as a batch; prompts are never in the prefix cache."""
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)

    def call() -> float:
        engine.scheduler.pool.forget_all()
        done = 0
        for group in groups:
            for prompt in group:
                engine.submit(prompt, params, lambda delta: None)
            while engine.busy:
                engine.step()
            done += len(group) * tokens
        return float(done)

    return call
