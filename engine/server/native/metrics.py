"""The server's metrics. Names, labels and meanings are vLLM's (docs/server.md)."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from engine.api.errors import QueueFull
from engine.api.events import (
    Admitted,
    Died,
    Event,
    Finished,
    FirstToken,
    Preempted,
    PromptSent,
    Queued,
    Restarting,
)
from engine.api.histogram import Histogram
from engine.api.params import SamplingParams
from engine.api.request import Finish
from engine.api.snapshot import EXCHANGE, GPU, HOST, Snapshot
from engine.host.client import EngineClient
from engine.server.http.errors import ApiError
from engine.server.native.prometheus import MetricsPage

# Each list has all bounds of vLLM's, because boards may ask for one of them.
_INSTANT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75)
_FIRST = (*_INSTANT, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560)
_FRACTIONS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75)
_BETWEEN = (*_FRACTIONS, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_MINUTE = (0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60)
_PHASE = (*_MINUTE, 120, 240, 480, 960, 1920, 7680)
_TOKENS = tuple(digit * 10**power for power in range(6) for digit in (1, 2, 5))
_REPLIES = (1, 2, 5, 10, 20)
_PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)

_REASONS = {"stop": "stop", "length": "length", "aborted": "abort", "failed": "error"}
_REJECTIONS = ("full", "per_key", "invalid")
_INVALID = (400, 413, 415, 422)  # statuses


@dataclass(slots=True)
class _Life:
    """What is known of a request that has not ended. Times are on the engine's clock."""

    arrived: float
    prompt: int = 0
    given: int = 0  # tokens of the reply that it begins with
    admitted: float | None = None
    first: float | None = None  # when its first token came
    had: int = 1  # tokens of the reply at that time
    preemptions: int = 0


