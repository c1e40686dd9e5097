"""Groups of options that several commands share."""

import argparse
from collections.abc import Collection

from minichat.shell.usage import given, number, whole

REQUESTS_A_REPLICA = 32  # with --min-replicas, on average


def add_model(command: argparse.ArgumentParser, refused: Collection[str] = ()) -> None:
    """The options of a model and its engine. `refused`: those that the command refuses with the reason, by
    their names in the namespace. Its help does not list them.
    """
    group = command.add_argument_group("model and engine")
    _add_weights_and_devices(group)
    _add_scheduling(group)
    _add_cache_size(group)
    _add_drafts_and_adapters(group)
    _add_compression(group)
    for action in group._group_actions:
        if action.dest in refused:
            action.help = argparse.SUPPRESS


def _add_weights_and_devices(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--model",
        type=given,
        default="pocket",
        metavar="M",
        help="a folder, a GGUF file, a hub name, or pocket, the built-in model (default)",
    )
    group.add_argument(
        "--device", type=given, default="auto", metavar="D", help="cpu, cuda, cuda:1 ... (default: best)"
    )
    group.add_argument(
        "--tp",
        type=whole,
        default=1,
        metavar="N",
        help="tensor parallel: share the model between N processes, on GPUs one each, with a part "
        "of every weight (default: 1)",
    )
    group.add_argument(
        "--pp",
        type=whole,
        default=1,
        metavar="N",
        help="pipeline: split the model into N stages, on GPUs one each, with some of its layers, that work "
        "on different requests at once (default: 1)",
    )
    group.add_argument(
        "--dtype",
        default="auto",
        choices=["auto", "float32", "bfloat16", "float16"],
        help="dtype of the weights (default: the checkpoint's)",
    )


def _add_scheduling(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--attention",
        type=given,
        default="auto",
        metavar="NAME",
        help="attention backend (see doctor; default: torch on a CPU, triton on a GPU)",
    )
    group.add_argument(
        "--policy",
        type=given,
        default="fcfs",
        metavar="NAME",
        help="scheduling policy: fcfs, priority, latency, or a plugin's (see doctor; default: fcfs)",
    )
    group.add_argument(
        "--target-ms",
        type=number,
        metavar="N",
        help="when first tokens without a deadline are due, for --policy latency (default: 1000)",
    )
    group.add_argument(
        "--max-slowdown",
        type=number,
        metavar="N",
        help="a step of replies may take at most N times as long because of prompts: they are computed in "
        "pieces that allow it, as measured by the engine (default: no limit)",
    )


def _add_cache_size(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--blocks",
        type=whole,
        metavar="N",
        help="KV cache blocks (default: from free memory; on a CPU at most for 32 full contexts)",
    )
    group.add_argument(
        "--kv-host",
        type=number,
        metavar="GB",
        help="main memory for cache blocks that the device has no room for (default: on a GPU as much as the "
        "cache, at most 2.1 and a quarter of the free memory; on a CPU 0)",
    )
    group.add_argument(
        "--kv-disk",
        type=given,
        metavar="DIR:GB",
        help="keep the cache blocks of chats in a folder, so that they resume after a restart; auto, off "
        "(default: auto for the screen of minichat itself, off for up and other commands)",
    )
    group.add_argument("--max-context", type=whole, metavar="N", help="maximum tokens in a request")


def _add_drafts_and_adapters(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--draft",
        type=given,
        metavar="M",
        help="for --speculate draft: a small model with the same tokenizer, or a folder with Medusa heads or "
        "an EAGLE-3 head, or mtp, the model's own head for multi-token prediction (default: the folder draft "
        "in the model's folder)",
    )
    group.add_argument(
        "--adapter",
        action="append",
        default=[],
        type=given,
        metavar="NAME=PATH",
        help="a LoRA adapter in PEFT's format: a folder, or a name on the hub; repeatable",
    )


def _add_compression(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--quantization",
        type=given,
        default="none",
        metavar="SCHEME",
        help="weight scheme: int8, int4, fp8, bnb-nf4 ... (default: none)",
    )
    group.add_argument(
        "--kv",
        default="none",
        choices=["none", "int8", "fp8", "int4"],
        help="quantize the KV cache to one byte per value: nearly twice the capacity; int4, to half a byte: "
        "3.4 times (default: none)",
    )
    group.add_argument(
        "--kv-window",
        type=whole,
        metavar="N",
        help="attend only to the last N tokens and the first few, so that a chat may outgrow the cache",
    )
    group.add_argument(
        "--kv-budget",
        type=whole,
        metavar="N",
        help="keep at most N tokens of a chat in the cache: the first few, recent and important ones",
    )
    group.add_argument(
        "--kv-eviction",
        choices=["norms", "attention"],
        help="how --kv-budget finds what is important: by key norms or by the attention received "
        "(default: norms)",
    )
    group.add_argument(
        "--kv-sinks",
        type=whole,
        metavar="N",
        help="first tokens that --kv-window and --kv-budget keep (default: 4)",
    )
    group.add_argument(
        "--dummy-weights",
        action="store_true",
        help="random weights; only needs config.json (without a tokenizer, replies are token ids)",
    )


