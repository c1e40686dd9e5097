"""Other engines beside this one: the same model and requests, in processes that take turns.

D: a step with n replies, (seconds of long replies - seconds of short ones) / the difference of their lengths.
N: requests of mixed lengths, all submitted at the start, prompts included.
With --tp, each engine's model is shared by so many GPUs.
With a quantization, each engine stores the same checkpoint in its own form; those that have none are skipped.
"""

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from itertools import count
from typing import IO, Any

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from engine.devices import pick
from minichat.bench.cases import Case, CaseFailed, CaseResult
from minichat.bench.harness import Bench, rounds
from minichat.bench.peers.process import PeerProcess
from minichat.bench.report import shown
from minichat.bench.setup import Setup
from minichat.bench.traffic import take

SITTINGS = 1
_PLAIN = "none"  # the scheme of the checkpoint's own numbers
_EIGHT, _FOUR = ("int8", "bnb-int8"), ("int4", "int4-32", "int4-64", "int4-128", "bnb-nf4", "bnb-fp4")
_SHORT = {False: 4, True: 16}  # tokens of a short reply, on a CPU and on a GPU


@dataclass(frozen=True, slots=True)
class Peer:
    name: str  # as in --peer
    called: str
    package: str
    runner: str
    forms: Mapping[str, str] = field(default_factory=dict)  # its form of weights beside a scheme of ours
    parallel: bool = False  # whether several GPUs can share its model, as with --tp


OURS = Peer("minichat", "minichat", "minichat", "minichat_runner")
PEERS = (
    Peer("generate", "transformers generate", "transformers", "generate_runner"),
    Peer("batching", "transformers continuous batching", "transformers", "batching_runner"),
    Peer("vllm", "vLLM", "vllm", "vllm_runner", parallel=True),
    Peer("sglang", "SGLang", "sglang", "sglang_runner", parallel=True),
    Peer(
        "llama.cpp", "llama.cpp", "llama_cpp", "llama_cpp_runner",
        dict.fromkeys(_EIGHT, "Q8_0") | dict.fromkeys(_FOUR, "Q4_0"),
    ),
    Peer("nano-vllm", "nano-vllm", "nanovllm", "nano_vllm_runner", parallel=True),
)  # fmt: skip


def cases(setup: Setup) -> Iterator[Case]:
    prompt, reply, requests = setup.sizes
    about = f"D: prompts of {prompt}, replies of {reply}; N: {requests} mixed requests"
    if not setup.gpu and setup.threads == 1:
        about += "; processor time of one thread"
    scheme = setup.config.quantization
    for peer in PEERS:
        forms = f"; {scheme} beside {peer.forms[scheme]}" if scheme in peer.forms else ""
        yield Case(peer.called, partial(_beside, setup, peer), about + forms, _why_not(setup, peer))


def _why_not(setup: Setup, peer: Peer) -> str:
    if (scheme := setup.config.quantization) != _PLAIN and scheme not in peer.forms:
        return f"this question has no form of its weights that is like {scheme}"
    if setup.config.pp > 1 or (setup.config.tp > 1 and not peer.parallel):
        return f"this question runs it in one process, without {'stages' if setup.config.pp > 1 else 'ranks'}"
    if peer.name in setup.peers or find_spec(peer.package) is not None:
        return ""
    return f"{peer.package} is not installed here; --peer {peer.name}=PYTHON names a Python that has it"


def _beside(setup: Setup, peer: Peer, bench: Bench) -> None:
    _, _, requests = setup.sizes
    rows = setup.rows_or((1, 8), (1, 8, 32, 128, 256))
    job = {
        "folder": str(setup.folder),
        "device": pick(setup.config.device).type,
        "threads": setup.threads,
        "context": setup.longest + 16,
        "tp": setup.config.tp,
        "rows": max(*rows, min(requests, 256 if setup.gpu else 8)),
    }
    scheme, python = setup.config.quantization, setup.peers.get(peer.name, sys.executable)
    form = peer.forms.get(scheme, _PLAIN)
    with (
        tempfile.NamedTemporaryFile("w+", prefix="minichat-bench-", suffix=".log", delete=False) as log,
        PeerProcess(OURS.runner, job | {"quantization": scheme}, log) as ours,
        PeerProcess(peer.runner, job | {"quantization": form}, log, python) as theirs,
    ):
        sides = {OURS.called: ours}
        try:
            ours.ready()
            sides[theirs.ready()] = theirs
            for each in rows:
                _steps(setup, sides, each, bench)
            _mixed(setup, sides, bench)
        except CaseFailed as error:
            raise CaseFailed(f"{error}{_last_line(log)}; the engines' output is in {log.name}") from None
        os.unlink(log.name)


def _last_line(log: IO[str]) -> str:
    log.seek(0)
    lines = [line.strip() for line in log if line.strip()]
    return f" ({lines[-1][:200]})" if lines else ""


def _steps(setup: Setup, sides: dict[str, PeerProcess], rows: int, bench: Bench) -> None:
    _, reply, _ = setup.sizes
    brief, seeds = _SHORT[setup.gpu], count(rows * 1000)

    def step(side: PeerProcess) -> float:
        short, long = (
            side.generate(_random(setup, rows, next(seeds)), [length] * rows) for length in (brief, reply)
        )
        return (long - short) / (reply - brief)

    found = rounds(bench, {name: partial(step, side) for name, side in sides.items()})
    _note(bench, f"D, {rows} at once", "s", found)


def _mixed(setup: Setup, sides: dict[str, PeerProcess], bench: Bench) -> None:
    sizes, seeds = setup.mixed(), count(1)

    def tokens_per_second(side: PeerProcess) -> float:
        ids = setup.ids(next(seeds))
        asked = [take(ids, size) for _, size, _ in sizes]
        lengths = [length for _, _, length in sizes]
        return sum(lengths) / side.generate(asked, lengths)

    found = rounds(bench, {name: partial(tokens_per_second, side) for name, side in sides.items()})
    _note(bench, "N", "tok/s", found)


def _random(setup: Setup, rows: int, seed: int) -> list[list[int]]:
    ids, (prompt, _, _) = setup.ids(seed), setup.sizes
    return [take(ids, prompt) for _ in range(rows)]


def _note(bench: Bench, what: str, unit: str, found: dict[str, list[float]]) -> None:
    for side, values in found.items():
        bench.note(f"{what}, {side}", values, unit)
    ours, theirs = found.values()
    ratios = [a / b if unit.endswith("/s") else b / a for a, b in zip(ours, theirs, strict=True)]
    bench.note(f"{what}, speed of {OURS.called}", ratios, "x")


def page(results: Sequence[CaseResult], _: Mapping[str, Any]) -> Table:
    found = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    found.add_column("peer")
    found.add_column("workload")
    for heading in (OURS.called, "the peer", "our speed", "spread"):
        found.add_column(heading, justify="right", no_wrap=True)
    for result in results:
        if result.why_not:
            found.add_row(result.case, f"not measured: {escape(result.why_not)}")
        for ours, theirs, ratio in zip(*[iter(result.figures)] * 3, strict=True):
            what, _, name = theirs.name.rpartition(", ")
            values = (shown(ours).value, shown(theirs).value, *shown(ratio))
            found.add_row(f"{result.case} ({name.rpartition(' ')[2]})", what, *values)
    return found
