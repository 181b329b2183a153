"""Record what version 0.1 printed, for ``test_v01.py``: run on a checkout of that version, ``python record.py``.

Each call runs in this folder, twice. ``calls.json`` keeps its arguments, its exit code, the JSON object that it printed
and the keys whose values differed between the two runs. ``{out}`` in an argument is a file in an empty folder; where
a call writes one, its text is kept too.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SMALL = ["--stages", "4", "--micro", "8"]
UNITS = ["--forward", "18.522ms", "--backward", "18.086ms", "--weight", "9.337ms", "--comm", "0.601ms"]
UNEVEN = ["--forward", "5,6,4,7", "--backward", "6,6,5,8", "--weight", "3,4,3,5"]
SCHEDULES: dict[str, list[str]] = {
    "linear": [*SMALL, "--mem-limit", "6"],
    "v": [*SMALL, "--placement", "v", "--mem-limit", "4"],
    "fused": [*SMALL, "--fused-backward", "2"],
    "units": [*SMALL, *UNITS, "--mem-limit", "4"],
    "step": [*SMALL, "--barrier", "global", "--optimizer", "2", "--reduction", "3", "--barrier-time", "1"],
    "links": [*SMALL, "--communication", "link", "--comm", "1"],
    "recompute": [*SMALL, "--recompute", "always", "--mem-limit", "3", "--checkpoint", "0.5"],
    "no-first-b": [*SMALL, "--backward", "none,1,1,1", "--weight", "2,1,1,1"],
}
SOLVES: dict[str, list[str]] = {
    **SCHEDULES,
    "uneven": [*SMALL, *UNEVEN, "--mem-limit", "4"],
    "caps": [*SMALL, "--mem-limit", "4,4,3,2"],
    "infeasible": [*SMALL, "--mem-limit", "1,1,1/2,1"],
    "span": [*SMALL, "--mem-limit", "6", "--objective", "max-stage-span"],
    "share": [*SMALL, "--mem-limit", "5", "--weight-share", "0.5"],
    "interleaved": [*SMALL, "--placement", "interleaved", "--virtual", "2", "--mem-limit", "6"],
    "bidirectional": [*SMALL, "--placement", "bidirectional"],
    "auto": [*SMALL, "--mem-limit", "4", "--placement", "auto"],
    "explicit": [*SMALL, "--placement", "0,1,2,3,0,1,2,3", "--forward", "2", "--backward", "2"],
    "post-validation": [*SMALL, "--barrier", "post-validation", "--optimizer", "2", "--iterations", "2"],
    "period": [*SMALL, "--barrier", "post-validation", "--iterations", "3", "--objective", "period"],
    "blocking": [*SMALL, "--communication", "blocking", "--comm", "1"],
    "offload": [*SMALL, "--offload", "always", "--offload-time", "1", "--mem-limit", "4"],
    "overlapped": [*SMALL, "--placement", "v", "--fused-backward", "2", "--overlapped", "3"],
    "memory": [*SMALL, "--parameters", "3", "--gradients", "3", "--workspace", "1/2", "--mem-limit", "14"],
    "gradient-state": [*SMALL, "--gradient-state", "0.5", "--mem-limit", "6"],
    "inputs": ["--stages", "2", "--micro", "4", "--input-ready", "0,0,5,5", "--loss", "1"],
    "torch": [*SMALL, "--runtime", "torch"],
    "milp": ["--stages", "2", "--micro", "3", "--engine", "milp"],
    "deterministic": ["--stages", "3", "--micro", "7", "--mem-limit", "2", "--deterministic", "--time-limit", "3"],
    "file": ["uneven.instance.json"],
    "file-cap": ["uneven.instance.json", "--mem-limit", "3"],
    "wrong": ["--stages", "0", "--micro", "8"],
}
CALLS: dict[str, list[str]] = {
    **{f"solve-{name}": ["solve", *flags, "--json"] for name, flags in SOLVES.items()},
    "compare-linear": ["compare", *SCHEDULES["linear"], "--json"],
    "compare-v": ["compare", *SCHEDULES["v"], "--json"],
    "compare-files": ["compare", "linear.schedule.json", "fused.schedule.json", "--json"],
    **{f"validate-{name}": ["validate", f"{name}.schedule.json", "--json"] for name in SCHEDULES},
    **{f"ledger-{name}": ["ledger", f"{name}.schedule.json", "--json"] for name in ("linear", "recompute")},
    **{f"explain-{name}": ["explain", f"{name}.schedule.json", "--json"] for name in ("linear", "units", "links")},
    "validate-events": ["validate", "events.json", "--json"],
    "export-torch": ["export", "v.schedule.json", "--to", "torch-csv", "-o", "{out}"],
    "export-torch-comms": ["export", "linear.schedule.json", "--to", "torch-csv", "--comms", "-o", "{out}"],
    "export-trace": ["export", "units.schedule.json", "--to", "chrome-trace", "-o", "{out}"],
    "export-layout": [
        "export",
        "uneven.instance.json",
        "--to",
        "megatron-layout",
        "--layers",
        "4,4,4,4",
        "-o",
        "{out}",
    ],
    "export-jaxpp": ["export", "no-first-b.schedule.json", "--to", "jaxpp", "-o", "{out}"],
    "export-sail": ["export", "linear.schedule.json", "--to", "sail-zb", "-o", "{out}"],
    "import-torch": ["import", "order.csv", "--from", "torch-csv", "--json"],
    "import-torch-times": ["import", "order.csv", "--from", "torch-csv", "--instance", "v.instance.json", "--json"],
    "import-explain": ["import", "order.csv", "--from", "torch-csv", "--explain", "--time-limit", "3", "--json"],
}


def zbopt(arguments: list[str], out: Path) -> dict[str, Any]:
    """Run a call here and return its exit code, the object that it printed and the text of the file that it wrote."""
    call = [sys.executable, "-m", "zbopt", *(a.replace("{out}", str(out)) for a in arguments)]
    done = subprocess.run(call, cwd=HERE, capture_output=True, text=True, check=False)
    printed = json.loads(done.stdout) if "--json" in arguments and done.stdout else None
    return {"code": done.returncode, "printed": printed, "written": out.read_text() if out.exists() else None}


def different(one: Any, other: Any, at: str = "") -> set[str]:
    """Return the dotted keys at which two printed objects differ; a list counts as one value."""
    if isinstance(one, dict) and isinstance(other, dict):
        return {found for key in one for found in different(one[key], other.get(key), f"{at}.{key}".strip("."))}
    return set() if one == other else {at}


def main() -> None:
    """Write the schedules and instances, then ``calls.json``."""
    for name, flags in SCHEDULES.items():
        zbopt(["solve", *flags, "-o", f"{name}.schedule.json"], HERE / "none")
        schedule = json.loads((HERE / f"{name}.schedule.json").read_text())
        (HERE / f"{name}.instance.json").write_text(json.dumps(schedule["instance"], indent=1) + "\n")
    calls = {}
    for name, arguments in CALLS.items():
        runs = []
        for _ in range(2):
            with tempfile.TemporaryDirectory() as folder:
                runs.append(zbopt(arguments, Path(folder) / "out"))
        calls[name] = {"arguments": arguments, **runs[0], "differs": sorted(different(*(r["printed"] for r in runs)))}
    (HERE / "calls.json").write_text(json.dumps(calls, indent=1) + "\n")


if __name__ == "__main__":
    main()
