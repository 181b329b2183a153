"""The colours of all pictures, which show a stage's compute: F blue, B teal, W green, BW lime, O grey, R yellow.

Zero-bubble papers have them so. They differ in lightness as well as in hue, for eyes that confuse hues and for grey
prints.
"""

from __future__ import annotations

from zbopt.instance import Kind

COLOURS = {
    Kind.F: "#1f4e9c",
    Kind.B: "#4fd1c5",
    Kind.W: "#4c9a2a",
    Kind.BW: "#c6e377",
    Kind.R: "#f4cc00",
    Kind.O: "#6f6f6f",
}
"""On white."""
COLOURS_ON_DARK = {
    Kind.F: "#457ce2",
    Kind.B: "#6fe0d4",
    Kind.W: "#57a832",
    Kind.BW: "#d3ec8c",
    Kind.R: "#f4cc00",
    Kind.O: "#7d7d7d",
}
"""On near black: the same hues, each lighter."""
WITH_WHITE_TEXT = (Kind.F, Kind.O)
"""Kinds on whose colour white text reads best; on white only, for the dark ones all take black text."""

NAMES = {
    Kind.F: "forward",
    Kind.B: "gradient of the input",
    Kind.W: "gradient of the weights",
    Kind.BW: "both gradients in one",
    Kind.R: "recomputed forward",
    Kind.O: "optimizer",
}


def text_colour(kind: Kind) -> str:
    """Colour of text on ``COLOURS[kind]``."""
    return "#ffffff" if kind in WITH_WHITE_TEXT else "#000000"
