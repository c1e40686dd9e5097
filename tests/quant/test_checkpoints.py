"""Quantized checkpoints of other tools: the numbers are used as stored, in every format.

The oracle is a plain checkpoint that holds, in float32, what the packer's numbers stand for.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.api.config import ModelPlace
from engine.api.errors import BadCheckpoint, BadInput, EngineError, UnsupportedModel
from engine.models.decoder import Decoder
from engine.models.fields import Fields
from engine.models.packing import packing
from engine.models.registry import load_model
from engine.models.support import support
from tests.cases import one_of
from tests.models.tiny import CONFIG, checkpoint, plain_attend, write_config
from tests.quant.packers import Awq, Checkpoints, Compressed, Fp8, Gptq, write

SHAPE = {"hidden_size": 64, "intermediate_size": 160, "head_dim": 16, "tie_word_embeddings": False}
FOUR_BITS = {
    "gptq": Gptq(),
    "gptq, zeros": Gptq(group=64, symmetric=False),
    "gptq, a short last group": Gptq(group=128, symmetric=False),
    "gptq, one group": Gptq(group=-1, symmetric=False),
    "gptq, in order of activations": Gptq(group=64, symmetric=False, ordered=True),
    "gptq, in orders apart": Gptq(ordered=True, apart=True),
    "gptq, without an index": Gptq(with_index=False),
    "gptq, second version": Gptq(symmetric=False, version=2),
    "awq": Awq(),
    "awq, one group": Awq(group=-1),
    "compressed-tensors, 4 bits": Compressed(),
    "compressed-tensors, 4 bits, zeros": Compressed(group=64, symmetric=False),
    "compressed-tensors, 4 bits, one group": Compressed(group=-1),
    "compressed-tensors, 4 bits, in order of activations": Compressed(ordered=True, symmetric=False),
}
EIGHT_BITS = {
    "fp8, an output": Fp8(),
    "fp8, all at once": Fp8("tensor", static=True),
    "fp8, blocks": Fp8("block", name="weight_scale_inv"),
    "compressed-tensors": Fp8(compressed=True),
    "compressed-tensors, all at once": Fp8("tensor", compressed=True, static=True),
    "compressed-tensors, blocks": Fp8("block", compressed=True),
    "modelopt": Fp8("tensor", modelopt=True, static=True),
}
PACKERS = FOUR_BITS | EIGHT_BITS
UP = "model.layers.1.mlp.up_proj"
K = "model.layers.0.self_attn.k_proj"


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    return checkpoint(tmp_path_factory.mktemp("plain"), **SHAPE)


@pytest.fixture
def made(weights: dict[str, Tensor], tmp_path: Path, request: pytest.FixtureRequest) -> Checkpoints:
    return write(weights, CONFIG | SHAPE, tmp_path, request.param)


def each_of(packers: dict[str, Any], every: int = 1) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("made", one_of(every, packers.values()), ids=packers, indirect=True)


def ones(*shape: int) -> Tensor:
    return torch.ones(shape, dtype=torch.int32)


def loaded(folder: Path, quantization: str = "none", dtype: Any = "auto") -> Decoder:
    model = load_model(ModelPlace("it", folder), quantization=quantization, dtype=dtype)
    assert isinstance(model, Decoder)
    return model


@torch.inference_mode()
def logits(model: Decoder, rows: int = 7) -> Tensor:
    ids = torch.arange(rows) * 5 % 96
    hidden = model.forward(ids, torch.arange(rows), plain_attend(model.config.layers))
    return model.logits(hidden)


def weight_of(product: torch.nn.Module, inputs: int) -> Tensor:
    """Return the weight [outputs, inputs] that a product multiplies with, however it is stored."""
    return product(torch.eye(inputs)).T


def refusal(folder: Path) -> str:
    with pytest.raises(EngineError) as caught:
        loaded(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@each_of(FOUR_BITS)
def test_int4_numbers_are_used_as_stored(made: Checkpoints) -> None:
    model = loaded(made.quantized)
    assert model.source is not None and model.source.scheme("none").name == "int4"
    assert model.source.scheme("none") is model.source.scheme("int4")
    for index, layer in enumerate(model.layers):
        for name, weight in made.products(index):
            torch.testing.assert_close(
                weight_of(layer.get_submodule(name), weight.shape[1]), weight, rtol=0, atol=1e-6
            )
    torch.testing.assert_close(logits(model), logits(loaded(made.plain)), rtol=0, atol=1e-4)


def test_in_bfloat16_on_a_cpu_only_scales_are_rounded(weights: dict[str, Tensor], tmp_path: Path) -> None:
    """The CPU kernel for few rows takes scales of no other type."""
    made = write(weights, CONFIG | SHAPE, tmp_path, Awq())
    model = loaded(made.quantized, dtype="bfloat16")
    for name, weight in made.products(0):
        found = model.layers[0].get_submodule(name).dequantized()
        assert float((found - weight).norm() / weight.norm()) < 2**-8


@each_of(EIGHT_BITS)
def test_fp8_is_dequantized_where_it_cannot_be_multiplied(made: Checkpoints) -> None:
    model = loaded(made.quantized)
    assert model.source is not None and model.source.scheme("none").name == "none"
    assert torch.equal(logits(model), logits(loaded(made.plain)))
    with pytest.raises(BadInput, match="'fp8': FP8 products need an NVIDIA GPU"):
        loaded(made.quantized, "fp8")


@each_of(EIGHT_BITS)
@torch.inference_mode()
def test_fp8_is_used_as_stored_where_it_can_be_multiplied(
    made: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scaled product also runs on a CPU, but it is too slow to offer there."""
    monkeypatch.setattr("engine.quant.fp8.Fp8.why_not", lambda self, device, dtype: None)
    model = loaded(made.quantized, dtype="bfloat16")
    assert model.source is not None and model.source.scheme("none") is model.source.scheme("fp8")
    for index, layer in enumerate(model.layers):
        for name, weight in made.products(index):
            assert torch.equal(layer.get_submodule(name).dequantized(), weight)
    plain = logits(loaded(made.plain))
    assert float((logits(model) - plain).norm() / plain.norm()) < 0.05  # activations are rounded


