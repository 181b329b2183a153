"""The proof of numbers: every gradient, weight and optimizer state of a pipelined step against the plain loop's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from zbopt.replay.baseline import Step
from zbopt.replay.networks import DTYPES
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


MANY = 64
"""Gradients of so many microbatches add up within ``limits``; of more, within proportionally more."""


def limits(dtype: str, terms: int = 1) -> tuple[float, float]:
    """What the order of addition may change: (gradients from the same weights, weights after several steps).

    In float64 1e-15 and 1e-9, in other types the same number of units in the last place, but at most 0.1. AdamW divides
    by the size of the gradient itself: where that is tiny, it makes of the last bit of a sum a million times as much.

    Args:
        dtype: Of weights and gradients.
        terms: Microbatches whose gradients add up.
    """
    eps = torch.finfo(DTYPES[dtype]).eps
    scale = eps / torch.finfo(torch.float64).eps * max(1.0, terms / MANY)
    return min(1e-15 * scale, 0.1), min(1e-9 * scale, 0.1)


def deviation(found: Tensor, expected: Tensor) -> float:
    """Largest deviation over the largest magnitude of ``expected``; infinite where one is not finite and unequal."""
    if torch.equal(found, expected):
        return 0.0
    gap = (found.double() - expected.double()).abs().max()
    size = expected.double().abs().max()
    error = float(gap / size) if size > 0 else float("inf")
    return error if error == error else float("inf")  # NaN is unequal to itself


@dataclass(frozen=True)
class Reference:
    """What a pipeline is compared with, step by step.

    ``steps`` are those of a loop that adds up in the schedule's order: no bit may differ. ``gradients`` are those of a
    plain loop, in microbatch order, at the weights that ``steps`` have then; ``plain`` is the plain loop's own history.
    From both the order of addition may part the pipeline by ``limits``. In microbatch order all three are one.
    """

    steps: Sequence[Step]
    gradients: Sequence[dict[str, Tensor]]
    plain: Sequence[Step]
    terms: int

    @property
    def in_order(self) -> bool:
        """The schedule adds up as a plain loop does."""
        return self.steps is self.plain


class Comparison:
    """Compares this process's share, step by step; give its methods to ``Pipeline``."""

    def __init__(self, reference: Reference) -> None:
        self.reference = reference
        self.pipeline: Pipeline | None = None
        self.differences: list[Difference] = []
        self.worst = {"gradient": 0.0, "weight": 0.0, "optimizer": 0.0}
        self.decisions: list[str] = []
        self.parameters_seen = 0

    def _check(
        self, step: int, what: str, parameter: str, found: Tensor | None, expected: tuple[Tensor, Tensor]
    ) -> None:
        """``expected``: what no bit may differ from, and what the order of addition may part it from."""
        kind = what.split()[0]
        if found is None:
            self.differences.append(Difference(step, what, parameter, float("inf"), 0.0))
            return
        exact, plain = (deviation(found.detach(), tensor) for tensor in expected)
        self.worst[kind] = max(self.worst[kind], plain)
        if exact:
            self.differences.append(Difference(step, what, parameter, exact, 0.0))
            return
        of_gradient, of_weight = limits(str(found.dtype).removeprefix("torch."), self.reference.terms)
        limit = of_gradient if kind == "gradient" else of_weight
        if plain > limit:
            self.differences.append(Difference(step, what, parameter, plain, limit))

    def after_gradients(self, step: int) -> None:
        """Gradients are ready: reduced, unscaled, not clipped. After an overflow they are no numbers to compare."""
        if self.pipeline is None or self.reference.steps[step].decision.act == "skip":
            return
        exact, plain = self.reference.steps[step].gradients, self.reference.gradients[step]
        for name, parameter in self.pipeline.named_parameters():
            self.parameters_seen += 1
            self._check(step, "gradient", name, parameter.grad, (exact[name], plain[name]))

    def after_update(self, step: int, decision: Decision) -> None:
        """Weights and optimizer state are final."""
        if self.pipeline is None:
            return
        exact, plain = self.reference.steps[step], self.reference.plain[step]
        self.decisions.append(decision.act)
        if decision.act != exact.decision.act:
            self.differences.append(Difference(step, "decision", decision.act, float("inf"), 0.0))
        for part in self.pipeline.parts.values():
            known = part.optimizer.state
            for name, parameter in self.pipeline.named_parameters():
                if parameter in known:
                    for key, value in known[parameter].items():
                        if (both := exact.optimizer[name].get(key)) is not None:
                            expected = (both, plain.optimizer[name][key])
                            self._check(step, f"optimizer {key}", name, torch.as_tensor(value), expected)
        for name, parameter in self.pipeline.named_parameters():
            self._check(step, "weight", name, parameter, (exact.weights[name], plain.weights[name]))

    def summary(self) -> dict[str, object]:
        """This process's part of the report."""
        return {
            "differences": [asdict(d) for d in sorted(self.differences, key=Difference.key)[:3]],
            "worst": self.worst,
            "decisions": self.decisions,
            "parameters": self.parameters_seen,
        }


def merge(summaries: Sequence[dict[str, object]]) -> dict[str, object]:
    """One report from all processes': the first difference, and the worst errors against the plain loop."""
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
