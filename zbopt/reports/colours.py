"""Colours, names and signs of kinds of op, shared by all pictures.

On compute F is blue, B teal, W green, BW lime, O grey and R yellow, as in the zero-bubble papers. Kinds differ in
lightness as well as in hue, for eyes that confuse hues and for grey prints.
"""

from __future__ import annotations

from zbopt.problem.instance import Kind

COLOURS = {
    Kind.F: "#1f4e9c",
    Kind.B: "#4fd1c5",
    Kind.W: "#4c9a2a",
    Kind.BW: "#c6e377",
    Kind.R: "#f4cc00",
    Kind.O: "#6f6f6f",
    Kind.SEND_F: "#9ba0d9",
    Kind.SEND_B: "#b3ffca",
    Kind.OUT: "#7723e9",
    Kind.IN: "#c06bff",
    Kind.G: "#884031",
}
"""On white."""
COLOURS_ON_DARK = {
    Kind.F: "#457ce2",
    Kind.B: "#6fe0d4",
    Kind.W: "#57a832",
    Kind.BW: "#d3ec8c",
    Kind.R: "#f4cc00",
    Kind.O: "#7d7d7d",
    Kind.SEND_F: "#a8baff",
    Kind.SEND_B: "#b4ffce",
    Kind.OUT: "#7d55ff",
    Kind.IN: "#bd7cba",
    Kind.G: "#eb9d82",
}
"""On near black: the same hues, each lighter."""
WITH_WHITE_TEXT = (Kind.F, Kind.O, Kind.OUT, Kind.G)
"""Kinds on whose colour white text reads best; on white only, for the dark ones all take black text."""

NAMES = {
    Kind.F: "forward",
    Kind.B: "gradient of the input",
    Kind.W: "gradient of the weights",
    Kind.BW: "both gradients in one",
    Kind.R: "recomputed forward",
    Kind.O: "optimizer",
    Kind.SEND_F: "activation on its way",
    Kind.SEND_B: "gradient on its way",
    Kind.OUT: "activation to the host",
    Kind.IN: "activation from the host",
    Kind.G: "reduction of gradients",
}
SIGNS = {kind: kind.value for kind in COLOURS} | {Kind.SEND_F: "f", Kind.SEND_B: "b", Kind.OUT: ">", Kind.IN: "<"}
"""Short forms, for charts of letters."""


def text_colour(kind: Kind) -> str:
    """Colour of text on ``COLOURS[kind]``."""
    return "#ffffff" if kind in WITH_WHITE_TEXT else "#000000"