@pytest.mark.cuda
@each_of(PACKERS)
@torch.inference_mode()
def test_on_a_gpu(made: Checkpoints) -> None:
    """Few rows, many rows and a single row have different kernels."""
    model = load_model(ModelPlace("it", made.quantized), device="cuda", dtype="bfloat16")
    assert isinstance(model, Decoder) and model.source is not None
    least = 0.05 if model.source.scheme("none").rounds_activations else 0.005
    for name, weight in made.products(0):
        for rows in (1, 5, 200):
            x = torch.randn(rows, weight.shape[1], device="cuda", dtype=torch.bfloat16)
            expected = x.double() @ weight.cuda().double().T
            found = model.layers[0].get_submodule(name)(x).double()
            assert float((found - expected).norm() / expected.norm()) < least, (name, rows)


@each_of(PACKERS, every=2)
def test_other_schemes_are_made_from_the_dequantized_numbers(made: Checkpoints) -> None:
    read = packing(Fields.read(made.quantized / "config.json"))
    assert read is not None
    for scheme in ("fp32", "int8", next(each for each in ("int4-32", "int4-64") if each not in read.names)):
        assert torch.equal(logits(loaded(made.quantized, scheme)), logits(loaded(made.plain, scheme))), scheme


def test_products_excluded_from_quantization_stay_plain(weights: dict[str, Tensor], tmp_path: Path) -> None:
    """Tools list exclusions under various names, so the stored tensors decide."""
    for number, packer in enumerate((Gptq(), Awq(), Fp8(), Compressed())):
        made = write(
            weights, CONFIG | SHAPE, tmp_path / str(number), packer, but=("k_proj", "1.mlp.down_proj")
        )
        model = loaded(made.quantized)
        torch.testing.assert_close(logits(model), logits(loaded(made.plain)), rtol=0, atol=1e-4)
        assert torch.equal(
            weight_of(model.layers[1].feed_forward.down, 160), weights["model.layers.1.mlp.down_proj.weight"]
        )
        assert torch.equal(logits(loaded(made.quantized, "int8")), logits(loaded(made.plain, "int8")))


