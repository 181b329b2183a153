"""Checkpoints of weights, optimizer state, loss scale and step, through torch.distributed.checkpoint."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.planner import ReadItem
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
        ValueError: The checkpoint is damaged, of another network, or of another number type.
    """
    state = _state(pipeline)
    _require_same_network(state, path)
    try:
        load_state(state, storage_reader=_SafeReader(path), planner=_SafePlanner())
    except CheckpointException as error:  # no Exception, so nothing else would turn it into a sentence
        reason, _ = next(iter(error.failures.values()))
        raise ValueError(f"{path}: cannot be loaded: {reason}; resume from another checkpoint") from error
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
    saved = _SafeReader(path).read_metadata().state_dict_metadata
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


_METADATA = "torch.distributed.checkpoint.metadata"
_ALLOWED = frozenset(
    {
        ("pathlib", "PosixPath"),
        ("pathlib", "WindowsPath"),
        ("torch", "Size"),
        ("torch.serialization", "_get_layout"),
        ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
        (_METADATA, "_MEM_FORMAT_ENCODING"),
        (_METADATA, "BytesStorageMetadata"),
        (_METADATA, "ChunkStorageMetadata"),
        (_METADATA, "Metadata"),
        (_METADATA, "MetadataIndex"),
        (_METADATA, "StorageMeta"),
        (_METADATA, "TensorProperties"),
        (_METADATA, "TensorStorageMetadata"),
    }
)
"""Module and name of everything that torch 2.13 puts into ``.metadata``, beside its number types."""


class _SafeUnpickler(pickle.Unpickler):
    """Load a pickle that names nothing but the parts of a checkpoint: any other name could be a program to run."""

    def find_class(self, module: str, name: str) -> Any:
        """Return what the pickle names, if it is part of a checkpoint."""
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if is_dtype or (module, name) in _ALLOWED:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"names {module}.{name}, which is no part of a checkpoint")


class _SafeReader(FileSystemReader):
    """Read a checkpoint without running code from it; PyTorch's own reader unpickles whatever ``.metadata`` holds."""

    def read_metadata(self) -> Metadata:  # type: ignore[override]  # there is no metadata of single ranks here
        """Read what the checkpoint holds.

        Raises:
            ValueError: ``.metadata`` is damaged, or holds what is no part of a checkpoint.
        """
        path = Path(self.path)
        try:
            with (path / ".metadata").open("rb") as file:
                metadata = _SafeUnpickler(file).load()
        except Exception as error:  # a damaged pickle raises almost anything
            raise ValueError(f"{path}: .metadata cannot be read: {error}; resume from another checkpoint") from None
        if not isinstance(metadata, Metadata):
            raise ValueError(f"{path}: .metadata is no metadata of a checkpoint; resume from another checkpoint")
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


class _SafePlanner(DefaultLoadPlanner):
    """Load numbers of the optimizer without running code from them; PyTorch's own planner unpickles anything."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Load a value that is no tensor, after a look at it that refuses code."""
        try:
            torch.load(value, weights_only=True)
        except Exception:  # a damaged pickle raises almost anything
            raise ValueError(f"{read_item.dest_index.fqn} is damaged, or not a number") from None
        value.seek(0)
        super().load_bytes(read_item, value)


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
