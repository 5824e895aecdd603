"""A GPU beside this machine's cores: seconds and money of an epoch, and whether the networks learn the same.

    python -m benchmarks.pytorch.gpu [--repeats 3]      # needs a GPU of NVIDIA's

Each run is a job of its own with a fixed allocation. Two workers share the first GPU where there is one alone. Rows in
results/pytorch/gpu.csv, which are not run again.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from benchmarks import harness
from coach.platforms.local.cluster import machine

COMMAND = "python -m benchmarks.pytorch.gpu"
FOLDER = harness.RESULTS / "pytorch"
KEYS = ("network", "workers", "device", "repeat")
VALUES = ("train_seconds", "first_start_seconds", "loss", "accuracy")
EPOCHS = 3
NETWORKS = {"LeNet": "lenet.py:LeNet", "ResNet-18": "resnet18.py:ResNet18"}
PLACES = [(1, "GPU"), (2, "GPU"), (1, "GPU, bfloat16"), (1, "cores")]


def job(network: str, workers: int, device: str) -> Any:
    """The digits with one of the networks, for EPOCHS epochs."""
    (spec,) = harness.load("jobs/lenet-digits-pytorch.yaml")
    cores = max(1, len(os.sched_getaffinity(0)) // 2)
    worker = {"cpu": cores, "memory": "4Gi", "gpu": int(device.startswith("GPU"))}
    more = {"autocast": "bfloat16"} if "bfloat16" in device else {}
    changed = harness.changed(
        spec,
        model={"file": f"{harness.ROOT}/functions/models/pytorch/{NETWORKS[network]}"},
        target={"loss": 1e-6, "epochsInARow": 1},
        budget={"unlimited": True},
        maxEpochs=EPOCHS,
        resources={"scheduler": {"cpu": "50m", "memory": "256Mi"}, "worker": worker},
        **more,
    )
    return harness.static(changed, workers, 0)


def run(network: str, workers: int, device: str, repeat: int) -> dict[str, Any]:
    """One run's row: seconds of training an epoch (median of all but the first), the last epoch's loss."""
    with tempfile.TemporaryDirectory() as folder:
        nodes = Path(folder, "nodes.yaml")
        here = {"name": "this-machine", "cpu": len(os.sched_getaffinity(0)) + 1, "memory": "32Gi", "gpu": 2}
        nodes.write_text(yaml.safe_dump({"nodes": [here]}))
        (done,) = harness.run([job(network, workers, device)], str(nodes))
    reports = [epoch.report for epoch in done.epochs]
    if len(reports) != EPOCHS:
        raise SystemExit(f"{network}, {workers}, {device}: {done.reason.value}: {done.message}")
    return {
        "network": network,
        "workers": workers,
        "device": device,
        "repeat": repeat,
        "train_seconds": statistics.median(each.train_seconds for each in reports[1:]),
        "first_start_seconds": reports[0].train_started_at - done.progress.submitted_at,
        "loss": reports[-1].loss,
        "accuracy": reports[-1].accuracy,
    }


def write(rows: harness.Rows) -> None:
    """The table of what there is so far."""
    table = []
    for network in NETWORKS:
        for workers, device in PLACES:
            of = rows.of(network=network, workers=workers, device=device)
            if not of:
                continue
            middle = {value: statistics.median(float(row[value]) for row in of) for value in VALUES}
            table.append(
                {
                    "network": network,
                    "workers": workers,
                    "computes on": device,
                    "runs": len(of),
                    "s an epoch": f"{middle['train_seconds']:.2f}",
                    "s until training": f"{middle['first_start_seconds']:.1f}",
                    "loss": f"{middle['loss']:.4f}",
                    "accuracy": f"{middle['accuracy']:.4f}",
                }
            )
    cores = len(os.sched_getaffinity(0))
    harness.write_table(
        FOLDER / "gpu.md",
        "A GPU beside cores (medians)",
        COMMAND,
        table,
        f'{graphics()}. "Cores" are {max(1, cores // 2)} of the machine\'s {cores}. Two workers share the one GPU '
        "where there is no second, and exchange by gloo through the CPU's memory. "
        f"Loss and accuracy after {EPOCHS} epochs.",
    )


def graphics() -> str:
    """The name of the first GPU, and its driver's version."""
    asked = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    found = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()
    name, driver = found[0].split(", ")
    return f"{len(found)} {name}, driver {driver}"


def main() -> None:
    """Run what is missing."""
    options = harness.piecewise(__doc__).parse_args()
    if machine().gpu < 1 and not options.tables:
        raise SystemExit("this machine has no GPU (no /proc/driver/nvidia/gpus, no /dev/nvidia0)")
    rows = harness.Rows(FOLDER / "gpu.csv", KEYS)
    wanted = [
        (network, *place, repeat) for repeat in range(options.repeats) for place in PLACES for network in NETWORKS
    ]
    harness.measure(rows, wanted, run, partial(write, rows), options)


if __name__ == "__main__":
    main()
