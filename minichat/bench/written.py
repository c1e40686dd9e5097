"""Write a checkpoint with random weights, to measure the cost of reading it. Its tokens are single bytes."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

TOGETHER = 4  # layers per file


def write(folder: Path, config: dict[str, Any]) -> None:
    """Write the files of a Llama or a Qwen3; `config` is the content of config.json."""
    (folder / "config.json").write_text(json.dumps(config))
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: at for at, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    weight_map: dict[str, str] = {}
    for nth, tensors in enumerate(_files(config)):
        file = f"model-{nth:05}.safetensors"
        save_file(tensors, folder / file)
        weight_map |= dict.fromkeys(tensors, file)
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": weight_map})
    )


def _files(config: dict[str, Any]) -> Iterator[dict[str, Tensor]]:
    dtype, hidden, vocab = getattr(torch, config["dtype"]), config["hidden_size"], config["vocab_size"]
    device = "cuda" if torch.cuda.is_available() else "cpu"

    def random(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device).normal_(std=0.02).cpu()

    ends = {
        "model.embed_tokens.weight": random(vocab, hidden),
        "model.norm.weight": torch.ones(hidden, dtype=dtype),
    }
    if not config["tie_word_embeddings"]:
        ends["lm_head.weight"] = random(vocab, hidden)
    yield ends
    count = config["num_hidden_layers"]
    for begin in range(0, count, TOGETHER):
        yield {
            f"model.layers.{layer}.{name}.weight": random(*shape)
            if len(shape) > 1
            else torch.ones(shape, dtype=dtype)
            for layer in range(begin, min(begin + TOGETHER, count))
            for name, shape in _layer(config).items()
        }


def _layer(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, wide, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = (config[name] * dim for name in ("num_attention_heads", "num_key_value_heads"))
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm": (hidden,),
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "post_attention_layernorm": (hidden,),
        "mlp.gate_proj": (wide, hidden),
        "mlp.up_proj": (wide, hidden),
        "mlp.down_proj": (hidden, wide),
    }
    if config["model_type"] == "qwen3":
        shapes |= {"self_attn.q_norm": (dim,), "self_attn.k_norm": (dim,)}
    return shapes