def test_products_with_a_bias(tmp_path: Path) -> None:
    shape = SHAPE | {"model_type": "qwen2"}
    weights = checkpoint(tmp_path, **shape)
    for number, packer in enumerate((Gptq(ordered=True), Gptq(ordered=True, apart=True), Awq(), Fp8())):
        made = write(weights, CONFIG | shape, tmp_path / str(number), packer)
        assert any("q_proj.bias" in name for name in load_file(made.quantized / "model.safetensors"))
        torch.testing.assert_close(
            logits(loaded(made.quantized)), logits(loaded(made.plain)), rtol=0, atol=1e-4
        )


@each_of({"gptq": Gptq(ordered=True), "fp8": Fp8()})
def test_a_weight_may_be_in_several_shards(made: Checkpoints) -> None:
    before, file = logits(loaded(made.quantized)), made.quantized / "model.safetensors"
    homes = {name: f"{at % 2}.safetensors" for at, name in enumerate(sorted(load_file(file)))}
    for shard in set(homes.values()):
        part = {name: each for name, each in load_file(file).items() if homes[name] == shard}
        save_file(part, made.quantized / shard)
    file.unlink()
    (made.quantized / "model.safetensors.index.json").write_text(json.dumps({"weight_map": homes}))
    reported: list[tuple[int, int]] = []
    model = load_model(ModelPlace("it", made.quantized), progress=lambda *amount: reported.append(amount))
    assert isinstance(model, Decoder) and torch.equal(logits(model), before)
    assert reported[-1][0] == reported[-1][1] == sum(each.nbytes for each in _all(made.quantized))


def _all(folder: Path) -> list[Tensor]:
    return [each for shard in folder.glob("?.safetensors") for each in load_file(shard).values()]


def test_a_quantized_head(weights: dict[str, Tensor], tmp_path: Path) -> None:
    made = write(weights, CONFIG | SHAPE, tmp_path, Gptq(), also=("lm_head.weight",))
    torch.testing.assert_close(logits(loaded(made.quantized)), logits(loaded(made.plain)), rtol=0, atol=1e-4)


