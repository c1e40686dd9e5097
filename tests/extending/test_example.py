"""A third-party package adds an attention backend, a policy and a scheme; docs/extending.md shows it."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hatchling.build import build_wheel

MODEL = {  # the model's shape; its weights are random
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "vocab_size": 272,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "sliding_window": 21,
    "torch_dtype": "float32",
}
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def found(root: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The output of a program with the example installed, on a model with a sliding window."""
    site, model = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("model")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(HERE / "example")
        wheel = site / build_wheel(str(site))
    zipfile.ZipFile(wheel).extractall(site)  # as pip installs it, whose start takes a second
    (model / "config.json").write_text(json.dumps(MODEL))
    ran = subprocess.run(
        [sys.executable, HERE / "program.py", model],
        env={**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{root}"},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def test_backend_and_policy_are_selected_by_name(found: dict[str, Any]) -> None:
    assert found["built in"]["facts"] == ["torch", "fcfs"]
    assert found["example"]["facts"] == ["sdpa", "shortest"]


def test_the_backend_gives_the_same_replies_as_the_built_in_one(found: dict[str, Any]) -> None:
    replies = [tokens for _, tokens in found["built in"]["replies"]]
    assert [len(tokens) for tokens in replies] == [30, 30, 30]
    assert all(len(set(tokens)) > 5 for tokens in replies), (
        "the reply repeats itself, so the comparison proves little"
    )
    assert found["example"]["replies"] == found["built in"]["replies"]


def test_the_policy_decides_the_order(found: dict[str, Any]) -> None:
    assert found["built in"]["ended"] == [0, 1, 2]
    assert found["example"]["ended"] == [1, 2, 0]


def test_the_scheme_works_at_the_start_and_later(found: dict[str, Any]) -> None:
    replies = found["changed"]["replies"]
    assert found["changed"]["is"] == "ternary" and found["changed"]["nbytes"] > 0
    assert replies["ternary"] == replies["then ternary"] != replies["none"] == replies["then none"]


def test_an_unknown_name_lists_the_known_ones(found: dict[str, Any]) -> None:
    what, _, names = found["bad attention"].partition("; available here: ")
    assert what == "attention 'sdpq': no backend has that name"
    assert {"sdpa", "torch"} <= set(names.split(", "))
    what, _, names = found["bad policy"].partition("; available: ")
    assert what == "policy 'shortish' is unknown"
    assert {"fcfs", "latency", "priority", "shortest"} <= set(names.split(", "))
    what, _, names = found["bad scheme"].partition("; available: ")
    assert what == "quantization 'ternari': no scheme has that name"
    assert {"int8", "none", "ternary"} <= set(names.split(", "))


def test_the_docs_show_this_package(root: Path) -> None:
    page = (root / "docs" / "extending.md").read_text(encoding="utf-8")
    for file, language in (("pyproject.toml", "toml"), ("minichat_example.py", "python")):
        code = (HERE / "example" / file).read_text(encoding="utf-8")
        assert f"```{language}\n{code}```\n" in page, f"docs/extending.md and {file} differ"
