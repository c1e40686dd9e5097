"""The command that trains the shipped model, at a tiny size, on a CPU."""

import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from tokenizers import Tokenizer

from training.__main__ import main
from training.decode import How, replies
from training.heads.medusa import tokens_by_drafts
from training.model import Decoder, dense_attend
from training.muon import orthogonal
from training.newcomers import for_each_fact, newcomers
from training.recipe import TINY, Schedule
from training.rows import pack
from training.train import Pace, fit, with_exits


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("training")
    assert main(["--tiny", "--work", str(folder / "work"), "--out", str(folder / "pocket")]) == 0
    return folder / "pocket"


def test_the_folder_is_complete(exported: Path) -> None:
    names = {str(path.relative_to(exported)) for path in exported.rglob("*") if path.is_file()}
    assert names >= {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "MODEL_CARD.md",
        "draft/config.json",
        "draft/model.safetensors",
    }
    config = json.loads((exported / "config.json").read_text(encoding="utf-8"))
    tokenizer = Tokenizer.from_file(str(exported / "tokenizer.json"))
    assert config["vocab_size"] == tokenizer.get_vocab_size()
    assert [tokenizer.id_to_token(i) for i in config["eos_token_id"]] == ["<|im_end|>", "<|end|>"]
    assert tokenizer.id_to_token(config["bos_token_id"]) == "<|start|>"


def test_transformers_computes_the_same_logits(exported: Path) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float32).eval()
    ours = loaded(exported)
    tokens = torch.randint(0, theirs.config.vocab_size, (2, 24), generator=torch.Generator().manual_seed(1))
    causal = torch.ones(24, 24, dtype=torch.bool).tril()[None, None]
    with torch.inference_mode():
        expected = theirs(tokens).logits
        assert torch.allclose(ours(tokens, torch.arange(24)[None], dense_attend(causal)), expected, atol=1e-4)


