"""Megatron-LM's ``--pipeline-model-parallel-layout``: which layers each virtual stage holds.

``E`` is the embedding, ``t`` a decoder layer, ``m`` a layer of multi-token prediction, ``L`` the loss; ``|`` ends a
virtual stage, ``x*3`` and ``(xy|)*3`` repeat, commas mean nothing. Virtual stages come in forward order and go round
the pipeline's stages (Megatron-LM, pipeline_parallel_layer_layout.py, commit d98e8a64).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from zbopt.problem.instance import MAX_STAGES, placement_of

SCHEMA = "zbopt.layers/1"
_KINDS = {"E": "embedding", "t": "decoder", "m": "mtp", "L": "loss"}
_ITEM = re.compile(r"(?:\(([^()]*)\)|([EtmL|]))(?:\*([0-9]{1,9}))?")
_MOST_LETTERS = 1_000_000
"""Not measured; chosen far above any model, so that a wrong repeat count cannot fill the memory."""


@dataclass(frozen=True, slots=True)
class Layers:
    """Hold the layers of each virtual stage, as letters such as ``Ett``, and the stage of each virtual stage."""

    by_virtual_stage: tuple[str, ...]
    stage_of: tuple[int, ...]

    @property
    def decoder_layers(self) -> tuple[int, ...]:
        """Return the number of decoder layers, by virtual stage."""
        return tuple(letters.count("t") for letters in self.by_virtual_stage)


def read_layout(text: str, stages: int) -> Layers:
    """Return the layers that a layout string gives each virtual stage.

    Args:
        text: The string.
        stages: Pipeline stages (pp); they divide the number of virtual stages.

    Raises:
        ValueError: One line that names the character, or the rule that the layers break.
    """
    found = _unrolled(re.sub(r"[,\s]", "", text)).split("|")
    if not 1 <= stages <= MAX_STAGES or len(found) % stages:
        raise ValueError(
            f"the layout has {len(found)} virtual stages, {stages} stages do not divide them; "
            "give --stages as Megatron's pipeline-model-parallel-size"
        )
    return checked(found, placement_of("interleaved", stages, len(found) // stages))


def _unrolled(text: str) -> str:
    """Return the string with its repetitions written out."""
    parts, at = [], 0
    while at < len(text):
        match = _ITEM.match(text, at)
        if match is None or (match[1] is not None and match[3] is None):
            raise ValueError(
                f"character {at} of the layout, {text[at : at + 12]!r}: give E, t, m, L, |, a repetition such as t*2, "
                "or one of a group such as (t|)*3; groups do not nest"
            )
        inner = match[2] if match[1] is None else _unrolled(match[1])
        times = int(match[3] or 1)
        if times * max(1, len(inner)) > _MOST_LETTERS:
            raise ValueError(f"character {at} of the layout repeats {times} times; give at most {_MOST_LETTERS} layers")
        parts.append(inner * times)
        at = match.end()
    return "".join(parts)


def checked(by_virtual_stage: Sequence[str], stage_of: tuple[int, ...]) -> Layers:
    """Return the layers, after checking that Megatron builds them in this order.

    Raises:
        ValueError: There is not one E at the very beginning, one L at the very end, and every m after every t.
    """
    flat = "".join(by_virtual_stage)
    if flat.count("E") != 1 or not by_virtual_stage[0].startswith("E"):
        raise ValueError(f"the layout has {flat.count('E')} embeddings; give one E, first on virtual stage 0")
    if flat.count("L") != 1 or not by_virtual_stage[-1].endswith("L"):
        raise ValueError(f"the layout has {flat.count('L')} losses; give one L, last on the last virtual stage")
    if "t" in flat[flat.find("m") :] and "m" in flat:
        raise ValueError("the layout has a decoder layer t behind an m; give every m after every t")
    return Layers(tuple(by_virtual_stage), stage_of)


def write_layout(layers: Layers) -> str:
    """Return the layout string, with equal neighbours as a repetition.

    Raises:
        ValueError: The virtual stages do not go round the stages in order, as Megatron has it.
    """
    stages = max(layers.stage_of) + 1
    rounds = len(layers.stage_of) // stages
    if layers.stage_of != tuple(range(stages)) * rounds:
        raise ValueError(
            "stage_of: Megatron's layout goes round the stages in order, and these virtual stages do not; "
            "take a linear or interleaved placement"
        )
    *ended, last = layers.by_virtual_stage
    runs = [(_short(letters) + "|", len(list(run))) for letters, run in groupby(ended)]
    return "".join(text if times == 1 else f"({text})*{times}" for text, times in runs) + _short(last)


def _short(letters: str) -> str:
    runs = [(letter, len(list(run))) for letter, run in groupby(letters)]
    return "".join(letter if times == 1 else f"{letter}*{times}" for letter, times in runs)


def spread(decoder_layers: Sequence[int], stage_of: tuple[int, ...]) -> Layers:
    """Return layers from their numbers, the embedding first and the loss last.

    Args:
        decoder_layers: By virtual stage; or one number, for all of them together, where it divides evenly.
        stage_of: Stage of each virtual stage.

    Raises:
        ValueError: One number does not divide evenly, or there are not as many as virtual stages.
    """
    n = len(stage_of)
    if len(decoder_layers) == 1 and n > 1:
        each, rest = divmod(decoder_layers[0], n)
        if rest:
            some = [each + 1] * rest + [each] * (n - rest)
            shown = ",".join(map(str, some)) if n <= 16 else f"{each + 1} for {rest} of them and {each} for the others"
            raise ValueError(
                f"{decoder_layers[0]} layers do not divide over {n} virtual stages; say how, such as --layers {shown}"
            )
        decoder_layers = [each] * n
    if len(decoder_layers) != n:
        raise ValueError(f"{len(decoder_layers)} numbers of layers for {n} virtual stages; give 1 or {n}")
    letters = ["t" * count for count in decoder_layers]
    letters[0] = "E" + letters[0]
    letters[-1] += "L"
    return checked(letters, stage_of)


def layers_document(layers: Layers) -> dict[str, object]:
    """Return the table that ``zbopt import`` writes: counts by kind and the letters in order, by virtual stage."""
    return {
        "schema": SCHEMA,
        "stages": max(layers.stage_of) + 1,
        "virtual_stages": len(layers.stage_of),
        "decoder_layers": sum(layers.decoder_layers),
        "layers": [
            {"virtual_stage": v, "stage": stage, "layout": letters}
            | {kind: letters.count(letter) for letter, kind in _KINDS.items()}
            for v, (letters, stage) in enumerate(zip(layers.by_virtual_stage, layers.stage_of, strict=True))
        ],
    }


def layers_from_document(document: object) -> Layers:
    """Return the layers in a table that ``layers_document`` made.

    Raises:
        ValueError: One line that names the entry.
    """
    if (
        not isinstance(document, dict)
        or document.get("schema") != SCHEMA
        or not isinstance(document.get("layers"), list)
    ):
        raise ValueError(f"not a table of layers; its schema is not {SCHEMA!r}")
    by_virtual_stage, stage_of = [], []
    for v, entry in enumerate(document["layers"]):
        letters = entry.get("layout") if isinstance(entry, dict) else None
        stage = entry.get("stage") if isinstance(entry, dict) else None
        if not isinstance(letters, str) or set(letters) - set(_KINDS) or not isinstance(stage, int):
            raise ValueError(f"layers[{v}] = {json.dumps(entry)[:60]}: give stage, and layout as letters E, t, m, L")
        if not 0 <= stage < MAX_STAGES:
            raise ValueError(f"layers[{v}].stage = {stage}: give 0 to {MAX_STAGES - 1}")
        by_virtual_stage.append(letters)
        stage_of.append(stage)
    if not by_virtual_stage:
        raise ValueError("layers is empty; give one entry a virtual stage")
    return checked(by_virtual_stage, tuple(stage_of))
