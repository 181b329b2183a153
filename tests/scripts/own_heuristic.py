"""Let solve try a heuristic of my own: a few forwards at once, then one backward for each further forward."""

import zbopt
from zbopt import Instance, Schedule

Op = tuple[zbopt.Kind, int, int]


def warm_up_then_alternate(instance: Instance) -> Schedule:
    orders: list[list[Op]] = []
    for stage in range(instance.stages):
        warm_up = min(instance.microbatches, instance.stages - stage)
        order: list[Op] = [(zbopt.Kind.F, stage, j) for j in range(warm_up)]
        for j in range(instance.microbatches):
            order += [(zbopt.Kind.B, stage, j), (zbopt.Kind.W, stage, j)]
            if j + warm_up < instance.microbatches:
                order.append((zbopt.Kind.F, stage, j + warm_up))
        orders.append(order)
    return zbopt.schedule(instance, orders, name="mine")


step = zbopt.instance(stages=4, microbatches=8, forward=2, backward=3, weight=1, memory_cap=4)
mine = warm_up_then_alternate(step)
assert zbopt.validate(step, mine).valid

result = zbopt.solve(step, candidates={"mine": warm_up_then_alternate}, time_limit_s=10)
print(f"mine: {zbopt.metrics(mine).makespan} ticks, best found: {result.value}, lower bound: {result.bound.value}")
print(result.notes)
