"""Steps/s of PyTorch jobs beside the same training without Coach: one process, and DistributedDataParallel over gloo.

    python -m benchmarks.pytorch.speed              # results/pytorch/speed.md and .csv, resumable run by run

Coach's figure is of whole epochs without their first step, data loading included, as the others'. All use one thread a
process, the same batches and plain SGD. Evaluation and checkpoints, which the others do not do, are not counted.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from typing import Any

from benchmarks import harness
from coach.core.spec.job import TrainingJob
from coach.platforms.local import pytorch_runtime

FOLDER = harness.RESULTS / "pytorch"
DIGITS = harness.ROOT / ".data/mnist-digits"
#: Each net's batch and steps.
NETS = {"LeNet": (128, 124), "Mlp": (128, 62), "Transformer": (64, 90)}
WAYS = (("plain", 1), ("coach", 1), ("ddp", 2), ("coach", 2))


def job(net: str, workers: int) -> TrainingJob:
    """Two epochs with a fixed number of workers."""
    batch, steps = NETS[net]
    data = {"format": "custom"} if net == "Transformer" else {"uri": f"file://{DIGITS}", "format": "digits-json"}
    role = {"cpu": "500m", "memory": "2Gi"}
    return TrainingJob.from_json(
        {
            "apiVersion": "coach.dev/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {"name": net.lower()},
            "spec": {
                "framework": "pytorch",
                "model": {"file": f"file://{harness.ROOT}/benchmarks/pytorch/models.py", "net": net},
                "data": data | {"size": batch * steps},
                "target": {"loss": 1e-6},
                "budget": {"unlimited": True},
                "maxEpochs": 2,
                "batchSize": batch,
                "workers": {"min": workers, "max": workers},
                "policy": {"name": "static", "workers": workers},
                "resources": {"scheduler": {"cpu": "50m", "memory": "512Mi"}, "worker": role},
                "optimizer": {"name": "SGD", "learningRate": 0.01},
                "seed": 1,
            },
        }
    )


def of_coach(net: str, workers: int) -> float:
    """Steps/s of the epochs after the first, whose data is not read yet."""
    (done,) = harness.run([job(net, workers)])
    (report,) = [epoch.report for epoch in done.full_epochs[1:]]
    return report.samples / NETS[net][0] / report.train_seconds


def without_coach(net: str, workers: int) -> float:
    """Steps/s of benchmarks/pytorch/plain.py."""
    batch, steps = NETS[net]
    script = harness.ROOT / "benchmarks/pytorch/plain.py"
    numbers = [net, workers, steps, batch, DIGITS]
    done = subprocess.run(
        [str(pytorch_runtime.torch().python), str(script), *map(str, numbers)],
        env={**os.environ, "PYTHONPATH": str(harness.ROOT / "functions"), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return float(json.loads(done.stdout.splitlines()[-1]))


def one(net: str, way: str, workers: int, repeat: int) -> Mapping[str, Any]:
    """One run, as a row."""
    speed = of_coach(net, workers) if way == "coach" else without_coach(net, workers)
    load = f"{os.getloadavg()[0]:.1f}"
    return {
        "net": net,
        "way": way,
        "workers": workers,
        "repeat": repeat,
        "steps_per_second": f"{speed:.3f}",
        "load": load,
    }


def main() -> None:
    """Do what is left of the runs, one after the other in turn, and write the table."""
    parser = harness.piecewise(__doc__, repeats=5)
    args = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    rows = harness.Rows(FOLDER / "speed.csv", ("net", "way", "workers", "repeat"))
    wanted = [(net, *way, repeat) for repeat in range(args.repeats) for net in NETS for way in WAYS]

    def write() -> None:
        table(rows)

    harness.measure(rows, wanted, one, write, args)


def table(rows: harness.Rows) -> None:
    """Medians, and what part of the other's speed Coach reaches."""
    if any(not rows.of(net=net, way=way, workers=workers) for net in NETS for way, workers in WAYS):
        return
    found = pytorch_runtime.torch()
    shown = []
    for net in NETS:
        plain, single, ddp, double = (rows.median("steps_per_second", net=net, way=w, workers=n) for w, n in WAYS)
        shown.append(
            {
                "net": net,
                "plain, 1 process": round(plain, 1),
                "Coach, 1 worker": round(single, 1),
                "ratio (goal: 0.95)": round(single / plain, 2),
                "DDP, 2 processes": round(ddp, 1),
                "Coach, 2 workers": round(double, 1),
                "ratio (goal: 0.9)": round(double / ddp, 2),
            }
        )
    title = f"Steps a second in PyTorch {found.torch}, with Coach and without"
    repeats = len(rows.of(net="LeNet", way="plain"))
    note = f"Medians of {repeats} interleaved runs; speed.csv has all, with the machine's load."
    harness.write_table(FOLDER / "speed.md", title, "python -m benchmarks.pytorch.speed", shown, note)


if __name__ == "__main__":
    main()
