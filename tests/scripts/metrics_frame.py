"""Put the figures of schedules into pandas: a row for each stage, and a row for each known schedule."""

import pandas as pd

import zbopt

step = zbopt.instance(stages=4, microbatches=8, forward="20ms", backward="18ms", weight="10ms", memory_cap=6)
result = zbopt.solve(step, time_limit_s=10)

stages = pd.DataFrame(zbopt.metrics(result).stage_records()).set_index("stage")
assert bool(stages["fits"].all())
print(stages[["busy_ticks", "idle_ticks", "peak_memory"]])

known = pd.DataFrame(zbopt.compare(step, time_limit_s=10).records())
fitting = known[known["fits"] == True].sort_values("makespan")  # noqa: E712 - None is neither
print(fitting[["schedule", "makespan_s", "bubble_ratio", "peak_memory"]].to_string(index=False))
