"""Moves of blocks in Triton's interpreter, and on a GPU to the host and back, against plain torch."""

from itertools import chain

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.api.cache_spec import KV_SCHEMES, KvSchemeName, LayerSpec
from engine.execution.cache_blocks import PlainStaging
from engine.kv.store import KVStore, bits, move_blocks
from tests.kernels.interpreted import Interpreted
from tests.kernels.staged import staged, staged_by_kernel

pytest.importorskip("triton", reason="no Triton here")

LAYERS = [
    LayerSpec(heads=2, kv_heads=1, key_dim=24, value_dim=40, scale=1.0),
    LayerSpec(heads=4, kv_heads=2, key_dim=16, value_dim=16, scale=1.0),
]


def store(scheme: KvSchemeName, device: str = "cpu") -> KVStore:
    """Return a store filled with random bytes."""
    made = KVStore(
        LAYERS, blocks=9, block_size=16, host_blocks=5, dtype=torch.float16, device=torch.device(device),
        scheme=scheme,
    )  # fmt: skip
    made.host_ready(least=5)
    torch.manual_seed(0)
    for tensor in tensors(made):
        random = torch.randint(0, 256, (tensor.nbytes,), dtype=torch.uint8)
        bits(tensor).copy_(bits(random.view(tensor.dtype)).view(tensor.shape))
    return made


def tensors(one: KVStore) -> list[Tensor]:
    return [tensor for layer in (*one.layers, *chain(*one.host.slabs)) for tensor in layer.tensors()]


@pytest.mark.parametrize("scheme", KV_SCHEMES)
def test_only_the_given_blocks_are_moved(kernels: Interpreted, scheme: KvSchemeName) -> None:
    ours = store(scheme)
    sources = [each.view(torch.uint8) for layer in ours.layers for each in layer.tensors()]
    # Each block with the others' gaps. As bytes, because torch saves no memory that has two types.
    targets = [each.view(torch.uint8) for layer in chain(*ours.host.slabs) for each in layer.tensors()]
    pairs = [(3, 0), (8, 4), (0, 2)]
    _, (_, found, _) = kernels.call("kv.blocks", "move", sources, targets, pairs)
    before = [each.clone() for each in targets]
    move_blocks(sources, targets, pairs)
    for mine, expected, old in zip(found, targets, before, strict=True):
        assert torch.equal(mine.view(torch.uint8), expected.view(torch.uint8))
        assert not torch.equal(expected.view(torch.uint8), old.view(torch.uint8))


@pytest.mark.parametrize("out", [True, False])
def test_blocks_are_staged_in_rows_piece_by_piece(kernels: Interpreted, out: bool) -> None:
    tensors_of = [each.view(torch.uint8) for layer in store("int8").layers for each in layer.tensors()]
    rows = torch.randint(0, 256, (2, sum(each[0].nbytes for each in tensors_of)), dtype=torch.uint8)
    expected = staged(PlainStaging, [each.clone() for each in tensors_of], rows.clone(), out)
    found = kernels.run(staged_by_kernel, tensors_of, rows, out)
    for mine, plain, old in zip(found, expected, [*tensors_of, rows], strict=True):
        assert torch.equal(mine, plain)
        assert torch.equal(plain, old) == (out == (old is not rows)), "what is only read stays"


@pytest.mark.cuda
@pytest.mark.parametrize("scheme", KV_SCHEMES)
def test_to_the_host_and_back(scheme: KvSchemeName) -> None:
    from engine.execution.cache_blocks import blocks_of, mover_on

    device = torch.device("cuda")
    ours, plain = store(scheme, "cuda"), store(scheme, "cuda")
    ours.mover = mover_on(device)
    blocks = blocks_of(ours, device)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        out = blocks((1, 7)).move(lambda: ours.swap_out([(1, 0), (7, 3)]))
        while not out.done():
            pass
        ours.copy([(2, 1), (3, 7)])
        back = blocks((5, 8)).move(lambda: ours.swap_in([(0, 5), (3, 8)]))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert out.result() > 0 and back.result() > 0
    torch.cuda.synchronize()
    plain.swap_out([(1, 0), (7, 3)])
    plain.copy([(2, 1), (3, 7)])
    plain.swap_in([(0, 5), (3, 8)])
    for mine, expected in zip(tensors(ours), tensors(plain), strict=True):
        assert torch.equal(mine.view(torch.uint8).cpu(), expected.view(torch.uint8).cpu())


