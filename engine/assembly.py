"""Builds a ready engine from a configuration and a model's files."""

import secrets
import sqlite3
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import cast

import torch

from engine.api.config import KV_SCHEMES, AdapterPlace, DiskRoom, EngineConfig, LayerSpec, ModelPlace
from engine.api.errors import BadInput
from engine.api.events import Bus
from engine.attention.registry import block_size_for
from engine.attention.registry import choose as choose_attention
from engine.devices import free_host_memory, free_memory, host_memory, memory, pick
from engine.execution.budget import CacheBudget
from engine.execution.draft.drafters import DraftModels, find_draft_models
from engine.execution.runner import ModelRunner
from engine.execution.weights import Weights
from engine.grammar.grammars import Grammars
from engine.kv.eviction import TokenBudget
from engine.kv.pool import BlockPool
from engine.kv.store import KVStore
from engine.kv.tables import BlockTables
from engine.kv.tiers.disk import DiskTier
from engine.kv.tiers.host import HostTier
from engine.kv.tiers.tier import Tier
from engine.kv.window import Window
from engine.models.adapters.find import find_adapter
from engine.models.base import LanguageModel
from engine.models.checkpoint import shards
from engine.models.find import Progress
from engine.models.identity import files_hash, model_identity
from engine.models.registry import load_model
from engine.scheduling.policy import Policy
from engine.scheduling.policy import choose as choose_policy
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.settings import SchedulerSettings
from engine.serving.engine import Engine
from engine.serving.info import EngineInfo
from engine.serving.limits import Limits
from engine.text.bare import BareTokenizer
from engine.text.tokenizer import Tokenizer

# The share of free memory for the cache. A GPU is ours alone, but steps need memory too; main memory is
# shared with other programs.
_GPU_SHARE, _HOST_SHARE = 0.85, 0.25
_STEP_TOKENS = {"cuda": 8192, "cpu": 512}  # small enough not to stall concurrent decodes for long
_PINNED = 2 * 2**30  # bytes of host memory for blocks on a GPU machine, unless kv_host asks for more
ALL_THREADS = torch.get_num_threads()
ONE_THREAD = 64 * 2**20  # bytes of weights below which one thread is enough
_FULL_CONTEXTS = 32  # on a CPU, blocks for more full-length requests than this would never be used


def assemble(
    config: EngineConfig,
    place: ModelPlace,
    loading: Future[Tokenizer],
    progress: Progress | None,
    below: Sequence[Tier] = (),
) -> Engine:
    """Load the model, size the cache by the remaining memory, and build the engine.

    `loading`: the model's tokenizer. `below`: more cache tiers, below host memory.
    """
    config = replace(config, block_size=block_size_for(config.attention, config.block_size))
    device = pick(config.device)
    hashed = _hashing(config, place)
    policy = choose_policy(config.policy, config.latency_target)
    model = _load(config, place, device, progress)
    dtype, vocab = next(iter(model.parameters())).dtype, model.config.vocab
    bare = config.dummy_weights and not (place.folder / "tokenizer.json").is_file()
    tokenizer = _placeholder_tokenizer(model) if bare else loading.result()
    stop_ids = tokenizer.stop_ids.union(model.config.stop_ids)

    specs, scheme = _windowed(model.config.layers, config), config.kv_scheme
    _refuse_budget(config, specs, device)
    attention = choose_attention(config.attention, device, specs, dtype, scheme, config.block_size)
    draft_models = find_draft_models(place, model, device, config)
    room = _cache_budget(config, model, specs, dtype, device, draft_models)

    bus = Bus()
    step_tokens = config.max_step_tokens or _STEP_TOKENS[device.type]
    store = room.store(scheme)
    tiers: tuple[Tier, ...] = ()
    if room.budget is None:  # blocks in a tier have no scores
        tiers = (HostTier(store), *below, *_disk(config, specs, dtype, store))
    scheduler = _scheduler(config, room, policy, step_tokens, bus, tiers)
    if hashed is not None:
        settings = (device.type, attention.name, str(dtype), config.block_size, specs)
        scheduler.kv.identify(model_identity(hashed.result(), model, *settings), config.quantization)
    grammars = None if bare else Grammars(tokenizer, vocab, stop_ids)
    drafters = draft_models.drafters(model, store, attention, config)
    weights = Weights(model, config.quantization, share=_share(device))
    runner = ModelRunner(
        model=model,
        store=store,
        drafters=drafters,
        room=room,
        attention=attention,
        slots=scheduler.tables.grid.shape[0],
        width=scheduler.tables.grid.shape[1],
        block_size=config.block_size,
        stop_ids=stop_ids,
        device=device,
        weights=weights,
        tiers=tiers,
        eviction=None if room.budget is None else room.budget.policy,
    )
    engine = Engine(
        scheduler=scheduler,
        runner=runner,
        tokenizer=tokenizer,
        limits=Limits(
            context=room.fit(scheme).context,
            vocab=vocab,
            waiting=config.max_waiting,
            stop_ids=stop_ids,
            speculation=("ngram", "suffix", *drafters),
            windowed=config.forgets,
        ),
        info=EngineInfo(
            model=place.name,
            dtype=_name(dtype),
            device=_device_name(device),
            attention=attention.name,
            policy=policy.name,
            kv_dtype=_name(dtype),
        ),
        bus=bus,
        seed=config.seed if config.seed is not None else secrets.randbits(64),
        first_request=config.first_request,
        grammars=grammars,
    )
    for name, path in map(AdapterPlace.parse, config.adapters):
        engine.load_adapter(name, find_adapter(path))
    return engine


