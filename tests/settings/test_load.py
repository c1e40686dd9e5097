from pathlib import Path
from typing import Any

import pytest

from engine.api.params import SamplingParams
from minichat.settings import Settings, load
from minichat.settings.schema import EngineSettings


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


def problems(file: Path, text: str | bytes) -> list[str]:
    """The problems reported for a file with this text, without its path."""
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return [str(problem).removeprefix(f"{file}:") for problem in load(file).problems]


def test_without_a_file_the_defaults_apply(file: Path) -> None:
    loaded = load(file)
    assert (loaded.settings, loaded.problems) == (Settings(), [])
    assert loaded.settings.screen.theme == "minichat-dark"
    assert loaded.settings.sampling.temperature == 0.7


def test_an_empty_file_gives_the_defaults(file: Path) -> None:
    assert problems(file, "# nothing\n") == []
    assert load(file).settings == Settings()


def test_values_are_read(file: Path) -> None:
    text = """
        rates.monitor = 2
        [screen]
        theme = "amber"
        ascii = true
        [chat]
        system = '''
        Be brief.
        '''
        [engine]
        blocks = 512
        [sampling]
        top_k = 40
        stop = ["END"]
        logit_bias = [[5, -2.5]]
        [keys]
        "chat.new" = "ctrl+t"
        chat.close = ["alt+w", "f9"]
    """
    assert problems(file, text) == []
    settings = load(file).settings
    assert (settings.rates.monitor, settings.rates.transcript) == (2, 10)
    assert (settings.screen.theme, settings.screen.ascii, settings.screen.mouse) == ("amber", True, True)
    assert settings.chat.system.strip() == "Be brief."
    assert settings.engine.blocks == 512
    assert settings.sampling == SamplingParams(
        temperature=0.7, top_k=40, stop=("END",), logit_bias=((5, -2.5),)
    )
    assert settings.keys == {"chat.new": ("ctrl+t",), "chat.close": ("alt+w", "f9")}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[screen\n", "1: Expected ']' at the end of a table declaration"),
        ('[screen]\ntheme = "a"\ntheme = "b"\n', "3: Cannot overwrite a value"),
        ('[screen]\ntheme = "a', "2: "),
        (b'[screen]\ntheme = "\xff"', "2: this is not UTF-8 text"),
        ("[scren]\nascii = true", "1: scren: is unknown; did you mean screen?"),
        ("zzz = 1", "1: zzz: is unknown; choose from screen, rates, chat, engine, sampling, keys"),
        ("screen = 3", "1: screen: must be a table: write [screen] above its settings"),
        ("engine.host_blocks = 8", "1: engine.host_blocks: is unknown; use kv_host, in GB"),
        ("[screen]\n\nthem = 'a'", "3: screen.them: is unknown; did you mean theme?"),
        ("[screen]\nascii = 1", "2: screen.ascii: must be true or false, got 1"),
        (
            "[screen]\nmap_colour='red'",
            '2: screen.map_colour: must be one of owner, age, references, fill, tier, got "red"',
        ),
        ("[screen]\ntheme = ''", '2: screen.theme: must be a nonempty text, got ""'),
        ("[rates]\nmonitor = 99", "2: rates.monitor: must be a number from 0.5 to 10, got 99"),
        ("[rates]\nmonitor = nan", "2: rates.monitor: must be a number from 0.5 to 10, got nan"),
        ("[rates]\nmonitor = true", "2: rates.monitor: must be a number from 0.5 to 10, got true"),
        (
            "[engine]\nblocks = 1.5",
            "2: engine.blocks: must be a whole number from 1 to 2147483647, got 1.5",
        ),
        ("[chat]\nsystem = 2026-11-20", "2: chat.system: must be a text, got 2026-11-20"),
        ("[chat]\nsystem = {a = [1, 'x']}", '2: chat.system: must be a text, got {"a" = [1, "x"]}'),
        (
            "[sampling]\ntemprature = 1",
            "2: sampling.temprature: is unknown; did you mean temperature?",
        ),
        ("sampling = { top_p = 0 }", "1: sampling.top_p: must be a number above 0 to 1, not 0"),
        (
            "[sampling]\nmin_tokens = 9\nmax_tokens = 5",
            "3: sampling.max_tokens: conflicts with min_tokens: 9 is more than max_tokens (5)",
        ),
        (
            "[sampling]\ngrammar = {kind = 'regex', text = 'a'}\nbeams = 4",
            "3: sampling.beams: conflicts with grammar: cannot be combined with beams (4)",
        ),
        (
            "[sampling]\nmax_tokens = 5\nmin_tokens = 9",
            "3: sampling.min_tokens: 9 is more than max_tokens (5)",
        ),
        (
            "sampling.grammar = {kind = 'regex', text = '['}",
            "1: sampling.grammar: invalid regex: unclosed character class",
        ),
        (
            "[keys]\n'chat.new' = 5",
            '2: keys.chat.new: must be a key like "ctrl+n", or a list of keys, got 5',
        ),
        ("[keys]\nchat.x = true", "2: keys.chat.x: must be a key"),
        ("[keys]\nx = []", '2: keys.x: must be a key like "ctrl+n", or a list of keys, got []'),
        ("[screen]\nabout = '''\n[rates]\nascii = 1\n'''\nascii = 2", "2: screen.about: is unknown"),
    ],
)
def test_an_error_is_reported_with_its_line(file: Path, text: str | bytes, sentence: str) -> None:
    assert problems(file, text)[0].startswith(sentence)