@each_of({"gptq": Gptq(ordered=True)})
class TestFiles:
    """Extra or missing tensors in the file."""

    def spoil(self, made: Checkpoints, **changes: Tensor | None) -> str:
        tensors = load_file(made.quantized / "model.safetensors")
        changed = {name: each for name, each in (tensors | changes).items() if each is not None}
        save_file(changed, made.quantized / "model.safetensors")
        return refusal(made.quantized)

    @pytest.mark.parametrize(
        ("changes", "problem"),
        [
            ({f"{UP}.qzeros": None}, f"{UP}.qweight exists, but {UP}.qzeros is missing"),
            ({f"{UP}.g_idx": None}, f"{UP}.qweight exists, but {UP}.g_idx is missing"),
            ({f"{UP}.qweight": None}, "is not part of this model"),
            ({f"{UP}.weight": torch.ones(160, 64)}, f"{UP}.weight is not part of this model"),
            ({f"{UP}.bias": torch.ones(160)}, f"{UP}.bias is not part of this model"),
            ({f"{UP}.qweight": ones(16, 160)}, "is [16, 160], the config requires [8, 160]"),
            ({f"{UP}.scales": ones(2, 160)}, f"{UP}.scales holds I32; only F64, F32"),
            ({f"{UP}.g_idx": ones(64)}, f"{UP}.weight: g_idx does not assign 32 inputs to each group"),
            ({f"{UP}.g_idx": ones(64) * -9}, "g_idx does not assign 32 inputs to each group"),
        ],
    )  # fmt: skip
    def test_the_error_names_a_tensor_that_does_not_fit(
        self, made: Checkpoints, changes: dict[str, Tensor | None], problem: str
    ) -> None:
        message = self.spoil(made, **changes)
        assert problem in message and str(made.quantized / "model.safetensors") in message

    def test_a_zero_bias_and_unrelated_scales_are_ignored(self, made: Checkpoints) -> None:
        """AutoGPTQ writes a zero bias for models without biases."""
        before, file = logits(loaded(made.quantized)), made.quantized / "model.safetensors"
        more = {f"{UP}.bias": torch.zeros(160), f"{UP}.input_scale": torch.ones(1)}
        more["model.layers.0.self_attn.k_scale"] = torch.ones(1)
        save_file(load_file(file) | more, file)
        assert torch.equal(logits(loaded(made.quantized)), before)

    def test_a_config_of_another_model(self, made: Checkpoints) -> None:
        config = json.loads((made.quantized / "config.json").read_text())
        (made.quantized / "config.json").write_text(json.dumps(config | {"intermediate_size": 161}))
        assert "[161, 64]; both must be multiples of 8" in refusal(made.quantized)

    def test_a_quantized_checkpoint_is_supported(self, made: Checkpoints) -> None:
        found = support(made.quantized)
        assert (found.native, found.trouble) == (True, "")

    def test_dummy_weights_are_plain(self, made: Checkpoints) -> None:
        model = load_model(ModelPlace("it", made.quantized), dummy=True)
        assert isinstance(model, Decoder) and model.source is not None
        assert model.source.scheme("none").name == "none"


