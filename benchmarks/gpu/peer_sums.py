"""Sums between GPUs by our kernels: right to the bit, and how long they take in a graph.

`python -m benchmarks.gpu.peer_sums` starts a process for each GPU. With `--others` it measures NCCL and
torch's symmetric memory instead, with `--group` our sums over NCCL, for GPUs that cannot access each other's
memory, launched without a graph. With RANKS=4 in the environment it takes four GPUs instead of two.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from engine.distributed.collective import SharedMemoryCollective
from engine.distributed.crews.wires import Wires, memory_size, wires
from engine.distributed.memory import anonymous

RANKS = int(os.environ.get("RANKS", "2"))  # the processes that this one starts inherit it
ROWS = (1, 8, 32, 64, 128, 256)
WIDTH = 4096
LOOPS, REPLAYS = 20, 20


def microseconds(call: Callable[[], object], meet: Callable[[], object]) -> float:
    """Time of a call in a graph of several, replayed."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="relaxed"):
        for _ in range(LOOPS):
            call()
    meet()
    best = float("inf")
    for _ in range(3):
        graph.replay()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(REPLAYS):
            graph.replay()
        end.record()
        end.synchronize()
        best = min(best, begin.elapsed_time(end) / LOOPS / REPLAYS * 1e3)
    return best


