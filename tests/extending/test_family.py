"""A third-party package adds a model family with its own feed-forward, product and norm.

docs/extending.md shows the package. Here its files are put on the path as by an installer.
"""

import json
import shutil
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.api.config import ModelPlace
from engine.api.errors import BadInput
from engine.models.config_json import read_config
from engine.models.decoder import Decoder
from engine.models.families import FAMILIES, GROUP, names
from engine.models.layers import operators
from engine.models.layers.operators import OPERATORS, OperatorLinear, OperatorNorm
from engine.models.loader import Checkpoint, decoder_slots, random_weights
from engine.models.registry import load_model
from engine.models.support import support
from tests.models.tiny import plain_attend
from tests.quant.packers import Gptq, write
from tests.runner.letters import VOCAB, byte_tokenizer
from tests.runner.small import GREEDY, ask, drain, engine_on, turn

HERE = Path(__file__).parent / "family"
CONFIG = {
    "architectures": ["SquaredForCausalLM"],
    "model_type": "squared",
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "activation_power": 3,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "torch_dtype": "float32",
}
PROMPTS = [list(range(5, 65)), list(range(5, 50)), [7, 9, 11], list(range(100, 140))]


def installed(site: Path) -> Path:
    """Install the package into this site-packages folder."""
    shutil.copy(HERE / "minichat_family.py", site)
    project = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    about = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (about / "entry_points.txt").write_text("\n".join(lines))
    return site


