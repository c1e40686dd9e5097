"""`minichat generate` with a schema, a regex or choices that constrain the reply."""

import io
import json
import re
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.cli.test_generate import one_sentence


class TestForm:
    def test_a_schema_an_expression_or_choices(self, run: Run, model: Path, tmp_path: Path) -> None:
        file, word = tmp_path / "schema.json", ("generate", "--model", model, "--raw", "the")
        file.write_text(
            '{"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"],'
            ' "additionalProperties": false}'
        )
        result = run(*word, "--json-schema", file)
        assert result.code == 0 and json.loads(result.out)["a"] in (1, 2)
        assert run(*word, "--regex", "a{3}").out == "aaa\n"
        assert run(*word, "--choice", "the", "--choice", "thin").out in ("the\n", "thin\n")

    def test_a_truncated_reply_is_reported(self, run: Run, model: Path) -> None:
        ran = run("generate", "--model", model, "--raw", "--regex", "a{9}", "--max-tokens", 4, "the")
        assert (ran.code, ran.out) == (1, "aaaa\n")
        assert "is incomplete" in ran.err and ran.err.count("\n") == 1

    @pytest.mark.parametrize("more", [(), ("--n", 2)])
    def test_a_truncated_reply_that_matches_is_one(
        self, run: Run, model: Path, more: tuple[str | int, ...]
    ) -> None:
        words = ("--regex", "a{4}b{0,9}", "--max-tokens", 4, *more)
        ran = run("generate", "--model", model, "--raw", *words, "the")
        assert (ran.code, ran.err) == (0, "")
        assert "aaaa" in ran.out

    @pytest.mark.parametrize("more", [(), ("--json",)])
    def test_truncated_replies_are_reported_by_their_numbers(
        self, run: Run, model: Path, more: tuple[str, ...]
    ) -> None:
        words = ("--regex", "a{9}", "--max-tokens", 4, "--n", 2, *more)
        ran = run("generate", "--model", model, "--raw", *words, "the")
        lines = [f"minichat: reply {n} was cut off after 4 tokens and is incomplete" for n in (1, 2)]
        assert (ran.code, ran.err.splitlines()) == (1, lines)
        assert "aaaa" in ran.out

    def test_replies_that_fill_the_context_are_reported(self, run: Run, model: Path) -> None:
        ran = run("generate", "--model", model, "--raw", "--max-context", 8, "--n", 2, "the")
        lines = [f"minichat: reply {n} was cut off after 7 tokens: the context is full" for n in (1, 2)]
        assert (ran.code, ran.err.splitlines()) == (0, lines)

    @pytest.mark.parametrize("command", [("generate", "--raw", "the"), ("chat",)])
    def test_a_reply_that_fills_the_cache_names_it(
        self, run: Run, chat_model: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
    ) -> None:
        """It is smaller than the context, so more blocks help."""
        monkeypatch.setattr(sys, "stdin", io.StringIO("a\n"))
        name, *words = command
        ran = run(name, "--model", chat_model, "--blocks", 2, *words)
        assert ran.code == 0
        why = r"the KV cache is full; give it more blocks\n"
        assert re.fullmatch(rf"minichat: the reply was cut off after \d+ tokens: {why}", ran.err)

    @pytest.mark.parametrize(
        ("words", "error"),
        [
            (("--regex", "("), "--regex: invalid regex: "),
            (("--regex", ""), "--regex: the regular expression is empty"),
            (("--choice", ""), "--choice: a choice must be a non-empty string"),
            (("--json-schema", "nowhere/at/all"), "cannot read --json-schema nowhere/at/all"),
        ],
    )
    def test_invalid_constraints_are_bad_usage(
        self, run: Run, model: Path, words: tuple[str, str], error: str
    ) -> None:
        ran = run("generate", "--model", model, "--raw", *words, "the")
        assert ran.code == 2
        assert f"minichat: {error}" in one_sentence(ran)

    @pytest.mark.parametrize(
        ("schema", "error"),
        [("no json", "is not a JSON schema"), ('{"type": "foo"}', "is not a usable JSON schema")],
    )
    def test_an_invalid_schema_is_reported_with_its_file(
        self, run: Run, model: Path, tmp_path: Path, schema: str, error: str
    ) -> None:
        file = tmp_path / "schema.json"
        file.write_text(schema)
        ran = run("generate", "--model", model, "--raw", "--json-schema", file, "the")
        assert ran.code == 2
        assert f"--json-schema {file} {error}: " in one_sentence(ran)
