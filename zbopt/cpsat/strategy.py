"""Strategies of a search: each asks questions of one sort, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from zbopt.cpsat.known_schedule import KnownSchedule
from zbopt.cpsat.neighbourhood import Neighbourhood, Neighbourhoods
from zbopt.cpsat.question import Answer, Question, Reply

_LITTLE_GAIN = 16
"""A relaxation whose open range is below one in so many parts of the gap makes way for the next one.

A smaller number leaves a relaxation sooner. Not measured; chosen.
"""


@dataclass
class Strategy:
    """Ask questions of one sort, one after the other. Strategies share the time by what they yield.

    Attributes:
        questions: What is still to be asked; the first one is asked.
        slice_s: Most seconds that one call may take.
        share_s: Seconds for which each call under way counts; ``None``: the slice.
        round: How often the horizons that were left open have been asked for again.
        wasted_s: Seconds spent since the gap last shrank, in proportion: where half the gap goes, half the count goes.
    """

    questions: list[Question]
    slice_s: float
    share_s: float | None = None
    round: int = 0
    wasted_s: float = 0.0

    def charged_s(self, running: int) -> float:
        """Return what the strategy has wasted, and counts for ``running`` calls: the least of all has its turn."""
        return self.wasted_s + (self.slice_s if self.share_s is None else self.share_s) * running

    def next(self, bound: int, value: int) -> tuple[Question, int] | None:
        """Return the next question and its horizon; ``None`` where none can be asked before a pending one is answered.

        Args:
            bound: Best bound known, in ticks.
            value: Best value known, in ticks.
        """
        while self.questions:
            question = self.questions[0]
            low, high = question.range(bound, value)
            if low > high:
                self.questions.pop(0)
            elif (horizon := question.aim(bound, value)) is not None:
                return question, horizon
            elif question.left_open:
                question.left_open.clear()
                self.round += 1
                self.slice_s *= 2
            else:
                return None
        return None

    def postpone(self, bound: int, value: int) -> None:
        """Leave a relaxation that can add little for the next one, which is likely to add more."""
        low, high = self.questions[0].range(bound, value)
        adds_little = (high + 1 - low) * _LITTLE_GAIN < value - bound
        if len(self.questions) > 1 and self.questions[0].roof < value and adds_little:
            self.questions.append(self.questions.pop(0))

    def learn(self, question: Question, reply: Reply) -> None:
        """Take the answer to a question of the strategy into account; here later questions do not depend on it."""


@dataclass
class NeighbourhoodStrategy(Strategy):
    """Ask for a better schedule in a neighbourhood of the best one that is known when it is asked.

    Attributes:
        schedule: Returns the best schedule.
        neighbourhoods: Draws windows of it.
        sorts: For each question under way, by ``id``, the sort of its neighbourhood.
    """

    schedule: Callable[[], KnownSchedule] = field(kw_only=True)
    neighbourhoods: Neighbourhoods = field(kw_only=True)
    sorts: dict[int, str] = field(default_factory=dict)

    def next(self, bound: int, value: int) -> tuple[Question, int] | None:
        """Return the question for a new neighbourhood, within what is one tick better than ``value``."""
        sort, window = self.neighbourhoods.draw(self.schedule())
        question = Question(
            f"improving the schedule around {sort}",
            lambda horizon: Neighbourhood(window, horizon, bound),
            window.starts,
            None,
        )
        self.sorts[id(question)] = sort
        return question, value - 1

    def learn(self, question: Question, reply: Reply) -> None:
        """Set the size of the next neighbourhood of the sort by the answer to this one."""
        answered = reply.answer is not Answer.OPEN
        early = answered and 2 * reply.cost_s < self.slice_s
        most = len(self.schedule().starts)
        self.neighbourhoods.learn(self.sorts.pop(id(question)), most, answered=answered, early=early)
