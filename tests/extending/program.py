"""A program of a user who has installed the example: `program.py MODEL` prints JSON."""

import json
import sys
from typing import Any

from engine.api.config import EngineConfig
from engine.api.errors import BadInput
from engine.api.params import SamplingParams
from engine.start import start

PROMPTS = [list(range(5, 65)), list(range(100, 103)), list(range(30, 50))]  # the longest first


def finished(model: str, **config: Any) -> dict[str, Any]:
    """The names of the engine's parts, the replies, and the order in which they ended."""
    plain: dict[str, Any] = {
        "dummy_weights": True,
        "device": "cpu",
        "blocks": 32,
        "max_running": 1,
        "max_step_tokens": 16,
    }
    engine = start(EngineConfig(model=model, **plain | config))
    replies: dict[int, list[int]] = {}
    ended = []

    def record(delta: Any) -> None:
        replies.setdefault(delta.request, []).extend(delta.tokens)
        if delta.finish:
            ended.append(delta.request)

    # Random weights tend to repeat tokens, which would hide differences.
    params = SamplingParams(temperature=0, repetition_penalty=2, max_tokens=30, ignore_eos=True)
    for prompt in PROMPTS:
        engine.submit(prompt, params, record)
    while engine.busy:
        engine.step()
        engine.scheduler.check()
    facts = engine.info
    return {"facts": [facts.attention, facts.policy], "replies": sorted(replies.items()), "ended": ended}


def changed(model: str) -> dict[str, Any]:
    """Replies under the example's scheme, chosen at the start or later, and after switching back."""
    engine = start(EngineConfig(model=model, dummy_weights=True, device="cpu", blocks=32))
    params = SamplingParams(temperature=0, repetition_penalty=2, max_tokens=20, ignore_eos=True)

    def reply() -> list[int]:
        tokens: list[int] = []
        engine.submit(PROMPTS[0], params, lambda delta: tokens.extend(delta.tokens))
        while engine.busy:
            engine.step()
        return tokens

    replies = {"none": reply()}
    for scheme in ("ternary", "none"):
        engine.set_quantization(scheme)
        while engine.busy:
            engine.step()
        replies[f"then {scheme}"] = reply()
    engine = start(
        EngineConfig(model=model, dummy_weights=True, device="cpu", blocks=32, quantization="ternary")
    )
    replies["ternary"] = reply()
    view = next(each for each in engine.snapshot().schemes if each.name == "ternary")
    return {"replies": replies, "is": engine.snapshot().quantization, "nbytes": view.nbytes}


def refusal(model: str, **config: Any) -> str:
    try:
        start(EngineConfig(model=model, dummy_weights=True, device="cpu", blocks=32, **config))
    except BadInput as error:
        return str(error)
    return "nothing was refused"


if __name__ == "__main__":
    model = sys.argv[1]
    print(
        json.dumps(
            {
                "bad attention": refusal(model, attention="sdpq"),
                "bad policy": refusal(model, policy="shortish"),
                "bad scheme": refusal(model, quantization="ternari"),
                "changed": changed(model),
                "built in": finished(model),
                "example": finished(model, attention="sdpa", policy="shortest"),
            }
        )
    )
