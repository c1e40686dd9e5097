"""Builds a ready engine from a configuration and a model's files."""

import secrets
import sqlite3
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import NamedTuple, cast

import torch

from engine.api.cache_spec import KV_SCHEMES, keeps_state
from engine.api.config import EngineConfig, ModelPlace
from engine.api.errors import BadInput
from engine.api.events import Bus
from engine.api.places import AdapterPlace, DiskRoom
from engine.attention.base import AttentionBackend
from engine.attention.registry import block_size_for
from engine.attention.registry import choose as choose_attention
from engine.cache_plan import (
    block_size_with,
    cache_budget,
    memory_share,
    refuse_forgetting,
    step_tokens,
    windowed,
)
from engine.devices import begin_products, pick, use
from engine.distributed.crews.started import StartedRanks
from engine.distributed.pipelined import PipelinedRunner
from engine.distributed.runner import RankedRunner
from engine.distributed.stages import PipelineLink
from engine.distributed.team import Team, team_of
from engine.early import quick_sources
from engine.execution.budget import CacheBudget
from engine.execution.draft.drafters import DraftModels, find_draft_models
from engine.execution.memory import enough_memory
from engine.execution.runner import ModelRunner
from engine.execution.weights import Weights, weight_bytes
from engine.fleet.exchange import exchange_tier
from engine.grammar.grammars import Grammars
from engine.kv.pool import BlockPool
from engine.kv.store import KVStore
from engine.kv.tables import BlockTables
from engine.kv.tiers.disk import DiskTier
from engine.kv.tiers.disk_index import reason_of
from engine.kv.tiers.host import HostTier
from engine.kv.tiers.shared import SharedTier
from engine.kv.tiers.tier import Tier
from engine.main_memory import free_host_memory
from engine.models.adapters.find import find_adapter
from engine.models.base import LanguageModel
from engine.models.checkpoint import shards
from engine.models.decoder import Decoder
from engine.models.find import Progress
from engine.models.identity import begin_hash, model_identity
from engine.models.layers.collective import Collective
from engine.models.registry import check_stages, load_model
from engine.scheduling.policy import Policy
from engine.scheduling.policy import choose as choose_policy
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.settings import SchedulerSettings
from engine.serving.engine import Engine
from engine.serving.info import EngineInfo
from engine.serving.limits import Limits
from engine.serving.ranks import ALONE
from engine.text.bare import BareTokenizer
from engine.text.files import has_tokenizer
from engine.text.tokenizer import Tokenizer
from engine.timeline import timed

ALL_THREADS = torch.get_num_threads()
ONE_THREAD = 64 * 2**20  # bytes of weights below which one thread is enough


def assemble(
    config: EngineConfig,
    place: ModelPlace,
    loading: Future[Tokenizer],
    progress: Progress | None,
    below: Sequence[Tier] = (),
    phase: Callable[[str], None] = lambda doing: None,
    ranks: StartedRanks | None = None,
) -> Engine:
    """Load the model, size the cache by the remaining memory, and build the engine.

    `loading`: the model's tokenizer. `below`: more cache tiers, below host memory.
    `phase`: called with what it does next. `ranks`: the other ranks of this machine, if it has any.
    """
    if config.ranks == 1:
        return _assembled(config, place, loading, progress, below, phase, None)
    option = "pp" if config.pp > 1 else "tp"
    if config.pp > 1 and sys.platform != "linux":
        raise BadInput("pp: stages find each other through /proc, which only Linux has; leave pp at 1")
    if below:
        raise BadInput(
            f"{option}: cache tiers from other packages cannot be shared between {config.ranks} ranks"
        )
    if config.pp > 1:
        check_stages(place, config.pp)
    phase("starting the other ranks" if config.meet is None else "waiting for the other ranks")
    team = team_of(config, place, ranks)
    try:
        return _assembled(config, place, loading, progress, below, phase, team)
    except BaseException:
        team.close()
        raise


