"""`minichat doctor`: report what was found on this machine, and why something is unavailable."""

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from shutil import get_terminal_size
from textwrap import TextWrapper
from typing import Any, cast

import torch
from textual.css.stylesheet import Stylesheet

from engine.api.cache_spec import KV_SCHEMES, KvSchemeName, LayerSpec
from engine.api.errors import BadInput, EngineError
from engine.attention import registry
from engine.devices import host_speeds, pick
from engine.execution.draft.drafters import FOLDER
from engine.kernels.cpu.compiled import attention, build, product
from engine.kv.tiers.speeds import TierSpeeds, disk_speeds
from engine.main_memory import free_host_memory, host_memory
from engine.models import families
from engine.models.config_json import read_config
from engine.models.find import find_model, look_for
from engine.models.loader import possible_ranks
from engine.quant import registry as schemes
from engine.scheduling import policy
from minichat import __version__
from minichat.doing import doing
from minichat.features import installed
from minichat.features.table import bound
from minichat.models.progress import size
from minichat.plural import plural
from minichat.settings import Loaded, load
from minichat.settings.keymap import keymap
from minichat.settings.nearest import unknown
from minichat.settings.presets import load_presets
from minichat.shell.disk_room import nearest
from minichat.shell.paths import locate
from minichat.shell.themes import load_themes, shipped_themes
from minichat.ui.css.features import add_css

PACKAGES = ["torch", "transformers", "tokenizers", "safetensors", "numpy", "textual", "httpx"]
if sys.platform == "linux":
    PACKAGES.append("bitsandbytes")  # not installed on other systems
OPTIONAL = ("triton", "flash-attn", "flashinfer-python")
_GB = 1e9
_MOST_RANKS = 16
_PRODUCTS = {"none": 16, "int8": 8, "int4": 4}  # bits of a weight, by scheme
_SPEC = LayerSpec(heads=16, kv_heads=8, key_dim=128, value_dim=128, scale=128**-0.5)  # a typical layer


def run(options: argparse.Namespace) -> int:
    with doing() as say:
        found = examine(say)
    if options.json:
        print(json.dumps(found, indent=2))
        return 0
    text = report(found)
    print(fitted(text, get_terminal_size().columns) if sys.stdout.isatty() else text)
    return 0


def fitted(text: str, columns: int) -> str:
    """Break lines that are wider than the terminal between words, with an indent."""
    cut = TextWrapper(columns, subsequent_indent=" " * 6, break_long_words=False, break_on_hyphens=False)
    return "\n".join(line if len(line) <= columns else cut.fill(line) for line in text.splitlines())


def examine(say: Callable[[str], None] = lambda doing: None) -> dict[str, Any]:
    """Everything that is reported. `say` is called with what is done next, if that takes a while."""
    say("looking for kernels")
    devices = [torch.device("cpu"), *(torch.device("cuda", n) for n in range(torch.cuda.device_count()))]
    return {
        "minichat": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": {
            "name": _cpu_name(),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "torch_threads": torch.get_num_threads(),
            "instructions": torch.backends.cpu.get_cpu_capability(),
            "memory": host_memory(),
            "free": free_host_memory(),
        },
        "gpus": [_gpu(device) for device in devices if device.type == "cuda"],
        "no_gpu": _why_no_gpu(),
        "packages": {name: _version(name) for name in PACKAGES},
        "optional": {name: _version(name) for name in OPTIONAL},
        "attention": {str(device): _attention(device) for device in devices},
        "quantization": {str(device): _quantization(device) for device in devices},
        "kernels": _kernels(),
        "compiled": _compiled(),
        "kv": {str(device): _kv(device) for device in devices},
        "tiers": _tiers(devices, say),
        "ranks": _ranks(),
        "stages": _stages(),
        "policies": {name: policy.why_not(name) for name in policy.names()},
        "families": {name: _family(name) for name in families.names()},
        "built_in_model": _built_in(),
        "settings": _settings(),
        "terminal": {
            "term": os.environ.get("TERM"),
            "colours": os.environ.get("COLORTERM"),
            "ssh": "SSH_CONNECTION" in os.environ,
            "tmux": "TMUX" in os.environ,
            "tty": sys.stdout.isatty(),
        },
    }


