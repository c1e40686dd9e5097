"""Random LoRA adapters in PEFT's format, and the weights they would be merged into."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.models.adapters.files import key
from engine.models.adapters.settings import CONFIG, WEIGHTS
from engine.models.adapters.targets import adapter_targets
from engine.models.config_json import read_config

LLAMA = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def adapter_tensors(
    base: Path, modules: Iterable[str] = LLAMA, *, rank: int = 4, seed: int = 0, spread: float = 0.2
) -> dict[str, Tensor]:
    """Both halves of each module of a model whose name ends with one of `modules`."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, target in adapter_targets(read_config(base)).items():
        if name.rpartition(".")[2] in modules:
            tensors[key(name, "A")] = torch.randn(rank, target.inputs, generator=generator) * spread
            tensors[key(name, "B")] = torch.randn(target.outputs, rank, generator=generator) * spread
    return tensors


def write_adapter(folder: Path, tensors: dict[str, Tensor], **config: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    usual = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 8, "bias": "none",
        "target_modules": list(LLAMA), "lora_dropout": 0.05, "inference_mode": True,
    }  # fmt: skip
    (folder / CONFIG).write_text(json.dumps(usual | config))
    save_file({name: each.clone() for name, each in tensors.items()}, folder / WEIGHTS)
    return folder


def random_adapter(folder: Path, base: Path, *, seed: int = 0, spread: float = 0.2, **config: Any) -> Path:
    """Write an adapter for every product, with rank and scale from the config."""
    modules = config.get("target_modules", LLAMA)
    tensors = adapter_tensors(base, modules, rank=config.get("r", 4), seed=seed, spread=spread)
    return write_adapter(folder, tensors, **config)


def merge(base: Path, adapter: Path, scale: float, folder: Path) -> Path:
    """Write the base model's checkpoint with an adapter merged into its weights: the oracle."""
    folder.mkdir(parents=True)
    for file in base.glob("*.json"):
        (folder / file.name).write_bytes(file.read_bytes())
    weights, halves = load_file(base / "model.safetensors"), load_file(adapter / WEIGHTS)
    for name in [name for name in weights if key(name.removesuffix(".weight"), "A") in halves]:
        module = name.removesuffix(".weight")
        added = halves[key(module, "B")].double() @ halves[key(module, "A")].double() * scale
        weights[name] = (weights[name].double() + added).to(weights[name].dtype)
    save_file(weights, folder / "model.safetensors")
    return folder
