"""Metrics in Prometheus' text format. Names are vLLM's with the prefix `minichat:`."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate

from engine.api.events import Admitted, Died, Event, Finished, FirstToken, Preempted, Queued, Restarting
from engine.api.request import Finish
from engine.api.snapshot import Snapshot
from engine.host.protocol import EngineHost

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_FIRST = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_BETWEEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5)
_WHOLE = (0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)


class Histogram:
    """Written by one thread and read by another. A read may miss the newest sample, never an older one."""

    def __init__(self, name: str, about: str, bounds: Sequence[float]) -> None:
        self.name, self.about, self.bounds = name, about, bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self._counts[bisect_left(self.bounds, value)] += times
        self._sum += value * times

    def lines(self, labels: str) -> Iterable[str]:
        *below, total = accumulate(self._counts)
        for bound, count in zip(self.bounds, below, strict=True):
            yield f'{self.name}_bucket{{{labels},le="{bound:g}"}} {count}'
        yield f'{self.name}_bucket{{{labels},le="+Inf"}} {total}'
        yield f"{self.name}_sum{{{labels}}} {self._sum!r}"
        yield f"{self.name}_count{{{labels}}} {total}"


class Metrics:
    """Counts the engine's events on its thread. Gauges come from the snapshot of each scrape."""

    def __init__(self, host: EngineHost, model: str) -> None:
        self._labels = f'model_name="{_quoted(model)}"'
        self._arrivals: dict[int, tuple[float, int]] = {}  # arrival time and prompt tokens
        self._admitted: dict[int, float] = {}
        self._first: dict[int, float] = {}
        self._counts: Counter[str] = Counter()
        self._finished: Counter[str] = Counter()
        made: list[Histogram] = []

        def histogram(name: str, about: str, bounds: Sequence[float]) -> Histogram:
            made.append(Histogram(f"minichat:{name}", about, bounds))
            return made[-1]

        self.ttft = histogram("time_to_first_token_seconds", "From arrival to the first token.", _FIRST)
        self.itl = histogram("inter_token_latency_seconds", "Between two tokens of a reply.", _BETWEEN)
        self._e2e = histogram("e2e_request_latency_seconds", "From arrival to the end.", _WHOLE)
        self._queue = histogram("request_queue_time_seconds", "From arrival to admission.", _WHOLE)
        self._prefill = histogram("request_prefill_time_seconds", "From admission to first token.", _WHOLE)
        self._decode = histogram("request_decode_time_seconds", "From the first token to the end.", _WHOLE)
        self._prompt = histogram("request_prompt_tokens", "Tokens of a prompt.", _TOKENS)
        self._generated = histogram("request_generation_tokens", "Tokens of a reply.", _TOKENS)
        self._histograms = made
        self.generated = 0  # tokens handed to clients; counted on the loop
        self.close = host.subscribe(self._on_event)

    def _on_event(self, event: Event) -> None:
        """Runs on the engine's thread, so it only counts."""
        match event:
            case Queued():
                self._arrivals[event.request] = event.at, event.prompt
                self._prompt.observe(event.prompt)
            case Admitted() if event.request in self._arrivals:  # else it is a sample of another request
                arrived, prompt = self._arrivals[event.request]
                self._admitted[event.request] = event.at
                self._queue.observe(event.at - arrived)
                self._counts["prompt_tokens_total"] += prompt
                self._counts["prefix_cache_queries_total"] += prompt
                self._counts["prefix_cache_hits_total"] += event.cached
            case FirstToken():
                self._first[event.request] = event.at
                self._arrivals.setdefault(event.request, (event.at - event.seconds, 0))
                self.ttft.observe(event.seconds)
                if (admitted := self._admitted.pop(event.request, None)) is not None:
                    self._prefill.observe(event.at - admitted)
            case Preempted():
                self._counts["num_preemptions_total"] += 1
            case Finished():
                self._end(event)
            case Died() | Restarting():  # a lost process has not reported these ends
                self._finished[Finish.FAILED.value] += len(self._arrivals)
                for pending in (self._arrivals, self._admitted, self._first):
                    pending.clear()

    def _end(self, event: Finished) -> None:
        self._admitted.pop(event.request, None)
        if (first := self._first.pop(event.request, None)) is not None:
            self._decode.observe(event.at - first)
        if (arrival := self._arrivals.pop(event.request, None)) is not None:
            self._e2e.observe(event.at - arrival[0])
        self._generated.observe(event.tokens)
        self._finished[event.finish] += 1

    def text(self, shot: Snapshot) -> str:
        """Return all metrics as text."""
        lines: list[str] = []
        labels = self._labels

        def head(name: str, kind: str, about: str) -> None:
            lines.extend((f"# HELP {name} {about}", f"# TYPE {name} {kind}"))

        for name, value, about in _gauges(shot):
            head(f"minichat:{name}", "gauge", about)
            lines.append(f"minichat:{name}{{{labels}}} {value:g}")
        counts = {**self._counts, "generation_tokens_total": self.generated}
        for name, about in _COUNTERS.items():
            head(f"minichat:{name}", "counter", about)
            lines.append(f"minichat:{name}{{{labels}}} {counts.get(name, 0)}")
        head("minichat:request_success_total", "counter", "Finished requests, by reason.")
        for finish, reason in _REASONS.items():
            ended = f'minichat:request_success_total{{{labels},finished_reason="{reason}"}}'
            lines.append(f"{ended} {self._finished[finish]}")
        for histogram in self._histograms:
            head(histogram.name, "histogram", histogram.about)
            lines.extend(histogram.lines(labels))
        return "\n".join(lines) + "\n"


_REASONS = {"stop": "stop", "length": "length", "aborted": "abort", "failed": "error"}
_COUNTERS = {
    "prompt_tokens_total": "Prompt tokens of admitted requests.",
    "generation_tokens_total": "Generated tokens.",
    "prefix_cache_queries_total": "Prompt tokens looked up in the prefix cache.",
    "prefix_cache_hits_total": "Prompt tokens found in the prefix cache.",
    "num_preemptions_total": "Preemptions.",
}


def _gauges(shot: Snapshot) -> Iterable[tuple[str, float, str]]:
    yield "num_requests_running", shot.running, "Requests in the running batch."
    yield "num_requests_waiting", shot.waiting, "Requests in the queue."
    yield (
        "kv_cache_usage_perc",
        shot.blocks.in_use / max(1, shot.blocks.size),
        "Share of KV blocks in use; 1 is all.",
    )
    yield "engine_up", float(shot.state != "dead"), "1 while the engine is alive, else 0."


def _quoted(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