@enough_memory()
def _assembled(
    config: EngineConfig,
    place: ModelPlace,
    loading: Future[Tokenizer],
    progress: Progress | None,
    below: Sequence[Tier],
    phase: Callable[[str], None],
    team: Team | None,
) -> Engine:
    """`team`: the other ranks that share the model, or None."""
    hashed = begin_hash(config, place)
    policy = choose_policy(config.policy, config.latency_target)
    if team is not None:
        team.prepare(pick(config.device))
    sums, link = (team.sums, team.link) if team is not None else (None, None)
    phase("loading the weights")
    loaded = load_share(config, place, sums, progress, stage=config.pp - 1)
    config, model = loaded.config, loaded.model
    bare = config.dummy_weights and not has_tokenizer(place.folder)
    tokenizer = _placeholder_tokenizer(model) if bare else loading.result()
    stop_ids = tokenizer.stop_ids.union(model.config.stop_ids)
    phase("allocating the cache")
    if team is not None:
        loaded = replace(loaded, budget=team.agree(loaded.budget, stop_ids, weight_bytes(model)))
    room = loaded.budget
    built = build_runner(loaded, stop_ids, below, link=link)
    runner, fit = built.runner, room.fit(config.kv_scheme)
    if team is not None:
        team.wait_until_ready(fit.blocks, *built.tables)
        ranked = RankedRunner(runner, team) if link is None else PipelinedRunner(runner, team, link)
        runner = cast(ModelRunner, ranked)

    bus = Bus()
    scheduler = _scheduler(config, room, policy, built, bus)
    scheduler.speculator.most |= loaded.draft_models.most
    if hashed is not None:
        scheduler.kv.identify(_identity(hashed.result(), loaded), config.quantization)
    engine = Engine(
        scheduler=scheduler,
        runner=runner,
        tokenizer=tokenizer,
        limits=_limits(loaded, built, fit.context, stop_ids),
        info=_info(place, loaded, policy),
        bus=bus,
        seed=config.seed if config.seed is not None else secrets.randbits(64),
        first_request=config.first_request,
        grammars=None if bare else Grammars(tokenizer, model.config.vocab, stop_ids),
        ranks=ALONE if team is None else team,
    )
    for name, path in map(AdapterPlace.parse, config.adapters):
        engine.load_adapter(name, find_adapter(path))
    return engine


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model, or a rank's share of it, on its device, and the memory that its cache may take there."""

    config: EngineConfig
    model: LanguageModel
    attention: AttentionBackend
    draft_models: DraftModels
    budget: CacheBudget


def load_share(
    config: EngineConfig,
    place: ModelPlace,
    collective: Collective | None = None,
    progress: Progress | None = None,
    stage: int = 0,
) -> LoadedModel:
    """Load the model, or with a `collective` the share of its rank, and measure what the cache may take.

    `stage`: which part of a pipeline to load, if there is one.
    """
    if collective is not None and collective.ranks == 1:
        collective = None  # a stage of one rank
    config = replace(config, block_size=block_size_for(config.attention, config.block_size))
    with timed("torch on the device"):
        use(device := pick(config.device))
        name = _device_name(device)
    products = begin_products(device)
    if device.type == "cuda":
        # Without Triton, or a driver for it, they are left out.
        with suppress(ImportError, RuntimeError), timed("the kernels' modules"), quick_sources():
            from engine.kernels.triton.known import kernel_options
            from engine.kernels.triton.precompile import load_ahead

            rank = None if collective is None else collective.rank  # a constant in kernels that exchange
            load_ahead(kernel_options(config), place, name, rank, alone=config.ranks == 1)
    with timed("the weights"):
        model = _load(config, place, device, progress, collective, stage)
    with timed("waiting for cuBLAS"):
        products()  # before the free memory is measured
    dtype = next(iter(model.parameters())).dtype
    caches = model.config.layers if collective is None else cast(Decoder, model).caches
    draft_models = find_draft_models(place, model, device, config)
    specs = windowed((*caches, *draft_models.caches), config)
    refuse_forgetting(config, caches)
    config = replace(config, block_size=block_size_with(specs, config.block_size))
    attention = choose_attention(config.attention, device, specs, dtype, config.kv_scheme, config.block_size)
    return LoadedModel(
        config=config,
        model=model,
        attention=attention,
        draft_models=draft_models,
        budget=cache_budget(config, model, specs, dtype, device, draft_models),
    )


class BuiltRunner(NamedTuple):
    runner: ModelRunner
    tables: tuple[int, int]  # rows of a step, maximum blocks of a row
    tiers: tuple[Tier, ...]
    drafters: tuple[str, ...]


def build_runner(
    loaded: LoadedModel,
    stop_ids: frozenset[int],
    below: Sequence[Tier] = (),
    rank: int = 0,
    link: PipelineLink | None = None,
) -> BuiltRunner:
    """Allocate the cache, and build what runs the steps on it. `link`: to the other stages of a pipeline."""
    config, model, room = loaded.config, loaded.model, loaded.budget
    if link is not None:
        link.carry(model.config.hidden, room.dtype)
    with timed("the cache's memory"):
        store = room.store(config.kv_scheme)
    tiers: tuple[Tier, ...] = ()
    if room.budget is None:  # blocks in a tier have no scores
        between = () if config.exchange is None else (exchange_tier(config.exchange, store, room.device),)
        tiers = (HostTier(store), *between, *below, *_disk(config, room, store, rank))
    drafters = loaded.draft_models.drafters(model, store, loaded.attention, config)
    slots = min(config.max_running, step_tokens(config, room.device))
    width = room.widest(KV_SCHEMES)
    with timed("the runner"):
        runner = ModelRunner(
            model=model,
            store=store,
            drafters=drafters,
            budget=room,
            attention=loaded.attention,
            slots=slots,
            width=width,
            block_size=config.block_size,
            stop_ids=stop_ids,
            device=room.device,
            weights=Weights(model, config.quantization, share=memory_share(room.device)),
            tiers=tiers,
            shared=config.ranks > 1,
            link=link,
        )
    return BuiltRunner(runner, (slots, width), tiers, (*drafters,))


