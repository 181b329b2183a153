"""Memory fields of an instance as labelled text, cap and activation left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from zbopt.graph.memory import static_memory
from zbopt.problem.instance import Drop, Instance
from zbopt.problem.numbers import Amounts
from zbopt.reports.words import runs_text

Modes = tuple[Drop, ...] | None


def memory_rows(instance: Instance) -> Iterator[tuple[str, str]]:
    """Yield label and text of each memory field that is given."""
    unit = given_unit(instance)
    static = [static_memory(instance, stage) for stage in range(instance.stages)]
    if any(static):
        yield (
            "held throughout",
            f"{runs_text(static)}{unit} by stage: static state, workspace, reserve and receive buffers",
        )
    if instance.gradient_state is not None:
        yield "added by B", f"{runs_text(instance.gradient_state)}{unit}, until the end of W"
    if instance.boundary is not None:
        yield (
            "boundary",
            f"{runs_text(instance.boundary)}{unit}, held as output and as input until its gradient is taken",
        )
    if _drops(instance.recompute):
        yield "recompute", _modes(instance.recompute, {"R": instance.recompute_ticks}, instance.checkpoint, unit)
    if _drops(instance.offload):
        times = {"OUT": instance.offload_ticks, "IN": instance.reload_ticks}
        yield "offload", _modes(instance.offload, times, instance.offload_rest, unit)


def given_unit(instance: Instance) -> str:
    """Return the unit of memory as it stands after a number; nothing where it is an activation."""
    return "" if instance.memory_unit == "activation" else f" {instance.memory_unit}"


def _drops(modes: Modes) -> bool:
    return modes is not None and set(modes) != {Drop.NEVER}


def _modes(modes: Modes, times: Mapping[str, tuple[int, ...] | None], left: Amounts | None, unit: str) -> str:
    """Return the text of a way to drop activations, such as ``choose; R 2; 1/4 stays``."""
    parts = [runs_text(mode.value for mode in modes or ())]
    parts += [f"{name} {runs_text(ticks)}" for name, ticks in times.items() if ticks is not None]
    stays = f"{runs_text(left)}{unit}" if left is not None and any(left) else "nothing"
    return "; ".join([*parts, f"{stays} stays"])
