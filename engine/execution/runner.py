"""Runs steps on the model."""

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from engine.api.cache_spec import KvSchemeName
from engine.api.errors import BadInput
from engine.api.snapshot import Load, SchemeView, StepSplit
from engine.api.speeds import Reads, Speeds
from engine.attention.base import AttentionBackend, attending, why_no_kv_scheme
from engine.devices import give_back, lost, use
from engine.execution import changes
from engine.execution.batch import BatchBuilder, PackedBatch
from engine.execution.block_scores import NO_SCORES, StepScores, most_observed
from engine.execution.budget import CacheBudget
from engine.execution.cache_blocks import blocks_of, mover_on
from engine.execution.compiling import Launches, StepCompiler, example, kind_of, sampling_kind
from engine.execution.cuda.arrivals import Arrivals
from engine.execution.cuda.choose import recordable, replay_drafts, stage_on
from engine.execution.cuda.graphs import DecodeSteps, Stage
from engine.execution.cuda.replays import Hidden, Replays, preparations, sampler
from engine.execution.draft.drafting import Drafter
from engine.execution.draft.step_drafts import StepDrafts
from engine.execution.in_flight import InFlightStep, ModelInput
from engine.execution.load import ExpertMeter, LoadMeter
from engine.execution.memory import MemoryMeter, T, with_memory
from engine.execution.pooling import span_rows, sum_spans
from engine.execution.prompt_logprobs import read_prompts, target_rows
from engine.execution.protocol import Compilation, Fit, ReadAdapter, StepKind, StepResult, WeightsPlan
from engine.execution.results import SampledTokens
from engine.execution.sampling_state import SamplingState
from engine.execution.split import LAUNCH, SAMPLING, StepSplitter
from engine.execution.traffic import SpeedMeter
from engine.execution.transfers import TransferRunner
from engine.execution.weights import Weights
from engine.kv.store import KVStore
from engine.kv.tables import TableMirror
from engine.kv.tiers.tier import Tier, TransferEnd, TransferOrder
from engine.models.adapters.bank import AdapterBank
from engine.models.base import LanguageModel
from engine.models.layers.stage_link import StageEnds, StageLink
from engine.sampling.rows import SamplingInputs
from engine.scheduling.step import Masks, SlotSampling, Step

if TYPE_CHECKING:
    from engine.execution.cuda.stage import GpuStage


