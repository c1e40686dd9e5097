"""Kernels on a CPU, in Triton's interpreter. It runs in its own process, as Triton checks for it on import.

Its bfloat16 products are wrong and a loop iteration takes milliseconds, so tests use float16, float32 and
short contexts.
"""

import io
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from types import FunctionType
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from tests.attention.cases import Case
from tests.kernels import ptx


class Interpreted:
    """Runs kernels in the interpreter's process. Tensors are sent as bytes."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    def attend(self, case: Case, *, gathered: bool = False, **tile: int) -> tuple[Tensor, ...]:
        """Return the output and the cache's tensors after it; `tile` changes fields of every Tile.

        `gathered`: gather the context of every row of several tokens.
        """
        return unpickled(self._pool.submit(_attend, pickled((case, gathered, tile))).result())

    def standing(self, case: Case, tokens: int, *, ahead: bool = False) -> tuple[Tensor, bool]:
        """Return the output with a graph's work lists for so many tokens, and whether a decode was split.

        `ahead`: the tiles of prompts.
        """
        return unpickled(self._pool.submit(_standing, pickled((case, tokens, ahead))).result())

    def call(self, module: str, name: str, *given: Any, **named: Any) -> tuple[Any, tuple[Any, ...]]:
        """Call a function of engine.kernels; return its result and its arguments after the call."""
        return unpickled(self._pool.submit(_call, pickled((module, name, given, named))).result())

    def run(self, function: Callable[..., Any], *given: Any) -> Any:
        """Call a function of a test's file in the interpreter's process."""
        return unpickled(self._pool.submit(_run, function, pickled(given)).result())


@contextmanager
def interpreter() -> Iterator[Interpreted]:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=_begin) as pool:
        yield Interpreted(pool)


def pickled(thing: Any) -> bytes:
    """Through torch, since pickle alone does not support 8-bit floats."""
    held = io.BytesIO()
    torch.save(thing, held)
    return held.getvalue()


def unpickled(sent: bytes) -> Any:
    return torch.load(io.BytesIO(sent), weights_only=False)


def _begin() -> None:
    os.environ["TRITON_INTERPRET"] = "1"
    torch.set_num_threads(1)
    from triton.runtime import interpreter

    convert = interpreter._convert_float
    kinds = {
        "fp32": torch.float32,
        "fp16": torch.float16,
        "bf16": torch.bfloat16,
        "fp8e4nv": torch.float8_e4m3fn,
    }

    def convert_with_torch(data: np.ndarray, given: Any, expected: Any, rounding: Any) -> np.ndarray:
        """Convert through torch: the interpreter loses the carry when a fraction is rounded up."""
        if not {given.name, expected.name} <= kinds.keys():
            return convert(data, given, expected, rounding)
        numbers = torch.from_numpy(np.array(data)).view(kinds[given.name]).to(kinds[expected.name])
        return numbers.view(getattr(torch, f"uint{expected.primitive_bitwidth}")).numpy()

    interpreter._convert_float = convert_with_torch
    interpreter.InterpreterBuilder.create_inline_asm = _assembly
    # Without `debug`, whether an integer has overflowed is computed and then not used.
    builder = interpreter.interpreter_builder
    assert not builder.options.debug
    builder.options = replace(builder.options, sanitize_overflow=False)
    _run_backwards(interpreter.InterpreterBuilder)
    _cache_repeated_work(interpreter)


def _run_backwards(builder: Any) -> None:
    """Run the last program of a launch first: on a GPU they have no order, so none may rely on another."""
    set_index = builder.set_grid_idx

    def from_the_end(self: Any, *index: int) -> None:
        set_index(self, *(size - 1 - at for size, at in zip(self.grid_dim, index, strict=True)))

    builder.set_grid_idx = from_the_end


def _cache_repeated_work(interpreter: Any) -> None:
    """Patch the language once, not at each call, and cache the types. This halves the time."""
    tl, kind_of = interpreter.tl, cache(interpreter._get_np_dtype)
    pointers = np.dtype(np.uint64)

    def np_dtype(kind: Any) -> np.dtype:
        return pointers if isinstance(kind.scalar, tl.pointer_type) else kind_of(kind.scalar)

    interpreter._get_np_dtype = np_dtype
    interpreter._patch_lang(FunctionType(_cache_repeated_work.__code__, {"tl": tl, "core": tl.core}))
    interpreter._patch_lang = lambda fn: interpreter._LangPatchScope()  # nothing to restore
    _share_shapes(tl.core)
    _skip_broadcasts(type(interpreter.interpreter_semantic))


def _share_shapes(core: Any) -> None:
    """Make what describes a shape once, not again for each tensor, which takes a good part of the time."""
    unwrap, constexpr = core._unwrap_if_constexpr, core.constexpr
    scalar = core.tuple([]), constexpr(1)

    @cache
    def of_sizes(*sizes: int) -> tuple[Any, int, tuple[Any, Any]]:
        """Return what a type has, and what its tensors have."""
        assert sizes, "a block without dimensions"
        numel = core.validate_block_shape(sizes)
        return core.tuple(sizes), numel, (core.tuple([constexpr(size) for size in sizes]), constexpr(numel))

    def make_type(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = shape.values if type(shape) is core.tuple else shape
        given = [size.value if type(size) is constexpr else size for size in sizes]
        self.shape, self.numel, self.of_tensors = of_sizes(*given)
        self.element_ty = element_ty

    def make_tensor(self: Any, handle: Any, type: Any) -> None:
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = type.of_tensors if type.is_block() else scalar

    def value_of(given: Any) -> Any:
        kind = type(given)
        if kind is core.tensor or kind is int:
            return given
        return given.value if kind is constexpr else unwrap(given)

    core.block_type.__init__, core.tensor.__init__ = make_type, make_tensor
    core.block_type.name = property(lambda self: f"<{self.shape}, {self.element_ty}>")  # for messages
    core._unwrap_if_constexpr = value_of


def _skip_broadcasts(semantic: Any) -> None:
    """Compare shapes only if they are not the same object, as those of equal tensors are."""
    broadcast = semantic.broadcast_impl_value

    def broadcast_if_needed(self: Any, left: Any, right: Any) -> tuple[Any, Any]:
        one, other = left.type, right.type
        if one.is_block():
            alike = other.is_block() and one.shape is other.shape
        else:
            alike = not other.is_block()
        return (left, right) if alike else broadcast(self, left, right)

    semantic.broadcast_impl_value = broadcast_if_needed


def _assembly(
    builder: Any, text: str, constraints: str, given: Any, kinds: Any, pure: bool, pack: int
) -> "Outputs":
    """Run inline assembly for each `pack` adjacent numbers, as many as fit into the registers."""
    from triton.runtime.interpreter import TensorHandle, _get_np_dtype

    if "%globaltimer" in text:
        return Outputs([TensorHandle(np.array([time.monotonic_ns()]), kinds[0].scalar)])
    shape = given[0].data.shape
    if "prefetch" in text:  # has no result
        return Outputs([TensorHandle(np.zeros(shape, np.int32), kinds[0].scalar)])
    registers = [
        register
        for each in given
        for register in np.ascontiguousarray(each.data).reshape(-1, pack).view(np.uint32).T
    ]
    kinds = [kind.scalar for kind in kinds]
    widths = [kind.primitive_bitwidth * pack // 32 for kind in kinds]
    found, made = ptx.run(text, registers, sum(widths)), []
    for kind, width in zip(kinds, widths, strict=True):
        piece, found = np.stack(found[:width], -1), found[width:]
        made.append(TensorHandle(piece.view(_get_np_dtype(kind)).reshape(shape), kind))
    return Outputs(made)


@dataclass(frozen=True)
class Outputs:
    """The outputs of inline assembly, as Triton's builder returns them."""

    made: list[Any]

    def get_result(self, nth: int) -> Any:
        return self.made[nth]


