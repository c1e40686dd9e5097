"""The text of the quantization drawer, from a snapshot."""

from collections.abc import Sequence

import numpy as np
from textual.content import Content

from engine.api.snapshot import HOST, SchemeView, Snapshot
from minichat.models.progress import size
from minichat.models.welcome import is_dry
from minichat.plural import plural
from minichat.ui.marks import Marks
from minichat.ui.monitor.cells import State, states
from minichat.ui.monitor.figures import whose_memory

LABEL = 13  # cells
_BAR = 20  # cells of the progress bar
_PURPOSES = {
    "weights": "weights",
    "cache": "KV cache",
    "draft": "draft",
    "adapters": "adapters",
    "host_cache": "host cache",
    "workspace": "workspace",
    "device_free": "free",
}

_TYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}  # schemes that are a type
_INPUTS = {"fp8": "fp8", "bnb-int8": "int8"}  # schemes that round activations, and to what

Row = tuple[str, str, float | None]  # label, figure, and share for a bar


def scheme(shot: Snapshot) -> tuple[Row, ...]:
    if is_dry(shot):
        return ("model", shot.model, None), ("weights", "none (dry run)", None)
    if shot.quantization == "none":
        weights: tuple[Row, ...] = (("weights", f"{shot.dtype}, not quantized", None),)
    else:
        weights = (("weights", shot.quantization, None), ("computed in", computed_in(shot), None))
    return (
        ("model", shot.model, None),
        *weights,
        ("KV cache", shot.kv_dtype or "unknown", None),
        ("runs on", f"{shot.device}, {len(shot.ranks)} ranks" if shot.ranks else shot.device, None),
        *([("sizes", f"of {whose}", None)] if (whose := whose_memory(shot)) else []),
    )


def computed_in(shot: Snapshot) -> str:
    """The type of the products, and of what is around them if that has another one."""
    kind = _TYPES.get(shot.quantization, shot.dtype)
    if kind != shot.dtype:
        return f"{kind}, rest {shot.dtype}"
    inputs = _INPUTS.get(shot.quantization)
    return f"{kind}, inputs in {inputs}" if inputs else kind


def schemes(shot: Snapshot) -> tuple[SchemeView, ...]:
    """The schemes of the weights. The size of the present one is measured, except while it changes."""
    held = shot.memory.get("weights", 0) if shot.change is None or shot.change.over else 0
    return tuple(
        each._replace(nbytes=held) if held and each.name == shot.quantization else each
        for each in shot.schemes
    )


def times(shot: Snapshot, offered: Sequence[SchemeView], *, of_cache: bool) -> dict[str, str]:
    """The measured times of a step, by scheme, for as many rows as the newest step had."""
    return {each.name: time for each in offered if (time := step_time(shot, each.name, of_cache=of_cache))}


def step_time(shot: Snapshot, name: str, *, of_cache: bool) -> str:
    """The time of a step with this scheme and the present other one; empty: not measured."""
    form = (shot.quantization, name) if of_cache else (name, shot.kv_scheme)
    if (found := shot.form_time(*form)) is None:
        return ""
    return f"{found.seconds * 1e3:.3g} ms" if found.seconds < 0.9995 else f"{found.seconds:.2f} s"


def costs(of: SchemeView, time: str, width: int) -> list[str]:
    """Bytes, blocks, and the time of a step, in one line if it fits."""
    line = f"{size(of.nbytes):>7}" + (f"  {of.blocks:,} blocks" if of.blocks else "")
    if of.blocks and len(line) > width:
        line = f"{size(of.nbytes):>7}  {of.blocks / 1e6:.2f}M blocks"
    if not time:
        return [line]
    whole = f"{line}  {time} a step"
    return [whole] if len(whole) <= width else [line, f"{time:>7} a step"]


def before_and_then(now: str, then: str) -> tuple[str, str]:
    """The present time of a step and another one, if both are known, in words that fit into the drawer."""
    if not then:
        return ("not measured yet",) * 2
    if not now or now == then:
        return (f"{then} a step",) * 2
    return now.removesuffix(f" {then.rpartition(' ')[2]}"), f"{then} a step"


def rows_of_steps(shot: Snapshot) -> str:
    """How many rows the measured steps had, such as "2-8 rows"; empty: none was measured."""
    if not shot.form_times:
        return ""
    rows, most = shot.form_times[0].rows, shot.form_times[0].most
    if rows == most:
        return plural(rows, "row")
    return f"{rows}-{most} rows" if most else f"{rows}+ rows"


