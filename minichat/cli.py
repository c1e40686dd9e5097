"""The command line. No heavy imports here, so that `--help` is instant."""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from itertools import takewhile
from typing import NoReturn

from minichat import __version__
from minichat.commands.arguments import (
    add_dry,
    add_looks,
    add_model,
    add_name,
    add_quality,
    add_replicas,
    add_sampling,
)
from minichat.commands.bench.arguments import add_bench
from minichat.doing import doing, doing_late
from minichat.shell.again import adopt
from minichat.shell.streams import give_up_output, of_output, settle
from minichat.shell.usage import Parser, given, near_to, number, whole

COMMANDS = {
    "chat": "chat in the terminal (the default command)",
    "generate": "stream one reply to standard output",
    "tour": "take a guided tour of the engine with the built-in model",
    "fetch": "download a model from the hub",
    "locate": "print the paths of the settings, themes, chats and logs",
    "serve": "serve the engine over HTTP, for OpenAI clients and remote screens",
    "rank": "compute a part of a model for an engine on another machine",
    "attach": "open the screen on a remote engine, or on a background engine of this machine",
    "up": "start a background engine, if none is running, and open the screen on it",
    "down": "stop the engine that up started",
    "ps": "list the engines that up started",
    "cache": "show or clear the cache blocks that chats keep on disk",
    "quality": "compare quantization schemes on a text: quality, size, speed",
    "bench": "measure speed, memory, energy, and what each technique is worth",
    "doctor": "report devices, memory, versions and backends",
    "completions": "print a shell completion script",
}


