"""`python -m training`: generate, train the tokenizer, the model and its draft, evaluate, export."""

import argparse
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from training import evaluate
from training.chat import START, render, token_id
from training.decode import How
from training.export import likeness_table, model_card, save_pocket, table
from training.heads.medusa import run_heads
from training.model import Decoder, grown
from training.recipe import FULL, HEADS, LARGER, TINY, TINY_HEADS, HeadRecipe, Recipe, Schedule, Shape
from training.rows import make_rows
from training.train import distilled_from, fit, with_exits
from training.vocabulary import train_tokenizer

SAMPLES = (
    "Hi!", "Who are you?", "What is a KV block?", "How do I open the monitor?", "What does top-p do?", "Tell me a story about a fox named Mia.",
    "Reverse this list: red, green, blue", "What is 17 + 25?", "Who was Napoleon?", "Turn this into JSON: Anna is 31 years old and lives in Oslo.",
)  # fmt: skip


def say(text: str) -> None:
    print(text, flush=True)


def _tokenizer(recipe: Recipe, work: Path, base: Path | None) -> Tokenizer:
    file = work / "tokenizer.json"
    if base:
        file.write_bytes((base / "tokenizer.json").read_bytes())
    elif not file.exists():
        train_tokenizer(recipe.vocab, recipe.tokenizer_chats, recipe.seed).save(str(file))
    return Tokenizer.from_file(str(file))


def _rows(recipe: Recipe, forbidden: frozenset[str], work: Path) -> np.ndarray:
    file = work / "rows.npy"
    if not file.exists():
        made = make_rows(
            recipe.rows,
            recipe.main.context + 1,
            work / "tokenizer.json",
            forbidden,
            recipe.seed,
            recipe.workers,
        )
        part = work / "rows.part.npy"
        np.save(part, made)
        part.replace(file)
    return np.load(file)


def _decoder(shape: Shape, vocab: int, seed: int, device: str, base: Path | None) -> Decoder:
    """A fresh decoder, or one that starts from exported weights."""
    torch.manual_seed(seed)
    model = Decoder(shape, vocab)
    if base:
        weights = {name: tensor.float() for name, tensor in load_file(base / "model.safetensors").items()}
        model.load_state_dict(grown(model, weights))
    return model.to(device)


def _samples(model: Decoder, tokenizer: Tokenizer, way: How, most: int) -> str:
    prompts = [render([("user", text)], ask=True) for text in SAMPLES]
    replies = evaluate.answer(model, tokenizer, prompts, way, most)
    return "\n".join(f"> {text}\n{reply}" for text, reply in zip(SAMPLES, replies, strict=True))


def run(
    recipe: Recipe,
    work: Path,
    out: Path,
    device: str,
    base: Path | None = None,
    figures: bool = True,
    limit: float | None = None,
) -> None:
    """Run all stages in order; results already stored in `work` are reused."""
    began = time.perf_counter()
    work.mkdir(parents=True, exist_ok=True)
    cases = evaluate.make_cases(recipe.cases, recipe.seed + 1)
    tokenizer = _tokenizer(recipe, work, base)
    vocab, start = tokenizer.get_vocab_size(), token_id(tokenizer, START)
    draft = _decoder(recipe.draft, vocab, recipe.seed, "cpu", base and base / "draft")  # may fail: first
    model = _decoder(recipe.main, vocab, recipe.seed, "cpu", base)
    rows = _rows(recipe, evaluate.test_questions(cases), work)
    say(
        f"text: {rows.size / 1e6:.1f} M tokens in {len(rows)} rows, vocabulary {vocab}, {time.perf_counter() - began:.0f} s"
    )
    data = torch.from_numpy(rows.astype(np.int32)).to(device)
    model, draft = model.to(device), draft.to(device)

    trained = time.perf_counter()
    objective = with_exits(model, recipe.main_schedule.exit_weight)
    fit(model, objective, data, start, recipe.main_schedule, work / "model.pt", recipe.seed, say, limit)
    taught = time.perf_counter()
    fit(
        draft,
        distilled_from(model, draft),
        data,
        start,
        recipe.draft_schedule,
        work / "draft.pt",
        recipe.seed + 1,
        say,
    )
    kind = "continued from exported weights; " if base else ""
    made = f"{kind}{rows.size / 1e6:.0f} M tokens of text; model {taught - trained:.0f} s, draft {time.perf_counter() - taught:.0f} s on {_device_name(device)}"
    say(made)

    computes = (
        torch.bfloat16 if device == "cuda" else torch.float32
    )  # a CPU is slow in bf16; the weights are rounded like the exported ones
    model, draft = (m.to(torch.bfloat16).to(computes).eval() for m in (model, draft))
    size = save_pocket(model, draft, tokenizer, out, recipe.most_bytes)
    say(f"{out}: {size / 1e6:.2f} MB, {time.perf_counter() - began:.0f} s")
    if figures:
        card = _figures(model, draft, tokenizer, cases, recipe, made)
        (out / "MODEL_CARD.md").write_text(card, encoding="utf-8")
    say(f"{time.perf_counter() - began:.0f} s in all")


