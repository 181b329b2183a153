"""The proof of numbers: every gradient, weight and optimizer state of a pipelined step against the plain loop's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from zbopt.replay.baseline import Step
from zbopt.replay.networks import DTYPES, TIED
from zbopt.replay.training import Pipeline
from zbopt.replay.update import Decision

_ORDER = ("gradient", "decision", "weight", "optimizer")


@dataclass(frozen=True, slots=True)
class Difference:
    """A number that is off: ``error`` is the largest deviation over the largest magnitude of the baseline's tensor."""

    step: int
    what: str
    parameter: str
    error: float
    limit: float

    def key(self) -> tuple[int, int, int, str]:
        """Order in which differences arise: by step, gradients before weights, by virtual stage."""
        virtual_stage = int(self.parameter[1:].split(".")[0]) if self.parameter.startswith("v") else -1
        return self.step, _ORDER.index(self.what.split()[0]), virtual_stage, self.parameter

    def __str__(self) -> str:
        return (
            f"step {self.step}: {self.what} of {self.parameter} is off by {self.error:.2g} (relative), "
            f"limit {self.limit:.2g}"
        )


def limits(dtype: str) -> tuple[float, float]:
    """(gradients of the first step, everything later) where the order of addition is not the baseline's.

    In float64 1e-15 and 1e-12, in other types the same number of units in the last place, but at most 0.1.
    """
    eps = torch.finfo(DTYPES[dtype]).eps
    scale = eps / torch.finfo(torch.float64).eps
    return min(1e-15 * scale, 0.1), min(1e-12 * scale, 0.1)


def deviation(found: Tensor, expected: Tensor) -> float:
    """Largest deviation over the largest magnitude of ``expected``; infinite where one is not finite and unequal."""
    if torch.equal(found, expected):
        return 0.0
    gap = (found.double() - expected.double()).abs().max()
    size = expected.double().abs().max()
    error = float(gap / size) if size > 0 else float("inf")
    return error if error == error else float("inf")  # NaN is unequal to itself


class Comparison:
    """Compares this process's share, step by step; give its methods to ``Pipeline``.

    Args:
        history: The baseline's steps.
        in_order: Gradients add up in microbatch order, so that no bit may differ.
    """

    def __init__(self, history: Sequence[Step], *, in_order: bool) -> None:
        self.history, self.in_order = history, in_order
        self.pipeline: Pipeline | None = None
        self.differences: list[Difference] = []
        self.worst = {"gradient": 0.0, "weight": 0.0, "optimizer": 0.0}
        self.decisions: list[str] = []
        self.parameters_seen = 0

    def _limit(self, step: int, parameter: str) -> float:
        if self.pipeline is None:
            raise ValueError("comparison has no pipeline; set it before the first step")
        first, later = limits(self.pipeline.network.dtype)
        tied = self.pipeline.network.is_tied
        touched = tied and (step > 0 or parameter.split(".", 1)[1] in TIED.values())
        if self.in_order and not touched:
            return 0.0
        return first if step == 0 else later

    def _check(self, step: int, what: str, parameter: str, found: Tensor | None, expected: Tensor) -> None:
        error = float("inf") if found is None else deviation(found.detach(), expected)
        limit = self._limit(step, parameter)
        if what != "gradient" and limit:
            limit = limits(self.pipeline.network.dtype)[1] if self.pipeline else limit
        kind = what.split()[0]
        self.worst[kind] = max(self.worst[kind], error)
        if error > limit:
            self.differences.append(Difference(step, what, parameter, error, limit))

    def after_gradients(self, step: int) -> None:
        """Gradients are ready: reduced, unscaled, not clipped. After an overflow they are no numbers to compare."""
        if self.pipeline is None or self.history[step].decision.act == "skip":
            return
        for name, parameter in self.pipeline.named_parameters():
            self.parameters_seen += 1
            self._check(step, "gradient", name, parameter.grad, self.history[step].gradients[name])

    def after_update(self, step: int, decision: Decision) -> None:
        """Weights and optimizer state are final."""
        if self.pipeline is None:
            return
        expected = self.history[step]
        self.decisions.append(decision.act)
        if decision.act != expected.decision.act:
            self.differences.append(Difference(step, "decision", decision.act, float("inf"), 0.0))
        for part in self.pipeline.parts.values():
            known = part.optimizer.state
            for name, parameter in self.pipeline.named_parameters():
                if parameter in known:
                    for key, value in known[parameter].items():
                        want = expected.optimizer[name].get(key)
                        if want is not None:
                            self._check(step, f"optimizer {key}", name, torch.as_tensor(value), want)
        for name, parameter in self.pipeline.named_parameters():
            self._check(step, "weight", name, parameter, expected.weights[name])

    def summary(self) -> dict[str, object]:
        """This process's part of the report."""
        return {
            "differences": [asdict(d) for d in sorted(self.differences, key=Difference.key)[:3]],
            "worst": self.worst,
            "decisions": self.decisions,
            "parameters": self.parameters_seen,
        }


def merge(summaries: Sequence[dict[str, object]]) -> dict[str, object]:
    """One report from all processes': the worst errors, and the first difference."""
    found = [Difference(**d) for s in summaries for d in s["differences"]]  # type: ignore[attr-defined]
    found.sort(key=Difference.key)
    worst = {k: max(s["worst"][k] for s in summaries) for k in ("gradient", "weight", "optimizer")}  # type: ignore[index]
    return {
        "differences": len(found),
        "first_difference": asdict(found[0]) | {"message": str(found[0])} if found else None,
        "worst": worst,
        "bit_equal": {k: error == 0.0 for k, error in worst.items()},
        "decisions": summaries[0]["decisions"],
        "gradients_compared": sum(int(str(s["parameters"])) for s in summaries),
    }
