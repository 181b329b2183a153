"""Recording of a step op by op: times in nanoseconds, memory, checksums. Each process has one recorder."""

from __future__ import annotations

import hashlib
import mmap
import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zbopt.problem.instance import Kind


class CpuClock:
    """Read the system's monotonic clock, which the processes of one machine share."""

    def __init__(self) -> None:
        self._origin = 0

    def start(self, origin: int) -> None:
        """Count from ``origin``, a value of ``now``."""
        self._origin = origin

    @staticmethod
    def now() -> int:
        """Return this machine's monotonic time in nanoseconds."""
        return time.perf_counter_ns()

    def stamp(self) -> object:
        """Return the present moment, for ``read``."""
        return time.perf_counter_ns()

    def read(self, stamp: Any) -> int:
        """Return the nanoseconds from the origin to ``stamp``."""
        return int(stamp) - self._origin


class CudaClock:
    """Read times from events on the compute stream: when the device got there, not when the host asked."""

    def __init__(self) -> None:
        self._origin = torch.cuda.Event(enable_timing=True)

    def start(self, origin: int) -> None:
        """Count from now; ``origin`` is not used.

        The clocks of two devices have nothing in common, and the ranks have just met at a barrier.
        """
        torch.cuda.synchronize()
        self._origin.record()

    @staticmethod
    def now() -> int:
        """Return the host's monotonic time in nanoseconds."""
        return time.perf_counter_ns()

    def stamp(self) -> object:
        """Record an event on the compute stream, for ``read``."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def read(self, stamp: Any) -> int:
        """Wait for the event, and return the nanoseconds from the origin to it."""
        stamp.synchronize()
        return round(float(self._origin.elapsed_time(stamp)) * 1e6)


def core_wait_ns() -> int:
    """Return how long this process's threads were ready but had no core, in all; 0 where the system does not tell."""
    total = 0
    for path in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError):  # the thread may have ended after it was listed
            total += int(path.read_text(encoding="ascii").split()[1])
    return total


class _SavedTensor:
    """Wrap a tensor that autograd keeps, so that a finalizer sees when autograd lets it go.

    It has to be the detached tensor: the original one refers to the graph, which refers to this object, and neither
    would be freed.
    """

    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


class MemoryMeter:
    """Count the bytes kept for backward passes: saved tensors and queued weight products, each storage once."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self._ignored = {p.untyped_storage().data_ptr() for p in parameters}
        self._data: set[int] = set()
        self._count: dict[int, int] = {}
        self._size: dict[int, int] = {}

    def ignore(self, *data: Tensor) -> None:
        """Leave this step's inputs and targets out of the count, in place of those of the step before.

        They are in memory whether or not a backward needs them.
        """
        self._data = {tensor.untyped_storage().data_ptr() for tensor in data}

    def hold(self, tensor: Tensor) -> _SavedTensor:
        """Count ``tensor`` until the returned object is freed."""
        saved = _SavedTensor(tensor.detach())
        storage = tensor.untyped_storage()
        key = storage.data_ptr()
        if key not in self._ignored and key not in self._data:
            self._count[key] = self._count.get(key, 0) + 1
            self._size[key] = storage.nbytes()
            weakref.finalize(saved, self._drop, key)
        return saved

    def _drop(self, key: int) -> None:
        self._count[key] -= 1
        if not self._count[key]:
            del self._count[key], self._size[key]

    def bytes(self) -> int:
        """Return the bytes that are kept now."""
        return sum(self._size.values())

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Count what autograd saves inside the context."""
        with torch.autograd.graph.saved_tensors_hooks(self.hold, lambda saved: saved.tensor):
            yield


def checksum(*tensors: Tensor) -> str:
    """Return the first twelve hex digits of the SHA-256 of the tensors' bytes."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:12]


class ActivityFile:
    """Keep a small file up to date that names this process's current op and when it began.

    The file is mapped into memory, so that the launching process can read it after this one was killed.
    """

    SIZE = 64

    def __init__(self, path: Path) -> None:
        path.write_bytes(b" " * self.SIZE)
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), self.SIZE)

    def note(self, text: str) -> None:
        """Replace the content of the file by the present time and ``text``."""
        self._map[:] = f"{time.monotonic():.3f} {text}".encode()[: self.SIZE].ljust(self.SIZE)


@dataclass
class OpRecord:
    """Record one op as it ran.

    ``asked`` is when the runtime turned to the op; from then until ``start`` the op waited for its input. Times are
    stamps of the recorder's clock.
    """

    virtual_stage: int | None
    kind: Kind
    microbatch: int | None
    asked: object
    start: object
    end: object = None
    memory_bytes: int = 0
    allocated_bytes: int = 0
    core_wait_ns: int = 0
    checksum: str | None = None
    gradients_checksum: str | None = None


class Recorder:
    """Collect the records of one step."""

    def __init__(self, clock: CpuClock | CudaClock, meter: MemoryMeter | None, activity: ActivityFile | None) -> None:
        self.clock, self.meter, self.activity = clock, meter, activity
        self.records: list[OpRecord] = []
        self.checksums, self.counts_cores = False, False
        self._core_wait_ns = 0
        self.step_name = ""
        self._asked: object = None

    def begin_step(self, step_name: str) -> None:
        """Forget the last step; ``step_name`` (such as ``step 3``) begins every line of the activity file."""
        self.records = []
        self.step_name = step_name
        self._core_wait_ns = core_wait_ns() if self.counts_cores else 0

    def asked(self, action: str) -> None:
        """Note that the runtime now turns to ``action``."""
        self._asked = self.clock.stamp()
        if self.activity is not None:
            self.activity.note(f"{self.step_name} {action}")

    @contextmanager
    def op(self, virtual_stage: int | None, kind: Kind, microbatch: int | None) -> Iterator[OpRecord]:
        """Record the op that runs inside the context."""
        watching = nullcontext() if self.meter is None or kind is not Kind.F else self.meter.watching()
        start = self.clock.stamp()
        record = OpRecord(virtual_stage, kind, microbatch, self._asked or start, start)
        with watching:
            yield record
        self.records.append(record)
        self._end(record)

    @contextmanager
    def part_of_last_op(self) -> Iterator[None]:
        """Count what runs inside as part of the last op: the runtime computes the loss after the F it belongs to."""
        with nullcontext() if self.meter is None else self.meter.watching():
            yield
        if self.records:
            self._end(self.records[-1])

    def _end(self, record: OpRecord) -> None:
        record.end = self.clock.stamp()
        if self.counts_cores:
            before, self._core_wait_ns = self._core_wait_ns, core_wait_ns()
            record.core_wait_ns += self._core_wait_ns - before
        record.memory_bytes = self.meter.bytes() if self.meter else 0
        record.allocated_bytes = torch.cuda.memory_allocated() if isinstance(self.clock, CudaClock) else 0