def _figures(
    model: Decoder,
    draft: Decoder,
    tokenizer: Tokenizer,
    cases: list[evaluate.Case],
    recipe: Recipe,
    made: str,
) -> str:
    """Measure everything, print it with samples, and return the model card."""
    likes = evaluate.likeness(model, draft, tokenizer, cases, recipe.held_rows)
    say(likeness_table(likes, recipe.main.exits))
    scores = {}
    for name, way in evaluate.WAYS.items():
        asked = cases[:: {"greedy": 1, "top-p": 3, "beam 4": 10}[name]]  # goals are for greedy decoding
        scores[name] = evaluate.score(model, tokenizer, asked, way, recipe.longest_reply)
        say(f"\n## {name}\n{_samples(model, tokenizer, way, recipe.longest_reply)}")
    say(table(scores))
    for kind, found in scores["greedy"].items():
        for question, reply in found.wrong[:40]:
            say(f"wrong {kind}: {question!r} -> {reply!r}")
    return model_card(model, draft, scores, likes, made)


def measure(recipe: Recipe, folder: Path, device: str) -> None:
    """Count the right greedy answers of exported weights, one kind at a time, and print the wrong ones."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    model = _decoder(recipe.main, tokenizer.get_vocab_size(), recipe.seed, device, folder).eval()
    cases = evaluate.make_cases(recipe.cases, recipe.seed + 1)
    scores = {}
    for kind in dict.fromkeys(case.kind for case in cases):
        asked = [case for case in cases if case.kind == kind]
        scores |= evaluate.score(model, tokenizer, asked, How(), recipe.longest_reply)
        say(f"{kind}: {scores[kind].right} of {scores[kind].asked}")
        for question, reply in scores[kind].wrong:
            say(f"  wrong: {question!r} -> {reply!r}")
    say(table({"greedy": scores}))


def write_card(recipe: Recipe, folder: Path, made: str, device: str) -> None:
    """Measure exported weights in all ways of decoding, and write their model card."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    vocab = tokenizer.get_vocab_size()
    model, draft = (
        _decoder(shape, vocab, recipe.seed, device, weights).eval()
        for shape, weights in ((recipe.main, folder), (recipe.draft, folder / "draft"))
    )
    cases = evaluate.make_cases(recipe.cases, recipe.seed + 1)
    card = _figures(model, draft, tokenizer, cases, recipe, made)
    (folder / "MODEL_CARD.md").write_text(card, encoding="utf-8")


def train_heads(recipe: Recipe, wanted: HeadRecipe, base: Path, work: Path, out: Path, device: str) -> None:
    """Train Medusa heads for exported weights."""
    work.mkdir(parents=True, exist_ok=True)
    recipe = replace(recipe, rows=wanted.rows, seed=wanted.seed)
    tokenizer = _tokenizer(recipe, work, base)
    cases = evaluate.make_cases(recipe.cases, recipe.seed + 1)
    rows = _rows(recipe, evaluate.test_questions(cases), work)
    model = _decoder(recipe.main, tokenizer.get_vocab_size(), recipe.seed, device, base)
    run_heads(model, tokenizer, rows, wanted, work, out, device, say)


