"""A step's work on a GPU: the fused forward pass, and sampling on the device."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from hashlib import sha256

from torch import Tensor

from engine.attention.base import AttentionBackend, Batch
from engine.attention.graph_work import GraphMetadata, GraphWork
from engine.attention.observers import Observers
from engine.attention.triton_backend import TritonAttention
from engine.execution.cuda.arrivals import Wait
from engine.execution.cuda.foreign import ForeignDecoder, can_be_captured
from engine.execution.cuda.sampling_fields import SamplingFlags
from engine.execution.cuda.sizes import piece_sizes
from engine.execution.protocol import Compilation
from engine.kernels.triton.precompile import once, start_compiling, start_steps
from engine.kernels.triton.sampling.edits import edit, note
from engine.kernels.triton.sampling.sample import sample
from engine.kernels.triton.sampling.top_logprobs import top_logprobs
from engine.kv.store import KVStore
from engine.models.adapters.bank import AdapterBank
from engine.models.adapters.products import StepAdapters
from engine.models.base import LanguageModel
from engine.models.decoder import Decoder
from engine.models.fused import FusedDecoder
from engine.sampling.penalties import SeenTokens

# Multiplications, by the weights of a layer, that take about as long as launching its kernels one by one.
_LAUNCHED = 2**36


class GpuStage:
    """A model with Triton attention. DecodeSteps captures it; ModelRunner calls it directly too."""

    def __init__(
        self,
        model: LanguageModel,
        store: KVStore,
        attention: TritonAttention,
        adapters: AdapterBank | None = None,
        states: Tensor | None = None,
    ) -> None:
        """`states`: where decodes in graphs leave their hidden states."""
        self._decoder: FusedDecoder | ForeignDecoder
        if isinstance(model, Decoder):
            self._decoder = FusedDecoder(model, store.layers, attention)
        else:
            self._decoder = ForeignDecoder(model, store.layers, attention)
        self._model, self._attention, self._store = model, attention, store
        first = next(iter(model.parameters()))
        self._dtype, self.device = first.dtype, first.device
        self._states = states
        self.compilations, self.vocab = 0, model.config.vocab  # compilations that were started
        self.adapters = adapters if adapters is not None and adapters.launches else None
        # The weights that a token is multiplied by are about 12 hidden squared in most models.
        self.longest = _LAUNCHED // (12 * model.config.hidden**2)
        self._tapped: Decoder | None = None
        if states is not None and isinstance(model, Decoder):
            most = max(len(states), piece_sizes(self.longest)[-1])
            model.tap_buffers = {layer: states.new_zeros(most, states.shape[1]) for layer in model.taps}
            self._tapped = model

    def work(self, tokens: int, *, pieces: bool = False, rows: int | None = None) -> GraphWork:
        specs, packed = [each.spec for each in self._store.layers], self._store.scheme != "none"
        return GraphWork(specs, tokens, self._dtype, self.device, packed=packed, pieces=pieces, rows=rows)

    def start_compiling(self, steps: Mapping[Hashable, Callable[[], object]]) -> Compilation:
        self.compilations += 1
        if not isinstance(model := self._model, Decoder):
            return start_compiling(lambda: [launches() for launches in steps.values()])
        parts = model.blocks[0], model.blocks[-1], model.head  # their types depend on the weights' scheme
        types = {type(each).__name__ for part in parts for each in part.modules()}
        made_of = repr((sorted(types), model.config, self._store.scheme, self._states is None))
        hashed = sha256(made_of.encode()).hexdigest()
        return start_steps({f"{hashed} {kind!r}": launches for kind, launches in steps.items()})

    def logits(self, fields: Mapping[str, Tensor], last_ids: Tensor, metadata: GraphMetadata) -> Tensor:
        key = (self, "logits", self._kernels(fields, metadata))
        return once(key, lambda: self._logits(fields, last_ids, metadata))

    def _logits(self, fields: Mapping[str, Tensor], last_ids: Tensor, metadata: GraphMetadata) -> Tensor:
        hidden = self._hidden(fields, last_ids, metadata)
        if self._states is not None:
            self._states[: len(hidden)].copy_(hidden)
        return self.head(hidden)

    def hidden(
        self, fields: Mapping[str, Tensor], last_ids: Tensor, metadata: GraphMetadata, wait: Wait
    ) -> Tensor:
        key = (self, "hidden", self._kernels(fields, metadata))
        return once(key, lambda: self._hidden(fields, last_ids, metadata, wait))

    def _hidden(
        self, fields: Mapping[str, Tensor], last_ids: Tensor, metadata: GraphMetadata, wait: Wait = None
    ) -> Tensor:
        if (stream := fields.get("stream")) is None:
            x = self._decoder.embed(fields["ids"], fields["slots"], last_ids)
        else:
            x = stream.clone()  # the forward overwrites it, padding included
        places, adapters = fields.get("adapters"), None
        if places is not None and self.adapters is not None:
            adapters = self.adapters.at(places)
        if (listed := fields.get("observers")) is not None:
            metadata = replace(metadata, observers=Observers(listed, fields["received"].zero_()))
        found = self._decoder.forward(x, fields["positions"], fields["places"], metadata, adapters, wait)
        if self._tapped is not None:
            self._leave_taps(self._tapped)
        return found

    def _leave_taps(self, model: Decoder) -> None:
        """Copy what layers have read to where it stays until the next step."""
        for layer, buffer in model.tap_buffers.items():
            if (read := model.taps[layer]) is not None:  # None: this layer's kernels are compiled already
                buffer[: len(read)].copy_(read)
                model.taps[layer] = None

    def _kernels(self, fields: Mapping[str, Tensor], metadata: GraphMetadata) -> Hashable:
        """What the launches depend on: one size has the same tiles and alignments."""
        lists = (each for launches in metadata.work.values() for each in launches)
        layout = self.adapters.layout if self.adapters and "adapters" in fields else None
        tokens = len(fields["ids"])
        kind = tokens, layout, "observers" in fields
        return *kind, *((each.items.shape, each.merges.shape, each.most) for each in lists)

    def sample(
        self,
        logits: Tensor,
        fields: Mapping[str, Tensor],
        last_ids: Tensor,
        flags: SamplingFlags,
        seen: SeenTokens | None,
    ) -> tuple[Tensor, ...]:
        key = (self, len(logits), flags)
        return once(key, lambda: self._sample(logits, fields, last_ids, flags, seen))

    def _sample(
        self,
        logits: Tensor,
        fields: Mapping[str, Tensor],
        last_ids: Tensor,
        flags: SamplingFlags,
        seen: SeenTokens | None,
    ) -> tuple[Tensor, ...]:
        scores, columns, slots, tokens = logits, fields["columns"], fields["slots"], fields["tokens"]
        if flags.penalized or flags.biased:
            counts = None if seen is None else (seen.prompt, seen.reply)
            biases = (fields["bias_at"], fields["biases"]) if flags.biased else None
            scores = edit(logits, columns, slots, counts, biases)
        pdl = self._decoder.pdl(len(logits))
        sample(tokens, last_ids, scores, columns, slots, filtered=flags.filtered, pdl=pdl)
        if seen is not None:
            note(seen.reply, tokens, columns, slots)
        return top_logprobs(logits, tokens, fields["asked"]) if flags.logprobs else ()

    def forward(
        self,
        batch: Batch,
        adapters: StepAdapters | None = None,
        stream: Tensor | None = None,
        wait: Wait = None,
    ) -> Tensor:
        """A step that is not in a graph: [tokens, hidden].

        `stream`: from an earlier stage. `wait`: see Stage (graphs.py).
        """
        x = self._decoder.embedded(batch.ids) if stream is None else stream
        metadata = self._attention.prepare(batch)
        return self._decoder.forward(x, batch.positions, batch.places, metadata, adapters, wait)

    def head(self, hidden: Tensor) -> Tensor:
        return self._decoder.logits(hidden)


def stage_for(
    model: LanguageModel,
    store: KVStore,
    attention: AttentionBackend,
    adapters: AdapterBank | None,
    states: Tensor | None,
) -> GpuStage | None:
    """None: steps use the model's own forward pass."""
    if not isinstance(attention, TritonAttention):
        return None
    stage = GpuStage(model, store, attention, adapters, states)
    if isinstance(model, Decoder) or can_be_captured(stage, store, model, stage.device):
        return stage
    return None
