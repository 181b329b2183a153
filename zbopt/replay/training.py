"""A network in training by a schedule: what one process holds of it, and one iteration of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from zbopt.formats.torch_csv import Action
from zbopt.problem.instance import Barrier, Kind
from zbopt.problem.schedule import Schedule
from zbopt.replay.checks import refuse
from zbopt.replay.damage import Damage
from zbopt.replay.deferred import WeightQueue, defer_weights
from zbopt.replay.engine import Engine, Slice
from zbopt.replay.groups import Groups
from zbopt.replay.lowering import lower
from zbopt.replay.networks import TIED, batch, boundary, build_slice, loss_of
from zbopt.replay.observe import Recorder
from zbopt.replay.post_validation import PostValidation, prefixes
from zbopt.replay.simulate import FifoLink, Waits
from zbopt.replay.spec import Network, Training
from zbopt.replay.update import Decision, LossScale, apply, decide, optimizer_of, square_sum

AfterGradients = Callable[[int], None]
AfterUpdate = Callable[[int, Decision], None]


@dataclass
class Part:
    """One virtual stage in this process."""

    module: nn.Module
    optimizer: torch.optim.Optimizer
    queue: WeightQueue | None


class Pipeline:
    """This process's share of the training.

    Args:
        schedule: Its instance says how many virtual stages and microbatches there are, and the barrier.
        after_gradients: Called with the step when the gradients are ready: reduced, tied, unscaled, not clipped.
        after_update: Called with the step and its decision when the weights are final.
    """

    def __init__(
        self,
        schedule: Schedule,
        network: Network,
        training: Training,
        groups: Groups,
        recorder: Recorder,
        *,
        device: torch.device,
        damage: Damage | None = None,
        after_gradients: AfterGradients = lambda step: None,
        after_update: AfterUpdate = lambda step, decision: None,
    ) -> None:
        self.schedule, self.network, self.training, self.groups = schedule, network, training, groups
        self.recorder, self.device, self.damage = recorder, device, damage
        self.after_gradients, self.after_update = after_gradients, after_update
        self.instance = schedule.instance
        if training.lowering == "engine" and self.instance.barrier is Barrier.POST_VALIDATION:
            raise ValueError("lowering engine cannot run post_validation; use lowering zbopt")
        self.scale = LossScale(training)
        self.step_number, self._pass = 0, 0
        self.parts = {v: self._part(v) for v in groups.own}
        self.losses: list[float] = []
        self.engine = self._engine()
        post = self.instance.barrier is Barrier.POST_VALIDATION
        self.post = PostValidation(self._optimizers(), groups.norms) if post else None

    def _part(self, virtual_stage: int) -> Part:
        if self.network.kind == "wait":
            module: nn.Module = Waits(self.schedule, self.network, virtual_stage)
        else:
            module = build_slice(self.network, virtual_stage, self.instance.virtual_stages)
        module = module.to(self.device)
        queue = defer_weights(module) if self.training.split == "deferred" else None
        if isinstance(module, Waits) and queue is not None:
            module.queue = queue
        return Part(module, optimizer_of(module.parameters(), self.training), queue)

    def _engine(self) -> Engine:
        single = len(set(self.groups.stage_of)) == 1
        lowered = refuse if self.damage is None else lower
        rows = lowered(self.schedule, single_process=single)
        self._prefix = prefixes(rows, self.groups.stage_of)[self.groups.stage]
        return Engine(
            [self._slice(v) for v in self.groups.own],
            rows,
            self.instance.microbatches,
            self._loss,
            drive=self._drive,
            recorder=self.recorder,
            own_lowering=self.training.lowering == "engine",
            link=self._link(),
        )

    def _loss(self, out: Tensor, target: Tensor) -> Tensor:
        with self.recorder.still():
            return loss_of(self.network)(out, target) * self._loss_factor()

    def _link(self) -> FifoLink | None:
        if self.network.kind != "wait" or self.network.link == "free" or self.groups.norms is None:
            return None
        return FifoLink(self.instance.comm_ticks * self.network.tick_s)

    def _slice(self, virtual_stage: int) -> Slice:
        takes, gives = boundary(self.network, virtual_stage, self.instance.virtual_stages)
        part = self.parts[virtual_stage]
        return Slice(
            part.module,
            virtual_stage,
            self.instance.virtual_stages,
            device=self.device,
            takes=takes.detach().to(self.device).requires_grad_(takes.requires_grad),
            gives=gives.detach().to(self.device).requires_grad_(gives.requires_grad),
            group=self.groups.pipeline,
            queue=part.queue,
            recorder=self.recorder,
            reduced=self._reduced,
            damage=self.damage,
        )

    def _optimizers(self) -> list[torch.optim.Optimizer]:
        return [self.parts[v].optimizer for v in self.groups.own]

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters of this process, as ``v3.block5.up.weight``."""
        for v, part in self.parts.items():
            for name, parameter in part.module.named_parameters():
                yield f"v{v}.{name}", parameter

    def _loss_factor(self) -> float:
        return float("inf") if self.step_number in self.training.overflow_at else self.scale.value

    def run_step(self) -> None:
        """One iteration: every accumulation pass, then the update or, under post-validation, its optimistic try."""
        samples = self.instance.microbatches * self.network.microbatch_size
        self.losses = []
        for number in range(self.training.accumulation):
            self._pass = number
            inputs, targets = batch(self.network, samples, self.step_number, self.groups.replica, number)
            inputs, targets = inputs.to(self.device), targets.to(self.device)
            if self.recorder.meter is not None:
                self.recorder.meter.ignore(inputs, targets)
            if number == 0 and self.post is None:
                self._zero_grad()
            losses = self.engine.step(
                inputs if 0 in self.parts else None,
                targets if self.instance.virtual_stages - 1 in self.parts else None,
            )
            self.losses += [float(loss) / self._loss_factor() for loss in losses]
        if self.post is None:
            self._update()
        self.step_number += 1

    def finish(self) -> None:
        """Everything of the steps so far is final; needed before weights are read under post-validation."""
        if self.post is not None:
            self._validate()

    @property
    def rollbacks(self) -> int:
        """Optimistic steps taken back so far."""
        return self.post.rollbacks if self.post is not None else 0

    def _zero_grad(self) -> None:
        for part in self.parts.values():
            part.optimizer.zero_grad()

    def _drive(self, actions: Sequence[Action]) -> Iterator[Action]:
        """What the runtime shall do; see ``_around``."""
        for action in self._around(actions):
            if self.damage is not None:
                self.damage.end_before(action, self.step_number)
            yield action

    def _around(self, actions: Sequence[Action]) -> Iterator[Action]:
        """The actions; under post-validation with the last step's validation after the prefix, and its redoing."""
        if self.damage is not None:
            actions = list(self.damage.of_actions(actions, self.step_number, self.instance.virtual_stages))
        if self.post is None:
            yield from actions
            return
        prefix = [a for a in actions if a in self._prefix] if self._pass == 0 else []
        yield from prefix
        if self._pass == 0:
            if not self._validate():
                yield from (a for a in prefix if a.microbatch is not None)
            self._zero_grad()
        yield from (a for a in actions if a not in prefix)
        if self._pass == self.training.accumulation - 1:
            with self.recorder.op(None, Kind.O, None):
                self._ready()
                self.post.try_step(self._square_sums(), self.training.max_norm(self.step_number), self.step_number)

    def _validate(self) -> bool:
        if self.post is None or (verdict := self.post.validate()) is None:
            return True
        step, decision, stands = verdict
        self.scale.update(decision)
        self.after_update(step, decision)
        return stands

    def _reduced(self, virtual_stage: int) -> None:
        """[REDUCE_GRAD] After the last pass: the mean over microbatches and passes, then over replicas."""
        if self._pass < self.training.accumulation - 1:
            return
        for parameter in self.parts[virtual_stage].module.parameters():
            if parameter.grad is not None:
                parameter.grad.div_(self.instance.microbatches * self.training.accumulation)
                if self.groups.data is not None:
                    dist.all_reduce(parameter.grad, group=self.groups.data)
                    parameter.grad.div_(self.groups.replicas)

    def _ready(self) -> None:
        """Tied weights share their gradients; the loss scale comes off."""
        if self.network.is_tied:
            self._share_tied()
        for _, parameter in self.named_parameters():
            if parameter.grad is not None:
                parameter.grad.div_(self.scale.value)
        self.after_gradients(self.step_number)

    def tied_copies(self) -> list[nn.Parameter]:
        """The copies of the tied weight in this process: none, one or both."""
        ends = {0: TIED["first"], self.instance.virtual_stages - 1: TIED["last"]}
        return [self.parts[v].module.get_parameter(name) for v, name in ends.items() if v in self.parts]

    def _share_tied(self) -> None:
        grads = [copy.grad for copy in self.tied_copies() if copy.grad is not None]
        if len(grads) == 2:
            total = grads[0] + grads[1]
            for grad in grads:
                grad.copy_(total)
        elif grads and self.groups.tie is not None:
            dist.all_reduce(grads[0], group=self.groups.tie)

    def _square_sums(self) -> Tensor:
        """Own virtual stages' square sums in the vector of all; the tied weight counts in the first only."""
        sums = torch.zeros(self.instance.virtual_stages, dtype=torch.float64, device=self.device)
        last = self.instance.virtual_stages - 1
        for v, part in self.parts.items():
            named = part.module.named_parameters()
            counted = [p for name, p in named if not (self.network.is_tied and v == last and name == TIED["last"])]
            sums[v] = square_sum(p.grad for p in counted if p.grad is not None)
        return sums

    def _update(self) -> None:
        """Under the global barrier: reduce the norm over all stages, decide, and step."""
        self._ready()
        sums = self._square_sums()
        if self.groups.norms is not None:
            dist.all_reduce(sums, group=self.groups.norms)
        max_norm = self.training.max_norm(self.step_number)
        with self.recorder.op(None, Kind.O, None):
            decision = decide(sums, max_norm)
            apply(decision, max_norm, self._optimizers())
        self.scale.update(decision)
        self.after_update(self.step_number, decision)
