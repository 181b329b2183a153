"""Find how little memory the step needs before it becomes slower: one instance, several caps."""

import zbopt

step = zbopt.instance(stages=4, microbatches=8, weight_share="1/2")
best: dict[int, int | None] = {}
for cap in range(1, 9):
    result = zbopt.solve(step.replace(memory_cap=cap), time_limit_s=5)
    best[cap] = result.value
    gap = "none" if result.gap is None else f"{100 * result.gap:.1f} %"
    print(f"cap {cap}: {result.value} ticks, gap {gap}")

values = [value for value in best.values() if value is not None]
enough = min(cap for cap, value in best.items() if value == min(values))
print(f"a cap of {enough} is enough")