def _load(
    config: EngineConfig, place: ModelPlace, device: torch.device, progress: Progress | None
) -> LanguageModel:
    """Load the model; on a CPU, choose the number of threads by its size."""
    on_cpu, dummy = device.type == "cpu", config.dummy_weights
    if on_cpu:
        _use_threads(config.threads, ONE_THREAD if dummy else _stored_bytes(place.folder))
    model = load_model(
        place,
        device=device,
        dtype=config.dtype,
        max_context=config.max_context,
        quantization=config.quantization,
        dummy=dummy,
        progress=progress,
    )
    if on_cpu and dummy:  # there was no file to take the size from before
        _use_threads(config.threads, sum(each.nbytes for each in chain(model.parameters(), model.buffers())))
    return model


def _hashing(config: EngineConfig, place: ModelPlace) -> Future[bytes] | None:
    """Start to hash the model's files, which name its blocks on disk. None: there will be none."""
    if config.kv_disk is None:
        return None
    thread = ThreadPoolExecutor(1, "hash")
    try:
        memo = DiskRoom.parse(config.kv_disk).folder / "hashes.json"
        return thread.submit(files_hash, place.folder, weights=not config.dummy_weights, memo=memo)
    finally:
        thread.shutdown(wait=False)


def _disk(
    config: EngineConfig, specs: tuple[LayerSpec, ...], dtype: torch.dtype, store: KVStore
) -> Iterator[Tier]:
    if config.kv_disk is None:
        return
    folder, nbytes = DiskRoom.parse(config.kv_disk)
    try:
        yield DiskTier(
            folder,
            nbytes,
            lambda: KVStore.block_bytes(specs, config.block_size, dtype, store.scheme),
        )
    except (OSError, sqlite3.Error) as error:
        raise BadInput(f"kv_disk: {folder} cannot hold blocks: {error}") from error


def _placeholder_tokenizer(model: LanguageModel) -> Tokenizer:
    """A tokenizer for a model without one. It has no chat template, so only the basic calls are used."""
    return cast(Tokenizer, BareTokenizer(model.config.vocab, model.config.stop_ids))


