"""Starts the processes of a run on this machine, watches them, and says which one failed, where and how."""

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
from zbopt.replay.checks import refuse
from zbopt.replay.spec import Job, Jobs

_POLL_S = 0.05
GRACE_S = 2.0
"""Beyond the timeout: what a process needs to notice, report and exit."""


class ReplayError(ValueError):
    """A run that failed; the message names the process, the op, and how to go on."""


TORCH = "2.13"
"""The engine's interface is private and moves from minor version to minor version."""


def require_torch() -> None:
    """Raises ``ReplayError`` where torch is not installed, or not in the version that the engine's adapter knows."""
    if find_spec("torch") is None:
        raise ReplayError("torch is not installed; install zbopt[replay]")
    found = version("torch")
    if not found.startswith(TORCH + "."):
        raise ReplayError(f"torch {found} is installed, replay is written for {TORCH}; install zbopt[replay]")


def launch(jobs: Sequence[Job], processes: int, *, timeout_s: float = 60.0) -> list[dict[str, Any]]:
    """Run ``jobs`` one after the other in ``processes`` local processes.

    Args:
        jobs: What to do.
        processes: Stages times replicas, or 1.
        timeout_s: Longest wait of a process for another.

    Returns:
        Each job's result.

    Raises:
        ReplayError: torch is missing, or a process failed, was killed or hung.
    """
    require_torch()
    with tempfile.TemporaryDirectory(prefix="zbopt-replay-") as name:
        folder = Path(name)
        told = Jobs(
            jobs=tuple(jobs),
            timeout_s=timeout_s,
            rendezvous=str(folder / "rendezvous"),
            results=str(folder / "results.json"),
            progress=name,
        )
        (folder / "jobs.json").write_text(told.model_dump_json(), encoding="utf-8")
        team = _Team(folder, processes)
        try:
            team.wait(timeout_s)
        finally:
            team.kill()
        results: list[dict[str, Any]] = json.loads((folder / "results.json").read_text(encoding="utf-8"))
        return results


def under_torchrun() -> bool:
    """This process is one of several that torchrun, or something like it, started."""
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()


def execute(jobs: Sequence[Job], schedule: Schedule | None, *, timeout_s: float) -> list[dict[str, Any]] | None:
    """Run ``jobs`` wherever this is: in processes of their own, or as one of those that torchrun started.

    Args:
        jobs: Alike in device, processes and replicas.
        schedule: What they run, checked before anything starts; ``None`` for a profile.
        timeout_s: Longest wait of a process for another.

    Returns:
        The results, or ``None`` on every rank but the first under torchrun.

    Raises:
        RefusedError: The engine would silently err.
        ReplayError: torch is missing, or a process failed.
    """
    require_torch()
    first = jobs[0]
    processes = 1
    if schedule is not None:
        if not first.damage:
            refuse(schedule, single_process=first.single_process)
        processes = 1 if first.single_process else schedule.instance.stages * first.training.data_parallel
    if not under_torchrun():
        return launch(jobs, processes, timeout_s=timeout_s)
    _require_world(processes)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # torchrun ends its processes by it, and one may wait for another
    from zbopt.replay.worker import run_all  # here, so that what needs no run needs no torch

    return run_all(Jobs(jobs=tuple(jobs), timeout_s=timeout_s, results=""))


def costs_of(job: Job, virtual_stages: int, timeout_s: float) -> dict[str, Any]:
    """What each virtual stage of ``job``'s network takes and keeps on its device, in ns and bytes.

    Raises:
        ReplayError: Several processes were started for it.
    """
    alone = {"task": "profile", "virtual_stages": virtual_stages, "single_process": True, "schedule": None}
    results = execute([job.model_copy(update=alone)], None, timeout_s=timeout_s)
    if not results:
        raise ReplayError("costs are measured in one process; call it without torchrun")
    return results[0]


def _require_world(processes: int) -> None:
    """Refuse a wrong number of processes at once: each would wait for others that may never come.

    Raises:
        ReplayError: torchrun started more or fewer, or its environment is none.
    """
    given = {name: os.environ[name] for name in ("RANK", "WORLD_SIZE")}
    for name, text in given.items():
        if not text.isdecimal():
            raise ReplayError(f"{name} = {text!r} is no whole number; start the processes with torchrun")
    if int(given["WORLD_SIZE"]) != processes:
        raise ReplayError(
            f"{given['WORLD_SIZE']} processes for {processes} (stages times replicas, or 1 for a single process); "
            f"start {processes}"
        )


