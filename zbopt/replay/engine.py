"""The one place that knows PyTorch's private names: its pipeline runtime, driven by our actions, unforked.

Written for torch 2.13; the runtime's interface is private and moves: ``launch.require_torch`` refuses other versions.
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
from zbopt.replay.observe import Record, Recorder, checksum
from zbopt.replay.simulate import FifoLink, LinkWork, Waits

Drive = Callable[[Sequence[Action]], Iterator[Action]]
"""What the runtime shall do: a rank's actions -> the actions to run, with anything in between."""
Reduced = Callable[[int], None]
"""Called with a virtual stage when its last weight gradient is there."""


class Slice(PipelineStage):
    """A virtual stage: the engine's own, that records its ops and reduces its gradients our way."""

    def __init__(
        self,
        module: nn.Module,
        virtual_stage: int,
        virtual_stages: int,
        *,
        device: torch.device,
        takes: Tensor,
        gives: Tensor,
        group: dist.ProcessGroup | None,
        queue: WeightQueue | None,
        recorder: Recorder,
        reduced: Reduced,
        damage: Damage | None = None,
    ) -> None:
        super().__init__(
            module,
            virtual_stage,
            virtual_stages,
            device,
            input_args=(takes,),
            output_args=(gives,),
            group=group,
            dw_builder=queue.take if queue else None,
        )
        self.recorder, self.reduced, self.damage = recorder, reduced, damage
        self._held: dict[int, list[object]] = {}

    def _now(self, kind: Kind, microbatch: int) -> None:
        if isinstance(self.submod, Waits):
            self.submod.now = (kind, microbatch)

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """F of one microbatch."""
        if self.damage is not None and not self.is_first:
            (info,) = self.args_recv_info[fwd_chunk_id]
            info.buffer = self.damage.of_input(info.buffer, self.stage_index, fwd_chunk_id, self.num_stages)
        self._now(Kind.F, fwd_chunk_id)
        with self.recorder.op(self.stage_index, Kind.F, fwd_chunk_id) as record:
            out = super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)
        if self.recorder.checksums:
            record.checksum = checksum(out)
        return out

    def backward_one_chunk(
        self, bwd_chunk_id: int, loss: Tensor | None = None, full_backward: bool = True, last_backward: bool = False
    ) -> None:
        """B or BW of one microbatch."""
        kind = Kind.BW if full_backward else Kind.B
        self._now(kind, bwd_chunk_id)
        with self.recorder.op(self.stage_index, kind, bwd_chunk_id) as record:
            super().backward_one_chunk(bwd_chunk_id, loss, full_backward, last_backward)
            self._hold(bwd_chunk_id)
        grads = self.bwd_cache.get(bwd_chunk_id) or ()
        if self.recorder.checksums and grads and isinstance(grads[0], Tensor):
            record.checksum = checksum(grads[0])
        self._sum_up(record)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> None:
        """W of one microbatch."""
        with self.recorder.op(self.stage_index, Kind.W, bwd_chunk_id) as record:
            super().backward_weight_one_chunk(bwd_chunk_id, *args, **kwargs)
            self._held.pop(bwd_chunk_id, None)
        self._sum_up(record)

    def _hold(self, microbatch: int) -> None:
        """Count what the engine's own split keeps from B to W beside the graph."""
        if self.recorder.meter is not None and microbatch in self.backward_state:
            groups = self.backward_state[microbatch][1] or ()
            self._held[microbatch] = [self.recorder.meter.hold(tensor) for tensor in _kept(groups)]

    def _sum_up(self, record: Record) -> None:
        """Note the gradients as they are now."""
        if self.recorder.checksums:
            record.gradients_checksum = checksum(*(p.grad for p in self.submod.parameters() if p.grad is not None))

    def perform_reduce_grad(self, grad_scale_factor: int) -> None:
        """Scaling, accumulation and data parallel reduction belong to the training around the step."""
        self.reduced(self.stage_index)


def split_backward(out: Tensor, inputs: Tensor, module: nn.Module) -> tuple[Callable[[], None], list[Tensor]]:
    """The engine's own B of one microbatch of a virtual stage that is not the first: its W, and what that keeps."""
    groups = stage_backward_input([out], [torch.ones_like(out)], [inputs], module.parameters())[1]

    def weights() -> None:
        stage_backward_weight(module.parameters(), groups)

    return weights, _kept(groups)


def _kept(groups: Sequence[dict[str, Any]]) -> list[Tensor]:
    """The gradients at the graph's inner nodes from which the engine's W goes on."""
    return [grad for group in groups for grads in group.get("grads") or () for grad in grads or () if grad is not None]


