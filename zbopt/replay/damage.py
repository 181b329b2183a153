"""Damage done on purpose, after the checks, to show that the proof of numbers finds it; no real run has any."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace

from torch import Tensor

from zbopt.formats.torch_csv import Action, Op


class Damage:
    """Damage one run in one way.

    ``missing-w`` leaves out one W of the middle virtual stage. ``late-w`` runs this W after the optimizer.
    ``no-reduction`` leaves out the middle virtual stage's REDUCE_GRAD. ``swapped-microbatch`` runs the last virtual
    stage's F of microbatch 0 after that of microbatch 1. ``stale-buffer`` gives the middle virtual stage the input of
    the step before. ``killed:STAGE:STEP`` ends, and ``stopped:STAGE:STEP`` halts, that stage's process in the middle
    of that step.
    """

    def __init__(self, text: str, stage: int) -> None:
        self.kind, *numbers = text.split(":")
        self._stage = stage
        self._at = tuple(map(int, numbers)) if numbers else (0, 1)
        self._postponed: list[Action] = []
        self._inputs: dict[tuple[int, int], Tensor] = {}
        self._started = False

    def of_actions(self, actions: Sequence[Action], step: int, virtual_stages: int) -> Iterator[Action]:
        """Yield the actions of one step, damaged."""
        middle, last = virtual_stages // 2, virtual_stages - 1
        dropped = {
            ("no-reduction", Action(middle, Op.REDUCE_GRAD)),
            ("swapped-microbatch", Action(last, Op.FORWARD, 0)),
        }
        postponed, self._postponed = self._postponed, []
        yield from postponed
        for action in actions:
            if self.kind in ("missing-w", "late-w") and self._is_first_weight(action, middle):
                yield from self._without_weight(action)
            elif (self.kind, action) in dropped:
                continue
            elif self.kind == "swapped-microbatch" and action == Action(last, Op.FORWARD, 1):
                yield action
                yield replace(action, microbatch=0)
            else:
                yield action

    @staticmethod
    def _is_first_weight(action: Action, virtual_stage: int) -> bool:
        return (action.virtual_stage, action.microbatch) == (virtual_stage, 0) and action.op in (
            Op.WEIGHT_GRAD,
            Op.BACKWARD,
        )

    def _without_weight(self, action: Action) -> Iterator[Action]:
        if action.op is Op.BACKWARD:
            yield replace(action, op=Op.INPUT_GRAD)
        if self.kind == "late-w":
            self._postponed.append(replace(action, op=Op.WEIGHT_GRAD))

    def end_before(self, action: Action, step: int) -> None:
        """End or halt this process before the first backward of the step that was chosen for it."""
        due = self.kind in ("killed", "stopped") and (self._stage, step) == self._at
        if due and action.op in (Op.INPUT_GRAD, Op.BACKWARD):
            os.kill(os.getpid(), signal.SIGKILL if self.kind == "killed" else signal.SIGSTOP)

    def of_input(
        self, buffer: Tensor | None, virtual_stage: int, microbatch: int, virtual_stages: int
    ) -> Tensor | None:
        """Return the tensor that the forward reads instead of ``buffer``."""
        if buffer is None or self.kind != "stale-buffer" or virtual_stage != max(1, virtual_stages // 2):
            return buffer
        before = self._inputs.get((virtual_stage, microbatch))
        self._inputs[virtual_stage, microbatch] = buffer.detach().clone()
        return buffer if before is None else before