def _run(function: Callable[..., Any], sent: bytes) -> bytes:
    return pickled(function(*unpickled(sent)))


def _call(sent: bytes) -> bytes:
    module, name, given, named = unpickled(sent)
    function = getattr(import_module(f"engine.kernels.triton.{module}"), name)
    with torch.inference_mode():
        return pickled((function(*given, **named), given))


def _attend(sent: bytes) -> bytes:
    from engine.attention.triton_backend import TritonAttention
    from engine.kernels.triton.attention import tiles

    case, gathered, changes = unpickled(sent)
    for_chunks = tiles.for_chunks

    def changed(make: Any) -> Any:
        return lambda *given, **named: replace(make(*given, **named), **changes)

    def for_gathered(spec: Any, counts: Any, contexts: Any, gpu: Any, itemsize: int, *, packed: bool) -> Any:
        tile = for_chunks(spec, int(counts.max()), 0.0, gpu, itemsize)
        return replace(tile, **changes, ahead=True) if gathered else None

    backend = TritonAttention()
    with (
        patch.object(tiles, "for_tokens", changed(tiles.for_tokens)),
        patch.object(tiles, "for_chunks", changed(for_chunks)),
        patch.object(tiles, "for_gathered", for_gathered),
        torch.inference_mode(),
    ):
        out = backend.attend(case.q, case.k, case.v, case.layer, backend.prepare(case.batch))
    return pickled((out, *case.layer.tensors()))


def _standing(sent: bytes) -> bytes:
    from engine.attention.graph_work import GraphWork
    from engine.attention.triton_backend import TritonAttention
    from engine.kernels.triton.attention import tiles

    case, size, ahead = unpickled(sent)
    batch, layer, backend = case.batch, case.layer, TritonAttention()
    count, tokens, lengths = len(batch.contexts), len(case.q), np.diff(batch.host_starts)
    slots = np.random.default_rng(0).permutation(size + 3)[:count]
    tables = torch.zeros(size + 3, batch.tables.shape[1] + 1, dtype=torch.int32)
    tables[slots, : batch.tables.shape[1]] = batch.tables

    def cut_in_eight(make: Any, **changes: Any) -> Any:
        return lambda *given, **named: replace(make(*given, **named), programs=8, **changes)

    with (
        patch.object(tiles, "for_tokens", cut_in_eight(tiles.for_tokens)),
        patch.object(tiles, "for_chunks", cut_in_eight(tiles.for_chunks, ahead=ahead)),
    ):
        work = GraphWork(
            [layer.spec, replace(layer.spec, window=7)], size, case.q.dtype, case.q.device,
            packed=layer.key_scales is not None, pieces=bool((lengths > 1).any()),
        )  # fmt: skip
    numbers = np.full(work.numbers, 99, np.int32)
    cut = work.fill(numbers, slots, batch.host_contexts, lengths)
    each_slot, contexts = torch.zeros(2, size, dtype=torch.int64)
    each_slot[:tokens] = torch.from_numpy(np.repeat(slots, lengths))
    contexts[:tokens] = batch.positions + 1
    given = torch.from_numpy(numbers), tables, each_slot, contexts
    prepared = work.metadata(*given, cut=cut, decodes=bool((lengths == 1).any()))
    q = torch.full((size, *case.q.shape[1:]), torch.nan, dtype=case.q.dtype)
    q[:tokens] = case.q
    with torch.inference_mode():
        backend.write(case.k, case.v, layer, prepared, batch.places, pdl=False)
        return pickled((backend.mix(q, layer, prepared)[:tokens], cut))
