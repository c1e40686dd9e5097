"""A real model's engine killed at any moment: later replies are those of an engine that never stopped."""

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.runner.small import ask, drain, engine_on, make
from tests.tiers.models_child import REPLY

ROOT = Path(__file__).parents[2]
CHATS, TURNS = 8, 6


class Chats:
    """Eight chats of a model, and what an engine without tiers replied to each of their turns."""

    def __init__(self, folder: Path) -> None:
        self._model, self._disk, self._prompts = folder / "model", folder / "kv", folder / "prompts.json"
        self._model.mkdir()
        make("llama", self._model)
        self._expected: list[list[list[int]]] = []
        self.loads, self._turn = [0, 0], 0
        engine = engine_on(self._model)
        prompts, histories = [], [[3] * 20 for _ in range(CHATS)]
        for turn in range(TURNS):
            for chat, history in enumerate(histories):
                history += [(chat * 7 + turn * 13 + at) % 60 + 3 for at in range(10 + chat + turn)]
            prompts.append([[*history] for history in histories])
            outputs = [ask(engine, history, REPLY)[1] for history in histories]
            drain(engine)
            self._expected.append([output.tokens for output in outputs])
            for history, output in zip(histories, outputs, strict=True):
                history += output.tokens
        self._prompts.write_text(json.dumps(prompts))

    def live(self, replies: int, microseconds: int) -> None:
        """Start an engine, and kill it so long after its first replies. All of them must be right."""
        args = [*map(str, (self._model, self._disk, self._prompts, self._turn))]
        program = [sys.executable, "-m", "tests.tiers.models_child", *args]
        with subprocess.Popen(program, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            late = threading.Timer(100, child.kill)
            late.start()
            killer, loads = threading.Timer(microseconds / 1e6, child.kill), [0, 0]
            for count, line in enumerate(child.stdout, 1):
                if not line.endswith("\n"):
                    break  # killed while it printed
                chat, self._turn, *loads_and_tokens = map(int, line.split())
                loads, tokens = loads_and_tokens[:2], loads_and_tokens[2:]
                assert tokens == self._expected[self._turn % TURNS][chat], f"turn {self._turn}, chat {chat}"
                if count == replies:
                    killer.start()
            late.cancel()
            assert killer.ident is not None, "the engine ended before it was killed"
            killer.join()
            assert child.wait(30) == -9
        self.loads = [a + b for a, b in zip(self.loads, loads, strict=True)]


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_killed_engines_of_a_real_model(tmp_path: Path) -> None:
    chats = Chats(tmp_path)

    @settings(max_examples=10, phases=[Phase.generate], database=None)
    @given(replies=st.integers(1, 6 * CHATS), microseconds=st.integers(0, 50_000))
    def live(replies: int, microseconds: int) -> None:
        chats.live(replies, microseconds)

    live()
    assert min(chats.loads) > 0, "a tier was never used"
