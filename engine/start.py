"""From a configuration to an engine that is ready."""

import secrets
from collections.abc import Callable
from itertools import chain
from typing import cast

import torch

from engine.attention.registry import choose as choose_attention
from engine.cache.pool import BlockPool
from engine.cache.store import KVStore
from engine.cache.tables import BlockTables
from engine.config import EngineConfig, ModelConfig
from engine.core import Engine, Limits
from engine.devices import free_host_memory, free_memory, pick
from engine.errors import BadInput
from engine.events import Bus
from engine.models.find import find_model
from engine.models.registry import load_model
from engine.observe import Facts
from engine.runner.runner import ModelRunner
from engine.scheduling.policy import choose as choose_policy
from engine.scheduling.scheduler import Rules, Scheduler
from engine.text.bare import BareTokenizer
from engine.text.tokenizer import Tokenizer

Progress = Callable[[int, int], None]  # bytes done, bytes in all

# The share of free memory that the cache takes. A GPU is ours alone, but a step needs room of its own; main
# memory is everybody's.
_GPU_SHARE, _HOST_SHARE = 0.85, 0.25
_STEP_TOKENS = {"cuda": 8192, "cpu": 512}  # so many do not stall for long those who decode beside them
_PINNED = 2 * 2**30  # bytes of swap room beside a GPU: to pin more would take seconds at every start
_ONE_THREAD = 64 * 2**20  # bytes of weights below which one thread is enough
_FULL_CONTEXTS = 32  # on a CPU, blocks for more requests of full length than that would never be used


def start(config: EngineConfig, progress: Progress | None = None) -> Engine:
    """Finds the model, loads it, sizes the cache by the memory that is left, and puts the parts together."""
    device = pick(config.device)
    policy = choose_policy(config.policy)
    place = find_model(config.model, dummy=config.dummy_weights, progress=progress)
    bare = config.dummy_weights and not (place.folder / "tokenizer.json").is_file()
    model, model_config = load_model(
        place,
        device=device,
        dtype=config.dtype,
        max_context=config.max_context,
        dummy=config.dummy_weights,
        progress=progress,
    )
    # The stand-in has no chat template, so that nothing else of a tokenizer is asked of it.
    stand_in = BareTokenizer(model_config.vocab, model_config.stop_ids)
    tokenizer = cast(Tokenizer, stand_in) if bare else Tokenizer.load(place.folder)
    dtype = next(iter(model.parameters())).dtype
    if device.type == "cpu":
        weights = sum(each.nbytes for each in chain(model.parameters(), model.buffers()))
        _use_threads(config.threads, weights)
    attention = choose_attention(config.attention, device, model_config.layers, dtype)

    block_bytes = KVStore.block_bytes(model_config.layers, config.block_size, dtype)
    blocks = config.blocks or _blocks_that_fit(device, block_bytes, model_config, config)
    host_blocks = _host_blocks(device, block_bytes, blocks, config)
    store = KVStore(
        model_config.layers,
        blocks=blocks,
        block_size=config.block_size,
        host_blocks=host_blocks,
        dtype=dtype,
        device=device,
        sinks=model.sinks,
    )
    context = min(model_config.max_context, blocks * config.block_size)
    step_tokens = config.max_step_tokens or _STEP_TOKENS[device.type]
    rows = min(config.max_running, step_tokens)
    bus, tables = Bus(), BlockTables(rows, -(-context // config.block_size))
    scheduler = Scheduler(
        pool=BlockPool(blocks, config.block_size),
        host=BlockPool(host_blocks, config.block_size),
        tables=tables,
        policy=policy,
        rules=Rules(
            step_tokens=step_tokens,
            prefix_cache=config.prefix_cache,
            chunked_prefill=config.chunked_prefill,
            preemption=config.preemption,
        ),
        emit=bus.emit,
    )
    stop_ids = tokenizer.stop_ids.union(model_config.stop_ids)
    runner = ModelRunner(
        model=model,
        store=store,
        attention=attention,
        requests=scheduler.requests,
        tables=tables,
        block_size=config.block_size,
        stop_ids=stop_ids,
        device=device,
    )
    return Engine(
        scheduler=scheduler,
        runner=runner,
        tokenizer=tokenizer,
        limits=Limits(context, model_config.vocab, config.max_waiting, stop_ids),
        facts=Facts(
            model=place.name,
            dtype=str(dtype).removeprefix("torch."),
            device=_device_name(device),
            attention=attention.name,
            policy=policy.name,
            kv_dtype=str(dtype).removeprefix("torch."),
        ),
        bus=bus,
        depth=config.depth if config.depth is not None else int(device.type == "cuda"),
        seed=config.seed if config.seed is not None else secrets.randbits(64),
    )


def _use_threads(wanted: int | None, weights: int) -> None:
    """A small model gains nothing from a second thread, and loses much where the other cores are busy."""
    if wanted is not None:
        torch.set_num_threads(wanted)
    elif weights < _ONE_THREAD:
        torch.set_num_threads(1)


def _blocks_that_fit(device: torch.device, block_bytes: int, model: ModelConfig, config: EngineConfig) -> int:
    """How many blocks the free memory holds."""
    on_gpu = device.type == "cuda"
    fit = int(free_memory(device) * (_GPU_SHARE if on_gpu else _HOST_SHARE)) // block_bytes
    if fit < 1:
        raise BadInput(f"no memory is left on {device} for the KV cache: one block takes {block_bytes} bytes")
    if on_gpu:
        return fit
    full = -(-model.max_context // config.block_size)
    return min(fit, full * min(_FULL_CONTEXTS, config.max_running))


def _host_blocks(device: torch.device, block_bytes: int, blocks: int, config: EngineConfig) -> int:
    """Room for swapped requests. On a CPU there is none by default: it would be the same memory again."""
    if config.host_blocks is not None:
        return config.host_blocks
    if device.type != "cuda":
        return 0
    return min(blocks, min(int(free_host_memory() * _HOST_SHARE), _PINNED) // block_bytes)


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
