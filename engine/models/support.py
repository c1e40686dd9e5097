"""Whether a model can run here, judged by its small files or its header only. Needs no torch."""

from dataclasses import dataclass
from pathlib import Path

from engine.api.errors import EngineError
from engine.gguf.header import is_gguf, read_header
from engine.models.checkpoint import shards
from engine.models.config_json import config_fields, read_config, refuse_quantized
from engine.models.families import named
from engine.models.fields import Fields

_HEADS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")  # heads that predict tokens


@dataclass(frozen=True, slots=True)
class Support:
    """A model's family and size, and why it cannot run, if so.

    A transformers model may still be refused when it is loaded.
    """

    family: str
    bytes: int  # size of the weights
    native: bool = False
    trouble: str = ""


def support(folder: Path) -> Support:
    """Check the config and which files exist."""
    file = folder if is_gguf(folder) else folder / "config.json"
    family, size, native = "", 0, False
    try:
        fields = config_fields(folder)
        family = fields.text("model_type")
        native = named(family) is not None
        files = shards(folder)
        size = sum(each.stat().st_size for each in files)
        if native:
            read_config(folder)
        else:
            refuse_quantized(fields)
            _check_head(fields)
        if is_gguf(folder):
            from engine.text.gguf import refuse_tokenizer  # it imports the library of tokenizers

            refuse_tokenizer(read_header(folder))
    except (EngineError, OSError) as error:
        problem = str(error).removeprefix(f"{file}: ").replace(f"{folder}/", "").replace(f"{folder} ", "it ")
        return Support(family, size, native, problem)
    return Support(family, size, native)


def _check_head(fields: Fields) -> None:
    names = fields.list("architectures", [])
    if names and not any(isinstance(name, str) and name.endswith(_HEADS) for name in names):
        raise fields.unsupported("architectures", "it has no language-modeling head")
