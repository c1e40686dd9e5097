"""The sandboxed helper process that renders chat templates. template.py is the parent's side.

Templates come with checkpoints and are not trusted. The sandbox blocks access to Python internals; the limits
set here on memory, files and CPU time protect the machine. A frame is eight bytes of length, then JSON.
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
    """Rendering was refused, by the template or by a limit here."""


class GenerationBlock(Extension):
    """`{% generation %}` marks assistant text for training; here it only opens a scope."""

    tags = {"generation"}  # noqa: RUF012 (jinja2's own attribute)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class PublicNamespace(Namespace):
    """A namespace without underscored names, which could bypass the sandbox."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"a namespace cannot have the attribute {name!r}")
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
    """Serialize as templates expect: unlike jinja2's own filter, <, > and non-ASCII text are not escaped."""
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
    """Return the text, or the reason for a failure. SIGPROF kills the process after the time limit."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        return {"text": render(source, values)}
    except Refused as error:
        reason = str(error)
    except jinja2.TemplateSyntaxError as error:
        reason = f"has a syntax error in line {error.lineno}: {error.message}"
    except jinja2.exceptions.SecurityError as error:
        reason = f"violates its sandbox: {error}"
    except jinja2.UndefinedError as error:
        reason = f"uses a value that these messages do not have: {error}"
    except MemoryError:
        reason = "needs too much memory"
    except RecursionError:
        reason = "is nested too deep or recurses without end"
    except Exception as error:  # an expression in a template can raise anything
        reason = f"failed: {type(error).__name__}: {error}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return {"error": reason if len(reason) <= MAX_REASON else reason[:MAX_REASON] + "..."}


def limit(megabytes: int) -> None:
    """Set the resource limits. `megabytes`: memory on top of what Python has already mapped."""
    mapped = STATM.read_text().split()[0] if STATM.exists() else "0"
    size = int(mapped) * resource.getpagesize() + (megabytes << 20)
    for kind, most in ((resource.RLIMIT_AS, size), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CORE, 0)):
        # Fails if a stricter limit is in force, or the system has no such limit.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (most, most))


def read() -> bytes:
    """Return the next frame, or an empty one if the parent has closed the connection."""
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
