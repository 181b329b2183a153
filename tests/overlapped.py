"""Exact optima of steps whose backwards are one BW, where a stage may run an F and a BW as one op. For tests only.

zbopt's CP-SAT model has no such ops, so this one is derived from the instance alone. Memory is activations only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from math import lcm

from ortools.sat.python import cp_model

from zbopt.problem.instance import Instance, Kind, Objective

Op = tuple[Kind, int, int]
"""An op as kind, virtual stage and microbatch."""


def optimum_with_pairs(instance: Instance) -> int:
    """Return the least value of the objective, in ticks."""
    assert instance.backward_ticks is None
    assert instance.overlapped_ticks is not None
    return _Model(instance).solve()


@dataclass
class _Model:
    instance: Instance
    model: cp_model.CpModel = field(default_factory=cp_model.CpModel)
    starts: dict[Op, cp_model.IntVar] = field(default_factory=dict)
    ends: dict[Op, cp_model.IntVar] = field(default_factory=dict)

    def solve(self) -> int:
        for kind in (Kind.F, Kind.BW):
            for v, j in self.instance.passes():
                self.starts[kind, v, j] = self.time()
                self.ends[kind, v, j] = self.time()
        for stage in range(self.instance.stages):
            self.one_at_a_time(stage)
            self.memory(stage)
        self.dataflow()
        value = self.value()
        self.model.minimize(value)
        search = cp_model.CpSolver()
        search.parameters.num_workers = 1
        assert search.solve(self.model) == cp_model.OPTIMAL
        return round(search.value(value))

    def time(self) -> cp_model.IntVar:
        ops = list(self.instance.passes())
        ticks = sum((self.instance.op_ticks(kind, *op) or 0) for kind in (Kind.F, Kind.BW) for op in ops)
        return self.model.new_int_var(0, ticks + 2 * len(ops) * self.instance.comm_ticks, "")

    def ops_of(self, stage: int, kind: Kind) -> list[Op]:
        return [(kind, v, j) for v, j in self.instance.passes() if self.instance.stage_of[v] == stage]

    def one_at_a_time(self, stage: int) -> None:
        """Each op runs alone, or in one pair with an op of another microbatch."""
        assert self.instance.overlapped_ticks is not None
        forwards, backwards = self.ops_of(stage, Kind.F), self.ops_of(stage, Kind.BW)
        intervals, runs = [], dict[Op, list[cp_model.IntVar]]()
        for op in (*forwards, *backwards):
            alone = self.model.new_bool_var("")
            ticks = self.instance.op_ticks(*op)
            assert ticks is not None
            intervals.append(self.interval(op, ticks, alone))
            runs[op] = [alone]
        ticks = self.instance.overlapped_ticks[stage]
        pairs = [(f, b) for f in forwards for b in backwards if f[2] != b[2] and ticks is not None]
        for forward, backward in pairs:
            assert ticks is not None
            paired = self.model.new_bool_var("")
            intervals.append(self.interval(forward, ticks, paired))
            self.model.add(self.starts[forward] == self.starts[backward]).only_enforce_if(paired)
            self.model.add(self.ends[forward] == self.ends[backward]).only_enforce_if(paired)
            runs[forward].append(paired)
            runs[backward].append(paired)
        self.model.add_no_overlap(intervals)
        for ways in runs.values():
            self.model.add_exactly_one(ways)

    def interval(self, op: Op, ticks: int, runs: cp_model.IntVar) -> cp_model.IntervalVar:
        return self.model.new_optional_interval_var(self.starts[op], ticks, self.ends[op], runs, "")

    def memory(self, stage: int) -> None:
        """An activation is held from the start of F to the end of BW."""
        if self.instance.memory_cap is None:
            return
        amounts = [Fraction(a) for a in self.instance.activation]
        unit = lcm(*(amount.denominator for amount in amounts))
        held, demands = [], []
        for _, v, j in self.ops_of(stage, Kind.F):
            start, end = self.starts[Kind.F, v, j], self.ends[Kind.BW, v, j]
            held.append(self.model.new_interval_var(start, self.time(), end, ""))
            demands.append(int(amounts[v] * unit))
        self.model.add_cumulative(held, demands, int(self.instance.memory_cap[stage] * unit))

    def dataflow(self) -> None:
        for v, j in self.instance.passes():
            after = self.instance.next_of(v)
            if after is None:
                self.model.add(self.starts[Kind.BW, v, j] >= self.ends[Kind.F, v, j])
                continue
            down, up = self.instance.lag_ticks(v, after), self.instance.lag_ticks(after, v)
            self.model.add(self.starts[Kind.F, after, j] >= self.ends[Kind.F, v, j] + down)
            self.model.add(self.starts[Kind.BW, v, j] >= self.ends[Kind.BW, after, j] + up)

    def value(self) -> cp_model.IntVar:
        value = self.time()
        for stage in range(self.instance.stages):
            ends = [self.ends[op] for op in self.ops_of(stage, Kind.BW)]
            starts = [self.starts[op] for op in self.ops_of(stage, Kind.F)]
            if self.instance.objective is Objective.MAKESPAN:
                self.model.add_max_equality(last := self.time(), ends)
                self.model.add(value >= last)
            else:
                for start in starts:
                    for end in ends:
                        self.model.add(value >= end - start)
        return value
