"""Write the best schedule as the table that PyTorch's pipeline runtime and torchtitan load, and read it back."""

import zbopt

step = zbopt.instance(stages=4, microbatches=8, placement="v", memory_cap=4)
result = zbopt.solve(step, time_limit_s=10)
zbopt.export(result, "torch-csv", "schedule.csv")
trace = zbopt.export(result, "chrome-trace")

again = zbopt.import_("schedule.csv", "torch-csv", step)
assert zbopt.metrics(again).makespan == zbopt.metrics(result).makespan
print(f"{len(again.events)} ops in schedule.csv; a trace of {len(trace)} characters")