@pytest.fixture(autouse=True)
def package(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(installed(tmp_path_factory.mktemp("site")))
    yield
    forget()
    sys.modules.pop("minichat_family", None)


def forget() -> None:
    """Remove the registrations of the package."""
    FAMILIES.pop("squared", None)
    OPERATORS.pop("transposed", None)
    OPERATORS.pop("centered", None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint of random tensors, spread widely enough that an error in a part shows."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    model, tensors = Decoder(read_config(tmp_path), torch.float32), {}
    random_weights(model, seed=3)
    draw = torch.Generator().manual_seed(5)
    for name, slot in decoder_slots(model).items():
        tensor = slot.view[(0,) * (slot.view.dim() - len(slot.shape))].clone()
        tensors[name] = tensor.uniform_(0.5, 1.5, generator=draw) if "norm" in name else tensor * 8
    save_file(tensors, tmp_path / "model.safetensors")
    forget()
    return tmp_path


@torch.inference_mode()
def plain_reply(folder: Path, prompt: list[int], count: int = GREEDY.max_tokens or 24) -> list[int]:
    """Token by token through the plain forward pass alone: oracles, no cache, no batch."""
    config = read_config(folder)
    model = Decoder(config, torch.float32).eval()
    Checkpoint(model, folder).read(decoder_slots(model))
    kinds = [type(each) for each in model.modules()]
    assert OperatorLinear in kinds and OperatorNorm in kinds
    ids = list(prompt)
    for _ in range(count):
        hidden = model.forward(torch.tensor(ids), torch.arange(len(ids)), plain_attend(config.layers))
        ids.append(int(model.logits(hidden[-1:]).argmax()))
    return ids[len(prompt) :]


def test_it_is_found_by_name_and_loads(folder: Path) -> None:
    assert "squared" not in FAMILIES and "squared" in names()
    assert support(folder).native and not support(folder).trouble
    assert read_config(folder).settings == {"power": 3}
    model = load_model(ModelPlace("squared", folder))
    made = {type(each).__name__ for each in model.modules()}
    assert {"SquaredMLP", "TransposedProduct", "CenteredNorm", "GroupedAttention"} <= made
    assert made.isdisjoint({"OperatorLinear", "OperatorNorm", "DenseMLP"})


def test_the_engine_gives_the_tokens_of_the_plain_forward_pass(folder: Path) -> None:
    """With batching, chunked prefill, a paged cache and the prefix cache; and without each of these."""
    expected = [plain_reply(folder, prompt) for prompt in PROMPTS]
    assert all(len(set(tokens)) > 5 for tokens in expected), (
        "the reply repeats itself, so the comparison proves little"
    )
    engine = engine_on(folder, max_step_tokens=48)
    together = [ask(engine, prompt)[1] for prompt in PROMPTS]
    turn(engine)
    drain(engine)
    assert [output.tokens for output in together] == expected
    first = engine.snapshot().prefix_hit_rate
    again = [ask(engine, prompt)[1] for prompt in PROMPTS]
    drain(engine)
    assert [output.tokens for output in again] == expected
    assert engine.snapshot().prefix_hit_rate > first
    alone = engine_on(folder, prefix_cache=False, chunked_prefill=False, block_size=32)
    for prompt, tokens in zip(PROMPTS, expected, strict=True):
        _, output = ask(alone, prompt)
        drain(alone)
        assert output.tokens == tokens


def test_the_doctor_lists_parts_that_run_as_plain_torch() -> None:
    from minichat.commands.doctor import examine, report

    found = examine()
    assert found["families"]["qwen3"] == "all parts have their own GPU kernels"
    reason = "on a GPU, 1 of 2 parts runs as plain torch: SquaredMLP, operator transposed, operator centered"
    assert found["families"]["squared"] == reason
    assert f"  squared: {reason}" in report(found)
    assert found["families"]["cohere"].startswith("on a GPU, its blocks run as plain torch around attention")
    plain = "on a GPU, 1 of 2 parts runs as plain torch"
    for name in ("gemma", "gemma2", "gemma3_text", "phi3"):
        assert found["families"][name] == "all parts have their own GPU kernels"
    assert found["families"]["glm"] == f"{plain}: GroupedAttention (interleaved positions)"
    assert found["families"]["deepseek_v3"] == "all parts have their own GPU kernels"  # interleaved, too


def test_a_scheme_quantizes_plain_products_and_skips_operators(folder: Path) -> None:
    model = load_model(ModelPlace("squared", folder), quantization="int8")
    made = {name: type(each).__name__ for name, each in model.named_modules()}  # type: ignore[attr-defined]
    assert made["head"] == "Int8Table" and made["layers.0.feed_forward.up"] == "TransposedProduct"


def test_a_quantized_checkpoint_gives_the_replies_of_its_dequantized_weights(
    folder: Path, tmp_path: Path
) -> None:
    """The attention products are operators here, which no scheme quantizes; they get dequantized weights."""
    made = write(load_file(folder / "model.safetensors"), CONFIG, tmp_path / "packed", Gptq())
    prompt, replies = PROMPTS[0], []
    for each in (made.quantized, made.plain):
        byte_tokenizer().save(str(each / "tokenizer.json"))
        engine = engine_on(each)
        replies.append(ask(engine, prompt)[1])
        drain(engine)
    assert replies[0].tokens == replies[1].tokens == plain_reply(made.plain, prompt)
    assert replies[0].tokens != plain_reply(folder, prompt), (
        "quantization changed nothing, so the comparison proves little"
    )


class Wrong:
    """The package's product, with one of several errors."""

    name, kind = "wrong", "product"

    def __init__(self, broken: Any) -> None:
        self._broken = broken

    def oracle(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return torch.nn.functional.linear(x, weight, bias)

    def make(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Any:
        return lambda x: self._broken(x, weight, bias)


def plain(x: Any, weight: Any, bias: Any) -> Any:
    return torch.nn.functional.linear(x, weight, bias)


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (
            lambda x, w, b: plain(x, w, b) * 1.01,
            r"1 rows, 64 inputs, 32 outputs and no bias: its relative error is 1\.0e-02",
        ),
        (lambda x, w, b: plain(x, w, None), r"and a bias: its relative error is .*, at most 0\.0001"),
        (
            lambda x, w, b: plain(x, w, b) - plain(x, w, b).mean(0) * (len(x) > 1),
            "5 rows, .* relative error is",
        ),
        (lambda x, w, b: plain(x, w, b)[:, :-1], r"it returns float32 \[1, 31\], not \[1, 32\]"),
        (lambda x, w, b: plain(x, w, b).double(), r"it returns float64 \[1, 32\], not"),
        (lambda x, w, b: plain(x, w, b) * torch.nan, "its relative error is nan"),
        (lambda x, w, b: x @ w, "RuntimeError: mat1 and mat2 shapes cannot be multiplied"),
    ],
    ids=["scaled", "no-bias", "by-company", "shape", "type", "nan", "raises"],
)
def test_a_wrong_operator_is_refused(broken: Any, reason: str) -> None:
    with pytest.raises(BadInput, match=f"^operator 'wrong' on cpu in float32: .*{reason}") as caught:
        operators.register(Wrong(broken))  # type: ignore[arg-type]
    assert "\n" not in str(caught.value) and "wrong" not in OPERATORS
    operators.register(Wrong(plain))  # type: ignore[arg-type]
    del OPERATORS["wrong"]


def test_a_wrong_operator_prevents_its_family_from_loading(
    folder: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    minichat_family = import_module("minichat_family")
    right = minichat_family.CenteredNorm.forward
    monkeypatch.setattr(minichat_family.CenteredNorm, "forward", lambda self, x: right(self, x) + x * 0.1)
    with pytest.raises(
        BadInput, match="operator 'centered' on cpu in float32: 1 rows, 64 numbers: its relative error is"
    ) as raised:
        engine_on(folder)
    page = (root / "docs" / "extending.md").read_text(encoding="utf-8")
    assert f"```\n{raised.value}\n```" in page, "docs/extending.md shows another error"


def test_missing_parts_are_reported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    minichat_family = import_module("minichat_family")
    with pytest.raises(BadInput, match="there is no operator 'absent'; there are centered, transposed"):
        operators.product("absent")
    with pytest.raises(BadInput, match="operator 'centered' is a norm, not a product"):
        operators.product("centered")
    monkeypatch.setattr(minichat_family, "SQUARED", object())
    with pytest.raises(
        BadInput, match="model family 'squared': its class lacks attention, feed_forward, names"
    ):
        read_config(folder)
    monkeypatch.delattr(minichat_family, "SQUARED")
    with pytest.raises(BadInput, match="model family 'squared': it cannot be imported"):
        read_config(folder)


def test_the_docs_show_this_package(root: Path) -> None:
    page = (root / "docs" / "extending.md").read_text(encoding="utf-8")
    assert f'entry-points."{GROUP}"' in page
    for file, language in (("pyproject.toml", "toml"), ("minichat_family.py", "python")):
        code = (HERE / file).read_text(encoding="utf-8")
        assert f"```{language}\n{code}```\n" in page, f"docs/extending.md and {file} differ"
