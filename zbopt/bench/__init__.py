"""Solve a set of instances and compare the results with what is on record.

A set is a folder of instance files. Beside them there may be best_known.csv, with the best bound and value of each
instance and objective, and peers.csv, with what published schedulers reach.
"""

from zbopt.bench.files import (
    BEST_KNOWN,
    RESULTS,
    instance_files,
    read_best_known,
    read_peers,
    require_updatable,
    update_best_known,
)
from zbopt.bench.rows import BenchRow, BestKnown, Key, OtherEngineResult, Peer
from zbopt.bench.run import bench_set

__all__ = [
    "BEST_KNOWN",
    "RESULTS",
    "BenchRow",
    "BestKnown",
    "Key",
    "OtherEngineResult",
    "Peer",
    "bench_set",
    "instance_files",
    "read_best_known",
    "read_peers",
    "require_updatable",
    "update_best_known",
]
