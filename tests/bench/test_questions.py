"""Every question of `minichat bench` is answered at a toy size."""

from contextlib import closing
from dataclasses import replace
from importlib import import_module
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from engine.api.config import EngineConfig
from engine.api.snapshot import RankView
from engine.start import start
from minichat.bench.cases import CaseResult, Measurement
from minichat.bench.harness import Bench
from minichat.bench.machine import described, machine
from minichat.bench.questions import latency, memory, quick, throughput
from minichat.bench.setup import Setup
from minichat.bench.shapes import SHAPES
from minichat.commands.bench.arguments import PEERS, QUESTIONS
from minichat.commands.bench.arguments import SHAPES as OFFERED
from tests.app.conftest import snapshot
from tests.bench.streaming import streaming_server
from tests.models.tiny import CONFIG

NO_GPU = {"CUDA graphs", "Triton attention", "overlap"}


def ask(question: str, setup: Setup, only: tuple[str, ...] = (), repeats: int = 1) -> dict[str, CaseResult]:
    module = import_module(f"minichat.bench.questions.{question}")
    run = Measurement(question, setup.settings, warmup=0, repeats=repeats, only=only)
    found = {each.case: each for each in run.results(module.cases(setup))}
    assert [each for each in found.values() if each.failed] == []
    assert all(each.figures or each.why_not for each in found.values())
    return found


def values(result: CaseResult) -> dict[str, float]:
    return {each.name: each.median for each in result.figures}


def printed(question: str, results: list[CaseResult], device: str = "cpu") -> str:
    out, module = StringIO(), import_module(f"minichat.bench.questions.{question}")
    Console(width=200, file=out).print(module.page(results, {"device": device}))
    return out.getvalue()


def test_latency_by_rows_prompt_and_chunk(setup: Setup) -> None:
    found = ask("latency", setup)
    assert list(found) == [
        "2 at once", "prompt of 32", "prompt of 64",
        "usual chunks", "chunks of 512", "chunks of 256", "chunks of 64",
    ]  # fmt: skip
    for result in found.values():
        assert min(values(result).values()) > 0
    at_once = values(found["2 at once"])
    assert (
        at_once["between tokens, p50"] <= at_once["between tokens, p99"] < at_once["first token, longest"] + 9
    )


def test_sizes_above_the_context_name_their_options(tiny: Path) -> None:
    with closing(Setup(config=EngineConfig(model=str(tiny), device="cpu"), prompt=100, reply=8)) as setup:
        run = Measurement("latency", setup.settings, 0, 1, only=["prompt of 800", "usual chunks"])
        failed = [each.why_not for each in run.results(latency.cases(setup))]
    assert failed == [
        f"a prompt of {asked} tokens and a reply of {answered} are more than the 512 tokens that this model "
        "takes in all; lower --prompt or --reply"
        for asked, answered in ((800, 8), (16, 800))
    ]


def test_no_prompt_of_a_case_is_in_the_cache(tiny: Path) -> None:
    """Not even after another case with prompts of the same lengths."""
    config = EngineConfig(model=str(tiny), device="cpu", seed=0)
    made = Setup(config=config, rows=(1, 2), prompt=32, reply=4, requests=2)
    ask("throughput", made, only=("* at once", "mixed*"))
    ask("latency", made, only=("* at once", "prompt of 32"))
    assert made.engine().snapshot().prefix_hit_rate == 0
    made.close()


def test_a_server_gets_the_options_of_the_engine(tiny: Path) -> None:
    config = EngineConfig(model=str(tiny), device="cpu", dummy_weights=True, kv_scheme="int8", blocks=99)
    made = Setup(config=config)
    assert made.server_options == [
        "--model", str(tiny), "--dummy-weights", "--device", "cpu", "--kv", "int8", "--blocks", "99",
    ]  # fmt: skip
    assert made.settings["blocks"] == 99 and "policy" not in made.settings


