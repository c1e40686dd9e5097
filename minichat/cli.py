"""The command line. Nothing heavy is imported here: `--help` must be there at once."""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from minichat import __version__

COMMANDS = {
    "chat": "chat in the terminal (what plain `minichat` does)",
    "generate": "stream one reply to standard output",
    "doctor": "say what was found here: devices, memory, versions, back ends",
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def parser() -> argparse.ArgumentParser:
    top = _Parser(
        prog="minichat", description="Chat with a language model, and watch the engine that runs it."
    )
    top.add_argument("--version", action="version", version=f"minichat {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)
    for name, line in COMMANDS.items():
        _ADD[name](commands.add_parser(name, help=line, description=line[0].upper() + line[1:] + "."))
    return top


def _add_model(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("model and engine")
    group.add_argument(
        "--model",
        default="pocket",
        metavar="M",
        help="a folder, a hub name, or pocket, the built-in one (default)",
    )
    group.add_argument(
        "--device", default="auto", metavar="D", help="cpu, cuda, cuda:1 ... (default: the best one)"
    )
    group.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16", "float16"])
    group.add_argument("--attention", default="auto", metavar="NAME", help="attention back end (see doctor)")
    group.add_argument(
        "--blocks", type=int, metavar="N", help="blocks in the KV cache (default: from free memory)"
    )
    group.add_argument("--max-context", type=int, metavar="N", help="most tokens of one request")
    group.add_argument(
        "--dummy-weights", action="store_true", help="random weights: needs only a config.json"
    )


def _add_sampling(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("decoding")
    group.add_argument("--temperature", type=float, metavar="T", help="0 is greedy (default: 0.7)")
    group.add_argument("--top-p", type=float, metavar="P")
    group.add_argument("--top-k", type=int, metavar="K")
    group.add_argument("--min-p", type=float, metavar="P")
    group.add_argument("--repetition-penalty", type=float, metavar="R")
    group.add_argument("--seed", type=int, metavar="N", help="same seed, same reply")
    group.add_argument("--max-tokens", type=int, metavar="N")
    group.add_argument(
        "--stop", action="append", metavar="TEXT", help="ends the reply; may be given several times"
    )


def _add_chat(command: argparse.ArgumentParser) -> None:
    _add_model(command)
    _add_sampling(command)
    command.add_argument("--system", metavar="TEXT", help="the system prompt")
    group = command.add_argument_group("screen")
    group.add_argument(
        "--plain", action="store_true", help="no screen: a line a turn (as without a terminal)"
    )
    group.add_argument("--ascii", action="store_true", help="draw with ASCII characters only")
    command.set_defaults(**dict.fromkeys(_IN_SETTINGS))


def _add_generate(command: argparse.ArgumentParser) -> None:
    command.add_argument("text", nargs="?", metavar="TEXT", help="the prompt (default: standard input)")
    command.add_argument("--raw", action="store_true", help="complete the text, without a chat template")
    command.add_argument("--json", action="store_true", help="print one JSON object instead of the text")
    command.add_argument("--system", metavar="TEXT", help="the system prompt")
    _add_model(command)
    _add_sampling(command)


def _add_doctor(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="the same as JSON")


# What the settings say where the command line says nothing.
_IN_SETTINGS = ("model", "device", "dtype", "attention")
# Whose file is called otherwise: chat has a screen, and a plain form behind it.
_FILES = {"chat": "tui"}
_ADD = {"chat": _add_chat, "generate": _add_generate, "doctor": _add_doctor}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit code: 0 ok, 1 failed, 2 bad usage."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or (words[0].startswith("-") and words[0] not in ("-h", "--help", "--version")):
        words.insert(0, "chat")
    options = parser().parse_args(words)
    try:
        command = import_module(f"minichat.commands.{_FILES.get(options.command, options.command)}")
        code = int(command.run(options))
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left has nowhere to go
        return 1
