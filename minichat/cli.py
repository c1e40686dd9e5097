"""The command line. Nothing heavy is imported here: `--help` must be there at once."""

import argparse
import errno
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from minichat import __version__
from minichat.shell.streams import settle
from minichat.shell.usage import Parser, given, near_to, number, whole

COMMANDS = {
    "chat": "chat in the terminal (what plain `minichat` does)",
    "generate": "stream one reply to standard output",
    "tour": "see the engine at work, step by step, with the built-in model",
    "fetch": "download a model of the hub",
    "locate": "print where everything lies: settings, themes, chats, logs",
    "serve": "serve the engine over HTTP, for OpenAI's clients and screens elsewhere",
    "attach": "open the screen on an engine elsewhere, or on one that runs here without a screen",
    "up": "start an engine that outlives the screen, if none runs, and open the screen on it",
    "down": "end the engine that up started",
    "ps": "list the engines that up started",
    "quality": "compare quantization schemes on a text: quality, size, speed",
    "doctor": "say what was found here: devices, memory, versions, back ends",
    "completions": "print a script by which a shell completes this command line",
}


def parser() -> argparse.ArgumentParser:
    top = Parser(
        prog="minichat",
        usage='minichat ["QUESTION"] [OPTIONS of chat]\n       minichat COMMAND ...',
        description="Chat with a language model, and watch the engine that runs it.",
        epilog="minichat COMMAND --help tells more, for chat as well.",
    )
    top.add_argument("--version", action="version", version=f"minichat {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser, prog="minichat")
    for name, line in COMMANDS.items():
        _ADD[name](commands.add_parser(name, help=line, description=line[0].upper() + line[1:] + "."))
    return top


def _add_model(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("model and engine")
    group.add_argument(
        "--model",
        type=given,
        default="pocket",
        metavar="M",
        help="a folder, a hub name, or pocket, the built-in one (default)",
    )
    group.add_argument(
        "--device", default="auto", metavar="D", help="cpu, cuda, cuda:1 ... (default: the best one)"
    )
    group.add_argument(
        "--dtype",
        default="auto",
        choices=["auto", "float32", "bfloat16", "float16"],
        help="of the weights (default: the checkpoint's)",
    )
    group.add_argument("--attention", default="auto", metavar="NAME", help="attention back end (see doctor)")
    group.add_argument(
        "--policy",
        default="fcfs",
        metavar="NAME",
        help="who goes first: fcfs, priority, latency, or one of a package (see doctor; default: fcfs)",
    )
    group.add_argument(
        "--blocks", type=whole, metavar="N", help="blocks in the KV cache (default: from free memory)"
    )
    group.add_argument("--max-context", type=whole, metavar="N", help="most tokens of one request")
    group.add_argument(
        "--draft",
        type=given,
        metavar="M",
        help="a small model with the same tokenizer, for --speculate draft (default: the model's own, which "
        "lies in its folder draft)",
    )
    group.add_argument(
        "--quantization",
        default="none",
        metavar="SCHEME",
        help="keep the weights in fewer bits: int8, int4, fp8, bnb-nf4 ... (default: none)",
    )
    group.add_argument(
        "--kv",
        default="none",
        choices=["none", "int8", "fp8"],
        help="keep keys and values in a byte each: nearly twice the room (default: none)",
    )
    group.add_argument(
        "--kv-window",
        type=whole,
        metavar="N",
        help="see the last N tokens and the first few only, so that a chat may outgrow the cache",
    )
    group.add_argument(
        "--kv-sinks",
        type=whole,
        metavar="N",
        help="how many first ones, with --kv-window (default: 4)",
    )
    group.add_argument(
        "--dummy-weights", action="store_true", help="random weights: needs only a config.json"
    )


def _add_sampling(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("decoding")
    group.add_argument("--temperature", type=number, metavar="T", help="0 is greedy (default: 0.7)")
    group.add_argument("--top-p", type=number, metavar="P", help="among the likeliest that sum to P")
    group.add_argument("--top-k", type=whole, metavar="K", help="among the K likeliest")
    group.add_argument("--min-p", type=number, metavar="P", help="none below this share of the likeliest")
    group.add_argument(
        "--repetition-penalty", type=number, metavar="R", help="above 1: what was said becomes less likely"
    )
    group.add_argument("--seed", type=whole, metavar="N", help="same seed, same reply")
    group.add_argument("--max-tokens", type=whole, metavar="N", help="most of a reply (default: what fits)")
    group.add_argument(
        "--stop", action="append", metavar="TEXT", help="ends the reply; may be given several times"
    )
    group.add_argument(
        "--speculate",
        metavar="KIND",
        help="guess tokens ahead: by the text so far (ngram), by earlier replies too (suffix), by a small "
        "model (draft) or by the first layers (exit); the reply is the same, and often comes faster",
    )


def _add_chat(command: argparse.ArgumentParser) -> None:
    command.add_argument("text", nargs="*", metavar="TEXT", help="a first message; a pipe goes along with it")
    _add_model(command)
    _add_sampling(command)
    command.add_argument("--system", metavar="TEXT", help="the system prompt")
    group = command.add_argument_group("screen")
    group.add_argument(
        "--plain", action="store_true", help="no screen: a line a turn (as without a terminal)"
    )
    group.add_argument("--ascii", action="store_true", help="draw with ASCII characters only")
    group.add_argument(
        "--engine",
        dest="runs_in",
        choices=["thread", "process"],
        help="where the engine runs: a thread (default), or a process of its own, which may crash alone",
    )
    command.set_defaults(**dict.fromkeys(_IN_SETTINGS))


def _add_generate(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "text",
        nargs="*",
        metavar="TEXT",
        help="the prompt (default: standard input; a - among the words sends that along)",
    )
    command.add_argument(
        "--raw",
        action="store_true",
        help="complete the text, without a chat template",
    )
    command.add_argument("--json", action="store_true", help="print one JSON object instead of the text")
    command.add_argument("--verbose", action="store_true", help="tokens, seconds and rates on standard error")
    command.add_argument("--system", metavar="TEXT", help="the system prompt")
    form = command.add_mutually_exclusive_group()
    form.add_argument("--json-schema", metavar="FILE", help="the reply is JSON that keeps to this schema")
    form.add_argument("--regex", metavar="PATTERN", help="the reply, all of it, matches this expression")
    form.add_argument(
        "--choice", action="append", metavar="TEXT", help="the reply is one of these; give it once for each"
    )
    group = command.add_argument_group("several replies, and a search for the likeliest")
    group.add_argument("--n", type=whole, metavar="N", help="replies, which are printed with their numbers")
    group.add_argument("--best-of", type=whole, metavar="M", help="draw M replies, print the N likeliest")
    group.add_argument("--beams", type=whole, metavar="W", help="a beam search of this width, without chance")
    group.add_argument("--length-penalty", type=number, metavar="L", help="of beams: above 0 long ones win")
    group.add_argument(
        "--early-stopping", action="store_true", default=None, help="of beams: stop once enough have ended"
    )
    _add_model(command)
    _add_sampling(command)


def _add_serve(command: argparse.ArgumentParser) -> None:
    _add_model(command)
    group = command.add_argument_group("where it listens")
    group.add_argument(
        "--host", type=given, default="127.0.0.1", metavar="H", help="an address (default: this machine only)"
    )
    group.add_argument(
        "--port", type=whole, default=8000, metavar="N", help="0 takes any that is free (default: 8000)"
    )
    group.add_argument(
        "--uds", type=given, metavar="FILE", help="a Unix socket of this user alone, instead of an address"
    )
    group.add_argument("--tls-cert", type=given, metavar="FILE", help="a certificate, in PEM")
    group.add_argument("--tls-key", type=given, metavar="FILE", help="its key")
    group = command.add_argument_group("who may use it")
    group.add_argument(
        "--api-key-file", type=given, metavar="FILE", help="keys, one a line (default: one is made and kept)"
    )
    group.add_argument("--no-key", action="store_true", help="ask for no key")
    group.add_argument("--insecure", action="store_true", help="with --no-key: even beyond this machine")
    group.add_argument(
        "--max-in-flight",
        type=whole,
        default=1024,
        metavar="N",
        help="replies that may run and wait (default: 1024)",
    )
    group.add_argument(
        "--max-per-key", type=whole, default=512, metavar="N", help="of them by a key (default: 512)"
    )
    group.add_argument(
        "--max-body", type=whole, default=8, metavar="MIB", help="how long a request may be (default: 8 MiB)"
    )
    group = command.add_argument_group("how it serves")
    group.add_argument(
        "--served-name", type=given, metavar="NAME", help="what clients call the model (default: --model)"
    )
    group.add_argument(
        "--drain", type=number, default=30.0, metavar="S", help="seconds for replies at the end"
    )
    group.add_argument("--access-log", action="store_true", help="a line a request, without its text")
    group.add_argument("--log-prompts", action="store_true", help="prompts in the log as well")
    _add_dry(group)


def _add_attach(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "url", nargs="?", metavar="URL", help="such as http://host:8000 (default: the engine of up)"
    )
    command.add_argument("--uds", type=given, metavar="FILE", help="a Unix socket instead of an address")
    command.add_argument(
        "--api-key-file",
        type=given,
        metavar="FILE",
        help="the server's key (default: MINICHAT_API_KEY, or on this machine your own server's)",
    )
    _add_name(command)
    _add_sampling(command)
    _add_looks(command)


def _add_up(command: argparse.ArgumentParser) -> None:
    _add_name(command)
    command.add_argument("--no-screen", action="store_true", help="only start it, and wait until it is ready")
    _add_model(command)
    _add_dry(command)
    _add_sampling(command)
    _add_looks(command)
    command.set_defaults(**dict.fromkeys(_IN_SETTINGS))


def _add_down(command: argparse.ArgumentParser) -> None:
    _add_name(command)
    command.add_argument("--now", action="store_true", help="do not wait for the replies that run")


def _add_ps(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="the same as JSON")


def _add_name(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--name", default="main", metavar="NAME", help="which of your engines, if there are several"
    )


def _add_looks(command: argparse.ArgumentParser) -> None:
    command.add_argument("--system", metavar="TEXT", help="the system prompt of a new chat")
    command.add_argument("--ascii", action="store_true", help="draw with ASCII characters only")


def _add_dry(group: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--dry-run", action="store_true", help="no weights: made-up replies, to write clients with"
    )
    group.add_argument(
        "--rate", type=number, metavar="N", help="tokens a second of each made-up reply (default: 30)"
    )


def _add_quality(command: argparse.ArgumentParser) -> None:
    _add_model(command)
    group = command.add_argument_group("what is compared")
    group.add_argument("--text", metavar="FILE", help="what is read (default: a text that minichat ships)")
    group.add_argument(
        "--schemes",
        default="none,int8,int4,kv-int8,kv-fp8",
        metavar="S,S",
        help="for the weights, kv-... for the cache, or both as int4+kv-int8 (default: %(default)s)",
    )
    group.add_argument(
        "--tokens", type=whole, default=2048, metavar="N", help="of the text, at most (default: 2048)"
    )
    group.add_argument("--no-speed", action="store_true", help="leave out what takes time alone")
    group.add_argument("--json", action="store_true", help="a list of rows as JSON")
    group.add_argument("--plot", metavar="FILE.svg", help="the plots as a picture as well")


def _add_doctor(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="the same as JSON")


def _add_tour(command: argparse.ArgumentParser) -> None:
    command.add_argument("--ascii", action="store_true", help="draw with ASCII characters only")


def _add_fetch(command: argparse.ArgumentParser) -> None:
    command.add_argument("name", type=given, metavar="NAME", help="such as Qwen/Qwen3-0.6B")
    command.add_argument("--json", action="store_true", help="tell how far it is in lines of JSON")


def _add_locate(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="the same as JSON")


def _add_completions(command: argparse.ArgumentParser) -> None:
    command.add_argument("shell", choices=["bash", "zsh", "fish"], help="the script says how it is taken")


# What the settings say where the command line says nothing.
_IN_SETTINGS = ("model", "device", "dtype", "attention", "policy", "quantization", "kv")
# Whose file is called otherwise: chat has a screen, and a plain form behind it.
_FILES = {"chat": "tui"}
_ADD = {
    "chat": _add_chat,
    "generate": _add_generate,
    "tour": _add_tour,
    "fetch": _add_fetch,
    "locate": _add_locate,
    "serve": _add_serve,
    "attach": _add_attach,
    "up": _add_up,
    "down": _add_down,
    "ps": _add_ps,
    "quality": _add_quality,
    "doctor": _add_doctor,
    "completions": _add_completions,
}


_HELP = ("-h", "--help", "--version")
_NOWHERE = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # where nothing more can be written


def _is_for_chat(word: str) -> bool:
    """An option, or a question. A single word may be a command with a slip in it, and asks nothing."""
    if word.startswith("-"):
        return word not in _HELP
    return any(letter.isspace() for letter in word.strip())


def _no_command(word: str) -> NoReturn:
    near = near_to(word, COMMANDS)
    parser().error(f"there is no command {word!r}; to ask the model: minichat chat {word!r}{near}")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit code: 0 ok, 1 failed, 2 bad usage."""
    settle()
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or _is_for_chat(words[0]):
        words.insert(0, "chat")
    if words[0] not in (*COMMANDS, *_HELP):
        _no_command(words[0])
    options, unknown = parser().parse_known_args(words)
    if unknown:  # argparse would send people to the help of the program instead of the command's
        alone = Parser(prog=f"minichat {words[0]}")
        _ADD[words[0]](alone)
        alone.refuse(unknown, _HELP)
    try:
        command = import_module(f"minichat.commands.{_FILES.get(options.command, options.command)}")
        code = int(command.run(options))
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        if error.errno not in _NOWHERE or error.filename is not None:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left has nowhere to go
        if error.errno != errno.EPIPE:  # who closes a pipe knows
            print(f"minichat: cannot write: {error.strerror}", file=sys.stderr)
        return 1
