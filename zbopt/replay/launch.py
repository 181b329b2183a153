"""Start the processes of a run on this machine, watch them, and report which one failed, where and how."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from zbopt.problem.schedule import Schedule
from zbopt.replay.checks import checked_actions
from zbopt.replay.spec import Job, Jobs

_POLL_S = 0.05
"""Time between two looks at the processes. Not measured; chosen so that a run ends promptly and looking is cheap."""
GRACE_S = 2.0
"""Time that a process has beyond the timeout to notice it, report and exit. Not measured; chosen for a busy machine."""


class ReplayError(ValueError):
    """Signal that a run failed; the message names the process, the op, and how to go on."""


TORCH = "2.13"
"""Version of torch that the adapter is written for: the runtime's private interface changes between minor versions."""


def require_torch() -> None:
    """Raise ``ReplayError`` where torch is not installed, or in another version than the adapter is written for."""
    if find_spec("torch") is None:
        raise ReplayError("torch is not installed; install zbopt[replay]")
    found = version("torch")
    if not found.startswith(TORCH + "."):
        raise ReplayError(f"torch {found} is installed, but replay needs {TORCH}; install zbopt[replay]")


def launch(jobs: Sequence[Job], processes: int, *, timeout_s: float = 60.0) -> list[dict[str, Any]]:
    """Run ``jobs`` one after the other in ``processes`` local processes.

    Args:
        jobs: The jobs.
        processes: Stages times replicas, or 1.
        timeout_s: Longest time that a process waits for another.

    Returns:
        The result of each job.

    Raises:
        ReplayError: torch is missing, or a process failed, was killed or hung.
    """
    require_torch()
    with tempfile.TemporaryDirectory(prefix="zbopt-replay-") as name:
        folder = Path(name)
        job_list = Jobs(
            jobs=tuple(jobs),
            timeout_s=timeout_s,
            rendezvous=str(folder / "rendezvous"),
            results=str(folder / "results.json"),
            activity=name,
        )
        (folder / "jobs.json").write_text(job_list.model_dump_json(), encoding="utf-8")
        team = _LocalProcesses(folder, processes)
        try:
            team.wait(timeout_s)
        finally:
            team.kill()
        results: list[dict[str, Any]] = json.loads((folder / "results.json").read_text(encoding="utf-8"))
        return results


def under_torchrun() -> bool:
    """Tell whether torchrun, or a launcher like it, started this process as one of several."""
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()


def execute(jobs: Sequence[Job], schedule: Schedule | None, *, timeout_s: float) -> list[dict[str, Any]] | None:
    """Run ``jobs`` in new local processes, or in this one where torchrun started it.

    Args:
        jobs: Jobs with the same device, processes and replicas.
        schedule: The schedule that they run, checked before anything starts; ``None`` for a profile.
        timeout_s: Longest time that a process waits for another.

    Returns:
        The result of each job; under torchrun ``None`` on every rank but the first.

    Raises:
        CannotReplayError: PyTorch's runtime would silently err on the schedule.
        ReplayError: torch is missing, or a process failed.
    """
    require_torch()
    first = jobs[0]
    processes = 1
    if schedule is not None:
        if not first.damage:
            checked_actions(schedule, single_process=first.single_process)
        processes = 1 if first.single_process else schedule.instance.stages * first.training.data_parallel
    if not under_torchrun():
        return launch(jobs, processes, timeout_s=timeout_s)
    _require_world(processes)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # torchrun ends processes by SIGTERM, also one that waits in C code
    from zbopt.replay.worker import run_all  # imported here, so that commands that run nothing do not load torch

    return run_all(Jobs(jobs=tuple(jobs), timeout_s=timeout_s, results=""))


def costs_of(job: Job, virtual_stages: int, timeout_s: float) -> dict[str, Any]:
    """Measure time in ns and memory in bytes of each virtual stage of ``job``'s network, on the job's device.

    Returns:
        One list by virtual stage for each figure of ``measure.measure``.

    Raises:
        ReplayError: torchrun started several processes.
    """
    alone = {"task": "profile", "virtual_stages": virtual_stages, "single_process": True, "schedule": None}
    results = execute([job.model_copy(update=alone)], None, timeout_s=timeout_s)
    if not results:
        raise ReplayError("costs are measured in one process; call it without torchrun")
    return results[0]


def _require_world(processes: int) -> None:
    """Refuse a wrong number of processes at once, because each would wait for others that may never come.

    Raises:
        ReplayError: torchrun started more or fewer processes, or its environment variables are not numbers.
    """
    given = {name: os.environ[name] for name in ("RANK", "WORLD_SIZE")}
    for name, text in given.items():
        if not text.isdecimal():
            raise ReplayError(f"{name} = {text!r} is not a whole number; start the processes with torchrun")
    if int(given["WORLD_SIZE"]) != processes:
        raise ReplayError(
            f"{given['WORLD_SIZE']} processes for {processes} (stages times replicas, or 1 with --single-process); "
            f"start {processes}"
        )


