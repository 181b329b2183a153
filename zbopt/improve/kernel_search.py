"""Kernels for V placement where memory is short: a few microbatches a period, annealed, repeated and packed.

The published blocks repeat one microbatch. Where F, B and W differ, one microbatch a period under the memory of V-Min
may need a quarter more time than the load, and three whose ops go in different orders a tenth (bench/README.md,
"Kernels of several microbatches"). Annealing finds such a kernel if it begins cool, from many random blocks: annealing
that begins hot ends in the kernel that most orders are near to, and that is a bad one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import cycle
from math import log
from random import Random

from zbopt.graph import TaskGraph, expand
from zbopt.heuristics.tools.build import fitted_schedule, require_plain_step
from zbopt.heuristics.tools.building_block import Block, block_times, memory_of, require_v
from zbopt.heuristics.tools.pack import ROUNDS, Packing, Starts
from zbopt.heuristics.tools.patience import OutOfTimeError, check_time, is_best, is_over
from zbopt.improve.kernel import Kernel
from zbopt.problem.instance import Barrier
from zbopt.problem.schedule import Schedule

_COUNTS = (2, 3, 1, 3, 2, 3, 4, 3)
"""Microbatches a period, in turn: three were best where F, B and W differ, but their best kernels are the rarest.
bench/README.md, "Kernels of several microbatches"."""
_FIRSTS = 8
"""Random blocks of which the one with the least period is annealed. Not measured."""
_MOVES_A_NODE = 20
"""Moves of a kernel for each of its ops: bench/README.md, "Kernels of several microbatches", has 8 to 40."""
_HOT, _COLD = 0.03, 0.0007
"""Temperatures at the beginning and at the end, in loads of one microbatch, for each microbatch a period. Not
measured."""
_AGAIN, _AGAIN_HOT, _AGAIN_COSTS = 3, 0.1, 0.001
"""One of so many kernels is a known one that is annealed again, beginning at a temperature of at least this share of
``_HOT``; each time that was done counts against a kernel as if its period were longer by that share. bench/README.md,
"Windows of the whole step", has the seconds until the least period with and without."""
_CRITICAL = 0.85
"""Share of moves that move an op of the longest circuit; no other makes a period shorter. Not measured."""
_FAR = 4
"""Most steps of the other moves. Not measured."""
_LONGER = 1.05
"""Factor by which the period of a block grows until memory suffices: finer finds a shorter one, later."""
_MOST_PERIOD = 64.0
"""Most loads that a period grows to; a block that does not fit by then never will."""
_NEAR = 1.002
"""A kernel within this factor of the best is packed: its period does not say what it costs at both ends of a step.
Not measured."""
_WORTH = 1.02
"""A schedule within this factor of the best is yielded: annealing may end lower from it. Not measured."""
_OPS_OF_A_KIND = 20_000
"""Ops to pack of kernels that have the same period: their ends may differ, but less and less. Not measured."""
_VAIN, _VAIN_AT_LOAD = 96, 12
"""Kernels in a row without a better schedule after which no more are tried; fewer once no period can be less. Not
measured."""


def kernels(graph: TaskGraph, seed: int) -> Iterator[Schedule | None]:
    """Yield the schedules of each kernel that are near the best of all so far, then ``None``; end after many in vain.

    Args:
        graph: The task graph. Nothing is found where memory suffices for ZB-V, which rests little at any times, and
            where a backward may be one op or two.
        seed: Seed of the blocks and moves.

    Raises:
        NotApplicableError: The placement is not v, more than the ops of one step has to be placed, or activations are
            dropped.
    """
    instance = graph.instance
    require_v("kernels", instance)
    require_plain_step("kernels", instance)
    needs = memory_of(instance, instance.stages)
    if graph.choices or all(needed <= cap for cap, needed in zip(instance.memory_cap or needs, needs, strict=True)):
        return
    # Optimizer steps do not repeat; fitted_schedule puts them behind what is packed.
    one = expand(instance.model_copy(update={"microbatches": 1, "optimizer_ticks": None, "barrier": Barrier.NONE}))
    search, counts, best = _KernelSearch(one, graph, Random(seed)), cycle(_COUNTS), float("inf")
    vain, tried = 0, 0
    while vain < (_VAIN_AT_LOAD if search.is_at_load() else _VAIN) and not is_over():
        vain, tried, count = vain + 1, tried + 1, next(counts)
        for packing, starts in search.anneal_known(count) if tried % _AGAIN == 0 else search.anneal_new(count):
            value = packing.value(starts)
            if value < best:
                best, vain = value, 0
            if value < _WORTH * best:
                yield fitted_schedule("kernels", instance, packing.orders(starts))
            if instance.optimizer_ticks is None and is_best(value):
                return
        yield None


@dataclass(slots=True)
class _KnownKernel:
    """Hold a kernel, and how often it was annealed again."""

    kernel: Kernel
    times: int = 0

    def rank(self) -> float:
        """Return a number that is least for the kernel that is annealed next."""
        return self.kernel.period / self.kernel.count * (1 + _AGAIN_COSTS * self.times)


@dataclass
class _KernelSearch:
    """Anneal kernels of a step.

    ``one`` is the task graph of one microbatch, ``period`` that of the best kernel, in ticks a microbatch. ``packed``
    counts the kernels that were packed, by microbatches and period.
    """

    one: TaskGraph
    graph: TaskGraph
    random: Random
    period: float = float("inf")
    packed: Counter[tuple[int, int]] = field(default_factory=Counter)
    known: list[_KnownKernel] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.load = max(sum(self.one.tasks[i].duration_ticks for i in tasks) for tasks in self.one.resources)

    def is_at_load(self) -> bool:
        """Return whether some stage never rests in the best kernel."""
        return self.period < self.load + 1e-6

    def anneal_new(self, count: int) -> list[tuple[Packing, Starts]]:
        """Return the packings of a new kernel, the best first; none where it is not near the best, or is known."""
        try:
            kernel = self.first(count)
            if kernel is None:
                return []
            self.anneal(kernel, _HOT)
        except OutOfTimeError:
            return []
        self.known.append(_KnownKernel(kernel))
        return self.packed_well(kernel)

    def anneal_known(self, count: int) -> list[tuple[Packing, Starts]]:
        """Return the packings of a known kernel that is annealed again; none where that does not make it shorter."""
        known = min((k for k in self.known if k.kernel.count == count), key=_KnownKernel.rank, default=None)
        if known is None:
            return self.anneal_new(count)
        known.times += 1
        before = known.kernel.period
        with suppress(OutOfTimeError):
            self.anneal(known.kernel, _HOT * _AGAIN_HOT ** self.random.random())
        return self.packed_well(known.kernel) if known.kernel.period < before - 1e-6 else []

    def packed_well(self, kernel: Kernel) -> list[tuple[Packing, Starts]]:
        """Return the packings of a kernel, the best first; none where it is not near the best, or is known."""
        period = kernel.period / kernel.count
        kind = kernel.count, round(kernel.period)
        if period > _NEAR * self.period or self.packed[kind] > _OPS_OF_A_KIND // len(self.graph.tasks):
            return []
        self.packed[kind] += 1
        self.period = min(self.period, period)
        return sorted(self.packings(kernel), key=lambda found: found[0].value(found[1]))

    def first(self, count: int) -> Kernel | None:
        """Return the best of some random blocks, repeated ``count`` times; ``None`` where none fits."""
        blocks = [kernel for _ in range(_FIRSTS) if (kernel := self.block()) is not None]
        if not blocks:
            return None
        best = min(blocks, key=lambda kernel: kernel.period)
        period = best.period
        starts = {i * count + r: at + r * period for i, at in enumerate(best.at) for r in range(count)}
        kernel = Kernel(self.one, count, starts, period * count)
        return kernel if kernel.settle() else None

    def block(self) -> Kernel | None:
        """Return a random block, repeated as soon as memory allows; ``None`` where it never does."""
        random = self.random
        slopes = tuple(random.choice((0.0, 1.2 * random.random())) for _ in range(4))
        rests = tuple(random.choice((0.0, 2 * random.random())) for _ in range(3))
        block = Block(slopes, rests, weight=random.choice((0.0, random.random())))
        times, period = block_times(self.one, block), self.load * (1 + 0.3 * random.random())
        while period < _MOST_PERIOD * self.load:
            check_time()
            kernel = Kernel(self.one, 1, times, period)
            if kernel.fits() and kernel.settle():
                return kernel
            period *= _LONGER
        return None

    def anneal(self, kernel: Kernel, hot: float) -> None:
        """Move ops of the kernel, ever more rarely to a longer period, and leave it at the best that it was."""
        random, moves = self.random, _MOVES_A_NODE * len(kernel.at)
        best = kernel.state()
        for n in range(moves):
            if n % 64 == 0:
                check_time()
            heat = hot * (_COLD / hot) ** (n / moves) * self.load * kernel.count
            if kernel.try_move(*self.draw(kernel), -heat * log(1 - random.random())) and kernel.period < best.period:
                best = kernel.state()
        kernel.restore(best)

    def draw(self, kernel: Kernel) -> tuple[int, int]:
        """Draw an op, and how many steps to move it."""
        random = self.random
        if random.random() < _CRITICAL:
            node, steps = random.choice(kernel.circuit), 1
            while random.random() < 0.5 and steps < 3 * kernel.count:
                steps += 1
        else:
            node, steps = random.randrange(len(kernel.at)), random.randint(1, _FAR)
        return node, random.choice((steps, -steps))

    def packings(self, kernel: Kernel) -> Iterator[tuple[Packing, Starts]]:
        """Yield the step with the kernel begun at each of its microbatches, packed from both ends."""
        count, index = kernel.count, {task.key: i for i, task in enumerate(self.one.tasks)}
        for first in range(count):
            times = {}
            for i, task in enumerate(self.graph.tasks):
                if task.microbatch is None:
                    continue
                periods, microbatch = divmod(task.microbatch + first, count)
                node = index[task.key._replace(microbatch=0)] * count + microbatch
                times[i] = kernel.at[node] + periods * kernel.period
            order = sorted(times, key=lambda i: (times[i], i))
            packing = Packing(self.graph, order)
            try:
                starts = packing.forward(order)
            except OutOfTimeError:
                return
            if starts is not None:
                yield packing, packing.justified(starts, ROUNDS)
