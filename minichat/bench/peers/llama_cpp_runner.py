"""llama.cpp through llama-cpp-python, with the same weights: writes them as GGUF, by the package gguf.

Its own quantizer converts that file to Q4_0 or Q8_0.

The library has no scheduler, so the loop here is the simplest continuous batching: each step has a token
of every running reply, and the prompts that fit.
"""

import json
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

Generate = Callable[[Sequence[Sequence[int]], Sequence[int]], list[int]]

_PLAIN = "none"
_BATCH = 2048  # tokens of a step; its default
_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def opened(job: dict[str, Any]) -> tuple[str, Generate]:
    llama = import_module("llama_cpp")
    llama.llama_backend_init()
    context = _context(llama, job)
    chain = llama.llama_sampler_chain_init(llama.llama_sampler_chain_default_params())
    llama.llama_sampler_chain_add(chain, llama.llama_sampler_init_temp(0.6))
    llama.llama_sampler_chain_add(chain, llama.llama_sampler_init_dist(0))
    batch = llama.llama_batch_init(_BATCH, 0, 1)

    def generate(prompts: Sequence[Sequence[int]], counts: Sequence[int]) -> list[int]:
        waiting = deque(range(len(prompts)))
        free = list(range(job["rows"]))
        slots: dict[int, int] = {}  # the sequence of each running reply
        replies: list[list[int]] = [[] for _ in prompts]
        while waiting or slots:
            batch.n_tokens = 0
            samples = {}
            for each, slot in slots.items():
                at = len(prompts[each]) + len(replies[each]) - 1
                samples[each] = _add(batch, replies[each][-1], at, slot, True)
            while waiting and free and batch.n_tokens + len(prompts[waiting[0]]) <= _BATCH:
                each = waiting.popleft()
                slots[each] = free.pop()
                last = len(prompts[each]) - 1
                for at, token in enumerate(prompts[each]):
                    samples[each] = _add(batch, token, at, slots[each], at == last)
            if code := llama.llama_decode(context, batch):
                raise RuntimeError(f"llama_decode returned {code}")
            for each, row in samples.items():
                replies[each].append(llama.llama_sampler_sample(chain, context, row))
                if len(replies[each]) == counts[each]:
                    llama.llama_memory_seq_rm(llama.llama_get_memory(context), slots[each], -1, -1)
                    free.append(slots.pop(each))
        return [len(reply) for reply in replies]

    form = "" if job["quantization"] == _PLAIN else f"-{job['quantization']}"
    return f"llama-cpp-python {llama.__version__}{form}", generate


def _context(llama: Any, job: dict[str, Any]) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.gguf"
        _write(Path(job["folder"]), file)
        if job["quantization"] != _PLAIN:
            file = quantized(llama, file, job["quantization"])
        params = llama.llama_model_default_params()
        params.n_gpu_layers = 0 if job["device"] == "cpu" else 999
        params.use_mmap = False  # the file is removed
        model = llama.llama_model_load_from_file(str(file).encode(), params)
    if not model:
        raise RuntimeError("llama.cpp cannot load the model")
    settings = llama.llama_context_default_params()
    settings.n_ctx, settings.n_seq_max = job["rows"] * -(-job["context"] // 256) * 256, job["rows"]
    settings.n_batch = _BATCH
    if job["device"] == "cpu":
        settings.n_threads = settings.n_threads_batch = job["threads"]
    context = llama.llama_init_from_model(model, settings)
    if not context:
        raise RuntimeError("llama.cpp cannot create a context")
    return context


def quantized(llama: Any, file: Path, form: str) -> Path:
    made = file.with_name(f"{form}.gguf")
    how = llama.llama_model_quantize_default_params()
    how.ftype, how.nthread = getattr(llama, f"LLAMA_FTYPE_MOSTLY_{form}"), 1
    if code := llama.llama_model_quantize(str(file).encode(), str(made).encode(), how):
        raise RuntimeError(f"llama_model_quantize returned {code}")
    file.unlink()
    return made


def _add(batch: Any, token: int, at: int, slot: int, sampled: bool) -> int:
    """Add a token to the batch. Return its row."""
    row = batch.n_tokens
    batch.token[row], batch.pos[row] = token, at
    batch.n_seq_id[row], batch.seq_id[row][0] = 1, slot
    batch.logits[row] = sampled
    batch.n_tokens = row + 1
    return int(row)


def _write(folder: Path, file: Path) -> None:
    gguf, numpy = import_module("gguf"), import_module("numpy")
    config = json.loads((folder / "config.json").read_text())
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    size = config.get("head_dim") or config["hidden_size"] // heads
    writer = gguf.GGUFWriter(str(file), config["model_type"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(groups)
    writer.add_key_length(size)
    writer.add_value_length(size)
    writer.add_rope_dimension_count(size)
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_tokenizer_model("none")
    bf16 = gguf.GGMLQuantizationType.BF16
    for name, data, shape in _tensors(folder, numpy):
        if len(shape) == 1:  # norms are in float32
            writer.add_tensor(name, (data.astype(numpy.uint32) << 16).view(numpy.float32))
            continue
        data = data.reshape(shape)
        if config["model_type"] == "llama" and name.endswith(("attn_q.weight", "attn_k.weight")):
            data = data.reshape(-1, 2, size // 2, shape[1]).swapaxes(1, 2).reshape(shape)  # its rotary order
        writer.add_tensor(name, numpy.ascontiguousarray(data).view(numpy.uint8), raw_dtype=bf16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tensors(folder: Path, numpy: Any) -> Iterator[tuple[str, Any, list[int]]]:
    """The tensors of all files in bfloat16, as llama.cpp names them."""
    for file in sorted(folder.glob("*.safetensors")):
        raw = file.read_bytes()
        begin = 8 + int.from_bytes(raw[:8], "little")
        for name, tensor in json.loads(raw[8:begin]).items():
            if name == "__metadata__":
                continue
            if tensor["dtype"] != "BF16":
                raise ValueError(f"{name} is {tensor['dtype']}; only bfloat16 checkpoints are converted")
            start, end = tensor["data_offsets"]
            yield (
                _named(name),
                numpy.frombuffer(raw[begin + start : begin + end], numpy.uint16),
                tensor["shape"],
            )


def _named(name: str) -> str:
    base = name.removesuffix(".weight")
    if base in _NAMES:
        return f"{_NAMES[base]}.weight"
    _, _, layer, part = base.split(".", 3)
    return f"blk.{layer}.{_NAMES[part]}.weight"
