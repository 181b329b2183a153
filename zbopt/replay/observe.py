"""What happens in a step, op by op: times, memory, checksums. One recorder a process; times are in nanoseconds."""

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
    """The system's monotonic clock, common to the processes of one machine."""

    def __init__(self) -> None:
        self._origin = 0

    def start(self, origin: int) -> None:
        """Count from ``origin``, a value of ``now``."""
        self._origin = origin

    @staticmethod
    def now() -> int:
        """This machine's monotonic time."""
        return time.perf_counter_ns()

    def stamp(self) -> object:
        """A moment, to be read later by ``read``."""
        return time.perf_counter_ns()

    def read(self, stamp: Any) -> int:
        """Nanoseconds since the origin."""
        return int(stamp) - self._origin


class CudaClock:
    """Events on the compute stream: when the device got there, not when the host asked."""

    def __init__(self) -> None:
        self._origin = torch.cuda.Event(enable_timing=True)

    def start(self, origin: int) -> None:
        """Count from now: the ranks have just met at a barrier, so ``origin`` of another device is of no use."""
        torch.cuda.synchronize()
        self._origin.record()

    @staticmethod
    def now() -> int:
        """This machine's monotonic time, of the host."""
        return time.perf_counter_ns()

    def stamp(self) -> object:
        """An event recorded on the compute stream."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def read(self, stamp: Any) -> int:
        """Nanoseconds between the origin and the event; waits for both."""
        stamp.synchronize()
        return round(float(self._origin.elapsed_time(stamp)) * 1e6)


def core_wait_ns() -> int:
    """How long this process's threads were ready to run without a core, in all; 0 where the system does not say."""
    total = 0
    for path in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError):  # a thread that has ended meanwhile
            total += int(path.read_text(encoding="ascii").split()[1])
    return total


class _Held:
    """A tensor kept for autograd; its death is seen by a finalizer. Holds the detached one, or nothing would die."""

    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


class MemoryMeter:
    """Bytes that are kept for backward passes: saved tensors and queued weight products, each storage once."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self._ignored = {p.untyped_storage().data_ptr() for p in parameters}
        self._data: set[int] = set()
        self._count: dict[int, int] = {}
        self._size: dict[int, int] = {}

    def ignore(self, *data: Tensor) -> None:
        """Inputs and targets of this step, in place of the last one's: they lie there whatever is kept for backward."""
        self._data = {tensor.untyped_storage().data_ptr() for tensor in data}

    def hold(self, tensor: Tensor) -> _Held:
        """Count ``tensor`` until the returned object dies."""
        held = _Held(tensor.detach())
        storage = tensor.untyped_storage()
        key = storage.data_ptr()
        if key not in self._ignored and key not in self._data:
            self._count[key] = self._count.get(key, 0) + 1
            self._size[key] = storage.nbytes()
            weakref.finalize(held, self._drop, key)
        return held

    def _drop(self, key: int) -> None:
        self._count[key] -= 1
        if not self._count[key]:
            del self._count[key], self._size[key]

    def bytes(self) -> int:
        """Bytes live now."""
        return sum(self._size.values())

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Count what autograd saves inside."""
        with torch.autograd.graph.saved_tensors_hooks(self.hold, lambda held: held.tensor):
            yield


def checksum(*tensors: Tensor) -> str:
    """Twelve hex digits of the SHA-256 of the tensors' bytes."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:12]


class Progress:
    """A small file, mapped into memory, that says since when this process is doing what: read when it is dead."""

    SIZE = 64

    def __init__(self, path: Path) -> None:
        path.write_bytes(b" " * self.SIZE)
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), self.SIZE)

    def note(self, text: str) -> None:
        """Replace what the file says."""
        self._map[:] = f"{time.monotonic():.3f} {text}".encode()[: self.SIZE].ljust(self.SIZE)


@dataclass
class Record:
    """One op as it ran. ``asked`` is when the engine turned to it; until ``start`` it waited for its input."""

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
    """Collects the records of one step."""

    def __init__(self, clock: CpuClock | CudaClock, meter: MemoryMeter | None, progress: Progress | None) -> None:
        self.clock, self.meter, self.progress = clock, meter, progress
        self.records: list[Record] = []
        self.checksums, self.counts_cores = False, False
        self._core_wait_ns = 0
        self.where = ""
        self._asked: object = None

    def begin_step(self, where: str) -> None:
        """Forget the last step; ``where`` (such as ``step 3``) opens every note of progress."""
        self.records = []
        self.where = where
        self._core_wait_ns = core_wait_ns() if self.counts_cores else 0

    def asked(self, action: str) -> None:
        """The engine turns to ``action``."""
        self._asked = self.clock.stamp()
        if self.progress is not None:
            self.progress.note(f"{self.where} {action}")

    @contextmanager
    def op(self, virtual_stage: int | None, kind: Kind, microbatch: int | None) -> Iterator[Record]:
        """One op runs inside."""
        watching = nullcontext() if self.meter is None or kind is not Kind.F else self.meter.watching()
        start = self.clock.stamp()
        record = Record(virtual_stage, kind, microbatch, self._asked or start, start)
        with watching:
            yield record
        self.records.append(record)
        self._end(record)

    @contextmanager
    def still(self) -> Iterator[None]:
        """What runs inside belongs to the F before: the loss, which the engine computes after the last one."""
        with nullcontext() if self.meter is None else self.meter.watching():
            yield
        if self.records:
            self._end(self.records[-1])

    def _end(self, record: Record) -> None:
        record.end = self.clock.stamp()
        if self.counts_cores:
            before, self._core_wait_ns = self._core_wait_ns, core_wait_ns()
            record.core_wait_ns += self._core_wait_ns - before
        record.memory_bytes = self.meter.bytes() if self.meter else 0
        record.allocated_bytes = torch.cuda.memory_allocated() if isinstance(self.clock, CudaClock) else 0
