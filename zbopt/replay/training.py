"""Training of a network by a schedule: the virtual stages of one process, and one iteration of the training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from zbopt.formats.torch_csv import Action
from zbopt.problem.instance import Barrier, Kind
from zbopt.problem.schedule import Schedule
from zbopt.replay.checks import checked_actions
from zbopt.replay.damage import Damage
from zbopt.replay.deferred import WeightQueue, defer_weights
from zbopt.replay.groups import Groups
from zbopt.replay.lowering import lower
from zbopt.replay.networks import TIED, batch, boundary, build_virtual_stage, loss_of
from zbopt.replay.observe import Recorder
from zbopt.replay.optimizer_step import Decision, LossScale, apply, decide, optimizer_of, square_sum
from zbopt.replay.post_validation import PostValidation, prefixes
from zbopt.replay.simulate import FifoLink, SimulatedStage
from zbopt.replay.spec import Network, Training
from zbopt.replay.torch_runtime import PipelineRuntime, RecordedStage

AfterGradients = Callable[[int], None]
"""Function called with the step when its gradients are ready: reduced, tied, unscaled, not clipped."""
AfterUpdate = Callable[[int, Decision], None]
"""Function called with the step and its decision when the weights are final."""


@dataclass
class LocalVirtualStage:
    """Hold one virtual stage of this process."""

    module: nn.Module
    optimizer: torch.optim.Optimizer
    queue: WeightQueue | None


class Pipeline:
    """Train the virtual stages of this process. ``local`` holds them by number.

    Args:
        schedule: The schedule; its instance gives the numbers of virtual stages and microbatches, and the barrier.
        network: The network.
        training: What happens around the step.
        groups: This process's place in the run.
        recorder: Records each op.
        device: Where the network lives.
        damage: Damage to do on purpose; ``None`` in a real run.
        after_gradients: Called when the gradients of a step are ready.
        after_update: Called when the weights of a step are final.
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
            raise ValueError("--lowering engine cannot run barrier post_validation; use --lowering zbopt")
        self.scale = LossScale(training)
        self.step_number, self._accumulation_pass = 0, 0
        self.local = {v: self._build_local(v) for v in groups.own}
        self.losses: list[float] = []
        self.runtime = self._build_runtime()
        post = self.instance.barrier is Barrier.POST_VALIDATION
        self.post = PostValidation(self._optimizers(), groups.norms) if post else None

    def _build_local(self, virtual_stage: int) -> LocalVirtualStage:
        if self.network.kind == "wait":
            module: nn.Module = SimulatedStage(self.schedule, self.network, virtual_stage)
        else:
            module = build_virtual_stage(self.network, virtual_stage, self.instance.virtual_stages)
        module = module.to(self.device)
        queue = defer_weights(module) if self.training.split == "deferred" else None
        if isinstance(module, SimulatedStage) and queue is not None:
            module.queue = queue
        return LocalVirtualStage(module, optimizer_of(module.parameters(), self.training), queue)

    def _build_runtime(self) -> PipelineRuntime:
        single = len(set(self.groups.stage_of)) == 1
        actions_of = checked_actions if self.damage is None else lower
        actions_by_rank = actions_of(self.schedule, single_process=single)
        self._prefix = prefixes(actions_by_rank, self.groups.stage_of)[self.groups.stage]
        return PipelineRuntime(
            [self._recorded_stage(v) for v in self.groups.own],
            actions_by_rank,
            self.instance.microbatches,
            self._loss,
            drive=self._drive,
            recorder=self.recorder,
            own_lowering=self.training.lowering == "engine",
            link=self._link(),
        )

    def _loss(self, out: Tensor, target: Tensor) -> Tensor:
        with self.recorder.part_of_last_op():
            return loss_of(self.network)(out, target) * self._loss_factor()

    def _link(self) -> FifoLink | None:
        if self.network.kind != "wait" or self.network.link == "free" or self.groups.norms is None:
            return None
        return FifoLink(self.instance.comm_ticks * self.network.tick_s)

    def _recorded_stage(self, virtual_stage: int) -> RecordedStage:
        example_input, example_output = boundary(self.network, virtual_stage, self.instance.virtual_stages)
        local = self.local[virtual_stage]
        return RecordedStage(
            local.module,
            virtual_stage,
            self.instance.virtual_stages,
            device=self.device,
            example_input=example_input.detach().to(self.device).requires_grad_(example_input.requires_grad),
            example_output=example_output.detach().to(self.device).requires_grad_(example_output.requires_grad),
            group=self.groups.pipeline,
            queue=local.queue,
            recorder=self.recorder,
            on_last_gradient=self._reduce_gradients,
            damage=self.damage,
        )

    def _optimizers(self) -> list[torch.optim.Optimizer]:
        return [self.local[v].optimizer for v in self.groups.own]

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the parameters of this process with names such as ``v3.block5.up.weight``."""
        for v, local in self.local.items():
            for name, parameter in local.module.named_parameters():
                yield f"v{v}.{name}", parameter

    def _loss_factor(self) -> float:
        return float("inf") if self.step_number in self.training.overflow_at else self.scale.value

    def run_step(self) -> None:
        """Run one iteration: every accumulation pass, then the update.

        Under post-validation the update is an optimistic step, which the next iteration validates.
        """
        samples = self.instance.microbatches * self.network.microbatch_size
        self.losses = []
        for number in range(self.training.accumulation):
            self._accumulation_pass = number
            inputs, targets = batch(self.network, samples, self.step_number, self.groups.replica, number)
            inputs, targets = inputs.to(self.device), targets.to(self.device)
            if self.recorder.meter is not None:
                self.recorder.meter.ignore(inputs, targets)
            if number == 0 and self.post is None:
                self._zero_grad()
            losses = self.runtime.step(
                inputs if 0 in self.local else None,
                targets if self.instance.virtual_stages - 1 in self.local else None,
            )
            self.losses += [float(loss) / self._loss_factor() for loss in losses]
        if self.post is None:
            self._update()
        self.step_number += 1

    def finish(self) -> None:
        """Make all steps so far final; under post-validation call this before you read weights."""
        if self.post is not None:
            self._validate()

    @property
    def rollbacks(self) -> int:
        """Return how many optimistic steps were taken back so far."""
        return self.post.rollbacks if self.post is not None else 0

    def _zero_grad(self) -> None:
        for local in self.local.values():
            local.optimizer.zero_grad()

    def _drive(self, actions: Sequence[Action]) -> Iterator[Action]:
        """Yield the actions that the runtime shall run, damaged where the run is to be."""
        for action in self._with_validation(actions):
            if self.damage is not None:
                self.damage.end_before(action, self.step_number)
            yield action

    def _with_validation(self, actions: Sequence[Action]) -> Iterator[Action]:
        """Yield the actions; under post-validation validate the last step after the prefix.

        Where the last step is taken back, the prefix has run with the wrong weights and is yielded again.
        """
        if self.damage is not None:
            actions = list(self.damage.of_actions(actions, self.step_number, self.instance.virtual_stages))
        if self.post is None:
            yield from actions
            return
        prefix = [a for a in actions if a in self._prefix] if self._accumulation_pass == 0 else []
        yield from prefix
        if self._accumulation_pass == 0:
            if not self._validate():
                yield from (a for a in prefix if a.microbatch is not None)
            self._zero_grad()
        yield from (a for a in actions if a not in prefix)
        if self._accumulation_pass == self.training.accumulation - 1:
            with self.recorder.op(None, Kind.O, None):
                self._finish_gradients()
                self.post.try_step(self._square_sums(), self.training.max_norm(self.step_number), self.step_number)

    def _validate(self) -> bool:
        """Validate the pending step, if any, and return whether its optimistic update stands."""
        if self.post is None or (verdict := self.post.validate()) is None:
            return True
        step, decision, stands = verdict
        self.scale.update(decision)
        self.after_update(step, decision)
        return stands

    def _reduce_gradients(self, virtual_stage: int) -> None:
        """Divide by microbatches and passes after the last pass, and average over replicas (REDUCE_GRAD)."""
        if self._accumulation_pass < self.training.accumulation - 1:
            return
        for parameter in self.local[virtual_stage].module.parameters():
            if parameter.grad is not None:
                parameter.grad.div_(self.instance.microbatches * self.training.accumulation)
                if self.groups.data is not None:
                    dist.all_reduce(parameter.grad, group=self.groups.data)
                    parameter.grad.div_(self.groups.replicas)

    def _finish_gradients(self) -> None:
        """Add the gradients of tied weights, and take the loss scale off all gradients."""
        if self.network.is_tied:
            self._share_tied()
        for _, parameter in self.named_parameters():
            if parameter.grad is not None:
                parameter.grad.div_(self.scale.value)
        self.after_gradients(self.step_number)

    def tied_copies(self) -> list[nn.Parameter]:
        """Return the copies of the tied weight in this process: none, one or both."""
        ends = {0: TIED["first"], self.instance.virtual_stages - 1: TIED["last"]}
        return [self.local[v].module.get_parameter(name) for v, name in ends.items() if v in self.local]

    def _share_tied(self) -> None:
        grads = [copy.grad for copy in self.tied_copies() if copy.grad is not None]
        if len(grads) == 2:
            total = grads[0] + grads[1]
            for grad in grads:
                grad.copy_(total)
        elif grads and self.groups.tie is not None:
            dist.all_reduce(grads[0], group=self.groups.tie)

    def _square_sums(self) -> Tensor:
        """Return the square sums of all virtual stages, zero for those of other processes.

        A tied weight counts in the first virtual stage only.
        """
        sums = torch.zeros(self.instance.virtual_stages, dtype=torch.float64, device=self.device)
        last = self.instance.virtual_stages - 1
        for v, local in self.local.items():
            named = local.module.named_parameters()
            counted = [p for name, p in named if not (self.network.is_tied and v == last and name == TIED["last"])]
            sums[v] = square_sum(p.grad for p in counted if p.grad is not None)
        return sums

    def _update(self) -> None:
        """Reduce the norm over all stages, decide, and step, as the global barrier asks."""
        self._finish_gradients()
        sums = self._square_sums()
        if self.groups.norms is not None:
            dist.all_reduce(sums, group=self.groups.norms)
        max_norm = self.training.max_norm(self.step_number)
        with self.recorder.op(None, Kind.O, None):
            decision = decide(sums, max_norm)
            apply(decision, max_norm, self._optimizers())
        self.scale.update(decision)
        self.after_update(self.step_number, decision)
