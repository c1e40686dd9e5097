"""The backend an engine selects, and the error if the requested one cannot be used."""

import logging
from dataclasses import replace
from importlib.metadata import EntryPoint
from typing import ClassVar

import pytest
import torch

from engine.api.cache_spec import LayerSpec
from engine.api.errors import BadInput
from engine.attention import registry
from engine.attention.registry import block_size_for, choose, names, register, why_not
from engine.attention.torch_backend import TorchAttention

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
SPECS = [LayerSpec(heads=2, kv_heads=1, key_dim=8, value_dim=8, scale=1.0)]


class Narrow(TorchAttention):
    """A third-party backend."""

    name: ClassVar[str] = "narrow"

    @staticmethod
    def why_not(device: torch.device, spec: LayerSpec, dtype: torch.dtype) -> str | None:
        return None if spec.key_dim <= 8 else f"it serves heads of 8 at most, not {spec.key_dim}"


class IncompleteBackend:
    """A backend that lacks `prepare` and `attend`."""

    name: ClassVar[str] = "half"
    why_not = Narrow.why_not


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in registry.BUILT_IN:  # each registers itself once, on first import
        why_not(name, CPU, SPECS, torch.float32)
    monkeypatch.setattr(registry, "BACKENDS", dict(registry.BACKENDS))


def install_entry_points(monkeypatch: pytest.MonkeyPatch, **points: str) -> None:
    """Pretend that an installed package has these entry points."""
    found = [EntryPoint(name, value, registry.GROUP) for name, value in points.items()]

    def entry_points(*, group: str, name: str | None = None) -> list[EntryPoint]:
        assert group == "minichat.attention"
        return [point for point in found if name in (None, point.name)]

    monkeypatch.setattr(registry, "entry_points", entry_points)


def test_a_backend_without_chunks_or_slopes_is_refused() -> None:
    """One of another package that does not know these fields would ignore them."""
    register(type("Old", (TorchAttention,), {"name": "old", "chunks": False, "slopes": False}))
    chunked, sloped = replace(SPECS[0], chunk=8), replace(SPECS[0], slopes=(0.5, 0.25))
    assert "within chunks of a text" in str(why_not("old", CPU, [chunked], torch.float32))
    assert "fall with the distance" in str(why_not("old", CPU, [*SPECS, sloped], torch.float32))
    assert why_not("old", CPU, SPECS, torch.float32) is None


def test_auto_on_a_cpu_is_torch_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert isinstance(choose("auto", CPU, SPECS, torch.float32), TorchAttention)
    assert not caplog.records


def test_a_fallback_is_one_warning(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    register(Narrow)
    monkeypatch.setitem(registry.PREFERRED, "cuda", ("narrow", "torch"))
    wide = LayerSpec(heads=2, kv_heads=1, key_dim=16, value_dim=16, scale=1.0)
    with caplog.at_level(logging.WARNING, "minichat.engine"):
        assert isinstance(choose("auto", CUDA, [*SPECS, wide], torch.float32), TorchAttention)
    assert [record.getMessage() for record in caplog.records] == [
        "attention falls back to torch: narrow: it serves heads of 8 at most, not 16"
    ]


def test_a_named_backend_never_falls_back() -> None:
    register(Narrow)
    assert isinstance(choose("narrow", CPU, SPECS, torch.float32), Narrow)
    wide = [LayerSpec(heads=2, kv_heads=1, key_dim=16, value_dim=16, scale=1.0)]
    with pytest.raises(
        BadInput, match=r"'narrow': it serves heads of 8 at most, not 16; available here: .*torch"
    ):
        choose("narrow", CPU, wide, torch.float32)


def test_the_error_for_an_incomplete_backend_names_the_missing_methods(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install_entry_points(monkeypatch, half=f"{__name__}:IncompleteBackend")
    with pytest.raises(BadInput, match="attention 'half': its class lacks prepare, attend; available here: "):
        choose("half", CPU, SPECS, torch.float32)


def test_a_backend_may_require_a_block_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Narrow, "block_sizes", (256,), raising=False)
    register(Narrow)
    assert isinstance(choose("narrow", CPU, SPECS, torch.float32, block_size=256), Narrow)
    with pytest.raises(BadInput, match=r"'narrow': it supports blocks of 256 tokens \(block_size\), not 16"):
        choose("narrow", CPU, SPECS, torch.float32, block_size=16)
    monkeypatch.setitem(registry.PREFERRED, "cpu", ("narrow", "torch"))
    assert choose("auto", CPU, SPECS, torch.float32, block_size=16).name == "torch"
    assert [block_size_for(name, 16) for name in ("narrow", "torch", "auto", "flush")] == [256, 16, 16, 16]


def test_the_error_for_an_unknown_name_lists_the_available_ones() -> None:
    with pytest.raises(BadInput, match=r"'flush': no backend has that name; available here: .*torch"):
        choose("flush", CPU, SPECS, torch.float32)


def test_packages_add_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    install_entry_points(monkeypatch, narrow=f"{__name__}:Narrow", broken="no_such_package_here:Backend")
    assert {"narrow", "broken", "torch"} <= set(names())
    assert type(choose("narrow", CPU, SPECS, torch.float32)).__name__ == "Narrow"
    assert "cannot be imported (No module named 'no_such_package_here')" in str(
        why_not("broken", CPU, SPECS, torch.float32)
    )
