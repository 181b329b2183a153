"""The proof of numbers: compare each gradient, weight and optimizer state of a pipeline with those of a plain loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from zbopt.replay.networks import DTYPES
from zbopt.replay.optimizer_step import Decision
from zbopt.replay.plain_loop import LoopStep
from zbopt.replay.training import Pipeline

_ORDER = ("gradient", "decision", "weight", "optimizer")


@dataclass(frozen=True, slots=True)
class Difference:
    """Report one tensor that differs; ``error`` is its largest deviation over the largest magnitude expected."""

    step: int
    what: str
    parameter: str
    error: float
    limit: float

    def key(self) -> tuple[int, int, int, str]:
        """Return the sort key by which differences arise: step, gradients before weights, virtual stage."""
        virtual_stage = int(self.parameter[1:].split(".")[0]) if self.parameter.startswith("v") else -1
        return self.step, _ORDER.index(self.what.split()[0]), virtual_stage, self.parameter

    def __str__(self) -> str:
        return (
            f"step {self.step}: {self.what} of {self.parameter} is off by {self.error:.2g} (relative), "
            f"limit {self.limit:.2g}"
        )


TERMS_WITHIN_LIMITS = 64
"""Largest number of added gradients for which ``limits`` needs no scaling; for more, the limits grow in proportion.

Not measured; chosen above the microbatches of the project's own tests.
"""


def limits(dtype: str, terms: int = 1) -> tuple[float, float]:
    """Return the largest relative errors that the order of addition alone may cause.

    In float64 they are 1e-15 and 1e-9; other types get the same number of units in the last place, but at most 0.1.
    The limit for weights is a million times larger because AdamW divides by the size of the gradient itself: where a
    gradient is tiny, the last bit of its sum decides the direction of the step.

    Args:
        dtype: Number type of weights and gradients.
        terms: Number of microbatches whose gradients are added up.

    Returns:
        The limit for gradients computed from the same weights, and for weights after several steps.
    """
    eps = torch.finfo(DTYPES[dtype]).eps
    scale = eps / torch.finfo(torch.float64).eps * max(1.0, terms / TERMS_WITHIN_LIMITS)
    return min(1e-15 * scale, 0.1), min(1e-9 * scale, 0.1)


def deviation(found: Tensor, expected: Tensor) -> float:
    """Return the largest deviation over the largest magnitude expected; infinite where unequal ones are not finite."""
    if torch.equal(found, expected):
        return 0.0
    gap = (found.double() - expected.double()).abs().max()
    size = expected.double().abs().max()
    error = float(gap / size) if size > 0 else float("inf")
    return error if error == error else float("inf")  # NaN is unequal to itself


@dataclass(frozen=True)
class ExpectedHistory:
    """Hold what a pipeline is compared with, step by step.

    Attributes:
        steps: The steps of a loop that adds up in the schedule's order: no bit of the pipeline may differ from them.
        gradients: The gradients in microbatch order by step, at the weights that ``steps`` have at that point. The
            pipeline may differ from them by ``limits``.
        plain: The steps of the plain loop, which adds up in microbatch order. The pipeline may differ by ``limits``.
        terms: How many gradients each sum has.

    Where the schedule adds up in microbatch order, all three histories are the same.
    """

    steps: Sequence[LoopStep]
    gradients: Sequence[dict[str, Tensor]]
    plain: Sequence[LoopStep]
    terms: int

    @property
    def in_order(self) -> bool:
        """Tell whether the schedule adds up gradients in the plain loop's order."""
        return self.steps is self.plain


class NumberCheck:
    """Compare this process's tensors step by step; ``Pipeline`` calls its ``after_`` methods."""

    def __init__(self, expected: ExpectedHistory) -> None:
        self.expected = expected
        self.pipeline: Pipeline | None = None
        self.differences: list[Difference] = []
        self.worst = {"gradient": 0.0, "weight": 0.0, "optimizer": 0.0}
        self.decisions: list[str] = []
        self.parameters_seen = 0

    def _check(
        self, step: int, what: str, parameter: str, found: Tensor | None, expected: tuple[Tensor, Tensor]
    ) -> None:
        """Compare one tensor with two expected ones: the first must be equal, the second within the limits."""
        kind = what.split()[0]
        if found is None:
            self.differences.append(Difference(step, what, parameter, float("inf"), 0.0))
            return
        exact, plain = (deviation(found.detach(), tensor) for tensor in expected)
        self.worst[kind] = max(self.worst[kind], plain)
        if exact:
            self.differences.append(Difference(step, what, parameter, exact, 0.0))
            return
        of_gradient, of_weight = limits(str(found.dtype).removeprefix("torch."), self.expected.terms)
        limit = of_gradient if kind == "gradient" else of_weight
        if plain > limit:
            self.differences.append(Difference(step, what, parameter, plain, limit))

    def after_gradients(self, step: int) -> None:
        """Compare the gradients of ``step``: reduced, unscaled and not clipped. Skip a step that overflows."""
        if self.pipeline is None or self.expected.steps[step].decision.act == "skip":
            return
        exact, plain = self.expected.steps[step].gradients, self.expected.gradients[step]
        for name, parameter in self.pipeline.named_parameters():
            self.parameters_seen += 1
            self._check(step, "gradient", name, parameter.grad, (exact[name], plain[name]))

    def after_update(self, step: int, decision: Decision) -> None:
        """Compare decision, optimizer state and weights of ``step``, which are final."""
        if self.pipeline is None:
            return
        exact, plain = self.expected.steps[step], self.expected.plain[step]
        self.decisions.append(decision.act)
        if decision.act != exact.decision.act:
            self.differences.append(Difference(step, "decision", decision.act, float("inf"), 0.0))
        states: dict[Tensor, dict[str, Any]] = {}
        for local in self.pipeline.local.values():
            states |= local.optimizer.state
        for name, parameter in self.pipeline.named_parameters():
            for key, value in states.get(parameter, {}).items():
                if key in exact.optimizer[name]:
                    expected = (exact.optimizer[name][key], plain.optimizer[name][key])
                    self._check(step, f"optimizer {key}", name, torch.as_tensor(value), expected)
        for name, parameter in self.pipeline.named_parameters():
            self._check(step, "weight", name, parameter, (exact.weights[name], plain.weights[name]))

    def summary(self) -> dict[str, object]:
        """Return this process's findings, for ``merge``."""
        return {
            "differences": [asdict(d) for d in sorted(self.differences, key=Difference.key)[:3]],
            "worst": self.worst,
            "decisions": self.decisions,
            "parameters": self.parameters_seen,
        }


def merge(summaries: Sequence[dict[str, object]]) -> dict[str, object]:
    """Merge the findings of all processes: the first difference, and the worst errors against the plain loop."""
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