class Metrics:
    """Counts the engine's events on its thread. Gauges come from the snapshot of each scrape."""

    def __init__(self, host: EngineClient, model: str, prefix: str = "minichat") -> None:
        self._prefix, self._labels = prefix, {"model_name": model}
        if prefix == "vllm":
            self._labels["engine"] = "0"  # its boards filter by it
        self._lives: dict[int, _Life] = {}
        self._finished: Counter[str] = Counter()
        self._rejected: Counter[str] = Counter()
        self._admitted_tokens = self._cached_tokens = self._sent_tokens = self._preemptions = 0
        self._sent, self._sending = Counter[str](), Histogram(_FIRST)  # blocks of prompts computed apart
        self._ways = Counter[str]()  # that the blocks sent have taken
        self.generated = 0  # tokens of replies, also of those that best_of drops; counted on the loop
        self._histograms: list[tuple[str, str, Histogram]] = []
        made = self._histogram
        self._ttft = made("time_to_first_token_seconds", "From arrival to the first token.", _FIRST)
        self.itl = made("inter_token_latency_seconds", "Between two tokens of a reply.", _BETWEEN)
        self._tpot = made("request_time_per_output_token_seconds", "Mean time of a reply's token.", _BETWEEN)
        self._e2e = made("e2e_request_latency_seconds", "From arrival to the end.", _PHASE)
        self._queue = made("request_queue_time_seconds", "From arrival to admission.", _PHASE)
        self._inference = made("request_inference_time_seconds", "From admission to the end.", _PHASE)
        self._prefill = made("request_prefill_time_seconds", "From admission to first token.", _PHASE)
        self._decode = made("request_decode_time_seconds", "From the first token to the end.", _PHASE)
        self._prompt = made("request_prompt_tokens", "Tokens of a prompt.", _TOKENS)
        self._computed = made("request_prefill_kv_computed_tokens", "Uncached tokens of a prompt.", _TOKENS)
        self._generated = made("request_generation_tokens", "Generated tokens of a reply.", _TOKENS)
        self.longest = made("request_max_num_generation_tokens", "Tokens of the longest reply.", _TOKENS)
        self._n = made("request_params_n", "Replies that a request asked for.", _REPLIES)
        self._max_tokens = made("request_params_max_tokens", "max_tokens, where it was given.", _TOKENS)
        self._preempted = made("request_num_preemptions", "Preemptions of a reply or a search.", _PREEMPTIONS)
        self.close = host.subscribe(self._on_event)

    def _histogram(self, name: str, about: str, bounds: Sequence[float]) -> Histogram:
        self._histograms.append((name, about, made := Histogram(bounds)))
        return made

    # On the event loop

    def submitted(self, params: SamplingParams, requests: int) -> None:
        """Count requests with these parameters that the engine has accepted."""
        self._n.observe(params.n, requests)
        if params.max_tokens is not None and not params.pooling:
            self._max_tokens.observe(params.max_tokens, requests)

    def rejected(self, error: ApiError) -> None:
        """Count a request that was refused, if the client or the load is the reason."""
        if error.status == 429:
            self._rejected["per_key"] += 1
        elif isinstance(error.cause, QueueFull):
            self._rejected["full"] += 1
        elif error.status in _INVALID:
            self._rejected["invalid"] += 1

    # On the engine's thread

    def _on_event(self, event: Event) -> None:
        match event:
            case Queued():
                self._lives[event.request] = _Life(event.at, event.prompt, event.generated)
                self._prompt.observe(event.prompt)
            case Admitted():
                self._admit(event)
            case FirstToken():
                self._start(event)
            case PromptSent(error=""):
                self._sent.update(sent=event.sent, there=event.blocks - event.sent)
                self._ways[event.way] += event.sent
                self._sending.observe(event.seconds)
            case PromptSent():
                self._sent["failed"] += event.blocks
            case Preempted():
                self._preemptions += 1
                if (life := self._lives.get(event.request)) is not None:
                    life.preemptions += 1
            case Finished():
                self._end(event)
            case Died() | Restarting():  # a lost process has not reported these ends
                self._finished[Finish.FAILED.value] += len(self._lives)
                self._lives.clear()

    def _admit(self, event: Admitted) -> None:
        if (life := self._lives.get(event.request)) is None:
            return  # a sample of another request
        life.admitted = event.at
        cached = min(event.cached, life.prompt)  # the others are of the reply that it continues
        self._queue.observe(event.at - life.arrived)
        self._computed.observe(life.prompt - cached)
        self._admitted_tokens += life.prompt
        sent = min(event.held, cached) if event.loaded and event.tier == EXCHANGE else 0
        self._sent_tokens += sent
        self._cached_tokens += cached - sent

    def _start(self, event: FirstToken) -> None:
        forked = _Life(event.at - event.seconds, given=max(event.generated - 1, 0))  # and was not queued
        life = self._lives.setdefault(event.request, forked)
        life.first, life.had = event.at, max(event.generated, life.given + 1)  # a search has no tokens yet
        self._ttft.observe(event.seconds)
        if life.admitted is not None:
            self._prefill.observe(event.at - life.admitted)

    def _end(self, event: Finished) -> None:
        life = self._lives.pop(event.request, None)
        for finish, tokens in ((event.finish, event.tokens), *event.others):
            self._generated.observe(0 if life is None else max(0, tokens - life.given))
            self._finished[finish] += 1
        if life is None:  # it has no token
            return
        self._e2e.observe(event.at - life.arrived)
        self._preempted.observe(life.preemptions)
        if life.admitted is not None:
            self._inference.observe(event.at - life.admitted)
        if life.first is not None:
            self._decode.observe(event.at - life.first)
            if event.tokens > life.had:
                self._tpot.observe((event.at - life.first) / (event.tokens - life.had))

    # A scrape

    def text(self, shot: Snapshot) -> str:
        """Return all metrics as text."""
        page = MetricsPage(self._prefix, **self._labels)
        _add_state(page, shot)
        hits, sent, prompts = self._cached_tokens, self._sent_tokens, self._admitted_tokens
        by_source = {"local_compute": prompts - hits - sent, "local_cache_hit": hits}
        if self._sent:
            by_source["external_kv_transfer"] = sent
        ends = {reason: self._finished[finish] for finish, reason in _REASONS.items()}
        rejections = {reason: self._rejected[reason] for reason in _REJECTIONS}
        page.counter("prompt_tokens_total", "Prompt tokens of admitted requests.", prompts)
        page.counter("prompt_tokens_cached_total", "Those of them that were cached.", hits)
        page.split("counter", "prompt_tokens_by_source_total", "The same, by source.", "source", by_source)
        page.counter("generation_tokens_total", "Tokens generated for replies.", self.generated)
        about = "Prompt tokens of admitted requests, also of those that may take none from the cache."
        page.counter("prefix_cache_queries_total", about, prompts)
        page.counter("prefix_cache_hits_total", "Prompt tokens found in the prefix cache.", hits)
        page.counter("num_preemptions_total", "Preemptions.", self._preemptions)
        page.split("counter", "request_success_total", "Ended replies.", "finished_reason", ends)
        page.split("counter", "admission_rejections_total", "Refused requests.", "reason", rejections)
        if shot.iteration_tokens.counts:
            page.histogram("iteration_tokens_total", "Tokens of a step.", shot.iteration_tokens)
        if self._sent:
            blocks = {what: self._sent[what] for what in ("sent", "there", "failed")}
            page.split("counter", "prompt_blocks_apart_total", "Blocks of prompts apart.", "what", blocks)
            ways = {way: self._ways[way] for way in (GPU, HOST)}
            page.split("counter", "prompt_blocks_sent_total", "Those sent, by their way.", "way", ways)
            about = "Until a prompt's blocks were sent."
            page.histogram("request_prompt_apart_seconds", about, self._sending.view())
        for name, about, histogram in self._histograms:
            page.histogram(name, about, histogram.view())
        return page.text()


