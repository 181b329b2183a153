"""DualPipe (DeepSeek-V3, arXiv 2412.19437, section 3.2.1) and DualPipeV, its half on a V placement.

Two streams of microbatches run on a stage: the near one, which enters the pipeline closer to it, and the far one.
``half`` is how many stages a stream passes before it meets the other one; ``place`` of them lie before this stage.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from zbopt.heuristics.chimera import two_directions
from zbopt.heuristics.tools.build import NotApplicableError, OrderedOp
from zbopt.heuristics.tools.overlap import Pair, gradient_ops, overlapped_in_order
from zbopt.problem.instance import Instance, Kind
from zbopt.problem.placement import placement_of
from zbopt.problem.schedule import Schedule


def dualpipe(instance: Instance) -> Schedule:
    """Build DualPipe: two directions over replicas, with F of one and BW of the other as one op in the middle.

    With F&B for the time of that op its bubble is (p/2 - 1)(F&B + BW - 3W); stages hold at most p + 1 activations.

    Raises:
        NotApplicableError: Not two directions, p or m is odd, m is below 2p, or the backward is never whole.
        CannotFitError: A stage's cap is below what the order holds.
    """
    routes = two_directions("dualpipe", instance)
    p = instance.stages
    if p % 2 or routes[0].microbatches != routes[1].microbatches:
        raise NotApplicableError(f"dualpipe: {p} stages and {instance.microbatches} microbatches; both have to be even")
    orders = []
    for stage in range(p):
        down, up = stage, 2 * p - 1 - stage
        near, far = (down, up) if stage < p // 2 else (up, down)
        orders.append(_StageOrder("dualpipe", instance, near, far, p // 2, min(stage, p - 1 - stage)).entries())
    return overlapped_in_order("dualpipe", instance, orders)


def dualpipe_v(instance: Instance) -> Schedule:
    """Build DualPipe on half the devices: each stage holds the two virtual stages that would be replicas.

    With F&B, BW and W of a virtual stage the bubble is (p - 1)(F&B + BW - 3W) on p stages.

    Raises:
        NotApplicableError: The placement is not v, m is below 2p, or the backward is never whole.
        CannotFitError: A stage's cap is below what the order holds.
    """
    p = instance.stages
    if instance.routes is not None or instance.stage_of != placement_of("v", p, 2):
        raise NotApplicableError("dualpipe-v: the placement is not v with one route; give placement v, or take list")
    orders = [_StageOrder("dualpipe-v", instance, s, 2 * p - 1 - s, p, s).entries() for s in range(p)]
    return overlapped_in_order("dualpipe-v", instance, orders)


class _StageOrder:
    """Build the order of one stage."""

    def __init__(self, name: str, instance: Instance, near: int, far: int, half: int, place: int) -> None:
        self.instance = instance
        self.streams = (near, far)
        self.half, self.place = half, place
        self.count = len(instance.microbatches_of(near))
        if self.count < 2 * half:
            raise NotApplicableError(
                f"{name}: {self.count} microbatches a stream; it needs at least {2 * half}, take list"
            )
        if not (instance.has_bw(near) and instance.has_bw(far)):
            raise NotApplicableError(f"{name}: the backward is never whole; give fused_backward_ticks, or take list")
        self.forwards, self.backwards = [0, 0], [0, 0]
        self.weights: deque[OrderedOp] = deque()
        self.order: list[OrderedOp | Pair] = []

    def entries(self) -> Sequence[OrderedOp | Pair]:
        """Return a warm-up on both streams, then F and BW of opposite streams in pairs, then the rest."""
        before_turn = self.half - 1 - self.place
        self.order += [self._forward(0) for _ in range(2 * before_turn)]
        for _ in range(self.place + 1):
            self.order += [self._forward(0), self._forward(1)]
        for _ in range(before_turn):
            self._input_gradient(1)
            self._weight()
            self.order.append(self._forward(1))
        for step in range(self.count - 2 * self.half + self.place + 1):
            if step == 0 and before_turn == 0:
                # At the turn the first BW has nothing to hide behind.
                self.order += [self._forward(0), self._whole(1)]
            else:
                self.order.append((self._forward(0), self._whole(1)))
            self.order.append((self._forward(1), self._whole(0)))
        for _ in range(before_turn):
            self.order += [self._whole(1), (self._forward(1), self._whole(0))]
        self._cool_down(before_turn)
        return self.order

    def _cool_down(self, before_turn: int) -> None:
        """Add the last backwards, from their middle on with W put off to the end."""
        ends = [stream for _ in range(self.place + 1) for stream in (1, 0)]
        for number, stream in enumerate(ends):
            if number < len(ends) - (self.place + 1):
                self.order.append(self._whole(stream))
            else:
                self._input_gradient(stream)
        for _ in range(before_turn):
            self._weight()
            self._input_gradient(0)
        while self.weights:
            self._weight()

    def _forward(self, stream: int) -> OrderedOp:
        v = self.streams[stream]
        self.forwards[stream] += 1
        return (Kind.F, v, self.instance.microbatches_of(v)[self.forwards[stream] - 1])

    def _next_backward(self, stream: int) -> tuple[int, int]:
        v = self.streams[stream]
        self.backwards[stream] += 1
        return v, self.instance.microbatches_of(v)[self.backwards[stream] - 1]

    def _whole(self, stream: int) -> OrderedOp:
        return (Kind.BW, *self._next_backward(stream))

    def _input_gradient(self, stream: int) -> None:
        """Add a B whose W waits, or the whole backward where it is never split."""
        first, rest = gradient_ops(self.instance, *self._next_backward(stream))
        self.order += first
        self.weights.extend(rest)

    def _weight(self) -> None:
        if self.weights:
            self.order.append(self.weights.popleft())