def numbers(rank: int, seed: int, *shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    made = torch.Generator().manual_seed(seed * RANKS + rank)
    return torch.randn(*shape, generator=made).to("cuda", dtype)


def summed(seed: int, *shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    terms = [numbers(rank, seed, *shape, dtype=dtype).float() for rank in range(RANKS)]
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total.to(dtype)


def ours(rank: int, given: Wires, folder: Path) -> None:
    from engine.distributed.peers import PeerCollective
    from engine.kernels.triton.collective import bulk, exchange
    from engine.kernels.triton.gemm.quantize_fp8 import quantize_fp8

    device = torch.device("cuda", 0)
    peers = PeerCollective(SharedMemoryCollective(rank, given), device)
    (folder / f"handle{rank}.part").write_text(peers.handle())
    (folder / f"handle{rank}.part").rename(folder / f"handle{rank}")
    until = time.monotonic() + 20
    while not all((folder / f"handle{each}").exists() for each in range(RANKS)):
        if time.monotonic() > until:
            raise SystemExit(f"rank {rank}: another rank did not start")
        time.sleep(0.01)
    peers.connect([(folder / f"handle{each}").read_text() for each in range(RANKS)])

    def meet() -> None:
        peers.sum(torch.zeros(2, device=device))
        torch.cuda.synchronize()

    wrong: list[str] = []

    def expect(right: bool, *what: object) -> None:
        if not right:
            wrong.append(" ".join(map(str, what)))

    def sums(seed: int, rows: int) -> None:
        for dtype in (torch.bfloat16, torch.float32):
            found = peers.sum(numbers(rank, seed, rows, WIDTH, dtype=dtype))
            expect(torch.equal(found, summed(seed, rows, WIDTH, dtype=dtype)), "sum", rows, dtype)

    for seed, rows in enumerate((1, 3, 33, 200)):
        sums(seed, rows)
        share = numbers(rank, seed, rows, 1002)
        whole = torch.cat([numbers(each, seed, rows, 1002) for each in range(RANKS)], 1)
        expect(torch.equal(peers.gather(share), whole), "gather", rows)
        odd = whole.view(rows, RANKS, -1)[:, :, :501].flatten(1)
        expect(torch.equal(peers.gather(share[:, :501]), odd), "gather of odd rows", rows)
        for parts in (1, 4):
            kind = torch.bfloat16 if parts == 1 else torch.float32
            terms = [numbers(each, seed, parts, rows, WIDTH, dtype=kind) for each in range(RANKS)]
            total = sum(each.sum(0).bfloat16().float() for each in terms)
            x, weight = numbers(0, seed + 99, rows, WIDTH), numbers(0, 7, WIDTH)
            stream = x + torch.as_tensor(total).bfloat16()
            normed = torch.nn.functional.rms_norm(stream.float(), (WIDTH,), None, 1e-5).bfloat16() * weight
            eight = peers.sum_norm(x.clone(), terms[rank], weight, 1e-5, rounded=True)
            out = peers.sum_norm(x, terms[rank], weight, 1e-5, rounded=False).values
            alone = quantize_fp8(out, WIDTH)[0]
            expect(torch.equal(eight.values.float(), alone.float()), "rounded norm", rows, parts)
            expect(torch.allclose(x, stream, rtol=0.01, atol=0.04 * (parts - 1)), "stream", rows, parts)
            expect(torch.allclose(out.float(), normed.float(), rtol=0.02, atol=0.02), "norm", rows, parts)
            (folder / f"out{rank}.{seed}.{parts}").write_bytes(out.view(torch.int16).cpu().numpy().tobytes())
    meet()
    for file in folder.glob("out0.*"):
        for other in range(1, RANKS):
            same = file.read_bytes() == (folder / file.name.replace("out0", f"out{other}")).read_bytes()
            expect(same, f"differs on rank {other}:", file.name)
    print(f"ours, rank {rank}, wrong results: {wrong or 'none'}", flush=True)
    wrong.clear()
    for seed, (rows, width) in enumerate(((600, 20_000), (5001, 1000))):
        sums(seed, rows)
        shares = [numbers(each, seed, rows, width) for each in range(RANKS)]
        expect(torch.equal(peers.gather(shares[rank]), torch.cat(shares, 1)), "gather", rows)
    print(f"ours, rank {rank}, wrong long sums: {wrong or 'none'}", flush=True)

    def row(name: str, times: dict[str, float]) -> None:
        if rank == 0:
            print(f"{name}: {', '.join(f'{how} {each:.1f}' for how, each in times.items())} us", flush=True)

    weight = torch.ones(WIDTH, dtype=torch.bfloat16, device=device)
    for rows in ROWS:
        term, x = numbers(rank, 1, rows, WIDTH), numbers(0, 2, rows, WIDTH)
        times = {"in pieces": microseconds(partial(bulk.sum_bulk, term, peers.inbox), meet)}
        for how, few in (("polling all", 2**30), ("probing", 0)):
            exchange.FEW = few
            times |= {how: microseconds(partial(exchange.exchange_sum, term, peers.inbox), meet)}
            fused = partial(exchange.exchange_sum_norm, rounded=False)
            call = partial(fused, x, term[None] * 0, weight, 1e-5, peers.inbox)
            times |= {f"and norm, {how}": microseconds(call, meet)}
        row(f"sum, {rows} rows, {rows * WIDTH // 512} KB", times)
    for rows in (1024, 8192):
        row(f"sum, {rows} rows", {"": microseconds(partial(peers.sum, numbers(rank, 1, rows, WIDTH)), meet)})
    for rows in (1, 32, 256):
        part = numbers(rank, 1, rows, 64128)
        row(f"gather of {rows} rows of logits", {"": microseconds(partial(peers.gather, part), meet)})
    # Last: stopping.
    peers.check()
    until = time.monotonic() + 20
    if rank == 0:
        time.sleep(0.2)
        peers.interrupt()
        while not (folder / "stopped").exists() and time.monotonic() < until:
            time.sleep(0.01)
    else:
        began = time.monotonic()
        peers.sum(numbers(rank, 1, 8, WIDTH))  # the other rank never comes
        peers.finish()
        try:
            peers.check()
        except Exception as error:
            print(f"stopped after {time.monotonic() - began:.2f} s: {error}", flush=True)
        else:
            print("WRONG: not stopped", flush=True)
        (folder / "stopped").touch()


def others(rank: int, folder: Path) -> None:
    import torch.distributed as dist
    import torch.distributed._symmetric_memory as symmetric

    torch.cuda.set_device(rank)
    device = torch.device("cuda", rank)
    dist.init_process_group("nccl", f"file://{folder}/store", rank=rank, world_size=RANKS, device_id=device)

    def meet() -> None:
        dist.barrier()
        torch.cuda.synchronize()

    sizes = (*ROWS, 8192)
    nccl = {}
    for rows in sizes:
        term = torch.randn(rows, WIDTH, device=device).bfloat16()
        nccl[rows] = microseconds(partial(dist.all_reduce, term), meet)
    if rank == 0:
        print("NCCL:", {rows: round(each, 1) for rows, each in nccl.items()}, flush=True)
    world = dist.group.WORLD
    assert world is not None
    group = world.group_name
    for name in ("one_shot_all_reduce", "two_shot_all_reduce_"):
        found = {}
        for rows in ROWS:
            buffer = symmetric.empty(rows, WIDTH, dtype=torch.bfloat16, device=device)
            symmetric.rendezvous(buffer, group)
            call = getattr(torch.ops.symm_mem, name)
            found[rows] = microseconds(partial(call, buffer, "sum", group), meet)
        if rank == 0:
            print(f"{name}:", {rows: round(each, 1) for rows, each in found.items()}, flush=True)
    os._exit(0)


def group(rank: int, board: int) -> None:
    from engine.distributed.groups.board import Board
    from engine.distributed.groups.nccl import NcclCollective

    device = torch.device("cuda", 0)
    nccl = NcclCollective(rank, RANKS, Board([socket.socket(fileno=board)]), "sums", device)
    nccl.connect()
    weight = torch.ones(WIDTH, dtype=torch.bfloat16, device=device)
    for seed, rows in enumerate((*ROWS, 8192)):
        term, x = numbers(rank, seed, rows, WIDTH), numbers(0, 99, rows, WIDTH)
        if not torch.equal(nccl.sum(term), summed(seed, rows, WIDTH)):
            print(f"WRONG: sum of {rows} rows on rank {rank}", flush=True)
        fused = partial(nccl.sum_norm, x, term[None] * 0, weight, 1e-5, rounded=False)
        times = {"sum": _launched(partial(nccl.sum, term)), "and norm": _launched(fused)}
        if rank == 0:
            found = ", ".join(f"{how} {each:.1f}" for how, each in times.items())
            print(f"over NCCL, no graph, {rows} rows: {found} us", flush=True)
    os._exit(0)


def _launched(call: Callable[[], object]) -> float:
    """Time of a call that is launched again and again, in microseconds."""
    for _ in range(5):
        call()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    for _ in range(LOOPS):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / LOOPS * 1e3


def main() -> None:
    if len(sys.argv) > 2:
        rank, place, fds = int(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
        if not fds:
            return others(rank, place)
        if isinstance(fds, int):
            return group(rank, fds)
        memory, wake, woken, (end, alarm) = fds
        return ours(rank, Wires(memory, tuple(wake), tuple(woken), (end, alarm)), place)
    given: list[tuple[Any, list[int]]]  # for each process: its arguments, and the descriptors it inherits
    if "--others" in sys.argv:
        given = [([], [])] * RANKS
    elif "--group" in sys.argv:
        given = [(fd, [fd]) for fd in (each.detach() for each in socket.socketpair())]
    else:
        given = [(each, each.fds()) for each in wires(RANKS, anonymous(memory_size(RANKS)))]
    with tempfile.TemporaryDirectory() as folder:
        started = []
        for rank in range(RANKS):
            order = ",".join(map(str, [rank, *(each for each in range(RANKS) if each != rank)]))
            own, fds = given[rank]
            started.append(
                subprocess.Popen(
                    [sys.executable, "-m", "benchmarks.gpu.peer_sums", str(rank), folder, json.dumps(own)],
                    env=os.environ | ({"CUDA_VISIBLE_DEVICES": order} if fds else {}),
                    pass_fds=fds,
                )
            )
        raise SystemExit(max(each.wait() for each in started))


if __name__ == "__main__":
    main()
