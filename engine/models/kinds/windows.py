"""Which layers have a window, and which have no rotary positions, from config.json. Needs no torch."""

from collections.abc import Callable, Sequence

from engine.models.fields import MOST_LAYERS, MOST_TOKENS, Fields

Windows = Callable[[Fields, int], tuple[int | None, ...]]
Unrotated = Callable[[Fields, int], tuple[int, ...]]
_FULL, _CHUNKED = "full_attention", "chunked_attention"


def no_windows(fields: Fields, layers: int) -> tuple[int | None, ...]:
    return (None,) * layers


def one_window(fields: Fields, layers: int) -> tuple[int | None, ...]:
    """The same window in all layers, unless config.json has a null for it."""
    windowed = fields.get("sliding_window") or not fields.given("sliding_window")
    return (_window(fields) if windowed else None,) * layers


def given_window(fields: Fields, layers: int) -> tuple[int | None, ...]:
    """The same window in all layers, if config.json has one; `layer_types` may name some."""
    if fields.get("sliding_window") is None:
        return (None,) * layers
    return _by_type(fields, layers, range(layers))


def window_of_mistral(fields: Fields, layers: int) -> tuple[int | None, ...]:
    """Ministral 3 has a window only if config.json has one."""
    newer = fields.get("model_type") == "ministral3"
    return given_window(fields, layers) if newer else one_window(fields, layers)


def windows_by_layer(fields: Fields, layers: int) -> tuple[int | None, ...]:
    """Mixed full and sliding layers: listed by name, or sliding from one layer on."""

    def sliding() -> range:
        return range(fields.whole("max_window_layers", 28, low=0, high=MOST_TOKENS), layers)

    return _mixed(fields, layers, sliding)


def one_window_if_used(fields: Fields, layers: int) -> tuple[int | None, ...]:
    return one_window(fields, layers) if fields.flag("use_sliding_window", False) else (None,) * layers


def windows_of_first(fields: Fields, layers: int) -> tuple[int | None, ...]:
    """Mixed full and sliding layers: listed by name, or every other one of the first layers."""

    def sliding() -> range:
        return range(0, min(layers, fields.whole("max_window_layers", 28, low=0, high=MOST_TOKENS)), 2)

    return _mixed(fields, layers, sliding)


def windows_of_last(fields: Fields, layers: int) -> tuple[int | None, ...]:
    """A window from one layer on, unless config.json has a null for it; `layer_types` may name the layers."""
    if fields.given("sliding_window") and fields.get("sliding_window") is None:
        return (None,) * layers
    return _by_type(
        fields, layers, range(fields.whole("max_window_layers", 62, low=0, high=MOST_TOKENS), layers)
    )


def windows_where_unrotated(fields: Fields, layers: int) -> tuple[int | None, ...]:
    return _mixed(fields, layers, lambda: unrotated(fields, layers))


def full_every(period: int, key: str = "", window: int = 4096) -> Windows:
    """Sliding layers, but each `period`-th, counted from one, is full. `key`: a field with the period."""

    def windows(fields: Fields, layers: int) -> tuple[int | None, ...]:
        if fields.given("sliding_window") and fields.get("sliding_window") is None:
            raise fields.bad("sliding_window", "must be a number of tokens")
        every = fields.whole(key, period, high=MOST_LAYERS) if key else period
        return _by_type(fields, layers, [i for i in range(layers) if (i + 1) % every], window)

    return windows


def _mixed(fields: Fields, layers: int, sliding: Callable[[], Sequence[int]]) -> tuple[int | None, ...]:
    """Use the layer types in config.json, or `sliding` if it has none."""
    if not fields.flag("use_sliding_window", False):
        return (None,) * layers
    return _by_type(fields, layers, sliding() if fields.get("layer_types") is None else ())


def _by_type(
    fields: Fields, layers: int, sliding: Sequence[int], default: int = 4096
) -> tuple[int | None, ...]:
    window = _window(fields, default)
    if fields.get("layer_types") is None:
        return tuple(window if i in sliding else None for i in range(layers))
    kinds = fields.list("layer_types")
    if len(kinds) != layers:
        raise fields.bad("layer_types", f"must list {layers} layers, as in num_hidden_layers")
    if any(kind not in ("full_attention", "sliding_attention") for kind in kinds):
        raise fields.unsupported("layer_types", "only full_attention and sliding_attention are supported")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _window(fields: Fields, default: int = 4096) -> int:
    return fields.whole("sliding_window", default, high=MOST_TOKENS)


def unrotated(fields: Fields, layers: int) -> tuple[int, ...]:
    """Return the layers without rotary positions."""
    interval = fields.whole("no_rope_layer_interval", 4, high=MOST_LAYERS)
    rotated = fields.list("no_rope_layers", []) or [int((i + 1) % interval != 0) for i in range(layers)]
    if len(rotated) < layers or any(mark not in (0, 1) for mark in rotated):
        raise fields.bad("no_rope_layers", f"must mark each of the {layers} layers with 1 (rotary) or 0")
    return tuple(i for i in range(layers) if not rotated[i])


def chunks_by_layer(fields: Fields, layers: int, full: Sequence[int]) -> tuple[int | None, ...]:
    """The chunk of each layer: listed by name, or in all but the `full` ones. A null means none has any."""
    if fields.given("attention_chunk_size") and fields.get("attention_chunk_size") is None:
        return (None,) * layers
    chunk = fields.whole("attention_chunk_size", 8192, high=MOST_TOKENS)
    usual = [_FULL if i in full else _CHUNKED for i in range(layers)]
    kinds = fields.list("layer_types", usual)
    if len(kinds) != layers:
        raise fields.bad("layer_types", f"must list {layers} layers, as in num_hidden_layers")
    if any(kind not in (_FULL, _CHUNKED) for kind in kinds):
        raise fields.unsupported("layer_types", f"only {_FULL} and {_CHUNKED} are supported")
    chunk_if_any = chunk if chunk < fields.whole("max_position_embeddings", high=MOST_TOKENS) else None
    return tuple(chunk_if_any if kind == _CHUNKED else None for kind in kinds)


def all_rotated(fields: Fields, layers: int) -> tuple[int, ...]:
    return ()


def none_rotated(fields: Fields, layers: int) -> tuple[int, ...]:
    return tuple(range(layers))


def rotated_if_named(fields: Fields, layers: int) -> tuple[int, ...]:
    """All layers have rotary positions if config.json says so, or none has."""
    if (kind := fields.get("position_embedding_type")) in ("rope", "nope", None):
        return () if kind == "rope" else none_rotated(fields, layers)
    raise fields.unsupported("position_embedding_type", "only rope, nope and null are supported")


def full_unrotated(windows: Windows) -> Unrotated:
    """Layers without a window have no rotary positions."""
    return lambda fields, layers: tuple(
        i for i, window in enumerate(windows(fields, layers)) if window is None
    )
