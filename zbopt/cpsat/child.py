"""CP-SAT's own process."""

from __future__ import annotations

from collections.abc import Mapping

from zbopt.cpsat.budget import Budget
from zbopt.cpsat.scale import Scale
from zbopt.cpsat.search import Search
from zbopt.engine.order import Order
from zbopt.engine.serve import News, serve
from zbopt.graph import expand
from zbopt.result import Bound


def main() -> None:
    """Read one order, search, and send news until done."""
    serve(_search)


def _search(order: Order, news: News) -> None:
    scale = Scale.of(order.instance)

    def found(value: int, starts: Mapping[int, int]) -> None:
        news.found(value * scale.ticks, {i: start * scale.ticks for i, start in starts.items()})

    Search(
        graph=expand(scale.instance),
        starts={i: start // scale.ticks for i, start in order.starts.items()},
        value=order.value // scale.ticks,
        bound=Bound(-(-order.bound // scale.ticks), order.proved_by),
        budget=Budget(order.time_limit_s, order.workers, order.seed, order.deterministic, order.memory_limit_mb),
        found=found,
        proved=lambda bound: news.proved(Bound(bound.value * scale.ticks, bound.proved_by)),
        doing=news.doing,
    ).run()


if __name__ == "__main__":
    main()
