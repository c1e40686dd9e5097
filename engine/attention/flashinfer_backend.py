"""The kernels of flashinfer, if that package is installed. Used only when selected by name."""

import logging
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

os.environ.setdefault("FLASHINFER_LOGGING_LEVEL", "warning")  # its log lines would corrupt the screen

from flashinfer import BatchDecodeWithPagedKVCacheWrapper, BatchPrefillWithPagedKVCacheWrapper
from flashinfer.jit import env
from flashinfer.jit.cpp_ext import get_cuda_path

from engine.api.cache_spec import KvSchemeName, LayerSpec
from engine.api.errors import EngineError
from engine.attention.base import Batch, KVLayer, why_not_on
from engine.attention.pages import Pages
from engine.attention.registry import register
from engine.kernels.triton.attention.write import write

HEADS = (64, 128)  # head dimensions; its kernels for other sizes are untested here
SHARED = 4  # query heads per key head from which tensor cores pay off for a single token
TILE = 128  # queries
WORKSPACE = 128 * 2**20  # bytes, as flashinfer recommends; holds partial results of split contexts

logger = logging.getLogger("minichat.engine")


@dataclass(frozen=True, slots=True, eq=False)
class FlashInferMetadata:
    batch: Batch
    singles: Pages
    chunks: Pages
    starts: Tensor  # [chunks + 1] int32, on the host: offsets of the chunks among their tokens


class FlashInferWrappers:
    """The wrappers for layers with one spec: one for rows of a single token, two for chunks.

    Layers with a window or a soft cap always use fa2, the one kernel that supports both: less to compile.
    """

    def __init__(self, spec: LayerSpec, dtype: torch.dtype, workspace: Tensor) -> None:
        self._spec = spec
        self._alike = {
            "window_left": -1 if spec.window is None else spec.window - 1,
            "logits_soft_cap": spec.softcap or 0.0,
            "sm_scale": spec.scale,
            "q_data_type": dtype,
            "kv_data_type": dtype,
        }
        self._plain = spec.window is None and spec.softcap is None
        cores = not self._plain or spec.heads // spec.kv_heads >= SHARED
        self._decode = BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=cores)
        self._short = BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD", backend="fa2")
        self._long = BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
        self._processors = torch.cuda.get_device_properties(workspace.device).multi_processor_count
        self._prefill = self._short
        self._planned: FlashInferMetadata | None = None
        self._uploaded = torch.cuda.Event()

    def plan(self, metadata: FlashInferMetadata) -> None:
        """Split a step's work on the host and send the plan after the work already queued. Once per step."""
        if self._planned is metadata:
            return
        self._uploaded.synchronize()  # the device may still be reading the last plan from this buffer
        try:
            self._plan(metadata)
        except RuntimeError as error:
            if (why := compiler_error(str(error))) is None:
                raise
            raise EngineError(why) from error
        self._uploaded.record()
        self._planned = metadata

    def _plan(self, metadata: FlashInferMetadata) -> None:
        spec, size = self._spec, metadata.batch.block_size
        shape = spec.heads, spec.kv_heads, spec.key_dim, size
        if len(metadata.singles.last):
            pages = metadata.singles
            self._decode.plan(pages.starts, pages.blocks, pages.last, *shape, **self._alike)
        if len(metadata.chunks.last):
            pages = metadata.chunks
            self._prefill = self._long if self._are_long(metadata.starts) else self._short
            self._prefill.plan(
                metadata.starts, pages.starts, pages.blocks, pages.last, *shape, causal=True, **self._alike
            )

    def _are_long(self, starts: Tensor) -> bool:
        """Whether to use Hopper's prefill kernel. It does not split contexts, so it needs many long
        chunks."""
        counts = starts.diff()
        tiles = int(-(-counts // TILE).sum()) * self._spec.heads
        long = int(starts[-1]) >= len(counts) * TILE // 2
        return self._plain and long and tiles >= self._processors

    def run(self, q: Tensor, layer: KVLayer, single: int) -> Tensor:
        out = torch.empty(len(q), self._spec.heads, self._spec.value_dim, dtype=q.dtype, device=q.device)
        cache = layer.keys, layer.values
        if single:
            self._decode.run(q[:single], cache, out=out[:single])
        if single < len(q):
            self._prefill.run(q[single:], cache, out=out[single:])
        return out


@register
class FlashInfer:
    """flashinfer compiles its kernels on this machine, each at its first use: minutes, once per machine."""

    name: ClassVar[str] = "flashinfer"
    kv_schemes: ClassVar[tuple[KvSchemeName, ...]] = ("none",)
    keeps_first: ClassVar[bool] = False
    chunks: ClassVar[bool] = False
    slopes: ClassVar[bool] = False

    def __init__(self) -> None:
        self._calls: dict[LayerSpec, FlashInferWrappers] = {}
        self._workspace: Tensor | None = None

    @staticmethod
    def why_not(device: torch.device, spec: LayerSpec, dtype: torch.dtype) -> str | None:
        if (problem := why_not_on(device)) is not None:
            return problem
        if dtype not in (torch.float16, torch.bfloat16):
            return f"it supports float16 and bfloat16, not {dtype}"
        if spec.key_dim != spec.value_dim or spec.key_dim not in HEADS:
            dims = f"{spec.key_dim} and {spec.value_dim}"
            return f"it supports equal key and value dimensions of {' or '.join(map(str, HEADS))}, not {dims}"
        if spec.sinks:
            return "it does not support layers with attention sinks"
        return why_no_kernels()

    def prepare(self, batch: Batch) -> FlashInferMetadata:
        first, tables, contexts = batch.single, batch.host_tables, batch.host_contexts
        return FlashInferMetadata(
            batch,
            Pages.of(tables[:first], contexts[:first], batch.block_size),
            Pages.of(tables[first:], contexts[first:], batch.block_size),
            torch.from_numpy(batch.host_starts[first:] - batch.host_starts[first]),
        )

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layer: KVLayer, metadata: FlashInferMetadata) -> Tensor:
        write(layer, k, v, metadata.batch.places, pdl=False)
        calls = self._calls_of(layer.spec, q)
        calls.plan(metadata)
        return calls.run(q, layer, metadata.batch.single)

    def _calls_of(self, spec: LayerSpec, q: Tensor) -> FlashInferWrappers:
        if spec not in self._calls:
            if self._workspace is None:
                logger.info("flashinfer compiles each kernel at its first use, which may delay a step")
                self._workspace = torch.zeros(WORKSPACE, dtype=torch.uint8, device=q.device)
            self._calls[spec] = FlashInferWrappers(spec, q.dtype, self._workspace)
        return self._calls[spec]


def why_no_kernels() -> str | None:
    if env.has_flashinfer_jit_cache():  # a separate package with most of them compiled
        return None
    try:
        home = get_cuda_path()
    except RuntimeError as error:
        return f"it has no compiled kernels (flashinfer-jit-cache) and cannot compile them: {error}"
    missing = [tool for tool in (str(Path(home) / "bin" / "nvcc"), "ninja") if shutil.which(tool) is None]
    if missing:
        return (
            f"it has no compiled kernels (flashinfer-jit-cache), nor the tool to compile them: {missing[0]}"
        )
    return None


def compiler_error(message: str) -> str | None:
    """Shorten a failed build's output to the first line with an error. None for any other message."""
    if not message.startswith("Ninja build failed"):
        return None
    first, *lines = message.splitlines()
    why = next((line.strip() for line in lines if "error: " in line), first)
    return f"flashinfer could not compile a kernel ({why}); attention 'triton' needs no compiler"
