"""A request whose logits are NaN fails alone."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.api.errors import BadInput
from engine.api.params import SamplingParams
from engine.api.request import Finish
from tests.cases import one_row_of
from tests.runner.letters import VOCAB
from tests.runner.small import GREEDY, alone, ask, drain, engine_on, turn

POISON = 200
PROMPT = [1, *range(40, 77)]
SAMPLING = {
    "greedy": GREEDY,
    "drawn": SamplingParams(seed=1, max_tokens=24, top_p=0.9, top_k=50, min_p=0.01, repetition_penalty=1.2),
}


@pytest.fixture(scope="module")
def poisoned(checkpoint: Callable[[str], tuple[Path, Any]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in which the embedding of one token is NaN."""
    folder = tmp_path_factory.mktemp("poisoned")
    shutil.copytree(checkpoint("qwen2")[0], folder, dirs_exist_ok=True)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.embed_tokens.weight"][POISON] = torch.nan
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.mark.parametrize(("where", "kind", "depth"), one_row_of(5, product((3, 20, 37), SAMPLING, (1, 0))))
def test_only_the_request_with_nan_fails(poisoned: Path, kind: str, depth: int, where: int) -> None:
    params = SAMPLING[kind]
    engine = engine_on(poisoned, depth=depth, max_step_tokens=16)
    good = [ask(engine, PROMPT[:n], params)[1] for n in (38, 5)]
    turn(engine)
    bad = [*PROMPT[:where], POISON, *PROMPT[where:]]
    _, fails = ask(engine, bad, replace(params, logprobs=2))
    drain(engine)
    assert (fails.tokens, fails.text, fails.finish) == ([], "", Finish.FAILED)
    assert "NaN" in fails.error
    for output, n in zip(good, (38, 5), strict=True):
        assert output.reply == alone(poisoned, PROMPT[:n], params).reply

    later = [ask(engine, prompt, params)[1] for prompt in (PROMPT, bad[:-1])]  # in the cells it left
    drain(engine)
    assert later[0].reply == alone(poisoned, PROMPT, params).reply
    assert later[1].finish is Finish.FAILED


def test_a_request_that_samples_the_bad_token_fails_midway(poisoned: Path) -> None:
    engine = engine_on(poisoned)
    id, output = ask(engine, PROMPT)
    for _ in range(4):
        turn(engine)
    engine.update(id, logit_bias={POISON: 100.0})
    drain(engine)
    assert output.tokens == [*alone(poisoned, PROMPT).tokens[:4], POISON]
    assert output.finish is Finish.FAILED


@pytest.mark.parametrize("token", [VOCAB, -1, 2**40], ids=str)
def test_a_token_outside_the_vocabulary_is_refused(llama: Path, token: int) -> None:
    engine = engine_on(llama)
    with pytest.raises(BadInput, match=f"token id {token} is out of range: .* has tokens 0 to {VOCAB - 1}"):
        ask(engine, [1, token])
    for params in (replace(GREEDY, stop_ids=(VOCAB,)), replace(GREEDY, logit_bias={VOCAB: 1.0})):
        with pytest.raises(BadInput, match=f"token id {VOCAB} is out of range"):
            ask(engine, [1], params)
        id, output = ask(engine, [1])
        with pytest.raises(BadInput, match=f"token id {VOCAB} is out of range"):
            engine.update(id, stop_ids=params.stop_ids, logit_bias=params.logit_bias)
        drain(engine)
        assert output.reply == alone(llama, [1]).reply
