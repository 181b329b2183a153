"""Solve a step whose stages differ: an embedding in front, a head with the loss at the end; times from a profile."""

import zbopt

step = zbopt.instance(
    stages=4,
    microbatches=8,
    forward=["21.3ms", "18.5ms", "18.5ms", "24.9ms"],
    backward=["20.1ms", "18.1ms", "18.1ms", "23.0ms"],
    weight=["9.8ms", "9.3ms", "9.3ms", "12.2ms"],
    comm="0.6ms",
    memory_cap=["40GiB", "36GiB", "36GiB", "36GiB"],
    activation=["7.5GiB", "6GiB", "6GiB", "6.5GiB"],
    weight_share=0.5,
)
result = zbopt.solve(step, time_limit_s=10)
schedule = result.require_schedule()
figures = zbopt.metrics(schedule)

print(f"{result.status.value}: {figures.makespan_s} s, lower bound {result.bound.value} ticks of {step.tick}")
for stage in figures.stages:
    print(f"stage {stage.stage}: peak {float(stage.peak_memory)} {figures.memory_unit}, fits {stage.fits}")
