"""An adapter that drives PyTorch's own pipeline runtime by our actions; only this module uses torch's private names.

Written for torch 2.13. The runtime's interface is private and changes between minor versions, so
``launch.require_torch`` refuses any other version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight
from torch.distributed.pipelining.schedules import _Action, _ComputationType, _PipelineScheduleRuntime

from zbopt.formats.torch_csv import COMPUTE, Action, Op, Rows
from zbopt.problem.instance import Kind
from zbopt.replay.damage import Damage
from zbopt.replay.deferred import WeightQueue
from zbopt.replay.observe import OpRecord, Recorder, checksum
from zbopt.replay.simulate import FifoLink, LinkWork, SimulatedStage

DriveActions = Callable[[Sequence[Action]], Iterator[Action]]
"""Function from a rank's planned actions to those to run; it may do work of its own between two of them."""
OnLastGradient = Callable[[int], None]
"""Function called with a virtual stage when its last weight gradient has been added."""


class RecordedStage(PipelineStage):
    """Run one virtual stage as PyTorch's own stage does, record its ops, and leave gradient reduction to the caller."""

    def __init__(
        self,
        module: nn.Module,
        virtual_stage: int,
        virtual_stages: int,
        *,
        device: torch.device,
        example_input: Tensor,
        example_output: Tensor,
        group: dist.ProcessGroup | None,
        queue: WeightQueue | None,
        recorder: Recorder,
        on_last_gradient: OnLastGradient,
        damage: Damage | None = None,
    ) -> None:
        super().__init__(
            module,
            virtual_stage,
            virtual_stages,
            device,
            input_args=(example_input,),
            output_args=(example_output,),
            group=group,
            dw_builder=queue.take if queue else None,
        )
        self.recorder, self.on_last_gradient, self.damage = recorder, on_last_gradient, damage
        self._counted_until_w: dict[int, list[object]] = {}

    def _announce(self, kind: Kind, microbatch: int) -> None:
        """Tell a simulated stage which op runs next; a real network needs no notice."""
        if isinstance(self.submod, SimulatedStage):
            self.submod.current_op = (kind, microbatch)

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """Run F of one microbatch."""
        if self.damage is not None and not self.is_first:
            (info,) = self.args_recv_info[fwd_chunk_id]
            info.buffer = self.damage.of_input(info.buffer, self.stage_index, fwd_chunk_id, self.num_stages)
        self._announce(Kind.F, fwd_chunk_id)
        with self.recorder.op(self.stage_index, Kind.F, fwd_chunk_id) as record:
            out = super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)
        if self.recorder.checksums:
            record.checksum = checksum(out)
        return out

    def backward_one_chunk(
        self, bwd_chunk_id: int, loss: Tensor | None = None, full_backward: bool = True, last_backward: bool = False
    ) -> None:
        """Run B or BW of one microbatch."""
        kind = Kind.BW if full_backward else Kind.B
        self._announce(kind, bwd_chunk_id)
        with self.recorder.op(self.stage_index, kind, bwd_chunk_id) as record:
            super().backward_one_chunk(bwd_chunk_id, loss, full_backward, last_backward)
            self._count_until_w(bwd_chunk_id)
        grads = self.bwd_cache.get(bwd_chunk_id) or ()
        if self.recorder.checksums and grads and isinstance(grads[0], Tensor):
            record.checksum = checksum(grads[0])
        self._record_gradients(record)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> None:
        """Run W of one microbatch."""
        with self.recorder.op(self.stage_index, Kind.W, bwd_chunk_id) as record:
            super().backward_weight_one_chunk(bwd_chunk_id, *args, **kwargs)
            self._counted_until_w.pop(bwd_chunk_id, None)
        self._record_gradients(record)

    def _count_until_w(self, microbatch: int) -> None:
        """Count the memory that the runtime's own split keeps from B to W, beside the autograd graph."""
        if self.recorder.meter is not None and microbatch in self.backward_state:
            groups = self.backward_state[microbatch][1] or ()
            self._counted_until_w[microbatch] = [
                self.recorder.meter.hold(tensor) for tensor in _gradients_kept_for_w(groups)
            ]

    def _record_gradients(self, record: OpRecord) -> None:
        """Write a checksum of the gradients added so far into ``record``."""
        if self.recorder.checksums:
            record.gradients_checksum = checksum(*(p.grad for p in self.submod.parameters() if p.grad is not None))

    def perform_reduce_grad(self, grad_scale_factor: int) -> None:
        """Leave scaling, accumulation and data parallel reduction to the training around the step."""
        self.on_last_gradient(self.stage_index)


def split_backward(out: Tensor, inputs: Tensor, module: nn.Module) -> tuple[Callable[[], None], list[Tensor]]:
    """Run B of one microbatch by the runtime's own split, on a virtual stage that is not the first.

    Returns:
        The function that runs W, and the tensors that are kept for it.
    """
    groups = stage_backward_input([out], [torch.ones_like(out)], [inputs], module.parameters())[1]

    def run_w() -> None:
        stage_backward_weight(module.parameters(), groups)

    return run_w, _gradients_kept_for_w(groups)


