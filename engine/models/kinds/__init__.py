"""The kinds of parts a family's table lists: what each reads from config.json, and its class.

Needs no torch until a class is requested.
"""

from engine.models.kinds.attention import Chunked, Grouped, Lengthened
from engine.models.kinds.base import PartKind
from engine.models.kinds.ends import Ends, EndsBySize
from engine.models.kinds.experts import (
    Routed,
    RoutedBiased,
    RoutedByGroup,
    RoutedClamped,
    RoutedIfAny,
    RoutedInputs,
    RoutedUngated,
)
from engine.models.kinds.feed_forward import Dense, DenseMultiplied, DenseRounded, Ungated
from engine.models.kinds.latent import Latent
from engine.models.kinds.linear import DeltaNet, ShortConvolutions, StateKind
from engine.models.kinds.mamba import BesideAttention, Mamba, OnlyMamba
from engine.models.kinds.sloped import Sloped, SlopedMpt

__all__ = [
    "BesideAttention",
    "Chunked",
    "DeltaNet",
    "Dense",
    "DenseMultiplied",
    "DenseRounded",
    "Ends",
    "EndsBySize",
    "Grouped",
    "Latent",
    "Lengthened",
    "Mamba",
    "OnlyMamba",
    "PartKind",
    "Routed",
    "RoutedBiased",
    "RoutedByGroup",
    "RoutedClamped",
    "RoutedIfAny",
    "RoutedInputs",
    "RoutedUngated",
    "ShortConvolutions",
    "Sloped",
    "SlopedMpt",
    "StateKind",
    "Ungated",
]