class _Stream(list[_Action]):
    """The runtime walks over this; ``drive`` decides what it meets, and ``take`` may do an action in its place."""

    def __init__(
        self, actions: Sequence[Action], drive: Drive, recorder: Recorder, take: Callable[[Action], bool]
    ) -> None:
        super().__init__(map(_native, actions))
        self._actions, self._drive, self._recorder, self._take = actions, drive, recorder, take

    def __deepcopy__(self, memo: dict[int, object]) -> list[_Action]:
        """The runtime copies its actions to print them beside an error; driving them again would hide that error."""
        return [_native(action) for action in self._actions]

    def __iter__(self) -> Iterator[_Action]:
        for action in self._drive(self._actions):
            self._recorder.asked(str(action))
            if not self._take(action):
                yield _native(action)


def _native(action: Action) -> _Action:
    return _Action(action.virtual_stage, _ComputationType.from_str(action.op.value), action.microbatch)


def _ours(action: _Action) -> Action:
    return Action(action.stage_index, Op(action.computation_type.value), action.microbatch_index)


_TRANSFERS: dict[Op, Callable[[Slice, int], list[dist.P2POp]]] = {
    Op.SEND_F: Slice.get_fwd_send_ops,
    Op.RECV_F: Slice.get_fwd_recv_ops,
    Op.SEND_B: Slice.get_bwd_send_ops,
    Op.RECV_B: Slice.get_bwd_recv_ops,
}


class Engine:
    """PyTorch's runtime for one rank. After an exception in ``step`` throw it away: it keeps stale losses.

    Args:
        slices: This rank's virtual stages.
        rows: Every rank's actions.
        microbatches: Number of microbatches in one run.
        loss: (output, target) -> loss of one microbatch; the last virtual stage's.
        own_lowering: Let the runtime place sends and receives itself, from the compute actions of ``rows``.
        drive: What to run, from this rank's actions.
        link: A simulated link for the transfers; ``None``: the process group's own.
    """

    def __init__(
        self,
        slices: Sequence[Slice],
        rows: Rows,
        microbatches: int,
        loss: Callable[[Tensor, Tensor], Tensor],
        *,
        drive: Drive,
        recorder: Recorder,
        own_lowering: bool = False,
        link: FifoLink | None = None,
    ) -> None:
        self.slices = sorted(slices, key=lambda part: part.stage_index)
        runtime = _PipelineScheduleRuntime(list(self.slices), microbatches, loss_fn=loss, scale_grads=False)
        kept: dict[int, list[_Action | None]] = {
            rank: [_native(a) for a in row if not own_lowering or a.op in COMPUTE] for rank, row in enumerate(rows)
        }
        runtime._prepare_schedule_with_comms(kept, format="compute_only" if own_lowering else "compute_comms")
        rank = runtime.rank
        actions = tuple(_ours(action) for action in runtime.pipeline_order_with_comms[rank])
        runtime.pipeline_order_with_comms[rank] = _Stream(actions, drive, recorder, self._take)
        self.actions = actions
        self._runtime, self._link = runtime, link
        self._by_index = {part.stage_index: part for part in self.slices}
        self._sends: list[LinkWork] = []

    def _take(self, action: Action) -> bool:
        """Do a transfer on the simulated link, as the runtime would on the process group."""
        if self._link is None or action.op not in _TRANSFERS or action.microbatch is None:
            return False
        part = self._by_index[action.virtual_stage]
        works: list[Any] = [self._link.post(op) for op in _TRANSFERS[action.op](part, action.microbatch)]
        key = (action.virtual_stage, action.microbatch)
        if action.op is Op.RECV_F:
            self._runtime.fwd_recv_ops[key] = works
        elif action.op is Op.RECV_B:
            self._runtime.bwd_recv_ops[key] = works
        else:
            self._sends += works
        return True

    def step(self, inputs: Tensor | None, targets: Tensor | None) -> list[Tensor]:
        """Run the actions once; gradients add up in the parameters.

        Args:
            inputs: The whole batch, on the rank of the first virtual stage.
            targets: The whole batch, on the rank of the last one.

        Returns:
            The losses by microbatch, on the rank of the last virtual stage.
        """
        losses: list[Tensor] = []
        held_last = targets is not None
        args = () if inputs is None else (inputs,)
        self._runtime.step(*args, target=targets, losses=losses if held_last else None, return_outputs=False)
        while self._sends:
            self._sends.pop().wait()
        return [loss.detach() for loss in losses]
