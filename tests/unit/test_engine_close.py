"""Ending the solver's process while its order is still on the way."""

from __future__ import annotations

from collections.abc import Generator
from typing import IO

import pytest

from zbopt.engine import watch as engine
from zbopt.engine.request import SolveRequest
from zbopt.problem.instance import Instance

pytestmark = pytest.mark.alone


def test_bug_order_is_still_being_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Text that the writer had not flushed when the process was killed became a BrokenPipeError out of ``solve``.

    Seen where heuristics on a large instance had used up the time, so that the process was ended while it started.
    """
    order = SolveRequest(
        instance=Instance.uniform(stages=2, microbatches=2),
        starts={},
        value=9,
        bound=7,
        proved_by="bound:load",
        time_limit_s=5.0,
        workers=1,
        seed=0,
        deterministic=False,
        memory_limit_mb=1000,
    )

    def write_half(pipe: IO[str], order: SolveRequest, messages: object) -> None:
        pipe.write("{")

    monkeypatch.setattr(engine, "_write", write_half)
    news = engine.run(order, poll_s=0.01)
    assert isinstance(news, Generator)
    assert next(news) is None
    news.close()
