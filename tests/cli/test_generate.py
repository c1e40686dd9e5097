"""`minichat generate`: only the reply on standard output, and one clear sentence for each error."""

import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.cli.conftest import Ran, Run, write_model
from tests.models.tiny import write_config


def stdin(patch: pytest.MonkeyPatch, text: bytes, terminal: bool = False) -> None:
    fake = SimpleNamespace(buffer=io.BytesIO(text), isatty=lambda: terminal)
    patch.setattr(sys, "stdin", fake)


def one_sentence(ran: Ran) -> str:
    """The error of a failed command: one line on standard error, nothing on standard output."""
    assert ran.out == ""
    assert ran.err.startswith("minichat")
    assert ran.err.count("\n") == 1 and ran.err.endswith("\n")
    assert "Traceback" not in ran.err
    return ran.err


class TestReply:
    def test_standard_output_has_only_the_reply(self, run: Run, model: Path) -> None:
        ran = run("generate", "--model", model, "--raw", "--temperature", 0, "--max-tokens", 9, "the")
        result = run(
            "generate", "--model", model, "--raw", "--temperature", 0, "--max-tokens", 9, "--json", "the"
        )
        assert (ran.code, ran.err) == (0, "")
        text = json.loads(result.out)["text"]
        assert text != "" and ran.out == text.removesuffix("\n") + "\n", "the last line ends with a newline"

    def test_json_is_one_object_with_all_figures(self, run: Run, model: Path) -> None:
        ran = run("generate", "--model", model, "--raw", "--json", "--max-tokens", 5, "the")
        assert (ran.code, ran.err, ran.out.count("\n")) == (0, "", 1)
        record = json.loads(ran.out)
        seconds = record.pop("seconds")
        assert 0 < record.pop("first_token_s") <= seconds
        assert isinstance(record.pop("text"), str)
        assert record == {"finish": "length", "error": None, "prompt_tokens": 1, "tokens": 5}

    def test_several_replies_are_numbered(self, run: Run, model: Path) -> None:
        words = ("generate", "--model", model, "--raw", "--max-tokens", 5, "--seed", 3, "--n", 3, "the")
        ran, result = run(*words), run(*words, "--json")
        records = json.loads(result.out)
        texts = [record["text"] for record in records]
        assert ran.out == "".join(f"[{n}]\n{text}\n\n" for n, text in enumerate(texts, 1)).removesuffix("\n")
        assert len(set(texts)) == 3
        assert 0 < records[0].pop("first_token_s") <= records[0].pop("seconds")
        first = {"text": texts[0], "finish": "length", "error": None, "prompt_tokens": 1, "tokens": 5}
        assert records[0] == first | {"score": None}

    def test_beams_are_ranked(self, run: Run, model: Path) -> None:
        words = ("generate", "--model", model, "--raw", "--max-tokens", 5, "--beams", 4, "the")
        records = json.loads(run(*words, "--json", "--n", 3).out)
        scores = [record["score"] for record in records]
        assert scores == sorted(scores, reverse=True)
        assert run(*words).out == records[0]["text"] + "\n"

    def test_more_replies_than_beams_are_refused(self, run: Run, model: Path) -> None:
        ran = run("generate", "--model", model, "--raw", "--beams", 4, "--n", 5, "the")
        assert ran.code == 2
        assert "--n: 5 is more than --beams (4)" in one_sentence(ran)

    def test_an_empty_text_is_the_start_token(self, run: Run, model: Path) -> None:
        ran = run("generate", "--model", model, "--raw", "--json", "--max-tokens", 1, "")
        assert json.loads(ran.out)["prompt_tokens"] == 1

    def test_without_a_template_raw_is_used_and_reported(self, run: Run, model: Path) -> None:
        words = ("generate", "--model", model, "--temperature", 0, "--max-tokens", 9, "the")
        plain, raw = run(*words), run(*words, "--raw")
        assert (plain.code, plain.out) == (0, raw.out)
        assert "has no chat template; completing the text" in plain.err and plain.err.count("\n") == 1

    def test_with_a_template_the_text_is_a_message(self, run: Run, chat_model: Path) -> None:
        words = ("generate", "--model", chat_model, "--json", "--max-tokens", 2, "hi")
        chat = json.loads(run(*words).out)
        with_system = json.loads(run(*words, "--system", "be brief").out)
        raw = json.loads(run(*words, "--raw").out)
        assert raw["prompt_tokens"] < chat["prompt_tokens"] < with_system["prompt_tokens"]

    def test_the_prompt_may_be_piped(self, run: Run, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        words = ("generate", "--model", model, "--raw", "--temperature", 0, "--max-tokens", 9)
        stdin(monkeypatch, "thé".encode())
        assert run(*words).out == run(*words, "thé").out

    def test_standard_input_must_be_text(
        self, run: Run, model: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stdin(monkeypatch, b"th\xe9")
        ran = run("generate", "--model", model, "--raw")
        assert ran.code == 2
        assert "not UTF-8" in one_sentence(ran)

    def test_standard_input_has_a_size_limit(
        self, run: Run, model: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("minichat.commands.generate.MOST", 8)
        stdin(monkeypatch, b"x" * 9)
        ran = run("generate", "--model", model, "--raw")
        assert ran.code == 2
        assert "standard input is larger than 8 B, the limit for one message" in one_sentence(ran)

    def test_at_a_terminal_a_text_is_required(
        self, run: Run, model: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stdin(monkeypatch, b"", terminal=True)
        ran = run("generate", "--model", model)
        assert ran.code == 2
        assert "no text; pass it as an argument" in one_sentence(ran)
        assert run("generate", "--model", model, "--raw", "--max-tokens", 2).code == 0

    def test_words_need_no_quotes(self, run: Run, model: Path) -> None:
        words = ("generate", "--model", model, "--raw", "--temperature", 0, "--max-tokens", 9)
        assert run(*words, "the", "thin", "hat").out == run(*words, "the thin hat").out

    def test_the_cost_is_reported_apart_from_the_reply(self, run: Run, model: Path) -> None:
        words = ("generate", "--model", model, "--raw", "--max-tokens", 5, "--seed", 3, "the")
        plain, result = run(*words), run(*words, "--verbose")
        assert result.out == plain.out
        assert re.fullmatch(
            r"minichat: prompt 1 token, reply 5 tokens in [\d.]+ s; first token after [\d.]+ s, "
            r"then [\d.]+ tok/s\n",
            result.err,
        )
        several = run(*words, "--verbose", "--n", 2)
        assert re.match(r"minichat: prompt 1 token, 10 tokens of 2 replies in [\d.]+ s\n", several.err)

    def test_a_reply_truncated_by_the_context_is_reported(self, run: Run, model: Path) -> None:
        ran = run("generate", "--model", model, "--raw", "--max-context", 8, "the")
        assert (ran.code, ran.err) == (
            0,
            "minichat: the reply was cut off after 7 tokens: the context is full\n",
        )

    @pytest.mark.parametrize("text", ["", " \n"])
    def test_an_empty_message_is_refused_before_a_model_is_loaded(self, run: Run, text: str) -> None:
        ran = run("generate", "--model", "/nowhere", text)
        assert ran.code == 2
        assert "no text; pass it as an argument" in one_sentence(ran)

    def test_a_seed_is_reproducible_and_temperature_zero_is_greedy(self, run: Run, model: Path) -> None:
        def reply(*words: object) -> str:
            return run("generate", "--model", model, "--raw", "--max-tokens", 12, *words, "the").out

        greedy = reply("--temperature", 0)
        assert reply("--temperature", 0) == greedy
        assert reply("--temperature", 5, "--top-k", 1) == greedy
        assert reply("--seed", 3, "--temperature", 1) == reply("--seed", 3, "--temperature", 1)
        assert reply("--seed", 3, "--temperature", 1) != reply("--seed", 4, "--temperature", 1)

    @pytest.mark.parametrize("kind", ["ngram", "suffix", "draft"])
    def test_speculation_does_not_change_the_reply(self, run: Run, model: Path, kind: str) -> None:
        words = ("generate", "--model", model, "--raw", "--seed", 3, "--max-tokens", 30)
        drafting = ("--draft", model) if kind == "draft" else ()
        assert run(*words, *drafting, "--speculate", kind, "the").out == run(*words, "the").out

    def test_a_stop_is_not_shown(self, run: Run, model: Path) -> None:
        words = ("generate", "--model", model, "--raw", "--temperature", 0, "--max-tokens", 20, "the")
        whole = run(*words).out
        stop = whole[4:6]
        ran = run(*words, "--stop", stop, "--stop", "never there")
        assert ran.out == whole[: whole.index(stop)] + "\n"


USAGE = {
    "temperature": (["--temperature", "-1"], "temperature: must be a number from 0 to 100, not -1.0"),
    "infinite": (["--temperature", "inf"], "temperature: must be a number from 0 to 100, not inf"),
    "top-p": (["--top-p", "1.5"], "--top-p: must be a number above 0 to 1, not 1.5"),
    "top-k": (["--top-k", "-3"], "--top-k: must be"),
    "max-tokens": (["--max-tokens", "0"], "--max-tokens: must be a whole number from 1"),
    "word": (["--top-k", "many"], "argument --top-k: must be a whole number, got 'many'"),
    "half": (["--max-tokens", "1.5"], "argument --max-tokens: must be a whole number, got '1.5'"),
    "text": (["--min-p", "low"], "argument --min-p: must be a number, got 'low'"),
    "unknown": (["--warmth", "3"], "unrecognized arguments: --warmth 3; see minichat generate --help"),
    "replaced": (["--host-blocks", "8"], "unrecognized arguments: --host-blocks 8; use --kv-host, in GB"),
    "abbreviated": (["--temp=0"], "unrecognized arguments: --temp=0; did you mean --temperature?"),
    "slip": (["--temprature=0"], "--temprature=0; did you mean --temperature?; see minichat generate --help"),
    "seed": (["--seed", str(2**70)], "--seed: must be a whole number"),
    "stop": (["--stop", ""], "--stop: must be non-empty strings"),
    "nothing": (["--model", ""], "argument --model: must not be empty"),
    "dtype": (["--dtype", "int3"], "invalid choice: 'int3'"),
    "device": (["--device", "toaster"], "--device 'toaster' is unknown; use cpu, cuda"),
    "attention": (
        ["--attention", "none"],
        "attention 'none': no backend has that name; available here: torch",
    ),
    "blocks": (["--blocks", "0"], "--blocks must be a whole number above 0, not 0"),
    "deadline-and-fcfs": (["--deadline-ms", "50"], "--deadline-ms has no effect with --policy fcfs"),
    "target-and-fcfs": (["--target-ms", "50"], "--target-ms has no effect with --policy fcfs"),
    "target": (["--policy", "latency", "--target-ms", "-1"], "--target-ms must be at least 0, got -1"),
    "deadline": (["--policy", "latency", "--deadline-ms", "-1"], "--deadline-ms must be at least 0, got -1"),
    "endless-deadline": (
        ["--policy", "latency", "--deadline-ms", "inf"],
        "deadline must be seconds from now",
    ),
    "kv-host": (["--kv-host", "-1"], "--kv-host must be gigabytes, 0 or more, not -1.0"),
    "tp": (["--tp", "0"], "--tp must be a whole number above 0, not 0"),
    "context": (["--max-context", "500"], "--max-context is 500; "),
    "too-long": (["--max-context", "1"], "takes 0. Shorten the prompt or raise --max-context"),
    "reply-too-long": (
        ["--max-context", "20", "--max-tokens", "90"],
        "Shorten the prompt or lower --max-tokens to ",
    ),
    "speculate": (["--speculate", "magic"], "speculate: must be one of ngram, suffix, draft, exit"),
    "no-draft": (
        ["--speculate", "draft"],
        "has no built-in draft model, and the engine was started without --draft",
    ),
    "beams-and-chance": (
        ["--beams", "3", "--temperature", "0.5"],
        "--temperature has no effect with --beams",
    ),
    "beams-and-top-k": (["--beams", "3", "--top-k", "5"], "--top-k has no effect with --beams"),
    "beams-and-seed": (["--beams", "3", "--seed", "5"], "--seed has no effect with --beams"),
    "greedy-and-top-p": (
        ["--temperature", "0", "--top-p", "0.5"],
        "--top-p has no effect with --temperature 0",
    ),
    "greedy-and-seed": (["--temperature", "0", "--seed", "5"], "--seed has no effect with --temperature 0"),
    "greedy-and-several": (["--temperature", "0", "--n", "4"], "--n has no effect with --temperature 0"),
    "greedy-and-best-of": (
        ["--temperature", "0", "--best-of", "4"],
        "--best-of has no effect with --temperature 0",
    ),
    "schema-as-text": (["--json-schema", "{"], "--json-schema takes the name of a file, got the text '{'"),
    "theme": (["--theme", "nosuch"], "--theme nosuch; use the setting screen.theme, or choose one in ^P"),
    "themes": (["--themes", "x"], "unrecognized arguments: --themes x; see"),
    "system-and-raw": (["--system", "Be brief.", "--raw"], "--system has no effect with --raw"),
    "length-penalty-alone": (["--length-penalty", "2"], "--length-penalty requires --beams"),
    "early-stopping-alone": (["--early-stopping"], "--early-stopping requires --beams"),
    "no-draft-in-a-window": (
        ["--speculate", "draft", "--kv-window", "64"],
        "a draft model cannot read tokens that have left the --kv-window or the --kv-budget",
    ),
    "draft-alone": (["--draft", "pocket"], "--draft requires --speculate draft"),
    "draft-unasked": (["--draft", "pocket", "--speculate", "ngram"], "--draft requires --speculate draft"),
    "sinks-alone": (["--kv-sinks", "8"], "--kv-sinks requires --kv-window or --kv-budget"),
    "no-exit": (["--speculate", "exit"], "config.json lists no early_exit_layers"),
    "too-many": (["--max-tokens", "500"], "1 tokens and 500 more for the reply; "),
}


@pytest.mark.parametrize(("options", "error"), USAGE.values(), ids=USAGE)
def test_bad_options_are_bad_usage(run: Run, model: Path, options: list[str], error: str) -> None:
    ran = run("generate", "--model", model, "--raw", "the", *options)
    assert ran.code == 2
    assert error in one_sentence(ran)


@pytest.mark.parametrize("words", [["sing"], ["doctor", "hello"]])
def test_unknown_commands_are_bad_usage(run: Run, words: list[str]) -> None:
    ran = run(*words)
    assert ran.code == 2
    assert "--help" in one_sentence(ran)


def deny(file: Path, mode: str) -> None:
    raise PermissionError(13, "Permission denied", str(file))


class TestBadInput:
    """The most likely kinds of bad input."""

    def error(self, run: Run, folder: object, *words: object, code: int = 1) -> str:
        ran = run("generate", "--model", folder, "--raw", "--max-tokens", 4, *(words or ("the",)))
        assert ran.code == code
        return one_sentence(ran)

    def test_an_empty_prompt_without_a_start_token(self, run: Run, tmp_path: Path) -> None:
        error = self.error(run, write_model(tmp_path, start=False), "", code=2)
        assert "the prompt is empty, and no start token is added to it" in error

    def test_a_prompt_that_is_too_long(self, run: Run, model: Path) -> None:
        error = self.error(run, model, "x" * 300, code=2)
        assert "300 tokens; " in error and " takes 127. Shorten the prompt or " in error

    def test_an_unknown_model(self, run: Run) -> None:
        name = "no-such-owner/no-such-model"
        assert f"{name} is not on this machine" in self.error(run, name)
        for name in ("./nothing", "nothing.gguf", "folder/nothing.gguf"):
            assert f"there is no folder or GGUF file {name!r}" in self.error(run, name)

    def test_a_folder_that_is_no_model(self, run: Run, tmp_path: Path) -> None:
        assert "neither a config.json nor a folder that holds one" in self.error(run, tmp_path)

    @pytest.mark.parametrize(
        ("changes", "named"),
        [
            ({"model_type": "no-such-thing"}, "no-such-thing"),
            ({"hidden_act": "gelu"}, "hidden_act"),
            ({"quantization_config": {"quant_method": "aqlm"}}, "aqlm"),
            ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "short_factor"),
            ({"num_attention_heads": 0}, "num_attention_heads"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_an_unsupported_config_field_is_named(
        self, run: Run, tmp_path: Path, changes: dict[str, Any], named: str
    ) -> None:
        folder = write_model(tmp_path)
        write_config(folder, **changes)
        assert named in self.error(run, folder)

    def test_a_config_that_is_not_json(self, run: Run, tmp_path: Path) -> None:
        (write_model(tmp_path) / "config.json").write_text("{")
        assert "config.json" in self.error(run, tmp_path)

    @pytest.mark.parametrize("left", [0, 5, 300, -100])
    def test_truncated_weights(self, run: Run, tmp_path: Path, left: int) -> None:
        file = write_model(tmp_path) / "model.safetensors"
        file.write_bytes(file.read_bytes()[:left])
        assert "model.safetensors is corrupt or truncated" in self.error(run, tmp_path)

    def test_weights_of_a_wrong_type(self, run: Run, tmp_path: Path) -> None:
        self._spoil(tmp_path, lambda tensors: tensors["model.norm.weight"].to(torch.int32))
        assert "model.norm.weight holds I32; only F64, F32, F16, BF16" in self.error(run, tmp_path)

    def test_weights_of_a_wrong_shape(self, run: Run, tmp_path: Path) -> None:
        self._spoil(tmp_path, lambda tensors: tensors["model.norm.weight"][:5].clone())
        assert "model.norm.weight is [5], the config requires [32]" in self.error(run, tmp_path)

    def test_weights_that_are_missing(self, run: Run, tmp_path: Path) -> None:
        self._spoil(tmp_path, lambda tensors: None)
        assert ": model.norm.weight is missing" in self.error(run, tmp_path)

    def test_a_pickle_is_refused(self, run: Run, tmp_path: Path) -> None:
        (write_model(tmp_path) / "model.safetensors").unlink()
        torch.save({}, tmp_path / "pytorch_model.bin")
        error = self.error(run, tmp_path)
        assert "pytorch_model.bin is a pickle" in error and "refused" in error

    def test_gguf_beside_a_config_is_refused(self, run: Run, tmp_path: Path) -> None:
        (write_model(tmp_path) / "model.safetensors").rename(tmp_path / "tiny-q4.gguf")
        assert "tiny-q4.gguf is a GGUF file, which is a whole model: specify" in self.error(run, tmp_path)

    def test_unreadable_weights(self, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The library reports such a file as missing."""

        def refuse(*_: object, **__: object) -> None:
            raise FileNotFoundError("No such file or directory")

        write_model(tmp_path)
        monkeypatch.setattr("engine.models.checkpoint.safe_open", refuse)
        monkeypatch.setattr("engine.models.checkpoint.open", deny, raising=False)
        assert "model.safetensors cannot be read: Permission denied" in self.error(run, tmp_path)

    def test_a_git_lfs_pointer_is_reported(self, run: Run, tmp_path: Path) -> None:
        pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
        (write_model(tmp_path) / "model.safetensors").write_text(pointer)
        error = self.error(run, tmp_path)
        assert "model.safetensors is a git-lfs pointer" in error and "git lfs pull" in error

    def test_nan_weights_fail_the_reply(self, run: Run, tmp_path: Path) -> None:
        self._spoil(tmp_path, lambda tensors: tensors["model.norm.weight"] * torch.nan)
        assert "the model returned NaN" in self.error(run, tmp_path)
        ran = run("generate", "--model", tmp_path, "--raw", "--json", "the")
        assert (ran.code, json.loads(ran.out)["finish"]) == (1, "failed")
        assert "NaN" in json.loads(ran.out)["error"]
        ran = run("generate", "--model", tmp_path, "--raw", "--json", "--n", 2, "the")
        assert ran.code == 1 and "minichat: reply 2: the model returned NaN" in ran.err
        assert all("NaN" in each["error"] for each in json.loads(ran.out))

    def test_a_folder_without_a_tokenizer(self, run: Run, tmp_path: Path) -> None:
        (write_model(tmp_path) / "tokenizer.json").unlink()
        assert "has no tokenizer.json" in self.error(run, tmp_path)

    def test_random_weights_without_a_tokenizer_reply_with_token_ids(self, run: Run, tmp_path: Path) -> None:
        words = ("--dummy-weights", "--max-tokens", 3, "--seed", 1)  # other seeds may end it at once
        ran = run("generate", "--model", write_config(tmp_path), *words, "the")
        assert ran.code == 0
        assert len([int(each) for each in ran.out.split()]) == 3

    def test_half_a_character(self, run: Run, model: Path) -> None:
        assert "a lone surrogate" in self.error(run, model, "th\ud800e", code=2)

    def test_a_template_that_fails(self, run: Run, tmp_path: Path) -> None:
        write_model(tmp_path, "{{ raise_exception('no such role') }}")
        ran = run("generate", "--model", tmp_path, "the")
        assert ran.code == 2
        assert "the chat template refused the messages: no such role" in one_sentence(ran)

    @staticmethod
    def _spoil(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
        file = write_model(folder) / "model.safetensors"
        tensors = load_file(file)
        spoiled = change(tensors)
        del tensors["model.norm.weight"]
        save_file(tensors if spoiled is None else tensors | {"model.norm.weight": spoiled}, file)
