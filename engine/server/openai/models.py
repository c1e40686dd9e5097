"""GET /v1/models."""

from typing import Any

from fastapi import APIRouter, Request

from engine.server.http.connection import state_of
from engine.server.openai.responses import check_model
from engine.server.state import ServerState

router = APIRouter()


@router.get("/v1/models")
async def models(request: Request) -> dict[str, Any]:
    """List the one model that is served."""
    return {"object": "list", "data": [await _model(state_of(request))]}


@router.get("/v1/models/{name:path}")
async def model(request: Request, name: str) -> dict[str, Any]:
    """Describe the model of that name."""
    state = state_of(request)
    check_model(state, name)
    return await _model(state)


async def _model(state: ServerState) -> dict[str, Any]:
    return {
        "id": state.config.name,
        "object": "model",
        "created": int(state.started),
        "owned_by": "minichat",
        "max_model_len": (await state.engine.snapshot()).max_context,
    }
