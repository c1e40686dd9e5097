"""Broken and hostile GGUF files: one sentence that names the file, never a crash or a huge allocation."""

import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api.errors import BadCheckpoint, BadInput, EngineError
from engine.models.decoder import Decoder
from engine.models.find import find_model
from engine.models.gguf.tensors import opened_gguf
from engine.models.registry import load_model
from engine.models.support import support
from engine.text.tokenizer import Tokenizer
from tests.examples import examples
from tests.models.gguf.ggufs import Array, gguf, random_bytes

WORDS = ["<s>", "</s>", "a", "b", "ab", *(f"w{n}" for n in range(27))]
MATRICES = {
    "token_embd": (32, 32),
    **dict.fromkeys(("attn_q", "attn_output", "ffn_gate", "ffn_up", "ffn_down"), (32, 32)),
    **dict.fromkeys(("attn_k", "attn_v"), (16, 32)),
}


def tensors() -> dict[str, tuple[Array, str]]:
    found: dict[str, tuple[Array, str]] = {
        f"{name if name == 'token_embd' else f'blk.0.{name}'}.weight": (
            random_bytes(shape, "Q4_0", 0),
            "Q4_0",
        )
        for name, shape in MATRICES.items()
    }
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        found[f"{name}.weight"] = (np.ones(32, np.float32), "F32")
    return found


def write(
    path: Path,
    change: Callable[[Any], None] = lambda writer: None,
    split_max_tensors: int = 0,
    **more: tuple[Array, str],
) -> Path:
    """Write a whole model of one layer, with a tokenizer. `split_max_tensors`: of each of several files."""
    writer = gguf.GGUFWriter(str(path), "llama", split_max_tensors=split_max_tensors)
    for add, value in (
        (writer.add_context_length, 64),
        (writer.add_embedding_length, 32),
        (writer.add_block_count, 1),
        (writer.add_feed_forward_length, 32),
        (writer.add_head_count, 4),
        (writer.add_head_count_kv, 2),
        (writer.add_layer_norm_rms_eps, 1e-5),
        (writer.add_tokenizer_model, "llama"),
        (writer.add_token_list, WORDS),
        (writer.add_token_scores, [-float(n) for n in range(len(WORDS))]),
        (writer.add_token_types, [3, 3] + [1] * 30),
        (writer.add_bos_token_id, 0),
        (writer.add_eos_token_id, 1),
    ):
        add(value)
    change(writer)
    for name, (data, kind) in (tensors() | more).items():
        writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    file = write(tmp_path_factory.mktemp("good") / "good.gguf")
    assert support(file).trouble == ""
    assert len(load_model(find_model(str(file))).config.layers) == 1
    assert Tokenizer.load(file).encode_raw("ab") == [0, 4]
    return file.read_bytes()


def opened(file: Path) -> str:
    """Open the file in every way. Returns what is wrong with it, or nothing."""
    problem = support(file).trouble
    for use in (Tokenizer.load, lambda path: load_model(find_model(str(path)))):
        try:
            use(file)
        except EngineError as error:
            problem = str(error)
            assert "\n" not in problem and len(problem) < 1000
    return problem


@given(data=st.data())
@examples(10)
def test_a_truncated_file_is_refused(good: bytes, data: st.DataObject, tmp_path_factory: Any) -> None:
    file = tmp_path_factory.mktemp("cut") / "cut.gguf"
    file.write_bytes(good[: data.draw(st.integers(0, len(good) - 1))])
    assert "cut.gguf" in opened(file)


@given(data=st.data())
@examples(30)
def test_changed_bytes_never_crash(good: bytes, data: st.DataObject, tmp_path_factory: Any) -> None:
    """Most changes of the header are refused; those of a weight or a name may go unnoticed."""
    file, header = tmp_path_factory.mktemp("bad") / "bad.gguf", len(good) - 6000
    changed = bytearray(good)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(4, header))
        length = data.draw(st.sampled_from((1, 4, 8)))
        value = data.draw(st.sampled_from((0, 1, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1, 7, 255)))
        changed[at : at + length] = value.to_bytes(8, "little")[:length]
    file.write_bytes(changed)
    tracemalloc.start()
    try:
        opened(file)
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()


def with_bytes(at: int, new: bytes) -> Callable[[bytes], bytes]:
    return lambda good: good[:at] + new + good[at + len(new) :]


def dimension(name: bytes, index: int, value: int) -> Callable[[bytes], bytes]:
    """Change one of the numbers behind a tensor's name: 0 is its number of dimensions."""

    def change(good: bytes) -> bytes:
        at = good.index(name, good.index(b"tokenizer.ggml.eos_token_id")) + len(name)
        start = at + (0, 4, 12, 20, 24)[index]
        code = "<I" if index in (0, 3) else "<Q"
        return good[:start] + struct.pack(code, value) + good[start + struct.calcsize(code) :]

    return change