def report(found: dict[str, Any]) -> str:
    """The findings as readable text."""
    cpu, lines = found["cpu"], []
    lines.append(f"minichat {found['minichat']}   python {found['python']}   {found['system']}")
    lines.append("")
    lines.append("Devices")
    memory = f"{cpu['free'] / _GB:.1f} of {cpu['memory'] / _GB:.1f} GB free"
    lines.append(f"  cpu      {cpu['name']}, {cpu['cores']} cores, {cpu['instructions']}, {memory}")
    for gpu in found["gpus"]:
        memory = f"{gpu['free'] / _GB:.1f} of {gpu['memory'] / _GB:.1f} GB free"
        lines.append(f"  {gpu['device']:8s} {gpu['name']}, compute {gpu['capability']}, {memory}")
    if found["no_gpu"]:
        lines.append(f"  no GPU   {found['no_gpu']}")
    lines += ["", "Packages"]
    lines += [
        f"  {name:18s} {number or 'MISSING: reinstall minichat'}"
        for name, number in found["packages"].items()
    ]
    lines += [
        f"  {name:18s} {number or 'not installed (optional)'}" for name, number in found["optional"].items()
    ]
    for device, backends in found["attention"].items():
        lines += ["", f"Attention on {device}"]
        lines += [f"  {name:18s} {why or 'available'}" for name, why in backends.items()]
    for device, reasons in found["quantization"].items():
        able = {name: f"available; {does}" for name, does in found["kernels"].items()}
        statuses = {name: why or able[name] for name, why in reasons.items()}
        lines += ["", f"Quantization on {device} (--quantization)", *_by_status(statuses)]
    kernels = {name: f"by torch: {why}" if why else "compiled" for name, why in found["compiled"].items()}
    lines += ["", "Kernels of bfloat16 on cpu", *_by_status(kernels)]
    for device, forms in found["kv"].items():
        lines += ["", f"KV cache schemes on {device} (--kv)"]
        lines += [f"  {name:18s} {_served(able)}" for name, able in forms.items()]
    lines += ["", "Cache tiers, GB/s (--kv-host, --kv-disk)"]
    lines += [f"  {name:18s} {_speeds(speeds)}" for name, speeds in found["tiers"].items()]
    lines += ["", "Model families with a native decoder", *_by_status(found["families"])]
    lines += [
        "",
        "Tensor parallel (--tp)",
        *(f"  {name:18s} {what}" for name, what in found["ranks"].items()),
        "",
        "Pipeline (--pp)",
        *(f"  {name:18s} {what}" for name, what in found["stages"].items()),
    ]
    usable = [name for name, why in found["policies"].items() if not why]
    lines += ["", "Scheduling policies (--policy)", f"  {', '.join(usable)}"]
    lines += [f"  {why}" for why in found["policies"].values() if why]
    lines += ["", f"Built-in model: {found['built_in_model']}"]
    settings = found["settings"]
    lines += [
        "",
        f"Settings: {settings['file']}",
        *(f"  {each}" for each in settings["faults"] or ["no problems"]),
    ]
    return "\n".join(lines)


def _settings() -> dict[str, Any]:
    """The problems that the screen would report at its start."""
    paths = locate()
    loaded = load(paths.settings)
    _try_out(loaded)
    features, misfits = installed()
    keymap(loaded, bound(features))
    themes = load_themes(shipped_themes(), paths.themes)
    if (theme := loaded.settings.screen.theme) not in themes.palettes:
        loaded.document.report("screen.theme", f"{theme!r} {unknown(theme, themes.palettes)}")
    colors = next(iter(themes.palettes.values())).theme()  # all have the same variables
    stylesheet = Stylesheet(variables=colors.to_color_system().generate() | colors.variables)
    misfits += tuple(filter(None, [add_css(stylesheet, each) for each in features]))
    problems = [*misfits, *loaded.problems, *load_presets(paths.presets).problems, *themes.problems]
    return {"file": str(paths.settings), "faults": [str(each) for each in problems]}


def _try_out(loaded: Loaded) -> None:
    """Report settings that name something that this machine does not have."""
    engine, device = loaded.settings.engine, torch.device("cpu")
    kv = cast(KvSchemeName, engine.kv)
    dtype = torch.bfloat16 if engine.dtype == "auto" else getattr(torch, engine.dtype)
    try:
        device = pick(engine.device)
    except BadInput as error:
        loaded.document.report("engine.device", str(error))
    chosen: dict[str, Callable[[], object]] = {
        "model": lambda: look_for(engine.model),
        "quantization": lambda: schemes.choose(engine.quantization, device, dtype),
        "policy": lambda: policy.choose(engine.policy),
        "attention": lambda: registry.choose(engine.attention, device, [_SPEC], dtype, kv),
    }
    for name, choose in chosen.items():
        try:
            choose()
        except EngineError as error:
            loaded.document.report(f"engine.{name}", str(error))


def _served(able: list[str]) -> str:
    return f"attention {', '.join(able)}" if able else "no attention backend supports it"


def _by_status(found: dict[str, str]) -> list[str]:
    """One line for each status, with the names that share it."""
    statuses: dict[str, list[str]] = {}
    for name, status in found.items():
        statuses.setdefault(status, []).append(name)
    return [f"  {', '.join(names)}: {status}" for status, names in statuses.items()]


def _compiled() -> dict[str, str | None]:
    """Why torch's kernels run on a CPU in bfloat16 instead of ours."""
    found = {name: product.why_not(bits, torch.bfloat16) for name, bits in _PRODUCTS.items()}
    found["attention"] = attention.why_not(_SPEC, torch.bfloat16)
    return {**found, "norms": build.why_not(build.rows())}


def _attention(device: torch.device) -> dict[str, str | None]:
    return {name: _why_not(name, device) for name in registry.names()}


