"""Download a model from the hub in a separate process, so that it can be canceled and keeps the UI free."""

import asyncio
import json
import sys
from collections.abc import Sequence
from contextlib import suppress

from engine.api.errors import ModelNotFound
from engine.api.wire import decode_error
from minichat.clients.protocol import Progress


async def fetch(name: str, progress: Progress, command: Sequence[str] = ()) -> None:
    """Download the model, or raise an error. A partial download stays in the cache and is resumed later."""
    process = await asyncio.create_subprocess_exec(
        *(command or [sys.executable, "-m", "minichat", "fetch", "--json", name]),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None and process.stderr is not None
    errors = asyncio.ensure_future(process.stderr.read())
    try:
        async for line in process.stdout:
            record = json.loads(line)
            if "done" in record:
                progress(record["done"], record["total"])
            elif "error" in record:
                raise decode_error(record["error"])
        if await process.wait():
            last = (await errors).decode(errors="replace").strip().splitlines()[-1:]
            raise ModelNotFound(": ".join([f"cannot download {name}", *last]))
    finally:
        errors.cancel()
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
