"""GET /v1/models."""

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request

from engine.server.http.connection import state_of
from engine.server.state import ServerState

router = APIRouter()


@router.get("/v1/models")
async def models(request: Request) -> dict[str, Any]:
    """List the model that is served, once for each of its names, and its LoRA adapters."""
    state = state_of(request)
    return {"object": "list", "data": await _models(state, await state.served_names())}


@router.get("/v1/models/{name:path}")
async def model(request: Request, name: str) -> dict[str, Any]:
    """Describe the model of that name."""
    state = state_of(request)
    [found] = await _models(state, [await state.served_name(name)])
    return found


async def _models(state: ServerState, names: Sequence[str]) -> list[dict[str, Any]]:
    longest = (await state.engine.snapshot()).max_context
    created = int(state.started)
    same = {"object": "model", "created": created, "owned_by": "minichat", "max_model_len": longest}
    adapted = {"parent": state.config.name}  # as vLLM names the model of an adapter
    return [{"id": name, **same, **(adapted if state.adapter_of(name) else {})} for name in names]