def _context() -> ForkServerContext | SpawnContext:
    """Processes are forked from one that has loaded torch, which takes seconds; spawned where there is no fork."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["zbopt.replay.worker"])
    with _deaf_to_ctrl_c(), _no_current_folder():
        forkserver.ensure_running()
    return context


@contextmanager
def _no_current_folder() -> Iterator[None]:
    """Keep Pythons that start now from importing a file of the current folder, such as a user's ``queue.py``."""
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
def _deaf_to_ctrl_c() -> Iterator[None]:
    """What starts now takes no notice of Ctrl-C, which a terminal sends to all: this process ends the others."""
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
    """One process of a run: its output goes to a file, its place into the environment, as torchrun has it."""
    if not Path(folder).is_dir():
        raise SystemExit(1)  # the run was ended while torch was loading, and nobody listens
    threading.Thread(target=_end_with, args=(multiprocessing.parent_process(),), daemon=True).start()
    with (Path(folder) / f"rank{rank}.err").open("wb") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(processes)}
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    from zbopt.replay.worker import main  # here, so that the launching process needs no torch

    raise SystemExit(main([str(Path(folder) / "jobs.json")]))


def _end_with(parent: BaseProcess | None) -> None:
    """End this process when the one that launches has gone, killed perhaps: nobody wants its results any more."""
    if parent is not None:
        parent.join()
        os._exit(1)


def patience_ends(failed_at: float, since: float | None, timeout_s: float) -> float:
    """When a process that still runs after another's failure is given up.

    Whoever waits for another has done so since its last op began, and reports by itself when that is the timeout ago.
    A halted one reports never: the first failure has already outwaited its silence.

    Args:
        failed_at: When the first failure was seen.
        since: When the process turned to what it does; ``None``: unknown.
        timeout_s: Longest wait of a process for another.
    """
    return max(failed_at, min(failed_at, since or failed_at) + timeout_s) + GRACE_S


class _Team:
    """The processes of one run."""

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
        """Until all have ended well. After a failure the others have until ``patience_ends``; then they are killed."""
        while any(member.exitcode is None for member in self.members):
            if any(member.exitcode for member in self.members):
                self._after_failure(timeout_s)
            time.sleep(_POLL_S)
        if any(member.exitcode for member in self.members):
            self._after_failure(timeout_s)

    def _after_failure(self, timeout_s: float) -> None:
        failed = [rank for rank, member in enumerate(self.members) if member.exitcode]
        began = time.monotonic()
        while any(
            member.exitcode is None and time.monotonic() < patience_ends(began, self._doing(rank)[0], timeout_s)
            for rank, member in enumerate(self.members)
        ):
            time.sleep(_POLL_S)
        took = time.monotonic() - began
        alive = [rank for rank, member in enumerate(self.members) if member.exitcode is None]
        hung = sorted(alive, key=lambda rank: self._doing(rank)[0] or began)
        killed = [rank for rank in failed if (self.members[rank].exitcode or 0) < 0]
        blamed = (killed or hung or failed)[0]
        ending = f"the others ended {took:.1f} s later" if not hung else f"{len(hung)} hung and were killed"
        raise ReplayError(f"process {blamed} of {len(self.members)} {self._fate(blamed)}; {ending}")

    def _fate(self, rank: int) -> str:
        code = self.members[rank].exitcode
        since, what = self._doing(rank)
        doing = f" in {what}" if what else " before its first op"
        if code is None:
            silent = f" for {time.monotonic() - since:.1f} s" if since else ""
            return f"does not answer{doing}{silent}; resume from the last checkpoint with --resume"
        if code < 0:
            name = signal.Signals(-code).name
            return f"was killed by {name}{doing}; resume from the last checkpoint with --resume"
        path = self.folder / f"rank{rank}.err"
        lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines() if path.is_file() else []
        return f"failed{doing}: {lines[-1] if lines else f'exit status {code}'}"

    def _doing(self, rank: int) -> tuple[float | None, str]:
        """Since when a process does what; ``None``: it has not begun."""
        path = self.folder / f"rank{rank}"
        since, _, text = path.read_text(encoding="utf-8").strip().partition(" ") if path.is_file() else ("", "", "")
        return (float(since), text) if text else (None, "")

    def kill(self) -> None:
        """End whoever still runs, a stopped one too."""
        for member in self.members:
            if member.exitcode is None:
                member.kill()
            member.join()