def add_sampling(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("decoding")
    group.add_argument("--temperature", type=number, metavar="T", help="0 is greedy (default: 0.7)")
    group.add_argument(
        "--top-p", type=number, metavar="P", help="sample from the top tokens that sum to P (default: 1)"
    )
    group.add_argument(
        "--top-k", type=whole, metavar="K", help="sample from the K most likely tokens (default: all)"
    )
    group.add_argument(
        "--min-p", type=number, metavar="P", help="drop tokens below P times the top probability (default: 0)"
    )
    group.add_argument(
        "--repetition-penalty", type=number, metavar="R", help="above 1 reduces repetition (default: 1)"
    )
    group.add_argument("--seed", type=whole, metavar="N", help="same seed, same reply")
    group.add_argument(
        "--max-tokens", type=whole, metavar="N", help="maximum tokens in a reply (default: what fits)"
    )
    group.add_argument("--stop", action="append", metavar="TEXT", help="end at this text; may be repeated")
    group.add_argument(
        "--speculate",
        metavar="KIND",
        help="draft tokens from the text so far (ngram), earlier replies too (suffix), what --draft names "
        "(draft) or the first layers (exit); the reply is the same, often faster",
    )


def add_name(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--name", type=given, default="main", metavar="NAME", help="the engine's name (default: main)"
    )


def add_looks(command: argparse.ArgumentParser) -> None:
    command.add_argument("--system", metavar="TEXT", help="the system prompt of a new chat")
    command.add_argument("--ascii", action="store_true", help="use ASCII characters only")


def add_dry(group: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--dry-run", action="store_true", help="no weights: synthetic replies, for testing clients"
    )
    group.add_argument(
        "--rate", type=number, metavar="N", help="tokens per second of each synthetic reply (default: 30)"
    )


def add_replicas(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--replicas",
        type=whole,
        default=1,
        metavar="N",
        help="run N engines, each on its own device, and send a prompt where most of its cache blocks are "
        "(default: 1)",
    )
    group.add_argument(
        "--min-replicas",
        type=whole,
        metavar="N",
        help="start and stop replicas by the number of their requests; at least N run (default: all)",
    )
    group.add_argument(
        "--target-requests",
        type=whole,
        metavar="N",
        help=f"requests for each replica with --min-replicas (default: {REQUESTS_A_REPLICA})",
    )
    group.add_argument(
        "--ray",
        nargs="?",
        type=given,
        const="local",
        metavar="ADDRESS",
        help="run the replicas on the machines of a Ray cluster (default: one that starts on this machine)",
    )
    group.add_argument(
        "--prefill-gpus",
        type=whole,
        metavar="N",
        help="compute prompts and replies apart: N engines, each on its own device, compute only prompts and "
        "send their cache blocks to the others",
    )
    group.add_argument(
        "--decode-gpus", type=whole, metavar="N", help="with --prefill-gpus: engines for the replies"
    )


def add_quality(command: argparse.ArgumentParser) -> None:
    refused = ("quantization", "kv", "tp", "pp", "adapter", "draft", "policy", "target_ms", "max_slowdown")
    add_model(command, refused=(*refused, "kv_host", "kv_disk", "kv_budget", "kv_eviction"))
    group = command.add_argument_group("comparison")
    group.add_argument(
        "--text", type=given, metavar="FILE", help="the text to read (default: one that ships with minichat)"
    )
    group.add_argument(
        "--schemes",
        type=given,
        metavar="S,S",
        help="weight schemes, kv-... for the cache, or both as int4+kv-int8 (default: none,int8,int4,kv-int8,"
        "kv-fp8,kv-int4)",
    )
    group.add_argument(
        "--tokens", type=whole, default=2048, metavar="N", help="maximum tokens of the text (default: 2048)"
    )
    group.add_argument(
        "--budgets",
        type=given,
        metavar="N,N",
        help="compare windows and cache budgets of N tokens instead of schemes: perplexity and recall",
    )
    group.add_argument("--no-speed", action="store_true", help="skip the speed measurements")
    group.add_argument("--json", action="store_true", help="print the rows as JSON")
    group.add_argument("--plot", type=given, metavar="FILE.svg", help="also save the plots as an SVG")
