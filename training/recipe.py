"""All sizes and rates of a training run, in two recipes: full (one GPU) and tiny (seconds on a CPU)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """A Llama decoder with tied embeddings, in the terms of its config.json."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    exits: tuple[int, ...] = ()
    context: int = 2048
    rope_theta: float = 10_000.0
    eps: float = 1e-5


@dataclass(frozen=True, slots=True)
class Schedule:
    """A training loop: its steps, batch size, learning rates and regularization."""

    steps: int
    rows: int
    matrix_rate: float
    vector_rate: float
    warmup: int
    decay_from: float = 0.45
    layer_dropout: float = 0.1
    exit_weight: float = 0.3
    rounded_every: int = 0  # every n-th step uses weights in four bits; 0: none
    rounded_from: float = 2 / 3  # from this share of the steps on, every step does


@dataclass(frozen=True, slots=True)
class HeadRecipe:
    """Medusa heads for exported weights."""

    rows: int  # of text, from whose chats the prompts are taken
    longest_prompt: int
    longest_reply: int
    schedule: Schedule  # its rows are single hidden states
    heads: int = 4
    layers: int = 1
    seconds: float = 60.0  # of training, without the replies
    seed: int = 20_26


@dataclass(frozen=True, slots=True)
class Recipe:
    """A whole run, from generating text to the exported folder."""

    vocab: int
    tokenizer_chats: int
    rows: int
    held_rows: int
    cases: int
    main: Shape
    draft: Shape
    main_schedule: Schedule
    draft_schedule: Schedule
    workers: int
    longest_reply: int
    seed: int = 20_26
    most_bytes: int = 13_980_000  # of the exported folder: 14 MB, minus room for the card


FULL = Recipe(
    vocab=3072,
    tokenizer_chats=40_000,
    rows=110_000,
    held_rows=24,
    cases=600,
    main=Shape(layers=8, hidden=256, heads=4, kv_heads=2, head_dim=64, inner=512, exits=(2, 4, 6)),
    draft=Shape(layers=4, hidden=128, heads=2, kv_heads=1, head_dim=64, inner=256),
    main_schedule=Schedule(
        steps=5800, rows=64, matrix_rate=0.02, vector_rate=4e-3, warmup=60, rounded_every=2
    ),
    draft_schedule=Schedule(
        steps=1500, rows=64, matrix_rate=0.02, vector_rate=4e-3, warmup=60, layer_dropout=0.0
    ),
    workers=16,
    longest_reply=256,
)

HEADS = HeadRecipe(
    rows=8000,
    longest_prompt=900,
    longest_reply=200,
    schedule=Schedule(steps=100_000, rows=4096, matrix_rate=0.02, vector_rate=2e-3, warmup=100),
)

# Larger models with the same draft and tokenizer, by the size of the exported folder in MB.
LARGER = {
    20: Shape(layers=8, hidden=384, heads=6, kv_heads=2, head_dim=64, inner=512, exits=(2, 4, 6)),
    30: Shape(layers=10, hidden=384, heads=6, kv_heads=2, head_dim=64, inner=768, exits=(2, 4, 6)),
}

TINY = Recipe(
    vocab=640,
    tokenizer_chats=40,
    rows=6,
    held_rows=1,
    cases=3,
    main=Shape(layers=2, hidden=32, heads=2, kv_heads=1, head_dim=16, inner=64, exits=(1,), context=512),
    draft=Shape(layers=1, hidden=16, heads=1, kv_heads=1, head_dim=16, inner=32, context=512),
    main_schedule=Schedule(steps=3, rows=1, matrix_rate=0.02, vector_rate=4e-3, warmup=1, rounded_every=2),
    draft_schedule=Schedule(steps=2, rows=1, matrix_rate=0.02, vector_rate=4e-3, warmup=1, layer_dropout=0.0),
    workers=1,
    longest_reply=8,
)

TINY_HEADS = HeadRecipe(
    rows=3,
    longest_prompt=256,
    longest_reply=8,
    schedule=Schedule(steps=4, rows=8, matrix_rate=0.02, vector_rate=2e-3, warmup=1),
)
