"""CP-SAT's own process."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from types import ModuleType

from zbopt.cpsat.scale import Scale
from zbopt.engine.request import ParentMessage, SolveRequest
from zbopt.engine.serve import EngineChannel, serve
from zbopt.graph import expand
from zbopt.problem.bound import Bound


def main() -> None:
    """Read one order, search, and send news until done."""
    _load_solver()
    serve(_search)


def _load_solver() -> None:
    """Load CP-SAT without pandas, a third of this process's start: it is for tables of variables, and here are none.

    A version of OR-Tools that needs more of it fails to load here, and is loaded in full where it is used.
    """
    if "pandas" in sys.modules:
        return
    stub = ModuleType("pandas")
    for name in ("DataFrame", "Index", "Series"):
        setattr(stub, name, type(name, (), {}))
    sys.modules["pandas"] = stub
    with suppress(AttributeError, ImportError):
        import_module("ortools.sat.python.cp_model")
    del sys.modules["pandas"]


def _search(order: SolveRequest, news: EngineChannel) -> None:
    from zbopt.cpsat.budget import Budget  # these load OR-Tools
    from zbopt.cpsat.search import Search

    scale = Scale.of(order.instance)

    def found(value: int, starts: Mapping[int, int]) -> None:
        news.found(value * scale.ticks, {i: start * scale.ticks for i, start in starts.items()})

    def heard() -> Iterator[ParentMessage]:
        for word in news.heard():
            if word.value is not None and word.starts is not None:
                starts = {i: start // scale.ticks for i, start in word.starts.items()}
                yield word.model_copy(update={"value": word.value // scale.ticks, "starts": starts})
            else:
                yield word

    Search(
        graph=expand(scale.instance),
        starts={i: start // scale.ticks for i, start in order.starts.items()},
        value=order.value // scale.ticks,
        bound=Bound(-(-order.bound // scale.ticks), order.proved_by),
        budget=Budget(order.time_limit_s, order.workers, order.seed, order.deterministic, order.memory_limit_mb),
        found=found,
        proved=lambda bound: news.proved(Bound(bound.value * scale.ticks, bound.proved_by)),
        doing=news.doing,
        heard=heard,
        busy=order.busy,
    ).run()


if __name__ == "__main__":
    main()
