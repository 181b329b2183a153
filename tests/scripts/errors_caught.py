"""Catch what is wrong with a call: each error is a ValueError of one line that says the way out."""

from collections.abc import Callable

import zbopt

step = zbopt.instance(stages=4, microbatches=8)


def message_of(call: Callable[[], object]) -> str:
    try:
        call()
    except ValueError as error:
        return str(error)
    raise AssertionError("nothing was raised")


messages = [
    message_of(lambda: zbopt.Instance(stages=4)),
    message_of(lambda: zbopt.instance(stages=4, microbatches=8, forward=["18ms", "3"])),
    message_of(lambda: zbopt.instance(stages=4, microbatches=8, memory_cap="20GB", activation="1GiB")),
    message_of(lambda: step.replace(memory_cap=[4, 4])),
    message_of(lambda: step.replace(memory_limit=4)),
    message_of(lambda: zbopt.solve(step, time_limit_s=-1)),
    message_of(lambda: zbopt.solve(step.model_copy(update={"memory_cap": -4}))),
    message_of(lambda: zbopt.solve(step.replace(memory_cap=0.5)).require_schedule()),
    message_of(lambda: zbopt.schedule(step, [])),
    message_of(lambda: zbopt.read_instance("missing.json")),
    message_of(lambda: zbopt.heuristics.zb_v(step)),
]
for message in messages:
    assert message
    assert "\n" not in message
    print(message)
