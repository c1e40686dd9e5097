"""Shell completions: all commands, options and values, and nothing else."""

import argparse
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from engine.quant.registry import names as schemes
from minichat.cli import COMMANDS, parser
from minichat.completions import bash, fish, zsh
from minichat.completions.table import Option, Value, table
from tests.cli.conftest import Run

SCRIPTS = {"bash": bash.script, "zsh": zsh.script, "fish": fish.script}
FREE = {  # metavars of values that cannot be listed
    *("N", "T", "P", "K", "R", "M", "S", "L", "W", "H", "MIB", "GB", "N,N"),
    *("TEXT", "PATTERN", "NAME", "URL", "ADDRESS", "ORIGIN", "NAME=PATH", "NAME=PYTHON"),
    "HOST:PORT:FILE",
}
ASK = """
ask() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _minichat; printf '%s\\t' "${COMPREPLY[@]}"; echo; }
"""


def parsers() -> dict[str, argparse.ArgumentParser]:
    return next(each.choices for each in parser()._actions if isinstance(each, argparse._SubParsersAction))


def long_options(command: argparse.ArgumentParser) -> set[str]:
    shown = [each for each in command._actions if each.help != argparse.SUPPRESS]
    return {name for each in shown for name in each.option_strings if name.startswith("--")}


def offered(*lines: list[str], folder: Path | None = None) -> list[set[str]]:
    """What bash offers for the last word of each line, split into words as bash does."""
    asked = "".join(f"ask {shlex.join(['minichat', *line])}\n" for line in lines)
    ran = subprocess.run(
        ["bash", "--norc", "-c", f"{bash.script(table())}{ASK}{asked}"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stderr == ""
    return [set(line.split("\t")) - {""} for line in ran.stdout.splitlines()]


@pytest.mark.parametrize("shell", SCRIPTS)
def test_the_shell_accepts_the_script(run: Run, shell: str, tmp_path: Path) -> None:
    ran = run("completions", shell)
    assert (ran.code, ran.err, ran.out) == (0, "", SCRIPTS[shell](table()))
    assert re.search(r"@\w+@", ran.out) is None
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "script").write_text(ran.out)
    read = subprocess.run([shell, "-n", tmp_path / "script"], capture_output=True, text=True)
    assert (read.returncode, read.stderr) == (0, "")


def test_only_these_shells_are_known(run: Run) -> None:
    ran = run("completions", "csh")
    assert (ran.code, ran.out) == (2, "")
    assert "'csh' (choose from 'bash', 'zsh', 'fish')" in ran.err


def test_bash_offers_the_commands_and_all_their_options() -> None:
    first, dashes, *others = offered([""], ["--"], *([name, "--"] for name in COMMANDS))
    assert first == set(COMMANDS)
    assert dashes == long_options(parsers()["chat"]) | {"--version"}
    assert others == [long_options(parsers()[name]) for name in COMMANDS]


@pytest.mark.soak
@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("q", {"quality"}),
        ("--dtype ", {"auto", "float32", "bfloat16", "float16"}),
        ("generate --quantization bnb", {"bnb-int8", "bnb-nf4", "bnb-fp4"}),
        ("generate --quantization ", set(schemes())),
        ("--kv = i", {"int4", "int8"}),  # bash splits --kv=i this way
        ("--kv =", {"none", "int8", "fp8", "int4"}),
        ("quality --schemes none,kv-", {"none,kv-int8", "none,kv-fp8", "none,kv-int4"}),
        ("quality --schemes fp8,fp8+kv-i", {"fp8,fp8+kv-int8", "fp8,fp8+kv-int4"}),
        ("chat --speculate s", {"suffix"}),
        ("chat --engine ", {"thread", "process"}),
        ("serve --policy ", {"fcfs", "latency", "priority"}),
        ("serve --model ", {"pocket", "a folder", "one file"}),
        ("serve --tls-cert ", {"a folder", "one file"}),
        ("serve --tls-cert one", {"one file"}),
        ("cache --folder ", {"a folder"}),
        ("cache --", {"--help", "--clear", "--json", "--folder"}),
        ("serve --kv-disk ", {"auto", "off", "a folder"}),
        ("generate --draft ", {"mtp", "a folder", "one file"}),
        ("completions ", {"bash", "zsh", "fish"}),
        ("tour ", {"--help", "--ascii"}),  # nothing else to offer
        ("--seed ", set()),
        ("generate --seed 3 --verb", {"--verbose"}),
        ("ps --model", set()),
        ("down --name --n", set()),
    ],
)
def test_bash_offers_valid_values(line: str, found: set[str], tmp_path: Path) -> None:
    (tmp_path / "a folder").mkdir()
    (tmp_path / "one file").touch()
    assert offered(line.split(" "), folder=tmp_path) == [found]


def test_a_question_has_the_options_of_a_chat() -> None:
    assert offered(["why is the sky blue?", "--ki"], ["why is the sky blue?", "--kv-s"]) == [
        set(),
        {"--kv-sinks"},
    ]


def options() -> list[tuple[str, Option]]:
    return [(command.name, option) for command in table().commands for option in command.options]


def test_known_values_are_offered() -> None:
    """A new option must be listed here, with its values or as one without."""
    free = {option.called for _, option in options() if option.value == Value()}
    free |= {each.called for each in table().commands if each.called and each.word == Value()}
    assert free <= FREE
    assert all(
        re.fullmatch(r"[\w.-]+", word) for _, each in options() if each.value for word in each.value.words
    )


def test_zsh_has_every_option_of_every_command() -> None:
    text = zsh.script(table()).partition("    case $command in\n")[2].partition("\n    esac")[0]
    blocks = re.findall(r"\((\w+)\) _arguments(.*?);;", text, re.DOTALL)
    assert [name for name, _ in blocks] == list(COMMANDS)
    for name, block in blocks:
        specs = shlex.split(block.replace("\\\n", " "))
        completed = {found[0] for spec in specs if (found := re.match(r"--[\w-]+", spec.lstrip("*")))}
        assert completed == long_options(parsers()[name])
    assert "'--plot=[also save the plots as an SVG]:FILE.svg:_files'" in text
    assert "'--kv=[quantize the KV cache to one byte per value\\: nearly" in text


def test_fish_has_every_option_of_every_command() -> None:
    lines = re.findall(r"__minichat_in ([\w ]+)' .*?-l ([\w-]+)", fish.script(table()))
    assert len(lines) > 50
    assert "-l model -rF -a 'pocket' -d" in fish.script(table())
    for name in COMMANDS:
        completed = {f"--{option}" for commands, option in lines if name in commands.split()}
        assert completed == long_options(parsers()[name])


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes(tmp_path: Path) -> None:
    script = fish.script(table())
    for line, found in (
        ("minichat q", ["quality"]),
        ("minichat --kv ", ["fp8", "int4", "int8", "none"]),
        ("minichat quality --schemes none,kv-i", ["none,kv-int8"]),
        ("minichat generate --dt", ["--dtype"]),
        ("minichat ps --dt", []),
    ):
        asked = f"{script}complete -C '{line}'"
        ran = subprocess.run(
            ["fish", "--no-config", "-c", asked], capture_output=True, text=True, cwd=tmp_path
        )
        assert [each.split("\t")[0] for each in ran.stdout.splitlines()] == found, ran.stderr


def test_completions_do_not_import_torch() -> None:
    program = """if True:
        import sys
        from minichat.cli import main
        main(["completions", "bash"])
        print("torch" in sys.modules)"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "False"
