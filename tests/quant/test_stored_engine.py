"""An engine on a quantized checkpoint: the scheme `none`, other schemes, and changing back."""

from pathlib import Path

import pytest

from engine.api.config import EngineConfig
from engine.api.errors import BadInput
from engine.quality.measure import compare
from engine.quality.schemes import choices
from tests.models.tiny import CONFIG, checkpoint
from tests.quant.packers import Awq, Checkpoints, Fp8, Gptq, write
from tests.quant.test_switching import engine_on, finish_change, reply, switch
from tests.runner.letters import VOCAB, byte_tokenizer

SHAPE = CONFIG | {"hidden_size": 64, "intermediate_size": 160, "head_dim": 16, "vocab_size": VOCAB}


def made(folder: Path, packer: object) -> Checkpoints:
    folder.mkdir(exist_ok=True)
    written = write(checkpoint(folder, **SHAPE), SHAPE, folder, packer)
    for each in (written.quantized, written.plain):
        byte_tokenizer().save(str(each / "tokenizer.json"))
    return written


@pytest.mark.parametrize("packer", [Gptq(ordered=True), Awq()])
def test_none_is_the_checkpoints_own_scheme_and_others_are_made_from_it(
    tmp_path: Path, packer: object
) -> None:
    written = made(tmp_path, packer)
    engine, plain = engine_on(written.quantized), engine_on(written.plain)
    assert engine.snapshot().quantization == "int4"
    own, whys = reply(engine), {each.name: each.why_not for each in engine.snapshot().schemes}
    assert whys["none"] == whys["int4-32"] == "for this checkpoint, use int4"
    assert whys["int4"] == whys["int8"] == whys["int4-64"] == ""
    for scheme in ("int8", "fp32"):
        switch(engine, scheme)
        switch(plain, scheme)
        assert reply(engine) == reply(plain), "not made from the dequantized numbers"
        engine.set_quantization("none")
        finish_change(engine)
        assert engine.snapshot().quantization == "int4"
        assert reply(engine) == own
    engine.set_quantization("none")
    assert not engine.busy, "a change to the current scheme has begun"


def test_fp8_is_dequantized_on_a_cpu(tmp_path: Path) -> None:
    written = made(tmp_path, Fp8("block", name="weight_scale_inv"))
    engine, plain = engine_on(written.quantized), engine_on(written.plain)
    assert engine.snapshot().quantization == "none"
    assert reply(engine) == reply(plain)
    before = reply(engine)
    with pytest.raises(BadInput, match="'fp8': FP8 products need an NVIDIA GPU"):
        engine.set_quantization("fp8")
    switch(engine, "int4")
    switch(engine, "none")
    assert reply(engine) == before


def test_the_reported_bytes_are_the_bytes_in_memory(tmp_path: Path) -> None:
    for packer in (Gptq(group=128), Awq(32)):
        engine = engine_on(made(tmp_path / repr(packer), packer).quantized)
        shot = engine.snapshot()
        reported = {view.name: view.nbytes for view in shot.schemes}["int4"]
        assert shot.memory["weights"] == pytest.approx(reported, rel=0.12)


def test_quality_compares_with_the_checkpoints_own_scheme(tmp_path: Path) -> None:
    written = made(tmp_path, Gptq())
    config = EngineConfig(model=str(written.quantized), device="cpu", blocks=64)
    none, same, other = compare(config, choices("none,int4,int8"), "a bird in the hand " * 4, speed=False)
    assert (none.kl, same.kl, same.bytes) == (0.0, 0.0, none.bytes)
    assert other.kl > 0
