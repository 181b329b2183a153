"""Begin a search with the schedule that is in production, so that the answer is never worse than it."""

import zbopt

step = zbopt.instance(stages=4, microbatches=8, forward=3, backward=4, weight=2, comm=1, memory_cap=4)
zbopt.write(zbopt.heuristics.zb_h1(step), "production.json")

production = zbopt.read_schedule("production.json")
result = zbopt.solve(step, start=production, time_limit_s=10)
before, after = zbopt.metrics(production).makespan, zbopt.metrics(result).makespan
assert after <= before
zbopt.write(result, "better.json")
print(f"{before} ticks before, {after} now ({result.status.value})")
