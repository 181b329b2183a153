"""Checkpoints of weights, optimizer state, loss scale and step, through torch.distributed.checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load as load_state
from torch.distributed.checkpoint.state_dict_saver import save as save_state

from zbopt.replay.training import Pipeline


def save(pipeline: Pipeline, folder: Path) -> Path:
    """Write a checkpoint to ``folder/step-N``, where N is the number of finished steps, and return its path.

    Every rank calls this. PyTorch writes ``.metadata`` last, so a checkpoint with that file is complete.
    """
    pipeline.finish()
    path = folder / f"step-{pipeline.step_number}"
    save_state(_state(pipeline), checkpoint_id=path)
    return path


def load(pipeline: Pipeline, path: Path) -> None:
    """Load what ``save`` wrote into ``pipeline``.

    The placement may be another one than when the checkpoint was saved, because its keys are virtual stages.

    Raises:
        ValueError: The checkpoint is of another network, or of another number type.
    """
    state = _state(pipeline)
    _require_same_network(state, path)
    load_state(state, checkpoint_id=path)
    for v, local in pipeline.local.items():
        set_model_state_dict(local.module, state[f"v{v}.model"])
        set_optimizer_state_dict(local.module, local.optimizer, optim_state_dict=state[f"v{v}.optimizer"])
    counters = state["counters"]
    pipeline.step_number, pipeline.scale.good_steps = int(counters[0]), int(counters[1])
    pipeline.scale.value = float(counters[2])


def _require_same_network(state: Mapping[str, Any], path: Path) -> None:
    """Refuse a checkpoint of another network or number type.

    PyTorch's own loading takes a checkpoint of another dtype without a word, and rounds it.
    """
    saved = FileSystemReader(path).read_metadata().state_dict_metadata
    for key, tensor in _weights(state):
        stored = saved.get(key)
        if not isinstance(stored, TensorStorageMetadata):
            raise ValueError(f"{path}: has no weight {key}; {_OTHER_NETWORK}")
        if stored.properties.dtype != tensor.dtype:
            was, now = (str(dtype).removeprefix("torch.") for dtype in (stored.properties.dtype, tensor.dtype))
            raise ValueError(
                f"{path}: holds {was} weights, but the network has {now}; give --dtype {was}, or leave --resume out"
            )
        if stored.size != tensor.shape:
            raise ValueError(
                f"{path}: {key} has shape {list(stored.size)}, but {list(tensor.shape)} here; {_OTHER_NETWORK}"
            )


_OTHER_NETWORK = "the checkpoint is of another network; give the flags that it was saved with, or leave --resume out"


def _weights(state: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Yield every weight of a training state under its key in a checkpoint."""
    for group, values in state.items():
        if group.endswith(".model"):
            for name, weight in values.items():
                yield f"{group}.{name}", weight


def latest(folder: Path) -> Path | None:
    """Return the complete checkpoint in ``folder`` with the most steps; ``None`` where there is none."""
    complete = [path for path in folder.glob("step-*") if (path / ".metadata").is_file()]
    return max(complete, key=lambda path: int(path.name.removeprefix("step-")), default=None)


def _state(pipeline: Pipeline) -> dict[str, Any]:
    """Collect everything that a checkpoint of ``pipeline`` holds, by key."""
    state: dict[str, Any] = {}
    for v, local in pipeline.local.items():
        state[f"v{v}.model"] = get_model_state_dict(local.module)
        state[f"v{v}.optimizer"] = get_optimizer_state_dict(local.module, local.optimizer)
    scale = pipeline.scale
    counters = [pipeline.step_number, scale.good_steps, scale.value]
    state["counters"] = torch.tensor(counters, dtype=torch.float64)
    return state
