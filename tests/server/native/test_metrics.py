"""The server's metrics: their form, their values, and that vLLM's boards and our own find theirs."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from websockets.sync.client import connect

from engine.api.events import Admitted, Died, Event, Finished, FirstToken, Preempted, Queued
from engine.api.expert_load import ExpertLoad
from engine.api.snapshot import Change, RankView
from tests.server.conftest import KEY, MODEL, Served, dry, serving, user
from tests.server.exposition import MetricFamily, families

PATH = "/v1/completions"

# What the boards in vLLM's repository ask for, under examples/observability: prometheus_grafana/grafana.json,
# and in dashboards/grafana vllm_overview, vllm_service_status, performance_statistics and query_statistics.
BOARDS = {
    "counter": {
        *("prompt_tokens_total", "generation_tokens_total", "request_success_total", "num_preemptions_total"),
        *("prefix_cache_hits_total", "prefix_cache_queries_total", "prompt_tokens_by_source_total"),
    },
    "gauge": {
        *("num_requests_running", "num_requests_waiting", "num_requests_waiting_by_reason"),
        *("kv_cache_usage_perc", "engine_sleep_state"),
    },
    "histogram": {
        *("time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds"),
        *("request_queue_time_seconds", "request_prefill_time_seconds", "request_decode_time_seconds"),
        *("request_time_per_output_token_seconds", "request_max_num_generation_tokens"),
        *("request_prompt_tokens", "request_generation_tokens", "iteration_tokens_total"),
    },
}
# vLLM's bounds (vllm/v1/metrics/buckets.py), as its server writes them. vllm_overview.json asks for some.
BOUNDS = {
    "time_to_first_token_seconds": "0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1.0 2.5 5.0 7.5 "
    "10.0 20.0 40.0 80.0 160.0 640.0 2560.0",
    **dict.fromkeys(
        ("inter_token_latency_seconds", "request_time_per_output_token_seconds"),
        "0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75 1.0 2.5 5.0 7.5 10.0 20.0 40.0 80.0",
    ),
    **dict.fromkeys(
        (
            "e2e_request_latency_seconds",
            *(f"request_{phase}_time_seconds" for phase in ("queue", "inference", "prefill", "decode")),
        ),
        "0.3 0.5 0.8 1.0 1.5 2.0 2.5 5.0 10.0 15.0 20.0 30.0 40.0 50.0 60.0 120.0 240.0 480.0 960.0 "
        "1920.0 7680.0",
    ),
    "iteration_tokens_total": "1.0 8.0 16.0 32.0 64.0 128.0 256.0 512.0 1024.0 2048.0 4096.0 8192.0 16384.0",
    "request_params_n": "1.0 2.0 5.0 10.0 20.0",
    "request_num_preemptions": "1.0 2.0 3.0 4.0 5.0 10.0 20.0",
    "request_prompt_tokens": "1.0 2.0 5.0 10.0 20.0 50.0 100.0 200.0 500.0 1000.0 2000.0 5000.0 100000.0",
}


def complete(client: httpx.Client, prompt: str | list[int] = "hi", **more: Any) -> None:
    body = {"prompt": prompt, "max_tokens": 2, "ignore_eos": True, **more}
    assert client.post(PATH, json=body).status_code == 200


def scrape(client: httpx.Client) -> dict[str, MetricFamily]:
    """Return our families, without the prefix."""
    found = families(client.get("/metrics").text)
    assert {name.split(":")[0] for name in found} == {"minichat"}
    return {name.removeprefix("minichat:"): family for name, family in found.items()}


@pytest.fixture
def fresh() -> Iterator[Served]:
    with serving(dry()) as served:
        yield served


def after(served: Served, *events: Event) -> dict[str, MetricFamily]:
    for event in events:
        served.engine.bus.emit(event)
    with served.client() as client:
        return scrape(client)


def test_the_page_is_valid(client: httpx.Client) -> None:
    complete(client, "something to count " * 30)
    complete(client, "something to count " * 30)
    assert client.get("/metrics").headers["content-type"].startswith("text/plain; version=0.0.4")
    found = scrape(client)
    assert all(
        dict(labels)["model_name"] == "test-model"
        for family in found.values()
        for _, labels in family.samples
    )
    assert found["num_requests_running"].value() == 0
    assert found["prefix_cache_hits_total"].value() >= 64
    assert found["generation_tokens_total"].value() >= 4
    assert found["request_success_total"].value(finished_reason="length") >= 2
    assert found["e2e_request_latency_seconds"].value("_count") >= 2
    assert found["inter_token_latency_seconds"].kind == "histogram"


def test_a_name_with_quotes_is_escaped() -> None:
    with serving(dry(), name='a "model"\\\n') as served, served.client() as client:
        labels = {labels for _, labels in scrape(client)["num_requests_running"].samples}
    assert labels == {frozenset({("model_name", r"a \"model\"\\\n")})}


def test_unfinished_requests_of_a_dead_engine_count_as_errors(fresh: Served) -> None:
    """A killed process cannot report how its requests ended."""
    died = Died(3, 0.3, "the engine's process was killed by SIGKILL")
    found = after(
        fresh,
        *(Queued(0, 0.0, request, 5) for request in (1, 2, 3)),
        FirstToken(1, 0.1, 1, 0.1),
        Finished(2, 0.2, 3, "stop", 4, ""),
        *(died, died),
    )
    ended = found["request_success_total"]
    assert {
        reason: ended.value(finished_reason=reason) for reason in ("stop", "length", "abort", "error")
    } == {
        "stop": 1,
        "length": 0,
        "abort": 0,
        "error": 2,
    }


def test_the_phases_of_a_request_add_up(fresh: Served) -> None:
    found = after(
        fresh,
        Queued(0, 10.0, 1, 100, generated=4),
        Admitted(1, 11.0, 1, 64),
        FirstToken(2, 13.0, 1, 3.0, generated=5),  # it continues four tokens
        Preempted(3, 14.0, 1, False, 4),
        Preempted(4, 15.0, 1, False, 4),
        Finished(9, 21.0, 1, "stop", 9, ""),
    )
    sums = {
        "request_queue_time_seconds": 1,
        "request_prefill_time_seconds": 2,
        "request_decode_time_seconds": 8,
        "request_inference_time_seconds": 10,
        "e2e_request_latency_seconds": 11,
        "time_to_first_token_seconds": 3,
        "request_time_per_output_token_seconds": 2,
        "request_prompt_tokens": 100,
        "request_prefill_kv_computed_tokens": 36,
        "request_generation_tokens": 5,
        "request_num_preemptions": 2,
    }
    assert {name: (found[name].value("_sum"), found[name].value("_count")) for name in sums} == {
        name: (value, 1) for name, value in sums.items()
    }
    assert found["num_preemptions_total"].value() == 2
    assert found["prompt_tokens_cached_total"].value() == 64
    by_source = found["prompt_tokens_by_source_total"]
    assert by_source.value(source="local_compute") == 36
    assert by_source.value(source="local_cache_hit") == 64


def test_a_continued_reply_counts_only_what_is_new(fresh: Served) -> None:
    """Its prompt is in the cache, and so are some of the tokens that it continues."""
    found = after(
        fresh,
        Queued(0, 10.0, 1, 17, 50),
        Admitted(1, 11.0, 1, 64),
        FirstToken(2, 13.0, 1, 3.0, generated=51),
        Finished(9, 21.0, 1, "length", 60, ""),
        Queued(9, 21.0, 2, 17, 50),
        Finished(9, 22.0, 2, "aborted", 50, ""),
    )
    assert found["prefix_cache_hits_total"].value() == found["prefix_cache_queries_total"].value() == 17
    assert found["prompt_tokens_by_source_total"].value(source="local_compute") == 0
    assert found["request_prefill_kv_computed_tokens"].value("_sum") == 0
    assert found["request_generation_tokens"].value("_sum") == 10
    assert found["request_generation_tokens"].value("_count") == 2


@pytest.mark.parametrize("first", [0, 1])
def test_a_search_has_no_token_at_its_first_step(fresh: Served, first: int) -> None:
    first_token = FirstToken(2, 13.0, 1, 3.0, generated=first)
    found = after(fresh, Queued(0, 10.0, 1, 17), first_token, Finished(9, 42.0, 1, "length", 30, ""))
    assert found["request_generation_tokens"].value("_sum") == 30
    assert found["request_time_per_output_token_seconds"].value("_sum") == 1


def test_a_fork_counts_only_what_is_new(fresh: Served) -> None:
    first = FirstToken(2, 13.0, 1, 3.0, generated=51)
    found = after(fresh, first, Finished(9, 22.0, 1, "length", 60, ""))
    assert found["request_generation_tokens"].value("_sum") == 10
    assert found["request_time_per_output_token_seconds"].value("_sum") == 1


@pytest.mark.parametrize(
    ("fields", "ends", "each"),
    [
        ({}, 1, 9),
        ({"n": 2}, 2, 9),
        ({"said": [40, 41, 42]}, 1, 6),
        ({"num_beams": 4, "n": 2}, 2, 9),  # hypotheses that are dropped are no replies
        ({"n": 2, "best_of": 3}, 3, 9),  # one is not returned
    ],
)
def test_ends_and_tokens_count_the_same_replies(
    fresh: Served, fields: dict[str, Any], ends: int, each: int
) -> None:
    with fresh.client() as client:
        complete(client, max_tokens=9, ignore_eos=True, **fields)
        found = scrape(client)
    lengths, tokens = found["request_generation_tokens"], ends * each
    assert (lengths.value("_sum"), lengths.value("_count")) == (tokens, ends)
    assert found["request_success_total"].value(finished_reason="length") == ends
    assert found["generation_tokens_total"].value() == tokens


def test_what_only_reads_has_one_reason_and_no_token_ends_it(fresh: Served) -> None:
    """The token after the prompt is dropped, whatever it is."""
    with fresh.client() as client:
        for place in range(20):
            complete(client, prompt=[place + 3, 4], max_tokens=0, stop_token_ids=[*range(64)])
        inputs = {"model": MODEL, "input": [[place + 3, 4] for place in range(20)]}
        assert client.post("/v1/embeddings", json=inputs).is_success
        found = scrape(client)
    reasons = found["request_success_total"]
    assert (reasons.value(finished_reason="length"), reasons.value(finished_reason="stop")) == (20, 20)
    assert found["request_params_max_tokens"].value("_count") == 20, "embeddings were not given any"


def test_a_fork_counts_its_own_tokens(fresh: Served) -> None:
    fork = FirstToken(4, 2.0, 2, 0.1, generated=6)  # it shares five with the running reply
    found = after(fresh, fork, Finished(9, 3.0, 2, "stop", 8, ""), Finished(9, 3.0, 3, "aborted", 5, ""))
    lengths = found["request_generation_tokens"]
    assert (lengths.value("_sum"), lengths.value("_count")) == (3, 2)


def test_a_request_that_never_ran_has_no_time_in_the_engine(fresh: Served) -> None:
    found = after(fresh, Queued(0, 10.0, 1, 100), Finished(0, 12.0, 1, "aborted", 0, ""))
    assert found["e2e_request_latency_seconds"].value("_sum") == 2
    for name in ("queue", "prefill", "decode", "inference"):
        assert found[f"request_{name}_time_seconds"].value("_count") == 0
    assert found["request_time_per_output_token_seconds"].value("_count") == 0


def test_what_requests_asked_for(fresh: Served) -> None:
    with fresh.client() as client:
        complete(client, n=3, max_tokens=7)
        complete(client, max_tokens=20)
        assert client.post(PATH, json={"prompt": ["a", "b"], "max_tokens": 4}).status_code == 200
        found = scrape(client)
    values = {
        name: (found[name].value("_sum"), found[name].value("_count"))
        for name in ("request_params_n", "request_params_max_tokens", "request_max_num_generation_tokens")
    }
    assert values["request_params_n"] == (6, 4)
    assert values["request_params_max_tokens"] == (35, 4)
    total, count = values["request_max_num_generation_tokens"]
    assert count == 4 and 27 + 2 <= total <= 35


def test_a_request_costs_one_sample_a_histogram(fresh: Served) -> None:
    """Two families are counted more often: once a step, and once for the tokens that arrive together."""
    with fresh.client() as client:
        complete(client, max_tokens=100)
        found = scrape(client)
    counts = {name: each.value("_count") for name, each in found.items() if each.kind == "histogram"}
    assert counts.pop("iteration_tokens_total") >= 100
    assert counts.pop("inter_token_latency_seconds") < 100
    assert set(counts.values()) == {1}


def test_the_tokens_of_steps(fresh: Served) -> None:
    with fresh.client() as client:
        complete(client, [7] * 50, max_tokens=10)  # type: ignore[arg-type]
        steps = scrape(client)["iteration_tokens_total"]
    assert steps.value("_sum") == 50 + 9 == 50 + steps.value("_bucket", le="1.0")
    assert steps.value("_bucket", le="64.0") == 10


@pytest.mark.parametrize(
    ("state", "capacity", "deferred"),
    [
        ({"waiting": 3}, 3, 0),
        ({"waiting": 3, "loading": 2}, 3, 2),
        ({"waiting": 3, "change": Change("int8", 1, 4)}, 0, 3),
        ({"waiting": 3, "change": Change("int8", 0, 4, "no memory", over=True)}, 3, 0),
    ],
)
def test_why_requests_wait(served: Served, state: dict[str, Any], capacity: int, deferred: int) -> None:
    found = families(served.state.metrics.text(replace(served.host.snapshot(), **state)))
    by_reason = found["minichat:num_requests_waiting_by_reason"]
    assert by_reason.value(reason="capacity") == capacity
    assert by_reason.value(reason="deferred") == deferred
    assert found["minichat:num_requests_waiting"].value() == capacity + deferred


def test_how_much_each_stage_waits(served: Served) -> None:
    shot = served.host.snapshot()
    assert "pipeline_bubble" not in served.state.metrics.text(shot), "there is no pipeline"
    ranks = [RankView(n, "cpu", n, 0, stage=1 - n // 2, bubble=n / 8) for n in range(4)]
    found = families(served.state.metrics.text(replace(shot, ranks=tuple(ranks))))["minichat:pipeline_bubble"]
    assert (found.value(stage="1"), found.value(stage="2")) == (2.5 / 8, 0.5 / 8)


def test_what_each_rank_exchanges(served: Served) -> None:
    shot = served.host.snapshot()
    assert "rank_" not in served.state.metrics.text(shot), "the model is not shared"
    ranks = tuple(RankView(n, "cpu", n, 0, joining=n / 4, traffic=1e9 * n) for n in range(2))
    found = families(served.state.metrics.text(replace(shot, ranks=ranks)))
    assert [found["minichat:rank_joining"].value(rank=each) for each in "01"] == [0, 0.25]
    assert [found["minichat:rank_sent_bytes_per_second"].value(rank=each) for each in "01"] == [0, 1e9]


def test_how_unevenly_experts_are_used(served: Served) -> None:
    shot = served.host.snapshot()
    assert "expert_imbalance" not in served.state.metrics.text(shot), "there are no experts"
    load = ExpertLoad((1, 3), 2, 1, np.array([30, 10, 5, 5]))
    found = families(served.state.metrics.text(replace(shot, experts=load)))["minichat:expert_imbalance"]
    assert (found.value(layer="1"), found.value(layer="3")) == (1.5, 1.0)


def test_rejections_by_reason() -> None:
    def rejected() -> tuple[float, ...]:
        family = scrape(client)["admission_rejections_total"]
        return tuple(family.value(reason=reason) for reason in ("full", "per_key", "invalid"))

    with serving(dry(rate=50), in_flight=2, per_key=1) as served, served.client() as client:
        others = [served.state.gate.enter(key, 1, "prompt") for key in (b"a", b"b")]
        assert client.post(PATH, json={"prompt": "x"}).status_code == 503
        for each in others:
            each.release()
        assert rejected() == (1, 0, 0)
        endless = {"prompt": "x", "max_tokens": 4000, "ignore_eos": True, "stream": True}
        with client.stream("POST", PATH, json=endless):
            assert client.post(PATH, json={"prompt": "x"}).status_code == 429
        assert rejected() == (1, 1, 0)
        assert client.post(PATH, json={"prompt": "x", "top_p": 7}).status_code == 400
        assert rejected() == (1, 1, 1)
        for path, body in (
            ("/api/generate", {"model": MODEL, "prompt": "x", "options": {"top_p": 7}}),
            ("/v1/messages", {"model": MODEL, "max_tokens": 2, "messages": user("x"), "top_p": 7}),
            ("/v1/responses", {"input": "x", "top_p": 7}),
        ):
            assert client.post(path, json=body).status_code == 400
        assert rejected() == (1, 1, 4), "each API counts"
        assert client.get("/nowhere").status_code == 404
        headers = {"Authorization": f"Bearer {KEY}"}
        with connect(f"ws://127.0.0.1:{served.port}/ws", additional_headers=headers) as socket:
            socket.send('{"type": "generate", "id": "a"}')
            assert json.loads(socket.recv(10))["type"] == "error"
        assert rejected() == (1, 1, 5)


def test_the_cache_is_described(served: Served, client: httpx.Client) -> None:
    shot = served.host.snapshot()
    [(_, labels)] = scrape(client)["cache_config_info"].samples
    assert dict(labels) == {
        "model_name": "test-model",
        "block_size": str(shot.block_size),
        "num_gpu_blocks": "4096",
        "num_cpu_blocks": str(shot.host_size),
        "cache_dtype": shot.kv_dtype,
        "kv_scheme": "none",
        "enable_prefix_caching": "True",
    }


def test_vllms_boards_find_their_metrics() -> None:
    with serving(dry(), metrics_prefix="vllm") as served, served.client() as client:
        complete(client)
        found = families(client.get("/metrics").text)
    assert {
        kind: {name for name in names if f"vllm:{name}" not in found} for kind, names in BOARDS.items()
    } == {kind: set() for kind in BOARDS}
    for kind, names in BOARDS.items():
        assert {found[f"vllm:{name}"].kind for name in names} == {kind}
    assert all(("engine", "0") in labels for family in found.values() for _, labels in family.samples)
    for name, bounds in BOUNDS.items():
        for bound in bounds.split():
            found[f"vllm:{name}"].value("_bucket", le=bound)
    assert found["vllm:engine_sleep_state"].value(sleep_state="awake") == 1
    assert found["vllm:request_success_total"].value(finished_reason="error") == 0


def test_our_board_shows_all_families(root: Path, client: httpx.Client) -> None:
    complete(client)
    board = json.loads((root / "docs" / "grafana.json").read_text())
    asked = " ".join(target["expr"] for panel in board["panels"] for target in panel["targets"])
    used = set(re.findall(r"minichat:(\w+)", asked))
    found = scrape(client)
    samples = {name.removeprefix("minichat:") for family in found.values() for name, _ in family.samples}
    assert used - samples == set()
    shown = {re.sub("_(bucket|sum|count)$", "", name) if name not in found else name for name in used}
    assert set(found) - shown == {"engine_sleep_state"}  # engine_up is on the board
