"""How large the KV cache may be, and which tokens it keeps, from the configuration and the free memory."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from engine.api.cache_spec import LayerSpec, keeps_state
from engine.api.config import BLOCK_SIZES, EngineConfig
from engine.api.errors import BadInput
from engine.devices import free_memory, memory
from engine.execution.budget import CacheBudget
from engine.execution.draft.drafters import DraftModels
from engine.execution.protocol import PIECE_SIZES
from engine.fleet.exchange import lent_bytes
from engine.kv.eviction import TokenBudget
from engine.kv.groups import BlockGroups, grouped
from engine.kv.pinned import MOST, SHARE, pinned_ahead
from engine.kv.store import KVStore
from engine.kv.window import Window
from engine.main_memory import free_host_memory, host_memory
from engine.models.base import LanguageModel

# The share of free memory for the cache. A GPU is ours alone, but steps need memory too; main memory is
# shared with other programs.
_GPU_SHARE = 0.85
_LARGE_STATE = 2**20  # bytes, which a few tokens' keys and values do not take
# Whether full steps of small models are graphs: their kernels take longer to launch one by one than to run.
FULL_STEPS_ARE_GRAPHS = True
_STEP_TOKENS = {"cuda": 8192, "cpu": 512}  # small enough not to stall concurrent decodes for long
_FULL_CONTEXTS = 32  # on a CPU, blocks for more full-length requests than this would never be used


def cache_budget(
    config: EngineConfig,
    model: LanguageModel,
    specs: tuple[LayerSpec, ...],
    dtype: torch.dtype,
    device: torch.device,
    draft_models: DraftModels,
) -> CacheBudget:
    """On a CPU, the host tier is empty unless it is asked for: it takes the same memory as the cache."""
    on_gpu, longest = device.type == "cuda", model.config.max_context
    groups = block_groups(config, specs, longest, device, draft_models)
    host_blocks = config.host_blocks if config.kv_budget is None else 0
    full = -(-longest // config.block_size)
    own = KVStore.block_bytes(specs, config.block_size, dtype, config.kv_scheme)
    _refuse_beyond("blocks", config.blocks, own, memory(device))
    _refuse_beyond("host_blocks", config.host_blocks, own, host_memory())
    there = free_host_memory() + pinned_ahead.nbytes
    host_nbytes = min(int(there * SHARE), MOST) if on_gpu else 0
    if config.kv_host is not None:
        host_nbytes = round(config.kv_host * 1e9)
        if host_nbytes > (there := host_memory()):
            raise BadInput(f"kv_host: {config.kv_host:g} GB exceed the {there / 1e9:.1f} GB of memory")
    free = max(0, free_memory(device) - lent_bytes(config.exchange, device))
    return CacheBudget(
        specs=specs,
        sinks=model.sinks,
        block_size=config.block_size,
        dtype=dtype,
        device=device,
        longest=longest,
        blocks=config.blocks and config.blocks * groups.count,
        host_blocks=host_blocks and host_blocks * groups.count,
        nbytes=int(free * memory_share(device)) // (1 if on_gpu else config.ranks),
        drafted=draft_models.block_bytes(config.block_size, dtype),
        host_nbytes=host_nbytes // config.ranks,
        host_beyond=config.kv_host is not None,
        most=None if on_gpu else full * groups.count * min(_FULL_CONTEXTS, config.max_running),
        groups=groups,
        window=_window(config),
        budget=_budget(config),
    )


def _refuse_beyond(name: str, requested: int | None, each: int, there: int) -> None:
    """Reject sizes beyond the device's memory. The system would grant them and later kill the process."""
    if requested is not None and requested * each > there:
        raise BadInput(f"{name}: {requested} blocks of {each} bytes exceed the {there} bytes of memory")


def block_groups(
    config: EngineConfig,
    specs: tuple[LayerSpec, ...],
    longest: int,
    device: torch.device,
    draft_models: DraftModels,
) -> BlockGroups:
    """Group layers by the tokens that they keep, unless other parts need all blocks (docs/kv.md)."""
    window = _window(config)
    alone = BlockGroups(config.block_size, (window,))
    drafts = draft_models.small is not None or draft_models.chained is not None
    if drafts or config.pp > 1 or config.exchange is not None or config.kv_budget is not None:
        return alone
    piece = step_tokens(config, device) if window is None else window.size
    return grouped(specs, config.block_size, longest, piece) or alone


def step_tokens(config: EngineConfig, device: torch.device, graphs: Sequence[int] = ()) -> int:
    """`graphs`: the sizes of those with prompts. Of a small model, a full step is the largest of them: two
    such steps take less time than to launch the kernels of one that is twice as large.
    """
    usual = config.max_step_tokens or _STEP_TOKENS[device.type]
    small = FULL_STEPS_ARE_GRAPHS and config.max_step_tokens is None and PIECE_SIZES[-1] in graphs
    return min(usual, PIECE_SIZES[-1]) if small else usual


def windowed(specs: tuple[LayerSpec, ...], config: EngineConfig) -> tuple[LayerSpec, ...]:
    """Apply the configured window. A layer with a narrower window keeps it."""
    if (size := config.kv_window) is None:
        return specs
    return tuple(
        each if each.reach is not None and each.reach <= size
        else replace(each, window=size, kept=config.kv_sinks)
        for each in specs
    )  # fmt: skip


def _window(config: EngineConfig) -> Window | None:
    if config.kv_window is None:
        return None
    return Window(config.kv_window, config.kv_sinks, config.block_size)


def _budget(config: EngineConfig) -> TokenBudget | None:
    if config.kv_budget is None:
        return None
    return TokenBudget(config.kv_budget, config.kv_sinks, config.block_size, config.kv_eviction)


def block_size_with(specs: tuple[LayerSpec, ...], preferred: int) -> int:
    """Return the block size for these layers: the largest one if each block has a large state."""
    return max(preferred, BLOCK_SIZES[-1]) if KVStore.state_bytes(specs) >= _LARGE_STATE else preferred


def refuse_forgetting(config: EngineConfig, specs: tuple[LayerSpec, ...]) -> None:
    """Raise if this model cannot run with the configured window or budget."""
    if config.forgets and keeps_state(specs):
        name = "kv_budget" if config.kv_window is None else "kv_window"
        raise BadInput(f"{name} is not available: some layers of this model keep a recurrent state")
    chunk = max((spec.chunk or 0 for spec in specs), default=0)
    if config.kv_window is not None and config.kv_window < chunk:
        raise BadInput(
            f"kv_window must be at least {chunk} tokens, the chunk within which this model attends"
        )
    if config.kv_budget is None:
        return
    if any(spec.reach is not None for spec in specs):
        raise BadInput("kv_budget is not available: some layers of this model have a window of their own")
    if any(spec.slopes for spec in specs):
        raise BadInput("kv_budget is not available: scores of this model fall with the distance of tokens")
    if any(spec.latent for spec in specs):
        raise BadInput("kv_budget is not available: this model caches latents")


def memory_share(device: torch.device) -> float:
    return _GPU_SHARE if device.type == "cuda" else SHARE
