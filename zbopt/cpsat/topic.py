"""Topics of a search: questions of one sort, asked one after the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from zbopt.cpsat.incumbent import Incumbent
from zbopt.cpsat.neighbourhood import Neighbourhood, Neighbourhoods
from zbopt.cpsat.question import Answer, Question, Reply


@dataclass
class Topic:
    """Questions of one sort, asked one after the other. Topics share the time by what they yield.

    ``wasted_s`` counts what was spent since the gap last shrank, in proportion: half the gap gone, half the count.
    ``slice_s`` is the most that one call may take, ``share_s`` what each call under way counts for.
    """

    questions: list[Question]
    slice_s: float
    share_s: float | None = None
    round: int = 0
    wasted_s: float = 0.0

    def waits_behind(self, running: int) -> float:
        """The topic for which this is least has its turn, where so many of its calls are under way."""
        return self.wasted_s + (self.slice_s if self.share_s is None else self.share_s) * running

    def next(self, bound: int, value: int) -> tuple[Question, int] | None:
        """The next question and its horizon; ``None`` where there is nothing to ask until a pending one is answered."""
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

    def put_off(self, bound: int, value: int) -> None:
        """Leave a relaxation that can add little for the next, which is likely to add more."""
        low, high = self.questions[0].range(bound, value)
        if len(self.questions) > 1 and self.questions[0].roof < value and (high + 1 - low) * 16 < value - bound:
            self.questions.append(self.questions.pop(0))

    def learn(self, question: Question, reply: Reply) -> None:
        """Take what a question of the topic has answered, where later ones depend on it."""


@dataclass
class Improving(Topic):
    """Each question is a neighbourhood of the best schedule known when it is asked."""

    incumbent: Callable[[], Incumbent] = field(kw_only=True)
    neighbourhoods: Neighbourhoods = field(kw_only=True)
    sorts: dict[int, str] = field(default_factory=dict)

    def next(self, bound: int, value: int) -> tuple[Question, int] | None:
        """A neighbourhood within what is one better than ``value``."""
        of = self.incumbent()
        sort, window = self.neighbourhoods.draw(of)
        question = Question(f"neighbourhood: {sort}", lambda h: Neighbourhood(window, h, bound), window.starts, None)
        self.sorts[id(question)] = sort
        return question, value - 1

    def learn(self, question: Question, reply: Reply) -> None:
        """The size of the next one of the sort."""
        answered = reply.answer is not Answer.OPEN
        early = answered and 2 * reply.cost_s < self.slice_s
        most = len(self.incumbent().starts)
        self.neighbourhoods.learn(self.sorts.pop(id(question)), most, answered=answered, early=early)
