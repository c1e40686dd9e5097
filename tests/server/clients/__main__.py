"""Tries clients that are not installed: `python -m tests.server.clients --litellm PYTHON`.

Others are --agents and --guidellm; PYTHON has the package. It talks to two servers: of the built-in model,
and of a script that calls a tool and then answers.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from engine.api.config import EngineConfig
from engine.api.params import SamplingParams
from engine.dry import dry_engine
from engine.serving.engine import Engine
from engine.start import start
from engine.text.tokenizer import Tokenizer
from tests.runner.letters import byte_tokenizer
from tests.server.conftest import KEY, serving
from tests.server.tools.test_tools import CALL, QWEN

THOUGHT, ANSWER = "<think>I need the weather.</think>", "It is sunny in Town."
REPLY = f"{THOUGHT}Let me look.<tool_call>{CALL}</tool_call>"
HANDOFF = '<tool_call>{"name": "transfer_to_clerk", "arguments": {}}</tool_call>'


def scripted(folder: Path) -> Engine:
    """An engine that calls a tool, and answers once it sees the tool's result, which names the sun.

    It hands over to an agent that is named clerk.
    """
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    settings = {"chat_template": QWEN, "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = Tokenizer.load(folder)

    def script(prompt: Sequence[int], params: SamplingParams) -> list[int]:
        text = tokenizer.decode(prompt)
        if "Tools:" in text and "transfer_to_clerk" in text:
            return tokenizer.encode(HANDOFF)
        return tokenizer.encode(REPLY if "weather" in text and "sunny" not in text else ANSWER)

    config = EngineConfig(model="pocket", blocks=4096)
    return dry_engine(config, rate=None, script=script, tokenizer=tokenizer)


@contextmanager
def servers() -> Iterator[tuple[str, str]]:
    """Yield the addresses of both."""
    with TemporaryDirectory() as folder:
        pocket = start(EngineConfig(model="pocket", device="cpu", blocks=2048))
        with serving(pocket) as one, serving(scripted(Path(folder))) as other:
            yield one.url, other.url


def main() -> int:
    reader = argparse.ArgumentParser(prog="python -m tests.server.clients", description=__doc__)
    for name in ("litellm", "agents", "guidellm"):
        reader.add_argument(f"--{name}", metavar="PYTHON")
    codes = []
    with servers() as urls:
        for name, python in vars(reader.parse_args()).items():
            if python:
                script = Path(__file__).with_name(f"with_{name}.py")
                codes.append(subprocess.run([python, script, *urls, KEY], check=False).returncode)
    return max(codes, default=0)


if __name__ == "__main__":
    sys.exit(main())
