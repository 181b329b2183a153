"""Random small instances with everything that takes time: links, ports, collectives, reductions, iterations, inputs.

Some of them with everything that takes memory too.
"""

from __future__ import annotations

from random import Random
from typing import Any

from exact import any_instance
from random_instances import with_memory

from zbopt.problem.instance import Instance, Kind


def timed_instance(random: Random, *, most_ops: int = 8) -> Instance:
    """Return an instance of ``any_instance`` with a random choice of the fields around time.

    Args:
        random: Source of all choices.
        most_ops: Most forwards, over all iterations.
    """
    while True:
        instance = any_instance(random, most_microbatches=3)
        if instance.stages == 1 and random.random() < 0.8:
            continue
        if random.random() < 0.3:
            instance = with_memory(random, instance)
        fields = instance.model_dump()
        if random.random() < 0.4:
            fields["barrier"] = random.choice(("global", "post_validation"))
            fields["optimizer_ticks"] = fields["optimizer_ticks"] or 1
        fields |= _transfers(random, instance) | _update(random, fields)
        forwards = instance.virtual_stages * instance.microbatches * fields.get("iterations", 1)
        if forwards > most_ops or not _is_quick(fields, instance):
            continue
        _inputs(random, fields)
        if fields.get("iterations", 1) > 1 and random.random() < 0.3:
            fields["objective"] = "period"
        return Instance.model_validate(fields)


def _is_quick(fields: dict[str, Any], instance: Instance) -> bool:
    """Tell whether CP-SAT is quick. A span over several iterations of several stages takes it too long."""
    return fields["objective"] == "makespan" or instance.stages <= 2


def _transfers(random: Random, instance: Instance) -> dict[str, Any]:
    """Draw a kind of transfer; latencies by stage, by node or alike; perhaps a size and bandwidths."""
    stages = range(instance.stages)
    fields: dict[str, Any] = {"communication": random.choice(("latency", "link", "link", "blocking"))}
    if random.random() < 0.4:
        fields["comm_matrix"] = [[random.randint(0, 3) for _ in stages] for _ in stages]
    elif random.random() < 0.4:
        fields |= {"stages_per_node": 2, "node_comm_ticks": random.randint(0, 1)}
    if random.random() < 0.4:
        # A boundary takes memory too: with a cap on top, no schedule might fit.
        if instance.boundary is None:
            fields |= {"boundary": [random.randint(1, 3) for _ in instance.stage_of], "memory_cap": None}
        fields["bandwidth"] = random.choice(("1/2", 1, 2))
        if random.random() < 0.5:
            fields["bandwidth_matrix"] = [[random.choice((1, 2, 4)) for _ in stages] for _ in stages]
    if fields["communication"] != "latency" and random.random() < 0.6:
        fields["transfer_occupies"] = "port"
        if random.random() < 0.6:
            kind = random.choice(("F", "BW") if instance.backward_ticks is None else ("F", "W"))
            places = [(v, j) for v in range(instance.virtual_stages) for j in instance.microbatches_of(v)]
            times = [instance.op_ticks(Kind(kind), v, j) for v, j in places]
            shortest = min(t for t in times if t is not None)
            start = random.randrange(shortest)
            fields["collectives"] = [{"kind": kind, "start": start, "ticks": random.randint(1, shortest - start)}]
    return fields


def _update(random: Random, fields: dict[str, Any]) -> dict[str, Any]:
    more: dict[str, Any] = {}
    if random.random() < 0.4:
        more["loss_ticks"] = random.randint(1, 3)
    if random.random() < 0.5:
        more["reduction_ticks"] = [random.randint(1, 3) for _ in fields["stage_of"]]
        more["reduction_occupies"] = random.choice(("stage", "node"))
    if fields["barrier"] == "none":
        return more
    if fields["barrier"] == "global":
        more["barrier_ticks"] = random.randint(0, 2)
    more["iterations"] = random.choice((1, 2, 2))
    return more


def _inputs(random: Random, fields: dict[str, Any]) -> None:
    """Draw ready times of inputs, and put reductions on ports where these are occupied."""
    if fields.get("transfer_occupies") == "port" and "reduction_ticks" in fields and random.random() < 0.5:
        fields["reduction_occupies"] = "port"
    if random.random() < 0.4:
        ready = [0]
        for _ in range(fields["microbatches"] * fields.get("iterations", 1) - 1):
            ready.append(ready[-1] + random.choice((0, 0, 2, 5)))
        fields["input_ready_ticks"] = ready
