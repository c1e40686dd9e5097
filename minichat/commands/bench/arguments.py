"""The options of `minichat bench`. No heavy imports: the parser of every command is built at each start."""

import argparse

from minichat.commands.arguments import add_model
from minichat.shell.usage import given, number, whole

QUESTIONS = {
    "quick": "what this machine can do, on one page, in about two minutes at most",
    "latency": "time to the first token and between tokens",
    "throughput": "tokens per second, in the process and over HTTP",
    "memory": "weights, cache, and what paging and sharing save",
    "energy": "joules and money per million tokens",
    "ablations": "what each technique is worth, switched off alone",
    "peers": "other engines, alternating with this one",
}
PEERS = ("generate", "batching", "vllm", "sglang", "llama.cpp", "nano-vllm")
SHAPES = ("0.6B", "8B", "335M")


def add_bench(command: argparse.ArgumentParser) -> None:
    lines = "; ".join(f"{name}: {line}" for name, line in QUESTIONS.items())
    command.add_argument("question", choices=list(QUESTIONS), metavar="QUESTION", help=lines)
    _add_results(command.add_argument_group("results"))
    _add_workload(command.add_argument_group("workload"))
    _add_peers(command.add_argument_group("peers"))
    add_model(command, refused=("adapter",))


def _add_results(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--json",
        type=given,
        metavar="FILE",
        help="append a line per finished case; cases that it holds are not repeated",
    )
    group.add_argument("--plot", type=given, metavar="FILE.svg", help="also save the figures as an SVG")
    group.add_argument(
        "--compare", type=given, metavar="FILE", help="show the ratio to the figures of an earlier --json"
    )


def _add_workload(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--only",
        type=given,
        action="append",
        default=[],
        metavar="NAME",
        help="cases with this name; * and ? match; repeatable",
    )
    group.add_argument(
        "--rows", type=whole, action="append", default=[], metavar="N", help="replies at once; repeatable"
    )
    group.add_argument(
        "--prompt", type=whole, metavar="N", help="tokens of a prompt (default: 128 on a CPU, 512 on a GPU)"
    )
    group.add_argument(
        "--reply", type=whole, metavar="N", help="tokens of a reply (default: 48 on a CPU, 272 on a GPU)"
    )
    group.add_argument(
        "--requests",
        type=whole,
        metavar="N",
        help="requests of mixed lengths (default: 24 on a CPU, 256 on a GPU)",
    )
    group.add_argument(
        "--trace",
        type=given,
        default="poisson",
        metavar="FILE",
        help="arrivals of a trace, as Azure's .csv or Mooncake's .jsonl (default: random)",
    )
    group.add_argument(
        "--ttft",
        type=number,
        default=0.5,
        metavar="S",
        help="for goodput: most seconds to the first token (default: 0.5)",
    )
    group.add_argument(
        "--tpot",
        type=number,
        default=0.05,
        metavar="S",
        help="for goodput: most seconds between tokens (default: 0.05)",
    )
    group.add_argument(
        "--price",
        type=number,
        metavar="P",
        help="of this machine for an hour, for the cost of a million tokens",
    )
    group.add_argument("--shape", choices=SHAPES, help="random weights in this shape, instead of --model")
    group.add_argument(
        "--warmup", type=whole, default=1, metavar="N", help="rounds that are discarded (default: 1)"
    )
    group.add_argument(
        "--repeats", type=whole, default=3, metavar="N", help="measured rounds of a sitting (default: 3)"
    )
    group.add_argument(
        "--sittings",
        type=whole,
        metavar="N",
        help="how often all cases are measured, with new engines (default: 2; quick, memory, peers: 1)",
    )


def _add_peers(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--peer",
        type=given,
        action="append",
        default=[],
        metavar="NAME=PYTHON",
        help=f"the Python that has a peer installed; repeatable: {', '.join(PEERS)}",
    )
    group.add_argument(
        "--threads", type=whole, default=1, metavar="N", help="of each engine on a CPU (default: 1)"
    )
