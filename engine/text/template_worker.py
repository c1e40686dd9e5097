"""The helper process that renders chat templates, on a leash. Run as a script; template.py is its other end.

A template comes from a stranger's checkpoint. The sandbox keeps it from Python's insides; the limits set here
on memory, files and processor time keep it from the machine. A frame is eight bytes of length, then JSON.
"""

import contextlib
import json
import resource
import signal
import sys
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MAX_OUTPUT = 16_000_000  # characters
MAX_REASON = 500
STATM = Path("/proc/self/statm")


class Refused(Exception):
    """A rendering that ends with a reason, the template's own or ours."""


class GenerationBlock(Extension):
    """`{% generation %}` marks the assistant's words for training; here it only opens a scope."""

    tags = {"generation"}  # noqa: RUF012 (jinja2's own attribute)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class PublicNamespace(Namespace):
    """A namespace that takes no underscored names, which the sandbox would have to guard against."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"a namespace takes no attribute {name!r}")
        super().__setitem__(name, value)


def raise_exception(message: object = "no reason given") -> None:
    raise Refused(f"refused the messages: {message}")


def strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As templates expect it: unlike jinja2's own it leaves <, > and letters of all scripts as they are."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def sandbox() -> ImmutableSandboxedEnvironment:
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, "jinja2.ext.loopcontrols"]
    )
    env.filters["tojson"] = tojson
    del env.globals["lipsum"]
    env.globals |= {
        "raise_exception": raise_exception,
        "strftime_now": strftime_now,
        "namespace": PublicNamespace,
    }
    return env


ENVIRONMENT = sandbox()
compiled = lru_cache(maxsize=8)(ENVIRONMENT.from_string)


def render(source: str, values: dict[str, Any]) -> str:
    parts, length = [], 0
    for part in compiled(source).generate(**values):
        parts.append(part)
        length += len(part)
        if length > MAX_OUTPUT:
            raise Refused(f"writes more than {MAX_OUTPUT:,} characters")
    return "".join(parts)


def answer(source: str, values: dict[str, Any], seconds: float) -> dict[str, str]:
    """The text, or why there is none. Beyond its time the process ends by SIGPROF, whatever it is doing."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        return {"text": render(source, values)}
    except Refused as error:
        reason = str(error)
    except jinja2.TemplateSyntaxError as error:
        reason = f"has a syntax error in line {error.lineno}: {error.message}"
    except jinja2.exceptions.SecurityError as error:
        reason = f"does what its sandbox forbids: {error}"
    except jinja2.UndefinedError as error:
        reason = f"uses what these messages do not have: {error}"
    except MemoryError:
        reason = "needs too much memory"
    except RecursionError:
        reason = "is nested too deep, or calls itself without end"
    except Exception as error:  # an expression in a template can raise anything
        reason = f"failed: {type(error).__name__}: {error}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return {"error": reason if len(reason) <= MAX_REASON else reason[:MAX_REASON] + "..."}


def limit(megabytes: int) -> None:
    """What the process may still take, beside what Python has mapped already."""
    mapped = STATM.read_text().split()[0] if STATM.exists() else "0"
    size = int(mapped) * resource.getpagesize() + (megabytes << 20)
    for kind, most in ((resource.RLIMIT_AS, size), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CORE, 0)):
        with contextlib.suppress(
            ValueError, OSError
        ):  # a stricter limit is in force, or this system has none
            resource.setrlimit(kind, (most, most))


def read() -> bytes:
    """The next frame; empty when the other end is gone."""
    length = int.from_bytes(sys.stdin.buffer.read(8), "big")
    return sys.stdin.buffer.read(length)


def write(value: dict[str, str]) -> None:
    frame = json.dumps(value).encode()
    sys.stdout.buffer.write(len(frame).to_bytes(8, "big") + frame)
    sys.stdout.buffer.flush()


def main(megabytes: int) -> None:
    limit(megabytes)
    write({"text": "ready"})
    while frame := read():
        request = json.loads(frame)
        write(answer(request["template"], request["values"], request["seconds"]))


if __name__ == "__main__":
    main(int(sys.argv[1]))
