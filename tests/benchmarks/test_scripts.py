"""Every script of `python -m benchmarks` runs at a toy size, and a killed one keeps its figures."""

import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from benchmarks.__main__ import discovered, main
from tests.bench.streaming import streaming_server
from tests.benchmarks.test_command import FAKE
from tests.cases import one_of
from tests.waiting import becomes

ROOT = Path(__file__).parents[2]
QUICK = {
    "attention_cpu": "--contexts 40 --rows 3",
    "compiled_steps": "--model pocket --quantization none --rows 2 --tokens 6",
    "cpu_products": "--only products bits norms compiled --inputs 64 --outputs 64 --loops 1",
    "disk_loads": "--shape 0.6B --blocks 4 --device cpu",
    "fleet": "--only choice",
    "grammars": "--only replies",
    "priority": "--slots 2 --tokens 5",
    "quantization": "--only rows floats --counts 1 8 --inputs 128 --outputs 64 --loops 1",
    "serve": "--url URL --clients 2 --requests 4",
    "transcript": "--panes 1 --messages 2 --flushes 2",
    "wire": "--blocks 64",
}
LONG = {  # they start programs, or prompts of a thousand tokens are their point
    "adapters": "--ranks 8 --rows 3",
    "apart": "--trace TRACE --share 1 --count 3 --longest 480 --steady 1 --tokens 4 --rate 20",
    "beams": "--widths 1 2",
    "cpu_products": "--only kernels --inputs 64 --outputs 64 --counts 8",
    "cpu_turns": f"--other {ROOT} --model pocket --quantization none --rows 2 --tokens 6",
    "engine_cpu": "--tokens 8 --only speed parts",
    "engine_process": "--tokens 20",
    "engine_step": "--count 2",
    "fleet": "--only replay simulated --trace TRACE --share 1 --replicas 2 --rate 50 --dry",
    "front": f"--other {ROOT} --requests 4",
    "gpu_start": "--model pocket --device cpu --starts 1",
    "host_turns": f"--other {ROOT} --rows 2",
    "kv": "",
    "loading": "--model pocket --schemes none",
    "memory": "--requests 8 --clients 2",
    "monitor": "--blocks 64 --requests 2 --updates 3",
    "opening": "",
    "overtaking": "--rows 4 --tokens 20 --rate 300",
    "prompt_scores": "--tokens 32",
    "rank_start": "--model pocket --device cpu --ranks 2 --only 'nothing imported'",
    "ranks": "--only work sums",
    "screen": "--parts flush stream echo --seconds 1",
    "server": "--clients 1 --tokens 4 --requests 1",
    "speculation": "--tokens 4",
    "step_turns": f"--other {ROOT} --rows 2",
    "techniques": "",
    "tiers": "--only resume restart pressure steps direct --tokens 64",
    "window_blocks": "--rows 1 --tokens 40",
}
GPU = {
    "gpu": "--shape 0.6B --rows 2 --only check decode anatomy mixed mixed_anatomy cuda_graphs overlap draws",
    "gpu_adapters": "--shape 0.6B --rows 1 3",
    "gpu_attention": "--tile 32 1 4 264 --only '1 x 128' '5 tokens at 656'",
    "gpu_experts": "--shapes qwen3-30b --schemes none --rows 1",
    "gpu_latents": "--only '1 x 656' '512 tokens at 4096'",
    "gpu_linear": "--rows 1 --prompts 32",
    "gpu_peers": "--rows 1 --only decode",
    "gpu_products": "--shape 0.6B --rows 2 256 --only out",
    "gpu_prompts": "--shape 0.6B --lengths 64 --chunks 32 --rows 1 --verified 2 --only first verify",
    "gpu_quantization": "--shape 0.6B --schemes none int4 --rows 1",
    "gpu_ranks": "--shape 0.6B --rows 1 --ranks 1 --stages 1 --quantization none int8 --only decode anatomy",
    "gpu_start": "--starts 1",
    "gpu_tiers": "--shape 0.6B --tokens 64 --rows 1 --programs 8 --only resume steps",
    "gpu_tilings": "--only heads products",
    "gpu_turns": f"--other {ROOT} --shape 0.6B --rows 1 --only decode",
}
ELSEWHERE = {"lm_eval_scores"}  # needs a Python that has lm-eval


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def runs(name: str, options: str, folder: Path) -> bool:
    words = [name, "--warmup", "0", "--repeats", "1", "--results", str(folder), *shlex.split(options)]
    assert main(words) == 0
    lines = [json.loads(line) for line in (folder / f"{name}.jsonl").open(encoding="utf-8")]
    return bool(lines) and all(line["low"] <= line["median"] <= line["high"] for line in lines)


def test_every_script_has_a_toy_size() -> None:
    assert {*QUICK, *LONG, *GPU} | ELSEWHERE == discovered().keys()


@pytest.mark.parametrize("name", QUICK)
def test_a_script_runs(name: str, tmp_path: Path) -> None:
    asks = "URL" in QUICK[name]  # to end a server takes half a second
    with streaming_server() if asks else nullcontext(("", None)) as (base, _):
        assert runs(name, QUICK[name].replace("URL", base), tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("name", LONG)
def test_a_long_script_runs(name: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    lines = [{"hash_ids": [1, at % 2, at], "input_length": 1500 + at} for at in range(6)]
    trace.write_text("\n".join(map(json.dumps, lines)))
    assert runs(name, LONG[name].replace("TRACE", str(trace)), tmp_path)


@pytest.mark.soak
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU, whose memory it fills")
@pytest.mark.parametrize("name", GPU)
def test_a_script_runs_on_a_gpu(name: str, tmp_path: Path) -> None:
    assert runs(name, GPU[name], tmp_path)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("name", one_of(5, GPU))
def test_without_a_gpu_a_script_says_so(name: str) -> None:
    with pytest.raises(SystemExit, match=f"{name} needs (an )?NVIDIA GPU"):
        main([name, "--no-save"])


def test_a_killed_script_keeps_its_figures(tmp_path: Path) -> None:
    """It is killed in its second figure."""
    hangs = FAKE.replace("bench.note(", "__import__('threading').Event().wait(); bench.note(")
    (tmp_path / "adding.py").write_text(hangs)
    program = (
        f"import benchmarks; benchmarks.__path__.append({str(tmp_path)!r}); "
        f"from benchmarks.__main__ import main; main(['adding', '--results', {str(tmp_path)!r}])"
    )
    child = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT)
    kept = tmp_path / "adding.jsonl"
    try:
        assert becomes(lambda: kept.exists() and kept.read_bytes().endswith(b"\n"))
    finally:
        child.kill()
    assert child.wait() == -signal.SIGKILL
    assert [json.loads(line)["figure"] for line in kept.open()] == ["sum"]