def change(shot: Snapshot, marks: Marks, *, cancels: bool) -> str:
    """A running or failed conversion. `cancels`: whether Esc would cancel it."""
    if (found := shot.change) is None:
        return ""
    if not found.error:
        full = _BAR * found.done // max(found.total, 1)
        bar = marks.bar * full + marks.rest * (_BAR - full)
        return f"to {found.scheme}: {found.done} of {found.total} layers\n{bar}{'  Esc cancels' * cancels}"
    state = (
        f"still {shot.quantization}"
        if found.over
        else f"reverting to {shot.quantization}, {found.done} layers"
    )
    return f"to {found.scheme}: {found.error}; {state}"


def preview(shot: Snapshot, name: str, marks: Marks, *, of_cache: bool) -> tuple[Content, ...]:
    """Sizes of weights and cache with a scheme, and its steps; changed figures show both values."""
    of_weights = schemes(shot)
    offered, present = (shot.kv_schemes, shot.kv_scheme) if of_cache else (of_weights, shot.quantization)
    views = {each.name: each for each in offered}
    there, target = views.get(present), views.get(name)
    if there is None or target is None:
        return ()
    of = "cache" if of_cache else "weights"
    if target.why_not:
        return (Content.styled(f"{of} as {name}", "bold"), Content.styled(target.why_not, "$text-muted"))
    form = "not quantized" if name == "none" else f"as {name}"
    title = Content.styled(f"memory {'now,' if name == present else 'with'} {of} {form}", "bold")
    blocks = shot.usable_blocks
    blocks_then = target.blocks or blocks
    weights = weights_then = next((each.nbytes for each in of_weights if each.name == shot.quantization), 0)
    cache = shot.memory.get("cache", 0)
    cache_then = cache * blocks_then // max(blocks, 1)
    if of_cache:
        cache_then = target.nbytes * shot.tokens_in(blocks_then) if target.nbytes else cache_then
    else:
        weights_then = target.nbytes

    def row(label: str, now: str, then: str) -> Content:
        figures = now if now == then else f"{now} {marks.becomes} {then}"
        return Content.assemble((f"{label:{LABEL}}", "$text-muted"), (figures, "$text"))

    tokens = (f"{shot.tokens_in(count):,}" for count in (blocks, blocks_then))
    steps = (step_time(shot, each, of_cache=of_cache) for each in (present, name))
    return (
        title,
        row("weights", size(weights), size(weights_then)),
        row("KV cache", size(cache), size(cache_then)),
        row("tokens", *tokens),
        row(rows_of_steps(shot) or "a step", *before_and_then(*steps)),
    )


def memory(found: dict[str, int]) -> tuple[Row, ...]:
    """Memory by purpose. Shares are of device memory, so the host cache has none."""
    total = found.get("device_total", 0)
    rows = [
        (name, size(found[key]), found[key] / total if total and key != "host_cache" else None)
        for key, name in _PURPOSES.items()
        if found.get(key)
    ]
    return (*rows, ("total", size(total), None)) if total else tuple(rows)


def room(shot: Snapshot) -> tuple[Row, ...]:
    """Blocks as the monitor counts them, and the tokens they hold."""
    blocks, count = shot.blocks, shot.usable_blocks
    counts = np.bincount(states(blocks), minlength=len(State)).tolist()
    free, cached, dropped = (counts[state] for state in (State.FREE, State.CACHED, State.DROPPED))
    free -= len(blocks.refs) - count  # of replicas that do not run
    rows: list[Row] = [
        ("blocks", f"{count:,} of {shot.block_size} tokens", None),
        ("in use", f"{blocks.in_use:,}", blocks.in_use / count),
        ("cached", f"{cached:,}", cached / count),
        *([("dropped", f"{dropped:,}", dropped / count)] if dropped else []),
        ("free", f"{free:,}", free / count),
        ("tokens", f"{shot.tokens_in(count):,} total", None),
        ("left", f"{shot.tokens_in(count - blocks.in_use):,} available", None),
        ("context", f"at most {shot.max_context:,} tokens", None),
    ]
    if shot.host_size:
        rows.append((HOST, f"{shot.host_in_use:,} of {shot.host_size:,} blocks", None))
    rows += [
        (tier.name, tier.problem or f"{tier.in_use:,} of {tier.size:,} blocks", None) for tier in shot.tiers
    ]
    return tuple(rows)
