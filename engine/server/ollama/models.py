"""GET /, /api/tags, /api/ps and /api/version, POST /api/show: the model, as Ollama describes one."""

from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse

from engine.api.snapshot import Snapshot
from engine.server.http.bodies import read_as
from engine.server.http.connection import state_of
from engine.server.http.errors import ApiError
from engine.server.ollama.errors import OllamaRoute
from engine.server.ollama.schema import OllamaShowRequest
from engine.server.schema import openapi_body
from engine.server.state import ServerState
from engine.text.reasoning import OPEN

router = APIRouter(route_class=OllamaRoute)

_VERSION = "0.9.0"  # of Ollama's API as it is served here; clients check it for tools and thinking
_NEVER = "9999-12-31T23:59:59Z"


@router.get("/", response_class=PlainTextResponse)
@router.head("/", include_in_schema=False)  # how Ollama's command line finds a server
async def root() -> PlainTextResponse:
    """Say that a server is running."""
    return PlainTextResponse("minichat is running")


@router.get("/api/version")
async def version() -> dict[str, str]:
    """Return the version of Ollama whose API this is. /version has the program's."""
    return {"version": _VERSION}


@router.get("/api/tags")
async def tags(request: Request) -> dict[str, Any]:
    """List the model that is served, once for each of its names, and its LoRA adapters."""
    state = state_of(request)
    record = _record(state, await state.engine.snapshot())
    return {"models": [_named(name) | record for name in await state.served_names()]}


@router.get("/api/ps")
async def running(request: Request) -> dict[str, Any]:
    """List the same as loaded: a model stays in memory as long as its server runs."""
    state = state_of(request)
    shot = await state.engine.snapshot()
    record = _record(state, shot)
    record["size"] = _weights(shot)
    in_vram = 0 if shot.on_cpu else record["size"]
    record |= {"expires_at": _NEVER, "size_vram": in_vram, "context_length": shot.max_context}
    return {"models": [_named(name) | record for name in await state.served_names()]}


@router.post("/api/show", openapi_extra=openapi_body(OllamaShowRequest))
async def show(request: Request) -> dict[str, Any]:
    """Describe the model: its template, what it can do, and how long its context is."""
    state, body = state_of(request), await read_as(request, OllamaShowRequest, any_type=True)
    if (name := body.model or body.name) is None:
        raise ApiError(400, "model is missing", param="model")
    await adapter_named(state, name)
    shot = await state.engine.snapshot()
    template = state.host.templates.get("default", "")
    able = {"completion": True, "tools": state.tool_style, "thinking": OPEN in template}
    return {
        "template": template,
        "details": _details(shot),
        "model_info": {
            "general.architecture": "minichat",
            "general.basename": state.config.name,
            "minichat.context_length": shot.max_context,
        },
        "capabilities": [name for name, has in able.items() if has],
        "modified_at": utc(state.started),
    }


async def adapter_named(state: ServerState, requested: str) -> str:
    """Return the adapter of a served name. As in Ollama, a name without a tag means the tag `latest`."""
    if _tagged(requested) in map(_tagged, state.config.names):
        return ""
    names = {_tagged(name): name for name in await state.served_names()}
    return state.adapter_of(names.get(_tagged(requested)) or await state.served_name(requested))


def _weights(shot: Snapshot) -> int:
    """Bytes of the weights in all replicas. The snapshot has those of the first rank of each that runs."""
    held, own = shot.memory.get("weights", 0), sum(each.weights for each in shot.ranks if each.rank == 0)
    return held * sum(each.weights for each in shot.ranks) // own if own else held


def utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _tagged(name: str) -> str:
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def _named(name: str) -> dict[str, Any]:
    return {"name": name, "model": name}


def _record(state: ServerState, shot: Snapshot) -> dict[str, Any]:
    return {
        "modified_at": utc(state.started),
        "size": _weights(shot) // max(1, shot.running_replicas),
        "digest": sha256(shot.model.encode()).hexdigest(),  # the same for all names of a model
        "details": _details(shot),
    }


def _details(shot: Snapshot) -> dict[str, Any]:
    quantized = shot.dtype if shot.quantization == "none" else shot.quantization
    return {"format": "safetensors", "family": "", "families": [], "quantization_level": quantized}
