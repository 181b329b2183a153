"""Solve a set of instances and hold the results against what is known of it.

A set is a folder of instance files, with best_known.csv (best bound and value by instance and objective) and peers.csv
(what published schedulers reach on the instance) beside them, if there are any.
"""

from zbopt.bench.files import BEST_KNOWN, RESULTS, instance_files, read_best_known, read_peers, update_best_known
from zbopt.bench.rows import BenchRow, Key, Known, Peer, Reference
from zbopt.bench.run import bench_set

__all__ = [
    "BEST_KNOWN",
    "RESULTS",
    "BenchRow",
    "Key",
    "Known",
    "Peer",
    "Reference",
    "bench_set",
    "instance_files",
    "read_best_known",
    "read_peers",
    "update_best_known",
]