def parser() -> argparse.ArgumentParser:
    top = Parser(
        prog="minichat",
        usage='minichat ["QUESTION"] [CHAT OPTIONS]\n       minichat COMMAND ...',
        description="Chat with a language model, and watch the engine that runs it.",
        epilog="Run minichat COMMAND --help for the options of a command, including chat.",
    )
    top.add_argument("--version", action="version", version=f"minichat {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser, prog="minichat")
    for name, line in COMMANDS.items():
        _ADD[name](commands.add_parser(name, help=line, description=line[0].upper() + line[1:] + "."))
    return top


def _add_chat(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "text", nargs="*", metavar="TEXT", help="the first message; piped input (also: -) is attached to it"
    )
    add_model(command)
    add_sampling(command)
    command.add_argument("--system", metavar="TEXT", help="the system prompt")
    group = command.add_argument_group("screen")
    group.add_argument(
        "--plain",
        action="store_true",
        help="no full screen: one line per turn (the default without a terminal)",
    )
    group.add_argument("--ascii", action="store_true", help="use ASCII characters only")
    group.add_argument(
        "--engine",
        dest="runs_in",
        choices=["thread", "process"],
        help="run the engine in a thread (default) or in a process, whose crash does not end the screen",
    )
    command.set_defaults(**dict.fromkeys(_IN_SETTINGS))


def _add_generate(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "text",
        nargs="*",
        metavar="TEXT",
        help="the prompt (default: standard input; - attaches standard input, or appends it to --raw)",
    )
    command.add_argument("--raw", action="store_true", help="complete the text without a chat template")
    command.add_argument("--json", action="store_true", help="print a JSON object (several replies: a list)")
    command.add_argument("--verbose", action="store_true", help="print statistics to standard error")
    command.add_argument("--system", metavar="TEXT", help="the system prompt")
    command.add_argument(
        "--deadline-ms",
        type=number,
        metavar="N",
        help="when the first token is due, for --policy latency",
    )
    form = command.add_mutually_exclusive_group()
    form.add_argument(
        "--json-schema", type=given, metavar="FILE", help="the reply is JSON that matches this schema"
    )
    form.add_argument("--regex", metavar="PATTERN", help="the whole reply matches this regex")
    form.add_argument(
        "--choice", action="append", metavar="TEXT", help="the reply is one of these; repeatable"
    )
    group = command.add_argument_group("multiple replies and beam search")
    group.add_argument(
        "--n", type=whole, metavar="N", help="number of replies, printed with their numbers (default: 1)"
    )
    group.add_argument("--best-of", type=whole, metavar="M", help="sample M replies, print the N most likely")
    group.add_argument("--beams", type=whole, metavar="W", help="beam search of this width; no sampling")
    group.add_argument(
        "--length-penalty",
        type=number,
        metavar="L",
        help="for beams: above 0 favors long replies (default: 1)",
    )
    group.add_argument(
        "--early-stopping", action="store_true", default=None, help="for beams: stop once W have finished"
    )
    add_model(command)
    add_sampling(command)


def _add_serve(command: argparse.ArgumentParser) -> None:
    add_model(command)
    _add_listening(command.add_argument_group("listening"))
    _add_access(command.add_argument_group("access and limits"))
    _add_machines(command.add_argument_group("several engines, several machines"))
    _add_serving(command.add_argument_group("serving"))


def _add_listening(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--host", type=given, metavar="H", help="an address (default: this machine only)")
    group.add_argument("--port", type=whole, metavar="N", help="0 picks a free port (default: 8000)")
    group.add_argument(
        "--uds", type=given, metavar="FILE", help="a Unix socket, for this user only, instead of an address"
    )
    group.add_argument("--tls-cert", type=given, metavar="FILE", help="a PEM certificate")
    group.add_argument("--tls-key", type=given, metavar="FILE", help="the certificate's key")


def _add_access(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--api-key-file",
        type=given,
        metavar="FILE",
        help="one key per line (default: your own key, which the first start makes)",
    )
    group.add_argument("--no-key", action="store_true", help="require no key")
    group.add_argument(
        "--cors",
        type=str.lower,
        action="append",
        default=[],
        metavar="ORIGIN",
        help="allow this site's pages to call the server, such as http://localhost:3000; repeatable",
    )
    group.add_argument("--insecure", action="store_true", help="allow --no-key beyond this machine")
    group.add_argument(
        "--max-in-flight",
        type=whole,
        default=1024,
        metavar="N",
        help="maximum concurrent replies (default: 1024)",
    )
    group.add_argument(
        "--max-per-key",
        type=whole,
        default=512,
        metavar="N",
        help="maximum concurrent replies per key (default: 512)",
    )
    group.add_argument(
        "--max-priority",
        type=whole,
        default=10,
        metavar="N",
        help="refuse requests with a priority below -N; lower runs first, and 0 is usual (default: 10)",
    )
    group.add_argument(
        "--max-body", type=whole, default=8, metavar="MIB", help="maximum request body (default: 8 MiB)"
    )


def _add_machines(group: argparse._ArgumentGroup) -> None:
    add_replicas(group)
    group.add_argument(
        "--meet",
        type=given,
        metavar="HOST:PORT:FILE",
        help="the other ranks of --tp or --pp run on other machines: they connect to this address with "
        "`minichat rank`, and the file has a secret that they must have, too",
    )


def _add_serving(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--no-warm",
        action="store_true",
        help="skip the warm-up that compiles GPU kernels before the first request",
    )
    group.add_argument(
        "--served-name",
        type=given,
        action="append",
        metavar="NAME",
        help="the model's name for clients (default: --model); repeatable: clients may use any of them",
    )
    group.add_argument(
        "--restart",
        type=whole,
        default=5,
        metavar="N",
        help="start a dead engine again, at most N times in a row (default: 5)",
    )
    group.add_argument(
        "--drain",
        type=number,
        default=30.0,
        metavar="S",
        help="seconds that running replies get at shutdown (default: 30)",
    )
    group.add_argument(
        "--metrics-prefix",
        type=given,
        default="minichat",
        metavar="NAME",
        help="prefix of names in /metrics; with vllm its dashboards work (default: minichat)",
    )
    group.add_argument("--access-log", action="store_true", help="log a line per request, without its text")
    group.add_argument("--log-prompts", action="store_true", help="also log prompts")
    add_dry(group)


def _add_rank(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "meet", type=given, metavar="HOST:PORT:FILE", help="the engine's --meet, with the secret's file here"
    )
    command.add_argument(
        "--device", type=given, default="auto", metavar="D", help="cpu, cuda, cuda:1 ... (default: best)"
    )


def _add_attach(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "url",
        nargs="?",
        metavar="URL",
        help="such as http://host:8000, or host (default: the engine that up started)",
    )
    command.add_argument("--uds", type=given, metavar="FILE", help="a Unix socket instead of an address")
    command.add_argument(
        "--api-key-file",
        type=given,
        metavar="FILE",
        help="the server's key (default: MINICHAT_API_KEY, or the key of your server on this machine)",
    )
    add_name(command)
    command.set_defaults(name=None)  # an address is of no named engine
    add_sampling(command)
    add_looks(command)


def _add_up(command: argparse.ArgumentParser) -> None:
    add_name(command)
    command.add_argument(
        "--no-screen", action="store_true", help="start the engine, wait until it is ready, open no screen"
    )
    add_model(command)
    add_dry(command)
    add_sampling(command)
    add_looks(command)
    command.set_defaults(**dict.fromkeys(_IN_SETTINGS))


def _add_cache(command: argparse.ArgumentParser) -> None:
    command.add_argument("--clear", action="store_true", help="remove all blocks")
    _add_json(command)
    command.add_argument(
        "--folder", type=given, metavar="DIR", help="the folder of --kv-disk (default: the cache folder)"
    )


def _add_down(command: argparse.ArgumentParser) -> None:
    add_name(command)
    command.add_argument("--now", action="store_true", help="do not wait for running replies")


def _add_json(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="print JSON")


def _add_tour(command: argparse.ArgumentParser) -> None:
    command.add_argument("--ascii", action="store_true", help="use ASCII characters only")


def _add_fetch(command: argparse.ArgumentParser) -> None:
    command.add_argument("name", type=given, metavar="NAME", help="such as Qwen/Qwen3-0.6B")
    command.add_argument("--json", action="store_true", help="report progress and errors as lines of JSON")


def _add_completions(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "shell", choices=["bash", "zsh", "fish"], help="the script's first lines explain how to install it"
    )


# Options that default to the settings.
_IN_SETTINGS = ("model", "device", "tp", "pp", "dtype", "attention", "policy", "quantization", "kv")
# Commands whose module has another name. `tui` opens the screen, or runs the plain chat.
_FILES = {"chat": "tui", "bench": "bench.command", "rank": "ranks.command"}
_ADD = {
    "chat": _add_chat,
    "generate": _add_generate,
    "tour": _add_tour,
    "fetch": _add_fetch,
    "locate": _add_json,
    "serve": _add_serve,
    "rank": _add_rank,
    "attach": _add_attach,
    "up": _add_up,
    "down": _add_down,
    "ps": _add_json,
    "cache": _add_cache,
    "quality": add_quality,
    "bench": add_bench,
    "doctor": _add_json,
    "completions": _add_completions,
}
_HELP = ("-h", "--help", "--version")


def _is_for_chat(word: str) -> bool:
    """Whether the first word is an option or a question. A single word may be a mistyped command, unless it
    has letters that no command has: Chinese has no blanks.
    """
    if word.startswith("-"):
        return word not in _HELP
    return not word.isascii() or any(letter.isspace() for letter in word.strip())


def _alone(name: str) -> Parser:
    """The parser of one command."""
    command = Parser(prog=f"minichat {name}")
    _ADD[name](command)
    return command


def _no_command(word: str, *more: str) -> NoReturn:
    words = [word, *takewhile(lambda each: not each.startswith("-"), more)]
    near = near_to(word, COMMANDS) if len(words) == 1 else ""
    parser().error(f"unknown command {word!r}; to ask the model: minichat chat {' '.join(words)!r}{near}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. Return the exit code: 0 success, 1 failure, 2 bad usage."""
    settle()
    adopt()
    try:
        words = list(sys.argv[1:] if argv is None else argv)
        if not words or _is_for_chat(words[0]):
            words.insert(0, "chat")
        if words[0] not in (*COMMANDS, *_HELP):
            _no_command(*words)
        options, unknown = parser().parse_known_args(words)
        if unknown:  # argparse would point to the program's help, not the command's
            _alone(words[0]).refuse(unknown, _HELP, _alone("generate") if words[0] == "chat" else None)
        try:
            os.getcwd()
        except OSError:  # torch's libraries would end the program
            print("minichat: the current folder was deleted; go to another one first", file=sys.stderr)
            return 2
        from engine.generated import keeping  # they import more than --help needs
        from engine.interrupts import interrupts_kept

        start = doing("importing torch") if options.command == "doctor" else doing_late("starting minichat")
        with start, interrupts_kept(), keeping(options.command):
            command = import_module(f"minichat.commands.{_FILES.get(options.command, options.command)}")
        code = int(command.run(options))
        sys.stdout.flush()
        return code
    except OSError as error:
        if not of_output(error):
            raise
        give_up_output(error)
        return 1
