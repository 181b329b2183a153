"""Stop and resume: weights, optimizer state, loss scale and step, through torch.distributed.checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
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
    """Write ``folder/step-N``, N the number of finished steps; every rank calls this. It is complete with .metadata."""
    pipeline.finish()
    path = folder / f"step-{pipeline.step_number}"
    save_state(_state(pipeline), checkpoint_id=path)
    return path


def load(pipeline: Pipeline, path: Path) -> None:
    """Take over what ``save`` wrote, by the same schedule placement or another: keys are by virtual stage.

    Raises:
        ValueError: It is of another network, or of another type of numbers.
    """
    state = _state(pipeline)
    _require_alike(state, path)
    load_state(state, checkpoint_id=path)
    for v, part in pipeline.parts.items():
        set_model_state_dict(part.module, state[f"v{v}.model"])
        set_optimizer_state_dict(part.module, part.optimizer, optim_state_dict=state[f"v{v}.optimizer"])
    counters = state["counters"]
    pipeline.step_number, pipeline.scale.good_steps = int(counters[0]), int(counters[1])
    pipeline.scale.value = float(counters[2])


def _require_alike(state: Mapping[str, Any], path: Path) -> None:
    """Loading itself takes a checkpoint of another dtype without a word, and rounds it."""
    saved = FileSystemReader(path).read_metadata().state_dict_metadata
    mine = ((f"{part}.{name}", w) for part, held in state.items() if ".model" in part for name, w in held.items())
    for key, tensor in mine:
        held = saved.get(key)
        if not isinstance(held, TensorStorageMetadata):
            raise ValueError(f"{path}: holds no {key}; {_OF_ANOTHER}")
        if held.properties.dtype != tensor.dtype:
            was, now = (str(dtype).removeprefix("torch.") for dtype in (held.properties.dtype, tensor.dtype))
            raise ValueError(f"{path}: is of {was}, and the network is {now}; give --dtype {was}, or no --resume")
        if held.size != tensor.shape:
            raise ValueError(f"{path}: {key} is {list(held.size)}, and here {list(tensor.shape)}; {_OF_ANOTHER}")


_OF_ANOTHER = "it is of another network; give the flags that it was saved with, or no --resume"


def latest(folder: Path) -> Path | None:
    """The complete checkpoint with the most steps; ``None``: there is none."""
    found = [path for path in folder.glob("step-*") if (path / ".metadata").is_file()]
    return max(found, key=lambda path: int(path.name.removeprefix("step-")), default=None)


def _state(pipeline: Pipeline) -> dict[str, Any]:
    state: dict[str, Any] = {}
    for v, part in pipeline.parts.items():
        state[f"v{v}.model"] = get_model_state_dict(part.module)
        state[f"v{v}.optimizer"] = get_optimizer_state_dict(part.module, part.optimizer)
    scale = pipeline.scale
    counters = [pipeline.step_number, scale.good_steps, scale.value]
    state["counters"] = torch.tensor(counters, dtype=torch.float64)
    return state
