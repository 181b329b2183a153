"""Build an instance from a table of measured times, a row for each stage."""

import csv
from pathlib import Path

import zbopt

Path("profile.csv").write_text(
    "stage,forward_ms,backward_ms,weight_ms,activation_mib\n"
    "0,21.3,20.1,9.8,7680\n1,18.5,18.1,9.3,6144\n2,18.5,18.1,9.3,6144\n3,24.9,23.0,12.2,6656\n"
)
with Path("profile.csv").open(newline="") as file:
    rows = list(csv.DictReader(file))

step = zbopt.instance(
    stages=len(rows),
    microbatches=8,
    forward=[row["forward_ms"] + "ms" for row in rows],
    backward=[row["backward_ms"] + "ms" for row in rows],
    weight=[row["weight_ms"] + "ms" for row in rows],
    activation=[row["activation_mib"] + "MiB" for row in rows],
    memory_cap="40GiB",
    name="profile.csv",
)
zbopt.write(step, "step.json")
assert zbopt.read_instance("step.json") == step
print(step.tick, step.forward_ticks, step.memory_unit, [float(amount) for amount in step.activation])