def _gradients_kept_for_w(groups: Sequence[dict[str, Any]]) -> list[Tensor]:
    """Return the gradients at the graph's inner nodes from which the runtime's own W continues."""
    gradients = []
    for group in groups:
        for of_node in group.get("grads") or ():
            gradients += [gradient for gradient in of_node or () if gradient is not None]
    return gradients


class _DrivenActions(list[_Action]):
    """Hand the runtime its actions one by one, as ``drive`` orders them.

    ``do_instead`` may do an action in the runtime's place; it then returns ``True``, and the runtime never sees it.
    """

    def __init__(
        self,
        actions: Sequence[Action],
        drive: DriveActions,
        recorder: Recorder,
        do_instead: Callable[[Action], bool],
    ) -> None:
        super().__init__(map(_to_torch, actions))
        self._actions, self._drive, self._recorder, self._do_instead = actions, drive, recorder, do_instead

    def __deepcopy__(self, memo: dict[int, object]) -> list[_Action]:
        """Return the planned actions without driving them.

        The runtime copies its actions to print them beside an error; driving them again would hide that error.
        """
        return [_to_torch(action) for action in self._actions]

    def __iter__(self) -> Iterator[_Action]:
        for action in self._drive(self._actions):
            self._recorder.asked(str(action))
            if not self._do_instead(action):
                yield _to_torch(action)


def _to_torch(action: Action) -> _Action:
    return _Action(action.virtual_stage, _ComputationType.from_str(action.op.value), action.microbatch)


def _from_torch(action: _Action) -> Action:
    return Action(action.stage_index, Op(action.computation_type.value), action.microbatch_index)


_TRANSFERS: dict[Op, Callable[[RecordedStage, int], list[dist.P2POp]]] = {
    Op.SEND_F: RecordedStage.get_fwd_send_ops,
    Op.RECV_F: RecordedStage.get_fwd_recv_ops,
    Op.SEND_B: RecordedStage.get_bwd_send_ops,
    Op.RECV_B: RecordedStage.get_bwd_recv_ops,
}


class PipelineRuntime:
    """Run the actions of one rank on PyTorch's runtime.

    An object whose ``step`` raised must not be used again, because the runtime keeps stale losses.

    Args:
        virtual_stages: This rank's virtual stages.
        actions_by_rank: The actions of every rank.
        microbatches: Number of microbatches in one run.
        loss: Function from output and target to the loss of one microbatch, for the last virtual stage.
        drive: Chooses what to run, from this rank's planned actions.
        recorder: Records each op.
        own_lowering: Let the runtime place sends and receives itself, from the compute actions alone.
        link: A simulated link for the transfers; ``None``: the links of the process group.
    """

    def __init__(
        self,
        virtual_stages: Sequence[RecordedStage],
        actions_by_rank: Rows,
        microbatches: int,
        loss: Callable[[Tensor, Tensor], Tensor],
        *,
        drive: DriveActions,
        recorder: Recorder,
        own_lowering: bool = False,
        link: FifoLink | None = None,
    ) -> None:
        in_order = sorted(virtual_stages, key=lambda stage: stage.stage_index)
        runtime = _PipelineScheduleRuntime(list(in_order), microbatches, loss_fn=loss, scale_grads=False)
        table: dict[int, list[_Action | None]] = {
            rank: [_to_torch(a) for a in actions if not own_lowering or a.op in COMPUTE]
            for rank, actions in enumerate(actions_by_rank)
        }
        runtime._prepare_schedule_with_comms(table, format="compute_only" if own_lowering else "compute_comms")
        rank = runtime.rank
        actions = tuple(_from_torch(action) for action in runtime.pipeline_order_with_comms[rank])
        runtime.pipeline_order_with_comms[rank] = _DrivenActions(actions, drive, recorder, self._transfer_on_link)
        self._runtime, self._link = runtime, link
        self._by_index = {stage.stage_index: stage for stage in in_order}
        self._sends: list[LinkWork] = []

    def _transfer_on_link(self, action: Action) -> bool:
        """Do a transfer on the simulated link, if there is one, and return whether that was done."""
        if self._link is None or action.op not in _TRANSFERS or action.microbatch is None:
            return False
        stage = self._by_index[action.virtual_stage]
        works: list[Any] = [self._link.post(op) for op in _TRANSFERS[action.op](stage, action.microbatch)]
        key = (action.virtual_stage, action.microbatch)
        if action.op is Op.RECV_F:
            self._runtime.fwd_recv_ops[key] = works
        elif action.op is Op.RECV_B:
            self._runtime.bwd_recv_ops[key] = works
        else:
            self._sends += works
        return True

    def step(self, inputs: Tensor | None, targets: Tensor | None) -> list[Tensor]:
        """Run the actions once, and add the gradients to those of the parameters.

        Args:
            inputs: The whole batch, on the rank of the first virtual stage; ``None`` elsewhere.
            targets: The whole batch, on the rank of the last virtual stage; ``None`` elsewhere.

        Returns:
            The losses by microbatch, on the rank of the last virtual stage.
        """
        losses: list[Tensor] = []
        has_last = targets is not None
        args = () if inputs is None else (inputs,)
        self._runtime.step(*args, target=targets, losses=losses if has_last else None, return_outputs=False)
        while self._sends:
            self._sends.pop().wait()
        return [loss.detach() for loss in losses]