@pytest.mark.parametrize(
    ("lines", "value"),
    [
        (("pooling = 'last'", "max_tokens = 0"), SamplingParams(max_tokens=0, pooling="last")),
        (
            ("logprob_token_ids = [3]", "temprature = 1", "logprobs = 2"),
            SamplingParams(logprobs=2, logprob_token_ids=(3,)),
        ),
    ],
)
def test_the_order_of_values_that_require_each_other_does_not_matter(
    file: Path, lines: tuple[str, ...], value: SamplingParams
) -> None:
    for ordered in (lines, lines[::-1]):
        found = problems(file, "\n".join(["[sampling]", "temperature = 1.0", *ordered]))
        assert [each for each in found if "temprature" not in each] == []
        assert load(file).settings.sampling == value


def test_all_errors_are_reported_and_valid_values_are_read(file: Path) -> None:
    text = '[rates]\nmonitor = "fast"\ntranscript = 3\n[screen]\nmouse = 0\nascii = true\n'
    assert [sentence.partition(":")[0] for sentence in problems(file, text)] == ["2", "5"]
    settings = load(file).settings
    assert (settings.rates.monitor, settings.rates.transcript) == (4, 3)
    assert (settings.screen.mouse, settings.screen.ascii) == (True, True)


def test_a_folder_in_place_of_the_file_is_reported(file: Path) -> None:
    file.mkdir()
    loaded = load(file)
    assert str(loaded.problems[0]) == f"{file}: cannot read the file: Is a directory"
    assert loaded.settings == Settings()


@pytest.mark.parametrize(
    ("lines", "sentence", "left"),
    [
        ("kv_budget = 70", "2: engine.kv_budget: must be a whole number, 80 or more, not 70", {}),
        ("kv_budget = 70\nkv_sinks = 0", "", {"kv_budget": 70, "kv_sinks": 0}),
        (
            "kv_window = 64\nkv_budget = 200",
            "3: engine.kv_budget: cannot be used with kv_window; choose one of the two",
            {"kv_window": 64},
        ),
        (
            "tp = 2\nkv_budget = 200",
            "3: engine.kv_budget: cannot be used with tp yet; run on one rank",
            {"tp": 2},
        ),
        ('kv_disk = "foo"', "2: engine.kv_disk: must be DIR:GB, with GB above 0", {}),
        ('kv_disk = "/a:1"\nkv_budget = 200', "", {"kv_disk": "/a:1", "kv_budget": 200}),
    ],
)
def test_what_the_engine_would_refuse_is_reported(
    file: Path, lines: str, sentence: str, left: dict[str, Any]
) -> None:
    assert [found[: len(sentence)] for found in problems(file, f"[engine]\n{lines}")] == [sentence] * bool(
        sentence
    )
    assert load(file).settings.engine == EngineSettings(**left)