def test_fp8_needs_exactly_one_scale(weights: dict[str, Tensor], tmp_path: Path) -> None:
    made = write(weights, CONFIG | SHAPE, tmp_path, Fp8())
    file = made.quantized / "model.safetensors"
    tensors = load_file(file)
    for changes in ({f"{UP}.weight_scale": None}, {f"{UP}.weight_scale_inv": torch.ones(160, 1)}):
        save_file({name: each for name, each in (tensors | changes).items() if each is not None}, file)
        assert f"{UP}.weight needs either {UP}.weight_scale or" in refusal(made.quantized)


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128}
COMPRESSED = Compressed().config
REFUSED: list[tuple[dict[str, Any], str]] = [
    (GPTQ | {"bits": 8}, "bits is 8; only 4 bits can be loaded"),
    (GPTQ | {"bits": 3}, "bits is 3; only 4 bits can be loaded"),
    (GPTQ | {"bits": 2}, "bits is 2; only 4 bits can be loaded"),
    (GPTQ | {"bits": None}, "bits is missing"),
    (GPTQ | {"group_size": 48}, "group_size is 48; only -1 and multiples of 32"),
    (GPTQ | {"group_size": 0}, "group_size is 0; only -1 and multiples of 32"),
    (GPTQ | {"checkpoint_format": "marlin"}, 'checkpoint_format is "marlin"'),
    (GPTQ | {"is_marlin_format": True}, "is_marlin_format is true"),
    (GPTQ | {"pack_dtype": "int64"}, 'pack_dtype is "int64"'),
    (AWQ | {"version": "gemv"}, 'version is "gemv"; of awq, only gemm'),
    (AWQ | {"zero_point": False}, "zero_point is false"),
    ({"quant_method": "fp8", "weight_block_size": [64, 64]}, "weight_block_size is [64, 64]; only [128"),
    ({"quant_method": "fp8", "fmt": "e5m2"}, 'fmt is "e5m2"; only e4m3'),
    (
        COMPRESSED | {"format": "marlin-24"},
        'format is "marlin-24"; of compressed-tensors',
    ),
    (COMPRESSED | {"config_groups": {}}, "config_groups is {}; it does not describe the weights"),
    (COMPRESSED | {"transform_config": {"config_groups": {"u": {}}}}, "transform_config is"),
    (COMPRESSED | {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config is"),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 'quant_method is "bitsandbytes"'),
    ({"bits": 4}, "quant_method is null"),
    ({"quant_method": 4}, "quant_method is 4; it must be a string"),
]


@pytest.mark.parametrize(("config", "problem"), REFUSED)
def test_unsupported_formats_are_refused_by_name(
    tmp_path: Path, config: dict[str, Any], problem: str
) -> None:
    checkpoint(tmp_path)
    write_config(tmp_path, quantization_config=config)
    message = refusal(tmp_path)
    assert message.startswith(f"{tmp_path}/config.json: quantization_config.") and problem in message
    assert problem in support(tmp_path).trouble


def test_settings_of_compressed_tensors_are_checked(tmp_path: Path) -> None:
    def message(**weights: Any) -> str:
        group = {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"} | weights}
        config = {"quant_method": "compressed-tensors", "format": "float-quantized"}
        write_config(tmp_path, quantization_config=config | {"config_groups": {"group_0": group}})
        return support(tmp_path).trouble

    checkpoint(tmp_path)
    assert message() == ""
    assert "group_0.weights.num_bits is 4; only floats of 8 bits" in message(num_bits=4)
    assert "weights.num_bits is 8; only floats of 8 bits" in message(type="int")
    assert 'weights.strategy is "group"; only tensor, channel and block' in message(strategy="group")
    assert "weights.block_structure is [64, 64]" in message(strategy="block", block_structure=[64, 64])


@pytest.mark.parametrize(
    ("name", "packer", "config"),
    [
        ("quantize_config.json", Gptq(group=64), {"bits": 4, "group_size": 64, "desc_act": False}),
        ("quant_config.json", Awq(64), {"w_bit": 4, "q_group_size": 64, "version": "GEMM"}),
    ],
)  # fmt: skip
def test_older_checkpoints_have_a_separate_config(
    weights: dict[str, Tensor], tmp_path: Path, name: str, packer: Any, config: dict[str, Any]
) -> None:
    made = write(weights, CONFIG | SHAPE, tmp_path, packer)
    write_config(made.quantized, **SHAPE)
    assert "is not part of this model" in refusal(made.quantized)
    (made.quantized / name).write_text(json.dumps(config))
    torch.testing.assert_close(logits(loaded(made.quantized)), logits(loaded(made.plain)), rtol=0, atol=1e-4)


KEYS = (
    *(
        "quant_method",
        "bits",
        "group_size",
        "desc_act",
        "checkpoint_format",
        "is_marlin_format",
        "pack_dtype",
    ),
    *(
        "w_bit",
        "q_group_size",
        "version",
        "zero_point",
        "fmt",
        "weight_block_size",
        "format",
        "config_groups",
        "quant_algo",
        "quantized_layers",
        "quantization",
    ),
)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-2, 200)
    | st.sampled_from(["gptq", "awq", "fp8", "gemm", "block", "modelopt", "NVFP4", "MIXED_PRECISION"])
)
GROUPS = st.dictionaries(
    st.sampled_from(["weights", "g"]),
    LEAVES | st.dictionaries(st.sampled_from(["num_bits", "type", "strategy", "weights"]), LEAVES),
)


@given(st.dictionaries(st.sampled_from(KEYS), LEAVES | st.lists(LEAVES, max_size=2) | GROUPS))
def test_any_json_is_read_or_refused(values: dict[str, Any]) -> None:
    try:
        found = packing(Fields(Path("nowhere/config.json"), {"quantization_config": values}))
    except (UnsupportedModel, BadCheckpoint):
        return
    assert found is not None and found.method in ("gptq", "awq", "fp8", "fp4", "packed", "int8", "mixed")