class ModelRunner:
    """Owns the model and the cache tensors."""

    def __init__(
        self,
        *,
        model: LanguageModel,
        store: KVStore,
        attention: AttentionBackend,
        slots: int,
        width: int,
        block_size: int,
        stop_ids: frozenset[int],
        device: torch.device,
        drafters: Mapping[str, Drafter] | None = None,
        budget: CacheBudget | None = None,
        weights: Weights | None = None,
        tiers: Sequence[Tier] = (),
        shared: bool = False,
        link: StageLink | None = None,
    ) -> None:
        """`slots` rows of at most `width` blocks. `shared`: with other ranks. `link`: to other stages."""
        # A rank cannot repeat a step alone, and a step that has changed states cannot be repeated.
        self._tries = 1 if shared or store.keeps_state else 2
        self.model, self.store, self.weights, self.attention = model, store, weights, attention
        self.device, self._budget, self._scores = device, budget, NO_SCORES
        self._tables, self._block_size = TableMirror(slots, width, len(store.groups)), block_size
        self.adapters, self._ends = AdapterBank(model, device), StageEnds(link)
        self._batches = BatchBuilder(self._tables, block_size, device, self.adapters)
        vocab = model.config.vocab
        self._sampling_state = SamplingState(slots=slots, vocab=vocab, stop_ids=stop_ids, device=device)
        self._drafts = StepDrafts(drafters or {}, self._batches, self._sampling_state, slots)
        self.graphs: bool | None = None
        self._inference = torch.inference_mode()  # created once: creating it costs as much as entering it
        self._load, self.splitter = LoadMeter.of(device), StepSplitter(model)
        self._speeds, self.experts = SpeedMeter(device), ExpertMeter(model).read
        self.arrivals = Arrivals(store.memory) if shared else Arrivals.on(device, store)  # no rank follows
        self._recordable = weights is None or weights.scheme.graphs  # whether a graph can hold the layers
        self._transfers = TransferRunner(tiers, blocks_of(store, device, self.arrivals))
        self._use_store()

    def _use_store(self) -> None:
        """Rebuild what depends on the cache's scheme."""
        model, store = self.model, self.store
        stage = stage_on(self.device, model, store, self.attention, self.adapters, self._drafts.states)
        self.use_stages(stage, stage if recordable(model) else None)
        self._memory = MemoryMeter(model, store, self.device, draft=self._drafts, adapters=self.adapters)
        replay_drafts(self.device, self._drafts.small, self._steps, self._sampling_state)
        for each in (self.store, *self._drafts.stores):
            each.mover = mover_on(self.device, arrivals=self.arrivals)

    def use_stages(self, stage: "GpuStage | None", decode: Stage | None) -> None:
        """Set what launches kernels: of any step, and of decode steps in graphs. None: plain torch runs."""
        self._stage, self._compiler, self._steps = stage, StepCompiler(), None
        if decode is not None:
            tables, size, last_ids = self._tables, self._block_size, self._sampling_state.last_ids
            observed = most_observed(self._budget, tables)
            self._steps = DecodeSteps(
                decode, self._ends, tables=tables, block_size=size, last_ids=last_ids, observed=observed
            )
        if (self._steps is None) is not (self.graphs is None):  # graphs became available, or unavailable
            self.graphs = None if self._steps is None else True

    @property
    def graph_sizes(self) -> Sequence[int]:
        return () if self._steps is None else self._steps.sizes

    @property
    def piece_sizes(self) -> Sequence[int]:
        return () if self._steps is None else self._steps.piece_sizes

    @torch.inference_mode()
    def start_compiling(self, kinds: Sequence[StepKind]) -> list[Compilation]:
        launches: dict[Hashable, Launches] = {"blocks": partial(self.store.copy, [(0, 0)])}  # tiers need it
        vocab, samples = self.model.config.vocab, self._ends.samples
        eager = [kind for kind in kinds if kind.prompt and not kind.pieces]
        for piece, inputs in (example(kind, vocab, samples=samples) for kind in eager):
            launches[kind_of(piece, inputs)] = partial(self._launch_kernels, self._pack(piece), inputs)
        begun = [self._stage and self._compiler.start(self._stage, launches)]
        if self._replayed is not None:
            others = [kind for kind in kinds if kind not in eager]
            begun += self._replayed.start_compiling(others, self.arrivals.waiting)
        return [each for each in begun if each]

    @torch.inference_mode()
    def capture(self, kinds: Sequence[StepKind]) -> None:
        if self._replayed is not None:
            self._replayed.capture(kinds, self.arrivals.waiting)

    def products_changed(self, *, recordable: bool) -> None:
        """The model's linear layers have been replaced. `recordable`: whether a graph can hold them."""
        self._recordable = recordable
        self._compiler.forget()
        if self._steps is not None:
            self._steps.forget()

    def _blocks_with(self, more: int) -> int | None:
        """How many blocks fit if the cache gets `more` bytes; None if the number is fixed."""
        budget = None if self._drafts.small else self._budget
        return None if budget is None else budget.blocks_with(more, self.store.scheme)

    def _own_weights(self) -> Weights:
        if self.weights is None:
            raise BadInput("the weights of this engine cannot be changed")
        return self.weights

    def _use_scheme(self, weights: Weights, scheme: str) -> None:
        """Finish a change of scheme. The cache gets the memory the weights freed, or gives up some."""
        freed_bytes = weights.settle(scheme)
        self._budget = self._budget and self._budget.with_more(freed_bytes)
        self.products_changed(recordable=weights.scheme.graphs)
        give_back(self.device)  # for the KV cache, and for other processes

    @property
    def weights_scheme(self) -> str:
        return "none" if self.weights is None else self.weights.scheme.name

    def read_adapter(self, folder: Path) -> ReadAdapter:
        return self.adapters.read(folder)

    def weight_schemes(self) -> tuple[SchemeView, ...]:
        return () if self.weights is None else self.weights.schemes(self.store.scheme, self._blocks_with)

    def plan_weights(self, scheme: str) -> WeightsPlan | None:
        return None if self.weights is None else self.weights.plan(scheme, self._blocks_with)

    def fit(self) -> Fit:
        if self._budget is None:
            raise BadInput("the cache of this engine cannot be changed")
        return self._budget.fit(self.store.scheme)

    def _recache(self, scheme: KvSchemeName) -> None:
        if self._budget is None:
            raise BadInput("the cache of this engine cannot be changed")
        if problem := why_no_kv_scheme(self.attention, self.store.specs, scheme):
            raise BadInput(problem)
        self._budget.fit(scheme)  # raises if not even one block fits
        self._stage = self._steps = None
        self._drafts.release()  # first: another number of blocks fits
        try:
            self._budget.rebuild(self.store, scheme)
        finally:
            self._transfers.reset()
            self._drafts.serve(self.store)
            self._use_store()

    def kv_schemes(self) -> tuple[SchemeView, ...]:
        problem_of = partial(why_no_kv_scheme, self.attention, self.store.specs)
        return () if self._budget is None else self._budget.views(problem_of)

    def apply(self, change: changes.RunnerChange) -> None:
        self.splitter.forget()
        self._memory.forget()
        match change:
            case changes.ReplaceLayer(index, scheme):
                self._own_weights().replace(index, scheme)
            case changes.UseScheme(scheme):
                self._use_scheme(self._own_weights(), scheme)
            case changes.Resize(blocks, held):
                self.store.resize(blocks, held)
                if self._steps is not None:
                    self._steps.forget()
            case changes.Recache(kv_scheme):
                self._recache(kv_scheme)
            case changes.UseGraphs(on):
                self.graphs = on
            case changes.AttachAdapter(number, folder, digest):
                self.adapters.load(number, Path(folder), digest)
            case changes.DetachAdapter(number):
                self.adapters.drop(number)

    def launch(self, step: Step) -> InFlightStep:
        if self._replayed is not None and self._stage is not None:
            self._compiler.begin(step, self.start_compiling, self.piece_sizes)
        with self._inference, self.arrivals.awaited(step, kernels=self._stage is not None):
            began = time.monotonic()
            self._begin(step)
            self.splitter.begin()
            before = preparations(self._stage, self._steps)
            compute = partial(self._with_memory, lambda: self.compute(step, began), step.sampling)
            launched = self.splitter.timed(LAUNCH, compute)
            launched.compiled = preparations(self._stage, self._steps) != before
            return launched

    @torch.inference_mode()
    def skip(self, step: Step) -> None:
        self._begin(step)

    def transfer(self, order: TransferOrder) -> None:
        self._transfers.begin(order)

    def transferred(self, *, wait: bool = False) -> list[TransferEnd]:
        return self._transfers.ended(wait=wait)

    def follow(self, transfer: int) -> bool:
        return self._transfers.follow(transfer)

    def _begin(self, step: Step) -> None:
        """Apply the step's changes and block copies."""
        self._tables.apply(step.tables)
        self._sampling_state.apply(step.sampling)
        self._drafts.read(step.history)
        for each in (self.store, *self._drafts.stores) if step.copies else ():
            each.copy(step.copies)

    @torch.inference_mode()
    def supply(self, handle: InFlightStep, masks: Masks) -> None:
        self.splitter.timed(LAUNCH, lambda: self._with_memory(lambda: self.sample(handle, masks)))

    def _with_memory(self, work: Callable[[], T], sampling: Sequence[SlotSampling] = ()) -> T:
        """Run `work`. If it runs out of memory, release reserves and retry once; then raise NoMemory."""

        def give_back() -> None:
            self._sampling_state.apply(sampling)  # drafts of the first try were counted
            self.give_back_reserve()

        return with_memory(work, give_back, self._tries)

    def compute(self, step: Step, began: float) -> InFlightStep:
        """Run the model for a step. Sampling may have to wait for masks."""
        rows, ids, single, drafts = step.rows, step.ids, step.single, step.drafts
        if drafts:
            drafts, ids, rows, single = self._drafts.fill(step, replay=self._replayed is not None)
        launched = InFlightStep(sampling_rows := rows.sampling, began, drafts)
        if len(rows):  # a step may consist of block copies only
            targets, spans = target_rows(step) if step.targets else (), span_rows(step)
            self._scores = StepScores.of(self._budget, self.store.layers, rows, self._tables)
            self._run(ModelInput(rows, ids, single, sampling_rows, drafts, targets, spans), launched)
            if self._scores.filled:
                launched.scores = self._scores.finish(self._steps.received if self._steps else None)
                launched.mark_arrival(self.device)
        if not step.guided:
            self.sample(launched, None)
        return launched

    def sample(self, launched: InFlightStep, masks: Masks | None) -> None:
        """Sample after the model, if the step does not do both at once."""
        if (sample := launched.sample) is not None:
            launched.sampled = self.splitter.timed(SAMPLING, lambda: sample(masks).to_host())
            launched.sample = None
            launched.mark_arrival(self.device)

    def give_back_reserve(self) -> None:
        """Free the captured graphs, which are captured again later, and torch's cached memory."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            if self._steps is not None:
                self._steps.forget()
            torch.cuda.empty_cache()

    def collect(self, handle: InFlightStep) -> StepResult:
        return handle.result()

    def enter_thread(self) -> None:
        use(self.device)

    def device_error(self) -> str | None:
        return lost(self.device)

    def memory(self) -> dict[str, int]:
        return self._memory.read()

    def load(self) -> Load | None:
        return self._load.read() if self._load else None

    def reads(self) -> Reads:
        return self._memory.reads(self.weights)

    def split(self) -> StepSplit | None:
        return self.splitter.means

    def speeds(self) -> Speeds:
        if self.device.type == "cpu":
            self.splitter.ask()
        scheme = None if self.weights is None else self.weights.scheme
        return self._speeds.read(self.model, self.store.dtype, scheme, lambda: self.splitter.begun)

    def _run(self, piece: ModelInput, launched: InFlightStep) -> None:
        """Run the model. Sets `launched.prompts` for targets, and `launched.sample` for rows that sample."""
        found = None
        if (steps := self._replayed) is not None:
            replays = Replays(steps, self._sampling_state, self.device)
            batch = self._drafts.batch(partial(self._pack, piece))
            if replays.decode(piece, launched):
                self._drafts.keep(None, piece.rows, batch)
                return
            found = replays.hidden(piece, self.arrivals.wait, batch)
        inputs = self._for_kernels(piece)
        if found is None:
            found = self._hidden(piece, inputs)
        elif self._stage is not None and inputs is not None:
            self._compiler.compile(self._stage, sampling_kind(inputs), self._launch_sampling, found, inputs)
        self._drafts.keep(found.states, piece.rows, found.batch, self.arrivals.wait, found.replayed)
        if self._ends.leave(found.states):
            return
        if piece.targets:
            launched.prompts = read_prompts(self.model.logits, found.states, piece.targets).to_host()
        if piece.spans:
            launched.sums = sum_spans(found.states, piece.spans).to_host()
        if piece.targets or piece.spans:
            launched.mark_arrival(self.device)
        if isinstance(last := self._launch_sampling(found, inputs), SampledTokens):
            launched.sample = lambda masks: last
        elif len(piece.sampling_rows):
            launched.sample = sampler(self._sampling_state, self.model.logits(last), found.slots, piece)

    def _hidden(self, piece: ModelInput, inputs: SamplingInputs | None) -> Hidden:
        """Launch the model's kernels one by one."""
        packed = self._pack(piece)
        if self._stage is not None and (packed.adapters is None or self.adapters.launches):
            kind = kind_of(piece, inputs, packed.adapters)
            self._compiler.compile(self._stage, kind, self._launch_kernels, packed, inputs)
        packed.stream = self._ends.enter(len(piece.ids))
        return Hidden(self._forward(packed), packed.ends, packed.slots, packed.batch)

    @property
    def _replayed(self) -> DecodeSteps | None:
        return self._steps if self.graphs and self._recordable else None

    def _pack(self, piece: ModelInput) -> PackedBatch:
        packed = self._batches.build(piece.rows, piece.ids, piece.single, self._sampling_state.last_ids)
        packed.stream = self._ends.blank(len(piece.ids))
        return packed

    def _launch_kernels(self, packed: PackedBatch, inputs: SamplingInputs | None) -> SampledTokens | Tensor:
        return self._launch_sampling(Hidden(self._forward(packed), packed.ends, packed.slots), inputs)

    def _launch_sampling(self, found: Hidden, inputs: SamplingInputs | None) -> SampledTokens | Tensor:
        """Return the sampled tokens, or hidden states for the sampler."""
        hidden = found.states if found.ends is None else found.states[found.ends]
        if self._stage is None or inputs is None:
            return hidden
        return self._sampling_state.by_stage(self._stage, self._stage.head(hidden), found.slots, inputs)

    def _for_kernels(self, piece: ModelInput) -> SamplingInputs | None:
        """The sampling inputs if kernels can sample these rows, else None."""
        if self._stage is None or not len(piece.sampling_rows) or not self._ends.samples:
            return None
        return self._sampling_state.kernel_inputs(piece.sampling_rows, drafted=bool(piece.drafts))

    def _forward(self, packed: PackedBatch) -> Tensor:
        if self._stage is not None:
            packed.batch.observers = self._scores.observing()
            return self._stage.forward(packed.batch, packed.adapters, packed.stream, self.arrivals.wait)
        attend = attending(self.attention, self.store.layers, packed.batch)
        return packed.through(self.model, self._scores.watching(self.splitter.clocked(attend)))