def _kv(device: torch.device) -> dict[str, list[str]]:
    """The attention backends that support each KV scheme."""
    return {
        scheme: [name for name in registry.names() if _why_not(name, device, scheme) is None]
        for scheme in KV_SCHEMES
    }


def _tiers(devices: list[torch.device], say: Callable[[str], None]) -> dict[str, dict[str, float] | str]:
    """Measured bytes per second to and from each tier, or why it cannot be used."""
    cache = locate().cache
    measures: dict[str, Callable[[], TierSpeeds | None]] = {
        f"host, {device}": partial(host_speeds, device) for device in devices
    }
    measures["disk"] = lambda: disk_speeds(nearest(cache), direct=False)
    measures["disk, O_DIRECT"] = lambda: disk_speeds(nearest(cache), direct=True)
    found: dict[str, dict[str, float] | str] = {}
    for name, measure in measures.items():
        say(f"measuring the cache tier {name}")
        try:
            speeds = measure()
        except (OSError, RuntimeError) as error:
            found[name] = str(error)
        else:
            found[name] = "not supported by the file system" if speeds is None else speeds._asdict()
    return found


def _speeds(found: dict[str, float] | str) -> str:
    if isinstance(found, str):
        return found
    return f"store {found['store'] / _GB:.1f}, load {found['load'] / _GB:.1f}"


def _why_not(name: str, device: torch.device, kv_scheme: KvSchemeName = "none") -> str | None:
    return registry.why_not(name, device, [_SPEC], _dtype(device), kv_scheme)


def _gpus() -> str:
    """Whether each of several processes can have a GPU."""
    count = torch.cuda.device_count()
    return f"{'available' if count > 1 else 'needs two GPUs or more'}; this machine has {count}"


def _ranks() -> dict[str, str]:
    """How many processes can share the built-in model on each kind of device."""
    found = {"cuda": f"{_gpus()}. A model of 0.6B is faster on one with up to 32 replies"}
    try:
        able = possible_ranks(read_config(find_model(None).folder), _MOST_RANKS)
    except EngineError as error:
        return {"cpu": str(error), **found}
    return {"cpu": f"available; the built-in model runs on {', '.join(map(str, able))} ranks", **found}


def _stages() -> dict[str, str]:
    """Into how many stages the built-in model can be split on each kind of device."""
    found = {"cuda": _gpus()}
    try:
        most = len(read_config(find_model(None).folder).layers)
    except EngineError as error:
        return {"cpu": str(error), **found}
    return {"cpu": f"available; the built-in model has up to {most} stages", **found}


def _quantization(device: torch.device) -> dict[str, str | None]:
    return {name: schemes.why_not(name, device, _dtype(device)) for name in schemes.names()}


def _kernels() -> dict[str, str]:
    """The kernels of each scheme. A scheme that cannot be imported is reported elsewhere with its reason."""
    found = {}
    for name in schemes.names():
        try:
            scheme = schemes.named(name)
        except BadInput:
            continue
        rounds = "; activations are rounded" if scheme.rounds_activations else ""
        found[name] = scheme.kernels + rounds
    return found


def _family(name: str) -> str:
    """Which parts lack GPU launches of their own, or why the family cannot be used."""
    try:
        family = families.named(name)
        assert family is not None
        kinds = (family.attention, family.linear, family.feed_forward)
        parts = [kind.part() for kind in kinds if kind is not None]
    except (EngineError, ImportError) as error:
        return str(error)
    plain = [each.__name__ for each in parts if not each.launches()]
    own = [f"operator {each}" for each in (family.product, family.norm) if each]
    if not family.chained:
        return (
            "on a GPU, its blocks run as plain torch around attention, as their parts are not a plain chain"
        )
    first = parts[0]
    if family.rope.interleaved and not first.interleaves:
        others = (each for each in plain if each != first.__name__)
        plain = [f"{first.__name__} (interleaved positions)", *others]
    if not plain + own:
        return "all parts have their own GPU kernels"
    some = f"{len(plain)} of {plural(len(parts), 'part')}" if plain else "custom operators"
    run = "runs" if len(plain) == 1 else "run"
    return f"on a GPU, {some} {run} as plain torch: {', '.join(plain + own)}"


def _dtype(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "cpu" else torch.bfloat16


def _gpu(device: torch.device) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(device)
    free, total = torch.cuda.mem_get_info(device)
    return {
        "device": str(device),
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "memory": total,
        "free": free,
    }


def _why_no_gpu() -> str | None:
    if torch.cuda.is_available():
        return None
    if torch.version.cuda is None:
        return f"this torch ({torch.__version__}) is built without CUDA"
    return "torch is built with CUDA, but the driver reports no NVIDIA GPU; check nvidia-smi"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")),
        platform.processor(),
    )


def _built_in() -> str:
    try:
        folder = find_model(None).folder
    except EngineError as error:
        return str(error)
    return f"{folder} ({_weights(folder)}, and {_weights(folder / FOLDER)} for its draft model)"


def _weights(folder: Path) -> str:
    return size(sum(file.stat().st_size for file in folder.glob("*.safetensors")))
