"""lm-eval's log-likelihoods through the server, compared with those of its own hf model on the same weights.

`--python`: an interpreter with `lm-eval[hf,api]`. The tasks are made here, so nothing
is downloaded. "read / score" is the speed of reading a prompt alone, relative to that of scoring it.
"""

import json
import subprocess
import tempfile
from pathlib import Path
from random import Random
from typing import Any

import httpx

from benchmarks.server.prompt_scores import scoring
from benchmarks.server.server import served
from engine.api.config import EngineConfig
from engine.host.process import EngineProcess
from minichat.bench.harness import Bench

POCKET = Path(__file__).parents[2] / "engine" / "pocket"
_WORDS = (
    "a block of the cache holds keys and values for sixteen tokens while requests wait in one queue".split()
)
_CHOICES = """task: local_choices
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: 0
metric_list: [{{metric: acc}}]
"""
_ROLLING = """task: local_rolling
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{question}}}}"
metric_list: [{{metric: word_perplexity}}]
"""


def run(
    bench: Bench, *, python: str = "python", model: str = str(POCKET), documents: int = 16, tokens: int = 1024
) -> None:
    """`tokens`: of the prompts that are timed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write_tasks(folder, documents)
        weights = f"pretrained={model},dtype=float32"
        theirs = _scores(python, folder, "hf", f"{weights},add_bos_token=False")
        with served(
            host := EngineProcess(EngineConfig(model=model, dtype="float32"), folder / "log")
        ) as port:
            base = f"http://127.0.0.1:{port}"
            client = f"model=bench,base_url={base}/v1/completions,tokenizer={model},"
            client += "tokenizer_backend=huggingface"
            ours = _scores(python, folder, "local-completions", client)
            with httpx.Client(timeout=600) as http:
                bench.compare(scoring(http, base, tokens), unit="s")
        host.close()
    assert len(ours) == len(theirs) and len(ours) == 4 * documents
    differences = [abs(one - other) for (one, _), (other, _) in zip(ours, theirs, strict=True)]
    greedy = [one == other for (_, one), (_, other) in zip(ours, theirs, strict=True)]
    bench.note("log-likelihoods", len(ours), "texts")
    bench.note("largest difference from lm-eval's hf model", max(differences), "nats")
    bench.note("same answer whether the text is greedy", sum(greedy) / len(greedy), "share")


def _write_tasks(folder: Path, documents: int) -> None:
    """Write questions with three choices, and the same texts to be scored whole."""
    random, lines = Random(0), []
    for _ in range(documents):
        question = " ".join(random.choices(_WORDS, k=random.randint(3, 120)))
        choices = [" ".join(random.choices(_WORDS, k=random.randint(1, 12))) for _ in range(3)]
        lines.append(json.dumps({"question": question, "choices": choices}))
    file = folder / "documents.jsonl"
    file.write_text("\n".join(lines))
    for name, task in (("choices", _CHOICES), ("rolling", _ROLLING)):
        (folder / f"{name}.yaml").write_text(task.format(file=file))


def _scores(python: str, folder: Path, model: str, arguments: str) -> list[tuple[float, Any]]:
    """Return the log-likelihood of every text, and whether it is greedy, where lm-eval says so."""
    out = folder / model
    command = [python, "-m", "lm_eval", "run", "--model", model, "--model_args", arguments]
    command += [
        "--tasks",
        "local_choices,local_rolling",
        "--include_path",
        str(folder),
        "--device",
        "cpu",
        "--batch_size",
        "4",
    ]
    subprocess.run([*command, "--output_path", str(out), "--log_samples"], check=True, cwd=folder)
    found: list[tuple[float, Any]] = []
    for task in ("choices", "rolling"):
        [file] = out.rglob(f"samples_local_{task}_*.jsonl")
        samples = [json.loads(line) for line in file.read_text().splitlines()]
        for sample in sorted(samples, key=lambda each: int(each["doc_id"])):
            for [answer] in sample["resps"]:
                value, greedy = answer if isinstance(answer, list) else (answer, None)
                found.append((float(value), greedy))
    return found
