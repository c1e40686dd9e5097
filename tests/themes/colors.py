"""Measures of colors: contrast as in WCAG 2, and the colors seen with color vision deficiencies."""

from math import dist

from textual.color import Color

# Machado, Oliveira and Fernandes (2009), full severity, for linear RGB.
VISIONS = {
    "usual": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "protan": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deutan": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritan": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
Three = tuple[float, float, float]


def contrast(text: str, ground: str) -> float:
    """From 1, identical, to 21, black on white."""
    behind = Color.parse(ground)
    lighter, darker = sorted((_luminance(behind + Color.parse(text)), _luminance(behind)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def difference(one: str, other: str, vision: str) -> float:
    """The distance of two colors in CIE Lab; below about 2 they cannot be told apart."""
    return dist(_lab(_seen(one, vision)), _lab(_seen(other, vision)))


def _linear(color: Color) -> Three:
    r, g, b = (
        share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4
        for share in (part / 255 for part in color.rgb)
    )
    return r, g, b


def _luminance(color: Color) -> float:
    r, g, b = _linear(color)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def _seen(color: str, vision: str) -> Three:
    light = _linear(Color.parse(color))
    r, g, b = (
        min(1.0, max(0.0, sum(a * b for a, b in zip(row, light, strict=True)))) for row in VISIONS[vision]
    )
    return r, g, b


def _lab(light: Three) -> Three:
    r, g, b = light
    x, y, z = (
        share ** (1 / 3) if share > 216 / 24389 else (24389 / 27 * share + 16) / 116
        for share in (
            (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505,
            0.2126 * r + 0.7152 * g + 0.0722 * b,
            (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089,
        )
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)