def _scheduler(
    config: EngineConfig,
    room: CacheBudget,
    policy: Policy,
    step_tokens: int,
    bus: Bus,
    tiers: Sequence[Tier],
) -> Scheduler:
    fit, rows = room.fit(config.kv_scheme), min(config.max_running, step_tokens)
    return Scheduler(
        pool=BlockPool(fit.blocks, config.block_size),
        tables=BlockTables(rows, room.widest(KV_SCHEMES)),
        policy=policy,
        rules=SchedulerSettings(
            step_tokens=step_tokens,
            prefix_cache=config.prefix_cache,
            chunked_prefill=config.chunked_prefill,
            preemption=config.preemption,
            overlap=room.device.type == "cuda" if config.depth is None else config.depth > 0,
        ),
        emit=bus.emit,
        kv_scheme=config.kv_scheme,
        window=room.window,
        budget=room.budget,
        tiers=tiers,
    )


def _use_threads(requested: int | None, weights: int) -> None:
    """Set the number of CPU threads. A small model gains nothing from a second thread, even while loading,
    and loses a lot on a busy machine. The next model in this process may be large.
    """
    torch.set_num_threads(requested or (1 if weights < ONE_THREAD else ALL_THREADS))


def _stored_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in shards(folder))


def _cache_budget(
    config: EngineConfig,
    model: LanguageModel,
    specs: tuple[LayerSpec, ...],
    dtype: torch.dtype,
    device: torch.device,
    draft_models: DraftModels,
) -> CacheBudget:
    """On a CPU, the host tier is empty unless it is asked for: it takes the same memory as the cache."""
    on_gpu, longest = device.type == "cuda", model.config.max_context
    full = -(-longest // config.block_size)
    own = KVStore.block_bytes(specs, config.block_size, dtype, config.kv_scheme)
    _refuse_beyond("blocks", config.blocks, own, memory(device))
    _refuse_beyond("host_blocks", config.host_blocks, own, host_memory())
    host_nbytes = min(int(free_host_memory() * _HOST_SHARE), _PINNED) if on_gpu else 0
    if config.kv_host is not None:
        host_nbytes = round(config.kv_host * 1e9)
        if host_nbytes > (there := host_memory()):
            raise BadInput(f"kv_host: {config.kv_host:g} GB exceed the {there / 1e9:.1f} GB of memory")
    share = own / (own + draft_models.block_bytes(config.block_size, dtype))
    return CacheBudget(
        specs=specs,
        sinks=model.sinks,
        block_size=config.block_size,
        dtype=dtype,
        device=device,
        longest=longest,
        blocks=config.blocks,
        host_blocks=config.host_blocks if config.kv_budget is None else 0,
        nbytes=int(free_memory(device) * _share(device) * share),
        host_nbytes=host_nbytes,
        host_beyond=config.kv_host is not None,
        most=None if on_gpu else full * min(_FULL_CONTEXTS, config.max_running),
        window=_window(config),
        budget=_budget(config),
    )


def _refuse_beyond(name: str, requested: int | None, each: int, there: int) -> None:
    """Reject sizes beyond the device's memory. The system would grant them and later kill the process."""
    if requested is not None and requested * each > there:
        raise BadInput(f"{name}: {requested} blocks of {each} bytes exceed the {there} bytes of memory")


def _windowed(specs: tuple[LayerSpec, ...], config: EngineConfig) -> tuple[LayerSpec, ...]:
    """Apply the configured window. A layer with a narrower window keeps it."""
    if (size := config.kv_window) is None:
        return specs
    return tuple(
        each if each.window is not None and each.window <= size
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


def _refuse_budget(config: EngineConfig, specs: tuple[LayerSpec, ...], device: torch.device) -> None:
    if config.kv_budget is None:
        return
    if any(spec.window is not None for spec in specs):
        raise BadInput("kv_budget is not available: some layers of this model have a window of their own")
    if any(spec.latent for spec in specs):
        raise BadInput("kv_budget is not available: this model caches latents")
    if config.kv_eviction == "attention" and device.type == "cuda":
        raise BadInput("kv_eviction attention runs on CPUs only; use norms on a GPU")


def _share(device: torch.device) -> float:
    return _GPU_SHARE if device.type == "cuda" else _HOST_SHARE


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
