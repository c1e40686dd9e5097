"""A change reads the weights again, from the files that were loaded, or is refused."""

from collections.abc import Callable
from pathlib import Path

import pytest

from engine.api.errors import BadInput
from tests.models.tiny import checkpoint
from tests.quant.packers import Gptq, write
from tests.quant.test_stored_engine import SHAPE
from tests.quant.test_switching import engine_on, reply
from tests.runner.letters import byte_tokenizer


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("change", [Path.unlink, Path.touch, lambda file: file.write_bytes(b"another")])
def test_a_change_is_refused_if_the_files_are_gone_or_changed(
    tmp_path: Path, change: Callable[[Path], object], stored: bool
) -> None:
    """The old scheme could not be restored, as it is read from the files too."""
    written = write(checkpoint(tmp_path, **SHAPE), SHAPE, tmp_path, Gptq())
    folder = written.quantized if stored else written.plain
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    engine = engine_on(folder)
    before = reply(engine)
    change(folder / "model.safetensors")
    with pytest.raises(BadInput, match=r"model.safetensors was removed or changed since it was"):
        engine.set_quantization("int8")
    engine.set_quantization("none")  # already the scheme: no-op
    assert not engine.busy and reply(engine) == before
