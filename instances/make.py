"""Write every instance file of the sets in this folder: ``python instances/make.py``.

It needs zbopt. The set zb-iclr2024 comes from the published figures in ``instances/zb-iclr2024/settings.csv``; the
other sets come from rules in this script. The files can be written to another folder, given as the only argument, with
one folder for each set.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path

from zbopt.problem.instance import Instance, write_instance

HERE = Path(__file__).parent
_UNIT_STAGES = (4, 8, 16)
_UNIT_MICROBATCHES = (1, 2, 4, 8)
"""Microbatches in the unit set, as multiples of the stages."""
_UNIT_CAPS = (Fraction(1, 4), Fraction(1, 2), Fraction(3, 4), Fraction(1), Fraction(3, 2), Fraction(2))
"""Memory caps in the unit set, as multiples of the stages."""
_CAPS_BY_PLACEMENT = {"linear": (1, 2), "v": (1,)}
"""Memory caps of the published settings, as multiples of the stages: ZB-1p and ZB-2p, and ZB-V."""


def share_held_until_w(hidden: int, heads: int, seq: int) -> Fraction:
    """Return the share M_W / M_B of a transformer layer's activation that W still needs: 32h / (34h + 5as).

    h is the hidden size, a the number of attention heads, s the sequence length. Zero Bubble Pipeline Parallelism,
    table 1 (arXiv 2401.10241): M_B = sb(34h + 5as) and M_W = 32sbh bytes.
    """
    return Fraction(32 * hidden, 34 * hidden + 5 * heads * seq)


def zb_iclr2024() -> Iterator[Instance]:
    """Yield the settings of tables 4, 5 and 9 at caps p and 2p, and of table 8 with V placement at cap p.

    The tables are those of Zero Bubble Pipeline Parallelism (arXiv 2401.10241). A tick is a microsecond.
    """
    with (HERE / "zb-iclr2024" / "settings.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            for multiple in _CAPS_BY_PLACEMENT[row["placement"]]:
                yield _setting(row, multiple * int(row["stages"]))


def _setting(row: Mapping[str, str], cap: int) -> Instance:
    """Build the instance of one line of settings.csv under a memory cap."""
    stages, microbatches = int(row["stages"]), int(row["microbatches"])
    instance = Instance.uniform(
        name=f"{row['placement']}-{row['model'].lower()}-p{stages}-m{microbatches}-cap{cap}",
        stages=stages,
        microbatches=microbatches,
        placement=row["placement"],
        virtual=2 if row["placement"] == "v" else 1,
        forward_ticks=int(row["forward_us"]),
        backward_ticks=int(row["backward_us"]),
        weight_ticks=int(row["weight_us"]),
        comm_ticks=int(row["comm_us"]),
        memory_cap=cap,
        weight_share=share_held_until_w(int(row["hidden"]), int(row["heads"]), int(row["seq"])),
    )
    return instance.model_copy(update={"tick": "1us"})


def unit() -> Iterator[Instance]:
    """Yield instances with F = B = W = 1, no communication time, and activations held until W."""
    for stages in _UNIT_STAGES:
        for microbatches in (multiple * stages for multiple in _UNIT_MICROBATCHES):
            for cap in (int(multiple * stages) for multiple in _UNIT_CAPS):
                yield Instance.uniform(
                    name=f"p{stages}-m{microbatches}-cap{cap}",
                    stages=stages,
                    microbatches=microbatches,
                    memory_cap=cap,
                )


def audit() -> Iterator[Instance]:
    """Yield two stages with two microbatches, unit times and no memory cap: small enough to check by hand."""
    yield Instance.uniform(name="two-stage", stages=2, microbatches=2)


_EVERYTHING: Mapping[str, object] = {
    "comm_ticks": 1,
    "communication": "link",
    "transfer_occupies": "port",
    "boundary": "1/2",
    "bandwidth": "1/2",
    "loss_ticks": 1,
    "reduction_ticks": 2,
    "reduction_occupies": "port",
    "barrier": "global",
    "barrier_ticks": 1,
    "optimizer_ticks": 2,
    "activation": 4,
    "weight_share": "1/2",
    "gradient_state": 1,
    "receive_buffers": 2,
    "parameters": 3,
    "gradients": 3,
    "optimizer_state": 6,
    "workspace": 1,
    "reserve": 1,
    "recompute": "choose",
    "checkpoint": 1,
    "offload": "choose",
    "offload_ticks": 3,
    "offload_rest": 1,
}
"""Values of the set everything for the fields that are equal in all its instances."""
_SMALL_CAPS = (
    (48, 44, 40, 36),
    (44, 41, 38, 35),
    (38, 36, 34, 32),
    (36, 34, 33, 31),
    (34, 32, 31, 30),
    (32, 30, 29, 28),
)
"""Memory caps by stage of the instances with 4 stages, from loose to tight."""
_LARGE_CAPS = (64, 60, 56, 52, 48, 44, 40, 36)
_LARGE_SHARES = (Fraction(5, 4), Fraction(1), Fraction(17, 20), Fraction(3, 4))
"""Memory caps by stage of the instances with 8 stages, and the shares of them that the instances have."""


def everything() -> Iterator[Instance]:
    """Yield instances with every field that takes time or memory, under ever tighter caps.

    They have 4 stages with 8 microbatches, or 8 stages with 24.
    """
    for caps in _SMALL_CAPS:
        yield _with_everything(8, caps)
    for share in _LARGE_SHARES:
        yield _with_everything(24, tuple(round(share * cap) for cap in _LARGE_CAPS))


def _with_everything(microbatches: int, caps: tuple[int, ...]) -> Instance:
    """Build an instance with as many stages as ``caps``.

    Two stages share each link to the host. The first stage is a little faster than the others, the last one slower.
    """
    stages, middle = len(caps), len(caps) - 2
    times = {
        "forward_ticks": [4, *[5] * middle, 6],
        "backward_ticks": [4, *[5] * middle, 6],
        "weight_ticks": [3, *[4] * middle, 4],
        "fused_backward_ticks": [7, *[9] * middle, 10],
    }
    size = {
        "name": f"p{stages}-m{microbatches}-cap{caps[0]}-to-{caps[-1]}",
        "stages": stages,
        "microbatches": microbatches,
        "input_ready_ticks": range(microbatches),
        "host_link": [stage // 2 for stage in range(stages)],
        "memory_cap": caps,
    }
    return Instance.model_validate({**_EVERYTHING, **times, **size})


SETS = {"zb-iclr2024": zb_iclr2024, "unit": unit, "audit": audit, "everything": everything}


def write_all(folder: Path) -> None:
    """Write every set into a folder of its own in ``folder``."""
    for name, instances in SETS.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for instance in instances():
            write_instance(instance, folder / name / f"{instance.name}.json")


if __name__ == "__main__":
    write_all(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