def _head_recipe(args: argparse.Namespace) -> HeadRecipe:
    usual = TINY_HEADS if args.tiny else HEADS
    return replace(
        usual,
        heads=args.heads,
        layers=args.head_layers,
        rows=args.rows or usual.rows,
        seed=args.seed or usual.seed,
        seconds=args.minutes * 60 if args.minutes else usual.seconds,
    )


def _device_name(device: str) -> str:
    return f"one {torch.cuda.get_device_name()}" if device == "cuda" else "a CPU"


def _schedule(usual: Schedule, steps: int | None, share: float) -> Schedule:
    return replace(
        usual,
        steps=usual.steps if steps is None else steps,
        matrix_rate=usual.matrix_rate * share,
        vector_rate=usual.vector_rate * share,
    )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m training", description=__doc__, allow_abbrev=False)
    parser.add_argument("--tiny", action="store_true", help="test the whole pipeline on a CPU in seconds")
    parser.add_argument(
        "--work",
        type=Path,
        default=Path("build/training"),
        help="checkpoints and text; an interrupted run resumes from here",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("build/training/pocket"), help="the folder to export to"
    )
    parser.add_argument("--steps", type=int, help="training steps of the model (default: the recipe's)")
    parser.add_argument(
        "--minutes",
        type=float,
        help="train the model for this long, over all resumed runs; the steps follow from the speed",
    )
    parser.add_argument(
        "--size",
        type=int,
        choices=(14, *LARGER),
        default=14,
        help="MB of the exported folder; with a smaller --base, its weights are the start of the larger model",
    )
    parser.add_argument("--workers", type=int, help="processes that generate the text")
    parser.add_argument("--draft-steps", type=int, help="training steps of the draft; 0 leaves it unchanged")
    parser.add_argument(
        "--rate",
        type=float,
        default=1.0,
        help="factor of the recipe's learning rates, for a short run with --base",
    )
    parser.add_argument("--rows", type=int, help="rows of training text")
    parser.add_argument(
        "--base", type=Path, help="start from the tokenizer and weights of this exported folder"
    )
    parser.add_argument("--seed", type=int, help="seed of the text and the test cases")
    parser.add_argument("--cases", type=int, help="test cases per kind")
    parser.add_argument(
        "--no-figures",
        action="store_true",
        help="end after the export, without a model card; run --measure and --card later, on a cheaper machine",
    )
    parser.add_argument(
        "--measure",
        type=Path,
        metavar="FOLDER",
        help="do not train; only count the right answers of exported weights",
    )
    parser.add_argument(
        "--card",
        metavar="HOW",
        help="with --measure: all figures, and a model card that says how it was made",
    )
    parser.add_argument(
        "--heads",
        type=int,
        metavar="N",
        help="train only N Medusa heads for the weights of --base, which stay as they are, and export them to --out",
    )
    parser.add_argument(
        "--head-layers", type=int, default=1, help="with --heads: residual blocks of each head"
    )
    args = parser.parse_args(arguments)
    recipe = TINY if args.tiny else FULL
    recipe = replace(
        recipe,
        rows=args.rows or recipe.rows,
        seed=args.seed or recipe.seed,
        cases=args.cases or recipe.cases,
        workers=args.workers or min(recipe.workers, os.cpu_count() or 1),
        main_schedule=_schedule(recipe.main_schedule, args.steps, args.rate),
        draft_schedule=_schedule(recipe.draft_schedule, args.draft_steps, args.rate),
    )
    if args.size in LARGER:
        recipe = replace(recipe, main=LARGER[args.size], most_bytes=args.size * 1_020_000)
    torch.set_float32_matmul_precision("high")
    device = "cuda" if torch.cuda.is_available() and not args.tiny else "cpu"
    if args.heads:
        train_heads(recipe, _head_recipe(args), args.base, args.work, args.out, device)
    elif args.measure and args.card:
        write_card(recipe, args.measure, args.card, device)
    elif args.measure:
        measure(recipe, args.measure, device)
    else:
        run(
            recipe,
            args.work,
            args.out,
            device,
            args.base,
            not args.no_figures,
            args.minutes and args.minutes * 60,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
