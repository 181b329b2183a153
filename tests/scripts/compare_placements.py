"""Run the same model on the same devices under one cap: one virtual stage a stage, or two in a V?"""

import zbopt

step = zbopt.instance(
    stages=4, microbatches=6, forward="10ms", backward="10ms", weight="10ms", comm="1ms", memory_cap=4
)
placed = zbopt.placements(step)
comparison = zbopt.compare({name: placed[name] for name in ("linear", "v")}, time_limit_s=4)
print(comparison)

linear, v = (comparison.results[name].value for name in ("linear", "v"))
assert linear is not None
assert v is not None
print(f"{comparison.best} is better: {abs(linear - v) / linear:.1%} of the makespan of linear")

same = zbopt.instance(
    stages=4, microbatches=6, forward="10ms", backward="10ms", weight="10ms", comm="1ms", memory_cap=4,
    placement="v", times_of="stage",
)  # fmt: skip
assert same.stage_of == placed["v"].stage_of