def _add_state(page: MetricsPage, shot: Snapshot) -> None:
    """Add the gauges, which a snapshot has."""
    changing = shot.change is not None and not shot.change.over
    deferred = shot.loading + (shot.waiting if changing else 0)
    reasons = {"capacity": shot.queued - deferred, "deferred": deferred}
    about = "Rows of the running batch: replies, and the hypotheses of searches."
    page.gauge("num_requests_running", about, shot.running)
    page.gauge("num_requests_waiting", "Requests in the queue.", shot.queued)
    page.split("gauge", "num_requests_waiting_by_reason", "Requests in the queue.", "reason", reasons)
    usage = shot.blocks.in_use / max(1, shot.usable_blocks)
    page.gauge("kv_cache_usage_perc", "Share of KV blocks in use; 1 is all.", usage)
    page.gauge(
        "cache_config_info",
        "The KV cache, in labels: the blocks of all replicas that run, and the settings of each.",
        1,
        block_size=str(shot.block_size),
        num_gpu_blocks=str(shot.usable_blocks),
        num_cpu_blocks=str(shot.host_size),
        cache_dtype=shot.kv_dtype,
        kv_scheme=shot.kv_scheme,
        enable_prefix_caching=str(any(each.name == "prefix_cache" and each.on for each in shot.switches)),
    )
    if bubbles := shot.bubbles:
        about = "Share of the time with steps in flight in which a stage of the pipeline had nothing to do."
        values = {str(stage): bubble for stage, bubble in enumerate(bubbles, 1)}
        page.split("gauge", "pipeline_bubble", about, "stage", values)
    if any(each.traffic for each in shot.ranks):  # a step has been measured
        about = (
            "Share of the time with steps in flight that a rank spends in sums and gathers with the others."
        )
        joining = {str(rank): each.joining for rank, each in enumerate(shot.ranks)}
        page.split("gauge", "rank_joining", about, "rank", joining)
        about = "Bytes that a rank sends to the others per second with steps in flight."
        traffic = {str(rank): each.traffic for rank, each in enumerate(shot.ranks)}
        page.split("gauge", "rank_sent_bytes_per_second", about, "rank", traffic)
    if shot.experts is not None:
        about = "Tokens of a layer's busiest expert since the start, divided by the mean of its experts."
        most = zip(shot.experts.layers, shot.experts.imbalance().tolist(), strict=True)
        page.split("gauge", "expert_imbalance", about, "layer", {str(layer): value for layer, value in most})
    page.gauge("engine_up", "1 while the engine runs, else 0.", int(shot.runs))
    if shot.runs:
        states = {"awake": 1, "weights_offloaded": 0, "discard_all": 0}
        about = "Always awake; absent while no engine runs."
        page.split("gauge", "engine_sleep_state", about, "sleep_state", states)