NAME = b"blk.0.attn_q.weight"
BROKEN: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda good: b"", "is empty"),
    "magic": (with_bytes(0, b"GGML"), "it does not start with GGUF"),
    "old": (with_bytes(4, struct.pack("<I", 1)), "is GGUF version 1; only 2 and 3"),
    "big-endian": (with_bytes(4, struct.pack(">I", 3)), "is big-endian"),
    "tensor count": (
        with_bytes(8, struct.pack("<Q", 2**40)),
        "it has 1,099,511,627,776 tensors, more than fit",
    ),
    "metadata count": (with_bytes(16, struct.pack("<Q", 2**63)), "metadata, more than fit"),
    "a name's length": (with_bytes(24, struct.pack("<Q", 2**50)), "characters in a name, more than fit"),
    "dimensions": (dimension(NAME, 0, 5), "attn_q.weight has 5 dimensions"),
    "no dimension": (dimension(NAME, 0, 0), "attn_q.weight has 0 dimensions"),
    "width": (dimension(NAME, 1, 2**60), "which is impossible"),
    "a part of a block": (dimension(NAME, 1, 33), "which is impossible"),
    "no rows": (dimension(NAME, 2, 0), "which is impossible"),
    "type": (dimension(NAME, 3, 99), "of the unknown type 99; only F32"),
    "an unread type": (dimension(NAME, 3, 16), "attn_q.weight is IQ2_XXS; only F32"),
    "offset": (dimension(NAME, 4, 2**40), "attn_q.weight is outside of the file"),
    "odd offset": (dimension(NAME, 4, 33), "attn_q.weight is outside of the file"),
    "not UTF-8": (lambda good: good.replace(b"w11", b"\xff\xfe1"), "a string is not UTF-8 text"),
    "two of a name": (lambda good: good.replace(b"attn_k.w", b"attn_q.w"), "two tensors blk.0.attn_q.weight"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_header_is_refused(case: str, good: bytes, tmp_path: Path) -> None:
    change, problem = BROKEN[case]
    (tmp_path / "bad.gguf").write_bytes(change(good))
    assert problem in opened(tmp_path / "bad.gguf")


def q4(*shape: int) -> tuple[Array, str]:
    return random_bytes(shape, "Q4_0", 1), "Q4_0"


CHANGED: dict[str, tuple[Callable[[Any], None], dict[str, tuple[Array, str]], str]] = {
    "architecture": (
        lambda writer: writer.add_string("general.architecture", "mamba"),
        {},
        "general.architecture is 'mamba'; of GGUF files, llama, qwen2",
    ),
    "layers": (lambda writer: writer.add_block_count(10**6), {}, "num_hidden_layers is 1000000"),
    "heads by layer": (lambda writer: writer.add_head_count([4, 4]), {}, "num_attention_heads is [4, 4]"),
    "heads": (lambda writer: writer.add_head_count_kv(0), {}, "num_key_value_heads is 0"),
    "value width": (
        lambda writer: (writer.add_key_length(8), writer.add_value_length(4)),
        {},
        "llama.attention.value_length is 4; only that of keys, 8, is supported",
    ),
    "rope": (lambda writer: writer.add_rope_freq_base(float("nan")), {}, "rope_theta is NaN"),
    "alignment": (lambda writer: writer.add_uint32("general.alignment", 33), {}, "general.alignment is 33"),
    "split": (
        lambda writer: writer.add_uint16("split.count", 3),
        {},
        "is one of 3 parts of a model, so its name must end with",
    ),
    "shape": (
        lambda writer: None,
        {"blk.0.attn_v.weight": q4(32, 32)},
        "is [32, 32], the config requires [16, 32]",
    ),
    "a tensor too many": (
        lambda writer: None,
        {"blk.1.attn_v.weight": q4(16, 32)},
        "is not part of this model",
    ),
    "a bias of a weight without": (
        lambda writer: None,
        {"blk.0.attn_output.bias": (np.ones(32, np.float32), "F32")},
        "is not part of this model",
    ),
    "rope factors": (
        lambda writer: None,
        {"rope_freqs.weight": (np.ones(3, np.float32), "F32")},
        "short_factor and long_factor must list 4 numbers",
    ),
    "tokenizer": (lambda writer: writer.add_tokenizer_model("t5"), {}, "tokenizer.ggml.model is 't5'"),
    "pre-tokenizer": (
        lambda writer: (writer.add_tokenizer_model("gpt2"), writer.add_tokenizer_pre("new")),
        {},
        "tokenizer.ggml.pre is 'new'",
    ),
    "merges": (
        lambda writer: (
            writer.add_tokenizer_model("gpt2"),
            writer.add_tokenizer_pre("gpt-2"),
            writer.add_token_merges(["x y"]),
        ),
        {},
        "cannot load the tokenizer of",
    ),
    "scores": (lambda writer: writer.add_token_scores([0.0]), {}, "tokenizer.ggml.scores must hold a number"),
    "a long token": (
        lambda writer: writer.add_token_list(["x" * 2000, *WORDS[1:]]),
        {},
        "a token has 2,000 characters",
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", CHANGED)
def test_wrong_contents_are_named(case: str, tmp_path: Path) -> None:
    change, more, problem = CHANGED[case]
    assert problem in opened(write(tmp_path / "odd.gguf", change, **more))


def test_a_file_that_changes_later_is_refused(good: bytes, tmp_path: Path) -> None:
    file = tmp_path / "cut.gguf"
    file.write_bytes(good)
    model = load_model(find_model(str(file)))
    assert isinstance(model, Decoder)
    with opened_gguf(file) as tensors:
        file.write_bytes(good[:-2000])
        with pytest.raises(BadCheckpoint, match=r"cut\.gguf is truncated"):
            tensors.get_tensor("model.layers.0.mlp.up_proj.weight")
    with pytest.raises(BadInput, match="removed or changed"):
        model.source.check()
