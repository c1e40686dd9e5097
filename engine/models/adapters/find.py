"""Finds an adapter's folder: a local one, or one of the hub through the hub's cache."""

import os
from pathlib import Path

from engine.api.errors import HubUnreachable, ModelNotFound
from engine.models.adapters.settings import CONFIG, WEIGHTS
from engine.models.find import HUB_NAME


def find_adapter(name: str) -> Path:
    """Return the folder of an adapter, and download it if it is not on this machine."""
    path = os.path.expanduser(name)
    if os.path.exists(path):  # false for text that cannot be a path, where pathlib would raise
        return Path(path).resolve()
    if not HUB_NAME.fullmatch(name) or ".." in name or "--" in name or len(name) > 96:
        raise ModelNotFound(f"there is no folder {name[:80]!r}, and it is not a valid name of a hub adapter")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError

    files = [CONFIG, WEIGHTS]  # pickles are never fetched
    try:
        folder = Path(snapshot_download(name, local_files_only=True, allow_patterns=files))
        if os.path.isfile(folder / CONFIG) and os.path.isfile(folder / WEIGHTS):
            return folder
    except LocalEntryNotFoundError:
        pass
    try:
        return Path(snapshot_download(name, allow_patterns=files))
    except RepositoryNotFoundError as error:
        raise ModelNotFound(f"{name} is neither a local folder nor a hub adapter") from error
    except LocalEntryNotFoundError as error:
        raise HubUnreachable(f"{name} is not on this machine, and the hub cannot be reached") from error
    except Exception as error:  # the client passes on errors of its HTTP library, which differ by version
        raise HubUnreachable(f"{name} could not be downloaded from the hub: {error}") from error