@pytest.mark.cuda
@pytest.mark.parametrize("pinned", [True, False])
def test_bytes_from_a_disk_reach_the_blocks(pinned: bool) -> None:
    """From memory of `buffer`, which is not copied again, and from any other."""
    from engine.execution.cache_blocks import blocks_of

    ours = store("none", "cuda")
    make = blocks_of(ours, torch.device("cuda"))
    data = make((1, 7)).read()()
    target = make((4, 2))
    rows = target.buffer(*data.shape) if pinned else np.empty_like(data)
    rows[:] = data
    assert torch.from_numpy(rows).is_pinned() is pinned
    target.write(rows)
    torch.cuda.synchronize()
    for each in (tensor for layer in ours.layers for tensor in layer.tensors()):
        found, expected = each[[4, 2]].view(torch.uint8), each[[1, 7]].view(torch.uint8)
        assert torch.equal(found, expected)  # as bytes: random ones are NaN at times
    again = target.buffer(*data.shape)
    del rows, again
    assert (make((4, 2)).read()() == data).all()


@pytest.mark.cuda
def test_work_that_follows_a_load_finds_its_blocks() -> None:
    """The host launches it while the copy waits for something long, and waits for neither."""
    from engine.execution.cache_blocks import OnStream, blocks_of, mover_on

    device = torch.device("cuda")
    ours = store("none", "cuda")
    ours.mover = mover_on(device)
    expected = [each[:2].cpu() for layer in ours.layers for each in layer.tensors()]
    blocks = blocks_of(ours, device)
    blocks((0, 1)).move(lambda: ours.swap_out([(0, 3), (1, 4)])).result()
    ours.copy([(2, 0), (2, 1)])

    def long() -> None:
        torch.cuda._sleep(3 * 10**8)

    def late() -> None:
        long()
        ours.swap_in([(3, 0), (4, 1)])

    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        load = blocks((0, 1)).move(long, late)
        assert isinstance(load, OnStream)
        too_early = load.follow()
        while not load.follow():
            pass
        found = [each[:2].clone() for layer in ours.layers for each in layer.tensors()]
        ended = load.done()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert (too_early, ended) == (False, False)
    assert load.result() > 0
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.equal(mine.cpu().view(torch.uint8), theirs.view(torch.uint8))  # some are NaN


@pytest.mark.cuda
def test_a_copy_that_cannot_be_launched_leaves_none_in_flight() -> None:
    """Its blocks are free then, and the next step may write to them."""
    from engine.execution.cache_blocks import blocks_of

    ended = torch.cuda.Event()

    def long() -> None:
        torch.cuda._sleep(3 * 10**8)
        ended.record()

    def broken() -> None:
        raise MemoryError("no room for staging")

    blocks = blocks_of(store("none", "cuda"), torch.device("cuda"))((0, 1))
    with pytest.raises(MemoryError, match="no room for staging"):
        blocks.move(long, broken)
    assert ended.query()


@pytest.mark.cuda
@pytest.mark.parametrize("scheme", KV_SCHEMES)
def test_to_other_memory_of_a_gpu_and_back(scheme: KvSchemeName) -> None:
    """In a slab all layers of a block lie together, as in the memory of another GPU."""
    from engine.execution.cache_blocks import blocks_of, mover_on

    device = torch.device("cuda")
    ours, plain = store(scheme, "cuda"), store(scheme, "cuda")
    ours.mover = mover_on(device)
    slabs = [
        each.slab_over(torch.zeros(5 * each.block_nbytes, dtype=torch.uint8, device=device), 5)
        for each in (ours, plain)
    ]
    blocks = blocks_of(ours, device)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        blocks((1, 7, 2)).move(lambda: ours.copy_out(slabs[0], [(1, 0), (7, 3), (2, 4)]))
        back = blocks((5, 8, 0)).move(lambda: ours.copy_in(slabs[0], [(3, 8), (0, 5), (4, 0)]))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert back.result() > 0
    plain.copy_out(slabs[1], [(1, 0), (7, 3), (2, 4)])
    plain.copy_in(slabs[1], [(3, 8), (0, 5), (4, 0)])
    found, expected = (
        [*tensors(one), *(each for layer in slab for each in layer.tensors())]
        for one, slab in zip((ours, plain), slabs, strict=True)
    )
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.equal(mine.view(torch.uint8).cpu(), theirs.view(torch.uint8).cpu())


@pytest.mark.cuda
@pytest.mark.parametrize("scheme", KV_SCHEMES)
def test_whole_blocks_are_read_and_written_as_bytes(scheme: KvSchemeName) -> None:
    from engine.execution.cache_blocks import blocks_of

    gpu, cpu = store(scheme, "cuda"), store(scheme)
    for mine, theirs in zip(tensors(gpu), tensors(cpu), strict=True):
        bits(mine).copy_(bits(theirs))
    on_gpu, on_cpu = (blocks_of(each, torch.device(where)) for each, where in ((gpu, "cuda"), (cpu, "cpu")))
    data = on_gpu((3, 1)).read()()
    assert data.tobytes() == on_cpu((3, 1)).read()().tobytes()
    on_gpu((8, 0)).write(data)
    assert on_gpu((8, 0)).read()().tobytes() == data.tobytes()