def _context() -> ForkServerContext | SpawnContext:
    """Return how to start processes: forked from one that has loaded torch, or spawned where the system cannot fork.

    Loading torch takes seconds; forked processes share one load.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["zbopt.replay.worker"])
    with _ignoring_ctrl_c(), _without_current_folder():
        forkserver.ensure_running()
    return context


@contextmanager
def _without_current_folder() -> Iterator[None]:
    """Keep Pythons started inside from importing a file of the current folder, such as a user's ``queue.py``."""
    given = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        if given is None:
            del os.environ["PYTHONSAFEPATH"]
        else:
            os.environ["PYTHONSAFEPATH"] = given


@contextmanager
def _ignoring_ctrl_c() -> Iterator[None]:
    """Let processes started inside ignore Ctrl-C.

    A terminal sends Ctrl-C to every process; only this one reacts, and it ends the others.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _member(folder: str, rank: int, processes: int) -> None:
    """Run one process: redirect its output to a file, and set the environment variables that torchrun would set."""
    if not Path(folder).is_dir():
        raise SystemExit(1)  # the run was ended while torch was loading, and nobody reads what this process finds
    threading.Thread(target=_end_with, args=(multiprocessing.parent_process(),), daemon=True).start()
    with (Path(folder) / f"rank{rank}.err").open("wb") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(processes)}
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    from zbopt.replay.worker import main  # imported here, so that the launching process does not load torch

    raise SystemExit(main([str(Path(folder) / "jobs.json")]))


def _end_with(parent: BaseProcess | None) -> None:
    """End this process when its parent ends, perhaps killed: nobody would read its results."""
    if parent is not None:
        parent.join()
        os._exit(1)


def patience_ends(failed_at: float, since: float | None, timeout_s: float) -> float:
    """Return the time at which a process that still runs after another's failure is given up.

    A process that waits for another has waited at most since its last op began, and reports by itself once the timeout
    has passed from then. A halted process never reports; it may have been silent for longer than the timeout already.

    Args:
        failed_at: When the first failure was seen.
        since: When the process began its current op; ``None``: unknown.
        timeout_s: Longest time that a process waits for another.
    """
    return max(failed_at, min(failed_at, since or failed_at) + timeout_s) + GRACE_S


class _LocalProcesses:
    """Start, watch and end the processes of one run."""

    def __init__(self, folder: Path, processes: int) -> None:
        self.folder = folder
        context = _context()
        self.members = [
            context.Process(target=_member, args=(str(folder), rank, processes), daemon=True)
            for rank in range(processes)
        ]
        for member in self.members:
            member.start()

    def wait(self, timeout_s: float) -> None:
        """Wait until all processes have ended.

        Raises:
            ReplayError: One failed. The others then have until ``patience_ends`` to report; later ones count as hung.
        """
        while any(member.exitcode is None for member in self.members):
            if any(member.exitcode for member in self.members):
                self._after_failure(timeout_s)
            time.sleep(_POLL_S)
        if any(member.exitcode for member in self.members):
            self._after_failure(timeout_s)

    def _after_failure(self, timeout_s: float) -> None:
        """Give the other processes time to report, and raise an error that blames one process.

        A killed process is blamed first, then the one that has hung longest, then the first that failed: the failures
        of the others follow from it.
        """
        failed = [rank for rank, member in enumerate(self.members) if member.exitcode]
        began = time.monotonic()
        while any(
            member.exitcode is None and time.monotonic() < patience_ends(began, self._activity(rank)[0], timeout_s)
            for rank, member in enumerate(self.members)
        ):
            time.sleep(_POLL_S)
        took = time.monotonic() - began
        alive = [rank for rank, member in enumerate(self.members) if member.exitcode is None]
        hung = sorted(alive, key=lambda rank: self._activity(rank)[0] or began)
        killed = [rank for rank in failed if (self.members[rank].exitcode or 0) < 0]
        blamed = (killed or hung or failed)[0]
        others = f"the others ended {took:.1f} s later" if not hung else f"{len(hung)} hung and were killed"
        raise ReplayError(f"process {blamed} of {len(self.members)} {self._ending(blamed)}; {others}")

    def _ending(self, rank: int) -> str:
        """Say in words how a process ended, or that it hangs."""
        code = self.members[rank].exitcode
        since, op = self._activity(rank)
        place = f" in {op}" if op else " before its first op"
        if code is None:
            silent = f" for {time.monotonic() - since:.1f} s" if since else ""
            return f"does not answer{place}{silent}; resume from the last checkpoint with --resume"
        if code < 0:
            name = signal.Signals(-code).name
            return f"was killed by {name}{place}; resume from the last checkpoint with --resume"
        path = self.folder / f"rank{rank}.err"
        lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines() if path.is_file() else []
        return f"failed{place}: {lines[-1] if lines else f'exit status {code}'}"

    def _activity(self, rank: int) -> tuple[float | None, str]:
        """Return when a process began its current op, and which op that is; ``None`` and ``""`` before its first op."""
        path = self.folder / f"rank{rank}"
        since, _, text = path.read_text(encoding="utf-8").strip().partition(" ") if path.is_file() else ("", "", "")
        return (float(since), text) if text else (None, "")

    def kill(self) -> None:
        """Kill every process that still runs, also a stopped one."""
        for member in self.members:
            if member.exitcode is None:
                member.kill()
            member.join()
