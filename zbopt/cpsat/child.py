"""CP-SAT's own process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from zbopt.cpsat.budget import Budget
from zbopt.cpsat.scale import Scale
from zbopt.cpsat.search import CpSatSearch
from zbopt.engine.request import ParentMessage, SolveRequest
from zbopt.engine.serve import EngineChannel, serve
from zbopt.graph import expand
from zbopt.problem.bound import Bound


def main() -> None:
    """Read one request, search, and send results until done."""
    serve(_search)


def _search(request: SolveRequest, channel: EngineChannel) -> None:
    """Search in the coarsest ticks that lose nothing [D3]; all that is received and sent is in the request's ticks."""
    scale = Scale.of(request.instance)

    def send_schedule(value: int, starts: Mapping[int, int]) -> None:
        channel.send_schedule(value * scale.ticks, {i: start * scale.ticks for i, start in starts.items()})

    def messages() -> Iterator[ParentMessage]:
        for message in channel.messages():
            if message.value is not None and message.starts is not None:
                starts = {i: start // scale.ticks for i, start in message.starts.items()}
                yield message.model_copy(update={"value": message.value // scale.ticks, "starts": starts})
            else:
                yield message

    CpSatSearch(
        graph=expand(scale.instance),
        starts={i: start // scale.ticks for i, start in request.starts.items()},
        value=request.value // scale.ticks,
        bound=Bound(-(-request.bound // scale.ticks), request.proved_by),
        budget=Budget(
            request.time_limit_s, request.workers, request.seed, request.deterministic, request.memory_limit_mb
        ),
        on_schedule=send_schedule,
        on_bound=lambda bound: channel.send_bound(Bound(bound.value * scale.ticks, bound.proved_by)),
        on_activity=channel.send_activity,
        messages=messages,
        busy=request.busy,
        ticks=scale.ticks,
    ).run()
