"""The solver's own process: an order on stdin, news on stdout, one JSON object a line.

CP-SAT runs here and not in the caller's process, so that a crash, a kill or a lack of memory costs nothing that was
found before: the parent holds every schedule and bound that has been sent.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Mapping

from zbopt.cpsat.budget import Budget
from zbopt.cpsat.order import Order
from zbopt.cpsat.scale import Scale
from zbopt.cpsat.search import Search
from zbopt.graph import expand
from zbopt.result import Bound


def main() -> None:
    """Read one order, search, and send news until done."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    order = Order.model_validate_json(sys.stdin.readline())
    _limit_memory(order.memory_limit_mb)
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever a library prints must not mix with the news

    def send(**news: object) -> None:
        out.write(json.dumps(news) + "\n")
        out.flush()

    scale = Scale.of(order.instance)
    graph = expand(scale.instance)

    def found(value: int, starts: Mapping[int, int]) -> None:
        send(found=value * scale.ticks, starts={i: start * scale.ticks for i, start in starts.items()})

    Search(
        graph=graph,
        starts={i: start // scale.ticks for i, start in order.starts.items()},
        value=order.value // scale.ticks,
        bound=Bound(-(-order.bound // scale.ticks), order.proved_by),
        budget=Budget(order.time_limit_s, order.workers, order.seed, order.deterministic, order.memory_limit_mb),
        found=found,
        proved=lambda bound: send(bound=bound.value * scale.ticks, proved_by=bound.proved_by),
        doing=lambda what: send(doing=what),
    ).run()
    send(done=True)


def _limit_memory(megabytes: int) -> None:
    """A hard stop well above CP-SAT's own, so that a leak ends this process and not the machine."""
    limit = 2 * megabytes * 2**20
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard < 0 else min(limit, hard), hard))


if __name__ == "__main__":
    main()