def _load(
    config: EngineConfig,
    place: ModelPlace,
    device: torch.device,
    progress: Progress | None,
    collective: Collective | None,
    stage: int,
) -> LanguageModel:
    """Load the model; on a CPU, choose the number of threads by its size."""
    on_cpu, dummy = device.type == "cpu", config.dummy_weights
    if on_cpu:
        _use_threads(config, ONE_THREAD if dummy else _stored_bytes(place.folder))
    model = load_model(
        place,
        device=device,
        dtype=config.dtype,
        max_context=config.max_context,
        quantization=config.quantization,
        dummy=dummy,
        progress=progress,
        collective=collective,
        stage=stage,
        stages=config.pp,
        mtp=config.drafts_itself,
    )
    if on_cpu and dummy:  # there was no file to take the size from before
        _use_threads(config, sum(each.nbytes for each in chain(model.parameters(), model.buffers())))
    return model


def _disk(config: EngineConfig, room: CacheBudget, store: KVStore, rank: int) -> Iterator[Tier]:
    if config.kv_disk is None:
        return
    folder, nbytes = DiskRoom.parse(config.kv_disk)
    try:
        tier = DiskTier(
            folder,
            nbytes,
            lambda: KVStore.block_bytes(room.block_specs, config.block_size, room.dtype, store.scheme),
            waiting=max(2**28, free_host_memory() // 8 // config.ranks),  # a long reply of a large model
            rank=rank,
            ranks=config.ranks,
        )
        yield SharedTier(tier, rank) if rank else tier
    except (OSError, sqlite3.Error) as error:
        raise BadInput(f"kv_disk: {folder} cannot hold blocks: {reason_of(error, folder)}") from error


def _placeholder_tokenizer(model: LanguageModel) -> Tokenizer:
    """A tokenizer for a model without one. It has no chat template, so only the basic calls are used."""
    return cast(Tokenizer, BareTokenizer(model.config.vocab, model.config.stop_ids))


def _scheduler(
    config: EngineConfig,
    room: CacheBudget,
    policy: Policy,
    built: BuiltRunner,
    bus: Bus,
) -> Scheduler:
    states = keeps_state(room.specs)  # steps of several long pieces are not in graphs then
    scheduler = Scheduler(
        pool=BlockPool(room.fit(config.kv_scheme).blocks, config.block_size),
        tables=BlockTables(*built.tables, room.groups.count),
        policy=policy,
        rules=SchedulerSettings(
            step_tokens=step_tokens(config, room.device, () if states else built.runner.piece_sizes),
            prefix_cache=config.prefix_cache,
            chunked_prefill=config.chunked_prefill,
            preemption=config.preemption,
            overlap=room.device.type == "cuda" or config.pp > 1 if config.depth is None else config.depth > 0,
            stages=config.pp,
        ),
        emit=bus.emit,
        kv_scheme=config.kv_scheme,
        groups=room.groups,
        budget=room.budget,
        tiers=built.tiers,
        keeps_state=states,
    )
    scheduler.pace.limit(config.max_slowdown)
    return scheduler


def _identity(files: bytes, loaded: LoadedModel) -> bytes:
    """What the contents of blocks depend on, apart from the two schemes. `files`: the hash of the model's."""
    config, room = loaded.config, loaded.budget
    kinds = room.device.type, loaded.attention.name, str(room.dtype)
    settings = *kinds, config.block_size, room.specs, room.groups.layers
    return model_identity(files, loaded.model, *settings, config.tp, config.pp)


def _limits(loaded: LoadedModel, built: BuiltRunner, context: int, stop_ids: frozenset[int]) -> Limits:
    config = loaded.config
    return Limits(
        context=context,
        vocab=loaded.model.config.vocab,
        waiting=config.max_waiting,
        stop_ids=stop_ids,
        speculation=("ngram", "suffix", *built.drafters),
        windowed=config.forgets,
        longest=loaded.budget.longest,
        chosen=config.max_context is not None,
    )


def _info(place: ModelPlace, loaded: LoadedModel, policy: Policy) -> EngineInfo:
    room = loaded.budget
    dtype, device = str(room.dtype).removeprefix("torch."), _device_name(room.device)
    windows = tuple(dict.fromkeys(spec.reach or 0 for spec in room.specs if spec.has_keys))
    return EngineInfo(place.name, dtype, device, loaded.attention.name, policy.name, dtype, windows)


def _use_threads(config: EngineConfig, weights: int) -> None:
    """Set the number of CPU threads. A small model gains nothing from a second thread, even while loading,
    and loses a lot on a busy machine. The next model in this process may be large. Ranks share the cores.
    """
    every = max(1, ALL_THREADS // config.ranks)
    torch.set_num_threads(config.threads or (1 if weights < ONE_THREAD else every))


def _stored_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in shards(folder))


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