def test_exported_weights_can_be_evaluated_again(exported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (exported / "model.safetensors").read_bytes()
    assert main(["--tiny", "--cases", "1", "--measure", str(exported)]) == 0
    printed = capsys.readouterr().out
    assert "about: " in printed and f"of {len(newcomers())}" in printed
    assert f"of {len(for_each_fact())}" in printed
    assert (exported / "model.safetensors").read_bytes() == before


def test_a_model_card_can_be_written_later(exported: Path) -> None:
    card = exported / "MODEL_CARD.md"
    before = card.read_text(encoding="utf-8")
    assert main(["--tiny", "--measure", str(exported), "--card", "last of two runs"]) == 0
    head, tables = card.read_text(encoding="utf-8").split("(last of two runs)")
    assert before.startswith(head)
    assert before.endswith(tables)


def loaded(folder: Path) -> Decoder:
    weights = {name: tensor.float() for name, tensor in load_file(folder / "model.safetensors").items()}
    model = Decoder(TINY.main, len(weights["model.embed_tokens.weight"]))
    model.load_state_dict(weights)
    return model.eval()


def test_a_batch_of_replies_equals_each_alone(exported: Path) -> None:
    model = loaded(exported)
    prompts = [[0, 5, 9], [0, 7, 8, 9, 10, 11], [0]]
    for how in (How(), How(beams=3)):
        together = replies(model, prompts, 6, 2, how)
        assert together == [replies(model, [prompt], 6, 2, how)[0] for prompt in prompts]


def test_one_beam_is_greedy(exported: Path) -> None:
    model = loaded(exported)
    greedy = replies(model, [[0, 5, 9]], 8, 2)
    assert replies(model, [[0, 5, 9]], 8, 2, How(temperature=1.0, top_p=1e-9)) == greedy


def test_an_interrupted_run_resumes_to_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = torch.randint(5, 60, (6, 33), generator=torch.Generator().manual_seed(2)).int() | 0x8000
    data[:, 0] = 0
    schedule = Schedule(steps=6, rows=2, matrix_rate=0.02, vector_rate=4e-3, warmup=1)

    def train(steps: int, file: Path) -> dict[str, torch.Tensor]:
        torch.manual_seed(3)
        model = Decoder(TINY.main, 64)
        objective = with_exits(model, 0.3)

        def cut(*batch: torch.Tensor) -> torch.Tensor:
            nonlocal steps
            if not steps:
                raise KeyboardInterrupt
            steps -= 1
            return objective(*batch)

        fit(model, cut, data, 0, schedule, file, seed=1, say=lambda text: None)
        return model.state_dict()

    monkeypatch.setattr("training.train.SAVE_EVERY", 2)
    whole = train(6, tmp_path / "whole.pt")
    with pytest.raises(KeyboardInterrupt):
        train(3, tmp_path / "cut.pt")
    resumed = train(4, tmp_path / "cut.pt")  # step 3 was lost and is repeated
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_a_run_that_is_stopped_saves_its_last_step(tmp_path: Path) -> None:
    data = torch.randint(5, 60, (6, 33), generator=torch.Generator().manual_seed(2)).int() | 0x8000
    model = Decoder(TINY.main, 64)
    objective = with_exits(model, 0.3)

    def stopped(*batch: torch.Tensor) -> torch.Tensor:
        os.kill(os.getpid(), signal.SIGTERM)
        return objective(*batch)

    schedule = Schedule(steps=6, rows=2, matrix_rate=0.02, vector_rate=4e-3, warmup=1)
    with pytest.raises(SystemExit, match="after step 1 of 6"):
        fit(model, stopped, data, 0, schedule, tmp_path / "it.pt", seed=1, say=lambda text: None)
    assert torch.load(tmp_path / "it.pt")["step"] == 1


def test_the_steps_follow_from_the_time_and_the_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("training.train.time.perf_counter", lambda: now)
    pace = Pace(first=500, spent=40.0, limit=100.0)
    now = 20.0  # most of it to compile
    assert pace.steps(600, usual=5000) == 5000
    now = 25.0
    assert pace.steps(650, usual=5000) == 5000
    now = 30.0  # ten steps a second, 30 s left
    assert pace.steps(700, usual=5000) == 1000
    now = 61.0
    assert pace.steps(1000, usual=1000) == 1000
    assert Pace(first=0, spent=0.0, limit=None).steps(700, usual=5000) == 5000


@given(st.lists(st.integers(1, 30), min_size=1, max_size=60))
def test_packing_keeps_every_item_whole_and_once(lengths: list[int]) -> None:
    items = [[i + 1] * length for i, length in enumerate(lengths)]
    packed = pack(iter(items), rows=len(items), width=32, pad=0)
    found = {i: int((packed == i).sum()) for i in range(1, len(items) + 1)}
    assert found == {i + 1: length for i, length in enumerate(lengths)}
    for row in packed:
        changes = np.flatnonzero(np.diff(row[row > 0]))
        assert len(set(row[row > 0].tolist())) == len(changes) + bool(len(row[row > 0]))


def test_muon_makes_matrices_orthogonal() -> None:
    batch = torch.randn(3, 12, 20, generator=torch.Generator().manual_seed(4))
    matrices = orthogonal(batch)
    assert (matrices @ matrices.mT - torch.eye(12)).abs().max() < 0.55
    assert (batch @ batch.mT - torch.eye(12)).abs().max() > 5


def test_heads_are_trained_for_exported_weights(exported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    work, out = exported.parent / "heads-work", exported.parent / "heads"
    tiny = ["--tiny", "--cases", "1", "--work", str(work), "--base", str(exported)]
    assert main([*tiny, "--heads", "3", "--head-layers", "2", "--out", str(out)]) == 0
    assert "tokens per verification" in capsys.readouterr().out
    weights = load_file(out / "model.safetensors")
    assert len(weights) == 3 * 2 * 2 and weights["2.1.linear.weight"].any()


def test_a_base_without_a_draft_is_refused_before_the_training(exported: Path, tmp_path: Path) -> None:
    """A run took seven minutes before it failed."""
    base = shutil.copytree(exported, tmp_path / "base", ignore=shutil.ignore_patterns("draft"))
    work = tmp_path / "work"
    with pytest.raises(FileNotFoundError, match="draft"):
        main(["--tiny", "--cases", "1", "--base", str(base), "--work", str(work)])
    assert not (work / "rows.npy").exists()


def test_the_best_tree_has_the_most_frequent_paths() -> None:
    ranks = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 0], [0, -100], [7, 0], [0, 0], [1, 3]])
    chain, tree = tokens_by_drafts(ranks, 4)
    assert chain == [1 + 4 / 8, 1 + 6 / 8]
    assert tree == [1 + 4 / 8, 1 + 7 / 8, 1 + 9 / 8, 1 + 11 / 8]