@pytest.mark.parametrize("real", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_throughput_in_the_process_and_over_http(
    setup: Setup, real: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server without an engine starts at once; `make soak` measures minichat serve."""
    if not real:
        monkeypatch.setattr(throughput, "started_server", lambda *options: streaming_server())
    found = ask("throughput", setup, only=("2 at once", "mixed*", "HTTP, 2 clients*"))
    assert values(found["2 at once"])["output"] > 0 < values(found["mixed lengths"])["output"]
    for case in ("HTTP, 2 clients", "HTTP, 2 clients, text"):
        served = values(found[case])
        assert served["tokens"] > 0 == served["failed"]
        assert served["goodput, 0.5 s and 50 ms"] <= served["requests"]


def test_a_trace_is_a_case_of_its_own(setup: Setup, tmp_path: Path) -> None:
    trace = tmp_path / "mooncake.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 8, "output_length": 4}\n')
    names = [
        [each.name for each in throughput.cases(one)] for one in (setup, replace(setup, trace=str(trace)))
    ]
    assert [each[-1] for each in names] == ["HTTP, arrivals", "HTTP, mooncake"]


def test_memory_is_counted(setup: Setup) -> None:
    found = ask("memory", setup)
    prompt, reply, requests = setup.sizes
    size = setup.config.block_size
    paging, sharing = values(found["paging"]), values(found["sharing"])
    assert 1 <= paging["blocks at the peak"] <= paging["reserved for each reply's own most"]
    assert paging["reserved for the model's context"] == requests * 512 // size
    assert sharing["separate requests"] == 8 * -(-(8 * prompt + reply) // size)
    assert sharing["one request and its forks"] < sharing["separate requests"]
    assert values(found["shared prefix"])["without / with"] > 1
    model = values(found["model"])
    assert model["peak of this process"] > model["weights"] > 0


def test_the_cache_is_as_large_as_that_of_a_server(setup: Setup) -> None:
    """Other cases have engines with a cache of the size that they need, and only they are alive then."""
    engine = start(setup.config)
    cache = engine.snapshot().memory["cache"] / 1e6
    engine.close()
    assert setup.engine().snapshot().memory["cache"] / 1e6 != cache, "the test says nothing"
    assert values(ask("memory", setup, only=("model",))["model"])["cache"] == cache
    assert values(ask("quick", setup, only=("memory",))["memory"])["cache"] == cache
    assert setup.engine().snapshot().memory["cache"] / 1e6 != cache


def test_cost_without_a_meter(setup: Setup) -> None:
    found = ask("energy", setup)
    assert found["idle"].why_not or found["idle"].figures  # RAPL is readable on some machines
    at_once = values(found["2 at once"])
    assert at_once["cost"] == pytest.approx(2.0 / 3600 / at_once["output"] * 1e6)


def test_each_technique_is_switched_off_alone(setup: Setup) -> None:
    usual = {each.name: each.on for each in setup.engine().switches}
    found = ask("ablations", setup)
    assert {name for name, result in found.items() if result.why_not == "needs a GPU"} == NO_GPU
    for name, result in found.items():
        if result.why_not:
            lacking = NO_GPU | {"fused layers", "speculation, draft", "speculation, exit"}
            assert name in lacking, result.why_not
        else:
            on, off, worth = (each.median for each in result.figures)
            assert worth == pytest.approx(on / off if result.figures[0].unit == "tok/s" else off / on)
    assert values(found["KV cache"])["worth"] > 0
    assert {each.name: each.on for each in setup.engine().switches} == usual
    page = printed("ablations", list(found.values()))
    assert all(name in page for name in found)


def test_the_page_of_quick(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SHAPES, "335M", CONFIG)
    found = ask("quick", setup)
    assert {"device", "2 at once", "long prompt", "335M, 2 at once"} <= found.keys()
    page = printed("quick", list(found.values()))
    assert "long prompt, first token" in page


def test_the_long_prompt_of_quick_fits_into_the_model(setup: Setup) -> None:
    short = replace(setup, config=replace(setup.config, max_context=100))
    with closing(short):
        assert values(ask("quick", short, only=("long prompt",))["long prompt"])["first token"] > 0


def test_the_page_of_quick_explains_what_is_missing_below_the_figures() -> None:
    figure = quick.Figure("cache", "GB", 1.0, 1.0, 1.0, 1)
    reason = "no room for the cache; " * 20
    page = printed("quick", [CaseResult("long prompt", why_not=reason), CaseResult("memory", "", (figure,))])
    assert "memory, cache" in page, "a long reason takes no room from the columns"
    assert reason.strip() in page.replace("\n", " ").replace("  ", " ")


def test_quick_stands_beside_the_docs() -> None:
    """The figures that ship are of cases that quick measures, so that they are shown."""
    reference = quick.CaseFile(quick.REFERENCE)
    [line] = [
        each for each in reference.lines if each["case"] == "mixed lengths" and not each["machine"]["gpu"]
    ][-1:]
    figure = quick.Figure(**line["figures"][0])
    result = CaseResult(line["case"], line["about"], (figure,))
    page = printed("quick", [result])
    assert " 1 x " in page
    both = described(machine()), described(line["machine"])
    assert all(each in page for each in both), "processors of one name may have different instructions"


@pytest.mark.parametrize(("device", "beside"), [("cpu", True), ("cuda", False)])
def test_quick_stands_beside_figures_of_the_same_kind_of_device(device: str, beside: bool) -> None:
    """The memory of a model is measured on both in the same words."""
    weights = quick.Figure("weights", "MB", 12.0, 12.0, 12.0, 1)
    page = printed("quick", [CaseResult("memory", "pocket", (weights,))], device)
    assert "memory, weights" in page and (" x " in page) is beside


def test_names_on_the_command_line_are_those_of_the_questions() -> None:
    folder = import_module("minichat.bench.questions").__path__[0]
    files: Any = {each.stem for each in Path(folder).glob("[!_]*.py")}
    assert files == set(QUESTIONS)
    assert set(OFFERED) == set(SHAPES)
    assert [each.name for each in import_module("minichat.bench.questions.peers").PEERS] == list(PEERS)


def test_memory_of_a_shared_model_is_that_of_one_rank() -> None:
    found: list[str] = []
    bench = cast(
        Bench, SimpleNamespace(note=lambda name, value, unit: found.append(f"{name} {value:g} {unit}"))
    )
    shot = replace(snapshot(), memory={"weights": 10_000_000, "cache": 20_000_000})
    memory.note_memory(bench, shot)
    memory.note_memory(bench, replace(shot, ranks=tuple(RankView(rank, "cpu", 1, 0) for rank in range(2))))
    assert found == ["weights 10 MB", "cache 20 MB", "weights of one rank 10 MB", "cache of one rank 20 MB"]
