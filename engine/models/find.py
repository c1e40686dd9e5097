"""Finds a model by name: the built-in one, a folder, a GGUF file, or a hub model through the hub's cache."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.api.config import ModelPlace
from engine.api.errors import BadCheckpoint, HubUnreachable, ModelNotFound
from engine.gguf.header import is_gguf
from engine.gguf.parts import first_part, model_name
from engine.models.checkpoint import has_weights, refuse_kinds

BUILT_IN = "pocket"
CONFIG = "config.json"
ADAPTER = "adapter_config.json"
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
TEXTS = ["*.json", "*.jinja"]
WEIGHTS = ["model.safetensors", "model-*.safetensors"]  # pickles are never fetched

Progress = Callable[[int, int], None]  # bytes done, total bytes


def find_model(name: str | None, *, dummy: bool = False, progress: Progress | None = None) -> ModelPlace:
    """Find a model's files, and download them if they are not on this machine; `dummy` needs no weights."""
    name = name or BUILT_IN
    if (found := look_for(name)) is not None:
        return found
    folder = _cached(name, dummy) or _fetched(name, dummy, progress)
    return ModelPlace(name, folder)


def look_for(name: str) -> ModelPlace | None:
    """The built-in model, or that of a path; None: the name of a hub model. Raises if it is none of these."""
    if name == BUILT_IN:
        return _built_in()
    path = os.path.expanduser(name)
    if os.path.exists(path):  # false for text that cannot be a path, where pathlib would raise
        return _local(name, Path(path))
    wrong = ".." in name or "--" in name or len(name) > 96 or name.endswith(".gguf")
    if wrong or not HUB_NAME.fullmatch(name):
        raise ModelNotFound(
            f"there is no folder or GGUF file {name[:400]!r}, and it is not a valid name of a hub model"
        )
    return None


def _built_in() -> ModelPlace:
    folder = Path(__file__).parent.parent / BUILT_IN
    if not (folder / CONFIG).is_file():
        raise ModelNotFound("this installation has no built-in model; specify a folder or a hub model")
    return ModelPlace(BUILT_IN, folder)


def _local(name: str, path: Path) -> ModelPlace:
    folder = path.resolve()
    if is_gguf(folder) and folder.is_file():
        return ModelPlace(model_name(folder), first_part(folder))
    if folder.name == CONFIG and folder.is_file():
        folder = folder.parent
    if not os.path.isfile(folder / CONFIG):  # false also without permission, where pathlib would raise
        _refuse_instead(name, folder)
        raise ModelNotFound(f"{name} is neither a {CONFIG} nor a folder that holds one, nor a GGUF file")
    return ModelPlace(name if HUB_NAME.fullmatch(name) else folder.name, folder)


def _refuse_instead(name: str, path: Path) -> None:
    """Raise a specific error for a file or folder often mistaken for a model."""
    try:
        files = sorted(path / each for each in os.listdir(path)) if path.is_dir() else [path]
    except OSError as error:
        raise ModelNotFound(f"{name} cannot be read: {error.strerror}") from error
    refuse_kinds(files)
    for file in files:
        if file.name == ADAPTER:
            raise BadCheckpoint(
                f"{file.parent} is an adapter, not a whole model: merge it into its base model with peft "
                "(merge_and_unload), and save the result"
            )
        if file.suffix == ".safetensors":
            raise BadCheckpoint(
                f"{file} holds weights without a {CONFIG}: specify a folder with both, and the tokenizer"
            )


def _cached(name: str, dummy: bool) -> Path | None:
    """Return the snapshot in the hub's cache, if it is complete."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(name, local_files_only=True, allow_patterns=_patterns(dummy)))
    except LocalEntryNotFoundError:
        return None
    return folder if (folder / CONFIG).is_file() and (dummy or has_weights(folder)) else None


def _fetched(name: str, dummy: bool, progress: Progress | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        folder = Path(snapshot_download(name, allow_patterns=_patterns(dummy), tqdm_class=_meter(progress)))
    except GatedRepoError as error:
        raise ModelNotFound(f"{name} is gated: get access on huggingface.co, then `hf auth login`") from error
    except RepositoryNotFoundError as error:
        raise ModelNotFound(f"{name} is neither a local folder nor a hub model") from error
    except LocalEntryNotFoundError as error:
        raise HubUnreachable(f"{name} is not on this machine, and the hub cannot be reached") from error
    except Exception as error:  # the client passes on errors of its HTTP library, which differ by version
        raise HubUnreachable(f"{name} could not be downloaded from the hub: {error}") from error
    if not (folder / CONFIG).is_file():
        raise BadCheckpoint(f"{name} has no {CONFIG} on the hub, so it is not a transformers model")
    if not dummy and not has_weights(folder):
        raise BadCheckpoint(f"{name} has no model.safetensors on the hub; other weight formats are refused")
    return folder


def _patterns(dummy: bool) -> list[str]:
    return TEXTS if dummy else TEXTS + WEIGHTS


def _meter(progress: Progress | None) -> type:
    """Return a progress bar class for the hub's client that displays nothing and reports bytes."""
    from tqdm import tqdm  # type: ignore[import-untyped]

    most = 0

    class Meter(tqdm):
        monitor_interval = 0  # no monitor thread

        def __init__(self, *args: Any, **options: Any) -> None:
            options.pop("name", None)
            super().__init__(*args, **options | {"disable": False})

        def display(self, *args: Any, **options: Any) -> None:
            pass

        def update(self, n: float | None = 1) -> bool | None:
            nonlocal most
            refreshed = super().update(n)
            # One bar counts bytes received and another bytes written: report the larger.
            if progress and self.unit == "B" and self.n > most:
                most = int(self.n)
                progress(most, int(self.total or 0))
            return refreshed

        def close(self) -> None:
            self.disable = True

    return Meter
